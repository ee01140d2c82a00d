"""Tasks on the streams and copy engines of one device: when each starts, and what it waits for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from typing import NamedTuple

import numpy as np

from onnxperf.latency.terms import Array
from onnxperf.lowering.lower import TO_DEVICE, TO_HOST

COMPUTE, COPY, COMM = "compute", "copy", "comm"  # names of streams; on the last, GPUs exchange data
#: What a kernel waited for last before it started: the kernels before it on its stream or whose results it reads,
#: the host that had not launched it yet, copies between host and device, or an exchange with other GPUs.
STREAM, HOST, COPIES, EXCHANGE = range(4)
STALLS = ("stream", "host", "copies", "communication")


class HostThread(NamedTuple):
    """Seconds that the host thread spends outside launches: at the start of a run, after the last launch (tail), and
    in every wait for the device (sync). gap_s: between two kernels on a stream.
    """

    start_s: float
    tail_s: float
    sync_s: float
    gap_s: float


class Task(NamedTuple):
    """A kernel or a copy on one device.

    launch_s: host seconds until all its repeats are launched; seconds: of all its repeats; occupancy: the share of the
    device that one of them takes; after: indices of earlier tasks that it waits for; way: the direction of a copy, or
    ""; blocks: the host waits for its end; rank: the process that launches it; communicates: it is an exchange, on the
    stream of its group; links: the share of each link that it takes while it runs.
    """

    launch_s: float
    seconds: float
    occupancy: float
    after: tuple[int, ...] = ()
    way: str = ""
    repeat: int = 1
    blocks: bool = False
    rank: int = 0
    communicates: bool = False
    group: str = ""
    links: tuple[float, ...] = ()


class Placed(NamedTuple):
    """Where and when a task runs, what it waited for last, of STALLS, from when to when the host launched it, and how
    much longer it takes for others that use its links.
    """

    stream: str
    start_s: float
    stalled_on: int
    launch_s: float
    launched_s: float
    shared_s: float = 0.0


def slowed_by(seconds: Array | float, beside_s: Array | float, taken: Array | float) -> Array:
    """How much longer a kernel takes that an exchange leaves less of the device for its next `beside_s` seconds.

    seconds: of the kernel alone; taken: the share of the device's SMs on which the exchange runs.
    """
    slowed_s = seconds / np.maximum(1.0 - taken, 1e-9)  # were the exchange to go on to its end
    return np.asarray(taken * np.clip(beside_s, 0.0, slowed_s))


#: The names of the copy engines, by the direction of copies.
_ENGINES = {TO_DEVICE: COPY, TO_HOST: f"{COPY}-2"}


class _Piece(NamedTuple):
    """A time in which an exchange goes on, and the share of each link that it takes then."""

    begin_s: float
    end_s: float
    links: tuple[float, ...]


@dataclass(slots=True)
class _Queue:
    """A stream or a copy engine: its tasks run one after the other, in the order in which they were launched.

    free_s: when it can start another task, the gap after its last one included; last: that task, None before the first;
    pieces: when it uses links.
    """

    name: str
    free_s: float = 0.0
    last: Task | None = None
    pieces: list[_Piece] = field(default_factory=list)


class _Rank:
    """One process: its host thread's clock, its streams, and its copy engines.

    With one stream there are no engines: copies run on it, too. queues: the streams and engines, which can be busy at
    once; groups: the streams of exchanges; last: the task that was launched last; last_start_s: its start.
    """

    def __init__(self, host: HostThread, streams: int):
        self.clock_s = host.start_s
        self.streams = [_Queue(COMPUTE if i == 0 else f"{COMPUTE}-{i + 1}") for i in range(streams)]
        self.engines = {} if streams == 1 else {way: _Queue(name) for way, name in _ENGINES.items()}
        self.queues = (*self.streams, *self.engines.values())
        self.groups: dict[str, _Queue] = {}
        self.last_start_s = 0.0
        self.last: Task | None = None

    def queue_of(self, task: Task) -> _Queue:
        """The stream of an exchange's group, the engine of a copy's direction, or the stream that is free first."""
        if task.communicates:
            return self.groups.setdefault(task.group, _Queue(f"{COMM}-{task.group}" if task.group else COMM))
        return self.engines.get(task.way) or min(self.streams, key=lambda q: q.free_s)


def run_tasks(tasks: Sequence[Task], host: HostThread, streams: int = 1) -> tuple[list[Placed], float]:
    """Start every task when it is launched, its queue is free, what it reads is there, and the device has room.

    Returns where each task runs, and when the host knows that the last one has ended.

    tasks: in launch order, each after those that it waits for. The host thread of each rank launches its tasks in
    order, and waits for the end of a task that blocks. With one stream, copies and kernels run on it one after the
    other. With several, each direction of copies has an engine of its own, tasks start in the order in which they were
    launched, and they overlap as far as their occupancies add up to one. Exchanges of different groups run side by side
    and share links: those that are launched first take what they need, others what is left. A task that stands for
    repeats starts when the first of them is launched, and ends no sooner than one repeat after the last launch.
    """
    ranks: dict[int, _Rank] = {}
    ready: list[float] = []  # when the results of each task can be read, the gap after it included
    placed: list[Placed] = []
    gap = host.gap_s
    for task in tasks:
        rank = ranks.setdefault(task.rank, _Rank(host, streams))
        launch, launched = rank.clock_s, rank.clock_s + task.launch_s / task.repeat
        rank.clock_s = all_launched = launch + task.launch_s
        queue = rank.queue_of(task)
        inputs_ready = max((ready[i] for i in task.after), default=0.0)
        start = max(launched, queue.free_s, inputs_ready, 0.0 if task.communicates else rank.last_start_s)
        if streams > 1 and not task.communicates:
            start = _with_room(start, task.occupancy, rank.queues, gap)
        after_copy = any(tasks[i].way and ready[i] == start for i in task.after)
        after_copy |= queue.last is not None and queue.last.way != "" and start == queue.free_s
        stalled_on = _stall(task, start == launched, after_copy, rank)
        if stalled_on == STREAM and any(tasks[i].communicates and ready[i] == start for i in task.after):
            stalled_on = STREAM if task.communicates else EXCHANGE
        seconds = _beside_exchanges(task, start, rank.groups.values(), queue, gap)
        end = max(start + seconds + task.repeat * gap, rank.clock_s + seconds / task.repeat + gap)
        queue.free_s, queue.last = end, task
        if task.blocks:
            rank.clock_s = end - gap + task.repeat * host.sync_s
        if not task.communicates:
            rank.last_start_s, rank.last = start, task
        ready.append(end)
        stream = COPY if task.way and not rank.engines else queue.name
        shared = seconds - task.seconds if task.communicates else 0.0
        placed.append(Placed(stream, start, stalled_on, launch, all_launched, shared))
    last = max((q.free_s - gap for r in ranks.values() for q in (*r.queues, *r.groups.values())), default=0.0)
    clock = max((r.clock_s for r in ranks.values()), default=host.start_s)
    return placed, max(last, clock + host.tail_s) + host.sync_s


def _beside_exchanges(task: Task, start: float, groups: Collection[_Queue], queue: _Queue, gap: float) -> float:
    """Seconds that a task takes from its start: a kernel with the SMs that exchanges leave it, an exchange on links."""
    if task.communicates:
        return _on_links(task, start, [q for q in groups if q is not queue], queue)
    seconds = task.seconds
    for q in groups if not task.way else ():
        if q.last is not None:
            seconds += float(slowed_by(seconds, q.free_s - gap - start, q.last.occupancy))
    return seconds


def _on_links(task: Task, start: float, others: Sequence[_Queue], queue: _Queue) -> float:
    """Seconds that an exchange takes from its start, in pieces: at each moment it has of every link at most what the
    exchanges that were launched before it leave.
    """
    beside = [p for q in others for p in takewhile(lambda p: p.end_s > start, reversed(q.pieces))]
    now, left, taken_s = start, task.seconds, 0.0
    for until in (*sorted({t for p in beside for t in (p.begin_s, p.end_s) if t > start}), inf):
        used = [p.links for p in beside if p.begin_s <= now < p.end_s]
        free = [1.0 - sum(links) for links in zip(*used, strict=True)] or [1.0] * len(task.links)
        rate = max(0.0, min([1.0, *(room / x for room, x in zip(free, task.links, strict=True) if x > 0)]))
        done = rate > 0 and left <= rate * (until - now)
        piece_s = left / rate if done else until - now
        queue.pieces.append(_Piece(now, now + piece_s, tuple(rate * x for x in task.links)))
        taken_s, left, now = taken_s + piece_s, left - rate * piece_s, until
        if done:
            break
    return taken_s


def _with_room(start: float, occupancy: float, queues: Sequence[_Queue], gap: float) -> float:
    """The first moment from `start` on at which the tasks that still run leave this one room."""
    while running := [(q.free_s - gap, q.last.occupancy) for q in queues if q.last and q.free_s - gap > start]:
        if sum(taken for _, taken in running) + occupancy <= 1 + 1e-9:
            break
        start = min(end for end, _ in running)
    return start


def _stall(task: Task, just_launched: bool, after_copy: bool, rank: _Rank) -> int:
    """What a task waited for last, of STALLS.

    just_launched: it started as soon as the host had launched it; then it waited for the host, or for copies if the
    host itself was waiting for one. after_copy: it started when a copy ended.
    """
    if just_launched:
        return COPIES if rank.last is not None and rank.last.blocks and rank.last.way else HOST
    return COPIES if after_copy or (task.way and rank.engines) else STREAM
