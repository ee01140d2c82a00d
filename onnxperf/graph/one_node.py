"""What onnx infers of one node's outputs, put right where runtimes make another shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import NodeProto, TensorProto, TypeProto, defs
from onnx.shape_inference import infer_node_outputs

#: Before opset 22 the inference of these lets the last window begin in the padding, where `ceil_mode` is set, which
#: neither PyTorch nor ONNX Runtime does, whatever the opset.
POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})


def infer_one(
    schema: defs.OpSchema, node: NodeProto, types: Mapping[str, TypeProto], values: Mapping[str, TensorProto],
    **context: Any,
) -> dict[str, TypeProto]:  # fmt: skip
    """As `onnx.shape_inference.infer_node_outputs`, which raises what it likes for a malformed node."""
    if node.op_type in POOLS and not node.domain:
        schema = defs.get_schema(node.op_type)
    if node.op_type == "ConvTranspose" and not node.domain:
        node = _same_padded(node)
    result: dict[str, TypeProto] = infer_node_outputs(schema, node, dict(types), dict(values), **context)
    return result


def _same_padded(node: NodeProto) -> NodeProto:
    """A ConvTranspose whose output has input x stride positions, where the padding is SAME: `output_padding` is then
    among them, to which the inference adds it once more.
    """
    if not any(a.name == "auto_pad" and a.s.startswith(b"SAME") for a in node.attribute):
        return node
    kept = [a for a in node.attribute if a.name != "output_padding"]
    return NodeProto(op_type=node.op_type, name=node.name, input=node.input, output=node.output, attribute=kept)
