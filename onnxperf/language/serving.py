"""What requests experience on a card: waiting, first and further tokens, throughput, utilisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Any

import numpy as np

from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import UsageError
from onnxperf.ground.output import Progress
from onnxperf.ground.tables import number
from onnxperf.language.arrivals import Arrival, Traffic
from onnxperf.language.pools import Loads, Pools, simulate_pools
from onnxperf.language.prices import prices
from onnxperf.language.room import Room, room
from onnxperf.language.service import Price, Served, Server, simulate, together
from onnxperf.language.steps import Seconds, Steps

PERCENTILES = (50, 90, 99)
#: What is told of requests, in seconds, by the names of `Served`.
TIMES = {
    "waiting": "waiting", "time_to_first_token": "to_first_token", "time_per_output_token": "each_token",
    "latency": "latency",
}  # fmt: skip
GAPS = "inter_token_latency"  # between any two tokens of a request


@dataclass(frozen=True, slots=True)
class Spread(Document):
    """A time of requests: its mean and its percentiles, by rank, each with the range that simulations at the ends of
    the iterations' ranges give.
    """

    mean: Seconds
    at: dict[int, Seconds]

    def to_dict(self) -> dict[str, Any]:
        """The mean as a time is written, and the percentiles beside."""
        return {**self.mean.to_dict(), **{f"p{p}": t.to_dict() for p, t in self.at.items()}}


@dataclass(frozen=True, slots=True)
class Service(Document):
    """How requests were served in a simulation.

    times: by name of TIMES, and GAPS; requests_per_second: from the first arrival to the last token, which comes after
    the last arrival; tokens_per_second: generated in that time, by all `gpus`; utilisation: the share of that
    time with an iteration; batch: requests that decode in an iteration, on average; server, utilisation and batch are
    of each of `groups` of GPUs. speedup: with a draft, the mean time per output token without one over that with it, of
    the same requests; then tokens come several at a time, and GAPS are between those times. pools: of two pools, whose
    decode steps are the iterations, and the utilisation is that of all instances. capacity: of requests that arrive at
    a rate, how many of them a second are served with all places taken; None where that is not known. memory_bytes: that
    a GPU needs with the caches of as many requests as are admitted at most.
    """

    traffic: Traffic
    server: Server
    times: dict[str, Spread]
    requests_per_second: float
    tokens_per_second: float
    utilisation: float
    batch: float
    iterations: int
    groups: int = 1
    gpus: int = 1
    speedup: float | None = None
    pools: Loads | None = None
    capacity: float | None = None
    memory_bytes: int = 0

    @property
    def overload(self) -> str:
        """By how much more requests arrive than can be served, "" where they are not, or it is not known."""
        rate, most = self.traffic.qps, self.capacity
        if rate is None or most is None or rate <= most:
            return ""
        return f"cannot keep up: serves at most {number(most)} of {number(rate)} requests/s"

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Generated tokens by each GPU."""
        return self.tokens_per_second / self.gpus

    @property
    def tokens_per_second_per_user(self) -> float:
        """Tokens that a request gets in a second behind its first: 1 / mean time per output token; 0 without any."""
        each = self.times["time_per_output_token"].mean.seconds
        return 1 / each if each else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain data, times in seconds."""
        t, s = self.traffic, self.server
        return {
            "qps": t.qps, "concurrency": t.concurrency or None, "prompt_lengths": t.prompts,
            "output_lengths": t.outputs, "requests": t.requests, "seed": t.seed, "cached": t.cached,
            "running": s.running, "cache_tokens": s.cache_tokens, "budget_tokens": s.budget,
            "front_seconds": s.front_s,
            **{name: time.to_dict() for name, time in self.times.items()},
            **plain(self, "requests_per_second", "tokens_per_second", "tokens_per_second_per_user"),
            **plain(self, "tokens_per_second_per_gpu", "utilisation"), "mean_decoding": self.batch,
            **plain(self, "iterations", "groups", "speedup", "pools", "memory_bytes"),
            "capacity_requests_per_second": self.capacity,
        }  # fmt: skip


def serve(
    steps: Steps, asked: Sequence[Traffic], running: int, budget: int, each: int, positions: int | None = None,
    tell: Progress | None = None, pools: Pools | None = None,
) -> tuple[Service, ...]:  # fmt: skip
    """Serve requests by continuous batching, each traffic on its own, on runs that are predicted once.

    Of requests that arrive at a rate `running` are served at a time; caches take `each` bytes a token. Groups of GPUs
    that divide the batch are servers of their own, which requests go to in turn. In two pools `running` is of each
    instance. With a draft all are served without it as well. Raises UsageError where a request is too long for the
    card's memory, the traffic can't be, or a plan has microbatches.
    """
    if steps.plan.microbatches > 1:
        raise UsageError(f"requests can't be simulated with microbatches ({steps.plan}): leave them or --qps out")
    drawn = [t.arrivals(positions, steps.engine.block) for t in asked]
    steps = steps.made_for(max(a.prompt + a.output for arrivals in drawn for a in arrivals))
    most = steps.share(max(t.concurrency or running for t in asked))
    e = steps.engine
    memory = room(steps, most, budget, each)
    if memory.cache_bytes <= 0:
        raise UsageError("weights and activations alone don't fit into GPU memory")
    shape = e.block, steps.width, steps.per_step
    least = 0 if pools else most * steps.width + 1
    server = Server(most, memory.tokens, max(budget, least), e.mixed, e.whole, e.front_s, e.ahead, *shape)
    by = prices(steps, most, budget, tell)
    services = tuple(
        _service(steps, t, arrivals, replace(server, running=steps.share(t.concurrency or running)), by, pools, memory)
        for t, arrivals in zip(asked, drawn, strict=True)
    )
    if steps.draft is None:
        return services
    alone = serve(replace(steps, draft=None), asked, running, budget, each, positions, tell, pools)
    return tuple(replace(s, speedup=_speedup(s, without)) for s, without in zip(services, alone, strict=True))


def _speedup(service: Service, without: Service) -> float | None:
    """How much sooner a token comes on average than in another service; None where requests have one token only."""
    token, other = (s.times["time_per_output_token"].mean.seconds for s in (service, without))
    return other / token if token else None


def _service(
    steps: Steps, traffic: Traffic, arrivals: Sequence[Arrival], server: Server, by: Sequence[Price],
    pools: Pools | None, memory: Room,
) -> Service:  # fmt: skip
    """How one traffic is served at prices, of which the first is the answer."""
    loads = None
    if pools is None:
        groups = min(steps.groups, len(arrivals), traffic.concurrency or len(arrivals))
        turns = [arrivals[k::groups] for k in range(groups)]
        loops = [len(range(k, traffic.concurrency, groups)) for k in range(groups)]
        each = [[simulate(turn, server, price, n) for turn, n in zip(turns, loops, strict=True)] for price in by]
        simulations = [together(of) for of in each]
    else:
        both = [simulate_pools(arrivals, server, price, pools, steps.groups, traffic.concurrency) for price in by]
        simulations, loads = [simulation for simulation, _ in both], both[0][1]
    middle, tokens = simulations[0], sum(a.output for a in arrivals)
    most = sum(nlargest(server.running, (server.held(Served(a)) for a in arrivals)))
    times = {
        name: spread([[(getattr(s, time), 1) for s in of.served] for of in simulations]) for name, time in TIMES.items()
    }
    return Service(
        traffic=traffic, server=server, times={**times, GAPS: spread([of.gaps for of in simulations])},
        requests_per_second=len(arrivals) / middle.span, tokens_per_second=tokens / middle.span,
        utilisation=min(middle.busy / middle.span, 1.0), batch=middle.decoded / max(middle.iterations, 1),
        iterations=middle.iterations, groups=steps.groups,
        gpus=steps.plan.gpus * (pools.instances if pools else 1), pools=loads,
        memory_bytes=memory.needed_bytes(min(most, server.cache_tokens)),
    )  # fmt: skip


def spread(simulated: Sequence[Sequence[tuple[float, int]]]) -> Spread:
    """The mean and percentiles of seconds, each with how often it is, in three simulations of which the first is the
    answer, with the range of all three: slower iterations may make some wait less. Between two ranks a percentile is
    interpolated, as numpy does.
    """
    means, ranks = [], []
    for values in simulated:
        rows = sorted((s, n) for s, n in values if n) or [(0.0, 1)]
        seconds, counts = np.array([s for s, _ in rows]), np.cumsum([n for _, n in rows])
        total = int(counts[-1])
        means.append(sum(s * n for s, n in rows) / total)
        at = np.array(PERCENTILES) / 100 * (total - 1)
        below, above = (seconds[np.searchsorted(counts, end, side="right")] for end in (np.floor(at), np.ceil(at)))
        ranks.append((below + (at - np.floor(at)) * (above - below)).tolist())
    mean, *at_ranks = (Seconds(x[0], min(x), max(x)) for x in (means, *zip(*ranks, strict=True)))
    return Spread(mean, dict(zip(PERCENTILES, at_ranks, strict=True)))
