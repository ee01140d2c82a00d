"""Eager PyTorch on CUDA: no fusion, views without copies until someone needs contiguous memory.

Its rules find again the calls that exporters write as several nodes (a gelu by erf, a linear layer), so they apply at
every optimisation level. There is no rule for a gelu by tanh: models that use it (`gelu_new` of transformers) compute
it in eight operators, and torch's own, `gelu(approximate="tanh")`, is exported as one node.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from onnxperf.fusions import common
from onnxperf.fusions.engine import DISABLED
from onnxperf.fusions.placement import FLOW
from onnxperf.graph import Graph
from onnxperf.runtime import HostCosts, Policy, Runtime
from op_models import Operator, Tensor

Strides = tuple[int, ...]  # in elements


def place(graph: Graph) -> Graph:
    """Views are free and keep their strides; an operator that needs contiguous memory gets a copy before it.

    A Reshape copies where no view gives the new shape. A product folds its leading axes, which takes a copy where they
    are permuted and the batch size is above one, and reads matrices with one unit stride as they are; a layer's matrix
    is stored transposed. Other operators read strided memory and write contiguous results. Shapes are Python integers
    and cost nothing.
    """
    strides: dict[str, Strides] = {}
    placed: list[Operator] = []

    def of(t: Tensor) -> Strides:
        return strides.get(t.name) or contiguous(t.shape)

    def copied(t: Tensor, o: Operator) -> Tensor:
        copy = replace(t, name=f"{t.name}#contiguous#{o.name}", kind="activation")
        name = f"{o.name}#contiguous#{t.name}"
        placed.append(Operator(name, "Contiguous", (t,), (copy,), {}, 0, o.nodes, "copy", o.repeat))
        return copy

    for o in graph.operators:
        x = next(iter(o.present), None)
        if o.type in FLOW:
            o = replace(o, place="host")
        elif x is None or all(t.value is not None for t in o.outputs):
            o = o if x is None else replace(o, place="free")
        elif o.type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
            if (viewed := view(x.shape, of(x), o.out.shape)) is not None:
                strides[o.out.name] = viewed
            inputs = o.inputs if viewed is not None else (copied(x, o), *o.inputs[1:])
            o = replace(o, inputs=inputs, place="free")
        elif o.type == "Slice" and any(step < 0 for step in _value(o, 4)):
            pass  # torch can only copy what it walks backwards
        elif o.type in ("Transpose", "Slice", "Split", "Expand", "Identity", "Dropout"):
            for t in o.outputs:
                strides[t.name] = _strides_of_view(o, x, of(x), t)
            o = replace(o, place="free")
        elif o.type in ("MatMul", "Gemm"):
            read = (t if t is None or _multipliable(t, of(t)) else copied(t, o) for t in o.inputs)
            o = _as_stored(replace(o, inputs=tuple(read)))
        placed.append(o)
    return replace(graph, operators=tuple(placed))


def _as_stored(o: Operator) -> Operator:
    """A product with a layer's matrix, which torch.nn.Linear keeps as outputs x inputs and cuBLAS reads transposed.

    Exporters turn the matrix round and write a MatMul. A Gemm on two axes is written as it was called, addmm or linear.
    """
    x, w = o.inputs[:2]
    if x is None or w is None or not w.stored or w.rank != 2 or o.attrs.get("transB"):
        return o
    if o.type == "Gemm" and x.rank == 2:
        return o
    turned = replace(w, shape=w.shape[::-1])
    return replace(o, inputs=(x, turned, *o.inputs[2:]), attrs={**o.attrs, "transB": 1})


def contiguous(shape: tuple[int, ...]) -> Strides:
    """Row-major strides."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def view(shape: tuple[int, ...], strides: Strides, new: tuple[int, ...]) -> Strides | None:
    """The strides with which memory can be seen under a new shape; None where only a copy can.

    Axes that follow each other without gaps merge into chunks; every chunk must split evenly into new axes
    (the rule behind torch.Tensor.view).
    """
    if prod(shape) == 0:
        return contiguous(new)
    chunks: list[tuple[int, int]] = []  # size, stride of its innermost axis
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if chunks and chunks[-1][1] == size * stride:
            chunks[-1] = (chunks[-1][0] * size, stride)
        else:
            chunks.append((size, stride))
    found: list[int] = []
    for size in reversed(new):
        if size == 1:
            found.append(1)
            continue
        if not chunks or chunks[-1][0] % size:
            return None
        rest, stride = chunks.pop()
        found.append(stride)
        if rest > size:
            chunks.append((rest // size, stride * size))
    return tuple(reversed(found))


def _strides_of_view(o: Operator, x: Tensor, strides: Strides, out: Tensor) -> Strides:
    if o.type == "Transpose":
        perm = o.attrs.get("perm", range(x.rank - 1, -1, -1))
        return tuple(strides[p] for p in perm) if len(perm) == x.rank == out.rank else contiguous(out.shape)
    if o.type == "Expand":
        old = (0,) * (out.rank - x.rank) + tuple(0 if d == 1 else s for d, s in zip(x.shape, strides, strict=True))
        return tuple(1 if d == 1 else s for d, s in zip(out.shape, old, strict=True))
    if o.type == "Slice":
        steps = dict.fromkeys(range(x.rank), 1)
        axes = _value(o, 3) or tuple(range(x.rank))
        steps.update((int(a) % x.rank, int(b)) for a, b in zip(axes, _value(o, 4), strict=False))
        return tuple(s * steps[i] for i, s in enumerate(strides))
    return strides


def _value(o: Operator, index: int) -> tuple[float, ...]:
    """The known content of an input; empty where it is absent or unknown."""
    t = o.inputs[index] if index < len(o.inputs) else None
    return t.value or () if t is not None else ()


def _multipliable(t: Tensor, strides: Strides) -> bool:
    """True where torch.matmul hands a tensor to cuBLAS without a copy."""
    if t.rank < 2:
        return True
    (rows, columns), (down, right) = t.shape[-2:], strides[-2:]
    by_rows = (right == 1 or columns == 1) and (down >= columns or rows == 1)
    by_columns = (down == 1 or rows == 1) and (right >= rows or columns == 1)
    return (by_rows or by_columns) and view(t.shape[:-2], strides[:-2], (prod(t.shape[:-2]),)) is not None


RUNTIME = Runtime(
    name="torch-eager",
    rules={DISABLED: (common.layer_norm, common.gelu, common.softmax, common.linear)},
    place=place,
    policy=Policy(tf32=frozenset({"Conv", "Recurrent"}), arena="segments"),
    host=HostCosts(
        run_s=10e-6, walk_s=4e-6, node_s=4e-6, launch_s=4e-6, host_op_s=1e-6, copy_s=8e-6, sync_s=5e-6, gap_s=1e-6,
        replay_s=12e-6, replay_gap_s=0.6e-6, source="assumed",
    ),
    describe="PyTorch, eager, CUDA, under torch.inference_mode",
)  # fmt: skip
