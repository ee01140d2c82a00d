"""Runs whose operators have times, predicted or measured, and what two of them differ in: operators matched by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from onnxperf.answer.host_timeline import host_steps
from onnxperf.answer.prediction import Prediction
from onnxperf.calibrate.matching import owners
from onnxperf.decide.two_models import signed, slower
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import LimitExceeded, counted, printable
from onnxperf.ground.tables import percent, short_type, shortened
from onnxperf.running.scenario import PLATFORMS

MOST_NAMED = 8  # operators that a sentence lists


@dataclass(frozen=True, slots=True)
class Timed:
    """An operator of a run, and the seconds that it takes; nodes: the ONNX nodes whose work it does, where known."""

    name: str
    type: str
    seconds: float
    nodes: tuple[str, ...] = ()

    @property
    def op(self) -> str:
        """The type, by the name that kernels have for it."""
        return self.type


@dataclass(frozen=True, slots=True)
class TimedRun:
    """A run: what it is of, whether it was measured, its seconds, and its operators in order.

    runs: how many measured runs the times are medians of; notes: what limits the figures. on_gpu: whether any of it ran
    on a GPU; on_cpu: of a measured run the operators that the CPU computed. Names are printable.
    """

    name: str
    measured: bool
    seconds: float
    operators: tuple[Timed, ...]
    runs: int = 1
    notes: tuple[str, ...] = ()
    on_gpu: bool = False
    on_cpu: tuple[str, ...] = ()

    @property
    def sum_seconds(self) -> float:
        """All operators added."""
        return fsum(o.seconds for o in self.operators)

    @property
    def kind(self) -> str:
        """Measured or predicted."""
        return "measured" if self.measured else "predicted"


def of(p: Prediction) -> TimedRun:
    """A prediction as a run: its kernels, and what the host computes itself. On a processor the runtime's own time for
    an operator counts for it, as in a profile.
    """
    steps = host_steps(p.run, p.column)
    if steps and not PLATFORMS[p.device.kind].launches:
        times = [(s.begin_s, s.name, s.op, s.end_s - s.begin_s, s.nodes) for s in steps]
    else:
        times = [(k.start_seconds, k.name, k.op, k.seconds, k.nodes) for k in p.kernels]
        times += [(s.begin_s, s.name, s.op, s.end_s - s.begin_s, s.nodes) for s in steps if s.computed]
    operators = (
        Timed(printable(name), printable(short_type(op)), seconds, tuple(map(printable, nodes)))
        for _, name, op, seconds, nodes in sorted(times, key=lambda x: x[0])
    )
    s = p.scenario
    name = title(s.model, p.device.name, s.runtime)
    return TimedRun(name, False, p.seconds, tuple(operators), on_gpu=PLATFORMS[p.device.kind].launches)


def title(model: str, device: str, runtime: str) -> str:
    """What a predicted run is called."""
    return printable(f"{shortened(model)} on {device} under {runtime}")


@dataclass(frozen=True, slots=True)
class Pair(Document):
    """Operators of A and those of B that do the same work; none on one side where nothing there does it."""

    a: tuple[Timed, ...]
    b: tuple[Timed, ...]

    @property
    def type(self) -> str:
        """The type of the first of them."""
        return (self.a or self.b)[0].type

    @property
    def seconds(self) -> float:
        """What B takes longer."""
        return fsum([*(o.seconds for o in self.b), *(-o.seconds for o in self.a)])

    def to_dict(self) -> dict[str, Any]:
        """The pair as it stands in the JSON."""
        return {
            "type": self.type, "a": [o.name for o in self.a], "b": [o.name for o in self.b],
            **sides([self]), "seconds": self.seconds,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunDifference(Document):
    """Two runs, and `pairs`: every operator of both, exactly once."""

    a: TimedRun
    b: TimedRun
    pairs: tuple[Pair, ...]

    @property
    def seconds(self) -> float:
        """What one run of B takes longer than one of A."""
        return self.b.seconds - self.a.seconds

    @property
    def ratio(self) -> float:
        """Time of B by time of A."""
        return self.b.seconds / self.a.seconds

    @property
    def rest_seconds(self) -> float:
        """The part of `seconds` that no operator accounts for: launches, idle time, and operators that overlap."""
        return self.seconds - fsum(p.seconds for p in self.pairs)

    @property
    def on_cpu(self) -> tuple[str, ...]:
        """Which side ran on the CPU, as a whole or in part, where either was on a GPU: that comes before any figure."""
        if not (self.a.on_gpu or self.b.on_gpu):
            return ()
        return tuple(_on_cpu(side, run) for side, run in (("A", self.a), ("B", self.b)) if run.on_cpu)

    @property
    def largest(self) -> tuple[Pair, ...]:
        """The pairs that differ by most seconds first."""
        return tuple(sorted(self.pairs, key=lambda p: -abs(p.seconds)))

    @property
    def by_type(self) -> dict[str, tuple[Pair, ...]]:
        """The pairs by operator type, those that take most time first."""
        groups: dict[str, list[Pair]] = defaultdict(list)
        for p in self.pairs:
            groups[p.type].append(p)
        ranked = sorted(groups.items(), key=lambda g: -fsum(o.seconds for p in g[1] for o in (*p.a, *p.b)))
        return {type: tuple(pairs) for type, pairs in ranked}

    def to_dict(self) -> dict[str, Any]:
        """The difference as plain data. All seconds are B less A, but for those that name a side.

        a, b: {name, measured, runs, seconds, sum_seconds, operators}; seconds, ratio: of the runs; rest_seconds: the
        part of `seconds` that no operator accounts for; by_type: [{type, operators, a_seconds, b_seconds, seconds}],
        those that take most time first; operators: [{type, a, b, a_seconds, b_seconds, seconds}], a and b lists of
        names, the largest differences first. A side's seconds are null where nothing there does that work.
        """
        return {
            "a": _summed(self.a), "b": _summed(self.b),
            **plain(self, "seconds", "ratio", "rest_seconds"),
            "by_type": [
                {"type": type, "operators": len(pairs), **sides(pairs), "seconds": fsum(p.seconds for p in pairs)}
                for type, pairs in self.by_type.items()
            ],
            "operators": [p.to_dict() for p in self.largest],
            "notes": [*self.on_cpu, *self.a.notes, *self.b.notes],
        }  # fmt: skip


def _on_cpu(side: str, run: TimedRun) -> str:
    """A sentence on what the CPU computed of a measured run."""
    if not run.on_gpu:
        return (
            f"{side} ran on the CPU: the provider of every operator is CPUExecutionProvider. Either the package has no"
            " CUDA provider (onnxruntime-gpu has one), or its libraries did not load (see what the session logged)"
        )
    listed = ", ".join(map(shortened, run.on_cpu[:MOST_NAMED]))
    rest = f" and {len(run.on_cpu) - MOST_NAMED} more" if len(run.on_cpu) > MOST_NAMED else ""
    return f"{side} ran {counted(len(run.on_cpu), 'operator')} on the CPU: {listed}{rest}"


def sides(pairs: Sequence[Pair]) -> dict[str, float | None]:
    """The seconds of all operators of A and of B in these; None where there is none."""
    each = {"a_seconds": [o.seconds for p in pairs for o in p.a], "b_seconds": [o.seconds for p in pairs for o in p.b]}
    return {side: fsum(seconds) if seconds else None for side, seconds in each.items()}


def _summed(r: TimedRun) -> dict[str, Any]:
    names = ("name", "measured", "runs", "seconds", "sum_seconds")
    return {**{name: getattr(r, name) for name in names}, "operators": len(r.operators)}


def difference(a: TimedRun, b: TimedRun) -> RunDifference:
    """Match the operators of two runs by name (see `calibrate.matching.owners`); several of one may do the work of one
    of the other: of the predicted one where there is one, of two predicted ones the one that fuses more.
    """
    swapped = a.measured > b.measured or (a.measured == b.measured and _nodes_each(b) > _nodes_each(a))
    kernels, operators = (b.operators, a.operators) if swapped else (a.operators, b.operators)
    owner, its = owners(operators, kernels), defaultdict[int, list[Timed]](list)
    for j, i in sorted(owner.items()):
        its[i].append(operators[j])
    matched = [((k,), tuple(its[i])) for i, k in enumerate(kernels)]
    alone = [((), (o,)) for j, o in enumerate(operators) if j not in owner]
    pairs = (Pair(second, first) if swapped else Pair(first, second) for first, second in (*matched, *alone))
    return RunDifference(a, b, tuple(pairs))


def _nodes_each(r: TimedRun) -> float:
    """How many nodes an operator stands for, in the mean."""
    return sum(len(o.nodes) for o in r.operators) / max(len(r.operators), 1)


def keep(d: RunDifference, share: float) -> None:
    """Raise LimitExceeded where B is slower than A by more than that share."""
    if slower(d.ratio - 1, share):
        costs = [(fsum(p.seconds for p in pairs), shortened(type)) for type, pairs in d.by_type.items()]
        costs.append((d.rest_seconds, "launch overhead and gaps"))
        most = ", ".join(f"{what} {signed(s)}" for s, what in sorted(costs, reverse=True)[:3] if s > 0)
        over = f"B is slower than A by {percent(d.ratio - 1)}, over the limit of {100 * share:.4g}%"
        raise LimitExceeded(f"{over}; most of it: {most}")
