"""What a model is at many batches, of which a few are made: between these, every size grows by equal steps.

What is made are the ends of a stretch of batches, the second, and the one with the most factors of two. If these are
the same but for whole numbers, which lie on a straight line each, the others are taken from it; else the stretch is cut
in two. A batch is made by itself where one of its sizes equals another size of the model by chance, which fusions and
broadcasts could take for a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from onnxperf.graph.core import AT_BATCH, Graph
from onnxperf.graph.open_dims import Open
from onnxperf.ground.errors import Error
from op_models import Operator, Tensor

FEW = 4  # batches that are made: fewer than these are made each
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class NoLine(Exception):
    """Two of what is made differ in more than sizes, or a batch has no whole size."""


class Line(Protocol[T_co]):
    """The line through what is made at some batches."""

    def at(self, batch: int) -> T_co | None:
        """What is on it at a batch; None where that must be made."""


def along(
    make: Callable[[int], T], batches: Sequence[int], line_of: Callable[[Mapping[int, T]], Line[T] | None]
) -> Iterator[T | Error]:
    """What `make` makes at each of these ascending batches, or the error that it raises.

    line_of: the line through what is made at some batches; None where there is none.
    """
    results: dict[int, T | Error] = {}

    def at(batch: int) -> T | Error:
        if batch not in results:
            try:
                results[batch] = make(batch)
            except Error as e:
                results[batch] = e
        return results[batch]

    def taken(batch: int) -> T | Error:
        at(batch)
        return results.pop(batch)  # no later stretch has it

    def filled(part: Sequence[int]) -> Iterator[T | Error]:
        if len(part) <= FEW:
            yield from map(taken, part)
            return
        ends = part[0], part[-1], part[1], max(part, key=_twos)
        through = _through(line_of, {batch: at(batch) for batch in ends})
        if through is None:  # where it is the first, as one is that needs no change, that spoils it, it is left out
            rest = part[1], part[-1], max(part[1:], key=_twos)
            cut = 1 if _through(line_of, {batch: at(batch) for batch in rest}) else len(part) // 2
            yield from filled(part[:cut])
            yield from filled(part[cut:])
            return
        for batch in part:
            on_line = None if batch in results else through.at(batch)
            yield taken(batch) if on_line is None else on_line

    return filled(batches)


def _through(line_of: Callable[[Mapping[int, T]], Line[T] | None], results: Mapping[int, T | Error]) -> Line[T] | None:
    """The line through what is made; None where one could not be."""
    each = {batch: x for batch, x in results.items() if not isinstance(x, Error)}
    return line_of(each) if len(each) == len(results) else None


def _twos(batch: int) -> int:
    """The largest power of two that divides a batch."""
    return batch & -batch


@dataclass(frozen=True, slots=True)
class _Line:
    """The line through a graph at a batch and another at a later one. fixed: the sizes of tensors that don't change;
    growing: the others, at both. changed: the tensors that differ, at both, by the identity of the one at the lower
    batch; operators: the places of those that read or make one or have other attributes.
    """

    low: Graph
    high: Graph
    fixed: frozenset[int]
    growing: frozenset[tuple[int, int]]
    changed: Mapping[int, tuple[Tensor, Tensor]]
    operators: tuple[int, ...]

    def at(self, batch: int) -> Graph | None:
        """The graph at a batch; None where a size equals another by chance, or is no whole number."""
        try:
            sizes = [self.number(*pair, batch) for pair in self.growing]
            return None if len({*sizes} - self.fixed) < len(sizes) else self.graph(batch)
        except NoLine:
            return None

    def graph(self, batch: int) -> Graph:
        """The graph at a batch; NoLine where there is none."""
        others = {key: self.tensor(a, b, batch) for key, (a, b) in self.changed.items()}

        def tensors(of: Sequence[Any]) -> tuple[Any, ...]:
            return tuple([others.get(id(t), t) for t in of])

        low, operators = self.low, [*self.low.operators]
        for i in self.operators:
            a, b = low.operators[i], self.high.operators[i]
            attrs = a.attrs if a.attrs == b.attrs else self.value(a.attrs, b.attrs, batch)
            ends = tensors(a.inputs), tensors(a.outputs)
            operators[i] = Operator(a.name, a.type, *ends, attrs, a.version, a.nodes, a.place, a.repeat)
        inputs, outputs = tensors(low.inputs), tensors(low.outputs)
        return replace(low, operators=tuple(operators), inputs=inputs, outputs=outputs, batch=batch)

    def tensor(self, a: Tensor, b: Tensor, batch: int) -> Tensor:
        """What is between two tensors."""
        value = None if a.value is None and b.value is None else self.value(a.value, b.value, batch)
        name, shape = _named(a.name, self.low.batch, batch), self.value(a.shape, b.shape, batch)
        return Tensor(name, a.dtype, shape, a.kind, value)

    def value(self, a: Any, b: Any, batch: int) -> Any:
        """What is between two values: of whole numbers, and of those in tuples, lists and mappings."""
        if type(a) is not type(b):
            raise NoLine
        if isinstance(a, dict) and a.keys() == b.keys():
            return {name: self.value(a[name], b[name], batch) for name in a}
        if isinstance(a, tuple | list) and len(a) == len(b):
            return type(a)([self.value(x, y, batch) for x, y in zip(a, b, strict=True)])
        if type(a) is tuple:
            return self.part(a, b, batch)
        if isinstance(a, Open):
            return Open(self.number(a, b, batch), a.symbol, a.from_data, a.ranked)
        return self.number(a, b, batch) if type(a) is int else _same(a, b)

    def part(self, a: tuple[Any, ...], b: tuple[Any, ...], batch: int) -> tuple[Any, ...]:
        """What is between two values, the longer of which goes on with what more samples add; NoLine where it does not
        begin as the shorter one.
        """
        if a != b[: len(a)]:
            raise NoLine
        return b[: self.number(len(a), len(b), batch)]

    def number(self, a: int, b: int, batch: int) -> int:
        """The whole number between two; NoLine where there is none."""
        return between(a, b, self.low.batch, self.high.batch, batch)


def between(a: int, b: int, low: int, high: int, batch: int) -> int:
    """The whole number at a batch, on the line from a at batch low to b at batch high; NoLine where there is none."""
    size, rest = divmod((b - a) * (batch - low), high - low)
    if rest:
        raise NoLine
    return int(a) + size


def line(read: Mapping[int, Graph]) -> Line[Graph] | None:
    """The line through the first two of these graphs, by batch, on which the others are; None where there is none."""
    graphs = [g for batch, g in read.items() if g.batch == batch]
    if len(graphs) < len(read) or not all(_form(graphs[0]) == _form(g) for g in graphs[1:]):
        return None
    low, high, *others = graphs
    tensors = [*zip(_tensors(low), _tensors(high), strict=True)]
    pairs = [pair for x, y in tensors for pair in zip(x.shape, y.shape, strict=True)]
    fixed = frozenset(int(a) for a, b in pairs if a == b)
    growing = frozenset((int(a), int(b)) for a, b in pairs if a != b)
    changed = {id(a): (a, b) for a, b in tensors if a != b}
    touched = [
        i for i, (a, b) in enumerate(zip(low.operators, high.operators, strict=True))
        if a.attrs != b.attrs or any(id(t) in changed for t in (*a.present, *a.outputs))
    ]  # fmt: skip
    through = _Line(low, high, fixed, growing, changed, tuple(touched))
    try:
        same = all(_content(through.graph(g.batch)) == _content(g) for g in others)
    except NoLine:
        return None
    return through if same else None


def _tensors(graph: Graph) -> list[Tensor]:
    """All tensors, as often as they stand in the graph."""
    of_operators = (t for o in graph.operators for t in (*o.present, *o.outputs))
    return [*graph.inputs, *graph.outputs, *of_operators]


def _named(name: str, at: int, batch: int) -> str:
    """A name at another batch, which names of constants can have in them."""
    return name.replace(f"{AT_BATCH}{at}", f"{AT_BATCH}{batch}")


def _form(graph: Graph) -> Any:
    """All of a graph but numbers."""
    tensors = [
        (_named(t.name, graph.batch, 0), t.dtype, t.kind, [_dim(d)[1:] for d in t.shape], t.value is None)
        for t in _tensors(graph)
    ]
    operators = [
        (o.name, o.type, o.version, o.nodes, o.place, o.repeat, [t is None for t in o.inputs], len(o.outputs))
        for o in graph.operators
    ]
    return tensors, operators, [note.code for note in graph.notes], len(graph.inputs), graph.modules


def _content(graph: Graph) -> Any:
    """All numbers of a graph."""
    return [(t.shape, t.value) for t in _tensors(graph)], [o.attrs for o in graph.operators]


def _dim(size: int) -> tuple[Any, ...]:
    """A size with what a session knows of it."""
    return (int(size), size.symbol, size.from_data, size.ranked) if isinstance(size, Open) else (size,)


def _same(a: Any, b: Any) -> Any:
    """What two graphs have in common; NoLine where they differ in it."""
    if a != b:
        raise NoLine
    return a
