"""How a language model generates, on a terminal and as a plot."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from onnxperf.errors import EnvironmentFailure, UsageError, printable
from onnxperf.language.core import Generation
from onnxperf.language.generation import Batch
from onnxperf.language.serving import PERCENTILES, Service
from onnxperf.language.steps import Seconds
from onnxperf.output import aside
from onnxperf.tables import Sheet, duration, number, put, put_notes, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS = (".png", ".svg")
ASSUMED = (
    "requests: a simulation of vLLM's scheduling with the cache in pages, which ONNX Runtime GenAI may not have",
    "an iteration's prompts are priced as one sequence; logits are of every position unless the head is pruned",
)
TIMES = ("#first token", "#80% interval", "#each further", "#80% interval ")
NAMES = ("#batch", *TIMES, "#tokens/s", "#memory", "#longest context", "!note")
SPARE = ("longest context", "80% interval", "80% interval ")


def show(out: Console, g: Generation) -> None:
    """Print a table with a line for each batch."""
    lengths = g.lengths
    chunk = f" in chunks of {lengths.chunk:,}" if lengths.chunk else ""
    weights = f", {g.weights} weights" if g.weights else ""
    plan = f" · {g.plan}" if g.plan else ""
    about = f"{g.model} · {g.gpu}{plan} · {g.runtime} · {g.precision}{weights}"
    out.print(
        Text(printable(f"{about} · prompt {lengths.prompt:,}{chunk}, output {lengths.output:,} tokens"), style="bold")
    )
    cache = f"{size(g.cache_bytes_per_token)} of cache for each token"
    most = f"the largest batch that fits is {g.largest_batch:,}" if g.largest_batch else "not even one sample fits"
    out.print(f"weights {size(g.weights_bytes)}, {cache}; {most} ({size(g.capacity_bytes)})")
    out.print()
    lines = tuple(_line(b) for b in g.batches)
    put(out, [Sheet("time to the first token and time of each further one", NAMES, lines, SPARE)])
    if g.service is not None:
        put(out, [service_sheet(g.service)])
    put_notes(out, (*g.notes, *(ASSUMED if g.service is not None else ())))


def service_sheet(s: Service) -> Sheet:
    """How requests were served: a line for each time, a column for each percentile."""
    t = s.traffic
    drawn_as = f"{t.requests:,} requests, {number(t.qps)} a second, prompts {t.prompts}, outputs {t.outputs}"
    did = f"{number(s.requests_per_second)} requests/s, {number(s.tokens_per_second)} tokens/s"
    load = f"busy {s.utilisation:.0%}, {number(s.batch)} of {s.server.running} decode on average"
    lines = tuple(
        (name.replace("_", " "), *(f"{duration(at.seconds)} ({_range(at)})" for at in found.values()))
        for name, found in s.times.items()
    )
    names = ("!with 80% intervals", *(f"#p{p}" for p in PERCENTILES))
    return Sheet(printable(f"{drawn_as}: {did}; {load}"), names, lines)


def _line(b: Batch) -> tuple[str, ...]:
    times = (x for s in (b.first, b.token) for x in (duration(s.seconds), _range(s)))
    note = "" if b.fits else "does not fit"
    return str(b.batch), *times, number(b.tokens_per_second), size(b.needed_bytes), f"{b.longest_context:,}", note


def _range(s: Seconds) -> str:
    return f"{duration(s.low_seconds)} - {duration(s.high_seconds)}"


def check_plot(target: str) -> None:
    """Raise UsageError for a file that no plot is written to, EnvironmentFailure where none can be drawn."""
    if Path(target).suffix.lower() not in PLOTS:
        raise UsageError(f"--plot {target}: the name of a plot ends with {' or '.join(PLOTS)}")
    if find_spec("matplotlib") is None:
        raise EnvironmentFailure(f"drawing {target} takes matplotlib: pip install 'onnxperf[plot]'")


def plot(target: str, g: Generation) -> None:
    """Draw a generation to a file, see `drawn`."""
    with aside(target) as path:
        drawn(g).savefig(path, format=Path(target).suffix.lower().lstrip("."))


def drawn(g: Generation) -> Figure:
    """Time of a token, and time to the first one, over the tokens per second, with their 80% intervals, a point for
    each batch that fits.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 8), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    rows = [b for b in g.batches if b.fits]
    rates = [b.tokens_per_second for b in rows]
    for axes, label, times in ((above, "time per output token in ms", [b.token for b in rows]),
                               (below, "time to first token in ms", [b.first for b in rows])):  # fmt: skip
        low, mid, high = ([1e3 * getattr(t, f"{end}seconds") for t in times] for end in ("low_", "", "high_"))
        axes.plot(rates, mid, marker=".")
        axes.fill_between(rates, low, high, alpha=0.15, linewidth=0)
        for b, x, y in zip(rows, rates, mid, strict=True):
            axes.annotate(f"batch {b.batch}", (x, y), fontsize="small")
        axes.set(ylabel=label)
        axes.margins(x=0.12)
        axes.grid(alpha=0.3)
    below.set_yscale("log")
    above.set_title(
        printable(f"{g.model}, {g.gpu}, {g.lengths.prompt} + {g.lengths.output} tokens").replace("$", r"\$")
    )
    below.set(xlabel="output tokens/s, prompt included")
    return figure
