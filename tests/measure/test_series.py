"""Statistics of a series, held against numpy and against the binomial distribution itself."""

import random
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxperf.measure.series import EXACT, Series

TIMES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=200).map(tuple)


def test_an_empty_series_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Series(())


@given(TIMES)
def test_location_and_spread_are_those_of_numpy(times: tuple[float, ...]) -> None:
    s = Series(times)
    assert s.median == pytest.approx(np.median(times), rel=1e-9)
    for q in (0.0, 0.5, 0.9, 0.95, 0.99, 1.0):
        assert s.quantile(q) == pytest.approx(np.quantile(times, q), rel=1e-9)
    assert s.mean == pytest.approx(np.mean(times), rel=1e-9)
    assert s.least == min(times)
    if len(times) > 1:
        assert s.std == pytest.approx(np.std(times, ddof=1), rel=1e-6, abs=1e-12)
        assert s.cv == pytest.approx(s.std / s.mean)


def missed(count: int, rank: int) -> float:
    """How probable it is that the median of a continuous distribution lies outside the samples of these ranks."""
    return 2 * sum(comb(count, k) for k in range(rank)) / 2**count


@pytest.mark.parametrize("count", [*range(1, 40), 100, 300, 999, EXACT, EXACT + 1, 3000])
def test_the_interval_of_the_median_holds_what_it_promises_and_no_more(count: int) -> None:
    shuffled = random.Random(count).sample(range(1, count + 1), count)
    interval = Series(tuple(map(float, shuffled))).median_interval
    if count < 6:
        assert interval is None
        assert missed(count, 1) > 0.05
        return
    assert interval is not None
    low, high = map(int, interval)
    assert low == count + 1 - high
    assert missed(count, low) <= 0.05
    assert missed(count, low + 1 + (count > EXACT)) > 0.05  # by the normal approximation, one rank wider may do


@given(TIMES)
def test_the_interval_holds_the_median(times: tuple[float, ...]) -> None:
    s = Series(times)
    if s.median_interval is not None:
        low, high = s.median_interval
        assert s.least <= low <= s.median <= high <= max(times)


def test_drift_is_told_from_noise() -> None:
    noise = [1 + 0.05 * (i * 37 % 11 - 5) / 5 for i in range(90)]
    level, grown = Series(tuple(noise)), Series(tuple(x * (1 + 0.002 * i) for i, x in enumerate(noise)))
    assert not level.drifting
    assert grown.drifting
    assert grown.drift == pytest.approx(0.12, abs=0.04)
    assert Series(tuple(reversed(grown.samples))).drifting
    assert not Series((1.0, 2.0)).drifting  # too few to know


def test_a_wide_series_is_unstable() -> None:
    assert Series((1.0, 1.0, 1.4)).unstable
    assert not Series((1.0, 1.001, 1.002)).unstable
    assert not Series((0.0,)).unstable
