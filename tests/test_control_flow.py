"""Loops and branches through the whole house."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import onnxperf
from onnxperf import Prediction, predict
from onnxperf.cli import cli

WIDTH = 256


def value(name: str, kind: int = TensorProto.FLOAT, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def loop(trips: int | None, ends: bool = False) -> onnx.ModelProto:
    """h = relu(h w^T), repeated; the transposition of w stands outside, what each run leaves is collected."""
    row = (1, WIDTH)
    go = helper.make_node("Less", ["i", "limit"], ["again"]) if ends else helper.make_node("Identity", ["c"], ["again"])
    body = helper.make_graph(
        [helper.make_node("MatMul", ["h", "wt"], ["p"], name="mm"), helper.make_node("Relu", ["p"], ["g"]), go],
        "body",
        [value("i", TensorProto.INT64), value("c", TensorProto.BOOL), value("h", TensorProto.FLOAT, *row)],
        [value("again", TensorProto.BOOL), value("g", TensorProto.FLOAT, *row), value("g", TensorProto.FLOAT, *row)],
    )
    stored = {"true": np.array(True), "limit": np.array(3, np.int64)}
    inputs = [value("x", TensorProto.FLOAT, *row), value("w", TensorProto.FLOAT, WIDTH, WIDTH)]
    if trips is None:
        inputs.append(value("M", TensorProto.INT64))
    else:
        stored["M"] = np.array(trips, np.int64)
    nodes = [
        helper.make_node("Transpose", ["w"], ["wt"], name="turn"),
        helper.make_node("Loop", ["M", "true", "x"], ["y", "all"], name="decode", body=body),
    ]
    outputs = [value("y", TensorProto.FLOAT, *row), value("all", TensorProto.FLOAT, "n", *row)]
    constants = [numpy_helper.from_array(v, k) for k, v in stored.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def codes(p: Prediction) -> set[str]:
    return {w.code for w in p.warnings}


@pytest.mark.parametrize("runtime", ["ort-cuda", "tensorrt", "torch-eager"])
def test_a_loop_takes_its_runs(runtime: str) -> None:
    one, ten, thousand = (predict(loop(n), gpu="l4", runtime=runtime) for n in (1, 10, 1000))
    assert [p.work["matrix_flops"] // (2 * WIDTH * WIDTH) for p in (one, ten, thousand)] == [1, 10, 1000]
    assert 80 < (thousand.seconds - one.seconds) / (ten.seconds - one.seconds) < 140
    assert "assumed-trip-count" not in codes(thousand)
    for p in (one, ten, thousand):
        assert sum(k.seconds for k in p.kernels) <= p.seconds
        assert max(p.lower_bound_seconds, p.critical_path_seconds) <= p.seconds
        assert {k.op for k in p.kernels if k.nodes == ("turn",)} <= {"Transpose"}, "what stands outside stays outside"
    twice = predict(loop(2000), gpu="l4", runtime=runtime)
    collected = twice.memory.activations_bytes - thousand.memory.activations_bytes
    assert collected == 1000 * 4 * WIDTH


def test_how_often_only_the_run_knows_is_once_or_as_said() -> None:
    model = loop(None)
    once, twenty = predict(model, gpu="l4"), predict(model, gpu="l4", trip_counts={"decode": 20})
    assert "assumed-trip-count" in codes(once) and "assumed-trip-count" not in codes(twenty)
    assert twenty.work["matrix_flops"] == 20 * once.work["matrix_flops"]


@pytest.mark.parametrize(
    ("model", "terms", "message"),
    [
        (loop(5), {"trip_counts": {"decode": 6}}, "the model itself runs it 5 times"),
        (loop(None), {"trip_counts": {"decoder": 6}}, "'decode'"),
        (loop(None), {"trip_counts": {"decode": -1}}, "trip count"),
        (loop(5), {"cuda_graph": True}, "can't be captured: .*decode"),
    ],
)
def test_what_a_loop_cannot(model: onnx.ModelProto, terms: dict[str, object], message: str) -> None:
    with pytest.raises(onnxperf.UsageError, match=message):
        predict(model, gpu="l4", **terms)  # type: ignore[arg-type]


def test_trip_counts_on_the_command_line(tmp_path: object) -> None:
    path = f"{tmp_path}/loop.onnx"
    onnx.save(loop(None), path)
    run = CliRunner().invoke(cli, ["predict", path, "--gpu", "l4", "--trip-count", "decode=20", "--top", "9"])
    assert run.exit_code == 0
    assert "20 x" in run.stdout and "assumed-trip-count" not in run.stdout
    assert CliRunner().invoke(cli, ["predict", path, "--gpu", "l4", "--trip-count", "decode"]).exit_code != 0
