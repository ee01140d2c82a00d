"""What elementwise operators, softmax and LayerNorm in FP32 tell: DRAM, L2, issue slots. Candidates: vector.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxperf.derive.fit import Family, Parameter, overheads
from onnxperf.fitting import Array
from onnxperf.latency import Constants
from op_models import Rows, Work


def beside(works: Sequence[Work], c: Constants) -> Array:
    """Seconds [n] that the clock includes beyond those of an elementwise operator."""
    seconds = c.rig["beside"]
    names = ("normalisation", "normalisation", "softmax")
    return np.array([seconds[names[min(w.size.passes, 2)]] if isinstance(w.size, Rows) else 0.0 for w in works])


PARAMETERS = (
    Parameter("dram.early", "share of DRAM's bandwidth up to Pascal, and of Turing's GDDR", 0.78, 0.1, 1.0),
    Parameter("dram.late", "share of DRAM's bandwidth, HBM from Volta and all from Ampere on", 0.88, 0.1, 1.0),
    Parameter("l2.achieved", "share of 64 bytes a clock and SM", 0.48, 0.2, 1.0),
    Parameter("l2.resident", "share of L2 that a tensor can fill and still be found there", 0.9, 0.1, 1.0),
    Parameter("pointwise.norm", "how DRAM, L2 and issue add up: pnorm", 2.6, 0.2),
    Parameter("pointwise.slots_per_flop", "issue slots of what counts as a FLOP", 4.0, 0.5),
    Parameter("rows.norm", "how DRAM and L2 add up: pnorm", 2.6, 0.2),
    Parameter("rows.overlap", "how issue and memory add up: pnorm", 2.6, 0.3),
    Parameter("rows.miss", "share of L2 that rows in flight fill at a miss rate of one half", 0.8, 0.3),
    Parameter("rows.miss_sharpness", "exponent of that", 5.0, 0.2),
    Parameter("rows.slots.normalise_row", "issue slots of a thread, a row", 250, 0.5),
    Parameter("rows.slots.normalise_step", "issue slots of a thread, 4 elements", 200, 0.5),
    Parameter("rows.slots.sweep_row", "issue slots of a thread, a row", 200, 0.5),
    Parameter("rows.slots.sweep_step", "issue slots of a thread, 4 elements, three sweeps", 150, 0.5),
    Parameter("rows.slots.sweep_single", "issue slots of a thread, an element by itself, three sweeps", 75, 0.5),
    Parameter("rows.slots.warp_element", "issue slots of a lane, an element", 17, 0.5),
    Parameter("rig.beside.softmax", "seconds that the clock includes beyond elementwise operators", 1.7e-5, 0.3),
    Parameter("rig.beside.normalisation", "seconds that the clock includes beyond elementwise operators", 3e-5, 0.3),
)

FAMILY = Family(
    "vector", PARAMETERS, overheads("vector"), beside=beside, sample=300, weight=900.0, corrections=(0.02, 0.01, 0.1),
    overhead_sd=0.3,
)  # fmt: skip
