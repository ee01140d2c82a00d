"""The values of small tensors: read from the file, or computed where the values of all inputs are known.

Only shape arithmetic needs them, so no tensor of more than MAX_VALUE elements is read, computed or kept, but for
indices of samples where a file's batch is changed (see `batch_repeats`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, numpy_helper

from onnxperf.graph.proto import Shape, check_size, dtype_of, static, times
from onnxperf.ground.errors import ModelError, printable
from op_models.core import BITS, FLOATS

MAX_VALUE = 4096  # elements
#: Operators that are evaluated. They need little memory beside inputs and result, unlike an Einsum or a Conv.
ARITHMETIC = frozenset({
    "Abs", "Add", "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast",
    "CastLike", "Ceil", "Clip", "Compress", "Concat", "ConstantOfShape", "CumSum", "Div", "Equal", "Exp", "Expand",
    "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity",
    "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "MatMul", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "NonZero",
    "Not", "OneHot", "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "Reshape", "Round", "ScatterElements", "ScatterND", "Sign", "Slice", "Split", "Sqrt", "Squeeze",
    "Sub", "Sum", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
BOUNDED = frozenset({"Compress", "NonZero", "Unique"})  # the result's shape is open, but no larger than the input

Array = np.ndarray[Any, Any]
Values = dict[str, Array]


def content(tensor: TensorProto, folder: Path | None, most: int = MAX_VALUE) -> Array | None:
    """The elements of a tensor; None where there are more than `most`, where it holds text, or without its data.

    `folder` is where external data lie. Raises ModelError where the file holds another amount of data than the shape
    takes.
    """
    check_size(tensor.name, tensor.dims)
    size = prod(tensor.dims)
    filled = tensor.data_location == TensorProto.EXTERNAL or check_filled(tensor, size)
    if not filled or size > most or tensor.data_type == TensorProto.STRING:
        return None
    if tensor.data_location == TensorProto.EXTERNAL:
        data = _external(tensor, (size * BITS[dtype_of(tensor.data_type)] + 7) // 8, folder)
        if data is None:
            return None
        tensor = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=data)
    try:
        return numpy_helper.to_array(tensor)
    except Exception as e:  # onnx raises many kinds here
        raise ModelError(f"tensor {tensor.name!r} can't be read: {first_line(e)}") from None


def check_filled(t: TensorProto, size: int) -> bool:
    """Whether a tensor holds the data that its shape takes; a weight may hold none, as a prediction needs none.

    Raises ModelError for another amount of data, and for small integer tensors (sizes, axes) without data.
    """
    dtype = dtype_of(t.data_type)
    if dtype == "opaque":
        raise ModelError(f"tensor {t.name!r} has an unknown element type, number {t.data_type}")
    packed = (size * BITS[dtype] + 7) // 8
    typed = size * 2 if dtype.startswith("complex") else packed if 0 < BITS[dtype] < 8 else size
    lists = (t.float_data, t.int32_data, t.int64_data, t.double_data, t.uint64_data, t.string_data)
    held, wanted = (len(t.raw_data), packed) if t.HasField("raw_data") else (sum(map(len, lists)), typed)
    if held != wanted and (held or (size <= MAX_VALUE and dtype not in FLOATS)):
        amount = f"{held} instead of {wanted}"
        raise ModelError(f"tensor {t.name!r}: its data do not fill its shape {times(t.dims)} ({amount})")
    return held == wanted


def _external(tensor: TensorProto, need: int, folder: Path | None) -> bytes | None:
    """The `need` bytes of an integer tensor in a file in the model's folder; None where they are not there."""
    place = external_file(tensor, folder) if tensor.data_type in (TensorProto.INT64, TensorProto.INT32) else None
    if place is None:
        return None
    from onnxperf.graph.other_formats import check_fetched

    try:
        check_fetched(tensor.name, place[0])
        with place[0].open("rb") as file:
            file.seek(place[1])
            data = file.read(need)
    except (OSError, ValueError, OverflowError):
        return None
    return data if len(data) == need else None


