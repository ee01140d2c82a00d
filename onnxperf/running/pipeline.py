"""From a model and a request to a `Run`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

import gpu_specs
from gpu_specs import Device
from onnxperf.export import source
from onnxperf.graph import Graph, Note, Opened, batch_dim, opened
from onnxperf.graph import load as load_graph
from onnxperf.ground.errors import UsageError
from onnxperf.lowering.runtime import check_file
from onnxperf.passes.plan import parse_plan, per_gpu
from onnxperf.running.checks import check
from onnxperf.running.run import Kept, Run, columns
from onnxperf.running.scenario import PLATFORMS, Scenario, host_of, joined, settled
from onnxperf.running.terms import Bindings, Examples, Keywords, as_terms, check_values
from onnxperf.runtimes import RUNTIMES
from op_models import registered

if TYPE_CHECKING:
    from onnx import ModelProto
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


def request_for(
    model: Any, example_inputs: Examples = None, *, open_batch: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None, dims: Mapping[str, int] | None = None, batch: int | None = None,
    trip_counts: Mapping[str, int] | None = None, **terms: Unpack[Keywords],
) -> Request:  # fmt: skip
    """The request for a model with these bindings and terms; a framework's model is exported for it."""
    asked, sizes = as_terms(terms), shapes if isinstance(shapes, Mapping) else None
    read, examples = source(model, example_inputs, batch, open_batch, sizes, train=asked.get("mode") == "training")
    return Request(read, shapes=shapes, dims=dims, batch=batch, trip_counts=trip_counts, examples=examples, terms=asked)


def read_once(request: Request) -> Request:
    """The same request with its model read: asked again, for another batch or card, no file is read again."""
    return replace(request, model=request.model if isinstance(request.model, Graph) else opened(request.model))


def with_batch(request: Request, batch: int) -> Request:
    """The same request at another batch: it takes the place of the one that `batch`, or `dims` by its name, gave."""
    if not request.dims or isinstance(request.model, Graph):
        return replace(request, batch=batch)
    name = batch_dim(request.model, shapes=request.shapes, examples=request.examples)
    return replace(request, batch=batch, dims={dim: size for dim, size in request.dims.items() if dim != name})


def names_batch(request: Request) -> bool:
    """Whether a request says its batch: by `batch`, or by the name of the dimension that this is."""
    if request.batch is not None or not request.dims or isinstance(request.model, Graph):
        return request.batch is not None
    return batch_dim(request.model, shapes=request.shapes, examples=request.examples) in request.dims


def run_of(request: Request, gpu: Gpu) -> Run:
    """The run that a request asks for on one card."""
    return runs(request, [gpu])[0][0]


def runs(request: Request, gpus: Sequence[Gpu]) -> list[tuple[Run, int]]:
    """For each card the run that a request asks for, and which of the run's devices the card is.

    The model is loaded once, and cards share a run where they can. Raises UsageError where the request is wrong,
    ModelError where the model can't be used.
    """
    r, terms = request, dict(request.terms)
    cards = each(gpus)
    _check_bindings(r)
    check_values(terms)
    cards = [_computing(_set(device, terms), notes, terms) for device, notes in cards]
    devices = [device for device, _ in cards]
    graph, kept = _bound(r, terms.get("mode") == "training")
    plan, batch = parse_plan(terms.get("parallel"), terms.get("gpus")), graph.batch
    if plan.parts > 1 and (share := per_gpu(batch, plan)) != batch:
        graph = _at_batch(request, share, batch)
    inputs = tuple((t.name, t.shape) for t in graph.inputs)
    trips = tuple(sorted((r.trip_counts or {}).items()))
    usual = Scenario(model=graph.name, gpu="", batch=batch, inputs=inputs, trip_counts=trips, **terms)
    placed: dict[int, tuple[Run, int]] = {}
    for at in columns(devices, usual.precision):
        scenario = settled(usual, devices[at[0]])
        notes = tuple(cards[j][1] for j in at)
        run = Run(graph, tuple(devices[j] for j in at), scenario, kept=kept, device_notes=notes)
        check_file(graph, run.runtime)
        placed.update((j, (run, column)) for column, j in enumerate(at))
    return [placed[j] for j in range(len(devices))]


