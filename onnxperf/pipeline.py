"""From a model and a request to a `Run` and its `Prediction`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Unpack, overload

import gpu_specs
from gpu_specs import Device
from onnxperf.errors import UsageError, speaking_of_arguments
from onnxperf.export import source
from onnxperf.graph import Graph, Note, Opened, batch_dim, opened
from onnxperf.graph import load as load_graph
from onnxperf.passes import parse_plan, per_gpu
from onnxperf.prediction import Prediction, summarise
from onnxperf.run import Kept, Run, columns
from onnxperf.scenario import PLATFORMS, FurtherTerms, Scenario, joined, known

if TYPE_CHECKING:
    from onnx import ModelProto
MAX_BATCH = 65_536
MOST = 1e15  # milliseconds, GB, watts or hertz
SETTINGS = {"power_limit_W": "power limit (W)", "clock_Hz": "clock (Hz)"}
#: An id, an alias, a name that nvidia-smi prints, the path of a card's TOML file, or the card itself.
Gpu = str | os.PathLike[str] | Device


@overload
def predict(
    model: Any, example_inputs: Mapping[str, Any] | Sequence[Any] | None = None, *, gpu: Gpu, **terms: Any
) -> Prediction: ...


@overload
def predict(
    model: Any, example_inputs: Mapping[str, Any] | Sequence[Any] | None = None, *, gpu: Sequence[Gpu], **terms: Any
) -> list[Prediction]: ...


def predict(  # type: ignore[misc]  # the overloads leave the terms to this signature
    model: Any,
    example_inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    gpu: Any = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    trip_counts: Mapping[str, int] | None = None,
    precision: str = "keep",
    layout: str | None = None,
    runtime: str | None = None,
    method: str = "tile-wave",
    streams: int = 1,
    cuda_graph: bool = False,
    include_transfers: bool = False,
    pageable: bool = False,
    opt_level: str = "all",
    ort_version: str | None = None,
    ort_transformers: bool = False,
    fix_dims: bool = False,
    mode: str = "inference",
    loss: str | None = None,
    optimizer: str | None = None,
    recompute: bool = False,
    host: str | os.PathLike[str] | None = None,
    power_limit_W: float | None = None,
    clock_Hz: float | None = None,
    fit: bool = False,
    max_ms: float | None = None,
    max_gb: float | None = None,
    **further: Unpack[FurtherTerms],
) -> Prediction | list[Prediction]:
    """Predict one run of `model` on a GPU that need not be there.

    model: a path, the bytes of a file or an onnx.ModelProto; a torch.nn.Module, ExportedProgram or ONNXProgram; a Keras
    model or its file, a tf.function or the folder of a SavedModel. It is left as it is (but a Keras model that is not
    built is built for its example inputs, as by a first call), and its weights are not needed.
    example_inputs: arrays or tensors, by name or in the order of the inputs; only shapes and types are read.
    gpu: an id (`onnxperf gpus` lists them), an alias, a name nvidia-smi prints, or a path to a card's TOML file, which
    can be a processor's. A list of them gives a list of predictions, in little more time than one.
    shapes: sizes by tensor name; dims: sizes of named open dimensions; batch: the leading dimension, even where
    the file fixes another.
    trip_counts: how often a Loop runs, by node name, where the model does not say.
    precision: keep, fp32, tf32, fp16, bf16, int8, fp8 or amp, PyTorch's autocast to float16. layout: nchw or nhwc, how
    images lie in memory, where the runtime can be told. runtime: ort-cuda (None means that, and ort-cpu on a
    processor), ort-cpu, tensorrt or torch-eager. ort_version: an older release of ort-cuda, such as 1.12.
    method: tile-wave, sum or roofline. streams: how many kernels may run side by side. cuda_graph: replay a captured
    graph. include_transfers: count the copies of inputs and outputs, which lie in pinned memory, or `pageable`.
    opt_level: disabled, basic, extended or all. ort_transformers: first fuse what onnxruntime.transformers' optimizer
    does. fix_dims: the session is given the sizes of open dimensions when it starts, as ONNX Runtime's
    `add_free_dimension_override_by_name` does; else it is open as the model is exported. host: the processor that
    launches kernels, such as server-2023, or a path to its file, as `onnxperf calibrate --host-only` writes it.
    mode: inference, or training, a step of it: forward, backward and update of the parameters, under torch-eager or
    ort-cuda; a graph that holds its backward pass is taken as it is.
    loss: cross-entropy or mse, of the first output; None for what the model ends with. optimizer: adam (None means
    that), sgd or none. recompute: compute activations again in the backward pass instead of keeping them. accumulate:
    of how many batches gradients are added up before the update.
    gpus, parallel: how many GPUs, and how they divide the work: "dp=4" the batch, which is that of all, "tp=4" matrices
    as Megatron-LM, "pp=4:microbatches=8" layers, "ep=4" batch and experts, "dp=2,tp=4" both; by default a plan decides
    how many there are. cluster: what joins them, such as dgx-h100, or a path to a cluster's TOML file.
    power_limit_W, clock_Hz: what the card is set to. fit: take the largest batch that the card's memory holds and that
    keeps to max_ms milliseconds and max_gb GB (10^9), which are for fit alone (`check` raises where they are not kept);
    batch 1 where there is none.

    Raises onnxperf.Error: UsageError where the request is wrong, ModelError where the model can't be used.
    """
    with speaking_of_arguments():
        if gpu is None:
            raise UsageError('name the card: predict(model, gpu="l4")')
        if not isinstance(fit, bool):
            raise UsageError(f"fit must be True or False, not {fit!r}")
        if not fit and (max_ms is not None or max_gb is not None):
            raise UsageError("max_ms and max_gb limit the batch that fit takes: give fit=True, or ask onnxperf.check")
        return _on(gpu, request_for(
            model, example_inputs, open_batch=fit, shapes=shapes, dims=dims, batch=batch, trip_counts=trip_counts,
            precision=precision, layout=layout, runtime=runtime, method=method, streams=streams, cuda_graph=cuda_graph,
            include_transfers=include_transfers, pageable=pageable, opt_level=opt_level, ort_version=ort_version,
            ort_transformers=ort_transformers, fix_dims=fix_dims, mode=mode, loss=loss, optimizer=optimizer,
            recompute=recompute, host=host, power_limit_W=power_limit_W, clock_Hz=clock_Hz,
            **known(further),
        ), limits_of(max_ms, max_gb) if fit else None)  # fmt: skip


def _on(gpu: Any, request: Request, limits: Limits | None) -> Prediction | list[Prediction]:
    """The prediction for a card, or those for a list of them; at the largest batch that keeps the limits, if given."""
    several = isinstance(gpu, Sequence) and not isinstance(gpu, (str, bytes))
    gpus: list[Gpu] = list(gpu) if several else [gpu]
    if limits is not None:
        found = [summarise(largest(request, g, limits)) for g in gpus]
    else:
        found = [summarise(run, j) for run, j in runs(request, gpus)]
    return found if several else found[0]


def load(
    model: Any, example_inputs: Mapping[str, Any] | Sequence[Any] | None = None, *, batch: int | None = None
) -> Opened:
    """Read a model's file, or export a framework's model, once: what this returns can be predicted many times.

    model, example_inputs and batch are those of `predict`; a framework's model keeps the sizes it is exported at.
    """
    with speaking_of_arguments():
        exported, examples = source(model, example_inputs, batch)
        if examples is not None:
            raise UsageError("example_inputs are for a framework's model; those of a file go to predict")
        return opened(exported)


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


def gpus() -> list[Device]:
    """Every card that ships, as `onnxperf gpus` lists them, each with its figures and their sources."""
    return [find(id)[0] for id in gpu_specs.ids()]


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
