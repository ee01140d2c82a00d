"""Operators that the CPU computes while a model runs on a card."""

from __future__ import annotations

from dataclasses import dataclass

from onnxperf.ground.codec import Document
from onnxperf.running.run import Run
from onnxperf.running.scenario import PLATFORMS


@dataclass(frozen=True, slots=True)
class CpuOperator(Document):
    """An operator that the CPU computes while a model runs on a card: for want of a kernel, or as shapes are.

    seconds: CPU time of all its repeats, its copies left out.
    """

    name: str
    nodes: tuple[str, ...]
    op: str
    seconds: float


def on_cpu(run: Run, j: int) -> tuple[CpuOperator, ...]:
    """What the host of device j computes itself in a run; nothing where a graph is replayed or nothing laid out."""
    if not (run.method.scheduled and PLATFORMS[run.devices[j].kind].launches) or run.scenario.cuda_graph:
        return ()
    costs = run.host_costs[j]
    timed = ((n, n.repeat * n.seconds(costs, run.processors[j])) for n in run.kernels.on_host)
    return tuple(CpuOperator(n.name, n.nodes, n.op, seconds) for n, seconds in timed)
