"""What a prediction says of its accuracy: whether runs like it were measured."""

from pathlib import Path
from typing import Any

import pytest

import gpu_specs
import onnxperf
from onnxperf.answer.accuracy import PAGE, measured

ROOT = Path(__file__).parents[1]
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


def test_training_and_several_gpus_are_measured_apart() -> None:
    step: dict[str, Any] = {"mode": "training", "runtime": "torch-eager", "gpu": "v100-pcie-32gb"}
    assert onnxperf.predict(BERT, **step).accuracy.status == "measured"
    assert onnxperf.predict(BERT, mode="training", gpu="v100-pcie-32gb").accuracy.why == "training steps"
    two = onnxperf.predict(BERT, gpu="t4", batch=2, parallel="dp=2").accuracy
    assert (two.status, two.why) == ("not validated", "inference on several GPUs under ort-cuda")


def test_pages_and_cards_that_are_named_are_there() -> None:
    pages, cards = {PAGE, *(m.page for m in measured())}, {m.gpu for m in measured()}
    assert all((ROOT / page).is_file() for page in pages) and cards <= set(gpu_specs.ids())
