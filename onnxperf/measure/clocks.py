"""Clocks: how long a run takes on the device itself, and on the wall."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Protocol

from onnxperf.errors import EnvironmentFailure
from onnxperf.measure.record import Copies

COPIES = 20  # times that transfers are timed


class Clock(Protocol):
    """Times runs, in seconds."""

    name: str

    def timed(self, run: Callable[[], None]) -> tuple[float, float]:
        """Seconds of one run: the device's, and the wall's."""

    def streak(self, run: Callable[[], None], seconds: float) -> tuple[int, float]:
        """Runs back to back for about `seconds`: how many, and how long they took on the device's clock."""


class ThreadClock:
    """The time that the calling thread spent on a processor; right where it does all the work."""

    name = "processor time of the one thread"

    def timed(self, run: Callable[[], None]) -> tuple[float, float]:
        """See Clock."""
        wall, own = time.perf_counter(), time.thread_time()
        run()
        own, wall = time.thread_time() - own, time.perf_counter() - wall
        return own, wall

    def streak(self, run: Callable[[], None], seconds: float) -> tuple[int, float]:
        """See Clock."""
        runs, start = 0, time.thread_time()
        while not runs or time.thread_time() - start < seconds:
            run()
            runs += 1
        return runs, time.thread_time() - start


class CudaClock:
    """CUDA events around a run, on the stream that the session computes on. `rt` is `cuda.bindings.runtime`.

    `run` only has to launch; what it launched is waited for here. Raises EnvironmentFailure where CUDA fails.
    """

    name = "CUDA events on the session's stream"

    def __init__(self, rt: Any):
        self.rt = rt
        check(rt, rt.cudaSetDevice(0))
        self.stream = check(rt, rt.cudaStreamCreate())
        self.start, self.stop = (check(rt, rt.cudaEventCreate()) for _ in range(2))

    def timed(self, run: Callable[[], None]) -> tuple[float, float]:
        """See Clock."""
        rt = self.rt
        wall = time.perf_counter()
        check(rt, rt.cudaEventRecord(self.start, self.stream))
        run()
        check(rt, rt.cudaEventRecord(self.stop, self.stream))
        check(rt, rt.cudaEventSynchronize(self.stop))
        wall = time.perf_counter() - wall
        return check(rt, rt.cudaEventElapsedTime(self.start, self.stop)) * 1e-3, wall

    def streak(self, run: Callable[[], None], seconds: float) -> tuple[int, float]:
        """See Clock. Runs are launched ahead of the device, as many as are expected to fill the time."""
        once = max(self.timed(run)[0], 1e-6)
        runs = max(round(seconds / once), 1)

        def several() -> None:
            for _ in range(runs):
                run()

        return runs, self.timed(several)[0]

    def copies(self, inputs: Sequence[tuple[int, int]], outputs: Sequence[tuple[int, int]]) -> Copies:
        """Copies of device buffers, each (address, bytes), to and from pinned host memory; inputs keep their values."""
        rt = self.rt
        sides = [[(check(rt, rt.cudaMallocHost(max(n, 1))), at, n) for at, n in side] for side in (inputs, outputs)]
        there, back = rt.cudaMemcpyKind.cudaMemcpyHostToDevice, rt.cudaMemcpyKind.cudaMemcpyDeviceToHost

        def move(side: int, way: Any) -> None:
            for host, device, n in sides[side]:
                pair = (device, host) if way == there else (host, device)
                check(rt, rt.cudaMemcpyAsync(*pair, n, way, self.stream))

        try:
            self.timed(lambda: move(0, back))  # what the inputs hold
            to = [self.timed(lambda: move(0, there))[0] for _ in range(COPIES)]
            fro = [self.timed(lambda: move(1, back))[0] for _ in range(COPIES)]
        finally:
            for host, *_ in (*sides[0], *sides[1]):
                rt.cudaFreeHost(host)
        return Copies(median(to), median(fro), sum(n for _, n in inputs), sum(n for _, n in outputs))


def check(rt: Any, result: tuple[Any, ...]) -> Any:
    """What a call of the CUDA runtime gives; EnvironmentFailure where it gives an error."""
    error, *values = result
    if error:
        text = rt.cudaGetErrorString(error)[1]
        raise EnvironmentFailure(f"CUDA fails: {text.decode(errors='replace')} ({int(error)})")
    return values[0] if values else None
