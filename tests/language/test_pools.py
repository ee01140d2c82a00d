"""Prefill and decode in two pools: against cases that can be computed by hand, and against one instance."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import onnxperf
from gpu_specs import load, load_cluster, usual_cluster
from onnxperf.ground.errors import UsageError
from onnxperf.language.arrivals import Arrival, Traffic
from onnxperf.language.engines import ENGINES
from onnxperf.language.pools import Pools, balanced, flow, parse_pools, pools_of, simulate_pools
from onnxperf.language.service import Server, simulate
from tests.language.test_generation import SMALL, steps
from tests.language.test_laws import DENSE
from tests.language.test_service import ROOMY, drawn, linear, loop, price
from tests.language.test_speculation import DRAFT

LINK = {"bytes_per_token": 10, "bytes_per_sample": 0, "link": "wire", "link_bytes_per_second": 1000.0}


def level(decoding: int, context: float, new: int, past: float) -> float:
    """As `price`, with less for what is before a prompt, so that no iteration takes less than nothing."""
    return 1 + 0.01 * (new + decoding) + 0.001 * decoding * context + 0.0001 * new * past


def test_one_request_takes_its_prompt_its_transfer_and_its_steps() -> None:
    """A prompt of 150 in chunks of 100 and 50, 1.5 s on the wire, then steps after 150, 151 and 152 tokens."""
    found, loads = simulate_pools([Arrival(5.0, 150, 4)], ROOMY, price, Pools(1, 1, **LINK))
    (one,) = found.served
    first, each = 2 + 1.5 + 0.001 * 50 * 100, [price(1, 150 + i, 0, 0) for i in range(3)]
    assert (one.waiting, one.to_first_token) == pytest.approx((0, first))
    assert one.latency == pytest.approx(first + 1.5 + sum(each))
    assert loads.prefill_utilisation == pytest.approx(first / one.latency)
    assert loads.decode_utilisation == pytest.approx(sum(each) / one.latency)
    assert (loads.transfer_seconds, loads.balance) == pytest.approx((1.5, sum(each) / first))
    assert sum(n for _, n in found.gaps) == 3
    assert sum(s * n for s, n in found.gaps) == pytest.approx(1.5 + sum(each), rel=0.01)


def test_two_requests_by_hand() -> None:
    """The second's prompt runs behind the first's, its cache goes as it is free, and it joins between two steps."""
    found, _ = simulate_pools(
        [Arrival(0.0, 100, 4), Arrival(0.5, 100, 3)], ROOMY, linear(0.75, 0.002), Pools(1, 1, **LINK)
    )
    a, b = found.served
    assert (a.first, b.first) == pytest.approx((0.2, 0.7))
    assert a.end == pytest.approx(0.2 + 1.0 + 3 * 0.75)  # steps to 1.95, 2.7 and 3.45
    assert b.end == pytest.approx(2.7 + 2 * 0.75)  # sent from 1.2 to 2.2


def test_a_request_joins_where_a_step_ends() -> None:
    """At 2.7, in the middle of the second of a long run of steps: it waits until 3.2."""
    found, _ = simulate_pools(
        [Arrival(0.0, 100, 50), Arrival(1.5, 100, 3)], ROOMY, linear(1.0, 0.002), Pools(1, 1, **LINK)
    )
    a, b = found.served
    assert b.first + 1.0 == pytest.approx(2.7) and b.end == pytest.approx(3.2 + 2)
    assert a.end == pytest.approx(1.2 + 49)
    assert sorted(found.gaps)[-1] == (pytest.approx(3.2 + 1 - 1.7), 1)


def test_with_a_pool_without_end_nobody_waits_to_decode() -> None:
    """As many instances as requests and a link that takes no time: each decodes as if alone."""
    arrivals = drawn()
    wide = Pools(1, len(arrivals), link_bytes_per_second=1e30)
    found, loads = simulate_pools(arrivals, ROOMY, level, wide)
    for served, arrival in zip(found.served, arrivals, strict=True):
        (alone,) = simulate([arrival], ROOMY, level).served
        assert served.each_token == pytest.approx(alone.each_token)
    assert loads.prefill_utilisation > 0.9 > 0.5 > loads.decode_utilisation
    both, _ = simulate_pools(arrivals, ROOMY, level, Pools(len(arrivals), len(arrivals), link_bytes_per_second=1e30))
    for served, arrival in zip(both.served, arrivals, strict=True):
        (alone,) = simulate([arrival], ROOMY, level).served
        assert served.latency == pytest.approx(alone.latency) and served.waiting == 0


def test_no_token_is_lost_and_none_comes_before_its_time() -> None:
    arrivals, server = drawn(), Server(6, 900, 50)
    calls: list[tuple[int, float, int, float]] = []

    def seen(*call: Any) -> float:
        calls.append(call)
        return 0.01 * level(*call)

    found, loads = simulate_pools(arrivals, server, seen, Pools(2, 3, **LINK))
    assert found.prompted == sum(a.prompt for a in arrivals)
    assert found.decoded == sum(a.output - 1 for a in arrivals) == sum(n for _, n in found.gaps)
    total = sum(s.each_token * (s.arrival.output - 1) for s in found.served)
    assert sum(s * n for s, n in found.gaps) == pytest.approx(total, rel=0.01)
    assert all(not (decoding and new) and decoding <= 6 and new <= 50 for decoding, _, new, _ in calls)
    assert all(s.arrival.seconds <= s.start < s.first <= s.end for s in found.served)
    assert 0 < loads.prefill_utilisation <= 1 and 0 < loads.decode_utilisation <= 1
    assert found.busy / found.span == pytest.approx((2 * loads.prefill_utilisation + 3 * loads.decode_utilisation) / 5)


def test_the_cache_of_a_decode_instance_bounds_what_it_holds() -> None:
    """Room for one of two: the second decodes once the first is gone."""
    pools = Pools(2, 1, link_bytes_per_second=1e30)
    found, _ = simulate_pools([Arrival(0.0, 100, 5)] * 2, Server(8, 200, 100), linear(1.0, 0.0), pools)
    assert [s.end for s in found.served] == pytest.approx([4, 8])
    with pytest.raises(UsageError, match="a request of 105 tokens can't be served"):
        simulate_pools([Arrival(0.0, 100, 5)], Server(8, 104, 100), price, pools)


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (1, 2), (3, 2)])
def test_a_closed_loop_keeps_its_requests_and_its_steps(prefill: int, decode: int) -> None:
    """Prompts come between no steps: a token takes a step, and n requests each have prompt, transfer and steps."""
    pools, n = Pools(prefill, decode, **{**LINK, "link_bytes_per_second": 1e6}), 12
    found, _ = simulate_pools(loop(n, 40 * n), Server(n, 10**9, 8192), linear(0.01, 5e-5), pools, concurrency=n)
    each = [s.each_token - (pools.moving(100)) / (s.arrival.output - 1) for s in found.served]
    assert np.median(each) == pytest.approx(0.01, rel=0.05)
    ends, starts = sorted(s.end for s in found.served), sorted(s.arrival.seconds for s in found.served)
    assert starts[n:] == pytest.approx(ends[: len(starts) - n])


def test_requests_of_one_token_are_never_moved() -> None:
    found, loads = simulate_pools([Arrival(0.0, 100, 1)] * 3, ROOMY, linear(1.0, 0.01), Pools(1, 1, **LINK), 1, 1)
    assert [s.end for s in found.served] == pytest.approx([1, 2, 3]) and loads.balance == loads.transfer_seconds == 0


def test_a_thousand_requests_take_less_than_two_seconds() -> None:
    started = time.process_time()
    simulate_pools(loop(256, 1000, 1024, 1024), Server(256, 10**9, 8192), linear(0.01, 5e-5), Pools(2, 4), 1, 256)
    arrivals = Traffic(20.0, "1024", "1024", 1000).arrivals()
    simulate_pools(arrivals, Server(256, 10**9, 8192), linear(0.01, 5e-5), Pools(2, 4))
    assert time.process_time() - started < 2


def test_the_slower_pool_sets_the_rate() -> None:
    """8 prompts in 2 s, 8 outputs of 101 tokens in 10 s: five instances decode what one begins."""
    pools = Pools(1, 2, **LINK)
    both = flow(pools, 8, 25, 101, 2.0, 0.1, 4)
    assert (both.requests_per_second, both.bound_by, both.balance) == (pytest.approx(1.6), "decode", pytest.approx(5))
    assert both.tokens_per_second_per_gpu == pytest.approx(1.6 * 101 / 12) and both.transfer_seconds == 2.0
    assert flow(Pools(1, 9, **LINK), 8, 24, 101, 2.0, 0.1, 4).bound_by == "prefill"
    slow = flow(Pools(1, 9, **LINK), 8, 100, 101, 2.0, 0.1, 4)
    assert (slow.bound_by, slow.requests_per_second) == ("transfer", pytest.approx(1.0))


def test_ratios_are_small_whole_numbers() -> None:
    ratios = (1, 3.1, 2.4, 1.5, 70.4, 0.34, 0.62, 0)
    assert [balanced(r) for r in ratios] == ["1:1", "1:3", "2:5", "2:3", "1:70", "3:1", "3:2", "1:0"]


def test_caches_go_over_what_joins_so_many_gpus() -> None:
    own, each = steps(DENSE, 600), 100
    assert pools_of(own, (1, 2), each).link_bytes_per_second == usual_cluster(load("l4")).pcie_Bps
    nvlink = onnxperf.llm(config=SMALL, gpu="h100", prompt=64, output=8, pools="3:5").pools
    assert nvlink is not None and nvlink.link_bytes_per_second == usual_cluster(load("h100")).link_Bps
    far = onnxperf.llm(config=SMALL, gpu="h100", prompt=64, output=8, pools="2:3", parallel="tp=2", cluster="dgx-h100")
    assert far.pools is not None and far.pools.link_bytes_per_second == load_cluster("dgx-h100").network_Bps > 0
    none = onnxperf.llm(config=SMALL, gpu="h100", prompt=64, output=8, pools="4:5").pools
    assert none is not None and "as fast as PCIe" in none.link
    assert none.link_bytes_per_second == usual_cluster(load("h100")).pcie_Bps


def test_a_batch_in_two_pools_is_that_of_one_instance_and_its_transfer() -> None:
    asked: dict[str, Any] = {"config": DENSE, "gpu": "l4", "prompt": 500, "output": 51, "batch": [1, 8]}
    one, two = onnxperf.llm(**asked), onnxperf.llm(**asked, pools="1:3")
    for a, b in zip(one.batches, two.batches, strict=True):
        assert b.pools is not None and (b.first, b.needed_bytes) == (a.first, a.needed_bytes)
        moved = a.batch * 500 * one.cache_bytes_per_token / usual_cluster(load("l4")).pcie_Bps
        assert b.pools.transfer_seconds == pytest.approx(moved)
        assert b.token.seconds == pytest.approx(a.token.seconds + moved / 50)
        rate = min(a.batch / a.first.seconds, 3 * a.batch / (50 * a.token.seconds))
        assert b.pools.requests_per_second == pytest.approx(rate)
        assert b.tokens_per_second == pytest.approx(51 * rate)
        assert b.pools.tokens_per_second_per_gpu == pytest.approx(51 * rate / 4)
        assert b.pools.balance == pytest.approx(50 * a.token.seconds / a.first.seconds)
    assert two.to_dict()["pools"]["decode"] == 3 and one.to_dict()["pools"] is None
    told = f"with 8 sequences in each decode instance, {balanced(two.batches[1].pools.balance)} would balance the pools"
    assert any(told in n for n in two.notes)
    assert two.largest_batch == one.largest_batch


def test_requests_in_two_pools_under_an_engine() -> None:
    """Alone as in the table, but for the way of a first token; in a crowd no other prompt comes between the tokens."""
    asked: dict[str, Any] = {"config": DENSE, "gpu": "l4", "prompt": 500, "output": 51, "batch": [1, 4]}
    asked |= {"engine": "vllm", "concurrency": [1, 32]}
    one, two = onnxperf.llm(**asked), onnxperf.llm(**asked, pools="1:1")
    alone, crowd = two.curve
    for name, time_of in (
        ("time_to_first_token", two.batches[0].first),
        ("time_per_output_token", two.batches[0].token),
    ):
        way_s = ENGINES["vllm"].front_s if name == "time_to_first_token" else 0.0
        assert alone.times[name].mean.seconds == pytest.approx(time_of.seconds + way_s, rel=0.01)
    name = "time_per_output_token"
    assert crowd.times[name].mean.seconds < one.curve[1].times[name].mean.seconds
    assert (crowd.gpus, one.curve[1].gpus) == (2, 1)
    assert crowd.tokens_per_second_per_gpu == pytest.approx(crowd.tokens_per_second / 2)
    assert crowd.pools is not None and crowd.to_dict()["pools"]["balance"] == crowd.pools.balance
    told = f"which 32 requests at a time come to on average, {balanced(crowd.pools.balance)} would balance the pools"
    assert any(told in note for note in two.notes)
    served = onnxperf.llm(**{**asked, "concurrency": None}, qps=3, requests=50, pools="2:1", parallel="dp=2").service
    assert served is not None and served.gpus == 6 and served.pools is not None


def test_pools_go_with_a_draft_and_cached_prompts() -> None:
    asked: dict[str, Any] = {"config": DENSE, "gpu": "l4", "prompt": 500, "output": 51, "batch": 4, "engine": "vllm"}
    g = onnxperf.llm(**asked, concurrency=8, pools="1:2", draft=DRAFT, accept=0.7, cached=0.5)
    s, b = g.service, g.batches[0]
    assert (
        s is not None and s.speedup is not None and s.speedup > 1 and b.speculation is not None and b.pools is not None
    )
    assert g.pools is not None and g.draft is not None
    assert g.pools.bytes_per_token == g.cache_bytes_per_token + g.draft.cache_bytes_per_token


@pytest.mark.parametrize(
    "pools", ["2", "1:0", "0:1", "1:2:3", "-1:2", "1:1001", "1:1000000000", "a:b", "", 12, "1.5:2"]
)
def test_what_is_no_pair_of_pools_is_refused(pools: Any) -> None:
    with pytest.raises(
        UsageError, match=r"pools .* is not valid: write instances for prefill : for decode, such as 1:2"
    ):
        onnxperf.llm(config=SMALL, gpu="l4", prompt=64, output=8, pools=pools)


def test_sizes_of_pools_are_read() -> None:
    assert [parse_pools(text) for text in (None, "1:2", " 3 : 1000 ")] == [None, (1, 2), (3, 1000)]
