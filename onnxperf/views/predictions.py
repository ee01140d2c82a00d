"""Several predictions on a terminal: a row for each card and batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from onnxperf.answer.prediction import Prediction
from onnxperf.ground.errors import printable
from onnxperf.ground.tables import NOTHING, duration, number, size, stacked, tabulate
from onnxperf.views.headline import largest_shares, scope, terms
from onnxperf.views.prediction import urgent

NAMES = (
    "!card", "#batch", "#latency", "#80% interval", "#per sample", "#samples/s", "#memory", "!fits", "!bound by",
    "!accuracy",
)  # fmt: skip
SPARE = ("accuracy", "bound by", "80% interval", "per sample", "memory")


def show(out: Console, predictions: Sequence[Prediction]) -> None:
    """Print what was asked of all predictions, a row for each, the notes that are urgent, and what the times cover.

    per sample: the time of a run divided by its samples; memory: what the process holds of the card's; accuracy:
    whether such runs were measured.
    """
    dot = " - " if out.options.ascii_only else " · "
    notes = dict.fromkeys(note for p in predictions for note in p.warnings)
    title, scopes = dot.join(_asked(predictions)), dict.fromkeys(map(scope, predictions))
    table = tabulate(out, NAMES, map(_row, predictions), spare=SPARE)
    parts = (Text(printable(title), style="bold"), table, urgent([*notes]), Text("; ".join(scopes), style="dim"))
    out.print(stacked(parts), end="")


def _asked(predictions: Sequence[Prediction]) -> Iterator[str]:
    """The model and its terms but for the batch; those of some cards alone with these."""
    cards: dict[str, dict[str, None]] = {}
    for p in predictions:
        for term in terms(p):
            if term != f"batch {p.scenario.batch}":
                cards.setdefault(term, {})[p.scenario.gpu] = None
    count = len({p.scenario.gpu for p in predictions})
    yield predictions[0].scenario.model
    yield from (term if len(on) == count else f"{term} on {', '.join(on)}" for term, on in cards.items())


def _row(p: Prediction) -> tuple[str, ...]:
    rate = p.throughput_per_second
    each, samples = duration(1 / rate) if rate else NOTHING, number(rate, 4)
    bound = " ".join(f"{name} {share:.0%}" for name, share in largest_shares(p)[:1])
    time, interval = duration(p.seconds), f"{duration(p.low_seconds)} - {duration(p.high_seconds)}"
    memory, fits = size(p.memory.reserved_bytes), "yes" if p.memory.fits else "NO"
    return p.scenario.gpu, str(p.scenario.batch), time, interval, each, samples, memory, fits, bound, p.accuracy.status
