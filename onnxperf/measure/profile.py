"""ONNX Runtime's profile: the operators that ran, how long each took, and which predicted kernel each belongs to."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from statistics import median
from typing import Any

from onnxperf.errors import EnvironmentFailure
from onnxperf.measure.record import OperatorTime
from onnxperf.measure.series import Series
from onnxperf.prediction import KernelPrediction, Prediction

MICROSECOND = 1e-6
MAX_BYTES = 1 << 30  # of a profile that are read
MAX_LINE = 1 << 20  # of an event, each of which is a line of its own
ENDING = "_kernel_time"  # of the names of nodes' events
PRODUCTS = frozenset({"Gemm", "FusedGemm", "MatMul", "FusedMatMul"})  # their times follow from their shapes alone
SHAPED = ("op_name", "provider", "input_type_shape", "output_type_shape", "parameter_size")
BODIES = frozenset({"If", "Loop", "Scan"})  # their times include those of the nodes inside them
#: What ONNX Runtime's rewrites add to the name of a node or tensor to name the operator that they make of it.
RENAMED = re.compile(r"^fused |(_nchwc|_nhwc|_token_\d+|/MatMulAddFusion|/MatMulScaleFusion/|:\d+)$")
EXPORTED = "node_"  # PyTorch's exporter names a node by this and the name of its output

Event = dict[str, Any]


def parse(path: str | os.PathLike[str], skip: int = 0) -> tuple[tuple[OperatorTime, ...], Series]:
    """The operators of a profile in the order they ran, and the runs' own times; the first `skip` runs are left out.

    An operator's time is that of all its calls in a run, without the time of the nodes in its body (If, Loop, Scan).
    Matrix products of equal type and shapes share their least time: of twelve equal layers, one is sooner left alone by
    other programs. A profile that ends in the middle counts up to its last whole run.

    Raises EnvironmentFailure where it can't be read or holds no whole run.
    """
    runs: list[float] = []
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    alike: dict[tuple[str, str, str], str] = {}  # operator -> its type and shapes
    for index, (events, whole) in enumerate(_runs(path)):
        if index < skip:
            continue
        runs.append(whole["dur"] * MICROSECOND)
        for key, seconds in _own(events).items():
            times[key].append(seconds)
        if not alike:
            products = (e for e in events if _key(e)[1] in PRODUCTS)
            alike = {_key(e): json.dumps([e["args"].get(k) for k in SHAPED]) for e in products}
    if not runs:
        raise EnvironmentFailure("ONNX Runtime's profile holds no whole run: it ended early")
    least: dict[str, float] = {}
    for key, s in times.items():
        kind = alike.get(key, str(key))
        least[kind] = min(least.get(kind, inf), *s)
    found = (OperatorTime(*key, len(s), median(s), least[alike.get(key, str(key))]) for key, s in times.items())
    return tuple(found), Series(tuple(runs))


def merged(passes: Sequence[Sequence[OperatorTime]]) -> tuple[OperatorTime, ...]:
    """The operators of several profiles of one model, in the order of the first: medians of medians, least of all."""
    found: dict[tuple[str, str, str], list[OperatorTime]] = defaultdict(list)
    for o in chain.from_iterable(passes):
        found[o.name, o.type, o.provider].append(o)
    return tuple(
        OperatorTime(*key, sum(o.runs for o in at), median(o.median_s for o in at), min(o.least_s for o in at))
        for key, at in found.items()
    )


def _runs(path: str | os.PathLike[str]) -> Iterator[tuple[list[Event], Event]]:
    """For each whole run the events of its nodes, and its own event, which is written behind them."""
    nodes: list[Event] = []
    for event in _events(path):
        if event["name"] == "model_run":
            yield nodes, event
            nodes = []
        elif event["cat"] == "Node" and event["name"].endswith(ENDING):
            nodes.append(event)


def _events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """The events that can be read; a line that is cut off, or no event, is passed over."""
    left = MAX_BYTES
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            while left > 0 and (line := file.readline(MAX_LINE)):
                left -= len(line)
                try:
                    event = json.loads(line.strip().rstrip(","))
                except (ValueError, RecursionError):
                    continue
                if _is_event(event):
                    yield event
    except OSError as e:
        raise EnvironmentFailure(f"ONNX Runtime's profile can't be read: {e.strerror or e}") from None


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict) or not all(isinstance(event.get(k), str) for k in ("cat", "name")):
        return False
    args = event.get("args", {})
    texts = isinstance(args, dict) and all(isinstance(args.get(k, ""), str) for k in ("op_name", "provider"))
    return texts and all(type(event.get(k)) is int and event[k] >= 0 for k in ("ts", "dur"))


def _key(event: Event) -> tuple[str, str, str]:
    """Name, type and provider."""
    args = event.get("args", {})
    return event["name"].removesuffix(ENDING), args.get("op_name", ""), args.get("provider", "")


def _own(events: Iterable[Event]) -> dict[tuple[str, str, str], float]:
    """Seconds of each operator (name, type, provider), without those of the nodes in its body."""
    found: dict[tuple[str, str, str], float] = {}
    around: list[tuple[int, tuple[str, str, str]]] = []  # bodies that run: when each ends, and whose it is
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        key, begin, lasts = _key(event), event["ts"], event["dur"]
        found[key] = found.get(key, 0.0) + lasts * MICROSECOND
        while around and begin >= around[-1][0]:
            around.pop()
        if around:
            outer = around[-1][1]
            found[outer] = max(found[outer] - lasts * MICROSECOND, 0.0)
        if key[1] in BODIES:
            around.append((begin + lasts, key))
    return found


@dataclass(frozen=True, slots=True)
class Joined:
    """A predicted kernel beside the operators that were measured for it; measured_s: of all of them together.

    Either time is None where there is none: predicted but not found in the profile, or measured but not predicted.
    """

    name: str
    type: str
    predicted_s: float | None
    measured_s: float | None
    operators: tuple[str, ...] = ()

    @property
    def error_s(self) -> float:
        """Predicted less measured; a missing time counts 0."""
        return (self.predicted_s or 0.0) - (self.measured_s or 0.0)


def joined(operators: Sequence[OperatorTime], prediction: Prediction) -> tuple[Joined, ...]:
    """Every kernel in order with the operators measured for it, then every operator that belongs to none.

    ONNX Runtime renames what it fuses. An operator belongs to the kernel of the same name; else to a kernel that holds
    the node which the operator is named after; else, in order, to the next kernel without an operator whose type is the
    same, or ends in the other's (BiasGelu, Gelu).
    """
    kernels = sorted(prediction.kernels, key=lambda k: k.start_seconds)
    owner = _by_name(operators, kernels)
    for alike in (str.__eq__, _related):
        free: dict[str, deque[int]] = defaultdict(deque)
        for i in sorted({*range(len(kernels))} - {*owner.values()}):
            free[short(kernels[i].op)].append(i)
        for j in sorted({*range(len(operators))} - owner.keys()):
            near = [queue for type, queue in free.items() if queue and alike(type, short(operators[j].type))]
            if near:
                owner[j] = min(near).popleft()
    measured: dict[int, list[OperatorTime]] = defaultdict(list)
    for j, i in sorted(owner.items()):
        measured[i].append(operators[j])
    found = []
    for i, k in enumerate(kernels):
        its = measured.get(i, ())
        measured_s = sum(map(seconds, its)) if its else None
        found.append(Joined(k.name, short(k.op), k.seconds, measured_s, tuple(o.name for o in its)))
    rest = (o for j, o in enumerate(operators) if j not in owner)
    return (*found, *(Joined(o.name, short(o.type), None, seconds(o), (o.name,)) for o in rest))


def _by_name(operators: Sequence[OperatorTime], kernels: Sequence[KernelPrediction]) -> dict[int, int]:
    """For each operator whose name tells its kernel: the operator's index -> the kernel's."""
    exact = {k.name: i for i, k in enumerate(kernels)}
    nodes: dict[str, list[int]] = defaultdict(list)
    for i, k in enumerate(kernels):
        for node in k.nodes:
            nodes[node].append(i)
    owner: dict[int, int] = {}
    for j, o in enumerate(operators):
        names = _stems(o.name)
        at = exact.get(o.name)
        if at is None:
            # of several kernels with that node the one of the same type, or the first
            near = [i for name in names for i in nodes.get(name, ())]
            at = next((i for i in near if short(kernels[i].op) == short(o.type)), near[0] if near else None)
        if at is not None:
            owner[j] = at
    return owner


def _related(type: str, other: str) -> bool:
    return type.endswith(other) or other.endswith(type)


def _stems(name: str) -> list[str]:
    """The names that an operator's may come from: without one after the other of what rewrites add to it."""
    stems = [name]
    while (stem := RENAMED.sub("", stems[-1])) != stems[-1]:
        stems.append(stem)
    return [*stems, *(EXPORTED + stem for stem in stems)]


def short(type: str) -> str:
    """An operator's type without its domain."""
    return type.rpartition("::")[2]


def seconds(o: OperatorTime) -> float:
    """The time that counts: the median; on a CPU, which other programs disturb, that of the undisturbed run."""
    return o.undisturbed_s if o.provider.startswith("CPU") else o.median_s


def by_class(found: Iterable[Joined]) -> tuple[Joined, ...]:
    """Sums by operator type, which is the name of each; those first on which most time was measured."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for j in found:
        sums[j.type][0] += j.predicted_s or 0.0
        sums[j.type][1] += j.measured_s or 0.0
    return tuple(Joined(t, t, p, m) for t, (p, m) in sorted(sums.items(), key=lambda x: (-x[1][1], -x[1][0], x[0])))


def worst(found: Iterable[Joined], count: int = 10) -> tuple[Joined, ...]:
    """The rows that are off by most seconds."""
    return tuple(sorted(found, key=lambda j: -abs(j.error_s))[:count])
