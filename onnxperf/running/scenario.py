"""What is asked of a prediction: a `Scenario`, and which terms go together."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TypedDict

from gpu_specs import Device, Host, SpecError, clusters, load_cluster, load_host, usual_cluster
from onnxperf.ground.errors import UsageError
from onnxperf.methods import METHODS
from onnxperf.passes import AMP, LOSSES, OPTIMIZERS, PRECISIONS, QUANTISED, Plan, Training, parse_plan
from onnxperf.runtimes import LAYOUTS, LEVELS, RUNTIMES, Runtime, of_layout, of_version

MAX_STREAMS = 64
MAX_ACCUMULATED = 100_000
MODES = ("inference", "training")


USUAL_METHOD = "tile-wave"


@dataclass(frozen=True, slots=True)
class Scenario:
    """What was asked: a model on a card under a runtime. `gpu` is the card's id, `inputs` the bound shapes.

    host: the processor that launches kernels, a name of `gpu_specs.HOSTS` or the path of a host's file, "" for the one
    that is usual for the device; power_limit_W, clock_Hz: None leaves the card's own; pageable: inputs and outputs lie
    in memory that is not pinned; ort_transformers: onnxruntime.transformers fuses first; ort_version: a release
    of the runtime, None for today's; fix_dims: the session is given the sizes of open dimensions before it runs;
    layout: how images lie in memory, of LAYOUTS, None for what is usual for the runtime; mode: of MODES; loss,
    optimizer, recompute, accumulate: those of a training step, see `onnxperf.passes.training`; None, False and 1 in
    inference; gpus, parallel: how many GPUs, and the plan by which they divide the work (`passes.plan.parse_plan`),
    None for one, with `batch` that of all; cluster: what joins them, a name of `gpu_specs.clusters` or a path, None for
    what is usual.
    """

    model: str
    gpu: str
    runtime: str = "ort-cuda"
    opt_level: str = "all"
    ort_version: str | None = None
    precision: str = "keep"
    layout: str | None = None
    method: str = USUAL_METHOD
    batch: int = 1
    streams: int = 1
    cuda_graph: bool = False
    include_transfers: bool = False
    pageable: bool = False
    ort_transformers: bool = False
    fix_dims: bool = False
    mode: str = "inference"
    loss: str | None = None
    optimizer: str | None = None
    recompute: bool = False
    accumulate: int = 1
    gpus: int | None = None
    parallel: str | None = None
    cluster: str | None = None
    host: str = ""
    power_limit_W: float | None = None
    clock_Hz: float | None = None
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    trip_counts: tuple[tuple[str, int], ...] = ()

    @property
    def samples(self) -> int:
        """Samples of one run: a training step can have several batches."""
        return self.batch * self.accumulate


class FurtherTerms(TypedDict, total=False):
    """Terms of training and of several GPUs, as `onnxperf.predict` describes them."""

    accumulate: int
    gpus: int | None
    parallel: str | None
    cluster: str | os.PathLike[str] | None


def known(further: FurtherTerms) -> FurtherTerms:
    """These terms. Raises TypeError for keywords that are none, as Python does."""
    if unknown := further.keys() - FurtherTerms.__annotations__.keys():
        raise TypeError(f"predict() got an unexpected keyword argument {min(unknown)!r}")
    return further


@dataclass(frozen=True, slots=True)
class Platform:
    """What a kind of device is run with: its usual runtime, the bytes that the driver takes of its memory, the
    precisions that it lacks, and whether it has streams, CUDA graphs and copies to it.
    """

    runtime: str
    context_bytes: int
    lacks: tuple[str, ...] = ()
    launches: bool = True


#: By `Device.kind`. CUDA's context with the kernels of cuDNN and cuBLAS that a process has loaded is assumed.
PLATFORMS = {
    "gpu": Platform("ort-cuda", context_bytes=400_000_000),
    "cpu": Platform("ort-cpu", context_bytes=0, lacks=("tf32", "fp8"), launches=False),
}


#: Hosts of the years of cards before Ampere, of Ampere, and later.
SERVERS, DESKTOPS = ("server-2018", "server-2020", "server-2023"), ("desktop-2018", "desktop-2020", "desktop")


def usual_host(device: Device) -> str:
    """The host that is assumed for a device: a Jetson's own processor, else a desktop's or server's of its years."""
    if device.memory_kind.startswith("LPDDR"):
        return "jetson"
    years = 0 if device.capability < (8, 0) else 1 if device.capability < (8, 9) else 2
    return (DESKTOPS if device.desktop else SERVERS)[years]


