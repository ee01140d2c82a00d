"""Sweeps on a terminal, and as a plot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.text import Text

from onnxperf.ground.errors import UsageError, printable
from onnxperf.ground.modules import require
from onnxperf.ground.output import aside
from onnxperf.ground.tables import NOTHING, duration, number, shortened, size, tabulate
from onnxperf.sweeps.rows import Block, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS = (".png", ".svg")
LINES = 20  # of a plot that can be read
TICKS = 12
T = TypeVar("T")
FIGURES = ("#latency", "#80% interval", "#samples/s", "#memory", "#W", "#J/sample", "#$/million")
SPARE = ("$/million", "J/sample", "W", "memory", "80% interval")


def show_grid(out: Console, b: Block) -> None:
    """Print a line for each row with figures, and below them why others have none."""
    names = ("!card", "!precision", "#batch", *FIGURES, "!note")
    rows = [r for r in b.rows if r.seconds is not None]
    _put(out, b, names, [(r.gpu, r.precision, str(r.batch), *_figures(r), _note(r)) for r in rows])


def show_knees(out: Console, b: Block) -> None:
    """Print a line for each card and precision: its knee, and its largest batch."""
    names = ("!card", "!precision", "#knee", *FIGURES, "#largest")
    largest = {(r.gpu, r.precision): r.batch for r in b.rows if r.largest}
    knees = [r for r in b.rows if r.knee]
    lines = [(r.gpu, r.precision, str(r.batch), *_figures(r), str(largest[r.gpu, r.precision])) for r in knees]
    _put(out, b, names, lines)


def _put(out: Console, b: Block, names: Sequence[str], lines: Sequence[tuple[str, ...]]) -> None:
    out.print(Text(shortened(_name(b), out.width), style="bold"))
    if lines:
        out.print(tabulate(out, names, lines, spare=SPARE))
    for why in _reasons(b.rows):
        out.print(Text(printable(why)))
    out.print()


def _name(b: Block) -> str:
    """A block's model and its sizes."""
    return ", ".join([b.model, *(f"{name}={n}" for name, n in b.dims)])


def _figures(r: Row) -> tuple[str, ...]:
    def shown(value: float | None) -> str:
        return NOTHING if value is None else number(value)

    held = NOTHING if r.process_bytes is None else size(r.process_bytes)
    times = duration(r.seconds or 0.0), f"{duration(r.low_seconds or 0.0)} - {duration(r.high_seconds or 0.0)}"
    rest = shown(r.joules_per_sample), shown(r.usd_per_million)
    watts = NOTHING if r.watts is None else f"{r.watts:.0f}"
    return *times, number(r.throughput_per_second or 0.0, 4), held, watts, *rest


def _note(r: Row) -> str:
    if not r.fits:
        return "does not fit"
    return ", ".join([*["knee"] * r.knee, *["largest"] * r.largest])


def _reasons(rows: Iterable[Row]) -> Iterator[str]:
    """Why rows have no figures: a line for each reason and the cards, precisions and batches that it holds for."""
    failed = [(r.why, r.precision, r.gpu, str(r.batch or "as stored")) for r in rows if r.seconds is None]
    batches = _gathered((row[:3], row[3]) for row in failed)
    cards = _gathered(((why, name, at), gpu) for (why, name, gpu), at in batches)
    names = _gathered(((why, at, gpus), name) for (why, name, at), gpus in cards)
    for (why, at, gpus), precisions in names:
        yield f"{', '.join(gpus)}, {', '.join(precisions)}, batch {', '.join(at)}: {why}"


def _gathered(pairs: Iterable[tuple[T, str]]) -> list[tuple[T, tuple[str, ...]]]:
    """What stands beside the same thing, together."""
    groups: dict[T, list[str]] = {}
    for what, beside in pairs:
        groups.setdefault(what, []).append(beside)
    return [(what, tuple(beside)) for what, beside in groups.items()]


def check_lines(target: str, lines: int) -> None:
    """Raise UsageError where a plot would have too many lines, EnvironmentFailure where it can't be drawn here."""
    if lines > LINES:
        fewer = f"at most {LINES} are distinguishable: name fewer cards, precisions and sizes, or write a table"
        raise UsageError(f"-o {target}: a line for each model, size, precision and card makes {lines:,}; {fewer}")
    require("matplotlib", f"drawing {target}")


def plot(target: str, blocks: Sequence[Block]) -> None:
    """Draw blocks to a file, see `drawn`."""
    with aside(target) as path:
        drawn(blocks).savefig(path, format=Path(target).suffix.lower().lstrip("."))


def drawn(blocks: Sequence[Block]) -> Figure:
    """Throughput and latency over the batch with their 80% intervals, a line for each model, size, card and precision;
    knees are circled. Runs that don't fit are left out.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    figure = Figure(figsize=(9, 9), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    several = len({_name(b) for b in blocks}) > 1
    lines = _gathered_rows(blocks)
    for i, (name, rows) in enumerate(lines.items()):
        color = colormaps["tab20"](i % 20)
        x = [r.batch or 1 for r in rows]
        low, mid, high = ([getattr(r, f"{end}seconds") for r in rows] for end in ("low_", "", "high_"))
        rates = [[n / s for n, s in zip(x, each, strict=True)] for each in (high, mid, low)]
        times = [[1e3 * s for s in each] for each in (low, mid, high)]
        for axes, (least, middle, most) in ((above, rates), (below, times)):
            axes.plot(x, middle, marker=".", color=color, label=_plain(", ".join(name if several else name[1:])))
            axes.fill_between(x, least, most, color=color, alpha=0.15, linewidth=0)
        knees = [(r.batch, r.throughput_per_second) for r in rows if r.knee]
        above.plot(*zip(*knees, strict=True), "o", color=color, fillstyle="none", markersize=10)
    ticks = sorted({r.batch or 1 for rows in lines.values() for r in rows})
    ticks = ticks[:: -(-len(ticks) // TICKS) or 1]
    for axes in (above, below):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, map(str, ticks))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    above.set(ylabel="samples/s (circles: knees)", ylim=(0, None), title="" if several else _plain(_name(blocks[0])))
    below.set(xlabel="batch", ylabel="latency in ms", yscale="log")
    below.yaxis.set_major_formatter(LogFormatter())  # 10 and 100, no powers of ten
    below.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
    if lines:
        above.legend(fontsize="small")
    return figure


def _gathered_rows(blocks: Iterable[Block]) -> dict[tuple[str, str, str], list[Row]]:
    """The rows with figures that fit by model, card and precision."""
    lines: dict[tuple[str, str, str], list[Row]] = {}
    for b in blocks:
        for r in b.rows:
            if r.fits:
                lines.setdefault((_name(b), r.gpu, r.precision), []).append(r)
    return lines


def _plain(text: str) -> str:
    """Text that matplotlib takes for no formula, and that it does not hide for beginning with an underscore."""
    return " " * text.startswith("_") + shortened(text, 80).replace("$", r"\$")
