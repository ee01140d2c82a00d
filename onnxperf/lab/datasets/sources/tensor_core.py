"""Products and attention on tensor cores, from the tables in `tensor_core/`.

Most are ai-dynamo's aiconfigurator's (Apache-2.0): kernels replayed from a CUDA graph, with several copies of the
weights in turn: no host is inside, and small weights are found in L2. Where activations are quantised on the
way, that kernel is inside, but for `fp8_kernel`, another project's products alone. Those of INT8 and of packed weights
come in whole steps of 1.024 us on A100 and L40S: events timed them, and a start is inside. FP16 products of an A100 are
microsoft/vidur's (MIT).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from zlib import crc32

import numpy as np

from onnxperf.lab.datasets.dataset import Dataset, File, Kernels, Watts
from onnxperf.lab.datasets.reading import Record, card, located, number, read, sizes, work_of
from onnxperf.lab.datasets.rigs import COPIES, for_a_while, for_minutes, in_fewer_bits, in_turn
from onnxperf.lab.datasets.table import GRAPH, Row
from op_models import Tensor, Work

CARDS = {"a100": "a100-sxm4-80gb", "a100_sxm": "a100-sxm4-80gb"}
BF16, FP8 = "bfloat16", "float8e4m3fn"
#: Of products: the types of the activations and of the weights. The result has 16 bits.
TYPES = {
    "bfloat16": (BF16, BF16), "float16": ("float16", "float16"), "fp8": (FP8, FP8), "fp8_block": (FP8, FP8),
    "fp8_static": (FP8, FP8), "fp8_kernel": (FP8, FP8), "nvfp4": ("float4e2m1", "float4e2m1"), "sq": ("int8", "int8"),
}  # fmt: skip
WEIGHT_ONLY = {"int8_wo": 8, "int4_wo": 4}  # bits
PHASES = {"context": "attention prefill", "generation": "attention decode", "encoder": "attention encoder"}
POWER = "gemm_power.csv.gz"
REPORTED = {"bfloat16": "BF16 GEMM", "fp8": "FP8 GEMM", "fp8_block": "FP8 GEMM, scaled by block", "nvfp4": "FP4 GEMM"}
KEPT_BACK = 5  # one of so many pairs (n, k), or kinds of heads, is no fit's: it only scores

Shape = tuple[str, Work | None, bool]  # the table, the work, and whether it is kept back


def product(r: Record) -> Shape:
    """m rows of activations by a stored n x k matrix; runs of minutes, with their `mode`, are a table of their own."""
    size, dtype = sizes(r, "m", "n", "k"), r["dtype"]
    table = f"gemm {dtype} {r.get('mode') or ''}".rstrip() if dtype in {**TYPES, **WEIGHT_ONLY} else "gemm"
    if size is None or table == "gemm":
        return table, None, False
    m, n, k = size
    half = Tensor("y", "float16" if dtype == "float16" else BF16, (m, n))
    kept_back = crc32(f"{n} {k}".encode()) % KEPT_BACK == 0
    if bits := WEIGHT_ONLY.get(dtype):
        packed = Tensor("w", "uint8", (n, k * bits // 8), "weight")
        scales = Tensor("s", BF16, (n, max(k // 128, 1) if bits == 4 else 1), "weight")
        inputs = (Tensor("x", BF16, (m, k)), packed, scales)
        return table, work_of("com.microsoft::MatMulNBits", inputs, half, {"N": n, "K": k}), kept_back
    a, b = TYPES[dtype]
    return table, work_of("MatMul", (Tensor("x", a, (m, k)), Tensor("w", b, (k, n), "weight")), half), kept_back


def attention(r: Record) -> Shape:
    """One query to a cache of `seq` keys (generation), or `seq` queries to as many keys: causal, but for encoders."""
    size = sizes(r, "heads", "kv_heads", "head_dim", "batch", "seq")
    table, types = PHASES.get(r["phase"]), {BF16: BF16, "fp8": FP8}
    if size is None or table is None or not {r["dtype"], r["kv_dtype"]} <= set(types):
        return table or "attention", None, False
    heads, kv_heads, dim, batch, keys = size
    queries = 1 if r["phase"] == "generation" else keys
    q = Tensor("q", types[r["dtype"]], (batch, heads, queries, dim))
    kv = Tensor("k", types[r["kv_dtype"]], (batch, kv_heads, keys, dim))
    out = Tensor("y", BF16, q.shape)
    work = work_of("Attention", (q, kv, kv), out, {"is_causal": int(r["phase"] == "context")})
    return table, work, crc32(f"{heads} {kv_heads} {dim}".encode()) % KEPT_BACK == 0


def _file(name: str, columns: tuple[str, ...], shape: Callable[[Record], Shape]) -> File:
    """A file of which these columns make a shape, the same on all cards."""

    @cache
    def of(*cells: str) -> Shape:
        return shape(dict(zip(columns, cells, strict=True)))

    def row(r: Record) -> Row:
        table, work, kept_back = of(*(r[c] for c in columns))
        ran = r.get("kernel") or r.get("source") or ""
        return Row(table, card(CARDS.get(r["gpu"], r["gpu"])), work, number(r, "latency_us") / 1e6, kept_back, ran)

    return File(name, ("gpu", "latency_us", *columns), row, fastest=shape is attention)


def _in_fewer_bits(type: str, reported: str, drawn: int) -> Kernels:
    """Products of a type, as one library makes them."""
    return Kernels(f"gemm {type}", reported, f"tensor_{type}", timed=partial(in_fewer_bits, type), drawn=drawn)


def watts(folder: Path) -> list[Watts]:
    """The rows of sustained products, by type and card; empty where the file is not there."""
    path, columns = located(folder / POWER), ("gpu", "dtype", "m", "n", "k", "power_w")
    drawn_by_card: dict[tuple[str, str], list[tuple[Work, float]]] = {}
    for r in read(path, columns) if path.is_file() else ():
        gpu, work, drawn = card(CARDS.get(r["gpu"], r["gpu"])), product(r)[1], number(r, "power_w")
        if gpu is not None and work is not None and drawn == drawn:
            drawn_by_card.setdefault((REPORTED.get(r["dtype"], r["dtype"]), gpu), []).append((work, drawn))
    return [
        Watts(name, gpu, tuple(w for w, _ in rows), np.array([x for _, x in rows]), COPIES)
        for (name, gpu), rows in drawn_by_card.items()
    ]


DATASET = Dataset(
    "tensor_core", 30, GRAPH, draws_tests=False, watts=watts,
    kernels=(
        Kernels("gemm bfloat16", "BF16 GEMM", "tensor_gemm", timed=in_turn, drawn=1200),
        Kernels("gemm bfloat16 sustained", "BF16 GEMM, sustained", "tensor_gemm", timed=for_minutes, drawn=400),
        Kernels("gemm float16", "FP16 GEMM", "tensor_gemm", timed=in_turn, drawn=400),
        _in_fewer_bits("fp8", "FP8 GEMM", 600),
        _in_fewer_bits("fp8_block", "FP8 GEMM, scaled by block", 600),
        _in_fewer_bits("fp8_static", "FP8 GEMM, known scales", 200),
        Kernels("gemm fp8_kernel", "FP8 GEMM, the product alone", "tensor_fp8", fitted=None, timed=in_turn, drawn=200),
        _in_fewer_bits("sq", "INT8 GEMM", 400),
        _in_fewer_bits("int8_wo", "GEMM, INT8 weights", 400),
        _in_fewer_bits("int4_wo", "GEMM, INT4 weights", 400),
        _in_fewer_bits("nvfp4", "FP4 GEMM", 400),
        Kernels("attention encoder", "attention, encoder", "attention", timed=for_a_while, drawn=600),
        Kernels("attention prefill", "attention, prefill", "attention", timed=for_a_while, drawn=800),
        Kernels("attention decode", "attention, decode", "attention", timed=for_a_while, drawn=800),
    ),
    files=(
        _file("gemm.csv.gz", ("dtype", "m", "n", "k"), product),
        _file("gemm_vidur.csv.gz", ("dtype", "m", "n", "k"), product),
        _file(POWER, ("dtype", "mode", "m", "n", "k"), product),
        _file("attention.csv.gz", ("phase", "dtype", "kv_dtype", "heads", "kv_heads", "head_dim", "batch", "seq"),
              attention),
    ),
)  # fmt: skip
