"""How an engine divides the memory of a GPU: caches get what the rest, and the largest iterations, leave."""

from __future__ import annotations

from dataclasses import dataclass

from onnxperf.language.steps import Steps
from onnxperf.running.pipeline import find


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of one GPU: `rest_bytes` of weights, CUDA's context and what the largest iteration or the engine takes
    beside; cache_bytes that are left for caches, less than nothing where the rest does not fit; and bytes that a token
    of a sample takes there, a draft's with them.
    """

    rest_bytes: float
    cache_bytes: float
    token_bytes: int

    @property
    def tokens(self) -> int:
        """For whose caches there is room."""
        return int(self.cache_bytes // self.token_bytes)

    def needed_bytes(self, tokens: int) -> int:
        """All that is needed with caches of so many tokens."""
        return int(self.rest_bytes + tokens * self.token_bytes)

    @property
    def capacity_bytes(self) -> int:
        """The most that may be needed."""
        return int(self.rest_bytes + self.cache_bytes)


def room(steps: Steps, running: int, budget: int, each: int) -> Room:
    """What is left for caches, of `each` bytes a token and a draft's, beside iterations of `running` requests that
    decode, or of `budget` tokens of prompts.

    The cache is taken to be in pages, as vLLM's is: a token takes its bytes wherever there is room.
    """
    each, d, e = max(each * steps.copies, 1), steps.draft, steps.engine
    reserved = 0.0
    if e.apart:
        reserved = e.reserved(find(steps.gpu)[0], steps.plan.gpus // steps.groups) + running * steps.state_bytes()
    prompt, step = (1, budget, 0 if budget > 1 else 1), (running, steps.width, 1)
    if d is None:
        runs, whole = [(steps, prompt, each, 0), (steps, step, each, 0)], each
    else:  # each of two models runs beside the weights of the other
        small, beside = d.resident.cache_bytes_per_token, d.resident.weights_bytes
        runs = [(steps, prompt, each, beside), (d.verifying, step, each, beside)]
        runs += [(d.steps, run, small, d.main.weights_bytes) for run in (prompt, (running, 1, 1))]
        whole = each + small
    rests, most = [], 0.0
    for model, run, held, beside in runs:
        m = model.at(*run).memory
        caches = run[0] * held * (model.room or (model.longest if model.copies == 1 else 1))
        taken = reserved + m.weights_bytes if e.apart else m.total_bytes - caches
        rests.append(m.context_bytes + taken + beside)
        most = m.capacity_bytes if e.apart else e.memory * m.capacity_bytes
    return Room(max(rests), e.cache * (most - max(rests)), whole)
