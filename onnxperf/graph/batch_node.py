"""One node at another batch than the file's: what its rule is told, and what it may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnxperf.graph.batch_place import Across, Batch, Place, Unproved
from onnxperf.graph.proto import Shape, times
from onnxperf.graph.values import Array
from op_models import Axes, Operator, Tensor, Unknown, axes_of


@dataclass(frozen=True, slots=True)
class Edit:
    """An input of a node that another constant takes the place of.

    That is `tensor`, with each sample's part as often as the batch is large; or, where that is empty, `base` as
    a list of sizes, of which that at the place holds the batch, or of numbers that are the same at any batch.
    """

    index: int
    place: Place | None
    base: Shape
    tensor: str = ""


#: A shape, where it holds the batch, and the shape that a Reshape makes of it.
Guess = tuple[Shape, Place, Shape]


@dataclass(frozen=True)
class NodeAt:
    """A node of a graph that is inferred at a probing batch, with what it is in the file itself.

    inputs: tensors at the file's own batch, as `outputs` are; places: where each input holds the batch, None where it
    does not; values: what is known of inputs before the run, at both batches; why_differs: why the constant of that
    name can't be said to hold the same for each sample at a place, "" where it does; elements: those of a constant of
    whole numbers, of any size, None where they are not known; numbered: columns of indices, by input, that hold the
    numbers of the samples; rules put those of the output into `columns`. `edits` grows as rules ask. Where an axis
    before or one behind may hold the batch, rules take the one behind unless `before` says otherwise, and note it in
    `guesses`. `twins` are axes of the batch's size beside its own.
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
    elements: Callable[[str], Array | None]
    batch: Batch
    edits: list[Edit] = field(default_factory=list)
    before: Mapping[Guess, bool] = field(default_factory=dict)
    guesses: list[Guess] = field(default_factory=list)
    twins: list[Place] = field(default_factory=list)
    numbered: Mapping[str, frozenset[int]] = field(default_factory=dict)
    columns: set[int] = field(default_factory=set)

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
        before, probed = self.values[index] if index < len(self.values) else (None, None)
        if before is None or probed is None or before.shape != probed.shape or (before != probed).any():
            raise Unknown("its parameters are known only at run time, or depend on the batch")
        return before

    def changed(self, index: int) -> bool:
        """Whether what an input holds is computed from the batch, or unknown."""
        try:
            self.value(index)
        except Unknown:
            return True
        return False

    def axis(self) -> int:
        """The axis among the attributes, counted from the front."""
        return int(self.attrs.get("axis", 0)) % max(len(self.shape(0)), 1)

    def letters(self) -> Axes:
        """Where the axes of the inputs go. Raises Across for operators of which nobody says so."""
        inputs = [
            t if t is None or self.changed(i) else replace(t, value=tuple(self.value(i).ravel().tolist()))
            for i, t in enumerate(self.inputs)
        ]
        outputs = tuple(t or Tensor("", "opaque", ()) for t in self.outputs)
        axes = axes_of(Operator(self.type, self.type, tuple(inputs), outputs, self.attrs, self.version))
        if axes is None:
            raise Across("whether it computes each sample by itself is not known")
        return axes

    def require(self, index: int, place: Place) -> None:
        """Let an input hold the batch at a place: it does, or it is a constant that can be repeated.

        Raises Across where it has the batch at another place, Unproved where it is no constant.
        """
        held, tensor = self.place(index), self.inputs[index] if index < len(self.inputs) else None
        if tensor is None or held == place:
            return
        if held is not None:
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

    def fix(self, index: int, numbers: Shape) -> None:
        """Let an input be this list of numbers, whatever the batch."""
        self.edits.append(Edit(index, None, numbers))
