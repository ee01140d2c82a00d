"""The weights of residuals: what measured kernels took beside the model, learned once its constants are fitted.

Ridge regression by hats of sizes: first what all cards have in common, each counting alike, then what each card has
beside that. Weights have normal priors around 0; the loss is the one of every fit (`onnxperf.fitting`). The share of
a row that the model makes counts: beside it a rig may have kernels of its own inside, which take what they take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one card or of all: their hats [r, w], each times the model's share of the row; log(measured /
    predicted) [r]; and how much each counts [r].
    """

    hats: Array
    miss: Array
    count: Array

    def counting_for(self, most: float) -> Rows:
        """The same rows, which count for their number together, or for `most`."""
        return replace(self, count=self.count / self.count.sum() * min(len(self.count), most))


def residuals(wanted: ConstantSet, tables: Sequence[Table], c: Constants, each_card: bool = True) -> dict[str, str]:
    """The weights of all residuals of a set by dotted path: of other cards, and of each if so asked.

    tables: the rows that the set was fitted to; c: with the constants that came out, and no weights.
    """
    return {path: w for of in wanted.residuals for path, w in _weights(wanted, of, tables, c, each_card).items()}


def _weights(
    wanted: ConstantSet, of: Residuals, tables: Sequence[Table], c: Constants, each_card: bool
) -> dict[str, str]:
    rows: dict[str, list[Rows]] = {}
    for t in tables:
        mine = t.take(np.array([of.holds(w) for w in t.works], dtype=bool))
        if not len(mine.works):
            continue
        drawn = thinned(mine, DRAWN)
        hats, miss, share = of.hats(drawn.works), *_missed(wanted, of, drawn, c)
        behind = len(mine.works) / len(drawn.works)  # of each row that was drawn
        for j, gpu in enumerate(drawn.gpus):
            at = np.isfinite(miss[:, j])
            found = Rows(hats[at] * share[at, j, None], miss[at, j], np.full(int(at.sum()), behind))
            rows.setdefault(gpu, []).append(found)
    if not rows:
        return {}
    cards = {gpu: _joined(found) for gpu, found in rows.items()}
    common = _ridge(_joined([r.counting_for(OTHERS[0]) for r in cards.values()]), OTHERS[1])
    learned = {OTHER: common}
    if each_card:
        for gpu, r in sorted(cards.items()):
            beside = replace(r, miss=r.miss - r.hats @ common).counting_for(OWN[0])
            learned[gpu] = common + _ridge(beside, OWN[1])
    return {f"{of.path}.{name}": as_text(w) for name, w in learned.items()}


def _missed(wanted: ConstantSet, of: Residuals, t: Table, c: Constants) -> tuple[Array, Array]:
    """log(measured / predicted) of a table's rows, and the share of them that the model makes, both [n, g]."""
    known, devices = kernels()[t.name], [gpu_specs.load(g) for g in t.gpus]
    inside = np.array([[known.overhead(t.rig, g, c) for g in t.gpus]])
    probe = {f"{of.path}.{OTHER}": as_text(PROBE * (np.arange(of.hats(t.works[:1]).shape[1]) == 0))}
    read = seconds(wanted, t, devices, c) + inside
    longer = seconds(wanted, t, devices, c.having(probe)) + inside
    miss = np.where(t.seconds > t.least_s, np.log(t.seconds / read), np.nan)
    return miss, np.asarray(np.log(longer / read) / PROBE)


def _joined(parts: Sequence[Rows]) -> Rows:
    hats, miss, count = ([getattr(p, f) for p in parts] for f in ("hats", "miss", "count"))
    return Rows(np.concatenate(hats), np.concatenate(miss), np.concatenate(count))


def _ridge(rows: Rows, spread: float) -> Array:
    """The weights [w] of hats by ridge regression, rows weighted anew by the soft loss."""
    prior = np.eye(rows.hats.shape[1]) * (SOFT / spread) ** 2
    counted, found = rows.count, np.zeros(rows.hats.shape[1])
    for _ in range(TIMES):
        by_row = rows.hats * counted[:, None]
        found = np.linalg.solve(by_row.T @ rows.hats + prior, by_row.T @ rows.miss)
        counted = rows.count / np.sqrt(1 + ((rows.miss - rows.hats @ found) / SOFT) ** 2)
    return np.asarray(found)
