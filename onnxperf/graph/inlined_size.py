"""How much memory functions take where they are inlined: each call has a copy, with its own names and attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message
from onnx import FunctionProto, NodeProto

from onnxperf.graph.proto import graphs_in, nodes_in
from onnxperf.ground.errors import ModelError

#: Nodes, and bytes in memory, that functions may come to where they are inlined: a few that call each other can make
#: any number. A file in which they are inlined already has no such limit.
MAX_NODES, MAX_BYTES = 50_000, 96 << 20
MESSAGE, TEXT, NUMBER = 200, 32, 8  # bytes in memory, of a text beside its characters; a file may take two for each

#: Domain, name and overload of a function.
Key = tuple[str, str, str]


class Size(NamedTuple):
    """What one call of a function makes: so many bytes, and for each input, output and attribute so many copies of the
    name or value that the call gives.
    """

    fixed: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, int]


def check_expansion(what: str, nodes: int, size: int, instead: str) -> None:
    """Raise ModelError where functions make more nodes, or bytes of them, than they may. what: what makes them;
    instead: what to do.
    """
    if nodes > MAX_NODES or size > MAX_BYTES:
        many = (f"{nodes:,} nodes", f"{MAX_NODES:,}")
        large = (f"{size >> 20:,} MiB of nodes", f"{MAX_BYTES >> 20} MiB")
        comes, limit = many if nodes > MAX_NODES else large
        raise ModelError(f"{what} would make {comes}; the limit is {limit}: {instead}")


def key_of(node: NodeProto) -> Key:
    """The key of the function that a node calls, if it calls one."""
    return node.domain, node.op_type, node.overload


def function_size(f: FunctionProto, sizes: Mapping[Key, Size]) -> Size:
    """What a call of a function makes; `sizes` has those of the functions that it calls."""
    nodes = [*nodes_in(f.node)]
    names = Counter(name for n in nodes for name in (*n.input, *n.output))
    names.update(o.name for g in graphs_in(f.node) for o in g.output)
    fixed, passed, attributes = _called(nodes, sizes, {*f.input, *f.output})
    names += passed
    fixed += memory(f) + sum(attributes[a.name] * memory(a) for a in f.attribute_proto)
    return Size(fixed, tuple(names[i] for i in f.input), tuple(names[o] for o in f.output), attributes)


def calls_size(nodes: Collection[NodeProto], sizes: Mapping[Key, Size]) -> int:
    """The bytes that the calls among these nodes, and inside them, make."""
    return _called([*nodes_in(nodes)], sizes, ())[0]


def _called(
    nodes: Collection[NodeProto], sizes: Mapping[Key, Size], parameters: Collection[str]
) -> tuple[int, Counter[str], Counter[str]]:
    """What the calls among nodes make: bytes, and copies of the names and attributes that their function is given."""
    fixed, names, attributes = 0, Counter[str](), Counter[str]()
    for n in nodes:
        size = sizes.get(key_of(n))
        for a in n.attribute:
            copies = size.attributes.get(a.name, 0) if size else 1
            if a.ref_attr_name:
                attributes[a.ref_attr_name] += copies
            elif size and copies:
                fixed += copies * memory(a)
        if size:
            fixed += size.fixed
            pairs = (*zip(n.input, size.inputs, strict=False), *zip(n.output, size.outputs, strict=False))
            for name, copies in pairs:
                if name in parameters:
                    names[name] += copies
                else:
                    fixed += copies * len(name)
    return fixed, names, attributes


def memory(message: Message) -> int:
    """About the bytes that a message takes in memory."""
    total = MESSAGE
    for field, value in message.ListFields():
        repeated = hasattr(value, "__len__") and not isinstance(value, (str, bytes))
        values: Any = value if repeated else (value,)
        if field.message_type is not None:
            total += sum(map(memory, values))
        elif field.cpp_type == field.CPPTYPE_STRING:
            total += sum(map(len, values)) + TEXT * len(values)
        else:
            total += NUMBER * len(values)
    return total
