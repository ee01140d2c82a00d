"""Plans for several GPUs on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from onnxperf.decide.plans import Divisions
from onnxperf.ground.errors import printable
from onnxperf.ground.tables import duration, number, shortened, size, tabulate


def show(out: Console, divisions: Divisions) -> None:
    """Print a line for each plan that fits, the fastest first, then why the others can't be used.

    Exposed communication: the share of the time in which a GPU only communicates or waits for others.
    """
    asked = f"{shortened(divisions.model)} on {divisions.gpus} x {divisions.gpu}, batch {divisions.batch} over all GPUs"
    out.print(Text(printable(asked), style="bold"))
    rows = [
        (
            d.plan, duration(d.seconds), f"{duration(d.low_seconds)} - {duration(d.high_seconds)}",
            number(d.throughput_per_second, 4), f"{d.exposed_communication_seconds / d.seconds:.0%}",
            size(d.process_bytes),
        )
        for d in divisions.plans
    ]  # fmt: skip
    if rows:
        names = ("!plan", "#time", "#80% interval", "#samples/s", "#exposed communication", "#memory per GPU")
        out.print(tabulate(out, names, rows, spare=("80% interval",)))
    else:
        out.print(Text("no plan fits", style="bold red"))
    reasons: dict[str, list[str]] = {}
    for plan, why in divisions.others:
        reasons.setdefault(why, []).append(plan)
    for why, plans in reasons.items():
        out.print(Text(f"{'; '.join(plans)}: {printable(why)}"))
