"""Loops, as torch.compile's Inductor has them before it fuses any: what each reads, and in which order it goes.

A tensor is a `Box`: computed by whoever reads it, or kept in memory. A `View` is a box seen through reshapes,
transpositions and slices, which are arithmetic on addresses. Two loops touch the same element of a buffer at the same
time where the keys of their reads or writes are equal.

Sources: torch/_inductor of PyTorch 2.4 to 2.13: dependencies.py (`MemoryDep`), scheduler.py (`pick_loop_order`),
choices.py (`reduction_split_factor`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cmp_to_key
from math import prod
from typing import NamedTuple

from onnxperf.fusions.torch_strides import Shape, Strides, channels_last, contiguous, dense, view
from op_models import Operator, Tensor

Tile = tuple[int, int]  # the elements of the outer and of the inner axis of tiles
Key = tuple[tuple[int, int], ...]  # (size, stride) of the axes of a walk, those that follow each other as one
#: Rows are split as on a card of so many SMs: another card splits others, which makes a short kernel more or less.
SMS, WARP, LONG_ROW = 128, 32, 8192
#: Strides of more elements than this are a multiple of so many bytes (config.padding_stride_threshold,
#: padding_alignment_bytes).
LONG_STRIDE, ALIGNED = 1024, 128
#: Threads of a block that adds up rows, and of an SM; elements of a thread at most.
THREADS, THREADS_OF_SM, MOST_ELEMENTS = 256, 1536, 512


class Read(NamedTuple):
    """A load of a buffer, by the axes of what is computed: `strides` in elements, None where no strides say which
    element (a gather, a window), and `offset` then tells such reads apart. `elements`: how many are read, each once.
    """

    buffer: str
    strides: Strides | None
    offset: int
    elements: int

    def key(self, shape: Shape, order: Iterable[int]) -> Key:
        """How a loop over a shape, in an order of its axes, walks over the buffer."""
        if self.strides is None:
            return ((0, self.offset),)
        return merged(((shape[i], self.strides[i]) for i in order), self.offset)


def merged(axes: Iterable[tuple[int, int]], offset: int = 0) -> Key:
    """(size, stride) of each axis, outermost first, where axes that follow each other are one and repeats inside of all
    are left out; then the offset, where there is one.
    """
    rows: list[tuple[int, int]] = []
    for size, stride in axes:
        if size == 1:
            continue
        if rows and rows[-1][1] == size * stride:
            rows[-1] = (rows[-1][0] * size, stride)
        else:
            rows.append((size, stride))
    while rows and rows[-1][1] == 0:
        rows.pop()
    return tuple(rows) if not offset else (*rows, (0, offset))


class Move(NamedTuple):
    """One view: `kind` is transpose, expand, slice or reshape, `detail` the permutation, or start and step of each
    axis, `shape` what it gives.
    """

    kind: str
    detail: tuple[int, ...]
    shape: Shape


@dataclass(slots=True)
class Box:
    """A tensor, computed from `reads` by whoever reads it, or kept in memory with these `strides` from `offset` on.

    operations, flops: of an element; parts: the operators that are computed; flexible: it is kept, but where it lies is
    not settled; like: the strides that eager PyTorch would give it, which are those of an operand.
    """

    tensor: Tensor
    reads: tuple[Read, ...] = ()
    operations: int = 0
    flops: float = 0.0
    parts: tuple[Operator, ...] = ()
    strides: Strides | None = None
    offset: int = 0
    flexible: bool = False
    like: Strides | None = None

    @property
    def kept(self) -> bool:
        """Whether it is in memory."""
        return self.strides is not None

    @property
    def walks(self) -> list[Strides]:
        """The strides of what it reads."""
        return [r.strides for r in self.reads if r.strides is not None]

    @property
    def natural(self) -> Strides:
        """Dense strides in the order of axes that most of what it reads has."""
        return in_order(self.tensor.shape, preferred(self.tensor.shape, self.walks))


@dataclass(frozen=True, slots=True)
class View:
    """A box seen through views, the first of them first, in a shape."""

    box: Box
    shape: Shape
    moves: tuple[Move, ...] = ()

    def by(self, kind: str, shape: Shape, detail: tuple[int, ...] = ()) -> View:
        """The view through one more."""
        return replace(self, shape=shape, moves=(*self.moves, Move(kind, detail, shape)))

    def reshaped(self, shape: Shape) -> View:
        """The same elements in another shape."""
        return self if shape == self.shape else self.by("reshape", shape)

    def expanded(self, shape: Shape) -> View:
        """Spread over the axes of a shape, as operands are."""
        return self if shape == self.shape else self.by("expand", shape)

    def sliced(self, axis: int, start: int, shape: Shape) -> View:
        """Elements of one axis from a start on."""
        starts = tuple(start if i == axis else 0 for i in range(len(shape)))
        return self.by("slice", shape, (*starts, *(1 for _ in shape)))

    @property
    def strides(self) -> Strides | None:
        """In memory, where the box is kept; None where no strides say how the elements lie."""
        return self._through(self.box.strides, self.box.offset)[0]

    @property
    def eager(self) -> Strides | None:
        """As PyTorch would have it without compiling: without gaps, and what is not kept lies as the first operand
        does.
        """
        box = self.box
        return self._through(dense(box.tensor.shape, box.strides or box.like or box.natural), 0)[0]

    def loads(self) -> tuple[Read, ...]:
        """What is read of buffers for its elements."""
        box = self.box
        reads = (Read(box.tensor.name, box.strides, box.offset, box.tensor.size),) if box.kept else box.reads
        if not self.moves:
            return reads
        loads = []
        for r in reads:
            strides, offset = self._through(r.strides, r.offset)
            loads.append(Read(r.buffer, strides, offset, min(r.elements, distinct(self.shape, strides))))
        return tuple(loads)

    def _through(self, strides: Strides | None, offset: int) -> tuple[Strides | None, int]:
        """Strides and offset by the box's axes as those by the view's; without strides, what tells reads apart."""
        shape = self.box.tensor.shape
        for m in self.moves:
            if strides is not None:
                strides, offset = _moved(m, shape, strides, offset)
            shape = m.shape
        return (strides, offset) if strides is not None else (None, hash((offset, self.moves)))


def _moved(m: Move, shape: Shape, strides: Strides, offset: int) -> tuple[Strides | None, int]:
    """Strides and offset by the axes that a view has; None where no strides say it."""
    if m.kind == "transpose":
        return tuple(strides[i] for i in m.detail), offset
    if m.kind == "expand":
        missing = len(m.shape) - len(shape)
        if missing < 0:  # of an operator whose result the model declares with fewer axes than its operand has
            return None, offset
        sizes, walk = (1,) * missing + shape, (0,) * missing + strides
        return tuple(0 if d == 1 and e != 1 else s for d, e, s in zip(sizes, m.shape, walk, strict=True)), offset
    if m.kind == "slice":
        starts, steps = m.detail[: len(shape)], m.detail[len(shape) :]
        first = sum(s * a for s, a in zip(strides, starts, strict=True))
        return tuple(s * b for s, b in zip(strides, steps, strict=True)), offset + first
    return contiguous(m.shape) if strides == contiguous(shape) else view(shape, strides, m.shape), offset


def distinct(shape: Shape, strides: Strides | None) -> int:
    """How many elements of a buffer a walk over a shape reads, each counted once."""
    return prod(d for i, d in enumerate(shape) if strides is None or strides[i])


def preferred(shape: Shape, strides: Sequence[Strides]) -> list[int]:
    """The order of axes, outermost first, that most of these strides take: `pick_loop_order`."""

    def nearer(a: int, b: int) -> int:
        if shape[a] == 1 or shape[b] == 1:
            return (shape[a] == 1) - (shape[b] == 1)
        near = sum(s[b] == 0 or abs(s[a]) < abs(s[b]) for s in strides)
        far = sum(s[a] == 0 or abs(s[b]) < abs(s[a]) for s in strides)
        return far - near or b - a

    axes = list(range(len(shape)))[::-1]
    axes.sort(key=cmp_to_key(nearer))
    return axes[::-1]


def in_order(shape: Shape, order: Sequence[int]) -> Strides:
    """The strides of a tensor whose axes lie in this order, outermost first."""
    strides, step = [1] * len(shape), 1
    for i in reversed(order):
        strides[i] = step
        step *= shape[i]
    return tuple(strides)


def padded(shape: Shape, strides: Strides, bits: int) -> Strides:
    """Dense strides with gaps, so that each row of more than some elements starts aligned: `_pad_strides`."""
    if len(shape) == 4 and strides == channels_last(shape):
        return strides
    align, wide, step = ALIGNED * 8 // bits, [1] * len(shape), 1
    for i in sorted(range(len(shape)), key=lambda i: (strides[i], shape[i])):
        wide[i] = step if step <= LONG_STRIDE else -(-step // align) * align
        step = wide[i] * shape[i]
    return tuple(wide)


def turned_last(seen: View) -> Strides | None:
    """The strides of a box that a view shows as channels_last; None where the view does more than to transpose."""
    strides = channels_last(seen.shape)
    for m in reversed(seen.moves):
        if m.kind != "transpose":
            return None
        strides = tuple(strides[m.detail.index(i)] for i in range(len(strides)))
    return strides


@cache
def splits(rows: int, width: int, inside: bool) -> int:
    """Into how many parts rows are split, so that few rows fill the card: `reduction_split_factor`, with SMS. inside:
    the elements of a row lie next to each other.
    """
    if width <= WARP or rows >= 2 * WARP * SMS or (inside and (rows >= 2 * SMS or width <= LONG_ROW)):
        return 1
    each, blocks = (THREADS, THREADS_OF_SM * SMS // (2 * THREADS)) if inside else (4, THREADS_OF_SM * SMS // THREADS)
    if rows * width < WARP * SMS * THREADS_OF_SM:
        return -(-width // (each * WARP))
    of_row = -(-blocks // (rows if inside else -(-rows // 128)))
    most = rows * width >= MOST_ELEMENTS * SMS * THREADS_OF_SM
    size = MOST_ELEMENTS if most else -(-width // (each * of_row))
    near = min((d for d in range(1, width + 1) if not width % d), key=lambda d: abs(d - size))
    if abs(near - size) < (50 if most else 30 if inside else 20):  # even parts
        size = near if most else max(near, WARP)
    return -(-width // (each * size))


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over `rows` results, each of `width` elements where it reduces them, else of one, before any fusion.

    reads, writes: by buffer and key the elements; flops: of all; parts: the operators that it computes; out: the buffer
    that it writes; inside: the elements of a row lie next to each other; domain: what it goes over, all of it;
    order: that of the axes, outermost first; walks, lie: what it reads, and how what it writes lies, by these axes;
    tiles: by buffer that an elementwise loop reads or writes across, the tile that this asks for, and for how much.
    """

    rows: int
    width: int
    reads: dict[tuple[str, Key], int]
    writes: dict[tuple[str, Key], int]
    flops: float
    parts: tuple[Operator, ...]
    out: Tensor
    inside: bool = True
    domain: Shape = ()
    order: tuple[int, ...] = ()
    walks: tuple[Read, ...] = ()
    lie: tuple[Strides, int] = ((), 0)
    tiles: tuple[tuple[str, int, Tile], ...] = ()

    def turned(self, order: tuple[int, ...]) -> Loop:
        """An elementwise loop that goes over its axes in another order."""
        reads, (strides, offset) = keys(self.walks, self.domain, order), self.lie
        key = merged(((self.domain[i], strides[i]) for i in order), offset)
        tiles = [tile for r in self.walks if (tile := asked(r.buffer, self.domain, r.strides, order, 1))]
        tiles += filter(None, (asked(self.out.name, self.domain, strides, order, 2),))
        return replace(self, reads=reads, writes={(self.out.name, key): self.out.size}, order=order, tiles=tuple(tiles))

    def divides(self, tile: Tile) -> bool:
        """Whether its axes, outermost first, split into those of a tile."""
        rest = tile[0]
        for size in (self.domain[i] for i in self.order if self.domain[i] > 1):
            if rest == 1:
                return True
            if max(size, rest) % min(size, rest):
                return False
            rest = rest // size if size <= rest else 1
        return True

    @property
    def reduces(self) -> bool:
        """Whether it adds up elements, or finds the largest."""
        return self.width > 1


def asked(
    buffer: str, shape: Shape, strides: Strides | None, order: Iterable[int], weight: int
) -> tuple[str, int, Tile] | None:
    """The tile that a walk over a shape asks for, if elements that lie next to each other in the buffer are not those
    of the last axis, and the score of that: the elements, twice for each side of full warps (`candidate_tilings`).
    """
    axes = [(shape[i], strides[i]) for i in order if shape[i] > 1] if strides is not None else []
    first = next((i for i, (_, stride) in enumerate(axes, 1) if stride == 1), len(axes))
    if not any(stride for _, stride in axes[first:]):
        return None
    tile = prod(size for size, _ in axes[:first]), prod(size for size, _ in axes[first:])
    score = prod(size for size, stride in axes if stride) * weight * 2 ** sum(not side % WARP for side in tile)
    return (buffer, score, tile) if score >= prod(shape) else None


def keys(reads: Iterable[Read], shape: Shape, order: Sequence[int]) -> dict[tuple[str, Key], int]:
    """The elements read by buffer and key."""
    walks: dict[tuple[str, Key], int] = {}
    for r in reads:
        key = (r.buffer, r.key(shape, order))
        walks[key] = max(walks.get(key, 0), r.elements)
    return walks
