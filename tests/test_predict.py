"""The contracts of `predict`, over samples, light models, runtimes, methods, precisions and levels."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import jsonschema
import networkx
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser
from rich.console import Console

import gpu_specs
import onnxperf
from onnxperf import Prediction, predict
from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.answer.outline import _busy
from onnxperf.answer.prediction import _shares
from onnxperf.graph import read
from onnxperf.ground.names import AMP, PRECISIONS
from onnxperf.ground.tables import size
from onnxperf.methods import METHODS
from onnxperf.running.largest import MAX_BATCH
from onnxperf.running.scenario import PLATFORMS
from onnxperf.runtimes import LEVELS, RUNTIMES
from onnxperf.views.prediction import show
from tests.zoo import PLAIN, sizes

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "samples"
LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))
OPEN = {"batch": 2, "sequence": 32}
SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "onnxperf/answer/prediction.schema.json").read_text()))
KEYS = (
    "schema_version onnxperf_version model gpu runtime precision method batch streams cuda_graph inputs{name shape}"
    " device_name host latency{seconds low_seconds high_seconds interval scope} accuracy{status error why page}"
    " sum_seconds critical_path_seconds lower_bound_seconds throughput_per_second"
    " bound_by{compute memory latency launch cpu transfer communication}"
    " work{matrix_flops vector_flops flops bytes_read bytes_written}"
    " memory{weights_bytes activations_bytes workspace_bytes total_bytes capacity_bytes fits process_bytes"
    " context_bytes host_bytes} energy{watts joules joules_per_sample} gaps{before after seconds stalled_on}"
    " kernels{name nodes op seconds low_seconds high_seconds flops bytes_read bytes_written bound_by source"
    " start_seconds stream module} cpu_operators{name nodes op seconds} warnings{code message nodes}"
)


#: Older releases that load the samples, which are of opset 20 at most.
LOADING = {
    "ort-cpu": ("1.17",),
    "ort-cuda": ("1.17", "1.22"),
    "tensorrt": ("10.0",),
    "torch-compile": ("2.9",),
    "torch-eager": (),
}
#: Every runtime, its older releases, and with the layouts that are not its usual one.
RUNS = [
    {"runtime": r.name, **more} for r in RUNTIMES.values()
    for more in ({}, *({"ort_version": v} for v in LOADING[r.name]), *({"layout": v} for v in [*r.layouts][1:]))
]  # fmt: skip


def cases() -> Iterator[Any]:
    """Every sample with two runtimes, and with one of the older releases and other layouts every second; every runtime
    with every method; every precision, level and term with some; every light model.
    """
    usual, others = [run for run in RUNS if len(run) == 1], [run for run in RUNS if len(run) > 1]
    for i, path in enumerate(PLAIN):
        dims = OPEN if "dynamic" in path.stem else sizes(path)
        more = [others[i // 2 % len(others)]] if i % 2 else []
        for j, run in enumerate([*(usual[(i + k) % len(usual)] for k in (0, 2)), *more]):
            yield path, {**run, "method": ("roofline", "sum", "tile-wave")[(i + j) % 3], "dims": dims}
    dynamic, image = SAMPLES / "distilbert-dynamic.onnx", SAMPLES / "mobilenetv2.onnx"
    for i, name in enumerate(PRECISIONS):
        able = RUNS if name != AMP else [r for r in RUNS if RUNTIMES[r["runtime"]].autocast]
        lacking = PLATFORMS["cpu"].lacks
        tried = [r for j, r in enumerate(able) if len(r) == 1 or (i + j) % 3 == 0]  # of releases and layouts a third
        for run in (r for r in tried if name not in lacking or RUNTIMES[r["runtime"]].kind == "gpu"):
            gpu = gpu_specs.ids()[i]
            yield dynamic, {"precision": name, **run, "dims": OPEN, "gpu": gpu}
            if len(run) == 1:
                yield image, {"precision": name, **run, "method": ("roofline", "sum", "tile-wave")[i % 3], "gpu": gpu}
    for level in LEVELS:
        yield dynamic, {"opt_level": level, "dims": OPEN, "include_transfers": True}
        yield image, {"opt_level": level, "streams": 3}
    yield dynamic, {"streams": 4, "dims": OPEN, "include_transfers": True}
    yield dynamic, {"streams": 64, "dims": OPEN, "precision": "fp16", "runtime": "torch-eager"}
    yield image, {"cuda_graph": True, "include_transfers": True}
    for path in LIGHT:
        yield path, {"gpu": "t4"}


def named(case: Any) -> str:
    return f"{case[0].stem}-" + "-".join(str(v) for k, v in case[1].items() if k != "dims")


#: Every thirteenth stands for its like in the quick loop, where each runtime, method and light model is.
CASES = [
    pytest.param(case, marks=() if i % 13 == 0 or case[0] in LIGHT else pytest.mark.slow)
    for i, case in enumerate(cases())
]


def outline(value: Any) -> str:
    """The keys of JSON in their order, nested ones in braces; of a list its first element's."""
    if isinstance(value, list):
        return outline(value[0]) if value else ""
    return "{" + " ".join(k + outline(v) for k, v in value.items()) + "}" if isinstance(value, dict) else ""


#: Texts that the schema leaves free.
FREE = ("name", "op", "module", "before", "after", "message")


