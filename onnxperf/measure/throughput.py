"""Which batches to run to learn how throughput grows with them, and where memory ends. Pure: the caller runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from onnxperf.measure.record import Point

GAIN = 0.03  # of throughput by doubling a batch; twice less than that in a row, and the device is full
MOST = 65_536

RunAt = Callable[[int], float | None]  # a batch -> median seconds of a run, None where memory does not hold it


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
