"""`Outline`: what a run comes to on one of its devices, without a word on its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxperf.latency.family import UNMEASURED
from onnxperf.latency.power import drawn
from onnxperf.running.memory import Memory
from onnxperf.running.run import Run
from onnxperf.running.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Outline:
    """What a run comes to on one device, without its kernels: seconds and their range, memory, and the card's watts.

    busy_seconds: in which any kernel runs; exposed_seconds: in which exchanges between GPUs run and nothing else;
    watts: None for a processor.
    """

    scenario: Scenario
    seconds: float
    low_seconds: float
    high_seconds: float
    busy_seconds: float
    exposed_seconds: float
    memory: Memory
    watts: float | None


def outline(run: Run, j: int = 0) -> Outline:
    """The outline of a run for device j, in a small part of the time that its summary takes."""
    total = float(run.timeline.total_s[j])
    start, seconds = run.timeline.start_s[:, j], run.seconds[:, j]
    busy, exposed = min(_busy(start, seconds), total), 0.0
    exchanges = np.array([k.communicates for k in run.kernels.rows], dtype=bool)
    if exchanges.any():
        exposed = max(0.0, busy - _busy(start[~exchanges], seconds[~exchanges]))
    if run.plan.pp > 1:  # of one GPU: it waits for others, and is else as busy as all are with one microbatch
        from onnxperf.running.microbatches import bubble

        alone, stages = float(run.one_timeline.total_s[j]), run.stages(j)
        computing = (busy - exposed) / max(alone - exposed, 1e-30)
        exposed = bubble(stages, run.plan.microbatches) * total
        busy = min(exposed + computing * (total - exposed), total)
    low, high = _interval(run, j, total, busy)
    low = max(low, float(run.timeline.lower_bound_s[j]))
    return Outline(run.scenario_on(j), total, low, high, busy, exposed, run.memory(j), _watts(run, j))


def _watts(run: Run, j: int) -> float | None:
    """What device j, one of several alike, draws on average in a run; None for a processor, which is not modelled."""
    if run.devices[j].kind != "gpu":
        return None
    spent, static = float(run.estimates.joules[:, j].sum()), run.constants.power["static_share"]
    spent *= run.plan.microbatches / run.plan.pp  # of all stages with one microbatch
    return float(drawn(float(run.timeline.total_s[j]), spent, run.devices[j].tdp_W, static))


def _interval(run: Run, j: int, total: float, busy: float) -> tuple[float, float]:
    """The range of a run.

    The time `busy` with kernels errs as their sum does; the rest, the host's, errs on its own, as its pace does where
    that is assumed; and so does the run as a whole, for what neither knows (clocks, versions). Where measured runs err
    less than their kernels' ranges say, these are scaled by `share`. Of methods with an error class of their own none
    of this is known: their ranges are the kernels'. What the host computes errs as on a processor that was not
    calibrated, and more where nobody knows its work. Kernels whose sizes are upper bounds may have nothing to do.
    """
    half_width, widths = float(run.estimates.run_half_width[j]), run.constants.interval
    if not run.method.error_class:
        alike, inference = run.kind(j), run.kind(j).replace(" training", "")
        kinds = (*(["unmeasured"] if run.unmeasured else []), alike, inference, run.scenario.runtime, "other")
        kind = next(k for k in kinds if k in widths["run"])
        idle = (total - busy) * float(np.hypot(widths["host"], run.cpus[j].half_width))
        idle = float(np.hypot(idle, _spread_on_host(run, j, total - busy)))
        inside = widths["share"].get(kind, 1.0) * np.hypot(busy * half_width, idle) / total
        half_width = float(np.hypot(inside, widths["run"][kind]))
    at_most = np.array([k.at_most for k in run.kernels.rows], dtype=bool)
    seconds = run.estimates.seconds[:, j]
    kept = 1.0 - busy / total * float(seconds[at_most].sum()) / float(seconds.sum() or 1.0)  # were they to do nothing
    return kept * total * float(np.exp(-half_width)), total * float(np.exp(half_width))


def _spread_on_host(run: Run, j: int, idle: float) -> float:
    """Seconds by which the time that the host computes errs, of the `idle` ones in which no kernel runs."""
    if run.scenario.cuda_graph or not run.method.scheduled:
        return 0.0
    widths, costs, cpu = run.constants.interval, run.host_costs[j], run.processors[j]
    each = [(n, n.seconds(costs, cpu)) for n in run.kernels.on_host]
    computed = [(n.repeat * s, n.unknown) for n, s in each if s > costs.host_op_s]  # others err as the host's pace does
    spread = sum(s * widths[UNMEASURED if unknown else "processor"]["new"] for s, unknown in computed)
    taken = sum(s for s, _ in computed)
    return float(spread * min(1.0, idle / taken)) if taken else 0.0


def _busy(start: NDArray[Any], seconds: NDArray[Any]) -> float:
    """Seconds in which any kernel runs, from when each [n] starts and how long it takes."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + seconds)[order]
    reach = np.maximum.accumulate(np.append(0.0, end))[:-1]  # where all before each have ended
    return float(np.maximum(0.0, end - np.maximum(start, reach)).sum())
