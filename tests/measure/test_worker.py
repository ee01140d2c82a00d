"""What happens in the process that runs a model on a GPU, with stand-ins for CUDA and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onnxperf.ground.errors import EnvironmentFailure, ModelError
from onnxperf.measure.devices import Card
from onnxperf.measure.job import Job, Plan
from onnxperf.measure.plan import prepare
from onnxperf.measure.session import OutOfMemory, refusal
from onnxperf.measure.worker import reported, sample, serve, settled, variables, warm_up
from tests.measure.conftest import Cuda, parsed

MODEL = parsed("(float[1,4] x, int64[1,2] i) => (float[1,4] y) { y=Relu(x) }").SerializeToString()
JOB = Job(MODEL, "cuda", iterations=3, warm_s=0.0)
PLAN = prepare(JOB)
Facts = dict[str, Any]


class Value:
    """Stands in for an OrtValue: where it lies, and what it holds."""

    def __init__(self, shape: Any, device: str, data: Any = None):
        self.shape, self.device, self.data = tuple(shape), device, data

    def data_ptr(self) -> int:
        return id(self)

    def tensor_size_in_bytes(self) -> int:
        return 4 * int(np.prod(self.shape))

    @staticmethod
    def ortvalue_from_numpy(array: Any, device: str = "cpu", number: int = 0) -> Value:
        return Value(array.shape, device, array)

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Any, type: Any, device: str, number: int) -> Value:
        return Value(shape, device)


class Ort:
    """Stands in for onnxruntime with a CUDA device; remembers what it is given."""

    __version__ = "1.31.1"
    cuda_version = "13.0"
    OrtValue = Value
    ExecutionMode = SimpleNamespace(ORT_SEQUENTIAL="sequential")
    GraphOptimizationLevel = SimpleNamespace(ORT_ENABLE_ALL=99, ORT_DISABLE_ALL=0)

    def __init__(self, calls: list[Any], available: bool = True, works: bool = True, failing: str = ""):
        self.calls, self.available, self.works, self.failing = calls, available, works, failing
        self.entries: dict[str, str] = {}
        self.run_entries: dict[str, str] = {}
        self.bound: dict[str, Value] = {}

    def get_available_providers(self) -> list[str]:
        return ["CUDAExecutionProvider"] * self.available + ["CPUExecutionProvider"]

    def SessionOptions(self) -> Any:
        return SimpleNamespace(add_session_config_entry=self.entries.__setitem__)

    def RunOptions(self) -> Any:
        return SimpleNamespace(add_run_config_entry=self.run_entries.__setitem__)

    def InferenceSession(self, source: bytes, options: Any, providers: Any, **more: Any) -> Any:
        self.source, self.options, self.providers, self.more = source, options, providers, more
        node = SimpleNamespace(name="shape", op_type="Shape")
        group = SimpleNamespace(ep_name="CPUExecutionProvider", get_nodes=lambda: [node])
        used = ["CUDAExecutionProvider"] * self.works + ["CPUExecutionProvider"]
        return SimpleNamespace(
            get_providers=lambda: used, get_provider_graph_assignment_info=lambda: [group], io_binding=self.binding,
            get_inputs=lambda: [SimpleNamespace(name="x", type="tensor(float)")],
            get_outputs=lambda: [
                SimpleNamespace(name="y", type="tensor(float16)", shape=[1, 4]),
                SimpleNamespace(name="z", type="tensor(float)", shape=[1, "n"]),
            ],
            run_with_iobinding=self.run,
        )  # fmt: skip

    def binding(self) -> Any:
        return SimpleNamespace(
            bind_ortvalue_input=self.bound.__setitem__, bind_ortvalue_output=self.bound.__setitem__,
            bind_output=lambda name, device: self.bound.__setitem__(name, Value((), device)),
            synchronize_inputs=lambda: self.calls.append(("synchronize_inputs",)),
            get_outputs=lambda: [self.bound["y"], self.bound["z"]],
        )  # fmt: skip

    def run(self, binding: Any, options: Any) -> None:
        self.calls.append(("run",))
        if self.failing:
            raise RuntimeError(self.failing)


def served(
    plan: Plan = PLAN, log: str = "", ask: tuple[float, ...] = (), **terms: Any
) -> tuple[list[Facts], Ort, list[str]]:
    """What a process tells that is asked for long runs after the counted ones, and what its stand-ins were told.

    terms: of the job, or of the stand-in for ONNX Runtime.
    """
    said: list[Facts] = []
    cuda, requests = Cuda(), iter([*ask, None])
    changed = {name: terms.pop(name) for name in [*terms] if hasattr(JOB, name)}
    ort = Ort(cuda.calls, **terms)
    plan = replace(plan, job=replace(plan.job, **changed))
    serve(plan, ort, Card(cuda, None), lambda **facts: said.append(facts), lambda: next(requests), lambda: log)
    return said, ort, cuda.names()


def told(said: list[Facts], name: str) -> Any:
    """A fact, by what was said of it first."""
    return next(facts[name] for facts in said if name in facts)


def test_a_gpu_session_gets_our_stream_and_no_way_back_to_the_cpu() -> None:
    _, ort, _ = served()
    name, options = ort.providers[0]
    assert name == "CUDAExecutionProvider" and ort.providers[1:] == [("CPUExecutionProvider", {})]
    assert options["user_compute_stream"] == "77"
    assert options["use_tf32"] == "1" and options["cudnn_conv_algo_search"] == "EXHAUSTIVE"
    assert ort.more["enable_fallback"] == 0
    assert ort.run_entries == {"disable_synchronize_execution_providers": "1"}
    assert ort.options.graph_optimization_level == 99


@pytest.mark.parametrize(("precision", "tf32"), [("keep", "1"), ("tf32", "1"), ("fp32", "0")])
def test_tf32_is_always_said(precision: str, tf32: str) -> None:
    said, ort, _ = served(precision=precision)
    assert ort.providers[0][1]["use_tf32"] == tf32
    options = dict(told(said, "options"))
    assert options["use_tf32"] == tf32
    assert "user_compute_stream" not in options, "an address says nothing to a reader"


def test_inputs_and_outputs_lie_on_the_device() -> None:
    _, ort, _ = served()
    assert {name: value.device for name, value in ort.bound.items()} == {"x": "cuda", "y": "cuda", "z": "cuda"}
    assert ort.bound["y"].shape == (1, 4)
    assert ort.bound["x"].data.dtype == np.float32


def test_every_run_stands_between_events() -> None:
    _, _, calls = served()
    around = ["cudaEventRecord", "run", "cudaEventRecord", "cudaEventSynchronize", "cudaEventElapsedTime"]
    first = calls.index("run") - 1
    runs = calls.count("run")
    assert runs >= 14
    assert calls[first:] == around * runs
    assert "synchronize_inputs" in calls[:first]


def test_what_is_said_in_which_order() -> None:
    said, _, _ = served()
    assert [next(iter(facts)) for facts in said if "readings" not in facts] == [
        "phase", "hosted", "phase", "phase", "warm_up", "phase", "samples", "done"
    ]  # fmt: skip
    place, warm_up = told(said, "place"), told(said, "warm_up")
    assert warm_up.opened_s >= 0 <= warm_up.first_s and told(said, "hosted") == (("shape", "Shape"),)
    assert (place.kind, place.id, place.name, place.memory_bytes) == ("gpu", "l4", "NVIDIA L4", 24 << 30)
    assert place.driver == "CUDA 13.0"
    assert "CUDA events" in told(said, "clock")
    assert dict(told(said, "software")) == {"onnxruntime": "1.31.1", "cuda": "13.0"}
    assert [device for device, _ in told(said, "samples")] == [0.001] * 3


def test_long_runs_are_asked_for_afterwards() -> None:
    said, _, _ = served(ask=(0.05, 0.01))
    assert [facts["streak"] for facts in said if "streak" in facts] == [(50, 0.001), (10, 0.001)]
    assert sum("done" in facts for facts in said) == 3


def test_copies_are_timed_where_they_are_asked_for() -> None:
    said, _, calls = served(include_transfers=True)
    assert told(said, "copies").to_device_bytes == 16
    assert "cudaMemcpyAsync" in calls
    assert not any("copies" in facts for facts in served()[0])


def test_a_session_that_fell_back_to_the_cpu_is_refused_with_the_reason() -> None:
    log = "E: Failed to load library libonnxruntime_providers_cuda.so with error: libcublas.so.13: cannot open it\n"
    with pytest.raises(EnvironmentFailure, match=r"can't use CUDA here: libcublas\.so\.13: cannot open it"):
        served(works=False, log=log)
    with pytest.raises(EnvironmentFailure, match="can't use CUDA here"):
        served(works=False)


def test_an_onnx_runtime_without_cuda_is_refused() -> None:
    with pytest.raises(EnvironmentFailure, match="install onnxruntime-gpu"):
        served(available=False)


@pytest.mark.parametrize(("devices", "driver", "says"), [(0, 13000, "no CUDA device"), (1, 0, "no NVIDIA driver")])
def test_no_device(devices: int, driver: int, says: str) -> None:
    cuda = Cuda(cudaGetDeviceCount=devices, cudaDriverGetVersion=driver)
    with pytest.raises(EnvironmentFailure, match=says):
        Card(cuda, None)


def test_a_full_gpu_is_said_to_be_full() -> None:
    text = (
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : bfc_arena.cc:376 Failed to allocate memory for requested buffer"
    )
    said: list[Facts] = []
    with reported(lambda **facts: said.append(facts)):
        served(failing=text)
    assert type(said[0]["error"]) is OutOfMemory
    assert "a smaller batch" in str(said[0]["error"])


ERROR = "[ONNXRuntimeError] : 1 : FAIL : "
LOST = "Could not find an implementation for Foo(1) node with name 'f'"
PLACE = "/src/core/graph/model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, const onnxruntime::PathString&) "
REFUSALS = [
    (f"{ERROR}{LOST}\nmore", ModelError, f"m.onnx: ONNX Runtime 1.31.1 refuses it: {LOST}"),
    (
        f"{ERROR}This is an invalid model. \x1b[31mError",
        ModelError,
        "invalid model. \N{REPLACEMENT CHARACTER}[31mError",
    ),
    (f"{ERROR}{PLACE}Unsupported thing", ModelError, "refuses it: Unsupported thing"),
    (f"{ERROR}CUDA failure 2: out of memory ; GPU=0 ; hostname=h", OutOfMemory, "out of memory"),
    ("std::bad_alloc", OutOfMemory, "out of memory"),
    (f"{ERROR}CUDA failure 700: an illegal access", EnvironmentFailure, "the device fails: CUDA failure 700"),
    ("", ModelError, "refuses it: RuntimeError"),
]


@pytest.mark.parametrize(("text", "kind", "says"), REFUSALS)
def test_refusals_in_plain_words(text: str, kind: type[Exception], says: str) -> None:
    error = refusal(RuntimeError(text), "m.onnx", "1.31.1")
    assert type(error) is kind
    assert says in str(error)
    assert str(error).isprintable() and "/src/" not in str(error)


def test_launches_wait_only_under_the_profiler() -> None:
    assert "CUDA_LAUNCH_BLOCKING" not in variables(PLAN)
    profiled = replace(PLAN, profile_to="p")
    assert variables(profiled)["CUDA_LAUNCH_BLOCKING"] == "1"
    assert "CUDA_LAUNCH_BLOCKING" not in variables(replace(profiled, job=replace(JOB, provider="cpu")))
    assert variables(PLAN)["ORT_DISABLE_TELEMETRY"] == "1"


def card(times: Iterator[float]) -> Card:
    return Card(Cuda(times), None)


def warmed(device: Card, **terms: Any) -> tuple[int, bool]:
    count, _, steady = warm_up(lambda: None, device, replace(JOB, **terms))
    return count, steady


def test_a_warm_up_ends_when_times_have_settled() -> None:
    assert warmed(card(iter([1.0] * 100))) == (10, True)
    assert warmed(card(iter([*range(30, 10, -1), *[10.0] * 100]))) == (30, True)
    assert warmed(card(iter([1.0] * 100)), warm_runs=23) == (25, True)


def test_a_warm_up_that_never_settles_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Card, "settle_s", 0.0)
    assert warmed(card(iter(1.1**i for i in range(1000)))) == (JOB.warm_runs, False)


def test_the_clock_must_stand_still_too(monkeypatch: pytest.MonkeyPatch) -> None:
    device, mhz = card(iter([1.0] * 100)), iter([300.0, 900.0, 1500.0, 1980.0, 1990.0, 1990.0])
    monkeypatch.setattr(device, "MHz", lambda: next(mhz))
    assert warmed(device) == (25, True)


def test_no_warm_up_is_not_steady() -> None:
    assert warmed(card(iter([])), warm_runs=0) == (0, False)


@pytest.mark.parametrize(
    ("times", "is_settled"),
    [
        ([1.0], False),
        ([1.0, 1.0], True),
        ([1.0, 1.1], False),
        ([9.0] * 5 + [1.0] * 10, True),
        ([1.0] * 9 + [9.0], True),
    ],
)
def test_settled(times: list[float], is_settled: bool) -> None:
    assert settled(times, 0.02) == is_settled


def test_sampling_ends_with_the_time_but_not_before_the_least() -> None:
    said: list[Facts] = []
    plan = replace(PLAN, job=replace(JOB, iterations=1000, duration_s=1e-9), least_runs=7)
    sample(lambda: None, card(iter([1.0] * 1000)), plan, lambda **facts: said.append(facts))
    assert sum(len(facts["samples"]) for facts in said if "samples" in facts) == 7
