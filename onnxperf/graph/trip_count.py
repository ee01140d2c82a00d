"""How often a Loop runs whose condition only compares counters with known numbers, as while loops of TensorFlow do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onnx import GraphProto, NodeProto, TensorProto

#: Operators that pass a single number on.
PASSES = {"Identity", "Squeeze", "Unsqueeze", "Reshape"}
#: Types that a Cast of a counter can be to: those that hold every number that a loop counts to.
FLOATING, WHOLE = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE}), frozenset({TensorProto.INT32, TensorProto.INT64})
#: What must be above zero, and by how much, for a comparison of a and b to hold: sign (b - a), and whether zero does.
COMPARISONS = {"Less": (1, False), "LessOrEqual": (1, True), "Greater": (-1, False), "GreaterOrEqual": (-1, True)}
MAX_COMPARISONS = 64  # of one condition; real ones have two or three


class Sum(NamedTuple):
    """A number of the body: an input of the body, or nothing where that is "", plus a constant.

    whole: the number is cast to an integer on the way, so that this holds only where the input is whole in all runs.
    """

    input: str
    constant: float
    whole: bool = False


class Comparison(NamedTuple):
    """sign (b - a) > 0, or >= 0 where `zero` is set."""

    a: Sum
    b: Sum
    sign: int
    zero: bool


class Line(NamedTuple):
    """What an input of the body is in run i = 0, 1, ...: start + i step."""

    start: float
    step: float

    def holds(self, s: Sum) -> bool:
        """Whether what is said of a number on this line holds: a cast to an integer leaves whole numbers alone."""
        return not s.whole or (self.start.is_integer() and self.step.is_integer())


class All(NamedTuple):
    """A condition: all of these must hold."""

    terms: tuple[Comparison, ...]


#: What is known of a tensor of the body.
Fact = Sum | All


def runs_until_false(
    graph: GraphProto, inputs: Sequence[str], first: Sequence[float | None], stored: Mapping[str, float]
) -> float | None:
    """The number of runs after which a Loop's condition is false; infinity where it stays true; None where unknown.

    graph: the body, whose first output is the condition for another run. inputs: names of the run's number, of the
    condition and of the carried tensors. first: the carried tensors' first values where they are single known numbers.
    stored: single numbers that the body reads and that are known before the run.
    """
    facts: dict[str, Fact] = {name: Sum("", number) for name, number in stored.items()}
    facts |= {name: Sum(name, 0.0) for name in inputs}
    facts[inputs[1]] = All(())  # a run has begun, so its condition was true
    for node in graph.node:
        if (fact := _fact(node, [facts.get(i) for i in node.input])) is not None and node.output:
            facts[node.output[0]] = fact
    lines = {"": Line(0.0, 0.0), inputs[0]: Line(0.0, 1.0)}
    for name, out, start in zip(inputs[2:], graph.output[1:], first, strict=False):
        end = facts.get(out.name)
        if start is not None and isinstance(end, Sum) and end.input == name:
            line = Line(start, end.constant)
            if line.holds(end):
                lines[name] = line
    again = facts.get(graph.output[0].name)
    if isinstance(again, Sum):  # a stored condition
        return None if again.input else math.inf if again.constant else 1.0
    sums = [s for c in again.terms for s in (c.a, c.b)] if again is not None else []
    if again is None or any(s.input not in lines or not lines[s.input].holds(s) for s in sums):
        return None
    return min((_holds(c, lines) + 1.0 for c in again.terms), default=math.inf)


def _fact(node: NodeProto, inputs: Sequence[Fact | None]) -> Fact | None:
    """What is known of a node's output."""
    if node.domain not in ("", "ai.onnx") or not inputs:
        return None
    if node.op_type in PASSES:
        return inputs[0]
    if node.op_type == "Cast":
        return _cast(node, inputs[0])
    if len(inputs) != 2:
        return None
    a, b = inputs
    if node.op_type == "And" and isinstance(a, All) and isinstance(b, All):
        both = tuple(dict.fromkeys((*a.terms, *b.terms)))
        return All(both) if len(both) <= MAX_COMPARISONS else None
    if not isinstance(a, Sum) or not isinstance(b, Sum):
        return None
    if node.op_type in COMPARISONS:
        return All((Comparison(a, b, *COMPARISONS[node.op_type]),))
    if node.op_type == "Add" and not (a.input and b.input):
        return Sum(a.input or b.input, a.constant + b.constant, a.whole or b.whole)
    if node.op_type == "Sub" and not b.input:
        return Sum(a.input, a.constant - b.constant, a.whole or b.whole)
    return None


def _cast(node: NodeProto, x: Fact | None) -> Fact | None:
    """A number in another type, which a cast to an integer cuts off towards zero; nothing is known of other casts."""
    to = next((a.i for a in node.attribute if a.name == "to"), 0)
    if not isinstance(x, Sum):
        return x if to == TensorProto.BOOL else None
    if to in FLOATING:
        return x
    if to not in WHOLE or not math.isfinite(x.constant):
        return None
    if not x.input:
        return Sum("", float(math.trunc(x.constant)))
    return Sum(x.input, x.constant, whole=True) if x.constant.is_integer() else None


def _holds(c: Comparison, lines: Mapping[str, Line]) -> float:
    """The number of the first run in which a comparison does not hold."""
    a, b = lines[c.a.input], lines[c.b.input]
    above = c.sign * (b.start + c.b.constant - a.start - c.a.constant)
    step = c.sign * (b.step - a.step)
    if above < 0 or (above == 0 and not c.zero):
        return 0.0
    if step >= 0:
        return math.inf
    runs = above / -step
    return math.floor(runs) + 1.0 if c.zero else math.ceil(runs)
