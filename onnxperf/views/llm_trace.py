"""A prefill and a decode step of a language model as one trace, one after the other, each with lanes of its own."""

from __future__ import annotations

from collections.abc import Iterable

from onnxperf.ground.errors import UsageError, counted
from onnxperf.language.core import Generation
from onnxperf.language.spent import PREFILL, Step, step_of
from onnxperf.views.trace import PID, Event, event, events_of, text

APART = 1 << 10  # between the numbers of processes and lanes of one step and of the next


def steps_shown(g: Generation) -> tuple[Step, ...]:
    """A prefill and a decode step of the middle context: of the first batch, or where requests are served, of one
    prompt and of as many as decode on average. With a draft one of its runs and the verification stand for a step.
    """
    if g.steps is None:
        raise UsageError("this generation has no runs to show: predict it anew")
    steps, lengths = g.steps, g.lengths
    new, past = lengths.prompt_runs()[0]
    share = steps.share(g.batches[0].batch)
    prompts, decoding = (share, share) if g.service is None else (1, max(1, round(g.service.batch)))
    middle = lengths.prompt + (lengths.output - 1) // 2
    prefill = step_of(steps, PREFILL, prompts, new, past)
    if (draft := steps.draft) is None:
        return prefill, step_of(steps, "decode step", decoding, 1, middle)
    proposing, verifying = (s.made_for(steps.longest) for s in (draft.steps, draft.verifying))
    proposal = step_of(proposing, f"draft, 1 of {counted(draft.tokens, 'run')}", decoding, 1, middle)
    return prefill, proposal, step_of(verifying, "verification", decoding, draft.tokens + 1, middle)


def llm_trace(g: Generation) -> str:
    """The trace of a generation, as JSON text."""
    events, start_s = list[Event](), 0.0
    for i, step in enumerate(steps_shown(g)):
        events += _shifted(_with_host(step), i * APART, start_s)
        start_s += step.prediction.seconds
    return text(events)


def _with_host(step: Step) -> list[Event]:
    """The events of a step, with what its host takes behind the last kernel."""
    p = step.prediction
    events = events_of(p, f"predicted {step.title}", step.engine.title)
    last = max((k.start_seconds + k.seconds for k in p.kernels), default=0.0)
    if p.kernels and last < p.seconds and step.own_host:
        events.append(event("Session", PID, last, p.seconds, f"host of {step.engine.name}", {}))
    return events


def _shifted(events: Iterable[Event], by: int, start_s: float) -> list[Event]:
    """Events in lanes of their own, from a second on."""
    start = round(start_s * 1e9) / 1e3
    return [
        {**e, "pid": e["pid"] + by, "tid": e["tid"] + by, **({} if e["ph"] == "M" else {"ts": e["ts"] + start})}
        for e in events
    ]
