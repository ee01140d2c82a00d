"""Continuous batching against cases that can be computed by hand, and against tables of batches."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import onnxperf
from onnxperf.ground.errors import UsageError
from onnxperf.ground.tables import number
from onnxperf.language.arrivals import Arrival, Traffic, around
from onnxperf.language.core import traffic
from onnxperf.language.generation import Lengths
from onnxperf.language.prices import Line, grown, prices
from onnxperf.language.service import Server, simulate
from onnxperf.language.serving import PERCENTILES, spread
from onnxperf.views.llm import verdict
from tests.language.test_generation import LLAMA2, SMALL, steps

ROOMY = Server(running=8, cache_tokens=10**9, budget=100)


def price(decoding: int, context: float, new: int, past: float) -> float:
    """A second for an iteration, a hundredth for each new token, a thousandth for each token of context."""
    return 1 + 0.01 * (new + decoding) + 0.001 * (decoding * context + new * past)


def test_one_request_takes_its_chunks_and_steps() -> None:
    """A prompt of 150 in chunks of 100 and 50, then steps after 150, 151 and 152 tokens."""
    (one,) = simulate([Arrival(5.0, 150, 4)], ROOMY, price).served
    first = 2 + 1.5 + 0.001 * 50 * 100
    assert (one.waiting, one.to_first_token) == pytest.approx((0, first))
    assert one.each_token == pytest.approx(1.01 + 0.151)
    assert one.latency == pytest.approx(first + 3 * (1.01 + 0.151))


def test_two_requests_by_hand() -> None:
    """The second comes in the prompt of the first, and its own prompt goes with the first's step."""
    a, b = simulate([Arrival(0.0, 10, 3), Arrival(0.5, 20, 2)], ROOMY, price).served
    one = price(0, 0, 10, 0)
    two = one + price(1, 10, 20, 0)
    three = two + price(2, (11 + 20) / 2, 0, 0)
    assert (a.first, a.end, b.start, b.first, b.end) == pytest.approx((one, three, one, two, three))


def test_requests_far_apart_wait_for_nobody() -> None:
    arrivals = [Arrival(1000.0 * i, 30 + i, 5) for i in range(20)]
    found = simulate(arrivals, ROOMY, price)
    for served, arrival in zip(found.served, arrivals, strict=True):
        (alone,) = simulate([arrival], ROOMY, price).served
        assert served.waiting == 0 and served.latency == pytest.approx(alone.latency)
    assert found.busy < 0.01 * found.span


def drawn(seed: int = 0, qps: float = 2.0) -> tuple[Arrival, ...]:
    return Traffic(qps, "lognormal:80:0.8", "uniform:1:60", 400, seed).arrivals(1000)


def test_no_token_is_lost_and_none_comes_before_its_time() -> None:
    arrivals, server = drawn(), Server(6, 900, 50)
    calls: list[tuple[int, float, int, float]] = []

    def seen(*call: Any) -> float:
        calls.append(call)
        return 0.01 * price(*call)

    found = simulate(arrivals, server, seen)
    assert found.prompted == sum(a.prompt for a in arrivals) == sum(c[2] for c in calls)
    assert found.decoded == sum(a.output - 1 for a in arrivals) == sum(n for _, n in found.gaps)
    context = sum(sum(range(a.prompt, a.prompt + a.output - 1)) for a in arrivals)
    before = sum(c[2] * c[3] for c in calls)
    assert before + sum(c[2] ** 2 / 2 for c in calls) == pytest.approx(sum(a.prompt**2 / 2 for a in arrivals))
    work = found.iterations + 0.01 * (found.prompted + found.decoded) + 0.001 * (context + before)
    assert found.busy == pytest.approx(0.01 * work)
    assert all(c[0] <= server.running and c[0] + c[2] <= server.budget for c in calls)
    assert all(s.arrival.seconds <= s.start < s.first <= s.end for s in found.served)
    assert all(one.start <= other.start for one, other in pairwise(found.served))
    times = sorted({s.start for s in found.served} | {s.end for s in found.served})
    for t in times:
        held = [s.arrival.prompt + s.arrival.output for s in found.served if s.start <= t < s.end]
        assert sum(held) <= server.cache_tokens and len(held) <= server.running


