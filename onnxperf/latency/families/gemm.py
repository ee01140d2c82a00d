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


def gemm(works: Works, d: Cards, c: Constants, dram_share: Array) -> KernelTerms:
    """A product of matrices: on tensor cores where the card has the kernel's pipe, on CUDA cores elsewhere.

    `dram_share` [n, g] is the share of the model's weights found in DRAM rather than L2.
    """
    batch, m, n, depth = (np.maximum(works[f], 1) for f in ("batch", "m", "n", "k"))
    p = Product(batch, m, n, depth, transposed=works["tb"])
    on_tensor = d.tensor(works.pipes)
    width = np.array([[max(BITS[w.dtype] / 8, 0.5)] for w in works.each])
    tiled = tensor_cores(works, p, d, c, width, dram_share) if on_tensor.any() else cuda_cores(works, p, d, c, width)
    if on_tensor.any() and not on_tensor.all():
        tiled = choose(on_tensor, tiled, cuda_cores(works, p, d, c, width))
    single = ~on_tensor | np.array([[pipe == "tensor_tf32"] for pipe in works.pipes])  # FP32's kernels are open to TF32
    return choose(single, few_rows(works, p, d, c, dram_share, tiled), tiled) if single.any() else tiled


def few_rows(works: Works, p: Product, d: Cards, c: Constants, dram_share: Array, tiled: KernelTerms) -> KernelTerms:
    """A product with a vector, or a single one with up to four: kernels without tiles that stream the matrix once.

    pnorm(bytes at the rate of the memory that holds them, FLOPs at a fair share of the lanes; 2), where that is faster
    than any tile. Source: libraries have such kernels (gemv, gemmSN); no open row measures them, constants are chosen.
    Rows of stacks of 2 and more, and of 5 to 16 rows or columns, do exist: they run on tiles, however little of them is
    filled. Stacks of vectors stream in GPT-2's steps under ONNX Runtime, whose time grows by the bytes of its past.
    """
    coef = c.cuda_core_few_rows
    moving = works.bytes - works.weights
    far = dram_share * works.weights + moving / (
        1 + (c.l2["resident"] * d.l2 / np.maximum(moving, 1)) ** c.l2["sharpness"]
    )
    memory = np.maximum(far / (d.bandwidth * d.dram), works.bytes / (d.l2_Bps * c.l2["achieved"])) * d.memory
    compute = works.matrix / (works.rate * coef["efficiency"]) * d.compute
    own = plain_terms(compute, memory, 0.0, c.launch["kernel_s"] * d.launch, pnorm(compute, memory, p=2))
    own = own._replace(seconds=own.seconds + own.launch, variant=np.full(own.seconds.shape, "few rows"))
    fewest = np.minimum(p.m, p.n)
    thin = (fewest == 1) | (fewest <= coef["rows"]) & (p.batch == 1)
    better = thin & (own.seconds < tiled.seconds)
    return choose(better, own, tiled)


def processor_gemm(works: Works, d: Cards, c: Constants, fetch: Array) -> KernelTerms:
    """2 m n k at peak, n in whole registers and `extra_k` more of k for each element of the result; the weights' stream
    comes on top: rows of the left operand are few enough to stay where they are.
    """
    batch, m, n, depth = (np.maximum(works[f], 1) for f in ("batch", "m", "n", "k"))
    compute = 2 * batch * m * lanes(n, c) * (depth + c.processor["extra_k"]) / works.rate
    return joined(works, d, compute, works.weights * fetch + moving(works, d, c))


def _error_class(w: Work, on_tensor: bool) -> str:
    """Products on tensor cores in half precision or TF32, in fewer bits, and on CUDA cores: single ones or stacks."""
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
