"""A series of times and its statistics: location, spread, tails, drift."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb, floor, sqrt
from operator import attrgetter, methodcaller
from statistics import fmean, median, stdev
from typing import Annotated, ClassVar

from onnxperf.ground.codec import MAX_NUMBER, Derived, Range

Seconds = Annotated[float, Range(0.0, digits=9)]  # written to the nanosecond
Ratio = Annotated[float, Range(-MAX_NUMBER, digits=6)]

UNSTABLE_CV = 0.05  # spread beyond which a series is no steady state
DRIFTING = 0.02  # change of the median from the first third to the last
CONFIDENCE = 0.95
EXACT = 1000  # samples up to which binomial sums are exact


@dataclass(frozen=True, slots=True)
class Series:
    """Times of one run each, in seconds, in the order they were taken; at least one.

    Raises ValueError where there is none.
    """

    DERIVED: ClassVar[Derived] = {
        **{f"{name}_seconds": (Seconds, attrgetter(name)) for name in ("median", "mean", "std")},
        **{f"p{q}_seconds": (Seconds, methodcaller("quantile", q / 100)) for q in (90, 95, 99)},
        "least_seconds": (Seconds, attrgetter("least")),
        "median_interval_seconds": (tuple[Seconds, Seconds] | None, attrgetter("median_interval")),
        **{name: (Ratio, attrgetter(name)) for name in ("cv", "drift")},
    }

    samples: tuple[Seconds, ...] = field(metadata={"key": "samples_seconds"})

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("a series holds at least one time")

    @property
    def mean(self) -> Seconds:
        """The arithmetic mean."""
        return fmean(self.samples)

    @property
    def std(self) -> Seconds:
        """The sample standard deviation (divided by n - 1); 0 for a single time."""
        return stdev(self.samples) if len(self.samples) > 1 else 0.0

    @property
    def median(self) -> Seconds:
        """The middle of the sorted samples."""
        return median(self.samples)

    @property
    def least(self) -> Seconds:
        """The fastest."""
        return min(self.samples)

    def quantile(self, q: float) -> float:
        """Linear between the two nearest samples: numpy's default, definition 7 of Hyndman and Fan (1996)."""
        ordered, at = sorted(self.samples), q * (len(self.samples) - 1)
        low = floor(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (at - low) * (ordered[high] - ordered[low])

    @property
    def median_interval(self) -> tuple[Seconds, Seconds] | None:
        """A distribution-free interval that holds the median with at least 95% confidence; its ends are two samples.

        None for fewer than six samples: not even their least and greatest would do.
        """
        rank = _rank(len(self.samples))
        if not rank:
            return None
        ordered = sorted(self.samples)
        return ordered[rank - 1], ordered[-rank]

    @property
    def cv(self) -> Ratio:
        """The coefficient of variation: the standard deviation over the mean."""
        return self.std / self.mean if self.mean else 0.0

    @property
    def drift(self) -> Ratio:
        """The median of the last third of the times over that of the first, less 1; 0 for fewer than three times."""
        first, last = self._ends
        return last.median / first.median - 1 if first.median else 0.0

    @property
    def unstable(self) -> bool:
        """Whether the times spread too widely for a steady state."""
        return self.cv > UNSTABLE_CV

    @property
    def drifting(self) -> bool:
        """Whether times moved from the first third to the last, and by more than chance moves their medians."""
        first, last = (s.median_interval for s in self._ends)
        if first is None or last is None or abs(self.drift) <= DRIFTING:
            return False
        return first[1] < last[0] or last[1] < first[0]

    @property
    def _ends(self) -> tuple[Series, Series]:
        third = len(self.samples) // 3 or len(self.samples)
        return Series(self.samples[:third]), Series(self.samples[-third:])


def _rank(count: int) -> int:
    """The largest r for which the median lies between the r-th least and the r-th greatest sample; 0 for no such r.

    Fewer than r of n samples lie below the median with probability sum over k < r of C(n, k) / 2^n, and as many above
    it; the two together may come to 1 - CONFIDENCE. For many samples by the normal approximation (Conover, Practical
    Nonparametric Statistics, 3rd edition, 1999, section 3.2).
    """
    if count > EXACT:
        return floor(count / 2 - 1.96 * sqrt(count) / 2)
    allowed, below, rank = (1 - CONFIDENCE) / 2 * 2**count, 0, 0
    while rank < count and (below := below + comb(count, rank)) <= allowed:
        rank += 1
    return rank
