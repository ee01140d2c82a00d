"""Gives every input a static shape: open dimensions are bound by --shapes, --dim and --batch, or to a batch of 1."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, ValueInfoProto

from onnxperf.graph.batch_inputs import MOST_NAMED, Dim, at_batch, batch_axes, check_axes, without_images
from onnxperf.graph.core import Note
from onnxperf.graph.dim_names import example_size, is_sum, size_of_sum
from onnxperf.graph.proto import Shape, check_size, dtype_of, is_tensor, plain, times
from onnxperf.ground.errors import ModelError, UsageError, counted, near_names
from onnxperf.ground.lists import whole

MAX_LISTED = 20  # names in a message
USUAL = 1 << 24  # a larger size is likely a mistake


@dataclass(frozen=True)
class Binding:
    """Static shapes of the inputs, the size of every named dimension, and notes on what was assumed.

    `batch` is the number of samples. `old_batch` is the static batch that --batch, or --shapes with nothing else,
    replaced, or None; `batch_axes` has the axis of each input in which it did. `stale` says that other static sizes
    were replaced, so that the shapes which the file declares for what is made of its inputs are no evidence.
    `refusal` begins the error message where the graph can't run with sizes that differ from the file's own, and is
    empty where none do. `dynamic` says that the file itself leaves dimensions open: only then does a runtime compute
    shapes during the run. `trains` says that weights change, so that what is computed of them is not folded.
    """

    inputs: dict[str, Shape]
    symbols: dict[str, int]
    batch: int
    old_batch: int | None
    batch_axes: dict[str, int]
    refusal: str
    dynamic: bool
    stale: bool
    notes: list[Note]
    trains: bool = False

    def at(self, batch: int) -> Binding:
        """The binding with another batch in the place of the one that replaced the file's."""
        axes = self.batch_axes
        inputs = {n: (*s[: axes[n]], batch, *s[axes[n] + 1 :]) if n in axes else s for n, s in self.inputs.items()}
        return replace(self, inputs=inputs, batch=batch)

    def declared(self, info: ValueInfoProto) -> tuple[int | None, ...] | None:
        """The shape that a ValueInfo declares, its named dimensions bound; None where it declares none that holds."""
        dims = None if self.stale else declared_dims(info)
        if dims and self.old_batch is not None and dims[0] == self.old_batch:
            dims = (self.batch, *dims[1:])
        return None if dims is None else tuple(d if isinstance(d, int) else self.symbols.get(d or "") for d in dims)


def declared_dims(info: ValueInfoProto) -> tuple[Dim, ...] | None:
    """The dimensions that a ValueInfo declares; None where it declares no shape.

    Older exporters write -1 for an open dimension; zero is a size.
    """
    if not (tensor := info.type.tensor_type).HasField("shape"):
        return None
    dims = tensor.shape.dim
    return tuple([d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else (d.dim_param or None) for d in dims])


def bind(model: ModelProto, shapes: Mapping[str, Shape], dims: Mapping[str, int], batch: int | None) -> Binding:
    """Give every input of `model` a static shape.

    shapes: sizes by input name; dims: sizes by the name of a dimension, and values by that of an input that is a whole
    number (such as `total_sequence_length`); batch: the leading dimension. An open leading dimension without a size is
    taken as 1, which is noted. Raises UsageError where a name is unknown, sizes contradict
    each other, or other dimensions stay open; the message names them all, and the flags that set them.
    """
    infos = _inputs(model)
    declared = {name: declared_dims(info) for name, info in infos.items()}
    numbers = [name for name, info in infos.items() if is_number(info)]
    symbols = _check_dims(dims, declared, numbers, (*model.graph.value_info, *model.graph.output))
    inputs, refusal = _with_given(declared, shapes, symbols)
    refusal = refusal or _extreme(shapes, dims, batch)
    inner = {s for d in inputs.values() for s in d[1:] if isinstance(s, str)}
    lead, old = None, None
    axes, batched = batch_axes(model, inputs), without_images(model, inputs)
    if batch is not None:
        check_axes(model, inputs, shapes, batch)
        lead = _batch_lead(batched, axes, shapes, inner, symbols, batch) if batched or batch > 1 else 1
        if isinstance(lead, str):
            symbols[lead] = batch
        elif isinstance(lead, int) and lead != batch:
            old = lead
            refusal = f"--batch {batch} can't be used, the model is made for batch {old}"
    held = at_batch(batched, axes, shapes, old)
    asked = _Asked(batch, lead, inner, held, refusal)
    bound, missing, notes = _sized(inputs, symbols, asked)
    if missing:
        raise UsageError(left_open(missing, bound, None if batch else batch_dim(model, shapes)))
    bound = {name: bound[name] for name in inputs}
    samples = _samples({name: bound[name] for name in batched}, axes)
    dynamic = any(not isinstance(d, int) for shape in declared.values() for d in shape or (None,))
    replaced, stale = _replaced(declared, {name: bound[name] for name in shapes if name in bound})
    if old is None and replaced is not None and samples:
        old = replaced
        held = {n: 0 for n in shapes if n in batched and (declared[n] or (0,))[0] == old != bound[n][0] == samples}
    return Binding(bound, symbols, samples, old, held, refusal, dynamic, stale, notes)


