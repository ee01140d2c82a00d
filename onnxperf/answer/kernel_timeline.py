"""The kernels of a prediction, and what the times between them tell: phases with one bottleneck, and gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxperf.ground.codec import Document, plain
from onnxperf.latency import BOUNDS
from onnxperf.running.run import Run
from onnxperf.schedule import STALLS
from op_models import Work

#: What of a kernel the JSON holds.
OF_A_KERNEL = (
    "name", "nodes", "op", "seconds", "low_seconds", "high_seconds", "flops", "bytes_read", "bytes_written", "bound_by",
    "source", "start_seconds", "stream", "module",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelPrediction(Document):
    """One kernel of the answer. Times in seconds. `module` is the innermost one that its first node was
    exported from.

    Beside what the JSON holds: `work`, that of one repeat; `after`, the names of the kernels it waits for;
    `variant`, the tile or algorithm; `stalled_on`, what its start waited for last (stream, host or copies);
    `repeat`, how often it runs: times, FLOPs and bytes are those of all repeats together.
    """

    name: str
    nodes: tuple[str, ...]
    op: str
    seconds: float
    low_seconds: float
    high_seconds: float
    flops: int
    bytes_read: int
    bytes_written: int
    bound_by: str
    source: str
    start_seconds: float
    stream: str
    work: Work
    after: tuple[str, ...] = ()
    variant: str = ""
    stalled_on: str = "stream"
    repeat: int = 1
    module: str = ""

    @property
    def limit(self) -> str:
        """What bounds it in the words of the field; `bound_by` is the JSON's."""
        return limit_of(self.bound_by, self.work)

    def to_dict(self) -> dict[str, Any]:
        """The kernel as it stands in the JSON."""
        return plain(self, *OF_A_KERNEL)


def limit_of(bound_by: str, work: Work) -> str:
    """What bounds a kernel in the words of the field.

    Without products the arithmetic term counts issue slots: of a few FLOPs, and of computing addresses.
    """
    return "instruction issue" if bound_by == "compute" and not work.matrix_flops else bound_by


def kernels(run: Run, j: int) -> tuple[KernelPrediction, ...]:
    """Every kernel of device j."""
    e, timeline, rows, modules = run.estimates, run.timeline, run.kernels.rows, run.graph.modules
    seconds, width = run.seconds[:, j], e.half_width[:, j]
    low, high = np.maximum(seconds * np.exp(-width), e.floor_s[:, j]), seconds * np.exp(width)
    columns = (
        seconds, low, high, e.bound[:, j], e.transfer, e.source[:, j], e.variant[:, j],
        timeline.start_s[:, j], timeline.streams[:, j], timeline.stalled_on[:, j],
    )  # fmt: skip
    return tuple(
        KernelPrediction(
            name=k.name, nodes=k.nodes, op=k.op, seconds=s, low_seconds=least, high_seconds=most,
            flops=k.repeat * k.work.flops, bytes_read=k.repeat * k.work.bytes_read,
            bytes_written=k.repeat * k.work.bytes_written,
            bound_by="communication" if k.communicates else "transfer" if transfer else BOUNDS[bound],
            source=source, start_seconds=start, stream=stream, work=k.work,
            after=tuple(rows[i].name for i in k.after), variant=variant, stalled_on=STALLS[stall], repeat=k.repeat,
            module=modules.get(k.nodes[0], "") if k.nodes else "",
        )
        for k, s, least, most, bound, transfer, source, variant, start, stream, stall in zip(
            rows, *(c.tolist() for c in columns), strict=True
        )
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Phase:
    """Kernels in a row after which the same thing sets the pace: how long that took, and how long the card idled.

    An empty `first` is the start of the run.
    """

    first: str
    last: str
    kernels: int
    seconds: float
    idle_seconds: float
    stalled_on: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Time without any kernel, between the ends of two; an empty name stands for the start or the end of the run."""

    before: str
    after: str
    seconds: float
    stalled_on: str


def part_of(module: str, depth: int) -> str:
    """The first `depth` names of a module's path."""
    return ".".join(module.split(".")[:depth])


def phases(kernels: Sequence[KernelPrediction], seconds: float) -> tuple[Phase, ...]:
    """A run of so many seconds as phases with one bottleneck each, in order: the host, the stream, or copies.

    From one kernel's start to the next one's, the pace is set by what held that next one back; before the first
    it is the host, behind the last start the stream.
    """
    merged: list[Phase] = []
    ordered = sorted(kernels, key=lambda k: k.start_seconds)
    reach = now = 0.0
    for k, behind in zip((None, *ordered), (*ordered, None), strict=True):
        if k is not None:
            reach = max(reach, k.start_seconds + k.seconds)
        then = behind.start_seconds if behind else seconds
        held = behind.stalled_on if behind else "stream" if ordered else "host"
        idle, name = max(0.0, then - max(now, reach)), k.name if k else ""
        s = Phase(name, name, int(k is not None), then - now, idle, held)
        if merged and merged[-1].stalled_on == held:
            b = merged.pop()
            s = Phase(b.first, name, b.kernels + s.kernels, b.seconds + s.seconds, b.idle_seconds + idle, held)
        merged.append(s)
        now = then
    return tuple(merged)


def gaps(kernels: Sequence[KernelPrediction], until: float) -> tuple[Gap, ...]:
    """The times without any kernel before the second `until`, in order."""
    pauses: list[Gap] = []
    reach, last = 0.0, ""
    for k in sorted(kernels, key=lambda k: k.start_seconds):
        if k.start_seconds > reach:
            pauses.append(Gap(last, k.name, k.start_seconds - reach, k.stalled_on))
        if (end := k.start_seconds + k.seconds) >= reach:
            reach, last = end, k.name
    if until > reach:
        pauses.append(Gap(last, "", until - reach, "host"))
    return tuple(pauses)
