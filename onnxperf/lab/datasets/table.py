"""Measured kernels as a table: works down, cards across, seconds; and which measurements can't be believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

import gpu_specs
from onnxperf.latency import Array, floors
from op_models import Work

GRAPH = "graph"  # the rig that replays a CUDA graph of many kernels: no clock and no launch is inside its rows
BEYOND_PHYSICS = 0.9  # of the bound: rows faster than that are wrong, whatever made them so
LEAST_S = 1e-4  # shorter rows say more about the clock that measured them than about the card
OTHER_UNIT, SLACK_S = 200.0, 1e-4  # times the bound and some: rows slower than that are in another unit
FASTER, SLOWER = "faster than physics", "too slow to be in the unit of its column"
AGAIN, SLOW = "measured again: of one shape the median counts", "measured again: of one shape the fastest counts"
OTHER_LIBRARY = " of another library"
FEW = 0.1  # of a card's kept-back rows: so many may be on kernels that are merely rare

#: The die of each card. A card is never scored with constants that were fitted to rows of another card of its die.
DIES = {
    "m40": "GM200", "titan-x-maxwell": "GM200", "m6000": "GM200", "p4": "GP104", "gtx-1080-ti": "GP102",
    "titan-x-pascal": "GP102", "titan-xp": "GP102", "p100-pcie-16gb": "GP100", "v100-pcie-16gb": "GV100",
    "v100-pcie-32gb": "GV100", "v100-sxm2-16gb": "GV100", "v100-sxm2-32gb": "GV100", "t4": "TU104",
    "a100-pcie-40gb": "GA100", "a100-pcie-80gb": "GA100", "a100-sxm4-40gb": "GA100", "a100-sxm4-80gb": "GA100",
    "a30": "GA100", "h100-sxm": "GH100", "h100-pcie": "GH100", "h100-nvl": "GH100", "h200-sxm": "GH100",
    "h200-nvl": "GH100", "gh200": "GH100", "h20": "GH100", "h800-sxm": "GH100", "a800-sxm4-80gb": "GA100",
    "b200-sxm": "GB100", "gb200": "GB100", "b300-sxm": "GB110", "gb300": "GB110", "l40s": "AD102", "l40": "AD102",
    "l20": "AD102", "rtx-4090": "AD102", "rtx-6000-ada": "AD102", "a10": "GA102", "a10g": "GA102", "a40": "GA102",
    "rtx-3080": "GA102", "rtx-3090": "GA102", "rtx-a5000": "GA102", "rtx-a6000": "GA102",
    "rtx-3080-ti": "GA102", "rtx-3090-ti": "GA102", "rtx-a4500": "GA102", "rtx-a5500": "GA102", "rtx-5000-ada": "AD102",
    "rtx-5090": "GB202", "rtx-pro-6000-server": "GB202", "rtx-pro-6000-workstation": "GB202",
    "rtx-pro-6000-max-q": "GB202", "gtx-1080": "GP104", "gtx-1070": "GP104", "p40": "GP102", "rtx-2080": "TU104",
    "rtx-2080-super": "TU104", "rtx-2070-super": "TU104", "quadro-rtx-4000": "TU104", "quadro-rtx-5000": "TU104",
    "rtx-2080-ti": "TU102", "titan-rtx": "TU102", "quadro-rtx-6000": "TU102", "quadro-rtx-8000": "TU102",
    "rtx-2060": "TU106", "rtx-2060-super": "TU106", "rtx-2070": "TU106", "rtx-a4000": "GA104", "rtx-3060-ti": "GA104",
    "rtx-3070": "GA104", "rtx-3070-ti": "GA104", "l4": "AD104", "rtx-4070": "AD104", "rtx-4070-super": "AD104",
    "rtx-4070-ti": "AD104", "rtx-4500-ada": "AD104", "rtx-4080": "AD103", "rtx-4080-super": "AD103",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """Kernels of one kind, measured by one rig: `seconds` [n, g], nan where nobody measured or nothing is kept.

    name: of the kind: bmm, linear, add, softmax, ...; rig: whose clock, hence which overhead is inside; works [n]; gpus
    [g]: ids of cards; test [n]: rows that the source itself kept back; kernel [n, g]: the name of the kernel that the
    library ran, where it was noted; dropped: how many rows are not kept, by reason.
    """

    name: str
    rig: str
    works: tuple[Work, ...]
    gpus: tuple[str, ...]
    seconds: Array
    test: Array
    kernel: Array
    dropped: Mapping[str, int]

    @property
    def least_s(self) -> float:
        """Rows have to last longer than this to tell of the card; any do where no clock is inside."""
        return 0.0 if self.rig == GRAPH else LEAST_S

    @property
    def dies(self) -> tuple[str, ...]:
        """The die of each card; a card that is not listed is a die of its own."""
        return tuple(DIES.get(g, g) for g in self.gpus)

    def without(self, bad: Array, reason: str) -> Table:
        """The table with the rows of the mask `bad` [n, g] taken out for `reason`."""
        bad = bad & np.isfinite(self.seconds)
        if not bad.any():
            return self
        dropped = Counter(self.dropped)
        dropped[reason] += int(bad.sum())
        return replace(self, seconds=np.where(bad, np.nan, self.seconds), dropped=dict(dropped))

    def take(self, rows: Array) -> Table:
        """The table of some of its works: indices or a mask [n]."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        works = tuple(self.works[i] for i in rows)
        return replace(self, works=works, seconds=self.seconds[rows], test=self.test[rows], kernel=self.kernel[rows])

    def on(self, gpus: Iterable[str]) -> Table:
        """The table of some of its cards, with the works that one of them measured."""
        wanted = set(gpus)
        at = [i for i, g in enumerate(self.gpus) if g in wanted]
        cards = tuple(self.gpus[i] for i in at)
        narrow = replace(self, gpus=cards, seconds=self.seconds[:, at], kernel=self.kernel[:, at])
        return narrow.take(np.flatnonzero(np.isfinite(narrow.seconds).any(axis=1)))


