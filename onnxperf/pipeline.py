"""The way through the house: a model and a request in, a `Prediction` out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gpu_specs
from gpu_specs import Device
from onnxperf.errors import UsageError, printable
from onnxperf.graph import Graph, Note, load
from onnxperf.latency import METHODS, estimate, pipe_on, shipped
from onnxperf.lower import Kernels, lower
from onnxperf.memory import memory
from onnxperf.passes import PRECISIONS, precision
from onnxperf.prediction import Prediction, Scenario, conclude
from onnxperf.runtimes import LEVELS, RUNTIMES, Runtime, run_graph
from onnxperf.schedule import schedule

if TYPE_CHECKING:
    from onnx import ModelProto

MAX_STREAMS = 64
STEPS = frozenset({"LSTM", "GRU", "RNN", "Loop", "Scan", "If"})  # do far more than their operands' bytes say


def predict(
    model: str | os.PathLike[str] | bytes | ModelProto,
    example_inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    gpu: str | os.PathLike[str] | Device,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    precision: str = "keep",
    runtime: str = "ort-cuda",
    method: str = "tile-wave",
    streams: int = 1,
    cuda_graph: bool = False,
    include_transfers: bool = False,
    opt_level: str = "all",
) -> Prediction:
    """Predict one run of `model` on a GPU that need not be there.

    model: a path, the bytes of a file, or an onnx.ModelProto (left as it is).
    example_inputs: arrays or tensors, by name or in the order of the inputs; only their shapes are read.
    gpu: an id (`onnxperf gpus` lists them), an alias, a name nvidia-smi prints, or a path to a card's TOML file.
    shapes: sizes by tensor name; dims: sizes of named open dimensions; batch: the leading dimension.
    precision: keep, fp32, tf32, fp16, bf16, int8 or fp8. runtime: ort-cuda or torch-eager. method: tile-wave, sum or
    roofline. streams: how many kernels may run side by side. cuda_graph: replay a captured graph.
    include_transfers: count the copies of inputs and outputs. opt_level: disabled, basic, extended or all.

    Raises onnxperf.Error: UsageError where the request is wrong, ModelError where the model can't be used.
    """
    graph, device, scenario = prepare(
        model,
        gpu,
        shapes=shapes,
        dims=dims,
        batch=batch,
        examples=example_inputs,
        precision=precision,
        runtime=runtime,
        method=method,
        streams=streams,
        cuda_graph=cuda_graph,
        include_transfers=include_transfers,
        opt_level=opt_level,
    )
    return answer(graph, device, scenario)


def prepare(
    model: str | os.PathLike[str] | bytes | ModelProto,
    gpu: str | os.PathLike[str] | Device,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    examples: Mapping[str, Any] | Sequence[Any] | None = None,
    **terms: Any,
) -> tuple[Graph, Device, Scenario]:
    """The static graph, the device and the scenario of a request; `terms` are the other fields of `Scenario`."""
    device, notes = find(gpu)
    for what, given in (("shapes", shapes), ("dims", dims)):
        if given is not None and not isinstance(given, Mapping):
            raise UsageError(f"{what} must map names to sizes; a {type(given).__name__} does not")
    graph = load(model, shapes=shapes, dims=dims, batch=batch, examples=examples)
    inputs = tuple((t.name, t.shape) for t in graph.inputs)
    scenario = Scenario(model=graph.name, gpu=device.id, batch=graph.batch, inputs=inputs, **terms)
    return replace(graph, notes=(*notes, *graph.notes)), device, scenario


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


def answer(graph: Graph, device: Device, scenario: Scenario) -> Prediction:
    """Walk a loaded graph through every room, for one device and scenario."""
    runtime = _check(scenario)
    run = run_graph(precision(graph, scenario.precision), runtime, LEVELS[scenario.opt_level])
    if scenario.cuda_graph:
        _capturable(run)
    tf32 = {"fp32": False, "tf32": True}.get(scenario.precision)
    kernels = lower(run, runtime, tf32=tf32, include_transfers=scenario.include_transfers)
    estimates = estimate(kernels, [device], scenario.method)
    timeline = schedule(
        kernels,
        estimates,
        runtime.host,
        method=scenario.method,
        streams=scenario.streams,
        cuda_graph=scenario.cuda_graph,
    )
    workspace = int(estimates.workspace.max(initial=0))
    need = memory(run, workspace, device.capacity_bytes)
    notes = (*run.notes, *_assumed(kernels), *_pipes(kernels, device, scenario.precision), *_prototype(runtime))
    if not need.fits:
        short = (need.total_bytes - need.capacity_bytes) / 1e9
        notes = (*notes, Note("does-not-fit", f"{device.id} lacks {short:.1f} GB of memory for this run"))
    return conclude(scenario, graph, kernels, estimates, timeline, need, notes, _scope(scenario, runtime, kernels))


def _check(s: Scenario) -> Runtime:
    for what, value, allowed in (
        ("runtime", s.runtime, tuple(RUNTIMES)),
        ("precision", s.precision, PRECISIONS),
        ("method", s.method, METHODS),
        ("optimisation level", s.opt_level, tuple(LEVELS)),
    ):
        if value not in allowed:
            raise UsageError(f"unknown {what} {value!r}: it is one of {', '.join(allowed)}")
    for flag, given in (("cuda_graph", s.cuda_graph), ("include_transfers", s.include_transfers)):
        if not isinstance(given, bool):
            raise UsageError(f"{flag} must be True or False, not {given!r}")
    if not isinstance(s.streams, int) or isinstance(s.streams, bool) or not 1 <= s.streams <= MAX_STREAMS:
        raise UsageError(f"streams must be a whole number from 1 to {MAX_STREAMS}, not {s.streams!r}")
    if s.cuda_graph and s.streams > 1:
        raise UsageError("a CUDA graph is captured from one stream: leave --streams at 1 with --cuda-graph")
    return RUNTIMES[s.runtime]


def _capturable(run: Graph) -> None:
    copies = [o for o in run.operators if o.type in ("MemcpyFromHost", "MemcpyToHost")]
    if copies:
        nodes = printable(", ".join(dict.fromkeys(n for o in copies for n in o.nodes))[:200])
        raise UsageError(
            f"a CUDA graph can't be captured: {len(copies)} copies between host and device stand in the way"
            f" (at {nodes}); export with fixed dimensions"
        )


def _assumed(kernels: Kernels) -> list[Note]:
    nodes: dict[str, list[str]] = {}
    for k in kernels.rows:
        if k.assumed:
            nodes.setdefault(k.op, []).extend(k.nodes)
    return [
        Note(
            "assumed-operator",
            f"no rule fits {type}: it is taken to cost the bytes it reads and writes",
            tuple(names),
        )
        for type, names in nodes.items()
    ]


def _prototype(runtime: Runtime) -> list[Note]:
    """Says so where constants are not yet derived from measurements."""
    sources = {"latency constants": shipped().source, f"host costs of {runtime.name}": runtime.host.source}
    rough = " and ".join(name for name, source in sources.items() if source.startswith("assumed"))
    if not rough:
        return []
    return [
        Note("prototype-constants", f"{rough} are assumed, not yet derived from measurements: take ranges as rough")
    ]


def _pipes(kernels: Kernels, device: Device, precision: str) -> list[Note]:
    """What the card has no unit for, and what does the work instead."""
    moved: dict[str, list[str]] = {}
    for k in kernels.rows:
        by_default = k.work.pipe == "tensor_tf32" and precision != "tf32"  # nobody asked for it
        if k.work.matrix_flops and not by_default and pipe_on(device, k.work.pipe) != k.work.pipe:
            moved.setdefault(k.work.pipe, []).extend(k.nodes)
    return [
        Note("no-unit", f"{device.id} has no {pipe} unit: {pipe_on(device, pipe)} does the work", tuple(nodes))
        for pipe, nodes in moved.items()
    ]


def _scope(s: Scenario, runtime: Runtime, kernels: Kernels) -> str:
    """What is inside the time, and what is not."""
    steps = sorted({k.op for k in kernels.rows if k.assumed and k.op in STEPS})
    left_out = f"; the steps inside {', '.join(steps)} are not counted" if steps else ""
    if s.method != "tile-wave":
        return (
            f"the sum of all kernels by the {s.method} method; no launch gaps, no host time, no power budget{left_out}"
        )
    launch = "one replay of a CUDA graph" if s.cuda_graph else "kernels, launch gaps and host dispatch of one run"
    copies = "with copies of inputs and outputs" if s.include_transfers else "inputs and outputs stay on the device"
    under = runtime.describe.split(",")[0]
    return f"steady state, {launch} under {under}; {copies}; session start and warm-up excluded{left_out}"
