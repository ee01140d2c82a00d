"""`Scenario`: what is asked of a prediction, and what its names stand for: a host, a runtime, a plan, a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_specs import HOSTS, Device, Host, SpecError, load_cluster, load_host
from onnxperf.ground.errors import UsageError
from onnxperf.ground.names import OPTIMIZERS
from onnxperf.passes.plan import Plan, parse_plan
from onnxperf.passes.step import Training
from onnxperf.running.terms import Terms
from onnxperf.runtimes import RUNTIMES, Runtime, of_layout, of_mode, of_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Terms):
    """What was asked: a model on a card under terms. `gpu` is the card's id, `inputs` the bound shapes, `batch` that of
    all GPUs together.
    """

    model: str
    gpu: str
    batch: int = 1
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    trip_counts: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        """Every mode of torch.compile but the default one replays a CUDA graph."""
        if self.compile_mode not in (None, "default"):
            object.__setattr__(self, "cuda_graph", True)

    @property
    def samples(self) -> int:
        """Samples of one run: a training step can have several batches."""
        return self.batch * self.accumulate


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


def settled(s: Scenario, device: Device) -> Scenario:
    """The scenario on a device, with the runtime that is usual for it where none was asked for."""
    return replace(s, gpu=device.id, runtime=s.runtime or PLATFORMS[device.kind].runtime, host=s.host or "")


def usual_host(device: Device) -> str:
    """The host that is assumed for a device: a Jetson's own processor, else a desktop's or server's of its years. A
    host that computes everything is its own.
    """
    if device.id in HOSTS:
        return device.id
    if device.memory_kind.startswith("LPDDR"):
        return "jetson" if device.capability < (10, 0) else "jetson-thor"
    years = 0 if device.capability < (8, 0) else 1 if device.capability < (8, 9) else 2
    return (DESKTOPS if device.desktop else SERVERS)[years]


def launching(name: str, device: Device) -> Host:
    """The host of that name, or the usual one of a device where that is ""; where it is the device's own, with its
    cores and clock. Raises SpecError where it is not known.
    """
    usual = usual_host(device)
    host = load_host(name or usual)
    return host.clocked(device.cpu_hz, device.cpu_cores) if device.cpu_hz and host.name == usual else host


def host_of(s: Scenario, device: Device) -> Host:
    """The host of a scenario, or the usual one of the device. Raises UsageError where it is not known."""
    try:
        return launching(s.host, device)
    except SpecError as e:
        raise UsageError(str(e)) from e


def runtime_of(s: Scenario) -> Runtime:
    """The runtime of a scenario, of the version, with the layout and in the mode that it asks for, if it does."""
    return in_use(RUNTIMES[s.runtime], s.mode == "training", s.ort_version, s.layout, s.compile_mode)


def in_use(
    runtime: Runtime, trains: bool, version: str | None, layout: str | None, compile_mode: str | None
) -> Runtime:
    """The runtime as it trains or infers, of a version, with a layout and in a mode, where these are not None."""
    if trains and runtime.training is not None:
        runtime = runtime.training
    if version is not None:
        runtime = of_version(runtime, version)
    if layout is not None:
        runtime = of_layout(runtime, layout)
    return runtime if compile_mode is None else of_mode(runtime, compile_mode)


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
    try:
        return replace(device, cluster=load_cluster(cluster))
    except SpecError as e:
        raise UsageError(str(e)) from e
