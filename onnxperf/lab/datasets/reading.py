"""Reading the files of a dataset: records of CSV and Parquet, and what a cell of them says."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpu_specs
from onnxperf.ground.errors import UsageError, printable
from onnxperf.ground.modules import require
from op_models import Operator, OpModelError, Tensor, Work, known, work_or_bytes

if TYPE_CHECKING:
    from pyarrow import DictionaryArray

Record = dict[str, str]

SAMPLE = Path(__file__).parent / "sample"  # a draw of every dataset, which ships with the package
MAX_ROWS = 2_000_000  # of one file: a stranger's file may not fill the memory
PARQUET_ROWS = 65_536  # read at once


def located(path: Path) -> Path:
    """The file of this name; the Parquet file beside it, if there is one."""
    parquet = path.with_name(path.name.removesuffix(".csv.gz") + ".parquet")
    return parquet if parquet.is_file() else path


def read(path: Path, needed: Iterable[str]) -> Iterator[Record]:
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
            _check_columns(path, needed, records.fieldnames or ())
            for i, record in enumerate(records):
                if i == MAX_ROWS:
                    raise UsageError(f"{path.name} has more than {MAX_ROWS:,} rows")
                yield record
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as e:
        raise UsageError(f"{path.name} can't be read as a table: {printable(str(e))}") from e


def _parquet(path: Path, needed: Iterable[str]) -> Iterator[Record]:
    require("pyarrow", f"reading {path.name}")
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            _check_columns(path, needed, file.schema_arrow.names)
            if file.metadata.num_rows > MAX_ROWS:
                raise UsageError(f"{path.name} has more than {MAX_ROWS:,} rows")
            for batch in file.iter_batches(PARQUET_ROWS):
                columns = [_cells(column.dictionary_encode()) for column in batch.columns]
                yield from (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))
    except (OSError, ArrowException) as e:
        raise UsageError(f"{path.name} can't be read as a table: {printable(str(e))[:200]}") from e


def _check_columns(path: Path, needed: Iterable[str], columns: Sequence[str]) -> None:
    if missing := [c for c in needed if c not in columns]:
        raise UsageError(f"{path.name} has no column {', '.join(missing)}: it is not the table its name says")


def _cells(column: DictionaryArray) -> list[str]:
    """The cells of a column: sizes and names recur, so that each value is made text once."""
    texts = [_cell(value) for value in column.dictionary.to_pylist()]
    return ["" if i is None else texts[i] for i in column.indices.to_pylist()]


def _cell(value: object) -> str:
    """As CSV would have it; single precision has seven digits."""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def number(record: Mapping[str, str], column: str) -> float:
    """A positive number, or nan where the cell is empty, no number, or not positive."""
    try:
        value = float(record.get(column) or "nan")
    except ValueError:
        return math.nan
    return value if 0 < value < 1e15 else math.nan


def sizes(record: Mapping[str, str], *columns: str) -> tuple[int, ...] | None:
    """Positive whole numbers, or None where a cell holds none."""
    numbers = [number(record, c) for c in columns]
    return tuple(int(v) for v in numbers) if all(v == v and v == int(v) for v in numbers) else None


@cache
def card(name: str | None) -> str | None:
    """The id of the shipped card that a file calls `name`, None where there is none; no path is opened."""
    try:
        card_id = gpu_specs.resolve(name or "")[0]
    except gpu_specs.SpecError:
        return None
    return card_id if card_id in gpu_specs.ids() else None


def work_of(type: str, inputs: Sequence[Tensor], out: Tensor, attrs: Mapping[str, Any] | None = None) -> Work | None:
    """The work of one operator by itself, None if there can't be one.

    Each input is a tensor of its own, also where two look the same. Raises OpModelError where no rule is registered
    for the operator.
    """
    if not known(type):
        raise OpModelError(f"no rule knows the operator {type!r}: its bytes alone would be scored")
    apart = tuple(replace(t, name=f"input {i}") for i, t in enumerate(inputs))
    try:
        return work_or_bytes(Operator(type, type, apart, (out,), dict(attrs or {})))[0]
    except OpModelError:  # sizes that no memory holds
        return None


def refusal(gpu: str | None, shape: object, seconds: float) -> str:
    """Why a record can't be used: the reason that it is counted under, "" where nothing is wrong."""
    if gpu is None:
        return "unknown card"
    if shape is None:
        return "no such shape"
    return "" if seconds == seconds else "no positive time"
