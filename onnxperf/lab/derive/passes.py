"""One pass over all sets of constants: each is fitted to its rows, then predicts those that were left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpu_specs
from onnxperf.ground.errors import Error
from onnxperf.ground.fitting import Array
from onnxperf.lab.constants import assumed, values_of
from onnxperf.lab.datasets import DIES, Table, kernels
from onnxperf.lab.derive.fit import Fit, fit, fitted_rows, learned, overheads, seconds, thinned, unfitted
from onnxperf.lab.derive.intervals import Misses
from onnxperf.lab.derive.residuals import residuals
from onnxperf.latency import Constants
from onnxperf.latency.constants import ConstantSet
from onnxperf.latency.families import constant_sets
from onnxperf.latency.family import UNMEASURED
from onnxperf.latency.intervals import amount, class_on

SCORED = 4000  # works of a table at most, for ranges
SETS = {name: wanted for name, wanted in constant_sets().items() if not wanted.of_runs}  # kernels tell them


@dataclass(frozen=True, slots=True)
class Derived:
    """What one pass over the sets found, with rows of the die or generation `without` left out.

    values: by set, then dotted path; those of a set without any row are the shipped ones. rows: how many are behind
    each set that has some.
    """

    without: str
    values: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, int]
    misses: tuple[Misses, ...]


def generation(gpu: str) -> str:
    """The major compute capability of a card: cc7."""
    return f"cc{gpu_specs.load(gpu).capability[0]}"


def rounded(value: float) -> float:
    """Four digits: what differs behind them is another machine's arithmetic."""
    return float(f"{value:.4g}")


def derive(tables: Sequence[Table], without: str = "", whole: Derived | None = None) -> Derived:
    """Fit all sets without the rows of a die or generation, then predict the rows of that, or all.

    A set without a single row stays as it ships: without the die, but not without a generation, of which no constants
    ship. What `whole`, the pass over all rows, found is taken over for sets that have no rows to leave out, nor follow
    one that has.
    """
    values: dict[str, Mapping[str, Any]] = {}
    rows: dict[str, int] = {}
    misses: dict[tuple[str, str, str], list[tuple[Array, Array]]] = {}
    afresh = set[str]()
    for name, wanted in SETS.items():
        chosen = fitted_rows(tables, wanted)
        if not rows_of(chosen):
            values[name] = values_of(wanted, without)
            if whole and values[name] != whole.values[name]:
                afresh.add(name)
            continue
        left_out = any(without in (die, generation(g)) for t in chosen for g, die in zip(t.gpus, t.dies, strict=True))
        if left_out or not whole or afresh & {s.name for s in wanted.after}:
            afresh.add(name)
            values[name], rows[name] = _fitted(wanted, tables, chosen, having(assumed(), wanted.after, values), without)
        else:
            values[name], rows[name] = whole.values[name], whole.rows[name]
        constants = having(assumed(), (wanted,), values)
        names, fitted = {t.name for t in chosen}, {g for t in chosen for g in t.gpus}
        for t in (thinned(t, SCORED) for t in tables if t.name in names and kernels()[t.name].scored):
            told = t if without else _unseen(wanted, t).on(fitted)
            for key, miss, amounts in _misses(wanted, told, constants, without):
                misses.setdefault(key, []).append((miss, amounts))
    by_die = not without.startswith("cc")
    missed_by = tuple(
        Misses(*k, np.concatenate([m for m, _ in v]), np.concatenate([a for _, a in v]), by_die)
        for k, v in sorted(misses.items())
    )
    return Derived(without, values, rows, missed_by)


def rows_of(tables: Sequence[Table]) -> int:
    """How many rows tables have."""
    return sum(int(np.isfinite(t.seconds).sum()) for t in tables)


def having(constants: Constants, sets: Sequence[ConstantSet], values: Mapping[str, Mapping[str, Any]]) -> Constants:
    """The constants with the values of these sets, and of all that they are derived after."""
    for constant_set in sets:
        constants = having(constants, constant_set.after, values).having(values[constant_set.name])
    return constants


def _fitted(
    wanted: ConstantSet, every: Sequence[Table], chosen: Sequence[Table], start: Constants, without: str
) -> tuple[dict[str, Any], int]:
    """The values of a set by dotted path, and how many rows are behind them."""
    tiles = learned(wanted, [_others(t, without) for t in every])
    kept = [t for t in (_others(t, without) for t in chosen) if t.gpus]
    start = start.having(tiles)
    fitted = fit(wanted, kept, start) if kept or not without else unfitted(wanted)
    values: dict[str, Any] = {path: rounded(v) for path, v in fitted.values.items()}
    values = {**tiles, **values, **overheads_of(wanted, fitted)}
    return {**values, **residuals(wanted, kept, start.having(values), each_card=not without)}, fitted.rows


def overheads_of(wanted: ConstantSet, fitted: Fit) -> dict[str, float]:
    """What each rig's clock includes on each card; "other": on cards without rows, the median of these or the usual."""
    values: dict[str, float] = {}
    for rig, usual in overheads(wanted.name).items():
        by_card = {gpu: rounded(s) for (r, gpu), s in fitted.overhead_s.items() if r == rig}
        cards_s = [] if wanted.usual_overhead else [s for (r, _), s in fitted.overhead_s.items() if r == rig]
        other = rounded(float(np.median(cards_s or [usual])))
        values |= {f"rig.{wanted.name}.{rig}.{gpu}": s for gpu, s in {**by_card, "other": other}.items()}
    return values


def _others(t: Table, without: str) -> Table:
    """The rows of a table that are not of the die or generation left out."""
    return t.on(g for g in t.gpus if without not in (DIES.get(g, g), generation(g)))


def _unseen(wanted: ConstantSet, t: Table) -> Table:
    """The rows that tell a range on the very card: where residuals were learned, those that were kept back."""
    return t.take(t.test) if wanted.residuals and t.test.any() and not t.test.all() else t


def _misses(
    wanted: ConstantSet, t: Table, constants: Constants, without: str
) -> Iterator[tuple[tuple[str, str, str], Array, Array]]:
    """log(measured / predicted) of a table's rows on cards that were left out, or on all where none was, and how much
    work each is; by operator class, die and distance.
    """
    miss, amounts = missed(wanted, t, constants), np.array([amount(w) for w in t.works])
    near = {generation(g) for g in _others(t, without).gpus}
    for j, (gpu, die) in enumerate(zip(t.gpus, t.dies, strict=True)):
        if without in ("", die, generation(gpu)):
            distance = "measured" if not without else "known" if generation(gpu) in near else "new"
            device = gpu_specs.load(gpu)
            classes = np.array([class_on(w, device) for w in t.works])
            for name in np.unique(classes):
                if name == UNMEASURED:
                    raise Error(f"{t.name!r} are measured, but their kernel family declares no error_class for them")
                at = (classes == name) & np.isfinite(miss[:, j])
                yield (str(name), die, distance), miss[at, j], amounts[at]


def missed(wanted: ConstantSet, t: Table, constants: Constants) -> Array:
    """log(measured / predicted) of rows that last long enough to tell, nan elsewhere, [n, g]."""
    measured = kernels().get(t.name)
    inside = np.array([[measured.overhead(t.rig, g, constants) if measured else 0.0 for g in t.gpus]])
    read = seconds(wanted, t, [gpu_specs.load(g) for g in t.gpus], constants) + inside
    return np.where(t.seconds > t.least_s, np.log(t.seconds / read), np.nan)
