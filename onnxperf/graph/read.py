"""Reads an ONNX model from a file, bytes or a ModelProto, checks it, and inlines its functions.

Nothing in it is executed, and its weights are not needed: external data are not read here (see `values`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path, PureWindowsPath

import onnx
from google.protobuf.message import DecodeError
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, defs

from onnxperf.graph.inlined_size import Key, Size, calls_size, check_expansion, function_size, key_of
from onnxperf.graph.proto import MAX_NAME, graphs_in, nodes_in, plain
from onnxperf.graph.values import first_line
from onnxperf.ground.errors import ModelError, UsageError, unreadable

OLDEST_IR, OLDEST_OPSET = 3, 7
MAX_FILE = 1 << 31  # bytes; protobuf allows no more
INLINE_FIRST = "inline them with onnx.inliner.inline_local_functions, and predict what that gives"


def read(model: str | os.PathLike[str] | bytes | ModelProto) -> tuple[ModelProto, str, Path | None]:
    """The model without functions, its name, and the folder of its file (None where it does not come from a file).

    Raises UsageError where there is no such file, ModelError where its content can't be used.
    """
    proto, name, folder = parsed(model)
    _check_versions(proto, name)
    graphs, nodes = contents(proto)
    tensors = stored_tensors(graphs, nodes)
    texts = _texts(proto, graphs, nodes, tensors)
    if not all(isinstance(text, str) for text in texts):  # protobuf gives it as bytes
        raise ModelError(f"{name}: a name in it is not valid UTF-8; the file is damaged")
    if len(longest := max(texts, key=len, default="")) > MAX_NAME:
        raise ModelError(
            f"{name}: the name {plain(longest)!r} has {len(longest):,} characters; the limit is {MAX_NAME:,}"
        )
    _locations(tensors, name)
    if proto.functions:
        proto = _inline(proto, name)
    if not proto.graph.node:
        raise ModelError(f"{name}: the graph has no nodes, so there is nothing to predict")
    if not proto.graph.output:
        raise ModelError(f"{name}: the graph has no outputs, so nothing in it would run")
    return proto, name, folder


def parsed(model: str | os.PathLike[str] | bytes | ModelProto) -> tuple[ModelProto, str, Path | None]:
    """The same, as it stands in the file: with its functions, and not checked."""
    if isinstance(model, ModelProto):
        return model, model.graph.name or "model", None
    if isinstance(model, bytes):
        return _parse(model, "the bytes given"), "model", None
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        return _parse(_bytes(path), str(path)), path.name, path.parent
    kinds = "a path, bytes, an onnx.ModelProto, or a model (no class) of PyTorch, Keras or TensorFlow"
    raise UsageError(f"can't predict an object of type {type(model).__name__}: give {kinds}")


def external_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files beside a model that hold its weights; none where it can't be read, as it is no ONNX file, say."""
    try:
        tensors = stored_tensors(*contents(_parse(_bytes(Path(path)), str(path))))
        return [Path(path).parent / location for location in _locations(tensors, str(path))]
    except (UsageError, ModelError):
        return []


