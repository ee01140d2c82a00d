"""What several tests of measuring need: models, a stand-in for CUDA, and measurements that are made up."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import ModelProto, parser

from onnxperf.graph import Note
from onnxperf.measure.record import (
    Copies,
    Measurement,
    OperatorTime,
    Place,
    Point,
    Reading,
    Setting,
    Subject,
    Throughput,
    WarmUp,
)
from onnxperf.measure.series import Series

ROOT = Path(__file__).parents[2]
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
TYPES = ("Conv", "MatMul", "com.microsoft::FusedMatMul", "Add", "Softmax", "Gelu", "Transpose", "Mul", "Sub", "Div")


def parsed(text: str, opset: int = 20, ir: int = 10) -> ModelProto:
    """A model by the text of its graph, without the graph's name."""
    return parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]> g {text}')


class Cuda:
    """Stands in for cuda.bindings.runtime with one device, and notes what it is asked in `calls`.

    Each run takes the next of `times`, in ms, or 1 ms. failing: the function that fails; answers: what others return.
    """

    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice="to", cudaMemcpyDeviceToHost="from")

    def __init__(self, times: Iterator[float] | None = None, failing: str = "", **answers: Any):
        self.times, self.failing = times or repeat(1.0), failing
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {
            "cudaGetDeviceCount": 1, "cudaDriverGetVersion": 13000, "cudaStreamCreate": 77,
            "cudaDeviceGetPCIBusId": b"0000:01:00.0\0\0\0",
            "cudaGetErrorString": b"an illegal memory access was encountered",
            "cudaGetDeviceProperties": SimpleNamespace(name=b"NVIDIA L4\0junk", totalGlobalMem=24 << 30),
        } | answers  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append((name, *args))
            if name == "cudaEventElapsedTime":
                return 0, next(self.times)
            return (700 if name == self.failing else 0), self.answers.get(name, f"{name} {len(self.calls)}")

        return call

    def names(self) -> list[str]:
        """The functions that were called."""
        return [name for name, *_ in self.calls]


def around(seconds: float, count: int = 60) -> Series:
    """Times that go up and down by a few per cent, the same every time."""
    return Series(tuple(round(seconds * (1 + 0.001 * (i * 37 % 41)), 9) for i in range(count)))


@pytest.fixture
def on_a_gpu() -> Measurement:
    """With all that a measurement can hold."""
    operators = tuple(
        OperatorTime(
            f"node_{t.rpartition('::')[2]}_{i}", t, CUDA, 20, round((9 - i) * 2e-5 + 1e-5, 9), round((9 - i) * 2e-5, 9)
        )
        for i, t in enumerate(TYPES)
    )
    odd = OperatorTime("deep/[bold]\x1b[31m" + "nested/" * 12 + "Shape", "Shape", CPU, 20, 3e-6, 2e-6)
    return Measurement(
        taken="2026-03-01T12:00:00+00:00",
        subject=Subject("[red]model\x07.onnx", "ab" * 32, 18, "random", b"\x08\x09skeleton"),
        place=Place("gpu", "l4", "NVIDIA L4", 24 * 10**9, 0, "550.54.15"),
        setting=Setting(
            "ort-cuda", "all", "keep", 4, (("input_ids", (4, 128)), ("scale", ())),
            (("use_tf32", "1"), ("device_id", "0")), (("onnxruntime", "1.31.1"), ("cuda", "13.0")),
        ),
        clock="CUDA events on the session's stream",
        scope="steady state, kernels of one run; inputs and outputs stay on the device",
        warm_up=WarmUp(1.25, 0.4, 20, 0.31, True),
        device=around(1.5e-3),
        wall=around(1.6e-3),
        profiled=around(2.5e-3, 20),
        operators=(*operators, odd),
        hosted=(odd.name,),
        copies=Copies(4.2e-5, 1.1e-5, 4096, 2048),
        throughput=Throughput(
            (Point(1, 1.4e-3), Point(2, 1.5e-3), Point(4, 1.9e-3), Point(8, 3.8e-3), Point(16, None)), 4, 2500, 4.8,
        ),
        readings=(Reading(0.0, 2040.0, 6251.0, 61.0, 41.0), Reading(0.5, 1995.0, 6251.0, 71.5, None)),
        warnings=(Note("hosted", "1 node ran on the CPU beside the GPU", (odd.name,)),),
    )  # fmt: skip


@pytest.fixture
def on_a_cpu(on_a_gpu: Measurement) -> Measurement:
    """With as little as one can hold: interrupted early, nothing profiled."""
    return replace(
        on_a_gpu,
        place=Place("cpu", "", "A Processor", 16 * 10**9, 1),
        setting=replace(on_a_gpu.setting, runtime="ort-cpu", options=()),
        subject=replace(on_a_gpu.subject, weights="stored"),
        clock="CPU time of the one thread",
        warm_up=WarmUp(0.2, 0.04, 10, 0.35, False),
        device=around(0.03, 4),
        wall=around(0.04, 4),
        profiled=None,
        operators=(),
        hosted=(),
        copies=None,
        throughput=None,
        readings=(),
        warnings=(),
        complete=False,
    )
