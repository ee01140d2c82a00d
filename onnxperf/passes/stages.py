"""Pipeline parallelism: a graph cut into stages, with what one GPU sends to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnxperf.graph import Graph
from onnxperf.ground.errors import UsageError
from onnxperf.passes.exchanges import Group, exchange
from onnxperf.passes.tape import renamed
from op_models import Operator, Tensor
from op_models.collectives import SEND


def cuts(graph: Graph, seconds: Sequence[float], stages: int, link_Bps: float) -> tuple[int, ...]:
    """Before which operators a graph is cut into stages.

    seconds: of each operator, in order. Each cut is where the time before it is nearest to its part of the whole; what
    is sent there, at the rate of the link, counts as if it were missing from that. Raises UsageError where there are
    fewer operators than stages.
    """
    sent = [n / link_Bps for n in _crossing_bytes(graph)]
    if len(graph.operators) < stages:
        raise UsageError(f"pp={stages}: the graph has {len(graph.operators)} operators; take fewer stages")
    before, total = [0.0], sum(seconds)
    for s in seconds:
        before.append(before[-1] + s)
    ends: list[int] = []
    for k in range(1, stages):
        first = ends[-1] + 1 if ends else 1
        room = range(first, len(graph.operators) - stages + k + 1)
        ends.append(min(room, key=lambda i: abs(before[i] - total * k / stages) + sent[i]))
    return tuple(ends)


def _crossing_bytes(graph: Graph) -> list[int]:
    """Bytes of what is made before each operator and read by it or behind it."""
    last, live, dying = _last_readers(graph), 0, dict[int, int]()
    crossing: list[int] = []
    for i, o in enumerate(graph.operators):
        crossing.append(live)
        for t in _sent(o, i, last):
            live += t.bytes
            dying[last[t.name]] = dying.get(last[t.name], 0) + t.bytes
        live -= dying.get(i, 0)
    return crossing


def _crossing(graph: Graph, at: int) -> list[Tensor]:
    """What is made before an operator and read by it or behind it; inputs of the graph are fed to every stage."""
    last = _last_readers(graph)
    return [t for i, o in enumerate(graph.operators[:at]) for t in _sent(o, i, last) if last[t.name] >= at]


def _last_readers(graph: Graph) -> dict[str, int]:
    return {t.name: i for i, o in enumerate(graph.operators) for t in o.present}


def _sent(o: Operator, i: int, last: Mapping[str, int]) -> list[Tensor]:
    """The results of operator i that are read behind it and not known before the run."""
    return [t for t in o.outputs if last.get(t.name, -1) > i and t.value is None]


def staged(graph: Graph, at: Sequence[int], stride: int) -> Graph:
    """The graph with an operator for each tensor that a stage sends to the next, `stride` GPUs on."""
    operators: list[Operator] = []
    now: dict[str, Tensor] = {}
    group = Group("pp", 2, stride)
    for i, o in enumerate(graph.operators):
        if i in at:
            stage = at.index(i) + 1
            for t in _crossing(graph, i):
                read, now[t.name] = now.get(t.name, t), replace(t, name=f"{t.name}#stage{stage}")
                name = f"{t.name}#send{stage}"
                operators.append(exchange(SEND, name, (read,), (now[t.name],), group, (stage_name(stage),)))
        operators.append(renamed(o, {k: v for k, v in now.items() if k not in {t.name for t in o.outputs}}, o.name))
    return replace(graph, operators=tuple(operators))


def stage_name(stage: int) -> str:
    """What stands for a node's name in the operators that send to a stage."""
    return f"to stage {stage}"


def stage_of_nodes(graph: Graph, at: Sequence[int]) -> Mapping[str, int]:
    """The stage of each node of a graph that is cut so, and of what is sent to a stage."""
    stages: dict[str, int] = {stage_name(k + 1): k + 1 for k in range(len(at))}
    for i, o in enumerate(graph.operators):
        for node in o.nodes:
            stages.setdefault(node, sum(i >= cut for cut in at))
    return stages
