"""Elementwise kernels, and the constants of DRAM, L2 and issue fitted to FP32 ones. Forms: derive/vector.md."""

from __future__ import annotations

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.constants import ConstantSet, Parameter
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import streamed
from onnxperf.latency.terms import Array, KernelTerms
from onnxperf.latency.traffic import elementwise, wasted
from op_models import Pointwise, Work

SHORT = 8e6  # bytes read and written; below, only times from CUDA graphs are used: others have too much timer overhead


def pointwise(works: Works, cards: Cards, dram_share: Array) -> KernelTerms:
    """pnorm of traffic, issue of instructions, and latency of memory accesses; see `traffic.elementwise`. An element
    takes `spread_slots` where its places are computed, and the kernel `spread_s` more; `single_slots` where it is
    loaded by itself, `window_slots` and `tap_slots` for each tap where it is made of a window; where its channel scales
    it `scaled_slots`, but a block of one channel and image no less than `plane_slots`, and `plane_gddr` of that without
    HBM, and waits `plane_clocks` for each of its elements; `switched_slots` where its type is asked for, and the kernel
    `switched_s` more. A sigmoid takes the share `sigmoid` of the slots that its FLOPs would. A thread that loops waits
    `loop_clocks` for each of its steps.
    """
    coef = cards.constants.pointwise
    asked = works["switched"]
    placed = ((works["spread"] > 0) | (works["across"] > 0)) & (asked == 0)
    each = coef["spread_slots"] * placed + coef["single_slots"] * works["single"]
    each = each + coef["window_slots"] * (works["taps"] > 0) + coef["tap_slots"] * works["taps"]
    plane_slots = coef["plane_slots"] * np.where(cards.hbm, 1.0, coef["plane_gddr"])
    of_block = plane_slots / np.maximum(works["plane"], 1) * (works["plane"] > 0)
    each = each + works["scaled"] * np.maximum(coef["scaled_slots"], of_block)
    each = each + np.where(asked > 0, coef["switched_slots"] + coef["switched_more"] * (asked - 1), 0.0)
    spared = works["sigmoid"] * (1 - coef["sigmoid"]) * coef["slots_per_flop"] * works.vector
    slots = each * works["elements"] - spared
    loop_s = works["steps"] * coef["loop_clocks"] / cards.hz * cards.compute
    loop_s = loop_s + works["spread"] * coef["spread_s"] * cards.compute
    loop_s = loop_s + works["scaled"] * works["plane"] * coef["plane_clocks"] / cards.hz * cards.compute
    loop_s = loop_s + (asked > 0) * coef["switched_s"] * cards.compute
    nbytes = works.bytes + works["across"] * wasted(works["run"] * works.width, coef["short_run_bytes"])
    return elementwise(
        works, cards, nbytes, slots, coef["each"], loop_s, np.maximum(works["compiled"], works["scaled"])
    )


BESIDE = "seconds that the clock includes beyond elementwise operators"
#: Fitted to copies that L2 can hold. They don't fit L2's rate: each card has a factor of its own in the fit, and the
#: rate comes from PyTorch's operators (`l2.achieved` below).
COPIES = ConstantSet(
    "copies",
    parameters=(
        Parameter("l2.resident", "share of L2 that tensors can fill and still be found there", 1.0, 0.1),
        Parameter("l2.sharpness", "how sharply L2 fails beyond it", 6.0, 0.4),
        Parameter("pointwise.start.late", "seconds: start and drain of a kernel from Ampere on", 0.5e-6, 0.3),
    ),
    sample=300, weight=100.0, corrections=(0.02, 0.2, 0.2), overhead_sd=0.05,
)  # fmt: skip
#: Fitted to elementwise operators, softmax and LayerNorm together.
VECTOR = ConstantSet(
    "vector",
    parameters=(
        Parameter("dram.early", "share of DRAM's bandwidth, Pascal, Turing's GDDR, ECC in it", 0.78, 0.1, 1.0),
        Parameter("dram.late", "share of DRAM's bandwidth, HBM from Volta and all from Ampere on", 0.88, 0.1, 1.0),
        Parameter("l2.achieved", "share of 64 bytes a clock and SM", 0.48, 0.2, 1.0),
        Parameter("pointwise.norm", "how DRAM, L2 and issue add up: pnorm", 2.6, 0.2),
        Parameter("pointwise.slots_per_flop", "issue slots of what counts as a FLOP", 4.0, 0.5),
        Parameter("rows.norm", "how DRAM and L2 add up: pnorm", 2.6, 0.2),
        Parameter("rows.overlap", "how issue and memory add up: pnorm", 2.6, 0.3),
        Parameter("rows.miss", "share of L2 that rows in flight fill at a miss rate of one half", 0.5, 0.3),
        Parameter("rows.miss_sharpness", "exponent of that", 5.0, 0.2),
        Parameter("rows.slots.normalise_row", "issue slots of a thread, a row", 250, 0.5),
        Parameter("rows.slots.normalise_step", "issue slots of a thread, 4 elements", 200, 0.5),
        Parameter("rows.slots.sweep_row", "issue slots of a thread, a row", 200, 0.5),
        Parameter("rows.slots.sweep_step", "issue slots of a thread, 4 elements, three sweeps", 150, 0.5),
        Parameter("rows.slots.sweep_single", "issue slots of a thread, an element by itself, three sweeps", 75, 0.5),
        Parameter("rows.slots.warp_element", "issue slots of a lane, an element", 17, 0.5),
        Parameter("rig.beside.softmax", BESIDE, 1.7e-5, 0.3),
        Parameter("rig.beside.normalisation", BESIDE, 3e-5, 0.3),
    ),
    after=(COPIES,), sample=300, weight=900.0, corrections=(0.02, 0.01, 0.1), overhead_sd=0.3,
)  # fmt: skip


def _error_class(w: Work, on_tensor: bool) -> str:
    return "short elementwise" if w.bytes < SHORT else "elementwise"


FAMILY = KernelFamily(Pointwise, pointwise, streamed, _error_class, constants=(COPIES, VECTOR))