def apart(value: Any, key: str = "") -> Any:
    """What the schema tells values by: type, sign and wholeness of numbers, texts that are not free, what is inside."""
    if isinstance(value, dict):
        return tuple((k, apart(v, k)) for k, v in value.items())
    if isinstance(value, list):
        return tuple(sorted({apart(v) if isinstance(v, dict) else type(v).__name__ for v in value}))
    if isinstance(value, str):
        return "" if key in FREE else value
    return type(value), value is not None and (value > 0, value < 0, value % 1 == 0)


def thinned(plain: dict[str, Any]) -> dict[str, Any]:
    """JSON in which one row of each list stands for those that the schema can't tell from it: thousands of kernels take
    longer to validate than to predict.
    """
    rows = {key: value for key, value in plain.items() if isinstance(value, list) and value and key != "inputs"}
    return plain | {key: [*{apart(row): row for row in value}.values()] for key, value in rows.items()}


def test_rows_that_the_schema_tells_apart_are_kept(image: Prediction) -> None:
    plain = image.to_dict()
    assert len(thinned(plain)["kernels"]) < len(plain["kernels"]) / 2
    for wrong in ({"seconds": 0.0}, {"flops": 0.5}, {"bytes_read": -1}, {"bound_by": "luck"}, {"nodes": [1]}, {"x": 1}):
        odd = {**plain, "kernels": [*plain["kernels"][:-2], plain["kernels"][-2] | wrong, plain["kernels"][-1]]}
        assert not SCHEMA.is_valid(odd) and not SCHEMA.is_valid(thinned(odd)), wrong


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_contracts_hold(case: Any) -> None:
    path, terms = case
    p = predict(path, **{"gpu": "l4", **terms})
    plain = json.loads(p.to_json())
    SCHEMA.validate(thinned(plain))
    assert plain == p.to_dict()
    wanted = KEYS if p.warnings else KEYS.replace("warnings{code message nodes}", "warnings")
    wanted = wanted if p.cpu_operators else wanted.replace("{name nodes op seconds} ", " ")
    wanted = wanted if p.watts is not None else wanted.replace("energy{watts joules joules_per_sample}", "energy")
    wanted = wanted if p.gaps else wanted.replace("gaps{before after seconds stalled_on}", "gaps")
    wanted = wanted if p.scenario.inputs else wanted.replace("inputs{name shape}", "inputs")
    wanted = wanted.replace(" runtime ", " runtime ort_version ") if "ort_version" in terms else wanted
    wanted = wanted.replace(" precision ", " precision layout ") if "layout" in terms else wanted
    wanted = wanted.replace(" gaps", f" trtexec{{{' '.join(p.trtexec.to_dict())}}} gaps") if p.trtexec else wanted
    assert outline(plain) == "{" + wanted + "}"

    assert 0 < p.low_seconds <= p.seconds <= p.high_seconds < 10
    assert 0 <= p.lower_bound_seconds <= p.low_seconds
    assert max(p.lower_bound_seconds, p.critical_path_seconds) <= p.seconds * (1 + 1e-12)
    assert p.critical_path_seconds <= p.sum_seconds * (1 + 1e-12)
    one_stream = p.scenario.streams == 1
    assert p.sum_seconds <= p.seconds * (1 + 1e-12) or not one_stream
    assert sum(p.bound_by.values()) == pytest.approx(1)
    assert p.throughput_per_second == pytest.approx(p.scenario.batch / p.seconds)
    assert p.interval == 0.8
    rest = p.run.constants.power["static_share"] * p.device.tdp_W
    assert p.device.kind == "cpu" if p.watts is None else rest < p.watts <= p.device.tdp_W
    if p.joules is not None and p.joules_per_sample is not None:
        assert p.joules == pytest.approx(p.watts * p.seconds) == pytest.approx(p.joules_per_sample * p.scenario.batch)
    if p.scenario.method != "tile-wave":
        assert p.seconds == pytest.approx(p.sum_seconds)

    assert p.sum_seconds == pytest.approx(sum(k.seconds for k in p.kernels))
    for name in ("bytes_read", "bytes_written"):
        assert p.work[name] == sum(getattr(k, name) for k in p.kernels)
    on_host = sum(n.repeat * n.work.flops for n in p.run.kernels.on_host if n.work is not None)
    assert p.work["flops"] == sum(k.flops for k in p.kernels) + on_host
    assert p.work["flops"] == p.work["matrix_flops"] + p.work["vector_flops"]
    nodes = {n.name or f"{n.op_type}_{i}" for i, n in enumerate(onnx.load(path, load_external_data=False).graph.node)}
    for k, json_kernel in zip(p.kernels, plain["kernels"], strict=True):
        assert all(json_kernel[key] == getattr(k, key) for key in json_kernel if key != "nodes")
        assert tuple(json_kernel["nodes"]) == k.nodes
        assert 0 < k.low_seconds <= k.seconds <= k.high_seconds < 10
        assert isfinite(k.start_seconds) and k.start_seconds + k.seconds <= p.seconds * (1 + 1e-12)
        assert nodes.issuperset(k.nodes) and (k.nodes or k.op == "Transfer")

    for stream in {k.stream for k in p.kernels}:
        on_it = sorted((k.start_seconds, k.start_seconds + k.seconds) for k in p.kernels if k.stream == stream)
        assert all(b[0] >= a[1] - 1e-12 for a, b in pairwise(on_it))

    dag = p.graph
    assert networkx.is_directed_acyclic_graph(dag)
    assert len(dag) == len(p.kernels)
    finish: dict[str, float] = {}
    for name in networkx.topological_sort(dag):
        assert dag.nodes[name]["kernel"].seconds == dag.nodes[name]["seconds"]
        finish[name] = dag.nodes[name]["seconds"] + max((finish[b] for b in dag.predecessors(name)), default=0.0)
    assert max(finish.values()) == pytest.approx(p.critical_path_seconds)


