"""A run of a decoder as an engine has it: joined products, activations within others, its own all-reduce, its host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from math import exp
from typing import Any, NamedTuple

from gpu_specs import usual_cluster
from onnxperf.answer.outline import Outline, outline
from onnxperf.export.decoder_quantised import Stored
from onnxperf.graph import Graph
from onnxperf.language.engines import Engine
from onnxperf.language.quantised import quantised
from onnxperf.latency import estimate_works
from onnxperf.running.memory import Memory
from onnxperf.running.run import Run
from op_models import Collective, Operator, Tensor

PRODUCT, NORM, ALL_REDUCE = "MatMul", "SimplifiedLayerNormalization", "nccl::AllReduce"
EXPERTS = ("com.microsoft::MoE", "com.microsoft::QMoE")
ACTIVATIONS = ("com.microsoft::QuickGelu", "com.microsoft::FastGelu")
#: Of the logarithm of the time per output token, with experts or without: widths that hold 80% of the rows of a model,
#: and of a card, that was left out, each counting alike (433 rows of 3 dense models, 487 of 5 of experts, on H100 and
#: H200; `python -m onnxperf.lab.served`).
ERRORS = {False: 0.27, True: 0.30}
LONGEST_HEAD = 512  # elements of a head that is normed, at most


class Bare(NamedTuple):
    """A run under an engine without the engine's host: its outline, and the kernels that are launched."""

    outline: Outline
    launches: float


def bare(runs: Sequence[Run], engine: Engine, stored: Stored | None) -> list[Bare]:
    """Runs of one model on one card under an engine, with weights as they are stored, without its host.

    The all-reduces of GPUs of one node take the faster of NCCL's time and the engine's. Ranges are as wide as ERRORS.
    """
    ready = [under(run, engine, stored) for run in runs]
    if len(ready) > 1:
        first = ready[0]
        estimate_works([run.kernels for run in ready], first.devices, first.method, first.constants)
    return [_bare(run, engine) for run in ready]


def _bare(run: Run, engine: Engine) -> Bare:
    if not engine.joined:
        return Bare(outline(run), len(run.kernels.rows))
    o, layers = outline(run), sum(k.op in EXPERTS for k in run.kernels.rows)
    seconds = o.seconds + sum(changes(run, engine))
    wide = exp(ERRORS[layers > 0])
    bound = min(float(run.timeline.lower_bound_s[0]), seconds)
    o = replace(o, seconds=seconds, low_seconds=max(seconds / wide, bound), high_seconds=seconds * wide)
    return Bare(o, len(run.kernels.rows) + layers * engine.routing)


def under(run: Run, engine: Engine, stored: Stored | None) -> Run:
    """A run with the products that an engine joins, of weights as they are stored; kernels take ONNX Runtime's time."""
    if not engine.joined:
        return run
    placed = quantised(joined(run.run_graph), stored, run.devices[0])
    return replace(run, placed=placed, scenario=replace(run.scenario, cuda_graph=True))


def grown(less: Bare, more: Bare, times: int) -> Bare:
    """`less` with `times` what `more` has beyond it: a decoder of many layers, of two of few, which differ by a period
    of its layers. Times and sizes grow evenly with the number of layers.
    """
    return Bare(_further(less.outline, more.outline, times), _further(less.launches, more.launches, times))


def _further(a: Any, b: Any, times: int) -> Any:
    if isinstance(a, (Outline, Memory)):
        parts = {f.name: _further(getattr(a, f.name), getattr(b, f.name), times) for f in fields(a)}
        return replace(b, **parts)
    if isinstance(a, (int, float)) and not isinstance(a, bool):
        return type(a)(a + (b - a) * times)
    return b


def hosted(run: Bare, engine: Engine, batch: int, new: int) -> Outline:
    """The outline of a run of `new` tokens of each of `batch` samples: the host must launch every kernel of an
    iteration with prompts, and its own part of any iteration comes on top.
    """
    o = run.outline
    seconds = max(o.seconds, engine.launch_s * run.launches) if new > 1 else o.seconds
    return _taking(o, seconds + engine.step_s + engine.request_s * batch)


def _taking(o: Outline, seconds: float) -> Outline:
    """An outline that takes other seconds, with a range of the same relative width."""
    scale = seconds / o.seconds
    return replace(o, seconds=seconds, low_seconds=o.low_seconds * scale, high_seconds=o.high_seconds * scale)


def changes(run: Run, engine: Engine) -> list[float]:
    """Seconds by which an engine changes each kernel, all its repeats together: what its all-reduces save, and where
    the norm behind a small one is in it, that norm; and what choosing experts adds to their products.
    """
    each = [engine.routing_s * k.repeat if k.op in EXPERTS else 0.0 for k in run.kernels.rows]
    if engine.reduce is None:
        return each
    cluster, small = run.devices[0].cluster or usual_cluster(run.devices[0]), False
    for i, (k, seconds) in enumerate(zip(run.kernels.rows, run.seconds[:, 0].tolist(), strict=True)):
        size = k.work.size
        if isinstance(size, Collective):
            inside = (size.ranks - 1) * size.stride < cluster.linked and cluster.link_Bps > cluster.pcie_Bps
            reduces = size.kind == "all_reduce" and inside
            shape = size.bytes, size.ranks, cluster.link_Bps, run.devices[0].capability[0]
            mapped = engine.reduce.seconds(*shape) * k.repeat if reduces else seconds
            small = mapped < seconds
            each[i] -= max(seconds - mapped, 0.0)
        elif small and engine.norms and k.op.endswith(NORM):
            each[i], small = each[i] - seconds, False
    return each


