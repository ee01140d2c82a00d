"""A difference on the terminal: both totals, what differs by operator, and the kernels that it is most of."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from rich.console import Console
from rich.text import Text

from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.answer.prediction import Prediction
from onnxperf.decide.diff import ALIKE, CAUSES, Change, Difference, total
from onnxperf.decide.two_models import signed
from onnxperf.graph import Note
from onnxperf.ground.errors import printable
from onnxperf.ground.names import precision_label
from onnxperf.ground.tables import NOTHING, duration, percent, shortened, stacked, tabulate
from onnxperf.scoring.timed_runs import RunDifference
from onnxperf.views.prediction import QUIET

GROUPS = 12  # lines by operator before the rest is summed up
#: Remarks that say how many kernels they are about.
COUNTING = frozenset({"assumed-constants", "outside-calibration"})


def show(out: Console, d: Difference, *, top: int = 8) -> None:
    """Print a difference. `top` is how many kernels to list, those that cost or save most first."""
    s = d.a.scenario
    batch = f"batch {s.batch}" + (f" in A, {d.b.scenario.batch} in B" if d.b.scenario.batch != s.batch else "")
    how = f"{precision_label(s.precision)}{f', {s.layout}' if s.layout else ''}"
    terms = f"on {d.a.device.name} ({s.gpu}): {s.runtime}, {how}, {batch}, {s.method}"
    asked = Text(printable(f"A: {s.model}") + "\n" + printable(f"B: {d.b.scenario.model}"), style="bold")
    asked.append("\n" + printable(terms), style="not bold dim")
    runs = ("!", "#time", f"#{d.a.interval:.0%} interval", "#kernels", "#sum of kernels")
    groups = ("operator", "what", "#kernels", "#in A", "#in B", "#difference")
    kernels = ("kernel in A", "in B", "operator", "what", "#difference")
    differing = d.of(*(CAUSES.keys() - {"same"}))[:top]
    rows = [(_name(c.a), _name(c.b), shortened(c.operator), _what(c), signed(c.seconds)) for c in differing]
    parts = (
        asked,
        Text(verdict(d), style="bold green"),
        tabulate(out, runs, [_run("A", d.a), _run("B", d.b)], spare=("sum of kernels",)),
        tabulate(out, groups, _lines(d), spare=("in A", "in B")),
        tabulate(out, kernels, rows, spare=("operator",)),
        Text("\n".join(_notes(d)), style="dim"),
    )
    out.print(stacked(parts), end="")


def verdict(d: Difference | RunDifference) -> str:
    """The answer in a sentence."""
    if d.a.seconds == d.b.seconds:
        return f"A and B take the same time, {duration(d.a.seconds)}"
    if abs(d.seconds) < ALIKE * d.a.seconds:
        about = f"{duration(d.a.seconds)} and {duration(d.b.seconds)}"
        return f"A and B take the same time, {about} (difference below {ALIKE:.0%})"
    than = "slower" if d.seconds > 0 else "faster"
    return f"B is {duration(abs(d.seconds))} {than} than A: {percent(d.ratio - 1, '+')}"


def _run(name: str, p: Prediction) -> tuple[str, ...]:
    between = f"{duration(p.low_seconds)} - {duration(p.high_seconds)}"
    return name, duration(p.seconds), between, str(len(p.kernels)), duration(p.sum_seconds)


def _lines(d: Difference) -> list[tuple[str, ...]]:
    """A line for each operator and cause, then what adds up to the whole with them."""
    groups = [(o, cause, changes) for (o, cause), changes in d.groups.items()]
    lines = [_line(shortened(o), CAUSES[cause], changes) for o, cause, changes in groups[:GROUPS]]
    if rest := [c for *_, changes in groups[GROUPS:] for c in changes]:
        lines.append(_line("(others)", "", rest))
    if same := d.of("same"):
        lines.append(_line("(all)", CAUSES["same"], same))
    beside = [signed(p.seconds - p.sum_seconds).lstrip("+") for p in (d.a, d.b)]  # below 0 where kernels overlap
    lines.append(("(none)", "launch overhead and gaps", "", *beside, signed(d.launch_and_gaps_seconds)))
    return [*lines, ("total", "", "", duration(d.a.seconds), duration(d.b.seconds), signed(d.seconds))]


def _line(name: str, what: str, changes: Sequence[Change]) -> tuple[str, ...]:
    sides = [[k.seconds for c in changes if (k := getattr(c, side))] for side in ("a", "b")]
    times = (duration(fsum(x)) if x else NOTHING for x in sides)
    return name, what, str(len(changes)), *times, signed(total(changes))


def _name(k: KernelPrediction | None) -> str:
    return shortened(k.name, 30) if k else NOTHING


def _what(c: Change) -> str:
    says = CAUSES[c.cause]
    return printable(c.what if c.cause == "changed" else f"{says}: {c.what}" if c.what else says)


def _notes(d: Difference) -> list[str]:
    """What was remarked of one model alone."""
    lines = []
    for name, p, other in (("A", d.a, d.b), ("B", d.b, d.a)):
        remarks = {_remark(n) for n in other.warnings}
        alone = (n for n in p.warnings if n.code not in QUIET and _remark(n) not in remarks)
        lines += [f"{name}: {n.code}  {printable(n.message)}" for n in alone]
    return lines


def _remark(n: Note) -> tuple[str, str]:
    """What tells two remarks apart: of those about kernels as a whole, which count them, only their code."""
    return n.code, "" if n.code in COUNTING else n.message
