"""Constants of products on CUDA cores, from eager PyTorch's kernels and DeepBench's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import gpu_specs
from gpu_specs import Device
from onnxperf.datasets import Table
from onnxperf.derive.fit import Family, Parameter, fitted_rows, overheads
from onnxperf.derive.tiles import Sizes, by_path, seen
from onnxperf.fitting import Array
from onnxperf.latency import Constants, alone
from op_models import Work

LEAST_W = 100  # cards below run at their power limit: their rows tell of the limit, and only score
BURST, BURST_S = 0.3, 0.005  # watts beyond the limit, as a share of it, for kernels shorter than the limiter's pace
TILE = r"(?:sgemm_|tilesize|simt_sgemm_)(\d+)x(\d+)"  # columns x rows, in kernels of cuBLAS and CUTLASS
SHARE = 0.05  # of the kernels on a card


def learned(every: Sequence[Table]) -> dict[str, Sizes]:
    """The tiles of stacks and of single products. From Volta on, a bias makes no difference to what a library has."""
    stacks, biased = seen(every, "batched", TILE, SHARE), seen(every, "biased", TILE, SHARE)
    plain = {cc: sizes for cc, sizes in biased.items() if int(cc.removeprefix("cc")) >= 70}
    root = "cuda_core_tiles"
    return {
        **by_path(f"{root}.batched", stacks), **by_path(f"{root}.biased", biased), **by_path(f"{root}.single", plain),
    }  # fmt: skip


def seconds(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Each product repeated a few times on its own: short ones are over before the power limit acts in full.

    The time t at full clock is stretched by (1 + (r / m)^p)^(1/p): r is the time in which the power limit supplies the
    energy, over t; m = 1 + 0.3 / (1 + t / 5 ms) is what may be drawn beyond the limit for so long; p is `power.norm`.
    Whole models last longer, and are predicted without the burst.
    """
    full = alone(works, devices, c, budget=False).seconds
    norm = c.power["norm"]
    needed = np.maximum((alone(works, devices, c).seconds / full) ** norm - 1, 0) ** (1 / norm)
    return np.asarray(full * (1 + (needed / (1 + BURST / (1 + full / BURST_S))) ** norm) ** (1 / norm))


def with_watts_to_spare(every: Sequence[Table]) -> list[Table]:
    """Rows of cards from 100 W on."""
    return [t.on(g for g in t.gpus if gpu_specs.load(g).tdp_W >= LEAST_W) for t in fitted_rows(every, "gemm")]


FAMILY = Family(
    name="gemm",
    parameters=(
        Parameter(
            "cuda_core_gemm.alpha",
            "wave quantisation: of what a partial wave lacks, so much counts",
            0.88,
            0.1,
            most=1.0,
        ),
        Parameter("cuda_core_gemm.best", "efficiency of a tile of 128 x 128", 0.975, 0.02, most=1.0),
        Parameter("cuda_core_gemm.kappa", "loss of small tiles", 0.40, 0.08),
        Parameter("cuda_core_gemm.half_warps", "warps at which half the latency is hidden", 0.7, 0.5),
        Parameter("cuda_core_gemm.prologue_s", "of a block", 2.0e-6, 0.5),
        Parameter("cuda_core_gemm.dram", "share of the rate that plain copies reach", 0.92, 0.08, most=1.0),
        Parameter("cuda_core_gemm.resident", "part of L2 that keeps what waves read again", 0.35, 0.7),
        Parameter("cuda_core_gemm.l2", "share of L2's rate", 0.40, 0.1, most=1.0),
        Parameter("cuda_core_gemm.norm", "how terms join", 3.3, 0.1),
        Parameter("cuda_core_gemm.store", "of the result's bytes that nothing hides, where k is short", 0.07, 0.5),
        Parameter("cuda_core_gemm.scatter", "DRAM bytes for each that a block uses: old cards, long rows", 2.5, 0.3),
        Parameter("cuda_core_gemm.unshared", "the same, short rows", 0.9, 0.15),
        Parameter("cuda_core_gemm.unshared_norm", "how those bytes' time joins the rest", 5.0, 0.3),
        Parameter("cuda_core_gemm.open_L2", "rows in flight, in sizes of L2, halfway between the two", 70, 0.3),
    ),
    model=seconds,
    overhead_s=overheads("gemm"),
    sample=700,
    corrections=(0.12, 0.08, 0.1),
    learned=learned,
    rows=with_watts_to_spare,
)
