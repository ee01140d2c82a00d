"""Shapes where node by node inference does not give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx import NodeProto, OperatorSetIdProto, TypeProto, ValueInfoProto, helper, shape_inference

from onnxperf.graph.proto import Shape, dims_of, times
from op_models import Tensor

WEIGHTS_AT = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "ConvTranspose": 1}
WINDOWS = frozenset({*WEIGHTS_AT, "MaxPool", "AveragePool", "LpPool"})
Dims = Sequence[int | None]
Inputs = Sequence[Any]  # tensors; the last is None


def _chosen(output: int, inputs: Inputs, attrs: Mapping[str, Any]) -> Shape:
    """Of Unique and Compress: all elements, or all slices along an axis, of which a mask has no more than itself."""
    x, mask, axis = inputs[0], inputs[1], attrs.get("axis")
    if axis is None or output:
        return (min(x.size if axis is None else x.shape[axis], mask.size if mask else x.size),)
    at = axis % x.rank
    return (*x.shape[:at], min(x.shape[at], mask.size if mask else x.size), *x.shape[at + 1 :])


def _boxes(output: int, inputs: Inputs, attrs: Mapping[str, Any]) -> Shape:
    boxes, scores, most = inputs[0].shape, inputs[1].shape, inputs[2]
    each = 0 if most is None else int(most.value[0]) if most.value else boxes[1]
    return (boxes[0] * scores[1] * max(min(each, boxes[1]), 0), 3)


#: Outputs whose shape only the run knows, at their largest.
BOUNDS: dict[str, Callable[[int, Inputs, Mapping[str, Any]], Shape]] = {
    "NonZero": lambda output, inputs, attrs: (inputs[0].rank, inputs[0].size),
    "Unique": _chosen,
    "Compress": _chosen,
    "NonMaxSuppression": _boxes,
    "Slice": lambda output, inputs, attrs: inputs[0].shape,
    "TopK": lambda output, inputs, attrs: inputs[0].shape,
}


def through_body(
    node: NodeProto, types: Mapping[str, TypeProto], opsets: Sequence[OperatorSetIdProto], ir_version: int
) -> dict[str, TypeProto]:
    """Output types of an operator that onnx defines by a function body (GreaterOrEqual before opset 16, say).

    `infer_node_outputs` does not look into bodies; inference of a whole model, here of one node, does.
    """
    inputs = [ValueInfoProto(name=name, type=type) for name, type in types.items()]
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "one", inputs, outputs)
    model = helper.make_model(graph, opset_imports=list(opsets), ir_version=ir_version)
    return {o.name: o.type for o in shape_inference.infer_shapes(model).graph.output}


def bound(type: str, output: int, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any]) -> Shape | None:
    """The largest shape that an output can have where data decide; None for operators without a bound."""
    try:
        return BOUNDS[type](output, [*inputs, None], attrs) if type in BOUNDS else None
    except (ArithmeticError, AttributeError, IndexError, ValueError):  # inputs that it can't have
        return None


def assume(dims: Sequence[int | None] | None, like: Tensor | None, most: Shape | None = None) -> Shape:
    """A shape for what can't be inferred: its bound, the first input's, or its size along one open axis."""
    if most is not None and (dims is None or len(dims) == len(most)):
        return tuple(m if d is None else d for d, m in zip(dims or (None,) * len(most), most, strict=True))
    shape = like.shape if like is not None else ()
    if dims is None:
        return shape
    if len(dims) == len(shape):
        return tuple(s if d is None else d for d, s in zip(dims, shape, strict=True))
    size = like.size if like is not None else 1
    first = dims.index(None)
    return tuple((size if i == first else 1) if d is None else d for i, d in enumerate(dims))


def clash(one: Sequence[int | None], other: Sequence[int | None]) -> bool:
    """True where two shapes can't be of the same tensor; what is open fits everything."""
    return len(one) != len(other) or any(a != b for a, b in zip(one, other, strict=True) if None not in (a, b))


def fits(tensor: Tensor, inferred: TypeProto | None) -> bool:
    """True where a tensor has the shape that was inferred for it."""
    dims = dims_of(inferred)
    return inferred is not None and (dims is None or not clash(tensor.shape, dims))


def contradiction(
    type: str, attrs: Mapping[str, Any], inputs: Sequence[Shape | None], outputs: Sequence[Dims | None]
) -> str:
    """Why an operator can't be, where `onnx.shape_inference` lets it pass; nothing where it can.

    Parameters that don't fit the channels, windows that are larger than what they slide over.
    """
    x = inputs[0] if inputs else None
    if x is None:
        return ""
    wrong = _convolved(type, attrs, x, inputs) if type in WINDOWS else _normalised(type, attrs, x, inputs)
    for dims in filter(None, outputs):
        if any(d is not None and (d < 0 or (d == 0 and type in WINDOWS and 0 not in x)) for d in dims):
            wrong = wrong or f"its output would be {times(dims)}"
    return wrong


def _convolved(type: str, attrs: Mapping[str, Any], x: Shape, inputs: Sequence[Shape | None]) -> str:
    at, kernel = WEIGHTS_AT.get(type), tuple(attrs.get("kernel_shape", ()))
    w = inputs[at] if at is not None and at < len(inputs) else None
    if w is not None:
        if len(w) != len(x) or len(x) < 3:
            return f"weights {times(w)} do not fit {times(x)}"
        if kernel and kernel != w[2:]:
            return f"kernel_shape is {times(kernel)}, but its weights are {times(w)}"
        kernel = w[2:]
        group = attrs.get("group", 1)
        if group < 1 or w[0] % group:
            return f"weights {times(w)} can't be shared out among {group} groups"
        channels = w[0] if type == "ConvTranspose" else w[1] * group
        if x[1] != channels:
            return f"its weights are made for {channels} channels, its input has {x[1]}"
    n = len(kernel)
    computed = attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or attrs.get("ceil_mode")
    if type == "ConvTranspose" or n != len(x) - 2 or 0 in x or computed:
        return ""
    pads, dilations = attrs.get("pads") or (0,) * 2 * n, attrs.get("dilations") or (1,) * n
    if len(pads) != 2 * n or len(dilations) != n:
        return f"pads or dilations are not those of {n} axes"
    padded = [d + before + after for d, before, after in zip(x[2:], pads[:n], pads[n:], strict=True)]
    if any((k - 1) * step + 1 > d for k, step, d in zip(kernel, dilations, padded, strict=True)):
        return f"a kernel of {times(kernel)} is larger than its padded input of {times(padded)}"
    return ""


def _normalised(type: str, attrs: Mapping[str, Any], x: Shape, inputs: Sequence[Shape | None]) -> str:
    if type == "LayerNormalization":
        axis = attrs.get("axis", -1)
        axes = x[axis:] if -len(x) <= axis < len(x) else x
        for p in filter(None, inputs[1:3]):
            if any(d not in (1, size) for d, size in zip(p[::-1], axes[::-1], strict=False)):
                return f"a scale or bias of {times(p)} does not fit the normalised {times(axes)}"
    last = {"BatchNormalization": 5, "InstanceNormalization": 3}.get(type)
    if last is not None and attrs.get("spatial", 1):  # once, every element could have its own parameters
        channels = x[1] if len(x) > 1 else 1
        for parameter in inputs[1:last]:
            if parameter is not None and parameter != (channels,):
                return f"its input has {channels} channels, a parameter is {times(parameter)}"
    return ""
