"""How throughput grows with the batch: which batches to run, where memory ends, and a long run at the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.ground.output import Progress
from onnxperf.measure.job import Job
from onnxperf.measure.plan import prepare
from onnxperf.measure.process import ModelProcess
from onnxperf.measure.record import Point, Throughput
from onnxperf.measure.run import follow
from onnxperf.measure.series import Series
from onnxperf.measure.session import OutOfMemory

GAIN = 0.03  # of throughput by doubling a batch; less than that twice in a row, and the device is full
MOST = 65_536  # samples in a batch
RUNS, LEAST_RUNS, RUNS_S = 20, 3, 5.0  # of each batch: at most, at least, and the seconds they may take
STREAK_S = 5.0  # of the long run at the best batch, where no duration is given

RunAt = Callable[[int], float | None]  # a batch -> median seconds of a run, None where memory does not hold it


def measure_throughput(job: Job, batches: Sequence[int], progress: Progress) -> Throughput:
    """The curve over `batches`, or, where none are given, over those that the search tries; a long run at the best.

    Raises EnvironmentFailure where not even the smallest fits into memory.
    """

    def run_at(batch: int) -> float | None:
        progress(f"batch {batch}", 0, 0)
        return median_s(job, batch)

    points = listed(run_at, batches) if batches else curve(run_at)
    fastest = best(points)
    if fastest is None:
        least = points[0].batch
        raise EnvironmentFailure(f"batch {least} does not fit into memory")
    progress(f"a long series at batch {fastest.batch}", 0, 0)
    return Throughput(points, fastest.batch, *long_run(job, fastest.batch))


def median_s(job: Job, batch: int, runs: int = RUNS) -> float | None:
    """Median seconds of a run on the device's clock; None where the batch does not fit into memory."""
    try:
        with _counted(job, batch, runs) as process:
            return Series(tuple(device for device, _ in process.samples)).median
    except OutOfMemory:
        return None


def long_run(job: Job, batch: int) -> tuple[int, float]:
    """Runs of a batch back to back: how many, and the seconds they took."""
    try:
        with _counted(job, batch, 1) as process:
            process.ask(job.duration_s or STREAK_S)
            return process.streak
    except OutOfMemory:
        raise OutOfMemory(f"batch {batch} ran before, but is now out of memory") from None


@contextmanager
def _counted(job: Job, batch: int, runs: int) -> Iterator[ModelProcess]:
    """A process that has counted some runs of a batch, to which its dimensions are bound."""
    most_s = job.duration_s or RUNS_S
    job = replace(job, batch=batch, iterations=runs, duration_s=most_s, include_transfers=False)
    with ModelProcess(replace(prepare(job), least_runs=LEAST_RUNS)) as process:
        follow(process)
        yield process


def curve(run_at: RunAt, least: int = 1, most: int = MOST) -> tuple[Point, ...]:
    """The curve from `least` up, in the order of batches; none is run twice.

    Batches double until the device is full, `most` is reached or memory runs out. Where it ran out, the largest batch
    that fits is looked for between the last that did and the first that did not.
    """
    points: list[Point] = []
    batch, poor = least, 0
    while batch <= most and poor < 2:
        points.append(Point(batch, run_at(batch)))
        if points[-1].seconds is None:
            break
        poor = poor + 1 if len(points) > 1 and _rate(points[-1]) < (1 + GAIN) * _rate(points[-2]) else 0
        batch *= 2
    if len(points) > 1 and points[-1].seconds is None:
        fits, over = points[-2].batch, points[-1].batch
        while over - fits > 1:
            middle = (fits + over) // 2
            points.append(Point(middle, run_at(middle)))
            fits, over = (fits, middle) if points[-1].seconds is None else (middle, over)
    return tuple(sorted(points, key=lambda p: p.batch))


def listed(run_at: RunAt, batches: Iterable[int]) -> tuple[Point, ...]:
    """The curve at the batches given, each run once; after one that does not fit, larger ones are not tried."""
    points: list[Point] = []
    for batch in sorted({*batches}):
        points.append(Point(batch, run_at(batch)))
        if points[-1].seconds is None:
            break
    return tuple(points)


def best(points: Sequence[Point]) -> Point | None:
    """The batch with the most samples per second, of equal ones the smallest; None where none fits."""
    fitting = [p for p in points if p.seconds is not None]
    return max(fitting, key=lambda p: (_rate(p), -p.batch), default=None)


def _rate(point: Point) -> float:
    """Samples per second."""
    return point.batch / max(point.seconds, 1e-12) if point.seconds is not None else 0.0
