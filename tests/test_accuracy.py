"""What a prediction says of its accuracy: whether runs like it were measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpu_specs
import onnxperf
from gpu_specs import Corrections
from onnxperf.answer.accuracy import OF_GENERATION, PAGE, measured
from onnxperf.calibrate.device_file import file_of

ROOT = Path(__file__).parents[1]
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 512,
    "torch_dtype": "float16",
}  # fmt: skip
RESNET, BERT = ROOT / "samples/resnet50.onnx", ROOT / "samples/bert-base.onnx"


@pytest.mark.parametrize(
    ("terms", "status", "why"),
    [
        ({"gpu": "t4", "runtime": "torch-eager"}, "measured", "off in 5 runs"),
        ({"gpu": "t4", "runtime": "torch-eager", "precision": "bf16"}, "inferred", "measured on t4 in fp32"),
        ({"gpu": "l4"}, "inferred", "ort-cuda was not measured on l4"),
        ({"gpu": "t4"}, "inferred", "measured on t4 under 1.10 to 1.15"),
        ({"gpu": "t4", "clock_Hz": 1e9}, "inferred", "ort-cuda was not measured on t4 as it is set here"),
        ({"gpu": "h200", "ort_version": "1.30"}, "measured", "off in the kernels of 11 runs"),
        ({"gpu": "h200", "ort_version": "1.30", "precision": "fp32"}, "inferred", "in fp16, tf32"),
        ({"gpu": "t4", "runtime": "tensorrt", "precision": "fp16"}, "measured", "off in 20 runs"),
        ({"gpu": "h100", "runtime": "tensorrt", "precision": "fp8"}, "not validated", "FP8 networks"),
        ({"gpu": "a100", "runtime": "tensorrt", "precision": "fp8"}, "not validated", "fp8 under tensorrt"),
        ({"gpu": "a100", "runtime": "tensorrt", "precision": "int8"}, "inferred", "measured on a100-sxm4-80gb under"),
        ({"gpu": "t4", "runtime": "ort-cpu"}, "not validated", "inference under ort-cpu"),
    ],
)
def test_the_word_follows_from_runtime_release_precision_and_card(
    terms: dict[str, Any], status: str, why: str
) -> None:  # fmt: skip
    p = onnxperf.predict(RESNET, **terms)
    assert p.accuracy.status == status and why in p.accuracy.why
    assert (p.accuracy.error is not None) == (status == "measured")
    assert p.to_dict()["accuracy"] == p.accuracy.to_dict()
    assert f"accuracy   {status} (" in str(p) and p.accuracy.page in str(p)


@pytest.mark.parametrize(
    ("gpu", "terms", "why"),
    [
        ("p100", {"runtime": "torch-compile"}, "compute capability 6.0: it needs 7.0 or higher"),
        ("v100", {"runtime": "tensorrt"}, "TensorRT of today does not run on v100-pcie-32gb, of"),
        ("v100", {"runtime": "tensorrt", "ort_version": "10.4"}, ""),
        ("rtx-5090", {"runtime": "tensorrt", "ort_version": "8.4"}, "release 10.8 was the first to run on such"),
        ("h100", {"runtime": "torch-eager", "ort_version": "1.12"}, "release 2.0 was the first to run on such"),
        ("b200", {"runtime": "torch-compile", "ort_version": "2.6"}, "release 2.7 was the first"),
        ("p100", {"runtime": "torch-eager"}, ""),
        ("l4", {"runtime": "tensorrt"}, ""),
        ("k80", {}, ""),
    ],
)
def test_a_runtime_that_does_not_run_on_the_card_says_so(gpu: str, terms: dict[str, Any], why: str) -> None:
    p = onnxperf.predict(RESNET, gpu=gpu, **terms)
    told = [note.message for note in p.warnings if note.code == "unsupported-card"]
    assert bool(told) == bool(why)
    if why:
        assert why in told[0] and p.accuracy.why == told[0] and p.accuracy.status == "not validated"
        assert "unsupported-card  " in str(p)


def test_no_choice_falls_on_a_runtime_that_does_not_run_on_the_card() -> None:
    answer = onnxperf.compare(RESNET, gpu=["p100", "t4"], runtime="torch-compile")
    ranked, other = answer.cards
    assert (ranked.device.id, other.device.id) == ("t4", "p100-pcie-16gb")
    assert not other.rank and "it needs 7.0 or higher" in other.why
    tried = {c.what: c for c in onnxperf.whatif(RESNET, gpu="v100").changes}
    assert tried["--runtime tensorrt"].seconds is None and "it needs 7.5 or higher" in tried["--runtime tensorrt"].why
    assert "--runtime tensorrt --precision fp16" not in tried and tried["--runtime torch-eager"].seconds


def test_training_and_several_gpus_are_measured_apart() -> None:
    step: dict[str, Any] = {"mode": "training", "runtime": "torch-eager", "gpu": "v100-pcie-32gb"}
    assert onnxperf.predict(BERT, **step).accuracy.status == "measured"
    assert onnxperf.predict(BERT, mode="training", gpu="v100-pcie-32gb").accuracy.why == "training steps"
    other = onnxperf.predict(BERT, **{**step, "gpu": "rtx-4090", "precision": "amp"}).accuracy
    assert (other.status, other.why) == ("inferred", "training under torch-eager was not measured on rtx-4090")
    two = onnxperf.predict(BERT, gpu="t4", batch=2, parallel="dp=2").accuracy
    assert (two.status, two.why) == ("not validated", "inference on several GPUs under ort-cuda")


def test_rows_of_a_choice_of_cards_say_it_too() -> None:
    asked: dict[str, Any] = {"runtime": "torch-eager"}
    at = {gpu: onnxperf.predict(RESNET, gpu=gpu, **asked).accuracy for gpu in ("t4", "l4")}
    assert [a.status for a in at.values()] == ["measured", "inferred"]
    cards = onnxperf.compare(RESNET, gpu=[*at], **asked)
    plans = onnxperf.recommend(RESNET, gpu=[*at], max_ms=50, qps=10, **asked)
    for rows in (cards.to_dict()["cards"], plans.to_dict()["plans"]):
        assert {row["gpu"]: row["accuracy"] for row in rows} == {gpu: a.to_dict() for gpu, a in at.items()}
    for shown in (str(cards), str(plans)):
        words = {line.split()[-1] for line in shown.splitlines() if "t4  " in line or "l4  " in line}
        assert words == {"measured", "inferred"} and f"see {PAGE}" in shown


@pytest.mark.parametrize(
    ("terms", "status", "why"),
    [
        ({"gpu": "a100-80gb"}, "measured", "prefills and decode steps by themselves, 7% off"),
        ({"gpu": "a100-80gb", "parallel": "tp=2"}, "not validated", "generation on several GPUs under ort-genai"),
        ({"gpu": "a100-80gb", "parallel": "tp=1"}, "measured", "7% off"),
        ({"gpu": "a100-80gb", "power_limit_W": 250}, "inferred", "not measured on a100-sxm4-80gb as it is set here"),
        ({"gpu": "h100", "engine": "vllm", "clock_Hz": 1e9}, "inferred", "not measured on h100-sxm as it is set here"),
        ({"gpu": "a100-80gb", "runtime": "torch-eager"}, "not validated", "generation under torch-eager"),
        ({"gpu": "h100", "engine": "vllm", "parallel": "tp=2"}, "measured", "off in the median of 433 closed loops"),
        ({"gpu": "a100-80gb", "precision": "bf16"}, "measured", "7% off"),
        ({"gpu": "a100-80gb", "precision": "fp32"}, "inferred", "measured on a100-sxm4-80gb in 16 bits"),
        ({"gpu": "a100-80gb", "precision": "fp8"}, "inferred", "in 16 bits"),
        ({"gpu": "a100-80gb", "weights": "int8"}, "inferred", "in 16 bits"),
        ({"gpu": "a100-80gb", "cache": "int8"}, "inferred", "in 16 bits"),
        ({"gpu": "h100", "engine": "vllm", "precision": "fp8"}, "measured", "433 closed loops"),
        ({"gpu": "h100", "engine": "vllm", "weights": "int4"}, "inferred", "in 16 or 8 bits"),
        ({"gpu": "h100", "engine": "vllm", "cached": 0.5}, "not validated", "prefix caches"),
    ],
)
def test_generation_was_measured_under_some_engines(terms: dict[str, Any], status: str, why: str) -> None:
    g = onnxperf.llm(config=CONFIG, prompt=64, output=4, **terms)
    assert g.accuracy.status == status and why in g.accuracy.why and g.accuracy.page == OF_GENERATION
    assert g.runner in (terms.get("engine"), terms.get("runtime"), "ort-genai")


@pytest.mark.parametrize(
    ("terms", "status", "why"),
    [
        ({"gpu": "h200", "engine": "sglang"}, "measured", "13% off in the median of 487 closed loops of models with"),
        ({"gpu": "h100", "engine": "vllm", "parallel": "ep=2"}, "measured", "487 closed loops of models with experts"),
        ({"gpu": "h100", "engine": "sglang"}, "inferred", "sglang with experts was not measured on h100-sxm"),
        ({"gpu": "a100-80gb"}, "not validated", "generation with experts under ort-genai"),
    ],
)
def test_models_with_experts_are_measured_apart(terms: dict[str, Any], status: str, why: str) -> None:
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    g = onnxperf.llm(config=CONFIG | experts, prompt=64, output=4, batch=2, **terms)
    assert g.accuracy.status == status and why in g.accuracy.why and g.accuracy.page == OF_GENERATION


def test_weights_of_four_bits_were_measured_of_experts_alone() -> None:
    stored = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    one: dict[str, Any] = {"gpu": "h100", "engine": "vllm", "prompt": 64, "output": 4}
    said = [onnxperf.llm(config=CONFIG | stored | more, **one).accuracy for more in ({}, experts)]
    assert [a.status for a in said] == ["inferred", "measured"]
    assert said[0].why == "measured on h100-sxm in 16 or 8 bits"


def test_a_file_with_the_name_of_a_card_is_another_card(tmp_path: Path) -> None:
    card = tmp_path / "h100-sxm.toml"
    shipped = (ROOT / "gpu_specs/cards/h100-sxm.toml").read_text(encoding="utf-8")
    card.write_text(shipped.replace("tdp_W = 700", "tdp_W = 500"), encoding="utf-8")
    one: dict[str, Any] = {"config": CONFIG, "prompt": 64, "output": 4, "engine": "vllm"}
    (ranked,) = onnxperf.compare_llm(gpu=[card], **one).cards
    (plan,) = onnxperf.recommend_llm(gpu=[card], qps=1, tpot_ms=50, requests=8, parallel="tp=1", **one).plans
    said = [onnxperf.llm(gpu=card, **one).accuracy, ranked.accuracy, plan.accuracy]
    assert {str(a).partition(")")[0] for a in said} == {f"inferred (vllm was not measured on {card}"}
    assert onnxperf.predict(RESNET, gpu=card).accuracy.why == f"ort-cuda was not measured on {card}"


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({}, "measured (calibrated on this device)"),
        ({"runtime": "torch-eager"}, "measured (calibrated on this device)"),
        ({"parallel": "tp=2"}, "not validated (generation on several GPUs under ort-genai)"),
        ({"engine": "vllm"}, "inferred (vllm was not measured on {card})"),
        ({"engine": "vllm", "cached": 0.5}, "not validated (prefix caches)"),
    ],
)
def test_calibration_counts_where_generation_is_a_sum_of_single_runs(
    terms: dict[str, Any], said: str, tmp_path: Path
) -> None:  # fmt: skip
    card = tmp_path / "a100-here.toml"
    device = gpu_specs.load("a100-sxm4-80gb")
    card.write_text(file_of(replace(device, corrections=Corrections(compute=1.1, source="a test"))), encoding="utf-8")
    one: dict[str, Any] = {"config": CONFIG, "prompt": 64, "output": 4}
    g = onnxperf.llm(gpu=card, **one, **terms)
    assert str(g.accuracy).rpartition(": ")[0] == said.format(card=card)
    if g.accuracy.status == "measured":
        assert onnxperf.predict(RESNET, gpu=card, runtime=terms.get("runtime")).accuracy == g.accuracy


def test_calibration_of_one_device_says_less_of_several(tmp_path: Path) -> None:
    card = tmp_path / "a100-here.toml"
    device = gpu_specs.load("a100-sxm4-80gb")
    card.write_text(file_of(replace(device, corrections=Corrections(compute=1.1, source="a test"))), encoding="utf-8")
    one, two = (onnxperf.predict(RESNET, gpu=card, batch=2, parallel=plan).accuracy for plan in (None, "dp=2"))
    assert (one.status, two.status) == ("measured", "inferred")
    assert two.why == "calibrated on this device; exchanges between GPUs were not measured"


def test_pages_and_cards_that_are_named_are_there() -> None:
    pages, cards = {PAGE, *(m.page for m in measured())}, {m.gpu for m in measured()}
    assert all((ROOT / page).is_file() for page in pages) and cards <= set(gpu_specs.ids())
