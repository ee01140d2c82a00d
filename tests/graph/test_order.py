"""Names and order of nodes."""

from __future__ import annotations

from itertools import permutations

import pytest
from onnx import NodeProto
from onnx.parser import parse_model

from onnxperf import ModelError
from onnxperf.graph import load

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[2] x, bool c) => (float[2] y) {
    a = Abs(x) b = Neg(a)
    d = If(c) <then_branch = t () => (float[2] p) { p = Add(b, x) }, else_branch = e () => (float[2] q) { q = Exp(a) }>
    y = Mul(d, b)
}"""


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_unsorted_nodes_are_sorted(order: tuple[int, ...]) -> None:
    model = parse_model(TEXT)
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes[i] for i in order)
    assert [o.type for o in load(model).operators] == ["Abs", "Neg", "If", "Exp", "Identity", "Mul"]


def test_a_cycle_names_its_nodes() -> None:
    model = parse_model(TEXT)
    model.graph.node[0].input[0] = "y"
    with pytest.raises(ModelError, match=r"cycle through 'Abs_0'|cycle through '(Neg|If|Mul)"):
        load(model)
    model = parse_model(TEXT)
    model.graph.node[0].input[0] = "a"
    with pytest.raises(ModelError, match=r"cycle through 'Abs_0'$"):
        load(model)


@pytest.mark.parametrize("inside", [False, True])
def test_reading_what_nothing_makes(inside: bool) -> None:
    model = parse_model(TEXT)
    node = model.graph.node[2].attribute[0].g.node[0] if inside else model.graph.node[3]
    node.input[0] = "nowhere"
    with pytest.raises(ModelError, match=rf"'{'If_2' if inside else 'Mul_3'}'.*reads 'nowhere', which nothing makes"):
        load(model)


def test_bodies_may_be_unsorted_and_read_their_own() -> None:
    model = parse_model(TEXT)
    body = model.graph.node[2].attribute[0].g
    body.node.insert(0, NodeProto(op_type="Exp", input=["late"], output=["r"]))
    body.node.add(op_type="Neg", input=["p"], output=["late"])
    body.output[0].name = "r"
    inside = [o for o in load(model).operators if o.name.startswith("If_2/")]
    assert [(o.type, o.present[0].name) for o in inside] == [
        ("Add", "b"), ("Neg", "If_2/p"), ("Exp", "If_2/late"), ("Identity", "If_2/r")
    ]  # fmt: skip


def test_an_output_that_nothing_makes() -> None:
    model = parse_model(TEXT)
    model.graph.output[0].name = "nowhere"
    with pytest.raises(ModelError, match="output 'nowhere' is made by no node"):
        load(model)


def test_names_of_nodes_are_kept_and_made_unique() -> None:
    model = parse_model(TEXT)
    model.graph.node[0].name = model.graph.node[1].name = "same"
    assert [o.name for o in load(model).operators] == [
        "same",
        "same_1",
        "If_2",
        "If_2/Exp_0",
        "If_2/Identity_0",
        "Mul_3",
    ]
    assert load(model).operators[1].nodes == ("same_1",)
