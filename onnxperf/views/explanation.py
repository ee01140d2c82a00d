"""An explanation on the terminal."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from onnxperf.explanation import Explanation, RunExplanation, Section, amount
from onnxperf.ground.errors import printable
from onnxperf.ground.tables import duration, stacked, tabulate

BAR = 20


def show(out: Console, e: Explanation) -> None:
    """Print an explanation: the answer, the way down from the peak, then every section."""
    asked = Text(printable(f"{e.kernel} ({e.op}) on {e.card} ({e.gpu})"), style="bold")
    asked.append("\n" + printable(e.terms), style="not bold dim")
    if e.remark:
        asked.append("\n" + printable(e.remark), style="not bold yellow")
    answer = Text(duration(e.seconds), style="bold green")
    between = f"{e.interval:.0%} interval {duration(e.low_seconds)} to {duration(e.high_seconds)}"
    answer.append(f"  ({between})   bound by {e.limit}", style="not bold default")
    parts: list[RenderableType] = [asked, answer]
    if e.steps:
        share = f"{e.achieved / e.peak:.1%} of the {amount(e.peak, e.unit)} on the datasheet"
        most = f"; most is lost to {e.worst.name}" if e.worst else ""
        answer.append(f"\n{amount(e.achieved, e.unit)}, {share}{most}", style="not bold default")
        parts.append(_steps(out, e))
    out.print(stacked([*parts, *(_section(out, section) for section in e.sections)]), end="")


def show_run(out: Console, e: RunExplanation) -> None:
    """Print why a run does not reach the datasheet's rate: the answer, and the causes that its time goes to."""
    asked = Text(printable(f"{e.terms} on {e.card} ({e.gpu})"), style="bold")
    answer = Text(duration(e.seconds), style="bold green")
    between = f"{e.interval:.0%} interval {duration(e.low_seconds)} to {duration(e.high_seconds)}"
    answer.append(f"  ({between})", style="not bold default")
    if e.peak:
        share = f"{e.achieved / e.peak:.1%} of the {amount(e.peak, 'FLOP/s')} on the datasheet"
        side = "compute" if e.intensity > e.ridge_point else "memory"
        answer.append(
            f"\n{amount(e.achieved, 'FLOP/s')} in GEMM and convolution, {share}\n{amount(e.intensity, 'FLOP/B')} of all"
            f" kernels against a ridge point of {amount(e.ridge_point, 'FLOP/B')}: {side}-bound at peak rates",
            style="not bold default",
        )
    out.print(stacked([asked, answer, causes(out, e)]), end="")


def causes(out: Console, e: RunExplanation) -> Table:
    """The causes that a run's time goes to."""
    full, top = "#" if out.options.ascii_only else "█", max((x.seconds for x in e.losses), default=0.0)
    rows = []
    for x in e.losses:
        bar = full * round(BAR * max(x.seconds, 0.0) / top)
        rows.append((x.cause, _signed(x.seconds), f"{x.seconds / e.seconds:.1%}", bar, x.why))
    rows.append(("all", duration(e.seconds), "100%", "", "the run"))
    return tabulate(out, ("!where the time goes", "#time", "#share", "!", "what it is"), rows, spare=("",))


def _signed(seconds: float) -> str:
    """A duration, also one that is won."""
    return duration(seconds) if seconds >= 0 else f"-{duration(-seconds)}"


def _steps(out: Console, e: Explanation) -> Table:
    """The way from the peak to the achieved rate."""
    full, top = "#" if out.options.ascii_only else "█", max(s.rate for s in e.steps)
    rows = [(s.name, s.factor, s.rate, full * round(BAR * s.rate / top), s.why) for s in e.steps]
    rows.append(("all factors", e.product, e.achieved, "", "multiplied: the rate of the estimate"))
    cells = [(name, f"x {factor:.3f}", amount(rate, e.unit), *said) for name, factor, rate, *said in rows]
    return tabulate(out, ("!from peak to achieved", "#factor", "#rate", "!", "why"), cells, spare=("",))


def _section(out: Console, section: Section) -> Table:
    """A section's lines; without a column for values where none has one."""
    lines = [(*map(printable, (x.name, x.formula, x.source)), amount(x.value, x.unit)) for x in section.lines]
    if not any(value for *_, value in lines):
        return tabulate(out, (f"!{section.title}", "values", "source"), [line[:3] for line in lines])
    lines = [(name, formula, value, source) for name, formula, source, value in lines]
    return tabulate(out, (f"!{section.title}", "how", "#value", "source"), lines, spare=("source",))
