"""The two kinds of device that a model is run on, and what measuring differs in on each.

A job names one of the classes, and the process that runs the model makes one of it: its clock, its sensors, what it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, ClassVar

from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.measure import environment
from onnxperf.measure.environment import check, text
from onnxperf.measure.record import Copies, Place, Reading

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
COPIES = 20  # each way is timed so often

Run = Callable[[], None]


class Processor:
    """One thread of the processor that is here; its clock is the time that the calling thread spent on it.

    For sessions of one thread, which does all the work. It has no sensors, and nothing is copied to it.
    """

    kind = "cpu"  # as of `gpu_specs.Device`
    memory = "cpu"  # ONNX Runtime's word for where its tensors lie
    clock = "CPU time of the one thread"
    scope = "steady state, one run under ONNX Runtime, CPU provider, one thread; session start and warm-up excluded"
    stream = 0
    settle_s, still = 1.0, 0.05  # a warm-up ends after so many seconds, or when times differ by no more than this share
    passes, pass_share = 5, 0.5  # under the profiler: at most, and of the time of the counted runs that one may take
    profiling: ClassVar[dict[str, str]] = {}  # variables of a process that profiles
    run_entries: ClassVar[dict[str, str]] = {}  # of the configuration of a run
    preallocated = False  # whether outputs whose shapes are known have their memory before the first run

    def __init__(self) -> None:
        self.place = environment.processor()

    @classmethod
    def here(cls) -> Processor:
        """The one that is here."""
        return cls()

    @staticmethod
    def found() -> Place:
        """What the one that is here is called."""
        return environment.processor()

    def software(self, ort: Any) -> dict[str, str]:
        """Versions of what takes part."""
        return {"onnxruntime": ort.__version__}

    def entries(self, random: bool) -> dict[str, str]:
        """What the session's configuration is given; `random`: whether weights are."""
        # denormal numbers, which random weights lead to, must not slow the processor down
        return {"session.set_denormal_as_zero": "1"} if random else {}

    def providers(self, ort: Any, precision: str) -> dict[str, dict[str, str]]:
        """The execution providers with their options, the first choice first."""
        return {CPU: {}}

    def timed(self, run: Run) -> tuple[float, float]:
        """Seconds of one run: by this clock, and by the wall's."""
        wall, cpu = time.perf_counter(), time.thread_time()
        run()
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        return cpu, wall

    def streak(self, run: Run, seconds: float) -> tuple[int, float]:
        """Runs back to back for about so many seconds: how many, and how long they took by this clock."""
        runs, start = 0, time.thread_time()
        while not runs or time.thread_time() - start < seconds:
            run()
            runs += 1
        return runs, time.thread_time() - start

    def copies(self, inputs: Any, outputs: Any) -> None:
        """Nothing: inputs and outputs lie where they are computed."""

    def MHz(self) -> None:
        """Nothing tells its clock."""

    def sensed(self, at_s: float) -> tuple[Reading, ...]:
        """No reading."""
        return ()


