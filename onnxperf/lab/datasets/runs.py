"""A measured inference or training step of a whole model, and the file that has the model's graph."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import gpu_specs
from onnxperf.graph import Graph, load
from onnxperf.ground.errors import UsageError, printable
from onnxperf.lab.datasets.reading import SAMPLE
from onnxperf.lab.datasets.table import DIES
from onnxperf.latency import Constants, shipped
from onnxperf.passes.autocast import with_fast_norms
from onnxperf.passes.plan import parse_plan
from onnxperf.running.run import Kept, Run
from onnxperf.running.scenario import Scenario

STEP = "forward and backward"
MAX_BYTES = 1 << 28  # of a graph without its weights: a stranger's file may not fill the memory


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run of a whole model: seconds measured, and as other methods published their predictions of it.

    model: what its scores stand under; dims: what the graph's open dimensions stand for; file: the graph, a weightless
    ONNX file, plain or gzipped, None for the sample of the model's name; kernels_s: the sum of its operators, each
    measured alone (nan where nobody did); published: seconds by method, nan where one has none; transformers: whether
    the optimizer of onnxruntime.transformers was at work before; copies: "" where inputs and outputs lie on the device,
    "pinned" or "pageable" for the memory that they are copied from and to; source, version: who measured, and which
    release of the runtime, in the source's words; ort_version: the release to predict for, None for today's; family:
    of models, left out together where runs are fitted, "" where each model is left out by itself; layout: how images
    lay in memory, None as is usual; fast_norms: timm's norms ran in float16 (`passes.with_fast_norms`); part: "" for an
    inference, else a training step (`STEP`), or which phase of it the seconds are of; optimizer: what updates the
    parameters then, from the loss of a classifier; "none": nothing, from the sum of the outputs;
    parallel: the plan of several GPUs, "" for one; `dims` are then of the samples that one of them takes at a time;
    replayed: kernels follow each other as from a CUDA graph, whatever the host takes to launch them.
    """

    gpu: str
    model: str
    dims: Mapping[str, int] = field(hash=False)
    seconds: float
    kernels_s: float = float("nan")
    published: Mapping[str, float] = field(default_factory=dict, hash=False)
    runtime: str = "torch-eager"
    precision: str = "fp32"
    transformers: bool = False
    copies: str = ""
    source: str = "fp32_torch"
    version: str = ""
    ort_version: str | None = None
    file: Path | None = None
    family: str = ""
    layout: str | None = None
    fast_norms: bool = False
    part: str = ""
    optimizer: str = "none"
    parallel: str = ""
    replayed: bool = False

    @property
    def die(self) -> str:
        """The die of the card, under its own name where it is not listed."""
        return DIES.get(self.gpu, self.gpu)

    @property
    def group(self) -> str:
        """Who measured which models: what is left out at once where runs are fitted."""
        return re.sub(r"[^A-Za-z0-9]+", "-", f"{self.source} {self.family or self.model}")

    @property
    def scenario(self) -> Scenario:
        """The run as it was measured."""
        batch = next((n for name, n in self.dims.items() if name.startswith("batch")), 1)
        plan = parse_plan(self.parallel or None, None)
        return Scenario(
            model=self.model, gpu=self.gpu, runtime=self.runtime, precision=self.precision, layout=self.layout,
            batch=batch * plan.parts,
            parallel=self.parallel or None,
            ort_version=self.ort_version, ort_transformers=self.transformers,
            include_transfers=bool(self.copies), pageable=self.copies == "pageable", cuda_graph=self.replayed,
            mode="training" if self.part else "inference", optimizer=self.optimizer if self.part else None,
            loss=None if self.optimizer == "none" else "cross-entropy",
        )  # fmt: skip

    @property
    def graph(self) -> Graph:
        """The graph with its dimensions bound. Raises Error where the file holds none."""
        return _graph(self.model, self.file, tuple(self.dims.items()), bool(self.part), self.fast_norms)

    def run(self, constants: Constants | None = None) -> Run:
        """The same run to predict, by these constants or those that ship. Runs of one graph that are asked for one
        after the other share their stages.
        """
        graph = self.graph
        return Run(graph, (gpu_specs.load(self.gpu),), self.scenario, constants or shipped(), _kept(graph))


def samples() -> Traversable:
    """The folder of the models that were measured: in the package, or beside it where that is a checkout."""
    try:
        return resources.files("onnxperf.samples")
    except ModuleNotFoundError:
        return Path(__file__).parents[3] / "samples"


def graph_file(folder: Path, name: str) -> Path | None:
    """The graph that a row of the dataset in `folder` names, or the shipped sample's of that name; None where neither
    has it, or the name leads elsewhere.
    """
    for root in (folder, SAMPLE / folder.name):
        file = (root / name).resolve()
        if file.is_relative_to(root.resolve()) and file.is_file():
            return file
    return None


@lru_cache(maxsize=1)
def _graph(
    model: str, file: Path | None, dims: tuple[tuple[str, int], ...], trains: bool, fast_norms: bool
) -> Graph:  # fmt: skip
    if file is not None:
        graph = load(_unpacked(file), dims=dict(dims), trains=trains)
    else:
        with resources.as_file(samples().joinpath(f"{model}.onnx")) as path:
            graph = load(path, dims=dict(dims), trains=trains)
    return with_fast_norms(graph) if fast_norms else graph


@lru_cache(maxsize=1)
def _kept(graph: Graph) -> Kept:
    """Where the stages of the last graph's runs are kept."""
    return Kept()


def _unpacked(file: Path) -> bytes:
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rb") as f:
            data: bytes = f.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as e:
        raise UsageError(f"{file.name} can't be read: {printable(str(e))}") from e
    if len(data) > MAX_BYTES:
        raise UsageError(f"{file.name} holds more than {MAX_BYTES >> 20} MiB, which no graph without weights does")
    return data
