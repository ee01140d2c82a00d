"""Whatever a rule answers, the graph stays whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxperf.fusions.engine import BASIC, EXTENDED, Fused, Pass, Rewriter, fused, fusion, optimise
from onnxperf.graph import Graph, Note, load
from onnxperf.ground.errors import ModelError
from onnxperf.passes.precision import precision
from onnxperf.runtimes import LEVELS, Runtime, run_graph
from op_models import Operator, Tensor
from tests.runtimes.conftest import EVERY, TODAYS, ways
from tests.zoo import PLAIN, sizes

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
OLDER_WAYS = EVERY[len(TODAYS) :]
FILES = [*PLAIN, *sorted(LIGHT.glob("*.onnx"))]


def whole(graph: Graph, before: Graph) -> None:
    """Everything read is stored, an input, or made earlier; every output is there; names are unique; no rule failed."""
    there = {t.name for t in graph.inputs}
    for o in graph.operators:
        for t in o.present:
            assert t.stored or t.name in there, f"{o.name} reads {t.name}, which nothing makes before it"
        for t in o.outputs:
            assert t.name not in there, f"{t.name} is made twice"
            there.add(t.name)
    stored = {t.name for t in before.outputs if t.stored}
    assert {t.name for t in before.outputs} <= there | stored
    assert len({o.name for o in graph.operators}) == len(graph.operators)
    assert not [n for n in graph.notes if n.code == "failed-fusion"]
    nodes = {n for o in before.operators for n in o.nodes}
    assert all(o.nodes and nodes.issuperset(o.nodes) for o in graph.operators)


@pytest.mark.slow
@pytest.mark.parametrize(("i", "path"), [*enumerate(FILES)], ids=lambda p: getattr(p, "stem", ""))
def test_samples_stay_whole_at_every_level(i: int, path: Path) -> None:
    """In 8 bits every third of them, and each third in other releases."""
    dims = {"batch": 2, "sequence": 16} if "dynamic" in path.name else sizes(path)
    graph = load(path, dims=dims)
    for stored in ("keep", "int8") if i % 3 == 0 else ("keep",):
        before = precision(graph, stored)
        for runtime in (*TODAYS, *OLDER_WAYS[i % 3 :: 3]):
            for level in ways(runtime):
                whole(run_graph(before, runtime, LEVELS[level]), graph)


def tensor(name: str, kind: str = "activation") -> Tensor:
    return Tensor(name, "float32", (2, 2), kind)


def op(name: str, type: str, inputs: str, outputs: str) -> Operator:
    """An operator on tensors named by letters."""
    ins = tuple(tensor(t, "input" if t == "x" else "activation") for t in inputs.split())
    return Operator(name, type, ins, tuple(map(tensor, outputs.split())), nodes=(name,))


def graph(*operators: Operator, outputs: str = "y") -> Graph:
    return Graph("g", operators, (tensor("x", "input"),), tuple(map(tensor, outputs.split())))


@fusion("pair", anchor="B")
def pair(g: Rewriter, b: Operator) -> Fused | None:
    """A careless rule: it looks at nothing but types."""
    a = g.made_by(b.inputs[0], "A")
    return fused("AB", b, (a, b), (*a.inputs, *b.inputs[1:])) if a is not None else None


@pytest.mark.parametrize(
    ("operators", "outputs", "left"),
    [
        ([op("a", "A", "x", "m"), op("b", "B", "m", "y")], "y", ["AB"]),
        ([op("a", "A", "x", "m"), op("c", "C", "x", "n"), op("b", "B", "m n", "y")], "y", ["C", "AB"]),
        ([op("a", "A", "x", "m"), op("b", "B", "m", "y")], "y m", ["A", "B"]),
        ([op("a", "A", "x", "m"), op("c", "C", "m", "z"), op("b", "B", "m", "y")], "y z", ["A", "C", "B"]),
        ([op("a", "A", "x", "m n"), op("b", "B", "m", "y"), op("c", "C", "n", "z")], "y z", ["A", "B", "C"]),
        ([op("a", "A", "x", "m"), op("b", "B", "m", "y n"), op("c", "C", "n", "z")], "y z", ["A", "B", "C"]),
        ([op("a", "A", "x", "m"), op("b", "B", "m", "y n")], "y", ["AB"]),
        ([op("a", "A", "x", "m"), op("b", "B", "m", "n"), op("s", "Identity", "n", "y")], "y", ["AB", "Identity"]),
        ([op("s", "Identity", "x", "m"), op("t", "Dropout", "m", "n"), op("a", "A", "n", "y")], "y", ["A"]),
        ([op("s", "Dropout", "x", "m n"), op("a", "A", "m n", "y")], "y", ["Dropout", "A"]),
    ],
)
def test_a_careless_rule_is_refused_where_others_read(operators: list[Operator], outputs: str, left: list[str]) -> None:
    before = graph(*operators, outputs=outputs)
    after = optimise(before, {BASIC: (pair,)}, BASIC)
    assert [o.type for o in after.operators] == left
    whole(after, before)
    refused = [n for n in after.notes if "other consumers" in n.message]
    assert bool(refused) == (left[-1] in "BC" and len(left) == len(operators))
    assert after.operators[0].inputs[0] == before.inputs[0]


A = op("a", "A", "x", "y")


def replaced(o: Operator, **changes: Any) -> Fused:
    return Fused((o,), replace(o, **changes))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: {}["k"], "it failed with KeyError: 'k'"),
        (lambda: [].remove(1), "it failed with ValueError: list.remove(x): x not in list"),
        (lambda: True, "it failed with TypeError: it answers bool, not Fused, Miss or None"),
        (lambda: replaced(A, type=5), "it failed with TypeError: it answers the operator type 5"),
        (lambda: replaced(A, inputs=("x",)), "it failed with TypeError: it answers 'x' for a tensor of A"),
        (lambda: Fused((A,), "A"), "it failed with TypeError: it answers 'A' for an operator"),  # type: ignore[arg-type]
        (lambda: Fused((), A), "it failed with ValueError: it replaces operators that the graph does not have"),
        (
            lambda: Fused((replace(A, name="b"),), A),
            "it failed with ValueError: it replaces operators that the graph does not have",
        ),
    ],
)
def test_a_rule_that_fails_is_left_out_and_told_with_its_node(answer: Callable[[], Any], says: str) -> None:
    mine = fusion("mine", anchor="A")(lambda g, o: answer())
    before = graph(A)
    after = optimise(before, {BASIC: (mine,)}, BASIC)
    assert after.operators == before.operators
    assert after.notes == (Note("failed-fusion", f"mine did not apply: {says}", ("a",)),)


def test_a_pass_that_fails_is_left_out_and_told_by_its_name() -> None:
    def fails(graph: Graph) -> Graph:
        raise RuntimeError("no such\nthing")

    after = optimise(graph(op("a", "A", "x", "y")), {BASIC: (Pass("mine", fails),)}, BASIC)
    says = "mine did not apply: it failed with RuntimeError: no such\ufffdthing"
    assert after.notes == (Note("failed-fusion", says),)
    nothing = optimise(graph(op("a", "A", "x", "y")), {BASIC: (Pass("mine", lambda g: None),)}, BASIC)  # type: ignore
    assert [n.message for n in nothing.notes] == [
        "mine did not apply: it failed with TypeError: it answers NoneType, not Graph"
    ]


def test_a_function_among_the_rules_is_left_out_and_told_by_its_name() -> None:
    def bare(g: Rewriter, o: Operator) -> None:
        """It has no anchor: nothing says where to try it."""

    before = graph(op("a", "A", "x", "m"), op("b", "B", "m", "y"))
    after = optimise(before, {BASIC: (bare, pair)}, BASIC)  # type: ignore[dict-item]
    assert [o.type for o in after.operators] == ["AB"]
    says = "a function is not a rule: make it one with @pattern, @fusion or Pass"
    assert after.notes == (Note("failed-fusion", f"bare did not apply: it failed with TypeError: {says}"),)


@pytest.mark.parametrize("runtime", [r for r in EVERY if r.name != "tensorrt"], ids=lambda r: r.describe)
@pytest.mark.parametrize(
    "type", ["QLinearAdd", "QLinearConcat", "FastGelu", "QuickGelu", "FusedConv", "FusedMatMul", "Attention"]
)
def test_operators_of_other_domains_may_lack_what_they_need(make: Any, type: str, runtime: Runtime) -> None:
    """onnx does not know them, so nothing has refused them before, as TensorRT does."""
    for inputs in ("", "a", "a,a"):
        odd = f'b=com.microsoft.{type}<alpha="z">({inputs})'
        before = load(make(f"(float[4,4] x) => (float[4,4] y) {{a=Transpose(x) {odd} c=Relu(b) y=Mul(c,b)}}", {}))
        if runtime.name.startswith("torch-") and type.startswith("QLinear"):
            with pytest.raises(ModelError, match="no kernels for products and sums of 8-bit integers"):
                run_graph(before, runtime)
            continue
        whole(run_graph(before, runtime, transformers=bool(runtime.offline)), before)


def test_a_value_read_twice_has_no_only_user() -> None:
    g = Rewriter(graph(op("a", "A", "x", "m"), op("b", "B", "m m", "y")))
    assert g.only_user(tensor("m")) is None
    assert len(g.users(tensor("m"))) == 1


def test_rules_of_a_level_go_on_until_none_applies_then_comes_the_next() -> None:
    """`pair` makes what `triple` needs, though it stands behind it; the next level sees the results of both."""

    @fusion("triple", anchor="C")
    def triple(g: Rewriter, c: Operator) -> Fused | None:
        ab = g.made_by(c.inputs[0], "AB")
        return fused("ABC", c, (ab, c), ab.inputs) if ab is not None else None

    @fusion("late", anchor="ABC")
    def late(g: Rewriter, abc: Operator) -> Fused:
        return fused("D", abc, (abc,), abc.inputs)

    chain = graph(op("a", "A", "x", "m"), op("b", "B", "m", "n"), op("c", "C", "n", "y"))
    rules = {BASIC: (triple, pair), EXTENDED: (late,)}
    assert [o.type for o in optimise(chain, rules, BASIC).operators] == ["ABC"]
    (only,) = optimise(chain, rules, EXTENDED).operators
    assert (only.type, only.name, only.nodes) == ("D", "c", ("a", "b", "c"))


def test_many_identities_of_one_reader_all_go() -> None:
    names = [f"t{i}" for i in range(8000)]
    operators = [op(n, "Identity", "x", n) for n in names]
    before = graph(*operators, op("c", "Concat", " ".join(names), "y"))
    (only,) = optimise(before, {BASIC: (pair,)}, BASIC).operators
    assert {t.name for t in only.present} == {"x"} and len(only.present) == 8000
    assert optimise(before, {}, BASIC) is before


def test_dropout_in_training_stays(run: Any) -> None:
    text = "(float[2,3] x) => (float[2,3] y) <float r = {0.5}, bool t = {1}, bool f = {0}>"
    for flag, left in (("t", ["Dropout", "Relu"]), ("f", ["Relu"])):
        assert [o.type for o in run(f"{text} {{a=Dropout(x,r,{flag}) y=Relu(a)}}").operators] == left
