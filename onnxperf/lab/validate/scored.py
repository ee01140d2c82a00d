"""Which methods are scored, and how well they order cards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from onnxperf.lab.baselines import BASELINES
from onnxperf.latency import Method
from onnxperf.methods import METHODS
from onnxperf.scoring.score import Pairs


class Scored(NamedTuple):
    """A method that is scored; `left_out`: with constants that no row of the card's die had a part in."""

    method: Method
    left_out: bool = False


LEFT_OUT, SHIPPED, SUM, ROOFLINE = "tile-wave, left out", "tile-wave", "sum", "roofline"
MLP_LEFT_OUT, MLP, LINEAR = "mlp, left out", "mlp", "linear"
ALL = "all"  # methods
_OF_ALL = METHODS | BASELINES
#: What is scored, by the name of its scores.
SCORED = {
    LEFT_OUT: Scored(_OF_ALL[SHIPPED], left_out=True),
    **{name: Scored(_OF_ALL[name]) for name in (SHIPPED, SUM, ROOFLINE)},
    MLP_LEFT_OUT: Scored(_OF_ALL[MLP], left_out=True),
    **{name: Scored(_OF_ALL[name]) for name in (MLP, LINEAR)},
}
#: Of these, what is scored on kernels: a sum of one kernel is that kernel.
OF_KERNELS = (LEFT_OUT, SHIPPED, ROOFLINE, MLP_LEFT_OUT, MLP, LINEAR)
#: What is scored on whole models: no open run is of a device with lines.
OF_MODELS = (LEFT_OUT, SHIPPED, SUM, ROOFLINE, MLP_LEFT_OUT)


def chosen(method: str, among: Sequence[str]) -> tuple[str, ...]:
    """What is scored by a method's name, with the default beside it; all for ALL."""
    return tuple(name for name in among if method in (ALL, SCORED[name].method.name) or name == LEFT_OUT)


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A measured run of a whole model beside its prediction, with constants that no such run had a part in.

    release: of the runtime, in the source's words, "" where it does not say; mode: "inference" or "training"; *_s:
    seconds of the run, or of the part of a training step that was measured; low_s, high_s: the ends of the interval.
    """

    model: str
    gpu: str
    runtime: str
    release: str
    precision: str
    mode: str
    source: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float


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
    orders = []
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
            orders.append(Order(kind, name, method, len(right), float(np.mean(right)), float(np.mean(signs))))
    return orders
