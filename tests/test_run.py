"""`Run`: stages are made once and shared, devices are columns, and a prediction leads back to it."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from onnx import parser

import gpu_specs
import onnxperf
from onnxperf.answer.prediction import summarise
from onnxperf.ground.errors import UsageError
from onnxperf.latency import estimate
from onnxperf.methods import METHODS
from onnxperf.running.pipeline import Request, run_of
from onnxperf.running.run import Run
from onnxperf.running.scenario import Scenario
from onnxperf.views.headline import scope
from tests.device_files import PROCESSOR
from tests.estimating import predict_on

SAMPLES = Path(__file__).parents[1] / "samples"
#: Pascal, Volta, Turing, Ada and Hopper; and a Jetson module, whose usual host is its own.
CARDS = ("p100-pcie-16gb", "v100-sxm2-16gb", "t4", "l4", "h100-sxm", "agx-orin-64gb")


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cards") / "my-processor.toml"
    path.write_text(PROCESSOR, encoding="utf-8")
    return path


def model(name: str) -> str:
    return str(SAMPLES / f"{name}.onnx")


# stages

#: In the order in which they are made; the memory of tensors is the footprint.
STAGES = ("session_graph", "typed_graph", "run_graph", "footprint", "kernels", "estimates", "host_costs", "timeline")
FROM_RUN_GRAPH = ("run_graph", "footprint", "kernels", "estimates", "timeline")
FROM_KERNELS = ("kernels", "estimates", "timeline")
#: What the graph was loaded with, and what its devices are and are set to: a run is not asked for another.
FIXED = {"model", "gpu", "batch", "inputs", "trip_counts", "power_mode", "power_limit_W", "clock_Hz", "mode",
         "loss", "optimizer", "recompute", "accumulate", "gpus", "parallel", "cluster"}  # fmt: skip
#: For each other term of a scenario another value, and the stages that depend on it.
TERMS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "precision": ("fp16", ("typed_graph", *FROM_RUN_GRAPH)),
    "runtime": ("tensorrt", (*FROM_RUN_GRAPH, "host_costs")),
    "ort_version": ("1.22", (*FROM_RUN_GRAPH, "host_costs")),
    "layout": ("nhwc", (*FROM_RUN_GRAPH, "host_costs")),
    "ort_transformers": (True, FROM_RUN_GRAPH),
    "fix_dims": (True, ("session_graph", "typed_graph", *FROM_RUN_GRAPH)),
    "opt_level": ("basic", FROM_RUN_GRAPH),
    "include_transfers": (True, FROM_KERNELS),
    "pageable": (True, FROM_KERNELS),
    "method": ("sum", ("estimates", "timeline")),
    "host": ("desktop", ("host_costs", "timeline")),
    "streams": (3, ("timeline",)),
    "cuda_graph": (True, ("timeline",)),
    "compile_mode": ("reduce-overhead", (*FROM_RUN_GRAPH, "host_costs")),
}


@pytest.fixture(scope="module")
def run() -> Run:
    return run_of(Request(model("mobilenetv2")), "l4")


def stages(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in STAGES}


@pytest.mark.parametrize("term", sorted({f.name for f in fields(Scenario)} - FIXED))
def test_another_term_redoes_the_stages_that_depend_on_it(run: Run, term: str) -> None:
    value, wanted = TERMS[term]
    first = {"pageable": {"include_transfers": True}, "compile_mode": {"runtime": "torch-compile"}}
    before = run.under(**first.get(term, {}))
    old, new = stages(before), stages(before.under(**{term: value}))
    assert {name for name in STAGES if new[name] is not old[name]} == set(wanted)


@pytest.mark.parametrize("term", [*sorted(FIXED), "precison"])
def test_what_takes_another_graph_or_device_is_refused(run: Run, term: str) -> None:
    with pytest.raises(UsageError, match=f"change its {term}: predict again"):
        run.under(**{term: 1})


def test_cards_that_can_not_share_a_run_are_refused() -> None:
    """The P100 has no unit for INT8 and gets casts of its own."""
    both, _ = (p.run for p in predict_on(["t4", "p100-pcie-16gb"], model("mobilenetv2")))
    with pytest.raises(UsageError, match="t4, p100-pcie-16gb can't share one run in precision int8"):
        both.under(precision="int8")
    for j, gpu in enumerate(("t4", "p100-pcie-16gb")):
        alone = summarise(both.alone(j).under(precision="int8"))
        assert alone.to_dict() == onnxperf.predict(model("mobilenetv2"), gpu=gpu, precision="int8").to_dict()


def test_a_term_that_comes_back_finds_its_stages_again(run: Run) -> None:
    there = run.under(precision="fp16", streams=2)
    again = there.under(method="sum", streams=1).under(precision="keep", method="tile-wave")
    assert stages(again) == stages(run)  # arrays have no order: equal only where they are the same


def test_stages_are_made_once(run: Run) -> None:
    """Also where one summary follows another."""
    first = stages(run)
    assert summarise(run) == summarise(run)
    assert all(stages(run)[name] is first[name] for name in STAGES)


def test_a_term_that_is_wrong_is_refused_before_any_stage(run: Run) -> None:
    with pytest.raises(UsageError, match="unknown method 'guess'"):
        run.under(method="guess")
    with pytest.raises(UsageError, match="needs --streams 1"):
        run.under(cuda_graph=True, streams=2)
    with pytest.raises(UsageError, match="the method sum ignores --cuda-graph"):
        run.under(cuda_graph=True).under(method="sum")


# several devices


def same(a: Any, b: Any) -> None:
    """Equal, numbers to a billionth: sums over one column and over several may round differently."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-9, abs=1e-18)
    else:
        assert a == b


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("mobilenetv2", {}),
        ("distilbert-dynamic", {"dims": {"batch": 2, "sequence": 32}}),
        ("distilbert-dynamic", {"dims": {"batch": 2, "sequence": 32}, "precision": "bf16"}),  # not on every card
        pytest.param("resnet50", {"precision": "fp16"}, marks=pytest.mark.slow),
        pytest.param("lstm", {"batch": 4}, marks=pytest.mark.slow),
    ],
)
def test_several_devices_are_predicted_as_each_alone(processor: Path, name: str, terms: dict[str, Any]) -> None:
    """Cards, a Jetson module with a host of its own, and a processor with a runtime of its own; in that order."""
    gpus = [*CARDS[:3], processor, *CARDS[3:]]
    found = predict_on(gpus, model(name), **terms)
    assert [p.scenario.gpu for p in found] == [*CARDS[:3], "my-processor", *CARDS[3:]]
    assert [p.scenario.runtime for p in found] == [*["ort-cuda"] * 3, "ort-cpu", *["ort-cuda"] * 3]
    assert [p.scenario.host for p in found[4:]] == ["server-2023", "server-2023", "jetson"]
    for gpu, p in zip(gpus, found, strict=True):
        same(p.to_dict(), onnxperf.predict(model(name), gpu=gpu, **terms).to_dict())


