"""How to serve a language model: the cheapest card, plan and number of instances that keep a pace at a rate of
requests.

Each instance, of one or several cards, gets its part of the requests at random, so that requests arrive at each as a
Poisson process of that part of the rate, and serves them as `llm` with --qps simulates it. It keeps up where its part
is below what it serves with `running` requests at all times, which is running / latency of a closed loop (Little's
law). The fewest instances that keep up are tried first, then more until the pace is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import floor
from typing import Any, Unpack

from gpu_specs import Device, Price
from onnxperf.answer.accuracy import Accuracy
from onnxperf.decide.choices import priced
from onnxperf.decide.pace import FIRST, TOKEN, Pace, pace_of
from onnxperf.decide.queueing import MOST_REPLICAS, first
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import Error, LimitExceeded, UsageError, speaking_of_arguments
from onnxperf.ground.output import Progress
from onnxperf.ground.tables import duration, number
from onnxperf.language.arrivals import LEAST_QPS, ROUNDS, RUNNING, Traffic
from onnxperf.language.core import traffic
from onnxperf.language.decoding import Decoder, Decoding, decoding_of
from onnxperf.language.serving import Service, serve
from onnxperf.language.steps import Seconds
from onnxperf.passes.plan import plan_text
from onnxperf.running.pipeline import Gpu, each

SCHEMA_VERSION = 1
PLANS = ("", "tp=2", "tp=4", "tp=8")
NEAR = 0.9  # of the number of instances that a search by halves gives: from there on each is tried
FORMULAS = "drafts and prefix caches are formulas on the same runs, not measured: see onnxperf llm --help"
ASSUMED = (
    "requests arrive at random and are split at random among the instances; one keeps up if its part of them is fewer"
    " than it serves with all places taken"
)


@dataclass(frozen=True, slots=True)
class LanguagePlan(Document):
    """So many instances of a card, or of several cards each, with their part of the requests.

    parallel: how the `gpus` of an instance divide the work, "" for one; first, token: the time to the first token and
    of each further one, the mean or the percentile that was asked for; instances_if_slow: how many it takes where each
    iteration takes as long as its range allows, None where no number will do; qps: requests a second at each; load:
    the share that this is of what it serves with all places taken; tokens_per_second: of all; accuracy: whether
    generation like it was measured; command: that answers for one instance, which is not in the JSON.
    """

    gpu: str
    device_name: str
    parallel: str
    gpus: int
    instances: int
    instances_if_slow: int | None
    qps: float
    first: Seconds
    token: Seconds
    tokens_per_second: float
    load: float
    usd_per_hour: float | None
    accuracy: Accuracy
    command: str = ""

    @property
    def usd_per_million_tokens(self) -> float | None:
        """US dollars for a million generated tokens at this rate; None without a price."""
        return None if self.usd_per_hour is None else 1e6 * self.usd_per_hour / 3600 / self.tokens_per_second

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        named = plain(self, "gpu", "device_name", "parallel", "gpus", "instances", "instances_if_slow", "qps")
        times = {FIRST: self.first.to_dict(), TOKEN: self.token.to_dict()}
        costs = plain(self, "tokens_per_second", "load", "usd_per_hour", "usd_per_million_tokens", "accuracy")
        return {**named, **times, **costs}


@dataclass(frozen=True, slots=True)
class LanguageRecommendation(Document):
    """Plans that keep the pace, the cheapest first; those without a price last, fewest cards first.

    runners: what runs the model, the engine or a runtime by itself, of all cards; running: requests that an instance
    serves at a time, at most; others: the cards and plans that don't keep it, and why.
    """

    ROWS = "plans"

    model: str
    engine: str
    runners: tuple[str, ...]
    precision: str
    weights: str | None
    cache: str | None
    prompts: str
    outputs: str
    cached: float
    draft: str | None
    running: int
    qps: float
    pace: Pace
    plans: tuple[LanguagePlan, ...]
    others: tuple[tuple[str, str, str], ...]
    prices: tuple[tuple[str, Price], ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The recommendation as `recommend_llm.schema.json` describes it: times in seconds, prices in US dollars."""
        asked = plain(self, "model", "engine", "runners", "precision", "weights", "cache")
        limits = {f"max_{TOKEN}_seconds": self.pace.token_s, f"max_{FIRST}_seconds": self.pace.first_s}
        return {
            "schema_version": SCHEMA_VERSION, **asked, "prompt_lengths": self.prompts, "output_lengths": self.outputs,
            **plain(self, "cached", "draft", "running", "qps"), **limits, **plain(self.pace, "percentile"),
            **plain(self, "plans"),
            "others": [{"gpu": gpu, "parallel": plan, "why": why} for gpu, plan, why in self.others],
            "prices": {id: asdict(price) for id, price in self.prices}, "notes": list(self.notes),
        }  # fmt: skip


