"""The way through the house: a model and a request in, a `Prediction` out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import gpu_specs
from gpu_specs import Device
from onnxperf.errors import UsageError, printable
from onnxperf.export import source
from onnxperf.graph import Graph, Note, load
from onnxperf.latency import METHODS, Constants, estimate, shipped
from onnxperf.lower import Kernels, lower
from onnxperf.memory import CONTEXT, memory
from onnxperf.passes import PRECISIONS, precision
from onnxperf.prediction import Prediction, Scenario, conclude
from onnxperf.remarks import remarks
from onnxperf.runtimes import FLOW, HOSTS, LEVELS, RUNTIMES, Runtime, paced, run_graph, slower
from onnxperf.schedule import schedule

if TYPE_CHECKING:
    from onnx import ModelProto
MAX_STREAMS = 64
MAX_BATCH = 65_536
SETTINGS = {"power_limit_W": "power limit (W)", "clock_Hz": "clock"}


def predict(
    model: Any,
    example_inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    gpu: str | os.PathLike[str] | Device,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    trip_counts: Mapping[str, int] | None = None,
    precision: str = "keep",
    runtime: str | None = None,
    method: str = "tile-wave",
    streams: int = 1,
    cuda_graph: bool = False,
    include_transfers: bool = False,
    pageable: bool = False,
    opt_level: str = "all",
    ort_transformers: bool = False,
    host: str | None = None,
    power_limit_W: float | None = None,
    clock_Hz: float | None = None,
    fit: bool = False,
) -> Prediction:
    """Predict one run of `model` on a GPU that need not be there.

    model: a path, the bytes of a file or an onnx.ModelProto; a torch.nn.Module, ExportedProgram or ONNXProgram; a Keras
    model or its file, a tf.function or the folder of a SavedModel. It is left as it is, and its weights are not needed.
    example_inputs: arrays or tensors, by name or in the order of the inputs; only shapes and types are read.
    gpu: an id (`onnxperf gpus` lists them), an alias, a name nvidia-smi prints, or a path to a card's TOML file, which
    can be a processor's.
    shapes: sizes by tensor name; dims: sizes of named open dimensions; batch: the leading dimension.
    trip_counts: how often a Loop runs, by node name, where the model does not say.
    precision: keep, fp32, tf32, fp16, bf16, int8 or fp8. runtime: ort-cuda (None means that, and ort-cpu on a
    processor), ort-cuda-1.12 (until that release), ort-cpu, tensorrt or torch-eager.
    method: tile-wave, sum or roofline. streams: how many kernels may run side by side. cuda_graph: replay a captured
    graph. include_transfers: count the copies of inputs and outputs, which lie in pinned memory, or `pageable`.
    opt_level: disabled, basic, extended or all. ort_transformers: first fuse what onnxruntime.transformers' optimizer
    does. host: the processor that launches kernels: server, desktop, cloud or jetson. power_limit_W, clock_Hz: what
    the card is set to. fit: take the largest batch that the card's memory holds.

    Raises onnxperf.Error: UsageError where the request is wrong, ModelError where the model can't be used.
    """
    if not isinstance(fit, bool):
        raise UsageError(f"fit must be True or False, not {fit!r}")
    model, example_inputs = source(model, example_inputs, batch, open_batch=fit)
    request = Request(
        model, gpu, shapes=shapes, dims=dims, batch=batch, trip_counts=trip_counts, examples=example_inputs,
        terms={
            "precision": precision, "runtime": runtime, "method": method, "streams": streams, "cuda_graph": cuda_graph,
            "include_transfers": include_transfers, "pageable": pageable, "opt_level": opt_level,
            "ort_transformers": ort_transformers, "host": host, "power_limit_W": power_limit_W, "clock_Hz": clock_Hz,
        },
    )  # fmt: skip
    return answer(*(largest(request) if fit else prepare(request)))


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller wants predicted: a model with its bindings, a card, and `terms`, fields of `Scenario`.

    A model that is a `Graph` has no open dimensions: bindings say nothing about it.
    """

    model: str | os.PathLike[str] | bytes | ModelProto | Graph
    gpu: str | os.PathLike[str] | Device
    shapes: Mapping[str, Sequence[int]] | None = None
    dims: Mapping[str, int] | None = None
    batch: int | None = None
    trip_counts: Mapping[str, int] | None = None
    examples: Mapping[str, Any] | Sequence[Any] | None = None
    terms: Mapping[str, Any] = field(default_factory=dict)


