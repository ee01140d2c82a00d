"""A whole run: why a model does not reach the datasheet's FLOP/s, as seconds lost to each cause.

Each kernel's way from the datasheet's rate to its predicted time (`waterfall`) is added up over all kernels, by cause;
what is left of the run are times without a kernel. So the losses add to the run's seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from onnxperf.answer.prediction import summarise
from onnxperf.explanation.core import Explanation
from onnxperf.explanation.facts import KernelFacts, scalar
from onnxperf.explanation.find import PRODUCT, SIZES, explain_kernel, facts_of, product_graph, terms_of
from onnxperf.explanation.waterfall import waterfall
from onnxperf.ground.codec import Document
from onnxperf.ground.errors import UsageError, speaking_of_arguments
from onnxperf.running.pipeline import Gpu, request_for, run_of
from onnxperf.running.run import Run
from onnxperf.running.terms import Bound, Examples
from op_models import Transfer

SCHEMA_VERSION = 1
SMALL = 1e-6  # the share of a run from which on a cause is named
#: Causes, in the order of the table, with what they are; the first two are the work itself.
CAUSES = {
    "GEMM and conv at peak": "GEMM and convolution at the datasheet's FLOP/s",
    "other operators": "memory traffic at the bandwidth that DRAM and L2 achieve",
    "low occupancy": "partial tiles and waves, prologues, too few warps: the GPU is not filled",
    "tile efficiency": "the rate sustained inside full tiles is below peak",
    "memory stalls": "GEMM and convolution wait for DRAM or L2",
    "latency of other operators": "instruction issue, dependent steps, too few bytes in flight",
    "kernel launch": "ramp-up and tail of each kernel on the GPU",
    "power limit": "the clock is throttled by the power limit",
    "calibration": "correction factors measured on this device",
    "transfers": "H2D and D2H copies",
    "host-bound": "the GPU is idle until the host launches the next kernel",
    "waiting for copies": "the host or a kernel waits for an H2D or D2H copy",
    "between kernels": "gaps between kernels on a stream",
    "communication": "exposed communication: no kernel overlaps it",
    "pipeline": "other microbatches, send/recv and pipeline bubbles",
    "stream overlap": "time saved by kernels that overlap on several streams",
}
_OF_PRODUCTS = {
    "peak": "GEMM and conv at peak", "FLOPs saved": "GEMM and conv at peak", "full tiles": "low occupancy",
    "full waves": "low occupancy", "small tiles": "low occupancy", "warps": "low occupancy", "latency": "low occupancy",
    "memory": "memory stalls", "overlap": "memory stalls",
}  # fmt: skip
_OF_ANY = {"launch": "kernel launch", "calibration": "calibration", "power": "power limit"}
_OF_GAPS = {"host": "host-bound", "copies": "waiting for copies", "stream": "between kernels"}


@dataclass(frozen=True, slots=True)
class Loss:
    """Seconds that a cause takes of a run, and what the cause is."""

    cause: str
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class RunExplanation(Document):
    """A run on one card: what it achieves of the datasheet's FLOP/s, and the causes that its seconds go to.

    peak: FLOP/s of GEMM and convolution at the datasheet's rates of the units that compute them, 0 where there are
    none; achieved: the same over the run's seconds. intensity: FLOP/B of all kernels; ridge_point: peak over DRAM
    bandwidth, FLOP/B. losses add to `seconds`.
    """

    gpu: str
    card: str
    terms: str
    seconds: float
    low_seconds: float
    high_seconds: float
    interval: float
    peak: float
    achieved: float
    intensity: float
    ridge_point: float
    losses: tuple[Loss, ...]

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain data: schema_version and the fields by name, in SI units. Keys may be added."""
        return {"schema_version": SCHEMA_VERSION, **Document.to_dict(self)}