def joined(graph: Graph) -> Graph:
    """The graph with the products of one layer that read the same as one, activations in the product of gate and up,
    and norms of heads as elementwise kernels (they run with the rotation); sizes and lengths are known to the engine,
    which copies none to the host. `graph` is placed: what divides a joined result is a view.
    """
    groups = defaultdict[tuple[str, str], list[Operator]](list)
    reads = defaultdict[str, list[Operator]](list)
    for o in graph.operators:
        for t in o.present:
            reads[t.name].append(o)
        if o.type == PRODUCT and len(o.inputs) == 2 and o.inputs[1] is not None and o.inputs[1].stored:
            groups[o.present[0].name, o.name.rsplit("/", 2)[0]].append(o)
    first = {group[0].name: group for group in groups.values() if len(group) > 1}
    inside = {o.name for group in first.values() for o in group[1:]}
    gates = {o.out.name: o.present[0] for o in graph.operators if o.type in ACTIVATIONS and _gates(reads[o.out.name])}
    makers = {o.out.name: o for o in graph.operators if o.type == ALL_REDUCE}
    sums = {o.name: _sum(o, makers, reads) for o in graph.operators if o.type == "Add"}
    inside |= {part.name for parts in sums.values() for part in parts}
    operators: list[Operator] = []
    for o in graph.operators:
        if o.name in inside or o.out.name in gates:
            continue
        if reduces := sums.get(o.name):
            operators += _summed(o, reduces)
            continue
        if o.name in first:
            operators += _one(first[o.name])
        elif o.place == "copy":
            operators.append(replace(o, place="free"))
        elif o.type == NORM and o.out.rank == 4 and o.out.shape[-1] <= LONGEST_HEAD:
            operators.append(replace(o, type="Mul", attrs={}))
        else:
            o = replace(o, inputs=tuple(t and gates.get(t.name, t) for t in o.inputs))
            operators += _between(o) if o.type in EXPERTS else (o,)
    return replace(graph, operators=tuple(operators))


def _sum(o: Operator, makers: Mapping[str, Operator], reads: Mapping[str, list[Operator]]) -> tuple[Operator, ...]:
    """The all-reduces whose results an addition adds up, where nothing else reads them: of a shared expert and the
    others.
    """
    parts = tuple(makers[t.name] for t in o.present if t.name in makers and len(reads[t.name]) == 1)
    return parts if len(parts) == 2 else ()


def _summed(o: Operator, parts: Sequence[Operator]) -> tuple[Operator, Operator]:
    """An addition of the parts of each GPU, and one all-reduce of that."""
    local = replace(o.out, name=f"{o.out.name}#part")
    add = replace(o, inputs=tuple(p.present[0] for p in parts), outputs=(local,))
    return add, replace(parts[0], inputs=(local,), outputs=o.outputs)


def _between(o: Operator) -> tuple[Operator, Operator]:
    """Experts, and what reads the results of their products: the activation, and the sum over a token's experts. Of
    routed tokens, k times those that there are, experts write 3 inner + hidden elements each, which are read again.
    """
    x, weights = o.present[0], [t for t in o.present if t.rank == 3 and t.stored]
    hidden, inner = x.shape[-1], weights[0].shape[1] // 2
    rows = x.size // max(hidden, 1) * min(int(o.attrs.get("k", 1)), weights[0].shape[0])
    routed = Tensor(f"{o.name}#routed", o.out.dtype, (rows, 3 * inner + hidden))
    experts = replace(o, outputs=(replace(o.out, name=f"{o.name}#each"), routed))
    return experts, Operator(f"{o.name}#sum", "Relu", (routed,), o.outputs[:1], {}, 0, o.nodes)


def _gates(readers: Iterable[Operator]) -> bool:
    """Whether an activation is multiplied by something and read by nothing else."""
    return [o.type for o in readers] == ["Mul"]


def _one(group: list[Operator]) -> tuple[Operator, Operator]:
    """The products of `group` as one, and the view that divides its result."""
    x, name = group[0].present[0], group[0].name
    weights, results = [o.present[1] for o in group], tuple(o.out for o in group)
    columns = sum(t.shape[-1] for t in results)
    weight = replace(weights[0], name="|".join(t.name for t in weights), shape=(*weights[0].shape[:-1], columns))
    whole = Tensor(f"{name}#joined", results[0].dtype, (*results[0].shape[:-1], columns))
    nodes = tuple(n for o in group for n in o.nodes)
    product = replace(group[0], inputs=(x, weight), outputs=(whole,), nodes=nodes)
    return product, Operator(f"{name}#parts", "Split", (whole,), results, {"axis": -1}, 0, nodes, "free")
