"""Reads protobuf messages of ONNX: types, dimensions, attributes, subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, defs, helper

from onnxperf.ground.errors import ModelError, printable
from op_models.core import BITS

Shape = tuple[int, ...]
Dims = Sequence[int | None]  # None where open

MAX_ELEMENTS = 1 << 46  # of a tensor: 256 TiB of float32, more than any machine holds; exact in double precision
MAX_RANK = 64  # dimensions: as many as NumPy has; runtimes have fewer
MAX_TEXT = 100  # characters of a name in a message
#: Characters of a name, with those of the nodes around it: a name is written into the labels of all that it holds.
MAX_NAME = 4096
MAX_DEPTH = 64  # levels of graphs inside graphs
MAX_CAPTURES = 1_000_000  # tensors that graphs inside graphs read from outside, counted anew at each level
#: Operators whose number of runs a model can leave open.
LOOPS = frozenset({"Loop", "SequenceMap", "BeamSearch", "GreedySearch", "Sampling"})
_OWN_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}
NUMBERS = {_OWN_NAMES.get(name, name.lower()): number for name, number in TensorProto.DataType.items()}
DTYPES: dict[int, str] = {number: dtype for dtype, number in NUMBERS.items() if dtype in BITS}
#: Types of attributes that hold graphs; 0 where a file does not state the type.
_GRAPHS = frozenset({0, AttributeProto.GRAPH, AttributeProto.GRAPHS})
#: The value of an attribute by its type, for those with a plain one.
_VALUES: dict[int, Callable[[AttributeProto], Any]] = {
    AttributeProto.INT: lambda a: a.i,
    AttributeProto.FLOAT: lambda a: a.f,
    AttributeProto.STRING: lambda a: a.s.decode("utf-8", "replace"),
    AttributeProto.INTS: lambda a: tuple(a.ints),
    AttributeProto.FLOATS: lambda a: tuple(a.floats),
    AttributeProto.STRINGS: lambda a: tuple(s.decode("utf-8", "replace") for s in a.strings),
}


def dtype_of(number: int) -> str:
    """The dtype ("float32") of an ONNX element type; "opaque" for a number that is none."""
    return DTYPES.get(number, "opaque")


def tensor_type(dtype: str, shape: Sequence[int | str | None] | None) -> TypeProto:
    """The ONNX type of tensors of this dtype and shape, where that is known; an opaque one has no element type."""
    return helper.make_tensor_type_proto(NUMBERS.get(dtype, 0), shape)


def is_tensor(type: TypeProto) -> bool:
    """Whether a type is that of a dense tensor, and not of a sequence, map, optional or sparse tensor."""
    return bool(type.HasField("tensor_type"))


def dims_of(type: TypeProto | None) -> tuple[int | None, ...] | None:
    """The dimensions of a tensor type, None for each that is open; None where it has no shape. Zero is a size."""
    if type is None or not (tensor := type.tensor_type).HasField("shape"):
        return None
    return tuple([d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim])


def static(type: TypeProto | None) -> Shape | None:
    """The shape of a tensor type; None where a dimension is open."""
    return closed(dims_of(type))


def closed(dims: Sequence[int | None] | None) -> Shape | None:
    """Dimensions as a shape; None where one is open."""
    return None if dims is None or None in dims else tuple(d for d in dims if d is not None)


def check_size(name: str, shape: Sequence[int]) -> int:
    """The number of elements of a tensor.

    Raises ModelError for a negative dimension, and for more than MAX_ELEMENTS elements or MAX_RANK dimensions.
    """
    if len(shape) > MAX_RANK:
        raise ModelError(f"tensor {name!r} can't have {len(shape):,} dimensions: the limit is {MAX_RANK}")
    total = 1
    for d in shape:
        total *= max(d, 1)
        if d < 0 or total > MAX_ELEMENTS:
            raise ModelError(f"tensor {name!r} can't have the shape {times(shape)}: a dimension overflows")
    return 0 if 0 in shape else total


def plain(name: str) -> str:
    """A name for a message without quotes: printable, on one line, at most MAX_TEXT characters."""
    return printable(name[:MAX_TEXT]) + "..." * (len(name) > MAX_TEXT)


def times(dims: Sequence[int | str | None]) -> str:
    """A shape as text, 1x3x224; an open dimension is shown by its name, or as ?."""
    shown = "x".join("?" if d is None else plain(str(d)) for d in dims[:16])
    return (shown + "x..." * (len(dims) > 16)) or "a scalar"


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The graphs in a node's attributes (the bodies of If, Loop and Scan)."""
    graphs: list[GraphProto] = []
    for a in node.attribute:
        if a.type in _GRAPHS:
            graphs += (a.g, *a.graphs) if a.HasField("g") else a.graphs
    return graphs


