"""What errs in a whole run beside its kernels and the host: `interval.run.KIND`, of each kind of `Scenario.kind` whose
runs only score, or tell constants of kernels.

Each (source, model) counts alike, however many rows it has: rows of one model err together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from onnxperf.datasets import model_runs
from onnxperf.datasets.runs import MeasuredRun
from onnxperf.derive import models
from onnxperf.derive.host import runs
from onnxperf.derive.intervals import quantile_of
from onnxperf.latency import Constants
from onnxperf.prediction import summarise

Squares = Mapping[str, list[float]]  # by group, of each run: how much its squared error exceeds its squared half-width


def derive(data: Path, constants: Constants) -> dict[str, dict[str, float]]:
    """The half-widths by dotted path from all runs in `data`, under "", and without each group in turn, under its name.

    A half-width is what it takes, beside those of the kernels and the host, that COVERAGE of the runs are in range.
    """
    found: dict[str, dict[str, float]] = {}
    for of, measured, _ in model_runs(data):
        if of.constants in ("range", *models.SETS):
            for kind in sorted({run.scenario.kind for run in measured}):
                some = [run for run in measured if run.scenario.kind == kind and of.fitted(run)]
                path = f"interval.run.{kind}"
                beyond = _beyond(some, constants.having({path: 0.0}))
                for group in ("", *sorted({run.group for run in measured})):
                    found.setdefault(group, {})[path] = half_width(beyond, group)
    return {group: values for group, values in found.items() if values}


def _beyond(measured: Iterable[MeasuredRun], constants: Constants) -> Squares:
    squares: dict[str, list[float]] = {}
    for made in runs(list(measured), constants):
        p = summarise(replace(made.run, constants=constants))
        off, known = np.log(made.measured.seconds / p.seconds), np.log(p.high_seconds / p.seconds)
        squares.setdefault(made.measured.group, []).append(float(off**2 - known**2))
    return squares


def half_width(beyond: Squares, without: str = "") -> float:
    """The half-width from the runs of all groups but one, 0 where no other is left."""
    kept = [np.maximum(values, 0.0) ** 0.5 for group, values in beyond.items() if group != without]
    return quantile_of(kept) if kept else 0.0
