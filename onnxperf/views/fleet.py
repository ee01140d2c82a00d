"""The cheapest mix of cards for a fleet on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from onnxperf.decide.recommend_fleet import FleetRecommendation, Placement, Served, lacking
from onnxperf.ground.errors import printable
from onnxperf.ground.tables import NOTHING, duration, number, put_notes, tabulate
from onnxperf.views.choices import on_accuracy, on_prices, put_reasons, status

NAMES = (
    "~model", "#requests/s", "limit", "!card", "#replicas", "#batch", "#latency", "#busy", "#$/hour", "alone",
    "#alone, $/hour", "!accuracy",
)  # fmt: skip
SPARE = ("alone", "requests/s", "busy")


def show(out: Console, r: FleetRecommendation) -> None:
    """Print the mix in a sentence, where each model runs, what binds, and why cards are left out.

    alone: where the model would run cheapest if cards were without limit.
    """
    out.print(Text(_sentence(r), style="bold green" if r.models else "bold red"))
    if r.models:
        out.print(tabulate(out, NAMES, (line for m in r.models for line in _lines(m)), spare=SPARE))
    for why in r.why:
        out.print(Text(why))
    for model, others in (*r.unserved, *((m.model, m.others) for m in r.models)):
        put_reasons(out, ((gpu, f"{printable(model)}: {why}") for gpu, why in others))
    put_notes(out, _notes(r))


def _sentence(r: FleetRecommendation) -> str:
    if r.unserved:
        return printable(f"no card serves {', '.join(model for model, _ in r.unserved)}")
    if r.usd_per_hour is None:
        return f"there are too few cards: {lacking(r.short)} more would do"
    cards = " and ".join(f"{u.cards:,} x {u.gpu}" for u in r.cards)
    return f"{cards}: ${r.usd_per_hour:,.2f} per hour"


def _lines(m: Served) -> Iterator[tuple[str, ...]]:
    """A line for each placement; of the model by itself in the first."""
    for i, p in enumerate(m.placements):
        model = (m.model, number(m.qps), m.limit) if not i else ("", "", "")
        alone = (m.alone, f"{m.alone_usd_per_hour:,.2f}") if not i else ("", "")
        yield (*map(printable, model), *_placed(p), *alone, status(p.accuracy))


def _placed(p: Placement) -> tuple[str, ...]:
    batch = NOTHING if p.batch is None else str(p.batch)
    card = f"{p.gpu} {p.parallel}".strip()
    return card, str(p.replicas), batch, duration(p.seconds), f"{p.utilisation:.0%}", f"{p.usd_per_hour:,.2f}"


def _notes(r: FleetRecommendation) -> Iterator[str]:
    yield from map(printable, r.notes)
    if r.models:
        slow = "no mix would do" if r.slow_usd_per_hour is None else f"${r.slow_usd_per_hour:,.2f} an hour"
        yield f"if each run takes the upper end of its 80% interval: {slow}"
        yield "$/hour is the price of all replicas, busy or idle; alone: the cheapest were cards without limit"
    yield from on_accuracy(p.accuracy for m in r.models for p in m.placements)
    if r.gap:
        yield f"the search took too long: a mix may be up to {r.gap:.1%} cheaper"
    yield from on_prices(r.prices)
