"""Products of matrices: on tensor cores, on CUDA cores, and, for a few rows, by kernels without tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.cuda_cores import cuda_cores
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import joined, lanes, moving
from onnxperf.latency.tensor_cores import Product, tensor_cores
from onnxperf.latency.terms import Array, KernelTerms, choose, plain_terms, pnorm
from onnxperf.latency.works import Works
from op_models import BITS, Gemm, Work

HALF = ("tensor_fp16", "tensor_bf16")
PACKED_BITS = 12  # a stored weight in fewer bits is unpacked before it is multiplied


def gemm(works: Works, cards: Cards, constants: Constants, dram_share: Array) -> KernelTerms:
    """A product of matrices: on tensor cores where the card has the kernel's pipe, on CUDA cores elsewhere.

    `dram_share` [n, g] is the share of the model's weights found in DRAM rather than L2.
    """
    p = Product(*_sizes(works), works["tb"])
    on_tensor = cards.tensor(works.pipes)
    width = np.array([[max(BITS[w.dtype] / 8, 0.5)] for w in works.each])
    if on_tensor.any():
        tiled = tensor_cores(works, p, cards, constants, width, dram_share)
        if not on_tensor.all():
            tiled = choose(on_tensor, tiled, cuda_cores(works, p, cards, constants, width))
    else:
        tiled = cuda_cores(works, p, cards, constants, width)
    open_to = ~on_tensor | np.array([[pipe == "tensor_tf32"] for pipe in works.pipes])  # FP32's kernels do TF32, too
    return choose(open_to, few_rows(works, p, cards, constants, dram_share, tiled), tiled) if open_to.any() else tiled


def _sizes(works: Works) -> tuple[Array, Array, Array, Array]:
    """batch, m, n and k as columns [n, 1], none below 1."""
    batch, m, n, k = (np.maximum(works[f], 1) for f in ("batch", "m", "n", "k"))
    return batch, m, n, k


def few_rows(
    works: Works, p: Product, cards: Cards, constants: Constants, dram_share: Array, tiled: KernelTerms
) -> KernelTerms:
    """A product with a vector, or a single one with up to four: kernels without tiles that stream the matrix once.

    pnorm(bytes at the rate of the memory that holds them, FLOPs at a share of the lanes; 2) + launch, where that is
    faster than the terms on tiles, `tiled`. Source: libraries have such kernels (gemv, gemmSN); no open row measures
    them, constants are chosen. Batches of 2 rows and more, and products of 5 to 16 rows or columns, run on tiles,
    however little of them is filled. Batches of vectors stream in GPT-2's steps under ONNX Runtime, whose time grows
    by the bytes of its past.
    """
    coef, l2 = constants.cuda_core_few_rows, constants.l2
    moving = works.bytes - works.weights
    evicted_bytes = moving / (1 + (l2["resident"] * cards.l2 / np.maximum(moving, 1)) ** l2["sharpness"])
    dram_bytes = dram_share * works.weights + evicted_bytes
    dram_s, l2_s = dram_bytes / (cards.bandwidth * cards.dram), works.bytes / (cards.l2_Bps * l2["achieved"])
    memory = np.maximum(dram_s, l2_s) * cards.memory
    compute = works.matrix / (works.rate * coef["efficiency"]) * cards.compute
    launch = constants.launch["kernel_s"] * cards.launch
    streamed = plain_terms(compute, memory, 0.0, launch, pnorm(compute, memory, p=2) + launch)
    streamed = streamed._replace(variant=np.full(streamed.seconds.shape, "few rows"))
    fewest = np.minimum(p.m, p.n)
    has_kernel = (fewest == 1) | (fewest <= coef["rows"]) & (p.batch == 1)
    return choose(has_kernel & (streamed.seconds < tiled.seconds), streamed, tiled)


def processor_gemm(works: Works, cards: Cards, constants: Constants, fetch: Array) -> KernelTerms:
    """2 batch m n (k + `extra_k`) at peak, n in whole registers; then traffic.

    The weights' stream comes on top of the arithmetic, at `fetch` [n, g] seconds a byte: the rows of the left operand
    are few enough to stay in the core's own cache.
    """
    batch, m, n, k = _sizes(works)
    compute = 2 * batch * m * lanes(n, constants) * (k + constants.processor["extra_k"]) / works.rate
    return joined(works, cards, compute, works.weights * fetch + moving(works, cards, constants))


def _error_class(w: Work, on_tensor: bool) -> str:
    """Products on tensor cores in half precision or TF32, or in fewer bits; on CUDA cores single ones, or batches."""
    s: Any = w.size
    if not on_tensor:
        return "linear" if s.batch == 1 else "bmm"
    packed = w.weight_bytes and w.weight_bytes * 8 < PACKED_BITS * s.n * s.k and w.pipe in HALF
    return "tensor_gemm" if w.pipe in (*HALF, "tensor_tf32") and not packed else "tensor_gemm_quantised"


FAMILY = KernelFamily(
    size=Gemm,
    card=gemm,
    processor=processor_gemm,
    error_class=_error_class,
    formula=lambda s: f"2 batch m n k = 2 x {s.batch} x {s.m} x {s.n} x {s.k}",
    layer=("n", "k"),
)
