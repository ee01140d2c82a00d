"""Fusion rules as patterns: the formula that a rule looks for, then the function that decides about a match.

A pattern reads like the formula: `X * op.Sigmoid(X)` is a Mul of a tensor and its Sigmoid. Sums and products match in
either order of their operands, all else as it is written; `...` at the end stands for any further inputs. A number
matches a stored scalar, a variable any tensor, but the same one wherever it stands. `A | B` is A or B. `op.MyOp` is an
operator of ONNX's own domain; one of another domain is `call("my.domain::MyOp", X)`.

    @pattern("QuickGelu", X * op.Sigmoid(X), start="Sigmoid", since="1.14")
    def silu(m: Match) -> Fused | Miss | None:
        if m[X].dtype != "float32":
            return Miss(f"there is no kernel for {m[X].dtype}")
        return m.fused("com.microsoft::QuickGelu", (m[X],), {"alpha": 1.0})
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import isclose
from types import EllipsisType
from typing import Any, TypeVar, overload

from onnxperf.fusions.engine import Answer, Attributes, Fused, Fusion, Rewriter, fused, merged
from op_models import Operator, Tensor

MOST_STEPS = 6  # upwards, from the operator at which a search starts to the last one of the pattern
TOLERANCE = 1e-3  # relative, of numbers: exporters round them to the model's type, which may be half precision


def scalar(tensor: Tensor | None) -> float | None:
    """The number in a stored one-element tensor."""
    if tensor is None or not tensor.stored or tensor.value is None or len(tensor.value) != 1:
        return None
    return float(tensor.value[0])


def scaled(o: Operator | None) -> tuple[Tensor, float] | None:
    """x and c of an operator that computes c x by Mul(x, c), Mul(c, x) or Div(x, 1 / c), with c a stored number."""
    if o is None or o.type not in ("Mul", "Div"):
        return None
    x, factor = o.present
    if o.type == "Mul" and scalar(factor) is None:
        x, factor = factor, x
    number = scalar(factor)
    if not number or x.shape != o.out.shape:
        return None
    return x, 1 / number if o.type == "Div" else number


@dataclass(frozen=True, slots=True)
class Match:
    """`bindings`: what a pattern's variables and operators are in the graph; `root` is the pattern's last operator."""

    g: Rewriter
    root: Operator
    bindings: Mapping[Pattern, Any] = field(default_factory=dict)

    @overload
    def __getitem__(self, part: Variable) -> Tensor: ...

    @overload
    def __getitem__(self, part: Call) -> Operator: ...

    def __getitem__(self, part: Pattern) -> Any:
        """The tensor that a variable stands for, or the operator that is a part of the pattern."""
        return self.bindings[part]

    def __contains__(self, part: Pattern) -> bool:
        """Whether a variable or operator belongs to the alternative that matches."""
        return part in self.bindings

    def factor(self, part: Scale) -> float:
        """c of the operator that a `scale` has matched."""
        product = scaled(self[part])
        return product[1] if product is not None else 1.0

    @property
    def parts(self) -> tuple[Operator, ...]:
        """The operators that a fusion replaces, those that are read before those that read them."""
        calls = [(c, o) for c, o in self.bindings.items() if isinstance(c, Call) and c.use != "kept"]
        operators = (o for c, o in calls if c.use != "shared" or self.g.only_user(o.out))
        return tuple({id(o): o for o in operators}.values())

    def fused(
        self, type: str, inputs: Iterable[Tensor | None], attrs: Attributes = None, before: tuple[Operator, ...] = ()
    ) -> Fused:
        """One operator of `type` in place of all that has matched, and of operators `before` it; it makes what the last
        of them made.
        """
        return fused(type, self.root, (*before, *self.parts), inputs, attrs)

    def merged(self, like: Operator, **changes: Any) -> Fused:
        """One of the operators, changed, in place of all that has matched; it makes what the last of them made."""
        return merged(self.parts, like, **{"outputs": self.root.outputs, **changes})


class Pattern(ABC):
    """What a tensor may be: a variable, a number, what an operator makes, or one of several of these."""

    __slots__ = ()

    @abstractmethod
    def match(self, tensor: Tensor | None, m: Match) -> Iterator[Match]:
        """The match `m`, extended by a tensor that this pattern fits, in every possible way."""

    def __add__(self, other: Pattern | float) -> Call:
        return call("Add", self, other, commutes=True)

    def __radd__(self, other: float) -> Call:
        return call("Add", other, self, commutes=True)

    def __mul__(self, other: Pattern | float) -> Call:
        return call("Mul", self, other, commutes=True)

    def __sub__(self, other: Pattern) -> Call:
        return call("Sub", self, other)

    def __rsub__(self, other: float) -> Call:
        return call("Sub", other, self)

    def __truediv__(self, other: Pattern | float) -> Call:
        return call("Div", self, other)

    def __rtruediv__(self, other: float) -> Call:
        return call("Div", other, self)

    def __pow__(self, other: float) -> Call:
        return call("Pow", self, other)

    def __or__(self, other: Pattern) -> Either:
        return Either((*(self.options if isinstance(self, Either) else (self,)), other))


@dataclass(frozen=True, slots=True, eq=False)
class Variable(Pattern):
    """Any tensor, the same wherever the variable stands; `stored`: only a weight or constant."""

    name: str
    stored: bool = False

    def match(self, tensor: Tensor | None, m: Match) -> Iterator[Match]:
        if tensor is None or (self.stored and not tensor.stored):
            return
        binding = m.bindings.get(self)
        if binding is None:
            yield Match(m.g, m.root, {**m.bindings, self: tensor})
        elif binding.name == tensor.name:
            yield m


@dataclass(frozen=True, slots=True, eq=False)
class Number(Pattern):
    """A stored number."""

    value: float

    def match(self, tensor: Tensor | None, m: Match) -> Iterator[Match]:
        number = scalar(tensor)
        if number is not None and isclose(number, self.value, rel_tol=TOLERANCE):
            yield m


@dataclass(frozen=True, slots=True, eq=False)
class Either(Pattern):
    """One pattern or another: all ways of the first, then all of the second, and so on."""

    options: tuple[Pattern, ...]

    def match(self, tensor: Tensor | None, m: Match) -> Iterator[Match]:
        for p in self.options:
            yield from p.match(tensor, m)


@dataclass(frozen=True, slots=True, eq=False)
class Call(Pattern):
    """What an operator of one of `types` makes of its operands; `more`: and of any further inputs.

    `commutes`: the first two operands stand in either order. `use`: see `alone`, `shared` and `kept`.
    """

    types: tuple[str, ...]
    operands: tuple[Pattern, ...]
    more: bool = False
    commutes: bool = False
    use: str = "inside"

    def match(self, tensor: Tensor | None, m: Match) -> Iterator[Match]:
        o = m.g.made_by(tensor, *self.types)
        if o is not None and tensor is not None and (self.use != "alone" or m.g.only_user(tensor)):
            yield from self.at(o, m)

    def at(self, o: Operator, m: Match) -> Iterator[Match]:
        """The match `m`, extended by this operator and what it reads."""
        binding = m.bindings.get(self)
        if binding is not None or o.type not in self.types:
            yield from (m,) if binding is o else ()
            return
        for inputs in self.orders(o):
            for n in _all(self.operands, inputs, m):
                yield Match(m.g, m.root, {**n.bindings, self: o})

    def orders(self, o: Operator) -> tuple[tuple[Tensor | None, ...], ...]:
        """The inputs that are the operands, in each order in which these may stand; none where there are too few."""
        n = len(self.operands)
        if len(o.inputs) < n or (len(o.inputs) > n and not self.more and any(o.inputs[n:])):
            return ()
        first = o.inputs[:n]
        return (first, (*first[1::-1], *first[2:])) if self.commutes else (first,)


class Scale(Call):
    """A product with a stored number, or a division by one."""

    __slots__ = ()

    def orders(self, o: Operator) -> tuple[tuple[Tensor | None, ...], ...]:
        """What is multiplied."""
        product = scaled(o)
        return (product[:1],) if product is not None else ()


def _all(patterns: tuple[Pattern, ...], tensors: tuple[Tensor | None, ...], m: Match) -> Iterator[Match]:
    """All ways in which every pattern matches its tensor."""
    if not patterns:
        yield m
    elif len(patterns) == 1:
        yield from patterns[0].match(tensors[0], m)
    else:
        for n in patterns[0].match(tensors[0], m):
            yield from _all(patterns[1:], tensors[1:], n)


def _lifted(value: Pattern | float) -> Pattern:
    return value if isinstance(value, Pattern) else Number(value)


def call(types: str | tuple[str, ...], *operands: Pattern | float | EllipsisType, commutes: bool = False) -> Call:
    """What an operator of one of several types makes of its operands."""
    patterns = tuple(_lifted(p) for p in operands if not isinstance(p, EllipsisType))
    return Call((types,) if isinstance(types, str) else types, patterns, len(patterns) < len(operands), commutes)


AnyCall = TypeVar("AnyCall", bound=Call)


def scale(p: Pattern) -> Scale:
    """A pattern's result times a stored number, or divided by one; `Match.factor` gives the number."""
    return Scale(("Mul", "Div"), (p,))


