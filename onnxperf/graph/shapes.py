"""Shapes where node by node inference does not give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import NodeProto, OperatorSetIdProto, TypeProto, ValueInfoProto, helper, shape_inference

from onnxperf.graph.proto import Shape, dims_of
from op_models import Tensor


def through_body(
    node: NodeProto, types: Mapping[str, TypeProto], opsets: Sequence[OperatorSetIdProto], ir_version: int
) -> dict[str, TypeProto]:
    """Output types of an operator that onnx defines by a function body (GreaterOrEqual before opset 16, say).

    `infer_node_outputs` does not look into bodies; inference of a whole model, here of one node, does.
    """
    inputs = [ValueInfoProto(name=name, type=type) for name, type in types.items()]
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    model = helper.make_model(
        helper.make_graph([node], "one", inputs, outputs), opset_imports=list(opsets), ir_version=ir_version
    )
    return {o.name: o.type for o in shape_inference.infer_shapes(model).graph.output}


def assume(dims: Sequence[int | None] | None, like: Tensor | None) -> Shape:
    """A shape for what can't be inferred: the first input's, or its size along one open axis (an upper bound)."""
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
