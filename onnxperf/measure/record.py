"""What a measurement is: one model that ran on one device under ONNX Runtime, with all a reader has to know of it.

Times are seconds. A measurement is frozen; `onnxperf.measure.files` writes it to JSON and reads it back.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxperf.graph import Note
from onnxperf.measure.series import Series

PROFILER_S = 1.7e-6  # chosen: 200 tiny operators take 74 us by themselves, and 400 us by ONNX Runtime's profile
LONG_S = 5e-3  # runs that are shorter meet a quiet moment themselves; chosen


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that ran. name: its file's; sha256: of the file's bytes; weights: "stored", or "random" where the file
    has none; skeleton: the same model without its weights, an ONNX file's bytes, enough to predict it again.
    """

    name: str
    sha256: str
    opset: int
    weights: str
    skeleton: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """What it ran on. kind: "gpu" or "cpu"; id: the card's in the catalogue, "" where it is none of those; name: what
    the device calls itself; threads: of a CPU that took part; driver: "" where there is none.
    """

    kind: str
    id: str
    name: str
    memory_bytes: int
    threads: int = 0
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """How it ran, in the words of `Scenario`: the runtime, the optimisation level, the precision, the bound inputs.

    options: of ONNX Runtime's session and provider, as given to it (use_tf32 is always among a GPU's); software: names
    and versions.
    """

    runtime: str
    opt_level: str
    precision: str
    batch: int
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    options: tuple[tuple[str, str], ...]
    software: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What ran before anything counted. first_s: the very first run; opened_s: making the session; steady: whether
    times and clock had settled when the warm-up ended.
    """

    opened_s: float
    first_s: float
    runs: int
    seconds: float
    steady: bool


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One node of the graph that ONNX Runtime really ran, from its profile: median and least of `runs` runs.

    The least of a product is that of all products equal to it in type and shapes.
    """

    name: str
    type: str
    provider: str
    runs: int
    median_s: float
    least_s: float

    @property
    def undisturbed_s(self) -> float:
        """The least without what the profiler itself takes for an operator: PROFILER_S, or three quarters of it."""
        return max(self.least_s - PROFILER_S, self.least_s / 4)


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies between host and device, timed apart: median seconds of all inputs there and all outputs back."""

    to_device_s: float
    from_device_s: float
    to_device_bytes: int
    from_device_bytes: int


@dataclass(frozen=True, slots=True)
class Point:
    """A batch on the throughput curve: median seconds of a run; None where it ran out of memory."""

    batch: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Throughput:
    """The curve over batches, and the long run at the best of them: samples/s = batch x batches / seconds."""

    curve: tuple[Point, ...]
    batch: int
    batches: int
    seconds: float

    @property
    def samples_per_second(self) -> float:
        """Of the long run."""
        return self.batch * self.batches / self.seconds


@dataclass(frozen=True, slots=True)
class Reading:
    """The device's own sensors at one moment, `at_s` after the first counted run; None where it has no such sensor."""

    at_s: float
    clock_MHz: float | None
    memory_MHz: float | None
    power_W: float | None
    temperature_C: float | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One model on one device.

    device: seconds of each run on the device's own clock (CUDA events between the session's first and last kernel; on a
    CPU, time of the thread that ran it); wall: of the same runs on the wall's clock; clock: says which; scope: what is
    inside; operators: of separate runs under the profiler, `profiled` being those runs as its model_run events time
    them, None where there were none; hosted: nodes that ran on the CPU beside a GPU; complete: False where it was
    interrupted.
    """

    taken: str
    subject: Subject
    place: Place
    setting: Setting
    clock: str
    scope: str
    warm_up: WarmUp
    device: Series
    wall: Series
    profiled: Series | None
    operators: tuple[OperatorTime, ...] = ()
    hosted: tuple[str, ...] = ()
    copies: Copies | None = None
    throughput: Throughput | None = None
    readings: tuple[Reading, ...] = ()
    warnings: tuple[Note, ...] = ()
    complete: bool = True

    @property
    def seconds(self) -> float:
        """What a prediction is compared with: on a GPU the median by its events; on a CPU the undisturbed run.

        That is the fastest run; of runs longer than LONG_S the fastest run of every operator, added up, where that is
        less: on a shared host, neighbours only ever add time (Chen and Revels, Robust benchmarking in noisy
        environments, 2016), and a short operator meets a quiet moment sooner than a long run.
        """
        if self.place.kind == "gpu":
            return self.device.median
        added = sum(o.undisturbed_s for o in self.operators) if self.device.least > LONG_S else 0.0
        return min(added, self.device.least) if added else self.device.least
