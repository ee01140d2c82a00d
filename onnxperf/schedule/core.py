"""The kernels of a run laid out in time, on all devices at once where that can be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from onnxperf.latency import Estimates
from onnxperf.latency.terms import Array
from onnxperf.lowering.lower import Kernels, Processor
from onnxperf.runtimes import HostCosts
from onnxperf.schedule.tasks import (
    COMM,
    COMPUTE,
    COPIES,
    COPY,
    EXCHANGE,
    HOST,
    STREAM,
    HostThread,
    Task,
    run_tasks,
    slowed_by,
)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The start of every kernel [n, g], and for the run [g]: its length, the critical path (the longest path through
    the kernels' DAG, with unlimited streams), and its lower bound: that path at speed-of-light bounds, or what all
    kernels together ask of DRAM or a unit, whichever takes longer.

    `streams` [n, g] names each kernel's stream on each device; `stalled_on` [n, g] says what each kernel waited for
    last, an index into STALLS. `shared_s` [n, g]: how much longer than alone an exchange takes that shares its links.
    `launch_s` and `launched_s` [n, g] are when the host began to launch each kernel, with the nodes that it passed
    before, and when it had launched all its repeats. All times are seconds from the moment at which the host enters the
    run.
    """

    start_s: Array
    launch_s: Array
    launched_s: Array
    total_s: Array
    critical_path_s: Array
    lower_bound_s: Array
    streams: Array
    stalled_on: Array
    shared_s: Array

    def only(self, columns: slice) -> Timeline:
        """That of some of the devices."""
        return Timeline(**{f.name: getattr(self, f.name)[..., columns] for f in fields(self)})


#: Of a device: seconds that its host takes to launch each kernel, and what else it does.
Host = tuple[Sequence[float], HostThread]


def schedule(
    kernels: Kernels,
    estimates: Estimates,
    costs: Sequence[HostCosts],
    cpus: Sequence[Processor],
    *,
    streams: int = 1,
    cuda_graph: bool = False,
) -> Timeline:
    """Lay the kernels out in time on every device.

    costs: what the host of each device [g] spends; cpus: which processor that is. streams: how many kernels may run at
    once. cuda_graph: all kernels are launched as a whole, and none waits for the host.
    """
    return laid_out(kernels, estimates, hosts(kernels, costs, cpus, cuda_graph), streams)


def hosts(
    kernels: Kernels, costs: Sequence[HostCosts], cpus: Sequence[Processor], cuda_graph: bool = False
) -> list[Host]:
    """What the host of each device does in a run, as in `schedule`."""
    each = [*zip(costs, cpus, strict=True)]
    paces = {pair: _host(kernels, *pair, cuda_graph) for pair in dict.fromkeys(each)}
    return [paces[pair] for pair in each]


def laid_out(kernels: Kernels, estimates: Estimates, hosts: Sequence[Host], streams: int = 1) -> Timeline:
    """The timeline of kernels on devices with these hosts. The devices can be those of several runs whose kernels are
    alike but for their sizes: of the kernels it takes no other.
    """
    n, g = estimates.seconds.shape
    paths = _paths(kernels, estimates)
    if streams == 1 and len({k.group for k in kernels.rows if k.communicates}) < 2:
        start, begun, launched, total, stalled_on = _in_line(kernels, estimates, hosts)
        none = np.zeros((n, g))
        return Timeline(start, begun, launched, total, *paths, _one_stream(kernels, g), stalled_on, none)
    start, stalled_on, total = np.zeros((n, g)), np.full((n, g), STREAM), np.zeros(g)
    launch, launched, shared = np.zeros((n, g)), np.zeros((n, g)), np.zeros((n, g))
    queues = np.full((n, g), COMPUTE, dtype="<U16")
    for j, (launches, host) in enumerate(hosts):
        placed, total[j] = run_tasks(_tasks(kernels, estimates, j, launches), host, streams)
        queues[:, j] = [p.stream for p in placed]
        start[:, j] = [p.start_s for p in placed]
        stalled_on[:, j] = [p.stalled_on for p in placed]
        launch[:, j], launched[:, j] = [p.launch_s for p in placed], [p.launched_s for p in placed]
        shared[:, j] = [p.shared_s for p in placed]
    return Timeline(start, launch, launched, total, *paths, queues, stalled_on, shared)


