"""The measurement files of a folder, each beside its prediction: how `onnxperf validate --data` scores a user's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gpu_specs
from gpu_specs import Device
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import Error, UsageError
from onnxperf.ground.output import Progress
from onnxperf.measure.files import read
from onnxperf.running.terms import USUAL_METHOD
from onnxperf.scoring.one_model import Comparison, compare, device_of
from onnxperf.scoring.score import Pairs, Score, score

NAME = "your measurements"


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement file.

    device: what the device calls itself; figures: where those of the predicted device come from: the catalogue, nominal
    figures, or a device file by name; error: predicted over measured, less 1.
    """

    file: str
    model: str
    device: str
    figures: str
    runtime: str
    precision: str
    batch: int
    measured_seconds: float
    predicted_seconds: float
    low_seconds: float
    high_seconds: float
    error: float
    in_range: bool


@dataclass(frozen=True, slots=True)
class OwnMeasurements(Document):
    """All measurement files of a folder, and those that can't be used, with the reason."""

    rows: tuple[Row, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()

    @property
    def error(self) -> float | None:
        """Mean of |predicted / measured - 1| over the files; None where there are none."""
        return float(np.mean([abs(r.error) for r in self.rows])) if self.rows else None

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores of each device, all its files together; `name` is what the device calls itself."""
        pairs = (_pairs(r) for r in sorted(self.rows, key=lambda r: r.device))
        return tuple(score("measurements", pairs, by_card=False))

    def to_dict(self) -> dict[str, Any]:
        """The files as plain data: the fields of `Row`, and of `Score` by device."""
        return {
            "files": plain(self, "rows")["rows"],
            "devices": plain(self, "scores")["scores"],
            "rejected": [{"file": name, "reason": why} for name, why in self.rejected],
            "mape": self.error,
        }


def own_measurements(folder: Path, progress: Progress) -> OwnMeasurements:
    """Predict what the measurement files in a folder measured, subfolders aside.

    A device file (*.toml) beside them stands for the device that has its name. Files that can't be used are noted.
    """
    rows: list[Row] = []
    devices, rejected = _devices(sorted(folder.glob("*.toml")))
    paths = sources(folder)
    for i, path in enumerate(paths):
        progress(NAME, i, len(paths))
        try:
            if not path.is_file():
                raise UsageError("it is not a regular file")
            m = read(path)
            if not m.complete:
                raise UsageError("it was interrupted before it was complete")
            rows.append(_row(path.name, compare(m, *device_of(m.place, devices))))
        except Error as e:
            rejected.append((path.name, str(e).removeprefix(f"{path}: ")))
    return OwnMeasurements(tuple(rows), tuple(rejected))


def sources(folder: Path) -> list[Path]:
    """The files in a folder that may be measurements."""
    return sorted(folder.glob("*.json"))


def _devices(paths: Iterable[Path]) -> tuple[list[tuple[str, Device]], list[tuple[str, str]]]:
    """The device files that can be used, one for each name of a device, and the others with the reason."""
    devices: dict[str, tuple[str, Device]] = {}
    rejected = []
    for path in paths:
        try:
            device = gpu_specs.read(path)
        except gpu_specs.SpecError as e:
            rejected.append((path.name, str(e)))
            continue
        file, _ = devices.setdefault(device.name, (path.name, device))
        if file != path.name:
            rejected.append((path.name, f"{file} describes {device.name} already"))
    return [*devices.values()], rejected


def _row(file: str, c: Comparison) -> Row:
    m, p = c.measurement, c.prediction
    return Row(
        file, m.subject.name, m.place.name, c.source, m.setting.runtime, m.setting.precision, m.setting.batch,
        m.seconds, p.seconds, p.low_seconds, p.high_seconds, c.error, c.in_range,
    )  # fmt: skip


def _pairs(r: Row) -> Pairs:
    measured, predicted, low, high = (
        np.array([s]) for s in (r.measured_seconds, r.predicted_seconds, r.low_seconds, r.high_seconds)
    )
    return Pairs(r.device, "", USUAL_METHOD, np.zeros(1), measured, predicted, low, high, np.ones(1, dtype=bool))
