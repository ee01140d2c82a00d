"""Which plan divides a model best among so many GPUs: all plans that fit, by time, and why others don't."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from onnxperf.answer.outline import outline
from onnxperf.ground.codec import Document
from onnxperf.ground.errors import Error, LimitExceeded, UsageError
from onnxperf.ground.output import Progress
from onnxperf.ground.tables import size
from onnxperf.passes.plan import Plan
from onnxperf.running.pipeline import Gpu, Request, find, read_once, run_of

MOST_GPUS = 64  # beyond, there are more plans than anybody waits for
MICROBATCHES = (1, 4, 16)  # that a pipeline is tried with


@dataclass(frozen=True, slots=True)
class Division:
    """One plan that fits: seconds of a run with their range, samples a second of all GPUs, seconds in which a GPU only
    exchanges data or waits for others, and bytes that a process holds of its card.
    """

    plan: str
    seconds: float
    low_seconds: float
    high_seconds: float
    throughput_per_second: float
    exposed_communication_seconds: float
    process_bytes: int


@dataclass(frozen=True, slots=True)
class Divisions(Document):
    """The plans for a model on so many GPUs, the fastest first; others: those that can't be used, and why."""

    model: str
    gpu: str
    gpus: int
    batch: int
    plans: tuple[Division, ...]
    others: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """The plans as plain data."""
        return {**Document.to_dict(self), "others": [{"plan": plan, "why": why} for plan, why in self.others]}


def every_plan(gpus: int) -> Iterator[Plan]:
    """All plans that take so many GPUs; pipelines with some numbers of microbatches."""
    for tp in _divisors(gpus):
        for pp in _divisors(gpus // tp):
            for ep in _divisors(gpus // tp // pp):
                for microbatches in MICROBATCHES if pp > 1 else (1,):
                    yield Plan(gpus // tp // pp // ep, tp, pp, ep, microbatches)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def divisions(request: Request, gpu: Gpu, gpus: int, tell: Progress | None = None) -> Divisions:
    """The plans by which `gpus` of a card run what a request asks for, ranked by time; its batch is that of all GPUs.

    Raises UsageError for more than MOST_GPUS, and what `predict` raises on one GPU.
    """
    if not 2 <= gpus <= MOST_GPUS:
        raise UsageError(f"plans are searched for 2 to {MOST_GPUS} GPUs, not {gpus}")
    terms = {k: v for k, v in request.terms.items() if k not in ("gpus", "parallel")}
    alone, device = replace(read_once(request), terms=terms), find(gpu)[0]
    batch = run_of(alone, device).graph.batch
    plans, divided, others = list(every_plan(gpus)), list[Division](), list[tuple[str, str]]()
    for i, plan in enumerate(plans):
        if tell is not None:
            tell(str(plan), i, len(plans))
        if batch % plan.parts:
            others.append((str(plan), f"a batch of {batch} can't be divided by {plan.parts}"))
            continue
        try:
            run = run_of(replace(alone, terms={**terms, "parallel": str(plan)}), device)
            of = outline(run)
        except Error as e:
            alike = str(plan).partition(":")[0]  # the plan without its microbatches, which the error may begin with
            others.append((str(plan), str(e).removeprefix(f"{alike}: ")))
            continue
        if of.memory.fits:
            held = of.memory.reserved_bytes
            times = (of.seconds, of.low_seconds, of.high_seconds, batch / of.seconds, of.exposed_seconds)
            divided.append(Division(str(plan), *times, held))
        else:
            lacks = of.memory.total_bytes + of.memory.context_bytes - of.memory.capacity_bytes
            others.append((str(plan), f"lacks {size(lacks)} of memory on each GPU"))
    divided.sort(key=lambda d: d.seconds)
    return Divisions(run_of(alone, device).graph.name, device.id, gpus, batch, tuple(divided), tuple(others))


def keep(divisions: Divisions) -> None:
    """Raise LimitExceeded where no plan fits."""
    if not divisions.plans:
        raise LimitExceeded(f"no plan for {divisions.gpus} x {divisions.gpu} fits")
