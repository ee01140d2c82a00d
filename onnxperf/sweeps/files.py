"""Tables of sweeps as files: rows are written as they come, and the file takes its place when it is whole."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnxperf.ground.errors import UsageError
from onnxperf.ground.modules import require
from onnxperf.ground.output import aside

Record = Mapping[str, Any]
Write = Callable[[Iterable[Record]], None]
ROW_GROUP = 10_000  # rows of a Parquet file that are held before they are written


def check_kind(target: str, others: Iterable[str] = ()) -> None:
    """Raise UsageError where a file's ending names no kind of table, nor one of the others, EnvironmentFailure where
    what it takes is not installed.
    """
    suffix = Path(target).suffix.lower()
    if suffix not in (*KINDS, *others):
        raise UsageError(f"-o {target}: its ending must be one of {', '.join((*KINDS, *others))}")
    if suffix == ".parquet":
        require("pyarrow", f"writing {target}")


@contextmanager
def table(target: str, columns: Mapping[str, type]) -> Iterator[Write]:
    """A function that adds rows to the table in a file of that name, which is there when all are written."""
    with aside(target) as path, KINDS[Path(target).suffix.lower()](path, columns) as write:
        yield write


@contextmanager
def _csv(path: Path, columns: Mapping[str, type]) -> Iterator[Write]:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*columns])
        writer.writeheader()
        yield lambda rows: writer.writerows({name: _harmless(cell) for name, cell in row.items()} for row in rows)


def _harmless(cell: Any) -> Any:
    """A cell that no spreadsheet takes as a formula: text that would be one gets the quotation mark that says so."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell


@contextmanager
def _json_lines(path: Path, columns: Mapping[str, type]) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:

        def write(rows: Iterable[Record]) -> None:
            file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)

        yield write


@contextmanager
def _json(path: Path, columns: Mapping[str, type]) -> Iterator[Write]:
    """A list, a line for each row."""
    with path.open("w", encoding="utf-8") as file:
        before = "[\n"

        def write(rows: Iterable[Record]) -> None:
            nonlocal before
            for row in rows:
                file.write(before + json.dumps(row, allow_nan=False))
                before = ",\n"

        yield write
        file.write("\n]\n" if before != "[\n" else "[]\n")


@contextmanager
def _parquet(path: Path, columns: Mapping[str, type]) -> Iterator[Write]:
    import pyarrow
    from pyarrow import parquet

    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    schema = pyarrow.schema([(name, kinds[type]) for name, type in columns.items()])
    held: list[Record] = []
    with parquet.ParquetWriter(path, schema) as writer:

        def write(rows: Iterable[Record]) -> None:
            held.extend(rows)
            if len(held) >= ROW_GROUP:
                flush()

        def flush() -> None:
            writer.write_table(pyarrow.table({name: [row[name] for row in held] for name in columns}, schema=schema))
            held.clear()

        yield write
        flush()


KINDS = {".csv": _csv, ".json": _json, ".jsonl": _json_lines, ".parquet": _parquet}