def test_a_seed_decides_all() -> None:
    one, same, other = (simulate(drawn(seed), ROOMY, price).served for seed in (0, 0, 1))
    assert [s.end for s in one] == [s.end for s in same] != [s.end for s in other]


def test_under_load_throughput_is_that_of_the_full_batch() -> None:
    """Where prompts cost nothing, and a step the same at any batch, 8 requests at a time give 8 tokens a step."""
    arrivals = [Arrival(0.0, 1, 201) for _ in range(8 * 20)]
    found = simulate(arrivals, Server(8, 10**9, 100), lambda decoding, c, new, p: 1.0 if decoding else 1e-9)
    assert sum(a.output - 1 for a in arrivals) / found.span == pytest.approx(8, rel=0.01)
    slow = simulate(arrivals, Server(8, 3 * 202, 100), lambda decoding, c, new, p: 1.0 if decoding else 1e-9)
    assert sum(a.output - 1 for a in arrivals) / slow.span == pytest.approx(3, rel=0.02)


def loop(n: int, requests: int, prompt: int = 100, output: int = 50) -> tuple[Arrival, ...]:
    return Traffic(None, str(prompt), around(output), requests, 0, n).arrivals()


def linear(step: float, prefill: float) -> Any:
    """A step takes `step`, a token of a prompt `prefill` more."""
    return lambda decoding, context, new, past: step * (decoding > 0) + prefill * new


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("n", [4, 16, 64])
def test_a_closed_loop_has_the_mean_of_its_formula(n: int, mixed: bool) -> None:
    """Each token takes a step, and the prompts of the others come between: step + (n - 1) prefill / output."""
    server = Server(n, 10**9, 8192, mixed)
    served = simulate(loop(n, 20 * n, 100, 400), server, linear(0.01, 5e-5), n).served
    mean = np.mean([s.each_token for s in served])
    assert mean == pytest.approx(0.01 + (n - 1) * 100 * 5e-5 / 400, rel=0.02)


def test_a_closed_loop_has_as_many_requests_at_any_time() -> None:
    """Each is sent as another ends, and is with the scheduler after what the server's front takes; a request alone is
    never disturbed.
    """
    found = simulate(loop(7, 90), Server(7, 10**9, 1000, front_s=0.5), linear(1.0, 0.01), 7)
    ends = sorted(s.end for s in found.served)
    arrivals = [s.arrival.seconds for s in found.served]
    assert arrivals[:7] == [0.0] * 7 and arrivals[7:] == ends[:83]
    assert all(s.waiting >= 0.5 for s in found.served)
    alone = simulate(loop(1, 9), replace(ROOMY, front_s=0.5), linear(1.0, 0.01), 1).served
    assert [s.to_first_token for s in alone] == pytest.approx([1.5] * 9)
    assert [s.arrival.seconds for s in alone[1:]] == [s.end for s in alone[:-1]]


@pytest.mark.parametrize(("ahead", "start"), [(False, 4.0), (True, 5.0)])
def test_an_iteration_that_is_prepared_ahead_takes_nobody_who_comes_later(ahead: bool, start: float) -> None:
    """Who comes in the fourth of steps of a second joins the fifth, or where that is prepared by then, the sixth."""
    arrivals = [Arrival(0.0, 1, 20), Arrival(3.4, 1, 20)]
    server = replace(ROOMY, ahead=ahead)
    one, other = simulate(arrivals, server, lambda decoding, context, new, past: 1.0 if decoding else 1e-9).served
    assert (one.start, other.start) == pytest.approx((0.0, start))
    assert (other.first - other.start, one.each_token, other.each_token) == pytest.approx((1.0, 1.0, 1.0))


