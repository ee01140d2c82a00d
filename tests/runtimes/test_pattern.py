"""What a pattern matches, and which of several matches decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxperf.fusions.engine import BASIC, Fused, Miss, Rewriter, optimise
from onnxperf.fusions.pattern import A, B, Match, Pattern, X, Y, alone, call, kept, op, pattern, scale, shared
from onnxperf.ground.errors import UsageError
from onnxperf.runtimes import RUNTIMES, of_version
from op_models import Operator, Tensor
from tests.runtimes.test_engine import graph, tensor, whole
from tests.runtimes.test_engine import op as node

TWO = Tensor("two", "float32", (), "constant", (2.0005,))


def matches(p: Pattern, *operators: Operator, outputs: str = "y") -> list[Match]:
    """All matches at the last operator."""
    g = Rewriter(graph(*operators, outputs=outputs))
    return list(p.match(operators[-1].out, Match(g, operators[-1])))


def halved(name: str, type: str, first: Tensor, second: Tensor) -> Operator:
    return Operator(name, type, (first, second), (tensor(name),), nodes=(name,))


def test_sums_and_products_match_in_either_order_and_nothing_else_does() -> None:
    for type, p in (("Add", X + op.Exp(Y)), ("Mul", X * op.Exp(Y)), ("Sub", X - op.Exp(Y)), ("Div", X / op.Exp(Y))):
        e = node("e", "Exp", "x", "e")
        ways = [len(matches(p, e, node("y", type, inputs, "y"))) for inputs in ("x e", "e x")]
        assert ways == ([1, 1] if type in ("Add", "Mul") else [1, 0])
    (both, other) = matches(X + Y, node("y", "Add", "a b", "y"))
    assert [both[X].name, both[Y].name, other[X].name, other[Y].name] == ["a", "b", "b", "a"]


def test_a_variable_is_the_same_tensor_wherever_it_stands() -> None:
    e = node("e", "Exp", "x", "e")
    assert matches(X * op.Exp(X), e, node("y", "Mul", "e x", "y"))
    assert not matches(X * op.Exp(X), e, node("y", "Mul", "e z", "y"))
    power = op.Exp(X)
    assert matches(power + power, e, node("y", "Add", "e e", "y")), "so is an operator"
    assert not matches(power + power, e, node("f", "Exp", "x", "f"), node("y", "Add", "e f", "y"))


def test_numbers_match_stored_scalars_as_exporters_round_them() -> None:
    x = tensor("x", "input")
    assert matches(X / 2.0, halved("y", "Div", x, TWO))
    assert not matches(X / 2.0, halved("y", "Div", TWO, x))
    assert not matches(X / 2.01, halved("y", "Div", x, TWO))
    assert not matches(X / 2.0, halved("y", "Div", x, tensor("z")))
    factor = scale(X)
    for type, first, second, c in (("Mul", x, TWO, 2.0005), ("Mul", TWO, x, 2.0005), ("Div", x, TWO, 1 / 2.0005)):
        (found,) = matches(factor, halved("y", type, first, second))
        assert (found[X], found.factor(factor)) == (x, c)
    assert not matches(factor, halved("y", "Div", TWO, x))


def test_operands_are_as_many_as_written_but_for_an_ellipsis() -> None:
    three = node("y", "T", "a b c", "y")
    assert not matches(op.T(A, B), three) and not matches(op.T(A, B, X, Y), three)
    (found,) = matches(call(("S", "T"), A, ...), three)
    assert (found[A].name, B in found, found.bindings.get(B)) == ("a", False, None)


@pytest.mark.parametrize(("use", "matched", "replaced"), [(alone, 0, 0), (shared, 1, 1), (kept, 1, 1), (None, 1, 2)])
def test_what_others_read_as_well(use: object, matched: int, replaced: int) -> None:
    inner = use(op.A(X)) if callable(use) else op.A(X)
    for outputs, ways, parts in (("y m", matched, replaced), ("y", 1, 1 if use is kept else 2)):
        found = matches(op.B(inner), node("a", "A", "x", "m"), node("b", "B", "m", "y"), outputs=outputs)
        assert len(found) == ways
        assert all(len(m.parts) == parts for m in found)


def test_the_first_form_that_matches_decides_and_its_last_miss_is_the_answer() -> None:
    before = graph(node("a", "A", "x", "m"), node("b", "B", "m", "n"), node("c", "C", "n", "y"))
    first = op.A(X)

    @pattern("three", op.C(op.B(first)), op.B(first), start="A")
    def three(m: Match) -> Fused | Miss:
        return m.fused("ABC", (m[X],)) if m.root.type == "C" else Miss("no C", m.root.nodes)

    (only,) = optimise(before, {BASIC: (three,)}, BASIC).operators
    assert (only.type, only.name, only.nodes) == ("ABC", "c", ("a", "b", "c"))
    shorter = graph(node("a", "A", "x", "m"), node("b", "B", "m", "y"))
    after = optimise(shorter, {BASIC: (three,)}, BASIC)
    assert [(n.message, n.nodes) for n in after.notes] == [("three did not apply: no C", ("b",))]
    read = graph(node("a", "A", "x", "m"), node("b", "B", "m", "n"), node("c", "C", "n", "y"), outputs="y n")
    (note,) = optimise(read, {BASIC: (three,)}, BASIC).notes
    assert note.message.endswith("no C"), "what lies between the start and the last operator has one reader"

    @pattern("either", op.Add(alone(op.A(X)), Y) | op.Add(X, Y))
    def either(m: Match) -> Fused | Miss:
        return Miss("with A") if len(m.parts) == 2 else m.fused("Sum", (m[X], m[Y]))

    sums = graph(node("a", "A", "x", "m"), node("b", "Add", "m x", "y"))
    fused = optimise(sums, {BASIC: (either,)}, BASIC)
    assert [o.type for o in fused.operators] == ["A", "Sum"], "the first way that fuses"
    whole(fused, sums)


def test_a_runtime_knows_older_versions_of_itself() -> None:
    assert {r.name for r in RUNTIMES.values() if r.releases} == set(RUNTIMES)
    assert of_version(RUNTIMES["ort-cuda"], "1.9").release == (1, 9)
    without = replace(RUNTIMES["torch-eager"], releases=None)
    with pytest.raises(UsageError, match="torch-eager is known only as it is today"):
        of_version(without, "2.1")
