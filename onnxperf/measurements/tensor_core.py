"""Products and attention on tensor cores, from the tables in `tensor_core/`.

Most are ai-dynamo's aiconfigurator's (Apache-2.0): kernels replayed from a CUDA graph, with several copies of the
weights in turn: no host is inside, and small weights are found in L2. Where activations are quantised on the
way, that kernel is inside. Those of INT8 and of packed weights come in whole steps of 1.024 us on A100 and L40S: events
timed them, and a start is inside. FP16 products of an A100 are microsoft/vidur's (MIT).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from zlib import crc32

from onnxperf.measurements.core import GRAPH, Row, Table, card, located, number, read, refusal, sizes, tables, work_of
from op_models import Tensor, Work

CARDS = {"a100": "a100-sxm4-80gb", "a100_sxm": "a100-sxm4-80gb"}
BF16, FP8 = "bfloat16", "float8e4m3fn"
#: Of products: the types of the activations and of the weights. The result has 16 bits.
TYPES = {
    "bfloat16": (BF16, BF16), "float16": ("float16", "float16"), "fp8": (FP8, FP8), "fp8_block": (FP8, FP8),
    "fp8_static": (FP8, FP8), "nvfp4": ("float4e2m1", "float4e2m1"), "sq": ("int8", "int8"),
}  # fmt: skip
WEIGHT_ONLY = {"int8_wo": 8, "int4_wo": 4}  # bits
PHASES = {"context": "attention prefill", "generation": "attention decode", "encoder": "attention encoder"}
KEPT_BACK = 5  # one of so many pairs (n, k), or kinds of heads, is no fit's: it only scores

Record = Mapping[str, str]
Shape = tuple[str, Work | None, bool]  # the family, the work, and whether it is kept back


def product(r: Record) -> Shape:
    """m rows of activations by a stored n x k matrix; runs of minutes, with their `mode`, are a family of their own."""
    size, dtype = sizes(r, "m", "n", "k"), r["dtype"]
    family = f"gemm {dtype} {r.get('mode') or ''}".rstrip() if dtype in {**TYPES, **WEIGHT_ONLY} else "gemm"
    if size is None or family == "gemm":
        return family, None, False
    m, n, k = size
    half = Tensor("y", "float16" if dtype == "float16" else BF16, (m, n))
    kept_back = crc32(f"{n} {k}".encode()) % KEPT_BACK == 0
    if bits := WEIGHT_ONLY.get(dtype):
        packed = Tensor("w", "uint8", (n, k * bits // 8), "weight")
        scales = Tensor("s", BF16, (n, max(k // 128, 1) if bits == 4 else 1), "weight")
        work = work_of(
            "com.microsoft::MatMulNBits", (Tensor("x", BF16, (m, k)), packed, scales), half, {"N": n, "K": k}
        )
    else:
        a, b = TYPES[dtype]
        work = work_of("MatMul", (Tensor("x", a, (m, k)), Tensor("w", b, (k, n), "weight")), half)
    return family, work, kept_back


def attention(r: Record) -> Shape:
    """One query to a cache of `seq` keys (generation), or `seq` queries to as many keys: causal, but for encoders."""
    size = sizes(r, "heads", "kv_heads", "head_dim", "batch", "seq")
    family, types = PHASES.get(r["phase"]), {BF16: BF16, "fp8": FP8}
    if size is None or family is None or not {r["dtype"], r["kv_dtype"]} <= set(types):
        return family or "attention", None, False
    heads, kv_heads, dim, batch, keys = size
    queries = 1 if r["phase"] == "generation" else keys
    q = Tensor("q", types[r["dtype"]], (batch, heads, queries, dim))
    kv = Tensor("k", types[r["kv_dtype"]], (batch, kv_heads, keys, dim))
    out = Tensor("y", BF16, q.shape)
    work = work_of("Attention", (q, kv, kv), out, {"is_causal": int(r["phase"] == "context")})
    return family, work, crc32(f"{heads} {kv_heads} {dim}".encode()) % KEPT_BACK == 0


#: The tables: file, the columns of a shape, and what makes a work of them.
FILES: tuple[tuple[str, tuple[str, ...], Callable[[Record], Shape]], ...] = (
    ("gemm.csv.gz", ("dtype", "m", "n", "k"), product),
    ("gemm_vidur.csv.gz", ("dtype", "m", "n", "k"), product),
    ("gemm_power.csv.gz", ("dtype", "mode", "m", "n", "k"), product),
    ("attention.csv.gz", ("phase", "dtype", "kv_dtype", "heads", "kv_heads", "head_dim", "batch", "seq"), attention),
)


def kernels(folder: Path) -> list[Table]:
    """All tables that lie in `folder`. Of one attention on one card, the fastest kernel that was measured counts."""
    found: list[Table] = []
    for name, columns, shape in FILES:
        if (path := located(folder / name)).is_file():
            found += _table(path, columns, shape)
    return found


def _table(path: Path, columns: tuple[str, ...], shape: Callable[[Record], Shape]) -> list[Table]:
    rows: list[Row] = []
    why: dict[str, Counter[str]] = {}
    shapes: dict[tuple[str, ...], Shape] = {}
    for r in read(path, ("gpu", "latency_us", *columns)):
        key = tuple(r[c] for c in columns)
        if key not in shapes:
            shapes[key] = shape(r)
        (family, work, kept_back), gpu = shapes[key], card(CARDS.get(r["gpu"], r["gpu"]))
        seconds = number(r, "latency_us") / 1e6
        reasons = why.setdefault(family, Counter())
        if reason := refusal(gpu, work, seconds):
            reasons[reason] += 1
        elif gpu and work:
            rows.append(Row(family, gpu, work, seconds, kept_back, r.get("kernel") or r.get("source") or ""))
    return tables(rows, GRAPH, why, fastest=shape is attention)
