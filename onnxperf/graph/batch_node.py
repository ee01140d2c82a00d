"""One node at another batch than the file's: what its rule is told, and what it may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxperf.graph.batch_place import Across, Batch, Place, Unproved, axes_of
from onnxperf.graph.proto import Shape, times
from onnxperf.graph.values import Array
from op_models import Tensor


@dataclass(frozen=True, slots=True)
class Edit:
    """An input of a node that another constant takes the place of.

    That is the tensor `of`, with each sample's part as often as the batch is large; or, where `of` is empty, `base` as
    a list of sizes, of which that at the place holds the batch.
    """

    index: int
    place: Place
    base: Shape
    of: str = ""


#: A shape, where it holds the batch, and the shape that a Reshape makes of it.
Guess = tuple[Shape, Place, Shape]


@dataclass(frozen=True)
class NodeAt:
    """A node of a graph that is inferred at a probing batch, with what it is in the file itself.

    inputs: tensors at the file's own batch, as `outputs` are; places: where each input holds the batch, None where it
    does not; values: what is known of inputs before the run, at both batches; why_differs: why the constant of that
    name can't be said to hold the same for each sample at a place, "" where it does. `edits` grows as rules ask. Where
    an axis before or one behind may hold the batch, rules take the one behind unless `before` says otherwise, and note
    it in `guesses`. `twins` are axes of the batch's size beside its own.
    """

    type: str
    attrs: Mapping[str, Any]
    version: int
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor | None]
    places: Sequence[Place | None]
    values: Sequence[tuple[Array | None, Array | None]]
    names: Sequence[str]
    why_differs: Callable[[str, Place], str]
    batch: Batch
    edits: list[Edit] = field(default_factory=list)
    before: Mapping[Guess, bool] = field(default_factory=dict)
    guesses: list[Guess] = field(default_factory=list)
    twins: list[Place] = field(default_factory=list)

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def shape(self, index: int) -> Shape:
        """The shape of an input in the file."""
        t = self.inputs[index] if index < len(self.inputs) else None
        if t is None:
            raise Unproved(f"it lacks its input {index}")
        return t.shape

    def out(self) -> Shape:
        """The shape of the first output in the file."""
        if not self.outputs or (t := self.outputs[0]) is None:
            raise Unproved("its output is not known")
        return t.shape

    def place(self, index: int) -> Place | None:
        """Where an input holds the batch."""
        return self.places[index] if index < len(self.places) else None

    def only(self, index: int = 0) -> Place:
        """Where this input, and no other, holds the batch."""
        place = self.place(index)
        if place is None or any(p is not None for i, p in enumerate(self.places) if i != index):
            raise Across("another input than its data depends on the batch")
        return place

    def value(self, index: int) -> Array:
        """What an input is known to hold, which must be the same at every batch."""
        own, probed = self.values[index] if index < len(self.values) else (None, None)
        if own is None or probed is None or own.shape != probed.shape or (own != probed).any():
            raise Across("what it is told to do is only known in the run, or depends on the batch")
        return own

    def changed(self, index: int) -> bool:
        """Whether what an input holds is computed from the batch, or unknown."""
        try:
            self.value(index)
        except Across:
            return True
        return False

    def axis(self, name: str = "axis", default: int = 0, rank: int | None = None) -> int:
        """An axis among the attributes, counted from the front."""
        return axes_of((self.attrs.get(name, default),), len(self.shape(0)) if rank is None else rank)[0]

    def axes(self, index: int = 1, rank: int | None = None) -> tuple[int, ...] | None:
        """The axes in an attribute, or since some opset in an input; None without any."""
        count = len(self.shape(0)) if rank is None else rank
        if "axes" in self.attrs:
            return axes_of(self.attrs["axes"], count)
        return axes_of(self.value(index).ravel().tolist(), count) if self.has(index) else None

    def apart(self, place: Place, axes: Sequence[int], does: str) -> Place:
        """The place, which must be in none of the axes along which the operator computes."""
        if place.axis in axes:
            raise Across(f"it {does} along the batch")
        return place

    def require(self, index: int, place: Place) -> None:
        """Let an input hold the batch at a place: it does, or it is a constant that can be repeated.

        Raises Across where it has the batch at another place, Unproved where it is no constant.
        """
        own, tensor = self.place(index), self.inputs[index] if index < len(self.inputs) else None
        if tensor is None or own == place:
            return
        if own is not None:
            raise Across("its inputs hold the batch in different axes")
        size = times(tensor.shape)
        if not tensor.stored:
            raise Unproved(f"its input {tensor.name!r} ({size}) does not depend on the batch, but has to")
        if not place.fits(tensor.shape, self.batch.old):
            raise Unproved(f"its constant {tensor.name!r} ({size}) can't be repeated for each sample")
        if why := self.why_differs(self.names[index], place):
            raise Unproved(f"its constant {tensor.name!r} ({size}) {why}")
        self.repeat(index, place)

    def repeat(self, index: int, place: Place) -> None:
        """Let each sample have its part of a stored input."""
        if (tensor := self.inputs[index]) is not None:
            self.edits.append(Edit(index, place, tensor.shape, tensor.name))

    def resize(self, index: int, base: Shape, place: Place) -> None:
        """Let an input be this list of sizes, of which that at the place holds the batch."""
        self.edits.append(Edit(index, place, base))

    def spread(self, indices: Sequence[int], ranks: Sequence[int] | None = None) -> Place:
        """The place in the result of inputs that are spread over each other's axes, counted from the back.

        ranks: how many axes of each input are spread, where not all are; the place counts these alone. Inputs without
        the batch must have a size of 1 at its axis, or none, or be constants that can be repeated.
        """
        ranks = ranks or [len(self.shape(i)) for i in indices]
        most = max(ranks)
        places = {
            (Place(p.axis + most - rank, p.parts), self.shape(i)[p.axis])
            for i, rank in zip(indices, ranks, strict=True)
            if (p := self.place(i)) is not None
        }
        if len(places) != 1:
            raise Across("its inputs hold the batch in different axes")
        ((place, size),) = places
        for i, rank in zip(indices, ranks, strict=True):
            axis = place.axis - (most - rank)
            if self.place(i) is not None or axis < 0 or self.shape(i)[axis] == 1:
                continue
            if self.shape(i)[axis] != size:
                raise Across("it spreads the batch over another axis")
            self.require(i, Place(axis, place.parts))
        return place
