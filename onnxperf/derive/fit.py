"""A family of constants, and its fit to tables of measured kernels.

Beside its constants a fit has a few unknowns that are not kept: each card has three corrections of its own, on compute,
memory and launch, as `gpu_specs.Corrections` has them, and each rig on each card an overhead that its clock includes.
Their priors pull them to 1 (the overhead to the rig's usual one); predictions are made without the corrections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import gpu_specs
from gpu_specs import Device
from onnxperf.datasets import Table, datasets, kernels
from onnxperf.errors import UsageError
from onnxperf.fitting import Array, Prior, map_fit
from onnxperf.latency import Constants, alone
from op_models import Work

FEWEST = 3  # rows for each constant: with fewer, the priors would be passed off as derived


def by_itself(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Seconds [n, g] of each work repeated on its own, after the power budget."""
    return alone(works, devices, c).seconds


@dataclass(frozen=True, slots=True)
class Parameter:
    """One constant: its dotted path, what it is, and its prior: the median, the standard deviation of its logarithm,
    and a bound from above, for shares of something.
    """

    path: str
    meaning: str
    start: float
    spread: float = 0.3
    most: float = 1e30

    @property
    def prior(self) -> Prior:
        """What is known of it before a fit."""
        return Prior(self.start, self.spread, most=self.most)


@dataclass(frozen=True, slots=True)
class Family:
    """What one file of constants is derived from, and how.

    overhead_s: of each rig, what its clock usually includes beside the kernel. model: works, devices, constants to
    seconds [n, g], but for what the clock includes: the overhead, and `beside`, which differs from work to work [n].
    sample: works of a table that a fit takes at most. weight: how many rows the data counts for, so that priors bind.
    corrections: standard deviations of the logarithms of a card's own corrections on compute, memory, launch. learned:
    what is read off the tables before the fit, by dotted path. rows: the tables that it is fitted to, where these are
    not all `fitted_rows` of its name. others: models of kernels that were measured in another way, by what
    `datasets.Kernels.how` says.
    """

    name: str
    parameters: tuple[Parameter, ...]
    overhead_s: Mapping[str, float]
    model: Callable[..., Array] = by_itself
    beside: Callable[[Sequence[Work], Constants], Array] = lambda works, c: np.zeros(len(works))
    sample: int = 1000
    weight: float = 300.0
    corrections: tuple[float, float, float] = (0.05, 0.05, 0.1)
    overhead_sd: float = 0.5
    learned: Callable[[Sequence[Table]], Mapping[str, Any]] = lambda tables: {}
    rows: Callable[[Sequence[Table]], list[Table]] | None = None
    others: Mapping[str, Callable[..., Array]] = field(default_factory=dict)

    def tables(self, every: Sequence[Table]) -> list[Table]:
        """Of all tables, the rows that the family is fitted to."""
        return self.rows(every) if self.rows else fitted_rows(every, self.name)

    def seconds(self, t: Table, devices: Sequence[Device], c: Constants) -> Array:
        """What the constants make of a table's works on cards, in the way that it was measured."""
        known = kernels().get(t.family)
        model = self.others.get(known.how if known else "", self.model)
        return np.asarray(model(t.works, devices, c) + self.beside(t.works, c)[:, None])

    def overhead(self, t: Table, gpu: str, c: Constants) -> float:
        """Seconds that the clock of a table's rig includes beside a kernel on a card, as the constants have it; on a
        card without rows what it is on others.
        """
        found = c.rig.get(self.name, {}).get(t.rig) or {"other": self.overhead_s.get(t.rig, 0.0)}
        return float(found.get(gpu, found["other"]))


def overheads(constants: str) -> dict[str, float]:
    """What each rig's clock usually includes beside a kernel of these constants, in seconds."""
    return {d.rig: k.overhead_s for d in datasets() for k in d.kernels if k.constants == constants}


def open_rows(every: Sequence[Table], constants: str) -> list[Table]:
    """The rows of kernels that these constants predict, but for those that only score."""
    known = ((t, kernels().get(t.family)) for t in every)
    return [k.open_rows(t) for t, k in known if k and k.constants == constants and k.fitted]


