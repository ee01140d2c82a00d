"""All scores of one folder of measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import Error, UsageError, printable
from onnxperf.ground.output import Progress
from onnxperf.lab.constants import left_out
from onnxperf.lab.datasets import LEAST_S, SAMPLE, Models, Table, files, model_runs, unused
from onnxperf.lab.datasets import kernels as known_kernels
from onnxperf.lab.datasets import models as model_files
from onnxperf.lab.datasets import read as kernel_tables
from onnxperf.lab.datasets import watts as drawn
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.lab.validate import energy, kernels, models
from onnxperf.lab.validate.scored import ALL, Order, ScoredRun, order
from onnxperf.latency.intervals import COVERAGE
from onnxperf.scoring.own_measurements import OwnMeasurements, own_measurements
from onnxperf.scoring.score import Pairs, Score, score

SHORT = f"no longer than {LEAST_S * 1e3:g} ms: these say more about the clock than about the card"
UNKNOWN = "an operator that is not known here"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Report(Document):
    """What came out: scores, rows that were not scored with the reason, and what a reader has to know.

    data: the folder, or "sample"; runs: of whole models, one by one; dropped: (table, reason, rows); overhead_s: the
    least and most that each rig's clock includes beside a kernel; same_without: dies without which the shipped
    constants are the same; measurements: the user's own files beside the tables.
    """

    data: str
    constants: str
    interval: float
    scores: tuple[Score, ...]
    order: tuple[Order, ...]
    runs: tuple[ScoredRun, ...]
    dropped: tuple[tuple[str, str, int], ...]
    overhead_s: tuple[tuple[str, float, float], ...]
    same_without: tuple[str, ...]
    measurements: OwnMeasurements

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data.

        scores: the fields of `Score`; kind is "kernels" (name: an operator class), "model" (name: a model), "models"
        (all of a dataset; where it scores some apart, these, without cards) or "source" (name: of models, and who
        measured them), "watts" (name: of kernels); order: the fields of `Order`; runs: those of `ScoredRun`. Shares are
        fractions, not percent; null where a method states no range. measurements: `files` with the fields of `Row`;
        `devices` with those of `Score`, name being the device's; `rejected`, files that can't be used, and why; `mape`
        of all files, null where there are none.
        """
        return {
            "schema_version": SCHEMA_VERSION,
            **plain(self, "data", "constants", "interval", "scores", "order", "runs"),
            "dropped": [{"table": t, "reason": why, "rows": n} for t, why, n in self.dropped],
            "overhead_seconds": {rig: {"least": least, "most": most} for rig, least, most in self.overhead_s},
            **plain(self, "same_without", "measurements"),
        }


def validate(data: Path | None = None, progress: Progress | None = None, method: str = ALL) -> Report:
    """Score every method, or one and the default beside it, on the measurements in the folder `data`, or on the sample
    that ships with the package.

    progress is told what is being scored, how many steps are done, and how many there are.

    Raises UsageError where the folder holds no measurements, or tables that can't be read.
    """
    tell = progress or (lambda what, done, total: None)
    tell("reading", 0, 1)
    measurements = own_measurements(data, tell) if data else OwnMeasurements()
    tables, runs, dropped = read(data or SAMPLE, measurements)
    total = len(tables) + len(runs)
    parts: list[Pairs] = []
    for i, t in enumerate(tables):
        tell(kernels.reported(t), i, total)
        parts += kernels.pairs(t, method)
    scores, ordered = score("kernels", parts), order("kernels", parts)
    one_by_one: list[Pairs] = []
    together: list[tuple[Models, Pairs]] = []
    by_source: list[Pairs] = []
    beside: list[ScoredRun] = []
    for i, (model, run) in enumerate(runs):
        tell(run.model, len(tables) + i, total)
        try:
            one_by_one += (some := list(models.pairs(run, model, method)))
            beside.append(models.scored_run(run, some))
            together += ((model, replace(p, name=model.heading(run))) for p in some)
            by_source += (replace(p, name=f"{model.reported}, {run.source}") for p in some if model.ranged(run))
        except Error as e:
            dropped[model.reported][printable(str(e))[:200]] += 1
    scores += score("model", one_by_one)
    for by_card in (True, False):
        scores += score("models", (p for model, p in together if (model.apart is None) == by_card), by_card=by_card)
    scores += score("watts", (p for rows in drawn(data or SAMPLE) for p in energy.pairs(rows)))
    scores += score("source", by_source, by_card=False)
    ordered += order("models", (replace(p, name=model.reported) for model, p in together))
    tell("done", total, total)
    return Report(
        data=str(data) if data else "sample",
        constants=left_out().source,
        interval=COVERAGE,
        scores=tuple(scores),
        order=tuple(ordered),
        runs=tuple(beside),
        dropped=tuple((t, why, n) for t, reasons in dropped.items() for why, n in sorted(reasons.items()) if n),
        overhead_s=_overheads(tables),
        same_without=tuple(sorted(die for die in _dies(tables, runs) if left_out(die) == left_out())),
        measurements=measurements,
    )


def _dies(tables: Iterable[Table], runs: Iterable[tuple[Models, MeasuredRun]]) -> set[str]:
    return {die for t in tables for die in t.dies} | {run.die for _, run in runs}


def _overheads(tables: Iterable[Table]) -> tuple[tuple[str, float, float], ...]:
    """The least and most that each rig's clock includes beside a kernel."""
    inside: dict[str, list[float]] = {}
    for t in tables:
        inside.setdefault(t.rig, []).extend(known_kernels()[t.name].overhead(t.rig, g, left_out()) for g in t.gpus)
    return tuple((rig, min(s), max(s)) for rig, s in inside.items() if s)


def sources(data: Path | None) -> list[Path]:
    """What is read of a folder, or of the sample, if it is there."""
    folder = data or SAMPLE
    return [*files(folder), *(folder / d.folder / m.file for d, m in model_files())]


def read(
    data: Path, measurements: OwnMeasurements
) -> tuple[list[Table], list[tuple[Models, MeasuredRun]], dict[str, Counter[str]]]:
    """The tables of kernels and the runs of whole models in a folder, and how many rows are not taken, by reason.

    Raises UsageError where there are none, and no measurements of the user's either.
    """
    if not data.is_dir():
        raise UsageError(f"{data} is no folder of measurements")
    tables = kernel_tables(data)
    scored = [t for t in tables if t.name in known_kernels() and known_kernels()[t.name].scored]
    runs: list[tuple[Models, MeasuredRun]] = []
    dropped: dict[str, Counter[str]] = {}
    for t in tables:
        short, every = int((t.seconds <= t.least_s).sum()), int((t.seconds > 0).sum())
        why = {SHORT: short} if t.name in known_kernels() else {UNKNOWN: every}
        if (k := known_kernels().get(t.name)) is None or k.scored:
            dropped.setdefault(kernels.reported(t), Counter()).update({**t.dropped, **why})
    for model, some, others in model_runs(data):
        runs += ((model, run) for run in some)
        dropped[model.reported] = Counter(others)
    runs.sort(key=lambda x: (x[1].model, *x[1].dims.values()))  # each is loaded once
    if not any((t.seconds > t.least_s).any() for t in scored) and not runs and not measurements.rows:
        places = ", ".join(p.relative_to(data).as_posix() for p in sources(data))
        reasons = "; ".join(f"{name}: {why}" for name, why in measurements.rejected[:3]) or unused(tables)
        reasons = reasons or f"nothing that fits in {places}"
        raise UsageError(f"{data} holds no measurements to score: {reasons}")
    return scored, runs, dropped