def alone(p: AnyCall) -> AnyCall:
    """The same operator, where nothing else reads what it makes."""
    return replace(p, use="alone")


def shared(p: AnyCall) -> AnyCall:
    """The same operator, which others may read as well: it is then not replaced, but stays for them."""
    return replace(p, use="shared")


def kept(p: AnyCall) -> AnyCall:
    """The same operator, which is only looked at and not replaced."""
    return replace(p, use="kept")


class _Operators:
    """`op.Erf(X)` is `call("Erf", X)`."""

    def __getattr__(self, type: str) -> Callable[..., Call]:
        return partial(call, type)


op = _Operators()
X, Y, A, B, C = (Variable(name) for name in "XYABC")


def pattern(
    name: str, *forms: Pattern, start: str | tuple[str, ...] = (), since: str = "", until: str = ""
) -> Callable[[Callable[[Match], Answer]], Fusion]:
    """Make a `Fusion` of a function that says what becomes of a match.

    The first of `forms` that matches decides. A later form may be a part of an earlier one: the function can then say
    what is missing around it. Where a form matches in several ways, the first Fused is taken, or else the last Miss.

    `start` are the types of the operator in the pattern at which the search begins, rare ones for speed; what lies
    between it and the pattern's last operator is read by nothing else. By default it begins at the last operator.

    since, until: the first and the last release of the runtime that has it (`engine.Rule`).
    """
    calls_of = [[p for p in (f.options if isinstance(f, Either) else (f,)) if isinstance(p, Call)] for f in forms]
    last = tuple(dict.fromkeys(t for calls in calls_of for p in calls for t in p.types))
    anchors = (start,) if isinstance(start, str) else start or last

    def decorate(decide: Callable[[Match], Answer]) -> Fusion:
        def rule(g: Rewriter, anchor: Operator) -> Answer:
            roots = [o for o in _upwards(g, anchor) if o.type in last] if start else [anchor]
            for calls in calls_of if roots else ():
                matched, miss = False, None
                for m in (
                    m for p in calls for o in roots for m in p.at(o, Match(g, o)) if anchor in m.bindings.values()
                ):
                    answer = decide(m)
                    if isinstance(answer, Fused):
                        return answer
                    matched, miss = True, answer or miss
                if matched:
                    return miss
            return None

        return Fusion(name, anchors, rule, since=since, until=until)

    return decorate


def _upwards(g: Rewriter, start: Operator) -> Iterator[Operator]:
    """An operator, the one that alone reads it, the one that alone reads that, and so on."""
    o: Operator | None = start
    for _ in range(MOST_STEPS):
        if o is not None:
            yield o
            o = g.only_user(o.out) if o.outputs else None
