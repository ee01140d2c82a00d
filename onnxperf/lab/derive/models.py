"""Fit constants of kernels that nobody measured alone, to times of whole models that others measured.

In the fit only the kernels of the family that declares the set change; the rest of a run (other kernels, host, power
limit) keeps the time that it has with the given constants. Each group of runs (source or family of models) counts
alike, however many rows it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from onnxperf.ground.fitting import Array, map_fit
from onnxperf.lab.datasets import model_runs
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.latency import Constants, estimate
from onnxperf.latency.constants import ConstantSet
from onnxperf.latency.families import constant_sets, family_of
from onnxperf.lowering.lower import Kernels
from onnxperf.running.run import Run

SETS = {name: wanted for name, wanted in constant_sets().items() if wanted.of_runs}
TELLING = 0.25  # least share of a run's kernel time that the family's kernels must have for the run to be used
STEP = 1e-3  # of finite differences, in standard deviations of the priors: times jump where a kernel's tile changes


@dataclass(frozen=True)
class Told:
    """A measured run, its prediction with the given constants, and which kernels depend on the set (`fitted`, [n])."""

    measured: MeasuredRun
    run: Run
    fitted: Array

    @property
    def share(self) -> float:
        """The share of these kernels in the time of all kernels."""
        seconds = self.run.estimates.seconds[:, 0]
        return float(seconds[self.fitted].sum() / seconds.sum())

    @cached_property
    def kernels(self) -> Kernels:
        """These kernels alone."""
        rows = tuple(k for k, fitted in zip(self.run.kernels.rows, self.fitted, strict=True) if fitted)
        return replace(self.run.kernels, rows=rows)

    @cached_property
    def others_s(self) -> float:
        """The length of the run without them."""
        return float(self.run.timeline.total_s[0]) - self.fitted_s(self.run.constants)

    def fitted_s(self, constants: Constants) -> float:
        """Seconds of these kernels."""
        return float(estimate(self.kernels, self.run.devices, self.run.method, constants).seconds.sum())


def runs(data: Path, wanted: ConstantSet, constants: Constants) -> list[Told]:
    """The measured runs in `data` that a set is fitted to, each on its card."""
    telling = []
    for model, measured, _ in model_runs(data):
        for r in (r for r in measured if model.constants == wanted.name and model.fitted(r)):
            run = r.run(constants)
            fitted = [wanted in family_of(kernel.work).constants for kernel in run.kernels.rows]
            telling.append(Told(r, run, np.array(fitted, dtype=bool)))
    return [run for run in telling if run.share >= TELLING]


def fit(wanted: ConstantSet, told: Sequence[Told], without: str = "") -> dict[str, float]:
    """The constants of a set by dotted path, from all runs but those of the group `without`."""
    told = [run for run in told if run.measured.group != without]
    if not told:
        return {p.path: p.start for p in wanted.parameters}
    count = Counter(run.measured.group for run in told)
    weights = np.array([np.sqrt(wanted.weight / len(count) / count[run.measured.group]) for run in told])
    measured = np.array([[run.measured.seconds] for run in told])

    def named(point: Array) -> dict[str, float]:
        return {p.path: float(v) for p, v in zip(wanted.parameters, point, strict=True)}

    def misfits(points: Array) -> Array:
        seconds = [[x.others_s + x.fitted_s(x.run.constants.having(named(p))) for p in points] for x in told]
        return np.asarray(np.log(np.array(seconds) / measured))

    return named(map_fit([p.prior for p in wanted.parameters], misfits, weights, step=STEP))


def derive(data: Path, constants: Constants) -> dict[str, Mapping[str, Mapping[str, float]]]:
    """The constants of each set that `data` has runs for: fitted to all runs under "", and without each group of runs
    under that group's name.
    """
    sets: dict[str, Mapping[str, Mapping[str, float]]] = {}
    for name, wanted in SETS.items():
        if told := runs(data, wanted, constants):
            groups = ("", *sorted({run.measured.group for run in told}))
            sets[name] = {group: fit(wanted, told, group) for group in groups}
    return sets
