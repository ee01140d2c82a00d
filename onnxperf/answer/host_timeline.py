"""What the host thread does in a run: the nodes that it passes or computes, and the kernels that it launches."""

from __future__ import annotations

from typing import NamedTuple

from onnxperf.lowering.lower import HostNode, Processor
from onnxperf.running.run import Run
from onnxperf.runtimes import HostCosts


class HostStep(NamedTuple):
    """A node on the host thread, from `begin_s` to `end_s`, in seconds from the start of the run.

    kernel: the index of the kernel that it launches, and waits for if it blocks; None where it launches none: then the
    host computes the node itself (`computed`), or passes a view. op: the type of the operator.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    begin_s: float
    end_s: float
    kernel: int | None = None
    computed: bool = False


def host_steps(run: Run, j: int) -> tuple[HostStep, ...]:
    """The steps of the host of device j, in order; none where a CUDA graph is replayed or nothing is laid out.

    On a processor, which computes kernels itself, a step includes what the runtime spends before its kernel.
    """
    if not run.method.scheduled or run.scenario.cuda_graph:
        return ()
    costs, cpu, steps = run.host_costs[j], run.processors[j], list[HostStep]()
    now = costs.run_s
    for i, (row, until) in enumerate(zip(run.kernels.rows, _goes_on(run, j), strict=True)):
        for node in row.skipped:
            steps.append(_passed(node, now, costs.of(row.phase), cpu))
            now = steps[-1].end_s
        steps.append(HostStep(row.name, row.op, row.nodes, now, until, i))
        now = until
    for node in run.kernels.tail:
        steps.append(_passed(node, now, costs.of(run.kernels.last_phase), cpu))
        now = steps[-1].end_s
    return tuple(steps)


def _goes_on(run: Run, j: int) -> list[float]:
    """When the host goes on after each kernel: it has launched it or, where it waits, knows its end."""
    rows, timeline = run.kernels.rows, run.timeline
    if not rows:
        return []
    costs, last = run.host_costs[j], float(timeline.launched_s[-1, j])
    if rows[-1].blocks:
        last = float(timeline.total_s[j]) - run.kernels.host_seconds(costs, run.processors[j])[1] - costs.sync_s
    return [*timeline.launch_s[1:, j].tolist(), last]


def _passed(n: HostNode, now: float, costs: HostCosts, cpu: Processor) -> HostStep:
    """A node for which nothing is launched; walking to one that the host computes comes before its step."""
    end = now + n.passing(costs, cpu)
    begin = now + n.repeat * costs.walk_s if n.computed else now
    return HostStep(n.name, n.op, n.nodes, begin, end, computed=n.computed)
