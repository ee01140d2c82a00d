"""Measured operators beside the predicted kernels that they belong to."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_specs import Device
from onnxperf.answer.prediction import Prediction
from onnxperf.ground.tables import short_type
from onnxperf.measure.record import Measurement, OperatorTime
from onnxperf.running.pipeline import Request, run_of
from onnxperf.running.run import Run
from onnxperf.running.terms import USUAL_METHOD

Other = Callable[[Run], Run]  # has a run follow a method that predictions don't take
#: What ONNX Runtime's rewrites add to the name of a node or tensor to name the operator that they make of it.
RENAMED = re.compile(r"^fused |(_nchwc|_nhwc|_token_\d+|/MatMulAddFusion|/MatMulScaleFusion/|:\d+)$")
#: What TensorRT writes around the names of nodes in that of a layer: "/conv/Conv + PWN(PWN(/act/Sigmoid), /act/Mul)".
FUSED = re.compile(r" \+ |, |PWN\(|\)")
REFORMATS = "Reformatting CopyNode"  # begins the name of a layer that does no node's work
EXPORTED = "node_"  # PyTorch's exporter names a node by this and the name of its output


class Named(Protocol):
    """An operator that ran, as ONNX Runtime names it."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...


class Holding(Protocol):
    """A kernel, and the nodes whose work it does."""

    @property
    def name(self) -> str: ...

    @property
    def op(self) -> str: ...

    @property
    def nodes(self) -> tuple[str, ...]: ...


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


def predicted(m: Measurement, device: Device, method: str | Other = USUAL_METHOD) -> Run:
    """The run that was measured, predicted for a device from the model's skeleton.

    method: by name, or what has the run follow another.
    """
    s = m.setting
    terms = {"runtime": s.runtime, "precision": s.precision, "opt_level": s.opt_level, "fix_dims": True}  # as measured
    terms |= {"method": method} if isinstance(method, str) else {}
    run = run_of(Request(m.subject.skeleton, shapes=dict(s.inputs), terms=terms), device)
    return run if isinstance(method, str) else method(run)


def joined(operators: Sequence[OperatorTime], prediction: Prediction) -> tuple[Joined, ...]:
    """Every kernel in order with the operators measured for it (see `owners`), then every one that belongs to none."""
    kernels = sorted(prediction.kernels, key=lambda k: k.start_seconds)
    owner = owners(operators, kernels)
    measured: dict[int, list[OperatorTime]] = defaultdict(list)
    for j, i in sorted(owner.items()):
        measured[i].append(operators[j])
    rows = []
    for i, k in enumerate(kernels):
        its = measured.get(i, ())
        measured_s = sum(o.seconds for o in its) if its else None
        rows.append(Joined(k.name, short_type(k.op), k.seconds, measured_s, tuple(o.name for o in its)))
    rest = (o for j, o in enumerate(operators) if j not in owner)
    return (*rows, *(Joined(o.name, short_type(o.type), None, o.seconds, (o.name,)) for o in rest))


def owners(operators: Sequence[Named], kernels: Sequence[Holding]) -> dict[int, int]:
    """The kernel that each operator belongs to, by index; both in order. Operators that belong to none are left out.

    ONNX Runtime renames what it fuses, TensorRT joins the names. An operator belongs to the kernel of the same name;
    else to a kernel that holds a node which the operator is named after; else, in order, to the next kernel without an
    operator whose type is the same, or ends in the other's (BiasGelu, Gelu).
    """
    owner = _by_name(operators, kernels)
    for alike in (str.__eq__, _related):
        free: dict[str, deque[int]] = defaultdict(deque)
        for i in sorted({*range(len(kernels))} - {*owner.values()}):
            free[short_type(kernels[i].op)].append(i)
        for j in sorted({*range(len(operators))} - owner.keys()):
            near = [queue for type, queue in free.items() if queue and alike(type, short_type(operators[j].type))]
            if near:
                owner[j] = min(near).popleft()
    return owner


def _by_name(operators: Sequence[Named], kernels: Sequence[Holding]) -> dict[int, int]:
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
            # of several kernels with that node the one of the same type, or the first of those with the most nodes
            near = [i for name in names for i in nodes.get(name, ())]
            most = max(near, key=lambda i: len(kernels[i].nodes), default=None)
            at = next((i for i in near if short_type(kernels[i].op) == short_type(o.type)), most)
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
    return [*stems, *(EXPORTED + stem for stem in stems), *nodes_of_layer(name)]


def nodes_of_layer(name: str) -> tuple[str, ...]:
    """The names of the nodes whose work a layer of TensorRT does; of what is no such layer its name."""
    return () if name.startswith(REFORMATS) else tuple(filter(None, FUSED.split(name)))


def by_type(rows: Iterable[Joined]) -> tuple[Joined, ...]:
    """Sums by operator type, which is the name of each; the type that took most of the measured time comes first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for j in rows:
        sums[j.type][0] += j.predicted_s or 0.0
        sums[j.type][1] += j.measured_s or 0.0
    return tuple(Joined(t, t, p, m) for t, (p, m) in sorted(sums.items(), key=lambda x: (-x[1][1], -x[1][0], x[0])))


def worst(rows: Iterable[Joined], count: int) -> tuple[Joined, ...]:
    """The rows that are off by most seconds."""
    return tuple(sorted(rows, key=lambda j: -abs(j.error_s))[:count])
