"""Watts: what the power model says of a card that repeats a kernel, beside rows that have watts."""

from __future__ import annotations

import numpy as np

import gpu_specs
from onnxperf import predict
from onnxperf.lab.datasets import SAMPLE, watts
from onnxperf.lab.validate.energy import LONG_S, pairs
from onnxperf.lab.validate.scored import LEFT_OUT
from onnxperf.latency import alone, shipped, watts_alone
from onnxperf.scoring.score import score
from tests.decide.models import net


def test_the_sample_has_rows_with_watts_and_long_products_are_near_them() -> None:
    rows = watts(SAMPLE)
    assert {(r.reported, r.gpu) for r in rows} == {("BF16 GEMM", "b200-sxm"), ("BF16 GEMM", "h200-sxm")}
    found = {(s.name, s.gpu): s for s in score("watts", (p for r in rows for p in pairs(r))) if s.method == LEFT_OUT}
    for gpu in ("b200-sxm", "h200-sxm"):
        long, short = (found[f"BF16 GEMM, {name}", gpu] for name in (f"over {LONG_S * 1e3:g} ms", "shorter"))
        assert long.mape < short.mape < 0.5
        assert long.count + short.count == sum(len(r.watts) for r in rows if r.gpu == gpu)


def test_a_card_draws_more_than_at_rest_and_no_more_than_its_limit() -> None:
    (rows,) = (r for r in watts(SAMPLE) if r.gpu == "h200-sxm")
    device, constants = gpu_specs.load("h200-sxm"), shipped()
    said = watts_alone(rows.works, [device], constants, rows.copies)[:, 0]
    assert (constants.power["static_share"] * device.tdp_W < said).all() and (said <= device.tdp_W).all()
    seconds = alone(rows.works, [device], constants, copies=rows.copies).seconds[:, 0]
    long = seconds > 10 * LONG_S
    assert np.median(said[long]) > 0.9 * device.tdp_W, "what runs for milliseconds is at the limit"


def test_less_power_is_drawn_under_a_lower_limit_and_by_idle_cards() -> None:
    free, limited = (predict(net(), gpu="a100", batch=1024, **terms) for terms in ({}, {"power_limit_W": 150}))
    one = predict(net(), gpu="a100", batch=1)
    assert free.watts and limited.watts and one.watts
    assert limited.watts <= 150 < free.watts and one.watts < free.watts
    assert one.joules_per_sample and free.joules_per_sample and free.joules_per_sample < one.joules_per_sample
