"""How microbatches go through the stages of a pipeline: its time, and the memory of each stage.

All stages of one microbatch stand in one timeline, one behind the other. From it come the times of each stage, which
are put together for all microbatches by the schedule 1F1B (Narayanan et al., PipeDream, 2019): after as many forward
passes as there are stages behind it, a stage takes forward and backward passes in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxperf.graph import Graph
from onnxperf.lowering.lower import Kernel, Kernels
from onnxperf.passes.tape import BACKWARD, FORWARD, UPDATE, phase_of
from onnxperf.running.memory import Footprint, footprint
from onnxperf.schedule import Timeline
from op_models import IN_PLACE, Operator, Tensor, shared_caches
from op_models.collectives import KINDS, SEND


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a pipeline on one device: seconds of one microbatch, and what it sends to the next stage and back,
    in seconds and bytes. first, last: nodes.
    """

    first: str
    last: str
    forward_s: float
    backward_s: float
    ahead_s: float
    back_s: float
    sent_bytes: int


def stages(
    kernels: Kernels, timeline: Timeline, seconds: np.ndarray, stage_by_node: Mapping[str, int], count: int, j: int
) -> list[Stage]:
    """The stages on device j: from the start of a stage's first kernel to the end of its last one.

    seconds: of each kernel on each device [n, g]; stage_by_node: the stage of each node.
    """
    ends = timeline.start_s[:, j] + seconds[:, j]
    spans = {(s, phase): [np.inf, 0.0] for s in range(count) for phase in (FORWARD, BACKWARD)}
    sent = {(s, phase): 0.0 for s in range(count + 1) for phase in (FORWARD, BACKWARD)}
    nbytes, nodes = [0] * (count + 1), [list[str]() for _ in range(count)]
    for i, k in enumerate(kernels.rows):
        s = stage_of(k, stage_by_node)
        if s is None or k.phase not in (FORWARD, BACKWARD):
            continue
        if k.op == SEND:
            sent[s, k.phase] += float(seconds[i, j])
            nbytes[s] += k.work.bytes_read if k.phase == FORWARD else 0
            continue
        span = spans[s, k.phase]
        span[0], span[1] = min(span[0], float(timeline.start_s[i, j])), max(span[1], float(ends[i]))
        if k.phase == FORWARD:
            nodes[s] += k.nodes[:1]
    length = {at: max(0.0, end - start) if end else 0.0 for at, (start, end) in spans.items()}
    return [
        Stage(
            nodes[s][0] if nodes[s] else "", nodes[s][-1] if nodes[s] else "", length[s, FORWARD], length[s, BACKWARD],
            sent.get((s + 1, FORWARD), 0.0), sent.get((s + 1, BACKWARD), 0.0), nbytes[s + 1],
        )
        for s in range(count)
    ]  # fmt: skip


def stage_of(k: Kernel | Operator, stage_by_node: Mapping[str, int]) -> int | None:
    """The stage that a kernel or an operator belongs to, the receiving one of what is sent; None where all do."""
    return next((stage_by_node[node] for node in k.nodes if node in stage_by_node), None)


def through(pipeline: Sequence[Stage], microbatches: int) -> float:
    """Seconds until all microbatches are through, forward and back."""
    count, training = len(pipeline), any(s.backward_s for s in pipeline)
    orders = [_order(s, count, microbatches, training) for s in range(count)]
    done: dict[tuple[str, int, int], float] = {}
    free, at = [0.0] * count, [0] * count
    while any(at[s] < len(orders[s]) for s in range(count)):
        for s in range(count):
            while at[s] < len(orders[s]):
                phase, i = orders[s][at[s]]
                if phase == FORWARD:
                    ready = done.get((FORWARD, s - 1, i)) if s else 0.0
                    delay, length = pipeline[s - 1].ahead_s if s else 0.0, pipeline[s].forward_s
                else:
                    ready = done.get((BACKWARD, s + 1, i) if s + 1 < count else (FORWARD, s, i))
                    delay, length = pipeline[s].back_s, pipeline[s].backward_s
                if ready is None:
                    break
                free[s] = max(free[s], ready + delay) + length
                done[phase, s, i] = free[s]
                at[s] += 1
    return max(free)


def in_turn(pipeline: Sequence[Stage], microbatches: int) -> float:
    """Seconds from one forward pass of all microbatches to the next, where a microbatch follows on itself alone: those
    of the longest stage with all of them, or of one microbatch through all stages.
    """
    alone = sum(s.forward_s + s.ahead_s for s in pipeline)
    return max(alone, microbatches * max(s.forward_s for s in pipeline))


