"""A card that is better in one thing, and no worse in another, is not slower."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import gpu_specs
import onnxperf
from onnxperf.explanation import product_graph
from tests.estimating import predict_on

L4 = gpu_specs.load("l4")
RESNET = Path(__file__).parents[2] / "samples" / "resnet50.onnx"


@pytest.mark.parametrize("runtime", ["ort-cuda", "tensorrt"])
@pytest.mark.parametrize("precision", ["keep", "fp16"])
def test_twice_the_sms_at_twice_the_rate_are_not_slower(runtime: str, precision: str) -> None:
    """Twice the SMs alone share one rate: each is half as fast, so that layers of fewer tiles than SMs take up to
    twice as long. That is what such a card would do, and no choice of a slower algorithm.
    """
    model = onnxperf.load(RESNET)
    shared = replace(L4, sms=2 * L4.sms)
    twice = replace(shared, dense_flops=gpu_specs.Rates(tuple((x, 2 * rate) for x, rate in L4.dense_flops.items())))
    own, slow, fast = predict_on([L4, shared, twice], model, runtime=runtime, precision=precision)
    assert fast.seconds <= own.seconds
    pairs = zip(own.kernels, slow.kernels, strict=True)
    assert all(b.seconds <= 2.05 * a.seconds for a, b in pairs)


@pytest.mark.parametrize("sizes", ["1024x1024x1024", "256x1024x4096", "64x4096x4096"])
def test_an_absurd_rate_of_one_type_does_not_slow_another(sizes: str) -> None:
    """Energy by the ratio of two types' rates once made TF32 14 times slower where FP16 was said to be without end."""
    absurd = replace(L4, dense_flops=gpu_specs.Rates((*L4.dense_flops.items(), ("tensor_fp16", 1e24))))
    own, other = predict_on([L4, absurd], product_graph(sizes), precision="tf32")
    assert other.seconds <= own.seconds