def explain(
    model: Any = None, node: str | None = None, example_inputs: Examples = None, *,
    gpu: Gpu, gemm: str | Sequence[int] | None = None, **terms: Unpack[Bound],
) -> Explanation | RunExplanation:  # fmt: skip
    """Explain a model's run, or one kernel of it: the one called `node`, or the one that does an ONNX node's work.

    model, example_inputs, gpu and terms are those of `onnxperf.predict`. gemm: instead of a model and a node, the sizes
    of one product, as "4096x4096x4096", with a batch in front if it has one. Raises what `predict` raises, and
    UsageError where there is no such kernel.
    """
    with speaking_of_arguments():
        if (model is None) if gemm is None else (model is not None or node is not None):
            raise UsageError("explain takes a model, with or without a node, or --gemm alone")
        if gemm is not None and (sizes := [what for what in SIZES if terms.get(what) is not None]):
            raise UsageError(f"--gemm sets all sizes: leave {', '.join(sizes)} out")
        run = run_of(request_for(model if gemm is None else product_graph(gemm), example_inputs, **terms), gpu)
        if node is None and gemm is None:
            return explain_run(run)
        return explain_kernel(run, PRODUCT if node is None else node)


def explain_run(run: Run) -> RunExplanation:
    """Explain a run on its first device."""
    p, device, s = summarise(run), run.devices[0], run.scenario
    lost, at_peak = dict.fromkeys(CAUSES, 0.0), 0.0
    facts: dict[Any, KernelFacts] = {}
    for at, k in enumerate(run.kernels.rows):
        if k.communicates:
            continue
        same = (k.work, run.method.layer(k))
        x = facts.setdefault(same, facts.get(same) or facts_of(run, p, at, {}))
        left = p.kernels[at].seconds
        for cause, seconds in _causes(x):
            lost[cause] += k.repeat * seconds
            left -= k.repeat * seconds
        lost["calibration"] += left  # which is of operators' types: kernels of the same work may differ in it
        if k.work.matrix_flops:
            at_peak += k.repeat * k.work.matrix_flops / x.peak
    for gap in p.gaps:
        lost[_OF_GAPS.get(gap.stalled_on, "communication")] += gap.seconds
    rest = "pipeline" if run.plan.pp > 1 else "communication" if run.plan.gpus > 1 else "stream overlap"
    lost[rest] += p.seconds - sum(lost.values())
    flops, moved = p.work["matrix_flops"], p.work["bytes_read"] + p.work["bytes_written"]
    peak = flops / at_peak if at_peak else 0.0
    return RunExplanation(
        gpu=device.id, card=device.name, terms=terms_of(s),
        seconds=p.seconds, low_seconds=p.low_seconds, high_seconds=p.high_seconds, interval=p.interval, peak=peak,
        achieved=flops / p.seconds if p.seconds else 0.0, intensity=flops / moved if moved else 0.0,
        ridge_point=peak / device.bandwidth_Bps,
        losses=tuple(Loss(c, lost[c], CAUSES[c]) for c in CAUSES if abs(lost[c]) > SMALL * p.seconds),
    )  # fmt: skip


def _causes(x: KernelFacts) -> Iterator[tuple[str, float]]:
    """Seconds of one repeat of a kernel by cause."""
    before = 0.0
    for step in waterfall(x):
        yield _cause(x, step.name), step.seconds - before
        before = step.seconds
    if not before:  # nothing is computed and nothing moved
        yield "kernel launch", x.seconds


def _cause(x: KernelFacts, step: str) -> str:
    """The cause that a step of a kernel's waterfall belongs to."""
    if isinstance(x.kernel.work.size, Transfer):
        return "transfers"
    if step in _OF_ANY:
        return _OF_ANY[step]
    if step == "floor" and scalar(x.bound.launch) >= max(scalar(x.bound.memory), scalar(x.bound.compute)):
        return "kernel launch"
    if step == "floor":
        step = "memory" if scalar(x.bound.memory) >= scalar(x.bound.compute) else "efficiency"
    if x.kernel.work.matrix_flops:
        return _OF_PRODUCTS.get(step, "tile efficiency")
    return "latency of other operators" if step == "issue, latency" else "other operators"
