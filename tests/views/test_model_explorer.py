"""What Model Explorer shows of a prediction: a value for each node, by the ids that its adapter for ONNX gives.

The ids here were read off model-explorer-onnx 0.4.2 with onnx-ir 1.1.
"""

from __future__ import annotations

import json
from math import fsum
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxperf
from onnxperf.graph.explorer import Place, places
from onnxperf.ground.errors import UsageError
from onnxperf.views.netron import costs

CONTROL = """<ir_version: 10, opset_import: ["" : 20]> g (float[64,64] x, bool c) => (float[64,64] y) {
  a = Tanh(x)
  b = If (c) <then_branch = t () => (float[64,64] r) { r0 = Exp(a) r = Relu(r0) },
              else_branch = e () => (float[64,64] s) { s = Sqrt(a) }>
  n = Constant<value = int64 {3}>()
  k = Constant<value = bool {1}>()
  l = Loop (n, k, b) <body = body (int64 i, bool ci, float[64,64] v) => (bool co, float[64,64] w) {
    co = Identity(ci) w1 = Sin(v)
    w = Loop (n, co, w1) <body = inner (int64 i2, bool ci2, float[64,64] v2) => (bool co2, float[64,64] w2) {
      co2 = Identity(ci2) w2 = Cos(v2) }> }>
  y = MatMul(l, l)
}"""


@pytest.fixture
def control() -> onnx.ModelProto:
    """A branch, a loop in a loop, and no names."""
    return onnx.parser.parse_model(CONTROL)


def test_ids_are_those_of_the_adapter(control: onnx.ModelProto) -> None:
    main, shown = places(control)
    assert main == "g"
    assert shown["Tanh_0"] == (Place("g", "node"),)
    assert shown["If_1/Relu_1"] == (Place("g", "node_1/then_branch/node_2"),)
    assert shown["If_1/Sqrt_0"] == (Place("g", "node_1/else_branch/node"),)
    loop = Place("g", "node_5")
    assert shown["Loop_4"] == (loop,) and shown["MatMul_5"] == (Place("g", "node_9"),)
    assert shown["Loop_4/Sin_1"] == (Place("node_5/body", "node_6"), loop)
    assert shown["Loop_4/Loop_2/Cos_1"] == (Place("node_5/body", "node_7"), loop)  # its own graph is not shown
    for node in control.graph.node:
        node.name = "same"
    assert places(control)[1]["same_5"] == (Place("g", "same_5"),)


@pytest.mark.parametrize(("value", "of"), [("time", 1e6), ("flops", 1e-6), ("bytes", 1e-6)])
def test_values_of_the_main_graph_add_up_to_those_of_kernels(control: onnx.ModelProto, value: str, of: float) -> None:
    p = onnxperf.predict(control, gpu="l4")
    data = json.loads(p.to_model_explorer(control, value))
    assert data.keys() == {"g", "node_5/body"} and data["g"]["gradient"][-1]["stop"] == 1
    shown = fsum(x["value"] for x in data["g"]["results"].values())
    whole = {
        "time": sum(k.seconds for k in p.kernels) + sum(o.seconds for o in p.cpu_operators),
        "flops": sum(k.flops for k in p.kernels), "bytes": sum(k.bytes_read + k.bytes_written for k in p.kernels),
    }  # fmt: skip
    assert shown == pytest.approx(whole[value] * of, rel=1e-3) and shown > 0
    assert "of all" not in data["g"]["name"]
    inside = data["node_5/body"]["results"]
    assert inside["node_7"]["value"] < data["g"]["results"]["node_5"]["value"]


def test_nodes_of_a_kernel_name_its_first_one(model: Path) -> None:
    p = onnxperf.predict(model, gpu="l4", batch=1, runtime="tensorrt")
    (data,) = json.loads(p.to_model_explorer(model, "bound_by")).values()
    said = {node: result["value"] for node, result in data["results"].items()}
    every = costs(p)
    assert said == {node: f"fused into {c.fused_into}" if c.fused_into else c.bound for node, c in every.items()}
    assert any(c.fused_into for c in every.values()) and said["/layer0/Conv"] in p.bound_by
    (times,) = json.loads(p.to_model_explorer(model)).values()
    assert {n for n, x in times["results"].items() if not x["value"]} == {n for n, c in every.items() if c.fused_into}


def test_the_name_says_how_much_belongs_to_no_node(model: Path) -> None:
    p = onnxperf.predict(model, gpu="l4", batch=1, runtime="torch-eager", mode="training")
    (data,) = json.loads(p.to_model_explorer(model)).values()
    share = fsum(x["value"] for x in data["results"].values()) / 1e6 / fsum(k.seconds for k in p.kernels)
    assert data["name"] == f"time, us: {share:.0%} of all" and 0.5 < share < 0.99


def test_the_option_writes_a_file_for_each_value(onnxperf_cli: Any, model: Path, tmp_path: Path) -> None:
    ask = ("predict", model, "--gpu", "l4", "--batch", "1", "--model-explorer")
    assert onnxperf_cli(*ask, tmp_path / "a.json")[0] == 0
    p = onnxperf.predict(model, gpu="l4", batch=1)
    values = {"a.json": "time", **{f"a.{value}.json": value for value in ("flops", "bytes", "bound_by")}}
    assert {f.name: f.read_text() for f in tmp_path.iterdir()} == {
        name: p.to_model_explorer(model, value) + "\n" for name, value in values.items()
    }
    code, _, err = onnxperf_cli(*ask, tmp_path / "a.json", "--trace", tmp_path / "a.flops.json")
    assert code == 2 and "--trace and --model-explorer (flops) would both write" in err
    code, _, err = onnxperf_cli(*ask, tmp_path / "a.txt")
    assert code == 2 and "the name must end with .json" in err


def test_what_can_not_be_shown_is_told(model: Path) -> None:
    p = onnxperf.predict(model, gpu="l4", batch=1)
    with pytest.raises(UsageError, match="value must be one of time, flops, bytes, bound_by"):
        p.to_model_explorer(model, "watts")
    called = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "own" : 1]> g (float[64,64] x) => (float[64,64] y) { y = own.F(x) }'
        '<domain: "own", opset_import: ["" : 20]> F (a) => (b) { b = Tanh(a) }'
    )
    with pytest.raises(UsageError, match="Model Explorer shows functions apart"):
        onnxperf.predict(called, gpu="l4").to_model_explorer(called)
