"""The devices here: their clocks and sensors, with a CUDA runtime and an NVML that note what they are asked."""

from __future__ import annotations

import pytest

from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.measure import environment
from onnxperf.measure.devices import Card, Processor
from tests.measure.conftest import Cuda


def test_events_stand_around_the_run_and_are_waited_for() -> None:
    cuda = Cuda()
    card = Card(cuda, None)
    cuda.calls.clear()
    device, wall = card.timed(lambda: cuda.calls.append(("run",)))
    assert cuda.names() == ["cudaEventRecord", "run", "cudaEventRecord", "cudaEventSynchronize", "cudaEventElapsedTime"]
    assert cuda.calls[0] == ("cudaEventRecord", card.start, card.stream)
    assert cuda.calls[2] == ("cudaEventRecord", card.stop, card.stream)
    assert cuda.calls[3] == ("cudaEventSynchronize", card.stop)
    assert device == 0.001
    assert wall > 0


def test_no_event_is_made_within_the_loop() -> None:
    cuda = Cuda()
    card = Card(cuda, None)
    for _ in range(3):
        card.timed(lambda: None)
    assert cuda.names().count("cudaEventCreate") == 2


def test_a_streak_is_timed_as_one() -> None:
    cuda = Cuda()
    ran: list[int] = []
    runs, seconds = Card(cuda, None).streak(lambda: ran.append(1), 0.05)
    assert (runs, seconds, len(ran)) == (50, 0.001, 51)  # one to learn how long a run takes
    assert cuda.names().count("cudaEventRecord") == 4


def test_what_the_device_reports_is_an_error_of_the_environment() -> None:
    card = Card(Cuda(failing="cudaEventSynchronize"), None)
    with pytest.raises(EnvironmentFailure, match=r"illegal memory access.*\(700\)"):
        card.timed(lambda: None)


def test_copies_leave_the_inputs_as_they_were() -> None:
    cuda = Cuda()
    copies = Card(cuda, None).copies([(100, 8), (200, 24)], [(300, 4)])
    moved = [args for name, *args in cuda.calls if name == "cudaMemcpyAsync"]
    assert [(a[1], a[2], a[3]) for a in moved[:2]] == [(100, 8, "from"), (200, 24, "from")]
    assert [(a[0], a[2], a[3]) for a in moved[2:4]] == [(100, 8, "to"), (200, 24, "to")]
    assert moved[0][0] == moved[2][1], "what goes back is what came"
    assert (copies.to_device_bytes, copies.from_device_bytes) == (32, 4)
    assert copies.to_device_s == copies.from_device_s == 0.001


def test_host_memory_is_given_back_where_a_copy_fails() -> None:
    cuda = Cuda(failing="cudaMemcpyAsync")
    card = Card(cuda, None)
    with pytest.raises(EnvironmentFailure):
        card.copies([(100, 8)], [(300, 4)])
    assert cuda.names().count("cudaFreeHost") == cuda.names().count("cudaMallocHost") == 2


def test_the_thread_clock_runs_what_it_times() -> None:
    ran: list[int] = []
    device, wall = Processor().timed(lambda: ran.append(1))
    assert len(ran) == 1
    assert device >= 0 <= wall
    runs, _ = Processor().streak(lambda: ran.append(1), 1e-9)
    assert len(ran) == 1 + runs >= 2


class Nvml:
    """Stands in for pynvml on a card without a power sensor."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetHandleByPciBusId(self, bus: bytes) -> str:
        return bus.decode()

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:
        return {1: 1980, 2: 2619}[which]

    def nvmlDeviceGetTemperature(self, handle: str, which: int) -> int:
        return 41

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        raise self.NVMLError

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65"


def test_sensors() -> None:
    card = Card(Cuda(), Nvml())
    (reading,) = card.sensed(1.5)
    assert (reading.at_s, reading.clock_MHz, reading.memory_MHz, reading.temperature_C) == (1.5, 1980, 2619, 41)
    assert reading.power_W is None
    assert card.MHz() == 1980
    assert card.handle == "0000:01:00.0"
    assert card.place.driver == "580.65"


def test_no_sensors() -> None:
    assert Card(Cuda(), None).sensed(0.0) == Processor().sensed(0.0) == ()
    assert Card(Cuda(), None).MHz() is None is Processor().MHz()
    assert Card(Cuda(), None).place.driver == "CUDA 13.0"


def test_a_card_is_named_without_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    monkeypatch.setattr(environment, "cuda_runtime", lambda: cuda)
    place = Card.found()
    assert (place.kind, place.id, place.driver) == ("gpu", "l4", "CUDA 13.0")
    assert not {"cudaSetDevice", "cudaStreamCreate", "cudaEventCreate"} & set(cuda.names())


def test_random_weights_make_no_denormal_numbers_on_a_processor() -> None:
    assert Processor().entries(random=True) == {"session.set_denormal_as_zero": "1"}
    assert Processor().entries(random=False) == {}
    assert Card(Cuda(), None).entries(random=True) == {"session.record_ep_graph_assignment_info": "1"}