class Card:
    """The first CUDA device; its clock is CUDA events around a run, on the stream that the session computes on.

    A run only has to launch its kernels; their end is waited for here. Sensors are read and never set.

    rt: `cuda.bindings.runtime`; ml: `pynvml`, or None. Raises EnvironmentFailure where there is no such device, or CUDA
    fails.
    """

    kind = "gpu"
    memory = "cuda"
    clock = "CUDA events on the session's stream"
    scope = (
        "steady state, kernels, launch gaps and host dispatch of one run under ONNX Runtime, CUDA provider; {copies};"
        " session start and warm-up excluded"
    )
    settle_s, still = 10.0, 0.02
    passes, pass_share = 1, 1.0
    # Official builds profile no device events: a node's time is its kernel's only if every launch waits for its end.
    profiling: ClassVar[dict[str, str]] = {"CUDA_LAUNCH_BLOCKING": "1"}
    run_entries: ClassVar[dict[str, str]] = {"disable_synchronize_execution_providers": "1"}
    preallocated = True

    def __init__(self, rt: Any, ml: Any):
        environment.require_device(rt)
        self.rt, self.ml = rt, ml
        check(rt, rt.cudaSetDevice(0))
        self.stream = check(rt, rt.cudaStreamCreate())
        self.start, self.stop = (check(rt, rt.cudaEventCreate()) for _ in range(2))
        bus = text(check(rt, rt.cudaDeviceGetPCIBusId(64, 0)))
        self.handle = self._told("nvmlDeviceGetHandleByPciBusId", bus.encode())
        self.place = environment.graphics(rt, str(self._told("nvmlSystemGetDriverVersion") or ""))

    @classmethod
    def here(cls) -> Card:
        """The one that is here. Raises EnvironmentFailure also where cuda-bindings is not installed."""
        return cls(environment.cuda_runtime(), environment.nvml())

    @staticmethod
    def found() -> Place:
        """What the one that is here is called; nothing is opened on it. Raises EnvironmentFailure as `here` does."""
        rt = environment.cuda_runtime()
        environment.require_device(rt)
        return environment.graphics(rt)

    def software(self, ort: Any) -> dict[str, str]:
        """Versions of what takes part, "" where one is not told."""
        return {"onnxruntime": ort.__version__, "cuda": str(getattr(ort, "cuda_version", ""))}

    def entries(self, random: bool) -> dict[str, str]:
        """What the session's configuration is given."""
        return {"session.record_ep_graph_assignment_info": "1"}

    def providers(self, ort: Any, precision: str) -> dict[str, dict[str, str]]:
        """The execution providers with their options, the first choice first.

        Raises EnvironmentFailure where ONNX Runtime is built without CUDA.
        """
        if CUDA not in ort.get_available_providers():
            raise EnvironmentFailure(
                "the installed ONNX Runtime has no CUDA provider: uninstall onnxruntime, install onnxruntime-gpu"
            )
        load_cuda(ort)
        options = {
            "device_id": "0",
            "user_compute_stream": str(int(self.stream)),
            "do_copy_in_default_stream": "1",
            "cudnn_conv_algo_search": "EXHAUSTIVE",
            "use_tf32": "0" if precision == "fp32" else "1",
            "enable_cuda_graph": "0",
        }
        return {CUDA: options, CPU: {}}

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

    def MHz(self) -> float | None:
        """The clock of the multiprocessors; None where nothing tells it."""
        return self._sensor("nvmlDeviceGetClockInfo", 1)

    def sensed(self, at_s: float) -> tuple[Reading, ...]:
        """What the sensors say, `at_s` after the counted runs began; no reading without NVML."""
        if self.handle is None:
            return ()
        power, memory = self._sensor("nvmlDeviceGetPowerUsage"), self._sensor("nvmlDeviceGetClockInfo", 2)
        watts = None if power is None else power / 1000
        return (Reading(at_s, self.MHz(), memory, watts, self._sensor("nvmlDeviceGetTemperature", 0)),)

    def _sensor(self, what: str, *about: int) -> float | None:
        said = None if self.handle is None else self._told(what, self.handle, *about)
        return None if said is None else float(said)

    def _told(self, what: str, *about: Any) -> Any:
        """The answer of NVML, None where it has none or is not there."""
        if self.ml is not None:
            with suppress(self.ml.NVMLError):
                return getattr(self.ml, what)(*about)
        return None


LocalDevice = Processor | Card
#: By the provider that runs on it, in the words of --provider.
DEVICES: dict[str, type[LocalDevice]] = {"cuda": Card, "cpu": Processor}


def load_cuda(ort: Any) -> None:
    """Load the libraries of CUDA and cuDNN that pip has installed; the system has to find the others."""
    if hasattr(ort, "preload_dlls"):  # from 1.21 on
        ort.preload_dlls()
