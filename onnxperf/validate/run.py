"""All scores of one folder of measurements."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from onnxperf.errors import Error, UsageError, printable
from onnxperf.latency import shipped
from onnxperf.latency.intervals import COVERAGE
from onnxperf.measure.run import Progress
from onnxperf.measurements import LEAST_S, SAMPLE, Table, files, ort
from onnxperf.measurements import read as kernel_tables
from onnxperf.measurements.models import Measured, models
from onnxperf.validate.models import EAGER, ORT, model, together
from onnxperf.validate.score import CLASSES, Order, Pairs, Score, kernels, order, overhead, score
from onnxperf.validate.taken import Taken, taken

#: Tables of whole models, what their rows are called, and what reads them.
MODELS = (("fp32_torch/e2e.csv", EAGER, models), (f"ort_cuda/{ort.FILE}", ORT, ort.models))
SHORT = f"no longer than {LEAST_S * 1e3:g} ms: these say more about the clock than about the card"
UNKNOWN = "an operator that is not known here"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Report:
    """What came out: scores, rows that were not scored with the reason, and what a reader has to know.

    data: the folder, or "sample"; dropped: (table, reason, rows); overhead_s: the least and most that each rig's clock
    includes beside a kernel; same_without: dies without which the shipped constants are the same; measurements: the
    user's own files beside the tables.
    """

    data: str
    constants: str
    interval: float
    scores: tuple[Score, ...]
    order: tuple[Order, ...]
    dropped: tuple[tuple[str, str, int], ...]
    overhead_s: tuple[tuple[str, float, float], ...]
    same_without: tuple[str, ...]
    measurements: Taken

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data.

        scores: the fields of `Score`; kind is "kernels" (name: an operator class), "model" (name: a model) or "models"
        (all of them; those of ONNX Runtime by length, without cards); order: the fields of `Order`. Shares are
        fractions, not percent; null where a method states no range. measurements: `files` with the fields of `Row`;
        `devices` with those of `Score`, name being the device's; `rejected`, files that can't be used, and why; `mape`
        of all files, null where there are none.
        """
        return {
            "schema_version": SCHEMA_VERSION,
            "data": self.data,
            "constants": self.constants,
            "interval": self.interval,
            "scores": [asdict(s) for s in self.scores],
            "order": [asdict(o) for o in self.order],
            "dropped": [{"table": t, "reason": why, "rows": n} for t, why, n in self.dropped],
            "overhead_seconds": {rig: {"least": least, "most": most} for rig, least, most in self.overhead_s},
            "same_without": list(self.same_without),
            "measurements": self.measurements.to_dict(),
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)


def validate(data: Path | None = None, progress: Progress | None = None) -> Report:
    """Score every method on the measurements in the folder `data`, or on the sample that ships with the package.

    progress is told what is being scored, how many steps are done, and how many there are.

    Raises UsageError where the folder holds no measurements, or tables that can't be read.
    """
    tell = progress or (lambda what, done, total: None)
    tell("reading", 0, 1)
    own = taken(data, tell) if data else Taken()
    tables, rows, dropped = read(data or SAMPLE, own)
    total = len(tables) + len(rows)

    def of_kernels() -> Iterator[Pairs]:
        for i, t in enumerate(tables):
            tell(CLASSES[t.family], i, total)
            yield from kernels(t)

    parts = list(of_kernels())
    found, ordered = score("kernels", parts), order("kernels", parts)
    whole: list[Pairs] = []
    averaged: list[Pairs] = []
    for i, row in enumerate(rows):
        tell(row.sample, len(tables) + i, total)
        try:
            whole += (pairs := list(model(row)))
            averaged += (replace(p, name=together(row)) for p in pairs)
        except Error as e:
            dropped[EAGER if together(row) == EAGER else ORT][printable(str(e))[:200]] += 1
    found += score("model", whole)
    found += score("models", (p for p in averaged if p.name == EAGER))
    found += score("models", (p for p in averaged if p.name != EAGER), alone=False)
    ordered += order("models", (p if p.name == EAGER else replace(p, name=ORT) for p in averaged))
    tell("done", total, total)
    dies = {die for t in tables for die in t.dies} | {row.die for row in rows}
    inside: dict[str, list[float]] = {}
    for t in tables:
        inside.setdefault(t.rig, []).extend(overhead(t, g, shipped(), left_out=False) for g in t.gpus)
    return Report(
        data=str(data) if data else "sample",
        constants=shipped().source,
        interval=COVERAGE,
        scores=tuple(found),
        order=tuple(ordered),
        dropped=tuple((t, why, n) for t, reasons in dropped.items() for why, n in sorted(reasons.items()) if n),
        overhead_s=tuple((rig, min(s), max(s)) for rig, s in inside.items() if s),
        same_without=tuple(sorted(die for die in dies if shipped(die) == shipped())),
        measurements=own,
    )


def sources(data: Path | None) -> list[Path]:
    """What is read of a folder, or of the sample, if it is there."""
    folder = data or SAMPLE
    return [*files(folder), *(folder / file for file, *_ in MODELS)]


def read(data: Path, own: Taken) -> tuple[list[Table], list[Measured], dict[str, Counter[str]]]:
    """The tables of kernels and the rows of whole models in a folder, and how many rows are not taken, by reason.

    Raises UsageError where there are none, and no measurements of the user's `own` either.
    """
    if not data.is_dir():
        raise UsageError(f"{data} is no folder of measurements")
    tables = kernel_tables(data)
    rows: list[Measured] = []
    dropped: dict[str, Counter[str]] = {}
    for t in tables:
        short = int((t.seconds <= t.least_s).sum())
        why = {**t.dropped, SHORT: short} if t.family in CLASSES else {**t.dropped, UNKNOWN: int((t.seconds > 0).sum())}
        dropped.setdefault(CLASSES.get(t.family, t.family), Counter()).update(why)
    for file, name, of_folder in MODELS:
        if (data / file).is_file():
            some, others = of_folder((data / file).parent)
            rows += some
            dropped[name] = Counter(others)
    rows.sort(key=lambda row: (row.sample, row.batch, row.sequence))  # each is loaded once
    tables = [t for t in tables if t.family in CLASSES]
    if not any((t.seconds > t.least_s).any() for t in tables) and not rows and not own.rows:
        known = ", ".join(p.relative_to(data).as_posix() for p in sources(data))
        reasons = "; ".join(f"{name}: {reason}" for name, reason in own.rejected[:3]) or f"nothing that fits in {known}"
        raise UsageError(f"{data} holds no measurements to score: {reasons}")
    return tables, rows, dropped
