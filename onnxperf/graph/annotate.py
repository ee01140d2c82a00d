"""A copy of a model that says something in the metadata of its nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto

from onnxperf.graph.infer import labelled
from onnxperf.graph.read import MAX_FILE, contents, read, stored_tensors
from onnxperf.ground.errors import ModelError, UsageError

Props = Mapping[str, str]


def annotated(
    model: str | os.PathLike[str] | bytes | ModelProto, whole: Props, nodes: Mapping[str, Props], target: str = ""
) -> bytes:
    """The bytes of a copy of an ONNX file, its functions inlined, with more `metadata_props`; equal keys are replaced.

    whole: those of the model; nodes: those of each node, by the name that predictions have for it; nodes in bodies of
    others have none. target: where the copy will lie. Raises UsageError where there is no such file, or where weights
    beside it could not be found from there, ModelError where its content can't be used.
    """
    proto, name, folder = read(model)
    if isinstance(model, ModelProto):  # the caller's own
        proto = ModelProto.FromString(proto.SerializeToString())
    if target and folder is not None and not folder.samefile(Path(target).resolve().parent):
        tensors = (t for t in stored_tensors(*contents(proto)) if t.data_location == TensorProto.EXTERNAL)
        files = {e.value for t in tensors for e in t.external_data if e.key == "location"}
        if present := sorted(f for f in files if (folder / f).exists()):
            raise UsageError(f"{name} keeps weights in {present[0]!r}, beside it: write the copy {target} there, too")
    _set(proto, whole)
    for node, label in labelled(proto.graph):
        _set(node, nodes.get(label, {}))
    if proto.ByteSize() >= MAX_FILE:
        raise ModelError(f"{name}: with the metadata it would be larger than 2 GiB: keep the weights in external data")
    return bytes(proto.SerializeToString(deterministic=True))


def _set(holder: Any, props: Props) -> None:
    """Set the metadata of a model or a node."""
    for i in reversed(range(len(holder.metadata_props))):
        if holder.metadata_props[i].key in props:
            del holder.metadata_props[i]
    for key, value in props.items():
        holder.metadata_props.add(key=key, value=value)
