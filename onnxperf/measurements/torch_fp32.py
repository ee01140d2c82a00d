"""Single kernels of eager PyTorch in FP32, from the tables in `fp32_torch/` (NeuSight's measurements, MIT)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from onnxperf.measurements.core import Row, Table, card, number, read, refusal, sizes, tables, work_of
from onnxperf.measurements.rejected import by_library
from op_models import Tensor, Work

RIG = "torch"
NAMES = "kernel_names.csv.gz"
ELEMENTWISE = {
    "add": ("Add", True), "addu": ("Add", False), "mul": ("Mul", True), "mulu": ("Mul", False), "div": ("Div", True),
    "divu": ("Div", False), "pow": ("Pow", True), "powu": ("Pow", False), "relu": ("Relu", False),
    "tanh": ("Tanh", False), "gelu": ("Gelu", False),
}  # fmt: skip
SCALAR = Tensor("scalar", "float32", (), "constant")
BINARY = ("Add", "Mul", "Div", "Pow")


def kernels(folder: Path) -> list[Table]:
    """The tables of products, elementwise operators, softmax, LayerNorm and 3x3 convolutions that lie in `folder`."""
    named = read(folder / NAMES, ("id", "name")) if (folder / NAMES).is_file() else ()
    names = {r["id"]: r["name"] for r in named}
    found: list[Table] = []
    for file, columns, shape in FILES:
        if (folder / file).is_file():
            dropped: dict[str, Counter[str]] = {}
            rows = list(_rows(folder / file, columns, shape, names, dropped))
            found += [part for t in tables(rows, RIG, dropped) for part in by_library(t)]
    return found


def _rows(
    path: Path,
    columns: tuple[str, ...],
    shape: Callable[..., Work | None],
    names: dict[str, str],
    dropped: dict[str, Counter[str]],
) -> Iterator[Row]:
    for r in read(path, ("op", "device", "split", "latency_ms", *columns)):
        family = (r["op"] or "(none)")[:40]
        why = dropped.setdefault(family, Counter())
        size, seconds, gpu = sizes(r, *columns), number(r, "latency_ms") / 1e3, card(r["device"])
        work = shape(family, *size) if size else None
        if reason := refusal(gpu, work, seconds):
            why[reason] += 1
        elif gpu and work:
            ran = r.get("kernels") or r.get("kernel") or ""
            yield Row(family, gpu, work, seconds, r["split"] == "test", names.get(ran.removesuffix(".0"), ran))


def _tensor(*shape: int, kind: str = "activation") -> Tensor:
    return Tensor("t", "float32", shape, kind)


@cache
def product(family: str, b: int, m: int, k: int, n: int) -> Work | None:
    """bmm: a stack of products of activations; linear: with a stored matrix and a bias."""
    if family == "linear":
        inputs = (_tensor(b * m, k), _tensor(n, k, kind="weight"), _tensor(n, kind="weight"))
        return work_of("Gemm", inputs, _tensor(b * m, n), {"transB": 1})
    return work_of("MatMul", (_tensor(b, m, k), _tensor(b, k, n)), _tensor(b, m, n))


@cache
def vector(family: str, rows: int, cols: int) -> Work | None:
    """Elementwise operators on rows x cols (with `u`: and a scalar), softmax and LayerNorm along the columns."""
    x, scale = _tensor(rows, cols), _tensor(cols, kind="weight")
    if family == "softmax":
        return work_of("Softmax", (x,), x, {"axis": -1})
    if family == "ln":
        return work_of("LayerNormalization", (x, scale, scale), x, {"axis": -1})
    if family not in ELEMENTWISE:
        return None
    type, two = ELEMENTWISE[family]
    inputs = (x, x) if two else (x, SCALAR) if type in BINARY else (x,)
    return work_of(type, inputs, x)


@cache
def conv(family: str, b: int, cin: int, cout: int, size: int) -> Work | None:
    """3x3, stride 1, padding 1, no bias."""
    inputs = (_tensor(b, cin, size, size), _tensor(cout, cin, 3, 3, kind="weight"))
    out = _tensor(b, cout, size, size)
    return work_of("Conv", inputs, out, {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]})


#: The tables: file, the columns of a shape, and what makes a work of them.
FILES = (
    ("kernels_gemm.csv.gz", ("b", "m", "k", "n"), product),
    ("kernels_vector.csv.gz", ("rows", "cols"), vector),
    ("kernels_conv.csv.gz", ("b", "cin", "cout", "isize"), conv),
)
