"""Products of matrices: on tensor cores, on CUDA cores, and, for a few rows, by kernels without tiles.

Fitted are one set of constants for CUDA cores, one for tensor cores, and one for each library's kernels of an 8-bit or
4-bit format. Forms that were tried: derive/gemm.md and derive/tensor.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxperf.latency import long_products
from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.constants import ConstantSet, Parameter, Tiles
from onnxperf.latency.cuda_cores import cuda_cores
from onnxperf.latency.families.pointwise import VECTOR
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.padding import above, grown
from onnxperf.latency.processor import joined, lanes, moving, on_integers, scaling_s
from onnxperf.latency.residuals import Residuals, scaled
from onnxperf.latency.tensor_cores import BY_THREADS, Product, tensor_cores, types_of
from onnxperf.latency.terms import Array, KernelTerms, choose, plain_terms, pnorm
from op_models import BITS, Gemm, Work

HALF = ("tensor_fp16", "tensor_bf16")
#: Suffix of the error class of products on these pipes: libraries and their errors differ by type.
FEWER_BITS = {"tensor_fp8": "_fp8", "tensor_int8": "_int8", "tensor_int4": "_int8", "tensor_fp4": "_fp4"}
PACKED_BITS = 12  # a weight stored in fewer bits is unpacked before a product in half precision


def gemm(works: Works, cards: Cards, dram_share: Array) -> KernelTerms:
    """A product of matrices: on tensor cores where the card has the kernel's pipe, on CUDA cores elsewhere.

    `dram_share` [n, g] is the share of the model's weights found in DRAM rather than L2.
    """
    p = Product(*_sizes(works), works["tb"])
    on_tensor = cards.tensor(works.pipes)
    if on_tensor.any():
        tiled = scaled(tensor_cores(works, p, cards, dram_share), _measured(works, p, cards))
        if not on_tensor.all():
            tiled = choose(on_tensor, tiled, cuda_cores(works, p, cards))
    else:
        tiled = cuda_cores(works, p, cards)
    open_to = ~on_tensor | np.array([[pipe == "tensor_tf32"] for pipe in works.pipes])  # FP32's kernels serve TF32, too
    return choose(open_to, few_rows(works, p, cards, dram_share, tiled), tiled) if open_to.any() else tiled


def _measured(works: Works, p: Product, cards: Cards) -> Array:
    """Factors on the model's time from the measured residuals of each type on each card, [n, g]."""
    types, factors = types_of(works, p, cards)[1], np.ones(works.rate.shape)
    for name in sorted(set(types.ravel().tolist())):
        table = cards.constants.tensor_gemm["types"][name].get("residual", {})
        factors = np.where(types == name, of_sizes(name).factors(works.each, cards, table), factors)
    return factors


def _sizes(works: Works) -> tuple[Array, Array, Array, Array]:
    """batch, m, n and k as columns [n, 1], none below 1."""
    batch, m, n, k = (np.maximum(works[f], 1) for f in ("batch", "m", "n", "k"))
    return batch, m, n, k


def few_rows(works: Works, p: Product, cards: Cards, dram_share: Array, tiled: KernelTerms) -> KernelTerms:
    """A product with a vector, or a single one with up to four: kernels without tiles that stream the matrix once.

    pnorm(bytes at the rate of the memory that holds them, FLOPs at a share of the peak; 2) + launch, where that is
    faster than with tiles (`tiled`). Source: libraries have such kernels (gemv, gemmSN); no open measurement has them,
    so the constants are assumed. Batched products of 2 rows or more, and single ones of 5 to 16 rows or columns, run on
    tiles, however little of a tile is filled. Batched products with a vector do stream: the time of GPT-2's decode
    steps under ONNX Runtime grows with the bytes of the KV cache.
    """
    coef, l2 = cards.constants.cuda_core_few_rows, cards.constants.l2
    moving = works.bytes - works.weights
    evicted_bytes = moving / (1 + (l2["resident"] * cards.l2 / np.maximum(moving, 1)) ** l2["sharpness"])
    dram_bytes = dram_share * works.weights + evicted_bytes
    dram_s, l2_s = dram_bytes / (cards.bandwidth * cards.dram), works.bytes / (cards.l2_Bps * l2["achieved"])
    memory = np.maximum(dram_s, l2_s) * cards.memory
    compute = works.matrix / (works.rate * coef["efficiency"]) * cards.compute
    launch = cards.constants.launch["kernel_s"] * cards.launch
    streamed = plain_terms(compute, memory, 0.0, launch, pnorm(compute, memory, p=2) + launch)
    streamed = streamed._replace(variant=np.full(streamed.seconds.shape, "few rows"))
    fewest = np.minimum(p.m, p.n)
    has_kernel = (fewest == 1) | (fewest <= coef["rows"]) & (p.batch == 1)
    return choose(has_kernel & (streamed.seconds < tiled.seconds), streamed, tiled)