def _bound(r: Request, trains: bool) -> tuple[Graph, Kept]:
    """The graph of a request, and where results of the stages of its runs are kept. A model that was read once has them
    from the request before where that asked for the same sizes, and no rule was registered since.
    """
    if isinstance(r.model, Graph):
        return r.model, Kept()
    sizes: Bindings = {"shapes": r.shapes, "dims": r.dims, "batch": r.batch, "trip_counts": r.trip_counts}
    if not isinstance(r.model, Opened) or r.examples is not None:
        return load_graph(r.model, **sizes, examples=r.examples, trains=trains), Kept()
    asked = repr((sizes, trains)), registered()
    before, *bound = r.model.kept.get(_bound, (None,))
    if before != asked:
        bound = [load_graph(r.model, **sizes, trains=trains), Kept()]
        r.model.kept[_bound] = (asked, *bound)
    graph, kept = bound
    return graph, kept


def _check_bindings(r: Request) -> None:
    """Raise UsageError where sizes are not given by name."""
    for what, sizes in (("shapes", r.shapes), ("dims", r.dims), ("trip_counts", r.trip_counts)):
        if sizes is not None and not isinstance(sizes, Mapping):
            raise UsageError(f"{what} must map names to sizes; a {type(sizes).__name__} does not")
        if not all(isinstance(name, str) for name in sizes or ()):
            raise UsageError(f"{what} must map names to sizes; one of its names is not text")


def _set(device: Device, terms: Mapping[str, Any]) -> Device:
    """A device as it is asked for: what joins several of it, its power mode, and limits of power and clock."""
    power, clock, mode = (terms.get(name) for name in ("power_limit_W", "clock_Hz", "power_mode"))
    try:
        return gpu_specs.limited(joined(device, terms.get("cluster")), power_W=power, clock_hz=clock, mode=mode)
    except gpu_specs.SpecError as e:
        raise UsageError(str(e)) from e


def _computing(device: Device, notes: tuple[Note, ...], terms: Mapping[str, Any]) -> tuple[Device, tuple[Note, ...]]:
    """The device that computes, with its notes: the host of a card under a runtime that runs on processors."""
    if device.kind == "cpu" or RUNTIMES[terms.get("runtime") or PLATFORMS[device.kind].runtime].kind != "cpu":
        return device, notes
    scenario = Scenario(model="", gpu=device.id, **terms)
    check(scenario, [device])  # of what the runtime lacks, before the device is another
    host = host_of(scenario, device)
    says = f"{terms['runtime']} runs on a CPU: the time is that of {host.title}, whatever GPU is beside it, here"
    says += f" {device.name}; --host names another CPU, and `onnxperf calibrate` measures the one that it runs on"
    return host.device, (*notes, Note("other-device", says))


def _at_batch(request: Request, batch: int, before: int) -> Graph:
    """The graph of a request at another batch than `before`. Raises UsageError where its batch can't be changed."""
    if isinstance(request.model, Graph):
        raise UsageError("a bound graph can't be split by batch: leave dp, ep and microbatches out")
    r, model = with_batch(request, batch), opened(request.model)
    shapes = None if r.shapes is None else {
        name: (batch, *shape[1:]) if shape and shape[0] == before else shape for name, shape in r.shapes.items()
    }  # fmt: skip
    return load_graph(
        model, shapes=shapes, dims=r.dims, batch=r.batch, trip_counts=r.trip_counts, examples=r.examples,
        trains=r.terms.get("mode") == "training",
    )  # fmt: skip


def each(gpus: Sequence[Gpu]) -> list[tuple[Device, tuple[Note, ...]]]:
    """`find` for each card of a list. Raises UsageError where that names none, or is no list."""
    if isinstance(gpus, str | os.PathLike | Device) or not gpus:
        raise UsageError('name the cards in a list, such as gpu=["l4", "t4"]')
    return [find(gpu) for gpu in gpus]


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
