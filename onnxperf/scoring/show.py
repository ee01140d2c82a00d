"""What was measured beside what was predicted, as tables: one model in detail, or the files of a folder."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from onnxperf.calibrate.kinds import NOMINAL
from onnxperf.calibrate.matching import Joined, by_type, worst
from onnxperf.ground.errors import printable
from onnxperf.ground.names import precision_label
from onnxperf.ground.tables import NOTHING, Sheet, duration, put, put_notes, shortened, tabulate
from onnxperf.scoring.one_model import MOST_WRONG, Comparison
from onnxperf.scoring.own_measurements import NAME, OwnMeasurements


def show(out: Console, c: Comparison) -> None:
    """Print a comparison: end to end, by operator type, the operators most wrong, what has no counterpart."""
    m, p = c.measurement, c.prediction
    s = m.setting
    out.print(Text(printable(f"{m.subject.name} on {m.place.name} ({c.device.id}, {c.source})"), style="bold"))
    weights = ", random weights" if m.subject.weights == "random" else ""
    out.print(Text(printable(f"{s.runtime}, {precision_label(s.precision)}, batch {s.batch}{weights}"), style="dim"))
    out.print()
    spread = f"{p.interval:.0%} interval {duration(p.low_seconds)} and {duration(p.high_seconds)}"
    inside = "within the range" if c.in_range else "outside the range"
    lines = (
        ("measured", duration(m.seconds), _basis(c)),
        ("predicted", duration(p.seconds), spread),
        ("error", f"{c.error:+.1%}", inside),
    )
    out.print(tabulate(out, ("!what", "#time", "range"), lines, heads=False))
    out.print()
    put(out, (types(c), operators(c)))
    put_notes(out, notes(c))


def _basis(c: Comparison) -> str:
    """How the measured time follows from the runs, and how sure their median is."""
    series = c.measurement.device
    interval = series.median_interval
    sure = f"95% confidence interval {duration(interval[0])} and {duration(interval[1])}" if interval else "few runs"
    runs = len(series.samples)
    if c.measurement.place.shared:
        return f"undisturbed run; median of {runs} runs {duration(series.median)} ({sure})"
    return f"median of {runs} runs ({sure})"


def types(c: Comparison) -> Sheet:
    """Sums by operator type."""
    lines = [(shortened(x.type), *_figures(x.measured_s, x.predicted_s)) for x in by_type(c.rows)]
    return Sheet("By operator type", ("!operator", *FIGURES), tuple(lines))


def operators(c: Comparison) -> Sheet:
    """The operators whose times are most wrong."""
    lines = [
        (shortened(x.name), shortened(x.type), *_figures(x.measured_s, x.predicted_s))
        for x in worst(c.rows, MOST_WRONG)
    ]
    title = f"The {len(lines)} operators with the largest errors"
    return Sheet(title, ("operator", "!type", *FIGURES), tuple(lines), ("type",))


FIGURES = ("#measured", "#predicted", "#error", "#difference")


def _figures(measured: float | None, predicted: float | None) -> tuple[str, str, str, str]:
    """Both times, the error as a share of the measured one, and in seconds."""
    difference = (predicted or 0.0) - (measured or 0.0)
    share = f"{predicted / measured - 1:+.0%}" if measured and predicted is not None else NOTHING
    times = (NOTHING if x is None else duration(x) for x in (measured, predicted))
    return (*times, share, f"{'-' if difference < 0 else '+'}{duration(abs(difference))}")  # type: ignore[return-value]


def notes(c: Comparison) -> list[str]:
    """How operators were timed, what has no counterpart, and the notes of the comparison."""
    lines = []
    if c.rows:
        of_each = "one at a time, launches included."
        if c.measurement.place.shared:
            of_each = "of each the fastest call; predicted times hold what the runtime spends on each."
        unmatched = f"{_unmatched(c.only_predicted, 'predicted')}; {_unmatched(c.only_measured, 'measured')}"
        lines = [
            f"Operators are timed by ONNX Runtime's profiler in separate runs, {of_each}",
            f"Not matched: {unmatched}.",
        ]
    together = sum(r.measured_s or 0.0 for r in c.rows)
    if together > 1.05 * c.measurement.seconds:
        times = f"{duration(together)}, longer than the model's runs ({duration(c.measurement.seconds)})"
        lines.append(f"Operators were measured at {times}, including launch overhead and other load on the machine.")
    return [*lines, *(f"{printable(n.code)}: {printable(n.message)}" for n in c.notes)]


def _unmatched(rows: tuple[Joined, ...], side: str) -> str:
    """How much time has no counterpart on the other side, and the operators that it is most of."""
    if not rows:
        return f"nothing {side}"
    most = ", ".join(shortened(r.name) for r in rows[:3])
    what = f"{len(rows)} operator{'s' * (len(rows) > 1)}"
    return f"{duration(sum(abs(r.error_s) for r in rows))} {side} in {what} ({most})"


def files(t: OwnMeasurements) -> list[Sheet]:
    """The user's own measurements: each file, all of a device together, and the files that can't be used."""
    lines = [
        (
            *map(shortened, (r.file, r.model, r.device, r.precision)), str(r.batch),
            *map(duration, (r.measured_seconds, r.predicted_seconds)), f"{r.error:+.1%}", "yes" if r.in_range else "no",
        )
        for r in t.rows
    ]  # fmt: skip
    heads = ("file", "model", "device", "!precision", "#batch", "#measured", "#predicted", "#error", "!in range")
    figures = {r.device: r.figures for r in t.rows}
    means = [
        (
            *map(shortened, (s.name, figures[s.name])), str(s.count), f"{s.mape:.1%}", f"{s.bias:+.1%}",
            f"{s.coverage:.0%}", f"±{s.half_width:.0%}",
        )
        for s in t.scores
    ]  # fmt: skip
    names = ("device", "figures from", "#files", "#MAPE", "#bias", "#in range", "#range")
    unused = [(shortened(name), printable(why)) for name, why in t.rejected]
    return [
        Sheet(NAME.capitalize(), heads, tuple(lines), ("file",)),
        Sheet(f"{NAME.capitalize()} by device", names, tuple(means)),
        Sheet("Files that can't be used", ("!file", "reason"), tuple(unused)),
    ]


def file_notes(t: OwnMeasurements) -> list[str]:
    """What the words of these tables mean."""
    if not t.rows:
        return []
    lines = [
        "Your measurements: each file of `onnxperf measure` is predicted for the device that it names, with the "
        "constants that ship and the figures of the catalogue or of a device file. error: predicted / measured, less "
        "1; in range: the measured time is within the stated range."
    ]
    if any(r.figures == NOMINAL for r in t.rows):
        lines.append(
            f"{NOMINAL}: those of this machine's CPU, in part assumed. The device file that `onnxperf calibrate` "
            "writes takes their place when it lies beside the measurements."
        )
    return lines
