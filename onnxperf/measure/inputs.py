"""What inputs hold: random values that are valid, also as text, sequences and maps, or a user's own arrays."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from onnxperf.graph import Graph
from onnxperf.graph.proto import dims_of, dtype_of, is_tensor, plain, times
from onnxperf.ground.errors import ModelError, UsageError, printable, unreadable
from op_models import Operator, Tensor

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto

Array = np.ndarray[Any, Any]

#: Operators whose output holds the whole numbers of their first input.
PASSING = frozenset({"Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Transpose", "Slice", "Expand"})
#: Operators that take entries of a table by their number: which input is the table, by the input of the numbers.
TABLES = {
    **{type: {1: 0} for type in ("Gather", "GatherElements", "GatherND")},
    "com.microsoft::EmbedLayerNormalization": {0: 2, 1: 4},
}
SLACK = 1 << 16  # bytes of an archive for the name and headers of an array
WORDS = tuple(letter * 10 for letter in "abcdefghij")
BIT_PATTERNS = {"bfloat16": 16}  # types that NumPy lacks, which arrays of uint16 hold as bits; ONNX's number of each


def ranges(graph: Graph) -> dict[str, range]:
    """Which whole numbers each input of a static graph may hold: indices stay within their tables, and masks are ones.

    A whole-number input of two dimensions that indexes nothing is taken for a mask; text is left to `objects`. Raises
    ModelError for tensors of numbers that NumPy lacks.
    """
    users: dict[str, list[Operator]] = {}
    for o in graph.operators:
        for name in {t.name for t in o.present}:
            users.setdefault(name, []).append(o)
    return {t.name: _range(graph, users, t) for t in graph.inputs if t.dtype not in ("string", "opaque")}


def objects(model: ModelProto, shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Any]:
    """What the inputs hold that are no tensors of numbers, as ONNX Runtime takes it from Python: arrays of words, a
    list of one element for a sequence, a dictionary of ten entries for a map.

    shapes: of inputs that are tensors. Raises ModelError for other types.
    """
    rng, stored = np.random.default_rng(seed), {t.name for t in model.graph.initializer}
    fed = [i for i in model.graph.input if i.name not in stored]
    return {i.name: _object(i.name, i.type, shapes.get(i.name), rng) for i in fed if not _is_numeric(i.type)}


def _is_numeric(type: TypeProto) -> bool:
    return is_tensor(type) and dtype_of(type.tensor_type.elem_type) != "string"


def _object(name: str, type: TypeProto, shape: tuple[int, ...] | None, rng: np.random.Generator) -> Any:
    """A random value of a type; dimensions that nobody gives are 1."""
    kind = type.WhichOneof("value")
    if kind == "sequence_type":
        return [_object(name, type.sequence_type.elem_type, None, rng)]
    if kind == "map_type":
        keys = WORDS if dtype_of(type.map_type.key_type) == "string" else range(len(WORDS))
        values = _object(name, type.map_type.value_type, (len(WORDS),), rng)
        return dict(zip(keys, values.tolist(), strict=True))
    if kind == "tensor_type":
        shape = shape if shape is not None else tuple(d or 1 for d in dims_of(type) or ())
        if not _is_numeric(type):
            return rng.choice(np.array(WORDS, dtype=object), shape)
        return random(shape, range(2), dtype_of(type.tensor_type.elem_type), rng)
    raise ModelError(f"input {plain(name)!r} is neither a tensor, a sequence nor a map, so no random data can be made")


def _range(graph: Graph, users: Mapping[str, Sequence[Operator]], t: Tensor) -> range:
    if t.dtype.startswith(("complex", "float4", "float6", "float8", "int4", "int2")):
        raise ModelError(
            f"{graph.name}: input {t.name!r} is not a tensor of plain numbers, so no random data can be made"
        )
    bounds = list(_bounds(users, t)) if "int" in t.dtype else []
    if bounds:
        return range(max(min(bounds), 1))
    return range(1, 2) if "int" in t.dtype and len(t.shape) == 2 else range(2)


def _bounds(users: Mapping[str, Sequence[Operator]], source: Tensor) -> Iterator[int]:
    """For each table that an input's whole numbers index: its entries, less what is added to the numbers before."""
    waiting, seen = [(source, 0)], {source.name}
    while waiting:
        t, added = waiting.pop()
        for o in users.get(t.name, ()):
            entries, more = _entries(o, t), _passed(o, t)
            if entries is not None:
                yield entries - added
            if more is not None and o.out.name not in seen:
                seen.add(o.out.name)
                waiting.append((o.out, added + more))


