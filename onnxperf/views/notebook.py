"""A prediction in a notebook: a small table of what the time goes to, with bars; names are escaped and shortened."""

from __future__ import annotations

from html import escape

from onnxperf.answer.prediction import Prediction
from onnxperf.ground.errors import counted, printable
from onnxperf.ground.names import precision_label
from onnxperf.ground.tables import duration, short_type, shortened, size
from onnxperf.views.headline import largest_shares

ROWS = 8  # operator types before the rest is summed up
BAR = 12  # em
CELL = '<td style="text-align:{side};padding:1px 8px">{text}</td>'


def notebook(p: Prediction) -> str:
    """The HTML that Jupyter shows for a prediction."""
    s = p.scenario
    asked = " on ".join((shortened(s.model), shortened(p.device.name)))
    terms = f"{p.run.runtime.title or s.runtime}, {precision_label(s.precision)}, batch {s.batch}"
    head = f"<b>{_text(asked)}</b> ({_text(terms)}): <b>{duration(p.seconds)}</b>"
    between = f"{p.interval:.0%} interval {duration(p.low_seconds)} to {duration(p.high_seconds)}"
    fits = "" if p.memory.fits else "<br><b>DOES NOT FIT into memory</b>"
    bound = ", ".join(f"{name} {share:.0%}" for name, share in largest_shares(p))
    memory = f"{size(p.memory.reserved_bytes)} of {size(p.memory.capacity_bytes)}"
    facts = f"{between}<br>bound by {_text(bound)}; memory {memory}{fits}"
    return f"<div>{head}<br>{facts}<table>{''.join(_row(*part, p.seconds) for part in _parts(p))}</table></div>"


def _parts(p: Prediction) -> list[tuple[str, float]]:
    """What takes most of the time, the rest, and the time without a kernel."""
    ranked = [*p.by_operator().items()]
    parts = [(short_type(op), seconds) for op, seconds in ranked[:ROWS]]
    if rest := ranked[ROWS:]:
        parts.append((counted(len(rest), "other type"), sum(seconds for _, seconds in rest)))
    if idle := sum(gap.seconds for gap in p.gaps):
        parts.append(("no kernel", idle))
    return parts


def _row(name: str, seconds: float, total: float) -> str:
    share = min(1.0, seconds / total)
    bar = f'<div style="background:#0072b2;height:0.8em;width:{BAR * share:.2f}em"></div>'
    cells = (("left", _text(shortened(name))), ("right", duration(seconds)), ("right", f"{share:.1%}"), ("left", bar))
    return f"<tr>{''.join(CELL.format(side=side, text=text) for side, text in cells)}</tr>"


def _text(text: str) -> str:
    return escape(printable(text))