def test_the_json_names_an_older_release_only_where_one_was_asked_for() -> None:
    for terms, more in (({}, set()), ({"ort_version": "1.17"}, {"ort_version"})):
        plain = predict(SAMPLES / "mobilenetv2.onnx", gpu="l4", **terms).to_dict()
        SCHEMA.validate(plain)
        assert plain.keys() - SCHEMA.schema["required"] == more


@pytest.fixture(scope="module")
def image() -> Prediction:
    return predict(SAMPLES / "mobilenetv2.onnx", gpu="a100-sxm4-80gb")


def test_a_prediction_is_frozen(image: Prediction) -> None:
    for target, name in ((image, "seconds"), (image.kernels[0], "seconds"), (image.memory, "weights_bytes")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(target, name, 1)
    image.to_dict()["bound_by"]["compute"] = image.bound_by["compute"] = 7.0
    assert image.bound_by["compute"] < 1
    assert hash(image) == hash(pickle.loads(pickle.dumps(image)))


def busy(rows: Sequence[KernelPrediction]) -> float:
    """Seconds in which any of these kernels runs."""
    start, seconds = ([[getattr(k, name)] for k in rows] for name in ("start_seconds", "seconds"))
    return float(_busy(np.array(start), np.array(seconds))[0])


def test_overlapping_kernels_share_the_time_in_which_any_ran(image: Prediction) -> None:
    k = image.kernels[0]
    first = dataclasses.replace(k, start_seconds=0.0, seconds=4.0, bound_by="compute")
    second = dataclasses.replace(k, start_seconds=2.0, seconds=4.0, bound_by="memory")
    shares = dict(_shares((first, second), busy((first, second)), 10.0))
    assert {n: s for n, s in shares.items() if s} == {"compute": 0.3, "memory": 0.3, "launch": pytest.approx(0.4)}


@given(st.lists(st.floats(1e-7, 1e-2), min_size=1, max_size=20))
def test_a_share_is_never_above_one(image: Prediction, seconds: list[float]) -> None:
    ends = np.cumsum(seconds)
    rows = [
        dataclasses.replace(image.kernels[0], start_seconds=float(end - s), seconds=s, bound_by="memory")
        for s, end in zip(seconds, ends, strict=True)
    ]
    total = float(ends[-1])
    shares = dict(_shares(tuple(rows), min(busy(rows), total), total))
    assert max(shares.values()) <= 1
    assert sum(shares.values()) == pytest.approx(1)


def test_every_way_to_give_a_model(image: Prediction) -> None:
    path = SAMPLES / "mobilenetv2.onnx"
    proto = onnx.load(path, load_external_data=False)
    before = proto.SerializeToString(deterministic=True)
    for model in (str(path), path, path.read_bytes(), proto):
        p = predict(model, gpu="a100-sxm4-80gb")
        same = dataclasses.replace(p, scenario=image.scenario)
        assert same == image, "only the name tells them apart"
    assert proto.SerializeToString(deterministic=True) == before
    assert (p.scenario.model, image.scenario.model) == (proto.graph.name, path.name)


def test_every_way_to_give_a_card() -> None:
    card = ROOT / "gpu_specs/cards/l4.toml"
    ways: list[Any] = ["l4", "L4", "NVIDIA L4", str(card), card, gpu_specs.load("l4")]
    answers = [predict(SAMPLES / "resnet50.onnx", gpu=gpu).to_dict() for gpu in ways]
    assert [a.pop("device_file", "") for a in answers] == ["", "", "", str(card), str(card), ""]
    assert all(a == answers[0] for a in answers)
    note = predict(SAMPLES / "resnet50.onnx", gpu="a100").warnings[0]
    assert note.code == "gpu-alias" and "a100" in note.message


def test_example_inputs_by_order_and_by_name() -> None:
    path = SAMPLES / "distilbert-dynamic.onnx"
    ids = np.zeros((3, 40), np.int64)
    wanted = predict(path, gpu="l4", dims={"batch": 3, "sequence": 40})
    assert wanted.scenario.batch == 3
    for examples in ([ids, ids], (ids, ids), {"input_ids": ids, "attention_mask": ids}):
        assert predict(path, examples, gpu="l4") == wanted
    assert predict(path, gpu="l4", shapes={"input_ids": (3, 40), "attention_mask": (3, 40)}) == wanted
    assert predict(path, gpu="l4", batch=3, dims={"sequence": 40}) == wanted


SMALL = "<ir_version: 9, opset_import: ['' : 20]> g ".replace("'", '"')
RELU = parser.parse_model(SMALL + "(float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
SQUEEZED = parser.parse_model(SMALL + "(float[1,4] x) => (float[4] y) { y = Squeeze(x) }")
BROKEN = parser.parse_model(SMALL + "(float[3,4] x, float[5,6] z) => (float[N,M] y) { y = MatMul(x, z) }")
SHAPED = parser.parse_model(SMALL + "(float[N,4] x, float[4] z) => (float[A,B] y) {s = Shape(x) u = Expand(z, s)"
                            " c = Cast<to=1>(s) r = ReduceMax<keepdims=0>(c) y = Mul(u, r)}")  # fmt: skip


@pytest.mark.parametrize(
    ("model", "terms", "error", "says"),
    [
        ("nowhere.onnx", {}, onnxperf.UsageError, "nowhere.onnx"),
        (SAMPLES, {}, onnxperf.UsageError, "folder"),
        (7, {}, onnxperf.UsageError, "int"),
        (b"", {}, onnxperf.ModelError, "empty"),
        (b"no model", {}, onnxperf.ModelError, "not an ONNX model"),
        (BROKEN, {}, onnxperf.ModelError, "MatMul"),
        (RELU, {"gpu": "l5"}, onnxperf.UsageError, "l5"),
        (RELU, {"gpu": ""}, onnxperf.UsageError, "gpu"),
        (RELU, {"gpu": "nowhere.toml"}, onnxperf.UsageError, "nowhere.toml"),
        (RELU, {"gpu": str(SAMPLES / "flops.json")}, onnxperf.UsageError, "flops.json"),
        (RELU, {"gpu": 4}, onnxperf.UsageError, "int"),
        (RELU, {"gpu": b"l4"}, onnxperf.UsageError, "bytes"),
        (RELU, {"gpu": None}, onnxperf.UsageError, "name the card"),
        (RELU, {"runtime": "ort"}, onnxperf.UsageError, "ort-cuda"),
        (RELU, {"method": "guess"}, onnxperf.UsageError, "tile-wave"),
        (RELU, {"precision": "fp15"}, onnxperf.UsageError, "fp16"),
        (RELU, {"precision": ["fp16"]}, onnxperf.UsageError, "fp16"),
        (RELU, {"opt_level": "most"}, onnxperf.UsageError, "extended"),
        (RELU, {"streams": 0}, onnxperf.UsageError, "streams"),
        (RELU, {"streams": 65}, onnxperf.UsageError, "64"),
        (RELU, {"streams": 1.5}, onnxperf.UsageError, "1.5"),
        (RELU, {"streams": "2"}, onnxperf.UsageError, "'2'"),
        (RELU, {"streams": 2, "cuda_graph": True}, onnxperf.UsageError, "one stream"),
        (SHAPED, {"cuda_graph": True}, onnxperf.UsageError, "can't be captured"),
        (RELU, {"batch": 0}, onnxperf.UsageError, "at least 1"),
        (RELU, {"dims": {"M": 3}}, onnxperf.UsageError, "'M'"),
        (RELU, {"dims": [("N", 3)]}, onnxperf.UsageError, "dims must map"),
        (RELU, {"shapes": [(3, 4)]}, onnxperf.UsageError, "shapes must map"),
        (RELU, {"dims": {"N": -3}}, onnxperf.UsageError, "-3"),
        (RELU, {"shapes": {"q": (1, 4)}}, onnxperf.UsageError, "'q'"),
        (RELU, {"shapes": {"x": (1, 4, 1)}}, onnxperf.UsageError, "3 dimensions"),
        (RELU, {"shapes": {"x": (2, 4)}, "dims": {"N": 3}}, onnxperf.UsageError, "'N'"),
        (RELU, {"example_inputs": [np.zeros((1, 4))] * 2}, onnxperf.UsageError, "2 example inputs"),
        (SAMPLES / "gpt2-dynamic.onnx", {}, onnxperf.UsageError, "sequence"),
        (SQUEEZED, {"batch": 8}, onnxperf.UsageError, "made for batch 1: node 'Squeeze_0'"),
    ],
)  # fmt: skip
def test_every_bad_request_is_one_clear_error(model: Any, terms: Any, error: type[onnxperf.Error], says: str) -> None:
    with pytest.raises(onnxperf.Error) as caught:
        predict(model, **{"gpu": "l4", **terms})
    assert type(caught.value) is error
    assert caught.value.exit_code == {onnxperf.UsageError: 2, onnxperf.ModelError: 3}[error]
    assert says in str(caught.value)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(run.values()))
@pytest.mark.parametrize(
    "text",
    [
        "(float[2,3] x) => (float[3] y) {y = Constant<value = float[3] {1.0, 2.0, 3.0}>()}",
        "(float[2,3] x) => (float[2,3] x) {z = Relu(x)}",
        "(float[2,3] x) => (int64[2] y) {y = Shape(x)}",
    ],
)
def test_where_nothing_is_left_to_run_the_host_still_takes_its_time(text: str, run: dict[str, str]) -> None:
    p = predict(parser.parse_model(SMALL + text), gpu="l4", **run)
    host = p.run.host_costs[0]
    seconds = host.run_s + host.sync_s
    SCHEMA.validate(p.to_dict())
    assert (p.seconds, p.kernels, p.sum_seconds) == (pytest.approx(seconds), (), 0)
    assert p.bound_by["launch"] == 1
    assert p.graph.number_of_nodes() == 0


def test_what_the_card_lacks_or_cannot_hold_is_said() -> None:
    p = predict(SAMPLES / "resnet50.onnx", gpu="p4", precision="fp8")
    assert "no-dtype" in {w.code for w in p.warnings}
    p = predict(RELU, gpu="t4", batch=1 << 30)
    (large,) = (w.message for w in p.warnings if w.code == "does-not-fit")
    short = p.memory.total_bytes + p.memory.context_bytes - p.memory.capacity_bytes
    assert not p.memory.fits and large == f"t4 lacks {size(short)} of memory for this run"
    assert "does-not-fit" not in {w.code for w in predict(RELU, gpu="t4").warnings}
    odd = parser.parse_model(
        SMALL.replace("]>", ', "there" : 1]>') + "(float[2,4] x) => (float[2,4] y) {y=there.Odd(x)}"
    )
    p = predict(odd, gpu="t4")
    assert {"assumed-operator", "unknown-operator"} <= {w.code for w in p.warnings}
    assert [k.source for k in p.kernels] == ["assumed"]


def test_two_calls_agree_to_the_last_digit(image: Prediction, tmp_path: Path) -> None:
    copied = shutil.copy(SAMPLES / "mobilenetv2.onnx", tmp_path)  # which is read and inferred anew
    assert predict(copied, gpu="a100-sxm4-80gb").to_json() == image.to_json()


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(run.values()))
@pytest.mark.parametrize(("precision", "gpu"), [("fp32", "t4"), ("fp16", "a100-sxm4-80gb"), ("fp16", "h100-sxm")])
def test_eight_samples_take_longer_but_not_much_more_than_eight_times_as_long(
    gpu: str, precision: str, run: dict[str, str]
) -> None:
    def seconds(batch: int) -> float:
        dims = {"batch": batch, "sequence": 128}
        p = predict(SAMPLES / "distilbert-dynamic.onnx", gpu=gpu, dims=dims, precision=precision, **run)
        return p.seconds

    one = seconds(1)
    assert one < seconds(8) <= 8.5 * one


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["resnet50", "distilbert-dynamic"])
def test_better_cards_and_smaller_types_are_faster(sample: str) -> None:
    dims = {"batch": 32, "sequence": 128} if "dynamic" in sample else None

    def seconds(gpu: str, precision: str = "keep") -> float:
        return predict(SAMPLES / f"{sample}.onnx", gpu=gpu, precision=precision, dims=dims).seconds

    assert seconds("h100-sxm") < seconds("a100-sxm4-80gb") < seconds("t4") < seconds("p4")
    if dims:
        for gpu in ("t4", "v100-pcie-32gb", "a100-sxm4-80gb", "l4", "h100-sxm", "b200-sxm"):
            assert seconds(gpu, "fp16") <= seconds(gpu, "fp32"), gpu
        assert seconds("a100-sxm4-80gb", "int8") < seconds("a100-sxm4-80gb", "tf32") < seconds("a100-sxm4-80gb", "fp32")


