"""What torch.compile keeps of the forward pass for the backward pass: the cheapest cut between them, as AOTAutograd
makes it, which computes again what reads memory only.

Source: torch/_functorch/partitioners.py of PyTorch 2.4 to 2.13 (`min_cut_rematerialization_partition`,
`solve_min_cut`), with the settings of torch/_functorch/config.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from math import inf

from onnxperf.graph import Graph
from onnxperf.passes.parts import ATEN_NAME, MAX_SUM, RETURNED, TANGENT, VAR_MEAN, decomposed
from onnxperf.passes.tape import BACKWARD, PHASE, phase_of, renamed
from op_models import Operator, Tensor

#: Operators that are never computed again, as they compute much, draw numbers, or are in no list of the partitioner.
NEVER_AGAIN = frozenset({
    "Attention", "AveragePool", "Concat", "Conv", "ConvTranspose", "CumSum", "Einsum", "Gemm", "GRU", "LSTM", "MatMul",
    "MaxPool", "Pad", "RNN", "Resize", "ScatterElements", "TopK", "Upsample",
})  # fmt: skip
VIEWS = frozenset({
    "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
#: A result so many times smaller than what it is computed from is kept, a distance from the backward pass makes
#: keeping dearer by a tenth up to so many steps, and a chain is cut after so many operators.
SMALLER, STEPS, LONGEST_CHAIN, DEARER = 4, 100, 100, 1.1
SOURCE, SINK = -1, -2


@dataclass(frozen=True)
class Joint:
    """Operators of the forward pass with its parts, then those of the backward pass, and what the first has to give."""

    operators: Sequence[Operator]
    outputs: frozenset[str]

    @cached_property
    def maker(self) -> dict[str, int]:
        """By the name of a tensor the operator that makes it."""
        return {t.name: i for i, o in enumerate(self.operators) for t in o.outputs}

    @cached_property
    def users(self) -> dict[str, list[int]]:
        """By the name of a tensor the operators that read it."""
        users: dict[str, list[int]] = defaultdict(list)
        for i, o in enumerate(self.operators):
            for t in {t.name: t for t in o.present}.values():
                users[t.name].append(i)
        return users

    @cached_property
    def forward(self) -> set[int]:
        """The operators that the outputs of the forward pass need."""
        return self.needed(self.outputs)

    @cached_property
    def backward(self) -> set[int]:
        """The operators that need a gradient."""
        after, names = set[int](), set[str]()
        for i, o in enumerate(self.operators):
            if o.type == TANGENT or any(t.name in names for t in o.present):
                after.add(i)
                names.update(t.name for t in o.outputs)
        return after

    def needed(self, names: Iterable[str], there: Collection[str] = (), done: Collection[int] = ()) -> set[int]:
        """The operators that tensors need, beside those that are done and what makes tensors that are there."""
        waiting, needed = list(names), set[int]()
        while waiting:
            name = waiting.pop()
            i = self.maker.get(name)
            if i is not None and name not in there and i not in needed and i not in done:
                needed.add(i)
                waiting += [t.name for t in self.operators[i].present]
        return needed

    @cached_property
    def distance(self) -> dict[int, float]:
        """By operator the fewest steps to one that is not part of the forward pass."""
        steps: dict[int, float] = {}
        for i in range(len(self.operators) - 1, -1, -1):
            near = [steps[j] for t in self.operators[i].outputs for j in self.users[t.name]]
            steps[i] = min(near, default=inf) + 1 if i in self.forward else 0
        return steps

    def fusible(self, i: int, j: int) -> bool:
        """Whether an operator can be one loop with one that reads it."""
        first, second = self.operators[i].type, self.operators[j].type
        return second == "Concat" or (again(first) and again(second))

    def in_memory(self, i: int, t: Tensor) -> bool:
        """Whether what an operator makes lies in memory anyway."""
        return t.name in self.outputs or not all(self.fusible(i, j) for j in self.users[t.name])

    def read_in_backward(self, i: int) -> bool:
        """Whether something that can't be a loop with it reads it in the backward pass, through whatever views."""
        if self.operators[i].type in VIEWS:
            return False
        waiting = [i]
        while waiting:
            now = waiting.pop()
            for t in self.operators[now].outputs:
                for j in self.users[t.name]:
                    if j not in self.forward and not self.fusible(now, j):
                        return True
                    if self.operators[j].type in VIEWS:
                        waiting.append(j)
        return False


