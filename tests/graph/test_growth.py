"""Loops whose tensors grow from run to run: sums over all runs, by hand, and shapes as ONNX Runtime's own runs have."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

import onnxperf
from onnxperf.graph import Graph, load
from onnxperf.graph.growth import chosen
from op_models import work_of
from tests.runtimes.conftest import build


def looped(body: str, count: int, start: int = 0, row: int = 1, inputs: str = "", **more: Any) -> ModelProto:
    """A Loop that runs so often, with a state v[start,64] and a row[row,64]; the state is multiplied by w[64,16]."""
    text = """(float[START,64] e INPUTS) => (float[n,16] y) {
        o = Loop(m, t, e) <body = b (int64 i, bool c, float[r,64] v) => (bool d, float[s,64] u) {
            d = Identity(c) BODY }>
        y = MatMul(o, w) }"""
    text = text.replace("START", str(start)).replace("INPUTS", inputs).replace("BODY", body)
    weights = {"w": (64, 16), "k": (64, 64), "row": (row, 64), "m": count, "t": np.array(True)}
    return build(text, {**weights, **more}, 17)


def flops(graph: Graph) -> int:
    return sum(o.repeat * work_of(o).matrix_flops for o in graph.operators)


def written(graph: Graph, type: str) -> int:
    return sum(o.repeat * work_of(o).bytes_written for o in graph.operators if o.type == type)


def rows(model: ModelProto, start: int = 0, **inputs: object) -> tuple[int, ...]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: tuple[int, ...] = session.run(None, {"e": np.ones((start, 64), np.float32), **inputs})[0].shape
    return result


@pytest.mark.parametrize("trips", [*range(1, 120), 1000, 12_345, 10**6, 10**9 - 1, 10**9])
def test_chosen_runs_stand_for_all_of_them_up_to_cubes(trips: int) -> None:
    runs = chosen(trips)
    assert (runs[0][0], runs[-1][0]) == (0, trips - 1) and all(count > 0 for _, count in runs) and len(runs) <= 16
    sums = [sum(count * number**power for number, count in runs) for power in range(4)]
    n = trips - 1
    assert sums == [trips, n * trips // 2, n * trips * (2 * n + 1) // 6, (n * trips // 2) ** 2]


@pytest.mark.parametrize("trips", [2, 5, 16, 17, 40, 1000])
def test_a_state_that_grows_by_a_row(trips: int) -> None:
    model = looped("u = Concat<axis = 0>(v, row)", trips)
    graph = load(model)
    assert graph.outputs[0].shape == rows(model) == (trips, 16)
    assert flops(graph) == 2 * trips * 64 * 16
    assert written(graph, "Concat") == sum(4 * 64 * (k + 1) for k in range(trips))
    assert [n.code for n in graph.notes] == [] and len(graph.operators) < 60
    assert sum(o.repeat for o in graph.operators if o.type == "Concat") == trips


@pytest.mark.parametrize("trips", [7, 33, 500])
def test_attention_of_new_tokens_over_keys_that_grow(trips: int) -> None:
    body = """g = Concat<axis = 0>(v, row) kt = Transpose<perm = [1, 0]>(g) a = MatMul(row, kt)
              p = Softmax(a) x = MatMul(p, g) zero = Sub(x, x) u = Concat<axis = 0>(v, zero)"""
    graph = load(looped(body, trips))
    keys = sum(k + 1 for k in range(trips))
    assert flops(graph) == 2 * 2 * keys * 64 + 2 * trips * 64 * 16


@pytest.mark.parametrize("trips", [6, 50, 301])
def test_products_in_which_two_axes_grow(trips: int) -> None:
    body = """vt = Transpose<perm = [1, 0]>(v) s = MatMul(v, vt) x = MatMul(s, v)
              u = Concat<axis = 0>(x, row)"""
    model = looped(body, trips, start=3, row=2)
    graph = load(model)
    lengths = [3 + 2 * k for k in range(trips)]
    assert flops(graph) == sum(4 * n * n * 64 for n in lengths) + 2 * (3 + 2 * trips) * 64 * 16
    assert graph.outputs[0].shape == (3 + 2 * trips, 16)


def test_what_shrinks() -> None:
    model = looped("u = Slice(v, one, end, zero)", 20, 50, one=[1], end=[1000], zero=[0])
    graph = load(model)
    assert graph.outputs[0].shape == rows(model, 50) == (30, 16)
    assert written(graph, "Slice") == sum(4 * 64 * (49 - k) for k in range(20))


def test_what_doubles_is_followed_for_a_few_runs_and_assumed_for_many() -> None:
    model = looped("u = Concat<axis = 0>(v, v)", 6, start=1)
    assert load(model).outputs[0].shape == rows(model, 1) == (64, 16)
    assert "changes its shape" in load(looped("u = Concat<axis = 0>(v, v)", 30, start=1)).notes[0].message


def test_a_large_body_is_taken_as_its_first_run() -> None:
    nodes = " ".join(f"a{i + 1} = Relu(a{i})" for i in range(8000))
    graph = load(looped(f"a0 = Relu(v) {nodes} u = Concat<axis = 0>(a8000, row)", 20))
    assert "changes its shape" in graph.notes[0].message and len(graph.operators) < 8100


def test_weights_are_counted_once_and_the_memory_is_that_of_the_end() -> None:
    body = "a = MatMul(v, k) u = Concat<axis = 0>(a, row)"
    memory = [onnxperf.predict(looped(body, n), gpu="l4").memory for n in (1, 400)]
    inside = looped(body, 400)
    kernel = next(t for t in inside.graph.initializer if t.name == "k")
    inside.graph.node[0].attribute[0].g.initializer.append(kernel)
    inside.graph.initializer.remove(kernel)
    memory.append(onnxperf.predict(inside, gpu="l4").memory)
    assert len({m.weights_bytes for m in memory}) == 1
    assert memory[1].activations_bytes == (399 + 400) * 64 * 4  # a and u of the last run


def test_a_count_that_is_asked_for() -> None:
    model = looped("u = Concat<axis = 0>(v, row)", 1, inputs=", int64 often")
    model.graph.node[0].input[0] = "often"
    model.graph.node[0].name = "decode"
    assert load(model).outputs[0].shape == (1, 16)
    graph = load(model, trip_counts={"decode": 200})
    assert graph.outputs[0].shape == rows(model, often=np.array(200)) == (200, 16)
    assert written(graph, "Concat") == 4 * 64 * 200 * 201 // 2


def test_branches_and_loops_inside_grow_with_it() -> None:
    inner = """n = Loop(m2, t, v) <body = in (int64 j, bool f, float[p,64] z) => (bool h, float[q,64] zz) {
        h = Identity(f) zz = MatMul(z, k) }>
        u = If(t) <then_branch = th () => (float[a,64] then) { then = Concat<axis = 0>(n, row) },
                   else_branch = el () => (float[b,64] other) { other = Relu(n) }>"""
    model = looped(inner, 40, m2=3)
    graph = load(model)
    assert graph.outputs[0].shape == rows(model) == (40, 16)
    assert flops(graph) == 3 * sum(2 * n * 64 * 64 for n in range(40)) + 2 * 40 * 64 * 16


def test_a_scan_whose_state_grows() -> None:
    text = """(float[30,64] x, float[0,64] e) => (float[n,16] y) {
        o, z = Scan<num_scan_inputs = 1, body = b (float[r,64] v, float[64] a) => (float[s,64] u, float[64] c) {
            row = Unsqueeze(a, zero) u = Concat<axis = 0>(v, row) c = Relu(a) }>(e, x)
        y = MatMul(o, w) }"""
    model = build(text, {"w": (64, 16), "zero": [0]}, 17)
    graph = load(model)
    assert graph.outputs[0].shape == (30, 16)
    assert written(graph, "Concat") == 4 * 64 * (30 * 31 // 2 + 30)  # c is stacked