def _bytes(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # reading it could wait for ever
            raise UsageError(f"{path} is a pipe or a device, not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE)
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; give the .onnx file inside it") from None
    except (OSError, ValueError) as e:
        raise unreadable(path, e) from None
    if len(data) == MAX_FILE:
        from onnxperf.graph.other_formats import TEXT, other_format

        if what := other_format(data[:TEXT]):
            raise ModelError(f"{path} is not an ONNX model: it is {what}")
        raise ModelError(f"{path} is larger than 2 GiB, which no ONNX file is: keep the weights in external data")
    return data


def _parse(data: bytes, where: str) -> ModelProto:
    if not data:
        raise ModelError(f"{where}: the file is empty")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
        why = "it holds no graph" if not proto.HasField("graph") else ""
    except DecodeError:
        why = "its bytes are no valid protobuf, or it is truncated"
    if why:
        from onnxperf.graph.other_formats import other_format

        what = other_format(data)
        raise ModelError(f"{where} is not an ONNX model: {f'it is {what}' if what else why}")
    return proto


def _check_versions(proto: ModelProto, name: str) -> None:
    if proto.ir_version < OLDEST_IR:
        raise ModelError(f"{name}: IR version {proto.ir_version} is older than {OLDEST_IR}, the oldest supported")
    if proto.ir_version > onnx.IR_VERSION:
        knows = f"the newest that onnx {onnx.__version__} knows: pip install -U onnx"
        raise ModelError(f"{name}: IR version {proto.ir_version} is newer than {onnx.IR_VERSION}, {knows}")
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


def contents(proto: ModelProto) -> tuple[list[GraphProto], list[NodeProto]]:
    """All graphs of a model, and all nodes of these and of its functions.

    A node without a type stands for the defaults of each function's attributes.
    """
    outer = [*proto.graph.node, *(n for f in proto.functions for n in f.node)]
    outer += [NodeProto(attribute=f.attribute_proto) for f in proto.functions if f.attribute_proto]
    inner = list(graphs_in(outer))
    return [proto.graph, *inner], [*outer, *(n for g in inner for n in g.node)]


def stored_tensors(graphs: Iterable[GraphProto], nodes: Iterable[NodeProto]) -> list[TensorProto]:
    """All tensors that are stored in these: initialisers and those in attributes, with the parts of sparse ones."""
    tensors = [t for g in graphs for t in g.initializer]
    sparse = [s for g in graphs for s in g.sparse_initializer]
    for a in (a for n in nodes for a in n.attribute):
        tensors += (a.t, *a.tensors) if a.HasField("t") else a.tensors
        sparse += (a.sparse_tensor, *a.sparse_tensors) if a.HasField("sparse_tensor") else a.sparse_tensors
    return tensors + [t for s in sparse for t in (s.values, s.indices)]


def _texts(
    proto: ModelProto, graphs: Iterable[GraphProto], nodes: Iterable[NodeProto], tensors: Iterable[TensorProto]
) -> list[str]:
    """All names in a model, and where its external data lie."""
    texts = [o.domain for o in proto.opset_import]
    for graph in graphs:
        texts.append(graph.name)
        for info in (*graph.input, *graph.output, *graph.value_info):
            texts += (info.name, *(d.dim_param for d in info.type.tensor_type.shape.dim))
    for f in proto.functions:
        texts += (f.name, f.domain, f.overload, *f.input, *f.output, *f.attribute)
    for n in nodes:
        texts += (n.name, n.op_type, n.domain, n.overload, *n.input, *n.output, *(a.name for a in n.attribute))
    for t in tensors:
        texts += (t.name, *(e.value for e in t.external_data))
    return texts


def _locations(tensors: Iterable[TensorProto], name: str) -> Iterable[str]:
    """Where external data lie, from the model's folder; ModelError where a tensor keeps them outside of it."""
    tensor_at: dict[str, str] = {}  # most models have a single location
    for t in tensors:
        if t.data_location == TensorProto.EXTERNAL:
            for e in t.external_data:
                if e.key == "location" and isinstance(e.value, str):  # protobuf gives what is no text as bytes
                    tensor_at.setdefault(e.value, t.name)
    for location, tensor in tensor_at.items():
        parts = PureWindowsPath(location)  # understands both separators, drives and UNC paths
        if parts.drive or parts.root or ".." in parts.parts:
            raise ModelError(f"{name}: tensor {tensor!r} keeps its data outside the model's folder ({location!r})")
    return tensor_at


def _inline(proto: ModelProto, name: str) -> ModelProto:
    """The model with its functions inlined, on a copy without weights; ModelError where that makes too many nodes."""
    _check_expansion(proto, name)
    light = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    light.graph.name = proto.graph.name
    for field in ("node", "input", "output", "value_info"):
        getattr(light.graph, field).extend(getattr(proto.graph, field))
    # their names alone, so that no new name equals one of theirs
    light.graph.initializer.extend(TensorProto(name=t.name) for t in proto.graph.initializer)
    from onnx import inliner

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

    functions: dict[Key, FunctionProto] = {(f.domain, f.name, f.overload): f for f in proto.functions}
    calls = {key: _called(f.node, functions) for key, f in functions.items()}
    try:
        order = list(networkx.topological_sort(networkx.DiGraph(calls)))
    except networkx.NetworkXUnfeasible:
        raise ModelError(f"{name}: its functions call each other in a circle") from None
    nodes: dict[Key, int] = {}
    size: dict[Key, Size] = {}
    for key in reversed(order):  # the called before their callers
        nodes[key] = sum(1 for _ in nodes_in(functions[key].node)) + sum(n * nodes[c] for c, n in calls[key].items())
        size[key] = function_size(functions[key], size)
    total = sum(n * nodes[c] for c, n in _called(proto.graph.node, functions).items())
    bytes_total = calls_size(proto.graph.node, size)
    check_expansion(f"{name}: inlining its functions", total, bytes_total, INLINE_FIRST)


def _called(nodes: Iterable[NodeProto], functions: Container[Key]) -> Counter[Key]:
    """How often nodes, and those of the graphs inside them, call each function, by its key."""
    return Counter(key for key in map(key_of, nodes_in(nodes)) if key in functions)
