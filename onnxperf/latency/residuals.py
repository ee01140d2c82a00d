"""What a latency model misses on a card by the sizes of kernels: a table learned from measured kernels.

A library picks one of its kernels by the sizes of the work and by the card. No form of ours has its lists, but measured
kernels tell what the choice costs: log(measured / predicted) = sum of weights x hats. Hats are tents over the knots
of one size, or of two at once, so that the sum is bilinear in the logarithms of every two sizes between knots, and
constant beyond them. Each card with rows has weights of its own. Forms that were tried: derive/tensor.md and
derive/attention.md; derived by derive/residuals.py.
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
from onnxperf.latency.terms import BOUNDS, Array, KernelTerms
from op_models import Work

SAME_WIDTH = 1.1  # datasheets round clocks
PER_MILLE = 1e-3  # weights ship as whole numbers
OTHER = "other"  # the name of the weights for cards without rows


@dataclass(frozen=True, slots=True)
class Residuals:
    """Kernels whose residuals one table holds.

    path: of the constants that hold the weights: a text (`as_text`) for each card with rows, and one for others. knots:
    of each size, as the binary logarithm; holds: whether a work is one of these kernels; sizes: the place of works [n]
    on each axis, [n, axes].
    """

    path: str
    knots: tuple[tuple[float, ...], ...]
    holds: Callable[[Work], bool]
    sizes: Callable[[Sequence[Work]], Array]

    def hats(self, works: Sequence[Work]) -> Array:
        """How much of each weight counts for works [n], [n, weights]: 1, the tents of each size, those of each pair."""
        places = self.sizes(works)
        tents = [_tents(places[:, i], np.array(knots)) for i, knots in enumerate(self.knots)]
        pairs = [(a[:, :, None] * b[:, None, :]).reshape(len(works), -1) for a, b in combinations(tents, 2)]
        return np.concatenate([np.ones((len(works), 1)), *tents, *pairs], axis=1)

    def factors(self, works: Sequence[Work], cards: Cards, table: Mapping[str, str]) -> Array:
        """The factors [n, g] on what a model makes of works, 1 for those that are no such kernels.

        table: the weights, as the constants have them at `path`.
        """
        found = np.ones((len(works), len(cards.devices)))
        members = np.flatnonzero([self.holds(w) for w in works])
        weights = [weights_for(device, table) for device in cards.devices]
        if len(members) and any(len(w) for w in weights):
            hats = self.hats([works[i] for i in members.tolist()])
            known = [w if len(w) else np.zeros(hats.shape[1]) for w in weights]
            found[members] = np.exp(hats @ np.stack(known, axis=1))
        return found


def weights_for(device: Device, table: Mapping[str, str]) -> Array:
    """A card's own weights; where it has none, the mean of those of cards with the same SMs, else those of other cards;
    none [0] where the table is empty.
    """
    if own := table.get(device.id):
        return _numbers(own)
    alike = [w for name, w in table.items() if w and name != OTHER and _same_sms(gpu_specs.load(name), device)]
    return np.asarray(np.mean([_numbers(w) for w in alike], axis=0)) if alike else _numbers(table.get(OTHER, ""))


def _same_sms(one: Device, other: Device) -> bool:
    """Whether cards have one compute capability, by which libraries choose kernels, and tensor cores of one width:
    those of GeForce cards and of slowed-down ones are narrower.
    """
    widths = [d.dense_flops.get("tensor_fp16", 0.0) / (d.sms * d.tensor_hz) for d in (one, other)]
    return one.capability == other.capability and max(widths) <= SAME_WIDTH * min(widths)


@cache
def _numbers(weights: str) -> Array:
    return PER_MILLE * np.array(weights.split(), dtype=float)


def as_text(weights: Array) -> str:
    """Weights as constants hold them: whole thousandths in one text, which loads much faster than a list."""
    return " ".join(str(int(w)) for w in np.round(weights / PER_MILLE))


def scaled(terms: KernelTerms, factors: Array) -> KernelTerms:
    """Every time of the terms by factors [n, g], and with it the energy of arithmetic: rows at the power limit tell
    factors on what they take there. A detail names them where somebody asks.
    """
    times = {f: getattr(terms, f) * factors for f in (*BOUNDS, "seconds", "executed_share")}
    if terms.detail and (factors != 1).any():
        return terms._replace(**times, detail={**terms.detail, "measured efficiency": 1 / factors})
    return terms._replace(**times)


def _tents(places: Array, knots: Array) -> Array:
    """The share of each knot at places [n], linear between knots, [n, knots]."""
    at = np.clip(places, knots[0], knots[-1])
    before = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    share = (at - knots[before]) / (knots[before + 1] - knots[before])
    tents, rows = np.zeros((len(at), len(knots))), np.arange(len(at))
    tents[rows, before], tents[rows, before + 1] = 1 - share, share
    return tents
