"""How long a request takes at replicas of a card: until its batch is full, until the batch's turn, and the run.

Requests arrive at random (Poisson). They are split at random among the replicas, so that each has Poisson arrivals and
a queue of its own; it runs full batches, one after the other, and every run takes the same time: M/D/1 for a batch of
1, E_b/D/1 for a batch of b, which waits as M/D/b does.

The mean is Pollaczek's and Khinchine's for a batch of 1, Kingman's approximation for others. Percentiles are exact, by
Crommelin's argument for M/D/c (1932; Franx 2001, "A simple solution for the M/D/c waiting time distribution"), with
what a request waits for its own batch. Let X be the requests that wait at some time, those of a batch that is not full
yet included, S a run, and (k - 1) S <= x < k S. A request that comes u = k S - x later finds m = X + N(L u) before it,
N(m) of a Poisson distribution. The batches before its own are done x after it came if and only if they are fewer than
k, m < k b; it is number m mod b in its batch, which is full by then if as many more as it lacks have come. X at S later
is Y = X + N(L S), less b where that is b or more, so that its generating function is
Y_b(z) (z^b - 1) / (z^b - exp(L S (z - 1))), with Y_b a polynomial of degree b - 1 that is 0 at the roots of the
denominator inside the unit circle (Janssen and van Leeuwaarden 2005, "Analytic computation schemes for the
discrete-time bulk service queue"). It is inverted by a discrete Fourier transform.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil, log, log1p, log2
from typing import Any

import numpy as np

MOST_REPLICAS = 10_000
MOST_LOAD = 0.9999  # of a replica, for a percentile
LEAST_LOAD = 1e-6  # of a replica whose rate is searched for, and what is left of it at its highest
TAIL = 40  # exp(-TAIL) of the requests find more before them than are counted
HALVINGS, NEWTON = 40, 60  # steps of bisection and of Newton's method
SEARCHED = 28  # steps by which a rate is searched for
Array = np.ndarray[Any, Any]


def mean_latency(replicas: Array, run_s: float, batch: int, qps: float) -> Array:
    """Seconds from a request to its answer in the mean, for numbers of replicas; infinite where too few keep up.

    Requests come to a replica at L = qps / replicas. A batch of b is full after (b - 1) / 2L in the mean; full batches
    come at L / b to a server that takes S for each, rho = L S / b. One request a batch waits rho S / (2 (1 - rho))
    (M/D/1, Pollaczek and Khinchine). The times between full batches vary b times less: so do waits (Kingman).
    """
    rate = qps / replicas
    rho = rate * run_s / batch
    with np.errstate(divide="ignore", invalid="ignore"):
        waiting = np.where(rho < 1, rho * run_s / (2 * (1 - rho)) / batch, np.inf)
    return np.asarray(filling(replicas, batch, qps) + waiting + run_s)


def filling(replicas: Any, batch: int, qps: float) -> Any:
    """Seconds in the mean until the batch of a request is full."""
    return (batch - 1) * replicas / (2 * qps)


class Replica:
    """A replica that runs batches of `batch` in `run_s` seconds each, and gets requests at `rate` a second.

    Its load must be below MOST_LOAD.
    """

    def __init__(self, run_s: float, batch: int, rate: float):
        self.run_s, self.batch, self.rate = run_s, batch, rate
        load = rate * run_s / batch
        count = 2 ** ceil(log2(TAIL / log1p(_growth(load)) + 4 * batch + 64))  # more never wait
        self._z = np.exp(2j * np.pi * np.arange(count) / count)
        power, below = self._z**batch, np.ones(2 * batch, complex)
        for root in _roots(load, batch):  # Y_b at 2 b points, to have its coefficients
            below *= (np.exp(1j * np.pi * np.arange(2 * batch) / batch) - root) / (1 - root)
        below = np.fft.ifft(np.fft.fft(below)[:batch] / (2 * batch), count) * count
        with np.errstate(divide="ignore", invalid="ignore"):
            waiting = (1 - load) * below * (power - 1) / (power - np.exp(rate * run_s * (self._z - 1)))
        self._waiting = np.where(np.arange(count), waiting, 1.0)  # the generating function of X, at z

    def within(self, seconds: float) -> tuple[float, float]:
        """The shares of requests for which the batches before are done in up to these seconds, and whose run begins by
        then, as their own batch is full, too.
        """
        runs = int(seconds / self.run_s) + 1
        before = self.rate * max(runs * self.run_s - seconds, 0.0)
        shares = np.fft.fft(self._waiting * np.exp(before * (self._z - 1))).real / len(self._z)
        shares = shares[: runs * self.batch]
        full = np.resize(_at_least(self.rate * seconds, self.batch)[::-1], len(shares))
        return float(shares.sum()), float((shares * full).sum())

    def percentile(self, percentage: float) -> float:
        """Seconds in which this percentage of requests is answered."""
        low, high = 0.0, self.run_s
        while self.within(high)[1] < percentage / 100:
            low, high = high, 2 * high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.within(middle)[1] >= percentage / 100 else (middle, high)
        return self.run_s + high


@dataclass(frozen=True, slots=True)
class Target:
    """The seconds that requests may take, `qps` of them a second: in the mean, or this percentage of them."""

    limit_s: float
    qps: float
    percentile: float | None = None

    @property
    def latency(self) -> str:
        """What it limits."""
        return "mean latency" if self.percentile is None else f"p{self.percentile:g} latency"

    def seconds(self, replicas: int, run_s: float, batch: int) -> float:
        """What it limits, with this number of replicas, which must keep up."""
        if self.percentile is None:
            return float(mean_latency(np.array([replicas]), run_s, batch, self.qps)[0])
        return Replica(run_s, batch, self.qps / replicas).percentile(self.percentile)


def fewest_that_keep_up(run_s: float, batch: int, target: Target) -> int:
    """The fewest replicas that run as many requests as come; for a percentile, with a load of up to MOST_LOAD."""
    return int(target.qps * run_s / batch / (1 if target.percentile is None else MOST_LOAD)) + 1


def fewest(run_s: float, batch: int, target: Target) -> tuple[int, float] | None:
    """The fewest replicas that keep a target, and the latency that it limits; None where up to MOST_REPLICAS do not."""
    least = fewest_that_keep_up(run_s, batch, target)
    if least > MOST_REPLICAS or run_s > target.limit_s:
        return None
    if target.percentile is None:
        numbers = np.arange(least, MOST_REPLICAS + 1)
        kept = np.flatnonzero(mean_latency(numbers, run_s, batch, target.qps) <= target.limit_s)
        replicas = int(numbers[kept[0]]) if kept.size else None
    else:
        replicas = _fewest_of_percentile(least, run_s, batch, target, target.percentile / 100)
    return None if replicas is None else (replicas, target.seconds(replicas, run_s, batch))


def rates(run_s: float, batch: int, target: Target) -> tuple[float, float] | None:
    """The least and the most requests a second, of those that come, at which one replica keeps a target; None where it
    does at no rate.

    At fewer than the least a batch takes too long to fill, at more than the most queues are too long; between them, the
    mean latency falls and then rises, and the share of requests that keep the limit rises and then falls.
    """
    if run_s > target.limit_s:
        return None

    @cache
    def excess(rate: float) -> float:
        """By how much the limit is missed, 0 or less where it is kept."""
        if target.percentile is None:
            return float(mean_latency(np.array([1]), run_s, batch, rate)[0]) - target.limit_s
        return target.percentile / 100 - Replica(run_s, batch, rate).within(target.limit_s - run_s)[1]

    load = 1 - LEAST_LOAD if target.percentile is None else MOST_LOAD * (1 - LEAST_LOAD)
    highest = min(load * batch / run_s, target.qps)
    lowest = LEAST_LOAD * highest
    low, high = lowest, highest
    for _ in range(SEARCHED if batch > 1 else 0):  # a batch of 1 is full at once: the fewer requests, the better
        first_third, last_third = low ** (2 / 3) * high ** (1 / 3), low ** (1 / 3) * high ** (2 / 3)
        low, high = (low, last_third) if excess(first_third) <= excess(last_third) else (first_third, high)
        if excess(low) <= 0:
            break
    if excess(low) > 0:
        return None
    return 0.0 if batch == 1 else _edge(low, lowest, excess), _edge(low, highest, excess)


def _edge(inside: float, outside: float, excess: Callable[[float], float]) -> float:
    """The last rate at which a limit is kept, on the way from one at which it is."""
    if excess(outside) <= 0:
        return outside
    for _ in range(SEARCHED):
        middle = (inside * outside) ** 0.5
        inside, outside = (middle, outside) if excess(middle) <= 0 else (inside, middle)
    return inside


def _fewest_of_percentile(least: int, run_s: float, batch: int, target: Target, share: float) -> int | None:
    """The fewest replicas, at least `least`, with which this share of requests keeps the limit.

    The more replicas, the sooner a batch has its turn and the later it is full: each share alone is monotone, and that
    of both rises to a peak between their bounds.
    """
    spare = target.limit_s - run_s

    @cache
    def at(replicas: int) -> tuple[float, float]:
        return Replica(run_s, batch, target.qps / replicas).within(spare)

    def late(replicas: int) -> bool:
        return bool(_at_least(target.qps / replicas * spare, batch).mean() < share)

    most = first(least, MOST_REPLICAS, late) - 1  # beyond, too few batches are full in time
    low = first(least, most, lambda n: at(n)[0] >= share)
    if low > most:
        return None
    peak, end = low, most
    while peak < end and at(peak)[1] < share:
        middle = (peak + end) // 2
        peak, end = (middle + 1, end) if at(middle)[1] < at(middle + 1)[1] else (peak, middle)
    return first(low, peak, lambda n: at(n)[1] >= share) if at(peak)[1] >= share else None


def first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first whole number for which something holds that stays so; high + 1 where it does for none."""
    high += 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _growth(load: float) -> float:
    """The positive y with load y = log(1 + y), by Newton from above: each that waits is 1 + y times less likely."""
    y = 4 / load * log(4 / load)
    for _ in range(NEWTON):
        y -= (load * y - log1p(y)) / (load - 1 / (1 + y))
    return y


def _roots(load: float, batch: int) -> Array:
    """The roots of z^b = exp(load b (z - 1)) inside the unit circle, by Newton: z = w exp(load (z - 1)), w^b = 1."""
    w = np.exp(2j * np.pi * np.arange(1, batch) / batch)
    z = w * np.exp(-load)
    for _ in range(NEWTON):
        value = w * np.exp(load * (z - 1))
        z = z - (z - value) / (1 - load * value)
    return np.asarray(z)


def _at_least(mean: float, count: int) -> Array:
    """P(N >= k) for k from 0 to count - 1, N of a Poisson distribution with this mean."""
    if not mean:
        return np.append(1.0, np.zeros(count - 1))
    k = np.arange(count - 1)
    logs = k * log(mean) - mean - np.cumsum(np.log(np.maximum(k, 1)))
    return np.asarray(np.append(1.0, 1 - np.minimum(np.cumsum(np.exp(logs)), 1.0)))
