"""What a measurement is: one model that ran on one device under ONNX Runtime, with all a reader has to know of it.

Times are seconds. The fields and their types are what a file holds: `onnxperf.measure.files` writes them to JSON and
reads them back by these types, see `onnxperf.ground.codec`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, ClassVar, Literal

from onnxperf.graph import Note
from onnxperf.ground.codec import Derived, Range
from onnxperf.measure.series import Seconds, Series

Positive = Annotated[int, Range(1)]

PROFILER_S = 1.7e-6  # chosen: 200 tiny operators take 74 us by themselves, and 400 us by ONNX Runtime's profile
#: Of runs on a processor that others use: wall's time over processor's time up to which a run counts as undisturbed,
#: and what reading both clocks takes of the wall's.
SHARED, CLOCKS_S = 1.15, 3e-6
DISTURBED = "disturbed"  # code of the warning that other programs slowed what was measured
LONG_S = 5e-3  # chosen: shorter runs are sometimes left alone by other programs from beginning to end


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that ran. name: its file's; sha256: of the file's bytes; weights: "random" where the file lacks some;
    skeleton: the bytes of an ONNX file that holds the same model without its weights, enough to predict it again.
    """

    name: str
    sha256: str
    opset: int
    weights: Literal["stored", "random"]
    skeleton: bytes = field(metadata={"key": "skeleton_zlib_base64"})


@dataclass(frozen=True, slots=True)
class Place:
    """The device it ran on. id: the card's in the catalogue, "" where it has none there; name: what the device calls
    itself; threads: of a CPU that took part; driver: its version, "" where there is none.
    """

    kind: Literal["gpu", "cpu"]
    id: str
    name: str
    memory_bytes: int
    threads: int = 0
    driver: str = ""

    @property
    def shared(self) -> bool:
        """Whether other programs run on it meanwhile, as on a processor: then the undisturbed run is what counts."""
        return self.kind == "cpu"


@dataclass(frozen=True, slots=True)
class Setting:
    """How it ran, in the words of `Scenario`. inputs: shapes by name, with all dimensions bound; options: as given to
    ONNX Runtime's session and provider (use_tf32 is always among a GPU's); software: names and versions.
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
    """What came before the counted runs. opened_s: making the session; first_s: the very first run; runs, seconds: the
    runs after that, and how long they took together; steady: whether times and clock had settled in the end.
    """

    opened_s: Seconds
    first_s: Seconds
    runs: int
    seconds: Seconds
    steady: bool


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One node of the graph that ONNX Runtime ran after its optimisations, from its profile: median and least of `runs`
    runs. The least of a matrix product is that of all products of the same type and shapes.
    """

    name: str
    type: str
    provider: str
    runs: Positive
    median_s: Seconds
    least_s: Seconds

    @property
    def undisturbed_s(self) -> float:
        """The least time less what the profiler itself adds, PROFILER_S, but no less than a quarter of it."""
        return max(self.least_s - PROFILER_S, self.least_s / 4)

    @property
    def seconds(self) -> float:
        """The time that counts: the median; on a CPU, which other programs disturb, that of the undisturbed run."""
        return self.undisturbed_s if self.provider.startswith("CPU") else self.median_s


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies between host and device, timed apart from the runs: medians of copying all inputs to the device, and all
    outputs back.
    """

    to_device_s: Seconds
    from_device_s: Seconds
    to_device_bytes: int
    from_device_bytes: int


@dataclass(frozen=True, slots=True)
class Point:
    """A batch on the throughput curve: median seconds of a run; None where it ran out of memory."""

    batch: Positive
    seconds: Seconds | None


@dataclass(frozen=True, slots=True)
class Throughput:
    """The curve over batches, and the long run at the best of them: `batches` runs back to back at `batch`."""

    DERIVED: ClassVar[Derived] = {"samples_per_second": (float, attrgetter("samples_per_second"))}

    curve: tuple[Point, ...]
    batch: Positive
    batches: Positive
    seconds: Annotated[float, Range(1e-9, digits=9)]

    @property
    def samples_per_second(self) -> float:
        """Of the long run: batch x batches / seconds."""
        return self.batch * self.batches / self.seconds


@dataclass(frozen=True, slots=True)
class Reading:
    """The device's own sensors `at_s` after the counted runs began; None where it has no such sensor."""

    at_s: Seconds
    clock_MHz: float | None
    memory_MHz: float | None
    power_W: float | None
    temperature_C: float | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One model on one device.

    taken: when, ISO 8601; clock: which one gives the times of `device`; scope: what is inside the time and what is not;
    device: each run on the device's own clock (CUDA events before the first and behind the last kernel; on a CPU, time
    of the thread that ran it); wall: the same runs on the wall's clock; profiled: separate runs under ONNX Runtime's
    profiler, None where there were none; operators: the nodes of those runs; hosted: names of nodes that ran on the CPU
    beside a GPU; complete: False where it was interrupted.
    """

    DERIVED: ClassVar[Derived] = {"seconds": (Seconds, attrgetter("seconds"))}

    taken: str
    subject: Subject = field(metadata={"key": "model"})
    place: Place
    setting: Setting
    clock: str
    scope: str
    warm_up: WarmUp
    device: Series = field(metadata={"key": "device_time"})
    wall: Series = field(metadata={"key": "wall_time"})
    profiled: Series | None = field(metadata={"key": "profiled_time"})
    operators: tuple[OperatorTime, ...] = ()
    hosted: tuple[str, ...] = ()
    copies: Copies | None = None
    throughput: Throughput | None = None
    readings: tuple[Reading, ...] = ()
    warnings: tuple[Note, ...] = ()
    complete: bool = True

    @property
    def seconds(self) -> Seconds:
        """What a prediction is compared with: on a GPU the median of `device`; on a CPU the undisturbed run.

        That is the fastest run that was left alone; of runs longer than LONG_S, where the profiler's fastest run of
        every operator adds up to less, that sum. On a shared machine neighbours only ever add time (Chen and Revels,
        Robust benchmarking in noisy environments, 2016), and a short operator is left alone sooner than a long run.
        Where no run was left alone the median stands for it: of a thread that is interrupted, the processor's clock
        counts too much in some runs and too little in others.
        """
        if not self.place.shared:
            return self.device.median
        fastest = min(self.alone, default=self.device.median)
        added = sum(o.undisturbed_s for o in self.operators) if fastest > LONG_S else 0.0
        return min(added, fastest) if added else fastest

    @property
    def alone(self) -> tuple[Seconds, ...]:
        """The times, on a CPU, of the runs in which no other program took the processor: by both clocks the same."""
        pairs = zip(self.device.samples, self.wall.samples, strict=False)
        return tuple(device for device, wall in pairs if wall <= SHARED * device + CLOCKS_S)

    @property
    def disturbed(self) -> str:
        """What other programs did to it, "" where they did nothing that shows."""
        return next((w.message for w in self.warnings if w.code == DISTURBED), "")
