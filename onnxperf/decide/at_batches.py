"""The outlines of a model on several cards at many batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat

from gpu_specs import Device
from onnxperf.answer.outline import Outline, outlines
from onnxperf.decide.choices import on_each
from onnxperf.ground.errors import Error
from onnxperf.running.batches import runs_at, together
from onnxperf.running.pipeline import Request, runs
from onnxperf.running.run import Run

TOGETHER = 8192  # operators of all runs that are held at once, at least one batch


def at_batches(
    request_at: Callable[[int], Request], batches: Sequence[int], devices: Sequence[Device]
) -> Iterator[list[Outline | Error]]:
    """The outline on each card at each of these ascending batches, or why there is none, as `on_each` has them.

    request_at: the request at a batch; it raises the error of one that the model can't have.
    """
    placed = _Placed(request_at, devices)
    places = placed.places(batches)
    parts = [runs_at(placed.part(k), batches) for k in range(1 + max((k for k, _ in places), default=-1))]
    waiting, at_once, operators = list[int](), [deque[Run | Error]() for _ in parts], 0
    for batch, *of_batch in zip(batches, *parts, strict=True):
        waiting.append(batch)
        for runs_of_part, run in zip(at_once, of_batch, strict=True):
            runs_of_part.append(run)
            operators += len(run.graph.operators) if isinstance(run, Run) else 0
        if operators >= TOGETHER or batch == batches[-1]:
            yield from _answered(placed, places, waiting, at_once)
            waiting, at_once, operators = [], [deque() for _ in parts], 0


@dataclass(frozen=True, slots=True)
class _Placed:
    """The runs of requests, as `runs` has them, until they are answered."""

    request_at: Callable[[int], Request]
    devices: Sequence[Device]
    runs: dict[int, list[tuple[Run, int]]] = field(default_factory=dict)

    def at(self, batch: int) -> list[tuple[Run, int]]:
        """For each card its run at a batch, and which of the run's devices it is."""
        if batch not in self.runs:
            self.runs[batch] = runs(self.request_at(batch), self.devices)
        return self.runs[batch]

    def part(self, k: int) -> Callable[[int], Run]:
        """What makes the k-th of the runs that cards share."""
        return lambda batch: _shared(self.at(batch))[k]

    def places(self, batches: Sequence[int]) -> list[tuple[int, int]]:
        """Of each card the index of its run and its place there; nothing where no batch can be predicted on all."""
        for batch in batches:
            with suppress(Error):
                shared = [id(run) for run in _shared(self.at(batch))]
                return [(shared.index(id(run)), column) for run, column in self.at(batch)]
        return []


def _shared(placed: Sequence[tuple[Run, int]]) -> list[Run]:
    """The runs that cards share, each once."""
    return [*{id(run): run for run, _ in placed}.values()]


def _answered(
    placed: _Placed, places: Sequence[tuple[int, int]], batches: Sequence[int], parts: Sequence[deque[Run | Error]]
) -> Iterator[list[Outline | Error]]:
    """The outlines on each card at each of these batches; parts: of each run that cards share that at each batch."""
    each = zip(*(map(_outlined, together(part)) for part in parts), strict=True) if parts else repeat(((),))
    for batch, of_batch in zip(batches, each, strict=False):
        yield [of_batch[k][column] for k, column in places] if all(of_batch) else _alone(placed, batch)
        placed.runs.pop(batch, None)


def _outlined(run: Run | Error) -> Sequence[Outline]:
    """The outline of a run on each of its devices; nothing where it can't be predicted."""
    try:
        return () if isinstance(run, Error) else outlines(run)
    except Error:
        return ()


def _alone(placed: _Placed, batch: int) -> list[Outline | Error]:
    """The outline on each card of a batch that can't be predicted on all at once."""
    try:
        return on_each(placed.request_at(batch), placed.devices)
    except Error as e:
        return [e] * len(placed.devices)