def host_of(s: Scenario, device: Device) -> Host:
    """The host of a scenario, or the usual one of the device. Raises UsageError where it is not known."""
    if not isinstance(s.host, str):
        raise UsageError(f"host can't be a {type(s.host).__name__}: give a name, or the path of a host's file")
    try:
        return load_host(s.host or usual_host(device))
    except SpecError as e:
        raise UsageError(str(e)) from e


def runtime_of(s: Scenario) -> Runtime:
    """The runtime of a scenario, of the version and with the layout that it asks for, if it does."""
    runtime = RUNTIMES[s.runtime]
    if s.mode == "training" and runtime.training is not None:
        runtime = runtime.training
    if s.ort_version is not None:
        runtime = of_version(runtime, s.ort_version)
    return runtime if s.layout is None else of_layout(runtime, s.layout)


def training_of(s: Scenario) -> Training | None:
    """The training step that a scenario asks for; None in inference."""
    if s.mode == "inference":
        return None
    plan = plan_of(s)
    optimizer, added = s.optimizer or OPTIMIZERS[0], plan.microbatches > 1
    return Training(s.loss or "", optimizer, s.recompute, s.accumulate, plan.copies, plan.tp, added)


def plan_of(s: Scenario) -> Plan:
    """How several GPUs divide the work. Raises UsageError where that is no plan for so many."""
    return parse_plan(s.parallel, s.gpus)


def joined(device: Device, cluster: str | None) -> Device:
    """The device with what joins several of it. Raises UsageError where no such cluster is known."""
    if cluster is None:
        return device
    if not isinstance(cluster, str):
        raise UsageError(f"cluster can't be a {type(cluster).__name__}: give a name, or the path of a cluster's file")
    try:
        return replace(device, cluster=load_cluster(cluster))
    except SpecError as e:
        raise UsageError(str(e)) from e


def _check_parallel(s: Scenario, device: Device) -> None:
    """Raise UsageError where the GPUs of a plan are not joined, or it does not go with other terms."""
    plan = plan_of(s)
    if plan.gpus == 1:
        if s.cluster is not None:
            raise UsageError(
                "a cluster joins several GPUs, and one is predicted: give --parallel, or leave --cluster out"
            )
        return
    if device.kind != "gpu":
        raise UsageError(f"--parallel divides work among GPUs; {device.id} is a processor")
    if s.include_transfers:
        raise UsageError(
            "several GPUs are predicted without copies of inputs and outputs: leave --include-transfers out"
        )
    if s.cuda_graph and plan.pp > 1:
        what = "each stage of a pipeline replays a graph of its own for each microbatch, which is not predicted"
        raise UsageError(f"{what}: leave --cuda-graph out, or take dp, tp or ep")
    if s.cuda_graph and s.mode == "training":
        raise UsageError("a CUDA graph of a training step is predicted on one GPU alone: leave --cuda-graph out")
    if s.mode == "training" and s.runtime != "torch-eager":
        raise UsageError("training on several GPUs is predicted for PyTorch: give --runtime torch-eager")
    if s.accumulate > 1 and (plan.copies > 1 or plan.pp > 1):
        raise UsageError(
            "gradients are accumulated on one GPU or with tensor parallelism alone: leave --accumulate out"
        )
    if s.mode == "training" and plan.ep > 1:
        raise UsageError("expert parallelism is predicted for inference alone: no gradient of experts is known")
    found = device.cluster or usual_cluster(device)
    if plan.gpus > found.gpus_per_node and not found.network_Bps:
        what = (
            f"{found.name or device.id} joins {found.gpus_per_node} GPUs, {plan.gpus - found.gpus_per_node} fewer than"
        )
        raise UsageError(
            f"{what} {plan} takes: give --cluster with a network, one of {', '.join(clusters())}, or a path"
        )


