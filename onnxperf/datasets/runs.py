"""A measured inference of a whole model, and the sample file that has the model's graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from onnxperf.datasets.table import DIES
from onnxperf.graph import Graph, load
from onnxperf.scenario import Scenario


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One inference of a whole model: seconds measured, and as other methods published their predictions of it.

    sample: name of the file with the graph; kernels_s: the sum of its operators, each measured alone (nan where
    nobody did); published: seconds by method, nan where one has none; transformers: whether the optimizer of
    onnxruntime.transformers was at work before; along: the name of the dimension beside the batch; bound: inputs and
    outputs lie on the device; source, version: who measured, and which release of the runtime, in the source's
    words; ort_version: the release to predict for, None for today's.
    """

    gpu: str
    sample: str
    batch: int
    sequence: int
    seconds: float
    kernels_s: float
    published: Mapping[str, float] = field(hash=False)
    runtime: str = "torch-eager"
    precision: str = "fp32"
    transformers: bool = False
    along: str = "sequence"
    bound: bool = True
    source: str = "fp32_torch"
    version: str = ""
    ort_version: str | None = None

    @property
    def die(self) -> str:
        """The die of the card, under its own name where it is not listed."""
        return DIES.get(self.gpu, self.gpu)

    @property
    def group(self) -> str:
        """Who measured which model: what is left out at once where runs are fitted."""
        return re.sub(r"[^A-Za-z0-9]+", "-", f"{self.source} {self.sample}")

    @property
    def dims(self) -> dict[str, int]:
        """What the open dimensions of the sample stand for."""
        return {"batch": self.batch, self.along: self.sequence}

    @property
    def scenario(self) -> Scenario:
        """The run as it was measured."""
        return Scenario(
            self.sample, self.gpu, self.runtime, precision=self.precision, batch=self.batch,
            ort_version=self.ort_version, ort_transformers=self.transformers,
            include_transfers=not self.bound, pageable=not self.bound,
        )  # fmt: skip

    @property
    def graph(self) -> Graph:
        """The sample with its dimensions bound."""
        return _graph(self.sample, tuple(self.dims.items()))


def samples() -> Traversable:
    """The folder of the models that were measured: in the package, or beside it where that is a checkout."""
    try:
        return resources.files("onnxperf.samples")
    except ModuleNotFoundError:
        return Path(__file__).parents[2] / "samples"


@lru_cache(maxsize=1)
def _graph(sample: str, dims: tuple[tuple[str, int], ...]) -> Graph:
    with resources.as_file(samples().joinpath(f"{sample}.onnx")) as path:
        return load(path, dims=dict(dims))
