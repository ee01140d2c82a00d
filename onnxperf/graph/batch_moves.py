"""Where operators leave the batch that compute nothing: they turn, cut and join tensors (see `batch_rules`).

These are the ones whose constants can hold the batch: target shapes, sizes, bounds and indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from onnxperf.graph.batch_node import NodeAt
from onnxperf.graph.batch_place import Across, Place, SameMemory, Unproved, candidates, same_memory
from onnxperf.graph.proto import Shape, times

WHOLE = 1 << 30  # an end of a Slice that stands for the last element, whatever the size


def transpose(n: NodeAt) -> Place:
    """Axes in another order."""
    place, rank = n.only(), len(n.shape(0))
    order = n.attrs.get("perm") or tuple(reversed(range(rank)))
    return Place(order.index(place.axis), place.parts)


def squeeze(n: NodeAt) -> Place:
    """Axes of 1 go."""
    place, shape = n.only(), n.shape(0)
    axes = n.axes()
    gone = [a for a, d in enumerate(shape) if d == 1] if axes is None else axes
    if place.axis in gone:
        raise Unproved(f"it drops the batch of {n.batch.old}")
    return Place(place.axis - sum(a < place.axis for a in gone), place.parts)


def unsqueeze(n: NodeAt) -> Place:
    """New axes of 1."""
    place, rank = n.only(), len(n.out())
    new = n.axes(rank=rank) or ()
    return Place([a for a in range(rank) if a not in new][place.axis], place.parts)


def flatten(n: NodeAt) -> Place:
    """Two axes, in the same order in memory."""
    place, rank = n.only(), len(n.shape(0))
    at = n.attrs.get("axis", 1)
    found = same_memory(n.out(), int(place.axis >= (at + rank if at < 0 else at)), place.outer(n.shape(0)), n.batch.old)
    if found is None:
        raise Unproved("it takes the batch apart")
    return found


def reshape(n: NodeAt) -> Place | SameMemory:
    """The same elements in the same order, in a shape that may hold the batch as a constant."""
    place, out = next((p for p in n.places if p), None), n.out()
    if place is None or n.place(0) != place:
        raise Across("its target depends on the batch, its data do not")
    outer = place.outer(n.shape(0))
    if n.changed(1):
        return SameMemory(outer)
    found = candidates(out, outer, n.batch.old)
    if not found:
        raise Unproved(f"it makes {times(out)} of {times(n.shape(0))}, in which the batch has no axis")
    as_is = _resolved(n, place)
    kept = next((p for p in found if p.scaled(out, n.batch) == as_is), None)
    own = [p for p in found if out[p.axis] == n.batch.old]
    if own or len(found) == 1 or kept is not None:
        chosen = kept if kept is not None and (not own or kept == found[0]) else _alike(n.shape(0), place, found)
        n.twins.extend(found[1:])
    else:
        guess = (n.shape(0), place, out)
        n.guesses.append(guess)
        chosen = found[0 if n.before.get(guess) else -1]
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
        known = prod(d for d in target if d != -1)
        target = [prod(shape) // known if d == -1 and known else d for d in target]
    return tuple(target) if prod(target) == prod(shape) else None


def _alike(shape: Shape, place: Place, found: list[Place]) -> Place:
    """Of places that are the same in memory, the one as far behind the first as the batch is in the input."""
    ones = 0
    while place.axis > ones and shape[place.axis - ones - 1] == 1 and shape[place.axis] == 1:
        ones += 1
    return found[min(ones, len(found) - 1)]


def expand(n: NodeAt) -> Place | None:
    """Sizes that the input is spread over; where the batch is more than 1, they hold it."""
    place, shape, out = n.only(), n.shape(0), n.out()
    if n.changed(1):
        return None
    at = Place(place.axis + len(out) - len(shape), place.parts)
    if out[at.axis] != shape[place.axis]:
        raise Across("it spreads the batch over another axis")
    target = [int(d) for d in n.value(1).ravel()]
    axis = at.axis - len(out) + len(target)
    if axis >= 0 and target[axis] != 1:
        n.resize(1, out, at)
    return at


def tile(n: NodeAt) -> Place | None:
    """Repeats of the whole tensor along each axis."""
    place = n.only()
    if n.changed(1):
        return None
    return Place(place.axis, place.parts * int(n.value(1).ravel()[place.axis]))


def concat(n: NodeAt) -> Place:
    """Tensors one after another along an axis; along the others, constants are repeated for each sample."""
    (place,) = found if len(found := {p for p in n.places if p is not None}) == 1 else (None,)
    if place is None:
        raise Across("its inputs hold the batch in different axes")
    n.apart(place, (n.axis(),), "joins tensors")
    for i in range(len(n.inputs)):
        n.require(i, place)
    return place


def split(n: NodeAt) -> Place:
    """Parts along an axis."""
    place = n.only()
    if place.axis == n.axis():
        raise Unproved("it splits the batch")
    return place


def cut(n: NodeAt) -> Place:
    """A Slice: along the batch only all of it."""
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
    return place


def pad(n: NodeAt) -> Place:
    """Borders along axes."""
    place, rank = n.only(), len(n.shape(0))
    pads = n.attrs["pads"] if "pads" in n.attrs else n.value(1).ravel().tolist()
    axes = [int(a) % rank for a in n.value(3).ravel()] if n.has(3) else list(range(rank))
    around = {a: (pads[k], pads[k + len(axes)]) for k, a in enumerate(axes)}
    if any(around.get(place.axis, ())):
        raise Across("it pads the batch")
    return place


def gather(n: NodeAt) -> Place:
    """Slices of the data, by indices: of samples from tables, or of the same table for each sample."""
    data, indices, axis, rank = n.place(0), n.place(1), n.axis(), len(n.shape(1))
    if data is not None and indices is not None:
        raise Across("it reads samples by the indices of samples")
    if indices is not None:
        return Place(axis + indices.axis, indices.parts)
    place = n.only()
    if place.axis != axis:
        return Place(place.axis + (rank - 1 if place.axis > axis else 0), place.parts)
    if not rank:
        raise Across("it takes one sample out of the batch")
    if (found := n.inputs[1]) is None or not found.stored:
        raise Across("it reads samples by indices that are only known in the run")
    return _gather_all(n, place)


def _gather_all(n: NodeAt, place: Place) -> Place:
    """A Gather of all there is along an axis, in order, which is a Reshape: as exporters write PyTorch's as_strided."""
    size, indices = n.shape(0)[place.axis], n.values[1][0]
    if size == n.batch.old or indices is None or indices.ravel().tolist() != list(range(size)):
        raise Unproved("its indices are those of samples")
    found = [p for p in candidates(n.out(), place.outer(n.shape(0)), n.batch.old) if p.axis >= place.axis]
    if not found:
        raise Unproved("its indices are those of samples")
    n.repeat(1, Place(found[0].axis - place.axis, found[0].parts))
    return found[0]


