"""What comes before the steady state: the build of an engine, a session, its first run, and one with a new shape.

No open measurement tells these times, so each is a range with what it assumes; `--first-run` asks for them. What a
runtime spends stands with it (`StartCosts`), what a process spends under any of them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from onnxperf.answer.outline import outline
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import counted
from onnxperf.ground.tables import duration, size
from onnxperf.lowering.lower import Kernel
from onnxperf.lowering.runtime import Span
from onnxperf.running.run import Run
from op_models import Conv

CONTEXT_S: Span = (0.1, 1.0)  # the driver's start and CUDA's context; more where a server's cards are all asleep
READ_BPS: Span = (0.2e9, 5e9)  # a file: a network disk, or the page cache
ALLOCATED_S: Span = (0.5e-3, 20e-3)  # for each GB that the allocator takes from the driver


@dataclass(frozen=True, slots=True)
class Part:
    """What a part of the start takes, in seconds from the least to the most, and what that assumes."""

    name: str
    low_seconds: float
    high_seconds: float
    assumes: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the start, whose seconds are those of its parts together."""

    parts: tuple[Part, ...]

    @property
    def low_seconds(self) -> float:
        """The least that it takes."""
        return sum(part.low_seconds for part in self.parts)

    @property
    def high_seconds(self) -> float:
        """The most that it takes."""
        return sum(part.high_seconds for part in self.parts)


@dataclass(frozen=True, slots=True)
class FirstRun(Document):
    """What comes before the steady state, in order. build: an engine, which later sessions load, None where the runtime
    builds none; session: its creation; first: the first run; new_shape: the first with an input shape that is new.
    """

    build: Stage | None
    session: Stage
    first: Stage
    new_shape: Stage

    @property
    def stages(self) -> tuple[tuple[str, Stage], ...]:
        """The stages that there are, in order, by the key that they have in JSON."""
        named = (("build", self.build), ("session", self.session), ("first", self.first), ("new_shape", self.new_shape))
        return tuple((name, stage) for name, stage in named if stage is not None)

    def to_dict(self) -> dict[str, Any]:
        """The stages as `prediction.schema.json` describes them."""
        return {name: plain(stage, "low_seconds", "high_seconds", "parts") for name, stage in self.stages}


def first_run(run: Run, j: int = 0) -> FirstRun:
    """What comes before the steady state of a run on device j."""
    start = run.runtime.start
    steady = (_steady(run, j), *_allocated(run, j))
    build = Stage((*_read(run), *_built(run))) if any(start.build_s) else None
    another = (Part("another build", 0.0, build.high_seconds, start.per_shape),) if build else ()
    return FirstRun(
        build=build, session=Stage(tuple(_session(run, j, build is not None))),
        first=Stage((*steady, *_loaded(run), *_choices(run))),
        new_shape=Stage((*steady, *_choices(run, start.again), *another)),
    )  # fmt: skip


def _times(name: str, count: float, each: Span, assumes: str) -> Iterator[Part]:
    """A part that takes so long for each of so many; none where there is nothing."""
    if count and any(each):
        yield Part(name, count * each[0], count * each[1], assumes)


def _span(each: Span) -> str:
    return f"{duration(each[0])} to {duration(each[1])}"


def _session(run: Run, j: int, built: bool) -> Iterator[Part]:
    """The creation of a session, or of a module with its weights on the card; of an engine that is built, its load."""
    start, device, weights = run.runtime.start, run.devices[j], run.memory(j).weights_bytes
    yield from _times("libraries", 1, start.library_s, "loaded, with the handles of cuBLAS and cuDNN where it has them")
    if device.kind == "gpu":
        yield from _times("CUDA context", 1, CONTEXT_S, "one process, one card")
    if built:
        yield from _of_disk("engine read", weights, "an engine as large as the weights that it holds")
    else:
        yield from _read(run)
    if device.pcie_Bps and device.kind == "gpu":
        c = run.constants.transfer
        rates = min(c["pageable"] * device.pcie_Bps, c["pageable_Bps"]), c["achieved"] * device.pcie_Bps
        told = f"{size(weights)} at {size(rates[0])}/s, from pageable memory, to {size(rates[1])}/s, from pinned"
        yield from _times("weights copied", weights, (1 / rates[1], 1 / rates[0]), told)
        yield from _allocation(weights)


def _read(run: Run) -> Iterator[Part]:
    """The model's file, read and optimised."""
    stored, nodes = sum(t.bytes for t in run.graph.stored()), len(run.graph.operators)
    each = run.runtime.start.node_s
    yield from _of_disk("weights read", stored, "the file's weights")
    yield from _times("graph", nodes, each, f"{counted(nodes, 'operator')} read and optimised, {_span(each)} each")


def _of_disk(name: str, nbytes: int, what: str) -> Iterator[Part]:
    slow, fast = READ_BPS
    told = f"{what}: {size(nbytes)} at {size(slow)}/s (network disk) to {size(fast)}/s (page cache)"
    yield from _times(name, nbytes, (1 / fast, 1 / slow), told)


def _built(run: Run) -> Iterator[Part]:
    """What is compiled or timed for kernels that differ."""
    start, different = run.runtime.start, len({(k.op, k.work) for k in run.kernels.rows if not k.way})
    kernels = counted(different, "different kernel")
    low, high = (different * s for s in start.cached_s)
    cached = f"; with {start.cache} {_span((low, high))} in all" if start.cache else ""
    yield from _times("libraries", 1, start.builder_s, "those of the builder")
    told = f"{kernels}, {_span(start.build_s)} each: {start.build}{cached}"
    yield from _times("kernels built", different, start.build_s, told)


def _steady(run: Run, j: int) -> Part:
    of_run = outline(run, j)
    return Part("run", of_run.low_seconds, of_run.high_seconds, "as in the steady state")


def convolutions(run: Run) -> list[Kernel]:
    """The kernels for each of which an algorithm is chosen: convolutions, once each where the runtime shares choices
    between those that are alike.
    """
    each = [k for k in run.kernels.rows if isinstance(k.work.size, Conv)]
    return [*{k.work: k for k in each}.values()] if run.runtime.start.searched_once else each


def _choices(run: Run, again: str = "") -> Iterator[Part]:
    """The choice of an algorithm for each convolution; `again`: when else it is made."""
    start, many = run.runtime.start, len(convolutions(run))
    low, high = (many * s for s in start.quicker_s)
    quicker = f"; {start.quicker}: {_span((low, high))} in all" if start.quicker else ""
    told = f"{counted(many, 'convolution')}, {_span(start.search_s)} each: {start.search}{quicker}"
    yield from _times("convolutions", many, start.search_s, f"{told}; {again}" if again else told)


def _loaded(run: Run) -> Iterator[Part]:
    """The code of kernels, which is loaded when it is first used."""
    kinds, each = len({(k.op, k.work.pipe) for k in run.kernels.rows if not k.way}), run.runtime.start.code_s
    told = f"code of {counted(kinds, 'kind')} of kernel, {_span(each)} each, at first use"
    yield from _times("kernels loaded", kinds, each, told)


def _allocated(run: Run, j: int) -> Iterator[Part]:
    memory = run.memory(j)
    if run.devices[j].kind == "gpu":
        yield from _allocation(memory.activations_bytes + memory.workspace_bytes)


def _allocation(nbytes: int) -> Iterator[Part]:
    told = f"{size(nbytes)} taken from the driver, {_span(ALLOCATED_S)} a GB"
    yield from _times("allocation", nbytes / 1e9, ALLOCATED_S, told)
