"""A file, bytes or a ModelProto in; a `ModelProto` without functions out, checked but never executed.

Weights are never needed: external data is not read, except for integer tensors of a few elements (shapes and
axes) inside the model's own folder.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, defs, inliner

from onnxperf.errors import ModelError, UsageError
from onnxperf.graph.proto import subgraphs_of

OLDEST_IR, OLDEST_OPSET = 3, 7
MAX_NODES = 1_000_000  # after inlining; a few nested functions can ask for more nodes than memory holds


def read(model: str | os.PathLike[str] | bytes | ModelProto) -> tuple[ModelProto, str, Path | None]:
    """Read a model and return it with its name and its folder (None where it did not come from a file).

    Raises UsageError where there is no such file, ModelError where what is there can't be used.
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
        raise UsageError(f"can't predict a {type(model).__name__}: give a path, bytes or an onnx.ModelProto")
    _check_versions(proto, name)
    for tensor in _tensors(proto.graph):
        _check_location(tensor, name)
    for function in proto.functions:
        for node in function.node:
            for tensor in _node_tensors(node):
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
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; give the .onnx file inside it") from None
    except (OSError, ValueError) as e:
        raise UsageError(f"can't read {path}: {getattr(e, 'strerror', None) or e}") from None


def _parse(data: bytes, where: str) -> ModelProto:
    if not data:
        raise ModelError(f"{where}: the file is empty")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise ModelError(
            f"{where} is not an ONNX model (or it is truncated): its bytes are no valid protobuf"
        ) from None
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
        raise ModelError(
            f"{name}: opset {opset} is newer than {newest}, the newest that onnx {onnx.__version__} knows:"
            " pip install -U onnx"
        )


def _node_tensors(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for graph in subgraphs_of(attribute):
            yield from _tensors(graph)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from _node_tensors(node)


def _check_location(tensor: TensorProto, name: str) -> None:
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    location = next((e.value for e in tensor.external_data if e.key == "location"), "")
    parts = PureWindowsPath(location)  # understands both separators, drives and UNC paths
    if parts.drive or parts.root or ".." in parts.parts:
        raise ModelError(f"{name}: tensor {tensor.name!r} keeps its data outside the model's folder ({location!r})")


def _inline(proto: ModelProto, name: str) -> ModelProto:
    """Inline model-local functions; their number of nodes is checked first, weights are left out."""
    _check_expansion(proto, name)
    light = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    light.graph.name = proto.graph.name
    light.graph.node.extend(proto.graph.node)
    light.graph.input.extend(proto.graph.input)
    light.graph.output.extend(proto.graph.output)
    light.graph.value_info.extend(proto.graph.value_info)
    try:
        flat = inliner.inline_local_functions(light)
    except Exception as e:  # the C++ inliner raises plain RuntimeError, ValidationError and others
        raise ModelError(f"{name}: its functions can't be inlined: {first_line(e)}") from None
    flat.graph.initializer.extend(proto.graph.initializer)
    flat.graph.sparse_initializer.extend(proto.graph.sparse_initializer)
    return flat


def _check_expansion(proto: ModelProto, name: str) -> None:
    import networkx

    functions: dict[Any, FunctionProto] = {(f.domain, f.name, f.overload): f for f in proto.functions}
    calls = {key: Counter(_called(f.node, functions)) for key, f in functions.items()}
    try:
        order = list(networkx.topological_sort(networkx.DiGraph(calls)))
    except networkx.NetworkXUnfeasible:
        raise ModelError(f"{name}: its functions call each other in a circle") from None
    nodes: dict[Any, int] = {}
    for key in reversed(order):  # the called before their callers
        nodes[key] = len(functions[key].node) + sum(n * nodes[c] for c, n in calls[key].items())
    total = sum(nodes[c] for c in _called(proto.graph.node, functions))
    if total > MAX_NODES:
        raise ModelError(f"{name}: inlining its functions would make {total:,} nodes; the limit is {MAX_NODES:,}")


def _called(nodes: Iterable[NodeProto], functions: dict[Any, FunctionProto]) -> Iterator[Any]:
    for node in nodes:
        key = (node.domain, node.op_type, node.overload)
        if key in functions:
            yield key
        for attribute in node.attribute:
            for graph in subgraphs_of(attribute):
                yield from _called(graph.node, functions)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a message of one sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
