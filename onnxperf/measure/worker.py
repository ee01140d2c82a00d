"""The process that runs the model: it opens a session, then warms up and counts runs as often as it is asked to.

ONNX Runtime is loaded here and nowhere else, so that what kills it leaves the samples, which are sent as they come.
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

from onnxperf.errors import Error
from onnxperf.measure import environment
from onnxperf.measure.clocks import Clock, CudaClock, ThreadClock, check
from onnxperf.measure.environment import Sensors
from onnxperf.measure.job import Plan, Runs
from onnxperf.measure.session import Bound, bind, open_session, refusal

MOST_S = {True: 10.0, False: 1.0}  # of a warm-up that does not settle: on a GPU, on a CPU, whose clock is not read
STILL = {True: 0.02, False: 0.05}  # by how much times may differ that have settled: on a GPU, on a CPU
BATCH_S = 0.2  # samples are sent this often
READ_S = 0.5  # and sensors read
LOG = "log.txt"  # in the folder of the child: what native code prints
MOST_LOG = 1 << 16  # bytes of it that are read

Say = Callable[..., None]


def main(plan: Plan, connection: Connection, folder: str) -> None:
    """Open the session of `plan`, then do what is asked for over the connection, until that is None."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group: the parent decides
        signal.signal(ending, signal.SIG_IGN)
    os.environ |= variables(plan)
    with suppress(OSError):  # a full disk will be heard of
        log = os.open(Path(folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)  # stdout is for the answer
        os.dup2(log, 2)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="replace", closefd=False)
    Thread(target=_end_with_parent, args=(folder,), daemon=True).start()

    def say(*message: Any) -> None:
        connection.send(message)

    try:
        with reported(say):
            say("phase", "loading ONNX Runtime")
            rt, ml = (environment.cuda_runtime(), environment.nvml()) if plan.gpu else (None, None)
            serve(plan, environment.onnx_runtime(), rt, ml, say, connection.recv, lambda: tail(folder))
    except (BrokenPipeError, EOFError):  # the parent is gone
        shutil.rmtree(folder, ignore_errors=True)


def variables(plan: Plan) -> dict[str, str]:
    """What ONNX Runtime and CUDA are told by the environment, in this process alone."""
    told = {"ORT_DISABLE_TELEMETRY": "1"}  # it reports to no one, and needs no thread for it
    # Official builds have no device events in their profile: a node's time is its kernel's where launches wait.
    return told | {"CUDA_LAUNCH_BLOCKING": "1"} if plan.gpu and plan.profile else told


@contextmanager
def reported(say: Say) -> Iterator[None]:
    """Send errors to the parent in the place of a traceback."""
    try:
        yield
    except Error as e:
        say("error", type(e).__name__, str(e))
    except MemoryError as e:
        say("error", "OutOfMemory", str(refusal(e, "the model", "")))


def tail(folder: str) -> str:
    """The last of what native code has logged."""
    try:
        with Path(folder, LOG).open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - MOST_LOG, 0))
            return file.read(MOST_LOG).decode(errors="replace")
    except OSError:
        return ""


def _end_with_parent(folder: str) -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def serve(
    plan: Plan, ort: Any, rt: Any, ml: Any, say: Say, ask: Callable[[], Runs | None], log: Callable[[], str]
) -> None:
    """Open the session, then answer requests until there are no more.

    ort, rt, ml: ONNX Runtime, and for a GPU CUDA's runtime and NVML.
    """
    clock: Clock = ThreadClock()
    sensors, place, stream = Sensors(None, ""), environment.processor(), 0
    if plan.gpu:
        environment.require_device(rt)
        clock = CudaClock(rt)
        sensors = Sensors(ml, environment.text(check(rt, rt.cudaDeviceGetPCIBusId(64, 0))))
        place, stream = environment.graphics(rt, sensors), int(clock.stream)
    say("phase", "opening the model")
    opened = open_session(ort, plan, stream, log)
    software = {"onnxruntime": ort.__version__, "cuda": getattr(ort, "cuda_version", "") if plan.gpu else ""}
    versions = tuple((name, str(version)) for name, version in software.items() if version)
    say("opened", opened.seconds, opened.hosted, opened.options, place, clock.name, versions)
    while (runs := ask()) is not None:
        perform(bind(opened, plan, runs.feeds), clock, sensors, runs, say)
        say("done")
    if plan.profile:
        say("profile", opened.session.end_profiling())


def perform(bound: Bound, clock: Clock, sensors: Sensors, runs: Runs, say: Say) -> None:
    """One request: first run, warm-up, counted runs, and what else is wanted; all of it is told as it comes."""
    say("phase", "in the first run")
    say("first_s", clock.timed(bound.run)[1])
    say("phase", "warming up")
    say("warm", *warm_up(bound.run, clock, sensors, runs))
    say("phase", "in a counted run")
    gc.disable()
    if runs.streak_s:
        say("streak", *clock.streak(bound.run, runs.streak_s))
    else:
        sample(bound.run, clock, sensors, runs, say)
    gc.enable()
    if runs.copies and isinstance(clock, CudaClock):
        say("phase", "copying inputs and outputs")
        say("copies", clock.copies(*bound.buffers()))


def warm_up(run: Callable[[], None], clock: Clock, sensors: Sensors, runs: Runs) -> tuple[int, float, bool]:
    """Run until times and clock have settled: how many runs, how long, and whether they did."""
    if not runs.warm_runs:
        return 0, 0.0, False
    still, most = STILL[isinstance(clock, CudaClock)], MOST_S[isinstance(clock, CudaClock)]
    times: list[float] = []
    clocks: list[float | None] = []
    start = time.perf_counter()
    for done in count(1):
        times.append(clock.timed(run)[0])
        spent = time.perf_counter() - start
        if done % 5 == 0:
            clocks.append(sensors.clock())
        enough = done >= runs.warm_runs and spent >= runs.warm_s
        steady = settled(times, still) and _same(clocks, still)
        if enough and (spent >= most or (done >= 10 and done % 5 == 0 and steady)):
            break
    return len(times), spent, steady


def settled(times: list[float], still: float) -> bool:
    """Whether the median of the last five runs (of half of them, where they are few) is that of those before, but for
    a share of `still`.
    """
    n = min(5, len(times) // 2)
    if not n:
        return False
    before = median(times[-2 * n : -n])
    return abs(median(times[-n:]) - before) <= still * before


def _same(clocks: list[float | None], still: float) -> bool:
    before, now = clocks[-2:] if len(clocks) > 1 else (None, None)
    return not before or not now or abs(now / before - 1) < still


def sample(run: Callable[[], None], clock: Clock, sensors: Sensors, runs: Runs, say: Say) -> None:
    """Count runs; samples are sent in batches, with what the sensors say at the start, on the way and at the end."""
    start = sensors.since = time.perf_counter()
    say("readings", sensors.read())
    batch: list[tuple[float, float]] = []
    told = read = start
    for done in range(1, runs.iterations + 1):
        batch.append(clock.timed(run))
        now = time.perf_counter()
        late = runs.most_s is not None and now - start >= runs.most_s and done >= runs.least
        last = late or done == runs.iterations
        if last or now - told >= BATCH_S:
            say("samples", batch)
            batch, told = [], now
        if last or now - read >= READ_S:
            say("readings", sensors.read())
            read = now
        if last:
            break
