"""Measured kernels beside what each method says of them."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import numpy as np

import gpu_specs
from onnxperf.ground.fitting import Array
from onnxperf.lab.baselines.linear import layer_of
from onnxperf.lab.constants import left_out
from onnxperf.lab.datasets import Table, kernels
from onnxperf.lab.lines import FEWEST, line
from onnxperf.lab.validate.scored import ALL, LINEAR, OF_KERNELS, SCORED, Scored, chosen
from onnxperf.latency import Constants, estimate
from onnxperf.latency.cards import Cards
from onnxperf.latency.intervals import half_widths
from onnxperf.latency.method import BY_FAMILY
from onnxperf.lowering.lower import Kernel, Kernels
from onnxperf.scoring.score import Pairs

FEWEST_SHAPES = 8  # of a table on a card: two halves that tell a line


def classes() -> tuple[str, ...]:
    """What measured kernels are reported as, in the order of the tables."""
    return tuple(dict.fromkeys(k.reported for k in kernels().values() if k.scored))


def reported(t: Table) -> str:
    """What a table is reported as: its own name where no dataset declares that."""
    return kernels()[t.name].reported if t.name in kernels() else t.name


def pairs(table: Table, method: str = ALL) -> Iterator[Pairs]:
    """The rows of a table that last long enough, by card, beside the answers of each method, or of one.

    What the clock of the rig includes beside the kernel is added to answers; ranges are of what the clock reads, as
    the half-widths were derived (`derive.passes.missed`).
    """
    table = table.take(np.flatnonzero((table.seconds > table.least_s).any(axis=1)))
    long, measured = table.seconds > table.least_s, kernels()[table.name]
    for name in chosen(method, OF_KERNELS):
        scored = SCORED[name]
        for j, (gpu, die) in enumerate(zip(table.gpus, table.dies, strict=True)):
            at = np.flatnonzero(long[:, j])
            if not len(at):
                continue
            constants = left_out(die if scored.left_out else "")
            if name == LINEAR:
                yield from _on_lines(table, at, j)
                continue
            seconds, width, has_terms = answers(table, at, gpu, scored, constants)
            at, seconds, width = at[has_terms], seconds[has_terms], width[has_terms]
            if not len(at):
                continue
            read = measured.overhead(table.rig, "other" if scored.left_out else gpu, constants) + seconds
            low, high = read * np.exp(-width), read * np.exp(width)
            keys = at + (crc32(table.name.encode()) << 24)
            yield Pairs(reported(table), gpu, name, keys, table.seconds[at, j], read, low, high, table.test[at])


def _on_lines(table: Table, rows: Array, j: int) -> Iterator[Pairs]:
    """Rows of a table on its card j beside lines, which every card needs of its own: those that the source kept back
    by the line of the others, these by the line of the other half of them. None where no category has such layers.
    """
    layers = [layer_of(Kernel("", "", (), table.works[i])) for i in rows]
    if len(rows) < FEWEST_SHAPES or not layers[0].category:
        return
    x, seconds = np.array([float(layer.operations) for layer in layers]), table.seconds[rows, j]
    test, half = table.test[rows], np.arange(len(rows)) % 2 == 0
    said = np.full(len(rows), np.nan)
    for predicted, fitted in ((test, ~test), (~test & half, ~test & ~half), (~test & ~half, ~test & half)):
        if predicted.any() and fitted.sum() >= FEWEST:
            said[predicted] = line(x[fitted], seconds[fitted]).seconds(x[predicted])
    at = np.isfinite(said)
    if at.any():
        none, keys = np.full(int(at.sum()), np.nan), rows[at] + (crc32(table.name.encode()) << 24)
        yield Pairs(reported(table), table.gpus[j], LINEAR, keys, seconds[at], said[at], none, none, test[at])


def answers(table: Table, rows: Array, gpu: str, scored: Scored, c: Constants) -> tuple[Array, Array, Array]:
    """Seconds of some of a table's works [k] as its rig runs them on a card, their half-widths, as logarithms, and
    whether the method has terms of its own for them.
    """
    works, device, measured = [table.works[i] for i in rows], gpu_specs.load(gpu), kernels()[table.name]
    if scored.method.own_terms:
        estimates = estimate(
            Kernels(tuple(Kernel(str(i), "", (), w) for i, w in enumerate(works))), [device], scored.method, c
        )
        by_method = estimates.variant[:, 0] != BY_FAMILY
        return estimates.seconds[:, 0] + measured.beside_s(c), estimates.half_width[:, 0], by_method
    every = np.ones(len(works), dtype=bool)
    return measured.seconds(works, [device], c)[:, 0], half_widths(works, Cards([device], c))[:, 0], every
