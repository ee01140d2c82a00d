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
    result: dict[str, TypeProto] = infer_node_outputs(schema, node, dict(types), dict(values), **context)
    return result