def test_equal_lengths_keep_prompts_together_where_they_go_first() -> None:
    """All n prompts run before any request goes on: the mean of n waves of one, and steps that nothing disturbs."""
    arrivals = [Arrival(0.0, 100, 50)] * 80
    found = simulate(arrivals, Server(8, 10**9, 100, mixed=False), linear(0.01, 1e-3), 8)
    assert [s.to_first_token for s in found.served[:8]] == pytest.approx([0.1 * (i + 1) for i in range(8)])
    assert [s.each_token for s in found.served] == pytest.approx(
        [(49 * 0.01 + 0.1 * (7 - i % 8)) / 49 for i in range(80)]
    )
    assert sum(s * n for s, n in found.gaps) == pytest.approx(sum(s.each_token * 49 for s in found.served))


def test_whole_prompts_are_not_divided_unless_they_are_longer_than_the_budget() -> None:
    arrivals = [Arrival(0.0, 60, 2), Arrival(0.0, 60, 2), Arrival(0.0, 250, 2)]
    firsts = [s.first for s in simulate(arrivals, Server(3, 10**9, 100, whole=True), linear(0.0, 1.0)).served]
    assert firsts == pytest.approx([60, 120, 370])
    assert next(s.first for s in simulate(arrivals, Server(3, 10**9, 100), linear(0.0, 1.0)).served) == 100


def test_prompts_of_an_iteration_attend_to_themselves_alone() -> None:
    """Four of 25 tokens see 4 x 25^2 / 2 positions, as 100 tokens do behind 12.5 - 50 of them."""
    seen: list[float] = []
    simulate([Arrival(0.0, 25, 2)] * 4, ROOMY, lambda d, c, new, past: seen.append(past) or 1.0)
    assert seen[0] == 12.5 - 50


def test_means_and_percentiles_are_those_of_every_value() -> None:
    rng = np.random.default_rng(0)
    values, counts = rng.random(50), rng.integers(1, 9, 50)
    every = np.repeat(values, counts)
    found = spread([list(zip(values.tolist(), counts.tolist(), strict=True))] * 3)
    assert found.mean.ends() == pytest.approx([every.mean()] * 3)
    assert [found.at[p].seconds for p in PERCENTILES] == pytest.approx(np.percentile(every, PERCENTILES))


def test_a_range_holds_the_answer_where_slower_iterations_make_some_wait_less() -> None:
    mean = spread([[(2.0, 1)], [(3.0, 1)], [(1.0, 1)]]).mean, spread([[(1.0, 1)], [(2.0, 1)], [(1.5, 1)]]).mean
    assert [m.ends() for m in mean] == [(2.0, 1.0, 3.0), (1.0, 1.0, 2.0)]


def test_a_thousand_requests_take_a_fraction_of_a_second() -> None:
    started = time.process_time()
    simulate(loop(256, 1000, 1024, 1024), Server(256, 10**9, 8192), linear(0.01, 5e-5), 256)
    assert time.process_time() - started < 2


def test_what_is_asked_of_a_closed_loop() -> None:
    lengths = Lengths(2048, 256)
    one, eight = traffic(lengths, None, None, None, None, 0, "1,8")
    assert (one.concurrency, eight.concurrency, eight.requests, eight.prompts) == (1, 8, 80, "2048")
    assert eight.outputs == "uniform:248:264" and {a.seconds for a in eight.arrivals()} == {0.0}
    (given,) = traffic(lengths, None, "9", "7", 5, 0, 3)
    assert (given.prompts, given.outputs, given.requests) == ("9", "7", 5)
    for asked, says in (((2.0, 3), "leave one out"), ((None, 0), "whole numbers from 1"), ((None, "x"), "not a list")):
        with pytest.raises(UsageError, match=says):
            traffic(lengths, asked[0], None, None, None, 0, asked[1])