def processor_gemm(works: Works, cards: Cards, fetch: Array) -> KernelTerms:
    """2 batch m n (k + `extra_k`) FLOPs at peak, n padded to whole vector registers; then traffic. Products of integers
    scale their operands or sums as well.

    Reading the weights adds to the arithmetic, at `fetch` [n, g] seconds a byte: the rows of the left operand are few
    enough to stay in the core's own cache.
    """
    batch, m, n, k = _sizes(works)
    compute = 2 * batch * m * lanes(n, cards) * (k + cards.constants.processor["extra_k"]) / works.rate
    compute = compute + np.where(on_integers(works), scaling_s(works, cards), 0.0)
    return joined(works, cards, compute, works.weights * fetch + moving(works, cards))


def _error_class(w: Work, on_tensor: bool) -> str:
    """The class of errors: on tensor cores by type, weights packed in fewer bits apart; on CUDA cores single products
    ("linear") and batched ones ("bmm").
    """
    s: Any = w.size
    if not on_tensor:
        return "linear" if s.batch == 1 else "bmm"
    packed = w.weight_bytes and w.weight_bytes * 8 < PACKED_BITS * s.n * s.k and w.pipe in HALF
    return "tensor_gemm_packed" if packed else f"tensor_gemm{FEWER_BITS.get(w.pipe, '')}"


def _larger(w: Work, times: float) -> list[Work]:
    """Products with more rows or, of two activations, with more in the batch: what could run instead, padded."""
    s: Any = w.size
    second = w.weight_bytes or s.batch * s.n * s.k * BITS[w.dtype] // 8  # bytes that more rows share
    stacks = [] if w.weight_bytes else [grown(w, "batch", n, 0) for n in above(s.batch, times)]
    return [grown(w, "m", n, second) for n in above(s.m, times)] + stacks if s.m and s.batch else []


#: The energy of a FLOP, which every kernel's time at the power limit depends on.
POWER = ConstantSet(
    "power",
    parameters=(
        Parameter("power.pJ_per_flop_12nm", "energy of an FP32 FLOP of a 12 nm card, picojoule", 14.0),
        Parameter("power.node_exponent", "growth of that energy with the process node's nanometres", 0.7),
    ),
    measured_as="gemm", rows=long_products.long_products, model=long_products.seconds, sample=300,
    corrections=(0.15, 0.05, 0.1),
)  # fmt: skip

