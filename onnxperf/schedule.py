"""When everything happens: a host thread that launches, streams that execute, and the paths through the DAG."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxperf.latency import Estimates
from onnxperf.latency.bounds import Array
from onnxperf.lower import COMPUTE, Kernels
from onnxperf.runtimes import HostCosts


@dataclass(frozen=True, slots=True)
class Timeline:
    """Start and end of every kernel [n, g], and for the run [g]: its length, the longest path with unlimited
    streams, and that path at physical peak. `streams` names each kernel's stream on each device.

    All times are seconds from the moment the host enters the run.
    """

    start_s: Array
    end_s: Array
    total_s: Array
    critical_path_s: Array
    lower_bound_s: Array
    streams: Array


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

    The host launches in order; a kernel starts when it has been launched, its stream is free and what it reads is
    there. With one stream that is a recurrence. With several, kernels run side by side as far as their shares of
    the card add up to one. A CUDA graph is launched once. Methods without a schedule add kernels up.
    """
    seconds = estimates.seconds
    n, g = seconds.shape
    after = [k.after for k in kernels.rows]
    critical, least = _longest(after, seconds), _longest(after, estimates.floor_s)
    names = np.array([[k.stream] * g for k in kernels.rows], dtype="<U16").reshape(n, g)
    if method != "tile-wave":
        end = np.cumsum(seconds, axis=0)
        total = end[-1] if n else np.zeros(g)
        return Timeline(end - seconds, end, np.maximum(total, host.run_s), critical, least, names)
    if cuda_graph:
        launched, done = np.full(n, host.replay_s), host.replay_s
        gap = host.replay_gap_s
    else:
        launched = host.run_s + np.cumsum([k.host_s for k in kernels.rows]) if n else np.zeros(0)
        done = (float(launched[-1]) if n else host.run_s) + kernels.tail_s
        gap = host.gap_s
    if streams == 1:
        start = np.zeros((n, g))
        free = np.zeros(g)
        for i in range(n):
            start[i] = np.maximum(free, launched[i])
            free = start[i] + seconds[i] + gap
    else:
        start = np.zeros((n, g))
        for j in range(g):
            start[:, j], chosen = _side_by_side(after, seconds[:, j], estimates.share[:, j], launched, gap, streams)
            for i, k in enumerate(kernels.rows):
                if k.stream == COMPUTE and chosen[i]:
                    names[i, j] = f"{COMPUTE}-{chosen[i] + 1}"
    end = start + seconds
    total = np.maximum(end.max(axis=0) if n else np.zeros(g), done) + host.sync_s
    return Timeline(start, end, total, critical, least, names)


def _longest(after: list[tuple[int, ...]], seconds: Array) -> Array:
    """Length of the longest path through the kernels' DAG, [g]; rows come after what they wait for."""
    finish = np.zeros_like(seconds)
    for i, waits in enumerate(after):
        ready = finish[list(waits)].max(axis=0) if waits else 0.0
        finish[i] = ready + seconds[i]
    return finish.max(axis=0) if len(after) else np.zeros(seconds.shape[1])


def _side_by_side(
    after: list[tuple[int, ...]], seconds: Array, share: Array, launched: Array, gap: float, streams: int
) -> tuple[Array, list[int]]:
    """Start times on one device and the stream of each kernel: in launch order, on the stream free first.

    No kernel starts before the one launched before it, and none while the running ones leave it no room.
    """
    free = [0.0] * streams
    busy = [0.0] * streams
    start = np.zeros(len(after))
    chosen: list[int] = []
    last = 0.0
    for i, waits in enumerate(after):
        stream = min(range(streams), key=lambda s: free[s])
        t = max(last, float(launched[i]), free[stream], *(float(start[k] + seconds[k]) + gap for k in waits))
        while True:
            running = [s for s in range(streams) if free[s] - gap > t]
            if not running or sum(busy[s] for s in running) + share[i] <= 1 + 1e-9:
                break
            t = min(free[s] - gap for s in running)
        start[i] = last = t
        free[stream] = t + float(seconds[i]) + gap
        busy[stream] = float(share[i])
        chosen.append(stream)
    return start, chosen
