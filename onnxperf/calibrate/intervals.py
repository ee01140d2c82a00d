"""Half-widths from the rows that had no part in the constants that predict them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxperf.latency.bounds import Array
from onnxperf.latency.intervals import COVERAGE, DISTANCES


@dataclass(frozen=True, slots=True)
class Misses:
    """log(measured / predicted) [k] of one operator class on one die, predicted from afar or not, see DISTANCES."""

    operator_class: str
    die: str
    distance: str
    miss: Array


def quantile(misses: Sequence[Misses]) -> float:
    """The half-width that COVERAGE of the rows stay within, every die with the same weight."""
    off = np.concatenate([np.abs(m.miss) for m in misses])
    weight = np.concatenate([np.full(len(m.miss), 1 / len(m.miss)) for m in misses])
    order = np.argsort(off, kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(off[order][min(int(np.searchsorted(reached, COVERAGE)), len(off) - 1)])


def shared_part(misses: Sequence[Misses]) -> tuple[dict[str, float], float]:
    """The part of the squared misses that a whole card has in common, and each die's common miss over its usual size.

    Rows beyond three half-widths count as if they were there: one row that went wrong is no correlation.
    """
    most = 3 * quantile(misses)
    clipped = [np.clip(m.miss, -most, most) for m in misses]
    common = {m.die: float(np.mean(c)) for m, c in zip(misses, clipped, strict=True)}
    whole = float(np.mean([np.mean(c**2) for c in clipped]))
    together = float(np.mean([v**2 for v in common.values()]))
    scale = max(together, 1e-12) ** 0.5
    return {die: v / scale for die, v in common.items()}, min(together / max(whole, 1e-12), 1.0)


def intervals(misses: Iterable[Misses], domain: dict[str, Any], without: str = "") -> dict[str, Any]:
    """The table [constants.interval] of the classes that have rows, from all dies but `without`.

    A range never narrows with distance. `within` and `between` are correlations of errors, see
    `onnxperf.latency.intervals.combined`.
    """
    found = [m for m in misses if m.die != without and len(m.miss)]
    table: dict[str, Any] = {}
    common: dict[str, dict[str, float]] = {}
    for name in sorted({m.operator_class for m in found}):
        mine = [m for m in found if m.operator_class == name]
        widths, least = {}, 0.0
        for far in DISTANCES:
            at = [m for m in mine if m.distance == far]
            least = max(least, quantile(at)) if at else least
            widths[far] = least
        held_out = [m for m in mine if m.distance != "measured"]
        common[name], within = shared_part(held_out or mine)
        table[name] = {**widths, "within": within, "rows": sum(len(m.miss) for m in held_out), **domain[name]}
    products = [
        common[a][die] * common[b][die]
        for i, a in enumerate(common)
        for b in list(common)[i + 1 :]
        for die in common[a].keys() & common[b].keys()
    ]
    table["between"] = float(np.clip(np.mean(products), 0, 1)) if products else 1.0
    return table
