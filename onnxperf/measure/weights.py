"""A model's weights and sizes: what its file says of them, and the model as ONNX Runtime is given it, with other sizes,
in half precision, with random weights in the place of missing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxperf.graph.other_formats import check_fetched
from onnxperf.graph.proto import dtype_of, graphs_in, nodes_in
from onnxperf.graph.read import read
from onnxperf.ground.errors import EnvironmentFailure, ModelError
from onnxperf.ground.tables import size
from onnxperf.measure.inputs import BIT_PATTERNS, Array, as_type
from op_models.core import BITS

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto

    from onnxperf.measure.job import Plan

SPREAD = 0.02  # standard deviation, as models are initialised
BLOCK = 1 << 20  # random numbers that are repeated: times do not depend on them
LARGEST, SMALLEST = 65504.0, 5.96e-8  # of float16
MOST_INSIDE = 1 << 30  # bytes of made-up weights that are written into the model itself
FLOATS = ("float64", "float32", "float16", "bfloat16")
NUMPY = frozenset({*FLOATS[:3], "bool", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))})

Weights = dict[str, tuple[Array, int]]  # by name: an array, and ONNX's number of its type if NumPy lacks it, else 0


def model_and_weights(plan: Plan) -> tuple[str | bytes, Weights]:
    """What ONNX Runtime is to open, and the weights to hand it beside that: those that are missing, and float32 weights
    in other files where half precision is wanted.

    Raises ModelError where the file can't be used, EnvironmentFailure where it gets too large.
    """
    job, folder = plan.job, plan.folder
    if plan.as_it_is:
        return plan.source, {}
    model = read(plan.source)[0]
    rebind(model, dict(plan.sizes))
    rng = np.random.default_rng(job.seed)
    block = rng.standard_normal(BLOCK, dtype=np.float32) * np.float32(SPREAD)
    _fill([t for t in inner(model.graph) if outside(t) and file_of(t, folder) is None], block)
    single = {t.name for t in model.graph.initializer if outside(t) and dtype_of(t.data_type) == "float32"}
    if job.precision == "fp16":
        model = _halved(model)
    handed: Weights = {}
    for t in filter(outside, model.graph.initializer):
        there = file_of(t, folder)
        halved = t.name in single and dtype_of(t.data_type) == "float16"
        if there is None and _number(t) is None:
            _fill([t], block)
        elif there is None or halved:
            handed[t.name] = (_made(t, block) if there is None else _read(t, there), _number(t) or 0)
    try:
        return model.SerializeToString(), handed
    except ValueError:
        why = "with the necessary changes it is larger than 2 GiB"
        raise EnvironmentFailure(f"{plan.graph.name}: {why}") from None


def rebind(model: ModelProto, sizes: dict[str, tuple[int, ...]]) -> None:
    """Write other sizes into the model's inputs, and remove the shapes of all other tensors, which may be wrong now."""
    for info in model.graph.input:
        for dim, length in zip(info.type.tensor_type.shape.dim, sizes.get(info.name, ()), strict=False):
            dim.dim_value = length
    if sizes:
        del model.graph.value_info[:]
        for info in model.graph.output:
            info.type.tensor_type.ClearField("shape")


def _halved(model: ModelProto) -> ModelProto:
    """The model in half precision, inputs and outputs too, by ONNX Runtime's own converter.

    The converter reads the data of every weight, so weights whose data lie elsewhere are inputs while it runs.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    graph, inputs = model.graph, {i.name for i in model.graph.input}
    away = [type(t).FromString(t.SerializeToString()) for t in graph.initializer if outside(t)]
    _drop(graph.initializer, outside)
    for t in away:
        if t.name not in inputs:
            kind = graph.input.add(name=t.name).type.tensor_type
            kind.elem_type = t.data_type
            for size in t.dims:
                kind.shape.dim.add(dim_value=size)
    model = convert_float_to_float16(model, keep_io_types=False)
    types = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
    _drop(model.graph.input, lambda i: i.name not in inputs)
    for t in away:
        model.graph.initializer.add().CopyFrom(t)
        model.graph.initializer[-1].data_type = types[t.name]
    return model


def _drop(field: Any, gone: Callable[[Any], bool]) -> None:
    """Take messages out of a repeated field."""
    for i in reversed(range(len(field))):
        if gone(field[i]):
            del field[i]


def _number(t: TensorProto) -> int | None:
    """ONNX's number of a tensor's type if NumPy lacks it, 0 if NumPy has it, None if no array can hold it."""
    dtype = dtype_of(t.data_type)
    return 0 if dtype in NUMPY else BIT_PATTERNS.get(dtype)


def _made(t: TensorProto, block: Array) -> Array:
    """Random weights. Whole numbers are 0, which is an index of any table; vectors are positive, as variances are."""
    shape, dtype = tuple(t.dims), dtype_of(t.data_type)
    if dtype not in FLOATS:
        return np.zeros(shape, dtype)
    array = np.resize(block, shape)
    return as_type(np.abs(array) + np.float32(SPREAD) if len(shape) < 2 else array, dtype)


def _read(t: TensorProto, path: Path) -> Array:
    """Weights from a file in float32, as float16; values beyond its range become its largest and smallest ones."""
    size = prod(t.dims)
    try:
        array = np.fromfile(path, "<f4", size, offset=int(entry(t, "offset") or 0))
    except (OSError, ValueError) as e:
        raise ModelError(f"the data of tensor {t.name!r} can't be read: {e}") from None
    if array.size != size:
        raise ModelError(f"the data of tensor {t.name!r} are cut off: {array.size:,} of {size:,} numbers")
    small = np.where(np.abs(array) < SMALLEST, np.copysign(np.float32(SMALLEST), array), array)
    return np.clip(np.where(array == 0, 0, small), -LARGEST, LARGEST).astype(np.float16).reshape(tuple(t.dims))


def _fill(tensors: list[TensorProto], block: Array) -> None:
    """Write made-up data into the model itself: for constants of nodes and of subgraphs, and types that NumPy lacks."""
    need = sum(map(bytes_of, tensors))
    if need > MOST_INSIDE:
        raise ModelError(f"{size(need)} of random weights can't be passed to ONNX Runtime")
    for t in tensors:
        t.raw_data = _made(t, block).tobytes() if _number(t) is not None else bytes(bytes_of(t))
        t.ClearField("data_location")
        del t.external_data[:]


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
        check_fetched(t.name, path)
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
    inputs = []
    for info in model.graph.input:
        wanted = shapes.get(info.name, ())
        pairs = zip(info.type.tensor_type.shape.dim, wanted, strict=False)
        if any(d.dim_value != w if d.HasField("dim_value") else not d.dim_param for d, w in pairs):
            inputs.append((info.name, wanted))
    return tuple(inputs)


def named(model: ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, int], ...]:
    """The open dimensions that have a name, with the sizes they are bound to."""
    sizes = {
        dim.dim_param: size
        for info in model.graph.input
        for dim, size in zip(info.type.tensor_type.shape.dim, shapes.get(info.name, ()), strict=False)
        if dim.dim_param
    }
    return tuple(sizes.items())


def entry(t: TensorProto, key: str) -> str:
    """What a tensor says of the file of its data, such as its "location"; "" where it says nothing."""
    return next((e.value for e in t.external_data if e.key == key), "")
