"""Output types of operators that onnx does not define or infer, as com.microsoft's, by their rules in op_models.

For an operator without a rule for its outputs the shapes that the file declares hold, else those that what follows
needs (see `demands`), else its first input's, which is right for activations, normalisations and their like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from onnx import NodeProto, TypeProto, defs

from onnxperf.graph.one_node import infer_one
from onnxperf.graph.proto import static, tensor_type
from op_models import Like, Outputs, Tensor, output_rule
from op_models.matmul import stacked

OPSET = 13  # of the operators of ai.onnx that are asked: their axes are attributes, so no shape depends on a value


def custom_types(
    node: NodeProto, type: str, attrs: Mapping[str, Any], inputs: Sequence[Tensor | None]
) -> dict[str, TypeProto]:
    """The types of the outputs of a node with this operator type, by name, as far as they are known."""
    rule, types = output_rule(type), dict[str, TypeProto]()
    with suppress(Exception):  # a form that the operator can't have; malformed ones make the C++ side raise anything
        outputs: Outputs = []
        if rule is not None:
            outputs = _as_in_onnx(rule, node, attrs, inputs) if isinstance(rule, Like) else rule(inputs, attrs)
        for name, output in zip(node.output, outputs, strict=False):
            if output is not None:
                types[name] = tensor_type(*output)
    return types


def _as_in_onnx(like: Like, node: NodeProto, attrs: Mapping[str, Any], inputs: Sequence[Tensor | None]) -> Outputs:
    """The one output that an operator of ai.onnx has on some of the node's inputs and with the node's attributes."""
    places = range(len(inputs))[like.inputs] if isinstance(like.inputs, slice) else like.inputs
    shapes = [t.shape for i in places if (t := inputs[i]) is not None]
    channels_last = like.channels_last or attrs.get("channels_last")
    if channels_last:
        shapes[0] = (shapes[0][0], shapes[0][-1], *shapes[0][1:-1])
    if like.type == "MatMul":  # it has no attributes for operands that are stored transposed
        behind = (attrs.get("transBatchA"), attrs.get("transBatchB"))
        shapes = [stacked(s, bool(b)) for s, b in zip(shapes, behind, strict=True)]
        transposed = (attrs.get("transA"), attrs.get("transB"))
        shapes = [(*s[:-2], s[-1], s[-2]) if swap else s for s, swap in zip(shapes, transposed, strict=True)]
    schema = defs.get_schema(like.type, OPSET, "")
    kinds = ["bool" if like.type == "Where" and not k else "float32" for k in range(len(shapes))]  # a condition is bool
    types = {f"i{k}": tensor_type(kind, shape) for k, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))}
    kept = [a for a in node.attribute if a.name in schema.attributes]
    asked = NodeProto(op_type=like.type, input=list(types), output=["o"], attribute=kept)
    shape = static(infer_one(schema, asked, types, {}).get("o"))
    if shape is None:
        return []
    source = inputs[like.dtype] if like.dtype < len(inputs) else None
    dtype = source.dtype if source is not None else "float32"
    return [(dtype, (shape[0], *shape[2:], shape[1]) if channels_last else shape)]