def test_terms_cost_or_save_what_they_are_named_for() -> None:
    def seconds(**terms: Any) -> float:
        return predict(SAMPLES / "mobilenetv2.onnx", gpu="h100-sxm", **terms).seconds

    assert seconds(cuda_graph=True) < seconds() < seconds(include_transfers=True)
    assert seconds(opt_level="all") <= seconds(opt_level="disabled")
    assert seconds(streams=4) <= seconds()


@pytest.mark.parametrize("terms", [{}, {"runtime": "torch-eager"}, {"streams": 3}, {"cuda_graph": True}])
def test_the_critical_path_and_the_phases_that_wait_for_the_host(terms: Any) -> None:
    p = predict(SAMPLES / "bert-base.onnx", gpu="h100-sxm", **terms)
    seconds = {k.name: k.seconds for k in p.kernels}
    path = p.critical_path
    assert sum(seconds[name] for name in path) == pytest.approx(p.critical_path_seconds)
    assert all(p.graph.has_edge(a, b) for a, b in pairwise(path))
    late = p.launch_bound
    assert sum(s.kernels for s in late) <= sum(k.stalled_on == "host" for k in p.kernels)
    assert sum(s.seconds for s in p.phases) == pytest.approx(p.seconds)
    assert sum(s.kernels for s in p.phases) == len(p.kernels)
    assert sum(g.seconds for g in p.gaps) + busy(p.kernels) == pytest.approx(p.seconds), "kernels and gaps are all"
    assert [g.seconds for g in p.gaps] == sorted((g.seconds for g in p.gaps), reverse=True)
    assert sum(s.idle_seconds for s in late) < p.seconds
    if terms.get("cuda_graph"):
        assert len(late) == 1 and late[0].kernels == 0  # only the replay itself is waited for
    else:
        assert p.bound_by["launch"] * p.seconds >= sum(s.idle_seconds for s in late)