class _Asked(NamedTuple):
    """What decides the sizes of inputs beside their dimensions: the batch that is asked for, the leading dimension that
    stands for it, the dimensions that stand elsewhere too, the axis of each input that holds the batch of a file made
    for another one, and why that batch could not be used, "" where it can.
    """

    batch: int | None
    lead: Dim
    inner: Container[str]
    held: Mapping[str, int]
    refusal: str


def _sized(
    inputs: Mapping[str, Sequence[Dim]], symbols: dict[str, int], asked: _Asked
) -> tuple[dict[str, Shape], list[tuple[str, int, Dim]], list[Note]]:
    """The shape of each input; of what stays open the input, the axis and the dimension, once for one with a name,
    with a size for the message; and notes on sizes that are assumed. `symbols` gets the sizes of names.
    """
    bound, missing, notes = dict[str, Shape](), list[tuple[str, int, Dim]](), list[Note]()
    for name in sorted(inputs, key=lambda name: _told_by_others(name, inputs[name])):
        sizes = [asked.batch if axis == asked.held.get(name) else d for axis, d in enumerate(inputs[name])]
        for axis, d in enumerate(sizes):
            size = symbols.get(d, size_of_sum(d, symbols)) if isinstance(d, str) else d
            if size is None and axis == 0 and d not in asked.inner:
                size = asked.batch or 1
                if isinstance(d, str):
                    symbols[d] = size
                if asked.batch is None or (asked.lead is not None and d != asked.lead):
                    notes.append(_assumed(name, d, size))
            if size is None:
                missing.append((name, axis, d))
                size = example_size(name, str(d or ""), symbols, bound) if axis else asked.batch or 1
                symbols |= {d: size} if isinstance(d, str) else {}
            sizes[axis] = size
        bound[name] = tuple(d for d in sizes if isinstance(d, int))
        if not missing:
            _check(name, bound[name], asked.refusal)
    return bound, missing, notes


def _check(name: str, shape: Shape, refusal: str) -> None:
    """Raise ModelError for an input that is too large; UsageError where it is so at sizes that can't be used."""
    try:
        check_size(name, shape)
    except ModelError as e:
        if not refusal:
            raise
        raise UsageError(f"{refusal}: {e}") from None


def _told_by_others(name: str, shape: Sequence[Dim]) -> bool:
    """Whether sizes of an input follow from those of other inputs, or are best proposed after these."""
    return "mask" in name or any(isinstance(d, str) and (is_sum(d) or "total" in d) for d in shape)


def _samples(bound: Mapping[str, Shape], axes: Mapping[str, int]) -> int:
    """The number of samples: the batch of the first input that has more than one dimension, or else any."""
    several = [name for name, shape in bound.items() if len(shape) > 1] or [n for n, shape in bound.items() if shape]
    return next((bound[name][axes.get(name, 0)] for name in several), 1)


def _replaced(declared: Mapping[str, tuple[Dim, ...] | None], shapes: Mapping[str, Shape]) -> tuple[int | None, bool]:
    """The one static leading dimension that shapes replace, if they replace nothing else; and whether they do."""
    pairs = [
        pair for name, shape in shapes.items() for pair in enumerate(zip(declared[name] or (), shape, strict=False))
    ]
    changes = {(axis, d, size) for axis, (d, size) in pairs if isinstance(d, int) and d != size}
    lead = {(d, size) for axis, d, size in changes if axis == 0}
    alone = len(lead) == 1 and all(axis == 0 for axis, _, _ in changes)
    return (next(iter(lead))[0], False) if alone else (None, bool(changes))