@dataclass(frozen=True, slots=True)
class Row:
    """One measured kernel as a file states it, with its shape already made into a `Work`.

    table: the name of its table. gpu, work, seconds: None or nan where the file names no shipped card, no possible
    shape or no positive time; such a row is only counted. test: kept back from fits by its source; kernel: the name of
    what ran, "" where it is not told.
    """

    table: str
    gpu: str | None
    work: Work | None
    seconds: float
    test: bool = False
    kernel: str = ""


def tables(
    rows: Iterable[Row], rig: str, dropped: Mapping[str, Mapping[str, int]], fastest: bool = False
) -> list[Table]:
    """Rows as tables. Those that can't be right are taken out; of what is left of a shape that was measured more than
    once, the median counts, or the `fastest`.

    `dropped`: the tables of the file, each with the rows that are not among `rows`, by reason.
    """
    by_name: dict[str, dict[Work, dict[str, list[Row]]]] = {}
    for row in rows:
        if row.gpu and row.work:
            by_name.setdefault(row.table, {}).setdefault(row.work, {}).setdefault(row.gpu, []).append(row)
    tables = [_table(name, rig, works, dropped.get(name, {}), fastest) for name, works in by_name.items()]
    none = np.empty((0, 0))
    for name in (x for x in dropped if x not in by_name):
        tables.append(Table(name, rig, (), (), none, np.empty(0, dtype=bool), none, dict(dropped[name])))
    return tables


def _table(
    name: str, rig: str, works: Mapping[Work, Mapping[str, list[Row]]], dropped: Mapping[str, int], fastest: bool
) -> Table:
    gpus = tuple(sorted({g for by_gpu in works.values() for g in by_gpu}))
    seconds, kernel = np.full((len(works), len(gpus)), np.nan), np.full((len(works), len(gpus)), "", dtype=object)
    test, why = np.zeros(len(works), dtype=bool), Counter(dropped)
    least = floors(tuple(works), [gpu_specs.load(g) for g in gpus])
    low, high = (BEYOND_PHYSICS * least).tolist(), (OTHER_UNIT * (least + SLACK_S)).tolist()
    for i, by_gpu in enumerate(works.values()):
        for g, same in by_gpu.items():
            j = gpus.index(g)
            test[i] |= any(r.test for r in same)
            kept = [r for r in same if low[i][j] <= r.seconds <= high[i][j]]
            if kept:
                first = min(kept, key=lambda r: r.seconds) if fastest else kept[0]
                seconds[i, j] = first.seconds if fastest else median(r.seconds for r in kept)
                kernel[i, j] = first.kernel
            why[FASTER] += sum(r.seconds < low[i][j] for r in same)
            why[SLOWER] += sum(r.seconds > high[i][j] for r in same)
            why[SLOW if fastest else AGAIN] += len(kept[1:])
    return Table(name, rig, tuple(works), gpus, seconds, test, kernel, {k: n for k, n in why.items() if n})


def by_library(table: Table) -> list[Table]:
    """The table, and apart from it, as one called `... of another library`, the rows that were measured with another
    version of the library: those kept back by their source on kernels which none of the card's other rows ran on.

    What one version does says little of another: P4's 974 products with a bias ran on sgemm_128x128x8_NT_vec, at .8 of
    the card's peak; its training rows on maxwell_sgemm_64x64_tn and 32x128_tn, at .2 to .4. Rows whose kernel has no
    name stay, and cards with a tenth of such rows or fewer, or with more rows that are kept back than others.
    """
    other = np.zeros(table.seconds.shape, dtype=bool)
    for j in range(len(table.gpus)):
        told, kept_back = (part & (table.seconds[:, j] > 0) for part in (~table.test, table.test))
        usual = {name for name in table.kernel[told, j] if name}
        if usual and told.sum() >= kept_back.sum():
            unusual = kept_back & np.array([n not in usual | {""} for n in table.kernel[:, j]], dtype=bool)
            other[:, j] = unusual & (unusual.sum() > FEW * kept_back.sum())
    if not other.any():
        return [table]
    seconds = np.where(other, table.seconds, np.nan)
    apart = replace(table, name=table.name + OTHER_LIBRARY, seconds=seconds, dropped={})
    rest = replace(table, seconds=np.where(other, np.nan, table.seconds))
    return [rest, apart.on(g for j, g in enumerate(table.gpus) if other[:, j].any())]
