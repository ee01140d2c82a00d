"""`Outline`: what a run comes to on one of its devices, without a word on its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxperf.latency import HostProcessor
from onnxperf.latency.family import UNMEASURED
from onnxperf.latency.power import drawn
from onnxperf.latency.terms import Array, summed
from onnxperf.running.memory import Memory
from onnxperf.running.run import HBM, Run
from onnxperf.running.scenario import Scenario
from onnxperf.runtimes import HostCosts


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
    return run.kept(outlines, run)[j]


def outlines(run: Run) -> list[Outline]:
    """The outline of a run for each of its devices."""
    total = run.timeline.total_s
    start, seconds = run.timeline.start_s, run.seconds
    busy, exposed = np.minimum(_busy(start, seconds), total), np.zeros(total.shape)
    exchanges = np.array([k.communicates for k in run.kernels.rows], dtype=bool)
    if exchanges.any():
        exposed = np.maximum(0.0, busy - _busy(start[~exchanges], seconds[~exchanges]))
    if run.plan.pp > 1:  # of one GPU: it waits for others, and is else as busy as all are with one microbatch
        from onnxperf.running.microbatches import bubble

        alone = run.one_timeline.total_s
        computing = (busy - exposed) / np.maximum(alone - exposed, 1e-30)
        idle = [bubble(run.stages(j), run.plan.microbatches) for j in range(len(run.devices))]
        exposed = np.array(idle) * total
        busy = np.minimum(exposed + computing * (total - exposed), total)
    low, high = _interval(run, total, busy)
    low = np.maximum(low, run.timeline.lower_bound_s)
    columns = zip(*[x.tolist() for x in (total, low, high, busy, exposed)], strict=True)
    return [
        Outline(run.scenario_on(j), length, least, most, active, waiting, run.memory(j), watts)
        for j, ((length, least, most, active, waiting), watts) in enumerate(zip(columns, _watts(run), strict=True))
    ]


def _watts(run: Run) -> Sequence[float | None]:
    """What each device, one of several alike, draws on average in a run; None for processors, which have no model."""
    if run.devices[0].kind != "gpu":
        return [None] * len(run.devices)
    spent, limits = summed(run.estimates.joules), np.array([d.tdp_W for d in run.devices])
    spent = spent * (run.plan.microbatches / run.plan.pp)  # of all stages with one microbatch
    watts: list[float] = drawn(run.timeline.total_s, spent, limits, run.constants.power["static_share"]).tolist()
    return watts


def _interval(run: Run, total: Array, busy: Array) -> tuple[Array, Array]:
    """The range of a run on each device [g].

    The time `busy` with kernels errs as their sum does; the rest, the host's, errs on its own, as its pace does where
    that is assumed; and so does the run as a whole, for what neither knows (clocks, versions). Where measured runs err
    less than their kernels' ranges say, these are scaled by `share`. Of methods with an error class of their own none
    of this is known: their ranges are the kernels'. What the host computes errs as on a processor that was not
    calibrated, and more where nobody knows its work. Kernels whose sizes are upper bounds may have nothing to do.
    """
    half_width, widths = run.estimates.run_half_width, run.constants.interval
    if not run.method.error_class:
        kinds = [_kind(run, j) for j in range(len(run.devices))]
        idle = (total - busy) * np.hypot(widths["host"], np.array([cpu.half_width for cpu in run.cpus]))
        idle = np.hypot(idle, _spread_on_host(run, total - busy))
        share = np.array([widths["share"].get(kind, 1.0) for kind in kinds])
        inside = share * np.hypot(busy * half_width, idle) / total
        half_width = np.hypot(inside, np.array([widths["run"][kind] for kind in kinds]))
    at_most = np.array([k.at_most for k in run.kernels.rows], dtype=bool)
    seconds, every = run.estimates.seconds, summed(run.estimates.seconds)
    kept = 1.0 - busy / total * summed(seconds[at_most]) / np.where(every > 0, every, 1.0)  # were they to do nothing
    return kept * total * np.exp(-half_width), total * np.exp(half_width)


def _kind(run: Run, j: int) -> str:
    """The name in the tables of ranges that tells of a run on device j, or of the most like it."""
    alike = run.kind(j)
    nearest = [alike, alike.removesuffix(HBM)]
    if run.convolutional:
        nearest = [*(f"{kind} convolution" for kind in nearest), *nearest]
    untrained = (kind.replace(" training", "") for kind in nearest)
    kinds = (*(["unmeasured"] if run.unmeasured else []), *nearest, *untrained, run.scenario.runtime)
    return next((k for k in kinds if k in run.constants.interval["run"]), "other")


def _spread_on_host(run: Run, idle: Array) -> Array:
    """Seconds [g] by which the time that the host computes errs, of the `idle` ones in which no kernel runs."""
    if run.scenario.cuda_graph or not run.method.scheduled:
        return np.zeros(idle.shape)
    hosts = [*zip(run.host_costs, run.processors, strict=True)]
    each = {pair: _computed(run, *pair) for pair in dict.fromkeys(hosts)}
    spread, taken = np.array([each[pair] for pair in hosts]).T
    return np.asarray(spread * np.minimum(1.0, idle / np.where(taken > 0, taken, 1.0)))


def _computed(run: Run, costs: HostCosts, cpu: HostProcessor) -> tuple[float, float]:
    """Seconds by which the time that a host computes errs, and that time: of what takes it longer than any operator
    does, for others err as the host's pace does.
    """
    widths = run.constants.interval
    each = [(n, n.seconds(costs, cpu)) for n in run.kernels.on_host]
    computed = [(n.repeat * s, n.unknown) for n, s in each if s > costs.host_op_s]
    spread = sum(s * widths[UNMEASURED if unknown else "processor"]["new"] for s, unknown in computed)
    return float(spread), sum((s for s, _ in computed), 0.0)


def _busy(start: Array, seconds: Array) -> Array:
    """Seconds [g] in which any kernel runs, from when each [n, g] starts and how long it takes."""
    order = np.argsort(start, axis=0, kind="stable")
    start, seconds = np.take_along_axis(start, order, axis=0), np.take_along_axis(seconds, order, axis=0)
    end, before = start + seconds, np.zeros((1, start.shape[1]))
    reach = np.maximum.accumulate(np.concatenate((before, end)))[:-1]  # where all before each have ended
    return summed(np.maximum(0.0, end - np.maximum(start, reach)))
