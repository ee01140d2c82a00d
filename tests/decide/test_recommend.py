"""Serving plans: the fewest replicas that keep a latency, and a queue that a simulation confirms."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest

from onnxperf import UsageError, predict, recommend
from onnxperf.decide.recommend import fewest, mean_latency
from tests.decide.models import model_of, net
from tests.test_cli import run

CARDS = ["t4", "l4", "a10g"]
#: A model whose Reshape fixes the batch.
FIXED = """fixed (float[1,64] x) => (float[1,1000] y)
{ s = Constant<value_ints=[1,64]>() r = Reshape(x, s) a = MatMul(r, w) g = Gemm<transB=1>(x, x) y = Add(a, g) }"""


def simulated(run_s: float, batch: int, rate: float, requests: int = 200_000) -> float:
    """The mean latency of requests that come at random to one server, which runs full batches one after the other."""
    arrivals = np.cumsum(np.random.default_rng(0).exponential(1 / rate, requests - requests % batch))
    ends, free = np.empty(arrivals.size // batch), 0.0
    for i, full in enumerate(arrivals[batch - 1 :: batch]):
        ends[i] = free = max(free, full) + run_s
    return float(np.mean(np.repeat(ends, batch) - arrivals))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_simulated_queue_takes_as_long(share: float) -> None:
    for batch in (1, 4):
        rate = share * batch / 2e-3
        said = float(mean_latency(np.array([1.0]), 2e-3, batch, rate)[0])
        seen = simulated(2e-3, batch, rate)
        assert said == pytest.approx(seen, rel=0.05 if batch == 1 else 0.1)


def test_the_fewest_replicas_keep_the_limit_and_one_less_does_not() -> None:
    for qps in (10.0, 500.0, 20_000.0):
        for batch in (1, 8):
            found = fewest(2e-3, batch, qps, 10e-3)
            numbers = np.arange(1, 200)
            kept = np.flatnonzero(mean_latency(numbers, 2e-3, batch, qps) <= 10e-3)
            assert (None if not kept.size else int(numbers[kept[0]])) == (found[0] if found else None)


def test_plans_are_of_predictions_and_the_cheapest_is_first() -> None:
    found = recommend(net(), max_ms=5, qps=50_000, gpu=[*CARDS, "rtx-3060"], batch=1)
    assert [p.usd_per_hour for p in found.plans[:-1]] == sorted(p.usd_per_hour or 0 for p in found.plans[:-1])
    assert found.plans[-1].gpu == "rtx-3060" and found.plans[-1].usd_per_hour is None
    for p in found.plans:
        run = predict(net(), gpu=p.gpu, batch=p.batch)
        assert p.run_seconds == run.seconds <= p.seconds <= found.limit_s and p.utilisation < 1
        assert p.seconds == pytest.approx(float(mean_latency(np.array([p.replicas]), run.seconds, p.batch, 50_000)[0]))
        assert p.replicas_if_slow is None or p.replicas_if_slow >= p.replicas
    assert json.loads(found.to_json())["plans"][0]["gpu"] == found.plans[0].gpu


def test_the_screen_says_what_prices_are_and_that_batches_can_not_be_tried(capsys, monkeypatch, tmp_path) -> None:
    onnxperf_cli = partial(run, capsys, monkeypatch)
    onnx.save(model_of(FIXED, {"w": (64, 1000)}), model := str(tmp_path / "fixed.onnx"))
    terms = ("--gpu", "t4", "--max-latency")
    code, out, _ = onnxperf_cli("recommend", model, *terms, "5ms", "--qps", "100")
    assert code == 0 and "$/hour is the price of all replicas" in out and "the batch can't be changed" in out
    code, out, _ = onnxperf_cli("compare", model, "--gpu", "t4")
    assert code == 0 and "the cost per million samples at full load" in out and "the batch can't be changed" in out
    written = tmp_path / "none.json"
    code, out, err = onnxperf_cli("recommend", model, *terms, "0.001ms", "--qps", "100", "--json", str(written))
    assert code == 1 and "no card meets this target" in out and "no card serves 100 requests/s at 1 us" in err
    assert json.loads(written.read_text())["others"][0]["gpu"] == "t4"


def test_cards_that_can_not_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recommend(net(), max_ms=1e-3, qps=10, gpu=["t4"], batch=1)
    assert not found.plans and "over 1 us" in dict(found.others)["t4"]
    monkeypatch.setattr("onnxperf.decide.recommend.MOST_REPLICAS", 3)
    many = recommend(net(), max_ms=5, qps=9e8, gpu=["t4"], batch=1)
    assert "more than 3 replicas" in dict(many.others)["t4"]


@pytest.mark.parametrize("terms", [{"qps": 0}, {"qps": -1}, {"qps": float("nan")}, {"max_ms": 0}])
def test_what_is_wrong_is_named(terms: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be a positive number"):
        recommend(net(), **{"max_ms": 5, "qps": 10, "gpu": ["t4"], "batch": 1, **terms})