def sizes_of(shape: Any, tensor: str) -> Shape:
    """A shape as a tuple of ints; UsageError where `shape` is no row of whole numbers that are at least 0."""
    try:
        sizes = tuple(shape)
    except TypeError:
        raise UsageError(f"the shape of {tensor!r} must be a row of whole numbers, not {shape!r}") from None
    return tuple(whole(d, f"a size of {tensor!r}") for d in sizes)


def shapes_of(model: ModelProto, examples: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, Any]:
    """The shapes of example inputs by input name; without names the examples are in the order of the model's inputs."""
    if examples is None:
        return {}
    if not isinstance(examples, Mapping):
        if not isinstance(examples, (tuple, list)):
            examples = (examples,)
        stored = {t.name for t in model.graph.initializer}
        names = [i.name for i in model.graph.input if i.name not in stored]
        if len(examples) > len(names):
            amount, has = counted(len(examples), "example input"), counted(len(names), "input")
            raise UsageError(f"{amount} given, but the model has {has}")
        examples = dict(zip(names, examples, strict=False))
    declared = {i.name: declared_dims(i) for i in model.graph.input}
    try:
        shapes = {name: x.shape if hasattr(x, "shape") else np.shape(x) for name, x in examples.items()}
    except ValueError:
        raise UsageError("an example input is a list of unequal lists: give arrays or tensors") from None
    for name, x in examples.items():
        if not hasattr(x, "shape") and shapes[name] == () and declared.get(name) != ():
            kind = type(x).__name__
            raise UsageError(f"example inputs need a shape, but {name!r} is given a {kind}: give arrays or tensors")
    return shapes


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error message, "; did you mean 'x'?", or "" where no name is similar."""
    near = near_names(name, names)
    return f"; did you mean {plain(near[0])!r}?" if near else ""


def listed(names: Iterable[str]) -> str:
    """Names in an error message, MAX_LISTED of them."""
    shown = [repr(plain(name)) for name in islice(names, MAX_LISTED + 1)]
    return ", ".join(shown[:MAX_LISTED]) + " ..." * (len(shown) > MAX_LISTED)


def _extreme(shapes: Mapping[str, Shape], dims: Mapping[str, int], batch: int | None) -> str:
    """The start of the error for a graph that can't run with a zero or huge size that was given; "" without one."""
    asked = [(f"--shapes {plain(name)}:{times(shape)}", shape) for name, shape in shapes.items()]
    asked += [(f"--dim {plain(name)}={size}", (size,)) for name, size in dims.items()]
    asked += [(f"--batch {batch}", (batch,))] if batch is not None else []
    return next((f"{flag} can't be used" for flag, sizes in asked if any(not 0 < d <= USUAL for d in sizes)), "")


def is_number(info: ValueInfoProto) -> bool:
    """Whether an input is one whole number, which --dim can give."""
    return declared_dims(info) in ((), (1,)) and dtype_of(info.type.tensor_type.elem_type) in ("int32", "int64")


def _check_dims(
    dims: Mapping[str, int], inputs: Mapping[str, tuple[Dim, ...] | None], numbers: Iterable[str],
    others: Iterable[ValueInfoProto],
) -> dict[str, int]:  # fmt: skip
    named = dict.fromkeys((*(d for shape in inputs.values() for d in shape or () if isinstance(d, str)), *numbers))
    inside = {d for info in others if dims for d in declared_dims(info) or () if isinstance(d, str)}
    for name in dims:
        if name not in named and name not in inside:
            have = f"its dynamic dimensions are {listed(named)}"
            have = have if named else "its inputs have no named dynamic dimension"
            raise UsageError(f"the model has no dimension {plain(name)!r}: {have}{nearest(name, named)}")
    return dict(dims)


def _with_given(
    declared: Mapping[str, tuple[Dim, ...] | None], shapes: Mapping[str, Shape], symbols: dict[str, int]
) -> tuple[dict[str, tuple[Dim, ...]], str]:
    """The shape of every input, from --shapes or else as declared; and the refusal where a static size is replaced.

    The sizes in --shapes are checked against the declared ones, and bind the named dimensions among these.
    """
    inputs: dict[str, tuple[Dim, ...]] = {}
    refusal = ""
    for name, dims in declared.items():
        shape = shapes.get(name, dims)
        if shape is None:
            raise UsageError(f"input {name!r} has no shape in the file: give --shapes {plain(name)}:1x3x224x224, say")
        inputs[name] = shape
        if name not in shapes or dims is None:
            continue
        if len(dims) != len(shape):
            dimensions = counted(len(shape), "dimension")
            raise UsageError(f"--shapes gives {name!r} {dimensions}, but the file declares {len(dims)}")
        for d, size in zip(dims, shapes[name], strict=True):
            if isinstance(d, str) and symbols.setdefault(d, size) != size:
                raise UsageError(f"dimension {d!r} is given as {symbols[d]} and, in --shapes {plain(name)}, as {size}")
            if isinstance(d, int) and d != size:
                asked = f"--shapes {plain(name)}:{times(shape)}"
                refusal = f"{asked} can't be used, the model is made for {times(dims)}"
    return inputs, refusal


