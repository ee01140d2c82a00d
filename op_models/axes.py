"""Where each axis of an operator's inputs goes in its outputs, as an einsum would say it.

`op` takes it beside a rule: as a pattern such as "N c ..., o c ... -> N o ...", or as a function of inputs and
attributes where it depends on them. What follows an axis through a graph (another batch, tensor and expert parallelism)
reads nothing else of an operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise, zip_longest
from math import prod
from operator import mul
from typing import Any

from op_models.core import Maybe, Operator, OpModelError, Tensor

Axis = tuple[str, ...]  # its letters; several where it is a product of sizes, the outer first; none: needed whole
Names = tuple[Axis, ...]  # those of a tensor's axes
BATCH = "N"  # the letter of the axis that an operator defines as its batch
WHOLE: Axis = ()
NEEDS = "needs all of {}"
LIKE_FIRST = "* -> *, *"  # the other inputs are parameters


class Unknown(OpModelError):
    """What an operator is told to do is only known in the run."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The letters of an operator's axes.

    A letter of inputs and outputs is independent: each slice of the outputs is computed from the same slice of all
    inputs that have the letter, whatever the others hold. One of inputs alone is summed over: what is computed of a
    part of it is a summand of the result. An axis without a letter is needed whole, and `does` says what the operator
    does along it, as in "normalises along {}"; "" where it reads no more than the size. Inputs that are None, and those
    behind the last, are parameters that are read whole.

    spread: the inputs, by position, of which a single slice serves for all, as operands are broadcast; pieces: letters
    along which an output is a contiguous piece of the input, None where operators of the type never cut; in_order: the
    outputs have the elements of the first input in the same order; sizes: those of letters that share an axis; counts:
    attributes that count the slices of a letter.
    """

    inputs: tuple[Names | None, ...]
    outputs: tuple[Names, ...]
    does: str = NEEDS
    spread: Collection[int] = ()
    pieces: frozenset[str] | None = None
    in_order: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)

    def holding(self, letter: str) -> Iterator[tuple[int, int]]:
        """The inputs that have a letter, by position, and the axis where they do."""
        for i, names in enumerate(self.inputs):
            if names is not None and (axis := axis_of(names, letter)) is not None:
                yield i, axis

    def left(self, letter: str) -> list[int | None]:
        """The axis of each output that has a letter."""
        return [axis_of(names, letter) for names in self.outputs]

    def summed(self, letter: str) -> bool:
        """Whether it is in no output."""
        return all(axis is None for axis in self.left(letter))

    def outside(self, names: Names, letter: str) -> int:
        """Into how many parts an axis falls that have all slices of the letter each."""
        axis = next(axis for axis in names if letter in axis)
        return prod(self.sizes[x] for x in axis[: axis.index(letter)])


def axis_of(names: Names, letter: str) -> int | None:
    """The axis that has a letter."""
    return next((k for k, axis in enumerate(names) if letter in axis), None)


@lru_cache(maxsize=1024)
def letters(text: str, rank: int) -> Names:
    """The axes in a term such as "N ... (h d) .": one in brackets is a product, a dot has no letter (as a factor it is
    one that nothing follows), "..." are as many of these as it takes, and "*" as many numbered ones.
    """
    axes = [WHOLE if axis == "." else tuple(axis.strip("()").split()) for axis in re.findall(r"\([^)]*\)|\S+", text)]
    for many in (("...",), ("*",)):
        if many in axes:
            at, count = axes.index(many), rank - len(axes) + 1
            axes[at : at + 1] = [WHOLE] * count if many == ("...",) else numbered(at + count)[at:]
    if len(axes) != rank:
        raise OpModelError(f"{text!r} does not fit {rank} axes")
    return tuple(axes)


def by_pattern(op: Operator, pattern: str, **facts: Any) -> Axes:
    """The axes that "first input, second input -> first output | does" says, and further fields of `Axes`.

    Inputs without a term are parameters, outputs without one have no letters. A term such as "o?" is of a vector that
    may be a single number instead.
    """
    terms, says, does = pattern.partition("|")
    before, _, after = ([x.strip() for x in side.split(",")] for side in terms.partition("->"))
    after += [""] * len(op.outputs)
    inputs = tuple(
        letters(x.rstrip("?"), t.rank) if x and t is not None and (t.size > 1 or x[-1] != "?") else None
        for x, t in zip(before, op.inputs, strict=False)
    )
    outputs = tuple(letters(x, t.rank) if x and t.name else () for x, t in zip(after, op.outputs, strict=False))
    return Axes(inputs, outputs, does.strip() if says else NEEDS, **facts)


def numbered(rank: int, whole: Iterable[int] = ()) -> Names:
    """A letter for each axis, its number, but for those that are needed whole; these may count from the last."""
    without = {axis % rank for axis in whole} if rank else set()
    return tuple(WHOLE if axis in without else (str(axis),) for axis in range(rank))


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of operands that are spread over each other's axes."""
    columns = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return tuple(next((d for d in sizes if d != 1), 1) for sizes in columns)[::-1]