@pytest.mark.parametrize(
    "terms",
    [
        {"runtime": "tensorrt", "precision": "int8"},
        {"runtime": "torch-eager", "streams": 3},
        {"method": "roofline"},
        {"cuda_graph": True, "clock_Hz": 1e9, "include_transfers": True},
    ],
)
def test_cards_are_predicted_as_each_alone_under_every_term(terms: dict[str, Any]) -> None:
    for gpu, p in zip(CARDS, predict_on(CARDS, model("mobilenetv2"), **terms), strict=True):
        same(p.to_dict(), onnxperf.predict(model("mobilenetv2"), gpu=gpu, **terms).to_dict())


def test_what_a_name_left_open_is_noted_of_that_card_alone() -> None:
    gpus = ["l4", "h100", "L4", "h100-sxm", "NVIDIA L4"]
    found = predict_on(gpus, model("mobilenetv2"))
    assert [p.scenario.gpu for p in found] == ["l4", "h100-sxm", "l4", "h100-sxm", "l4"]
    notes = [[w.message for w in p.warnings if w.code == "gpu-alias"] for p in found]
    assert notes == [[], ["gpu 'h100' taken as h100-sxm"], [], [], []]
    assert found[0] == found[2] == found[4]
    assert len({id(p.run) for p in found}) == 1


