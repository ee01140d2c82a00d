"""How to serve a model: the cheapest card, batch and number of replicas that keep a latency at a rate of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Unpack

import numpy as np

from gpu_specs import Price
from gpu_specs.toml_file import figure
from onnxperf.answer.accuracy import Accuracy
from onnxperf.decide.choices import Card, Choice, choices, priced
from onnxperf.decide.queueing import MOST_REPLICAS, Target, fewest, fewest_that_keep_up, filling, mean_latency
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import LimitExceeded, UsageError, counted, speaking_of_arguments
from onnxperf.ground.output import Progress
from onnxperf.ground.tables import duration, number
from onnxperf.running.largest import limits_of
from onnxperf.running.pipeline import Gpu, Request, request_for
from onnxperf.running.terms import Bound, Examples

MOST_QPS, MOST_PERCENTILE = 1e9, 99.999
QUEUE = (
    "M/D/1, for batches E_b/D/1: random arrivals, split at random among the replicas, each with its own queue and one"
    " run at a time"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """So many replicas of a card, each with its part of the requests, run at a batch.

    seconds: the latency of a request, its mean or the percentile that was asked for; utilisation: the share of the time
    in which a replica runs; replicas_if_slow: how many it takes where a run takes as long as its range allows, None
    where no number will do; accuracy: whether such runs were measured.
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
    accuracy: Accuracy | None


@dataclass(frozen=True, slots=True)
class Recommendation(Document):
    """Plans that keep the latency, one for each card, the cheapest first; those without a price last, fewest first.

    percentile: of the latency, which is the mean where it is None; others: the cards without any plan, and why;
    hosts: by the card's id the processor that launches its kernels, where its pace counts.
    """

    ROWS = "plans"

    model: str
    runtime: str
    precision: str
    limit_s: float
    percentile: float | None
    qps: float
    plans: tuple[Plan, ...]
    others: tuple[tuple[str, str], ...]
    prices: tuple[tuple[str, Price], ...]
    fixed: str
    hosts: Mapping[str, str] = field(default_factory=dict)

    @property
    def latency(self) -> str:
        """What the latency is called."""
        return Target(self.limit_s, self.qps, self.percentile).latency

    @property
    def assumed(self) -> str:
        """What the latency is, wherever it is shown."""
        percentiles = "; percentiles such as p99 are higher: --percentile 99 limits one"
        note = percentiles if self.percentile is None else "; how much the run itself varies is not in it"
        return f"{self.latency} of a request: batching delay, queueing ({QUEUE}) and the run itself{note}"

    def to_dict(self) -> dict[str, Any]:
        """The recommendation as plain data: times in seconds, prices in US dollars."""
        return {
            **plain(self, "model", "runtime", "precision"),
            "latency_seconds": self.limit_s, "percentile": self.percentile, "qps": self.qps, "assumed": self.assumed,
            "fixed_batch": self.fixed,
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
    percentile: float | None = None,
    gpu: Sequence[Gpu] | None = None,
    prices: Mapping[str, float] | None = None,
    **terms: Unpack[Bound],
) -> Recommendation:
    """The cheapest card, batch and number of replicas that answer `qps` requests a second in max_ms milliseconds.

    That is the mean latency of a request, or with `percentile`, such as 99, the one that this percentage of requests
    keeps; see `onnxperf.decide.queueing`. A request is one sample. model, example_inputs and terms are those of
    `onnxperf.predict`. gpu: the cards to choose from, None for all with a price. prices: US dollars an hour by card,
    instead of those that ship. Raises what `predict` raises.
    """
    with speaking_of_arguments():
        usd = priced(prices)
        limit = limits_of(max_ms, None).seconds or 0.0
        cards: Sequence[Gpu] = list(usd) if gpu is None else gpu
        return recommended(request_for(model, example_inputs, **terms), cards, limit, qps, percentile, usd)


def keep(r: Recommendation) -> None:
    """Raise LimitExceeded where no card keeps the latency."""
    if not r.plans:
        raise LimitExceeded(f"no card serves {number(r.qps)} requests/s at {duration(r.limit_s)}")


