"""Continuous batching: requests join and leave a running batch between iterations, simulated.

As vLLM schedules (Kwon et al. 2023, arXiv:2309.06180, with chunked prefill, Agrawal et al. 2024, arXiv:2403.02310): in
an iteration every request that has its first token generates one more, and what is left of the budget of tokens takes
prompts, first come first served, in chunks. A request is admitted when the cache has room for its prompt and its whole
output, so that none is ever thrown out again (vLLM admits earlier, and may have to).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxperf.ground.errors import UsageError
from onnxperf.language.arrivals import Arrival

#: Seconds of an iteration: requests that decode, their mean context, new tokens of prompts, their mean past.
Price = Callable[[int, float, int, float], float]
MAX_TOKENS = 5_000_000  # that are generated in a simulation: about a minute


@dataclass(frozen=True, slots=True)
class Server:
    """running: requests that may be in the batch; cache_tokens: for which the cache has room; budget: new tokens of an
    iteration, of prompts and decode steps.
    """

    running: int
    cache_tokens: int
    budget: int


@dataclass(slots=True)
class Served:
    """A request and when, in seconds, its prompt was begun, its first token came, and its last."""

    arrival: Arrival
    start: float = 0.0
    first: float = 0.0
    end: float = 0.0
    taken: int = 0

    @property
    def waiting(self) -> float:
        """Seconds until the prompt was begun."""
        return self.start - self.arrival.seconds

    @property
    def to_first_token(self) -> float:
        """Seconds from its arrival."""
        return self.first - self.arrival.seconds

    @property
    def each_token(self) -> float:
        """Mean seconds of each token behind the first; 0 where there is none."""
        return (self.end - self.first) / max(self.arrival.output - 1, 1)

    @property
    def latency(self) -> float:
        """Seconds from its arrival to its last token."""
        return self.end - self.arrival.seconds


@dataclass(frozen=True, slots=True)
class Simulation:
    """Every request as it was served; seconds from the first arrival to the last token, and of iterations among them;
    the number of iterations, and the requests that decoded, and the tokens of prompts, in all of them.
    """

    served: tuple[Served, ...]
    span: float
    busy: float
    iterations: int
    decoded: int
    prompted: int


def simulate(arrivals: Sequence[Arrival], server: Server, price: Price) -> Simulation:
    """Serve requests, which arrive in order. Raises UsageError where one can't ever be admitted, and for more than
    MAX_TOKENS.
    """
    _check(arrivals, server)
    served = tuple(Served(a) for a in arrivals)
    waiting, prompts = deque[Served](), deque[Served]()
    ends = defaultdict[int, list[Served]](list)  # requests by the iteration that gives their last token
    now, busy, room, coming = arrivals[0].seconds, 0.0, server.cache_tokens, 0
    iteration = decoding = context = decoded = prompted = 0  # context: of all that decode together
    while True:
        while coming < len(served) and served[coming].arrival.seconds <= now:
            waiting.append(served[coming])
            coming += 1
        while waiting and decoding + len(prompts) < server.running and room >= _tokens(waiting[0]):
            prompts.append(waiting.popleft())
            room -= _tokens(prompts[-1])
        if not decoding and not prompts:
            if coming == len(served):
                break
            now = served[coming].arrival.seconds
            continue
        new, past, done = _chunks(prompts, server.budget - decoding, now)
        seconds = price(decoding, context / decoding if decoding else 0.0, new, past / new if new else 0.0)
        now, busy = now + seconds, busy + seconds
        decoded, prompted, context = decoded + decoding, prompted + new, context + decoding
        iteration += 1
        for request in done:
            request.first = now
            decoding, context = decoding + 1, context + request.arrival.prompt
            ends[iteration + request.arrival.output - 1].append(request)
        for request in ends.pop(iteration, ()):
            request.end = now
            room += _tokens(request)
            decoding -= 1
            context -= _tokens(request) - 1
    return Simulation(served, now - arrivals[0].seconds, busy, iteration, decoded, prompted)


def together(simulations: Sequence[Simulation]) -> Simulation:
    """What several servers did at the same time, each with requests of its own."""
    served = tuple(s for simulation in simulations for s in simulation.served)
    span = max(s.end for s in served) - min(s.arrival.seconds for s in served)
    busy = sum(simulation.busy for simulation in simulations) / len(simulations)
    counts = (
        sum(getattr(simulation, what) for simulation in simulations) for what in ("iterations", "decoded", "prompted")
    )
    return Simulation(served, span, busy, *counts)


def _tokens(request: Served) -> int:
    return request.arrival.prompt + request.arrival.output


def _chunks(prompts: deque[Served], left: int, now: float) -> tuple[int, int, list[Served]]:
    """Take `left` tokens of prompts: how many new ones there are, the sum of what lies before each, and the requests
    whose prompt is complete, which leave the queue.
    """
    new = past = 0
    done = []
    while prompts and left > 0:
        request = prompts[0]
        if not request.taken:
            request.start = now
        chunk = min(left, request.arrival.prompt - request.taken)
        new, past, left = new + chunk, past + chunk * request.taken, left - chunk
        request.taken += chunk
        if request.taken == request.arrival.prompt:
            done.append(prompts.popleft())
    return new, past, done


def _check(arrivals: Sequence[Arrival], server: Server) -> None:
    longest = max(a.prompt + a.output for a in arrivals)
    if longest > server.cache_tokens:
        room = f"the KV cache has room for {max(server.cache_tokens, 0):,}"
        raise UsageError(
            f"a request of {longest:,} tokens can't be served, {room}: use shorter requests or another card"
        )
    if server.budget <= server.running:
        why = "each decode takes one token, prefill the rest"
        raise UsageError(f"--chunk {server.budget} is too small for {server.running} concurrent requests: {why}")
    if (total := sum(a.output for a in arrivals)) > MAX_TOKENS:
        fewer = max(len(arrivals) * MAX_TOKENS // total, 1)
        raise UsageError(
            f"{total:,} tokens of output are too many to simulate, at most {MAX_TOKENS:,}: use --requests {fewer:,}, or"
            " shorter --output-lengths"
        )
