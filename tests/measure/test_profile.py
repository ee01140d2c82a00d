"""ONNX Runtime's profile: of real runs, and in files that are cut off or mean no good; joined with predictions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import onnxperf
from onnxperf.errors import EnvironmentFailure
from onnxperf.measure import profile
from onnxperf.measure.profile import Joined, by_class, joined, parse, seconds, short, worst
from onnxperf.measure.record import PROFILER_S, OperatorTime
from tests.measure.conftest import CPU, CUDA, ROOT

ort = pytest.importorskip("onnxruntime")


def node(name: str, begin: int, lasts: int, type: str = "Conv", **more: Any) -> dict[str, Any]:
    args = {"op_name": type, "provider": CPU, **more}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": begin, "dur": lasts, "ph": "X", "args": args}


def model_run(begin: int, lasts: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": begin, "dur": lasts, "ph": "X", "args": {}}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Events as ONNX Runtime writes them: one on each line."""

    def write(*events: dict[str, Any], end: str = "\n]\n") -> Path:
        path = tmp_path / "profile.json"
        path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + end)
        return path

    return write


def three_runs() -> list[dict[str, Any]]:
    return [
        e for i, lasts in enumerate((50, 30, 20))
        for e in (node("a", 1000 * i, lasts), node("b", 1000 * i + lasts, 5, "Relu"), model_run(1000 * i, lasts + 9))
    ]  # fmt: skip


def test_operators_and_runs(written: Callable[..., Path]) -> None:
    operators, runs = parse(written({"cat": "Session", "name": "session_initialization", "ts": 1, "dur": 9},
                                    *three_runs()))  # fmt: skip
    assert operators == (
        OperatorTime("a", "Conv", CPU, 3, pytest.approx(30e-6), pytest.approx(20e-6)),
        OperatorTime("b", "Relu", CPU, 3, pytest.approx(5e-6), pytest.approx(5e-6)),
    )
    assert runs.samples == pytest.approx((59e-6, 39e-6, 29e-6))


def test_the_first_runs_are_left_out(written: Callable[..., Path]) -> None:
    operators, runs = parse(written(*three_runs()), skip=2)
    assert [(o.runs, o.least_s) for o in operators] == [(1, pytest.approx(20e-6)), (1, pytest.approx(5e-6))]
    assert len(runs.samples) == 1
    with pytest.raises(EnvironmentFailure, match="no whole run"):
        parse(written(*three_runs()), skip=3)


def test_a_profile_that_is_cut_off_anywhere_counts_up_to_its_last_whole_run(tmp_path: Path) -> None:
    lines = [json.dumps(e) + "," for e in three_runs()]
    text, path = "[\n" + "\n".join(lines), tmp_path / "cut.json"
    ends = [len("[\n" + "\n".join(lines[: 3 * (i + 1)])) - 1 for i in range(3)]  # of each run's own event
    for cut in range(0, len(text), 7):
        path.write_text(text[:cut])
        whole = sum(cut >= end for end in ends)
        if whole:
            operators, runs = parse(path)
            assert len(runs.samples) == whole and {o.runs for o in operators} == {whole}
        else:
            with pytest.raises(EnvironmentFailure):
                parse(path)


def test_what_runs_in_a_body_is_not_counted_twice(written: Callable[..., Path]) -> None:
    path = written(
        node("inner", 12, 10, "MatMul"), node("inner", 24, 10, "MatMul"), node("if", 36, 8, "If"),
        node("deep", 38, 4, "Add"), node("loop", 10, 40, "Loop"), node("after", 50, 7), model_run(0, 90),
    )  # fmt: skip
    operators, _ = parse(path)
    times = {o.name: round(o.median_s * 1e6) for o in operators}
    assert times == {"loop": 12, "inner": 20, "if": 4, "deep": 4, "after": 7}


