"""Constants of fused attention on tensor cores, from aiconfigurator's kernels. Candidates: attention.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_specs import Device
from onnxperf.datasets import Table
from onnxperf.derive.fit import Family, Parameter, fitted_rows, overheads
from onnxperf.fitting import Array
from onnxperf.latency import Constants, alone
from op_models import Work

RARE = 0.5  # cards with fewer of a table's rows have a table of their own: a draw would leave them next to none


def seconds(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Each kernel repeated on its own for a short while, on the same queries, keys and values."""
    return alone(works, devices, c, burst_s=c.power["burst_s"]).seconds


def rare_cards_apart(every: Sequence[Table]) -> list[Table]:
    """Rows of the kinds of heads that are not kept back; cards that have few of them are tables of their own."""
    found = []
    for t in fitted_rows(every, "attention"):
        rare = np.isfinite(t.seconds).mean(axis=0) < RARE
        found += [t.on(g for g, r in zip(t.gpus, rare, strict=True) if r == one) for one in (False, True)]
    return [t for t in found if t.gpus]


FAMILY = Family(
    name="attention",
    parameters=(
        Parameter("attention.few.block", "clocks of a block, whatever its keys", 2200, 0.15),
        Parameter("attention.few.row", "clocks of a block for each element of its queries", 0.36, 0.3),
        Parameter("attention.few.chain", "clocks that 128 keys take a block by itself", 350, 0.5),
        Parameter("attention.wide", "clocks of a block of 64 rows or more for few queries", 4500, 0.2),
        Parameter("attention.few.norm", "how arithmetic and memory join", 2.0, 0.1),
        Parameter("attention.few.start", "clocks of start and drain", 15000, 0.2),
        Parameter("attention.combine", "clocks of the kernel behind parts of the keys", 2800, 0.1),
        Parameter("attention.dram", "share of the datasheet's bandwidth", 0.88, 0.05, most=0.95),
        Parameter("attention.many.block", "clocks of a block, whatever its keys", 3500, 0.3),
        Parameter("attention.many.row", "clocks of a block for each element of its queries", 0.25, 0.3),
        Parameter("attention.many.chain", "clocks that 128 keys take a block by itself", 1500, 0.5),
        Parameter("attention.many.start", "clocks of start and drain", 12000, 0.2),
        Parameter("attention.many.quantise", "clocks of the kernels that make 8 bits", 11000, 0.3),
        Parameter("attention.prompt", "clocks of start that a cache adds to causal prompts", 4500, 0.3),
        Parameter("attention.softmax_flops", "of a score, beside its exponential", 5.0, 0.3),
        Parameter("attention.energy", "of a FLOP, for that of a product's", 0.8, 0.2),
        Parameter("attention.class.mma.pipe", "share of the rate inside a step", 0.78, 0.1, most=1.0),
        Parameter("attention.class.wgmma.pipe", "share of the rate inside a step", 0.78, 0.1, most=1.0),
        Parameter("attention.class.tcgen05.pipe", "share of the rate inside a step", 0.78, 0.1, most=1.0),
        Parameter("attention.class.wgmma.softmax", "softmax's clocks, for mma.sync's", 1.0, 0.15),
        Parameter("attention.class.tcgen05.softmax", "softmax's clocks, for mma.sync's", 0.72, 0.15),
    ),
    model=seconds,
    overhead_s=overheads("attention"),
    sample=400,
    weight=150.0,
    corrections=(0.08, 0.06, 0.12),
    rows=rare_cards_apart,
)
