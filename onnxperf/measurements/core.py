"""What a measurement of kernels is: works down, cards across, seconds, and what may not be believed."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpu_specs
from onnxperf.errors import EnvironmentFailure, UsageError, printable
from onnxperf.latency import floors
from op_models import Operator, OpModelError, Tensor, Work, work_or_bytes

Array = NDArray[Any]
MAX_ROWS = 2_000_000  # of one file: a stranger's file may not fill the memory
GRAPH = "graph"  # the rig that replays a CUDA graph of many kernels: no clock and no launch is inside its rows
BEYOND_PHYSICS = 0.9  # of the bound: rows faster than that are wrong, whatever made them so
LEAST_S = 1e-4  # shorter rows say more about the clock that measured them than about the card
PARQUET_ROWS = 65_536  # read at once
OTHER_UNIT, SLACK_S = 200.0, 1e-4  # times the bound and some: rows slower than that are in another unit
FASTER, SLOWER = "faster than physics", "too slow to be in the unit of its column"
AGAIN, SLOW = "measured again: of one shape the median counts", "measured again: of one shape the fastest counts"

#: The die under a card's name: cards of one die are never each other's test.
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
    "rtx-5090": "GB202", "rtx-pro-6000-server": "GB202", "rtx-pro-6000-workstation": "GB202",
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
    def least_s(self) -> float:
        """Rows have to be longer to tell of the card; any do where no clock is inside."""
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


def tables(
    rows: Iterable[Row], rig: str, dropped: Mapping[str, Mapping[str, int]], fastest: bool = False
) -> list[Table]:
    """Rows by family. Rows that can't be are taken out; of what is left of a shape measured twice the median counts, or
    the `fastest`.

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
                    first = min(kept, key=lambda r: r.seconds) if fastest else kept[0]
                    seconds[i, j] = first.seconds if fastest else np.median([r.seconds for r in kept])
                    kernel[i, j] = first.kernel
                why[FASTER] += sum(r.seconds < low[i][j] for r in same)
                why[SLOWER] += sum(r.seconds > high[i][j] for r in same)
                why[SLOW if fastest else AGAIN] += len(kept[1:])
        made.append(Table(family, rig, tuple(works), gpus, seconds, test, kernel, {k: n for k, n in why.items() if n}))
    none = np.empty((0, 0))
    for family in (f for f in dropped if f not in found):
        made.append(Table(family, rig, (), (), none, np.empty(0, dtype=bool), none, dict(dropped[family])))
    return made


def located(path: Path) -> Path:
    """The table of this name: the Parquet file beside it, if there is one."""
    parquet = path.with_name(path.name.removesuffix(".csv.gz") + ".parquet")
    return parquet if parquet.is_file() else path


def read(path: Path, needed: Iterable[str]) -> Iterator[dict[str, str]]:
    """The records of a CSV file, plain or gzipped, or of a Parquet file, that has the columns `needed`.

    Raises UsageError where the file is not such a table, EnvironmentFailure where Parquet can't be read here.
    """
    if path.suffix == ".parquet":
        yield from _parquet(path, needed)
        return
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


def _parquet(path: Path, needed: Iterable[str]) -> Iterator[dict[str, str]]:
    if find_spec("pyarrow") is None:
        raise EnvironmentFailure(f"reading {path.name} takes pyarrow: pip install 'onnxperf[fit]'")
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            if missing := [c for c in needed if c not in file.schema_arrow.names]:
                raise UsageError(f"{path.name} has no column {', '.join(missing)}: it is not the table its name says")
            if file.metadata.num_rows > MAX_ROWS:
                raise UsageError(f"{path.name} has more than {MAX_ROWS:,} rows")
            for batch in file.iter_batches(PARQUET_ROWS):
                columns = [[_cell(v) for v in column.to_pylist()] for column in batch.columns]
                yield from (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))
    except (OSError, ArrowException) as e:
        raise UsageError(f"{path.name} can't be read as a table: {printable(str(e))[:200]}") from e


def _cell(value: object) -> str:
    """As CSV would have it; single precision has seven digits."""
    return "" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)


def work_of(type: str, inputs: Sequence[Tensor], out: Tensor, attrs: Mapping[str, Any] | None = None) -> Work | None:
    """The work of an operator alone, None if there can't be one.

    Its inputs are tensors of their own even where they look the same.
    """
    apart = tuple(replace(t, name=f"input {i}") for i, t in enumerate(inputs))
    try:
        return work_or_bytes(Operator(type, type, apart, (out,), dict(attrs or {})))[0]
    except OpModelError:  # sizes that no memory holds
        return None


@cache
def card(name: str | None) -> str | None:
    """The id of the shipped card that a file calls `name`; a path is nobody's name."""
    try:
        found = gpu_specs.resolve(name or "")[0]
    except gpu_specs.SpecError:
        return None
    return found if found in gpu_specs.ids() else None


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
