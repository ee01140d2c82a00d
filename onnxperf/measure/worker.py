"""The process that runs the model: it opens a session, warms up, counts runs, and sends their times as they come.

ONNX Runtime is loaded in this process alone: if it crashes, the parent still has the times sent before.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import parent_process
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

from onnxperf.ground.errors import Error
from onnxperf.ground.signals import ENDINGS
from onnxperf.measure.devices import LocalDevice, Run
from onnxperf.measure.environment import onnx_runtime
from onnxperf.measure.job import Job, Plan
from onnxperf.measure.record import WarmUp
from onnxperf.measure.session import Session, open_session, refusal

BATCH_S = 0.2  # between messages with times
READ_S = 0.5  # between readings of the sensors
LOG = "log.txt"  # what native code prints
MOST_LOG = 1 << 16  # bytes of it that are read

Say = Callable[..., None]  # sends facts to the parent: attributes of `process.ModelProcess` by name


def main(connection: Connection, folder: str) -> None:
    """What the process does: take the plan from the parent, at the other end of the connection, and `serve`.

    folder: of this process alone, for what native code prints; the parent removes it.
    """
    for ending in ENDINGS:  # they are sent to the whole group: the parent decides
        signal.signal(ending, signal.SIG_IGN)
    with suppress(OSError):  # a full disk shows itself later
        log = os.open(Path(folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)  # stdout is for the answer
        os.dup2(log, 2)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="replace", closefd=False)
    Thread(target=_end_with_parent, args=(folder,), daemon=True).start()

    def say(**facts: Any) -> None:
        connection.send(facts)

    try:
        with reported(say):
            plan: Plan = connection.recv()
            os.environ |= variables(plan)
            say(phase="loading ONNX Runtime")
            serve(plan, onnx_runtime(), plan.job.device.here(), say, connection.recv, lambda: tail(folder))
    except (BrokenPipeError, EOFError):  # the parent is gone
        shutil.rmtree(folder, ignore_errors=True)


def variables(plan: Plan) -> dict[str, str]:
    """What ONNX Runtime and CUDA are told by the environment, in this process alone."""
    environment = {"ORT_DISABLE_TELEMETRY": "1"}  # no report to its makers, and no thread for it
    return environment | plan.job.device.profiling if plan.profile_to else environment


@contextmanager
def reported(say: Say) -> Iterator[None]:
    """Send errors to the parent in the place of a traceback."""
    try:
        yield
    except Error as e:
        say(error=e)
    except MemoryError as e:
        say(error=refusal(e, "the model", ""))


def tail(folder: str) -> str:
    """The end of what native code has logged."""
    try:
        with Path(folder, LOG).open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - MOST_LOG, 0))
            return file.read(MOST_LOG).decode(errors="replace")
    except OSError:
        return ""


def _end_with_parent(folder: str) -> None:
    """Wait for the end of the parent, however it comes, and leave nothing behind."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def serve(
    plan: Plan, ort: Any, device: LocalDevice, say: Say, ask: Callable[[], float | None], log: Callable[[], str]
) -> None:
    """Open the session and count runs; then run back to back for so many seconds as `ask` gives, until it gives None.

    ort: ONNX Runtime. say, log: as in `main` and `open_session`.
    """
    say(phase="creating the session")
    session = open_session(ort, plan, device, log)
    software = tuple((name, version) for name, version in device.software(ort).items() if version)
    say(hosted=session.hosted, options=session.options, place=device.place, clock=device.clock, software=software)
    gc.disable()  # collecting garbage would take time within a run
    try:
        count_runs(session, device, plan, say)
        while (seconds := ask()) is not None:
            warm_up(session.run, device, plan.job)
            say(streak=device.streak(session.run, seconds), done=True)
    finally:
        gc.enable()
    if plan.profile_to:
        say(profile=session.inference.end_profiling())


def count_runs(session: Session, device: LocalDevice, plan: Plan, say: Say) -> None:
    """The first run, the warm-up, the counted runs, and the copies if they are wanted; each is told as it comes."""
    say(phase="in the first run")
    first_s = device.timed(session.run)[1]
    say(phase="warming up")
    say(warm_up=WarmUp(session.opened_s, first_s, *warm_up(session.run, device, plan.job)))
    say(phase="in a timed run")
    sample(session.run, device, plan, say)
    if plan.job.include_transfers:
        say(phase="copying inputs and outputs")
        say(copies=device.copies(*session.buffers()))
    say(done=True)


def warm_up(run: Run, device: LocalDevice, job: Job) -> tuple[int, float, bool]:
    """Run until times and clock have settled: how many runs, how many seconds, and whether they have settled."""
    if not job.warm_runs:
        return 0, 0.0, False
    times: list[float] = []
    clocks: list[float | None] = []
    start = time.perf_counter()
    for done in count(1):
        times.append(device.timed(run)[0])
        spent = time.perf_counter() - start
        if done % 5 == 0:
            clocks.append(device.MHz())
        enough = done >= job.warm_runs and spent >= job.warm_s
        steady = settled(times, device.still) and _same(clocks, device.still)
        if enough and (spent >= device.settle_s or (done >= 10 and done % 5 == 0 and steady)):
            break
    return len(times), spent, steady


def settled(times: list[float], still: float) -> bool:
    """Whether the median of the last five runs differs from that of the five before by no more than a share of `still`.

    Of fewer than ten runs, the later half is compared with the half before.
    """
    n = min(5, len(times) // 2)
    if not n:
        return False
    before = median(times[-2 * n : -n])
    return abs(median(times[-n:]) - before) <= still * before


def _same(clocks: list[float | None], still: float) -> bool:
    """Whether the last two readings of the device's clock agree, as far as there are any."""
    before, now = clocks[-2:] if len(clocks) > 1 else (None, None)
    return not before or not now or abs(now / before - 1) < still


def sample(run: Run, device: LocalDevice, plan: Plan, say: Say) -> None:
    """Count runs; times are sent in batches, and the sensors are read at the start, on the way and at the end."""
    iterations, most_s = plan.job.iterations, plan.job.duration_s
    batch: list[tuple[float, float]] = []
    sent = read = start = time.perf_counter()
    say(readings=device.sensed(0.0))
    for done in range(1, iterations + 1):
        batch.append(device.timed(run))
        now = time.perf_counter()
        late = most_s is not None and now - start >= most_s and done >= plan.least_runs
        last = late or done == iterations
        if last or now - sent >= BATCH_S:
            say(samples=batch)
            batch, sent = [], now
        if last or now - read >= READ_S:
            say(readings=device.sensed(now - start))
            read = now
        if last:
            break
