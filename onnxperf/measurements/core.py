"""What a measurement of kernels is: works down, cards across, seconds, and what may not be believed."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpu_specs
from onnxperf.errors import UsageError, printable
from onnxperf.latency import floors
from op_models import Operator, OpModelError, Tensor, Work, work_or_bytes

Array = NDArray[Any]
MAX_ROWS = 2_000_000  # of one file: a stranger's file may not fill the memory
BEYOND_PHYSICS = 0.9  # of the bound: rows faster than that are wrong, whatever made them so
LEAST_S = 1e-4  # shorter rows say more about the clock that measured them than about the card
OTHER_UNIT, SLACK_S = 200.0, 1e-4  # times the bound and some: rows slower than that are in another unit
FASTER, SLOWER = "faster than physics", "too slow to be in the unit of its column"
AGAIN = "measured again: of one shape the median counts"

#: The die under a card's name: cards of one die are never each other's test.
DIES = {
    "m40": "GM200", "titan-x-maxwell": "GM200", "m6000": "GM200", "p4": "GP104", "gtx-1080-ti": "GP102",
    "titan-x-pascal": "GP102", "titan-xp": "GP102", "p100-pcie-16gb": "GP100", "v100-pcie-16gb": "GV100",
    "v100-pcie-32gb": "GV100", "v100-sxm2-16gb": "GV100", "v100-sxm2-32gb": "GV100", "t4": "TU104",
    "a100-pcie-40gb": "GA100", "a100-pcie-80gb": "GA100", "a100-sxm4-40gb": "GA100", "a100-sxm4-80gb": "GA100",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """Kernels of one family, measured by one rig: `seconds` [n, g], nan where nobody measured or nothing is kept.

    family: bmm, linear, add, softmax, ...; rig: whose clock, hence which overhead is inside; works [n]; gpus [g]: ids
    of cards; test [n]: rows that the source itself kept back; kernel [n, g]: what the library ran, where it was noted;
    dropped: how many rows are not kept, by reason.
    """

    family: str
    rig: str
    works: tuple[Work, ...]
    gpus: tuple[str, ...]
    seconds: Array
    test: Array
    kernel: Array
    dropped: Mapping[str, int]

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
        narrow = replace(
            self, gpus=tuple(self.gpus[i] for i in at), seconds=self.seconds[:, at], kernel=self.kernel[:, at]
        )
        return narrow.take(np.flatnonzero(np.isfinite(narrow.seconds).any(axis=1)))


@dataclass(frozen=True, slots=True)
class Row:
    """One measured kernel as a file states it, with its shape already made into a `Work`."""

    family: str
    gpu: str
    work: Work
    seconds: float
    test: bool = False
    kernel: str = ""


def tables(rows: Iterable[Row], rig: str, dropped: Mapping[str, Mapping[str, int]]) -> list[Table]:
    """Rows by family. Rows that can't be are taken out; of what is left of a shape measured twice the median counts.

    `dropped`: the families of the file, each with the rows that are not among `rows`, by reason.
    """
    found: dict[str, dict[Work, dict[str, list[Row]]]] = {}
    for row in rows:
        found.setdefault(row.family, {}).setdefault(row.work, {}).setdefault(row.gpu, []).append(row)
    made = []
    for family, works in found.items():
        gpus = tuple(sorted({g for by_gpu in works.values() for g in by_gpu}))
        seconds, kernel = np.full((len(works), len(gpus)), np.nan), np.full((len(works), len(gpus)), "", dtype=object)
        test, why = np.zeros(len(works), dtype=bool), Counter(dropped.get(family, {}))
        least = floors(tuple(works), [gpu_specs.load(g) for g in gpus])
        low, high = (BEYOND_PHYSICS * least).tolist(), (OTHER_UNIT * (least + SLACK_S)).tolist()
        for i, by_gpu in enumerate(works.values()):
            for g, same in by_gpu.items():
                j = gpus.index(g)
                test[i] |= any(r.test for r in same)
                kept = [r for r in same if low[i][j] <= r.seconds <= high[i][j]]
                if kept:
                    seconds[i, j] = np.median([r.seconds for r in kept])
                    kernel[i, j] = kept[0].kernel
                why[FASTER] += sum(r.seconds < low[i][j] for r in same)
                why[SLOWER] += sum(r.seconds > high[i][j] for r in same)
                why[AGAIN] += len(kept[1:])
        made.append(Table(family, rig, tuple(works), gpus, seconds, test, kernel, {k: n for k, n in why.items() if n}))
    none = np.empty((0, 0))
    for family in (f for f in dropped if f not in found):
        made.append(Table(family, rig, (), (), none, np.empty(0, dtype=bool), none, dict(dropped[family])))
    return made


def read(path: Path, needed: Iterable[str]) -> Iterator[dict[str, str]]:
    """The records of a CSV file, plain or gzipped, that has the columns `needed`.

    Raises UsageError where the file is not such a table.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            records = csv.DictReader(file)
            missing = [c for c in needed if c not in (records.fieldnames or ())]
            if missing:
                raise UsageError(f"{path.name} has no column {', '.join(missing)}: it is not the table its name says")
            for i, record in enumerate(records):
                if i == MAX_ROWS:
                    raise UsageError(f"{path.name} has more than {MAX_ROWS:,} rows")
                yield record
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as e:
        raise UsageError(f"{path.name} can't be read as a table: {printable(str(e))}") from e


def work_of(type: str, inputs: Sequence[Tensor], out: Tensor, attrs: Mapping[str, Any] | None = None) -> Work | None:
    """The work of an operator alone, None if there can't be one.

    Its inputs are tensors of their own even where they look the same.
    """
    apart = tuple(replace(t, name=f"input {i}") for i, t in enumerate(inputs))
    try:
        return work_or_bytes(Operator(type, type, apart, (out,), dict(attrs or {})))[0]
    except OpModelError:  # sizes that no memory holds
        return None


def refusal(gpu: str | None, shape: object, seconds: float) -> str:
    """Why a record is no row: the reason that it is counted under, "" where nothing is wrong."""
    if gpu is None:
        return "unknown card"
    if shape is None:
        return "no such shape"
    return "" if seconds == seconds else "no positive time"


def number(record: Mapping[str, str], column: str) -> float:
    """A positive number, or nan where the cell is empty, no number, or not positive."""
    try:
        value = float(record.get(column) or "nan")
    except ValueError:
        return math.nan
    return value if 0 < value < 1e15 else math.nan


def sizes(record: Mapping[str, str], *columns: str) -> tuple[int, ...] | None:
    """Positive whole numbers, or None where a cell holds none."""
    found = [number(record, c) for c in columns]
    return tuple(int(v) for v in found) if all(v == v and v == int(v) for v in found) else None
