"""Who decides the dtype: `keep` leaves the stored types, the others rewrite the floating tensors.

TF32 is no storage type: `fp32` and `tf32` store float32 and the runtime's policy turns TF32 off or on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from onnxperf.graph import Graph, Note
from onnxperf.passes.casts import WIDE, Casts
from op_models import Operator, Tensor, work_or_bytes

if TYPE_CHECKING:
    from gpu_specs import Device

STORED = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
QUANTISED = {"int8": "int8", "fp8": "float8e4m3fn"}
PRECISIONS = ("keep", *STORED, *QUANTISED)
UNITS = {"bfloat16": "tensor_bf16", "int8": "tensor_int8", "float8e4m3fn": "tensor_fp8"}
#: Operators that run quantised: an activation, then a stored weight.
PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})
#: Operands that ONNX (to opset 24) and ONNX Runtime define in no half precision, by position (outputs: o and position).
SINGLE = {
    "NonMaxSuppression": "0 1 3 4", "Range": "0 1 2 o0", "Celu": "0 o0", "Resize": "2", "Upsample": "1",
    "LayerNormalization": "o1 o2", "TfIdfVectorizer": "o0", "DynamicQuantizeLinear": "0 o1", "QLinearConv": "1 4 6",
    "com.microsoft::CDist": "0 1 o0", "com.microsoft::MatMulFpQ4": "0 o0",
    "com.microsoft::DynamicQuantizeMatMul": "0 2 4 o0", "com.microsoft::DynamicQuantizeLSTM": "0 3 5 6 7 8 10 o0 o1 o2",
}  # fmt: skip
#: Those that are defined in float16, but not in bfloat16.
NOT_BFLOAT16 = {"Shrink": "0 o0", "Scatter": "0 2 o0"}


def precision(graph: Graph, name: str, device: Device | None = None) -> Graph:
    """The graph in a precision of PRECISIONS, for a card (None: one that has every unit).

    fp32, tf32, fp16, bf16: every floating tensor, weights, inputs and outputs too; between casts, float32 stays where
    an operator is not defined otherwise. int8, fp8: activations are quantised in front of GEMMs and convolutions that
    have stored weights, weights are stored quantised, results come out in the stored type; products of two
    activations keep their type, and so do products of what is quantised already.
    Where the card has no unit for the type, products run between casts: bfloat16's in float32, 8-bit ones on
    dequantised weights in half precision, if there is a unit for that. The note `no-dtype` says so.
    """
    if name == "keep":
        return graph
    dtype = STORED.get(name) or QUANTISED[name]
    lacks = device is not None and lacks_unit(device, name)
    if name in STORED:
        result, moved = _retyped(graph, dtype, lacks)
        message = f"{dtype} unit: tensors are stored in it, products run in float32 between casts"
    elif device is None or not lacks:
        result, moved = _quantised(graph, dtype), []
    else:
        half = "tensor_fp16" in device.dense_flops
        result, moved = _dequantised(graph, dtype, half)
        how = "half precision between casts" if half else "the stored type"
        message = f"{dtype} unit: weights are stored in it and dequantised, products run in {how}"
    if device is None or not moved:
        return result
    nodes = tuple(dict.fromkeys(n for o in moved for n in o.nodes))
    return replace(result, notes=(*result.notes, Note("no-dtype", f"{device.id} has no {message}", nodes)))


def lacks_unit(device: Device, name: str) -> bool:
    """True where a card has no unit that multiplies in a precision, so that its products run between casts."""
    dtype = STORED.get(name) or QUANTISED.get(name, "")
    return dtype in UNITS and UNITS[dtype] not in device.dense_flops


def _retyped(graph: Graph, dtype: str, lacks: bool) -> tuple[Graph, list[Operator]]:
    """Every floating tensor in `dtype`, but for operands that must be float32; and the products that run in that."""

    def change(t: Tensor) -> Tensor:
        left = t.dtype not in WIDE or t.dtype == dtype or t.name.endswith("#float32")
        return t if left else replace(t, dtype=dtype)

    changed = map_tensors(graph, change)
    special = lacks or any(o.type in SINGLE or o.type in NOT_BFLOAT16 or "::" in o.type for o in graph.operators)
    if dtype == "float32" or not special:
        return changed, []
    casts, moved = Casts(changed), []
    for o in changed.operators:
        product = lacks and work_or_bytes(o)[0].matrix_flops > 0
        inputs, outputs = _everywhere(o) if product else _single(o, dtype)
        if casts.around(o, inputs, outputs, "float32") and product:
            moved.append(o)
    return replace(changed, operators=tuple(casts.operators)), moved


def _everywhere(o: Operator) -> tuple[Collection[int], Collection[int]]:
    return range(len(o.inputs)), range(len(o.outputs))


def _single(o: Operator, dtype: str) -> tuple[Collection[int], Collection[int]]:
    """The inputs and outputs of an operator that can't be of a half-precision type."""
    if o.type.startswith("ai.onnx.ml::"):
        return _everywhere(o)
    places = SINGLE.get(o.type, NOT_BFLOAT16.get(o.type, "") if dtype == "bfloat16" else "").split()
    return {int(p) for p in places if p[0] != "o"}, {int(p[1:]) for p in places if p[0] == "o"}


