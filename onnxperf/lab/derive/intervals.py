"""How wide ranges have to be, from rows of dies that had no part in the constants that predict them.

Only the distance `measured` is of rows that the constants were fitted to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxperf.ground.fitting import Array
from onnxperf.latency.intervals import COVERAGE, DISTANCES

THIRDS = (1 / 3, 2 / 3)


@dataclass(frozen=True, slots=True)
class Misses:
    """log(measured / predicted) [k] of one operator class on one die.

    distance: of DISTANCES, how near the rows are that the constants were fitted to; amount [k]: how much work each row
    is; by_die: only this die was left out of the constants, not its whole generation.
    """

    operator_class: str
    die: str
    distance: str
    miss: Array
    amount: Array
    by_die: bool = True

    def take(self, rows: Array) -> Misses:
        """Some of the rows: a mask [k]."""
        return replace(self, miss=self.miss[rows], amount=self.amount[rows])


def quantile(misses: Sequence[Misses]) -> float:
    """The half-width that COVERAGE of the rows stay within, every entry with the same weight."""
    return quantile_of([np.abs(m.miss) for m in misses])


def quantile_of(entries: Sequence[Array]) -> float:
    """What COVERAGE of the numbers do not exceed, every entry [k] with the same weight, however many it has."""
    off = np.concatenate(entries)
    weight = np.concatenate([np.full(len(entry), 1 / len(entry)) for entry in entries])
    order = np.argsort(off, kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(off[order][min(int(np.searchsorted(reached, COVERAGE)), len(off) - 1)])


def widened(misses: Sequence[Misses]) -> float:
    """The factor on half-widths from other dies with which they hold for COVERAGE of a die's rows, on average.

    Each die in turn against the half-width from the others: rows of one die are alike, so that a quantile over few
    dies is too narrow for the next one. 1 where fewer than three dies can tell.
    """
    dies = sorted({m.die for m in misses})
    if len(dies) < 3:
        return 1.0
    ratios = []
    for die in dies:
        width = quantile([m for m in misses if m.die != die])
        ratios += [replace(m, miss=m.miss / width) for m in misses if m.die == die]
    return max(1.0, quantile(ratios))


def shared_part(misses: Sequence[Misses]) -> tuple[dict[str, float], float]:
    """Each die's mean miss, divided by the root mean square of these means; and the share of the mean squared miss that
    the means account for: the correlation between two rows of a die.

    Misses beyond three half-widths are clipped to that: one row that went wrong is no correlation.
    """
    most = 3 * quantile(misses)
    clipped = [np.clip(m.miss, -most, most) for m in misses]
    common = {m.die: float(np.mean(c)) for m, c in zip(misses, clipped, strict=True)}
    whole = float(np.mean([np.mean(c**2) for c in clipped]))
    together = float(np.mean([v**2 for v in common.values()]))
    scale = max(together, 1e-12) ** 0.5
    return {die: v / scale for die, v in common.items()}, min(together / max(whole, 1e-12), 1.0)


def intervals(misses: Iterable[Misses], domain: Mapping[str, Any], without: str = "") -> dict[str, Any]:
    """The table [constants.interval] of the classes that have rows, from all dies but `without`.

    Half-widths are lists, one for each third of the rows by their amount of work. A range never narrows with distance,
    and those for dies without rows are `widened`. `within` and `between` are correlations of errors, see
    `onnxperf.latency.intervals.combined`.
    """
    rows = [m for m in misses if m.die != without and len(m.miss)]
    by_die = {(m.operator_class, m.die, m.distance) for m in rows if m.by_die}
    # a die that is alone in its generation was left out twice, and counts once
    rows = [m for m in rows if m.by_die or (m.operator_class, m.die, m.distance) not in by_die]
    table: dict[str, Any] = {}
    common: dict[str, dict[str, float]] = {}
    for name in sorted({m.operator_class for m in rows}):
        mine = [m for m in rows if m.operator_class == name]
        edges = [float(f"{e:.3g}") for e in np.quantile(np.concatenate([m.amount for m in mine]), THIRDS)]
        by_third = [_widths(_third(mine, edges, i)) for i in range(len(edges) + 1)]
        held_out = [m for m in mine if m.distance != "measured" and m.by_die] or mine
        common[name], within = shared_part(held_out)
        table[name] = {
            "thirds": edges,
            **{far: [widths[far] for widths in by_third] for far in DISTANCES},
            "within": within,
            "rows": sum(len(m.miss) for m in held_out),
            **domain[name],
        }
    products = [
        common[a][die] * common[b][die]
        for i, a in enumerate(common)
        for b in list(common)[i + 1 :]
        for die in common[a].keys() & common[b].keys()
    ]
    table["between"] = float(np.clip(np.mean(products), 0, 1)) if products else 1.0
    return table


def _third(misses: Sequence[Misses], edges: Sequence[float], third: int) -> list[Misses]:
    """The rows of one third, of dies that have any."""
    parts = (m.take(np.searchsorted(edges, m.amount) == third) for m in misses)
    return [m for m in parts if len(m.miss)]


def _widths(misses: Sequence[Misses]) -> dict[str, float]:
    """The half-width at each distance, none narrower than a nearer one's.

    Distances whose order comes out the other way round are taken together (isotonic regression, by pooling adjacent
    violators): to take the wider one would make the others too wide by what the two differ by chance.
    """
    more = widened([m for m in misses if m.distance != "measured" and m.by_die])

    def width(distances: tuple[str, ...], at: Sequence[Misses]) -> float:
        return quantile(at) * (1.0 if distances == ("measured",) else more) if at else 0.0

    pooled: list[tuple[tuple[str, ...], list[Misses]]] = []
    for far in DISTANCES:
        pooled.append(((far,), [m for m in misses if m.distance == far]))
        while len(pooled) > 1 and width(*pooled[-1]) < width(*pooled[-2]):
            (nearer, some), (farther, others) = pooled[-2:]
            pooled[-2:] = [(nearer + farther, some + others)]
    return {far: width(distances, at) for distances, at in pooled for far in distances}
