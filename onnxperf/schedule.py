"""When everything happens: a host thread that launches, streams that execute, and the paths through the DAG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxperf.latency import Estimates
from onnxperf.latency.bounds import Array
from onnxperf.lower import COMPUTE, COPY, Kernel, Kernels
from onnxperf.runtimes import HostCosts


@dataclass(frozen=True, slots=True)
class Timeline:
    """Start and end of every kernel [n, g], and for the run [g]: its length, the longest path with unlimited
    streams, and that path at physical peak. `streams` names each kernel's stream on each device; `late` says that
    a kernel waited for the host to launch it, while the card had nothing else to do for it.

    All times are seconds from the moment the host enters the run.
    """

    start_s: Array
    end_s: Array
    total_s: Array
    critical_path_s: Array
    lower_bound_s: Array
    streams: Array
    late: Array


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
    side by side as far as their shares of the card add up to one. A CUDA graph is launched once. Methods without a
    schedule add kernels up.
    """
    seconds = estimates.seconds
    n, g = seconds.shape
    after = [k.after for k in kernels.rows]
    critical, least = _longest(after, seconds), _longest(after, estimates.floor_s)
    names = np.array([[k.stream] * g for k in kernels.rows], dtype="<U16").reshape(n, g)
    if method != "tile-wave":
        end = np.cumsum(seconds, axis=0)
        total = end[-1] if n else np.full(g, host.run_s)
        return Timeline(end - seconds, end, total, critical, least, names, np.zeros((n, g), dtype=bool))
    rows = kernels.rows
    if cuda_graph:  # launched at once, and no kernel of it can make the host wait
        rows = tuple(replace(k, host_s=0.0) for k in rows)
        first, tail, gap = host.replay_s, 0.0, host.replay_gap_s
    else:
        first, tail, gap = host.run_s, kernels.tail_s, host.gap_s
    start, late = np.zeros((n, g)), np.zeros((n, g), dtype=bool)
    now = np.full(g, first)  # the host's clock
    if streams == 1:
        free = np.zeros(g)
        for i, k in enumerate(rows):
            now = now + k.host_s
            late[i] = now > free
            start[i] = np.maximum(free, now)
            free = start[i] + seconds[i] + gap
            if k.blocks:
                now = start[i] + seconds[i] + host.sync_s
    else:
        for j in range(g):
            start[:, j], late[:, j], chosen, now[j] = _side_by_side(
                rows, seconds[:, j], estimates.share[:, j], first, host.sync_s, gap, streams
            )
            for i, stream in enumerate(chosen):
                if 0 < stream < streams:
                    names[i, j] = f"{COMPUTE}-{stream + 1}"
    end = start + seconds
    total = np.maximum(end.max(axis=0, initial=0.0), now + tail) + host.sync_s
    return Timeline(start, end, total, critical, least, names, late)


def _longest(after: list[tuple[int, ...]], seconds: Array) -> Array:
    """Length of the longest path through the kernels' DAG, [g]; rows come after what they wait for."""
    finish = np.zeros_like(seconds)
    for i, waits in enumerate(after):
        ready = finish[list(waits)].max(axis=0) if waits else 0.0
        finish[i] = ready + seconds[i]
    return finish.max(axis=0) if len(after) else np.zeros(seconds.shape[1])


def _side_by_side(
    rows: Sequence[Kernel], seconds: Array, share: Array, now: float, sync: float, gap: float, streams: int
) -> tuple[Array, Array, list[int], float]:
    """Start times on one device, who was launched late, each kernel's stream, and the host's clock at the end.

    In launch order, on the stream free first; copies have a stream of their own behind the others. No kernel starts
    before the one launched before it, and none while the running ones leave it no room.
    """
    free, busy = [0.0] * (streams + 1), [0.0] * (streams + 1)
    start, late = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
    chosen: list[int] = []
    last = 0.0
    for i, k in enumerate(rows):
        now += k.host_s
        stream = streams if k.stream == COPY else min(range(streams), key=lambda s: free[s])
        t = max(last, now, free[stream], *(float(start[j] + seconds[j]) + gap for j in k.after))
        while True:
            running = [s for s in range(streams + 1) if free[s] - gap > t]
            if not running or sum(busy[s] for s in running) + share[i] <= 1 + 1e-9:
                break
            t = min(free[s] - gap for s in running)
        start[i] = last = t
        late[i] = t == now
        end = t + float(seconds[i])
        free[stream], busy[stream] = end + gap, float(share[i])
        chosen.append(stream)
        if k.blocks:
            now = end + sync
    return start, late, chosen, now
