"""From a name, or a product's size, to the kernel that is explained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnxperf.errors import UsageError, near_names, printable, speaking_of_arguments
from onnxperf.explanation.core import Explanation, amount
from onnxperf.explanation.facts import KernelFacts
from onnxperf.explanation.sections import sections
from onnxperf.explanation.trace import traced
from onnxperf.explanation.waterfall import waterfall
from onnxperf.graph import Graph
from onnxperf.kernel_timeline import KernelPrediction
from onnxperf.latency import single
from onnxperf.lower import host_node
from onnxperf.pipeline import Gpu, request_for, run_of
from onnxperf.prediction import Prediction, summarise
from onnxperf.run import Run
from op_models import Operator, Tensor

PRODUCT = "gemm"
SIZES = ("shapes", "dims", "batch", "trip_counts")  # terms that sizes of a product leave nothing to
CONCERNING = frozenset({"other-device", "no-unit", "assumed-operator", "gpu-alias"})


def product_graph(sizes: str | Sequence[int]) -> Graph:
    """A model of one product: m x n x k with a stored matrix, or a batch in front and no stored operand.

    sizes: numbers, or text such as 4096x4096x4096. Raises UsageError where they are not understood.
    """
    text = sizes.strip() if isinstance(sizes, str) else "x".join(map(str, sizes))
    if not re.fullmatch(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){2,3}", text):
        raise UsageError(f"--gemm {text!r} is not understood: write MxNxK or BxMxNxK, such as 4096x4096x4096")
    *stack, m, n, k = map(int, text.split("x"))
    a, c = (Tensor(name, "float32", (*stack, m, last), "input") for name, last in (("a", k), ("c", n)))
    b = Tensor("b", "float32", (*stack, k, n), "input" if stack else "weight")
    made = replace(c, kind="activation")
    inputs = tuple(t for t in (a, b) if not t.stored)
    one = Operator(PRODUCT, "MatMul", (a, b), (made,), version=13, nodes=(PRODUCT,))
    return Graph(f"{PRODUCT} {text}", (one,), inputs, (made,))


def explain(
    model: Any = None, node: str | None = None, example_inputs: Mapping[str, Any] | Sequence[Any] | None = None, *,
    gpu: Gpu, gemm: str | Sequence[int] | None = None, **terms: Any,
) -> Explanation:  # fmt: skip
    """Explain one kernel of a model: the one called `node`, or the one that does an ONNX node's work.

    model, example_inputs, gpu and terms are those of `onnxperf.predict`. gemm: instead of a model and a node, the sizes
    of one product, as "4096x4096x4096", with a batch in front if it has one. Raises what `predict` raises, and
    UsageError where there is no such kernel.
    """
    with speaking_of_arguments():
        if (model is None or node is None) if gemm is None else (model is not None or node is not None):
            raise UsageError("explain takes a model and a node, or --gemm alone")
        if gemm is not None and (given := [what for what in SIZES if terms.get(what) is not None]):
            raise UsageError(f"--gemm gives all sizes: {', '.join(given)} would not change them")
        request = request_for(model if gemm is None else product_graph(gemm), example_inputs, **terms)
        return explain_kernel(run_of(request, gpu), PRODUCT if node is None else node)


def explain_kernel(run: Run, node: str = PRODUCT) -> Explanation:
    """Explain the kernel called `node`, or the one that does an ONNX node's work, on the run's first device.

    Raises UsageError where there is no such kernel: the message says what became of the node, or names near ones.
    """
    prediction, at = summarise(run), _index(node, run)
    device, s, k, predicted = run.devices[0], run.scenario, run.kernels.rows[at], prediction.kernels[at]
    read: dict[str, Any] = {}
    known = traced(run.constants, read)
    terms, bound = single(k.work, device, known, run.method, run.kernels.stored_bytes, run.method.layer(k))
    seconds, joules = predicted.seconds / k.repeat, float(run.estimates.joules[at, 0]) / k.repeat
    factor = 1.0 if k.way else prediction.power_factor
    facts = KernelFacts(run, k, predicted, terms, bound, seconds, joules, factor, read)
    return Explanation(
        kernel=k.name, op=k.op, nodes=k.nodes, gpu=device.id, card=device.name,
        terms=f"{s.model}; {s.runtime}, {s.precision} precision{f', {s.layout}' if s.layout else ''}, {s.method}",
        remark="; ".join((*_remarks(node, at, facts), *_warnings(prediction, predicted))),
        seconds=seconds, low_seconds=predicted.low_seconds / k.repeat, high_seconds=predicted.high_seconds / k.repeat,
        interval=prediction.interval, bound_by=predicted.bound_by, limit=predicted.limit,
        unit=facts.unit, peak=facts.peak,
        achieved=facts.amount / seconds if seconds else 0.0, sections=sections(facts), steps=waterfall(facts),
    )  # fmt: skip


def _index(name: str, run: Run) -> int:
    """The index of the kernel of that name, or of the largest one that does work of the node."""
    rows = run.kernels.rows
    found = [i for i, k in enumerate(rows) if name == k.name or name in k.nodes]
    if not found:
        raise UsageError(_missing(name, run))
    return max(found, key=lambda i: (rows[i].name == name, rows[i].work.matrix_flops, rows[i].work.bytes))


def _remarks(name: str, at: int, x: KernelFacts) -> Iterator[str]:
    """What to say where the kernel, which is number `at` of the run's, is not simply the node's own."""
    k, rows, s = x.kernel, x.run.kernels.rows, x.run.scenario
    if len(k.nodes) > 1:
        nodes = ", ".join(printable(n) for n in k.nodes)
        yield f"{s.runtime} runs {nodes} as one kernel, {printable(k.op)}: its time is theirs"
    if more := [printable(other.name) for i, other in enumerate(rows) if i != at and name in other.nodes]:
        yield f"{printable(name)} has other kernels too: {', '.join(more)}"
    if x.pipe == "tensor_tf32" and s.precision == "keep":
        yield f"{s.runtime} lets products of FP32 run as TF32: --precision fp32 does not"
    if k.repeat > 1:
        yield f"one of {k.repeat} runs of this kernel"


def _warnings(p: Prediction, k: KernelPrediction) -> Iterator[str]:
    """What `predict` warns of that concerns this kernel: another device, a unit that is not there, no rule."""
    for note in p.warnings:
        if note.code in CONCERNING and (not note.nodes or {*note.nodes} & {*k.nodes}):
            yield printable(note.message)


def _missing(name: str, run: Run) -> str:
    """Why there is no kernel of that name: what became of the node, or which names are near."""
    from onnxperf.graph.proto import plain

    shown, runtime = plain(name), run.scenario.runtime
    for o in (o for graph in (run.run_graph, run.graph) for o in graph.operators if name in (o.name, *o.nodes)):
        what = f"{shown} ({printable(o.type)})"
        if o.place == "host":
            seconds = o.repeat * host_node(o).seconds(run.host_costs[0], run.cpus[0])
            return f"{what} runs on the CPU under {runtime}, for {amount(seconds, 's')}: it has no kernel"
        if o.place == "free":
            return f"{what} is free under {runtime}: a view of its input, or nothing at all; it has no kernel"
        return f"{what} has no kernel: {runtime} removes it, or makes it part of another node"
    names = [*dict.fromkeys(n for k in run.kernels.rows for n in (k.name, *k.nodes))]
    near = near_names(name, names, n=3, cutoff=0.5) or [n for n in names if name and name in n][:3]
    hint = f"did you mean {', '.join(map(plain, near))}?" if near else "predict --detail lists all kernels"
    return f"no kernel or node is called {shown!r} (what can be computed before the run is folded away): {hint}"