def recommend_llm(
    model: Any = None, *, qps: float, tpot_ms: float | None = None, ttft_ms: float | None = None,
    percentile: int | None = None, gpu: Sequence[Gpu] | None = None, prices: Mapping[str, float] | None = None,
    **asked: Unpack[Decoder],
) -> LanguageRecommendation:  # fmt: skip
    """The cheapest card, plan and number of instances that serve `qps` requests a second to a language model.

    tpot_ms, ttft_ms: what each token behind the first, and the first one, may take in milliseconds, one at least: in
    the mean of requests, or this percentile of them, 50, 90 or 99. model and what is asked are those of `onnxperf.llm`,
    whose `batch`, 256 by default, is how many requests an instance serves at a time. Tried are one card, and tp=2, 4
    and 8, or `parallel` alone. gpu: the cards, None for all with a price. prices: US dollars an hour by card. Raises
    what `llm` raises.
    """
    with speaking_of_arguments():
        usd, decoding = priced(prices), decoding_of(model, asked)
        cards: Sequence[Gpu] = list(usd) if gpu is None else gpu
        return recommended_llm(decoding, cards, qps, pace_of(tpot_ms, ttft_ms, percentile), usd)


def keep(r: LanguageRecommendation) -> None:
    """Raise LimitExceeded where no plan keeps the pace."""
    if not r.plans:
        limits = ((r.pace.token_s, "a token"), (r.pace.first_s, "to the first token"))
        said = " and ".join(f"{duration(s)} {what}" for s, what in limits if s is not None)
        raise LimitExceeded(f"no plan serves {number(r.qps)} requests/s at {said}")


def check_gpus(gpus: int | None) -> None:
    """Raise UsageError, which says what to write instead, where a number of GPUs is asked for."""
    if gpus is not None:
        one = f"--parallel tp={gpus} instead of --gpus {gpus} tries one alone"
        raise UsageError(f"plans of a language model are on 1, 2, 4 and 8 GPUs: {one}, leave --gpus out")


def recommended_llm(
    asked: Decoding, gpus: Sequence[Gpu], qps: float, pace: Pace, prices: Mapping[str, Price],
    tell: Progress | None = None,
) -> LanguageRecommendation:  # fmt: skip
    """`recommend_llm` of what is asked."""
    if pace.token_s is None and pace.first_s is None:
        raise UsageError("say how soon tokens must come: --tpot 50ms, --ttft 1s, or both")
    terms = asked.request.terms
    check_gpus(terms.get("gpus"))
    parallel = (plan_text(terms["parallel"]),) if terms.get("parallel") else PLANS
    tried = [(device, plan) for device, _ in each(gpus) for plan in parallel]
    plans, others, about, errors = list[LanguagePlan](), list[tuple[str, str, str]](), list[Instance](), list[Error]()
    for i, (device, plan) in enumerate(tried):
        if tell:
            tell(f"{device.id} {plan}".strip(), i, len(tried))
        try:
            instance = Instance(asked, device, plan, qps)
        except Error as e:
            errors.append(e)
            others.append((device.id, plan, str(e)))
            continue
        about.append(instance)
        try:
            plans.append(_fewest(instance, pace, prices.get(device.id)))
        except Error as e:
            others.append((device.id, plan, str(e)))
    if not about:
        raise errors[0]
    plans.sort(key=lambda p: (p.usd_per_hour is None, p.usd_per_hour or p.instances * p.gpus, p.token.seconds))
    used = dict.fromkeys(p.gpu for p in plans if p.gpu in prices)
    steps, t, built = about[0].steps, about[0].traffic, asked.built
    formulas = (FORMULAS,) if steps.draft or t.cached else ()
    return LanguageRecommendation(
        model=steps.model.name, engine=steps.engine.name,
        runners=tuple(dict.fromkeys(i.steps.runner for i in about)), precision=str(terms.get("precision", "keep")),
        weights=built["weights"], cache=built["cache"], prompts=t.prompts, outputs=t.outputs, cached=t.cached,
        draft=steps.draft.steps.model.name if steps.draft else None,
        running=about[0].running, qps=qps, pace=pace, plans=tuple(plans), others=tuple(others),
        prices=tuple((gpu, prices[gpu]) for gpu in used), notes=(ASSUMED, *formulas, *steps.told),
    )  # fmt: skip


