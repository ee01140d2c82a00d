"""Where the batch sits in a tensor, and how a tensor of another batch is made of one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from onnxperf.graph.proto import Shape
from onnxperf.graph.values import Array


class Across(Exception):
    """An operator computes across the samples of a batch, or may do so: the message says how."""


class Unproved(Exception):
    """What an operator does at another batch can't be told: the message says why."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that a file has, and another that it is given."""

    old: int
    new: int

    def scaled(self, size: int) -> int:
        """What a size that holds the old batch is at the new one."""
        return size // self.old * self.new


@dataclass(frozen=True, slots=True)
class Place:
    """The axis of a tensor that holds the batch, and into how many equal parts that axis falls which hold it each.

    An axis of 12 heads of 8 samples, heads first, has 96 entries in 12 parts; samples first, in one part.
    """

    axis: int
    parts: int = 1

    def outer(self, shape: Shape) -> int:
        """How many blocks of elements, one after another in memory, hold the whole batch each."""
        return prod(shape[: self.axis]) * self.parts

    def scaled(self, shape: Shape, batch: Batch) -> Shape:
        """A shape of the old batch at the new one."""
        return (*shape[: self.axis], batch.scaled(shape[self.axis]), *shape[self.axis + 1 :])

    def fits(self, shape: Shape, old: int) -> bool:
        """Whether the axis can hold the batch in that many parts."""
        return self.axis < len(shape) and shape[self.axis] % (self.parts * old) == 0


def same_memory(shape: Shape, axis: int, outer: int, old: int) -> Place | None:
    """The place in an axis that leaves the batch where it is in memory; None where that axis can't hold it there."""
    before = prod(shape[:axis])
    if outer % before:
        return None
    place = Place(axis, outer // before)
    return place if place.fits(shape, old) else None


@dataclass(frozen=True, slots=True)
class SameMemory:
    """The batch stays where it is in memory; which axis that is, the output's own shape tells. See `Place.outer`."""

    outer: int


def candidates(shape: Shape, outer: int, old: int) -> list[Place]:
    """Where the batch can be in a tensor that has the same elements in the same order: axes of its own before others.

    A batch of 1 has an axis of its own in every axis of 1 at its place, and otherwise may be part of the axis on either
    side.
    """
    places = [p for axis in range(len(shape)) if (p := same_memory(shape, axis, outer, old))]
    alone = [p for p in places if shape[p.axis] == old]
    return alone or places


def repeated(value: Array, place: Place, batch: Batch) -> Array | None:
    """A tensor's elements for the new batch; None where samples of the old one differ."""
    axis, shape = place.axis, value.shape
    inner = shape[axis] // (place.parts * batch.old)
    split = value.reshape(*shape[:axis], place.parts, batch.old, inner, *shape[axis + 1 :])
    first = split.take([0], axis + 1)
    if not (split == first).all():
        return None
    return np.repeat(first, batch.new, axis + 1).reshape(place.scaled(shape, batch))
