"""Two runs on the terminal: both totals, their operators by type, and those that differ most."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from rich.console import Console
from rich.text import Text

from onnxperf.decide.two_models import signed
from onnxperf.ground.errors import printable
from onnxperf.ground.tables import NOTHING, duration, shortened, stacked, tabulate
from onnxperf.scoring.timed_runs import Pair, RunDifference, Timed, TimedRun, sides
from onnxperf.views.difference import verdict

TYPES = 12  # lines by operator type before the rest is summed up


def show(out: Console, d: RunDifference, *, top: int = 8) -> None:
    """Print the difference of two runs. `top` is how many operators to list, the largest differences first."""
    said = Text("\n".join(f"{name}: {_told(r)}" for name, r in (("A", d.a), ("B", d.b))), style="bold")
    totals = ("!", "#time", "#operators", "#sum of operators")
    runs = [
        (x, duration(r.seconds), str(len(r.operators)), duration(r.sum_seconds)) for x, r in (("A", d.a), ("B", d.b))
    ]
    differing = [p for p in d.largest if p.seconds][:top]
    rows = [(_name(p.a), _name(p.b), shortened(p.type), *_times([p])) for p in differing]
    sides = ("#in A", "#in B", "#difference")
    parts = (
        *((Text("\n".join(d.on_cpu), style="bold yellow"),) if d.on_cpu else ()),
        said,
        Text(verdict(d), style="bold green"),
        tabulate(out, totals, runs, spare=("sum of operators",)),
        tabulate(out, ("operator", "#count", *sides), _lines(d), spare=("count",)),
        tabulate(out, ("~operator in A", "~in B", "type", *sides), rows, spare=("type",)),
        Text("\n".join(f"{printable(note)}" for note in (*d.a.notes, *d.b.notes)), style="dim"),
    )
    out.print(stacked(parts), end="")


def _told(r: TimedRun) -> str:
    """What a run is, and how its times came about."""
    counted = f", median of {r.runs} run{'s' * (r.runs > 1)}" if r.measured else ""
    return printable(f"{r.name} ({r.kind}{counted})")


def _lines(d: RunDifference) -> list[tuple[str, ...]]:
    """A line for each operator type, then what adds up to the whole with them."""
    groups = [*d.by_type.items()]
    lines = [(shortened(type), str(len(pairs)), *_times(pairs)) for type, pairs in groups[:TYPES]]
    if rest := [p for _, pairs in groups[TYPES:] for p in pairs]:
        lines.append(("(others)", str(len(rest)), *_times(rest)))
    beside = [signed(r.seconds - r.sum_seconds).lstrip("+") for r in (d.a, d.b)]  # below 0 where operators overlap
    lines.append(("launch overhead and gaps", "", *beside, signed(d.rest_seconds)))
    return [*lines, ("total", "", duration(d.a.seconds), duration(d.b.seconds), signed(d.seconds))]


def _times(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Seconds in A, in B, and what B takes longer."""
    return *(NOTHING if s is None else duration(s) for s in sides(pairs).values()), signed(
        fsum(p.seconds for p in pairs)
    )


def _name(operators: Sequence[Timed]) -> str:
    more = f" and {len(operators) - 1} more" if len(operators) > 1 else ""
    return operators[0].name + more if operators else NOTHING
