"""What to measure, and how: the request, and what a process that runs the model is given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from onnxperf.graph import Graph
from onnxperf.ground.errors import UsageError
from onnxperf.ground.names import MEASURED
from onnxperf.measure.devices import DEVICES, LocalDevice
from onnxperf.runtimes import LEVELS

if TYPE_CHECKING:
    from onnx import ModelProto

MOST_RUNS = 1_000_000  # that are counted: the time of each is kept


@dataclass(frozen=True, slots=True)
class Job:
    """What to measure.

    model: a path, the bytes of a file, or an onnx.ModelProto; shapes, dims, batch: as in `onnxperf.predict`.
    iterations: counted runs, or fewer if `duration_s` is over before. include_transfers: time copies of inputs and
    outputs, too. allow_host: go on where nodes that belong on the GPU run on the CPU. inputs: an .npz file of arrays by
    input name, instead of random ones. profile: run once more under ONNX Runtime's profiler. warm_runs, warm_s: at
    least so many runs and seconds go before the counted runs. seed: of random inputs and weights.

    Raises UsageError where that contradicts itself.
    """

    model: str | os.PathLike[str] | bytes | ModelProto
    provider: str
    shapes: Mapping[str, Sequence[int]] | None = None
    dims: Mapping[str, int] | None = None
    batch: int | None = None
    precision: str = "keep"
    opt_level: str = "all"
    iterations: int = 300
    duration_s: float | None = None
    include_transfers: bool = False
    allow_host: bool = False
    inputs: str | os.PathLike[str] | None = None
    profile: bool = True
    warm_runs: int = 10
    warm_s: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for what, value, allowed in (
            ("provider", self.provider, tuple(DEVICES)),
            ("precision", self.precision, MEASURED),
            ("optimisation level", self.opt_level, tuple(LEVELS)),
        ):
            if value not in allowed:
                raise UsageError(f"unknown {what} {value!r}: it is one of {', '.join(allowed)}")
        if not 1 <= self.iterations <= MOST_RUNS:
            raise UsageError(f"iterations must be from 1 to {MOST_RUNS:,}, not {self.iterations!r}")
        if self.warm_runs < 0 or self.warm_s < 0:
            raise UsageError("the warm-up can't be negative")
        if self.duration_s is not None and not self.duration_s > 0:
            raise UsageError(f"the duration must be positive, not {self.duration_s!r}")
        if self.provider == "cpu" and self.precision == "tf32":
            raise UsageError("TF32 is a type of NVIDIA's tensor cores: the CPU provider can't run in it")
        if self.provider == "cpu" and self.include_transfers:
            raise UsageError("the CPU provider has no H2D or D2H copies: leave --include-transfers out")

    @property
    def device(self) -> type[LocalDevice]:
        """The kind of device it runs on."""
        return DEVICES[self.provider]

    @property
    def runtime(self) -> str:
        """The runtime's name in a prediction."""
        return f"ort-{self.provider}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the process which runs the model is given.

    job: its model a path or the bytes of a file; shapes, dims, batch and inputs are left out, for they are in the other
    fields; graph: the model with all dimensions bound; folder: that of the model's file, None where it is bytes;
    values: by input, the array that it holds, or the range of the whole numbers that it may, or what `inputs.objects`
    makes of text, sequences and maps; sizes: inputs whose shapes
    in the file differ, with those to write there; dims: sizes of the file's named open dimensions; random: whether
    weights are missing; opset, nodes: the file's, and names of its nodes.

    least_runs: so many runs are counted even if the job's time is over before; profile_to: what names of the profiler's
    files begin with, "" for no profiler.
    """

    job: Job
    graph: Graph
    folder: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    dims: tuple[tuple[str, int], ...] = ()
    random: bool = False
    opset: int = 0
    nodes: frozenset[str] = frozenset()
    least_runs: int = 1
    profile_to: str = ""

    @property
    def unbound(self) -> bool:
        """Whether an input is text, a sequence or a map: ONNX Runtime takes these from Python in every run."""
        return any(isinstance(v, list | dict) or str(getattr(v, "dtype", "")) == "object" for v in self.values.values())

    @property
    def source(self) -> str | bytes:
        """The model's path, or the bytes of its file."""
        return cast("str | bytes", self.job.model)

    @property
    def as_it_is(self) -> bool:
        """Whether ONNX Runtime can open the model's own file."""
        changed = self.random or self.sizes or self.job.precision == "fp16"
        return isinstance(self.source, str) and not changed
