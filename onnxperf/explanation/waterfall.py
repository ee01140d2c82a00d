"""From the datasheet's rate to the one that is achieved: a step for each loss; their factors multiply to the result."""

from __future__ import annotations

from collections.abc import Iterator

from onnxperf.explanation.core import Step
from onnxperf.explanation.facts import KernelFacts, scalar
from onnxperf.latency import correction_name
from op_models import Transfer

#: Why arithmetic runs below its peak: details of an estimate whose names end in "efficiency".
WHY = {
    "padding": "the kernel of a larger size, padded, is the faster one",
    "full tiles": "tiles extend beyond the edge of the output; k is rounded up",
    "full waves": "the last wave of blocks leaves SMs idle",
    "pipe": "the share of peak that the unit sustains inside a tile",
    "tile": "the share of peak that a tile of this size reaches",
    "small tiles": "smaller tiles load more bytes per FLOP",
    "softmax": "exponentials and sums between the two GEMMs",
    "feed": "operands from shared memory and L2, dependent instructions along k",
    "epilogue": "filling the pipeline and writing the output tile",
    "issue slots": "loads take issue slots from arithmetic",
    "GEMM": "partial tiles, loads beside arithmetic, prologues",
    "gather": "im2col addressing, padding, borders",
    "warps": "too few warps to hide latency",
    "measured": "ratio of measured to modelled time of kernels of about this size",
}
EFFICIENCY = " efficiency"
SAME = 1e-9


def waterfall(x: KernelFacts) -> tuple[Step, ...]:
    """The steps, from the datasheet's rate on: the factor of each is the time before it / the time with its loss."""
    if not x.amount:
        return ()
    now = x.amount / x.peak
    steps = [Step("peak", 1.0, x.peak, now, "the datasheet's rate")]
    for name, why, seconds in _times(x, now):
        if seconds > 0 and (abs(seconds / now - 1) > SAME or name in WHY):
            steps.append(Step(name, now / seconds, x.amount / seconds, seconds, why))
            now = seconds
    return tuple(steps)


def _times(x: KernelFacts, now: float) -> Iterator[tuple[str, str, float]]:
    """Name, reason and seconds of every step: how long the kernel would take with one loss more each time.

    now: seconds at the datasheet's rate. The last one is the predicted time.
    """
    b, w = x.terms, x.kernel.work
    compute, latency, memory, launch, seconds = map(scalar, (b.compute, b.latency, b.memory, b.launch, b.seconds))
    body = max(seconds - launch, compute, memory, latency)  # where a launch is a floor, it is not added
    body = min(body, seconds)
    if w.matrix_flops:
        now *= x.executed / w.matrix_flops
        yield "FLOPs saved", "masked tiles are skipped, transforms (Winograd, FFT) need fewer", now
        efficiencies = [name for name in x.detail if name.endswith(EFFICIENCY) and x.detail[name] > 0]
        for name in efficiencies:
            now /= x.detail[name]
            short = name.removesuffix(EFFICIENCY)
            yield short, WHY.get(short, ""), now
        if not efficiencies:
            yield "efficiency", "the rate that this form of the kernel reaches", compute
        rest = "prologues" if efficiencies else "partial tiles and waves, prologues, dependent instructions"
        yield "latency", rest, min(compute + latency, body)
        yield "memory", "memory traffic takes longer than the arithmetic", min(max(compute + latency, memory), body)
        yield "overlap", "arithmetic and traffic overlap in part", body
    else:
        link = isinstance(w.size, Transfer)
        if not link and (dram := x.detail.get("DRAM bytes", 0.0) / x.peak) > now / 2:
            now = dram
            yield "DRAM bytes", "minus L2 hits, plus what is read again", now
            yield "memory", "the bandwidth that DRAM and L2 achieve", memory
        else:
            yield (
                "memory",
                "the bandwidth that the link achieves" if link else "all bytes come from L2, at its bandwidth",
                memory,
            )
        yield "issue, latency", "instruction issue, memory latency, dependent instructions", body
    yield "launch", "ramp-up and tail", seconds
    floor, factors = scalar(x.bound.seconds), {} if x.run.method.own_terms else x.device.corrections.operators
    seconds = max(seconds, floor)
    yield "floor", "the speed-of-light bound", seconds
    seconds = max(seconds * factors.get(correction_name(x.kernel), 1.0), floor)
    yield "calibration", "the correction factor of this operator type, measured on this device", seconds
    yield "power", "throttling by the power limit, over the whole run", seconds * x.factor
