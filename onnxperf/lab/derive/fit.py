"""The fit of one set of constants to tables of measured kernels.

Beside its constants a fit has a few unknowns that are not kept: each card has three corrections of its own, on compute,
memory and launch, as `gpu_specs.Corrections` has them, and each rig on each card an overhead that its clock includes.
Their priors pull them to 1 (the overhead to the rig's usual one); predictions are made without the corrections.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

import gpu_specs
from gpu_specs import Device
from onnxperf.ground.errors import UsageError
from onnxperf.ground.fitting import Array, Prior, map_fit
from onnxperf.lab.datasets import Kernels, Table, datasets, kernels
from onnxperf.latency import Constants
from onnxperf.latency.constants import ConstantSet, Tiles

FEWEST_NAMED = 1000  # rows with a kernel's name: of fewer, whole kinds of shapes can be missing
FEWEST = 3  # rows for each constant: with fewer, the priors would be passed off as derived


def overheads(constants: str) -> dict[str, float]:
    """What each rig's clock usually includes beside a kernel of these constants, in seconds."""
    return {d.rig: k.overhead_s for d in datasets() for k in d.kernels if k.constants == constants}


def open_rows(every: Sequence[Table], constants: str) -> list[tuple[Table, Kernels]]:
    """The rows of kernels that these constants predict, but for those that only score."""
    pairs = ((t, kernels().get(t.name)) for t in every)
    return [(k.open_rows(t), k) for t, k in pairs if k and k.constants == constants and k.fitted]


def fitted_rows(every: Sequence[Table], wanted: ConstantSet) -> list[Table]:
    """Of all tables, the rows that a set of constants is fitted to."""
    rows = open_rows(every, wanted.measured_as or wanted.name)
    if wanted.rows:
        return wanted.rows([t for t, _ in rows])
    fitted = [k.fitted(t) for t, k in rows if k.fitted]
    return [part for t in fitted for part in _rare_cards_apart(t, wanted.rare)] if wanted.rare else fitted


def _rare_cards_apart(t: Table, share: float) -> list[Table]:
    """The table of the cards that measured no less than a share of the works, and that of the others."""
    rare = np.isfinite(t.seconds).mean(axis=0) < share
    parts = (t.on(g for g, r in zip(t.gpus, rare, strict=True) if r == wanted) for wanted in (False, True))
    return [part for part in parts if part.gpus]


def learned(wanted: ConstantSet, every: Sequence[Table]) -> dict[str, list[list[int]]]:
    """What names of kernels tell of the tiles of a set of constants, by dotted path."""
    return {
        f"{tiles.path}.{capability}": sizes
        for tiles in wanted.tiles
        for capability, sizes in (_seen(every, tiles) or tiles.unnamed).items()
        if int(capability.removeprefix("cc")) >= tiles.since
    }


def _seen(every: Iterable[Table], tiles: Tiles) -> dict[str, list[list[int]]]:
    """The tiles in kernels' names by compute capability (cc75), the most frequent first.

    Rows that the source kept back tell nothing, nor do fewer than FEWEST_NAMED rows of a capability.
    """
    counts: dict[str, Counter[tuple[int, ...]]] = {}
    named = {k.name for k in kernels().values() if k.tiles == tiles.told_by}
    for t in (t for t in every if t.name in named):
        for j, gpu in enumerate(t.gpus):
            major, minor = gpu_specs.load(gpu).capability
            count = counts.setdefault(f"cc{major}{minor}", Counter())
            for name in t.kernel[(t.seconds[:, j] > 0) & ~t.test, j]:
                if match := re.search(tiles.pattern, name):
                    count[tuple(int(n) for n in match.groups())] += 1
    return {
        capability: [list(size) for size, n in count.most_common() if n >= tiles.share * count.total()]
        for capability, count in sorted(counts.items())
        if count.total() >= FEWEST_NAMED
    }


def seconds(wanted: ConstantSet, t: Table, devices: Sequence[Device], c: Constants) -> Array:
    """What the constants make of a table's works on cards [n, g], as the table's rig runs them."""
    if wanted.model:
        return wanted.model(t.works, devices, c)
    return kernels()[t.name].seconds(t.works, devices, c)


@dataclass(frozen=True, slots=True)
class Fit:
    """What a fit varies, or found: constants by dotted path, each card's corrections on compute, memory and launch,
    what each rig's clock includes on each card [s]; and how many rows it was fitted to.
    """

    values: Mapping[str, float]
    corrections: Mapping[str, tuple[float, float, float]]
    overhead_s: Mapping[tuple[str, str], float]
    rows: int


