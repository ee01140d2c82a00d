"""A measurement on the terminal, and the command that takes one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onnxperf.graph import Note
from onnxperf.graph.targets import check_target
from onnxperf.ground.errors import Error, UsageError, counted, printable
from onnxperf.ground.names import precision_label
from onnxperf.ground.output import deliver, telling
from onnxperf.ground.tables import (
    FOLDED,
    console,
    duration,
    listed,
    short_type,
    shortened,
    size,
    stacked,
    tabulate,
    two_columns,
)
from onnxperf.measure.environment import usable_provider
from onnxperf.measure.files import write
from onnxperf.measure.job import Job
from onnxperf.measure.record import Measurement, OperatorTime, Reading
from onnxperf.measure.run import measure
from onnxperf.measure.series import Series
from onnxperf.measure.throughput import measure_throughput

SLOWEST = 10  # operators listed
TYPES = 8  # listed before the rest is summed up


def run(
    model: str, json_to: str | None, *, provider: str | None = None, search: bool = False,
    batches: tuple[int, ...] = (), **terms: object,
) -> None:  # fmt: skip
    """Measure a model on the device that is here; print tables or, where `json_to` is "-", JSON.

    provider: None takes CUDA where it can be used; search: look for the batch with the best throughput, or, where
    `batches` are given, for the best of them; terms: fields of `Job`. What was measured before it was interrupted, or
    before something failed, is printed and written all the same.
    """
    if not model:
        raise UsageError("the path of MODEL is empty")
    if search and batches:
        raise UsageError("give either --throughput, which searches the best batch, or --batches")
    check_target(json_to, *(str(path) for path in (model, terms.get("inputs")) if path))
    job = Job(model, provider or usable_provider(), **terms)  # type: ignore[arg-type]
    measured = None
    try:
        with telling() as told:
            measured = measure(job, told)
            if search or batches:
                measured = replace(measured, throughput=measure_throughput(job, batches, told))
    except (Error, KeyboardInterrupt) as e:
        kept = replace(measured, complete=False) if measured else getattr(e, "measurement", None)
        if kept is not None:
            _give(kept, json_to)
        raise
    _give(measured, json_to)


def _give(m: Measurement, json_to: str | None) -> None:
    deliver(json_to, lambda: write(m), lambda: show(console(), m))


def show(out: Console, m: Measurement) -> None:
    """Print a measurement: the time and its spread, what it was spent on, and under which conditions it was taken."""
    tables = [_facts(m), _series(out, m), *_throughput(out, m), _by_type(out, m.operators), _slowest(out, m.operators)]
    out.print(stacked([_headline(m), *tables, listed(map(_line, m.warnings))]), end="")


def _headline(m: Measurement) -> Text:
    s, d, text = m.setting, m.device, Text()
    where = m.place.name + (f" ({m.place.id})" if m.place.id else "")
    text.append(printable(f"{m.subject.name} on {where}") + "\n", style="bold")
    weights = "random weights" if m.subject.weights == "random" else "weights of the file"
    terms = f"{s.runtime}, {precision_label(s.precision)}, optimisations {s.opt_level}, batch {s.batch}, {weights}"
    text.append(printable(terms) + "\n", style="dim")
    text.append(f"\n{duration(d.median)}", style="bold green")
    i = d.median_interval
    between = f"; 95% confidence interval {duration(i[0])} and {duration(i[1])}" if i else ""
    text.append(f"  (median of {counted(len(d.samples), 'run')}{between})")
    text.append(f"   {duration(m.wall.median)} wall-clock")
    if m.place.shared:
        what = "undisturbed" if m.alone else "as every run was disturbed"
        text.append(f"\n{duration(m.seconds)} {what}, used for comparison with predictions")
    if not m.complete:
        text.append("\ninterrupted: partial results", style="yellow")
    text.append(f"\n{printable(m.scope)}", style="dim")
    return text


def _facts(m: Measurement) -> Table:
    """What it was measured with, and what came before and after the counted runs."""
    w, c = m.warm_up, m.copies
    started = f"session creation {duration(w.opened_s)}, first run {duration(w.first_s)}"
    settled = "settled" if w.steady else "not steady"
    copied = (
        ""
        if c is None
        else (
            f"H2D {duration(c.to_device_s)} ({size(c.to_device_bytes)}),"
            f" D2H {duration(c.from_device_s)} ({size(c.from_device_bytes)})"
        )
    )
    facts = {
        "inputs": ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in m.setting.inputs),
        "clock": m.clock,
        "start": f"{started}, {w.runs} warm-up runs in {duration(w.seconds)}: {settled}",
        "copies": copied,
        "sensors": _sensed(m.readings),
        "driver": m.place.driver,
        "software": ", ".join(f"{name} {version}" for name, version in m.setting.software),
    }
    return two_columns(facts.items())


def _sensed(readings: Sequence[Reading]) -> str:
    """What the sensors said, from the least to the most."""
    parts = []
    for name in ("clock_MHz", "memory_MHz", "power_W", "temperature_C"):
        (what, unit), said = name.split("_"), [x for r in readings if (x := getattr(r, name)) is not None]
        if said:
            low, high = f"{min(said):,.0f}", f"{max(said):,.0f}"
            parts.append(f"{what} {low} {unit}" if low == high else f"{what} {low} to {high} {unit}")
    return ", ".join(parts)


def _series(out: Console, m: Measurement) -> Table:
    """Statistics of the counted runs by both clocks, and of those under the profiler."""
    series = {"device": m.device, "wall": m.wall, "profiler": m.profiled}
    rows = [(name, *_statistics(s)) for name, s in series.items() if s is not None]
    names = ("!time by", "#runs", "#least", "#median", "#mean", "#p90", "#p95", "#p99", "#std", "#drift")
    return tabulate(out, names, rows, spare=("p95", "std", "mean", "drift"))


def _statistics(s: Series) -> tuple[str, ...]:
    times = map(duration, (s.least, s.median, s.mean, *map(s.quantile, (0.90, 0.95, 0.99)), s.std))
    return (f"{len(s.samples):,}", *times, f"{s.drift:+.1%}")


def _throughput(out: Console, m: Measurement) -> Iterator[Table]:
    """The curve over batches; the rate of the long run stands beside the best of them."""
    if t := m.throughput:
        runs = f"{t.batches:,} runs back to back in {duration(t.seconds)}"
        best = {t.batch: f"best: {rate(t.samples_per_second)} samples/s, {runs}"}
        rows = [
            (f"{p.batch:,}", "", "", "out of memory")
            if p.seconds is None
            else (f"{p.batch:,}", duration(p.seconds), rate(p.batch / (p.seconds or inf)), best.get(p.batch, ""))
            for p in t.curve
        ]
        yield tabulate(out, ("#batch", "#time", "#samples/s", "throughput"), rows)


def rate(per_second: float) -> str:
    """Samples per second, "" for none."""
    return "" if not per_second else f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.4g}"


def _by_type(out: Console, operators: Sequence[OperatorTime]) -> Table:
    groups: dict[str, list[float]] = {}
    for o in operators:
        groups.setdefault(short_type(o.type), []).append(o.seconds)
    total = sum(sum(g) for g in groups.values())
    ranked = sorted(groups.items(), key=lambda g: (-sum(g[1]), g[0]))
    rest = [s for _, times in ranked[TYPES:] for s in times]
    lines = [*ranked[:TYPES], *([("(others)", rest)] if rest else [])]
    rows = [(shortened(t), f"{len(times):,}", duration(sum(times)), _share(sum(times), total)) for t, times in lines]
    return tabulate(out, ("operator", "#nodes", "#time", "#share"), rows)


def _slowest(out: Console, operators: Sequence[OperatorTime]) -> Table:
    total = sum(o.seconds for o in operators)
    rows = []
    for o in sorted(operators, key=lambda o: -o.seconds)[:SLOWEST]:
        on = printable(o.provider.removesuffix("ExecutionProvider")[:FOLDED])
        times = duration(o.least_s), duration(o.median_s), _share(o.seconds, total)
        rows.append((shortened(o.name), shortened(short_type(o.type)), on, *times))
    names = ("slowest", "operator", "!on", "#least", "#median", "#share")
    return tabulate(out, names, rows, spare=("on", "operator"))


def _share(part: float, total: float) -> str:
    return f"{part / total:.1%}" if total else ""


def _line(note: Note) -> tuple[str, str, str]:
    """A note's code, what it says, and the first names that it is about."""
    more = f", and {len(note.nodes) - 3} more" if len(note.nodes) > 3 else ""
    return note.code, note.message, ", ".join(map(shortened, note.nodes[:3])) + more
