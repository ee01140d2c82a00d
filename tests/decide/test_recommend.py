"""Serving plans: the fewest replicas that keep a latency, and a queue that a simulation confirms."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest

from onnxperf import UsageError, predict, recommend
from onnxperf.decide.queueing import MOST_REPLICAS, Replica, Target, fewest, fewest_that_keep_up, mean_latency
from tests.decide.models import model_of, net
from tests.test_cli import run

CARDS = ["t4", "l4", "a10g"]
#: A model whose Reshape fixes the batch.
FIXED = """fixed (float[1,64] x) => (float[1,1000] y)
{ s = Constant<value_ints=[1,64]>() r = Reshape(x, s) a = MatMul(r, w) g = Gemm<transB=1>(x, x) y = Add(a, g) }"""

#: A batch of 32 whose samples are not computed apart.
MIXED = """mixed (float[32,64] x) => (float[32,1000] y)
{ s = Constant<value_ints=[32,64]>() p = Softmax<axis=0>(x) r = Reshape(p, s) y = MatMul(r, w) }"""


def simulated(run_s: float, batch: int, rate: float, replicas: int, requests: int, seed: int) -> Any:
    """The latencies of requests that come at random, `rate` of them at each of the replicas, which they are sent to at
    random, and which run full batches one after the other.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / (rate * replicas), requests))
    sent, latencies = rng.integers(replicas, size=requests), []
    for replica in range(replicas):
        own = arrivals[sent == replica]
        own = own[: own.size - own.size % batch]
        runs = np.arange(own.size // batch) * run_s
        starts = np.maximum.accumulate(own[batch - 1 :: batch] - runs) + runs  # of a batch: full, and the last is done
        latencies.append(np.repeat(starts + run_s, batch) - own)
    return np.concatenate(latencies)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_simulated_queue_takes_as_long(share: float) -> None:
    for batch in (1, 4):
        rate = share * batch / 2e-3
        said = float(mean_latency(np.array([1.0]), 2e-3, batch, rate)[0])
        seen = float(simulated(2e-3, batch, rate, 1, 200_000, 0).mean())
        assert said == pytest.approx(seen, rel=0.05 if batch == 1 else 0.1)


@pytest.mark.parametrize(("i", "replicas"), [*enumerate([1, 2, 8])])
@pytest.mark.parametrize(("j", "load"), [(0, 0.3), (1, 0.5), (2, 0.7), pytest.param(3, 0.9, marks=pytest.mark.slow)])
def test_percentiles_are_those_of_a_simulated_queue(j: int, load: float, i: int, replicas: int) -> None:
    """Within 2%, which is what simulations of so many requests are off: the busier, the more alike are waits of
    neighbours. Every two of loads, replicas and batches meet.
    """
    for batch in ((1, 8), (2, 32))[(i + j) % 2]:
        rate = load * batch / 2e-3
        runs = [simulated(2e-3, batch, rate, replicas, 2_000_000, seed) for seed in range(1 if load < 0.9 else 8)]
        seen = np.mean([np.percentile(latencies, (50, 90, 99)) for latencies in runs], 0)
        said = [Target(1, rate * replicas, p).seconds(replicas, 2e-3, batch) for p in (50, 90, 99)]
        np.testing.assert_allclose(said, seen, rtol=0.02)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_waits_of_single_requests_are_erlangs(load: float) -> None:
    """The closed form for M/D/1 (Erlang 1909), whose terms cancel too much for long waits."""
    for x in (0.0, 0.4, 1.0, 2.7, 6.2):
        terms = (
            (-load * (x - j)) ** j / math.factorial(j) * math.exp(load * (x - j)) for j in range(math.floor(x) + 1)
        )
        assert Replica(1.0, 1, load).within(x)[1] == pytest.approx((1 - load) * sum(terms), abs=1e-12)


def test_a_percentile_of_rare_requests_is_that_of_filling() -> None:
    """No batch waits for another; of two requests the first waits for the second, the second for none."""
    seconds = Replica(1e-3, 2, 1.0).percentile(99) - 1e-3
    assert seconds == pytest.approx(math.log(50), rel=1e-6)
    assert Replica(1e-3, 1, 1.0).percentile(99) == pytest.approx(1e-3)


@pytest.mark.parametrize("percentile", [None, 50, 99])
def test_the_fewest_replicas_keep_the_limit_and_one_less_does_not(percentile: float | None) -> None:
    for qps in (10.0, 500.0, 20_000.0):
        for batch in (1, 8):
            for limit in (2.5e-3, 10e-3, 1.0):
                target = Target(limit, qps, percentile)
                found, least = fewest(2e-3, batch, target), fewest_that_keep_up(2e-3, batch, target)
                fewer = found[0] - 1 if found else MOST_REPLICAS
                numbers = {int(n) for n in np.geomspace(least, max(fewer, 1), 30)} | {fewer}
                assert all(target.seconds(n, 2e-3, batch) > limit for n in numbers if least <= n <= fewer)
                assert found is None or found[1] == target.seconds(found[0], 2e-3, batch) <= limit


def test_a_percentile_takes_more_replicas_than_the_mean() -> None:
    asked: dict[str, Any] = {"max_ms": 0.15, "qps": 500_000, "gpu": CARDS, "batch": 1}
    mean, p90, p99 = (recommend(net(), **asked, percentile=p) for p in (None, 90, 99))
    for plans in zip(*(sorted(r.plans, key=lambda p: p.gpu) for r in (mean, p90, p99)), strict=True):
        assert [p.replicas for p in plans] == sorted(p.replicas for p in plans)
        assert plans[0].replicas < plans[2].replicas and plans[2].seconds <= 0.15e-3
    assert (mean.to_dict()["percentile"], p99.to_dict()["percentile"]) == (None, 99)
    assert mean.to_dict()["assumed"].startswith("mean latency") and p99.to_dict()["assumed"].startswith("p99 latency")
    assert "p99 latency" in str(p99) and "mean" not in str(p99)


def test_the_command_limits_a_percentile(capsys, monkeypatch, tmp_path) -> None:
    onnxperf_cli = partial(run, capsys, monkeypatch)
    onnx.save(net(), model := str(tmp_path / "net.onnx"))
    asked = ("recommend", model, "--gpu", "t4", "--max-latency", "1ms", "--qps", "50000", "--percentile")
    code, out, _ = onnxperf_cli(*asked, "99", "--json", "-")
    own = recommend(model, gpu=["t4"], max_ms=1, qps=50_000, percentile=99)
    assert code == 0 and json.loads(out) == own.to_dict()
    code, out, _ = onnxperf_cli(*asked, "99.9")
    told = " ".join(out.split())
    assert code == 0 and "at a p99.9 latency of 1 ms" in told and "each with its own queue" in told
    for wrong in ("0", "100", "nan"):
        code, _, err = onnxperf_cli(*asked, wrong)
        assert code == 2 and "--percentile must be a number above 0 and up to 99.999" in err
    code, _, err = onnxperf_cli("recommend", model, "--gpu", "t4", "--gpus", "2", "--percentile", "99")
    assert code == 2 and "no limits" in err
    code, _, err = onnxperf_cli(*asked, "99", "--batch", "16")
    assert code == 2 and "recommend chooses the batch: leave --batch out" in err


@pytest.mark.parametrize(("percentile", "says"), [(None, "mean latency"), (99, "p99 latency")])
def test_a_batch_that_takes_too_long_to_fill_is_the_reason(percentile: float | None, says: str) -> None:
    """At 100 requests a second 31 more take 310 ms to come, on one replica; on more it takes longer."""
    fixed = model_of(MIXED, {"w": (64, 1000)})
    found = recommend(fixed, max_ms=50, qps=100, gpu=["l4"], percentile=percentile)
    assert not found.plans and found.fixed
    why = dict(found.others)["l4"]
    assert why.startswith(f"at 100 requests/s a batch of 32 takes 310 ms to fill: {says} ")
    assert why.endswith("with 1 replica, over 50 ms")
    assert recommend(fixed, max_ms=5000, qps=100, gpu=["l4"], percentile=percentile).plans[0].batch == 32


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


def test_a_dash_for_the_worst_case_is_explained(capsys, monkeypatch, tmp_path) -> None:
    onnx.save(net(), model := str(tmp_path / "net.onnx"))
    longest = predict(model, gpu="t4").high_seconds
    told = []
    for limit in (f"{1e3 * longest * 0.98:.4f}ms", "1s"):
        asked = ("recommend", model, "--gpu", "t4", "--max-latency", limit, "--qps", "1")
        code, out, _ = run(capsys, monkeypatch, *asked)
        told.append(" ".join(out.split()))
        assert code == 0 and "worst case: replicas if each run takes the upper end of its 80% interval" in told[-1]
    dashed, counted = told
    assert "80% interval; -: no number of replicas then meets the limit" in dashed and "; -:" not in counted


def test_cards_that_can_not_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recommend(net(), max_ms=1e-3, qps=10, gpu=["t4"], batch=1)
    assert not found.plans and "over 1 us" in dict(found.others)["t4"]
    for module in ("queueing", "recommend"):
        monkeypatch.setattr(f"onnxperf.decide.{module}.MOST_REPLICAS", 3)
    many = recommend(net(), max_ms=5, qps=9e8, gpu=["t4"], batch=1)
    assert "more than 3 replicas" in dict(many.others)["t4"]


@pytest.mark.parametrize("terms", [{"qps": 0}, {"qps": -1}, {"qps": float("nan")}, {"max_ms": 0}])
def test_what_is_wrong_is_named(terms: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be a positive number"):
        recommend(net(), **{"max_ms": 5, "qps": 10, "gpu": ["t4"], "batch": 1, **terms})