def aligned(t: Maybe, over: tuple[int, ...], names: Names | None = None) -> Names | None:
    """The letters of an operand that is spread over a shape with these names, by default numbers."""
    if t is None:
        return None
    of_all, behind = names or numbered(len(over)), len(over) - t.rank
    return tuple(of_all[k + behind] if d == over[k + behind] else WHOLE for k, d in enumerate(t.shape))


# rules that several families share: they are called with the operator, its inputs and its attributes


def by_element(op: Operator, *operands: Maybe) -> Axes:
    """Operands are spread over each other's axes."""
    over = broadcast([t.shape for t in operands if t is not None])
    inputs = tuple(aligned(t, over) for t in operands)
    return Axes(inputs, (numbered(len(over)),) * len(op.outputs), spread=range(len(inputs)))


def by_row(op: Operator, x: Tensor, row: Iterable[int], does: str) -> Axes:
    """Outputs like the first input, computed row by row of some axes; an output for each row may lack the last."""
    names = numbered(x.rank, row)
    return Axes((names,), tuple(names[: t.rank] for t in op.outputs), does)


def by_axis(does: str, default: int = -1, onward: bool = False, onward_before: int = 0) -> Callable[..., Axes]:
    """A rule by row of the axis of an attribute, or from it onward: before some opset, then from axis 1 by default."""

    def rule(op: Operator, x: Tensor, *, axis: int | None = None) -> Axes:
        old = 0 < op.version < onward_before
        at = (1 if old else default) if axis is None else axis
        return by_row(op, x, range(at % max(x.rank, 1), x.rank) if onward or old else (at,), does)

    return rule


def told(t: Maybe) -> tuple[int, ...]:
    """The numbers that an input tells an operator. Raises Unknown where they are made in the run."""
    if t is None or t.value is None:
        raise Unknown("what it is told to do is only known in the run")
    return tuple(int(n) for n in t.value)


def in_order(op: Operator, x: Tensor) -> Axes:
    """The same elements in the same order: both shapes fall into factors, by the sizes where both have a border.

    A border is how many elements lie behind an axis. Between two borders that both have, all borders of either must
    divide each other; else those axes are whole. Axes of 1 have no letter.
    """
    both = [list(accumulate(reversed(shape), mul, initial=1)) for shape in (x.shape, op.out.shape)]
    if not prod(x.shape) or both[0][-1] != both[1][-1]:
        return Axes(((WHOLE,) * x.rank,), ((WHOLE,) * op.out.rank,), in_order=True)
    common = sorted(set(both[0]) & set(both[1]))
    borders = {*both[0], *both[1]}
    sizes: dict[str, int] = {}
    for low, high in pairwise(common):
        steps = sorted(b for b in borders if low <= b <= high)
        if all(b % a == 0 for a, b in pairwise(steps)):
            sizes |= {str(a): b // a for a, b in pairwise(steps)}

    def names(ends: list[int]) -> Names:
        axes = ([str(a) for a in sorted(borders) if low <= a < high] for low, high in pairwise(ends))
        return tuple(tuple(reversed(axis)) if sizes.keys() >= set(axis) else WHOLE for axis in axes)[::-1]

    return Axes((names(both[0]),), (names(both[1]),), "takes {} apart", in_order=True, sizes=sizes)
