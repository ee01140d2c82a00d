"""How an axis that is divided among GPUs goes through an operator, for those that need no more than a part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from op_models import Axes, Operator, Tensor, axes_of

FEW = 3  # of an axis that stands for queries, keys and values, which no GPU divides
HEADS = "h"
Divisions = Sequence[int | None]


class Divided(Exception):
    """An operator needs all of an axis. size: heads that can't be divided for their number, "" otherwise."""

    def __init__(self, size: str = ""):
        super().__init__(size)
        self.size = size


@dataclass(frozen=True, slots=True)
class Whole:
    """The divided axis of each output, and of those inputs that are divided because of the others, by position; and
    its letter in the operator's axes.
    """

    outputs: tuple[int | None, ...]
    letter: str = ""
    inputs: Mapping[int, int] = field(default_factory=dict)


def stated(o: Operator) -> Axes:
    """Where the axes of an operator go. Raises Divided where nobody says so, or for forms that it can't have."""
    try:
        axes = axes_of(o)
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        axes = None
    if axes is None:
        raise Divided
    return axes


def follow(o: Operator, divisions: Divisions, partial: Sequence[bool], ranks: int) -> Whole:
    """Where an operator leaves a divided axis.

    divisions: the divided axis of each input, None where every GPU has all of it; partial: whether a GPU can read a
    part of an input alone. Raises Divided where the operator needs the whole axis, or nobody says where it goes.
    """
    axes = stated(o)
    if not axes.does:
        return Whole((None,) * len(o.outputs))
    divided = {_letter(o, axes, i, axis, ranks) for i, axis in enumerate(divisions) if axis is not None}
    if len(divided) != 1 or axes.summed(letter := divided.pop()):
        raise Divided
    if letter == HEADS:
        check_heads(axes, ranks)
    parts: dict[int, int] = {}
    for i, axis in axes.holding(letter):
        t = o.inputs[i]
        if t is not None and divisions[i] is None and not (i in axes.spread and t.shape[axis] == 1):
            if not partial[i]:
                raise Divided
            parts[i] = axis
    left = axes.left(letter)
    for out, at in zip(o.outputs, left, strict=True):
        if axes.pieces is not None and at is not None and out.shape[at] % ranks:
            raise Divided
    return Whole(tuple(left), letter, parts)


def _letter(o: Operator, axes: Axes, index: int, axis: int, ranks: int) -> str:
    """The letter of a divided axis.

    Where a view takes the axis apart, it is the first that is more than queries, keys and values, which are the heads.
    """
    names = axes.inputs[index] if index < len(axes.inputs) else None
    if names is None or not names[axis]:
        raise Divided
    if not axes.in_order:
        return names[axis][0]
    for letter in names[axis]:
        if (at := axes.left(letter)[0]) is not None and (len(names[axis]) == 1 or o.out.shape[at] > FEW):
            if o.out.shape[at] % ranks:
                raise Divided(f"{o.out.shape[at]:,} heads" if len(names[axis]) > 1 else "")
            return letter
    raise Divided


def check_heads(axes: Axes, ranks: int) -> None:
    """Raise Divided where heads of queries, or those of keys and values, can't be divided by that number."""
    keys, each = axes.sizes.get("h", 0), axes.sizes.get("r", 1)
    for heads in (keys * each, keys):
        if heads % ranks:
            raise Divided(f"{heads:,} heads")


def part(t: Tensor, axis: int, ranks: int) -> Tensor:
    """A GPU's part of a tensor; the last part may be padded."""
    shape = (*t.shape[:axis], ceil(t.shape[axis] / ranks), *t.shape[axis + 1 :])
    return replace(t, shape=shape, value=None)


def counted(o: Operator, letter: str, ranks: int) -> Mapping[str, Any]:
    """The attributes of a part of an operator: those that count slices of the divided axis are of these alone."""
    counts = stated(o).counts if letter else {}

    def fewer(value: Any) -> Any:
        return tuple(map(fewer, value)) if isinstance(value, tuple) else ceil(value / ranks)

    return {name: fewer(value) if counts.get(name) == letter else value for name, value in o.attrs.items()}


def weights_of(o: Operator, letter: str, ranks: int, first: int = 1) -> list[Tensor | None]:
    """The inputs of an operator, of which those from the first on are a GPU's part by a letter."""
    axes, inputs = stated(o), list(o.inputs)
    for i, axis in axes.holding(letter):
        if i >= first and (t := inputs[i]) is not None and (i not in axes.spread or t.shape[axis] > 1):
            inputs[i] = part(t, axis, ranks)
    return inputs
