"""Clocks: how long a run takes by the device's own clock, and by the wall's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from onnxperf.errors import EnvironmentFailure
from onnxperf.measure.record import Copies

COPIES = 20  # each way is timed so often


Run = Callable[[], None]


class ThreadClock:
    """The time that the calling thread spent on a processor; for sessions of one thread, which does all the work."""

    name = "processor time of the one thread"

    def timed(self, run: Run) -> tuple[float, float]:
        """Seconds of one run: by this clock, and by the wall's."""
        wall, own = time.perf_counter(), time.thread_time()
        run()
        own, wall = time.thread_time() - own, time.perf_counter() - wall
        return own, wall

    def streak(self, run: Run, seconds: float) -> tuple[int, float]:
        """Runs back to back for about so many seconds: how many, and how long they took by this clock."""
        runs, start = 0, time.thread_time()
        while not runs or time.thread_time() - start < seconds:
            run()
            runs += 1
        return runs, time.thread_time() - start


class CudaClock:
    """CUDA events around a run, on the stream that the session computes on. rt: `cuda.bindings.runtime`.

    A run only has to launch its kernels; their end is waited for here. Raises EnvironmentFailure where CUDA fails.
    """

    name = "CUDA events on the session's stream"

    def __init__(self, rt: Any):
        self.rt = rt
        check(rt, rt.cudaSetDevice(0))
        self.stream = check(rt, rt.cudaStreamCreate())
        self.start, self.stop = (check(rt, rt.cudaEventCreate()) for _ in range(2))

    def timed(self, run: Run) -> tuple[float, float]:
        """Seconds of one run: between the events, and by the wall's clock."""
        rt = self.rt
        wall = time.perf_counter()
        check(rt, rt.cudaEventRecord(self.start, self.stream))
        run()
        check(rt, rt.cudaEventRecord(self.stop, self.stream))
        check(rt, rt.cudaEventSynchronize(self.stop))
        wall = time.perf_counter() - wall
        return check(rt, rt.cudaEventElapsedTime(self.start, self.stop)) * 1e-3, wall

    def streak(self, run: Run, seconds: float) -> tuple[int, float]:
        """Runs back to back for about so many seconds: how many, and how long they took by this clock.

        All are launched ahead of the device, as many as are expected to fill the time.
        """
        once = max(self.timed(run)[0], 1e-6)
        runs = max(round(seconds / once), 1)

        def several() -> None:
            for _ in range(runs):
                run()

        return runs, self.timed(several)[0]

    def copies(self, inputs: Sequence[tuple[int, int]], outputs: Sequence[tuple[int, int]]) -> Copies:
        """Time copies of device buffers, each (address, bytes), to and from pinned host memory.

        The inputs keep their values: they are first copied from the device, and then back.
        """
        rt = self.rt
        sides = [[(check(rt, rt.cudaMallocHost(max(n, 1))), at, n) for at, n in side] for side in (inputs, outputs)]
        there, back = rt.cudaMemcpyKind.cudaMemcpyHostToDevice, rt.cudaMemcpyKind.cudaMemcpyDeviceToHost

        def move(side: int, way: Any) -> None:
            for host, device, n in sides[side]:
                pair = (device, host) if way == there else (host, device)
                check(rt, rt.cudaMemcpyAsync(*pair, n, way, self.stream))

        try:
            self.timed(lambda: move(0, back))
            to = [self.timed(lambda: move(0, there))[0] for _ in range(COPIES)]
            fro = [self.timed(lambda: move(1, back))[0] for _ in range(COPIES)]
        finally:
            for host, *_ in (*sides[0], *sides[1]):
                rt.cudaFreeHost(host)
        return Copies(median(to), median(fro), sum(n for _, n in inputs), sum(n for _, n in outputs))


Clock = ThreadClock | CudaClock


def check(rt: Any, result: tuple[Any, ...]) -> Any:
    """The value that a call of the CUDA runtime returns beside its status. Raises EnvironmentFailure for an error."""
    error, *values = result
    if error:
        text = rt.cudaGetErrorString(error)[1]
        raise EnvironmentFailure(f"CUDA fails: {text.decode(errors='replace')} ({int(error)})")
    return values[0] if values else None
