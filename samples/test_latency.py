"""Latency as a test: the fixture is there wherever onnxperf is installed. Run it with pytest, where `samples` is."""

import pytest

FILE = "samples/resnet50.onnx"


def test_it_keeps_its_budget(assert_latency):
    assert_latency(FILE, gpu="t4", max_ms=8, max_gb=2)


@pytest.mark.parametrize("gpu, max_ms", [("t4", 4), ("l4", 2), ("a100", 2)])
def test_half_precision_on_every_card_that_it_runs_on(assert_latency, gpu, max_ms):
    p = assert_latency(FILE, gpu=gpu, max_ms=max_ms, precision="fp16")
    assert p.memory.fits
