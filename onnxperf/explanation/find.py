"""From a name, or a product's size, to the kernel that is explained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.answer.prediction import Prediction, summarise
from onnxperf.explanation.core import Explanation, amount
from onnxperf.explanation.facts import KernelFacts
from onnxperf.explanation.sections import sections
from onnxperf.explanation.trace import traced
from onnxperf.explanation.waterfall import waterfall
from onnxperf.graph import Graph
from onnxperf.ground.errors import UsageError, near_names, printable
from onnxperf.ground.names import precision_label
from onnxperf.latency import single
from onnxperf.lowering.lower import host_node
from onnxperf.running.run import Run
from onnxperf.running.scenario import Scenario
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
        raise UsageError(f"--gemm {text!r} is not valid: write MxNxK or BxMxNxK, such as 4096x4096x4096")
    *stack, m, n, k = map(int, text.split("x"))
    a, c = (Tensor(name, "float32", (*stack, m, last), "input") for name, last in (("a", k), ("c", n)))
    b = Tensor("b", "float32", (*stack, k, n), "input" if stack else "weight")
    result = replace(c, kind="activation")
    inputs = tuple(t for t in (a, b) if not t.stored)
    product = Operator(PRODUCT, "MatMul", (a, b), (result,), version=13, nodes=(PRODUCT,))
    return Graph(f"{PRODUCT} {text}", (product,), inputs, (result,))


def explain_kernel(run: Run, node: str = PRODUCT) -> Explanation:
    """Explain the kernel called `node`, or the one that does an ONNX node's work, on the run's first device.

    Raises UsageError where there is no such kernel: the message says what became of the node, or names near ones.
    """
    prediction, at = summarise(run), _index(node, run)
    if run.kernels.rows[at].communicates:
        what = f"{printable(node)[:80]} is a collective: predict --detail has its time, and"
        raise UsageError(
            f"{what} onnxperf/lab/derive/collectives.md its formula; explain covers the kernels of one card"
        )
    facts = facts_of(run, prediction, at, {})
    device, k, predicted, seconds = run.devices[0], facts.kernel, facts.predicted, facts.seconds
    return Explanation(
        kernel=k.name, op=k.op, nodes=k.nodes, gpu=device.id, card=device.name,
        terms=terms_of(run.scenario),
        remark="; ".join((*_remarks(node, at, facts), *_warnings(prediction, predicted))),
        seconds=seconds, low_seconds=predicted.low_seconds / k.repeat, high_seconds=predicted.high_seconds / k.repeat,
        interval=prediction.interval, bound_by=predicted.bound_by, limit=predicted.limit,
        unit=facts.unit, peak=facts.peak,
        achieved=facts.amount / seconds if seconds else 0.0, sections=sections(facts), steps=waterfall(facts),
    )  # fmt: skip


def facts_of(run: Run, p: Prediction, at: int, read: dict[str, Any]) -> KernelFacts:
    """What is known of kernel number `at` of a run on its first device; `read` gets the constants that were read."""
    k, predicted = run.kernels.rows[at], p.kernels[at]
    constants = traced(run.constants, read)
    layer = run.method.layer(k)
    terms, bound = single(k.work, run.devices[0], constants, run.method, run.kernels.stored_bytes, layer)
    seconds, joules = predicted.seconds / k.repeat, float(run.estimates.joules[at, 0]) / k.repeat
    return KernelFacts(run, k, predicted, terms, bound, seconds, joules, 1.0 if k.way else p.power_factor, read)


def terms_of(s: Scenario) -> str:
    """The model and what it is run with, in a line."""
    return f"{s.model}; {s.runtime}, {precision_label(s.precision)}{f', {s.layout}' if s.layout else ''}, {s.method}"


def _index(name: str, run: Run) -> int:
    """The index of the kernel of that name, or of the largest one that does work of the node."""
    rows = run.kernels.rows
    matches = [i for i, k in enumerate(rows) if name == k.name or name in k.nodes]
    if not matches:
        raise UsageError(_missing(name, run))
    return max(matches, key=lambda i: (rows[i].name == name, rows[i].work.matrix_flops, rows[i].work.bytes))


def _remarks(name: str, at: int, x: KernelFacts) -> Iterator[str]:
    """What to say where the kernel, which is number `at` of the run's, is not simply the node's own."""
    k, rows, s = x.kernel, x.run.kernels.rows, x.run.scenario
    if len(k.nodes) > 1:
        nodes = ", ".join(printable(n) for n in k.nodes)
        yield f"{s.runtime} fuses {nodes} into one kernel, {printable(k.op)}: this is its time"
    if more := [printable(other.name) for i, other in enumerate(rows) if i != at and name in other.nodes]:
        yield f"{printable(name)} also has the kernels {', '.join(more)}"
    if x.pipe == "tensor_tf32" and s.precision == "keep":
        yield f"{s.runtime} runs FP32 GEMM as TF32; --precision fp32 turns that off"
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
            seconds = o.repeat * host_node(o).seconds(run.host_costs[0], run.processors[0])
            return f"{what} runs on the CPU under {runtime}, for {amount(seconds, 's')}: it has no kernel"
        if o.place == "free":
            return f"{what} has no kernel under {runtime}: it is a view of its input, or a no-op"
        return f"{what} has no kernel: {runtime} removes it, or makes it part of another node"
    names = [*dict.fromkeys(n for k in run.kernels.rows for n in (k.name, *k.nodes))]
    near = near_names(name, names, n=3, cutoff=0.5) or [n for n in names if name and name in n][:3]
    hint = f"did you mean {', '.join(map(plain, near))}?" if near else "predict --detail lists all kernels"
    return f"no kernel or node is called {shown!r} (constants are folded before the run): {hint}"
