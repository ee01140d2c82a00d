"""The clocks, with a CUDA runtime that notes what it is asked."""

from __future__ import annotations

import pytest

from onnxperf.errors import EnvironmentFailure
from onnxperf.measure.clocks import CudaClock, ThreadClock
from tests.measure.conftest import Cuda


def test_events_stand_around_the_run_and_are_waited_for() -> None:
    cuda = Cuda()
    clock = CudaClock(cuda)
    cuda.calls.clear()
    device, wall = clock.timed(lambda: cuda.calls.append(("run",)))
    assert cuda.names() == ["cudaEventRecord", "run", "cudaEventRecord", "cudaEventSynchronize", "cudaEventElapsedTime"]
    assert cuda.calls[0] == ("cudaEventRecord", clock.start, clock.stream)
    assert cuda.calls[2] == ("cudaEventRecord", clock.stop, clock.stream)
    assert cuda.calls[3] == ("cudaEventSynchronize", clock.stop)
    assert device == 0.001
    assert wall > 0


def test_no_event_is_made_within_the_loop() -> None:
    cuda = Cuda()
    clock = CudaClock(cuda)
    for _ in range(3):
        clock.timed(lambda: None)
    assert cuda.names().count("cudaEventCreate") == 2


def test_a_streak_is_timed_as_one() -> None:
    cuda = Cuda()
    ran: list[int] = []
    runs, seconds = CudaClock(cuda).streak(lambda: ran.append(1), 0.05)
    assert (runs, seconds, len(ran)) == (50, 0.001, 51)  # one to learn how long a run takes
    assert cuda.names().count("cudaEventRecord") == 4


def test_what_the_device_reports_is_an_error_of_the_environment() -> None:
    clock = CudaClock(Cuda(failing="cudaEventSynchronize"))
    with pytest.raises(EnvironmentFailure, match=r"illegal memory access.*\(700\)"):
        clock.timed(lambda: None)


def test_copies_leave_the_inputs_as_they_were() -> None:
    cuda = Cuda()
    copies = CudaClock(cuda).copies([(100, 8), (200, 24)], [(300, 4)])
    moved = [args for name, *args in cuda.calls if name == "cudaMemcpyAsync"]
    assert [(a[1], a[2], a[3]) for a in moved[:2]] == [(100, 8, "from"), (200, 24, "from")]
    assert [(a[0], a[2], a[3]) for a in moved[2:4]] == [(100, 8, "to"), (200, 24, "to")]
    assert moved[0][0] == moved[2][1], "what goes back is what came"
    assert (copies.to_device_bytes, copies.from_device_bytes) == (32, 4)
    assert copies.to_device_s == copies.from_device_s == 0.001


def test_host_memory_is_given_back_where_a_copy_fails() -> None:
    cuda = Cuda(failing="cudaMemcpyAsync")
    clock = CudaClock(cuda)
    with pytest.raises(EnvironmentFailure):
        clock.copies([(100, 8)], [(300, 4)])
    assert cuda.names().count("cudaFreeHost") == cuda.names().count("cudaMallocHost") == 2


def test_the_thread_clock_runs_what_it_times() -> None:
    ran: list[int] = []
    device, wall = ThreadClock().timed(lambda: ran.append(1))
    assert len(ran) == 1
    assert device >= 0 <= wall
    runs, _ = ThreadClock().streak(lambda: ran.append(1), 1e-9)
    assert len(ran) == 1 + runs >= 2