@pytest.mark.slow
def test_llm_serves_a_closed_loop() -> None:
    """One at a time has the latency of the table; more have more throughput, and each user less."""
    asked: dict[str, Any] = {"config": SMALL, "gpu": "l4", "prompt": 512, "output": 64, "chunk": 512, "batch": 1}
    g = onnxperf.llm(**asked, concurrency="1..16")
    assert g.service is g.curve[0] and [s.traffic.concurrency for s in g.curve] == [1, 2, 4, 8, 16]
    first, token = (g.service.times[name] for name in ("time_to_first_token", "time_per_output_token"))
    assert first.mean.ends() == pytest.approx(g.batches[0].first.ends())
    assert token.mean.ends() == pytest.approx(g.batches[0].token.ends(), rel=0.01)
    for less, more in pairwise(g.curve):
        assert more.tokens_per_second_per_gpu > less.tokens_per_second_per_gpu
        assert more.tokens_per_second_per_user < less.tokens_per_second_per_user
    data = g.to_dict()
    assert data["service"] == data["curve"][0]
    for key in ("time_to_first_token", "time_per_output_token", "inter_token_latency"):
        assert {"seconds", "low_seconds", "high_seconds", "p50", "p90", "p99"} == set(data["service"][key])


@pytest.mark.slow
def test_iterations_cost_what_their_runs_are_predicted_to() -> None:
    own = steps(LLAMA2, 2000)
    of, low, high = prices(own, 16, 1024)
    assert of(16, 1, 0, 0) == pytest.approx(own.seconds(16, 1, 1).seconds)
    assert of(4, 1500, 0, 0) == pytest.approx(own.seconds(4, 1, 1500).seconds, rel=0.02)
    assert of(11, 700, 0, 0) == pytest.approx(own.seconds(11, 1, 700).seconds, rel=0.05)
    assert of(0, 0, 512, 0) == pytest.approx(own.seconds(1, 512, 0).seconds)
    assert of(0, 0, 512, 1000) == pytest.approx(own.seconds(1, 512, 1000).seconds, rel=0.02)
    mixed = of(8, 1000, 512, 0)
    assert of(0, 0, 512, 0) < mixed < of(0, 0, 512, 0) + of(8, 1000, 0, 0)
    assert low(8, 1000, 0, 0) < of(8, 1000, 0, 0) < high(8, 1000, 0, 0)


def test_lines_are_exact_at_their_points_and_linear_between() -> None:
    line = Line((1, 2, 4), (0, 1, 5))
    assert [line.at(x) for x in (0, 1, 1.5, 2, 3, 4, 5)] == pytest.approx([-1, 0, 0.5, 1, 3, 5, 7])
    assert (grown(16, 100), grown(1, 1), grown(1, 8)) == ((1, 16, 64, 100), (1, 2), (1, 4, 8))
    assert grown(16, 2000, 256) == (1, 16, 64, 256, 512, 1024, 2000)


def test_lengths_are_drawn_as_asked() -> None:
    traffic = Traffic(4.0, "lognormal:2048:0.5", "uniform:10:20", 20_000)
    arrivals = traffic.arrivals()
    prompts, outputs = (np.array([getattr(a, of) for a in arrivals]) for of in ("prompt", "output"))
    assert np.median(prompts) == pytest.approx(2048, rel=0.02) and np.log(prompts).std() == pytest.approx(0.5, rel=0.03)
    assert (outputs.min(), outputs.max()) == (10, 20)
    assert arrivals[-1].seconds == pytest.approx(20_000 / 4, rel=0.03)
    assert {(a.prompt, a.output) for a in Traffic(1, "7", "3", 9).arrivals()} == {(7, 3)}
    assert all(a.prompt + a.output <= 2000 and a.prompt > 0 for a in traffic.arrivals(2000))


@pytest.mark.parametrize(
    "change",
    [
        {"qps": 0}, {"qps": float("nan")}, {"qps": True}, {"prompts": "normal:1:2"}, {"prompts": "lognormal:9"},
        {"outputs": "uniform:20:10"}, {"outputs": "0"}, {"outputs": "lognormal:9:9"}, {"requests": 0}, {"seed": -1},
        {"prompts": "2048:1"}, {"prompts": "uniform:1:99999999"},
    ],
)  # fmt: skip
def test_traffic_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"must be|not valid|out of range"):
        Traffic(**{"qps": 1.0, "prompts": "10", "outputs": "10", **change}).arrivals()


