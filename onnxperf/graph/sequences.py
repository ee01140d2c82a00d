"""What sequences hold: the number and the shapes of their elements, as far as they are known before the run.

The elements of a sequence are followed through the operators that make, change and read one. In the graph it is one
tensor of its elements' type, in which they lie end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from onnx import TypeProto

from onnxperf.graph.proto import Shape, is_tensor, static
from onnxperf.graph.values import Array
from op_models import Tensor

MAX_RUNS = 64  # of elements of one shape, so that a long chain of insertions takes no time that grows with its square
Run = tuple[Shape, int]  # a shape, and how many elements in a row have it


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of a sequence, in order.

    runs: elements of equal shape that stand side by side; size: numbers in all elements together; exact: False where
    the shapes are upper bounds, or the order is not known; counted: False where the number of elements is not known,
    and the one here is assumed.
    """

    runs: tuple[Run, ...] = ()
    size: int = 0
    exact: bool = True
    counted: bool = True

    @property
    def count(self) -> int:
        """The number of elements."""
        return sum(times for _, times in self.runs)

    @property
    def sure(self) -> bool:
        """Whether number, shapes and order are all known."""
        return self.exact and self.counted

    @property
    def largest(self) -> Shape | None:
        """The largest size of an element along each axis; None for no element, or where they differ in rank."""
        shapes = [shape for shape, _ in self.runs]
        if len({len(shape) for shape in shapes}) != 1:
            return None
        return tuple(max(sizes) for sizes in zip(*shapes, strict=True))

    def at(self, index: int | None) -> tuple[Shape | None, bool]:
        """The shape of the element number `index`, None: of any; and whether it is exactly that one's."""
        if self.exact and len(self.runs) == 1:
            return self.runs[0][0], True
        if self.sure and index is not None:
            place = index + self.count if index < 0 else index
            for shape, times in self.runs:
                if 0 <= place < times:
                    return shape, True
                place -= times
        return self.largest, False

    def joined(self, axis: int, new_axis: bool) -> Shape | None:
        """The shape of all elements put together along an axis of theirs or a new one; None where it can't be told."""
        shape = self.largest
        if shape is None or not -len(shape) - new_axis <= axis < len(shape) + new_axis:
            return None
        at = axis % (len(shape) + new_axis)
        if new_axis:
            return (*shape[:at], self.count, *shape[at:])
        return (*shape[:at], sum(s[at] * times for s, times in self.runs), *shape[at + 1 :])

    def with_one(self, shape: Shape, index: int | None = None, *, last: bool = False) -> Elements:
        """With one more element in front of number `index` (None: in front of any), or `last` of all."""
        if last or {s for s, _ in self.runs} <= {shape}:
            return self._with((*self.runs, (shape, 1)), prod(shape))
        if index is None or not self.sure:
            return replace(self._with((*self.runs, (shape, 1)), prod(shape)), exact=False)
        before, behind = self._cut(index)
        return self._with((*before, (shape, 1), *behind), prod(shape))

    def without(self, index: int | None) -> Elements:
        """Without the element number `index`, None: without any one of them, the smallest."""
        if not self.runs:
            return self
        if self.sure and index is not None and len(self.runs) > 1:
            before, behind = self._cut(index)
            ((shape, times), *rest) = behind or ((self.runs[-1][0], 1),)
            return self._with((*before, (shape, times - 1), *rest), -prod(shape))
        least = min(range(len(self.runs)), key=lambda k: prod(self.runs[k][0]))
        shape, times = self.runs[least]
        runs = (*self.runs[:least], (shape, times - 1), *self.runs[least + 1 :])
        return replace(self._with(runs, -prod(shape)), exact=self.exact and len(self.runs) == 1)

    def after(self, first: Elements, trips: int) -> Elements:
        """What a loop leaves after so many runs that begins with these and has the other ones after its first run."""
        more, size = first.count - self.count, first.size - self.size
        if not trips or more < 0:
            return self
        if not more:
            return first
        kept, added = _split(first.runs, self.count)
        ends = kept == self.runs or len({shape for shape, _ in first.runs}) == 1
        times = tuple((shape, n * trips) for shape, n in added)
        exact = first.exact and ends and len(times) == 1
        return replace(_merged((*kept, *times), self.size + size * trips), exact=exact, counted=first.counted)

    def _cut(self, index: int) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        return _split(self.runs, min(max(index + self.count if index < 0 else index, 0), self.count))

    def _with(self, runs: Sequence[Run], more: int) -> Elements:
        merged = _merged(runs, max(self.size + more, 0))
        return replace(merged, exact=self.exact and merged.exact, counted=self.counted)


