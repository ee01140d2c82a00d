"""Constants of convolutions on CUDA cores, from eager PyTorch's 3x3 layers and DeepBench's forward passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_specs import Device
from onnxperf.calibrate.fit import Family, Parameter
from onnxperf.calibrate.tiles import Sizes, by_path, seen
from onnxperf.latency import Constants, alone
from onnxperf.latency.terms import Array
from onnxperf.measurements import Table
from op_models import Work

LONG = 2e10  # FLOPs: about 1 ms, where the rig adds 0.1 to 0.7 ms of its own that differ from shape to shape

#: Where no kernel has a name: the arrangement that every library has, and its usual tile.
UNNAMED = {"cc60": [[1, 4, 8]]}, {"cc60": [[128, 64]]}
FUSED, PRODUCT = r"winograd_128x128\w*?tile(\d)(\d)(\d)", r"sgemm_(\d+)x(\d+)"


def learned(every: Sequence[Table]) -> dict[str, Sizes]:
    """Arrangements of fused Winograd's 32 tiles (images x rows x columns), tiles of the products between transforms."""
    named = [t for t in every if t.family == "conv"]
    fused, products = seen(named, FUSED, 0.001) or UNNAMED[0], seen(named, PRODUCT, 0.05) or UNNAMED[1]
    return {**by_path("convolution.fused_tiles", fused), **by_path("convolution.product_tiles", products)}


def seconds(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Each convolution repeated on its own, after the power budget."""
    return alone(works, devices, c).seconds


FAMILIES = (
    Family(
        name="convolution",
        parameters=(
            Parameter("convolution.alpha", "wave quantisation, softened", 0.8, 0.2, most=1.0),
            Parameter("convolution.half_warps", "warps at which half the latency is hidden", 1.0, 0.5),
            Parameter("convolution.prologue_s", "of a block", 2.0e-6, 0.7),
            Parameter("convolution.issue", "issue slots shared with loads, where an SM has 128 lanes", 0.1, 0.4),
            Parameter("convolution.kappa", "loss of small tiles", 0.05, 0.7),
            Parameter("convolution.implicit", "cycles for each the lanes need: implicit product", 1.15, 0.15),
            Parameter("convolution.fused", "the same: Winograd in one kernel", 1.2, 0.15),
            Parameter("convolution.product", "the same: products between transforms", 1.1, 0.15),
            Parameter("convolution.transform", "traffic of transforms, for that of plain copies", 1.2, 0.3),
            Parameter("convolution.energy", "of a FLOP, for that of a plain product's", 0.8, 0.2),
            Parameter("convolution.norm", "how terms join", 2.5, 0.4),
        ),
        model=seconds,
        overhead_s={"torch": 1.5e-4, "deepbench": 1.0e-5},
        sample=400,
        effects=(0.25, 0.12, 0.10),
        learned=learned,
    ),
)


def tables(every: Sequence[Table]) -> list[Table]:
    """Training rows; of eager PyTorch only layers of `LONG` FLOPs, beside which the rig's own time is short.

    DeepBench has no split of its own: its rows take part where their die is not left out.
    """
    found = []
    for t in every:
        if t.family == "conv":
            found.append(t.take(~t.test & np.array([w.matrix_flops >= LONG for w in t.works], dtype=bool)))
        elif t.family == "deepbench conv":
            found.append(t)
    return found
