"""Measured kernels and models of others, as tables that fits and scores read.

A dataset is a module in `sources/` that has a `DATASET`: it is found by being there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

from onnxperf.ground.errors import Error, counted
from onnxperf.ground.modules import offered
from onnxperf.lab.datasets import sources
from onnxperf.lab.datasets.dataset import Dataset, File, Kernels, Models, Watts
from onnxperf.lab.datasets.reading import SAMPLE, located
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.lab.datasets.table import DIES, LEAST_S, Row, Table, tables
from onnxperf.latency.families import constant_sets

REASONS = 5  # are told at most, of rows that are of no use

__all__ = [
    "DIES", "LEAST_S", "SAMPLE", "Dataset", "File", "Kernels", "Models", "Row", "Table", "Watts", "datasets", "files",
    "kernels", "model_runs", "models", "read", "tables", "unused", "watts",
]  # fmt: skip


@cache
def datasets() -> tuple[Dataset, ...]:
    """Every dataset there is a module for, in the order of their scores.

    Raises Error where the kernels of one tell constants that no kernel family declares.
    """
    declared = offered(sources.__name__, sources.__path__, "DATASET", Dataset)
    sets = constant_sets()
    for folder, k in [(d.folder, k) for d in declared for k in d.kernels if k.constants not in sets]:
        what = f"the DATASET of the folder {folder!r} names the constants {k.constants!r} for its Kernels {k.name!r}"
        raise Error(f"{what}, which no kernel family declares: there are {', '.join(sets)}")
    return tuple(sorted(declared, key=lambda d: d.place))


@cache
def kernels() -> dict[str, Kernels]:
    """All measured kernels by the names of their tables, in the order of their scores."""
    return {k.name: k for d in datasets() for k in d.kernels}


def models() -> tuple[tuple[Dataset, Models], ...]:
    """The datasets that hold whole models, and what they say of these."""
    return tuple((d, m) for d in datasets() for m in d.models)


def model_runs(data: Path) -> Iterator[tuple[Models, list[MeasuredRun], dict[str, int]]]:
    """The runs of whole models in a folder, by dataset, and how many rows are not taken, by reason."""
    for d, m in models():
        if (data / d.folder / m.file).is_file():
            yield m, *m.read(data / d.folder)


def files(data: Path) -> list[Path]:
    """The files of kernels that are read of a folder, whether or not they are there."""
    return [located(data / d.folder / f.name) for d in datasets() for f in d.files]


def read(data: Path) -> list[Table]:
    """Every table of kernels in a folder. Raises UsageError where one can't be read."""
    return [t for d in datasets() for t in d.tables(data)]


def watts(data: Path) -> list[Watts]:
    """What cards drew, of every dataset in a folder that has it."""
    return [w for d in datasets() for w in d.watts(data / d.folder)]


def unused(tables: Iterable[Table]) -> str:
    """Why the rows of tables are of no use, where some were expected: how many of which table, by reason."""
    told: list[str] = []
    for t in tables:
        rows = int(np.isfinite(t.seconds).sum())
        short = int((t.seconds <= t.least_s).sum())
        if t.name in kernels():
            why = {**t.dropped, f"no longer than {LEAST_S * 1e3:g} ms": short, "no fit takes them": rows - short}
        else:
            why = {**t.dropped, "no dataset declares Kernels of that name": rows}
        told += (f"{counted(n, 'row')} of {t.name!r}: {reason}" for reason, n in why.items() if n)
    return "; ".join(told[:REASONS])
