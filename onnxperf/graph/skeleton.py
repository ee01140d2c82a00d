"""A model without its weights: all that a prediction reads, and nothing else that its owner may want to keep private.

The data of a stored tensor stay where a graph is inferred from its values: those of up to INSIDE_BYTES, whole numbers
(axes, sizes, tables of indices) and a single number repeated, if they have at most MAX_VALUE elements, and indices of
64 bits up to MAX_INDICES. Of other data a tensor notes whether they are the same for each sample of the file's batch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import Message
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper

from onnxperf.graph.batch_inputs import batch_axes
from onnxperf.graph.bind import declared_dims
from onnxperf.graph.module_path import SCOPES
from onnxperf.graph.proto import dtype_of, is_tensor
from onnxperf.graph.read import read
from onnxperf.graph.stored_data import REPEATS, noted
from onnxperf.graph.values import MAX_VALUE, content
from op_models.core import BITS, FLOATS

WEIGHTS = "weights-not-included.bin"
INSIDE_BYTES = 1024
MAX_INDICES = 1 << 16
#: Fields that are removed: free text, which exporters fill with paths of source files, and what inference never uses.
#: Of a node's metadata the names of the modules around it stay.
REMOVED = frozenset({"doc_string", "metadata_props", "training_info"})
DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
LISTS = {"value_floats": ("floats", np.float32), "value_ints": ("ints", np.int64)}


def skeleton(model: str | os.PathLike[str] | bytes | ModelProto, folder: Path | None = None) -> bytes:
    """The bytes of an ONNX file that predicts the same; its weights refer to a file that does not exist.

    folder: where the external data of a ModelProto lie. Small whole numbers among a file's external data are copied
    into it. The model itself is not changed. Raises UsageError where there is no such file, ModelError where its
    content can't be used.
    """
    folder = read(model)[2] or folder  # raises the errors
    proto = ModelProto()
    if isinstance(model, ModelProto):
        proto.CopyFrom(model)
    else:
        proto.ParseFromString(model if isinstance(model, bytes) else Path(model).read_bytes())
    _strip(proto, folder, 0, _batches(proto))
    return bytes(proto.SerializeToString(deterministic=True))


def _batches(model: ModelProto) -> list[int]:
    """The batches that a file may be made for: of inputs, where that is more than 1."""
    dims = {i.name: declared_dims(i) or () for i in model.graph.input if is_tensor(i.type)}
    axes = batch_axes(model, dims)
    sizes = {d for name, shape in dims.items() for d in shape[axes.get(name, 0) :][:1] if isinstance(d, int)}
    return sorted(sizes - {0, 1})


def _strip(message: Message, folder: Path | None, offset: int, batches: Sequence[int]) -> int:
    """Strip a message and all inside it, whose weights begin at `offset` of their file; returns where they end."""
    if isinstance(message, NodeProto) and message.op_type == "Constant":
        _shorten(message)
    for field, value in message.ListFields():
        if field.name == "metadata_props" and isinstance(message, NodeProto):
            for i in reversed(range(len(value))):
                if value[i].key != SCOPES:
                    del value[i]
        elif field.name == "metadata_props" and isinstance(message, TensorProto):
            continue
        elif field.name in REMOVED:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in value if hasattr(value, "__len__") else (value,):
                offset = _strip(inner, folder, offset, batches)
    return _strip_tensor(message, folder, offset, batches) if isinstance(message, TensorProto) else offset


def _strip_tensor(tensor: TensorProto, folder: Path | None, offset: int, batches: Sequence[int]) -> int:
    """Remove a tensor's data unless they stay; returns where the next tensor's would begin."""
    note = noted(tensor, folder, batches)
    tensor.ClearField("metadata_props")
    outside = tensor.data_location == TensorProto.EXTERNAL
    if tensor.data_type == TensorProto.STRING and not outside and tensor.ByteSize() <= INSIDE_BYTES:
        return offset
    most = MAX_INDICES if tensor.data_type == TensorProto.INT64 else MAX_VALUE
    value, dtype = content(tensor, folder, most), dtype_of(tensor.data_type)
    if value is not None and _stays(value, dtype):
        if outside:
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        return offset
    for field in (*DATA, "external_data"):
        tensor.ClearField(field)
    nbytes = (int(np.prod(tensor.dims, dtype=np.int64)) * BITS[dtype] + 7) // 8
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", WEIGHTS), ("offset", str(offset)), ("length", str(nbytes))):
        tensor.external_data.add(key=key, value=text)
    if note:
        tensor.metadata_props.add(key=REPEATS, value=note)
    return offset + nbytes


def _stays(value: np.ndarray[Any, Any], dtype: str) -> bool:
    """Whether a tensor keeps its data: it is small, of whole numbers, or one number repeated."""
    small = value.size * BITS[dtype] <= 8 * INSIDE_BYTES
    return small or dtype not in FLOATS or bool((value == value.flat[0]).all())


def _shorten(node: NodeProto) -> None:
    """Replace a Constant's long list of numbers by a tensor, which can do without data."""
    for a in node.attribute:
        if a.name not in LISTS:
            continue
        field, kind = LISTS[a.name]
        numbers = np.array(getattr(a, field), kind)
        if numbers.size > MAX_VALUE or (kind is np.float32 and not _stays(numbers, "float32")):
            tensor = numpy_helper.from_array(numbers)
            a.CopyFrom(AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor))
