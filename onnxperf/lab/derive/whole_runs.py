"""The widths of whole runs' ranges, for each kind of run (`Run.kind`) that no host costs are fitted to.

`interval.run.KIND` is a half-width for errors beside those of kernels and host. It is 0 where runs err less than the
ranges of their kernels and host say. Then `interval.share.KIND`, below 1, scales these ranges: errors of one run's
kernels are less correlated than those of the sweeps that the kernels' ranges were derived from.

Each run is predicted with constants derived without its group. Each (source, model) counts alike, however many rows it
has, because errors of one model are correlated.

Runs that are scored without their die (`Models.by_die`) tell of kinds that whole runs on other cards tell of as well:
those on cards with HBM. Without the only die of such runs they count as these others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from onnxperf.answer.prediction import summarise
from onnxperf.lab.datasets import model_runs
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.lab.derive import models
from onnxperf.lab.derive.host import runs
from onnxperf.lab.derive.intervals import quantile_of
from onnxperf.latency import Constants
from onnxperf.running.run import HBM

Values = Mapping[str, float]  # by dotted path


@dataclass(frozen=True, slots=True)
class RunMiss:
    """A run's log(measured / predicted), and the half-width of its kernels' and host's range, as a logarithm."""

    kind: str
    model: str
    group: str
    off: float
    ranged: float
    die: str = ""


def derive(
    data: Path, constants: Constants, apart: Mapping[str, Values], shipped: Values
) -> dict[str, dict[str, float]]:
    """The widths by dotted path from all runs in `data`, under "", and without each group in turn, under its name.

    apart: by group, the constants that differ from the given ones when derived without it; shipped: the widths that
    stay where `data` has no such runs.
    """
    values: dict[str, dict[str, float]] = {}
    by_die: list[RunMiss] = []
    for model, measured, _ in model_runs(data):
        if model.by_die:
            by_die += [_missed(run, constants) for run in measured if model.ranged(run)]
        elif model.constants in ("range", *models.SETS):
            missed = [_missed(run, constants.having(apart.get(run.group, {}))) for run in measured if model.ranged(run)]
            for kind in sorted({m.kind for m in missed}):
                alike = [m for m in missed if m.kind == kind]
                for group in ("", *sorted({run.group for run in measured})):
                    share, beside = widths([m for m in alike if m.group != group])
                    values.setdefault(group, {})[f"interval.run.{kind}"] = beside
                    values[group][f"interval.share.{kind}"] = share
    _of_dies(values, by_die, shipped)
    return values


def _of_dies(values: dict[str, dict[str, float]], missed: Sequence[RunMiss], shipped: Values) -> None:
    """Add the widths of kinds on cards with HBM, where runs on other cards tell of the same kind: from all runs under
    "", and without each die under its name.
    """
    told = {**shipped, **values.get("", {})}
    for kind in sorted({m.kind for m in missed if m.kind.endswith(HBM)}):
        usual = [f"interval.{what}.{kind.removesuffix(HBM)}" for what in ("share", "run")]
        if usual[1] not in told:
            continue
        alike = [m for m in missed if m.kind == kind]
        for die in ("", *sorted({m.die for m in alike})):
            rest = [m for m in alike if m.die != die]
            share, beside = widths(rest) if rest else (told.get(usual[0], 1.0), told[usual[1]])
            of_die = values.setdefault(die, {})
            of_die |= {f"interval.run.{kind}": beside, f"interval.share.{kind}": share}


def _missed(measured: MeasuredRun, constants: Constants) -> RunMiss:
    (host_run,) = runs([measured], constants)
    kind = host_run.run.kind(0)
    alone = constants.having({f"interval.run.{kind}": 0.0, f"interval.share.{kind}": 1.0})
    p = summarise(replace(host_run.run, constants=alone))
    off, ranged = np.log(measured.seconds / p.seconds), np.log(p.high_seconds / p.seconds)
    name = f"{measured.source} {measured.model}"
    return RunMiss(kind, name, measured.group, float(off), float(ranged), measured.die)


def widths(misses: Sequence[RunMiss]) -> tuple[float, float]:
    """The factor on the half-widths of kernels and host, and the further half-width, with which COVERAGE of the runs
    are in range; 1 and 0 without runs.
    """
    if not misses:
        return 1.0, 0.0
    by_model = [[m for m in misses if m.model == model] for model in dict.fromkeys(m.model for m in misses)]
    share = quantile_of([np.array([abs(m.off) / m.ranged for m in some]) for some in by_model])
    if share < 1:
        return share, 0.0
    beyond = [np.array([max(m.off**2 - m.ranged**2, 0.0) ** 0.5 for m in some]) for some in by_model]
    return 1.0, quantile_of(beyond)
