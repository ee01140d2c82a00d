"""A measured model made up from its own prediction, the files it is written to, and the command line on them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx import parser

import onnxperf
from gpu_specs import Device
from onnxperf import cli
from onnxperf.graph.skeleton import skeleton
from onnxperf.measure.files import write
from onnxperf.measure.record import Measurement, OperatorTime, Place, Setting, Subject, WarmUp
from onnxperf.measure.series import Series

MODEL = """<ir_version: 10, opset_import: ["" : 20]>
small (float[batch,256] x) => (float[batch,batch] y) {
  t = Transpose(x)
  h = MatMul(x, t)
  m = Mul(h, h)
  r = Tanh(m)
  y = Softmax(r)
}"""
L4 = Place("gpu", "l4", "NVIDIA L4", 24 * 10**9, 0, "550.54")
HOSTILE = "[red]a\x1b[31m|b\x07"
PROCESSOR = """name = "{}"
kind = "cpu"
architecture = "x86-64"
[processor]
cores = 1
lanes = 32
boost_MHz = 3500
[memory]
memory_kind = "DDR5"
bandwidth_GBps = 15.7
capacity_GiB = 23
l2_MiB = 2
l3_MiB = 30
[dense_TFLOPS]
fp32 = 0.224
[[source]]
status = "unverified"
text = "made up"
facts = [
    "architecture", "cores", "lanes", "boost_MHz", "memory_kind", "bandwidth_GBps", "capacity_GiB", "l2_MiB", "l3_MiB",
    "fp32",
]
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of five operators with an open batch."""
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    path.write_bytes(parser.parse_model(MODEL).SerializeToString())
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def of(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["onnxperf", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return of


def made_up(model: Path, factor: float, place: Place = L4, gpu: str | Device = "l4", **other: Any) -> Measurement:
    """A measurement that took `factor` times as long as predicted, operators as well; and one that nobody predicts."""
    runtime = "ort-cpu" if place.kind == "cpu" else "ort-cuda"
    p = onnxperf.predict(model, gpu=gpu, batch=8, runtime=runtime)
    provider = "CPUExecutionProvider" if place.kind == "cpu" else "CUDAExecutionProvider"
    operators = [OperatorTime(k.name, k.op, provider, 20, factor * k.seconds, factor * k.seconds) for k in p.kernels]
    times = Series((factor * p.seconds,) * 7)
    setting = Setting(runtime, "all", "keep", 8, p.scenario.inputs, (("use_tf32", "1"),), (("onnxruntime", "1.31.1"),))
    m = Measurement(
        "2026-03-01T12:00:00+00:00", Subject(model.name, "ab" * 32, 20, "stored", skeleton(model)), place, setting,
        "events", "one run", WarmUp(1.0, 0.1, 10, 0.2, True), times, times, times,
        (*operators, OperatorTime(HOSTILE, "Identity", provider, 20, 1e-6, 1e-6)),
    )  # fmt: skip
    return replace(m, **other)


def put(path: Path, m: Measurement) -> Path:
    path.write_text(write(m), encoding="utf-8")
    return path
