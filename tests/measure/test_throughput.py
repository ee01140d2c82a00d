"""The search for throughput: against devices that are made up, with every memory and every curve."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxperf.measure.record import Point
from onnxperf.measure.throughput import best, curve, listed


class Device:
    """Runs a batch in time `fixed + each * batch`, up to a memory of `room` samples."""

    def __init__(self, room: int, fixed: float, each: float) -> None:
        self.room, self.fixed, self.each = room, fixed, each
        self.ran: list[int] = []

    def __call__(self, batch: int) -> float | None:
        self.ran.append(batch)
        return self.fixed + self.each * batch if batch <= self.room else None


@given(st.integers(0, 5000), st.integers(1, 3), st.integers(1, 6000))
def test_where_memory_ends_is_found_exactly_and_nothing_runs_twice(room: int, least: int, most: int) -> None:
    device = Device(room, 1.0, 1e-6)  # the larger the batch, the better, until memory ends
    points = curve(device, least, most)
    assert len(device.ran) == len({*device.ran})
    assert [p.batch for p in points] == sorted(device.ran)
    assert all((p.seconds is None) == (p.batch > room) for p in points)
    assert all(least <= p.batch <= most for p in points)
    doubled = [least << i for i in range(20) if least << i <= most]
    if room < least:
        assert [p.batch for p in points] == doubled[:1]
        assert best(points) is None
    elif any(b > room for b in doubled):
        assert best(points) == Point(room, 1.0 + 1e-6 * room)
    else:
        assert [p.batch for p in points] == doubled


@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_it_stops_when_larger_batches_gain_nothing(fixed: float, each: float) -> None:
    device = Device(10**9, fixed, each)
    points = curve(device)
    rates = [p.batch / p.seconds for p in points if p.seconds]
    gains = [b / a for a, b in pairwise(rates)]
    poor = [g < 1.03 for g in gains]
    assert poor[-2:] == [True, True] or points[-1].batch == 65_536
    assert not any(a and b for a, b in pairwise(poor[:-1]))


def test_a_batch_that_gains_little_once_does_not_stop_it() -> None:
    times = {1: 1.0, 2: 2.0, 4: 2.0, 8: 4.0, 16: 8.0}
    points = curve(lambda b: times[b])
    assert [p.batch for p in points] == [1, 2, 4, 8, 16]
    assert best(points) == Point(4, 2.0)  # the smallest of those that are equally good


def test_batches_that_are_given_run_once_each_until_memory_ends() -> None:
    device = Device(8, 1.0, 0.1)
    assert [p.batch for p in listed(device, [4, 1, 4, 16, 32])] == [1, 4, 16]
    assert device.ran == [1, 4, 16]


@pytest.mark.parametrize("points", [(), (Point(1, None),)])
def test_nothing_is_best_where_nothing_fits(points: tuple[Point, ...]) -> None:
    assert best(points) is None
