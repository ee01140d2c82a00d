"""When everything happens: a host thread that launches kernels, and the streams and copy engines that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpu_specs import Host
from onnxperf.latency import Estimates
from onnxperf.latency.terms import Array
from onnxperf.lower import TO_DEVICE, TO_HOST, Kernels
from onnxperf.runtimes import HostCosts

COMPUTE, COPY, COMM = "compute", "copy", "comm"  # names of streams; the last one exchanges data with other GPUs
#: What a kernel waited for last before it started: the kernels before it on its stream or whose results it reads,
#: the host that had not launched it yet, copies between host and device, or an exchange with other GPUs.
STREAM, HOST, COPIES, EXCHANGE = range(4)
STALLS = ("stream", "host", "copies", "communication")


@dataclass(frozen=True, slots=True)
class Timeline:
    """The start of every kernel [n, g], and for the run [g]: its length, the critical path (the longest path through
    the kernels' DAG, with unlimited streams), and its lower bound: that path at speed-of-light bounds, or what all
    kernels together ask of DRAM or a unit, whichever takes longer.

    `streams` [n, g] names each kernel's stream on each device; `stalled_on` [n, g] says what each kernel waited for
    last, an index into STALLS. `launch_s` and `launched_s` [n, g] are when the host began to launch each kernel, with
    the nodes that it passed before, and when it had launched all its repeats. All times are seconds from the moment at
    which the host enters the run.
    """

    start_s: Array
    launch_s: Array
    launched_s: Array
    total_s: Array
    critical_path_s: Array
    lower_bound_s: Array
    streams: Array
    stalled_on: Array


def schedule(
    kernels: Kernels,
    estimates: Estimates,
    costs: Sequence[HostCosts],
    cpus: Sequence[Host],
    *,
    streams: int = 1,
    cuda_graph: bool = False,
) -> Timeline:
    """Lay the kernels out in time on every device.

    costs: what the host of each device [g] spends; cpus: which processor that is. streams: how many kernels may run at
    once. cuda_graph: all kernels are launched as a whole, and none waits for the host.
    """
    n, g = estimates.seconds.shape
    each = [*zip(costs, cpus, strict=True)]
    made = {pair: _host(kernels, *pair, cuda_graph) for pair in dict.fromkeys(each)}
    hosts, paths = [made[pair] for pair in each], _paths(kernels, estimates)
    if streams == 1:
        start, begun, launched, total, stalled_on = _in_line(kernels, estimates, hosts)
        return Timeline(start, begun, launched, total, *paths, _one_stream(kernels, g), stalled_on)
    start, stalled_on, total = np.zeros((n, g)), np.full((n, g), STREAM), np.zeros(g)
    launch, launched = np.zeros((n, g)), np.zeros((n, g))
    queues = np.full((n, g), COMPUTE, dtype="<U16")
    for j, (launches, host) in enumerate(hosts):
        placed, total[j] = run_tasks(_tasks(kernels, estimates, j, launches), host, streams)
        queues[:, j] = [p.stream for p in placed]
        start[:, j] = [p.start_s for p in placed]
        stalled_on[:, j] = [p.stalled_on for p in placed]
        launch[:, j], launched[:, j] = [p.launch_s for p in placed], [p.launched_s for p in placed]
    return Timeline(start, launch, launched, total, *paths, queues, stalled_on)


def added_up(kernels: Kernels, estimates: Estimates, costs: Sequence[HostCosts]) -> Timeline:
    """All kernels one after the other without gaps, launches or host: the timeline of methods that lay nothing out."""
    seconds = estimates.seconds
    n, g = seconds.shape
    end = np.cumsum(seconds, axis=0)
    total = end[-1] if n else np.array([c.run_s for c in costs])
    start = end - seconds  # and no host: each is launched when it starts
    paths, stalled_on = _paths(kernels, estimates), np.full((n, g), STREAM)
    return Timeline(start, start, start, total, *paths, _one_stream(kernels, g), stalled_on)


def _one_stream(kernels: Kernels, g: int) -> Array:
    """The names [n, g] under which kernels and copies stand where they all run on one stream, but for exchanges."""
    names = [COPY if k.way else COMM if k.communicates else COMPUTE for k in kernels.rows]
    return np.array([[name] * g for name in names], dtype="<U16").reshape(-1, g)


def _paths(kernels: Kernels, estimates: Estimates) -> tuple[Array, Array]:
    """The longest path through the kernels' DAG [g], and the run's lower bound."""
    seconds = np.stack([estimates.seconds, estimates.floor_s])
    finish = np.zeros_like(seconds)
    for i, k in enumerate(kernels.rows):  # rows come after what they wait for
        ready = finish[:, list(k.after)].max(axis=1) if k.after else 0.0
        finish[:, i] = ready + seconds[:, i]
    critical, bound = finish.max(axis=1, initial=0.0)
    return critical, np.maximum(bound, estimates.least_s)


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
    ""; blocks: the host waits for its end; rank: the process that launches it; communicates: it runs on COMM.
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


class Placed(NamedTuple):
    """Where and when a task runs, what it waited for last, of STALLS, and from when to when the host launched it."""

    stream: str
    start_s: float
    stalled_on: int
    launch_s: float
    launched_s: float


def _host(kernels: Kernels, costs: HostCosts, cpu: Host, cuda_graph: bool) -> tuple[list[float], HostThread]:
    """Seconds that the host takes to launch each kernel, and what else it does."""
    if cuda_graph:  # launched at once, and no kernel of it can make the host wait
        return [0.0] * len(kernels.rows), HostThread(costs.replay_s, 0.0, costs.sync_s, costs.replay_gap_s)
    launches, tail = kernels.host_seconds(costs, cpu)
    return launches, HostThread(costs.run_s, tail, costs.sync_s, costs.gap_s)


def _tasks(kernels: Kernels, e: Estimates, j: int, launches: list[float]) -> list[Task]:
    """The kernels as tasks of device j."""
    columns = zip(kernels.rows, launches, e.seconds[:, j].tolist(), e.occupancy[:, j].tolist(), strict=True)
    return [Task(x, s, o, k.after, k.way, k.repeat, k.blocks, k.rank, k.communicates) for k, x, s, o in columns]


def _in_line(
    kernels: Kernels, estimates: Estimates, hosts: Sequence[tuple[list[float], HostThread]]
) -> tuple[Array, Array, Array, Array, Array]:
    """What `run_tasks` makes of one stream, for all devices at once: when each kernel starts, when its launches begin
    and when they are done [n, g], the end of the run [g], and what each kernel waited for [n, g].
    """
    n, g = estimates.seconds.shape
    seconds = estimates.seconds.copy()
    start_s, tail_s, sync_s, gap_s = np.array([thread for _, thread in hosts], dtype=float).T
    launch_s = np.array([each for each, _ in hosts], dtype=float).T.reshape(n, g)
    start, launched, copied = np.zeros((n, g)), np.zeros((n, g)), np.zeros((n, g), dtype=bool)
    begun, done = np.zeros((n, g)), np.zeros((n, g))
    by_host, ready, nothing = np.full((n, 1), HOST), np.zeros((n, g)), np.zeros(g)
    clocks: dict[int, Array] = {}  # of the host of each rank
    lasts: dict[tuple[int, bool], int] = {}  # the kernel that was launched last on each stream
    for i, k in enumerate(kernels.rows):
        clock, last = clocks.get(k.rank, start_s), lasts.get((k.rank, k.communicates), -1)
        launched[i], begun[i], clock = clock + launch_s[i] / k.repeat, clock, clock + launch_s[i]
        done[i] = clock
        start[i] = np.maximum(launched[i], ready[last] if last >= 0 else nothing)
        for a in k.after:
            np.maximum(start[i], ready[a], out=start[i])
        copies = [a for a in (*k.after, last) if a >= 0 and kernels.rows[a].way]
        if copies:
            copied[i] = (ready[copies] == start[i]).any(axis=0)
            if last in copies and kernels.rows[last].blocks:
                by_host[i] = COPIES
        if (k.rank, True) in lasts and not (k.communicates or k.way):
            at = lasts[k.rank, True]
            seconds[i] += _delay(seconds[i], ready[at] - gap_s - start[i], estimates.occupancy[at])
        ready[i] = np.maximum(start[i] + seconds[i] + k.repeat * gap_s, clock + seconds[i] / k.repeat + gap_s)
        if k.blocks:
            clock = ready[i] - gap_s + k.repeat * sync_s
        clocks[k.rank], lasts[k.rank, k.communicates] = clock, i
    total = np.max([ready[last] - gap_s for last in lasts.values()] or [nothing], axis=0)
    total = np.maximum(total, np.max([*clocks.values()] or [start_s], axis=0) + tail_s) + sync_s
    stalled_on = np.where(start == launched, by_host, np.where(copied, COPIES, _on_exchange(kernels, start, ready)))
    return start, begun, done, total, stalled_on


def _delay(seconds: Array | float, beside_s: Array | float, taken: Array | float) -> Array:
    """How much longer a kernel takes that an exchange leaves less of the device for its next `beside_s` seconds.

    seconds: of the kernel alone; taken: the share of the device's SMs on which the exchange runs.
    """
    slowed_s = seconds / np.maximum(1.0 - taken, 1e-9)  # were the exchange to go on to its end
    return np.asarray(taken * np.clip(beside_s, 0.0, slowed_s))


def _on_exchange(kernels: Kernels, start: Array, ready: Array) -> Array:
    """EXCHANGE for kernels that start when an exchange is over, STREAM for others [n, g]."""
    stalled_on = np.full(start.shape, STREAM)
    for i, k in enumerate(kernels.rows):
        late = [a for a in k.after if kernels.rows[a].communicates]
        if late and not k.communicates:
            stalled_on[i] = np.where((ready[late] == start[i]).any(axis=0), EXCHANGE, STREAM)
    return stalled_on


#: The names of the copy engines, by the direction of copies.
_ENGINES = {TO_DEVICE: COPY, TO_HOST: f"{COPY}-2"}


@dataclass(slots=True)
class _Queue:
    """A stream or a copy engine: its tasks run one after the other, in the order in which they were launched.

    free_s: when it can start another task, the gap after its last one included; last: that task, None before the first.
    """

    name: str
    free_s: float = 0.0
    last: Task | None = None


class _Rank:
    """One process: its host thread's clock, its streams, and its copy engines.

    With one stream there are no engines: copies run on it, too. queues: the streams and engines, which can be busy at
    once; last: the task that was launched last; last_start_s: its start.
    """

    def __init__(self, host: HostThread, streams: int):
        self.clock_s = host.start_s
        self.streams = [_Queue(COMPUTE if i == 0 else f"{COMPUTE}-{i + 1}") for i in range(streams)]
        self.engines = {} if streams == 1 else {way: _Queue(name) for way, name in _ENGINES.items()}
        self.queues = (*self.streams, *self.engines.values())
        self.comm = _Queue(COMM)
        self.last_start_s = 0.0
        self.last: Task | None = None

    def queue_of(self, task: Task) -> _Queue:
        """The stream of exchanges, the copy engine of a copy's direction, or the stream that is free first."""
        if task.communicates:
            return self.comm
        return self.engines.get(task.way) or min(self.streams, key=lambda q: q.free_s)


def run_tasks(tasks: Sequence[Task], host: HostThread, streams: int = 1) -> tuple[list[Placed], float]:
    """Start every task when it is launched, its queue is free, what it reads is there, and the device has room.

    Returns where each task runs, and when the host knows that the last one has ended.

    tasks: in launch order, each after those that it waits for. The host thread of each rank launches its tasks in
    order, and waits for the end of a task that blocks. With one stream, copies and kernels run on it one after the
    other. With several, each direction of copies has an engine of its own, tasks start in the order in which they were
    launched, and they overlap as far as their occupancies add up to one. A task that stands for repeats starts when the
    first of them is launched, and ends no sooner than one repeat after the last launch.
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
        seconds = task.seconds
        if rank.comm.last is not None and not (task.communicates or task.way):
            seconds += float(_delay(task.seconds, rank.comm.free_s - gap - start, rank.comm.last.occupancy))
        end = max(start + seconds + task.repeat * gap, rank.clock_s + seconds / task.repeat + gap)
        queue.free_s, queue.last = end, task
        if task.blocks:
            rank.clock_s = end - gap + task.repeat * host.sync_s
        if not task.communicates:
            rank.last_start_s, rank.last = start, task
        ready.append(end)
        stream = COPY if task.way and not rank.engines else queue.name
        placed.append(Placed(stream, start, stalled_on, launch, all_launched))
    last = max((q.free_s - gap for r in ranks.values() for q in (*r.queues, r.comm)), default=0.0)
    clock = max((r.clock_s for r in ranks.values()), default=host.start_s)
    return placed, max(last, clock + host.tail_s) + host.sync_s


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