def added_up(kernels: Kernels, estimates: Estimates, costs: Sequence[HostCosts]) -> Timeline:
    """All kernels one after the other without gaps, launches or host: the timeline of methods that lay nothing out."""
    seconds = estimates.seconds
    n, g = seconds.shape
    end = np.cumsum(seconds, axis=0)
    total = end[-1] if n else np.array([c.run_s for c in costs])
    start = end - seconds  # and no host: each is launched when it starts
    paths, stalled_on = _paths(kernels, estimates), np.full((n, g), STREAM)
    return Timeline(start, start, start, total, *paths, _one_stream(kernels, g), stalled_on, np.zeros((n, g)))


def _one_stream(kernels: Kernels, g: int) -> Array:
    """The names [n, g] under which kernels and copies stand where they all run on one stream, but for exchanges."""
    names = [COPY if k.way else COMM if k.communicates else COMPUTE for k in kernels.rows]
    return np.repeat(np.array(names, dtype="<U16")[:, None], g, axis=1)


def _paths(kernels: Kernels, estimates: Estimates) -> tuple[Array, Array]:
    """The longest path through the kernels' DAG [g], and the run's lower bound."""
    seconds = np.stack([estimates.seconds, estimates.floor_s])
    finish, nothing = np.zeros_like(seconds), np.zeros((2, seconds.shape[2]))
    for i, k in enumerate(kernels.rows):  # rows come after what they wait for
        ready = nothing
        for a in k.after:
            ready = np.maximum(ready, finish[:, a])
        finish[:, i] = ready + seconds[:, i]
    critical, bound = finish.max(axis=1, initial=0.0)
    return critical, np.maximum(bound, estimates.least_s)


def _host(kernels: Kernels, costs: HostCosts, cpu: Processor, cuda_graph: bool) -> Host:
    """Seconds that the host takes to launch each kernel, and what else it does."""
    if cuda_graph:  # launched at once, and no kernel of it can make the host wait
        return [0.0] * len(kernels.rows), HostThread(costs.replay_s, 0.0, costs.sync_s, costs.replay_gap_s)
    launches, tail = kernels.host_seconds(costs, cpu)
    return launches, HostThread(costs.run_s, tail, costs.sync_s, costs.gap_s)


def _tasks(kernels: Kernels, e: Estimates, j: int, launches: Sequence[float]) -> list[Task]:
    """The kernels as tasks of device j. Where all exchanges are of one group, its stream needs no name of its own."""
    columns = zip(kernels.rows, launches, e.seconds[:, j].tolist(), e.occupancy[:, j].tolist(), strict=True)
    tasks = [Task(x, s, o, k.after, k.way, k.repeat, k.blocks, k.rank, k.communicates) for k, x, s, o in columns]
    exchanges = [i for i, k in enumerate(kernels.rows) if k.communicates]
    if len({kernels.rows[i].group for i in exchanges}) > 1:
        for i in exchanges:
            tasks[i] = tasks[i]._replace(group=kernels.rows[i].group, links=tuple(e.links[:, i, j].tolist()))
    return tasks


def _in_line(kernels: Kernels, estimates: Estimates, hosts: Sequence[Host]) -> tuple[Array, Array, Array, Array, Array]:
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
            seconds[i] += slowed_by(seconds[i], ready[at] - gap_s - start[i], estimates.occupancy[at])
        ready[i] = np.maximum(start[i] + seconds[i] + k.repeat * gap_s, clock + seconds[i] / k.repeat + gap_s)
        if k.blocks:
            clock = ready[i] - gap_s + k.repeat * sync_s
        clocks[k.rank], lasts[k.rank, k.communicates] = clock, i
    total = np.max([ready[last] - gap_s for last in lasts.values()] or [nothing], axis=0)
    total = np.maximum(total, np.max([*clocks.values()] or [start_s], axis=0) + tail_s) + sync_s
    stalled_on = np.where(start == launched, by_host, np.where(copied, COPIES, _on_exchange(kernels, start, ready)))
    return start, begun, done, total, stalled_on


def _on_exchange(kernels: Kernels, start: Array, ready: Array) -> Array:
    """EXCHANGE for kernels that start when an exchange is over, STREAM for others [n, g]."""
    stalled_on = np.full(start.shape, STREAM)
    for i, k in enumerate(kernels.rows):
        late = [a for a in k.after if kernels.rows[a].communicates]
        if late and not k.communicates:
            stalled_on[i] = np.where((ready[late] == start[i]).any(axis=0), EXCHANGE, STREAM)
    return stalled_on