def prepare(request: Request) -> tuple[Graph, Device, Scenario]:
    """The static graph, the device as it is set, and the scenario of a request."""
    r, terms = request, dict(request.terms)
    device, notes = find(r.gpu)
    for what, given in (("shapes", r.shapes), ("dims", r.dims), ("trip_counts", r.trip_counts)):
        if given is not None and not isinstance(given, Mapping):
            raise UsageError(f"{what} must map names to sizes; a {type(given).__name__} does not")
        if not all(isinstance(name, str) for name in given or ()):
            raise UsageError(f"{what} must map names to sizes; one of its names is no text")
    power, clock = (_positive(terms, what) for what in ("power_limit_W", "clock_Hz"))
    try:
        device = gpu_specs.limited(device, power_W=power, clock_hz=clock)
    except gpu_specs.SpecError as e:
        raise UsageError(str(e)) from e
    if terms.get("host") is None:  # shared memory: the module's own processor launches
        terms["host"] = "jetson" if device.memory_kind.startswith("LPDDR") else "server"
    if terms.get("runtime") is None:
        terms["runtime"] = "ort-cpu" if device.kind == "cpu" else "ort-cuda"
    graph = r.model if isinstance(r.model, Graph) else load(
        r.model, shapes=r.shapes, dims=r.dims, batch=r.batch, trip_counts=r.trip_counts, examples=r.examples
    )  # fmt: skip
    inputs = tuple((t.name, t.shape) for t in graph.inputs)
    trips = tuple(sorted((r.trip_counts or {}).items()))
    scenario = Scenario(model=graph.name, gpu=device.id, batch=graph.batch, inputs=inputs, trip_counts=trips, **terms)
    return replace(graph, notes=(*notes, *graph.notes)), device, scenario


def _positive(terms: Mapping[str, Any], what: str) -> float | None:
    value = terms.get(what)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e15:
        raise UsageError(f"the {SETTINGS[what]} must be a positive number, not {value!r}")
    return float(value)


def largest(request: Request) -> tuple[Graph, Device, Scenario]:
    """The request at the largest batch whose memory fits, up to MAX_BATCH; at batch 1 where not even that does.

    Doubles until it fits no more, then narrows down: memory grows nearly evenly with the batch, so that the next
    guess interpolates. Raises UsageError where the model's batch can't be changed.
    """
    if request.batch is not None:
        raise UsageError("the batch is either given or the largest that fits, not both")

    def free(batch: int) -> int:
        need = answer(*prepare(replace(request, batch=batch))).memory
        return need.capacity_bytes - need.context_bytes - need.total_bytes

    fits, over, lack = 1, 2, 0
    try:
        left = free(1)
        while left >= 0 and over <= MAX_BATCH and (lack := -free(over)) <= 0:
            fits, left, over = over, -lack, 2 * over
    except UsageError as e:
        raise UsageError(f"the largest batch can't be looked for: {e}") from None
    halve = False
    while left >= 0 and over - fits > 1 and over <= MAX_BATCH:
        guess = (fits + over) // 2 if halve else fits + (over - fits) * left // (left + lack)
        guess, halve = min(max(guess, fits + 1), over - 1), not halve
        if (room := free(guess)) >= 0:
            fits, left = guess, room
        else:
            over, lack = guess, -room
    graph, device, scenario = prepare(replace(request, batch=fits))
    if over > MAX_BATCH:
        says = f"the largest batch is looked for up to {MAX_BATCH:,}, and that fits"
        graph = replace(graph, notes=(*graph.notes, Note("fit-limit", says)))
    return graph, device, scenario


def find(gpu: str | os.PathLike[str] | Device) -> tuple[Device, tuple[Note, ...]]:
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


def answer(graph: Graph, device: Device, scenario: Scenario, constants: Constants | None = None) -> Prediction:
    """Walk a loaded graph through every room, for one device and scenario, with the shipped constants or others."""
    runtime, cpu = costed(_check(scenario, device), device, constants or shipped()), HOSTS[scenario.host]
    run, kernels = lowered(graph, device, scenario, constants)
    estimates = estimate(kernels, [device], scenario.method, constants)
    timeline = schedule(
        kernels,
        estimates,
        paced(runtime.host, cpu),
        method=scenario.method,
        streams=scenario.streams,
        cuda_graph=scenario.cuda_graph,
    )
    workspace = int(estimates.workspace.max(initial=0))
    context = 0 if device.kind == "cpu" else CONTEXT
    need = memory(run, workspace, device.capacity_bytes, runtime.policy.arena, context)
    notes = remarks(run, kernels, estimates, need, device, scenario, runtime, constants or shipped())
    return conclude(scenario, graph, kernels, estimates, timeline, need, notes, _scope(scenario, runtime, device))


def costed(runtime: Runtime, device: Device, c: Constants) -> Runtime:
    """The runtime with the host costs that were derived from measured runs of it, where there are any, and with what
    calibration found of the host that this device has.
    """
    own = c.host.get("ort" if runtime.name.startswith("ort-cuda") else runtime.name)
    host = replace(runtime.host, **own, source="calibrated") if own else runtime.host
    return replace(runtime, host=slower(host, device.effects.host))