def recommended(
    request: Request, gpus: Sequence[Gpu], limit_s: float, qps: float, percentile: float | None,
    prices: Mapping[str, Price], tell: Progress | None = None,
) -> Recommendation:  # fmt: skip
    """`recommend` of a request: `limit_s` in seconds."""
    target = target_of(limit_s, qps, percentile)
    chosen = choices(request, gpus, limit_s, tell)
    plans, others = list[Plan](), list[tuple[str, str]]()
    for card in chosen.cards:
        plan = _cheapest(card, target, prices.get(card.device.id))
        if plan is None:
            others.append((card.device.id, unmet(card, target)))
        else:
            plans.append(plan)
    plans.sort(key=lambda p: (p.usd_per_hour is None, p.usd_per_hour or p.replicas, p.seconds))
    used = tuple((p.gpu, prices[p.gpu]) for p in plans if p.gpu in prices)
    terms = {what: chosen.terms[what] for what in ("runtime", "precision")}
    return Recommendation(chosen.model, **terms, limit_s=limit_s, percentile=percentile, qps=qps, plans=tuple(plans),
                          others=tuple(others), prices=used, fixed=chosen.fixed, hosts=chosen.hosts)  # fmt: skip


def target_of(limit_s: float, qps: float, percentile: float | None) -> Target:
    """A target. Raises UsageError where the rate or the percentile can't be."""
    if not _is_number(qps) or not 0 < qps < MOST_QPS:
        raise UsageError(f"--qps must be a positive number below {figure(MOST_QPS)}, not {qps!r}")
    if percentile is not None and not (_is_number(percentile) and 0 < percentile <= MOST_PERCENTILE):
        raise UsageError(f"--percentile must be a number above 0 and up to {MOST_PERCENTILE:g}, not {percentile!r}")
    return Target(limit_s, qps, percentile)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cheapest(card: Card, target: Target, price: Price | None) -> Plan | None:
    """The plan with the fewest replicas of a card, of the batches that were tried; of equals the fastest."""
    plans = [p for c in card.tried if c.fits and (p := _plan(card, c, target, price)) is not None]
    return min(plans, key=lambda p: (p.replicas, p.seconds), default=None)


def _plan(card: Card, c: Choice, target: Target, price: Price | None) -> Plan | None:
    if (fleet := fewest(c.seconds, c.batch, target)) is None:
        return None
    replicas, seconds = fleet
    slow = fewest(c.high_seconds, c.batch, target)
    return Plan(
        card.device.id, card.device.name, c.batch, replicas, seconds, target.qps / replicas * c.seconds / c.batch,
        c.seconds, c.watts, None if price is None else replicas * price.usd_per_hour, slow[0] if slow else None,
        card.accuracy,
    )  # fmt: skip


def unmet(card: Card, target: Target) -> str:
    """Why no number of replicas of a card will do."""
    qps, limit = target.qps, duration(target.limit_s)
    if card.best(target.limit_s) is None:
        return card.lacks(target.limit_s)
    c = next(c for c in card.tried if c.fits)
    if c.seconds >= target.limit_s:
        return f"takes {duration(c.seconds)} at batch {c.batch}, which leaves no time for queueing"
    if c.batch > 1 and (least := fewest_that_keep_up(c.seconds, c.batch, target)) <= MOST_REPLICAS:
        numbers = np.arange(least, MOST_REPLICAS + 1)
        replicas = int(numbers[mean_latency(numbers, c.seconds, c.batch, qps).argmin()])
        full, seconds = 2 * filling(replicas, c.batch, qps), target.seconds(replicas, c.seconds, c.batch)
        wait = f"at {number(qps)} requests/s a batch of {c.batch} takes {duration(full)} to fill"
        return f"{wait}: {target.latency} {duration(seconds)} with {counted(replicas, 'replica')}, over {limit}"
    return f"needs more than {MOST_REPLICAS:,} replicas for {qps:,.0f} requests/s"
