"""Fit the weights of residuals (`onnxperf.latency.residuals`) by ridge regression, after a model's constants are
fitted.

First the weights that all cards have in common, each card counting alike, then each card's deviations from these. The
ridge penalty is a normal prior around 0; the loss is that of every fit (`onnxperf.ground.fitting`), by iteratively
reweighted least squares. A measured time may include more than the modelled kernel, such as other kernels of the
benchmark, which residuals don't scale: so basis functions are multiplied by the modelled kernel's share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

import gpu_specs
from onnxperf.ground.fitting import SOFT, Array
from onnxperf.lab.datasets import Table, kernels
from onnxperf.lab.derive.fit import seconds, thinned
from onnxperf.latency import Constants
from onnxperf.latency.constants import ConstantSet
from onnxperf.latency.residuals import OTHER, Residuals, as_text

DRAWN = 3000  # most works of a table
OTHERS, OWN = (500, 0.018), (1500, 0.058)  # most rows that a card counts for, and the prior's standard deviation
TIMES = 4  # iterations of reweighting, by which outliers count less
PROBE = 0.1  # change of log(time) of the modelled kernel, to measure its share of a row by differences


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one card or of all.

    hats [r, w]: the basis functions, times the modelled kernel's share of the row; miss [r]: log(measured / predicted);
    count [r]: the weight of each row.
    """

    hats: Array
    miss: Array
    count: Array

    def counting_for(self, most: float) -> Rows:
        """The same rows with weights that sum up to their number, or to `most` if that is less."""
        return replace(self, count=self.count / self.count.sum() * min(len(self.count), most))


def residuals(wanted: ConstantSet, tables: Sequence[Table], c: Constants, each_card: bool = True) -> dict[str, str]:
    """The weights of all residuals of a set by dotted path: those for other cards and, with `each_card`, each card's.

    tables: the rows that the set was fitted to; c: the fitted constants, without weights of residuals.
    """
    return {path: w for kind in wanted.residuals for path, w in _weights(wanted, kind, tables, c, each_card).items()}


def _weights(
    wanted: ConstantSet, kind: Residuals, tables: Sequence[Table], c: Constants, each_card: bool
) -> dict[str, str]:
    rows: dict[str, list[Rows]] = {}
    for t in tables:
        mine = t.take(np.array([kind.holds(w) for w in t.works], dtype=bool))
        if not len(mine.works):
            continue
        drawn = thinned(mine, DRAWN)
        hats, miss, share = kind.hats(drawn.works), *_missed(wanted, kind, drawn, c)
        behind = len(mine.works) / len(drawn.works)  # rows that each drawn row stands for
        for j, gpu in enumerate(drawn.gpus):
            at = np.isfinite(miss[:, j])
            card_rows = Rows(hats[at] * share[at, j, None], miss[at, j], np.full(int(at.sum()), behind))
            rows.setdefault(gpu, []).append(card_rows)
    if not rows:
        return {}
    cards = {gpu: _joined(parts) for gpu, parts in rows.items()}
    common = _ridge(_joined([r.counting_for(OTHERS[0]) for r in cards.values()]), OTHERS[1])
    learned = {OTHER: common}
    if each_card:
        for gpu, r in sorted(cards.items()):
            beside = replace(r, miss=r.miss - r.hats @ common).counting_for(OWN[0])
            learned[gpu] = common + _ridge(beside, OWN[1])
    return {f"{kind.path}.{name}": as_text(w) for name, w in learned.items()}


def _missed(wanted: ConstantSet, kind: Residuals, t: Table, c: Constants) -> tuple[Array, Array]:
    """log(measured / predicted) of a table's rows, and the share of the time that residuals scale, both [n, g]."""
    measured, devices = kernels()[t.name], [gpu_specs.load(g) for g in t.gpus]
    inside = np.array([[measured.overhead(t.rig, g, c) for g in t.gpus]])
    probe = {f"{kind.path}.{OTHER}": as_text(PROBE * (np.arange(kind.hats(t.works[:1]).shape[1]) == 0))}
    read = seconds(wanted, t, devices, c) + inside
    longer = seconds(wanted, t, devices, c.having(probe)) + inside
    miss = np.where(t.seconds > t.least_s, np.log(t.seconds / read), np.nan)
    return miss, np.asarray(np.log(longer / read) / PROBE)


def _joined(parts: Sequence[Rows]) -> Rows:
    hats, miss, count = ([getattr(p, f) for p in parts] for f in ("hats", "miss", "count"))
    return Rows(np.concatenate(hats), np.concatenate(miss), np.concatenate(count))


def _ridge(rows: Rows, spread: float) -> Array:
    """The weights [w] of basis functions by ridge regression, with rows reweighted for the soft loss."""
    prior = np.eye(rows.hats.shape[1]) * (SOFT / spread) ** 2
    counted, weights = rows.count, np.zeros(rows.hats.shape[1])
    for _ in range(TIMES):
        by_row = rows.hats * counted[:, None]
        weights = np.linalg.solve(by_row.T @ rows.hats + prior, by_row.T @ rows.miss)
        counted = rows.count / np.sqrt(1 + ((rows.miss - rows.hats @ weights) / SOFT) ** 2)
    return np.asarray(weights)
