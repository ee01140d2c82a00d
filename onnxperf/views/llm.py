"""How a language model generates, on a terminal and as a plot."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from onnxperf.ground.errors import UsageError, printable
from onnxperf.ground.modules import require
from onnxperf.ground.names import USUAL_ENGINE, precision_label
from onnxperf.ground.tables import Sheet, duration, number, put, put_notes, size
from onnxperf.language.core import Generation
from onnxperf.language.generation import Batch
from onnxperf.language.pools import balanced
from onnxperf.language.serving import PERCENTILES, Service
from onnxperf.language.steps import Seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLOTS = (".png", ".svg")
ASSUMED = (
    "requests are simulated with vLLM's scheduler and a paged KV cache, which ONNX Runtime GenAI may not have",
    "the prompts of an iteration share its GEMMs, and each attends to itself alone;"
    " logits are of every position unless --prune-lm-head",
)
UNDER_ENGINE = (
    "requests are simulated with the engine's scheduler; one is admitted once the KV cache has room for all its tokens",
)
#: Of what simulated requests wait for at any load, and of how much is done.
FRONT = (
    "times to first token, and waiting, have {} of the server's front end in them, from the client to the scheduler and"
    " back; the table of batches has not"
)
BUSY = "utilization is the share of the time in which anything runs"
SPAN = (
    "requests/s and tokens/s are until the last token, which comes after the last arrival: fewer than arrive, also"
    " where the server keeps up; utilization is the share of that time in which anything runs"
)
#: Of prompts of which no share is said to be cached.
NOTHING_CACHED = "no prompt is in the prefix cache; --cached 0.5: half of each is"
TIMES = ("#TTFT", "#80% interval", "#TPOT", "#80% interval ")
NAMES = ("#batch", *TIMES, "#tokens/s", "#memory", "#longest context", "!note")
CURVE = (
    "#requests", "#TTFT", "#80% interval", "#p99", "#TPOT", "#80% interval ", "#p99 ", "#tokens/s/user",
    "#tokens/s/GPU", "#utilization",
)  # fmt: skip
POOLS = ("#tokens/s/GPU", "!bound by", "#balance")
POOLED = ("#prefill busy", "#decode busy", "#balance")
SPEEDUP = "#speedup"  # of a draft, in times per output token
SPARE = ("longest context", "80% interval", "80% interval ", "bound by")
SPARE_OF_CURVE = ("80% interval", "80% interval ", "p99 ", "p99", "tokens/s/user")


def show(out: Console, g: Generation) -> None:
    """Print a table with a line for each batch."""
    lengths = g.lengths
    chunk = f" in chunks of {lengths.chunk:,}" if lengths.chunk else ""
    plan = f" · {g.plan}" if g.plan else ""
    plan += f" · pools {g.pools.prefill:,}:{g.pools.decode:,}" if g.pools else ""
    chunk += f", {lengths.cached_tokens:,} of it cached" if lengths.cached else ""
    about = f"{g.model} · {g.gpu}{plan} · {g.runner} · {types_of(g)}"
    out.print(
        Text(printable(f"{about} · prompt {lengths.prompt:,}{chunk}, output {lengths.output:,} tokens"), style="bold")
    )
    cache = f"{size(g.cache_bytes_per_token)} of KV cache per token"
    first = g.batches[0]
    card = f"the card has {size(g.capacity_bytes)}"
    card += f", {g.runner} takes up to {size(first.capacity_bytes)}" * (first.capacity_bytes < g.capacity_bytes)
    out.print(f"weights {size(g.weights_bytes)}, {cache}; {card}")
    most = f"largest batch that fits: {g.largest_batch:,}" if g.largest_batch else "batch 1 does not fit"
    if first.longest_context:
        most += f"; longest context at batch {first.batch:,}: {first.longest_context:,} tokens"
    out.print(most)
    if (d := g.draft) is not None:
        kept = f"weights {size(d.weights_bytes)}, {size(d.cache_bytes_per_token)} of KV cache per token"
        step = f"{d.tokens_per_step:.3g} tokens a step of {d.tokens} proposed, each accepted with {d.accept:.4g}"
        out.print(Text(printable(f"draft {d.model}: {kept}; {step}")))
    out.print()
    lines = tuple(_line(b) for b in g.batches)
    names = (*NAMES[:-1], *POOLS * (g.pools is not None), *(SPEEDUP,) * (g.draft is not None), NAMES[-1])
    put(out, [Sheet("time to first token (TTFT) and time per output token (TPOT)", names, lines, SPARE)])
    if g.curve:
        put(out, [curve_sheet(g.curve)])
    elif g.service is not None:
        if says := verdict(g.service):
            out.print(Text(says, style="bold red" if says.startswith("cannot") else "bold green"))
        put(out, [service_sheet(g.service)])
    put_notes(out, (printable(f"accuracy: {g.accuracy}"), *g.notes, *assumed(g)))


def assumed(g: Generation) -> tuple[str, ...]:
    """What is assumed of requests, where any were simulated."""
    if g.service is None:
        return ()
    said = ASSUMED if g.engine == USUAL_ENGINE else UNDER_ENGINE
    front_s = g.service.server.front_s
    said = (*said, *((FRONT.format(duration(front_s)),) if front_s else ()))
    if g.pools is None:
        said = (*said, BUSY if g.service.traffic.qps is None else SPAN)
    return said if g.engine == USUAL_ENGINE or g.lengths.cached else (*said, NOTHING_CACHED)


def served(s: Service) -> str:
    """How requests were served, in a sentence."""
    drawn_as = f"{s.traffic.requests:,} requests{arriving(s)}, {_lengths(s)}"
    did = f"{number(s.requests_per_second)} requests/s and {number(s.tokens_per_second)} tokens/s"
    if s.traffic.concurrency:
        did += f" ({number(s.tokens_per_second_per_user)} per user, {number(s.tokens_per_second_per_gpu)} per GPU)"
    did += " from the first arrival to the last token"
    did += "" if s.speedup is None else f", speedup {s.speedup:.2f} over no draft"
    load = f"utilization {s.utilisation:.0%}, on average {number(s.batch)} of {s.server.running} sequences decode"
    load += f", on each of {s.groups} groups" * (s.groups > 1)
    if (p := s.pools) is not None:
        load = (
            f"prefill runs {p.prefill_utilisation:.0%} of the time, decode {p.decode_utilisation:.0%}, on average with"
        )
        load += f" {number(s.batch)} sequences; {balanced(p.balance)} would balance"
    return f"{drawn_as}: {did}; {load}"


def verdict(s: Service) -> str:
    """Whether requests are served as fast as they arrive, "" where that is not known."""
    asked, most = s.traffic.qps, s.capacity
    if asked is None or most is None:
        return ""
    if s.overload:
        return f"{s.overload}, so that waiting times grow"
    return f"keeps up: {number(asked)} requests/s arrive, and up to {number(most)} could be served"


def service_sheet(s: Service) -> Sheet:
    """How requests were served: a line for each time, a column for its mean and for each percentile."""
    lines = [
        (
            name.replace("_", " "),
            duration(t.mean.seconds),
            interval(t.mean),
            *(duration(at.seconds) for at in t.at.values()),
        )
        for name, t in s.times.items()
    ]
    if s.server.front_s:  # behind the first line, waiting
        front = duration(s.server.front_s)
        lines.insert(1, ("- in the front end", front, "", *(front for _ in PERCENTILES)))
    names = ("!time", "#mean", "#80% interval", *(f"#p{p}" for p in PERCENTILES))
    return Sheet(printable(served(s)), names, tuple(lines), ("80% interval",))


def curve_sheet(services: Sequence[Service]) -> Sheet:
    """How a closed loop is served, a line for each concurrency."""
    lines = []
    for s in services:
        first, token = (s.times[name] for name in ("time_to_first_token", "time_per_output_token"))
        times = (
            x for t in (first, token) for x in (duration(t.mean.seconds), interval(t.mean), duration(t.at[99].seconds))
        )
        rates = (s.tokens_per_second_per_user, s.tokens_per_second_per_gpu)
        sooner = () if s.speedup is None else (f"{s.speedup:.2f}",)
        loads = [f"{s.utilisation:.0%}"]
        if (p := s.pools) is not None:
            loads = [f"{p.prefill_utilisation:.0%}", f"{p.decode_utilisation:.0%}", balanced(p.balance)]
        lines.append((str(s.traffic.concurrency), *times, *map(number, rates), *loads, *sooner))
    pooled, drafted = services[0].pools is not None, services[0].speedup is not None
    names = (*(CURVE[:-1] if pooled else CURVE), *POOLED * pooled, *(SPEEDUP,) * drafted)
    return Sheet(printable(closed_loop(services[0])), names, tuple(lines), SPARE_OF_CURVE)


def closed_loop(s: Service) -> str:
    """What a curve is of."""
    return f"closed loop, {_lengths(s)}"


def arriving(s: Service) -> str:
    """How requests arrive."""
    rate = s.traffic.qps
    return f", {s.traffic.concurrency:,} at a time" if rate is None else f" at {number(rate)}/s"


def _lengths(s: Service) -> str:
    return f"prompts {s.traffic.prompts}, outputs {s.traffic.outputs}"


def types_of(g: Generation) -> str:
    """The types of activations, weights and cache."""
    types = [f"{kind} {what}" for kind, what in ((g.weights, "weights"), (g.cache, "cache")) if kind]
    return ", ".join((precision_label(g.precision), *types))


def _line(b: Batch) -> tuple[str, ...]:
    times = (x for s in (b.first, b.token) for x in (duration(s.seconds), interval(s)))
    note = "" if b.fits else "does not fit"
    sooner = () if b.speculation is None else (f"{b.speculation.speedup:.2f}",)
    sizes = size(b.needed_bytes), f"{b.longest_context:,}"
    p = b.pools
    through = () if p is None else (number(p.tokens_per_second_per_gpu), p.bound_by, balanced(p.balance))
    return str(b.batch), *times, number(b.tokens_per_second), *sizes, *through, *sooner, note


def interval(s: Seconds) -> str:
    """The 80% interval of a time."""
    return f"{duration(s.low_seconds)} - {duration(s.high_seconds)}"


def check_plot(target: str) -> None:
    """Raise UsageError for a file that no plot is written to, EnvironmentFailure where none can be drawn."""
    if Path(target).suffix.lower() not in PLOTS:
        raise UsageError(f"--plot {target}: the name of a plot ends with {' or '.join(PLOTS)}")
    require("matplotlib", f"drawing {target}")


def plot(target: str, g: Generation) -> bytes:
    """A generation as the image of a file of this name, see `drawn`."""
    image = io.BytesIO()
    drawn(g).savefig(image, format=Path(target).suffix.lower().lstrip("."))
    return image.getvalue()


def drawn(g: Generation) -> Figure:
    """Time of a token, and time to the first one, over the tokens per second, with their 80% intervals, a point for
    each batch that fits; below, where requests arrive, the percentiles of what they take, or for several concurrencies
    the tokens per second of a GPU over those of a user.
    """
    from matplotlib.figure import Figure

    served = g.service is not None
    figure = Figure(figsize=(8, 12 if served else 8), layout="constrained")
    above, below, *last = figure.subplots(2 + served, gridspec_kw={"hspace": 0.05})
    rows = [b for b in g.batches if b.fits]
    rates = [b.tokens_per_second for b in rows]
    for axes, label, times in ((above, "time per output token, ms", [b.token for b in rows]),
                               (below, "time to first token, ms", [b.first for b in rows])):  # fmt: skip
        _curve(axes, rates, times, 1e3)
        for b, x, t in zip(rows, rates, times, strict=True):
            axes.annotate(f"{b.batch}", (x, 1e3 * t.seconds), xytext=(-3, 4), textcoords="offset points", ha="right")
        axes.set(ylabel=label, xlabel="output tokens/s, including prefill", xscale="log" if rows else "linear")
        axes.margins(x=0.06, y=0.1)
    if rows:
        below.set_yscale("log")
        above.set_ylim(bottom=0)
        above.legend(["one point per batch, labelled with it", "80% interval"], loc="lower right")
    else:
        above.text(0.5, 0.5, "no batch fits into memory", transform=above.transAxes, ha="center")
        for axes in (above, below):
            axes.set_axis_off()
    if g.curve:
        _pareto(last[0], g.curve)
    elif g.service is not None:
        _service(last[0], g.service)
    for axes in (above, below, *last):
        _plain(axes)
    pools = f", pools {g.pools.prefill}:{g.pools.decode}" if g.pools else ""
    about = f"{Path(g.model).name}, {types_of(g)}\n{g.gpu}{f', {g.plan}' if g.plan else ''}{pools}, {g.runner}"
    lengths = f"prompt {g.lengths.prompt:,}, output {g.lengths.output:,} tokens"
    figure.suptitle("\n".join(map(printable, f"{about}, {lengths}".split("\n"))).replace("$", r"\$"))
    return figure


def _curve(axes: Axes, x: Sequence[float], times: Sequence[Seconds], unit: float, label: str | None = None) -> None:
    low, mid, high = ([unit * getattr(t, f"{end}seconds") for t in times] for end in ("low_", "", "high_"))
    axes.plot(x, mid, marker=".", label=label)
    axes.fill_between(x, low, high, alpha=0.15, linewidth=0)


def _service(axes: Axes, s: Service) -> None:
    """The percentiles of what requests take, in seconds; waiting, which is often nothing, is left to the table."""
    for name, time in s.times.items():
        if name != "waiting":
            _curve(axes, range(len(PERCENTILES)), list(time.at.values()), 1.0, name.replace("_", " "))
    rate = s.traffic.qps
    arrive = f"{s.traffic.concurrency:,} requests at a time" if rate is None else f"{number(rate)} requests/s arrive"
    about = f"{arrive}, {number(s.requests_per_second)} requests/s up to the last token"
    share = f"percentile of {s.traffic.requests:,} requests"
    axes.set(ylabel="seconds", xlabel=share, yscale="log", title=about)
    axes.set_xticks(range(len(PERCENTILES)), [f"{p}%" for p in PERCENTILES])
    axes.legend()


def _pareto(axes: Axes, services: Sequence[Service]) -> None:
    """Tokens per second of a GPU over those of a user, a point for each concurrency."""
    users, gpus = ([getattr(s, f"tokens_per_second_per_{of}") for s in services] for of in ("user", "gpu"))
    axes.plot(users, gpus, marker=".")
    for s, x, y in zip(services, users, gpus, strict=True):
        axes.annotate(f"{s.traffic.concurrency}", (x, y), xytext=(4, 4), textcoords="offset points")
    axes.set(
        xlabel="tokens/s per user", ylabel="tokens/s per GPU", title="closed loop, labelled with requests at a time"
    )
    axes.set_ylim(bottom=0)
    axes.margins(x=0.06, y=0.1)


def _plain(axes: Axes) -> None:
    """Plain numbers, 1, 2 and 5 of each decade on logarithmic axes, and a grid."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
