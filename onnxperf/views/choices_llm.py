"""Comparisons of cards and recommendations for language models on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onnxperf.decide.compare_llm import LanguageCandidate, LanguageComparison
from onnxperf.decide.pace import Pace
from onnxperf.decide.recommend_llm import LanguagePlan, LanguageRecommendation
from onnxperf.ground.errors import counted, printable
from onnxperf.ground.names import precision_label
from onnxperf.ground.tables import NOTHING, columns, duration, number, put_notes, shortened, size, tabulate
from onnxperf.language.steps import Seconds
from onnxperf.views.choices import NONE_RANKED, on_accuracy, on_prices, on_worst_case, put_reasons, status
from onnxperf.views.llm import arriving, interval

BY = {"latency": "time per output token", "throughput": "throughput", "cost": "cost per million tokens"}
CARDS = (
    "#rank", "!card", "#TTFT", "#80% interval", "#TPOT", "#80% interval ", "#tokens/s", "#memory", "#largest batch",
    "#$/hour", "#$/M tokens", "!accuracy",
)  # fmt: skip
SPARE = ("memory", "80% interval", "largest batch", "$/hour", "80% interval ")
PRICES = ("$/hour", "$/M tokens")  # which go first where no card has one
PLANS = (
    "!card", "!plan", "#instances", "#worst case", "#TTFT", "#80% interval", "#TPOT", "#80% interval ", "#load",
    "#$/hour", "#$/M tokens", "!accuracy",
)  # fmt: skip
SPARE_OF_PLANS = ("80% interval", "load", "80% interval ", "$/M tokens")


def show_comparison(out: Console, c: LanguageComparison) -> None:
    """Print a line for each card, the best first, then why some are not ranked, and what ties and prices mean."""
    a = c.about
    draft = _with_draft(a.draft.model if a.draft else None, a.lengths.cached)
    draft += f", pools {a.pools.prefill}:{a.pools.decode}" if a.pools else ""
    what = _model(a.model, c.runners, a.precision, a.weights, a.cache) + (f", {a.plan} each" if a.plan else "") + draft
    asked = f"{what}, {_asked(c)}{_limits(c.pace, ', at most ')}"
    out.print(Text(printable(f"{asked}: ranked by {BY[c.by]}"), style="bold"))
    ranked = [x for x in c.cards if x.figure is not None]
    spare = SPARE if any(x.price for x in ranked) else (*PRICES, *SPARE)
    table = tabulate(out, CARDS, map(_line, ranked), spare=spare)
    out.print(table if ranked else NONE_RANKED)
    put_reasons(out, ((x.device.id, x.why) for x in c.cards if x.figure is None))
    put_notes(out, _notes(c, ranked, columns(table)))


def _model(name: str, runners: Sequence[str], precision: str, weights: str | None, cache: str | None) -> str:
    """The model, what runs it, and its types."""
    types = [f"{kind} {what}" for kind, what in ((weights, "weights"), (cache, "cache")) if kind]
    return f"{shortened(name)} under {' and '.join(runners)}, {', '.join((precision_label(precision), *types))}"


def _asked(c: LanguageComparison) -> str:
    """The lengths, and how many samples or requests there are."""
    a, s = c.about, c.about.service
    if s is None:
        return f"prompt {a.lengths.prompt:,}, output {a.lengths.output:,}, batch {a.batches[0].batch}"
    return f"prompts {s.traffic.prompts}, outputs {s.traffic.outputs}, {s.traffic.requests:,} requests{arriving(s)}"


def _with_draft(draft: str | None, cached: float) -> str:
    """What proposes tokens, and what of prompts is cached."""
    return (f", draft {shortened(draft)}" if draft else "") + (f", {cached:.0%} of prompts cached" if cached else "")


def _limits(pace: Pace, before: str = "") -> str:
    named = ((pace.token_s, "per output token"), (pace.first_s, "to the first token"))
    said = " and ".join(f"{duration(s)} {what}" for s, what in named if s is not None)
    return f"{before}{said}" if said else ""


def _line(x: LanguageCandidate) -> tuple[str, ...]:
    g, rate = x.generation, x.tokens_per_second
    assert g is not None and rate is not None and x.first is not None and x.token is not None
    times = (*_time(x.first), *_time(x.token))
    hour = NOTHING if x.price is None else f"{x.gpus * x.price.usd_per_hour:,.2f}"
    million = NOTHING if x.usd_per_million_tokens is None else number(x.usd_per_million_tokens)
    rank = f"{x.rank}{'=' if x.ties else ''}"
    most = f"{g.largest_batch:,}"
    figures = (*times, number(rate.seconds, 4), size(x.needed_bytes or 0), most, hour, million)
    return rank, x.device.id, *figures, status(x.accuracy)


def _time(s: Seconds) -> tuple[str, str]:
    return duration(s.seconds), interval(s)


def _notes(c: LanguageComparison, ranked: Sequence[LanguageCandidate], shown: Collection[str]) -> Iterator[str]:
    if any(x.ties for x in ranked):
        yield "=: tied rank, as the 80% intervals overlap with those of the best card of that rank"
    yield from on_accuracy(x.accuracy for x in ranked)
    priced = [(x.device.id, x.price) for x in ranked if x.price is not None]
    if priced and PRICES[1] in shown:
        yield "$/M tokens is the cost per million generated tokens at the tokens/s of this line"
    if set(PRICES) & set(shown):
        yield from on_prices(priced)
    yield from c.about.notes


def show_recommendation(out: Console, r: LanguageRecommendation) -> None:
    """Print the cheapest plan and the one after it in a sentence each, all plans, and why others are none."""
    which = "mean" if r.pace.percentile is None else f"p{r.pace.percentile}"
    draft = _with_draft(r.draft, r.cached)
    goal = f"{number(r.qps)} requests/s, prompts {r.prompts}, outputs {r.outputs}, {which} of {_limits(r.pace)}"
    out.print(
        Text(printable(f"{_model(r.model, r.runners, r.precision, r.weights, r.cache)}{draft}: {goal}"), style="bold")
    )
    if r.plans:
        out.print(Text(_sentence(r.plans[0]), style="bold green"))
        if r.plans[1:]:
            out.print(Text(f"next: {_sentence(r.plans[1])}"))
        table = tabulate(out, PLANS, map(_plan_line, r.plans), spare=SPARE_OF_PLANS)
        out.print(table)
    else:
        table = Table()
        out.print(Text("no plan meets this target", style="bold red"))
    put_reasons(out, ((f"{gpu} {plan}".strip(), why) for gpu, plan, why in r.others))
    put_notes(out, _on_plans(r, columns(table)))
    if r.plans:
        put_notes(out, ("each instance of the first plan is that of this command:",))
        out.print(Text(printable(f"  {r.plans[0].command}"), style="dim"), soft_wrap=True)  # in one line, to be copied


def _sentence(p: LanguagePlan) -> str:
    cards = (
        f"{p.instances} x {p.device_name}"
        if p.gpus == 1
        else f"{counted(p.instances, 'instance')} of {p.gpus} {p.device_name} ({p.parallel})"
    )
    cost = f", ${p.usd_per_hour:,.2f} per hour" if p.usd_per_hour is not None else ""
    return f"{cards}: {duration(p.token.seconds)} per output token, {duration(p.first.seconds)} to the first{cost}"


def _plan_line(p: LanguagePlan) -> tuple[str, ...]:
    slow = NOTHING if p.instances_if_slow is None else f"{p.instances_if_slow:,}"
    hour = NOTHING if p.usd_per_hour is None else f"{p.usd_per_hour:,.2f}"
    million = NOTHING if p.usd_per_million_tokens is None else number(p.usd_per_million_tokens)
    times = (*_time(p.first), *_time(p.token))
    figures = (f"{p.instances:,}", slow, *times, f"{p.load:.0%}", hour, million)
    return p.gpu, p.parallel or "1 GPU", *figures, status(p.accuracy)


def _on_plans(r: LanguageRecommendation, shown: Collection[str]) -> Iterator[str]:
    yield from r.notes
    if r.plans:
        yield on_worst_case("instances", "iteration", [p.instances_if_slow for p in r.plans])
        yield from on_accuracy(p.accuracy for p in r.plans)
    if "load" in shown:
        yield f"load: the share of the requests that an instance serves with all {counted(r.running, 'place')} taken"
    if r.prices:
        yield "$/hour is the price of all instances, busy or idle; cheapest plan first"
    yield from on_prices(r.prices)