def thinned(table: Table, most: int) -> Table:
    """At most `most` works of a table, drawn by a fixed seed: every run draws the same."""
    if len(table.works) <= most:
        return table
    return table.take(np.sort(np.random.default_rng(0).permutation(len(table.works))[:most]))


def unfitted(wanted: ConstantSet) -> Fit:
    """Every constant at its prior: where the only die that tells them is left out."""
    return Fit({p.path: p.start for p in wanted.parameters}, {}, {}, 0)


def fit(wanted: ConstantSet, tables: Sequence[Table], start: Constants) -> Fit:
    """Derive a set of constants from all rows of `tables`; cards count alike, however many rows each has.

    Raises UsageError where there are fewer than FEWEST rows a constant.
    """
    tables = [thinned(t, wanted.sample) for t in tables]
    cards = sorted({g for t in tables for g in t.gpus})
    usual_s, rigs = overheads(wanted.name), sorted({(t.rig, g) for t in tables for g in t.gpus})
    rows, parameters = sum(int(np.isfinite(t.seconds).sum()) for t in tables), wanted.parameters
    if rows < FEWEST * len(parameters):
        raise UsageError(
            f"{rows} rows are too few to derive the {len(parameters)} constants of {wanted.name!r}"
            f" from: it takes {FEWEST * len(parameters)}"
        )

    def named(point: Array) -> Fit:
        """What a value of each prior below stands for."""
        corrected, inside = np.split(point[len(parameters) :], [3 * len(cards)])
        values = {p.path: float(v) for p, v in zip(parameters, point, strict=False)}
        corrections = {g: (a, b, c) for g, (a, b, c) in zip(cards, corrected.reshape(-1, 3).tolist(), strict=True)}
        overhead_s = {r: float(v) * usual_s.get(r[0], 0.0) for r, v in zip(rigs, inside, strict=True)}
        return Fit(values, corrections, overhead_s, rows)

    priors = [p.prior for p in parameters]
    priors += [Prior(1.0, spread) for _ in cards for spread in wanted.corrections]
    priors += [Prior(1.0, wanted.overhead_sd) for _ in rigs]
    weights = _weights(tables, wanted.weight)
    return named(map_fit(priors, lambda points: _misfits(wanted, tables, start, [*map(named, points)]), weights))


def _misfits(wanted: ConstantSet, tables: Sequence[Table], start: Constants, at: Sequence[Fit]) -> Array:
    """log(predicted / measured) of all rows [r] at some points [k].

    Points that differ in a card's own corrections or overhead alone share one call of the model, in which a card is a
    column for each of its corrections.
    """
    alike: dict[tuple[float, ...], list[int]] = {}
    for i, point in enumerate(at):
        alike.setdefault(tuple(point.values.values()), []).append(i)
    off = [np.empty((int(np.isfinite(t.seconds).sum()), len(at))) for t in tables]
    for points in alike.values():
        constants = start.having(at[points[0]].values)
        for t, rows in zip(tables, off, strict=True):
            cards = list(dict.fromkeys((g, at[i].corrections[g]) for i in points for g in t.gpus))
            column = {card: j for j, card in enumerate(cards)}
            took = seconds(wanted, t, [_corrected(*card) for card in cards], constants)
            for i in points:
                inside = np.array([[at[i].overhead_s[t.rig, g] for g in t.gpus]])
                read = took[:, [column[g, at[i].corrections[g]] for g in t.gpus]] + inside
                rows[:, i] = (np.log(read) - np.log(t.seconds))[np.isfinite(t.seconds)]
    return np.concatenate(off)


def _corrected(gpu: str, corrections: tuple[float, float, float]) -> Device:
    return replace(gpu_specs.load(gpu), corrections=gpu_specs.Corrections(*corrections, source="fit"))


def _weights(tables: Sequence[Table], total: float) -> Array:
    """How much each row counts, by its square: `total` in all, as much on each card."""
    count = Counter[str]()
    for t in tables:
        count.update(dict(zip(t.gpus, np.isfinite(t.seconds).sum(axis=0).tolist(), strict=True)))
    each = {g: np.sqrt(total / len(count) / max(n, 1)) for g, n in count.items()}
    rows = (np.broadcast_to([each[g] for g in t.gpus], t.seconds.shape)[np.isfinite(t.seconds)] for t in tables)
    return np.concatenate(list(rows))
