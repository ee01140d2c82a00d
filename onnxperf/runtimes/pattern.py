"""Fusion rules as patterns: the formula that a rule looks for, then the function that decides about a match.

A pattern reads like the formula: `X * op.Sigmoid(X)` is a Mul of a tensor and its Sigmoid. Sums and products match in
either order of their operands, all else as it is written; `...` at the end stands for any further inputs. A number
matches a stored scalar, a variable any tensor, but the same one wherever it stands. `A | B` is A or B.

    @pattern("QuickGelu", X * op.Sigmoid(X), start="Sigmoid")
    def silu(m: Match) -> Fused | Miss | None:
        if m[X].dtype != "float32":
            return Miss(f"there is no kernel for {m[X].dtype}")
        return m.fused("com.microsoft::QuickGelu", (m[X],), {"alpha": 1.0})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import isclose
from types import EllipsisType
from typing import Any

from onnxperf.runtimes.engine import Fused, Fusion, Miss, Rewriter, fused
from op_models import Operator, Tensor

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
    x, divisor = o.present
    number = scalar(divisor)
    if o.type == "Div":
        number = 1 / number if number else None
    elif number is None:
        x, number = divisor, scalar(x)
    return (x, number) if number and x.shape == o.out.shape else None


@dataclass(frozen=True, slots=True)
class Match:
    """What a pattern's variables and operators are in the graph; `root` is the pattern's last operator."""

    g: Rewriter
    root: Operator
    tensors: Mapping[Pattern, Tensor] = field(default_factory=dict)
    operators: Mapping[Call, Operator] = field(default_factory=dict)

    def __getitem__(self, variable: Pattern) -> Tensor:
        """The tensor that a variable stands for."""
        return self.tensors[variable]

    def __contains__(self, part: object) -> bool:
        """Whether a variable or operator belongs to the alternative that matches."""
        return part in self.tensors or part in self.operators

    def op(self, call: Call) -> Operator:
        """The operator that a part of the pattern has matched."""
        return self.operators[call]

    def factor(self, call: Call) -> float:
        """c of the operator that a `scale` has matched."""
        found = scaled(self.operators[call])
        return found[1] if found is not None else 1.0

    @property
    def parts(self) -> tuple[Operator, ...]:
        """The operators that a fusion replaces, those that are read before those that read them."""
        stays = {
            id(o) for c, o in self.operators.items()
            if c.use == "kept" or (c.use == "shared" and self.g.only_user(o.out) is None)
        }  # fmt: skip
        return tuple({id(o): o for o in self.operators.values() if id(o) not in stays}.values())

    def find(self, part: Pattern, tensor: Tensor) -> Match | None:
        """The match together with that of another pattern at a tensor, if it is there."""
        return next(part.match(tensor, self), None)

    def fused(self, type: str, inputs: Iterable[Tensor | None], attrs: Mapping[str, Any] | None = None) -> Fused:
        """One operator of `type` in place of all that has matched; it makes what the last of them made."""
        return fused(type, self.root, self.parts, inputs, attrs)


class Pattern:
    """What a tensor may be: a variable, a number, what an operator makes, or one of several of these."""

    __slots__ = ()

    def match(self, tensor: Tensor | None, m: Match) -> Iterator[Match]:
        """`m` and what it takes for this pattern to match a tensor, in every possible way."""
        raise NotImplementedError

    def at(self, o: Operator, m: Match) -> Iterator[Match]:
        """The same for what an operator makes."""
        return iter(())

    @property
    def roots(self) -> tuple[str, ...]:
        """The types that the last operator may have."""
        return ()

    @property
    def depth(self) -> int:
        """The number of operators on the longest way through the pattern."""
        return 0

    def __add__(self, other: Pattern | float) -> Call:
        return Call(("Add",), (self, _lifted(other)), commutes=True)

    def __radd__(self, other: float) -> Call:
        return _lifted(other) + self

    def __mul__(self, other: Pattern | float) -> Call:
        return Call(("Mul",), (self, _lifted(other)), commutes=True)

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
        return Either((self, other))


@dataclass(frozen=True, slots=True, eq=False)
class Variable(Pattern):
    """Any tensor, the same wherever the variable stands; `stored`: a weight or constant."""

    name: str
    stored: bool = False

    def match(self, tensor: Tensor | None, m: Match) -> Iterator[Match]:
        """See Pattern."""
        if tensor is None or (self.stored and not tensor.stored):
            return
        known = m.tensors.get(self)
        if known is None:
            yield Match(m.g, m.root, {**m.tensors, self: tensor}, m.operators)
        elif known.name == tensor.name:
            yield m


@dataclass(frozen=True, slots=True, eq=False)
class Number(Pattern):
    """A stored number."""

    value: float

    def match(self, tensor: Tensor | None, m: Match) -> Iterator[Match]:
        """See Pattern."""
        found = scalar(tensor)
        if found is not None and isclose(found, self.value, rel_tol=TOLERANCE):
            yield m


@dataclass(frozen=True, slots=True, eq=False)
class Either(Pattern):
    """One pattern or another: all ways of the first, then all of the second."""

    options: tuple[Pattern, ...]

    def __or__(self, other: Pattern) -> Either:
        return Either((*self.options, other))

    def match(self, tensor: Tensor | None, m: Match) -> Iterator[Match]:
        """See Pattern."""
        for p in self.options:
            yield from p.match(tensor, m)

    def at(self, o: Operator, m: Match) -> Iterator[Match]:
        """See Pattern."""
        for p in self.options:
            yield from p.at(o, m)

    @property
    def roots(self) -> tuple[str, ...]:
        """See Pattern."""
        return tuple(dict.fromkeys(t for p in self.options for t in p.roots))

    @property
    def depth(self) -> int:
        """See Pattern."""
        return max(p.depth for p in self.options)


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
        """See Pattern."""
        o = m.g.made_by(tensor, *self.types)
        if o is not None and tensor is not None and (self.use != "alone" or m.g.only_user(tensor)):
            yield from self.at(o, m)

    def at(self, o: Operator, m: Match) -> Iterator[Match]:
        """See Pattern."""
        known = m.operators.get(self)
        if known is not None or o.type not in self.types:
            yield from (m,) if known is o else ()
            return
        for inputs in self.given(o):
            for found in _all(tuple(zip(self.operands, inputs, strict=True)), m):
                yield Match(m.g, m.root, found.tensors, {**found.operators, self: o})

    def given(self, o: Operator) -> Iterator[tuple[Tensor | None, ...]]:
        """The operator's inputs in the orders that the operands may have."""
        n = len(self.operands)
        if len(o.inputs) >= n and (self.more or not any(o.inputs[n:])):
            yield o.inputs[:n]
            if self.commutes:
                yield (*o.inputs[1::-1], *o.inputs[2:n])

    @property
    def roots(self) -> tuple[str, ...]:
        """See Pattern."""
        return self.types

    @property
    def depth(self) -> int:
        """See Pattern."""
        return 1 + max((p.depth for p in self.operands), default=0)


