"""ONNX Runtime Training: its gradient graphs are those that onnxruntime-training writes."""

from __future__ import annotations

import json
from typing import Any

import onnx
import pytest

from onnxperf import Prediction, UsageError, predict
from onnxperf.fusions.engine import optimise
from onnxperf.lowering.runtime import optimised_step
from onnxperf.passes.ort_training import ORT
from onnxperf.passes.tape import PHASES, phase_of
from onnxperf.passes.training import Training, training_step
from onnxperf.runtimes import RUNTIMES
from tests.passes.ort_gradients import CASES, EXPECTED, FOLDER, counted, model_of

HELD = FOLDER / "held" / "resnet.onnx"  # what onnxruntime-training makes of resnet.onnx there
FOUND = json.loads(EXPECTED.read_text(encoding="utf-8"))


def step(model: Any, **terms: Any) -> Prediction:
    return predict(model, gpu="a100", runtime="ort-cuda", mode="training", **terms)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_gradient_builder(name: str) -> None:
    g = training_step(step(model_of(name)).run.typed_graph, Training(optimizer="none"), ORT)
    own = [o.type for o in g.operators if phase_of(o) == "backward" and o.name.startswith("op#")]
    assert counted(own) == FOUND["cases"][name]


@pytest.mark.parametrize("name", FOUND["models"])
def test_whole_steps_are_those_of_a_session(name: str) -> None:
    """Beside what only a processor fuses: a Gemm and the activation behind it."""
    runtime, graph = RUNTIMES["ort-cuda"].training, step(FOLDER / f"{name}.onnx").run.typed_graph
    assert runtime
    made = training_step(optimise(graph, runtime.before_training, 3), Training("cross-entropy", "none"), ORT)
    assert counted([o.type for o in optimised_step(made, runtime, 3).operators]) == FOUND["models"][name]


def test_a_graph_that_holds_its_backward_pass_is_taken_as_it_is() -> None:
    made, own = step(FOLDER / "resnet.onnx", loss="cross-entropy"), step(HELD)
    assert sum(k.work.matrix_flops for k in own.run.kernels.rows) == sum(
        k.work.matrix_flops for k in made.run.kernels.rows
    )
    assert own.training and made.training and own.training["gradient_bytes"] == made.training["gradient_bytes"]
    assert own.training["optimizer_bytes"] == made.training["optimizer_bytes"] == 2 * own.training["gradient_bytes"]
    for phase in PHASES:
        assert own.training[f"{phase}_seconds"] == pytest.approx(made.training[f"{phase}_seconds"], rel=0.05)
    assert not [n for n in own.warnings if n.code in ("assumed-operator", "assumed-shape")]
    with pytest.raises(UsageError, match="the model already has its backward pass"):
        step(HELD, loss="mse")


def test_no_measurement_confirms_it() -> None:
    p = step(FOLDER / "resnet.onnx")
    assert [n.code for n in p.warnings].count("unvalidated") == 1 and p.high_seconds > 1.8 * p.seconds
    assert p.run.runtime.title == "ONNX Runtime Training"
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
    g (float[8, 8] x, float[8, 8] w) => (float[8, 8] y) { y = Mish(x) }""")
    with pytest.raises(UsageError, match="no trainable parameters"):
        step(model)
    model.graph.initializer.add(name="w", dims=(8, 8), data_type=1, data_location=1).external_data.add(
        key="location", value="w.bin"
    )
    model.graph.node.insert(0, onnx.helper.make_node("MatMul", ["x", "w"], ["h"]))
    model.graph.node[1].input[0] = "h"
    with pytest.raises(UsageError, match="ONNX Runtime Training: no gradient is defined for Mish"):
        step(model)


@pytest.mark.parametrize("type", ["ConvGrad", "LayerNormalizationGrad", "GatherGrad", "SoftmaxCrossEntropyLossGrad"])
def test_gradients_of_a_broken_file_cost_their_bytes(type: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[8, 8] x) => (float[8, 8] y) {{ h = Relu(x) y = com.microsoft.{type}(h) }}""")
    assert predict(model, gpu="a100").seconds > 0