def elements(n: NodeAt) -> Place:
    """GatherElements and ScatterElements: data, indices and updates of each sample by itself."""
    (place,) = found if len(found := {p for p in n.places if p is not None}) == 1 else (None,)
    if place is None:
        raise Across("its inputs hold the batch in different axes")
    if place.axis == n.axis():
        raise Unproved("its indices are those of samples")
    if len({n.shape(i)[place.axis] for i in range(len(n.inputs))}) > 1:
        raise Unproved("its indices are of other samples than its data")
    for i in range(len(n.inputs)):
        n.require(i, place)
    return place


def gather_nd(n: NodeAt) -> Place:
    """Slices of the data by tuples of indices, one of which may be the number of the sample."""
    data, found, batch = n.place(0), n.place(1), n.batch.old
    common, prefix, count = n.attrs.get("batch_dims", 0), len(n.shape(1)) - 1, n.shape(1)[-1]
    if found is not None and found.axis == prefix:
        raise Across("its indices hold the batch in their last axis")
    if data is None or (found is not None and data.axis < common):
        place = found or data or Place(0)
        if data is None and place.axis < common:
            n.require(0, place)
        elif data is not None and data != place:
            raise Across("its inputs hold the batch in different axes")
        return place
    if data.axis < common:
        n.require(1, data)
        return data
    if data.axis >= common + count:
        if found is not None:
            raise Across("its inputs hold the batch in different axes")
        return Place(prefix + data.axis - common - count, data.parts)
    if n.shape(0)[data.axis] != batch or count < 2:
        raise Unproved("its indices are those of samples")
    at = _numbered(n, data.axis - common) if found is None else found
    if found is not None and batch > 1:
        raise Across("it reads samples by the indices of samples")
    if found is None:
        _require_numbered(n, at)
    return at


def _numbered(n: NodeAt, column: int) -> Place:
    """The axis of indices along which they count the samples: 0, 1, 2, ... in one column, whatever the other axes.

    Of a batch of 1 that is the first axis of 1, as all indices are 0.
    """
    shape, values = n.shape(1)[:-1], n.values[1][0]
    for axis in (a for a, d in enumerate(shape) if d == n.batch.old):
        if n.batch.old == 1:
            return Place(axis)
        counted = np.arange(n.batch.old).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        if values is not None and (values[..., column] == counted).all():
            return Place(axis)
    raise Unproved("its indices are those of samples")


def _require_numbered(n: NodeAt, place: Place) -> None:
    """Let indices count the samples of any batch. Their other columns must be the same for all samples."""
    values = n.values[1][0]
    if n.batch.old == 1:
        n.require(1, place)
        return
    tensor, column = n.inputs[1], (n.place(0) or place).axis - n.attrs.get("batch_dims", 0)
    others = None if values is None else np.delete(values, column, -1)
    if tensor is None or not tensor.stored or others is None or (others != others.take([0], place.axis)).any():
        raise Unproved("its indices are those of samples")
    n.repeat(1, place)


def resize(n: NodeAt) -> Place:
    """Scales, or sizes that hold the batch, of all axes or of some."""
    place, rank = n.only(), len(n.shape(0))
    axes = [a % rank for a in n.attrs.get("axes", range(rank))]
    if place.axis not in axes:
        return place
    k = axes.index(place.axis)
    if n.has(3) and n.changed(3):
        return place
    if n.has(3) and n.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Across("its sizes are bounds")
    if n.has(3):
        sizes = tuple(int(d) for d in n.value(3).ravel())
        if sizes[k] != n.shape(0)[place.axis]:
            raise Across("it resizes the batch")
        n.resize(3, sizes, Place(k))
    else:
        scales = n.attrs.get("scales") or n.value(2 if n.version > 10 and n.type == "Resize" else 1).ravel().tolist()
        if scales[k] != 1.0:
            raise Across("it resizes the batch")
    return place


#: By operator type.
MOVES: Mapping[str, Callable[[NodeAt], Place | SameMemory | None]] = {
    "Concat": concat,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": elements,
    "GatherND": gather_nd,
    "Pad": pad,
    "Reshape": reshape,
    "Resize": resize,
    "ScatterElements": elements,
    "Slice": cut,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
    "Upsample": resize,
}