def again(type: str) -> bool:
    """Whether an operator can be computed again: elementwise operators, reductions, views and gathers."""
    return type not in NEVER_AGAIN and ("::" not in type or type in AGAIN)


AGAIN = frozenset({
    MAX_SUM, VAR_MEAN, "torch::lerp", "torch::count", "torch::rsqrt", "torch::roll", "torch::addcmul",
    "com.microsoft::GeluGrad", "com.microsoft::EluGrad", "com.microsoft::SigmoidGrad", "com.microsoft::TanhGrad",
    "torch::hardswish_backward", "torch::mish_backward", "torch::silu_backward", "torch::softplus_backward",
    "torch::dropout_backward",
})  # fmt: skip


def partitioned(graph: Graph) -> tuple[Graph, Graph]:
    """The forward graph, which gives what is kept beside its outputs, and the backward graph, which takes that.

    graph: the operators of a forward and a backward pass. What the backward graph computes again has other names.
    """
    parts = [p for o in graph.operators for p in (decomposed(o) if phase_of(o) != BACKWARD else (o,))]
    operators = _once(parts, graph.output_names)
    behind = {t.name for o in operators if phase_of(o) == BACKWARD for t in o.outputs}
    running = [t for o in operators for t in o.outputs if o.type in ("torch::lerp", "torch::count")]
    loss = [o.out for o in operators if RETURNED in o.attrs]
    gives = [*(loss or (t for t in graph.outputs if t.name not in behind)), *running]
    joint = Joint(operators, frozenset(t.name for t in gives))
    kept = saved(joint)
    tensors = {t.name: t for o in operators for t in (*o.outputs, *o.present)}
    ahead = sorted(joint.needed((*joint.outputs, *kept)))
    stay = [tensors[name] for name in kept if name in joint.maker]
    first = replace(graph, operators=tuple(operators[i] for i in ahead), outputs=(*gives, *stay))
    results = tuple(t for t in graph.outputs if t.name in behind)
    return first, replace(graph, operators=_behind(joint, kept), inputs=(*graph.inputs, *stay), outputs=results)


def _once(operators: Sequence[Operator], outputs: frozenset[str]) -> list[Operator]:
    """The operators without those that compute what an earlier one does, whose result is read instead. What is an
    output, or is seen as one, has memory of its own.
    """
    alone = set(outputs)
    for o in reversed(operators):
        if o.type in VIEWS and any(t.name in alone for t in o.outputs):
            alone.update(t.name for t in o.present)
    instead: dict[str, Tensor] = {}
    seen: dict[object, Operator] = {}
    once = list[Operator]()
    for o in operators:
        o = replace(o, inputs=tuple(instead.get(t.name, t) if t is not None else None for t in o.inputs))
        attrs = sorted((k, repr(v)) for k, v in o.attrs.items() if k not in (PHASE, ATEN_NAME))
        read = tuple((t.name if t.value is None else t.value, t.shape) for t in o.present)
        alike = (o.type, read, tuple((t.dtype, t.shape) for t in o.outputs), *attrs)
        shared = o.present and again(o.type) and not any(t.name in alone for t in o.outputs)
        first = seen.setdefault(alike, o) if shared else o
        if first is o:
            once.append(o)
        else:
            instead.update((t.name, same) for t, same in zip(o.outputs, first.outputs, strict=True))
    return once


def _behind(joint: Joint, kept: Sequence[str]) -> tuple[Operator, ...]:
    """The operators of the backward graph: what is computed again stands before the first that reads it."""
    names: dict[str, Tensor] = {}
    order, there, done = list[Operator](), set(kept), set(joint.backward)
    for i in sorted(joint.backward):
        o = joint.operators[i]
        again = joint.needed([t.name for t in o.present], there, done)
        for j in sorted(again):
            names |= {t.name: replace(t, name=f"{t.name}#again") for t in joint.operators[j].outputs}
            order.append(renamed(joint.operators[j], names, f"{joint.operators[j].name}#again"))
        order.append(renamed(o, names, o.name))
        done |= again
    return tuple(order)