class Instance:
    """One instance on a card, or on several by a plan, which gets a part of `traffic`.

    Raises UsageError where its model, lengths or requests can't be.
    """

    def __init__(self, asked: Decoding, device: Device, plan: str, qps: float):
        self.asked = asked
        self.steps, lengths = asked.on(device, plan or None)
        self.device, self.plan, self.lengths = device, plan, lengths
        (self.traffic,) = traffic(lengths, **{**asked.arriving, "qps": qps})
        self.traffic.arrivals(lengths.positions)
        self.running = asked.batch or RUNNING
        self.types = asked.built["weights"], asked.built["cache"]
        self._served = dict[int, Service]()

    def _serve(self, t: Traffic) -> Service:
        """How these requests are served, as by `llm`."""
        budget = self.lengths.chunk or self.steps.engine.tokens(self.device)
        return serve(self.steps, (t,), self.running, budget, self.each, self.lengths.positions)[0]

    @property
    def accuracy(self) -> Accuracy:
        """Whether generation like it was measured."""
        return self.steps.accuracy(*self.types, cached=self.traffic.cached > 0)

    @cached_property
    def each(self) -> int:
        """Bytes of the cache that a token takes."""
        return self.steps.cache_bytes_per_token()

    def capacity(self) -> Seconds:
        """Requests a second with all places taken, and what they are at the ends of the iterations' ranges: of the
        middle, of the fastest, of the slowest. Raises UsageError where a request does not fit.
        """
        loop = replace(self.traffic, qps=None, concurrency=self.running, requests=ROUNDS * self.running)
        return Seconds(*(self.running / s for s in self._serve(loop).times["latency"].mean.ends()))

    def part(self, instances: int) -> float:
        """Requests a second of each of so many instances."""
        return max((self.traffic.qps or 0.0) / instances, LEAST_QPS)

    def among(self, instances: int) -> Service:
        """How one of so many serves its part of the requests."""
        if instances not in self._served:
            self._served[instances] = self._serve(replace(self.traffic, qps=self.part(instances)))
        return self._served[instances]

    def fewest(self, pace: Pace, capacity: float, end: str = "middle") -> int | None:
        """The fewest instances that keep up and keep the pace, None where MOST_REPLICAS do not. end: of the ranges,
        that which counts.

        Times grow with the load, but for the moments at which requests arrive: steps double until a number holds, and
        halve to the least that does; of the tenth below it, which may hold by chance, each is tried.
        """
        least = floor(self.part(1) / capacity) + 1

        def holds(instances: int) -> bool:
            return not pace.exceeded(*pace.times(self.among(instances)), end)

        low, high, step = least, least, 1
        while high <= MOST_REPLICAS and not holds(high):
            if high == MOST_REPLICAS:
                return None
            low, high, step = high + 1, min(high + step, MOST_REPLICAS), 2 * step
        if high > MOST_REPLICAS:
            return None
        halved = first(low, high, holds)
        return next(n for n in range(max(least, floor(NEAR * halved)), halved + 1) if holds(n))


def _fewest(i: Instance, pace: Pace, price: Price | None) -> LanguagePlan:
    """The plan with the fewest instances. Raises UsageError, which says why, where there is none."""
    capacity = i.capacity()
    instances = i.fewest(pace, capacity.seconds)
    if instances is None:
        alone = i.among(MOST_REPLICAS)
        why = pace.exceeded(*pace.times(alone)) if alone.batch < 2 else ""
        many = f"needs more than {MOST_REPLICAS:,} instances for {number(i.part(1))} requests/s"
        raise UsageError(f"{why}, with one request at a time" if why else many)
    s, gpus, qps = i.among(instances), i.steps.plan.gpus, i.part(instances)
    until_first, token = pace.times(s)
    tokens = instances * qps * s.tokens_per_second / s.requests_per_second
    return LanguagePlan(
        gpu=i.device.id, device_name=i.device.name, parallel=i.plan, gpus=gpus, instances=instances,
        instances_if_slow=i.fewest(pace, capacity.high_seconds, "high"), qps=qps, first=until_first, token=token,
        tokens_per_second=tokens, load=qps / capacity.seconds,
        usd_per_hour=None if price is None else instances * gpus * price.usd_per_hour, accuracy=i.accuracy,
        command=i.asked.command(i.device.file or i.device.id, i.plan, i.running, qps),
    )  # fmt: skip
