"""What comes before the steady state, as a table of ranges."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from onnxperf.answer.first_run import FirstRun
from onnxperf.ground.tables import duration, tabulate

TITLES = {
    "build": "engine built, once", "session": "session creation", "first": "first run",
    "new_shape": "first run, new shape",
}  # fmt: skip


def starting(out: Console, f: FirstRun) -> Table:
    """A line for each stage and, below it, for what it consists of."""
    rows = []
    for name, stage in f.stages:
        rows.append((TITLES[name], duration(stage.low_seconds), duration(stage.high_seconds), ""))
        parts = ((f"  {p.name}", duration(p.low_seconds), duration(p.high_seconds), p.assumes) for p in stage.parts)
        rows += parts
    return tabulate(out, ("!before the steady state", "#from", "#to", "assumed"), rows)
