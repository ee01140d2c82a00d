"""Reads an ONNX model and gives a static `Graph`: operators in execution order, the shape of every tensor known."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from onnxperf.graph.core import CONTROL, UNKNOWN_LENGTH, Graph, Note, fresh, is_trained
from onnxperf.graph.open_dims import (
    FOLDED_IN_HALF,
    NEVER_FOLDED,
    KnownDims,
    Open,
    depends_on_data,
    fixed,
    is_static,
    known_dims,
    same_dims,
    without_unneeded,
)  # fmt: skip
from onnxperf.ground.errors import counted

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

__all__ = [
    "CONTROL", "FOLDED_IN_HALF", "NEVER_FOLDED", "UNKNOWN_LENGTH", "Graph", "KnownDims", "Note", "Open", "Opened",
    "batch_dim",
    "depends_on_data", "fixed",
    "fresh", "is_static", "is_trained", "known_dims", "load", "opened", "same_dims", "without_unneeded",
]  # fmt: skip


class Opened(NamedTuple):
    """A model that was read and checked, its name, and the folder of its file: `load` leaves it as it is.

    `kept` is what is known of it by now: to `load`, for another batch; and to whoever predicts it, for another card.
    """

    proto: ModelProto
    name: str
    folder: Path | None
    kept: dict[Any, Any]

    def __repr__(self) -> str:
        return f"<{self.name}: {counted(len(self.proto.graph.node), 'node')}>"


def opened(model: str | os.PathLike[str] | bytes | ModelProto | Opened) -> Opened:
    """Read a model once, to load it with several sizes. Raises what `load` does where it can't be used."""
    from onnxperf.graph.read import read

    return model if isinstance(model, Opened) else Opened(*read(model), {})


def load(
    model: str | os.PathLike[str] | bytes | ModelProto | Opened,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    trip_counts: Mapping[str, int] | None = None,
    examples: Mapping[str, Any] | Sequence[Any] | None = None,
    trains: bool = False,
) -> Graph:
    """The static graph of a model, which is the path of a file, a file's bytes, an onnx.ModelProto or `Opened`.

    shapes: sizes by tensor name, for inputs and for tensors whose shape can't be inferred; dims: sizes by the name of
    an open dimension; batch: the leading dimension of the inputs (1 where that is open and no size is given; where the
    file fixes another, nodes that hold it in constants are changed, which a note says);
    trip_counts: how often a Loop runs, by node name, where the model leaves it open (once where no count is given);
    examples: arrays by input name or in the order of the inputs, of which only the shapes are read; trains: weights
    change from run to run, so that what is computed of them alone is not folded.

    Raises UsageError for unknown names and dimensions that stay open, ModelError for files that can't be used.
    """
    from onnxperf.graph.bind import bind, shapes_of, sizes_of
    from onnxperf.graph.infer import infer
    from onnxperf.ground.lists import whole

    proto, name, folder, kept = opened(model)
    asked = {**shapes_of(proto, examples), **(shapes or {})}
    tensor_shapes = {tensor: sizes_of(shape, tensor) for tensor, shape in asked.items()}
    sizes = {dim: whole(size, f"dimension {dim!r}") for dim, size in (dims or {}).items()}
    batch = None if batch is None else whole(batch, "--batch")
    trips = {node: whole(count, f"the trip count of {node!r}") for node, count in (trip_counts or {}).items()}
    binding = replace(bind(proto, tensor_shapes, sizes, batch), trains=trains)
    old = binding.old_batch
    if not binding.batch_axes or not old:  # an empty batch can't be followed: 0 of it is 0 of anything
        return infer(proto, binding, tensor_shapes, trips, name, folder).graph
    from onnxperf.graph.rebatch import inferred

    return inferred(proto, binding, old, tensor_shapes, trips, name, folder, kept)


def batch_dim(
    model: str | os.PathLike[str] | bytes | ModelProto | Opened,
    shapes: Mapping[str, Sequence[int]] | None = None,
    examples: Mapping[str, Any] | Sequence[Any] | None = None,
) -> str | None:
    """The name of the open dimension that `load` gives `batch` to, None where there is none; arguments as of `load`."""
    from onnxperf.graph.bind import batch_dim, shapes_of

    proto = opened(model).proto
    return batch_dim(proto, {**shapes_of(proto, examples), **(shapes or {})})
