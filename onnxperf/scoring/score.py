"""Scores: how far predictions are from measurements, and how honest their ranges are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxperf.ground.fitting import Array


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
    scores: list[Score] = []
    for (name, gpu, method), parts in alike.items():
        columns = (np.concatenate([getattr(p, c) for p in parts]) for c in ("measured", "predicted", "low", "high"))
        measured, predicted, low, high = columns
        test = np.concatenate([p.test for p in parts])
        for rows, taken in (("test", test), ("rest", ~test)):
            if taken.any():
                terms = _terms(measured[taken], predicted[taken], low[taken], high[taken])
                scores.append(Score(kind, name, gpu, rows, method, int(taken.sum()), *terms))
    return scores + over_cards(scores) if by_card else scores


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
