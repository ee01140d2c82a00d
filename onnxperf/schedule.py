"""When everything happens: a host thread that launches, streams that execute, and the paths through the DAG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxperf.latency import Estimates
from onnxperf.latency.bounds import Array
from onnxperf.lower import COMPUTE, COPY, Kernel, Kernels
from onnxperf.runtimes import HostCosts
from op_models import Transfer

#: What held a kernel back to its start: the stream (kernels before it, or results it reads), the host that had not
#: launched it yet, or copies between host and device.
STREAM, HOST, COPIES = range(3)
HELD_BY = ("stream", "host", "copies")


@dataclass(frozen=True, slots=True)
class Timeline:
    """Start and end of every kernel [n, g], and for the run [g]: its length, the longest path with unlimited
    streams, and that path at physical peak. `streams` names each kernel's stream on each device, `held` [n, g] says
    what held it back, an index into HELD_BY.

    All times are seconds from the moment the host enters the run.
    """

    start_s: Array
    end_s: Array
    total_s: Array
    critical_path_s: Array
    lower_bound_s: Array
    streams: Array
    held: Array


def schedule(
    kernels: Kernels,
    estimates: Estimates,
    host: HostCosts,
    *,
    method: str,
    streams: int = 1,
    cuda_graph: bool = False,
) -> Timeline:
    """Lay the kernels out in time.

    The host launches in order, and waits where it reads a result itself; a kernel starts when it has been launched,
    its stream is free and what it reads is there. With one stream that is a recurrence. With several, kernels run
    side by side as far as their shares of the card add up to one, and copies of each direction have an engine of
    their own. A kernel in a loop's body stands for all its repeats in a row. A CUDA graph is launched once. Methods
    without a schedule add kernels up.
    """
    seconds = estimates.seconds
    n, g = seconds.shape
    after = [k.after for k in kernels.rows]
    critical, least = _longest(after, seconds), _longest(after, estimates.floor_s)
    names = np.array([[k.stream] * g for k in kernels.rows], dtype="<U16").reshape(n, g)
    if method != "tile-wave":
        end = np.cumsum(seconds, axis=0)
        total = end[-1] if n else np.full(g, host.run_s)
        return Timeline(end - seconds, end, total, critical, least, names, np.full((n, g), STREAM))
    rows = kernels.rows
    if cuda_graph:  # launched at once, and no kernel of it can make the host wait
        rows = tuple(replace(k, host_s=0.0) for k in rows)
        first, tail, gap = host.replay_s, 0.0, host.replay_gap_s
    else:
        first, tail, gap = host.run_s, kernels.tail_s, host.gap_s
    start, held, done = np.zeros((n, g)), np.full((n, g), STREAM), np.zeros(g)
    now = np.full(g, first)  # the host's clock
    if streams == 1:
        free = np.zeros(g)
        for i, k in enumerate(rows):
            launched, now = now + k.host_s / k.repeat, now + k.host_s
            held[i] = np.where(launched > free, HOST, COPIES if i and rows[i - 1].stream == COPY else STREAM)
            if i and rows[i - 1].blocks and rows[i - 1].stream == COPY:  # the host was late because it waited for it
                held[i] = COPIES
            start[i] = np.maximum(free, launched)
            free = np.maximum(start[i] + seconds[i] + k.repeat * gap, now + seconds[i] / k.repeat + gap)
            if k.blocks:
                now = free - gap + k.repeat * host.sync_s
        done = free - gap
    else:
        for j in range(g):
            start[:, j], held[:, j], chosen, now[j], done[j] = _side_by_side(
                rows, seconds[:, j], estimates.share[:, j], first, host.sync_s, gap, streams
            )
            for i, stream in enumerate(chosen):
                if 0 < stream < streams:
                    names[i, j] = f"{COMPUTE}-{stream + 1}"
                elif stream > streams:
                    names[i, j] = f"{COPY}-2"
    end = start + seconds
    total = np.maximum(done, now + tail) + host.sync_s  # of repeated kernels, gaps and launches lie inside
    return Timeline(start, end, total, critical, least, names, held)


def _longest(after: list[tuple[int, ...]], seconds: Array) -> Array:
    """Length of the longest path through the kernels' DAG, [g]; rows come after what they wait for."""
    finish = np.zeros_like(seconds)
    for i, waits in enumerate(after):
        ready = finish[list(waits)].max(axis=0) if waits else 0.0
        finish[i] = ready + seconds[i]
    return finish.max(axis=0) if len(after) else np.zeros(seconds.shape[1])


def _side_by_side(
    rows: Sequence[Kernel], seconds: Array, share: Array, now: float, sync: float, gap: float, streams: int
) -> tuple[Array, Array, list[int], float, float]:
    """Start times on one device, what held each kernel back, its stream, the host's clock at the end, and the
    last kernel's end.

    In launch order, on the stream free first; behind the streams of kernels there is one for copies to the device
    and one for copies back. No kernel starts before the one launched before it, and none while the running ones leave
    it no room.
    """
    free, busy = [0.0] * (streams + 2), [0.0] * (streams + 2)
    start, held = np.zeros(len(rows)), np.full(len(rows), STREAM)
    ends: list[float] = []
    chosen: list[int] = []
    last = 0.0
    blocked = False
    for i, k in enumerate(rows):
        launched, now = now + k.host_s / k.repeat, now + k.host_s
        stream = min(range(streams), key=lambda s: free[s])
        if isinstance(k.work.size, Transfer):
            stream = streams + (k.work.size.way == "d2h")
        needed = max((ends[j] + gap for j in k.after), default=0.0)
        t = max(last, launched, free[stream], needed)
        while True:
            running = [s for s in range(streams + 2) if free[s] - gap > t]
            if not running or sum(busy[s] for s in running) + share[i] <= 1 + 1e-9:
                break
            t = min(free[s] - gap for s in running)
        start[i] = last = t
        if t == launched:
            held[i] = COPIES if blocked else HOST
        elif stream >= streams or (t == needed and any(rows[j].stream == COPY and ends[j] + gap == t for j in k.after)):
            held[i] = COPIES
        ends.append(max(t + float(seconds[i]) + (k.repeat - 1) * gap, now + float(seconds[i]) / k.repeat))
        free[stream], busy[stream] = ends[i] + gap, float(share[i])
        chosen.append(stream)
        blocked = k.blocks and k.stream == COPY
        if k.blocks:
            now = ends[i] + k.repeat * sync
    return start, held, chosen, now, max(ends, default=0.0)
