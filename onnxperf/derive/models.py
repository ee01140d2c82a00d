"""Constants that no kernel was measured for: least squares over all kernels of whole models that others measured.

A run is predicted whole, with the constants of all other kernels as given. Each source and family of models counts
alike, however many rows it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import gpu_specs
from onnxperf.datasets import model_runs
from onnxperf.datasets.runs import MeasuredRun
from onnxperf.fitting import Array, map_fit
from onnxperf.latency import Constants
from onnxperf.latency.constants import ConstantSet
from onnxperf.latency.families import constant_sets, family_of
from onnxperf.run import Run

SETS = {name: wanted for name, wanted in constant_sets().items() if wanted.of_runs}
TELLING = 0.25  # of the time of a run's kernels: at least that much has to be of the family that reads the constants
STEP = 1e-3  # of differences, in standard deviations: a run's length has steps where a kernel's tile changes

Told = tuple[MeasuredRun, Run]


def runs(data: Path, wanted: ConstantSet, constants: Constants) -> list[Told]:
    """The measured runs in `data` that tell of a set, each on its card."""
    rows = [r for of, measured, _ in model_runs(data) if of.constants == wanted.name for r in measured]
    made = [(r, Run(r.graph, (gpu_specs.load(r.gpu),), r.scenario, constants)) for r in rows]
    return [(r, run) for r, run in made if _share(wanted, run) >= TELLING]


def _share(wanted: ConstantSet, run: Run) -> float:
    """The share of a run's kernels, by time, whose family declares the set."""
    own = [wanted in family_of(kernel.work).constants for kernel in run.kernels.rows]
    seconds = run.estimates.seconds[:, 0]
    return float(seconds[own].sum() / seconds.sum())


def fit(wanted: ConstantSet, told: Sequence[Told], start: Constants, without: str = "") -> dict[str, float]:
    """The constants of a set by dotted path, from all runs but those of the group `without`."""
    told = [(r, run) for r, run in told if r.group != without]
    if not told:
        return {p.path: p.start for p in wanted.parameters}
    count = Counter(r.group for r, _ in told)
    weights = np.array([np.sqrt(wanted.weight / len(count) / count[r.group]) for r, _ in told])
    measured = np.array([[r.seconds] for r, _ in told])

    def named(point: Array) -> dict[str, float]:
        return {p.path: float(v) for p, v in zip(wanted.parameters, point, strict=True)}

    def misfits(points: Array) -> Array:
        constants = [start.having(named(point)) for point in points]
        seconds = [[float(replace(run, constants=c).timeline.total_s[0]) for c in constants] for _, run in told]
        return np.asarray(np.log(np.array(seconds) / measured))

    return named(map_fit([p.prior for p in wanted.parameters], misfits, weights, step=STEP))


def derive(data: Path, constants: Constants) -> dict[str, Mapping[str, Mapping[str, float]]]:
    """The constants of each set that runs in `data` tell of: from all of them under "", and without each group in turn
    under its name.
    """
    found: dict[str, Mapping[str, Mapping[str, float]]] = {}
    for name, wanted in SETS.items():
        if told := runs(data, wanted, constants):
            groups = ("", *sorted({r.group for r, _ in told}))
            found[name] = {group: fit(wanted, told, constants, group) for group in groups}
    return found