def _check_training(s: Scenario, runtime: Runtime) -> None:
    """Raise UsageError where terms of a training step don't go together."""
    for what, value, allowed in (
        ("mode", s.mode, MODES), ("loss", s.loss, LOSSES), ("optimizer", s.optimizer, OPTIMIZERS)
    ):  # fmt: skip
        if value is not None and value not in allowed:
            raise UsageError(f"unknown {what} {value!r:.60}: it is one of {', '.join(allowed)}")
    if not isinstance(s.accumulate, int) or isinstance(s.accumulate, bool) or not 1 <= s.accumulate <= MAX_ACCUMULATED:
        raise UsageError(f"accumulate must be a whole number from 1 to {MAX_ACCUMULATED}, not {s.accumulate!r:.60}")
    if s.mode == "inference":
        if s.loss is not None or s.optimizer is not None or s.recompute or s.accumulate != 1:
            what = "a loss, an optimizer, recomputing and accumulating gradients"
            raise UsageError(f"{what} belong to a training step: give --mode training")
        return
    if runtime.autograd is None:
        raise UsageError(f"{s.runtime} does not train: give --runtime torch-eager or ort-cuda")
    if s.precision in QUANTISED:
        raise UsageError(f"a training step in {s.precision} is not predicted: take fp32, tf32, fp16, bf16 or amp")
    if s.include_transfers:
        raise UsageError("copies are not counted in a training step: leave --include-transfers out")


def check(s: Scenario, device: Device) -> None:
    """Raise UsageError where a term is unknown, or does not go with another one or with the device."""
    for what, value, allowed in (
        ("runtime", s.runtime, tuple(RUNTIMES)),
        ("precision", s.precision, PRECISIONS),
        ("method", s.method, tuple(METHODS)),
        ("optimisation level", s.opt_level, tuple(LEVELS)),
        ("layout", LAYOUTS[0] if s.layout is None else s.layout, LAYOUTS),
    ):
        if not isinstance(value, str):
            raise UsageError(f"{what} can't be a {type(value).__name__}: give a name, one of {', '.join(allowed)}")
        if value not in allowed:
            raise UsageError(f"unknown {what} {value!r}: it is one of {', '.join(allowed)}")
    host_of(s, device)
    for flag in ("cuda_graph", "include_transfers", "pageable", "ort_transformers", "fix_dims", "recompute"):
        if not isinstance(given := getattr(s, flag), bool):
            raise UsageError(f"{flag} must be True or False, not {given!r}")
    runtime = runtime_of(s)
    _check_training(s, runtime)
    _check_parallel(s, device)
    if s.precision == AMP and runtime.autocast is None:
        instead = "amp is PyTorch's; give --runtime torch-eager, or another precision"
        raise UsageError(f"{s.runtime} has no autocast: {instead}")
    if s.opt_level != "all" and not runtime.has_levels:
        raise UsageError(f"{s.runtime} has no optimisation levels: leave --opt-level out")
    if s.pageable and not s.include_transfers:
        raise UsageError("pageable memory matters only to copies: give --include-transfers as well")
    if s.ort_transformers and not runtime.offline:
        raise UsageError(f"onnxruntime.transformers' optimizer is ONNX Runtime's; the runtime is {s.runtime}")
    if not isinstance(s.streams, int) or isinstance(s.streams, bool) or not 1 <= s.streams <= MAX_STREAMS:
        raise UsageError(f"streams must be a whole number from 1 to {MAX_STREAMS}, not {s.streams!r}")
    if s.cuda_graph and s.streams > 1:
        raise UsageError("a CUDA graph is captured from one stream: leave --streams at 1 with --cuda-graph")
    method, power = METHODS[s.method], s.power_limit_W is not None
    laid_out = (("--streams", s.streams > 1), ("--cuda-graph", s.cuda_graph))
    unused = [flag for flag, given in laid_out if given and not method.scheduled]
    unused += ["--power-limit"] if power and not method.power_limit else []
    if unused:
        raise UsageError(f"{', '.join(unused)} would change nothing under the method {s.method}: leave that out")
    platform = PLATFORMS[device.kind]
    if platform.launches:
        if runtime.synchronous and (s.cuda_graph or s.streams > 1):
            what = "no streams and no CUDA graph: leave --streams and --cuda-graph out"
            raise UsageError(f"{s.runtime} computes on a processor and has {what}")
        return
    if runtime.kind != device.kind:
        raise UsageError(f"{device.id} is a processor: the runtime is {platform.runtime} there, not {s.runtime}")
    if s.precision in platform.lacks:
        raise UsageError(f"a processor has no {s.precision.upper()}: take another precision")
    if s.streams > 1 or s.cuda_graph or s.include_transfers:
        raise UsageError("a processor has no streams, no CUDA graph and no copies to it: leave these options out")
