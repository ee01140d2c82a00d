"""Measured operators beside predicted kernels: of real profiles, and of names and types that are made up."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import onnxperf
from onnxperf.calibrate.matching import Joined, by_type, joined, worst
from onnxperf.ground.tables import short_type
from onnxperf.measure.profile import parse
from onnxperf.measure.record import OperatorTime
from tests.measure.conftest import CPU, CUDA, ROOT

ort = pytest.importorskip("onnxruntime")


def with_weights(path: Path, options: Any) -> list[Any]:
    """Weights for what a sample keeps outside, to be kept alive; positive, so that variances have roots."""
    outside = [t for t in onnx.load(path, load_external_data=False).graph.initializer if t.data_location]
    values = [
        ort.OrtValue.ortvalue_from_numpy(np.full(tuple(t.dims), 0.02, helper.tensor_dtype_to_np_dtype(t.data_type)))
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
    assert sum(j.measured_s or 0 for j in found) == pytest.approx(sum(o.seconds for o in operators))
    assert sum(j.predicted_s or 0 for j in found) == pytest.approx(prediction.sum_seconds)
    matched = {name for j in found if j.predicted_s is not None for name in j.operators}
    heavy = {"Conv", "MatMul", "Gemm", "FusedMatMul", "FusedConv"}
    assert not [o for o in operators if short_type(o.type) in heavy and o.name not in matched]
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
    sums = by_type(found)
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
    assert by_type(rows) == (
        Joined("Add", "Add", 0.0, 9e-6), Joined("Conv", "Conv", pytest.approx(4e-6), 1e-6),
        Joined("Relu", "Relu", 2e-6, 0.0),
    )  # fmt: skip
    assert [j.name for j in worst(rows, 3)] == ["c", "a", "d"]