def external_file(tensor: TensorProto, folder: Path | None) -> tuple[Path, int] | None:
    """The file in the model's folder that holds a tensor's data, and where they begin; None where it is not there."""
    if folder is None:
        return None
    where = {e.key: e.value for e in tensor.external_data}
    try:
        path, offset = (folder / where.get("location", "")).resolve(), int(where.get("offset", 0))
        inside = path.is_file() and path.is_relative_to(folder.resolve())
    except (OSError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a link to itself
        return None
    return (path, offset) if inside and offset >= 0 else None


def constant(node: NodeProto, folder: Path | None) -> tuple[str, Shape, Array | None] | None:
    """The dtype, shape and, where it is small, value of a Constant node; None where it holds nothing known."""
    a = node.attribute[0] if node.attribute else AttributeProto()
    match a.name, a.type:
        case "value", AttributeProto.TENSOR:
            return dtype_of(a.t.data_type), tuple(a.t.dims), content(a.t, folder)
        case ("value_float", AttributeProto.FLOAT) | ("value_floats", AttributeProto.FLOATS):
            value = np.array(a.floats if a.name.endswith("s") else a.f, dtype=np.float32)
        case ("value_int", AttributeProto.INT) | ("value_ints", AttributeProto.INTS):
            value = np.array(a.ints if a.name.endswith("s") else a.i, dtype=np.int64)
        case ("value_string", AttributeProto.STRING) | ("value_strings", AttributeProto.STRINGS):
            return "string", (len(a.strings),) if a.name.endswith("s") else (), None
        case "sparse_value", AttributeProto.SPARSE_TENSOR:
            return dtype_of(a.sparse_tensor.values.data_type), tuple(a.sparse_tensor.dims), None
        case _:
            return None
    return str(value.dtype), value.shape, value if value.size <= MAX_VALUE else None


def evaluate(
    node: NodeProto, values: Values, types: Mapping[str, TypeProto], opsets: Mapping[str, int], most: int = MAX_VALUE
) -> Values:
    """The values of a node's outputs, where those of all inputs are known and the outputs have up to `most` elements
    (see `types`).
    """
    inputs = [i for i in node.input if i]
    if node.op_type not in ARITHMETIC or not inputs or not all(i in values for i in inputs):
        return {}
    if any(a.HasField("t") and a.t.data_location == TensorProto.EXTERNAL for a in node.attribute):
        return {}  # the reference would open the file, wherever it lies and however large it is
    if node.op_type == "Range" and _steps(*(values[i] for i in inputs)) > most:
        return {}
    for out in filter(None, node.output):
        shape = static(types.get(out))
        # a dimension of 0 makes the result empty, not what NumPy holds on the way to it
        if prod(max(d, 1) for d in shape) > most if shape is not None else node.op_type not in BOUNDED:
            return {}
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(_alone(node), opsets=dict(opsets)).run(None, {i: values[i] for i in inputs})
    except Exception:  # the reference does not implement everything; an unknown value is no error
        return {}
    outputs = zip(node.output, results, strict=False)
    return {o: r for o, r in outputs if isinstance(r, np.ndarray) and r.size <= most and r.dtype.kind in "iufb"}


def _alone(node: NodeProto) -> GraphProto:
    """A graph of one node: the reference runs a node without a graph as the newest opset has it, whatever its own."""
    graph = GraphProto(name="one", node=[node])
    graph.input.extend(ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name)
    graph.output.extend(ValueInfoProto(name=name) for name in node.output if name)
    return graph


def _steps(start: Array, limit: Array, delta: Array) -> float:
    """How many numbers a Range makes: onnx's inference takes the difference in the numbers' own type, and overflows."""
    first, last, step = (float(v.flat[0]) if v.size == 1 else np.nan for v in (start, limit, delta))
    return max(0.0, (last - first) / step) if step and np.isfinite((first, last, step)).all() else np.inf


def numbers(value: Array) -> tuple[int | float | bool, ...] | None:
    """The elements as plain Python numbers, row-major; None where they are complex or text."""
    if value.dtype.kind not in "iufbcOSU":
        value = value.astype(np.float32)  # bfloat16 and the 8-bit floats
    return tuple(value.ravel().tolist()) if value.dtype.kind in "iufb" else None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class where there is none."""
    return printable((str(error).strip().splitlines() or [type(error).__name__])[0])


def measure(node: NodeProto, shape: Shape) -> Values:
    """The value of the output of a Shape or Size node whose input has this shape."""
    ends = {a.name: a.i for a in node.attribute}
    size = prod(shape) if node.op_type == "Size" else shape[ends.get("start", 0) : ends.get("end")]
    return {node.output[0]: np.array(size, dtype=np.int64)}
