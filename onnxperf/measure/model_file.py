"""What a model's file says before it is opened: which weights lie in other files, and the sizes of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from onnxperf.errors import ModelError
from onnxperf.graph.proto import dtype_of, graphs_in, nodes_in
from op_models.core import BITS

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto


def absent(model: ModelProto, folder: Path | None) -> list[TensorProto]:
    """The tensors whose data lie in a file that isn't there. folder: the model's, None where it came from no file.

    Raises ModelError where a link leads out of the model's folder.
    """
    return [t for t in (*model.graph.initializer, *inner(model.graph)) if outside(t) and file_of(t, folder) is None]


def inner(graph: GraphProto) -> Iterator[TensorProto]:
    """The tensors stored in nodes and in the graphs inside them."""
    for g in graphs_in(graph.node):
        yield from g.initializer
    for attribute in (a for n in nodes_in(graph.node) for a in n.attribute):
        yield from (attribute.t, *attribute.tensors)


def outside(t: TensorProto) -> bool:
    """Whether a tensor's data lie in another file."""
    return bool(t.data_location == t.EXTERNAL)


def file_of(t: TensorProto, folder: Path | None) -> Path | None:
    """The file of a tensor's data, None where there is none."""
    if folder is None:
        return None
    path = folder / entry(t, "location")
    try:
        if not path.is_file():
            return None
    except (OSError, ValueError):
        return None
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"tensor {t.name!r} keeps its data outside the model's folder, behind a link")
    return path


def bytes_of(t: TensorProto) -> int:
    """The size of a tensor's data."""
    return (int(prod(t.dims)) * BITS[dtype_of(t.data_type)] + 7) // 8


def changed(model: ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The inputs, with the shapes wanted of them, whose fixed sizes differ or whose open ones have no name."""
    found = []
    for info in model.graph.input:
        wanted = shapes.get(info.name, ())
        pairs = zip(info.type.tensor_type.shape.dim, wanted, strict=False)
        if any(d.dim_value != w if d.HasField("dim_value") else not d.dim_param for d, w in pairs):
            found.append((info.name, wanted))
    return tuple(found)


def named(model: ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, int], ...]:
    """The open dimensions that have a name, with the sizes they are bound to."""
    found = {
        dim.dim_param: size
        for info in model.graph.input
        for dim, size in zip(info.type.tensor_type.shape.dim, shapes.get(info.name, ()), strict=False)
        if dim.dim_param
    }
    return tuple(found.items())


def entry(t: TensorProto, key: str) -> str:
    """What a tensor says of the file of its data, such as its "location"; "" where it says nothing."""
    return next((e.value for e in t.external_data if e.key == key), "")