def lowered(
    graph: Graph, device: Device, scenario: Scenario, constants: Constants | None = None
) -> tuple[Graph, Kernels]:
    """The graph as it is really run, and its kernels."""
    runtime = costed(_check(scenario, device), device, constants or shipped())
    typed = precision(graph, scenario.precision, device)
    run = run_graph(typed, runtime, LEVELS[scenario.opt_level], scenario.ort_transformers)
    if scenario.cuda_graph:
        _capturable(run)
    tf32 = {"fp32": False, "tf32": True}.get(scenario.precision)
    transfers, pinned = scenario.include_transfers, not scenario.pageable
    cpu = HOSTS[scenario.host]
    return run, lower(run, runtime, cpu=cpu, tf32=tf32, include_transfers=transfers, pinned=pinned)


def _check(s: Scenario, device: Device) -> Runtime:
    for what, value, allowed in (
        ("runtime", s.runtime, tuple(RUNTIMES)),
        ("precision", s.precision, PRECISIONS),
        ("method", s.method, METHODS),
        ("optimisation level", s.opt_level, tuple(LEVELS)),
        ("host", s.host, tuple(HOSTS)),
    ):
        if value not in allowed:
            raise UsageError(f"unknown {what} {value!r}: it is one of {', '.join(allowed)}")
    for flag in ("cuda_graph", "include_transfers", "pageable", "ort_transformers"):
        if not isinstance(given := getattr(s, flag), bool):
            raise UsageError(f"{flag} must be True or False, not {given!r}")
    if s.pageable and not s.include_transfers:
        raise UsageError("pageable memory matters only to copies: include transfers as well")
    if s.ort_transformers and not s.runtime.startswith("ort-"):
        raise UsageError(f"onnxruntime.transformers' optimizer is ONNX Runtime's; the runtime is {s.runtime}")
    if not isinstance(s.streams, int) or isinstance(s.streams, bool) or not 1 <= s.streams <= MAX_STREAMS:
        raise UsageError(f"streams must be a whole number from 1 to {MAX_STREAMS}, not {s.streams!r}")
    if s.cuda_graph and s.streams > 1:
        raise UsageError("a CUDA graph is captured from one stream: leave --streams at 1 with --cuda-graph")
    if device.kind == "cpu":
        if RUNTIMES[s.runtime].kind != "cpu":
            raise UsageError(f"{device.id} is a processor: the runtime is ort-cpu there, not {s.runtime}")
        if s.precision in ("tf32", "fp8"):
            raise UsageError(f"a processor has no {s.precision.upper()}: take another precision")
        if s.streams > 1 or s.cuda_graph or s.include_transfers:
            raise UsageError("a processor has no streams, no CUDA graph and no copies to it: leave these options out")
    return RUNTIMES[s.runtime]


def _capturable(run: Graph) -> None:
    flow = [n for o in run.operators if o.type in FLOW for n in o.nodes]
    if flow:
        nodes = printable(", ".join(flow)[:200])
        raise UsageError(f"a CUDA graph can't be captured: the host decides at every run what {nodes} does")
    copies = [o for o in run.operators if o.type in ("MemcpyFromHost", "MemcpyToHost")]
    if copies:
        nodes = printable(", ".join(dict.fromkeys(n for o in copies for n in o.nodes))[:200])
        raise UsageError(
            f"a CUDA graph can't be captured: {len(copies)} copies between host and device stand in the way"
            f" (at {nodes}); export with fixed dimensions"
        )


def _scope(s: Scenario, runtime: Runtime, device: Device) -> str:
    """What is inside the time, and what is not."""
    if device.kind == "cpu":
        under = f"one run of an undisturbed core under {runtime.describe}"
        return (
            f"steady state, {under}, with what the runtime spends on each operator; session start and warm-up excluded"
        )
    memory = "pageable" if s.pageable else "pinned"
    copies = "inputs and outputs stay on the device"
    if s.include_transfers:
        copies = f"with copies of inputs and outputs, {memory} memory"
    if s.method != "tile-wave":
        left_out = "no launch gaps, no host time, no power budget, no streams and no CUDA graph"
        return f"the sum of all kernels by the {s.method} method; {left_out}; {copies}"
    launch = "one replay of a CUDA graph" if s.cuda_graph else "kernels, launch gaps and host dispatch of one run"
    under = runtime.describe.split(",")[0]
    host = f"launched by {HOSTS[s.host].describe} (assumed)"
    return f"steady state, {launch} under {under}, {host}; {copies}; session start and warm-up excluded"