def _batch_lead(
    inputs: Mapping[str, tuple[Dim, ...]], axes: Mapping[str, int], shapes: Mapping[str, Shape], inner: set[str],
    symbols: Mapping[str, int], batch: int,
) -> Dim:  # fmt: skip
    """The leading dimension that --batch binds; UsageError where there is none, or it contradicts other sizes."""
    if batch < 1:
        raise UsageError(f"--batch must be at least 1, not {batch}")
    leads = [d[axes.get(name, 0)] for name, d in inputs.items() if d and name not in shapes]
    if not leads:
        name = next((name for name, d in inputs.items() if d), None)
        if name is None:
            raise UsageError("--batch can't be used: no input has a dimension for it")
        if inputs[name][0] != batch:
            raise UsageError(f"--batch {batch} contradicts --shapes {plain(name)}:{times(inputs[name])}")
        return batch
    lead = _leading(leads, inner)
    if isinstance(lead, str) and symbols.get(lead, batch) != batch:
        raise UsageError(f"--batch {batch} contradicts {symbols[lead]} given for dimension {lead!r}")
    return lead


def _leading(leads: Sequence[Dim], inner: Container[Dim]) -> Dim:
    """The leading dimension that --batch binds: an open one that is nowhere a later axis, else the first."""
    return next((d for d in leads if isinstance(d, str) and d not in inner), leads[0] if leads else None)


def batch_dim(model: ModelProto, shapes: Container[str]) -> str | None:
    """The name of the open dimension that --batch binds, None where it binds none; shapes: of inputs, as given."""
    inputs = {name: declared_dims(info) for name, info in _inputs(model).items()}
    leads = [d[0] for name, d in inputs.items() if d and name not in shapes]
    lead = _leading(leads, {d for shape in inputs.values() for d in (shape or ())[1:]})
    return lead if isinstance(lead, str) else None


def _inputs(model: ModelProto) -> dict[str, ValueInfoProto]:
    """The tensors that a run is given, by name."""
    stored = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    return {i.name: i for i in model.graph.input if i.name not in stored and is_tensor(i.type)}


def _assumed(name: str, dim: Dim, size: int) -> Note:
    what = f"{dim!r}, the leading dimension of input {name!r}," if dim else f"the leading dimension of input {name!r}"
    close = "--batch N" if size == 1 else f"--dim {plain(str(dim))}=N" if dim else f"--shapes {plain(name)}:..."
    return Note("assumed-batch", f"{what} is dynamic; assumed {size} (set it with {close})")


def left_open(missing: Sequence[tuple[str, int, Dim]], example: Mapping[str, Shape], batch: str | None = None) -> str:
    """The error for open dimensions without sizes, each given as input, axis and name; `example` closes all of them.

    batch: the name of the one that --batch binds.
    """
    name, axis, d = missing[0]
    unnamed = dict.fromkeys(name for name, _, d in missing if d is None)
    sizes = {d: example[name][axis] for name, axis, d in missing if isinstance(d, str)}
    flags = [f"--batch {size}" if d == batch else f"--dim {plain(d)}={size}" for d, size in sizes.items()]
    flags += [f"--shapes {plain(name)}:{times(example[name])}" for name in unnamed]
    give = " ".join(flags[:MOST_NAMED]) + " ..." * (len(flags) > MOST_NAMED)
    if len(missing) == 1 and d is None:
        return f"input {name!r} has a dynamic axis {axis} without a name: give {give}, say"
    if len(missing) == 1:
        other = f"--shapes {plain(name)}:{times(example[name])}"
        return f"input {name!r} has a dynamic dimension {d!r} (axis {axis}): give {give}, say, or {other}"
    places = [f"{d!r} ({name!r}, axis {axis})" if d else f"axis {axis} of {name!r}" for name, axis, d in missing]
    more = f", and {len(places) - MOST_NAMED} more" if len(places) > MOST_NAMED else ""
    return f"the inputs have dynamic dimensions: {', '.join(places[:MOST_NAMED])}{more}; give {give}, say"
