"""Plain facts out of protobuf messages: types, dimensions, attributes, subgraphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, defs

Shape = tuple[int, ...]

DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64", TensorProto.STRING: "string",
    **{
        number: name.lower()
        for name, number in TensorProto.DataType.items()
        if name not in ("FLOAT", "DOUBLE", "STRING", "UNDEFINED")
    },
}  # fmt: skip
NUMBERS = {name: number for number, name in DTYPES.items()}


def dtype_of(number: int) -> str:
    """The name of an ONNX element type; "opaque" for what has none."""
    return DTYPES.get(number, "opaque")


def is_tensor(type: TypeProto) -> bool:
    """True for dense tensors; sequences, maps and optionals are carried along without cost."""
    return bool(type.HasField("tensor_type"))


def dims_of(type: TypeProto | None) -> tuple[int | None, ...] | None:
    """The dimensions of a tensor type, None where open; None where it has no shape. Zero is a size."""
    if type is None or not type.tensor_type.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in type.tensor_type.shape.dim)


def static(type: TypeProto | None) -> Shape | None:
    """The shape of a tensor type where all of it is known."""
    dims = dims_of(type)
    if dims is None or None in dims:
        return None
    return tuple(d for d in dims if d is not None)


def subgraphs_of(attribute: AttributeProto) -> Iterable[GraphProto]:
    """The graphs inside an attribute (the bodies of If, Loop and Scan)."""
    return (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs


def captured(node: NodeProto) -> Iterator[str]:
    """Names that a node's subgraphs read from outside."""
    for attribute in node.attribute:
        for graph in subgraphs_of(attribute):
            inside = {i.name for i in graph.input} | {t.name for t in graph.initializer}
            for inner in graph.node:
                yield from (n for n in (*inner.input, *captured(inner)) if n and n not in inside)
                inside.update(inner.output)
            yield from (o.name for o in graph.output if o.name not in inside)


def optional_output(schema: defs.OpSchema | None, index: int) -> bool:
    """True where an operator may leave its output `index` out."""
    if schema is None or index >= len(schema.outputs):
        return False
    return schema.outputs[index].option == defs.OpSchema.FormalParameterOption.Optional


def schema_of(op_type: str, domain: str, opsets: Mapping[str, int]) -> defs.OpSchema | None:
    """The definition of an operator at the model's opset; None where onnx has none."""
    try:
        return defs.get_schema(op_type, opsets.get(domain, 1), domain)
    except defs.SchemaError:
        return None


def attributes(node: NodeProto) -> dict[str, Any]:
    """A node's attributes as plain Python values; subgraphs and big tensors are left out."""
    found: dict[str, Any] = {}
    for a in node.attribute:
        if a.type == AttributeProto.STRING:
            found[a.name] = a.s.decode("utf-8", "replace")
        elif a.type == AttributeProto.STRINGS:
            found[a.name] = tuple(s.decode("utf-8", "replace") for s in a.strings)
        elif a.type == AttributeProto.INT:
            found[a.name] = a.i
        elif a.type == AttributeProto.FLOAT:
            found[a.name] = a.f
        elif a.type in (AttributeProto.INTS, AttributeProto.FLOATS):
            found[a.name] = tuple(a.ints or a.floats)
    return found
