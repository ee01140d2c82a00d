"""Reads protobuf messages of ONNX: types, dimensions, attributes, subgraphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, defs

from onnxperf.errors import ModelError, printable
from op_models.core import BITS

Shape = tuple[int, ...]
Dims = Sequence[int | None]  # None where open

MAX_ELEMENTS = 1 << 46  # of a tensor: 256 TiB of float32, more than any machine holds; exact in double precision
MAX_TEXT = 100  # characters of a name in a message
MAX_DEPTH = 64  # levels of graphs inside graphs
CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})  # operators whose bodies become part of the graph
_OWN_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}
DTYPES: dict[int, str] = {
    number: dtype
    for name, number in TensorProto.DataType.items()
    if (dtype := _OWN_NAMES.get(name, name.lower())) in BITS
}
NUMBERS = {name: number for number, name in DTYPES.items()}


def dtype_of(number: int) -> str:
    """The dtype ("float32") of an ONNX element type; "opaque" for a number that is none."""
    return DTYPES.get(number, "opaque")


def is_tensor(type: TypeProto) -> bool:
    """Whether a type is that of a dense tensor, and not of a sequence, map, optional or sparse tensor."""
    return bool(type.HasField("tensor_type"))


def dims_of(type: TypeProto | None) -> tuple[int | None, ...] | None:
    """The dimensions of a tensor type, None for each that is open; None where it has no shape. Zero is a size."""
    if type is None or not type.tensor_type.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in type.tensor_type.shape.dim)


def static(type: TypeProto | None) -> Shape | None:
    """The shape of a tensor type; None where a dimension is open."""
    return closed(dims_of(type))


def closed(dims: Sequence[int | None] | None) -> Shape | None:
    """Dimensions as a shape; None where one is open."""
    return None if dims is None or None in dims else tuple(d for d in dims if d is not None)


def check_size(name: str, shape: Sequence[int]) -> None:
    """Raise ModelError for a tensor with a negative dimension or more than MAX_ELEMENTS elements."""
    total = 1
    for d in shape:
        total *= max(d, 1)
        if d < 0 or total > MAX_ELEMENTS:
            raise ModelError(f"tensor {name!r} can't have the shape {times(shape)}: a dimension overflows")


def plain(name: str) -> str:
    """A name for a message without quotes: printable, on one line, at most MAX_TEXT characters."""
    return printable(name[:MAX_TEXT]) + "..." * (len(name) > MAX_TEXT)


def times(dims: Sequence[int | str | None]) -> str:
    """A shape as text, 1x3x224; an open dimension is shown by its name, or as ?."""
    shown = "x".join("?" if d is None else plain(str(d)) for d in dims[:16])
    return (shown + "x..." * (len(dims) > 16)) or "a scalar"


def subgraphs_of(attribute: AttributeProto) -> Iterable[GraphProto]:
    """The graphs inside an attribute (the bodies of If, Loop and Scan)."""
    if attribute.type and attribute.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return ()
    return (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs


def graphs_in(nodes: Iterable[NodeProto], depth: int = 2) -> Iterator[GraphProto]:
    """The graphs inside nodes, and those inside their nodes; ModelError where they nest too deep."""
    for graph in (g for n in nodes for a in n.attribute for g in subgraphs_of(a)):
        if depth > MAX_DEPTH:
            raise ModelError(f"the model nests graphs more than {MAX_DEPTH} deep")
        yield graph
        yield from graphs_in(graph.node, depth + 1)


def nodes_in(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, then those of all graphs inside them."""
    yield from nodes
    for graph in graphs_in(nodes):
        yield from graph.node


def captured(node: NodeProto) -> dict[str, None]:
    """The names of tensors that a node's subgraphs read from outside themselves, each once and in order."""
    found: dict[str, None] = {}
    for attribute in node.attribute:
        for graph in subgraphs_of(attribute):
            inside = made_in(graph)
            for inner in graph.node:
                found.update((n, None) for n in (*inner.input, *captured(inner)) if n and n not in inside)
            found.update((o.name, None) for o in graph.output if o.name not in inside)
    return found


def made_in(graph: GraphProto) -> dict[str, None]:
    """The names of the tensors that a graph defines: inputs, initialisers and outputs of nodes; each once."""
    names = [i.name for i in graph.input] + [t.name for t in graph.initializer]
    names += [t.values.name for t in graph.sparse_initializer]
    return dict.fromkeys(n for n in (*names, *(o for n in graph.node for o in n.output)) if n)


def domain_of(node: NodeProto) -> str:
    """The domain of a node's operator; "" for ai.onnx."""
    return "" if node.domain == "ai.onnx" else node.domain


def schema_of(op_type: str, domain: str, opsets: Mapping[str, int]) -> defs.OpSchema | None:
    """The definition of an operator at the model's opset; None where onnx has none."""
    try:
        return defs.get_schema(op_type, opsets.get(domain, 1), domain)
    except (defs.SchemaError, TypeError):  # TypeError: an opset beyond 32 bits
        return None


def attributes(node: NodeProto) -> dict[str, Any]:
    """A node's attributes as plain Python values; graphs and tensors are left out."""
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
