"""From a model and a request to a `Run`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import gpu_specs
from gpu_specs import Device
from onnxperf.export import source
from onnxperf.graph import Graph, Note, Opened, batch_dim, opened
from onnxperf.graph import load as load_graph
from onnxperf.ground.errors import UsageError
from onnxperf.lowering.runtime import check_opset
from onnxperf.passes import parse_plan, per_gpu
from onnxperf.running.run import Kept, Run, columns
from onnxperf.running.scenario import PLATFORMS, Scenario, joined

if TYPE_CHECKING:
    from onnx import ModelProto
MAX_BATCH = 65_536
MOST = 1e15  # milliseconds, GB, watts or hertz
SETTINGS = {"power_limit_W": "power limit (W)", "clock_Hz": "clock (Hz)"}
#: An id, an alias, a name that nvidia-smi prints, the path of a card's TOML file, or the card itself.
Gpu = str | os.PathLike[str] | Device


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller wants predicted: a model with its bindings, and `terms`, fields of `Scenario`.

    A model that is a `Graph` has no open dimensions: bindings say nothing about it.
    """

    model: str | os.PathLike[str] | bytes | ModelProto | Opened | Graph
    shapes: Mapping[str, Sequence[int]] | None = None
    dims: Mapping[str, int] | None = None
    batch: int | None = None
    trip_counts: Mapping[str, int] | None = None
    examples: Mapping[str, Any] | Sequence[Any] | None = None
    terms: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may take at most: seconds, and bytes of the card's memory that the process holds."""

    seconds: float | None = None
    bytes: float | None = None

    def left(self, run: Run) -> float:
        """The share of the scarcest of memory and limits that a run leaves; negative where it takes too much."""
        need = run.memory(0)
        shares = [(need.capacity_bytes - need.context_bytes - need.total_bytes) / need.capacity_bytes]
        if self.bytes is not None:
            shares.append((self.bytes - need.reserved_bytes) / self.bytes)
        if self.seconds is not None and min(shares) >= 0:  # else there is no need to know the time
            shares.append((self.seconds - float(run.timeline.total_s[0])) / self.seconds)
        return min(shares)


NO_LIMITS = Limits()


def request_for(
    model: Any, example_inputs: Mapping[str, Any] | Sequence[Any] | None = None, *, open_batch: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None, dims: Mapping[str, int] | None = None, batch: int | None = None,
    trip_counts: Mapping[str, int] | None = None, **terms: Any,
) -> Request:  # fmt: skip
    """The request for a model with these bindings and terms; a framework's model is exported for it."""
    sizes, train = shapes if isinstance(shapes, Mapping) else None, terms.get("mode") == "training"
    read, examples = source(model, example_inputs, batch, open_batch, sizes, train=train)
    terms |= {k: os.fspath(v) for k in ("host", "cluster") if isinstance(v := terms.get(k), os.PathLike)}
    return Request(read, shapes=shapes, dims=dims, batch=batch, trip_counts=trip_counts, examples=examples, terms=terms)


def read_once(request: Request) -> Request:
    """The same request with its model read: asked again, for another batch or card, no file is read again."""
    return replace(request, model=request.model if isinstance(request.model, Graph) else opened(request.model))


def with_batch(request: Request, batch: int) -> Request:
    """The same request at another batch: it takes the place of the one that `batch`, or `dims` by its name, gave."""
    if not request.dims or isinstance(request.model, Graph):
        return replace(request, batch=batch)
    name = batch_dim(request.model, shapes=request.shapes, examples=request.examples)
    return replace(request, batch=batch, dims={dim: size for dim, size in request.dims.items() if dim != name})


def run_of(request: Request, gpu: Gpu) -> Run:
    """The run that a request asks for on one card."""
    return runs(request, [gpu])[0][0]


def runs(request: Request, gpus: Sequence[Gpu]) -> list[tuple[Run, int]]:
    """For each card the run that a request asks for, and which of the run's devices the card is.

    The model is loaded once, and cards share a run where they can. Raises UsageError where the request is wrong,
    ModelError where the model can't be used.
    """
    r, terms = request, dict(request.terms)
    found = [find(gpu) for gpu in gpus]
    for what, given in (("shapes", r.shapes), ("dims", r.dims), ("trip_counts", r.trip_counts)):
        if given is not None and not isinstance(given, Mapping):
            raise UsageError(f"{what} must map names to sizes; a {type(given).__name__} does not")
        if not all(isinstance(name, str) for name in given or ()):
            raise UsageError(f"{what} must map names to sizes; one of its names is no text")
    power, clock = (_positive(terms, what) for what in SETTINGS)
    found = [(joined(device, terms.get("cluster")), notes) for device, notes in found]
    try:
        devices = [gpu_specs.limited(device, power_W=power, clock_hz=clock) for device, _ in found]
    except gpu_specs.SpecError as e:
        raise UsageError(str(e)) from e
    graph = r.model if isinstance(r.model, Graph) else load_graph(
        r.model, shapes=r.shapes, dims=r.dims, batch=r.batch, trip_counts=r.trip_counts, examples=r.examples,
        trains=terms.get("mode") == "training",
    )  # fmt: skip
    plan, batch = parse_plan(terms.get("parallel"), terms.get("gpus")), graph.batch
    if plan.parts > 1 and (share := per_gpu(batch, plan)) != batch:
        graph = _at_batch(request, share, batch)
    inputs = tuple((t.name, t.shape) for t in graph.inputs)
    trips = tuple(sorted((r.trip_counts or {}).items()))
    usual = Scenario(model=graph.name, gpu="", batch=batch, inputs=inputs, trip_counts=trips, **terms)
    placed: dict[int, tuple[Run, int]] = {}
    kept = Kept()
    for at in columns(devices, usual.precision):
        own = [devices[j] for j in at]
        first = own[0]
        scenario = replace(
            usual, gpu=first.id, host=usual.host or "", runtime=usual.runtime or PLATFORMS[first.kind].runtime
        )
        run = Run(graph, tuple(own), scenario, kept=kept, device_notes=tuple(found[j][1] for j in at))
        check_opset(graph, run.runtime)
        if terms.get("host") and not run.method.scheduled:
            raise UsageError(f"--host would change nothing under the method {usual.method}: leave that out")
        placed.update((j, (run, column)) for column, j in enumerate(at))
    return [placed[j] for j in range(len(devices))]