def _order(s: int, count: int, microbatches: int, training: bool) -> list[tuple[str, int]]:
    """What a stage does in which order: passes, each with the number of its microbatch."""
    if not training:
        return [(FORWARD, i) for i in range(microbatches)]
    warm = min(microbatches, count - s - 1)
    order = [(FORWARD, i) for i in range(warm)]
    for i in range(microbatches - warm):
        order += [(FORWARD, warm + i), (BACKWARD, i)]
    return order + [(BACKWARD, i) for i in range(microbatches - warm, microbatches)]


def bubble(pipeline: Sequence[Stage], microbatches: int) -> float:
    """The share of the time in which a GPU waits for others or sends, in the mean."""
    busy = microbatches * sum(s.forward_s + s.backward_s for s in pipeline) / len(pipeline)
    return 1 - busy / max(through(pipeline, microbatches), 1e-30)


def composed(
    single: Timeline, pipelines: Sequence[Sequence[Stage]], microbatches: int, largest_share: float
) -> Timeline:
    """The timeline of one microbatch, with the end of them all.

    pipelines: the stages on each device [g]. What follows the last stage, such as the update of the parameters, takes
    as long as that of the largest stage: largest_share of it.
    """
    starts = single.start_s.min(axis=0, initial=np.inf)
    total = np.array(
        [
            min(alone, first) + through(s, microbatches) + largest_share * max(0.0, alone - first - through(s, 1))
            for alone, first, s in zip(single.total_s, starts, pipelines, strict=True)
        ]
    )
    return replace(single, total_s=total)


def footprints(run: Graph, stage_by_node: Mapping[str, int], count: int, microbatches: int) -> list[Footprint]:
    """What each stage holds. In training, a stage keeps what its backward pass reads of as many microbatches as there
    are stages from it on, but no more than there are, and its part of the buckets in which gradients are averaged;
    otherwise inputs and outputs of all microbatches, caches among them.
    """
    held_by_stage = []
    buckets = sum(o.out.bytes for o in run.operators if o.type in KINDS and not o.nodes)
    update = [o for o in run.operators if phase_of(o) == UPDATE]
    states = {t.name: t for o in update for t in o.present if t.stored}
    new = sum(o.out.bytes for o in update)
    for s in range(count):
        operators = [o for o in run.operators if stage_of(o, stage_by_node) == s]
        written, read = {t.name for o in operators for t in o.outputs}, {t.name for o in operators for t in o.present}
        inputs = tuple(t for t in run.inputs if t.name in read)
        outputs = tuple(t for t in run.outputs if t.name in written)
        held = footprint(replace(run, operators=tuple(operators), inputs=inputs, outputs=outputs))
        forward = sum(phase_of(o) == FORWARD for o in operators)
        training = forward < len(operators)
        fed = {t.name for t in inputs}
        in_place = (o for o in operators if IN_PLACE in o.attrs and phase_of(o) == BACKWARD)
        added = sum(o.out.bytes for o in in_place if o.present[0].name in fed)  # one buffer for all microbatches
        kept = (held.alive[forward] - added) * (min(microbatches, count - s) - 1) if training else 0
        kept += 0 if training else (microbatches - 1) * _fed(operators, inputs, outputs)
        share = _share(run, operators)
        weights = (*held.weights, *(round(share * t.bytes) for t in states.values()))
        kept += round(share * buckets)
        at_update = _fed(operators, inputs, outputs) + round(share * (buckets + new)) if training else 0
        alive = (*(n + kept for n in held.alive), at_update)
        held_by_stage.append(Footprint(weights, alive, max(alive), held.host_bytes))
    return held_by_stage


def fullest(by_stage: Sequence[Footprint]) -> int:
    """The stage that holds most."""
    held = [sum(f.weights) + f.activations_bytes for f in by_stage]
    return held.index(max(held))


def _fed(operators: Sequence[Operator], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Bytes of a stage's inputs and outputs; a cache that is written in place is both at once."""
    shared = {o.outputs[i].name for o in operators for i in shared_caches(o)}
    return sum(t.bytes for t in inputs) + sum(t.bytes for t in outputs if t.name not in shared)


def largest_share(run: Graph, stage_by_node: Mapping[str, int], count: int) -> float:
    """The largest stage's share of all weights."""
    return max(_share(run, [o for o in run.operators if stage_of(o, stage_by_node) == s]) for s in range(count))


def _share(run: Graph, stage: Sequence[Operator]) -> float:
    def weights(operators: Sequence[Operator]) -> int:
        return sum({t.name: t.bytes for o in operators if o.nodes for t in o.present if t.stored}.values())

    return weights(stage) / max(weights(run.operators), 1)
