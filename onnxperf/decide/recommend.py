"""How to serve a model: the cheapest card, batch and number of replicas that keep a latency at a rate of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Unpack

import numpy as np

from gpu_specs import Device, Price
from onnxperf.decide.choices import Card, Choice, choices, priced
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import LimitExceeded, UsageError, speaking_of_arguments
from onnxperf.ground.output import Progress
from onnxperf.ground.tables import duration, number
from onnxperf.running.largest import limits_of
from onnxperf.running.pipeline import Gpu, Request, request_for
from onnxperf.running.terms import Bound, Examples

MOST_REPLICAS = 10_000
MOST_QPS = 1e9
#: What the latency is, wherever it is shown.
ASSUMED = (
    "mean latency of a request: batching delay, queueing (M/D/1: random arrivals, split evenly among the replicas, one"
    " run at a time per replica) and the run itself; percentiles such as p99 are higher"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """So many replicas of a card, each with its part of the requests, run at a batch.

    seconds: the mean latency of a request; utilisation: the share of the time in which a replica runs;
    replicas_if_slow: how many it takes where a run takes as long as its range allows, None where no number will do.
    """

    gpu: str
    device_name: str
    batch: int
    replicas: int
    seconds: float
    utilisation: float
    run_seconds: float
    watts: float | None
    usd_per_hour: float | None
    replicas_if_slow: int | None


@dataclass(frozen=True, slots=True)
class Recommendation(Document):
    """Plans that keep the latency, one for each card, the cheapest first; those without a price last, fewest first.

    others: the cards without any, and why.
    """

    ROWS = "plans"

    model: str
    runtime: str
    precision: str
    limit_s: float
    qps: float
    plans: tuple[Plan, ...]
    others: tuple[tuple[str, str], ...]
    prices: tuple[tuple[str, Price], ...]
    fixed: str

    def to_dict(self) -> dict[str, Any]:
        """The recommendation as plain data: times in seconds, prices in US dollars."""
        return {
            **plain(self, "model", "runtime", "precision"),
            "latency_seconds": self.limit_s, "qps": self.qps, "assumed": ASSUMED, "fixed_batch": self.fixed,
            **plain(self, "plans"),
            "others": [{"gpu": gpu, "why": why} for gpu, why in self.others],
            "prices": {id: asdict(price) for id, price in self.prices},
        }  # fmt: skip


def recommend(
    model: Any,
    example_inputs: Examples = None,
    *,
    max_ms: float,
    qps: float,
    gpu: Sequence[Gpu] | None = None,
    prices: Mapping[str, float] | None = None,
    **terms: Unpack[Bound],
) -> Recommendation:
    """The cheapest card, batch and number of replicas that answer `qps` requests a second in max_ms milliseconds.

    A request is one sample. model, example_inputs and terms are those of `onnxperf.predict`. gpu: the cards to choose
    from, None for all with a price. prices: US dollars an hour by card, instead of those that ship. Raises what
    `predict` raises.
    """
    with speaking_of_arguments():
        usd = priced(prices)
        limit = limits_of(max_ms, None).seconds or 0.0
        cards: Sequence[Gpu] = list(usd) if gpu is None else gpu
        return recommended(request_for(model, example_inputs, **terms), cards, limit, qps, usd)


def keep(r: Recommendation) -> None:
    """Raise LimitExceeded where no card keeps the latency."""
    if not r.plans:
        raise LimitExceeded(f"no card serves {number(r.qps)} requests/s at {duration(r.limit_s)}")


def recommended(
    request: Request, gpus: Sequence[Gpu], limit_s: float, qps: float, prices: Mapping[str, Price],
    tell: Progress | None = None,
) -> Recommendation:  # fmt: skip
    """`recommend` of a request: `limit_s` in seconds."""
    if isinstance(qps, bool) or not isinstance(qps, (int, float)) or not 0 < qps < MOST_QPS:
        raise UsageError(f"--qps must be a positive number below {MOST_QPS:g}, not {qps!r}")
    chosen = choices(request, gpus, limit_s, tell)
    plans, others = list[Plan](), list[tuple[str, str]]()
    for card in chosen.cards:
        plan = _cheapest(card, limit_s, qps, prices.get(card.device.id))
        if plan is None:
            others.append((card.device.id, _why(card, limit_s, qps)))
        else:
            plans.append(plan)
    plans.sort(key=lambda p: (p.usd_per_hour is None, p.usd_per_hour or p.replicas, p.seconds))
    used = tuple((p.gpu, prices[p.gpu]) for p in plans if p.gpu in prices)
    terms = {what: chosen.terms[what] for what in ("runtime", "precision")}
    return Recommendation(chosen.model, **terms, limit_s=limit_s, qps=qps, plans=tuple(plans), others=tuple(others),
                          prices=used, fixed=chosen.fixed)  # fmt: skip


def mean_latency(replicas: np.ndarray[Any, Any], run_s: float, batch: int, qps: float) -> np.ndarray[Any, Any]:
    """Seconds from a request to its answer in the mean, for numbers of replicas; infinite where too few keep up.

    Requests arrive at random at L = qps / replicas. A batch of b is full after (b - 1) / 2L in the mean; full batches
    come at L / b to a server that takes S for each, rho = L S / b. One request a batch waits rho S / (2 (1 - rho))
    (M/D/1, Pollaczek and Khinchine). The times between full batches vary b times less: so do waits (Kingman).
    """
    rate = qps / replicas
    rho = rate * run_s / batch
    with np.errstate(divide="ignore", invalid="ignore"):
        waiting = np.where(rho < 1, rho * run_s / (2 * (1 - rho)) / batch, np.inf)
    return np.asarray((batch - 1) / (2 * rate) + waiting + run_s)


def fewest(run_s: float, batch: int, qps: float, limit_s: float) -> tuple[int, float] | None:
    """The fewest replicas that keep the limit in the mean, and the latency; None where up to MOST_REPLICAS do not."""
    least = int(qps * run_s / batch) + 1
    if least > MOST_REPLICAS or run_s > limit_s:
        return None
    numbers = np.arange(least, MOST_REPLICAS + 1)
    seconds = mean_latency(numbers, run_s, batch, qps)
    kept = np.flatnonzero(seconds <= limit_s)
    return (int(numbers[kept[0]]), float(seconds[kept[0]])) if kept.size else None


def _cheapest(card: Card, limit_s: float, qps: float, price: Price | None) -> Plan | None:
    """The plan with the fewest replicas of a card, of the batches that were tried; of equals the fastest."""
    plans = [p for c in card.tried if c.fits and (p := _plan(card.device, c, limit_s, qps, price)) is not None]
    return min(plans, key=lambda p: (p.replicas, p.seconds), default=None)


def _plan(device: Device, c: Choice, limit_s: float, qps: float, price: Price | None) -> Plan | None:
    if (fleet := fewest(c.seconds, c.batch, qps, limit_s)) is None:
        return None
    replicas, seconds = fleet
    slow = fewest(c.high_seconds, c.batch, qps, limit_s)
    return Plan(
        device.id, device.name, c.batch, replicas, seconds, qps / replicas * c.seconds / c.batch, c.seconds, c.watts,
        None if price is None else replicas * price.usd_per_hour, slow[0] if slow else None,
    )  # fmt: skip


def _why(card: Card, limit_s: float, qps: float) -> str:
    """Why no number of replicas of a card will do."""
    if card.best(limit_s) is None:
        return card.lacks(limit_s)
    if any(c.seconds < limit_s for c in card.tried if c.fits):
        return f"needs more than {MOST_REPLICAS:,} replicas for {qps:,.0f} requests/s"
    return f"takes {duration(card.tried[0].seconds)} at batch {card.tried[0].batch}, which leaves no time for queueing"