class Scale(Call):
    """A product with a stored number, or a division by one."""

    __slots__ = ()

    def given(self, o: Operator) -> Iterator[tuple[Tensor | None, ...]]:
        """What is multiplied."""
        found = scaled(o)
        if found is not None:
            yield found[:1]


def _all(pairs: tuple[tuple[Pattern, Tensor | None], ...], m: Match) -> Iterator[Match]:
    """All ways in which every pattern matches its tensor."""
    if not pairs:
        yield m
        return
    p, tensor = pairs[0]
    for found in p.match(tensor, m):
        yield from _all(pairs[1:], found)


def _lifted(value: Pattern | float) -> Pattern:
    return value if isinstance(value, Pattern) else Number(value)


def call(types: str | tuple[str, ...], *operands: Pattern | float | EllipsisType, commutes: bool = False) -> Call:
    """What an operator of one of several types makes of its operands."""
    own = tuple(_lifted(p) for p in operands if not isinstance(p, EllipsisType))
    return Call((types,) if isinstance(types, str) else types, own, len(own) < len(operands), commutes)


def scale(p: Pattern) -> Call:
    """A pattern's result times a stored number, or divided by one; `Match.factor` gives the number."""
    return Scale(("Mul", "Div"), (p,))


def alone(p: Call) -> Call:
    """The same operator, where nothing else reads what it makes."""
    return replace(p, use="alone")


def shared(p: Call) -> Call:
    """The same operator, which others may read as well: it is then not replaced, but stays for them."""
    return replace(p, use="shared")


def kept(p: Call) -> Call:
    """The same operator, which is only looked at and not replaced."""
    return replace(p, use="kept")


class _Operators:
    """`op.Erf(X)` is `call("Erf", X)`."""

    def __getattr__(self, type: str) -> Callable[..., Call]:
        return partial(call, type)


op = _Operators()
X, Y, A, B, C = (Variable(name) for name in "XYABC")


def pattern(
    name: str, *forms: Pattern, start: str | tuple[str, ...] = ()
) -> Callable[[Callable[[Match], Fused | Miss | None]], Fusion]:
    """Make a `Fusion` of a function that says what becomes of a match.

    The first of `forms` that matches is the one: later forms are parts of earlier ones, so that the function can say
    what lacks. Where a form matches in several ways, the first that fuses is taken, or else the last Miss.
    `start` is the type of the operator inside the pattern from which the search begins, a rare one best; without it,
    that is the pattern's last operator. What lies between it and the last is read by nothing else.
    """
    starts = (start,) if isinstance(start, str) else start
    anchors = starts or tuple(dict.fromkeys(t for form in forms for t in form.roots))
    height = max(form.depth for form in forms) if starts else 1

    def decorate(decide: Callable[[Match], Fused | Miss | None]) -> Fusion:
        def rule(g: Rewriter, anchor: Operator) -> Fused | Miss | None:
            roots = list(_upwards(g, anchor, height))
            for form in forms:
                answers: list[Fused | Miss | None] = []
                for m in _matches(g, form, roots):
                    if any(o is anchor for o in m.operators.values()):
                        answers.append(answer := decide(m))
                        if isinstance(answer, Fused):
                            return answer
                if answers:
                    return next((a for a in reversed(answers) if a is not None), None)
            return None

        return Fusion(name, anchors, rule)

    return decorate


def _matches(g: Rewriter, form: Pattern, roots: Iterable[Operator]) -> Iterator[Match]:
    """All matches of a form whose last operator is one of `roots`."""
    for option in form.options if isinstance(form, Either) else (form,):
        for root in roots:
            if root.type in option.roots:
                yield from option.at(root, Match(g, root))


def _upwards(g: Rewriter, o: Operator | None, height: int) -> Iterator[Operator]:
    """An operator, the one that alone reads it, the one that alone reads that, and so on."""
    for _ in range(height):
        if o is None:
            return
        yield o
        o = g.only_user(o.out) if o.outputs else None
