"""The rows that a fit to measurements uses, with the kernels behind them; and what is left out, with the reason."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from gpu_specs import Device
from onnxperf.answer.prediction import summarise
from onnxperf.calibrate.kinds import KINDS
from onnxperf.calibrate.matching import Joined, joined, predicted
from onnxperf.graph.microbenchmarks import is_wrapper
from onnxperf.latency import correction_name
from onnxperf.lowering.lower import Kernels
from onnxperf.measure.record import Measurement
from onnxperf.running.run import Run

WHOLE = "the whole run"


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was measured and not used, and why."""

    model: str
    name: str
    seconds: float
    reason: str


class Part(NamedTuple):
    """One row of a fit: some kernels of a model, by their indices, and the seconds measured for them together."""

    name: str
    kernels: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A measured model, its run on the device without corrections, and its rows."""

    model: str
    run: Run
    parts: tuple[Part, ...]

    @property
    def whole(self) -> bool:
        """Whether the whole run is the row."""
        return self.parts[0].name == WHOLE


def rows_of(m: Measurement, base: Device, dropped: list[Dropped]) -> MeasuredModel:
    """The kernels of a measured model on the device `base`, and its rows; what can't be a row is noted in `dropped`."""
    run = predicted(m, base)
    one_by_one = KINDS[base.kind].one_by_one and bool(m.operators)
    rows = joined(m.operators, summarise(run)) if one_by_one else ()
    parts = _operators(m, run.kernels, rows, dropped) if one_by_one else _whole_run(m, run.kernels, dropped)
    return MeasuredModel(m.subject.name, run, parts)


def _whole_run(m: Measurement, kernels: Kernels, dropped: list[Dropped]) -> tuple[Part, ...]:
    names = {name for k in kernels.rows for name in (k.name, *k.nodes)}
    if elsewhere := sum(name in names for name in m.hosted):
        dropped.append(Dropped(m.subject.name, WHOLE, m.seconds, f"{elsewhere} of its operators ran on the CPU"))
        return ()
    if not kernels.rows or m.seconds <= 0:
        dropped.append(Dropped(m.subject.name, WHOLE, m.seconds, "it has no time or no kernel"))
        return ()
    return (Part(WHOLE, tuple(range(len(kernels.rows))), m.seconds),)


def _operators(m: Measurement, kernels: Kernels, rows: Sequence[Joined], dropped: list[Dropped]) -> tuple[Part, ...]:
    """A row for each measured operator: one for all with equal work, with the median of their times, and one for all of
    a type to which ONNX Runtime gave no names, with the sum.
    """
    index, provider = {k.name: i for i, k in enumerate(kernels.rows)}, {o.name: o.provider for o in m.operators}
    equal: dict[tuple[object, str], list[Part]] = defaultdict(list)
    nameless: dict[str, list[Part]] = defaultdict(list)
    for j in rows:
        if reason := _unfit(j, [provider[o] for o in j.operators]):
            dropped.append(Dropped(m.subject.name, j.name, j.measured_s or 0.0, reason))
            continue
        part = Part(j.name, (index[j.name],), j.measured_s or 0.0)
        k = kernels.rows[index[j.name]]
        if all(re.fullmatch(rf"{re.escape(j.type)}(_token_\d+)?", o) for o in j.operators):
            nameless[correction_name(k)].append(part)
        else:
            equal[k.work, correction_name(k)].append(part)
    merged = [at[0]._replace(seconds=median(p.seconds for p in at)) for at in equal.values()]
    for type, at in nameless.items():
        merged.append(Part(f"all {type}", tuple(i for p in at for i in p.kernels), sum(p.seconds for p in at)))
    return tuple(merged)


def _unfit(j: Joined, providers: Sequence[str]) -> str:
    """Why an operator can't be a row, "" if it can."""
    if is_wrapper(j.name):
        return "it only connects the operators of the suite"
    if j.measured_s is None:
        return "it is predicted but not in the profile"
    if j.predicted_s is None:
        return "it is in the profile but not predicted"
    if any(not p.startswith("CPU") for p in providers):
        return "it ran on another execution provider"
    return "" if j.measured_s > 0 else "its time is below the profile's resolution of 1 us"
