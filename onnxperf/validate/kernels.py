"""Measured kernels beside what each method says of them."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import numpy as np

import gpu_specs
from onnxperf.datasets import Table, kernels
from onnxperf.fitting import Array
from onnxperf.latency import Constants, estimate, shipped
from onnxperf.latency.cards import Cards
from onnxperf.latency.intervals import half_widths
from onnxperf.lower import Kernel, Kernels
from onnxperf.scoring.score import OF_KERNELS, SCORED, Pairs, Scored


def classes() -> tuple[str, ...]:
    """What measured kernels are reported as, in the order of the tables."""
    return tuple(dict.fromkeys(k.reported for k in kernels().values() if k.scored))


def reported(t: Table) -> str:
    """What a table is reported as: its own name where no dataset declares that."""
    return kernels()[t.name].reported if t.name in kernels() else t.name


def pairs(table: Table) -> Iterator[Pairs]:
    """The rows of a table that last long enough, by card, beside each method's answers.

    What the clock of the rig includes beside the kernel is added to answers; ranges are of what the clock reads, as
    the half-widths were derived (`derive.passes.missed`).
    """
    table = table.take(np.flatnonzero((table.seconds > table.least_s).any(axis=1)))
    long, known = table.seconds > table.least_s, kernels()[table.name]
    for name in OF_KERNELS:
        scored = SCORED[name]
        for j, (gpu, die) in enumerate(zip(table.gpus, table.dies, strict=True)):
            at = np.flatnonzero(long[:, j])
            if not len(at):
                continue
            constants = shipped(die if scored.left_out else "")
            seconds, width = answers(table, at, gpu, scored, constants)
            read = known.overhead(table.rig, "other" if scored.left_out else gpu, constants) + seconds
            low, high = read * np.exp(-width), read * np.exp(width)
            keys = at + (crc32(table.name.encode()) << 24)
            yield Pairs(reported(table), gpu, name, keys, table.seconds[at, j], read, low, high, table.test[at])


def answers(table: Table, rows: Array, gpu: str, scored: Scored, c: Constants) -> tuple[Array, Array]:
    """Seconds of some of a table's works [k] as its rig runs them on a card, and their half-widths, as logarithms."""
    works, device, known = [table.works[i] for i in rows], gpu_specs.load(gpu), kernels()[table.name]
    if scored.method.own_terms:
        found = estimate(
            Kernels(tuple(Kernel(str(i), "", (), w) for i, w in enumerate(works))), [device], scored.method, c
        )
        return found.seconds[:, 0] + known.beside_s(c), found.half_width[:, 0]
    return known.seconds(works, [device], c)[:, 0], half_widths(works, Cards([device], c))[:, 0]
