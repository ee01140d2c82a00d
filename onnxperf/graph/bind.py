"""Which shape every input has: the file's own dimensions, bound by --shapes, --dim, --batch or a default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from onnx import ModelProto, ValueInfoProto

from onnxperf.errors import ModelError, UsageError
from onnxperf.graph.core import Note
from onnxperf.graph.proto import Shape, is_tensor

Dim = int | str | None  # a size, the name of an open dimension, or open without a name


@dataclass(frozen=True)
class Binding:
    """Static shapes of the inputs, the size of every symbol, and what was assumed.

    `fixed_batch` is the static leading dimension that `batch` replaced, or None; `dynamic` says that the file
    itself leaves dimensions open, so that its shape arithmetic really runs.
    """

    inputs: dict[str, Shape]
    symbols: dict[str, int]
    batch: int
    fixed_batch: int | None = None
    dynamic: bool = False
    notes: list[Note] = field(default_factory=list)

    def declared(self, info: ValueInfoProto) -> tuple[int | None, ...] | None:
        """The shape a ValueInfo declares, symbols bound; None where it declares none."""
        dims = declared_dims(info)
        return None if dims is None else tuple(d if isinstance(d, int) else self.symbols.get(d or "") for d in dims)


def declared_dims(info: ValueInfoProto) -> tuple[Dim, ...] | None:
    """The dimensions in a ValueInfo. Negative sizes are an old way of saying "open"; zero is a size."""
    if not info.type.HasField("tensor_type") or not info.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else (d.dim_param or None)
        for d in info.type.tensor_type.shape.dim
    )


def bind(model: ModelProto, shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int], batch: int | None) -> Binding:
    """Give every input of `model` a static shape.

    Raises UsageError where a name is unknown, sizes contradict each other, or a dimension other than the
    leading one stays open; the message names the flag that closes it.
    """
    stored = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    infos = {i.name: i for i in model.graph.input if i.name not in stored and is_tensor(i.type)}
    open_dims = {name: declared_dims(info) for name, info in infos.items()}
    symbols = _check_dims(dims, open_dims)
    for name in shapes:
        if name in open_dims:
            open_dims[name] = _given(name, tuple(shapes[name]), open_dims[name], symbols)
    for name, declared in open_dims.items():
        if declared is None:
            raise UsageError(f"input {name!r} has no shape in the file: give --shapes {name}:1x3x224x224, say")

    known = {name: declared for name, declared in open_dims.items() if declared is not None}
    notes: list[Note] = []
    leads = [d[0] for d in known.values() if d]
    inner = {s for d in known.values() for s in d[1:] if isinstance(s, str)}
    lead = next(iter(leads), 1)
    fixed = None
    if batch is not None:
        lead = _batch_lead(leads, inner, symbols, batch)
        if isinstance(lead, str):
            symbols[lead] = batch
        elif isinstance(lead, int) and lead != batch:
            fixed = lead
    bound: dict[str, Shape] = {}
    for name, declared in known.items():
        sizes = list(declared)
        given = name in shapes
        if fixed is not None and not given and sizes and sizes[0] == fixed and (len(sizes) > 1 or len(known) == 1):
            sizes[0] = batch
        for axis, d in enumerate(sizes):
            if isinstance(d, str):
                sizes[axis] = symbols.get(d)
            if sizes[axis] is None and axis == 0 and d not in inner:
                sizes[axis] = batch or 1
                if isinstance(d, str):
                    symbols[d] = batch or 1
                if batch is None:
                    what = (
                        f"{d!r}, the leading dimension of input {name!r},"
                        if d
                        else f"the leading dimension of input {name!r}"
                    )
                    notes.append(Note("assumed-batch", f"{what} is open; taken as 1 (set it with --batch N)"))
            if sizes[axis] is None:
                raise UsageError(_open(name, axis, d, declared))
        bound[name] = _checked(name, sizes)
    return Binding(
        inputs=bound,
        symbols=symbols,
        batch=next((s[0] for s in bound.values() if len(s) > 1), next((s[0] for s in bound.values() if s), 1)),
        fixed_batch=fixed,
        dynamic=any(not isinstance(d, int) for i in infos.values() for d in declared_dims(i) or (None,)),
        notes=notes,
    )


def shapes_of(model: ModelProto, examples: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, Shape]:
    """The shapes of example inputs, by name or in the order of the model's inputs."""
    if examples is None:
        return {}
    if not isinstance(examples, Mapping):
        if not isinstance(examples, (tuple, list)):
            examples = (examples,)
        stored = {t.name for t in model.graph.initializer}
        names = [i.name for i in model.graph.input if i.name not in stored]
        if len(examples) > len(names):
            raise UsageError(f"{len(examples)} example inputs are given, but the model has {len(names)} inputs")
        examples = dict(zip(names, examples, strict=False))
    return {name: tuple(int(d) for d in getattr(x, "shape", ())) for name, x in examples.items()}


