"""Constants of convolutions on CUDA cores, from eager PyTorch's 3x3 layers and DeepBench's forward passes."""

from __future__ import annotations

from collections.abc import Sequence

from onnxperf.datasets import Table
from onnxperf.derive.fit import Family, Parameter, overheads
from onnxperf.derive.tiles import Sizes, by_path, seen

#: Where no kernel has a name: the arrangement that every library has, and its usual tile.
UNNAMED = {"cc60": [[1, 4, 8]]}, {"cc60": [[128, 64]]}
FUSED, PRODUCT = r"winograd_128x128\w*?tile(\d)(\d)(\d)", r"sgemm_(\d+)x(\d+)"


def learned(every: Sequence[Table]) -> dict[str, Sizes]:
    """Arrangements of fused Winograd's 32 tiles (images x rows x columns), tiles of the products between transforms."""
    fused = seen(every, "convolution", FUSED, 0.001) or UNNAMED[0]
    products = seen(every, "convolution", PRODUCT, 0.05) or UNNAMED[1]
    return {**by_path("convolution.fused_tiles", fused), **by_path("convolution.product_tiles", products)}


FAMILY = Family(
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
    overhead_s=overheads("convolution"),
    sample=400,
    corrections=(0.25, 0.12, 0.10),
    learned=learned,
)
