"""Reads an ONNX model from a file, bytes or a ModelProto, checks it, and inlines its functions.

Nothing in it is executed, and its weights are not needed: external data are not read here (see `values`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, defs, inliner

from onnxperf.errors import ModelError, UsageError
from onnxperf.graph.proto import graphs_in, nodes_in
from onnxperf.graph.values import first_line

OLDEST_IR, OLDEST_OPSET = 3, 7
MAX_FILE = 1 << 31  # bytes; protobuf allows no more
DAMAGED = "a name in it is no valid text (UTF-8); the file is damaged"
#: Nodes, and bytes of nodes, after functions are inlined: a few that call each other can fill any memory.
MAX_NODES, MAX_BYTES = 500_000, 1 << 30


def read(model: str | os.PathLike[str] | bytes | ModelProto) -> tuple[ModelProto, str, Path | None]:
    """The model without functions, its name, and the folder of its file (None where it does not come from a file).

    Raises UsageError where there is no such file, ModelError where its content can't be used.
    """
    folder = None
    if isinstance(model, ModelProto):
        proto, name = model, model.graph.name or "model"
    elif isinstance(model, bytes):
        proto, name = _parse(model, "the bytes given"), "model"
    elif isinstance(model, (str, os.PathLike)):
        path = Path(model)
        proto, name, folder = _parse(_bytes(path), str(path)), path.name, path.parent
    else:
        kinds = "a path, bytes, an onnx.ModelProto, or a model (no class) of PyTorch, Keras or TensorFlow"
        raise UsageError(f"can't predict what is of type {type(model).__name__}: give {kinds}")
    _check_versions(proto, name)
    if not all(isinstance(text, str) for text in _texts(proto)):
        raise ModelError(f"{name}: {DAMAGED}")
    for tensor in stored_tensors(proto):
        _check_location(tensor, name)
    if proto.functions:
        proto = _inline(proto, name)
    if not proto.graph.node:
        raise ModelError(f"{name}: the graph has no nodes, so there is nothing to predict")
    if not proto.graph.output:
        raise ModelError(f"{name}: the graph has no outputs, so nothing in it would run")
    return proto, name, folder


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE)
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; give the .onnx file inside it") from None
    except (OSError, ValueError) as e:
        raise UsageError(f"can't read {path}: {getattr(e, 'strerror', None) or e}") from None
    if len(data) == MAX_FILE:
        raise ModelError(f"{path} is larger than 2 GiB, which no ONNX file is: keep the weights in external data")
    return data


def _parse(data: bytes, where: str) -> ModelProto:
    if not data:
        raise ModelError(f"{where}: the file is empty")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        why = "is not an ONNX model (or it is truncated): its bytes are no valid protobuf"
        raise ModelError(f"{where} {why}") from None
    if not proto.HasField("graph"):
        raise ModelError(f"{where} is not an ONNX model: it holds no graph")
    return proto


def _check_versions(proto: ModelProto, name: str) -> None:
    if proto.ir_version < OLDEST_IR:
        raise ModelError(f"{name}: IR version {proto.ir_version} is older than {OLDEST_IR}, the oldest supported")
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), None)
    newest = defs.onnx_opset_version()
    if opset is None:
        if any(n.domain in ("", "ai.onnx") for n in proto.graph.node):
            raise ModelError(f"{name}: the model does not say which opset its ai.onnx operators follow")
    elif opset < OLDEST_OPSET:
        raise ModelError(f"{name}: opset {opset} is older than {OLDEST_OPSET}; convert it with onnx.version_converter")
    elif opset > newest:
        knows = f"the newest that onnx {onnx.__version__} knows: pip install -U onnx"
        raise ModelError(f"{name}: opset {opset} is newer than {newest}, {knows}")


def _nodes(proto: ModelProto) -> list[NodeProto]:
    """The nodes of a model's graph and of its functions."""
    return [*proto.graph.node, *(n for f in proto.functions for n in f.node)]


