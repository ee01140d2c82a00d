"""What a dataset declares: its files, the kernels in them, the whole models it measured."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import gpu_specs
from gpu_specs import Device
from onnxperf.ground.errors import UsageError
from onnxperf.lab.datasets.reading import Record, located, read, refusal
from onnxperf.lab.datasets.rigs import by_itself
from onnxperf.lab.datasets.runs import MeasuredRun
from onnxperf.lab.datasets.table import LEAST_S, Row, Table, by_library, tables
from onnxperf.latency import Array, Constants
from op_models import Work

LEAST_W = 100


def everything(t: Table) -> Table:
    """All rows of a table."""
    return t


def long_enough(t: Table) -> Table:
    """Without the rows that are no longer than the host took to launch them.

    An event pair around a kernel reads `start + max(kernel, dispatch)`: on these hosts that is 25 to 60 microseconds
    whatever the kernel does. Rows under 0.1 ms, which no score counts either, would tell a fit of the host.
    """
    return t.without(t.seconds < LEAST_S, "shorter than 0.1 ms").on(t.gpus)


def with_watts_to_spare(t: Table) -> Table:
    """Cards from 100 W on: the others run products at their power limit, and their rows tell of the limit."""
    return t.on(g for g in t.gpus if gpu_specs.load(g).tdp_W >= LEAST_W)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Measured kernels of one kind, which are one table.

    name: of the table, as rows have it. reported: the operator class that its scores stand under. constants: the set
    of constants that predicts them (`latency.constants.ConstantSet`). overhead_s: what the clock usually includes
    beside the kernel; beside: of which constant `rig.beside.<name>` it includes more. fitted: the rows that tell a fit
    of these constants, of those that are not kept back; None where they only score. kept_back: whether a fit leaves out
    the rows that the source kept back (`Table.test`); where the source has no such split, cards are scored by leaving
    their die out. timed: how the rig runs a kernel, such as those in `rigs`. tiles: which tiles the names of its
    kernels tell, as `latency.constants.Tiles.told_by` has it. drawn: how many shapes the shipped sample holds. scored:
    False where rows only tell constants.
    """

    name: str
    reported: str
    constants: str
    overhead_s: float = 0.0
    fitted: Callable[[Table], Table] | None = everything
    kept_back: bool = True
    timed: Callable[[Sequence[Work], Sequence[Device], Constants], Array] = by_itself
    beside: str = ""
    tiles: str = ""
    drawn: int = 0
    scored: bool = True

    def open_rows(self, t: Table) -> Table:
        """The rows of their table that are not kept back for scores, of the cards that have some: a fit shares its
        weight among cards.
        """
        kept = t.take(~t.test) if self.kept_back else t
        return kept.on(g for j, g in enumerate(kept.gpus) if np.isfinite(kept.seconds[:, j]).any())

    def beside_s(self, c: Constants) -> float:
        """Seconds that the clock includes beside the kernel, on any card."""
        return float(c.rig["beside"][self.beside]) if self.beside else 0.0

    def seconds(self, works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
        """What the constants make of works on cards as the rig runs them, [n, g], without its overhead on the card."""
        return np.asarray(self.timed(works, devices, c) + self.beside_s(c))

    def overhead(self, rig: str, gpu: str, c: Constants) -> float:
        """Seconds that the rig's clock includes beside a kernel on a card, as the constants have it; on a card without
        rows what it is on others.
        """
        seconds = c.rig.get(self.constants, {}).get(rig) or {"other": self.overhead_s}
        return float(seconds.get(gpu, seconds["other"]))


@dataclass(frozen=True, slots=True)
class File:
    """One file of measured kernels. columns: those that it must have; row: what a record says, None where it is not of
    what is read; fastest: of a shape measured more than once the fastest counts, for the median.
    """

    name: str
    columns: tuple[str, ...]
    row: Callable[[Record], Row | None]
    fastest: bool = False


@dataclass(frozen=True, slots=True)
class Models:
    """Inferences of whole models that a dataset measured.

    reported: what their scores stand under; title: of their table. read: the runs in a folder, and how many rows are
    not taken, by reason. drawn: whether the shipped sample holds a record; graph: the column that names a record's
    graph, a file of the dataset's folder, "" where the samples have them. apart: what a run is scored under, all of the
    same count alike; None: scores are of each card, then their mean. constants: the set that these very runs tell,
    "host" where it is the host's costs, "range" where only how wide ranges of whole runs are comes from them; else
    nothing does; fitted: the runs that tell of these constants; ranged: those that tell how wide ranges are; by_die:
    they are scored without their die, as runs are that tell of nothing.
    published: predictions that were published beside the measurements, by the name of the method, with the heading of
    their column; spare: headings that go first where lines are short.
    """

    file: str
    columns: tuple[str, ...]
    reported: str
    title: str
    read: Callable[[Path], tuple[list[MeasuredRun], dict[str, int]]]
    drawn: Callable[[Record], bool] = lambda record: True
    graph: str = ""
    apart: Callable[[MeasuredRun], str] | None = None
    constants: str = ""
    fitted: Callable[[MeasuredRun], bool] = lambda run: True
    ranged: Callable[[MeasuredRun], bool] = lambda run: True
    by_die: bool = False
    published: Mapping[str, str] = field(default_factory=dict)
    spare: tuple[str, ...] = ()

    def heading(self, run: MeasuredRun) -> str:
        """What a run is averaged under."""
        return f"{self.reported}, {self.apart(run)}" if self.apart else self.reported

    def heads(self, name: str) -> bool:
        """Whether some of these runs can be averaged under this heading."""
        return name.startswith(f"{self.reported}, ") if self.apart else name == self.reported

    def left_out(self, run: MeasuredRun) -> str:
        """What constants have to be derived without, to be no fit to this very run."""
        return run.group if self.constants and not self.by_die else run.die


@dataclass(frozen=True, slots=True)
class Watts:
    """What cards drew while they repeated kernels: of one class of kernels on one card, works [n] and watts [n].

    copies: of the weights, which the runs took in turn.
    """

    reported: str
    gpu: str
    works: tuple[Work, ...]
    watts: Array
    copies: int


def no_watts(_: Path) -> list[Watts]:
    """Of datasets without any."""
    return []


@dataclass(frozen=True, slots=True)
class Dataset:
    """Measurements of one origin, as files in a folder.

    place: of its scores among those of others, lowest first. rig: whose clock timed the kernels. names: a file that
    gives kernels' names (`name`) for the numbers (`id`) in rows. split_by_library: rows on kernels of another version
    of the library are a table of their own. draws_tests: the shipped sample holds all rows that the source kept back,
    beside those drawn. copied: files that the sample holds unchanged. watts: the rows of a folder that have watts.
    """

    folder: str
    place: int
    rig: str = ""
    kernels: tuple[Kernels, ...] = ()
    files: tuple[File, ...] = ()
    models: tuple[Models, ...] = ()
    names: str = ""
    split_by_library: bool = False
    draws_tests: bool = True
    copied: tuple[str, ...] = ()
    watts: Callable[[Path], list[Watts]] = no_watts

    def tables(self, data: Path) -> list[Table]:
        """The tables of kernels that lie in the dataset's folder in `data`; none where it is not there."""
        folder, names = data / self.folder, dict[str, str]()
        if self.names and (folder / self.names).is_file():
            names = {r["id"]: r["name"] for r in read(folder / self.names, ("id", "name"))}
        tables: list[Table] = []
        for file in self.files:
            if (path := located(folder / file.name)).is_file():
                tables += self._read(path, file, names)
        return [part for t in tables for part in by_library(t)] if self.split_by_library else tables

    def _read(self, path: Path, file: File, names: Mapping[str, str]) -> list[Table]:
        rows: list[Row] = []
        dropped: dict[str, Counter[str]] = {}
        for record in read(path, file.columns):
            if (row := self._row(file, record)) is None:
                continue
            why = dropped.setdefault(row.table, Counter())
            if reason := refusal(row.gpu, row.work, row.seconds):
                why[reason] += 1
            else:
                ran = names.get(row.kernel.removesuffix(".0"), row.kernel) if names else row.kernel
                rows.append(Row(row.table, row.gpu, row.work, row.seconds, row.test, ran))
        return tables(rows, self.rig, dropped, file.fastest)

    def _row(self, file: File, record: Record) -> Row | None:
        """What a record says. Raises UsageError where `row` of the file can't tell."""
        try:
            row = file.row(record)
        except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError) as e:
            at = traceback.extract_tb(e.__traceback__)[:2][-1]  # in the dataset's own module
            what = f"its row() failed with {type(e).__name__}: {e}, in {at.filename}, line {at.lineno}"
            raise UsageError(f"{self.folder}/{file.name}: {what}; its columns are {', '.join(record)}") from e
        if row is not None and not isinstance(row, Row):
            raise UsageError(f"{self.folder}/{file.name}: its row() gave {row!r}, where it gives a Row or None")
        return row

    def drawn(self, file: File, records: list[Record], seed: int) -> list[Record]:
        """The records of the shapes that the shipped sample holds, in the order of the file: with a shape all its rows
        on all cards. Equal works are one shape, as in a `Table`.
        """
        most = {k.name: k.drawn for k in self.kernels}
        rows = [self._row(file, r) for r in records]
        shapes: dict[str, dict[object, bool]] = {}
        for row in rows:
            if row is not None:
                of_table = shapes.setdefault(row.table, {})
                of_table[row.work] = of_table.get(row.work, False) or (row.test and self.draws_tests)
        chosen = set[tuple[str, object]]()
        for name, works in shapes.items():
            others = [work for work, kept in works.items() if not kept]
            some = np.random.default_rng(seed).permutation(len(others))[: most.get(name, 0)]
            chosen |= {(name, work) for work, kept in works.items() if kept}
            chosen |= {(name, others[i]) for i in some}
        return [r for r, row in zip(records, rows, strict=True) if row is not None and (row.table, row.work) in chosen]
