"""What sequences hold, step by step and through loops; what ONNX Runtime's own runs return is the oracle for shapes."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.parser import parse_model

import onnxperf
from onnxperf import BudgetExceeded, UsageError
from onnxperf.graph import load
from onnxperf.graph.sequences import MAX_RUNS, of_shapes
from onnxperf.running.memory import footprint

STORED = "int64 m = {5}, bool c = {1}, int64 zero = {0}, int64 two = {2}, int64 four = {4}, int64[2] parts = {1, 5}"
GROWS = """l = Loop(LIMIT, c, s) <body = b (int64 i, bool g, seq(float[6, 4]) v) => (bool k, seq(float[6, 4]) o) {
    k = Identity(g) r = Neg(x) o = SequenceInsert(v, r) }>"""


def made(nodes: str, inputs: str = "float[6, 4] x, float[2, 4] z") -> ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[] y) <{STORED}> {{ {nodes} }}'
    return parse_model(text)


#: Nodes that make y by sequences whose number, shapes and order are known.
KNOWN = {
    "concat": "s = SequenceConstruct(x, z, x) y = ConcatFromSequence<axis = 0>(s)",
    "stack": "s = SequenceConstruct(x, x, x) y = ConcatFromSequence<axis = -1, new_axis = 1>(s)",
    "at": "s = SequenceConstruct(x, z) i = Constant<value_int = -1>() y = SequenceAt(s, i)",
    "insert": "s = SequenceConstruct(x) t = SequenceInsert(s, z, zero) y = SequenceAt(t, zero)",
    "erase": "s = SequenceConstruct(x, z, x) t = SequenceErase(s, zero) y = SequenceAt(t, zero)",
    "erase-last": "s = SequenceConstruct(z, x, x) t = SequenceErase(s) y = ConcatFromSequence<axis = 0>(t)",
    "empty": "r = SequenceEmpty() s = SequenceInsert(r, x) t = SequenceInsert(s, z) y = ConcatFromSequence<axis=0>(t)",
    "ones": "s = SplitToSequence<axis = 1, keepdims = 0>(x) y = SequenceAt(s, two)",
    "equal": "s = SplitToSequence(x, four) i = Constant<value_int = 1>() y = SequenceAt(s, i)",
    "parts": "s = SplitToSequence(x, parts) i = Constant<value_int = 1>() y = SequenceAt(s, i)",
    "whole": "s = SplitToSequence(x, parts) t = SequenceInsert(s, z) y = ConcatFromSequence<axis = 0>(t)",
    "same": "s = SequenceConstruct(x, z) t = Identity(s) y = ConcatFromSequence<axis = 0>(t)",
    "loop": f"s = SequenceConstruct(x) {GROWS.replace('LIMIT', 'm')} y = ConcatFromSequence<axis = 0>(l)",
    "loop-empty": f"s = SequenceEmpty() {GROWS.replace('LIMIT', 'm')} y = ConcatFromSequence<axis = 0>(l)",
    "loop-never": f"s = SequenceConstruct(x) {GROWS.replace('LIMIT', 'zero')} y = ConcatFromSequence<axis = 0>(l)",
    "map": """s = SequenceConstruct(x, x)
        l = SequenceMap(s) <body = b (float[6, 4] e) => (float[6, 4] o) { o = Neg(e) }>
        y = ConcatFromSequence<axis = 0>(l)""",
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_known_sequences_have_the_shapes_that_onnx_runtime_makes(name: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = made(KNOWN[name])
    feeds = {"x": np.ones((6, 4), np.float32), "z": np.ones((2, 4), np.float32)}
    (y,) = runtime.InferenceSession(model.SerializeToString()).run(None, feeds)
    graph = load(model)
    assert graph.outputs[0].shape == y.shape
    assert [n.code for n in graph.notes] == ["assumed-shape"] * (
        name in ("loop", "loop-empty")
    )  # the body's own sequence grows


#: Nodes that make y of what depends on the data, and the largest shape that it can have.
BOUNDED = {
    "any": ("s = SequenceConstruct(x, z) y = SequenceAt(s, i)", (6, 4)),
    "anywhere": ("s = SequenceConstruct(x, x) t = SequenceInsert(s, z, i) y = SequenceAt(t, zero)", (6, 4)),
    "less": ("s = SequenceConstruct(z, x) t = SequenceErase(s, i) y = ConcatFromSequence<axis = 0>(t)", (6, 4)),
    "pieces": ("s = SplitToSequence(x, i) y = SequenceAt(s, zero)", (6, 4)),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_what_depends_on_the_data_is_taken_at_its_upper_bound(name: str) -> None:
    nodes, shape = BOUNDED[name]
    graph = load(made(nodes, "float[6, 4] x, float[2, 4] z, int64 i"))
    assert graph.outputs[0].shape == shape
    assert [n.code for n in graph.notes] == ["assumed-shape"]
    assert "upper bound" in graph.notes[0].message


OPEN = f"s = SequenceEmpty() {GROWS.replace('LIMIT', 'i')} y = ConcatFromSequence<axis = 0>(l)"


def test_a_sequence_of_unknown_length_is_no_upper_bound() -> None:
    model = made(OPEN, "float[6, 4] x, int64 i")
    notes = {n.code: n.message for n in load(model).notes}
    assert "far more memory" in notes["unknown-length"]
    assert not any("upper bound" in message for message in notes.values())
    with pytest.raises(BudgetExceeded, match=r"be checked against the limits.*not known before the run"):
        onnxperf.check(model, gpu="l4", max_ms=1000)
    (loop,) = (n.name for n in model.graph.node if n.op_type == "Loop")
    trips = {loop or "Loop_1": 7}
    assert load(model, trip_counts=trips).outputs[0].shape == (42, 4)
    assert onnxperf.check(model, gpu="l4", max_ms=1000, trip_counts=trips).memory.fits


def test_a_sequence_that_is_an_input_has_an_unknown_length() -> None:
    model = made("y = ConcatFromSequence<axis = 0>(s)", "float[6, 4] x")
    model.graph.input.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [6, 4]))
    codes = [n.code for n in load(model).notes]
    assert codes[0] == "unknown-length"
    with pytest.raises(BudgetExceeded, match="is not known before the run"):
        onnxperf.check(model, gpu="l4", max_gb=10)


def test_sequences_take_memory_and_traffic() -> None:
    big = made("s = SequenceConstruct(x, x, x, x, x, x, x, x) y = ConcatFromSequence<axis = 0>(s)",
               "float[30000, 30000] x")  # fmt: skip
    found = onnxperf.predict(big, gpu="l4")
    assert not found.memory.fits
    assert found.memory.activations_bytes == (1 + 8 + 8) * 30000 * 30000 * 4
    construct = next(k for k in found.kernels if k.op == "SequenceConstruct")
    assert construct.bytes_written == 8 * 30000 * 30000 * 4


@pytest.mark.parametrize("nodes", [
    """r = SequenceEmpty() s = SequenceInsert(r, x) t = SequenceInsert(s, x) l = SequenceInsert(t, x)
    y = SequenceAt(l, two)""",
    f"s = SequenceEmpty() {GROWS.replace('LIMIT', 'm')} y = SequenceAt(l, zero)",
])  # fmt: skip
def test_inserted_elements_are_shared_with_the_old_sequence(nodes: str) -> None:
    """ONNX Runtime keeps elements by reference: a chain of insertions holds each of them once."""
    run = onnxperf.predict(made(nodes, "float[1024, 1024] x"), gpu="l4").run
    in_loop = "Loop" in nodes
    elements = 5 if in_loop else 3
    held = footprint(run.run_graph).activations_bytes / 2**22
    assert held == pytest.approx(1 + elements + 1, abs=1.001 if in_loop else 0.001)  # with x, y, and Neg in the loop
    inserts = [k for k in run.kernels.rows if k.op == "SequenceInsert"]
    assert sum(k.repeat * k.work.bytes_written for k in inserts) == elements * 2**22


def test_long_chains_of_unlike_elements_are_bounded() -> None:
    elements = of_shapes([])
    shapes = [(k, 1000 - k) for k in range(1, 500)]
    for shape in shapes:
        elements = elements.with_one(shape, last=True)
    assert len(elements.runs) <= MAX_RUNS
    assert (elements.count, elements.size, elements.exact) == (499, sum(map(prod, shapes)), False)
    assert elements.largest == (499, 999)


def test_a_sequence_larger_than_any_memory_is_refused() -> None:
    nodes = f"s = SequenceEmpty() {GROWS.replace('LIMIT', 'i')} y = SequenceAt(l, zero)"
    model = made(nodes, "float[6, 4] x, int64 i")
    with pytest.raises((UsageError, onnxperf.ModelError), match="can't"):
        load(model, trip_counts={"Loop_1": 10**9}, shapes={"x": (1 << 20, 1 << 20)})
