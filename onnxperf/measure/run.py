"""Measuring: a job in, a process that runs its model, a `Measurement` out."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from math import inf

from onnxperf.graph import Note
from onnxperf.ground.errors import EnvironmentFailure, ModelError, counted
from onnxperf.ground.output import Progress
from onnxperf.ground.version import VERSION
from onnxperf.measure import profile
from onnxperf.measure.devices import CPU
from onnxperf.measure.environment import overlapping
from onnxperf.measure.job import Job, Plan
from onnxperf.measure.plan import check_hosted, prepare, subject_of
from onnxperf.measure.process import ModelProcess, Stopped
from onnxperf.measure.record import DISTURBED, Measurement, OperatorTime, Setting, Subject
from onnxperf.measure.series import Series

SKIPPED = 3  # first runs under the profiler, which do not count
PROFILED, LEAST_PROFILED, SLOW_PROFILED = 1000, 20, 5  # counted runs: at most, at least, and at least of slow models
MOST_EVENTS = 200_000  # nodes x runs in a profile, which takes some 300 bytes for each
SETTLED = 0.99  # passes under the profiler go on until one leaves this share of the sum or more

#: What is inside the time of a run on a card.
COPIED, NOT_COPIED = (
    "copies of inputs and outputs timed separately, pinned memory",
    "inputs and outputs stay on the device",
)

Profiles = list[tuple[tuple[OperatorTime, ...], Series]]  # operators and runs of each pass under the profiler


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; `measurement` is what had been measured, or None."""

    measurement: Measurement | None = None


def measure(job: Job, progress: Progress | None = None) -> Measurement:
    """Run a model on the device that is here, and time it. `progress` is told the stage, what is done, and of how much.

    A script that calls this does so under `if __name__ == "__main__":`, for a process is spawned.

    Raises onnxperf errors; Stopped and Interrupted hold what had been measured before.
    """
    tell = progress or (lambda stage, done, total: None)
    plan = prepare(job)
    process, passes, why_not = ModelProcess(plan), Profiles(), ""
    so_far = partial(_measurement, plan, subject_of(plan), process, passes)
    try:
        with process:
            follow(process, lambda: tell(process.phase, len(process.samples), job.iterations))
        if job.profile:
            why_not = _profile(plan, process, passes, tell)
    except KeyboardInterrupt:
        stopped = Interrupted()
        stopped.measurement = so_far(complete=False) if process.samples else None
        raise stopped from None
    except Stopped as e:
        e.measurement = so_far(complete=False) if process.samples else None
        raise
    return so_far(complete=True, why_not=why_not)


def follow(process: ModelProcess, tell: Callable[[], None] = lambda: None) -> None:
    """Follow a process up to the end of its counted runs; `tell` is called whenever there is news.

    Raises EnvironmentFailure where nodes run on the CPU that belong on the GPU.
    """
    process.listen("hosted", tell)
    check_hosted(process.plan, process.hosted)
    process.listen("done", tell)


def _profile(plan: Plan, measured: ModelProcess, passes: Profiles, tell: Progress) -> str:
    """Run again under the profiler, in other processes, now that the first and its memory are gone. Fills `passes`.

    On a CPU there are several passes, until the sum of all operators' fastest runs has settled: each has its memory
    elsewhere, and meets other programs on the machine. Returns why there is no profile, "" where there is one.
    """
    job, nodes = plan.job, max(len(plan.graph.operators), 1)
    wanted = min(max(min(job.iterations, PROFILED), LEAST_PROFILED), max(MOST_EVENTS // nodes, SLOW_PROFILED))
    most_s = max(sum(wall for _, wall in measured.samples) * job.device.pass_share, 1e-9)
    job = replace(job, iterations=wanted + SKIPPED - 1, duration_s=most_s, warm_runs=0, include_transfers=False)
    plan = replace(plan, job=job, least_runs=SLOW_PROFILED + SKIPPED - 1, profile_to="profile")
    total = inf
    try:
        while len(passes) < job.device.passes:
            with ModelProcess(plan) as process:
                process.listen("done", lambda: tell("profiling", min(len(process.samples), wanted), wanted))
                process.ask(None)
                passes.append(profile.parse(process.profile, SKIPPED))
            before, total = total, sum(o.least_s for o in profile.merged([operators for operators, _ in passes]))
            if total > SETTLED * before:
                break
    except Stopped:
        raise
    except (EnvironmentFailure, ModelError) as e:  # a full disk, no memory left: what was measured before stands
        return "" if passes else str(e)
    return ""


def _measurement(
    plan: Plan, subject: Subject, process: ModelProcess, passes: Profiles, complete: bool, why_not: str = ""
) -> Measurement:
    """The measurement of what a process has told. why_not: why there is no profile, "" where there is one."""
    job, graph = plan.job, plan.graph
    versions = (("onnxperf", VERSION), ("python", platform.python_version()), ("platform", platform.platform()))
    operators = profile.merged([operators for operators, _ in passes])
    hosted = tuple(name or type for name, type in process.hosted)
    if not hosted and not process.place.shared:  # where the session does not say
        hosted = tuple(o.name for o in operators if o.provider == CPU)
    shapes = tuple((t.name, t.shape) for t in graph.inputs)
    software = (*process.software, *versions)
    m = Measurement(
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        subject=subject,
        place=process.place,
        setting=Setting(job.runtime, job.opt_level, job.precision, graph.batch, shapes, process.options, software),
        clock=process.clock,
        scope=job.device.scope.format(copies=COPIED if job.include_transfers else NOT_COPIED),
        warm_up=process.warm_up,
        device=Series(tuple(device for device, _ in process.samples)),
        wall=Series(tuple(wall for _, wall in process.samples)),
        profiled=Series(tuple(chain.from_iterable(runs.samples for _, runs in passes))) if passes else None,
        operators=operators,
        hosted=hosted,
        copies=process.copies,
        readings=tuple(process.readings),
        complete=complete,
    )
    return replace(m, warnings=(*_handed_over(plan), *_warnings(m, why_not)))


def _handed_over(plan: Plan) -> Iterator[Note]:
    """Whether the time includes what Python adds to a run."""
    if plan.unbound:
        what = "inputs that are text, sequences or maps are copied from Python in every run, and outputs back to it"
        yield Note("handed-over", f"{what}: the time includes that, those of the operators do not")


def _warnings(m: Measurement, why_not: str) -> Iterator[Note]:
    """What a reader should know before trusting the times."""
    device, hosted = m.device, m.hosted
    if several := overlapping():
        yield Note("several-runtimes", several)
    if not m.warm_up.steady:
        yield Note("not-steady", f"no steady state after {m.warm_up.runs} warm-up runs: times or clock still changed")
    if device.drifting:
        yield Note("drift", f"the last third of the runs differs from the first by {device.drift:+.1%}")
    if device.unstable:
        yield Note("unstable", f"runs vary: the standard deviation is {device.cv:.0%} of the mean")
    if hosted:
        yield Note("hosted", f"{counted(len(hosted), 'node')} ran on the CPU", hosted)
    if m.place.shared and len(m.alone) <= len(device.samples) / 2:
        over = m.wall.median / device.median - 1
        yield Note(DISTURBED, f"the CPU was shared: wall-clock time was {over:.0%} longer")
    if why_not:
        yield Note("no-profile", f"operators could not be profiled: {why_not}")
