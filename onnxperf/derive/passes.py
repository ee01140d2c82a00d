"""One pass over all families of constants: each is fitted to its rows, then predicts those that were left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpu_specs
from onnxperf.datasets import DIES, Table
from onnxperf.derive.families import FAMILIES
from onnxperf.derive.fit import Family, Fit, fit, thinned, unfitted
from onnxperf.derive.intervals import Misses
from onnxperf.fitting import Array
from onnxperf.latency import Constants
from onnxperf.latency.constants import assumed
from onnxperf.latency.intervals import amount, class_on

SCORED = 4000  # works of a table at most, for ranges


@dataclass(frozen=True, slots=True)
class Derived:
    """What one pass over the families found, with rows of the die or generation `without` left out."""

    without: str
    values: Mapping[str, Mapping[str, Any]]  # by family, then dotted path
    rows: Mapping[str, int]
    misses: tuple[Misses, ...]


def generation(gpu: str) -> str:
    """The major compute capability of a card: cc7."""
    return f"cc{gpu_specs.load(gpu).capability[0]}"


def rounded(value: float) -> float:
    """Four digits: what differs behind them is another machine's arithmetic."""
    return float(f"{value:.4g}")


def derive(tables: Sequence[Table], without: str = "", whole: Derived | None = None) -> Derived:
    """Fit all families without the rows of a die or generation, then predict the rows of that, or all.

    What `whole`, the pass over all rows, found is taken over for families before the first that has rows to leave out.
    """
    constants = assumed()
    values: dict[str, Mapping[str, Any]] = {}
    rows: dict[str, int] = {}
    misses: dict[tuple[str, str, str], list[tuple[Array, Array]]] = {}
    for family in FAMILIES.values():
        chosen = family.tables(tables)
        if any(without in (die, generation(g)) for t in chosen for g, die in zip(t.gpus, t.dies, strict=True)):
            whole = None
        if whole:
            values[family.name], rows[family.name] = whole.values[family.name], whole.rows[family.name]
        else:
            values[family.name], rows[family.name] = _fitted(family, tables, chosen, constants, without)
        constants = constants.having(values[family.name])
        names = {t.family for t in chosen}
        for t in (thinned(t, SCORED) for t in tables if t.family in names):
            for key, miss, amounts in _misses(family, t, constants, without):
                misses.setdefault(key, []).append((miss, amounts))
    by_die = not without.startswith("cc")
    missed_by = tuple(
        Misses(*k, np.concatenate([m for m, _ in v]), np.concatenate([a for _, a in v]), by_die)
        for k, v in sorted(misses.items())
    )
    return Derived(without, values, rows, missed_by)


def _fitted(
    family: Family, every: Sequence[Table], chosen: Sequence[Table], start: Constants, without: str
) -> tuple[dict[str, Any], int]:
    """A family's values by dotted path, and how many rows are behind them."""
    learned = family.learned([_others(t, without) for t in every])
    kept = [t for t in (_others(t, without) for t in chosen) if t.gpus]
    start = start.having(learned)
    found = fit(family, kept, start) if kept or not without else unfitted(family, start)
    values = {path: rounded(v) for path, v in found.values.items()}
    return {**learned, **values, **_overheads(family, found)}, found.rows


def _overheads(family: Family, found: Fit) -> dict[str, float]:
    """What each rig's clock includes on each card; "other": the median of these, for cards without rows."""
    values: dict[str, float] = {}
    for rig, usual in family.overhead_s.items():
        own = {gpu: rounded(s) for (r, gpu), s in found.overhead_s.items() if r == rig}
        other = rounded(float(np.median([s for (r, _), s in found.overhead_s.items() if r == rig] or [usual])))
        values |= {f"rig.{family.name}.{rig}.{gpu}": s for gpu, s in {**own, "other": other}.items()}
    return values


def _others(t: Table, without: str) -> Table:
    """The rows of a table that are not of the die or generation left out."""
    return t.on(g for g in t.gpus if without not in (DIES.get(g, g), generation(g)))


def _misses(
    family: Family, t: Table, constants: Constants, without: str
) -> Iterator[tuple[tuple[str, str, str], Array, Array]]:
    """log(measured / predicted) of a table's rows on cards that were left out, or on all where none was, and how much
    work each is; by operator class, die and distance.
    """
    miss, amounts = missed(family, t, constants), np.array([amount(w) for w in t.works])
    near = {generation(g) for g in _others(t, without).gpus}
    for j, (gpu, die) in enumerate(zip(t.gpus, t.dies, strict=True)):
        if without in ("", die, generation(gpu)):
            distance = "measured" if not without else "known" if generation(gpu) in near else "new"
            device = gpu_specs.load(gpu)
            classes = np.array([class_on(w, device) for w in t.works])
            for name in np.unique(classes):
                at = (classes == name) & np.isfinite(miss[:, j])
                yield (str(name), die, distance), miss[at, j], amounts[at]


def missed(family: Family, t: Table, constants: Constants) -> Array:
    """log(measured / predicted) of rows that last long enough to tell, nan elsewhere, [n, g]."""
    inside = np.array([[family.overhead(t, g, constants) for g in t.gpus]])
    seconds = family.seconds(t, [gpu_specs.load(g) for g in t.gpus], constants) + inside
    return np.where(t.seconds > t.least_s, np.log(t.seconds / seconds), np.nan)
