"""What would make a run faster: each change is the run that its options ask for, and none is named for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import parser

from onnxperf import Prediction, load, predict
from onnxperf.decide.budget import blame
from onnxperf.decide.changes import WORTH, changes, nothing
from onnxperf.decide.what_if import what_if
from onnxperf.ground.tables import duration
from onnxperf.views.headline import _best

SAMPLES = Path(__file__).parents[2] / "samples"
RESNET, KERAS = SAMPLES / "resnet50.onnx", SAMPLES / "keras-resnet50.onnx"
FALLBACK = """<ir_version: 9, opset_import: ["" : 20]> g
(uint8[8,64,28,28] x, float s, uint8 z, uint8[64,64,3,3] w) => (float[8,64,26,26] y)
{ a = QLinearConv(x, s, z, w, s, z, s, z) y = DequantizeLinear(a, s, z) }"""


def asked(what: str) -> dict[str, Any]:
    """The terms that a change names as options."""
    terms: dict[str, Any] = {}
    for option in what.removeprefix("--").split(" --"):
        name, _, value = option.partition(" ")
        terms[name.replace("-", "_")] = value or True
    return terms


@pytest.mark.parametrize("runtime", ["ort-cuda", "tensorrt", "torch-eager"])
def test_each_change_is_the_run_that_it_names(runtime: str) -> None:
    now = predict(RESNET, gpu="l4", runtime=runtime)
    found = changes(now)
    assert found and len({c.what for c in found}) == len(found)
    for c in found:
        assert c.seconds < WORTH * now.seconds
        assert predict(RESNET, gpu="l4", **{"runtime": runtime, **asked(c.what)}).seconds == pytest.approx(c.seconds)
        others = [d for d in found if {*asked(d.what).items()} < {*asked(c.what).items()}]
        assert all(c.seconds <= WORTH * d.seconds for d in others), "whatever it asks for beside another gains"
        assert c.small == (not {"int8", "fp8", "--runtime", "--host"} & {*c.what.split()})


def test_fixing_open_dimensions_is_named_where_it_helps() -> None:
    """An open session keeps shape arithmetic in every run, and misses fusions that need sizes."""
    terms: dict[str, Any] = {"gpu": "h100", "dims": {"sequence": 16}}
    now = predict(SAMPLES / "gpt2-dynamic.onnx", **terms)
    found = {c.what: c for c in changes(now)}
    assert found["--fix-dims"].small
    fixed = predict(SAMPLES / "gpt2-dynamic.onnx", **terms, fix_dims=True)
    assert found["--fix-dims"].seconds == pytest.approx(fixed.seconds)
    assert not [c for c in changes(fixed) if "--fix-dims" in c.what]
    assert not [c for c in changes(predict(RESNET, gpu="h100")) if "--fix-dims" in c.what]


def test_no_unit_that_a_card_lacks_is_named() -> None:
    precisions = {gpu: {c.what.split()[1] for c in changes(predict(RESNET, gpu=gpu, runtime="tensorrt"))
                        if c.what.startswith("--precision")} for gpu in ("p4", "t4", "l4")}  # fmt: skip
    assert "fp8" not in precisions["t4"] and {"fp16", "int8"} <= precisions["t4"]
    assert {"fp16", "int8", "fp8"} <= precisions["l4"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "gpu", "terms"),
    [
        ("resnet50", "a100", {"batch": 8}),
        ("keras-resnet50", "h100", {"batch": 1}),
        ("gpt2-dynamic", "t4", {"batch": 3, "dims": {"sequence": 32}}),
        ("mobilenetv2", "p100", {"batch": 4, "runtime": "torch-eager"}),
    ],
)
def test_each_suggestion_keeps_what_it_says_of_a_run_and_of_each_sample(
    sample: str, gpu: str, terms: dict[str, Any]
) -> None:
    model = load(SAMPLES / f"{sample}.onnx")

    def at(batch: int) -> Prediction:
        return predict(model, gpu=gpu, **terms | {"batch": batch})

    now = at(terms["batch"])
    found = changes(now, at)
    for c in found:
        new = {k: int(v) if k == "batch" else v for k, v in asked(c.what).items()}
        then = predict(model, gpu=gpu, **terms | new)
        assert (c.run_seconds or c.seconds) == pytest.approx(then.seconds), c.what
        assert c.to_dict()["seconds_per_sample"] == pytest.approx(then.seconds / then.scenario.batch), c.what
    [larger] = [c for c in found if "--batch" in c.what]
    [old] = {c.run_seconds for c in found if c is not larger}
    assert old is None and not larger.small and larger.run_seconds == pytest.approx(at(8 * terms["batch"]).seconds)
    each = [duration(s) for s in (larger.run_seconds / (8 * terms["batch"]), now.seconds / terms["batch"])]
    assert larger.why == f"{each[0]} per sample, not {each[1]}"
    assert _best(now, [larger]) == f"{larger.what}: {larger.why} ({now.seconds / larger.seconds:.2f}x)"
    assert not [c for c in changes(now) if "--batch" in c.what]
    options = {c.what: c for c in what_if(now, at).changes if c.kind == "batch"}
    for what, c in options.items():
        then = at(int(asked(what)["batch"]))
        assert c.run_seconds == pytest.approx(then.seconds)
        assert c.seconds == pytest.approx(then.seconds / then.scenario.batch * terms["batch"])
        assert c.why.startswith(f"{duration(then.seconds / then.scenario.batch)} per sample, not {each[1]}")


def test_eight_bits_are_not_tried_where_nothing_would_be_quantised() -> None:
    """A product of two activations stays as it is, so the gain would be the runtime's alone."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[8, 512, 512] x, float[8, 512, 512] y) => (float[8, 512, 512] z) {
        a = MatMul(x, y) b = Relu(a) c = MatMul(b, y) z = Relu(c)
    }"""
    found = what_if(predict(parser.parse_model(text), gpu="l4")).changes
    assert found and not any(eight in change.what for change in found for eight in ("int8", "fp8"))


def test_operators_on_the_cpu_are_named_as_what_can_be_gained_at_most() -> None:
    p = predict(parser.parse_model(FALLBACK), gpu="l4")
    [found] = [c for c in changes(p) if c.most]
    assert found.what == "all operators on the GPU"
    assert p.lower_bound_seconds <= found.seconds < p.seconds / 3
    convolution = next(o for o in p.cpu_operators if o.op == "QLinearConv")
    assert found.seconds > p.seconds - sum(o.seconds for o in p.cpu_operators) - sum(k.seconds for k in p.kernels)
    assert convolution.seconds > found.seconds
    assert blame(p).startswith(f"{convolution.name} (QLinearConv, ")


def test_where_nothing_helps_the_reason_is_said() -> None:
    terms = {"runtime": "tensorrt", "precision": "fp8", "cuda_graph": True, "host": "desktop"}
    p = predict(KERAS, gpu="l4", batch=64, **terms)
    assert changes(p) == []
    bound = max(p.bound_by, key=p.bound_by.__getitem__)
    assert f"% of the time is bound by {bound};" in nothing(p)


def test_nothing_is_tried_for_a_graph_of_very_many_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{changes.__module__}.MAX_TENSORS", 10)
    p = predict(RESNET, gpu="l4")
    assert changes(p, lambda batch: pytest.fail("another run was predicted")) == []
    assert all("more than 10 inputs" in " ".join(p.report(detail=d).split()) for d in (False, True))
