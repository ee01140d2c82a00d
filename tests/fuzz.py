"""Models with something broken in them, by the thousand: each must be predicted sanely or refused in one clear line.

    python -m tests.fuzz --cases 100000 --seed 7 [--model FILE...] [--seconds N] [--jobs N] [--keep DIR]

A case is a model of `corpus/` (or FILE) with one to four changes to its bytes, fields or graph, and terms to predict
it under; the seed and the case's number make it again. Cases run in processes of their own, so that one that ends
its process, hangs, or eats all memory is found out as well. Needs nothing but what onnxperf needs.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import click
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
    defs,
    helper,
)
from onnx.parser import parse_model

import gpu_specs
import onnxperf
import op_models.core
import op_models.rules
from onnxperf import runtimes
from onnxperf.graph.proto import dtype_of
from onnxperf.ground import names as chosen
from onnxperf.methods import METHODS

ROOT = Path(__file__).parents[1]
CPU_SECONDS = 5.0  # that a case may take
HANGS_AFTER = 60.0  # seconds; the machine may be busy with other things
MEMORY = 6 << 30  # bytes of addresses that a process may ask for

SIZES = (-1, 0, 1, 2, 3, 5, 7, 64, 4096, 2**24, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63))
FLOATS = (0.0, -0.0, -1.0, 0.5, 1.5, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    b"", b"\xff\xfe", b"SAME_UPPER", b"VALID", b"linear", b"bidirectional", b"ij,jk->ik", b"...i,...i->i", b"i" * 3000,
)  # fmt: skip
NAMES = (
    "", "x", "y", "no_such_tensor", "a\nb", "a\rb", "\x1b[31mred", "\x00", "\x7f", "<script>", "[bold]", "%s{0}",
    "../..", "\u202etfel", "\u200b", "\u2028", "e\u0301", "\U0001f600", "-", " ", "x" * 3000,
)  # fmt: skip
SCHEMAS = {f"{s.domain}::{s.name}".removeprefix("::"): s for s in defs.get_all_schemas() if "training" not in s.domain}
TYPES = ("", "NoSuchOperator", *sorted({*SCHEMAS, *op_models.rules._RULES}))
ATTRIBUTES = [
    *sorted({name for s in SCHEMAS.values() for name in s.attributes}),
    "N", "K", "bits", "block_size", "do_rotary", "head_size", "k", "kv_num_heads", "local_window_size", "num_heads",
    "expert_weight_bits", "qkv_hidden_sizes", "signal_ndim", "sparse_block_size", "unidirectional", "window",
]  # fmt: skip


# the corpus


def read_corpus() -> dict[str, bytes]:
    """Small models by name: those of `corpus/`, and what its text can't say."""
    found = {}
    for path in sorted((ROOT / "tests/corpus").glob("*.txt")):
        _, *parts = re.split(r"^# (\S+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found |= {name: filled(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}
    return {**found, "sparse": sparse(), "long": long()}


def filled(text: str) -> bytes:
    """A model from its text; the weights listed there without values are zeros."""
    model = parse_model(text)
    for info in model.graph.value_info:
        kind = info.type.tensor_type
        dims = [d.dim_value for d in kind.shape.dim]
        raw = zeros(dims, kind.elem_type)
        weight = TensorProto(name=info.name, data_type=kind.elem_type, dims=dims, raw_data=raw)
        model.graph.initializer.append(weight)
    del model.graph.value_info[:]
    return model.SerializeToString()


def zeros(dims: Sequence[int], elem_type: int) -> bytes:
    """The bytes of a tensor of zeros; too few where it is huge."""
    return bytes(min(max(math.prod(dims) * op_models.core.BITS[dtype_of(elem_type)] + 7, 0) // 8, 1 << 20))


def sparse() -> bytes:
    """A model with a sparse initialiser and a sparse constant."""
    model = ModelProto.FromString(
        filled('<ir_version: 9, opset_import: ["" : 20]> g (float[2, 8] x) => (float[] y) {}')
    )
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("", TensorProto.INT64, [2], [3, 30])
    stored = SparseTensorProto(values=values, indices=indices, dims=[8, 4])
    model.graph.sparse_initializer.append(stored)
    model.graph.node.add(op_type="Constant", output=["c"]).attribute.append(
        helper.make_attribute("sparse_value", stored)
    )
    model.graph.node.append(helper.make_node("MatMul", ["x", "w"], ["m"]))
    model.graph.node.append(helper.make_node("MatMul", ["x", "c"], ["n"]))
    model.graph.node.append(helper.make_node("Add", ["m", "n"], ["y"]))
    return model.SerializeToString()


def long(nodes: int = 150) -> bytes:
    """A chain of residual blocks."""
    lines = [f"a{i} = Relu(b{i}) b{i + 1} = Add(a{i}, b{i})" for i in range(nodes // 2)]
    start, end = "b0 = Identity(x)", f"y = Abs(b{nodes // 2})"
    text = f"g (float[4, 4] x) => (float[4, 4] y) {{ {start} {' '.join(lines)} {end} }}"
    return filled(f'<ir_version: 9, opset_import: ["" : 20]> {text}')


# changes to fields


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all graphs inside it."""
    yield graph
    for node in graph.node:
        for a in node.attribute:
            for inner in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
                yield from graphs(inner)


def _graph(r: Random, m: ModelProto) -> Any:
    """A graph or a function."""
    return r.choice([*graphs(m.graph), *m.functions])


def _node(r: Random, m: ModelProto) -> NodeProto:
    nodes = _graph(r, m).node
    return r.choice(nodes) if nodes else NodeProto()


def _info(r: Random, m: ModelProto) -> ValueInfoProto:
    g = r.choice(list(graphs(m.graph)))
    infos = r.choice([x for x in (g.input, g.output, g.value_info) if x] or [[ValueInfoProto()]])
    return r.choice(infos)


def _tensor(r: Random, m: ModelProto) -> TensorProto:
    sparse = [t for s in m.graph.sparse_initializer for t in (s.values, s.indices)]
    found = [*m.graph.initializer, *sparse, *(a.t for n in m.graph.node for a in n.attribute if a.HasField("t"))]
    return r.choice(found) if found else TensorProto()


def _name(r: Random, m: ModelProto) -> str:
    node = _node(r, m)
    return r.choice((*node.input, *node.output, r.choice(NAMES)))


def set_dim(r: Random, m: ModelProto) -> None:
    info = _info(r, m)
    if info.type.tensor_type.shape.dim:
        dim = r.choice(info.type.tensor_type.shape.dim)
        if r.random() < 0.3:
            dim.dim_param = r.choice(("batch", "n", *NAMES))
        elif r.random() < 0.1:
            dim.Clear()
        else:
            dim.dim_value = r.choice(SIZES)


def change_rank(r: Random, m: ModelProto) -> None:
    shape = _info(r, m).type.tensor_type.shape
    if r.random() < 0.5 and shape.dim:
        del shape.dim[r.randrange(len(shape.dim))]
    else:
        for _ in range(r.choice((1, 1, 1, 30, 2000))):
            shape.dim.add(dim_value=r.choice((1, r.choice(SIZES))))


def change_kind(r: Random, m: ModelProto) -> None:
    info = _info(r, m)
    how = r.randrange(4)
    if how == 0:
        info.type.tensor_type.elem_type = r.randrange(-2, 30)
    elif how == 1:
        info.ClearField("type")
    elif how == 2:
        info.type.sequence_type.elem_type.tensor_type.elem_type = r.randrange(30)
    else:
        info.type.optional_type.elem_type.tensor_type.elem_type = r.randrange(30)


def change_all_types(r: Random, m: ModelProto) -> None:
    """Every tensor of one element type becomes one of another, so that the model still fits together."""
    of = {1: r.choice((10, 16, 11, 1, 17, 22, r.randrange(1, 27)))}
    for g in graphs(m.graph):
        for info in (*g.input, *g.output, *g.value_info):
            kind = info.type.tensor_type
            kind.elem_type = of.get(kind.elem_type, kind.elem_type)
        for t in g.initializer:
            if t.data_type in of:
                t.data_type = of[t.data_type]
                t.raw_data = zeros(t.dims, t.data_type)


def change_type(r: Random, m: ModelProto) -> None:
    node = _node(r, m)
    node.domain, _, node.op_type = r.choice((*TYPES, _node(r, m).op_type)).rpartition("::")
    if node.domain:
        m.opset_import.add(domain=node.domain, version=r.choice((1, 1, 2, 5)))
    if r.random() < 0.05:
        node.domain = r.choice(("ai.onnx", "com.microsoft", "ai.onnx.ml", "nowhere", "\n"))


def _attributes(r: Random, m: ModelProto) -> Any:
    """The attributes of a node that has some."""
    nodes = [n for g in (*graphs(m.graph), *m.functions) for n in g.node if n.attribute]
    return r.choice(nodes or [NodeProto()]).attribute


def drop_attribute(r: Random, m: ModelProto) -> None:
    attributes = _attributes(r, m)
    if attributes:
        del attributes[r.randrange(len(attributes))]


def set_attribute(r: Random, m: ModelProto) -> None:
    """An attribute the node has, or one that its type or another may have, of a type that fits or does not."""
    node = _node(r, m)
    schema = SCHEMAS.get(f"{node.domain}::{node.op_type}".removeprefix("::"))
    own = sorted(schema.attributes) if schema else []
    name = r.choice(own) if own and r.random() < 0.8 else r.choice(ATTRIBUTES)
    a = next((a for a in node.attribute if a.name == name), None) or node.attribute.add(name=name)
    fits = schema is not None and name in own and r.random() < 0.8
    a.type = schema.attributes[name].type.value if schema and fits else r.choice((a.type, r.randrange(0, 15)))
    a.i, a.f, a.s = r.choice(SIZES), r.choice(FLOATS), r.choice(TEXTS)
    a.ints[:] = [r.choice(SIZES) for _ in range(r.choice((0, 1, 2, 2, 4, 6, 50)))]
    a.floats[:] = [r.choice(FLOATS) for _ in range(r.randrange(6))]
    a.strings[:] = [r.choice(TEXTS) for _ in range(r.randrange(4))]


def change_attribute(r: Random, m: ModelProto) -> None:
    """A value inside an attribute that is there."""
    a = r.choice(_attributes(r, m) or [AttributeProto()])
    how = r.randrange(12)
    if how == 0:
        a.ref_attr_name = r.choice(("alpha", "elsewhere"))
    elif how == 1:
        a.type = r.randrange(0, 15)
    elif how == 2:
        a.name = r.choice((*NAMES, *ATTRIBUTES))
    elif a.ints:
        a.ints[r.randrange(len(a.ints))] = r.choice(SIZES)
    elif a.type == AttributeProto.INT:
        a.i = r.choice(SIZES)
    elif a.type == AttributeProto.FLOAT:
        a.f = r.choice(FLOATS)
    elif a.type == AttributeProto.STRING:
        a.s = r.choice(TEXTS)


def change_tensor(r: Random, m: ModelProto) -> None:
    t = _tensor(r, m)
    how = r.randrange(9)
    if how == 0 and m.graph.initializer:
        del m.graph.initializer[r.randrange(len(m.graph.initializer))]
    elif how == 1 and t.dims:
        t.dims[r.randrange(len(t.dims))] = r.choice(SIZES)
    elif how == 2:
        t.data_type = r.randrange(-2, 30)
    elif how == 3:
        t.raw_data = r.randbytes(r.choice((0, 1, 8, 24)))
    elif how == 4 and t.data_type == TensorProto.INT64 and len(t.raw_data) >= 8:
        t.raw_data = r.choice(SIZES).to_bytes(8, "little", signed=True) + t.raw_data[8:]
    elif how == 5:
        t.data_location = TensorProto.EXTERNAL
        places = ("../x", "/x", "/dev/zero", "weights.bin", "C:\\x", "a/../../x", ".", "\x00", "x" * 5000)
        t.external_data.add(key="location", value=r.choice(places))
        at = r.choice(("-1", "0", "x", "9" * 30, "\u0663", ""))
        t.external_data.add(key=r.choice(("offset", "length")), value=at)
    elif how == 6 and t.int64_data:
        t.int64_data[r.randrange(len(t.int64_data))] = r.choice(SIZES)
    elif how == 7 and t.float_data:
        t.float_data[r.randrange(len(t.float_data))] = r.choice(FLOATS)
    else:
        t.name = _name(r, m)


def change_versions(r: Random, m: ModelProto) -> None:
    if r.random() < 0.2:
        m.ir_version = r.choice((0, 1, 3, 4, 10, 13, 99, -1))
    elif m.opset_import and r.random() < 0.9:
        r.choice(m.opset_import).version = r.choice((*range(7, 28), 0, 1, 999, 2**62))
    else:
        del m.opset_import[:]


def rename(r: Random, m: ModelProto) -> None:
    """A name changed wherever it stands, so that only the name itself is odd; or made equal to another."""
    old, new = _name(r, m), r.choice((*NAMES, _name(r, m)))
    for g in (*graphs(m.graph), *m.functions):
        for node in g.node:
            node.input[:] = [new if n == old else n for n in node.input]
            node.output[:] = [new if n == old else n for n in node.output]
        if isinstance(g, GraphProto):
            for info in (*g.input, *g.output, *g.value_info, *g.initializer):
                info.name = new if info.name == old else info.name


def label(r: Random, m: ModelProto) -> None:
    """Names that nothing refers to."""
    what = r.choice((m.graph, _node(r, m), _node(r, m)))
    what.name = r.choice((*NAMES, what.name))


# changes to the graph


def change_inputs(r: Random, m: ModelProto) -> None:
    names = _node(r, m).input
    how = r.randrange(5)
    if how == 0 and names:
        del names[r.randrange(len(names))]
    elif how == 1 and len(names) > 1:
        swapped = r.sample(list(names), len(names))
        names[:] = swapped
    elif how == 2 and names:
        names[r.randrange(len(names))] = ""
    elif how == 3:
        names.append(_name(r, m))
    elif names:
        names[r.randrange(len(names))] = _name(r, m)


def change_outputs(r: Random, m: ModelProto) -> None:
    names = _node(r, m).output
    how = r.randrange(3)
    if how == 0 and names:
        del names[r.randrange(len(names))]
    elif how == 1:
        names.append(_name(r, m))
    elif names:
        names[r.randrange(len(names))] = r.choice(("", _name(r, m)))


def change_nodes(r: Random, m: ModelProto) -> None:
    nodes = _graph(r, m).node
    how = r.randrange(4)
    if how == 0 and nodes:
        del nodes[r.randrange(len(nodes))]
    elif how == 1 and nodes:
        nodes.add().CopyFrom(r.choice(nodes))
    elif how == 2 and nodes:
        copy = nodes.add()
        copy.CopyFrom(r.choice(nodes))
        copy.output[:] = [f"{o}_{len(nodes)}" for o in copy.output]
    elif len(nodes) < 500:
        shuffled = r.sample([NodeProto.FromString(n.SerializeToString()) for n in nodes], len(nodes))
        del nodes[:]
        nodes.extend(shuffled)


def change_ends(r: Random, m: ModelProto) -> None:
    """Inputs and outputs of a graph come and go."""
    g = r.choice(list(graphs(m.graph)))
    how = r.randrange(5)
    if how == 0:
        del g.output[r.randrange(len(g.output) + 1) :]
    elif how == 1:
        del g.input[r.randrange(len(g.input) + 1) :]
    elif how == 2:
        g.output.add().CopyFrom(helper.make_tensor_value_info(_name(r, m), TensorProto.FLOAT, None))
    elif how == 3:
        g.input.add().CopyFrom(helper.make_tensor_value_info(_name(r, m), TensorProto.FLOAT, [r.choice(SIZES)]))
    else:
        del g.value_info[:]


def turn_back(r: Random, m: ModelProto) -> None:
    """A node reads what it or a later one makes."""
    nodes = _graph(r, m).node
    if nodes:
        at = r.randrange(len(nodes))
        later = [o for n in nodes[at:] for o in n.output]
        if nodes[at].input and later:
            nodes[at].input[r.randrange(len(nodes[at].input))] = r.choice(later)


def insert(r: Random, m: ModelProto) -> None:
    """A node of any type on an edge."""
    g = _graph(r, m)
    readers = [n for n in g.node if n.input]
    if readers:
        reader = r.choice(readers)
        at = r.randrange(len(reader.input))
        domain, _, op_type = r.choice(TYPES).rpartition("::")
        name, more = f"new{len(g.node)}", [_name(r, m) for _ in range(r.choice((0, 0, 0, 1, 2)))]
        node = NodeProto(op_type=op_type, domain=domain, input=[reader.input[at], *more], output=[name])
        reader.input[at] = name
        g.node.insert(r.randrange(len(g.node) + 1), node)
        if domain:
            m.opset_import.add(domain=domain, version=1)


def nest(r: Random, m: ModelProto) -> None:
    """The graph's nodes move into an If, again and again."""
    kinds = [ValueInfoProto.FromString(o.SerializeToString()) for o in m.graph.output]
    for level in range(r.choice((1, 2, 3, 20))):
        body = GraphProto(name="body", node=m.graph.node, output=kinds)
        del m.graph.node[:]
        flag = r.choice([i.name for i in m.graph.input] or ["x"])
        node = m.graph.node.add(op_type="If", input=[flag], output=[o.name for o in kinds])
        for branch in ("then_branch", "else_branch")[: r.choice((1, 2)) if level == 0 else 1]:
            node.attribute.add(name=branch, type=AttributeProto.GRAPH, g=body)
        if m.ByteSize() > 1 << 20:
            return


def outline(r: Random, m: ModelProto) -> None:
    """A node becomes a function of the model, which may call itself or what calls it."""
    node = _node(r, m)
    if not node.output:
        return
    domain, body = r.choice(("local", "", node.domain)), NodeProto.FromString(node.SerializeToString())
    name = f"f{len(m.functions)}"
    inside = [body]
    if r.random() < 0.2:
        called = r.choice((name, f"f{len(m.functions) + 1}", r.choice(m.functions).name if m.functions else name))
        inside.append(NodeProto(op_type=called, domain=domain, input=body.output, output=["again"]))
    inputs = list(dict.fromkeys(i for i in body.input if i))
    opsets = [*m.opset_import, helper.make_opsetid(domain, 1)]
    m.functions.append(helper.make_function(domain, name, inputs, list(body.output), inside, opsets))
    m.opset_import.add(domain=domain, version=1)
    node.Clear()
    node.op_type, node.domain = name, domain
    node.input[:], node.output[:] = inputs, body.output


def graft(r: Random, m: ModelProto, other: ModelProto) -> None:
    """Another model grows out of a tensor of this one."""
    made = [o for n in m.graph.node for o in n.output if o] or ["x"]
    prefix = f"g{len(m.graph.node)}_"
    for g in graphs(other.graph):
        for node in g.node:
            node.input[:] = [n and prefix + n for n in node.input]
            node.output[:] = [n and prefix + n for n in node.output]
        for info in (*g.input, *g.output, *g.value_info, *g.initializer):
            info.name = prefix + info.name
    g = m.graph
    taken = r.choice(other.graph.input).name if other.graph.input else ""
    for node in other.graph.node:
        node.input[:] = [r.choice(made) if n == taken else n for n in node.input]
    g.input.extend(i for i in other.graph.input if i.name != taken)
    g.initializer.extend(other.graph.initializer)
    g.node.extend(other.graph.node)
    g.output.extend(other.graph.output)
    m.opset_import.extend(o for o in other.opset_import if o.domain not in {p.domain for p in m.opset_import})
    m.functions.extend(other.functions)


Change = Callable[[Random, ModelProto], None]
FIELDS: tuple[Change, ...] = (
    set_dim, set_dim, change_rank, change_kind, change_all_types, change_type, change_type, drop_attribute,
    set_attribute, set_attribute, set_attribute, change_attribute, change_attribute, change_tensor, change_tensor,
    change_versions, rename, label,
)  # fmt: skip
GRAPHS: tuple[Change, ...] = (
    change_inputs, change_inputs, change_outputs, change_nodes, change_nodes, change_ends, turn_back, insert, insert,
    nest, outline,
)  # fmt: skip


# changes to bytes


def varint(n: int) -> bytes:
    """A number of 64 bits as protobuf writes it."""
    n, out = n % 2**64, bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes((*out, n))


def damaged(r: Random, data: bytes, other: bytes) -> bytes:
    """A file with bytes flipped, cut out, put in, taken from another, or lost at its end."""
    broken = bytearray(data)
    at = r.randrange(len(broken) + 1)
    how = r.randrange(6)
    if how == 0:
        del broken[at:]
    elif how == 1:
        del broken[at : at + r.randint(1, 64)]
    elif how == 2:
        broken[at:at] = r.randbytes(r.randint(1, 16))
    elif how == 3:
        start = r.randrange(len(other))
        broken[at : at + r.choice((0, 16))] = other[start : start + r.randint(1, 256)]
    elif how == 4:
        broken[at : at + 1] = varint(r.choice(SIZES))
    elif at < len(broken):
        broken[at] ^= 1 << r.randrange(8)
    return bytes(broken)


def fields(data: bytes) -> list[tuple[int, int, bytes]]:
    """The fields of a protobuf message as number, wire type and content; nothing where it is none."""
    found, at = [], 0
    while at < len(data):
        tag, at = number(data, at)
        size, start = number(data, at) if tag & 7 in (0, 2) else ({1: 8, 5: 4}.get(tag & 7, len(data)), at)
        at, start = (start, at) if tag & 7 == 0 else (start + size, start)
        if at > len(data):
            return []
        found.append((tag >> 3, tag & 7, data[start:at]))
    return found


def number(data: bytes, at: int) -> tuple[int, int]:
    """The varint at a place, and the place behind it."""
    n = shift = 0
    more = True
    while more and at < len(data) and shift < 70:
        n, more = n | (data[at] & 127) << shift, data[at] > 127
        at, shift = at + 1, shift + 7
    return n, at


def rewritten(r: Random, data: bytes) -> bytes:
    """A message with one field, at any depth, changed, doubled, moved, dropped or taken for another; lengths fit."""
    parts = fields(data)
    if not parts:
        return r.choice((b"", r.choice(TEXTS), r.choice(NAMES).encode(), r.randbytes(4), data + b"\xff"))
    at = r.randrange(len(parts))
    tag, wire, content = parts[at]
    how = r.randrange(10)
    if how < 6 and wire == 2:
        content = rewritten(r, content)
    elif how < 6 and wire == 0:
        content = varint(r.choice(SIZES))
    elif how < 6:
        content = r.randbytes(len(content))
    elif how == 6:
        parts.insert(r.randrange(len(parts)), parts[at])
    elif how == 7:
        parts[at], parts[0] = parts[0], parts[at]
        tag, wire, content = parts[at]
    elif how == 8:
        tag, content = (tag, b"") if wire == 2 else (r.randrange(1, 30), content)
    else:
        tag = r.randrange(1, 30)
    parts[at] = tag, wire, content
    return joined(parts)


def joined(parts: Sequence[tuple[int, int, bytes]]) -> bytes:
    """The message of these fields."""
    return b"".join(varint(t << 3 | w) + (varint(len(c)) if w == 2 else b"") + c for t, w, c in parts)


# a case


@dataclass(frozen=True)
class Case:
    """What to predict: a changed model as bytes, whether as a file beside its data, and the terms of `predict`."""

    origin: str
    family: str
    data: bytes
    as_file: bool
    terms: dict[str, Any]


def corpus(files: Sequence[str]) -> list[tuple[str, bytes]]:
    """What cases are made of: the files given, else the small models and, now and then, a sample."""
    if files:
        return [(Path(f).name, Path(f).read_bytes()) for f in files]
    small = read_corpus()
    own = [(name, data) for name, data in small.items() if not name.startswith("test_")]
    samples = [(p.stem, p.read_bytes()) for p in sorted((ROOT / "samples").glob("*.onnx"))]
    return [*small.items(), *own * 5, *samples]


def make(seed: int, index: int, models: Sequence[tuple[str, bytes]]) -> Case:
    """Case number `index` of a seed."""
    r = Random(f"{seed}-{index}")
    origin, data = r.choice(models)
    family = r.choice(("bytes", "wire", "wire", *("fields", "graphs") * 4))
    for _ in range(r.choice((1, 1, 1, 1, 2, 2, 4))):
        if family == "bytes":
            data = damaged(r, data, r.choice(models)[1])
        elif family == "wire":
            data = rewritten(r, data)
        else:
            with suppress(DecodeError):  # too deep for protobuf to copy: it stays as it was
                data = changed(r, data, family, r.choice(models)[1])
    return Case(origin, family, data, r.random() < 0.1, terms(r, data))


def changed(r: Random, data: bytes, family: str, other: bytes) -> bytes:
    """A model with one change to its fields or its graph; a change that finds nothing to do gives way to another."""
    for _ in range(5):
        model = ModelProto.FromString(data)
        before = model.SerializeToString()
        if family == "graphs" and r.random() < 0.1:
            graft(r, model, ModelProto.FromString(other))
        else:
            r.choice(FIELDS if family == "fields" or r.random() < 0.2 else GRAPHS)(r, model)
        if (after := model.SerializeToString()) != before:
            return after
    return data


OF_A_CARD = ("streams", "cuda_graph", "include_transfers", "pageable")  # no terms of a processor
RELEASES = dict.fromkeys(("ort-cpu", "ort-cuda"), ("1.4", "1.12", "1.17", "1.22")) | {"tensorrt": ("7", "8.6", "10.0")}
CHOICES: dict[str, Sequence[Any]] = {
    "runtime": tuple(runtimes.RUNTIMES), "precision": chosen.PRECISIONS,
    "method": tuple(METHODS),
    "opt_level": chosen.LEVELS, "host": tuple(gpu_specs.HOSTS), "batch": (1, 1, 2, 3, 8, 64, 65536, 0),
    "streams": (1, 2, 4, 64, 0), "cuda_graph": (True,), "include_transfers": (True,), "pageable": (True,),
    "ort_transformers": (True,), "power_limit_W": (50, 100.0, -1, float("nan")), "clock_Hz": (1e9, 300e6, 0),
    "fit": (True,), "ort_version": tuple({v: None for of in RELEASES.values() for v in of}), "layout": chosen.LAYOUTS,
}  # fmt: skip
RARE = {
    "batch": 0.1, "streams": 0.3, "cuda_graph": 0.1, "host": 0.1, "pageable": 0.05, "power_limit_W": 0.05,
    "clock_Hz": 0.05, "fit": 0.01, "ort_version": 0.1, "layout": 0.1,
}  # fmt: skip


def terms(r: Random, data: bytes) -> dict[str, Any]:
    """Any card and runtime, and now and then a term of every other kind; sizes for the dimensions that are open."""
    found: dict[str, Any] = {"gpu": r.choice(gpu_specs.ids())}
    found |= {name: r.choice(of) for name, of in CHOICES.items() if r.random() < RARE.get(name, 0.4)}
    if r.random() < 0.95:  # terms that go together
        runtime = runtimes.RUNTIMES[found.get("runtime", "ort-cuda")]
        if runtime.synchronous:
            found = {name: value for name, value in found.items() if name not in OF_A_CARD}
        found["streams"] = 1 if found.get("cuda_graph") else found.get("streams") or 1
        found["include_transfers"] = found.get("include_transfers", False) or "pageable" in found
        found["ort_transformers"] = "ort_transformers" in found and bool(runtime.offline)
        found["opt_level"] = found.get("opt_level", "all") if runtime.has_levels else "all"
        asked = found.get("ort_version")
        found["ort_version"] = asked if asked in RELEASES.get(runtime.name, ()) else None
        found["layout"] = found.get("layout") if runtime.layouts and not found["ort_version"] else None
        if found.get("precision") == "amp" and runtime.autocast is None:
            del found["precision"]
    try:
        graph = ModelProto.FromString(data).graph
    except DecodeError:
        return found
    inputs, loops = graph.input, [n.name or f"Loop_{i}" for i, n in enumerate(graph.node) if n.op_type == "Loop"]
    names = {d.dim_param for i in inputs for d in i.type.tensor_type.shape.dim if isinstance(d.dim_param, str)} - {""}
    if names and r.random() < 0.95:
        found["dims"] = {name: r.choice((1, 2, 16, 32)) for name in sorted(names)}
    if inputs and r.random() < 0.05:
        found["shapes"] = {r.choice(inputs).name: [r.choice((1, 2, 4, 0, 4096)) for _ in range(r.randrange(5))]}
    if loops and r.random() < 0.5:
        found["trip_counts"] = {r.choice(loops): r.choice((0, 1, 7, 10**6, 2**62, -1))}
    return found


def check(case: Case, schema: Any = None) -> str:
    """Predict: "predicted", or the class of the refusal. Raises where the answer is not sane, or what it raises.

    `schema` is a validator that the JSON is held against, kernels and warnings in part.
    """
    started = time.process_time()
    with tempfile.TemporaryDirectory() if case.as_file else nullcontext("") as folder:
        try:
            p = onnxperf.predict(written(case.data, folder) if case.as_file else case.data, **case.terms)
            outcome = "predicted"
        except onnxperf.Error as e:
            outcome = type(e).__name__
            text = str(e)
            assert text.strip(), "a refusal without words"
            assert not {"\n", "\r", "\x1b"} & {*text}, f"a refusal of several lines: {text!r}"
            assert e.exit_code in (2, 3), f"exit code {e.exit_code}: {text}"
    if outcome == "predicted":
        sane(p)
        failed = [n.message for n in p.warnings if n.code == "failed-fusion"]
        assert not failed, failed
        if schema:
            answer = p.to_dict()
            schema.validate({**answer, "kernels": answer["kernels"][:9], "warnings": answer["warnings"][:9]})
    took = time.process_time() - started
    assert took < CPU_SECONDS, f"it takes more than {CPU_SECONDS:.0f} s"
    return outcome


def written(data: bytes, folder: str) -> Path:
    """A model as a file, beside the one that the corpus keeps weights in."""
    path = Path(folder, "model.onnx")
    path.write_bytes(data)
    Path(folder, "weights.bin").write_bytes(bytes(range(256)) * 16)
    return path


def sane(p: onnxperf.Prediction) -> None:
    """What holds for every answer."""
    json.loads(p.to_json(), parse_constant=no_constant)
    near, kernels, shares = 1 + 1e-9, p.kernels, p.bound_by.values()
    holds = {
        "it takes time": p.seconds > 0 and (p.lower_bound_seconds > 0 or not kernels),
        "nothing beats physics": max(p.lower_bound_seconds, p.critical_path_seconds) <= p.seconds * near,
        "the interval holds the time": p.low_seconds <= p.seconds * near <= p.high_seconds * near**2,
        "the interval heeds physics": p.low_seconds >= p.lower_bound_seconds,
        "shares add to 1": abs(sum(shares) - 1) < 1e-6 and min(shares) >= 0,
        "work is not negative": min(
            *p.work.values(), *(min(k.flops, k.bytes_read, k.bytes_written) for k in kernels), 0
        )
        == 0,
        "kernels take time": all(k.low_seconds > 0 and k.start_seconds >= 0 for k in kernels),
        "kernels keep to their interval": all(
            k.low_seconds <= k.seconds * near <= k.high_seconds * near**2 for k in kernels
        ),
        "kernels have names of their own": len({k.name for k in kernels}) == len(kernels),
        "kernels add to their sum": math.isclose(sum(k.seconds for k in kernels), p.sum_seconds),
        "the path is one of kernels": {*p.critical_path} <= {k.name for k in kernels},
    }
    if p.scenario.streams == 1 and p.scenario.method == "tile-wave":
        gaps = sum(g.seconds for g in p.gaps)
        holds["kernels fit into the run"] = p.sum_seconds <= p.seconds * near
        holds["kernels and gaps are the run"] = math.isclose(p.sum_seconds + gaps, p.seconds, rel_tol=1e-6)
    assert all(holds.values()), "not so: " + ", ".join(what for what, true in holds.items() if not true)


def no_constant(text: str) -> NoReturn:
    raise AssertionError(f"{text} is no JSON")


# many cases


@dataclass(frozen=True)
class Broken:
    """A case that broke: what was raised, and where."""

    index: int
    what: str
    report: str


Answer = tuple[str, int, str | Broken]  # what was changed, the case's number, what became of it


def attempt(case: Case, index: int, schema: Any = None) -> str | Broken:
    """What becomes of a case."""
    try:
        return check(case, schema)
    except (Exception, SystemExit) as e:
        frames = traceback.extract_tb(e.__traceback__)
        ours = [f for f in frames if Path(f.filename).is_relative_to(ROOT) and "tests" not in Path(f.filename).parts]
        said = str(e).splitlines()[0][:150] if str(e) else ""
        at = ours[-1] if ours and not isinstance(e, AssertionError) else None
        where = f" at {Path(at.filename).relative_to(ROOT)}:{at.lineno}" if at else ""
        return Broken(index, f"{type(e).__name__}{where}: {said}", traceback.format_exc())


def worker(pipe: Connection, seed: int, files: Sequence[str], schema: dict[str, Any] | None = None) -> None:
    """Run the ranges of cases that come through the pipe, and answer after each case."""
    warnings.simplefilter("error")
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    validator = None
    if schema:
        import jsonschema  # the tests' own, not the command's

        validator = jsonschema.Draft202012Validator(schema)
    models = corpus(files)
    with suppress(EOFError, BrokenPipeError):  # whoever asked has gone
        for cases in iter(pipe.recv, None):
            for i in cases:
                case = make(seed, i, models)
                pipe.send((case.family, attempt(case, i, validator)))


class Runner:
    """A process that runs cases: started again where it ended."""

    def __init__(self, work: Callable[..., None], *args: Any):
        self.work, self.args = work, args
        self.left: Sequence[int] = ()
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=self.work, args=(theirs, *self.args), daemon=True)
        self.process.start()
        theirs.close()
        self.heard = time.monotonic()

    def stop(self) -> None:
        self.process.kill()
        self.process.join()

    def give(self, cases: Sequence[int]) -> None:
        self.left = cases
        self.heard = time.monotonic()
        self.pipe.send(cases)

    def answers(self) -> Iterator[Answer]:
        """The cases that are done, or the one that ended or stopped the process."""
        try:
            while self.left and self.pipe.poll():
                family, result = self.pipe.recv()
                self.heard = time.monotonic()
                index, self.left = self.left[0], self.left[1:]
                yield family, index, result
        except (EOFError, ConnectionResetError):
            self.process.join()
            yield self.lost(f"the process ended with exit code {self.process.exitcode}")
        if self.left and time.monotonic() - self.heard > HANGS_AFTER:
            yield self.lost(f"no answer in {HANGS_AFTER:.0f} s")

    def lost(self, what: str) -> Answer:
        """What became of the case at work; the rest goes to a new process."""
        index, left = self.left[0], self.left[1:]
        self.stop()
        self.start()
        self.give(left)
        return "ended", index, Broken(index, what, what)


def campaign(
    work: Callable[..., None], *args: Any, cases: int, jobs: int, seconds: float = math.inf
) -> Iterator[Answer]:
    """Run cases 0 to `cases` in `jobs` processes, starting none after `seconds`; they come as they are done."""
    started, following = time.monotonic(), 0
    runners = [Runner(work, *args) for _ in range(jobs)]
    try:
        while True:
            late = time.monotonic() - started > seconds
            for runner in runners:
                if not runner.left and following < cases and not late:
                    runner.give(range(following, following := min(following + 25, cases)))
            busy = [runner for runner in runners if runner.left]
            if not busy:
                return
            wait([runner.pipe for runner in busy], timeout=1)
            for runner in busy:
                yield from runner.answers()
    finally:
        for runner in runners:
            runner.stop()


# the command


def keep(case: Case, found: Broken, folder: Path) -> Path:
    """Write a model that broke, with its terms and what was said, aside and then under its name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub('[^A-Za-z0-9]+', '-', found.what)[:60].strip('-')}-{found.index}.onnx"
    facts = {k: v for k, v in asdict(case).items() if k != "data"} | {"what": found.what, "report": found.report}
    for to, data in ((path.with_suffix(".json"), json.dumps(facts, indent=2).encode()), (path, case.data)):
        aside = to.with_name(to.name + ".part")
        aside.write_bytes(data)
        aside.replace(to)
    return path


def replay(path: Path) -> str | Broken:
    """A kept case once more, in this process."""
    facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    warnings.simplefilter("error")
    case = Case(facts["origin"], facts["family"], path.read_bytes(), facts["as_file"], facts["terms"])
    return attempt(case, 0)


def show(table: Counter[tuple[str, str]]) -> str:
    """Outcomes by what was changed."""
    columns = sorted({result for _, result in table}, key=lambda name: (name == "broke", name != "predicted", name))
    families = sorted({family for family, _ in table})
    rows = [["changed", *columns], *([f, *(f"{table[f, c]:,}" for c in columns)] for f in families)]
    rows.append(["all", *(f"{sum(table[f, c] for f in families):,}" for c in columns)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ([cell.rjust(w) for cell, w in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(line) for line in lines)


@click.command()
@click.option("--cases", default=1000, show_default=True, type=click.IntRange(1), help="How many to try.")
@click.option("--seed", default=0, show_default=True, help="Another seed, other cases.")
@click.option("--model", "files", multiple=True, type=click.Path(exists=True, dir_okay=False), help="Change this file.")
@click.option("--seconds", default=math.inf, type=click.FloatRange(0), help="Start no case after so long.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="How many processes.")
@click.option("--keep", "folder", default="build/broken", show_default=True, type=Path, help="For models that break.")
@click.option("--replay", "again", type=click.Path(exists=True, path_type=Path), help="This kept model only.")
def main(
    cases: int, seed: int, files: tuple[str, ...], seconds: float, jobs: int, folder: Path, again: Path | None
) -> None:
    """Predict models with something broken in them; exit with 1 where that breaks onnxperf."""
    if again:
        result = replay(again)
        click.echo(result if isinstance(result, str) else result.report)
        sys.exit(isinstance(result, Broken))
    models, started, said = corpus(files), time.monotonic(), 0.0
    table: Counter[tuple[str, str]] = Counter()
    groups: dict[str, list[Path]] = {}
    for family, index, result in campaign(worker, seed, files, cases=cases, jobs=jobs, seconds=seconds):
        table[family, result if isinstance(result, str) else "broke"] += 1
        if isinstance(result, Broken):
            groups.setdefault(result.what, []).append(keep(make(seed, index, models), result, folder))
        now = time.monotonic()
        if now - said > (1 if sys.stderr.isatty() else 30) or table.total() == cases:
            rate, broke = table.total() / (now - started), sum(map(len, groups.values()))
            text, said = f"{table.total():,} of {cases:,} cases, {rate:.0f} a second, {broke} broke", now
            click.echo(f"\r{text}" if sys.stderr.isatty() else text, err=True, nl=not sys.stderr.isatty())
    click.echo(show(table))
    for what, paths in sorted(groups.items(), key=lambda item: -len(item[1])):
        smallest = min(paths, key=lambda p: p.stat().st_size)
        click.echo(f"\n{len(paths)} x {what}\n  python -m tests.fuzz --replay {smallest}")
    sys.exit(bool(groups))


if __name__ == "__main__":
    main()
