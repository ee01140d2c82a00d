"""What-ifs: each is a prediction of its own, of other terms or of a changed graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import parser

import onnxperf
from onnxperf import UsageError, predict, whatif
from onnxperf.decide.changes import changes
from onnxperf.decide.edits import padded, unaligned, without
from onnxperf.graph import Graph, load
from tests.decide.models import net, odd
from tests.decide.test_changes import FALLBACK, asked

SAMPLES = Path(__file__).parents[2] / "samples"


def graph(batch: int = 1) -> Graph:
    return load(net(), batch=batch)


def test_each_option_is_the_run_that_it_names() -> None:
    found = whatif(net(), gpu="l4", batch=2)
    options = [c for c in found.changes if c.what.startswith("--") and c.seconds]
    assert {"precision", "runtime", "launch", "batch", "layout"} <= {c.kind for c in options}
    for c in options:
        terms = asked(c.what)
        p = predict(net(), gpu="l4", **{"batch": 2, **{k: int(v) if k == "batch" else v for k, v in terms.items()}})
        samples = 2 / p.scenario.batch
        assert (c.seconds, c.low_seconds) == pytest.approx((p.seconds * samples, p.low_seconds * samples)), c.what
        assert c.accuracy == p.accuracy
    times = [c.seconds for c in found.changes if c.seconds is not None]
    assert times == sorted(times) and not found.changes[len(times) :]


def test_what_can_not_be_says_why() -> None:
    found = {c.what: c for c in whatif(net(1), gpu="t4", dims=None).changes}
    missing = [c for c in found.values() if c.seconds is None]
    assert all(c.why for c in missing)
    assert found["--precision bf16"].why.endswith("has no unit for it")


def test_no_gain_is_of_a_unit_that_is_missing_and_predict_tries_the_same() -> None:
    found = whatif(net(), gpu="t4", batch=64)
    tried = [asked(c.what) for c in found.changes if c.kind in ("precision", "runtime") and c.seconds]
    assert not {"fp8", "bf16"} & {terms.get("precision") for terms in tried}
    assert {terms.get("runtime") for terms in tried} == {None, "tensorrt", "torch-compile", "torch-eager"}
    said = [asked(c.what) for c in changes(found.now)]
    named = [{k: v for k, v in terms.items() if k in ("precision", "runtime")} for terms in said]
    assert [terms for terms in named if terms] and all(terms in tried for terms in named if terms)


def test_what_helps_together_is_what_predict_says_first() -> None:
    found = whatif(SAMPLES / "resnet50.onnx", gpu="l4")
    (together,) = (c for c in found.changes if c.kind == "together")
    alone = [c.seconds for c in found.changes if c.kind in ("precision", "launch", "layout") and c.seconds]
    assert together.seconds and together.seconds < min(alone)
    best = min((c for c in changes(found.now) if c.small), key=lambda c: c.seconds)
    assert (together.what, together.seconds) == (best.what, pytest.approx(best.seconds))


def test_training_is_told_of_autocast_and_of_runtimes_that_train() -> None:
    found = whatif(net(8), gpu="rtx-3090", runtime="torch-eager", mode="training", precision="fp32")
    tried = [asked(c.what) for c in found.changes if c.kind in ("precision", "runtime")]
    assert {t["precision"] for t in tried if "precision" in t} >= {"amp", "tf32"}
    assert not {"fp16", "bf16"} & {t.get("precision") for t in tried}
    assert {t.get("runtime") for t in tried} == {None, "torch-compile", "ort-cuda"}
    assert not [t for t in tried if t.get("runtime") == "ort-cuda" and t.get("precision") == "amp"]


def test_fusions_that_miss_for_one_reason_are_one_line() -> None:
    found = [(c.what, c.why) for c in whatif(SAMPLES / "swin-t.onnx", gpu="l4").changes if c.kind == "fusion"]
    assert found and len({*found}) == len(found)


def test_operators_on_the_cpu_and_open_dimensions_have_their_lines() -> None:
    found = whatif(parser.parse_model(FALLBACK), gpu="t4")
    (fallback,) = (c for c in found.changes if c.kind == "fallback")
    assert fallback.at_best and fallback.seconds and fallback.seconds < found.now.seconds
    kinds = {c.what for c in whatif(net(), gpu="t4", batch=1).changes}
    assert "--fix-dims" in kinds


def test_a_part_left_out_is_the_model_without_it() -> None:
    whole = graph()
    conv = next(o for o in whole.operators if o.type == "Conv")
    rest = without(whole, set(conv.nodes))
    assert [o.type for o in rest.operators] == [o.type for o in whole.operators if o is not conv]
    assert conv.out.name in {t.name for t in rest.inputs}
    gemm = next(o for o in whole.operators if o.type == "Gemm")
    head = without(whole, set(gemm.nodes))
    assert [t.name for t in head.outputs] == [gemm.inputs[0].name if gemm.inputs[0] else ""]
    assert without(whole, ()).operators == whole.operators


def test_padding_changes_every_dimension_of_a_size() -> None:
    narrow = load(odd())
    assert dict(unaligned(narrow)) == {333: 336, 77: 80}
    wide = padded(narrow, 333, 336)
    assert {n for o in wide.operators for t in (*o.present, *o.outputs) for n in t.shape} == {4, 336, 77}
    assert wide.inputs[0].shape == (4, 336) and wide.outputs[0].shape == (4, 77)
    assert not dict(unaligned(graph())), "1000 and 64 are multiples of 8"
    found = {c.what for c in whatif(odd(), gpu="t4").changes}
    assert "dimension 333 padded to 336" in found


def test_modules_are_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxperf.decide.what_if.PART", 0.0)
    monkeypatch.setattr("onnxperf.decide.what_if.WHOLE", 1.0)
    model = net(1)
    for node, module in zip(model.graph.node, ("body", "body", "body", "head", "head"), strict=True):
        node.name = f"/{module}/{node.op_type}"
    found = whatif(model, gpu="t4")
    parts = {c.what: c for c in found.changes if c.kind == "part"}
    assert set(parts) == {"without body", "without head"}
    assert all(c.seconds and c.seconds < found.now.seconds for c in parts.values())
    monkeypatch.setattr("onnxperf.decide.what_if.WHOLE", 0.01)
    assert not [c for c in whatif(model, gpu="t4").changes if c.kind == "part"], "each is most of the model"


def test_fusions_that_nearly_matched_are_bounds() -> None:
    found = whatif(SAMPLES / "vit-base-16.onnx", gpu="t4", precision="fp16", batch=8)
    near = [c for c in found.changes if c.kind == "fusion" and c.at_best]
    assert near and all(c.seconds and c.seconds < found.now.seconds and "nearly matched" in c.why for c in near)


def test_it_is_for_cards_and_the_schedule() -> None:
    with pytest.raises(UsageError, match="with the method tile-wave"):
        whatif(net(), gpu="l4", batch=1, method="roofline")


def test_the_json_has_gains() -> None:
    found = json.loads(onnxperf.whatif(net(), gpu="l4", batch=1).to_json())
    for c in found["changes"]:
        assert c["gain"] is None or c["gain"] == pytest.approx(found["seconds"] / c["seconds"])
