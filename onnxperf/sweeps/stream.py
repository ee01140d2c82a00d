"""A sweep as a stream of blocks, in the order of the models, whoever computes them: no more than some are ever held."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from onnxperf.decide.choices import Choice
from onnxperf.ground.errors import EnvironmentFailure, Error, UsageError
from onnxperf.ground.output import Progress
from onnxperf.sweeps.cache import Cache, Cells, spec
from onnxperf.sweeps.edition import edition
from onnxperf.sweeps.engines import Engine
from onnxperf.sweeps.grid import Grid, Point
from onnxperf.sweeps.rows import Block, block
from onnxperf.sweeps.work import Answer, Prepared, predicted, prepare

NOT_CACHED = "results are not cached"
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Model:
    """A model to sweep: what to read; its name in the table, its own where that is empty; example inputs for it."""

    source: Any
    name: str = ""
    examples: Any = None


@dataclass(frozen=True, slots=True)
class _Part:
    """A model at a point: what the cache has of it and where the rest is kept, and which cards that is in each
    precision.
    """

    point: Point
    cached: Cells
    place: Path | None
    lacks: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Task:
    """A model with some sizes of open dimensions, at all batches; done: how many points are when it is."""

    model: str
    parts: tuple[_Part, ...]
    done: int


def blocks(
    models: Sequence[Model], grid: Grid, engine: Engine, cache: Cache | None = None, tell: Progress | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Iterator[Block]:  # fmt: skip
    """The blocks of a sweep: what the cache lacks is predicted, and kept there until that fails, which `warn` is told.

    Where there are several models, a binding goes to those that have a dimension, tensor or loop of its name. A model
    that can't be used has its reason in every row. Raises at the end UsageError where no model has a name that was
    given, and the first error where nothing could be predicted; EnvironmentFailure where the engine fails.
    """
    specs = [spec(device) for device in grid.devices]
    nowhere = {name for names in grid.named.values() for name in names} if len(models) > 1 else set()
    keys = {(name, j): (name, specs[j]) for name in grid.precisions for j in range(len(specs))}
    failed: Error | None = None
    some, keeps = False, cache
    for task, answer in _in_order(_tasks(models, grid, engine, cache, specs, nowhere), engine.ahead):
        if tell:
            tell(Path(task.model).name, task.done, len(models) * grid.points)
        answers: dict[int | None, dict[tuple[str, int], Choice | Error]] = {}
        for part, new in zip(task.parts, _cells(task, answer), strict=True):
            answers[part.point.batch] = {at: new[at] if at in new else part.cached[key] for at, key in keys.items()}
            fresh = {keys[at]: cell for at, cell in new.items() if isinstance(cell, Choice)}
            if keeps and part.place and fresh:
                try:
                    keeps.write(part.place, {**part.cached, **fresh})
                except EnvironmentFailure as e:
                    keeps = None
                    warn(f"{NOT_CACHED}: {e}")
        cells = [cell for at in answers.values() for cell in at.values()]
        some = some or any(isinstance(x, Choice) for x in cells)
        failed = failed or next((x for x in cells if isinstance(x, Error)), None)
        yield block(task.model, task.parts[0].point.dims, grid, answers)
    if nowhere:
        raise UsageError(f"no model has a dimension, tensor or loop {', '.join(map(repr, sorted(nowhere)))}")
    if failed and not some:
        raise failed


def _tasks(
    models: Sequence[Model], grid: Grid, engine: Engine, cache: Cache | None, specs: Sequence[str], nowhere: set[str]
) -> Iterator[tuple[_Task, Future[Answer | Error]]]:
    """Every model with all sizes, and the answer to come on what the cache lacks.

    nowhere: names that no model had so far; those that a model has are taken off.
    """
    whole = tuple((name, tuple(range(len(specs)))) for name in grid.precisions)

    def part(read: Prepared, narrowed: Grid, point: Point) -> _Part:
        place = cache.place(read, narrowed, point) if cache else None
        cached = cache.read(place) if cache and place else {}
        lacks = tuple((x, tuple(j for j in at if (x, specs[j]) not in cached)) for x, at in whole)
        return _Part(point, cached, place, tuple(x for x in lacks if x[1]))

    open_batch = grid.batches != (None,)
    reads = (
        ((i, m), engine.reads.submit(prepare, m.source, m.examples, open_batch, grid.named))
        for i, m in enumerate(models)
    )
    for (i, m), read in _in_order(reads, engine.ahead):
        name = m.name or (read.name if isinstance(read, Prepared) else "model")
        narrowed = grid
        if isinstance(read, Prepared) and len(models) > 1:
            nowhere -= {name for names in read.names.values() for name in names}
            narrowed = grid.narrowed(read.names)
        points = narrowed.each()
        for n, at_batches in enumerate(points, 1):
            done = i * grid.points + n * grid.points // len(points)
            if isinstance(read, Error):
                yield _Task(name, tuple(_Part(p, {}, None, whole) for p in at_batches), done), _answered(read)
                continue
            task = _Task(name, tuple(part(read, narrowed, point) for point in at_batches), done)
            asked = [(x.point, tuple((p, tuple(grid.devices[j] for j in at)) for p, at in x.lacks)) for x in task.parts]
            shapes = {**read.shapes, **(narrowed.shapes or {})}
            work = read.data, asked, shapes, narrowed.trip_counts, narrowed.terms
            some = any(of_point for _, of_point in asked)
            yield task, engine.predicts.submit(predicted, *work) if some else _answered((edition(), [[]] * len(asked)))


def _cells(task: _Task, answer: Answer | Error) -> list[dict[tuple[str, int], Choice | Error]]:
    """What was answered on each point, by precision and the card's index. Raises EnvironmentFailure where others
    answered.
    """
    places = [[(name, j) for name, at in part.lacks for j in at] for part in task.parts]
    if isinstance(answer, Error):
        return [dict.fromkeys(at, answer) for at in places]
    made_by, cells = answer
    if made_by != edition():
        raise EnvironmentFailure(
            f"a worker has another onnxperf, {made_by}, than this one, {edition()}: install this version there"
        )
    return [dict(zip(at, of_point, strict=True)) for at, of_point in zip(places, cells, strict=True)]


def _answered(answer: Answer | Error) -> Future[Answer | Error]:
    done: Future[Answer | Error] = Future()
    done.set_result(answer)
    return done


def _in_order(futures: Iterable[tuple[T, Future[R]]], ahead: int) -> Iterator[tuple[T, R]]:
    """The results of futures in their order; no more than `ahead` others are asked for before one is taken."""
    waiting = deque[tuple[T, Future[R]]]()
    for pair in futures:
        waiting.append(pair)
        if len(waiting) > ahead:
            what, future = waiting.popleft()
            yield what, future.result()
    for what, future in waiting:
        yield what, future.result()