def _split(runs: Sequence[Run], index: int) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The runs of the elements in front of number `index`, and of the others."""
    before, behind = list[Run](), list[Run]()
    for shape, times in runs:
        here = min(max(index, 0), times)
        before += [(shape, here)] if here else []
        behind += [(shape, times - here)] if times > here else []
        index -= times
    return tuple(before), tuple(behind)


def _merged(runs: Sequence[Run], size: int) -> Elements:
    """Elements with equal neighbours in one run; of more than MAX_RUNS runs, as many elements of the largest shape."""
    merged: list[Run] = []
    for shape, times in runs:
        if merged and merged[-1][0] == shape:
            merged[-1] = shape, merged[-1][1] + times
        elif times:
            merged.append((shape, times))
    elements = Elements(tuple(merged), size)
    if len(merged) > MAX_RUNS and (largest := elements.largest) is not None:
        return Elements(((largest, elements.count),), size, exact=False)
    return elements if len(merged) <= MAX_RUNS else Elements(tuple(merged[:1]), size, exact=False, counted=False)


def of_shapes(shapes: Sequence[Shape]) -> Elements:
    """Elements of these shapes."""
    return _merged([(shape, 1) for shape in shapes], sum(map(prod, shapes)))


def unknown(type: TypeProto) -> Elements:
    """The elements of a sequence of which nothing but the type is known: one, as the type declares it."""
    shape = static(element_type(type)) or ()
    return Elements(((shape, 1),), prod(shape), exact=False, counted=False)


def element_type(type: TypeProto) -> TypeProto | None:
    """The type of the tensors in a sequence, or in one that is optional; None where a type is no such sequence."""
    if type.HasField("optional_type"):
        type = type.optional_type.elem_type
    element = type.sequence_type.elem_type
    return element if type.HasField("sequence_type") and is_tensor(element) else None


Contents = Mapping[str, Elements]
Arrays = Mapping[str, Array]


def _number(t: Tensor | None, values: Arrays) -> int | None:
    value = values.get(t.name) if t is not None else None
    return int(value.flat[0]) if value is not None and value.size == 1 and value.dtype.kind in "iu" else None


def _constructed(inputs: Sequence[Any], attrs: Mapping[str, Any], held: Contents, values: Arrays) -> Elements:
    return of_shapes([t.shape for t in inputs if t is not None])


def _inserted(inputs: Sequence[Any], attrs: Mapping[str, Any], held: Contents, values: Arrays) -> Elements | None:
    place = inputs[2] if len(inputs) > 2 else None
    old = held.get(inputs[0].name)
    return old and old.with_one(inputs[1].shape, _number(place, values), last=place is None)


def _erased(inputs: Sequence[Any], attrs: Mapping[str, Any], held: Contents, values: Arrays) -> Elements | None:
    place = inputs[1] if len(inputs) > 1 else None
    old = held.get(inputs[0].name)
    return old and old.without(-1 if place is None else _number(place, values))


def _pieces(inputs: Sequence[Any], attrs: Mapping[str, Any], held: Contents, values: Arrays) -> Elements:
    """Pieces along an axis: of size 1, of one size and a smaller rest, or of given sizes; of sizes that only the run
    knows the whole is the upper bound.
    """
    x, sizes = inputs[0], inputs[1] if len(inputs) > 1 else None
    at = attrs.get("axis", 0) % max(x.rank, 1)
    head, length, tail = x.shape[:at], (x.shape[at] if x.rank else 1), x.shape[at + 1 :]
    if sizes is None:
        piece = (*head, *((1,) if attrs.get("keepdims", 1) else ()), *tail)
        return Elements(((piece, length),) if length else (), x.size)
    if (value := values.get(sizes.name)) is None or value.dtype.kind not in "iu":
        return Elements(((x.shape, 1),), x.size, exact=False)
    if value.ndim:
        return of_shapes([(*head, max(int(size), 0), *tail) for size in value.flat])
    each = max(int(value), 1)
    whole, rest = divmod(length, each)
    runs = [((*head, each, *tail), whole), ((*head, rest, *tail), int(rest > 0))]
    return Elements(tuple((shape, times) for shape, times in runs if times), x.size)


#: What an operator's sequence holds.
ELEMENTS: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any], Contents, Arrays], Elements | None]] = {
    "SequenceConstruct": _constructed,
    "SequenceEmpty": lambda inputs, attrs, held, values: Elements(),
    "SequenceErase": _erased,
    "SequenceInsert": _inserted,
    "SplitToSequence": _pieces,
}


def elements_of(
    type: str, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any], held: Contents, values: Arrays
) -> Elements | None:
    """The elements of the sequence that an operator makes; None where it makes none, or nothing is known of it.

    held: the elements of the sequences so far; values: known values, both by name.
    """
    return ELEMENTS[type](inputs, attrs, held, values) if type in ELEMENTS else None


def result_shape(
    type: str, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any], held: Contents, values: Arrays
) -> tuple[Shape | None, bool]:
    """The shape of the tensor that an operator makes of a sequence, the largest one where it depends on the data, and
    whether it is exact; None and False where it is not known, not even so.
    """
    old = held.get(inputs[0].name) if inputs and inputs[0] is not None else None
    if old is None or type not in ("SequenceAt", "ConcatFromSequence"):
        return None, False
    if type == "SequenceAt":
        shape, exact = old.at(_number(inputs[1] if len(inputs) > 1 else None, values))
    else:
        shape, exact = old.joined(attrs.get("axis", 0), bool(attrs.get("new_axis", 0))), old.sure
    return (shape, exact) if old.counted or exact else (None, False)