def saved(joint: Joint) -> list[str]:
    """The names of the tensors that the forward graph keeps, by the cheapest cut."""
    import networkx

    net: networkx.DiGraph[object] = networkx.DiGraph()
    banned = _banned(joint)
    net.add_nodes_from((SOURCE, SINK))
    stored = set[str]()
    for i, o in enumerate(joint.operators):
        for t in o.present:
            if t.name not in joint.maker and t.name not in stored and t.kind != "constant":
                stored.add(t.name)
                net.add_edge(SOURCE, (t.name, "in"))
                free = 0.0 if t.kind == "weight" else t.bytes * 1.0
                net.add_edge((t.name, "in"), (t.name, "out"), capacity=free)
            if t.name in joint.maker or t.name in stored:
                net.add_edge((t.name, "out"), (i, "in"))
        if i in joint.backward:
            net.add_edge((i, "in"), SINK)
            continue
        if i in banned:
            net.add_edge(SOURCE, (i, "in"))
        for t in o.outputs:
            near = DEARER ** max(min(joint.distance[i], STEPS), 1)
            net.add_edge((i, "in"), (t.name, "in"))
            cost = t.bytes * near * (1 if joint.in_memory(i, t) else 2)
            net.add_edge((t.name, "in"), (t.name, "out"), capacity=cost)
    _, (before, after) = networkx.minimum_cut(net, SOURCE, SINK, flow_func=networkx.algorithms.flow.boykov_kolmogorov)
    return [str(a[0]) for a, b in net.edges if a in before and b in after and isinstance(a, tuple)]


def _banned(joint: Joint) -> set[int]:
    """The operators of the forward pass that are not computed again."""
    banned = {i for i in joint.forward if _dear(joint, i)}
    order = {i: n for n, i in enumerate(sorted(joint.forward))}
    for i in order:
        for t in joint.operators[i].outputs:
            _far_apart(joint, i, [j for j in joint.users[t.name] if j in order], banned)
    _long_chains(joint, banned)
    return banned


def _dear(joint: Joint, i: int) -> bool:
    """Whether an operator computes much, makes far less than it reads, or makes what has to lie in memory anyway."""
    o = joint.operators[i]
    if not again(o.type) or joint.read_in_backward(i):
        return True
    if o.type in VIEWS:
        return False
    read = {t.name: t.bytes for t in o.present}
    return SMALLER * sum(t.bytes for t in o.outputs) < sum(read.values())


def _far_apart(joint: Joint, i: int, users: Sequence[int], banned: set[int]) -> None:
    """Ban the later users of a tensor, where something that can't be a loop with the rest lies before them."""
    if len(users) < 2:
        return
    last, first = max(users), max(users)
    heap, seen = [(j, True) for j in users], set[tuple[int, bool]]()
    heap.sort()
    while heap:
        j, together = heappop(heap)
        if not together:
            first = j
            break
        for t in joint.operators[j].outputs:
            for k in joint.users[t.name]:
                value = (k, joint.fusible(j, k))
                if k in joint.forward and k <= last and value not in seen:
                    seen.add(value)
                    heappush(heap, value)
    banned.update(j for j in users if j > first and joint.fusible(i, j) and joint.operators[j].type not in VIEWS)


def _long_chains(joint: Joint, banned: set[int]) -> None:
    """Ban operators so that no chain of those that can be one loop goes on for long."""
    order = {i: n for n, i in enumerate(sorted(joint.forward))}
    visited = set[int]()
    for start in order:
        heap = [start]
        while heap:
            now = heappop(heap)
            if now in visited:
                continue
            visited.add(now)
            if order[now] > order[start] + LONGEST_CHAIN and not heap:
                if joint.operators[now].type not in VIEWS:
                    banned.add(now)
                break
            for t in joint.operators[now].outputs:
                for j in joint.users[t.name]:
                    if j in order and joint.fusible(now, j) and j not in banned:
                        heappush(heap, j)