@pytest.mark.parametrize("terms", [{}, {"streams": 8}, {"precision": "fp16", "runtime": "tensorrt"}], ids=str)
def test_no_bound_is_below_all_bytes_and_all_flops_at_the_rates_of_the_card(terms: dict[str, Any]) -> None:
    """Query, key and value lie side by side on the longest path, but DRAM and tensor cores serve all three."""
    path = SAMPLES / "distilbert-dynamic.onnx"
    one, many = (predict(path, gpu="l4", dims={"batch": b, "sequence": 128}, **terms) for b in (1, 64))
    least = (one.run.kernels.stored_bytes - one.device.l2_bytes) / one.device.bandwidth_Bps
    assert 0.95 * least <= one.lower_bound_seconds <= one.seconds
    pipe = "tensor_fp16" if "precision" in terms else "tensor_tf32"
    products = sum(k.flops for k in many.kernels if k.work.pipe == pipe and k.work.matrix_flops)
    assert 0.9 * products / many.device.dense_flops[pipe] <= many.lower_bound_seconds <= many.seconds


def test_what_the_cpu_computes_is_a_category_of_its_own() -> None:
    """A convolution in QOperator form has no CUDA kernel: the CPU has nearly all of the time."""
    text = (
        "(uint8[8,64,56,56] x, float s, uint8 z, uint8[64,64,3,3] w) => (float[8,64,54,54] y)"
        " {a=QLinearConv(x,s,z,w,s,z,s,z) d=DequantizeLinear(a,s,z) y=Relu(d)}"
    )
    p = predict(parser.parse_model(SMALL + text), gpu="l4")
    assert {o.op for o in p.cpu_operators} >= {"QLinearConv"}
    assert p.bound_by["cpu"] > 0.8 and sum(p.bound_by.values()) == pytest.approx(1)
    assert p.bound_by["cpu"] * p.seconds <= sum(o.seconds for o in p.cpu_operators) * (1 + 1e-9)
    assert p.to_dict()["cpu_operators"][0]["nodes"]
    out = io.StringIO()
    show(Console(file=out, width=120), p)
    shown = " ".join(out.getvalue().split())
    assert "bound by cpu" in shown and "operators QLinearConv on the CPU" in shown
    assert "QLinearConv runs on the CPU" in shown and "QuantizeLinear and DequantizeLinear" in shown
    show(Console(file=out, width=120), p, detail=True)
    assert "cpu" in next(line for line in out.getvalue().splitlines() if line.startswith("QLinearConv on the CPU "))