def _entries(o: Operator, t: Tensor) -> int | None:
    """How many entries the table has that an operator indexes with the numbers in `t`; None where it does not."""
    place = next(i for i, other in enumerate(o.inputs) if other is not None and other.name == t.name)
    at, axis = TABLES.get(o.type, {}).get(place), o.attrs.get("axis", 0)
    table = None if at is None else o.inputs[at]
    if table is None or not table.shape or not isinstance(axis, int):
        return None
    return table.shape[axis % table.rank]


def _passed(o: Operator, t: Tensor) -> int | None:
    """What an operator adds to the whole numbers of `t` in its output; None where that holds something else."""
    if o.type in PASSING:
        return 0 if o.inputs[0] is not None and o.inputs[0].name == t.name else None
    if o.type != "Add":
        return None
    other = next((x for x in o.present if x.name != t.name), None)
    return int(max(other.value)) if other is not None and other.value else None


def random(shape: tuple[int, ...], whole: range, dtype: str, rng: np.random.Generator) -> Array:
    """Random values in a type by NumPy's name for it, bfloat16 as its bits: whole numbers of a range, floating numbers
    from N(0, 1), truth values that are true.
    """
    if dtype == "bool":
        return np.ones(shape, dtype)
    if "int" in dtype:
        return rng.integers(whole.start, whole.stop, shape).astype(dtype)
    return as_type(rng.standard_normal(shape, dtype=np.float32), dtype)


def as_type(array: Array, dtype: str) -> Array:
    """Floating numbers in another type; bfloat16, which NumPy lacks, as the upper half of float32's bits in uint16."""
    if dtype != "bfloat16":
        return array.astype(dtype, copy=False)
    bits: Array = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits


def given(path: str | os.PathLike[str], graph: Graph) -> dict[str, Array]:
    """The arrays of an .npz file, one for each input of the graph.

    Raises UsageError where it is no such file, or an array's name, type or shape is not the input's. Only arrays of the
    right size are read.
    """
    where = printable(str(os.fspath(path)))
    wanted = {t.name: t for t in graph.inputs}
    try:
        room = sum(t.bytes for t in wanted.values()) + SLACK * (len(wanted) + 1)
        if os.path.getsize(path) > room:
            raise UsageError(f"{where} is larger than the model's inputs")
        with zipfile.ZipFile(path) as archive:
            names = [n.removesuffix(".npy") for n in archive.namelist()]
            for name in names:
                if name not in wanted:
                    have = ", ".join(map(repr, wanted))
                    raise UsageError(f"{where} holds {printable(name)!r}, but the model's inputs are {have}")
            for name in wanted:
                if name not in names:
                    raise UsageError(f"{where} lacks the input {name!r}")
            return {name: _array(archive, t, where) for name, t in wanted.items()}
    except FileNotFoundError as e:
        raise unreadable(where, e) from None
    except UsageError:
        raise
    except Exception as e:  # hostile archives make zipfile and NumPy raise whatever they like
        why = printable(str(e))[:200]
        raise UsageError(f"{where} is not an .npz file of plain arrays: {why or type(e).__name__}") from None


def _array(archive: zipfile.ZipFile, t: Tensor, where: str) -> Array:
    with archive.open(f"{t.name}.npy") as file:
        shape, dtype = _header(file)
    if str(dtype) != t.dtype:
        raise UsageError(f"{where}: {t.name!r} is of type {printable(str(dtype))}, the model's input of {t.dtype}")
    if shape != t.shape:
        raise UsageError(f"{where}: {t.name!r} has the shape {times(shape)}, the model's input {times(t.shape)}")
    with archive.open(f"{t.name}.npy") as file:
        return np.ascontiguousarray(np.lib.format.read_array(file, allow_pickle=False))


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type that an array's header claims."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype
