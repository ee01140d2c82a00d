"""Residual errors of a latency model as a function of a kernel's sizes, for each card, learned from measured kernels.

A library picks one of its kernels by the sizes of the work and by the card. The formulas don't know these choices, so
their error is learned: log(measured / predicted) = sum of weights x basis functions. The basis is piecewise linear: hat
functions of the logarithm of one size, and products of the hat functions of two sizes. The sum is thus bilinear between
knots, and constant beyond the outermost knots. Each card with rows has its own weights, fitted by ridge regression
(derive/residuals.py). Forms that were tried: derive/tensor.md and derive/attention.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

import gpu_specs
from gpu_specs import Device
from onnxperf.latency.cards import Cards
from onnxperf.latency.terms import BOUNDS, RUNNER_UP, Array, KernelTerms
from op_models import Work

SAME_WIDTH = 1.1  # largest ratio of FLOPs a clock and SM that counts as equal: datasheets round clocks
PER_MILLE = 1e-3  # unit of the weights, which ship as whole numbers
OTHER = "other"  # the name of the weights for cards without rows


@dataclass(frozen=True, slots=True)
class Residuals:
    """The kernels that share one table of residuals, and the table's axes.

    path: dotted path of the constants that hold the weights: a text (`as_text`) for each card with rows, and one for
    other cards. knots: of each axis, mostly log2 of a size. holds: whether a work is one of these kernels. sizes: the
    coordinates of works [n] on the axes, [n, axes].
    """

    path: str
    knots: tuple[tuple[float, ...], ...]
    holds: Callable[[Work], bool]
    sizes: Callable[[Sequence[Work]], Array]

    def hats(self, works: Sequence[Work]) -> Array:
        """The basis functions at works [n], [n, weights]: 1, the hat functions of each axis, products of two axes'."""
        places = self.sizes(works)
        tents = [_tents(places[:, i], np.array(knots)) for i, knots in enumerate(self.knots)]
        pairs = [(a[:, :, None] * b[:, None, :]).reshape(len(works), -1) for a, b in combinations(tents, 2)]
        return np.concatenate([np.ones((len(works), 1)), *tents, *pairs], axis=1)

    def factors(self, works: Sequence[Work], cards: Cards, table: Mapping[str, str]) -> Array:
        """Measured over predicted time of works, [n, g]; 1 for works that are not such kernels.

        table: the weights by card, as the constants have them at `path`.
        """
        factors = np.ones((len(works), len(cards.devices)))
        members = np.flatnonzero([self.holds(w) for w in works])
        weights = [weights_for(device, table) for device in cards.devices]
        if len(members) and any(len(w) for w in weights):
            hats = self.hats([works[i] for i in members.tolist()])
            columns = [w if len(w) else np.zeros(hats.shape[1]) for w in weights]
            factors[members] = np.exp(_products(hats, np.stack(columns, axis=1)))
        return factors


def weights_for(device: Device, table: Mapping[str, str]) -> Array:
    """A card's own weights; without them the mean over cards with the same SMs; else the weights for other cards.

    An empty array where the table is empty.
    """
    if text := table.get(device.id):
        return _numbers(text)
    alike = [w for name, w in table.items() if w and name != OTHER and _same_sms(gpu_specs.load(name), device)]
    return np.asarray(np.mean([_numbers(w) for w in alike], axis=0)) if alike else _numbers(table.get(OTHER, ""))


def _same_sms(card: Device, other: Device) -> bool:
    """Whether cards have the same compute capability, by which libraries choose kernels, and the same FLOPs a clock and
    SM on tensor cores: GeForce cards and those held back for export have fewer.
    """
    widths = [d.dense_flops.get("tensor_fp16", 0.0) / (d.sms * d.tensor_hz) for d in (card, other)]
    return card.capability == other.capability and max(widths) <= SAME_WIDTH * min(widths)


@cache
def _numbers(weights: str) -> Array:
    return PER_MILLE * np.array(weights.split(), dtype=float)


def as_text(weights: Array) -> str:
    """Weights as the constants hold them: whole thousandths in one string, which loads much faster than a list."""
    return " ".join(str(int(w)) for w in np.round(weights / PER_MILLE))


def scaled(terms: KernelTerms, factors: Array) -> KernelTerms:
    """The terms with every time, and the energy of arithmetic, multiplied by factors [n, g]. The energy too, since rows
    at the power limit measured the factor on their time at that limit. `detail` has the inverse where there is one.
    """
    if RUNNER_UP in terms.detail:
        terms = terms._replace(detail={**terms.detail, RUNNER_UP: terms.detail[RUNNER_UP] * factors})
    times = {f: getattr(terms, f) * factors for f in (*BOUNDS, "seconds", "executed_share")}
    if terms.detail and (factors != 1).any():
        return terms._replace(**times, detail={**terms.detail, "measured efficiency": 1 / factors})
    return terms._replace(**times)


def _products(hats: Array, weights: Array) -> Array:
    """hats @ weights, [n, g], one basis function after the other: a BLAS adds them in another order for each number of
    cards, which changes the last bits. Most of the hats [n, weights] are 0 and left out.
    """
    most = int((hats != 0).sum(axis=1).max())
    terms = np.argsort(hats == 0, axis=1, kind="stable")[:, :most]  # those that are not 0 come first, in order
    total = np.zeros((len(hats), weights.shape[1]))
    for at in terms.T:
        total += np.take_along_axis(hats, at[:, None], axis=1) * weights[at]
    return total


def _tents(places: Array, knots: Array) -> Array:
    """The hat function of each knot at coordinates [n]: 1 at its knot, linear to 0 at the next, [n, knots]."""
    at = np.clip(places, knots[0], knots[-1])
    before = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    share = (at - knots[before]) / (knots[before + 1] - knots[before])
    tents, rows = np.zeros((len(at), len(knots))), np.arange(len(at))
    tents[rows, before], tents[rows, before + 1] = 1 - share, share
    return tents
