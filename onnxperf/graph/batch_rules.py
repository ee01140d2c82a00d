"""Where operators leave the batch: where `op_models` says that its axis goes, if no slice along it depends on others.

The rules here are of the operators whose constants may hold the batch: target shapes, sizes, bounds and indices. A rule
is given a node with the batch in at least one input. It answers the place of the batch in each output, or None where
the outputs' own shapes tell, and asks for edits where constants hold the batch. It raises `Across` where samples are
not computed apart, `Unproved` where constants hold what can't be told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from onnxperf.graph.batch_node import NodeAt
from onnxperf.graph.batch_place import Across, Place, SameMemory, Unproved, candidates, same_memory
from onnxperf.graph.proto import Shape, times
from onnxperf.graph.values import Array
from op_models import Axes, Unknown
from op_models.axes import BATCH, axis_of

WHOLE = 1 << 30  # an end of a Slice that stands for the last element, whatever the size
MIXES = "it multiplies samples with each other"
OF_SAMPLES = "its indices are those of samples"
Places = Place | SameMemory | tuple[Place | None, ...] | None


def apart(n: NodeAt) -> tuple[Place | None, ...]:
    """The batch has one letter, which outputs have as well; of other inputs that have it each sample has its part."""
    axes = n.letters()
    letters = {_letter(n, axes, i, place) for i, place in enumerate(n.places) if place is not None}
    if len(letters) > 1:
        product = any(axes.summed(letter) for names in axes.inputs for axis in names or () for letter in axis)
        raise Across(MIXES if product else "its inputs hold the batch in different axes")
    ((letter, parts),) = letters
    if not letter:
        return (None,) * len(n.outputs)
    if letter in (axes.pieces or ()):
        raise Unproved(f"it {axes.does.format('the batch')}")
    if axes.summed(letter):
        raise Across(f"it {axes.does.format('the batch')}")
    for i, axis in axes.holding(letter):
        if i not in axes.spread or n.shape(i)[axis] != 1 or n.place(i):
            n.require(i, Place(axis, parts))
    left = zip(axes.outputs, axes.left(letter), strict=True)
    return tuple(None if axis is None else Place(axis, parts * axes.outside(names, letter)) for names, axis in left)


def _letter(n: NodeAt, axes: Axes, index: int, place: Place) -> tuple[str, int]:
    """The letter of the axis where an input holds the batch, and in how many parts; "" where only its size is read."""
    names = axes.inputs[index] if index < len(axes.inputs) else None
    if names is None:
        only = sum(each is not None for each in axes.inputs) == 1
        raise Across(f"{'another input than its data' if only else 'a parameter'} depends on the batch")
    of_batch = next((axis for each in axes.inputs if each and (axis := axis_of(each, BATCH)) is not None), None)
    letters = names[place.axis]
    if of_batch is not None and letters != (BATCH,):
        where = "not where it reads one" if of_batch else "not the leading dimension of its input"
        raise Across(f"the batch is {where}")
    if len(letters) == 1:
        return letters[0], place.parts
    if not axes.does:
        return "", 1
    if axes.in_order:
        raise Unproved(f"it drops the batch of {n.batch.old}")
    wide = index in axes.spread and n.shape(index)[place.axis] == 1
    raise Across("it spreads the batch over another axis" if wide else f"it {axes.does.format('the batch')}")


def flatten(n: NodeAt) -> Place:
    """Two axes, in the same order in memory."""
    place, rank = n.only(), len(n.shape(0))
    first, at = n.attrs.get("axis", 1), place.outer(n.shape(0))
    left = same_memory(n.out(), int(place.axis >= (first + rank if first < 0 else first)), at, n.batch.old)
    if left is None:
        raise Unproved("it takes the batch apart")
    return left


def reshape(n: NodeAt) -> Place | SameMemory:
    """The same elements in the same order, in a shape that may hold the batch as a constant."""
    place, out = next((p for p in n.places if p), None), n.out()
    if place is None or n.place(0) != place:
        raise Across("its target depends on the batch, its data do not")
    outer = place.outer(n.shape(0))
    if n.changed(1):
        return SameMemory(outer)
    every = candidates(out, outer, n.batch.old)
    if not every:
        raise Unproved(f"it makes {times(out)} of {times(n.shape(0))}, in which the batch has no axis")
    as_is = _resolved(n, place)
    kept = next((p for p in every if p.scaled(out, n.batch) == as_is), None)
    alone = [p for p in every if out[p.axis] == n.batch.old]
    if alone or len(every) == 1 or kept is not None:
        chosen = kept if kept is not None and (not alone or kept == every[0]) else _alike(n.shape(0), place, every)
        n.twins.extend(every[1:])
    else:
        guess = (n.shape(0), place, out)
        n.guesses.append(guess)
        chosen = every[0 if n.before.get(guess) else -1]
    if chosen != kept:
        n.resize(1, out, chosen)
    return chosen


def _resolved(n: NodeAt, place: Place) -> Shape | None:
    """The shape that a Reshape's constant makes of its input at the new batch; None where it fits none."""
    shape = place.scaled(n.shape(0), n.batch)
    target = [int(d) for d in n.value(1).ravel()]
    if not n.attrs.get("allowzero"):
        target = [shape[i] if d == 0 and i < len(shape) else d for i, d in enumerate(target)]
    if -1 in target:
        rest = prod(d for d in target if d != -1)
        target = [prod(shape) // rest if d == -1 and rest else d for d in target]
    return tuple(target) if prod(target) == prod(shape) else None


def _alike(shape: Shape, place: Place, every: list[Place]) -> Place:
    """Of places that are the same in memory, the one as far behind the first as the batch is in the input."""
    ones = 0
    while place.axis > ones and shape[place.axis - ones - 1] == 1 and shape[place.axis] == 1:
        ones += 1
    return every[min(ones, len(every) - 1)]


def expand(n: NodeAt) -> Places:
    """Sizes that the input is spread over; where the batch is more than 1, they hold it."""
    if n.place(0) is None:
        _repeat_spread(n)
        return None
    n.only()
    if n.changed(1):
        return None
    (place, *_), out = apart(n), n.out()
    target = [int(d) for d in n.value(1).ravel()]
    axis = place.axis - len(out) + len(target) if place else -1
    if place and axis >= 0 and target[axis] != 1:
        n.resize(1, out, place)
    return place


def _repeat_spread(n: NodeAt) -> None:
    """A constant in sizes that are computed from the batch: where it is that large itself, each sample has its part."""
    before, probed = n.values[1]
    if before is None or probed is None or before.shape != probed.shape:
        return  # its outputs' own shapes tell
    for axis, (old, new) in enumerate(
        zip(before.tolist(), probed.tolist(), strict=True), len(n.shape(0)) - before.size
    ):
        if axis >= 0 and old != new and n.shape(0)[axis] not in (1, new):
            n.require(0, Place(axis))


def tile(n: NodeAt) -> Places:
    """Repeats of the whole tensor along each axis."""
    n.only()
    return None if n.changed(1) else apart(n)


def squeeze(n: NodeAt) -> Places:
    """Where it names no axes it drops all of size 1: in a batch of 1 those that it drops of a larger one."""
    left = apart(n)
    if n.batch.old > 1 and n.version >= 13 and not n.has(1):
        n.fix(1, tuple(axis for axis, d in enumerate(n.shape(0)) if d == 1))
    return left


def cut(n: NodeAt) -> Places:
    """A Slice: along the batch only all of it, whatever its size."""
    place, rank = n.only(), len(n.shape(0))
    if "starts" in n.attrs:
        starts, ends, steps = n.attrs["starts"], n.attrs["ends"], None
        axes = n.attrs.get("axes")
    else:
        starts, ends = n.value(1).ravel().tolist(), n.value(2).ravel().tolist()
        axes = n.value(3).ravel().tolist() if n.has(3) else None
        steps = n.value(4).ravel().tolist() if n.has(4) else None
    for k, axis in enumerate(range(len(starts)) if axes is None else axes):
        if axis % rank == place.axis and (starts[k], ends[k] >= WHOLE, steps[k] if steps else 1) != (0, True, 1):
            raise Unproved("it takes a part of the batch")
    return apart(n)


def gather(n: NodeAt) -> Places:
    """Slices of the data, by indices: of samples from tables, or of the same table for each sample."""
    data, indices = n.place(0), n.place(1)
    if data is not None and indices is not None:
        raise Across("it reads samples by the indices of samples")
    if data is None or data.axis != n.axis():
        return apart(n)
    if not n.shape(1):
        raise Across("it takes one sample out of the batch")
    if (ids := n.inputs[1]) is None or not ids.stored:
        raise Across("it reads samples by indices that are only known in the run")
    place = _gather_all(n, data) or _gather_from_each(n, data)
    if place is None:
        raise Unproved(OF_SAMPLES)
    return place


def _gather_all(n: NodeAt, place: Place) -> Place | None:
    """A Gather of all there is along an axis, in order, which is a Reshape: as exporters write PyTorch's as_strided."""
    size, indices = n.shape(0)[place.axis], n.elements(n.names[1])
    if size == n.batch.old or indices is None or indices.ravel().tolist() != list(range(size)):
        return None
    every = [p for p in candidates(n.out(), place.outer(n.shape(0)), n.batch.old) if p.axis >= place.axis]
    if every:
        n.repeat(1, Place(every[0].axis - place.axis, every[0].parts))
    return every[0] if every else None


def _gather_from_each(n: NodeAt, place: Place) -> Place | None:
    """A Gather along an axis of samples and what each of them holds, which reads the same of each: as exporters write
    PyTorch's indexing by several arrays.
    """
    old, indices = n.batch.old, n.elements(n.names[1])
    each = n.shape(0)[place.axis] // old
    if indices is None or old == 1 or each == 1 or place.parts > 1:
        return None
    for axis in (a for a in range(indices.ndim) if indices.shape[a] == old):
        first = indices.take([0], axis)
        samples = np.arange(old).reshape([-1 if a == axis else 1 for a in range(indices.ndim)])
        if first.min() >= 0 and first.max() < each and (indices == first + samples * each).all():
            n.repeat(1, Place(axis))
            return Place(place.axis + axis)
    return None


def concat(n: NodeAt) -> Places:
    """Tensors one behind the other; of columns of indices one may be the numbers of the samples, which go on: as
    exporters write PyTorch's x[arange(batch), ids].
    """
    place = next(p for p in n.places if p)
    if n.batch.old == 1 or place.parts > 1 or n.axis() != len(n.out()) - 1:
        return apart(n)
    places, column = list(n.places), 0
    for i in range(len(n.inputs)):
        if places[i] is None and _is_numbers(n.values[i][0], place.axis, n.batch.old):
            places[i] = place
            n.repeat(i, place)
            n.columns.add(column)
        column += n.shape(i)[-1]
    return apart(replace(n, places=places))


def _is_numbers(value: Array | None, axis: int, old: int) -> bool:
    """Whether a column of indices is 0, 1, 2, ... along the axis of the batch, whatever the other axes."""
    if value is None or value.shape[-1] != 1 or not axis < value.ndim - 1 or value.shape[axis] != old:
        return False
    numbers = np.arange(old).reshape([-1 if a == axis else 1 for a in range(value.ndim)])
    return bool((value == numbers).all())


def elements(n: NodeAt) -> Places:
    """GatherElements and ScatterElements: data, indices and updates of each sample by itself."""
    for place in n.places:
        if place is not None and place.axis == n.axis():
            raise Unproved(OF_SAMPLES)
        if place is not None and len({n.shape(i)[place.axis] for i in range(len(n.inputs))}) > 1:
            raise Unproved("its indices are of other samples than its data")
    return apart(n)


def gather_nd(n: NodeAt) -> Places:
    """Slices of the data by tuples of indices, one of which may be the number of the sample."""
    data, indices, common, count = n.place(0), n.place(1), n.attrs.get("batch_dims", 0), n.shape(1)[-1]
    if data is None or not common <= data.axis < common + count:
        return apart(n)
    if indices is not None and n.batch.old > 1 and data.axis - common not in n.numbered.get(n.names[1], ()):
        raise Across("it reads samples by the indices of samples")
    if n.shape(0)[data.axis] != n.batch.old or count < 2:
        raise Unproved(OF_SAMPLES)
    if indices is not None:
        return indices
    at = _numbered(n, data.axis - common)
    _require_numbered(n, at, data.axis - common)
    return at


def _numbered(n: NodeAt, column: int) -> Place:
    """The axis of indices along which they count the samples: 0, 1, 2, ... in one column, whatever the other axes.

    Of a batch of 1 that is the first axis of 1, as all indices are 0.
    """
    shape, values = n.shape(1)[:-1], n.elements(n.names[1])
    for axis in (a for a, d in enumerate(shape) if d == n.batch.old):
        if n.batch.old == 1:
            return Place(axis)
        counted = np.arange(n.batch.old).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        if values is not None and (values[..., column] == counted).all():
            return Place(axis)
    raise Unproved(OF_SAMPLES)


def _require_numbered(n: NodeAt, place: Place, column: int) -> None:
    """Let indices count the samples of any batch. Their other columns must be the same for all samples."""
    values, tensor = n.elements(n.names[1]), n.inputs[1]
    if n.batch.old == 1:
        n.require(1, place)
        return
    others = None if values is None else np.delete(values, column, -1)
    if tensor is None or not tensor.stored or others is None or (others != others.take([0], place.axis)).any():
        raise Unproved(OF_SAMPLES)
    n.repeat(1, place)


def resize(n: NodeAt) -> Places:
    """Scales, or sizes that hold the batch, of all axes or of some."""
    place, rank = n.only(), len(n.shape(0))
    axes = [a % rank for a in n.attrs.get("axes", range(rank))]
    if place.axis in axes and not (n.has(3) and n.changed(3)):
        k = axes.index(place.axis)
        if n.has(3) and n.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Across("its sizes are bounds")
        if n.has(3):
            sizes = tuple(int(d) for d in n.value(3).ravel())
            stays = sizes[k] == n.shape(0)[place.axis]
            n.resize(3, sizes, Place(k))
        else:
            read = 2 if n.version > 10 and n.type == "Resize" else 1
            stays = (n.attrs.get("scales") or n.value(read).ravel().tolist())[k] == 1.0
        if not stays:
            raise Across("it resizes the batch")
    return place


RULES: Mapping[str, Callable[[NodeAt], Places]] = {
    "Concat": concat, "Expand": expand, "Flatten": flatten, "Gather": gather, "GatherElements": elements,
    "GatherND": gather_nd, "Reshape": reshape, "Resize": resize, "ScatterElements": elements, "Slice": cut,
    "Squeeze": squeeze, "Tile": tile, "Upsample": resize,
}  # fmt: skip


def places_of(n: NodeAt) -> Places:
    """Where a node leaves the batch. Raises Across where nobody says where its axes go."""
    try:
        return RULES.get(n.type, apart)(n)
    except Unknown:
        raise Across("what it is told to do is only known in the run, or depends on the batch") from None
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):  # forms that the operator can't have
        raise Across("it has a form that is not understood") from None