def test_without_operators_on_the_cpu_there_is_no_such_share(image: Prediction) -> None:
    assert image.cpu_operators == () and image.bound_by["cpu"] == 0


def test_a_launch_bound_run_waits_before_nearly_every_kernel() -> None:
    p = predict(SAMPLES / "mobilenetv2.onnx", gpu="h200-sxm", runtime="torch-eager", host="jetson")
    assert p.launch_bound[0].kernels > 0.9 * len(p.kernels)
    assert p.launch_bound[0].seconds > 0.9 * p.seconds


def test_side_by_side_kernels_do_not_widen_the_range() -> None:
    """Eight branches at once take less time, and are not less certain for it."""
    nodes = [onnx.helper.make_node("ReduceSum", ["x"], [f"r{i}"], keepdims=1, name=f"n{i}") for i in range(8)]
    nodes.append(onnx.helper.make_node("Sum", [f"r{i}" for i in range(8)], ["y"], name="sum"))
    sizes = {"x": [1 << 20], "y": [1]}
    io = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in sizes.items()]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", io[:1], io[1:]))
    one, eight = (predict(model, gpu="h100-sxm", streams=n) for n in (1, 8))
    assert eight.seconds <= one.seconds
    assert eight.high_seconds / eight.seconds < 1.5 * one.high_seconds / one.seconds


def test_tf32_asked_of_a_card_without_it_is_said() -> None:
    asked, default = (predict(SAMPLES / "mobilenetv2.onnx", gpu="t4", precision=p) for p in ("tf32", "keep"))
    assert "no-unit" in {w.code for w in asked.warnings}
    assert "no-unit" not in {w.code for w in default.warnings}


def test_a_table_of_which_few_rows_are_read_does_not_fill_the_cache() -> None:
    """One product behind an embedding costs the same, however long the embedding is."""

    def time(words: int) -> float:
        weight = onnx.TensorProto(name="w", data_type=10, dims=[1024, 4096], data_location=1)
        table = onnx.TensorProto(name="t", data_type=10, dims=[words, 1024], data_location=1)
        nodes = [
            onnx.helper.make_node("Gather", ["t", "ids"], ["x"], name="gather"),
            onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product"),
        ]
        ids = onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [16])
        y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, [16, 4096])
        model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [ids], [y], [weight, table]))
        return next(k.seconds for k in predict(model, gpu="l4").kernels if k.name == "product")

    assert time(500_000) == pytest.approx(time(500), rel=0.01)


def test_a_recurrent_layer_takes_its_steps() -> None:
    def at(steps: int) -> Prediction:
        weights = [("w", [1, 32, 4]), ("r", [1, 32, 8])]
        node = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=8)
        stored = [
            onnx.helper.make_tensor(n, onnx.TensorProto.FLOAT, s, bytes(4 * 32 * s[2]), raw=True) for n, s in weights
        ]
        sizes = {"x": [steps, 1, 4], "y": [steps, 1, 1, 8]}
        io = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in sizes.items()]
        return predict(onnx.helper.make_model(onnx.helper.make_graph([node], "g", io[:1], io[1:], stored)), gpu="l4")

    assert at(200).kernels[0].source == "analytic"
    assert at(400).kernels[0].seconds > 1.9 * at(200).kernels[0].seconds


