"""Single kernels of eager PyTorch in FP32, from the tables in `fp32_torch/` (NeuSight's measurements, MIT)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import gpu_specs
from onnxperf.measurements.core import Row, Table, number, read, sizes, tables
from op_models import Operator, Tensor, Work, work_or_bytes

RIG = "torch"
ELEMENTWISE = {
    "add": ("Add", True), "addu": ("Add", False), "mul": ("Mul", True), "mulu": ("Mul", False), "div": ("Div", True),
    "divu": ("Div", False), "pow": ("Pow", True), "powu": ("Pow", False), "relu": ("Relu", False),
    "tanh": ("Tanh", False), "gelu": ("Gelu", False),
}  # fmt: skip
SCALAR = Tensor("scalar", "float32", (), "constant")
BINARY = ("Add", "Mul", "Div", "Pow")


def kernels(folder: Path) -> list[Table]:
    """The tables of products, elementwise operators, softmax, LayerNorm and 3x3 convolutions that lie in `folder`."""
    names = {r["id"]: r["name"] for r in read(folder / "kernel_names.csv.gz", ("id", "name"))}
    found: list[Table] = []
    for file, columns, shape in (
        ("kernels_gemm.csv.gz", ("b", "m", "k", "n"), product),
        ("kernels_vector.csv.gz", ("rows", "cols"), vector),
        ("kernels_conv.csv.gz", ("b", "cin", "cout", "isize"), conv),
    ):
        if (folder / file).exists():
            dropped: dict[str, Counter[str]] = {}
            rows = list(_rows(folder / file, columns, shape, names, dropped))
            found += tables(rows, RIG, dropped)
    return found


def _rows(
    path: Path,
    columns: tuple[str, ...],
    shape: Callable[..., Work | None],
    names: dict[str, str],
    dropped: dict[str, Counter[str]],
) -> Iterator[Row]:
    for r in read(path, ("op", "device", "split", "latency_ms", *columns)):
        family = r["op"]
        why = dropped.setdefault(family, Counter())
        size, seconds, gpu = sizes(r, *columns), number(r, "latency_ms") / 1e3, card(r["device"])
        work = shape(family, *size) if size else None
        if gpu is None:
            why["unknown card"] += 1
        elif work is None:
            why["no such shape"] += 1
        elif seconds != seconds:
            why["no positive time"] += 1
        else:
            ran = r.get("kernels") or r.get("kernel") or ""
            yield Row(family, gpu, work, seconds, r["split"] == "test", names.get(ran, ran))


@cache
def card(name: str) -> str | None:
    """The id of the card that a file calls `name`."""
    try:
        return gpu_specs.resolve(name)[0]
    except gpu_specs.SpecError:
        return None


def _tensor(*shape: int, kind: str = "activation") -> Tensor:
    return Tensor("t", "float32", shape, kind)


@cache
def product(family: str, b: int, m: int, k: int, n: int) -> Work | None:
    """bmm: a stack of products of activations; linear: with a stored matrix and a bias."""
    if family == "linear":
        inputs = (_tensor(b * m, k), _tensor(n, k, kind="weight"), _tensor(n, kind="weight"))
        return work_or_bytes(Operator("linear", "Gemm", inputs, (_tensor(b * m, n),), {"transB": 1}))[0]
    inputs = (_tensor(b, m, k), _tensor(b, k, n))
    return work_or_bytes(Operator("bmm", "MatMul", inputs, (_tensor(b, m, n),)))[0]


@cache
def vector(family: str, rows: int, cols: int) -> Work | None:
    """Elementwise operators on rows x cols (with `u`: and a scalar), softmax and LayerNorm along the columns."""
    x, scale = _tensor(rows, cols), _tensor(cols, kind="weight")
    if family == "softmax":
        return work_or_bytes(Operator("softmax", "Softmax", (x,), (x,), {"axis": -1}))[0]
    if family == "ln":
        return work_or_bytes(Operator("ln", "LayerNormalization", (x, scale, scale), (x,), {"axis": -1}))[0]
    if family not in ELEMENTWISE:
        return None
    type, two = ELEMENTWISE[family]
    inputs = (x, x) if two else (x, SCALAR) if type in BINARY else (x,)
    return work_or_bytes(Operator(family, type, inputs, (x,)))[0]


@cache
def conv(family: str, b: int, cin: int, cout: int, size: int) -> Work | None:
    """3x3, stride 1, padding 1, no bias."""
    inputs = (_tensor(b, cin, size, size), _tensor(cout, cin, 3, 3, kind="weight"))
    out = _tensor(b, cout, size, size)
    return work_or_bytes(Operator(family, "Conv", inputs, (out,), {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}))[0]
