"""Comparisons of cards, recommendations and what-ifs on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from rich.console import Console
from rich.text import Text

from gpu_specs import Price
from onnxperf.answer.accuracy import Accuracy
from onnxperf.decide.compare import Candidate, Comparison
from onnxperf.decide.recommend import Plan, Recommendation
from onnxperf.decide.what_if import WhatIf, WhatIfs
from onnxperf.ground.errors import printable
from onnxperf.ground.names import precision_label
from onnxperf.ground.tables import NOTHING, columns, duration, number, put_notes, shortened, size, tabulate

GAINS, LOSES = 1.005, 0.995  # times the speed: what changes less is the same
BY = {
    "latency": "latency", "throughput": "throughput", "cost": "cost per million samples",
    "energy": "energy per sample",
}  # fmt: skip
NONE_RANKED = Text("no card can be ranked", style="bold red")


def show_comparison(out: Console, c: Comparison) -> None:
    """Print a line for each card, the best first, then why some are not ranked, and what ties and prices mean."""
    asked = f"{shortened(c.model)} under {c.runtime}, {precision_label(c.precision)}{_ranking(c)}"
    out.print(Text(printable(asked), style="bold"))
    names = (
        "#rank", "!card", "#latency", "#80% interval", "#memory", "#batch" if c.as_asked else "#best batch",
        "#samples/s", "#W", "#J/sample", "#$/hour", "#$/million", "!accuracy",
    )  # fmt: skip
    ranked = [x for x in c.cards if x.figure is not None]
    table = tabulate(out, names, map(_line, ranked), spare=_spare(c, ranked))
    out.print(table if ranked else NONE_RANKED)
    put_reasons(out, ((x.device.id, x.why) for x in c.cards if x.figure is None))
    put_notes(out, _notes(c, ranked, columns(table)))


def _ranking(c: Comparison) -> str:
    """What cards are ranked by, and at which batch; the limit holds for that batch alone."""
    limit = None if c.max_seconds is None else duration(c.max_seconds)
    if c.by == "latency":
        return f", batch {c.batch}{f', at most {limit}' if limit else ''}: ranked by latency"
    at, beside = (f"batch {c.batch}", "") if c.as_asked else ("the best batch", f"; latency at batch {c.batch}")
    return f": ranked by {BY[c.by]} at {at}{f' within {limit}' if limit else ''}{beside}"


def _spare(c: Comparison, ranked: Iterable[Candidate]) -> tuple[str, ...]:
    """The columns that go where lines are short: prices that nobody has, or that cards are not ranked by, first."""
    energy, prices = ("W", "J/sample"), ("$/hour", "$/million")
    if c.by == "energy":
        return (*prices, "W", "memory", "80% interval")
    if not any(x.price for x in ranked):
        return (*prices, *energy, "memory", "80% interval")
    return (*energy, "memory", "$/hour", "80% interval")


def put_reasons(out: Console, reasons: Iterable[tuple[str, str]]) -> None:
    """Print why cards are left out: a line for each reason, and the cards that it holds for."""
    cards: dict[str, list[str]] = {}
    for gpu, why in reasons:
        cards.setdefault(why, []).append(gpu)
    for why, gpus in cards.items():
        out.print(Text(f"{', '.join(gpus)}: {printable(why)}"))


def status(accuracy: Accuracy | None) -> str:
    """Whether runs like those of a row were measured, in a word."""
    return NOTHING if accuracy is None else accuracy.status


def on_accuracy(accuracies: Iterable[Accuracy | None]) -> Iterator[str]:
    """What the word in the column `accuracy` is about, and the pages that say more."""
    if pages := dict.fromkeys(a.page for a in accuracies if a is not None):
        yield f"accuracy: whether runs of this kind were measured on the card; see {', '.join(pages)}"


def on_hosts(hosts: Mapping[str, str], ranked: Iterable[str]) -> Iterator[str]:
    """Which of the ranked cards have which host, where these differ; hosts: by the card's id."""
    cards: dict[str, list[str]] = {}
    for gpu in ranked:
        if gpu in hosts:
            cards.setdefault(hosts[gpu], []).append(gpu)
    if len(cards) > 1:
        each = (f"{host} for {', '.join((*gpus[:3], *['...'] * (len(gpus) > 3)))}" for host, gpus in cards.items())
        yield f"the assumed host CPUs differ: {'; '.join(each)}; --host {next(iter(cards))} ranks all on one"


def _line(x: Candidate) -> tuple[str, ...]:
    a, b = x.asked, x.best
    asked: tuple[str, ...] = (NOTHING,) * 3
    best: tuple[str, ...] = (NOTHING,) * 4
    if a is not None:
        held = size(a.process_bytes) if a.fits else f"{size(a.process_bytes)}: does not fit"
        asked = (duration(a.seconds), f"{duration(a.low_seconds)} - {duration(a.high_seconds)}", held)
    if b is not None:
        watts = NOTHING if b.watts is None else f"{b.watts:.0f}"
        joules = NOTHING if b.joules_per_sample is None else number(b.joules_per_sample)
        best = (str(b.batch), number(b.throughput_per_second, 4), watts, joules)
    hour = NOTHING if x.price is None else f"{x.price.usd_per_hour:.2f}"
    million = NOTHING if x.usd_per_million is None else number(x.usd_per_million)
    rank = f"{x.rank}{'=' if x.ties else ''}"
    return rank, x.device.id, *asked, *best, hour, million, status(x.accuracy)