@pytest.mark.parametrize(
    ("gpu", "terms", "slower"),
    [
        ("l4", {"power_limit_W": 40}, True),
        ("l4", {"clock_Hz": 0.9e9}, True),
        ("l4", {"host": "cloud"}, True),
        ("a100-sxm4-40gb", {"host": "desktop"}, False),
        ("l4", {"include_transfers": True}, True),
    ],
)
def test_settings_of_card_and_host(gpu: str, terms: Any, slower: bool) -> None:
    def seconds(**terms: Any) -> float:
        return predict(SAMPLES / "mobilenetv2.onnx", gpu=gpu, **terms).seconds

    changed, plain = seconds(**terms), seconds()
    assert (changed > plain) == slower and changed != plain
    if terms.get("include_transfers"):
        assert seconds(**terms, pageable=True) > changed


def test_what_the_offline_optimizer_fuses_or_that_it_finds_nothing() -> None:
    bert = predict(SAMPLES / "bert-base.onnx", gpu="l4", ort_transformers=True)
    assert "com.microsoft::BiasGelu" in {k.op for k in bert.kernels}
    assert "nothing-fused" not in {w.code for w in bert.warnings}
    image = predict(SAMPLES / "resnet50.onnx", gpu="l4", ort_transformers=True)
    assert "nothing-fused" in {w.code for w in image.warnings}


def test_the_host_of_a_module_is_its_own() -> None:
    modules = {"agx-orin-64gb": ("jetson", 12, 2.2016e9), "thor": ("jetson-thor", 14, 2.6e9)}
    for gpu, (host, cores, hz) in modules.items():
        p = predict(SAMPLES / "mobilenetv2.onnx", gpu=gpu)
        assert (p.scenario.host, p.run.cpus[0].cores, p.run.cpus[0].hz) == (host, cores, hz)
        assert p.run.cpus[0].pace == pytest.approx(gpu_specs.HOSTS[host].pace * gpu_specs.HOSTS[host].hz / hz)
    named = predict(SAMPLES / "resnet50.onnx", gpu="l4", host="cloud", power_limit_W=50, clock_Hz=1e9)
    assert (named.scenario.host, named.scenario.power_limit_W, named.scenario.clock_Hz) == ("cloud", 50, 1e9)
    assert "older server CPU" in named.scope


def test_a_slower_power_mode_slows_the_gpu_its_memory_and_its_host() -> None:
    full = predict(SAMPLES / "mobilenetv2.onnx", gpu="orin-nx-16gb", runtime="torch-eager")
    low = predict(SAMPLES / "mobilenetv2.onnx", gpu="orin-nx-16gb", runtime="torch-eager", power_mode="10W")
    assert low.run.host_costs[0].launch_s == pytest.approx(full.run.host_costs[0].launch_s * 1984 / 1190.4)
    assert low.sum_seconds > 1.5 * full.sum_seconds and low.seconds > full.seconds
    assert (low.to_dict()["power_mode"], "power_mode" in full.to_dict()) == ("10W", False)
    assert "power mode 10W" in str(low) and "power mode" not in str(full)
    SCHEMA.validate(low.to_dict())
    same = predict(SAMPLES / "mobilenetv2.onnx", gpu="orin-nx-16gb", runtime="torch-eager", power_mode="maxn")
    assert same.seconds == pytest.approx(full.seconds)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["t4", "a100-sxm4-80gb"])
