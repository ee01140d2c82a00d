"""How to serve a fleet: for each of several models the cards, batches and numbers of replicas that keep its limit at
its rate, so that all together are cheapest, with the cards that there are.

A replica is a whole card, or the cards of a plan, for one model. A model's replicas may be of different cards and
batches: each gets a part of the requests at random, at a rate between the least and the most at which it keeps the
limit by itself (`queueing.rates`); which mix is cheapest is a mixed-integer linear programme (`mix`). A language model
is served by instances of one card and plan alone, as many as `recommend_llm` gives.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpu_specs import Price
from onnxperf.answer.accuracy import Accuracy
from onnxperf.decide.choices import Card, Choice, choices, priced
from onnxperf.decide.fleet_file import Demand, counted_cards, read_fleet
from onnxperf.decide.mix import Mix, Way, cheapest
from onnxperf.decide.pace import pace_of
from onnxperf.decide.queueing import Target, rates
from onnxperf.decide.recommend import target_of, unmet
from onnxperf.decide.recommend_llm import LanguagePlan, recommended_llm
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import Error, LimitExceeded, UsageError, speaking_of_arguments
from onnxperf.ground.modules import require
from onnxperf.ground.output import Progress
from onnxperf.ground.tables import duration, number
from onnxperf.language.decoding import decoding_of
from onnxperf.running.pipeline import Gpu, each, request_for

SCHEMA_VERSION = 1
ASSUMED = (
    "requests of a model arrive at random and are split at random among its replicas, each with its own queue, and each"
    " keeps the limit by itself",
    "a replica has its cards to itself: no two models share a card",
)
UNPRICED = "has no price: --price {}=1.50 gives it one"


@dataclass(frozen=True, slots=True)
class Placement:
    """Replicas of a model on one kind of card: `gpus` cards each, at a batch, None of a language model.

    qps: requests a second of all of them; seconds: the latency that is limited, of a language model the time per output
    token; utilisation: the share of the time in which a replica runs, of a language model of what it serves at most;
    accuracy: whether runs like these were measured.
    """

    gpu: str
    device_name: str
    parallel: str
    gpus: int
    batch: int | None
    replicas: int
    qps: float
    seconds: float
    utilisation: float
    usd_per_hour: float
    accuracy: Accuracy | None

    @property
    def cards(self) -> int:
        """Cards of all replicas."""
        return self.gpus * self.replicas


@dataclass(frozen=True, slots=True)
class Served(Document):
    """A model of a fleet, and where it runs. limit: what it keeps, in words; alone: where it would run cheapest were
    cards without limit; usd_per_hour, alone_usd_per_hour: of all its replicas, here and there; others: the cards on
    which nothing keeps the limit, and why.
    """

    model: str
    qps: float
    limit: str
    placements: tuple[Placement, ...]
    usd_per_hour: float
    alone: str
    alone_usd_per_hour: float
    others: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """The model as plain data."""
        others = [{"gpu": gpu, "why": why} for gpu, why in self.others]
        return {**Document.to_dict(self), "others": others}


@dataclass(frozen=True, slots=True)
class Used:
    """How many of a card are used, and how many there are, None without limit."""

    gpu: str
    cards: int
    available: int | None
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class FleetRecommendation(Document):
    """The cheapest mix of cards for a fleet. usd_per_hour: None where there is no mix; slow_usd_per_hour: were each run
    as long as its range allows, None where no mix would do; alone_usd_per_hour: were cards without limit; unserved:
    models that no card serves, and why none does; short: the cheapest further cards with which there is a mix, none
    where there is; gap: by which share a mix may be cheaper, 0 but where the search took too long; why: what binds.
    """

    ROWS = "models"

    models: tuple[Served, ...]
    cards: tuple[Used, ...]
    usd_per_hour: float | None
    slow_usd_per_hour: float | None
    alone_usd_per_hour: float | None
    gap: float
    unserved: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    short: tuple[tuple[str, int], ...]
    why: tuple[str, ...]
    prices: tuple[tuple[str, Price], ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The mix as `recommend_fleet.schema.json` describes it: times in seconds, prices in US dollars."""
        costs = ("usd_per_hour", "slow_usd_per_hour", "alone_usd_per_hour", "gap")
        return {
            "schema_version": SCHEMA_VERSION, **plain(self, "models", "cards", *costs),
            "unserved": [
                {"model": model, "others": [{"gpu": gpu, "why": why} for gpu, why in others]}
                for model, others in self.unserved
            ],
            "short": dict(self.short), **plain(self, "why"),
            "prices": {id: asdict(price) for id, price in self.prices}, **plain(self, "notes"),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to serve a model, with the choice or the plan that it is of, the name of its card, and whether runs of the
    choice were measured.
    """

    way: Way
    name: str
    target: Target | None = None
    choice: Choice | None = None
    accuracy: Accuracy | None = None
    plan: LanguagePlan | None = None

    def placed(self, replicas: int, rate: float) -> Placement:
        """So many replicas, with this rate at each."""
        w, cost = self.way, replicas * self.way.usd
        if (p := self.plan) is not None:
            return Placement(w.gpu, self.name, p.parallel, p.gpus, None, p.instances, p.qps * p.instances,
                             p.token.seconds, p.load, cost, p.accuracy)  # fmt: skip
        c, target = self.choice, self.target
        if c is None or target is None:
            raise AssertionError("a way that is no plan is a choice with its target")
        seconds = replace(target, qps=rate).seconds(1, c.seconds, c.batch)
        return Placement(w.gpu, self.name, "", 1, c.batch, replicas, replicas * rate, seconds,
                         rate * c.seconds / c.batch, cost, self.accuracy)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """How a model can be served: by its predicted times, and by the upper ends of their ranges; `others` can't."""

    demand: Demand
    limit: str
    usual: tuple[Candidate, ...]
    slow: tuple[Candidate, ...]
    others: tuple[tuple[str, str], ...]


def recommend_fleet(
    fleet: str | os.PathLike[str], *, gpu: Sequence[Gpu] | None = None, prices: Mapping[str, float] | None = None,
    available: Mapping[str, int] | None = None,
) -> FleetRecommendation:  # fmt: skip
    """The cheapest mix of cards that serves the models of a TOML file, each at its rate and within its limits.

    fleet: the file, whose form `onnxperf/decide/fleet_file.py` shows. gpu: the cards to choose from, None for all with
    a price. prices: US dollars an hour by card, instead of those that ship. available: how many there are of a card,
    instead of what the file says; of others there are enough. Raises UsageError for a file that can't be used, what
    `predict` raises for a model, and EnvironmentFailure without scipy.
    """
    with speaking_of_arguments():
        usd = priced(prices)
        return recommended_fleet(fleet, list(usd) if gpu is None else gpu, usd, available)


def keep(r: FleetRecommendation) -> None:
    """Raise LimitExceeded where a model can't be served, or there are not enough cards."""
    if r.unserved:
        raise LimitExceeded(f"no card serves {', '.join(model for model, _ in r.unserved)}")
    if r.short:
        raise LimitExceeded(f"there are too few cards: {lacking(r.short)} more would do")


def recommended_fleet(
    fleet: str | os.PathLike[str], gpus: Sequence[Gpu], prices: Mapping[str, Price],
    available: Mapping[str, int] | None = None, tell: Progress | None = None,
) -> FleetRecommendation:  # fmt: skip
    """`recommend_fleet` with prices by the card's id."""
    demands, stock = read_fleet(fleet)
    require("scipy", "the cheapest mix of cards")
    stock |= counted_cards((available or {}).items())
    ids = [device.id for device, _ in each(gpus)]
    if not (affordable := [gpu for gpu, id in zip(gpus, ids, strict=True) if id in prices]):
        raise UsageError(f"{ids[0]} {UNPRICED.format(ids[0])}")
    unpriced = tuple((id, UNPRICED.format(id)) for id in ids if id not in prices)
    options = list[Options]()
    for i, demand in enumerate(demands):
        if tell:
            tell(demand.name, i, len(demands))
        served = _of_decoder if demand.decoder else _of_model
        options.append(served(i, demand, affordable, prices))
    alone = [_mixed([o], {}) if o.usual else None for o in options]
    unserved = tuple(
        (o.demand.name, (*o.others, *_between(o))) for o, mix in zip(options, alone, strict=True) if mix is None
    )
    usual = None if unserved else _mixed(options, stock)
    notes = (*ASSUMED, *(f"{id} {why}" for id, why in unpriced))
    used = {c.way.gpu: prices[c.way.gpu] for o in options for c in o.usual}
    if usual is None or usual.short:
        short = tuple(usual.short.items()) if usual is not None else ()
        return FleetRecommendation((), (), None, None, None, 0.0, unserved, short, (), tuple(used.items()), notes)
    each_alone = [_placements(o, mix.replicas) for o, mix in zip(options, alone, strict=True) if mix is not None]
    models = tuple(map(_served, options, _parts(options, usual), each_alone))
    cards, wanted = _used((m.placements for m in models), stock, prices), _used(each_alone, stock, prices)
    cost, least = (sum(u.usd_per_hour for u in used) for used in (cards, wanted))
    slow = _mixed(options, stock, slow=True) if all(o.slow for o in options) else None
    return FleetRecommendation(
        models, cards, cost, None if slow is None or slow.short else _cost(options, slow), least, usual.gap, (), (),
        _why(wanted, cost, least, bool(stock)), tuple((gpu, price) for gpu, price in used.items()), notes,
    )  # fmt: skip


def _of_model(index: int, d: Demand, gpus: Sequence[Gpu], prices: Mapping[str, Price]) -> Options:
    """How a model can be served on each card: at each batch, between two rates."""
    terms = {name: x for name, x in d.asked.items() if name not in ("max_ms", "percentile")}
    target = target_of(d.asked["max_ms"] / 1e3, d.qps, d.asked["percentile"])
    try:
        cards = choices(request_for(str(d.path), **terms), gpus, target.limit_s).cards
    except Error as e:
        raise type(e)(f"{d.name}: {e}") from e
    usual, slow, others = list[Candidate](), list[Candidate](), list[tuple[str, str]]()
    for card in cards:
        usd = prices[card.device.id].usd_per_hour
        here = _ways(index, card, target, usd, slow=False)
        usual += here
        slow += _ways(index, card, target, usd, slow=True)
        if not here:
            others.append((card.device.id, unmet(card, target)))
    limit = f"{'mean' if target.percentile is None else f'p{target.percentile:g}'} {duration(target.limit_s)}"
    return Options(d, limit, tuple(usual), tuple(slow), tuple(others))


def _ways(index: int, card: Card, target: Target, usd: float, slow: bool) -> list[Candidate]:
    """One replica at each batch that keeps the target at some rate, but for those that are no better than another."""
    ways = list[Candidate]()
    for c in card.tried:
        run_s = c.high_seconds if slow else c.seconds
        between = rates(run_s, c.batch, target) if c.fits else None
        if between is not None and not any(w.way.least <= between[0] and w.way.most >= between[1] for w in ways):
            way = Way(index, card.device.id, 1, usd, *between)
            ways.append(Candidate(way, card.device.name, target, c, card.accuracy))
    return ways


def _of_decoder(index: int, d: Demand, gpus: Sequence[Gpu], prices: Mapping[str, Price]) -> Options:
    """How a language model can be served: by all instances of a card and a plan, as one way."""
    asked = {name: x for name, x in d.asked.items() if name not in ("tpot_ms", "ttft_ms", "percentile")}
    percentile = d.asked.get("percentile")
    pace = pace_of(d.asked.get("tpot_ms"), d.asked.get("ttft_ms"), None if percentile is None else int(percentile))
    try:
        r = recommended_llm(decoding_of(None, {"config": str(d.path), **asked}), gpus, d.qps, pace, prices)
    except Error as e:
        raise type(e)(f"{d.name}: {e}") from e

    def of(p: LanguagePlan, instances: int) -> Candidate:
        cards = instances * p.gpus
        way = Way(index, p.gpu, cards, cards * prices[p.gpu].usd_per_hour, d.qps, d.qps, 1)
        return Candidate(way, p.device_name, plan=p)

    usual = tuple(of(p, p.instances) for p in r.plans)
    slow = tuple(of(p, p.instances_if_slow) for p in r.plans if p.instances_if_slow is not None)
    limits = ((pace.token_s, "per output token"), (pace.first_s, "to the first token"))
    limit = " and ".join(f"{duration(s)} {what}" for s, what in limits if s is not None)
    others = tuple((f"{gpu} {plan}".strip(), why) for gpu, plan, why in r.others)
    return Options(d, limit, usual, slow, others)


def _mixed(options: Sequence[Options], stock: Mapping[str, int], slow: bool = False) -> Mix | None:
    """The cheapest mix of some models' ways; None where no number of cards would do."""
    ways = [
        replace(c.way, model=model) for model, o in enumerate(options) for c in (o.slow if slow else o.usual)
    ]  # fmt: skip
    return cheapest(ways, [o.demand.qps for o in options], stock)


def _between(o: Options) -> Iterator[tuple[str, str]]:
    """Why no number of replicas serves a model, each of which keeps the limit at some rates."""
    for c in o.usual:
        each = f"{number(c.way.least)} to {number(c.way.most)} requests/s at each replica"
        yield c.way.gpu, f"keeps the limit at {each}, and no number of replicas makes {number(o.demand.qps)} of that"


def _cost(options: Sequence[Options], slow: Mix) -> float:
    ways = [c.way for o in options for c in o.slow]
    return sum(n * w.usd for n, w in zip(slow.replicas, ways, strict=True))


def _parts(options: Sequence[Options], mix: Mix) -> list[tuple[int, ...]]:
    """The replicas of each model's ways."""
    numbers = iter(mix.replicas)
    return [tuple(next(numbers) for _ in o.usual) for o in options]


def _served(o: Options, replicas: Sequence[int], alone: Sequence[Placement]) -> Served:
    """A model with these replicas, and where it would run if cards were without limit."""
    placed = _placements(o, replicas)
    words = " and ".join(f"{p.replicas} x {p.gpu} {p.parallel}".strip() for p in alone)
    costs = (sum(p.usd_per_hour for p in places) for places in (placed, alone))
    return Served(o.demand.name, o.demand.qps, o.limit, placed, next(costs), words, next(costs), o.others)


def _placements(o: Options, replicas: Sequence[int]) -> tuple[Placement, ...]:
    """Replicas with their rates: each as far between its least and its most as all others are."""
    chosen = [(c, n) for c, n in zip(o.usual, replicas, strict=True) if n]
    least, most = (sum(n * rate for (_, n), rate in zip(chosen, rates, strict=True)) for rates in (
        [c.way.least for c, _ in chosen], [c.way.most for c, _ in chosen]))  # fmt: skip
    share = min(1.0, max(0.0, (o.demand.qps - least) / (most - least))) if most > least else 0.0
    placed = (c.placed(n, c.way.least + share * (c.way.most - c.way.least)) for c, n in chosen)
    return tuple(sorted(placed, key=lambda p: -p.usd_per_hour))


def _used(
    placed: Iterable[Sequence[Placement]], stock: Mapping[str, int], prices: Mapping[str, Price]
) -> tuple[Used, ...]:
    """The cards that models take together, those that cost most first."""
    cards = dict[str, int]()
    for p in (p for places in placed for p in places):
        cards[p.gpu] = cards.get(p.gpu, 0) + p.cards
    used = (Used(gpu, n, stock.get(gpu), n * prices[gpu].usd_per_hour) for gpu, n in cards.items())
    return tuple(sorted(used, key=lambda u: -u.usd_per_hour))


def _why(wanted: Iterable[Used], cost: float, least: float, limited: bool) -> tuple[str, ...]:
    """What the numbers of available cards cost. wanted: the cards that models would take if they were without limit;
    limited: whether there is a number of any.
    """
    scarce = [u for u in wanted if u.available is not None and u.cards > u.available]
    if not scarce:
        cheapest_alone = "each model runs where it is cheapest"
        return (f"the numbers of available cards change nothing: {cheapest_alone}" if limited else cheapest_alone,)
    binding = " and ".join(f"{u.cards:,} x {u.gpu} where there are {u.available:,}" for u in scarce)
    return (f"without limits on cards it would be ${least:,.2f} an hour, ${cost - least:,.2f} less: {binding}",)


def lacking(short: Sequence[tuple[str, int]]) -> str:
    """Further cards with which there would be a mix, in words."""
    return " and ".join(f"{n:,} x {gpu}" for gpu, n in short)
