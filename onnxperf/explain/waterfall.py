"""From the datasheet's rate to the one that is reached: a step for each loss, whose factors multiply to the result."""

from __future__ import annotations

from collections.abc import Iterator

from onnxperf.explain.core import Step
from onnxperf.explain.facts import KernelFacts, one
from onnxperf.latency import correction_name
from op_models import Transfer

#: Why arithmetic runs below its peak: details of an estimate whose names end in "efficiency".
WHY = {
    "full tiles": "tiles reach over the edge of the result, k is rounded up",
    "full waves": "blocks come in waves over the SMs; the last leaves some of them idle",
    "pipe": "what the unit sustains inside a tile",
    "tile": "what a tile of this size reaches",
    "small tiles": "the smaller a tile, the more it loads for each FLOP",
    "softmax": "exponentials and sums beside the products of a step",
    "feed": "operands from shared memory and L2, dependent steps along k",
    "epilogue": "start and result of a tile, as if k were longer",
    "issue slots": "loads take issue slots from arithmetic",
    "product": "partial tiles, loads beside arithmetic, prologues",
    "gather": "indices, padding and borders of the gathered operand",
    "warps": "too few warps to hide latency",
}
EFFICIENCY = " efficiency"
SAME = 1e-9


def waterfall(x: KernelFacts) -> tuple[Step, ...]:
    """The steps, each a time that grows by what the step adds: factor = time before / time behind."""
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
    """How long the kernel would take with one loss more each time; the last time is the answer."""
    b, w = x.terms, x.kernel.work
    compute, latency, memory, launch, seconds = map(one, (b.compute, b.latency, b.memory, b.launch, b.seconds))
    body = max(seconds - launch, compute, memory, latency)  # where a launch is a floor, it is not added
    body = min(body, seconds)
    if w.matrix_flops:
        now *= x.executed / w.matrix_flops
        yield "FLOPs saved", "masked tiles are skipped, a transform needs fewer products", now
        known = [name for name in x.detail if name.endswith(EFFICIENCY) and x.detail[name] > 0]
        for name in known:
            now /= x.detail[name]
            short = name.removesuffix(EFFICIENCY)
            yield short, WHY.get(short, ""), now
        if not known:
            yield "efficiency", "the rate that this form of the kernel reaches", compute
        rest = "prologues" if known else "tiles and waves that are not full, prologues, chains"
        yield "latency", rest, min(compute + latency, body)
        yield "memory", "bytes take longer than the arithmetic", min(max(compute + latency, memory), body)
        yield "overlap", "arithmetic and traffic overlap in part", body
    else:
        link = isinstance(w.size, Transfer)
        if not link and (dram := x.detail.get("DRAM bytes", 0.0) / x.peak) > now / 2:
            now = dram
            yield "DRAM bytes", "what L2 still holds is saved, what is read again is added", now
            yield "memory", "the rate that DRAM achieves, beside L2's", memory
        else:
            yield "memory", "what the link achieves" if link else "bytes come from L2, at its own rate", memory
        yield "latency", "arithmetic and chains of dependent steps beside it", body
    yield "launch", "start and drain: added, or the least there is", seconds
    floor = max(seconds, one(x.bound.seconds))
    yield "floor", "physics allows no less", floor
    own = max(floor * x.device.corrections.operators.get(correction_name(x.kernel), 1.0), one(x.bound.seconds))
    yield "calibration", "what operators of this type take on this very device", own
    yield "power", "the card's limit on the whole run", own * x.factor
