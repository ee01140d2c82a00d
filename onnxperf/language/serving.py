"""What requests experience on a card: waiting, first and further tokens, throughput, utilisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import UsageError
from onnxperf.ground.output import Progress
from onnxperf.language.arrivals import Traffic
from onnxperf.language.prices import prices
from onnxperf.language.service import Server, Simulation, simulate, together
from onnxperf.language.steps import Seconds, Steps

BUDGET = 2048  # new tokens of an iteration, vLLM's default of max_num_batched_tokens
PERCENTILES = (50, 90, 99)
#: What is told of requests, in seconds, by the names of `Served`.
TIMES = {
    "waiting": "waiting", "time_to_first_token": "to_first_token", "time_per_output_token": "each_token",
    "latency": "latency",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Service(Document):
    """How requests were served in a simulation.

    times: by name of TIMES and by percentile, each with the range that simulations at the ends of the iterations'
    ranges give; tokens_per_second: generated, from the first arrival to the last token; utilisation: the share of that
    time with an iteration; batch: requests that decode in an iteration, on average; server, utilisation and batch are
    of each of `groups` of GPUs.
    """

    traffic: Traffic
    server: Server
    times: dict[str, dict[int, Seconds]]
    requests_per_second: float
    tokens_per_second: float
    utilisation: float
    batch: float
    iterations: int
    groups: int = 1

    def to_dict(self) -> dict[str, Any]:
        """As plain data, times in seconds."""
        t, s = self.traffic, self.server
        return {
            "qps": t.qps, "prompt_lengths": t.prompts, "output_lengths": t.outputs, "requests": t.requests,
            "seed": t.seed, "running": s.running, "cache_tokens": s.cache_tokens, "budget_tokens": s.budget,
            **{name: {f"p{p}": at.to_dict() for p, at in rank.items()} for name, rank in self.times.items()},
            **plain(self, "requests_per_second", "tokens_per_second", "utilisation"), "mean_decoding": self.batch,
            **plain(self, "iterations", "groups"),
        }  # fmt: skip


def serve(
    steps: Steps, traffic: Traffic, running: int, budget: int, each: int, positions: int | None = None,
    tell: Progress | None = None,
) -> Service:  # fmt: skip
    """Serve requests by continuous batching, `running` of them at a time, whose caches take `each` bytes a token.

    Groups of GPUs that divide the batch are servers of their own, which requests go to in turn. Raises UsageError where
    a request is too long for the card's memory, the traffic can't be, or a plan has microbatches.
    """
    if steps.plan.microbatches > 1:
        raise UsageError(f"requests can't be simulated with microbatches ({steps.plan}): leave them or --qps out")
    arrivals = traffic.arrivals(positions)
    longest = max(a.prompt + a.output for a in arrivals)
    steps = steps.made_for(longest)
    running = steps.share(running)
    server = Server(running, cache_tokens(steps, running, budget, each), budget)
    turns = [arrivals[k :: steps.groups] for k in range(min(steps.groups, len(arrivals)))]
    simulations = [
        together([simulate(turn, server, price) for turn in turns]) for price in prices(steps, running, budget, tell)
    ]
    middle = simulations[0]
    tokens = sum(a.output for a in arrivals)
    return Service(
        traffic=traffic, server=server, times={name: percentiles(simulations, time) for name, time in TIMES.items()},
        requests_per_second=len(arrivals) / middle.span, tokens_per_second=tokens / middle.span,
        utilisation=min(middle.busy / middle.span, 1.0), batch=middle.decoded / middle.iterations,
        iterations=middle.iterations,
        groups=steps.groups,
    )  # fmt: skip


def percentiles(simulations: Sequence[Simulation], time: str) -> dict[int, Seconds]:
    """The percentiles of a time of `Served` in three simulations, of which the first is the answer."""
    served = ([getattr(s, time) for s in simulation.served] for simulation in simulations)
    by = [np.percentile(times, PERCENTILES).tolist() for times in served]
    return {p: Seconds(*(row[i] for row in by)) for i, p in enumerate(PERCENTILES)}


def cache_tokens(steps: Steps, running: int, budget: int, each: int) -> int:
    """Tokens for whose caches, of `each` bytes, there is room beside what else the largest iterations need.

    The cache is taken to be in pages, as vLLM's is: a token takes its bytes wherever there is room.
    """
    each = max(each * steps.copies, 1)
    rooms = []
    for batch, new in ((1, budget), (running, 1)):
        m = steps.at(batch, new, 0 if new > 1 else 1).memory
        held = batch * each * (steps.room or (steps.longest if steps.copies == 1 else 1))
        rooms.append(m.capacity_bytes - m.context_bytes - m.total_bytes + held)
    if min(rooms) <= 0:
        raise UsageError("weights and activations alone don't fit into GPU memory")
    return int(min(rooms) // each)