@pytest.mark.parametrize(
    ("gpus", "terms", "says"),
    [
        (["l4", "l5", "t4"], {}, "unknown gpu 'l5'"),
        (["l4", None], {}, "gpu can't be a NoneType"),
        (["l4", ["t4"]], {}, "gpu can't be a list"),
        (["h100-sxm", "t4"], {"clock_Hz": 1e3}, "clock"),
    ],
)
def test_one_card_that_cannot_be_is_named(gpus: Any, terms: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        predict_on(gpus, model("mobilenetv2"), **terms)


def test_a_runtime_that_one_device_does_not_have_is_refused_with_its_name(processor: Path) -> None:
    with pytest.raises(UsageError, match="my-processor is a CPU"):
        predict_on(["l4", processor], model("mobilenetv2"), runtime="tensorrt")


def test_each_card_has_a_largest_batch_of_its_own() -> None:
    text = "g (float[batch,1048576] x) => (float[batch,1048576] y) {a=Relu(x) y=Tanh(a)}"
    wide = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    found = onnxperf.check(wide, gpu=["p4", "t4", "p4"], fit=True, max_ms=1e6)
    assert found[0] == found[2] and 100 < found[0].scenario.batch < found[1].scenario.batch
    assert found[1] == onnxperf.predict(wide, gpu="t4", fit=True, max_ms=1e6)


def test_what_is_inside_the_time_follows_from_the_method_on_a_processor_too(processor: Path) -> None:
    whole, added = (onnxperf.predict(model("mobilenetv2"), gpu=processor, method=m) for m in ("tile-wave", "sum"))
    assert "with the runtime's overhead per operator" in whole.scope and added.seconds < whole.seconds
    assert scope(whole) == "steady state, with the runtime's overhead"
    assert scope(added) == "sum of kernels, without the runtime's overhead"
    assert added.scope.startswith("the sum of all kernels by the sum method; no launch gaps, no host time")


@pytest.mark.parametrize("method", ["sum", "roofline"])
def test_what_a_sum_leaves_out_is_said(method: str) -> None:
    left_out = "no launch gaps, no host time, no power limit, no streams and no CUDA graph"
    assert onnxperf.predict(model("mobilenetv2"), gpu="p4", method=method).scope == (
        f"the sum of all kernels by the {method} method; {left_out}; inputs and outputs stay on the device"
    )


def test_a_processor_is_no_column_beside_a_card(run: Run, processor: Path) -> None:
    devices = [gpu_specs.load("l4"), gpu_specs.load(processor)]
    with pytest.raises(ValueError, match="cards and processors can't be columns of one estimate"):
        estimate(run.kernels, devices, METHODS["tile-wave"])


# from a prediction


def test_a_prediction_leads_back_to_its_run(processor: Path) -> None:
    for p in predict_on([*CARDS, processor], model("mobilenetv2")):
        assert p.run.devices[p.column].id == p.scenario.gpu
        assert p.run.scenario_on(p.column) == p.scenario
        assert p.run.timeline.total_s[p.column] == p.seconds
        assert summarise(p.run, p.column) == p
        other = summarise(p.run.under(method="sum"), p.column)
        assert other.run.kernels is p.run.kernels
        same(
            other.to_dict(), onnxperf.predict(model("mobilenetv2"), gpu=p.run.devices[p.column], method="sum").to_dict()
        )


def test_a_prediction_comes_back_from_a_pickle(processor: Path) -> None:
    """With what its run is made from, but none of the stages: they are made again."""
    for p in predict_on(["h100", "t4", processor], model("mobilenetv2"), precision="fp16"):
        again = pickle.loads(pickle.dumps(p))
        assert again == p and again.to_json() == p.to_json()
        assert again.run is not p.run and again.run.devices == p.run.devices
        assert json.loads(summarise(again.run, again.column).to_json()) == p.to_dict()


def test_a_refused_cuda_graph_names_what_the_host_computes() -> None:
    """STFT has no CUDA kernel: fixed dimensions, which the model has, would not help."""
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[1,256,1] x, float[64] window) => (float[?,?,?,?] y)
      <int64 step = {32}> { a = Relu(x)  s = STFT(a, step, window)  y = Relu(s) }"""
    says = "a CUDA graph can't be captured: STFT_1 runs on the CPU, for want of a CUDA kernel"
    with pytest.raises(UsageError, match=says) as refused:
        onnxperf.predict(parser.parse_model(text), gpu="l4", cuda_graph=True)
    assert "fixed dimensions" not in str(refused.value)