def test_requests_that_can_never_be_served_are_refused() -> None:
    for server, says in (
        (Server(8, 100, 100), "can't be served"), (Server(100, 10**9, 100), "too small for 100 concurrent requests"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=says):
            simulate([Arrival(0.0, 90, 20)], server, price)


@pytest.mark.slow
def test_two_groups_serve_in_turn() -> None:
    """With twice the requests, two groups do about what one does."""
    asked: dict[str, Any] = {"config": SMALL, "gpu": "h100", "prompt": 512, "output": 64, "chunk": 512}
    one = onnxperf.llm(**asked, batch=8, qps=40, requests=500).service
    two = onnxperf.llm(**asked, batch=16, qps=80, requests=1000, parallel="dp=2").service
    assert one is not None and two is not None
    assert two.server == one.server and two.groups == 2
    assert two.tokens_per_second == pytest.approx(2 * one.tokens_per_second, rel=0.1)
    for name in ("time_to_first_token", "time_per_output_token"):
        assert two.times[name].at[50].seconds == pytest.approx(one.times[name].at[50].seconds, rel=0.15)


@pytest.mark.slow
def test_llm_serves_what_arrives() -> None:
    """One request at a time has the latency of the table; many have its throughput at most."""
    asked: dict[str, Any] = {"config": SMALL, "gpu": "l4", "prompt": 512, "output": 64, "chunk": 512}
    rare = onnxperf.llm(**asked, batch=[1, 8], qps=0.1, requests=20)
    (b, _), s = rare.batches, rare.service
    assert s is not None
    assert s.times["time_to_first_token"].at[50].ends() == pytest.approx(b.first.ends())
    assert s.times["time_per_output_token"].at[50].ends() == pytest.approx(b.token.ends(), rel=0.01)
    assert s.times["waiting"].at[50].seconds == pytest.approx(0, abs=1e-12) and s.utilisation < 0.1
    busy = onnxperf.llm(**asked, batch=[8], qps=1e5, requests=200).service
    assert busy is not None
    assert busy.capacity is not None and s.capacity is not None
    assert busy.requests_per_second == pytest.approx(busy.capacity, rel=0.15)
    assert verdict(s) == f"keeps up: 0.1 requests/s arrive, and up to {number(s.capacity)} could be served"
    assert verdict(busy).startswith(f"cannot keep up: serves at most {number(busy.capacity)} of 100,000 requests/s")
    assert busy.utilisation == pytest.approx(1, abs=0.01) and busy.batch > 5
    assert 0.5 < busy.tokens_per_second / rare.batches[1].decode_tokens_per_second < 1
    with pytest.raises(UsageError, match=r"qps must be a number .* not 0"):
        onnxperf.llm(config="none.json", gpu="l4", qps=0)  # before the file is opened
    with pytest.raises(UsageError, match="need qps"):
        onnxperf.llm(**asked, output_lengths="9")


@pytest.mark.parametrize("qps", [1e-13, 1e-14, 5e-324, 9.9e-5])
def test_a_rate_whose_times_would_lose_their_digits_is_refused(qps: float) -> None:
    with pytest.raises(UsageError, match=r"--qps must be a number of requests per second, from 0\.0001"):
        Traffic(qps, "8", "2", 1).arrivals()


def test_the_lowest_rate_serves_each_request_alone() -> None:
    arrivals = Traffic(1e-4, "8", "3", 1000).arrivals()
    simulation = simulate(arrivals, ROOMY, lambda decoding, context, new, past: 1e-3)
    assert [s.latency for s in simulation.served] == pytest.approx([3e-3] * 1000, rel=1e-3)


def test_more_tokens_than_can_be_simulated_are_refused_with_what_to_do() -> None:
    arrivals = [Arrival(i, 8, 100_000) for i in range(1000)]
    with pytest.raises(UsageError, match=r"100,000,000 tokens .* at most 50,000,000: use --requests 500, or shorter"):
        simulate(arrivals, ROOMY, lambda *_: 1e-3)
