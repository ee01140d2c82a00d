"""Models that a card computes nothing of, and runtimes that run on processors: what is said, what is suggested."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import ModelProto, helper, parser

from gpu_specs import HOSTS
from onnxperf import Error, predict
from onnxperf.decide.changes import changes
from onnxperf.decide.what_if import what_if

RESNET = Path(__file__).parents[2] / "samples" / "resnet50.onnx"
HEAD = '<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 3]> g '
QUANTISED = (
    HEAD
    + """(uint8[1,256,56,56] x, float s, uint8 z, uint8[256,256,3,3] w) => (uint8[1,256,56,56] y)
{ y = QLinearConv <pads = [1, 1, 1, 1]> (x, s, z, w, s, z, s, z) }"""
)
INTEGERS = HEAD + "(uint8[512,1024] x, uint8[1024,4096] w) => (int32[512,4096] y) { y = MatMulInteger(x, w) }"
SCALER = (
    HEAD
    + """(float[10000,30] x) => (float[10000,30] y)
{ y = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x) }"""
)
UNIQUE = HEAD + "(float[100000] x) => (float[n] y) { y = Unique(x) }"


def model(text: str) -> ModelProto:
    return parser.parse_model(text)


def first_line(text: str, **terms: object) -> str:
    report = predict(model(text), gpu="t4", **terms).report()  # type: ignore[arg-type]
    return " ".join(report.split("80% interval")[0].split())


@pytest.mark.parametrize(
    ("text", "flops"), [(QUANTISED, 2 * 256 * 256 * 9 * 56 * 56), (INTEGERS, 2 * 512 * 1024 * 4096)]
)
def test_products_on_the_host_count(text: str, flops: int) -> None:
    p = predict(model(text), gpu="l4")
    assert not p.kernels and p.work["matrix_flops"] == flops


@pytest.mark.parametrize("text", [QUANTISED, INTEGERS, SCALER, UNIQUE])
def test_a_model_that_runs_wholly_on_the_cpu_says_so_first_and_is_offered_what_runs_it(text: str) -> None:
    p = predict(model(text), gpu="t4")
    cpu = HOSTS["server-2018"].title
    assert f"wholly on the CPU, {cpu}" in first_line(text) and "T4 unused" in first_line(text)
    offered = [c.what for c in changes(p)]
    assert not any("cuda-graph" in what for what in offered)
    for c in changes(p):
        name = next((w.split()[0] for w in c.what.split("--runtime ")[1:]), None)
        if name:
            predict(model(text), gpu="t4", runtime=name)  # is not refused
    with pytest.raises(Error, match=r"CUDA graph can't be captured: .* on the CPU, for want of a CUDA kernel"):
        predict(model(text), gpu="t4", cuda_graph=True)


def test_what_no_gpu_has_is_not_moved_there() -> None:
    p = predict(model(SCALER), gpu="l4")
    assert not any(c.most for c in changes(p)) and not [c for c in what_if(p).changes if c.kind == "fallback"]
    assert "no GPU has kernels for it" in " ".join(p.report().split())
    assert any(c.most for c in changes(predict(model(UNIQUE), gpu="l4")))


def test_pytorch_lacks_products_of_integers() -> None:
    for text in (QUANTISED, INTEGERS, SCALER):
        with pytest.raises(Error, match="PyTorch has no"):
            predict(model(text), gpu="l4", runtime="torch-eager")


def test_a_runtime_on_processors_is_predicted_on_the_host_of_the_card() -> None:
    p = predict(RESNET, gpu="t4", runtime="ort-cpu")
    host = HOSTS["server-2018"]
    assert (p.device.kind, p.scenario.gpu, p.device.name) == ("cpu", "server-2018", host.title)
    assert host.title in p.report().splitlines()[0] and "T4" not in p.report().splitlines()[0]
    [note] = [n for n in p.warnings if n.code == "other-device"]
    assert "the time is that of a server CPU of 2017 to 2019" in note.message and "Tesla T4" in note.message
    assert p.seconds == predict(RESNET, gpu="v100-sxm2-16gb", runtime="ort-cpu").seconds
    assert p.seconds == predict(RESNET, gpu="l4", runtime="ort-cpu", host="server-2018").seconds
    assert predict(RESNET, gpu="t4", runtime="ort-cpu", host="desktop").seconds < p.seconds
    assert p.watts is None and "4 otherwise idle cores" in p.scope


def test_what_depends_on_the_data_has_a_note_and_a_wide_range() -> None:
    p, known = predict(model(UNIQUE), gpu="l4"), predict(model(SCALER), gpu="l4")
    [note] = [n for n in p.warnings if n.code == "unknown-work"]
    assert "Unique takes depends on the data: all values are assumed to be distinct" in note.message
    assert p.high_seconds / p.seconds > 3 > 2 > known.high_seconds / known.seconds > 1.4


def test_an_operator_on_the_host_that_nobody_knows_says_so() -> None:
    node = helper.make_node("BifurcationDetector", ["s", "c", "p"], ["t"], domain="com.microsoft")
    names = {"s": 4000, "c": 4000, "p": 1}
    given = [helper.make_tensor_value_info(n, 7, [size]) for n, size in names.items()]
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("t", 7, [4000])])
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=9
    )
    p = predict(made, gpu="l4")
    [note] = [n for n in p.warnings if n.code == "assumed-operator"]
    assert note.message.startswith("unknown work: no rule fits com.microsoft::BifurcationDetector")
    assert p.high_seconds / p.seconds > 1.3  # the rest of so short a run is the runtime's own