@pytest.mark.parametrize(
    "odd",
    [
        "null", "[]", "{}", "[" * 5000, '{"cat": "Node"}', "x" * 100, '{"cat": "Node", "name": 3, "ts": 1, "dur": 1}',
        json.dumps(node("a", -1, 5)), json.dumps(node("a", 1, 5) | {"dur": 1.5}),
        json.dumps(node("a", 1, 5) | {"args": 3}), json.dumps(node("a", 1, 5, op_name=["Conv"])),
        json.dumps(node("a", 1, 5) | {"ts": True}),
    ],
)  # fmt: skip
def test_what_is_no_event_is_passed_over(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text("\n".join([odd + ",", json.dumps(node("b", 1, 2)) + ",", json.dumps(model_run(0, 9))]))
    operators, runs = parse(path)
    assert [o.name for o in operators] == ["b"] and len(runs.samples) == 1


def test_no_more_than_a_bound_is_read(written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(*three_runs())
    monkeypatch.setattr(profile, "MAX_BYTES", path.stat().st_size // 2)
    assert len(parse(path)[1].samples) == 1


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="can't be read"):
        parse(tmp_path / "none.json")


def with_weights(path: Path, options: Any) -> list[Any]:
    """Random weights for what a sample keeps outside, to be kept alive; positive, so that variances have roots."""
    r = np.random.default_rng(0)
    outside = [t for t in onnx.load(path, load_external_data=False).graph.initializer if t.data_location]
    values = [
        ort.OrtValue.ortvalue_from_numpy(
            (0.02 * np.abs(r.standard_normal(tuple(t.dims), np.float32))).astype(
                helper.tensor_dtype_to_np_dtype(t.data_type)
            )
        )
        for t in outside
    ]
    options.add_external_initializers([t.name for t in outside], values)
    return values


@pytest.mark.parametrize(
    "file, sequence",
    [
        ("samples/resnet50.onnx", 0),
        ("samples/bert-base.onnx", 0),
        ("samples/gpt2.onnx", 0),
        ("samples/minilm-l6-h384.onnx", 16), ("tests/data/keras_cnn.onnx", 0),
    ],
)  # fmt: skip
def test_real_profiles_join_predictions(tmp_path: Path, file: str, sequence: int) -> None:
    path = ROOT / file
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "p")
    kept = with_weights(path, options)
    session = ort.InferenceSession(path, options, providers=[CPU])
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    feed = {
        i.name: np.ones([d if isinstance(d, int) else (sequence if k else 1) for k, d in enumerate(i.shape)],
                        kinds[i.type])
        for i in session.get_inputs()
    }  # fmt: skip
    for _ in range(3):
        session.run(None, feed)
    operators, runs = parse(session.end_profiling(), skip=1)
    del session, kept
    assert len(runs.samples) == 2 and {o.runs for o in operators} == {2}
    prediction = onnxperf.predict(path, gpu="l4", runtime="ort-cpu", dims={"sequence": sequence} if sequence else None)
    found = joined(operators, prediction)
    assert sum(j.measured_s or 0 for j in found) == pytest.approx(sum(map(seconds, operators)))
    assert sum(j.predicted_s or 0 for j in found) == pytest.approx(prediction.sum_seconds)
    matched = {name for j in found if j.predicted_s is not None for name in j.operators}
    heavy = {"Conv", "MatMul", "Gemm", "FusedMatMul", "FusedConv"}
    assert not [o for o in operators if short(o.type) in heavy and o.name not in matched]
    assert not [j for j in found if j.measured_s is None and j.type in heavy]


def chain(count: int) -> onnxperf.Prediction:
    """A prediction with kernels r0, r1, ... of Relu and Sigmoid in turn."""
    names = [f"r{i}" for i in range(count)]
    nodes = [
        helper.make_node(("Relu", "Sigmoid")[i % 2], [f"t{i}"], [f"t{i + 1}"], name=name)
        for i, name in enumerate(names)
    ]
    w = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph(
        [*nodes, helper.make_node("MatMul", [f"t{count}", "w"], ["y"], name="product")], "g",
        [helper.make_tensor_value_info("t0", TensorProto.FLOAT, [64, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [w],
    )  # fmt: skip
    return onnxperf.predict(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), gpu="l4")


def measured(name: str, type: str, microseconds: float = 10.0, provider: str = CUDA) -> OperatorTime:
    return OperatorTime(name, type, provider, 5, microseconds * 1e-6, microseconds * 1e-6)


PREDICTION = chain(4)
TYPES = st.sampled_from(["Relu", "Sigmoid", "MatMul", "com.microsoft::FusedMatMul", "Reshape", ""])
NAMES = st.sampled_from(["r0", "r1_nchwc", "fused r2", "r3_token_7", "product/MatMulScaleFusion/", "node_x", "", "r9"])


@settings(deadline=None)
@given(st.lists(st.builds(measured, NAMES, TYPES, st.floats(0, 1e6, allow_subnormal=False)), max_size=12))
def test_nothing_is_dropped_or_counted_twice(operators: list[OperatorTime]) -> None:
    found = joined(operators, PREDICTION)
    assert [j.name for j in found if j.predicted_s is not None] == [k.name for k in PREDICTION.kernels]
    assert sorted(n for j in found for n in j.operators) == sorted(o.name for o in operators)
    assert sum(j.measured_s or 0 for j in found) == pytest.approx(sum(o.median_s for o in operators))
    sums = by_class(found)
    assert sum(c.measured_s for c in sums) == pytest.approx(sum(o.median_s for o in operators))
    assert sum(c.predicted_s for c in sums) == pytest.approx(PREDICTION.sum_seconds)


def test_names_before_types_and_types_in_order() -> None:
    operators = [
        measured("node_r2_token_3", "Gelu"), measured("r2:0_nchwc", "Conv"), measured("other", "Relu"),
        measured("spare", "Relu"), measured("product/MatMulScaleFusion/", "com.microsoft::FusedMatMul"),
        measured("unlike", "FusedSigmoid"),
    ]  # fmt: skip
    found = joined(operators, PREDICTION)
    assert {j.name: j.operators for j in found} == {
        "r0": ("other",),
        "r1": ("unlike",),
        "r2": ("r2:0_nchwc",),
        "r3": (),
        "product": ("product/MatMulScaleFusion/",),
        "node_r2_token_3": ("node_r2_token_3",),
        "spare": ("spare",),
    }


def test_sums_and_what_is_most_wrong() -> None:
    rows = (
        Joined("a", "Conv", 3e-6, 1e-6, ("a",)), Joined("b", "Conv", 1e-6, None),
        Joined("c", "Add", None, 9e-6, ("c",)), Joined("d", "Relu", 2e-6, None),
    )  # fmt: skip
    assert by_class(rows) == (
        Joined("Add", "Add", 0.0, 9e-6), Joined("Conv", "Conv", pytest.approx(4e-6), 1e-6),
        Joined("Relu", "Relu", 2e-6, 0.0),
    )  # fmt: skip
    assert [j.name for j in worst(rows, 3)] == ["c", "a", "d"]


def test_a_cpu_counts_by_its_undisturbed_run() -> None:
    assert seconds(OperatorTime("a", "Conv", CPU, 5, 9e-6, 4e-6)) == pytest.approx(4e-6 - PROFILER_S)
    assert seconds(OperatorTime("a", "Conv", CPU, 5, 9e-6, 1e-6)) == pytest.approx(1e-6 / 4)
    assert seconds(OperatorTime("a", "Conv", CUDA, 5, 9e-6, 4e-6)) == 9e-6