TILE = r"(?:sgemm_|tilesize|simt_sgemm_)(\d+)x(\d+)"  # columns x rows, in kernels of cuBLAS and CUTLASS
SHARE = 0.05  # of the kernels on a card
CUDA_CORES = ConstantSet(
    "gemm",
    parameters=(
        Parameter(
            "cuda_core_gemm.alpha", "wave quantisation: of what a partial wave lacks, so much counts", 0.88, 0.1, 1.0
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
        Parameter("cuda_core_gemm.store_hopper", "the same from Hopper on", 0.5, 0.5),
        Parameter("cuda_core_gemm.scatter", "DRAM bytes for each that a block uses: old cards, long rows", 1.9, 0.3),
        Parameter("cuda_core_gemm.unshared", "the same, short rows", 0.7, 0.15),
        Parameter("cuda_core_gemm.unshared_norm", "how those bytes' time joins the rest", 5.0, 0.3),
        Parameter("cuda_core_gemm.open_L2", "rows in flight, in sizes of L2, halfway between the two", 70, 0.3),
    ),
    tiles=(
        Tiles("cuda_core_tiles.batched", "batched", TILE, SHARE),
        Tiles("cuda_core_tiles.biased", "biased", TILE, SHARE),
        Tiles("cuda_core_tiles.single", "biased", TILE, SHARE, since=70),  # from Volta on, a bias makes no difference
    ),
    after=(VECTOR, POWER), sample=700, corrections=(0.12, 0.08, 0.1),
)  # fmt: skip


def _is_single(w: Work) -> bool:
    """Whether a work is a single product and not in TF32: batched products and TF32 have no measured rows."""
    return isinstance(w.size, Gemm) and w.size.batch == 1 and w.pipe != "tensor_tf32"


def _places(works: Sequence[Work]) -> Array:
    """log2 of m, n and k."""
    sizes: list[Any] = [w.size for w in works]
    return np.asarray(np.log2(np.maximum([(s.m, s.n, s.k) for s in sizes], 1)))


def of_sizes(name: str) -> Residuals:
    """The residuals of products of a type over log2 of m, n and k, with knots at most a factor of 8 apart."""
    sides = (5, 8, 11, 13.5, 16)
    return Residuals(f"tensor_gemm.types.{name}.residual", ((0, 3, 6, 9, 12, 15), sides, sides), _is_single, _places)


FACTORS = (("start", "start_cycles", 0.15), ("rate", "rate", 0.1), ("extra_k", "extra_k", 0.3))  # with priors' widths
TENSOR_CORES = ConstantSet(
    "tensor_gemm",
    parameters=(
        Parameter("tensor_gemm.rate", "share of the datasheet's rate inside a tile", 0.86, 0.05, most=1.0),
        Parameter("tensor_gemm.extra_k", "what a tile costs beside its k, as so much more of it", 120, 0.4),
        Parameter("tensor_gemm.start_cycles", "of a kernel, beside the launch floor", 2900, 0.1),
        Parameter("tensor_gemm.dram", "share of the datasheet's bandwidth", 0.87, 0.02, most=0.92),
        Parameter("tensor_gemm.hot", "share of the near L2 that what comes again can fill", 0.9, 0.2),
        Parameter("tensor_gemm.written", "bytes to DRAM for one that is written", 0.9, 0.15),
        Parameter("tensor_gemm.store", "of the result's time in L2 that nothing hides, short k", 0.4, 0.3),
        Parameter("tensor_gemm.norm_block", "how arithmetic, feed and steps of a block join", 3.5, 0.2),
        Parameter("tensor_gemm.norm_memory", "how DRAM and L2 join", 2.5, 0.2),
        Parameter("tensor_gemm.norm", "how arithmetic and memory join", 3.0, 0.2),
        Parameter("tensor_loads.copies.feed", "of streams' rate in L2, threads load", 0.9, 0.4),
        Parameter("tensor_loads.copies.wave", "of a partial wave that counts as whole", 0.4, 0.4),
        Parameter("tensor_loads.copies.l2", "of streams' rate in L2", 0.45, 0.4),
        Parameter("tensor_loads.copies.split_s", "the sum of the parts of k", 2.1e-6, 0.4),
        Parameter("tensor_loads.both.feed", "of streams' rate in L2, either loads", 2.0, 0.4),
        Parameter("tensor_loads.both.step_cycles", "of 128 bytes of k", 100, 0.3),
        Parameter("tensor_loads.both.wave", "of a partial wave that counts as whole", 0.28, 0.4),
        Parameter("tensor_loads.both.l2", "of streams' rate in L2", 0.65, 0.4),
        Parameter("tensor_loads.both.split_s", "the sum of the parts of k", 2.4e-6, 0.4),
        Parameter("tensor_loads.bulk.feed", "of streams' rate in L2, an engine loads", 3.8, 0.4),
        Parameter("tensor_loads.bulk.step_cycles", "of 128 bytes of k", 170, 0.2),
        Parameter("tensor_loads.bulk.wave", "of a partial wave that counts as whole", 0.18, 0.4),
        Parameter("tensor_loads.bulk.l2", "of streams' rate in L2", 0.8, 0.4),
        Parameter("tensor_loads.bulk.split_s", "the sum of the parts of k", 2.8e-6, 0.4),
        *(
            Parameter(f"tensor_class.{kind}.{what}", f"factor on {meaning}", 1.0, sd)
            for kind in ("mma", "mma_128", "mma_120", "wgmma", "tcgen05")
            for what, meaning, sd in FACTORS
        ),
        Parameter("power.tensor_pJ_per_flop", "FP16, 1024 FLOPs a clock and SM, 5 nm, 1.5 GHz", 1.65, 0.1),
        Parameter("power.tensor_size_exponent", "fall of that with FLOPs a clock and SM", 0.4, 0.15),
        Parameter("power.tensor_clock_exponent", "growth of that with the clock", 0.8, 0.2),
        Parameter("power.tensor_blackwell", "factor on that energy from Blackwell on", 0.85, 0.15),
        Parameter("rig.uniform", "energy of DeepBench's operands, for that of others", 0.6, 0.3, most=1.0),
        Parameter("power.burst_s", "a kernel repeated alone meets the limit by half", 1.5e-3, 0.4),
    ),
    after=(VECTOR, POWER), sample=900, residuals=(of_sizes("half"),),
)  # fmt: skip


def _in_fewer_bits(
    name: str, priors: Mapping[str, tuple[float, float, float, float]], sweeps: float = 0.0
) -> ConstantSet:
    """The set of one library's products in 8 or 4 bits: factors of their own on the constants of tensor cores.

    priors: by class of tensor cores, or "" for all of them, the medians of the priors of four constants: the factors on
    `rate` and on `extra_k`, the start in clocks, and the factor on `step_cycles`. sweeps: the same of the bytes moved
    by quantising activations, over the activations' own. 0: the constant is not fitted.
    """
    root, parameters = f"tensor_gemm.types.{name}", list[Parameter]()
    for kind, (rate, extra_k, start, step) in priors.items():
        path = f"{root}.{kind}" if kind else root
        parameters += (
            Parameter(f"{path}.rate", "factor on the rate", rate, 0.3),
            Parameter(f"{path}.extra_k", "factor on what a tile costs beside its k", extra_k, 0.7),
            Parameter(f"{path}.start_cycles", "beside, launches that quantise among them", start, 0.4),
        )
        if step:
            parameters.append(Parameter(f"{path}.step_cycles", "factor on a step's cycles", step, 0.8))
    if sweeps:
        parameters.append(Parameter(f"{root}.sweeps", "of quantising over the activations", sweeps, 0.4))
    return ConstantSet(
        f"tensor_{name}", tuple(parameters), after=(TENSOR_CORES,), sample=500, corrections=(0.08, 0.06, 0.12),
        residuals=(of_sizes(name),),
    )  # fmt: skip


#: Factor on a step's clocks of Blackwell workstation cards, which wait for each step of 128 elements of k as cards do
#: whose threads load the operands: their pipelines have few stages.
WAITS = 10.0
OF_FP8 = {
    **dict.fromkeys(("mma_128", "wgmma", "tcgen05"), (0.85, 2.5, 14000.0, 1.5)), "mma_120": (0.85, 2.5, 14000.0, WAITS),
}  # fmt: skip
#: Block scales are applied by Triton's vector code (mma), by DeepGEMM beside the products (wgmma), and in hardware,
#: after a kernel packed them (tcgen05).
OF_BLOCKS = {
    "mma_128": (0.5, 2.5, 4000.0, 1.5), "mma_120": (0.75, 2.5, 4000.0, WAITS), "wgmma": (0.75, 2.5, 4000.0, 1.5),
    "tcgen05": (1.0, 2.5, 12000.0, 1.5),
}  # fmt: skip
OF_FP4 = {"mma_120": (0.85, 1.5, 6000.0, 2 * WAITS), "tcgen05": (1.0, 1.5, 6000.0, 1.5)}
IN_FEWER_BITS = (
    _in_fewer_bits("fp8", OF_FP8, sweeps=1.5),
    _in_fewer_bits("fp8_block", OF_BLOCKS, sweeps=1.5),
    _in_fewer_bits("fp8_static", {"": (0.85, 2.5, 1000.0, 1.5)}),  # FP8 products alone, without quantising activations
    _in_fewer_bits("nvfp4", OF_FP4, sweeps=1.5),
    *(_in_fewer_bits(name, {"": (1.0, 1.5, 8000.0, 8.0)}) for name in BY_THREADS),
)
FAMILY = KernelFamily(
    size=Gemm, card=gemm, processor=processor_gemm, error_class=_error_class,
    formula=lambda s: f"2 batch m n k = 2 x {s.batch} x {s.m} x {s.n} x {s.k}", layer=("n", "k"),
    constants=(CUDA_CORES, TENSOR_CORES, *IN_FEWER_BITS), larger=_larger, monotone=True,
)  # fmt: skip