def _products(graph: Graph) -> Iterator[tuple[Operator, tuple[Tensor, Tensor] | None]]:
    """All operators; with an activation and a stored weight where they are to run quantised."""
    for o in graph.operators:
        x, w = o.inputs[:2] if o.type in PRODUCTS and len(o.inputs) > 1 and o.outputs else (None, None)
        wanted = x is not None and w is not None and w.stored and x.dtype in WIDE and w.dtype in WIDE
        maker = graph.made_by(x) if wanted else None
        quantised = maker is not None and maker.type == "DequantizeLinear"
        yield o, (x, w) if x is not None and w is not None and wanted and not quantised else None


def _quantised(graph: Graph, dtype: str) -> Graph:
    """Products of a quantised activation and a quantised weight; they write what they wrote before."""
    casts = Casts(graph)
    for o, operands in _products(graph):
        if operands is not None:
            x, w = operands
            scale = Tensor(f"{x.name}#scale", x.dtype, (), "constant")
            first = casts.convert(x, dtype, o, "QuantizeLinear", scale)
            o = replace(o, inputs=(first, casts.stored(w, dtype), *o.inputs[2:]))
        casts.add(o)
    return replace(graph, operators=tuple(casts.operators))


def _dequantised(graph: Graph, dtype: str, half: bool) -> tuple[Graph, list[Operator]]:
    """Products of an activation and a dequantised weight, in half precision or the activation's type; and which."""
    casts, moved = Casts(graph), []
    for o, operands in _products(graph):
        if operands is None:
            casts.add(o)
            continue
        x, w = operands
        runs = "float16" if half else x.dtype
        channels = o.out.shape[1:2] if "Conv" in o.type else o.out.shape[-1:]
        scale = Tensor(f"{w.name}#scale", runs, channels, "constant")
        weight = casts.convert(casts.stored(w, dtype), runs, o, "DequantizeLinear", scale)
        casts.around(replace(o, inputs=(x, weight, *o.inputs[2:])), *_everywhere(o), runs)
        moved.append(o)
    return replace(graph, operators=tuple(casts.operators)), moved


def map_tensors(graph: Graph, change: Callable[[Tensor], Tensor]) -> Graph:
    """The graph with every tensor replaced by `change(tensor)`; names must stay."""
    changed: dict[str, Tensor] = {}

    def get(t: Tensor) -> Tensor:
        if t.name not in changed:
            changed[t.name] = change(t)
        return changed[t.name]

    operators = []
    for o in graph.operators:
        read = tuple(get(t) if t is not None else None for t in o.inputs)
        operators.append(replace(o, inputs=read, outputs=tuple(map(get, o.outputs))))
    inputs, outputs = tuple(map(get, graph.inputs)), tuple(map(get, graph.outputs))
    return replace(graph, operators=tuple(operators), inputs=inputs, outputs=outputs)
