"""A series of times, and what it says: location, spread, tails, drift."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, floor, sqrt
from statistics import fmean, median, stdev

UNSTABLE_CV = 0.05  # spread beyond which a series is no steady state
DRIFTING = 0.02  # change of the median from the first third to the last
CONFIDENCE = 0.95
EXACT = 1000  # samples up to which binomial sums are exact


@dataclass(frozen=True, slots=True)
class Series:
    """Times of one run each, in seconds, in the order they were taken; at least one.

    Raises ValueError where there is none.
    """

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("a series holds at least one time")

    @property
    def mean(self) -> float:
        """The arithmetic mean."""
        return fmean(self.samples)

    @property
    def std(self) -> float:
        """The sample standard deviation (n - 1 below the line); 0 of a single time."""
        return stdev(self.samples) if len(self.samples) > 1 else 0.0

    @property
    def median(self) -> float:
        """The middle of the sorted samples."""
        return median(self.samples)

    @property
    def least(self) -> float:
        """The fastest."""
        return min(self.samples)

    @property
    def p90(self) -> float:
        """The quantile 0.9."""
        return self.quantile(0.90)

    @property
    def p95(self) -> float:
        """The quantile 0.95."""
        return self.quantile(0.95)

    @property
    def p99(self) -> float:
        """The quantile 0.99."""
        return self.quantile(0.99)

    def quantile(self, q: float) -> float:
        """Linear between the two nearest samples: numpy's default, definition 7 of Hyndman and Fan (1996)."""
        ordered, at = sorted(self.samples), q * (len(self.samples) - 1)
        low = floor(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (at - low) * (ordered[high] - ordered[low])

    @property
    def median_interval(self) -> tuple[float, float] | None:
        """Two samples that hold the median with at least 95% confidence, whatever the distribution.

        None for fewer than six samples: not even their least and greatest do.
        """
        rank = _rank(len(self.samples))
        if not rank:
            return None
        ordered = sorted(self.samples)
        return ordered[rank - 1], ordered[-rank]

    @property
    def cv(self) -> float:
        """The coefficient of variation: the standard deviation over the mean."""
        return self.std / self.mean if self.mean else 0.0

    @property
    def drift(self) -> float:
        """The median of the last third over that of the first, less 1; 0 of fewer than three times."""
        first, last = self._ends
        return last.median / first.median - 1 if first.median else 0.0

    @property
    def unstable(self) -> bool:
        """Whether the times spread more than those of a steady state do."""
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
    """The largest r for which the r-th least and r-th greatest sample hold the median; 0 where there is none.

    Fewer than r of n samples lie below the median with the probability sum of C(n, k) / 2^n for k < r; both ends
    together may take 1 - CONFIDENCE. For many samples by the normal approximation (Conover, Practical Nonparametric
    Statistics, 3rd edition, 1999, section 3.2).
    """
    if count > EXACT:
        return floor(count / 2 - 1.96 * sqrt(count) / 2)
    allowed, below, rank = (1 - CONFIDENCE) / 2 * 2**count, 0, 0
    while rank < count and (below := below + comb(count, rank)) <= allowed:
        rank += 1
    return rank
