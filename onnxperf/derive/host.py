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

import gpu_specs
from onnxperf.datasets import model_runs
from onnxperf.datasets.runs import MeasuredRun
from onnxperf.derive.fit import Parameter
from onnxperf.fitting import Array, map_fit
from onnxperf.latency import Constants, estimate
from onnxperf.latency.intervals import COVERAGE
from onnxperf.lower import lower
from onnxperf.pipeline import lowered
from onnxperf.runtimes import RUNTIMES

#: By dotted path. Priors: what profilers show of the runtime and of a driver's launch, in whole microseconds.
PARAMETERS = (
    Parameter("host.ort.run_s", "enter and leave a run", 20e-6, 0.3),
    Parameter("host.ort.node_s", "walk to a node and prepare its kernels", 5e-6, 0.3),
    Parameter("host.ort.launch_s", "launch a kernel", 4e-6, 0.3),
)
WEIGHT = 100.0  # how many rows the data count for, so that priors bind
USUAL = {p.path: p.start for p in PARAMETERS}


@dataclass(frozen=True, slots=True)
class HostRun:
    """A measured run as its kernels [n]: the host's seconds for each, apart from those for a unit of each parameter
    [n, 1 + parameters], and the device's; half_width: of their sum.
    """

    measured: MeasuredRun
    host_s: Array
    kernels_s: Array
    half_width: float
    gap_s: float
    sync_s: float

    def launched(self, values: Mapping[str, float]) -> Array:
        """When each kernel has been launched [n]."""
        costs = [1.0, *(values[p.path] for p in PARAMETERS)]
        return np.asarray(values["host.ort.run_s"] + np.cumsum(self.host_s @ costs))

    @property
    def waits(self) -> bool:
        """Whether kernels take less than launching them usually does: then the run tells of the host."""
        return bool(self.kernels_s.sum() < self.launched(USUAL)[-1])

    def seconds(self, values: Mapping[str, float]) -> float:
        """The run on one stream, as `schedule` lays it out: the most that a launch and all kernels from it on take."""
        behind = np.cumsum((self.kernels_s + self.gap_s)[::-1])[::-1]
        return float(np.max(self.launched(values) + behind)) - self.gap_s + self.sync_s


def runs(rows: Sequence[MeasuredRun], constants: Constants) -> list[HostRun]:
    """Each row as kernels on its card, whose times are those of the constants."""
    found = []
    fields = [p.path.rpartition(".")[2] for p in PARAMETERS]
    for row in rows:
        runtime, device = RUNTIMES[row.runtime], gpu_specs.load(row.gpu)
        graph, kernels = lowered(row.graph, device, row.scenario, constants)
        units: list[dict[str, Any]] = [{f: float(f == one) for f in fields} for one in ("", *fields)]
        each = [replace(runtime, host=replace(runtime.host, **unit)) for unit in units]
        copies = row.scenario.include_transfers
        host = np.transpose([[k.host_s for k in lower(graph, r, include_transfers=copies).rows] for r in each])
        host[:, 1:] -= host[:, :1]
        e = estimate(kernels, [device], constants=constants)
        found.append(
            HostRun(row, host, e.seconds[:, 0], float(e.run_half_width[0]), runtime.host.gap_s, runtime.host.sync_s)
        )
    return found


def fit(runs: Sequence[HostRun], without: str = "") -> dict[str, float]:
    """The host's costs by dotted path, from all runs but those of the group `without`."""
    idle = [r for r in runs if r.waits and r.measured.group != without]
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

    Under "" too two half-widths, from runs with their group left out: `host`, of runs that tell of the host's time, and
    `run`, what errs in a whole run beside its kernels and the host (clocks, versions, other labs): as much as it takes,
    beside theirs, that COVERAGE of all runs are in range.
    """
    made = runs([run for of, measured, _ in model_runs(data) if of.constants == "host" for run in measured], constants)
    if not any(r.waits for r in made):
        return {}
    found = {group: fit(made, group) for group in ("", *sorted({r.measured.group for r in made}))}
    whole = np.array([r.seconds(found[r.measured.group]) for r in made])
    off = np.abs(np.log([r.measured.seconds for r in made] / whole))
    host = float(np.quantile(off[[r.waits for r in made]], COVERAGE))
    busy = np.minimum([r.kernels_s.sum() for r in made], whole) / whole
    known = np.hypot(busy * [r.half_width for r in made], (1 - busy) * host)
    run = float(np.quantile(np.sqrt(np.maximum(off**2 - known**2, 0)), COVERAGE))
    found[""] |= {"interval.host": host, "interval.run.other": run}
    return found
