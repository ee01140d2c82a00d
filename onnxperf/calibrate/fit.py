"""Constants from measurements: maximum a posteriori in log space, by least squares.

The misfit of a row is log(predicted / measured), under a soft-L1 loss so that rows that went wrong don't rule. Every
constant has a log-normal prior, which the robust loss does not touch. Each card of the fit has three effects of its
own, on compute, memory and launch, as `gpu_specs.Effects` has them, and each rig an overhead a card that its clock
includes. They are nuisances: priors pull them to 1 (the overhead to the rig's usual), and predictions are without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import gpu_specs
from gpu_specs import Device
from onnxperf.errors import UsageError
from onnxperf.latency import Constants
from onnxperf.latency.terms import Array
from onnxperf.measurements import Table

SOFT = 0.10  # what a good row is off by; misfits well above count by their size, not by its square
FEWEST = 3  # rows for each constant: with fewer, the priors would be passed off as derived


@dataclass(frozen=True, slots=True)
class Parameter:
    """One constant: its dotted path, what it is, the prior's median, and the standard deviation of its logarithm.

    `most` bounds it from above, for shares of something.
    """

    path: str
    meaning: str
    prior: float
    sd: float = 0.3
    most: float = np.inf


@dataclass(frozen=True, slots=True)
class Family:
    """What one file of constants is derived from, and how.

    model: works, devices, constants to seconds [n, g] but for the card's overhead. overhead_s: of each rig, what its
    clock includes beside the kernel. weight: how many rows the data counts for, so that priors bind. effects: standard
    deviations of the logarithms of a card's own effects on compute, memory, launch. learned: what is read off the
    tables before the fit, by dotted path. tables: the families of those of its module that it
    is fitted to; all if none are named. others: models of tables that were measured in another way, by their families.
    """

    name: str
    parameters: tuple[Parameter, ...]
    model: Callable[..., Array]
    overhead_s: Mapping[str, float]
    sample: int = 1000
    weight: float = 300.0
    effects: tuple[float, float, float] = (0.05, 0.05, 0.1)
    overhead_sd: float = 0.5
    learned: Callable[[Sequence[Table]], Mapping[str, Any]] = lambda tables: {}
    tables: tuple[str, ...] = ()
    others: Mapping[str, Callable[..., Array]] = field(default_factory=dict)

    def seconds(self, t: Table, devices: Sequence[Device], c: Constants) -> Array:
        """What the constants make of a table's works on cards, in the way that it was measured."""
        return self.others.get(t.family, self.model)(t.works, devices, c)


Values = dict[str, float]  # by dotted path


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants that were derived, the effects and overheads [s] of each card that went beside them, and rows used."""

    constants: Constants
    values: Mapping[str, float]
    effects: Mapping[str, tuple[float, float, float]]
    overhead_s: Mapping[tuple[str, str], float]
    rows: int


def thinned(table: Table, most: int) -> Table:
    """At most `most` works of a table, drawn by a fixed seed: every run draws the same."""
    if len(table.works) <= most:
        return table
    return table.take(np.sort(np.random.default_rng(0).permutation(len(table.works))[:most]))


def unfitted(family: Family, start: Constants) -> Fit:
    """Every constant at its prior: where the only die that tells a family is left out."""
    values = {p.path: p.prior for p in family.parameters}
    return Fit(start.having(values), values, {}, {}, 0)


def fit(family: Family, tables: Sequence[Table], start: Constants) -> Fit:
    """Derive the family's constants from all rows of `tables`; cards count alike, however many rows each has."""
    from scipy.optimize import least_squares

    tables = [thinned(t, family.sample) for t in tables]
    gpus = sorted({g for t in tables for g in t.gpus})
    rigs = sorted({(t.rig, g) for t in tables for g in t.gpus})
    devices = {g: gpu_specs.load(g) for g in gpus}
    measured = sum(int(np.isfinite(t.seconds).sum()) for t in tables)
    if measured < FEWEST * len(family.parameters):
        raise UsageError(
            f"{measured} rows are too few to derive the {len(family.parameters)} constants of {family.name!r}"
            f" from: it takes {FEWEST * len(family.parameters)}"
        )
    n, e = len(family.parameters), 3 * len(gpus)
    prior = np.log([p.prior for p in family.parameters])
    sd = np.array([p.sd for p in family.parameters])
    spread = np.tile(family.effects, len(gpus))
    count = {g: sum(int(np.isfinite(t.seconds[:, t.gpus.index(g)]).sum()) for t in tables if g in t.gpus) for g in gpus}
    share = {g: np.sqrt(family.weight / len(gpus) / max(count[g], 1)) for g in gpus}

    def unpack(x: Array) -> tuple[Values, dict[str, tuple[float, float, float]], dict[tuple[str, str], float]]:
        values = np.exp(prior + sd * x[:n])
        named = {p.path: min(float(v), p.most) for p, v in zip(family.parameters, values, strict=True)}
        own = np.exp(spread * x[n : n + e]).reshape(-1, 3)
        inside = np.exp(family.overhead_sd * x[n + e :])
        return (
            named,
            {g: (float(a), float(b), float(c)) for g, (a, b, c) in zip(gpus, own, strict=True)},
            {r: float(v) * family.overhead_s.get(r[0], 0.0) for r, v in zip(rigs, inside, strict=True)},
        )

    def residuals(x: Array) -> Array:
        named, effects, overhead = unpack(x)
        constants = start.having(named)
        parts = [x]
        for t in tables:
            cards = [replace(devices[g], effects=gpu_specs.Effects(*effects[g], source="fit")) for g in t.gpus]
            extra = np.array([[overhead[t.rig, g] for g in t.gpus]])
            with np.errstate(invalid="ignore"):
                off = np.log((family.seconds(t, cards, constants) + extra) / t.seconds)
            soft = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + (off / SOFT) ** 2) - 1))
            parts.append((soft * np.array([[share[g] for g in t.gpus]]))[np.isfinite(off)])
        return np.concatenate(parts)

    done = least_squares(residuals, np.zeros(n + e + len(rigs)), method="trf", max_nfev=40, xtol=1e-4, ftol=1e-4)
    named, effects, overhead = unpack(done.x)
    return Fit(start.having(named), named, effects, overhead, sum(count.values()))


__all__ = ["Family", "Fit", "Parameter", "fit", "thinned", "unfitted"]
