"""Prefill and decode on instances of their own, with the KV cache moved between them: two pools.

As DistServe (Zhong et al. 2024, arXiv:2401.09670) and Splitwise (Patel et al. 2024, arXiv:2311.18677) divide the work:
an instance of the first pool takes prompts only, and gives the first token; the keys and values of the prompt go to an
instance of the second, which takes decode steps only, and gives the others. All are alike, and each is what `llm`
predicts alone: nothing here is a run of its own. Requests go to the instances of a pool in turn.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

from gpu_specs import usual_cluster
from onnxperf.ground.codec import Document
from onnxperf.ground.errors import UsageError
from onnxperf.language.arrivals import Arrival
from onnxperf.language.service import Price, Running, Served, Server, Simulation, check, chunks, steps_until
from onnxperf.language.steps import Steps

MOST_INSTANCES = 1000  # of a pool


@dataclass(frozen=True, slots=True)
class Pools(Document):
    """How many instances take prompts, and how many decode; bytes_per_token, bytes_per_sample: what a GPU of the first
    sends for each token of a prompt, and for each prompt; link, link_bytes_per_second: over what, and at which rate.
    """

    prefill: int
    decode: int
    bytes_per_token: int = 0
    bytes_per_sample: int = 0
    link: str = ""
    link_bytes_per_second: float = 1.0

    @property
    def instances(self) -> int:
        """Of both."""
        return self.prefill + self.decode

    def moving(self, prompt: int) -> float:
        """Seconds until the cache of a prompt of so many tokens is in the other instance: bytes / link."""
        return (prompt * self.bytes_per_token + self.bytes_per_sample) / self.link_bytes_per_second


@dataclass(frozen=True, slots=True)
class Flow(Document):
    """What two pools do at a batch in the long run.

    transfer_seconds: of the caches of a batch, which the time per output token has a part of; requests_per_second: of
    all instances, as many as the slower pool, or the link, lets through; bound_by: "prefill", "decode" or "transfer";
    tokens_per_second_per_gpu: generated, by the GPUs of both; balance: instances that decode for each that takes
    prompts, were neither to wait.
    """

    transfer_seconds: float
    requests_per_second: float
    tokens_per_second_per_gpu: float
    bound_by: str
    balance: float


@dataclass(frozen=True, slots=True)
class Loads(Document):
    """What two pools did in a simulation: the share of the time in which an instance of each runs, the mean seconds of
    a transfer, and instances that decode for each that takes prompts, were neither to wait, at the mean batch.
    """

    prefill_utilisation: float
    decode_utilisation: float
    transfer_seconds: float
    balance: float


def parse_pools(asked: str | None) -> tuple[int, int] | None:
    """Instances that take prompts and that decode, from "1:2". Raises UsageError for another text."""
    if asked is None:
        return None
    match = re.fullmatch(r"\s*([1-9][0-9]{0,3})\s*:\s*([1-9][0-9]{0,3})\s*", asked) if isinstance(asked, str) else None
    sizes = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= min(sizes) <= max(sizes) <= MOST_INSTANCES:
        such = f"write instances for prefill : for decode, such as 1:2, each from 1 to {MOST_INSTANCES:,}"
        raise UsageError(f"--pools {asked!r:.60} is not valid: {such}")
    return sizes


def pools_of(steps: Steps, sizes: tuple[int, int], each: int) -> Pools:
    """Pools of instances, each of the GPUs of a plan; each: bytes of the cache of a token on one of them.

    A GPU sends its part to the one that has the same part there, over what joins so many GPUs as there are in all.
    """
    device, gpus = steps.device, sum(sizes) * steps.plan.gpus
    cluster = device.cluster or usual_cluster(device)
    link, rate = cluster.describe, cluster.link_Bps
    if gpus > cluster.gpus_per_node:
        link, rate = "a network as fast as PCIe", cluster.pcie_Bps
        if cluster.network_Bps:
            link, rate = f"the network of {cluster.name}", cluster.network_Bps
    elif gpus > cluster.linked:
        link, rate = "PCIe", cluster.pcie_Bps
    draft = steps.draft.resident.cache_bytes_per_token if steps.draft else 0
    return Pools(*sizes, each + draft, steps.state_bytes(), link, rate)


def flow(pools: Pools, batch: int, prompt: int, output: int, first_s: float, token_s: float, gpus: int) -> Flow:
    """Two pools in the long run, of a batch whose prompts take `first_s` and each further token `token_s`, on `gpus` an
    instance: an instance finishes batch / first_s prompts a second, or batch / (token_s (output - 1)) outputs.
    """
    decode_s, moved_s = token_s * (output - 1), batch * pools.moving(prompt)
    taken = {"prefill": first_s / pools.prefill, "decode": decode_s / pools.decode, "transfer": moved_s / pools.prefill}
    slowest = max(taken, key=lambda what: taken[what])
    rate = batch / taken[slowest]
    return Flow(moved_s, rate, output * rate / (pools.instances * gpus), slowest, decode_s / first_s)


def balanced(ratio: float) -> str:
    """Instances for prefill : for decode in small whole numbers, of how many of the second there are to each of the
    first.
    """
    if ratio <= 0:
        return "1:0"
    near = Fraction(max(ratio, 1 / ratio)).limit_denominator(2 if max(ratio, 1 / ratio) < 4 else 1)
    small, large = near.denominator, near.numerator
    return f"{small}:{large}" if ratio >= 1 else f"{large}:{small}"


@dataclass(slots=True)
class _Clock:
    """What is to happen, in order of time."""

    events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    count: int = 0

    def at(self, seconds: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (seconds, self.count, action))
        self.count += 1

    def run(self) -> None:
        while self.events:
            seconds, _, action = heapq.heappop(self.events)
            action(seconds)


@dataclass(slots=True)
class _Prefill:
    """An instance that takes prompts, and sends their caches one after the other; busy: seconds in which it runs."""

    clock: _Clock
    server: Server
    price: Price
    send: Callable[[Served, float], float]  # the request, when its link is free; until when that is busy
    queue: deque[Served] = field(default_factory=deque)
    running: bool = False
    link: float = 0.0
    busy: float = 0.0
    iterations: int = 0
    prompted: int = 0

    def arrive(self, request: Served, now: float) -> None:
        self.queue.append(request)
        if not self.running:
            self.running = True
            self.clock.at(now, self.go)

    def go(self, now: float) -> None:
        new, past, done = chunks(self.queue, self.server.budget, now, self.server.whole)
        self.running = new > 0
        if new:
            seconds = self.price(0, 0.0, new, past)
            self.busy, self.iterations, self.prompted = self.busy + seconds, self.iterations + 1, self.prompted + new
            self.clock.at(now + seconds, partial(self.finish, done))

    def finish(self, done: Sequence[Served], now: float) -> None:
        for request in done:
            request.first = now
            self.link = self.send(request, max(self.link, now))
        self.go(now)


@dataclass(slots=True)
class _Decode:
    """An instance that decodes: steps until a request ends are one event, which one that can join cuts short."""

    clock: _Clock
    server: Server
    price: Price
    end: Callable[[float], None]
    batch: Running
    gaps: defaultdict[float, int]
    joined: list[Served] = field(default_factory=list)
    running: bool = False
    began: float = 0.0
    steps: int = 0
    step_s: float = 0.0
    plan: int = 0
    busy: float = 0.0
    iterations: int = 0
    decoded: int = 0

    def arrive(self, request: Served, now: float) -> None:
        self.batch.waiting.append(request)
        if not self.running:
            self.running = True
            self.clock.at(now, self.go)
        elif self.steps > 1 and self.batch.admits():
            mean = self.batch.context / self.batch.decoding
            price = partial(self.price, self.batch.decoding)
            self.take(steps_until(self.steps, now - self.began, price, mean, self.server.per_step))

    def go(self, now: float) -> None:
        while self.batch.admits():
            request = self.batch.waiting.popleft()
            self.batch.room -= self.server.held(request)
            self.batch.join(request)
            self.joined.append(request)
        self.running = self.batch.decoding > 0
        if self.running:
            self.began, self.steps = now, 0
            self.take(self.batch.due[0] - self.batch.iteration)

    def take(self, steps: int) -> None:
        if steps == self.steps:
            return
        decoding, self.steps, self.plan = self.batch.decoding, steps, self.plan + 1
        mean = self.batch.context / decoding + (steps - 1) / 2 * self.server.per_step
        self.step_s = self.price(decoding, mean, 0, 0.0)
        self.clock.at(self.began + steps * self.step_s, partial(self.finish, self.plan))

    def finish(self, plan: int, now: float) -> None:
        if plan != self.plan:
            return  # another began since
        b, each, did = self.batch, self.step_s, self.steps * self.batch.decoding
        self.busy, self.iterations = self.busy + self.steps * each, self.iterations + self.steps
        self.decoded, b.iteration = self.decoded + did, b.iteration + self.steps
        b.context += did * self.server.per_step
        self.gaps[each] += did - len(self.joined)
        for request in self.joined:
            self.gaps[self.began + each - request.first] += 1
        self.joined.clear()
        for _ in b.finished(now):
            self.end(now)
        self.go(now)


def simulate_pools(
    arrivals: Sequence[Arrival], server: Server, price: Price, pools: Pools, groups: int = 1, concurrency: int = 0
) -> tuple[Simulation, Loads]:
    """Serve requests as `simulate` does, by two pools whose instances are `groups` servers each.

    Raises UsageError where one can't ever be admitted, and for more tokens than can be simulated.
    """
    check(arrivals, server, apart=True)
    served, clock = tuple(Served(a, taken=a.cached) for a in arrivals), _Clock()
    gaps = defaultdict[float, int](int)
    sent = min(concurrency or len(served), len(served))

    def start(k: int, seconds: float) -> None:
        request = served[k]
        request.arrival = replace(request.arrival, seconds=seconds)
        clock.at(seconds + server.front_s, partial(first[k % len(first)].arrive, request))

    def end(now: float) -> None:
        nonlocal sent
        if sent < len(served):
            start(sent, now)
            sent += 1

    turns = {id(request): k for k, request in enumerate(served)}

    def send(request: Served, free: float) -> float:
        if request.arrival.output == 1:
            request.end = request.first
            end(request.end)
            return free
        there = free + pools.moving(request.arrival.prompt)
        clock.at(there, partial(second[turns[id(request)] % len(second)].arrive, request))
        return there

    first = [_Prefill(clock, server, price, send) for _ in range(pools.prefill * groups)]
    second = [
        _Decode(clock, server, price, end, Running(server, server.cache_tokens), gaps)
        for _ in range(pools.decode * groups)
    ]
    for k in range(sent):
        start(k, served[k].arrival.seconds)
    clock.run()
    span = max(s.end for s in served) - arrivals[0].seconds
    taken, decoded = sum(i.busy for i in first), sum(i.busy for i in second)
    iterations = sum(i.iterations for i in second)
    simulation = Simulation(
        served, span, (taken + decoded) / (len(first) + len(second)), iterations, sum(i.decoded for i in second),
        sum(i.prompted for i in first), tuple(gaps.items()),
    )  # fmt: skip
    moved = sum(pools.moving(a.prompt) for a in arrivals if a.output > 1) / len(arrivals)
    loads = Loads(taken / len(first) / span, decoded / len(second) / span, moved, decoded / taken if taken else 0.0)
    return simulation, loads