def _notes(c: Comparison, ranked: Iterable[Candidate], shown: Collection[str]) -> Iterator[str]:
    if any(x.ties for x in ranked):
        yield "=: tied rank, as the 80% intervals overlap with those of the best card of that rank"
    if c.fixed:
        yield f"the batch can't be changed: {printable(c.fixed)}"
    yield from on_accuracy(x.accuracy for x in ranked)
    yield from on_hosts(c.hosts, [x.device.id for x in ranked])
    priced = [(x.device.id, x.price) for x in ranked if x.price is not None]
    if priced and "$/million" in shown:
        yield f"$/million is the cost per million samples at full load and {'this' if c.as_asked else 'the best'} batch"
    if {"$/hour", "$/million"} & set(shown):
        yield from on_prices(priced)


def on_prices(prices: Iterable[tuple[str, Price]]) -> Iterator[str]:
    """Where prices are from, and that they are old."""
    shipped = [(id, p) for id, p in prices if p.date]
    if shipped:
        oldest = min(p.date for _, p in shipped)
        doubt = "; not checked against price lists" if any(p.status == "unverified" for _, p in shipped) else ""
        listed = "; ".join(f"{id}: {p.source}" for id, p in shipped[:6]) + ("; ..." if len(shipped) > 6 else "")
        yield f"on-demand prices as of {oldest}{doubt} (--price l4=0.80 overrides one): {listed}"


def show_recommendation(out: Console, r: Recommendation) -> None:
    """Print the cheapest plan in a sentence, all plans, and why other cards have none."""
    asked = f"{shortened(r.model)} under {r.runtime}, {precision_label(r.precision)}"
    goal = f"{number(r.qps)} requests/s at a {r.latency} of {duration(r.limit_s)}"
    out.print(Text(printable(f"{asked}: {goal}"), style="bold"))
    if r.plans:
        out.print(Text(_sentence(r.plans[0], r.latency), style="bold green"))
        figures = ("#replicas", "#worst case", "#batch", f"#{r.latency}", "#run", "#busy", "#W", "#$/hour")
        names = ("!card", *figures, "!accuracy")
        out.print(tabulate(out, names, map(_plan_line, r.plans), spare=("W", "run")))
    else:
        out.print(Text("no card meets this target", style="bold red"))
    put_reasons(out, r.others)
    put_notes(out, _on_plans(r))


def _on_plans(r: Recommendation) -> Iterator[str]:
    yield r.assumed
    if r.plans:
        yield on_worst_case("replicas", "run", [p.replicas_if_slow for p in r.plans])
    yield from on_accuracy(p.accuracy for p in r.plans)
    yield from on_hosts(r.hosts, [p.gpu for p in r.plans])
    if r.fixed:
        yield f"the batch can't be changed: {printable(r.fixed)}"
    if r.prices:
        yield "$/hour is the price of all replicas, busy or idle; cheapest card first"
    yield from on_prices(r.prices)


def on_worst_case(things: str, each: str, numbers: Iterable[int | None]) -> str:
    """What the column `worst case` counts, and what its dash means, where it has one."""
    dash = f"; {NOTHING}: no number of {things} then meets the limit" if None in numbers else ""
    return f"worst case: {things} if each {each} takes the upper end of its 80% interval{dash}"


def _sentence(p: Plan, latency: str) -> str:
    cost = f", ${p.usd_per_hour:,.2f} per hour" if p.usd_per_hour is not None else ""
    return f"{p.replicas} x {p.device_name} at batch {p.batch}: {duration(p.seconds)} {latency}{cost}"


def _plan_line(p: Plan) -> tuple[str, ...]:
    slow = NOTHING if p.replicas_if_slow is None else str(p.replicas_if_slow)
    hour = NOTHING if p.usd_per_hour is None else f"{p.usd_per_hour:,.2f}"
    watts = NOTHING if p.watts is None else f"{p.watts:.0f}"
    return (
        p.gpu, str(p.replicas), slow, str(p.batch), duration(p.seconds), duration(p.run_seconds),
        f"{p.utilisation:.0%}", watts, hour, status(p.accuracy),
    )  # fmt: skip


def show_what_ifs(out: Console, what_ifs: WhatIfs) -> None:
    """Print the changes that make a run faster, and in a line each those that slow it, change nothing or can't be."""
    p = what_ifs.now
    asked = f"{shortened(p.scenario.model)} on {p.device.name} under {p.scenario.runtime}: {duration(p.seconds)} now"
    out.print(Text(printable(asked), style="bold"))
    possible = [(c, p.seconds / c.seconds, c.run_seconds or c.seconds) for c in what_ifs.changes if c.seconds]
    gains = [(c, gain, s) for c, gain, s in possible if gain >= GAINS]
    if gains:
        rows = [(c.what, duration(s), f"{_bound(c)}{gain:.2f}x", status(c.accuracy), c.why) for c, gain, s in gains]
        names = ("change", "#time", "#faster", "!accuracy", "why")
        out.print(tabulate(out, names, [tuple(map(printable, row)) for row in rows]))
    else:
        out.print("no change makes it faster")
    slower = [f"{c.what} {gain:.2f}x" for c, gain, _ in possible if gain <= LOSES]
    same = [c.what for c, gain, _ in possible if LOSES < gain < GAINS]
    for what, listed in (("slower", slower), ("the same", same)):
        if listed:
            out.print(Text(printable(f"{what}: {', '.join(listed)}"), style="dim"))
    for c in what_ifs.changes:
        if c.seconds is None:
            out.print(Text(printable(f"{c.what}: {c.why}"), style="dim"))
    put_notes(out, on_accuracy(c.accuracy for c, *_ in gains))


def _bound(c: WhatIf) -> str:
    return "up to " if c.at_best else ""
