"""An explanation on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from onnxperf.errors import printable
from onnxperf.explain.core import Explanation, amount
from onnxperf.tables import duration, tabulate

BAR = 20


def show(out: Console, e: Explanation) -> None:
    """Print an explanation: the answer, the way down from the peak, then every section."""
    out.print(Text(printable(f"{e.kernel} ({e.op}) on {e.card} ({e.gpu})"), style="bold"))
    out.print(Text(printable(e.terms), style="dim"))
    if e.remark:
        out.print(Text(printable(e.remark), style="yellow"))
    line = Text(f"\n{duration(e.seconds)}", style="bold green")
    between = f"{e.interval:.0%} between {duration(e.low_seconds)} and {duration(e.high_seconds)}"
    line.append(f"  ({between})   bound by {e.bound_by}", style="default")
    out.print(line)
    if e.steps:
        share = f"{e.achieved / e.peak:.1%} of the {amount(e.peak, e.unit)} on the datasheet"
        most = f"; most is lost to {e.worst.name}" if e.worst else ""
        out.print(Text(f"{amount(e.achieved, e.unit)}, {share}{most}"))
        out.print()
        full = "#" if out.options.ascii_only else "█"
        top = max(s.rate for s in e.steps)
        rows = [(s.name, s.factor, s.rate, full * round(BAR * s.rate / top), s.why) for s in e.steps]
        rows.append(("all factors", e.product, e.achieved, "", "multiplied: the rate of the estimate"))
        cells = [(name, f"x {factor:.3f}", amount(rate, e.unit), *said) for name, factor, rate, *said in rows]
        names = ("!from peak to achieved", "#factor", "#rate", "!", "why")
        out.print(tabulate(out, names, cells, spare=("",)))
    for section in e.sections:
        out.print()
        lines = [(*map(printable, (x.name, x.formula, x.source)), amount(x.value, x.unit)) for x in section.lines]
        if any(value for *_, value in lines):
            lines = [(name, formula, value, source) for name, formula, source, value in lines]
            out.print(tabulate(out, (f"!{section.title}", "how", "#value", "source"), lines, spare=("source",)))
        else:
            out.print(tabulate(out, (f"!{section.title}", "values", "source"), [line[:3] for line in lines]))
