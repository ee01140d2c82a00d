"""Continuous batching: requests join and leave a running batch between iterations, simulated.

As vLLM schedules (Kwon et al. 2023, arXiv:2309.06180, with chunked prefill, Agrawal et al. 2024, arXiv:2403.02310): in
an iteration every request that has its first token generates one more, and what is left of the budget of tokens takes
prompts, first come first served, in chunks. Where prompts go first, as in SGLang, an iteration takes either these or
decode steps; where they are whole, as in TensorRT-LLM, one that does not fit waits for the next iteration. A request is
admitted when the cache has room for its prompt and its whole output, so that none is ever thrown out again (vLLM admits
earlier, and may have to). Iterations that only decode, between an end or an arrival and the next, are one event.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil

from onnxperf.ground.errors import UsageError, counted
from onnxperf.language.arrivals import Arrival

#: Seconds of an iteration: requests that decode, their mean context, new tokens of prompts, and what lies before these
#: on average, were they one sequence: less than nothing where several short ones attend to themselves alone.
Price = Callable[[int, float, int, float], float]
MAX_TOKENS = 50_000_000  # that are generated in a simulation: less than a minute


@dataclass(frozen=True, slots=True)
class Server:
    """running: requests that may be in the batch; cache_tokens: for which the cache has room; budget: new tokens of an
    iteration, of prompts and decode steps. mixed: prompts and decode steps share an iteration, else prompts go first;
    whole: a prompt is not divided unless it is longer than the budget. front_s: from the client to the scheduler and
    back, which is in every time to first token. ahead: an iteration is prepared while the one before it runs, so that
    what arrives meanwhile waits for the next but one. block: tokens of a block of the cache. width: tokens of
    each request that a decode step runs, with a draft those it proposed and one more; per_step: that it gives, on
    average.
    """

    running: int
    cache_tokens: int
    budget: int
    mixed: bool = True
    whole: bool = False
    front_s: float = 0.0
    ahead: bool = False
    block: int = 1
    width: int = 1
    per_step: float = 1.0

    def held(self, request: Served) -> int:
        """Tokens of the cache that are kept for a request: whole blocks for its prompt, its output and what a draft
        proposes beyond.
        """
        return -(-(request.arrival.prompt + request.arrival.output + self.width - 1) // self.block) * self.block

    def steps(self, request: Served) -> int:
        """Decode steps that a request takes: for each token behind the first one, or for `per_step` of them."""
        return ceil((request.arrival.output - 1) / self.per_step)


@dataclass(slots=True)
class Served:
    """A request and when, in seconds, its prompt was begun, its first token came, and its last; taken: tokens of its
    prompt that are in the cache.
    """

    arrival: Arrival
    start: float = 0.0
    first: float = 0.0
    end: float = 0.0
    taken: int = 0

    @property
    def waiting(self) -> float:
        """Seconds from when it was sent until its prompt was begun."""
        return self.start - self.arrival.seconds

    @property
    def to_first_token(self) -> float:
        """Seconds from when it was sent."""
        return self.first - self.arrival.seconds

    @property
    def each_token(self) -> float:
        """Mean seconds of each token behind the first; 0 where there is none."""
        return (self.end - self.first) / max(self.arrival.output - 1, 1)

    @property
    def latency(self) -> float:
        """Seconds from when it was sent to its last token."""
        return self.end - self.arrival.seconds


@dataclass(frozen=True, slots=True)
class Simulation:
    """Every request as it was served; seconds from the first arrival to the last token, and of iterations among them;
    the number of iterations, and the requests that decoded, and the tokens of prompts, in all of them. gaps: seconds
    between tokens of a request, each with how many tokens came so.
    """

    served: tuple[Served, ...]
    span: float
    busy: float
    iterations: int
    decoded: int
    prompted: int
    gaps: tuple[tuple[float, int], ...] = ()


@dataclass(slots=True)
class Running:
    """What runs: requests that wait and whose prompts are taken, those that decode by the iteration of their last token
    (`ends`, which `due` has in order), their number and the sum of their contexts; the cache's room.
    """

    server: Server
    room: int
    waiting: deque[Served] = field(default_factory=deque)
    prompts: deque[Served] = field(default_factory=deque)
    ends: defaultdict[int, list[Served]] = field(default_factory=lambda: defaultdict(list))
    due: list[int] = field(default_factory=list)
    iteration: int = 0  # in which requests decode
    decoding: int = 0
    context: float = 0

    def admit(self) -> None:
        """Let those that wait join, while there is room."""
        while self.admits():
            self.prompts.append(self.waiting.popleft())
            self.room -= self.server.held(self.prompts[-1])

    def admits(self) -> bool:
        """Whether the first of those that wait has room."""
        free = self.decoding + len(self.prompts) < self.server.running
        return free and bool(self.waiting) and self.room >= self.server.held(self.waiting[0])

    def begin(self, request: Served, now: float) -> None:
        """The first token of a request is there."""
        request.first = now
        self.join(request)

    def join(self, request: Served) -> None:
        """A request whose prompt is in the cache decodes from now on."""
        self.decoding, self.context = self.decoding + 1, self.context + request.arrival.prompt
        last = self.iteration + self.server.steps(request)
        self.ends[last].append(request)
        heapq.heappush(self.due, last)

    def finished(self, now: float) -> list[Served]:
        """Let those go that have their last token."""
        while self.due and self.due[0] <= self.iteration:
            heapq.heappop(self.due)
        gone = self.ends.pop(self.iteration, [])
        for request in gone:
            request.end = now
            self.room += self.server.held(request)
            self.decoding -= 1
            self.context -= request.arrival.prompt + self.server.steps(request) * self.server.per_step
        return gone


def simulate(arrivals: Sequence[Arrival], server: Server, price: Price, concurrency: int = 0) -> Simulation:
    """Serve requests, which arrive in order; or, with a concurrency, that many at first, and one as another ends.

    Raises UsageError where one can't ever be admitted, and for more than MAX_TOKENS.
    """
    check(arrivals, server)
    served = tuple(Served(a, taken=a.cached) for a in arrivals)
    b = Running(server, server.cache_tokens)
    sent = min(concurrency or len(served), len(served))  # whose arrival is known
    now, busy, coming = arrivals[0].seconds + server.front_s, 0.0, 0
    prepared = now  # the last moment at which who arrives may join the next iteration
    iterations = decoded = prompted = 0
    last: list[tuple[float, int]] = []  # when tokens were last given, and to how many requests that still decode
    gaps = defaultdict[float, int](int)
    while True:
        while coming < sent and served[coming].arrival.seconds + server.front_s <= prepared:
            b.waiting.append(served[coming])
            coming += 1
        b.admit()
        if not b.decoding and not b.prompts:
            if coming == sent:
                break
            now = prepared = max(now, served[coming].arrival.seconds + server.front_s)
            continue
        joined = b.decoding if server.mixed or not b.prompts else 0  # that decode in this iteration
        new, past, done = chunks(b.prompts, server.budget - joined * server.width, now, server.whole)
        steps, mean = 1, b.context / b.decoding if joined else 0.0
        if not new:
            free = not b.waiting and b.decoding < server.running and coming < sent
            until = served[coming].arrival.seconds + server.front_s - now if free else None
            steps = steps_until(b.due[0] - b.iteration, until, partial(price, joined), mean, server.per_step)
        each = price(joined, mean + (steps - 1) / 2 * server.per_step if joined else 0.0, new, past)
        now, busy, iterations = now + steps * each, busy + steps * each, iterations + steps
        prepared = now - each if server.ahead else now
        decoded, prompted = decoded + steps * joined, prompted + new
        if joined:
            b.iteration, b.context = b.iteration + steps, b.context + steps * joined * server.per_step
            gaps[each] += (steps - 1) * joined
            for before, n in last:
                gaps[now - (steps - 1) * each - before] += n
        for request in done:
            b.begin(request, now)
        for _ in b.finished(now) if joined or done else ():
            if concurrency and sent < len(served):
                served[sent].arrival = replace(served[sent].arrival, seconds=now)
                sent += 1
        last = [(now, b.decoding)] if joined else [*last, (now, sum(s.arrival.output > 1 for s in done))]
    return Simulation(served, now - arrivals[0].seconds, busy, iterations, decoded, prompted, tuple(gaps.items()))


def steps_until(
    most: int, until: float | None, price: Callable[[float, int, float], float], context: float, growth: float
) -> int:
    """Iterations that decode alone until the next end, `most` of them, or until the next arrival can be admitted, in
    `until` seconds: the fewest that take as long. Each adds `growth` to the mean context; price is of these requests.
    """
    if until is None or price(context, 0, 0.0) >= until:
        return most if until is None else 1
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if middle * price(context + (middle - 1) / 2 * growth, 0, 0.0) >= until:
            high = middle
        else:
            low = middle + 1
    return low


def together(simulations: Sequence[Simulation]) -> Simulation:
    """What several servers did at the same time, each with requests of its own."""
    served = tuple(s for simulation in simulations for s in simulation.served)
    span = max(s.end for s in served) - min(s.arrival.seconds for s in served)
    busy = sum(simulation.busy for simulation in simulations) / len(simulations)
    iterations, decoded, prompted = (
        sum(getattr(simulation, what) for simulation in simulations) for what in ("iterations", "decoded", "prompted")
    )
    return Simulation(served, span, busy, iterations, decoded, prompted, tuple(g for s in simulations for g in s.gaps))


def chunks(prompts: deque[Served], left: int, now: float, whole: bool = False) -> tuple[int, float, list[Served]]:
    """Take `left` tokens of prompts: how many new ones there are, what lies before them on average were they one
    sequence, and the requests whose prompt is complete, which leave the queue.

    A chunk of c tokens behind p attends to c p + c^2 / 2 positions, the one sequence of n tokens to n past + n^2 / 2.
    """
    new, seen, done = 0, 0.0, []
    while prompts and left > 0:
        request = prompts[0]
        chunk = min(left, request.arrival.prompt - request.taken)
        if whole and new and chunk < request.arrival.prompt - request.arrival.cached:
            break
        if request.taken == request.arrival.cached:
            request.start = now
        new, seen, left = new + chunk, seen + chunk * (request.taken + chunk / 2), left - chunk
        request.taken += chunk
        if request.taken == request.arrival.prompt:
            done.append(prompts.popleft())
    return new, seen / new - new / 2 if new else 0.0, done


def check(arrivals: Sequence[Arrival], server: Server, *, apart: bool = False) -> None:
    """Raise UsageError for requests that can't be served, or that are too many; apart: nothing decodes where prompts
    are taken.
    """
    longest = max(server.held(Served(a)) for a in arrivals)
    if longest > server.cache_tokens:
        room = f"the KV cache has room for {max(server.cache_tokens, 0):,}"
        raise UsageError(
            f"a request of {longest:,} tokens can't be served, {room}: use shorter requests or another card"
        )
    if not apart and server.budget <= server.running * server.width:
        why = f"each decode takes {counted(server.width, 'token')}, prefill the rest"
        raise UsageError(f"--chunk {server.budget} is too small for {server.running} concurrent requests: {why}")
    if (total := sum(a.output for a in arrivals)) > MAX_TOKENS:
        fewer = max(len(arrivals) * MAX_TOKENS // total, 1)
        raise UsageError(
            f"{total:,} tokens of output are too many to simulate, at most {MAX_TOKENS:,}: use --requests {fewer:,}, or"
            " shorter --output-lengths"
        )
