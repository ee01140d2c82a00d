"""What ONNX Runtime's host thread costs, from whole models that others measured.

The kernels' times are those of the constants given: no row here has a part in them. Only runs that wait for the host
tell of it. Each (source, model) counts alike, however many rows it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxperf.ground.fitting import Array, map_fit
from onnxperf.lab.datasets import model_runs
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.lab.derive.intervals import quantile_of
from onnxperf.latency import Constants
from onnxperf.latency.constants import Parameter
from onnxperf.running.run import Run
from onnxperf.runtimes import HostCosts
from onnxperf.schedule import schedule

#: By dotted path, for a server of 2017 to 2019. Priors: what profilers show of the runtime and of a driver's launch,
#: in whole microseconds; a walk is twice what one takes on a core of 2023, and a run what sessions of one node take
#: (host.md).
PARAMETERS = (
    Parameter("host.ort.run_s", "enter and leave a run", 40e-6, 0.3),
    Parameter("host.ort.walk_s", "pass a node that launches nothing", 0.4e-6, 0.2),
    Parameter("host.ort.node_s", "prepare the kernels of a node", 3e-6, 0.5),
    Parameter("host.ort.launch_s", "launch a kernel", 4e-6, 0.3),
)
WEIGHT = 100.0  # how many rows the data count for, so that priors bind
USUAL = {p.path: p.start for p in PARAMETERS}
SHARE = 0.9  # of the host's time: kernels that take longer, in runs of kernels 10% off, may be what a run waits for


@dataclass(frozen=True, slots=True)
class HostRun:
    """A measured run, and the stages of its prediction: the kernels' times don't change in the fit."""

    measured: MeasuredRun
    run: Run

    def costs(self, values: Mapping[str, float]) -> HostCosts:
        """The runtime's host costs with the parameters at these values, on a server of the card's years."""
        fitted: dict[str, Any] = {path.rpartition(".")[2]: v for path, v in values.items()}
        return replace(self.run.runtime.host, **fitted).scaled(self.run.cpus[0].pace)

    @property
    def kernels_s(self) -> float:
        """Seconds of all kernels added up."""
        return float(self.run.estimates.seconds[:, 0].sum())

    @property
    def waits(self) -> bool:
        """Whether kernels take clearly less than launching them usually does: then the run tells of the host."""
        costs = self.costs(USUAL)
        return self.kernels_s < SHARE * (
            costs.run_s + sum(self.run.kernels.host_seconds(costs, self.run.processors[0])[0])
        )

    def seconds(self, values: Mapping[str, float]) -> float:
        """The length of the run."""
        run = self.run
        return float(schedule(run.kernels, run.estimates, [self.costs(values)], run.processors).total_s[0])


def runs(rows: Sequence[MeasuredRun], constants: Constants) -> list[HostRun]:
    """Each row on its card, whose kernels' times are those of the constants."""
    return [HostRun(r, r.run(constants)) for r in rows]


def fit(runs: Sequence[HostRun], without: str = "") -> dict[str, float]:
    """The host's costs by dotted path, from all runs but those of the group `without`; the priors' medians where no
    other run tells of them.
    """
    idle = [r for r in runs if r.waits and r.measured.group != without]
    if not idle:
        return USUAL
    count = Counter(r.measured.group for r in idle)
    share = np.array([np.sqrt(WEIGHT / len(count) / count[r.measured.group]) for r in idle])
    measured = np.array([[r.measured.seconds] for r in idle])

    def named(point: Array) -> dict[str, float]:
        return {p.path: float(v) for p, v in zip(PARAMETERS, point, strict=True)}

    def misfits(points: Array) -> Array:
        return np.asarray(np.log(np.array([[r.seconds(named(p)) for p in points] for r in idle]) / measured))

    return named(map_fit([p.prior for p in PARAMETERS], misfits, share))


def derive(data: Path, constants: Constants) -> dict[str, dict[str, float]]:
    """The costs from all runs in `data`, under "", and without each group in turn, under its name; nothing where no run
    tells of them.

    With them the half-widths of runs, see `half_widths`.
    """
    rows = [run for model, measured, _ in model_runs(data) if model.constants == "host" for run in measured]
    host_runs = runs(rows, constants)
    if not any(r.waits for r in host_runs):
        return {}
    costs = {group: fit(host_runs, group) for group in ("", *sorted({r.measured.group for r in host_runs}))}
    return {group: values | half_widths(host_runs, costs, group) for group, values in costs.items()}


def half_widths(
    runs: Sequence[HostRun], costs: Mapping[str, Mapping[str, float]], without: str = ""
) -> dict[str, float]:
    """Two half-widths from all runs but those of a group, each predicted with the `costs` without its own group:
    `host`, of runs that tell of the host's time, and `run`, what errs in a whole run beside its kernels and the host
    (clocks, versions, other labs): as much as it takes, beside theirs, that COVERAGE of the runs are in range, each
    group alike. Nothing where no run is left that tells of the host.
    """
    kept = [r for r in runs if r.measured.group != without]
    waits = np.array([r.waits for r in kept], dtype=bool)
    if not waits.any():
        return {}
    whole = np.array([r.seconds(costs[r.measured.group]) for r in kept])
    off = np.abs(np.log([r.measured.seconds for r in kept] / whole))
    groups = np.array([r.measured.group for r in kept])
    host = quantile_of([off[waits & (groups == g)] for g in sorted(set(groups[waits]))])
    busy = np.minimum([r.kernels_s for r in kept], whole) / whole
    width = np.hypot(busy * [float(r.run.estimates.run_half_width[0]) for r in kept], (1 - busy) * host)
    beyond = np.sqrt(np.maximum(off**2 - width**2, 0))
    return {
        "interval.host": host,
        "interval.run.other": quantile_of([beyond[groups == g] for g in sorted(set(groups))]),
    }