def _at_batch(request: Request, batch: int, before: int) -> Graph:
    """The graph of a request at another batch than `before`. Raises UsageError where its batch can't be changed."""
    if isinstance(request.model, Graph):
        raise UsageError("a graph that is bound can't be divided by its batch: leave dp, ep and microbatches out")
    r, model = with_batch(request, batch), opened(request.model)
    shapes = None if r.shapes is None else {
        name: (batch, *shape[1:]) if shape and shape[0] == before else shape for name, shape in r.shapes.items()
    }  # fmt: skip
    return load_graph(model, shapes=shapes, dims=r.dims, batch=r.batch, trip_counts=r.trip_counts, examples=r.examples)


def _positive(terms: Mapping[str, Any], what: str) -> float | None:
    value = terms.get(what)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MOST:
        raise UsageError(f"the {SETTINGS[what]} must be a positive number below {MOST:g}, not {value!r}")
    return float(value)


def limits_of(max_ms: float | None, max_gb: float | None, name: str = "max_ms") -> Limits:
    """Limits in seconds and bytes; UsageError where one is no positive number. name: what the user calls max_ms."""
    for what, value in ((name, max_ms), ("max_gb", max_gb)):
        number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value < MOST):
            raise UsageError(f"{what} must be a positive number below {MOST:g}, not {value!r}")
    return Limits(max_ms and float(max_ms) * 1e-3, max_gb and float(max_gb) * 1e9)


def largest(request: Request, gpu: Gpu, limits: Limits = NO_LIMITS) -> Run:
    """The run at the largest batch that fits into the memory and keeps the limits, up to MAX_BATCH.

    It is the run at the least batch where not even that does: 1, or what a plan divides among several GPUs. Doubles
    until a batch is too large, then narrows down: memory and time grow nearly evenly with the batch, so that every
    other guess interpolates. The model is read once, and no guess is estimated further than the limits need. Raises
    UsageError where the model's batch can't be changed.
    """
    if request.batch is not None:
        raise UsageError("the batch is either given or the largest that fits, not both")
    device, notes = find(gpu)
    request, terms = read_once(request), request.terms
    least = parse_plan(terms.get("parallel"), terms.get("gpus")).parts

    def at(times: int) -> tuple[Run, float]:
        """The run at so many least batches, and the share of the scarcest allowance left; negative: it is too much."""
        try:
            run = run_of(replace(request, batch=times * least), device)
        except UsageError as e:
            raise UsageError(f"the largest batch can't be looked for: {e}") from None
        return run, limits.left(run)

    fits, over, lack, halve = 1, 0, 0.0, False  # over: the smallest known to be too large; lack: by which share
    run, left = at(fits)
    while left >= 0 and (over - fits > 1 if over else 2 * fits * least <= MAX_BATCH):
        guess = 2 * fits
        if over:
            guess = (fits + over) // 2 if halve else fits + int((over - fits) * left / (left + lack))
            guess, halve = min(max(guess, fits + 1), over - 1), not halve
        tried, room = at(guess)
        if room >= 0:
            run, fits, left = tried, guess, room
        else:
            over, lack = guess, -room
    if left >= 0 and not over:
        notes = (*notes, Note("fit-limit", f"the largest batch is looked for up to {MAX_BATCH:,}, and that fits"))
    return replace(run, device_notes=(notes,))


def find(gpu: Gpu) -> tuple[Device, tuple[Note, ...]]:
    """The device a name stands for, with a note where the name left a choice."""
    if isinstance(gpu, Device):
        return gpu, ()
    if not isinstance(gpu, (str, os.PathLike)):
        raise UsageError(f"gpu can't be a {type(gpu).__name__}: give an id, a name or the path of a card's TOML file")
    try:
        name = str(os.fspath(gpu))
        _, remark = gpu_specs.resolve(name)
        device = gpu_specs.load(name)
    except gpu_specs.SpecError as e:
        raise UsageError(str(e)) from e
    return device, (Note("gpu-alias", remark),) if remark else ()