def _texts(proto: ModelProto) -> Iterator[str]:
    """All names in a model. Protobuf gives one that is no valid UTF-8 as bytes."""
    yield from (o.domain for o in proto.opset_import)
    for graph in (proto.graph, *graphs_in(_nodes(proto))):
        yield graph.name
        for info in (*graph.input, *graph.output, *graph.value_info):
            yield from (info.name, *(d.dim_param for d in info.type.tensor_type.shape.dim))
    for f in proto.functions:
        yield from (f.name, f.domain, f.overload, *f.input, *f.output, *f.attribute)
    for node in nodes_in(_nodes(proto)):
        yield from (node.name, node.op_type, node.domain, node.overload, *node.input, *node.output)
        yield from (a.name for a in node.attribute)


def stored_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """All tensors that are stored in a model: initialisers and those in attributes, with the parts of sparse ones."""
    sparse = []
    for graph in (proto.graph, *graphs_in(_nodes(proto))):
        yield from graph.initializer
        sparse += graph.sparse_initializer
    for attribute in (a for n in nodes_in(_nodes(proto)) for a in n.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        sparse += (attribute.sparse_tensor, *attribute.sparse_tensors)
    yield from (t for s in sparse for t in (s.values, s.indices))


def _check_location(tensor: TensorProto, name: str) -> None:
    if not isinstance(tensor.name, str) or not all(isinstance(e.value, str) for e in tensor.external_data):
        raise ModelError(f"{name}: {DAMAGED}")
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    location = next((e.value for e in tensor.external_data if e.key == "location"), "")
    parts = PureWindowsPath(location)  # understands both separators, drives and UNC paths
    if parts.drive or parts.root or ".." in parts.parts:
        raise ModelError(f"{name}: tensor {tensor.name!r} keeps its data outside the model's folder ({location!r})")


def _inline(proto: ModelProto, name: str) -> ModelProto:
    """The model with its functions inlined, on a copy without weights; ModelError where that makes too many nodes."""
    _check_expansion(proto, name)
    light = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    light.graph.name = proto.graph.name
    for field in ("node", "input", "output", "value_info"):
        getattr(light.graph, field).extend(getattr(proto.graph, field))
    # their names alone, so that no new name equals one of theirs
    light.graph.initializer.extend(TensorProto(name=t.name) for t in proto.graph.initializer)
    try:
        flat = inliner.inline_local_functions(light)
    except Exception as e:  # the C++ inliner raises plain RuntimeError, ValidationError and others
        raise ModelError(f"{name}: its functions can't be inlined: {first_line(e)}") from None
    for _ in graphs_in(flat.graph.node):
        pass  # raises ModelError where functions have nested graphs too deep
    del flat.graph.initializer[:]
    flat.graph.initializer.extend(proto.graph.initializer)
    flat.graph.sparse_initializer.extend(proto.graph.sparse_initializer)
    return flat


def _check_expansion(proto: ModelProto, name: str) -> None:
    """Raise ModelError for functions that call each other in a cycle, or that would make too many nodes."""
    import networkx

    functions: dict[Any, FunctionProto] = {(f.domain, f.name, f.overload): f for f in proto.functions}
    calls = {key: _called(f.node, functions) for key, f in functions.items()}
    try:
        order = list(networkx.topological_sort(networkx.DiGraph(calls)))
    except networkx.NetworkXUnfeasible:
        raise ModelError(f"{name}: its functions call each other in a circle") from None
    nodes: dict[Any, int] = {}
    size: dict[Any, int] = {}
    for key in reversed(order):  # the called before their callers
        nodes[key] = sum(1 for _ in nodes_in(functions[key].node)) + sum(n * nodes[c] for c, n in calls[key].items())
        size[key] = functions[key].ByteSize() + sum(n * size[c] for c, n in calls[key].items())
    called = _called(proto.graph.node, functions)
    total = sum(n * nodes[c] for c, n in called.items())
    if total > MAX_NODES:
        raise ModelError(f"{name}: inlining its functions would make {total:,} nodes; the limit is {MAX_NODES:,}")
    if sum(n * size[c] for c, n in called.items()) > MAX_BYTES:
        raise ModelError(f"{name}: inlining its functions would make more than {MAX_BYTES >> 30} GiB of nodes")


def _called(nodes: Iterable[NodeProto], functions: Container[Any]) -> Counter[Any]:
    """How often nodes, and those of the graphs inside them, call each function, by its key."""
    keys = ((n.domain, n.op_type, n.overload) for n in nodes_in(nodes))
    return Counter(key for key in keys if key in functions)
