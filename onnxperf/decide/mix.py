"""The cheapest mix: how many of each way to serve a model are rented, as a mixed-integer linear programme.

A way is one replica of a model on so many cards of a kind, which keeps the model's limit at rates between a least and a
most: batches take longer to fill at fewer requests, queues are longer at more. Replicas may differ: each gets its part
of the requests at random. There is such a division if and only if the rate lies between the sum of the least and the
sum of the most rates, and then every replica keeps the limit by itself, so that all requests together do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxperf.ground.errors import UsageError

SECONDS = 60.0  # that the solver takes at most
INFEASIBLE = 2  # of scipy's status


@dataclass(frozen=True, slots=True)
class Way:
    """One replica: of which model, `gpus` cards of which kind, what they cost in an hour, and its least and most
    requests a second; most_replicas: None for any number.
    """

    model: int
    gpu: str
    gpus: int
    usd: float
    least: float
    most: float
    most_replicas: int | None = None


@dataclass(frozen=True, slots=True)
class Mix:
    """How many replicas of each way; short: cards by kind that are missing, none where the mix can be; gap: the share
    by which a cheaper mix may be cheaper, 0 where there is none.
    """

    replicas: tuple[int, ...]
    short: Mapping[str, int]
    gap: float = 0.0


def cheapest(ways: Sequence[Way], qps: Sequence[float], available: Mapping[str, int]) -> Mix | None:
    """The cheapest mix that serves `qps` requests a second of each model with the cards that are available; those that
    are not named are without limit. Where there is none, one that lacks the cheapest further cards; None where no
    number of cards would do. Raises UsageError where the search takes too long, ImportError without scipy.
    """
    return _solved(ways, qps, available, beyond=False) or _solved(ways, qps, available, beyond=True)


def _solved(ways: Sequence[Way], qps: Sequence[float], available: Mapping[str, int], beyond: bool) -> Mix | None:
    """The cheapest mix, None where there is none; beyond: with further cards, of which the cheapest are lacking."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    kinds = [gpu for gpu in available if any(w.gpu == gpu for w in ways)]
    price = {gpu: min(w.usd / w.gpus for w in ways if w.gpu == gpu) for gpu in kinds}
    extra = len(kinds) if beyond else 0
    usd = np.array([0.0 if beyond else w.usd for w in ways] + [price[gpu] for gpu in kinds[:extra]])
    rows, low, high = np.zeros((2 * len(qps) + len(kinds), len(usd))), list[float](), list[float]()
    for i, w in enumerate(ways):
        rows[2 * w.model, i], rows[2 * w.model + 1, i] = w.most / qps[w.model], w.least / qps[w.model]
        if w.gpu in available:
            rows[2 * len(qps) + kinds.index(w.gpu), i] = w.gpus
    for j in range(extra):
        rows[2 * len(qps) + j, len(ways) + j] = -1
    low = [1.0, -np.inf] * len(qps) + [-np.inf] * len(kinds)
    high = [np.inf, 1.0] * len(qps) + [float(available[gpu]) for gpu in kinds]
    most = [np.inf if w.most_replicas is None else w.most_replicas for w in ways] + [np.inf] * extra
    answer = milp(
        usd, constraints=LinearConstraint(rows, low, high), integrality=np.ones(len(usd)),
        bounds=Bounds(0, np.array(most)), options={"time_limit": SECONDS, "mip_rel_gap": 0.0},
    )  # fmt: skip
    if answer.x is None:
        if answer.status != INFEASIBLE:
            raise UsageError(f"no mix of cards was found in {SECONDS:g} s: name fewer cards with --gpu")
        return None
    numbers = [round(x) for x in answer.x]
    short = {gpu: n for gpu, n in zip(kinds[:extra], numbers[len(ways) :], strict=True) if n}
    return Mix(tuple(numbers[: len(ways)]), short, max(0.0, float(answer.mip_gap or 0.0)))
