"""How often loops run whose conditions only count, against ONNX Runtime, which runs them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

from onnxperf.graph import load

#: Name: the limit, the condition's first value, the counter's first value, and the body's nodes, which make the next
#: condition k and the next counter d from the run's number i, the condition g and the counter c.
COUNTS = {
    "number below": (50, 1, 0, "k = Less(i, five) d = Identity(c)"),
    "number up to": (50, 1, 0, "k = LessOrEqual(i, five) d = Identity(c)"),
    "above": (50, 1, 0, "k = Greater(five, i) d = Identity(c)"),
    "above or the same": (50, 1, 0, "k = GreaterOrEqual(five, i) d = Identity(c)"),
    "the limit first": (3, 1, 0, "k = Less(i, five) d = Identity(c)"),
    "never": (50, 1, 0, "k = Less(five, i) d = Identity(c)"),
    "always": (7, 1, 0, "k = Less(i, i2) i2 = Add(i, one) d = Identity(c)"),
    "counter": (50, 1, 1, "d = Add(c, two) k = Less(d, five)"),
    "counter before it counts": (50, 1, 1, "d = Add(two, c) k = Less(c, five)"),
    "counter down": (50, 1, 9, "d = Sub(c, two) k = Greater(d, one)"),
    "down to the same": (50, 1, 9, "d = Sub(c, two) k = GreaterOrEqual(d, one)"),
    "away": (8, 1, 9, "d = Add(c, two) k = Greater(d, one)"),
    "both": (50, 1, 0, "d = Add(c, one) e = Less(d, five) f = Less(i, two) k = And(e, f)"),
    "with its condition": (50, 1, 0, "d = Add(c, one) e = Less(d, five) k = And(g, e)"),
    "as floats": (50, 1, 0, "d = Add(c, one) e = Cast<to=1>(d) f = Cast<to=1>(five) k = Less(e, f)"),
    "cut off": (50, 1, 0, "d = Add(c, one) f = Cast<to=7>(most) k = Less(d, f)"),
    "whole again": (50, 1, 0, "d = Add(c, one) h = Cast<to=1>(d) e = Cast<to=7>(h) k = Less(e, five)"),
    "two counters": (50, 1, 9, "d = Sub(c, one) k = Less(i, d)"),
    "condition false": (50, 0, 0, "k = Less(i, five) d = Identity(c)"),
}
#: The same where the data decide.
DATA = {
    "the data": "k = Less(y0, half) d = Identity(c)",
    "a counter that doubles": "d = Add(c, c) k = Less(d, five)",
    "a counter of the data": "e = Cast<to=7>(y0) d = Add(c, e) k = Less(d, five)",
    "a counter in few bits": "d = Add(c, one) e = Cast<to=3>(d) k = Less(e, e)",
    "one of two": "e = Less(y0, half) f = Less(i, five) k = And(e, f) d = Identity(c)",
    "either": "e = Less(i, one) f = Less(i, five) k = Or(e, f) d = Identity(c)",
}


def counting(limit: int, enters: int, start: int, body: str) -> ModelProto:
    """A loop that stacks what each of its runs makes."""
    if "i2 = " in body:  # the parser takes nodes in any order, runtimes do not
        body = "i2 = Add(i, one) " + body.replace("i2 = Add(i, one) ", "")
    return parse_model(f"""<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[] last, float[] all)
        <int64 one = {{1}}, int64 two = {{2}}, int64 five = {{5}}, int64 m = {{{limit}}}, bool t = {{{enters}}},
         int64 start = {{{start}}}, float half = {{0.5}}, float most = {{4.7}}>
        {{ n, last, all = Loop(m, t, start, x) <body = b (int64 i, bool g, int64 c, float[2] v) =>
            (bool k, int64 d, float[2] y, float[2] y) {{ y = Abs(v) y0 = ReduceSum<keepdims=0>(y) {body} }}> }}""")


def runs(model: ModelProto) -> int:
    """How often ONNX Runtime runs the loop."""
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: int = session.run(["all"], {"x": np.ones(2, np.float32)})[0].shape[0]
    return found


@pytest.mark.parametrize("case", COUNTS)
def test_a_condition_that_counts_is_counted(case: str) -> None:
    model = counting(*COUNTS[case])
    graph, count = load(model), runs(model)
    assert [o.repeat for o in graph.operators if o.type == "Abs"] == [count] * (count > 0)
    assert [t.shape for t in graph.outputs] == [(2,), (count, 2)]
    assert not graph.notes


@pytest.mark.parametrize("case", DATA)
def test_what_the_data_decide_is_taken_as_the_limit(case: str) -> None:
    graph = load(counting(50, 1, 1, DATA[case]))
    assert [o.repeat for o in graph.operators if o.type == "Abs"] == [50]
    assert [n.code for n in graph.notes] == ["assumed-trip-count"] and "assumed 50, its limit" in graph.notes[0].message
    assert [o.repeat for o in load(counting(50, 1, 1, DATA[case]), trip_counts={"Loop_0": 4}).operators][1] == 4


def test_a_limit_that_stands_for_none_is_none() -> None:
    graph = load(counting(2**63 - 1, 1, 1, DATA["the data"]))
    assert [o.repeat for o in graph.operators if o.type == "Abs"] == [1] and "assumed once" in graph.notes[0].message


def floating(start: float, step: float) -> ModelProto:
    """A loop with a counter of floats, whose condition looks at it as an integer."""
    return parse_model(f"""<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[] all)
        <int64 five = {{5}}, int64 m = {{50}}, bool t = {{1}}, float start = {{{start}}}, float step = {{{step}}}>
        {{ n, all = Loop(m, t, start) <body = b (int64 i, bool g, float c) => (bool k, float d, float[2] y)
            {{ y = Abs(x) d = Add(c, step) e = Cast<to=7>(d) k = Less(e, five) }}> }}""")


@pytest.mark.parametrize(("start", "step"), [(-5.9, 1.0), (-5.0, 0.5), (-5.0, 1.5)])
def test_what_a_cast_cuts_off_is_not_counted(start: float, step: float) -> None:
    """It cuts off towards zero, so that the number of runs is no ratio of start, step and limit."""
    graph = load(floating(start, step))
    assert [n.code for n in graph.notes] == ["assumed-trip-count"]
    assert graph.outputs[0].shape == (50, 2)


def test_whole_numbers_as_floats_are_counted() -> None:
    model = floating(-5.0, 1.0)
    graph = load(model)
    assert graph.outputs[0].shape == (runs(model), 2) and not graph.notes
