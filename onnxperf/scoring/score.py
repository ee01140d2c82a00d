"""Scores: how far predictions are from measurements, how honest their ranges are, how well they order cards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from onnxperf.fitting import Array
from onnxperf.latency import Method
from onnxperf.methods import METHODS


class Scored(NamedTuple):
    """A method that is scored; `left_out`: with constants that no row of the card's die had a part in."""

    method: Method
    left_out: bool = False


LEFT_OUT, SHIPPED, SUM, ROOFLINE = "tile-wave, left out", "tile-wave", "sum", "roofline"
MLP_LEFT_OUT, MLP, LINEAR = "mlp, left out", "mlp", "linear"
ALL = "all"  # methods
#: What is scored, by the name of its scores.
SCORED = {
    LEFT_OUT: Scored(METHODS[SHIPPED], left_out=True),
    **{name: Scored(METHODS[name]) for name in (SHIPPED, SUM, ROOFLINE)},
    MLP_LEFT_OUT: Scored(METHODS[MLP], left_out=True),
    **{name: Scored(METHODS[name]) for name in (MLP, LINEAR)},
}
#: Of these, what is scored on kernels: a sum of one kernel is that kernel.
OF_KERNELS = (LEFT_OUT, SHIPPED, ROOFLINE, MLP_LEFT_OUT, MLP, LINEAR)
#: What is scored on whole models: no open run is of a device with lines.
OF_MODELS = (LEFT_OUT, SHIPPED, SUM, ROOFLINE, MLP_LEFT_OUT)


def chosen(method: str, among: Sequence[str]) -> tuple[str, ...]:
    """What is scored by a method's name, with the default beside it; all for ALL."""
    return tuple(name for name in among if method in (ALL, SCORED[name].method.name) or name == LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Score:
    """How far a method is from the rows of one operator class or model.

    gpu: the card, or "" where cards are averaged, each with the same weight. rows: "test" for those that the source
    itself kept back, "rest" for the others. mape: mean of |predicted / measured - 1|; bias: the median of predicted /
    measured, less 1; coverage: the share of rows within the stated range; half_width: the median of that range's half,
    as a share of the estimate (both None where a method states no range).
    """

    kind: str
    name: str
    gpu: str
    rows: str
    method: str
    count: int
    mape: float
    bias: float
    coverage: float | None
    half_width: float | None


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows [k] of one class or model on one card beside one method's answers; nan where no range is stated.

    keys: what was run; rows of two cards with the same key are of the same work.
    """

    name: str
    gpu: str
    method: str
    keys: Array
    measured: Array
    predicted: Array
    low: Array
    high: Array
    test: Array


def score(kind: str, pairs: Iterable[Pairs], by_card: bool = True) -> list[Score]:
    """The scores of each name, card and method, then those averaged over cards; or, where not `by_card`, of each name
    and method, all rows alike.
    """
    alike: dict[tuple[str, str, str], list[Pairs]] = {}
    for p in pairs:
        alike.setdefault((p.name, p.gpu * by_card, p.method), []).append(p)
    found: list[Score] = []
    for (name, gpu, method), parts in alike.items():
        columns = (np.concatenate([getattr(p, c) for p in parts]) for c in ("measured", "predicted", "low", "high"))
        measured, predicted, low, high = columns
        test = np.concatenate([p.test for p in parts])
        for rows, taken in (("test", test), ("rest", ~test)):
            if taken.any():
                terms = _terms(measured[taken], predicted[taken], low[taken], high[taken])
                found.append(Score(kind, name, gpu, rows, method, int(taken.sum()), *terms))
    return found + over_cards(found) if by_card else found


Terms = tuple[float, float, float | None, float | None]


def _terms(measured: Array, predicted: Array, low: Array, high: Array) -> Terms:
    ratio = predicted / measured
    mape, bias = float(np.mean(np.abs(ratio - 1))), float(np.exp(np.median(np.log(ratio)))) - 1
    if np.isnan(low).any():
        return mape, bias, None, None
    within = (low <= measured) & (measured <= high)
    return mape, bias, float(np.mean(within)), float(np.median((high - low) / (2 * predicted)))


def over_cards(scores: Iterable[Score]) -> list[Score]:
    """Scores of the same rows and method as one, every card with the same weight."""
    alike: dict[tuple[str, str, str, str], list[Score]] = {}
    for s in scores:
        alike.setdefault((s.kind, s.name, s.rows, s.method), []).append(s)

    def mean(values: Sequence[float | None]) -> float | None:
        stated = [v for v in values if v is not None]
        return float(np.mean(stated)) if len(stated) == len(values) else None

    return [
        Score(
            kind, name, "", rows, method, sum(s.count for s in same),
            float(np.mean([s.mape for s in same])), float(np.mean([s.bias for s in same])),
            mean([s.coverage for s in same]), mean([s.half_width for s in same]),
        )
        for (kind, name, rows, method), same in alike.items()
    ]  # fmt: skip


WITHIN = 2.0  # times: which of two cards is faster is no question where one has several times the other's rates


@dataclass(frozen=True, slots=True)
class Order:
    """How often a method is right about which of two cards is faster: the share of `count` pairs of cards whose times,
    measured of the same work or run, differ by less than a factor of WITHIN. Where both come out the same: half.

    tau: Kendall's rank correlation of measured and predicted times, over all pairs of cards however far apart.
    """

    kind: str
    name: str
    method: str
    count: int
    right: float
    tau: float


def order(kind: str, pairs: Iterable[Pairs]) -> list[Order]:
    """How well each method orders cards by name, over all rows that two cards share."""
    alike: dict[tuple[str, str], list[Pairs]] = {}
    for p in pairs:
        alike.setdefault((p.name, p.method), []).append(p)
    found = []
    for (name, method), parts in alike.items():
        right, signs = list[float](), list[float]()
        for a, b in combinations(parts, 2):
            _, i, j = np.intersect1d(a.keys, b.keys, return_indices=True)
            measured, predicted = np.log(a.measured[i] / b.measured[j]), np.log(a.predicted[i] / b.predicted[j])
            other = (measured != 0) & (a.gpu != b.gpu)
            signs += np.sign(measured * predicted)[other].tolist()
            close = other & (np.abs(measured) < np.log(WITHIN))
            right += (0.5 + 0.5 * np.sign(measured * predicted))[close].tolist()
        if right:
            found.append(Order(kind, name, method, len(right), float(np.mean(right)), float(np.mean(signs))))
    return found
