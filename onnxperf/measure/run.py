"""Measuring: a job in, a process that runs it, a `Measurement` out."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from math import inf

import onnxperf
from onnxperf.errors import EnvironmentFailure, ModelError
from onnxperf.graph import Note
from onnxperf.measure import profile, session
from onnxperf.measure.child import Child, Heard, Stopped
from onnxperf.measure.job import Job, Runs
from onnxperf.measure.prepared import Prepared, check_hosted, subject_of
from onnxperf.measure.record import Measurement, OperatorTime, Setting, Subject, WarmUp
from onnxperf.measure.series import Series

SKIPPED = 3  # runs of the profile that do not count: the first, and two
PROFILED, LEAST_PROFILED, SLOW_PROFILED = 1000, 20, 5  # runs: at most, at least, and where they take too long
PASSES, SETTLED = 5, 0.99  # of a CPU's profile: at most, and what another one leaves of the sum that has settled
MOST_EVENTS = 200_000  # nodes x runs in a profile, which takes some 300 bytes each
SHARED = 1.15  # times on the wall over those on the processor

Progress = Callable[[str, int, int], None]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; `measurement` is what had been measured, or None."""

    measurement: Measurement | None = None


def measure(job: Job, progress: Progress | None = None) -> Measurement:
    """Run a model on the device that is here, and time it. `progress` is told the stage, what is done, and of how much.

    A script that calls this does so under `if __name__ == "__main__":`, for a process is spawned.

    Raises onnxperf errors; Stopped and Interrupted hold what had been measured before.
    """
    told = progress or (lambda stage, done, of: None)
    it, heard = Prepared.of(job), Heard()
    subject = subject_of(job, it)
    try:
        _sampled(job, it, heard, told)
        if job.profile:
            _profiled(job, it, heard, told)
    except KeyboardInterrupt:
        stopped = Interrupted()
        stopped.measurement = _concluded(job, it, subject, heard, complete=False) if heard.samples else None
        raise stopped from None
    except Stopped as e:
        e.measurement = _concluded(job, it, subject, heard, complete=False) if heard.samples else None
        raise
    return _concluded(job, it, subject, heard, complete=True)


def _sampled(job: Job, it: Prepared, heard: Heard, told: Progress) -> None:
    runs = Runs(
        it.feeds, job.iterations, most_s=job.duration_s, warm_runs=job.warm_runs, warm_s=job.warm_s,
        copies=job.include_transfers,
    )  # fmt: skip
    with Child(it.plan, heard) as child:
        for _ in child.hear("opened"):
            told(heard.phase, 0, job.iterations)
        check_hosted(job, it, heard.opened[1])
        for _ in child.ask(runs):
            told(heard.phase, len(heard.samples), job.iterations)


def _profiled(job: Job, it: Prepared, heard: Heard, told: Progress) -> None:
    """Run again under the profiler, in another process, when the first and its memory are gone.

    On a CPU several times, until the sum of all operators' fastest runs has settled: memory lies elsewhere each time,
    and neighbours come and go.
    """
    nodes = max(len(it.graph.operators), 1)
    wanted = min(max(min(job.iterations, PROFILED), LEAST_PROFILED), max(MOST_EVENTS // nodes, SLOW_PROFILED))
    took = sum(wall for _, wall in heard.samples) / (1 if job.gpu else 2)
    runs = Runs(it.feeds, wanted + SKIPPED - 1, SLOW_PROFILED + SKIPPED - 1, most_s=took, warm_runs=0)
    total, passes = inf, list[tuple[OperatorTime, ...]]()
    try:
        while len(passes) < (1 if job.gpu else PASSES):
            own = Heard()
            with Child(replace(it.plan, profile="yes"), own) as child:
                for _ in chain(child.hear("opened"), child.ask(runs), child.ask(None, until="profile")):
                    told("profiling", min(len(own.samples), wanted), wanted)
                operators, profiled = profile.parse(own.profile, SKIPPED)
            passes.append(operators)
            heard.operators = profile.merged(passes)
            heard.profiled = Series((*(heard.profiled.samples if heard.profiled else ()), *profiled.samples))
            before, total = total, sum(o.least_s for o in heard.operators)
            if total > SETTLED * before:
                break
    except Stopped:
        raise
    except (EnvironmentFailure, ModelError) as e:  # a full disk, no memory left: what was measured before stands
        heard.unprofiled = "" if passes else str(e)


def _concluded(job: Job, it: Prepared, subject: Subject, heard: Heard, complete: bool) -> Measurement:
    """The measurement of what was heard."""
    opened_s, nodes, options, place, clock, software = heard.opened
    own = (("onnxperf", onnxperf.__version__), ("python", platform.python_version()), ("platform", platform.platform()))
    device, wall = (Series(tuple(times)) for times in zip(*heard.samples, strict=True))
    hosted = tuple(name or type for name, type in nodes)
    if job.gpu and not hosted:  # where the session does not say
        hosted = tuple(o.name for o in heard.operators if o.provider == session.CPU)
    shapes = tuple((t.name, t.shape) for t in it.graph.inputs)
    warm_up = WarmUp(opened_s, heard.first_s, *heard.warm)
    return Measurement(
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        subject=subject,
        place=place,
        setting=Setting(
            job.runtime, job.opt_level, job.precision, it.graph.batch, shapes, options, (*software, *own)
        ),
        clock=clock,
        scope=_scope(job),
        warm_up=warm_up,
        device=device,
        wall=wall,
        profiled=heard.profiled,
        operators=heard.operators,
        hosted=hosted,
        copies=heard.copies,
        readings=tuple(heard.readings),
        warnings=_warnings(job, warm_up, device, wall, hosted, heard.unprofiled),
        complete=complete,
    )  # fmt: skip


def _scope(job: Job) -> str:
    """What is inside the time, in the words of a prediction."""
    if not job.gpu:
        return "steady state, one run under ONNX Runtime, CPU provider, one thread; session start and warm-up excluded"
    copies = "copies of inputs and outputs timed apart, pinned memory" if job.include_transfers else (
        "inputs and outputs stay on the device"
    )  # fmt: skip
    what = "kernels, launch gaps and host dispatch of one run under ONNX Runtime, CUDA provider"
    return f"steady state, {what}; {copies}; session start and warm-up excluded"


def _warnings(
    job: Job, warm_up: WarmUp, device: Series, wall: Series, hosted: tuple[str, ...], unprofiled: str
) -> tuple[Note, ...]:
    found = []
    if not warm_up.steady:
        found.append(Note("not-steady", f"times or clock had not settled after {warm_up.runs} runs of warm-up"))
    if device.drifting:
        found.append(Note("drift", f"the last third of the runs is {device.drift:+.1%} off the first"))
    if device.unstable:
        found.append(Note("unstable", f"runs differ much: their standard deviation is {device.cv:.0%} of their mean"))
    if hosted and job.gpu:
        found.append(Note("hosted", f"{len(hosted)} nodes ran on the CPU beside the GPU", hosted))
    if not job.gpu and wall.median > SHARED * device.median:
        over = wall.median / device.median - 1
        found.append(Note("disturbed", f"the processor was shared: by the wall's clock a run took {over:.0%} longer"))
    if unprofiled:
        found.append(Note("no-profile", f"operators could not be timed one by one: {unprofiled}"))
    return tuple(found)
