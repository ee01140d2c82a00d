"""The weights of residuals: what measured kernels took beside the model, learned once its constants are fitted.

Ridge regression by hats of sizes: first what all cards have in common, each counting alike, then what each card has
beside that. Weights have normal priors around 0; the loss is the one of every fit (`onnxperf.fitting`). The share of
a row that the model makes counts: beside it a rig may have kernels of its own inside, which take what they take.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import gpu_specs
from onnxperf.datasets import Table, kernels
from onnxperf.derive.fit import seconds, thinned
from onnxperf.fitting import SOFT, Array
from onnxperf.latency import Constants
from onnxperf.latency.constants import ConstantSet
from onnxperf.latency.residuals import OTHER, Residuals, as_text

DRAWN = 3000  # works of a table at most
OTHERS, OWN = (500, 0.018), (1500, 0.058)  # rows that a card counts for at most, and the prior's standard deviation
TIMES = 4  # that rows are weighted anew: rows that are far off count less
PROBE = 0.1  # a logarithm: what a row's share is told by


def residuals(
    wanted: ConstantSet, tables: Sequence[Table], c: Constants, each_card: bool = True
) -> dict[str, str]:
    """The weights of all residuals of a set by dotted path: of other cards, and of each if so asked.

    tables: the rows that the set was fitted to; c: with the constants that came out, and no weights.
    """
    return {path: w for of in wanted.residuals for path, w in _weights(wanted, of, tables, c, each_card).items()}


def _weights(
    wanted: ConstantSet, of: Residuals, tables: Sequence[Table], c: Constants, each_card: bool
) -> dict[str, str]:
    rows: dict[str, list[tuple[Array, Array, Array]]] = {}
    for t in tables:
        mine = t.take(np.array([of.holds(w) for w in t.works], dtype=bool))
        if not len(mine.works):
            continue
        drawn = thinned(mine, DRAWN)
        hats, miss, share = of.hats(drawn.works), *_missed(wanted, of, drawn, c)
        behind = len(mine.works) / len(drawn.works)  # of each row that was drawn
        for j, gpu in enumerate(drawn.gpus):
            at = np.isfinite(miss[:, j])
            found = hats[at] * share[at, j, None], miss[at, j], np.full(int(at.sum()), behind)
            rows.setdefault(gpu, []).append(found)
    if not rows:
        return {}
    cards = {gpu: tuple(np.concatenate(part) for part in zip(*found, strict=True)) for gpu, found in rows.items()}
    everything = [(x, y, _of_all(w, OTHERS[0])) for x, y, w in cards.values()]
    common = _ridge(*(np.concatenate(part) for part in zip(*everything, strict=True)), OTHERS[1])
    found = {OTHER: common}
    if each_card:
        for gpu, (x, y, w) in sorted(cards.items()):
            found[gpu] = common + _ridge(x, y - x @ common, _of_all(w, OWN[0]), OWN[1])
    return {f"{of.path}.{name}": as_text(w) for name, w in found.items()}


def _missed(wanted: ConstantSet, of: Residuals, t: Table, c: Constants) -> tuple[Array, Array]:
    """log(measured / predicted) of a table's rows, and the share of them that the model makes, both [n, g]."""
    known, devices = kernels()[t.name], [gpu_specs.load(g) for g in t.gpus]
    inside = np.array([[known.overhead(t.rig, g, c) for g in t.gpus]])
    probe = {f"{of.path}.{OTHER}": as_text(PROBE * (np.arange(of.hats(t.works[:1]).shape[1]) == 0))}
    read = seconds(wanted, t, devices, c) + inside
    longer = seconds(wanted, t, devices, c.having(probe)) + inside
    miss = np.where(t.seconds > t.least_s, np.log(t.seconds / read), np.nan)
    return miss, np.log(longer / read) / PROBE


def _of_all(weights: Array, most: float) -> Array:
    """Weights of a card's rows that add up to their number, or to `most`."""
    return weights / weights.sum() * min(len(weights), most)


def _ridge(hats: Array, miss: Array, weights: Array, spread: float) -> Array:
    """The weights [w] of hats [r, w] by ridge regression to misses [r], rows weighted anew by the soft loss."""
    prior = np.eye(hats.shape[1]) * (SOFT / spread) ** 2
    counted, found = weights, np.zeros(hats.shape[1])
    for _ in range(TIMES):
        by_row = hats * counted[:, None]
        found = np.linalg.solve(by_row.T @ hats + prior, by_row.T @ miss)
        counted = weights / np.sqrt(1 + ((miss - hats @ found) / SOFT) ** 2)
    return np.asarray(found)