def _check_dims(dims: Mapping[str, int], inputs: Mapping[str, tuple[Dim, ...] | None]) -> dict[str, int]:
    named = dict.fromkeys(d for shape in inputs.values() for d in shape or () if isinstance(d, str))
    for name, size in dims.items():
        if name not in named:
            near = get_close_matches(name, named, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            have = (
                f"its open dimensions are {', '.join(map(repr, named))}"
                if named
                else "it has no open dimension with a name"
            )
            raise UsageError(f"the model has no dimension {name!r}: {have}{meant}")
        if size < 0:
            raise UsageError(f"dimension {name!r} can't be {size}")
    return dict(dims)


def _given(name: str, shape: Shape, declared: tuple[Dim, ...] | None, symbols: dict[str, int]) -> tuple[Dim, ...]:
    """Take a shape from --shapes for an input, and what it says about the symbols in it."""
    if declared is not None and len(declared) != len(shape):
        raise UsageError(f"--shapes gives {name!r} {len(shape)} dimensions, but the file declares {len(declared)}")
    for d, size in zip(declared or (), shape, strict=False):
        if isinstance(d, str) and symbols.setdefault(d, size) != size:
            raise UsageError(f"dimension {d!r} is given as {symbols[d]} and, in --shapes {name}, as {size}")
    return shape


def _batch_lead(leads: Sequence[Dim], inner: set[str], symbols: Mapping[str, int], batch: int) -> Dim:
    """The leading dimension that --batch binds."""
    if batch < 1:
        raise UsageError(f"--batch must be at least 1, not {batch}")
    lead = next((d for d in leads if isinstance(d, str) and d not in inner), leads[0] if leads else None)
    if not leads:
        raise UsageError("--batch can't be used: no input has a dimension")
    if isinstance(lead, str) and symbols.get(lead, batch) != batch:
        raise UsageError(f"--batch {batch} contradicts {symbols[lead]} given for dimension {lead!r}")
    return lead


def _open(name: str, axis: int, dim: Dim, declared: tuple[Dim, ...]) -> str:
    example = "x".join(str(d) if isinstance(d, int) else "1" if i == 0 else "128" for i, d in enumerate(declared))
    if isinstance(dim, str):
        close = f"give --dim {dim}=128, say, or --shapes {name}:{example}"
        return f"input {name!r} leaves dimension {dim!r} (axis {axis}) open: {close}"
    return f"input {name!r} leaves axis {axis} open and unnamed: give --shapes {name}:{example}, say"


def _checked(name: str, sizes: Sequence[Dim]) -> Shape:
    shape = tuple(d for d in sizes if isinstance(d, int))
    check_size(name, shape)
    return shape


MAX_ELEMENTS = 1 << 46  # 256 TiB of float32: beyond any machine, and products stay exact in double precision


def check_size(name: str, shape: Sequence[int]) -> None:
    """Raise ModelError where a tensor has a negative dimension or more elements than any machine holds."""
    total = 1
    for d in shape:
        total *= max(d, 1)
        if d < 0 or total > MAX_ELEMENTS:
            raise ModelError(f"tensor {name!r} can't have the shape {list(shape)}: a dimension overflows")
