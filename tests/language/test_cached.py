"""Prompts that are in part in a prefix cache: the rest alone is run, and attends to what is cached."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import onnxperf
from onnxperf.ground.errors import UsageError
from onnxperf.language.arrivals import Arrival, Traffic, cached_tokens
from onnxperf.language.generation import Lengths, first_token
from onnxperf.language.service import Server, simulate
from tests.language.test_generation import SMALL, steps
from tests.language.test_laws import DENSE
from tests.language.test_service import ROOMY, drawn, price


def test_whole_blocks_are_cached_and_never_the_last_token() -> None:
    assert [cached_tokens(s, 100) for s in (0, 0.29, 0.5, 1)] == [0, 29, 50, 99]
    assert [cached_tokens(s, 100, 16) for s in (0.1, 0.5, 1)] == [0, 48, 96]
    assert [cached_tokens(1.0, n, 16) for n in (1, 16, 17, 32)] == [0, 0, 16, 16]


def test_the_rest_of_a_prompt_runs_behind_what_is_cached() -> None:
    assert Lengths(100, 2, cached=0.5).prompt_runs() == ((50, 50),)
    assert Lengths(100, 2, 20, cached=0.5, block=16).prompt_runs() == ((20, 48), (20, 68), (12, 88))
    assert Lengths(100, 2, cached=1.0).prompt_runs() == ((1, 99),)
    own = steps(longest=512)
    assert first_token(own, 2, Lengths(300, 2, cached=0.5)) == own.seconds(2, 150, 150)


def test_nothing_cached_is_as_without_to_the_bit() -> None:
    asked: dict[str, Any] = {"config": SMALL, "gpu": "l4", "prompt": 100, "output": 8, "batch": [1, 4]}
    asked |= {"engine": "vllm", "concurrency": [1, 6]}
    assert onnxperf.llm(**asked) == onnxperf.llm(**asked, cached=0)
    assert simulate(drawn(), ROOMY, price) == simulate([replace(a, cached=0) for a in drawn()], ROOMY, price)


def test_a_request_takes_the_chunks_of_what_is_not_cached() -> None:
    """Of 250 tokens 100 are cached: chunks of 100 and 50 behind 100 and 200, then steps as without."""
    (one,) = simulate([Arrival(5.0, 250, 3, 100)], ROOMY, price).served
    first = price(0, 0, 100, 100) + price(0, 0, 50, 200)
    assert (one.waiting, one.to_first_token) == pytest.approx((0, first))
    assert one.each_token == pytest.approx(price(1, 250.5, 0, 0))


def test_a_cached_prompt_waits_for_its_turn_and_holds_its_whole_cache() -> None:
    """Whole prompts: 60 new tokens go with 40 others, and not with 41; the room is that of all tokens."""
    for before, together in ((40, True), (41, False)):
        a, b = simulate([Arrival(0.0, before, 2), Arrival(0.0, 160, 2, 100)], Server(2, 10**9, 100, whole=True), price)\
            .served  # fmt: skip
        assert (a.first == b.first) == together
    a, b = simulate([Arrival(0.0, 160, 2, 100)] * 2, Server(2, 300, 200), price).served
    assert b.start == a.end


def test_prompted_tokens_are_those_that_are_not_cached() -> None:
    traffic = Traffic(2.0, "lognormal:80:0.8", "uniform:1:60", 400, cached=0.5)
    arrivals = traffic.arrivals(1000, 16)
    assert [a.cached for a in arrivals] == [a.prompt // 2 // 16 * 16 for a in arrivals]
    found = simulate(arrivals, Server(6, 3000, 50), price)
    assert found.prompted == sum(a.prompt - a.cached for a in arrivals)


def test_half_of_the_prompts_cached_under_an_engine() -> None:
    """The first token comes sooner, a token alone takes as long, and others' prompts disturb it less."""
    asked: dict[str, Any] = {"config": DENSE, "gpu": "l4", "prompt": 1000, "output": 32, "batch": [1, 8]}
    none, half = (onnxperf.llm(**asked, engine="vllm", concurrency=[1, 32], cached=c) for c in (0.0, 0.5))
    for a, b in zip(none.batches, half.batches, strict=True):
        assert b.first.seconds < a.first.seconds and b.token == a.token and b.cache_bytes == a.cache_bytes
    for name in ("time_to_first_token", "time_per_output_token"):
        assert half.curve[1].times[name].mean.seconds < none.curve[1].times[name].mean.seconds
    data = half.to_dict()
    assert (data["cached"], data["cached_tokens"], data["service"]["cached"]) == (0.5, 496, 0.5)
    assert any("496 of 1,000 tokens of a prompt" in note for note in half.notes)
    shared = 7 * 496 * half.cache_bytes_per_token / 1e6
    assert any(f"batch 8 would need {shared:.3g} MB less" in note for note in half.notes)


@pytest.mark.parametrize("cached", [-0.1, 1.5, float("nan"), True, "half"])
def test_what_is_no_share_is_refused(cached: Any) -> None:
    with pytest.raises(UsageError, match="cached must be a share from 0 to 1, not"):
        onnxperf.llm(config=SMALL, gpu="l4", prompt=64, output=8, cached=cached)