def graphs_in(nodes: Iterable[NodeProto], depth: int = 2) -> Iterator[GraphProto]:
    """The graphs inside nodes, and those inside their nodes; ModelError where they nest too deep."""
    for graph in (g for n in nodes for g in subgraphs(n)):
        if depth > MAX_DEPTH:
            raise ModelError(f"the model nests graphs more than {MAX_DEPTH} deep")
        yield graph
        yield from graphs_in(graph.node, depth + 1)


def nodes_in(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, then those of all graphs inside them."""
    yield from nodes
    for graph in graphs_in(nodes):
        yield from graph.node


class Captures:
    """The names of tensors that nodes' subgraphs read from outside themselves.

    Each node is looked through once, however many graphs lie around it.
    """

    def __init__(self) -> None:
        self._names: dict[int, tuple[NodeProto, dict[str, None]]] = {}  # by id, which the node held here keeps alive
        self._room = MAX_CAPTURES

    def names(self, node: NodeProto) -> dict[str, None]:
        """The names for a node, each once and in order; ModelError where all nodes together have too many."""
        if not node.attribute or not (graphs := subgraphs(node)):
            return {}
        if id(node) not in self._names:
            names: dict[str, None] = {}
            for graph in graphs:
                inside = made_in(graph)
                for inner in graph.node:
                    names.update((n, None) for n in (*inner.input, *self.names(inner)) if n and n not in inside)
                names.update((o.name, None) for o in graph.output if o.name not in inside)
            self._room -= len(names)
            if self._room < 0:
                most = f"more than {MAX_CAPTURES:,} tensors, each counted at every level"
                raise ModelError(f"graphs inside graphs read {most}, from outside themselves: nest them less deep")
            self._names[id(node)] = node, names
        return self._names[id(node)][1]

    def alone(self, node: NodeProto) -> list[str]:
        """Those of the names that are no inputs of the node itself."""
        if not (names := self.names(node)):
            return []
        inputs = set(node.input)  # a node may have very many, and protobuf looks through all for each name
        return [name for name in names if name not in inputs]

    def read_names(self, graph: GraphProto) -> set[str]:
        """The names of all tensors that a node of the graph reads or the graph returns."""
        read = {o.name for o in graph.output}
        for node in graph.node:
            read.update(node.input, self.names(node))
        return read


def made_in(graph: GraphProto) -> dict[str, None]:
    """The names of the tensors that a graph defines: inputs, initialisers and outputs of nodes; each once."""
    names = [i.name for i in graph.input] + [t.name for t in graph.initializer]
    names += [t.values.name for t in graph.sparse_initializer]
    return dict.fromkeys(n for n in (*names, *(o for n in graph.node for o in n.output)) if n)


def domain_of(node: NodeProto) -> str:
    """The domain of a node's operator; "" for ai.onnx."""
    return "" if node.domain == "ai.onnx" else node.domain


def operator_type(node: NodeProto) -> str:
    """The type of a node's operator: "Conv" or, outside ai.onnx, "domain::Type"."""
    domain = domain_of(node)
    return f"{domain}::{node.op_type}" if domain else node.op_type


def schema_of(op_type: str, domain: str, opsets: Mapping[str, int]) -> defs.OpSchema | None:
    """The definition of an operator at the model's opset; None where onnx has none."""
    try:
        return defs.get_schema(op_type, opsets.get(domain, 1), domain)
    except (defs.SchemaError, TypeError):  # TypeError: an opset beyond 32 bits
        return None


def attributes(node: NodeProto) -> dict[str, Any]:
    """A node's attributes as plain Python values; graphs and tensors are left out."""
    return {a.name: _VALUES[a.type](a) for a in node.attribute if a.type in _VALUES} if node.attribute else {}
