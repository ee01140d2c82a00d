"""Data movement: hardly any arithmetic; what counts is how many elements move, and in runs of what length.

A view (Reshape, Identity, ...) costs a copy here; whether it is free is for a runtime to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from op_models.core import Move, Operator, Tensor, Work, op, work


def moved(
    op: Operator,
    run: int,
    *,
    elements: int | None = None,
    vector: int = 0,
    read: dict[int, int] | None = None,
) -> Work:
    """`elements` (else the outputs') moved in runs of at least one element."""
    total = sum(t.size for t in op.outputs) if elements is None else elements
    return work(op, Move(total, max(run, 1)), vector=vector, read=read)


def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Contiguous elements common to a tensor and a part of it: trailing axes up to the first that differs."""
    run = 1
    for x, y in zip(reversed(a), reversed(b), strict=False):
        run *= min(x, y)
        if x != y:
            break
    return run


@op("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "BitCast")
def copy(op: Operator, x: Tensor) -> Work:
    """One contiguous copy."""
    return moved(op, x.size)


@op("Expand", "Tile", "ConstantOfShape")
def fill(op: Operator) -> Work:
    """Written in one run; what is repeated comes from cache."""
    return moved(op, op.out.size)


@op("Shape", "Size", "EyeLike")
def from_shape(op: Operator) -> Work:
    """Nothing of the input is read but its shape."""
    return moved(op, op.out.size, read={0: 0})


@op("Range")
def range_(op: Operator) -> Work:
    """start + i delta."""
    return moved(op, op.out.size, vector=2 * op.out.size)


@op("OneHot", "Trilu")
def select(op: Operator) -> Work:
    """1 comparison an output: OneHot with the index, Trilu with the diagonal."""
    return moved(op, op.out.size, vector=op.out.size)


@op("NonZero")
def nonzero(op: Operator, x: Tensor) -> Work:
    """1 comparison an input element."""
    return moved(op, x.size, elements=x.size, vector=x.size)


@op("Transpose")
def transpose(op: Operator, x: Tensor, *, perm: Sequence[int] | None = None) -> Work:
    """A run is the trailing axes left in place; axes of one element are nowhere and move freely."""
    perm = tuple(range(x.rank))[::-1] if perm is None else perm
    after = [axis for axis in perm if x.shape[axis] != 1]
    run = 1
    for old, new in zip(sorted(after, reverse=True), reversed(after), strict=True):
        if old != new:
            break
        run *= x.shape[old]
    return moved(op, run)


@op("DepthToSpace", "SpaceToDepth")
def shuffle(op: Operator) -> Work:
    """Neighbours in a row come from, or go to, different channels."""
    return moved(op, 1)


@op("Concat")
def concat(op: Operator, *, axis: int) -> Work:
    """Each input is written in pieces: the axes from `axis` on, on average."""
    return moved(op, prod(op.out.shape[axis:]) // max(len(op.present), 1))


@op("Split")
def split(op: Operator, x: Tensor, *, axis: int = 0) -> Work:
    """Each output is read in pieces: the axes from `axis` on, on average."""
    return moved(op, prod(x.shape[axis:]) // max(len(op.outputs), 1))


@op("Slice")
def slice_(
    op: Operator,
    x: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Work:
    """Reads only what it keeps; a run ends at the first axis cut, before it where that is stepped through."""
    run = shared(x.shape, op.out.shape)
    if steps is not None and steps.value is not None:
        chosen = axes.value if axes is not None and axes.value is not None else range(len(steps.value))
        stepped = [int(a) % max(x.rank, 1) for a, step in zip(chosen, steps.value, strict=False) if step != 1]
        run = min([run, *(prod(op.out.shape[a + 1 :]) for a in stepped)])
    return moved(op, run, read={0: op.out.size})


@op("Pad", "CenterCropPad")
def pad(op: Operator, x: Tensor) -> Work:
    """Rows of the input amid the padding; what negative padding cuts off is not read."""
    kept = prod(min(a, b) for a, b in zip(x.shape, op.out.shape, strict=False))
    return moved(op, shared(x.shape, op.out.shape), read={0: kept})


@op("Gather")
def gather(op: Operator, x: Tensor, *, axis: int = 0) -> Work:
    """Reads only what it gathers and the indices; a run is the axes behind `axis`."""
    return moved(op, prod(x.shape[axis % max(x.rank, 1) + 1 :]), read={0: op.out.size})


@op("GatherElements")
def gather_elements(op: Operator) -> Work:
    """Reads only what it gathers and the indices, an element at a time."""
    return moved(op, 1, read={0: op.out.size})


@op("GatherND")
def gather_nd(op: Operator, x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Work:
    """Reads only what it gathers and the indices; a run is the axes that no index speaks of."""
    return moved(op, prod(x.shape[batch_dims + sum(indices.shape[-1:]) :]), read={0: op.out.size})


def scattered(op: Operator, x: Tensor, updates: Tensor, pieces: int, reduction: str = "none") -> Work:
    """One contiguous copy of the data, then so many pieces of updates; a reduction is 1 an update."""
    elements = x.size + updates.size
    vector = updates.size if reduction != "none" else 0
    return moved(op, elements // (1 + pieces), elements=elements, vector=vector)


@op("Scatter", "ScatterElements")
def scatter_elements(op: Operator, x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Work:
    """A copy of the data, and a piece an update."""
    return scattered(op, x, updates, updates.size, reduction)


@op("ScatterND")
def scatter_nd(op: Operator, x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Work:
    """A copy of the data, and a piece an index tuple."""
    return scattered(op, x, updates, prod(indices.shape[:-1]), reduction)


@op("TensorScatter")
def tensor_scatter(op: Operator, x: Tensor, updates: Tensor, *, axis: int = -2) -> Work:
    """A copy of the cache, and a piece for each run of updated positions."""
    return scattered(op, x, updates, prod(updates.shape[:axis]))


#: Elements one output of a resize looks at along each axis that changes.
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


@op("Resize", "Upsample")
def resize(op: Operator, x: Tensor, *, mode: str = "nearest", antialias: int = 0) -> Work:
    """2 a tap, nothing for nearest; antialiasing widens the taps by the factor of shrinking."""
    taps, along = 1, TAPS.get(mode, 1)
    for before, after in zip(x.shape, op.out.shape, strict=False):
        if before != after:
            taps *= -(-along * max(before, after) // max(after, 1)) if antialias else along
    vector = 2 * taps * op.out.size if along > 1 else 0
    return moved(op, shared(x.shape, op.out.shape), vector=vector, read={0: taps * op.out.size})