def fitted_rows(every: Sequence[Table], constants: str) -> list[Table]:
    """Of those, the rows that tell a fit of these constants, as their datasets say."""
    found = ((t, kernels()[t.family].fitted) for t in open_rows(every, constants))
    return [fitted(t) for t, fitted in found if fitted]


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants that were derived, the corrections and overheads [s] of each card beside them, and rows used."""

    constants: Constants
    values: Mapping[str, float]
    corrections: Mapping[str, tuple[float, float, float]]
    overhead_s: Mapping[tuple[str, str], float]
    rows: int


def thinned(table: Table, most: int) -> Table:
    """At most `most` works of a table, drawn by a fixed seed: every run draws the same."""
    if len(table.works) <= most:
        return table
    return table.take(np.sort(np.random.default_rng(0).permutation(len(table.works))[:most]))


def unfitted(family: Family, start: Constants) -> Fit:
    """Every constant at its prior: where the only die that tells a family is left out."""
    values = {p.path: p.start for p in family.parameters}
    return Fit(start.having(values), values, {}, {}, 0)


def fit(family: Family, tables: Sequence[Table], start: Constants) -> Fit:
    """Derive the family's constants from all rows of `tables`; cards count alike, however many rows each has.

    Raises UsageError where there are fewer than FEWEST rows a constant.
    """
    tables = [thinned(t, family.sample) for t in tables]
    devices = {g: gpu_specs.load(g) for g in sorted({g for t in tables for g in t.gpus})}
    rigs = sorted({(t.rig, g) for t in tables for g in t.gpus})
    rows, weights = sum(int(np.isfinite(t.seconds).sum()) for t in tables), _weights(tables, family.weight)
    if rows < FEWEST * len(family.parameters):
        raise UsageError(
            f"{rows} rows are too few to derive the {len(family.parameters)} constants of {family.name!r}"
            f" from: it takes {FEWEST * len(family.parameters)}"
        )

    def named(point: Array) -> Unknowns:
        """What a value of each prior below stands for."""
        own, inside = np.split(point[len(family.parameters) :], [3 * len(devices)])
        values = {p.path: float(v) for p, v in zip(family.parameters, point, strict=False)}
        corrections = {g: (a, b, c) for g, (a, b, c) in zip(devices, own.reshape(-1, 3).tolist(), strict=True)}
        overhead = {r: float(v) * family.overhead_s.get(r[0], 0.0) for r, v in zip(rigs, inside, strict=True)}
        return values, corrections, overhead

    priors = [
        *(p.prior for p in family.parameters),
        *(Prior(1.0, spread) for _ in devices for spread in family.corrections),
        *(Prior(1.0, family.overhead_sd) for _ in rigs),
    ]
    found = map_fit(priors, lambda points: _misfits(family, tables, start, [named(p) for p in points]), weights)
    values, corrections, overhead = named(found)
    return Fit(start.having(values), values, corrections, overhead, rows)


#: What a fit varies: constants by dotted path, each card's corrections, what each rig's clock includes on each card.
Unknowns = tuple[dict[str, float], dict[str, tuple[float, float, float]], dict[tuple[str, str], float]]


def _misfits(family: Family, tables: Sequence[Table], start: Constants, at: Sequence[Unknowns]) -> Array:
    """log(predicted / measured) of all rows [r] at some points [k].

    Points that differ in a card's own corrections or overhead alone share one call of the model, in which a card is a
    column for each of its corrections.
    """
    alike: dict[tuple[float, ...], list[int]] = {}
    for i, (values, _, _) in enumerate(at):
        alike.setdefault(tuple(values.values()), []).append(i)
    off = [np.empty((int(np.isfinite(t.seconds).sum()), len(at))) for t in tables]
    for points in alike.values():
        constants = start.having(at[points[0]][0])
        for t, rows in zip(tables, off, strict=True):
            cards = list(dict.fromkeys((g, at[i][1][g]) for i in points for g in t.gpus))
            column = {card: j for j, card in enumerate(cards)}
            devices = [
                replace(gpu_specs.load(g), corrections=gpu_specs.Corrections(*own, source="fit")) for g, own in cards
            ]
            seconds = family.seconds(t, devices, constants)
            for i in points:
                inside = np.array([[at[i][2][t.rig, g] for g in t.gpus]])
                read = seconds[:, [column[g, at[i][1][g]] for g in t.gpus]] + inside
                rows[:, i] = (np.log(read) - np.log(t.seconds))[np.isfinite(t.seconds)]
    return np.concatenate([*off, np.empty((0, len(at)))])


def _weights(tables: Sequence[Table], total: float) -> Array:
    """How much each row counts, by its square: `total` in all, as much on each card."""
    count = Counter[str]()
    for t in tables:
        count.update(dict(zip(t.gpus, np.isfinite(t.seconds).sum(axis=0).tolist(), strict=True)))
    each = {g: np.sqrt(total / len(count) / max(n, 1)) for g, n in count.items()}
    rows = (np.broadcast_to([each[g] for g in t.gpus], t.seconds.shape)[np.isfinite(t.seconds)] for t in tables)
    return np.concatenate([*rows, np.empty(0)])


__all__ = ["Family", "Fit", "Parameter", "fit", "fitted_rows", "open_rows", "overheads", "thinned", "unfitted"]