def test_the_largest_batch_fits_and_the_next_does_not(gpu: str) -> None:
    def at(batch: int) -> Prediction:
        return predict(SAMPLES / "gpt2-dynamic.onnx", gpu=gpu, dims={"sequence": 64}, batch=batch)

    largest = predict(SAMPLES / "gpt2-dynamic.onnx", gpu=gpu, dims={"sequence": 64}, fit=True)
    n = largest.scenario.batch
    assert n > 100
    assert largest.to_dict() == at(n).to_dict()
    assert at(n).memory.fits and not at(n + 1).memory.fits


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"fit": True, "batch": 2}, "fit takes the largest batch that fits: leave batch out"),
        ({"host": "toaster"}, "unknown host 'toaster'"),
        ({"pageable": True}, "pageable needs include_transfers"),
        ({"pageable": 1}, "must be True or False"),
        ({"power_limit_W": "70"}, "must be a positive number"),
        ({"power_limit_W": float("nan")}, "must be a positive number"),
        ({"power_limit_W": 1}, "takes a power limit from"),
        ({"clock_Hz": -1}, "must be a positive number"),
        ({"clock_Hz": 9e9}, "clocks from"),
        ({"ort_transformers": True, "runtime": "torch-eager"}, "torch-eager has no optimizer of onnxruntime.transf"),
        *(({"opt_level": level, "runtime": name}, f"{name} has no optimisation levels: leave opt_level out")
          for name, level in (("tensorrt", "basic"), ("torch-eager", "disabled"))),
        ({"ort_version": "1.11", "runtime": "torch-eager"}, "'1.11' is no known release of torch-eager: releases 1.12"),
        ({"ort_version": "1.12", "runtime": "tensorrt"}, "'1.12' is no known release of tensorrt: releases 6.0 to"),
        *(({"ort_version": v}, "is no known release of ort-cuda: releases 1.4 to 1.31 are known")
          for v in ("1.3", "1.32", "", "new", "1.12.0.0.0", "-1.12")),
        ({"ort_transformers": True, "runtime": "tensorrt"}, "tensorrt has no optimizer of .*: leave ort_transf"),
        *(({**terms, "runtime": "ort-cpu"}, "ort-cpu runs on a CPU and has no streams and no CUDA graph")
          for terms in ({"streams": 2}, {"cuda_graph": True})),
        ({"method": "sum", "streams": 2}, "the method sum ignores streams"),
        ({"method": "roofline", "cuda_graph": True, "power_limit_W": 50}, "roofline ignores cuda_graph, power_limit_W"),
        ({"method": "roofline", "host": "desktop"}, "the method roofline ignores host"),
        ({"method": METHODS["sum"]}, "method can't be a Method: give a name, one of roofline, sum"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(terms: Any, message: str) -> None:
    with pytest.raises(onnxperf.UsageError, match=message):
        predict(SAMPLES / "resnet50.onnx", gpu="l4", **terms)


def test_no_largest_batch_is_looked_for_where_the_file_fixes_it() -> None:
    with pytest.raises(onnxperf.UsageError, match=r"can't be searched: .* made for batch 1: node 'Squeeze_0'"):
        predict(SQUEEZED, gpu="l4", fit=True)


def test_the_model_is_read_once_for_all_batches_that_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, whole = [], read.read
    monkeypatch.setattr(read, "read", lambda model: reads.append(model) or whole(model))
    fitting = predict(RELU, gpu="h100", fit=True)
    assert fitting.scenario.batch == MAX_BATCH
    assert [w.code for w in fitting.warnings[:2]] == ["gpu-alias", "fit-limit"]
    assert len(reads) == 1
    assert predict(RELU, gpu="h100", batch=MAX_BATCH).seconds == fitting.seconds


@pytest.mark.parametrize(("limit", "figure"), [
    ({"max_ms": 0.5}, lambda p: p.seconds / 0.5e-3),
    ({"max_gb": 1.0}, lambda p: p.memory.reserved_bytes / 1e9),
    ({"max_ms": 5.0, "max_gb": 0.8}, lambda p: p.memory.reserved_bytes / 0.8e9),
    ({"max_ms": 1e6}, lambda p: (p.memory.total_bytes + p.memory.context_bytes) / p.memory.capacity_bytes),
])  # fmt: skip
def test_the_largest_batch_that_keeps_limits_keeps_them_and_the_next_does_not(limit: Any, figure: Any) -> None:
    wide = parser.parse_model(SMALL + "(float[N,262144] x) => (float[N,262144] y) { y = Relu(x) }")
    largest = predict(wide, gpu="t4", fit=True, **limit)
    n = largest.scenario.batch
    assert 16 < n < MAX_BATCH
    assert figure(largest) <= 1 < figure(predict(wide, gpu="t4", batch=n + 1))
    assert onnxperf.check(wide, gpu="t4", fit=True, **limit).scenario.batch == n


def test_where_not_even_one_sample_keeps_the_limit() -> None:
    assert predict(RELU, gpu="t4", fit=True, max_ms=1e-6).scenario.batch == 1
    with pytest.raises(onnxperf.BudgetExceeded, match="is over the limit of"):
        onnxperf.check(RELU, gpu="t4", fit=True, max_ms=1e-6)
    with pytest.raises(onnxperf.UsageError, match="give fit=True, or ask"):
        predict(RELU, gpu="t4", max_ms=1)
    with pytest.raises(
        onnxperf.UsageError, match=r"max_ms must be a positive number below 1,000,000,000,000,000, not '10ms'"
    ):
        predict(RELU, gpu="t4", fit=True, max_ms="10ms")  # type: ignore[call-overload]


def test_ranges_are_called_wider_only_where_they_are() -> None:
    """Of a method with ranges of its own, and of a calibrated device, they are the same for all kernels."""
    tiny = parser.parse_model(SMALL + "(float[2,4] x) => (float[2,4] y) { y = Relu(x) }")
    l4 = gpu_specs.load("l4")
    calibrated = dataclasses.replace(l4, corrections=dataclasses.replace(l4.corrections, half_width=0.1))
    for gpu, method, wider in (("l4", "tile-wave", True), ("l4", "sum", False), (calibrated, "tile-wave", False)):
        p = predict(tiny, gpu=gpu, method=method)
        (said,) = (w.message for w in p.warnings if w.code == "outside-calibration")
        assert said.endswith(": intervals are wider" if wider else ": intervals are not widened")
        assert said.startswith("1 of 1 kernels is outside the measured sizes and types")


def test_what_no_row_tells_of_the_host_is_said_to_be_assumed() -> None:
    """Runs that were measured launched every kernel: what a CUDA graph's replay costs is not among them."""
    said = {
        graph: [w.message for w in predict(SAMPLES / "bert-base.onnx", gpu="t4", cuda_graph=graph).warnings]
        for graph in (False, True)
    }
    assert [any("host costs of ort-cuda" in m for m in said[graph]) for graph in (False, True)] == [False, True]
