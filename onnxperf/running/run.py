"""`Run`: one model on some devices, every stage kept on the way from its graph to a timeline.

    graph -> typed graph -> run graph -> kernels -> estimates -> timeline, memory

A stage is a plain function of earlier stages and of those terms of the scenario that it is given. Its result is
kept under these arguments, so that a run under another term, such as a method, redoes only what depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_specs import Device, Host, usual_cluster
from onnxperf.graph import CONTROL, Graph, Note, fixed, is_static
from onnxperf.ground.errors import UsageError, counted, printable
from onnxperf.ground.names import AMP
from onnxperf.latency import (
    Constants,
    Estimates,
    HostProcessor,
    Method,
    estimate,
    pipe_on,
    shipped,
    workspaces,
)
from onnxperf.lowering.lower import Kernels, lower
from onnxperf.methods import METHODS
from onnxperf.passes.plan import Plan
from onnxperf.passes.precision import lacks_unit, precision
from onnxperf.passes.step import Training
from onnxperf.running.checks import check
from onnxperf.running.memory import Footprint, Memory, footprint, memory
from onnxperf.running.scenario import (
    PLATFORMS,
    Scenario,
    in_use,
    launching,
    plan_of,
    settled,
    training_of,
)
from onnxperf.running.terms import having
from onnxperf.runtimes import LEVELS, RUNTIMES, HostCosts, Runtime, run_graph
from onnxperf.schedule import Timeline, added_up, schedule
from op_models import Conv, Gemm

if TYPE_CHECKING:
    from onnxperf.running.microbatches import Stage

HBM = " HBM"  # ends the kind of a run on a card with such memory
P = ParamSpec("P")
T = TypeVar("T")


#: Terms of a scenario that leave the graph and the devices as they are.
TERMS = tuple(term.name for term in having(again=False))


MOST_KEPT = 512  # results of stages: some eight for each card or term that was asked for


class Kept:
    """Results of stages by the function and its arguments: plain values and tuples count by value, everything else by
    identity. The oldest half goes where there are MOST_KEPT.
    """

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def __call__(self, stage: Callable[P, T], *args: P.args, **terms: P.kwargs) -> T:
        key = (stage, *map(_identity, args), *((name, _identity(value)) for name, value in terms.items()))
        entry = self._results.get(key)
        if entry is None:
            if len(self._results) >= MOST_KEPT:
                self._results = dict([*self._results.items()][MOST_KEPT // 2 :])
            self._results[key] = entry = stage(*args, **terms), (args, terms)  # what is kept keeps its identity
        result: T = entry[0]
        return result


def _identity(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_identity, value))
    return value if isinstance(value, (str, int, float, type(None), Plan, Training)) else id(value)


@dataclass(frozen=True, eq=False)
class Run:
    """One model on the `devices` [g], all under the same scenario (its `gpu` is the first device).

    Every stage is made when it is first asked for. Raises UsageError where terms don't go together or with a device.
    Devices are columns of every stage from the estimates on, so they must be run in the same way: `columns` groups
    them. `device_notes`: of each device, what its name or the search for a batch left to say. `placed`: a graph that
    is run as it is, fused and placed, instead of the one that the runtime makes of `graph`. `baseline`: a
    published method to compare with, in place of the scenario's.
    """

    graph: Graph = field(repr=False)
    devices: tuple[Device, ...]
    scenario: Scenario
    constants: Constants = field(default_factory=shipped, repr=False)
    kept: Kept = field(default_factory=Kept, repr=False)
    device_notes: tuple[tuple[Note, ...], ...] = ()
    placed: Graph | None = field(default=None, repr=False)
    baseline: Method | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check(self.scenario, self.devices)
        if len(columns(self.devices, self.scenario.precision)) > 1:
            ids = ", ".join(d.id for d in self.devices)
            raise UsageError(
                f"{ids} can't share one run in precision {self.scenario.precision}: predict them separately"
            )

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: no stages, which are made again."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"kept": Kept()}

    def knowing(self, **stages: Any) -> None:
        """Keep results of stages, by name, that were made beside those of other runs."""
        vars(self).update(stages)

    def under(self, **terms: Any) -> Run:
        """The same run under other terms of the scenario, of TERMS; stages that don't depend on them are shared.

        Raises UsageError for what would take another graph or device, or where devices can't share the new run.
        """
        if others := terms.keys() - TERMS:
            names = ", ".join(sorted(others))
            raise UsageError(f"a run can't change its {names}: predict again; it can change {', '.join(TERMS)}")
        return replace(self, scenario=settled(replace(self.scenario, **terms), self.devices[0]))

    def alone(self, j: int) -> Run:
        """The run of device j without the others."""
        if len(self.devices) == 1:
            return self
        device, notes = self.devices[j], self.device_notes[j : j + 1]
        return replace(self, devices=(device,), scenario=replace(self.scenario, gpu=device.id), device_notes=notes)

    def scenario_on(self, j: int) -> Scenario:
        """The scenario of device j, with the host that is usual for it where none was asked for."""
        device = self.devices[j]
        return replace(self.scenario, gpu=device.id, host=self.scenario.host or self.cpus[j].name)

    @cached_property
    def runtime(self) -> Runtime:
        """The runtime, of the version and layout that were asked for, with the host costs that are usual for it."""
        s = self.scenario
        return self.kept(in_use, RUNTIMES[s.runtime], s.mode == "training", s.ort_version, s.layout, s.compile_mode)

    @property
    def has_open_dims(self) -> bool:
        """Whether the file leaves sizes of inputs open, which ONNX Runtime's sessions know only if they are fixed."""
        return self.runtime.has_levels and not all(map(is_static, self.graph.inputs))

    @property
    def method(self) -> Method:
        """The method of prediction."""
        return self.baseline or METHODS[self.scenario.method]

    @cached_property
    def cpus(self) -> tuple[Host, ...]:
        """The processor that launches the kernels of each device."""
        return self.kept(_cpus, self.scenario.host, self.devices)

    @cached_property
    def processors(self) -> tuple[HostProcessor, ...]:
        """The same, as what computes the operators that are left to them."""
        return self.kept(_processors, self.cpus, self.constants)

    @cached_property
    def unmeasured(self) -> str:
        """What of the run no measurement of its runtime confirms, "" where measurements tell of all of it."""
        return self.runtime.unmeasured(self.run_graph)

    def kind(self, j: int) -> str:
        """Runs that err alike beside their kernels: of one runtime, training steps apart, and those most of whose
        products run on tensor cores. These are other kernels, that other rows tell of, and the runtime chooses among
        them by layer; on cards with HBM apart, where less of a kernel hides behind its bytes.
        """
        return self.kinds[j]

    @cached_property
    def kinds(self) -> list[str]:
        """The `kind` of a run on each device."""
        flops = self.kept(_flops_by_pipe, self.kernels)
        tensor = [self.kept(_tensor_cores, self.devices, pipe) for pipe in flops]
        name = self.runtime.errs_as or self.scenario.runtime
        name = f"{name} training" if self.scenario.mode == "training" else name
        names = [name, f"{name} tensor", f"{name} tensor{HBM}"]
        on_tensor = [
            sum(n for n, at in zip(flops.values(), tensor, strict=True) if at[j]) for j in range(len(self.devices))
        ]
        most = [2 * n > sum(flops.values()) for n in on_tensor]
        return [names[m * (1 + d.memory_kind.startswith("HBM"))] for m, d in zip(most, self.devices, strict=True)]

    @property
    def convolutional(self) -> bool:
        """Whether most FLOPs of products are those of convolutions."""
        return bool(self.kept(_convolutional, self.kernels))

    @cached_property
    def host_costs(self) -> tuple[HostCosts, ...]:
        """What the host of each device spends."""
        return self.kept(_host_costs, self.runtime, self.devices, self.cpus, self.constants)

    @cached_property
    def session_graph(self) -> Graph:
        """The graph as a session is given it: with dimensions open as the file leaves them, or fixed."""
        return self.kept(fixed, self.graph) if self.scenario.fix_dims else self.graph

    @cached_property
    def plan(self) -> Plan:
        """How several GPUs divide the work."""
        return plan_of(self.scenario)

    @cached_property
    def own_graph(self) -> Graph:
        """The part of the graph that one GPU computes, with exchanges between GPUs."""
        graph, plan = self.session_graph, self.plan
        if plan.tp > 1:
            from onnxperf.passes.shard import shard

            graph = self.kept(shard, graph, plan.tp, self.scenario.mode == "training")
        if plan.ep > 1:
            from onnxperf.passes.experts import shard_experts

            graph = self.kept(shard_experts, graph, plan.ep, plan.tp)
        if plan.pp > 1:
            from onnxperf.passes.stages import staged

            graph = self.kept(staged, self.unstaged.own_graph, self.cuts, plan.gpus // plan.pp)
        return graph

    @cached_property
    def unstaged(self) -> Run:
        """The same run of one microbatch on the GPUs of all stages as if they were one."""
        plan = str(replace(self.plan, dp=1, pp=1, microbatches=1))
        return replace(self, scenario=replace(self.scenario, gpus=None, parallel=plan))

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Before which operators the graph is cut into the stages of a pipeline, by times on the first device."""
        from onnxperf.passes.stages import cuts

        alone, device = self.unstaged, self.devices[0]
        seconds: dict[str, float] = {}
        for k, s in zip(alone.kernels.rows, alone.estimates.seconds[:, 0].tolist(), strict=True):
            for node in k.nodes[:1]:
                seconds[node] = seconds.get(node, 0.0) + s
        each = [sum(seconds.pop(node, 0.0) for node in o.nodes[:1]) for o in alone.own_graph.operators]
        link = (device.cluster or usual_cluster(device)).link_Bps
        return self.kept(cuts, alone.own_graph, tuple(each), self.plan.pp, link)

    @cached_property
    def stage_of(self) -> Mapping[str, int]:
        """The stage of a pipeline that each node is in."""
        from onnxperf.passes.stages import stage_of_nodes

        return self.kept(stage_of_nodes, self.unstaged.own_graph, self.cuts)

    def stages(self, j: int) -> list[Stage]:
        """The stages of a pipeline on device j."""
        from onnxperf.running.microbatches import stages

        return stages(self.kernels, self.one_timeline, self.seconds, self.stage_of, self.plan.pp, j)

    @cached_property
    def typed_graph(self) -> Graph:
        """The graph with every tensor in the type that it is stored in."""
        first, name = self.devices[0], self.scenario.precision
        return self.kept(precision, self.own_graph, name, first if lacks_unit(first, name) else None)

    @cached_property
    def run_graph(self) -> Graph:
        """The graph as it is really run: fused and placed, with copies inserted."""
        s = self.scenario
        if self.placed is not None:
            return self.placed
        level, amp = LEVELS[s.opt_level], s.precision == AMP
        step = training_of(s)
        run = self.kept(run_graph, self.typed_graph, self.runtime, level, s.ort_transformers, amp, step)
        if s.cuda_graph:
            _require_capturable(run)
        return run

    @cached_property
    def kernels(self) -> Kernels:
        """One row for each device activity."""
        s, tf32 = self.scenario, {"fp32": False, "tf32": True}.get(self.scenario.precision)
        transfers, pinned = s.include_transfers, not s.pageable
        return self.kept(lower, self.run_graph, self.runtime, tf32=tf32, include_transfers=transfers, pinned=pinned)

    @cached_property
    def estimates(self) -> Estimates:
        """How long each kernel takes on each device."""
        return self.kept(estimate, self.kernels, self.devices, self.method, self.constants)

    @cached_property
    def timeline(self) -> Timeline:
        """When each kernel runs on each device; of a pipeline those of the first microbatch."""
        if self.plan.pp == 1:
            return self.one_timeline
        from onnxperf.running.microbatches import composed, largest_share

        each = [self.stages(j) for j in range(len(self.devices))]
        share = largest_share(self.run_graph, self.stage_of, self.plan.pp)
        return composed(self.one_timeline, each, self.plan.microbatches, share)

    @cached_property
    def one_timeline(self) -> Timeline:
        """When each kernel of one microbatch runs, as if there were no others."""
        kernels, estimates, s = self.kernels, self.estimates, self.scenario
        if not self.method.scheduled:
            return self.kept(added_up, kernels, estimates, self.host_costs)
        costs = self.host_costs
        return self.kept(
            schedule, kernels, estimates, costs, self.processors, streams=s.streams, cuda_graph=s.cuda_graph
        )

    @cached_property
    def seconds(self) -> NDArray[Any]:
        """How long each kernel takes on each device in this run: alone, but for exchanges that share a link."""
        return self.estimates.seconds + self.one_timeline.shared_s

    @cached_property
    def footprint(self) -> Footprint:
        """The memory of tensors, whatever the device; of a pipeline that of the stage that holds most."""
        if self.plan.pp > 1:
            from onnxperf.running.microbatches import fullest

            return self.stage_footprints[fullest(self.stage_footprints)]
        return self.kept(footprint, self.run_graph)

    @cached_property
    def stage_footprints(self) -> list[Footprint]:
        """The memory of tensors of each stage of a pipeline."""
        from onnxperf.running.microbatches import footprints

        return self.kept(footprints, self.run_graph, self.stage_of, self.plan.pp, self.plan.microbatches)

    @cached_property
    def workspace(self) -> NDArray[Any]:
        """Bytes of workspace that each kernel counts on each device."""
        return self.kept(workspaces, self.kernels, self.estimates, self.devices, self.method, self.constants)

    @cached_property
    def most_workspace(self) -> list[int]:
        """The bytes of workspace on each device."""
        return _most_workspace(self.kernels, self.workspace, self.devices, self.constants)

    def memory(self, j: int) -> Memory:
        """The memory on device j."""
        device, context = self.devices[j], PLATFORMS[self.devices[j].kind].context_bytes
        most = self.most_workspace[j]
        return self.kept(memory, self.footprint, most, device.usable_bytes, self.runtime.policy.arena, context)


def _flops_by_pipe(kernels: Kernels) -> dict[str, int]:
    """The FLOPs of all products by the pipe that computes them."""
    flops: dict[str, int] = {}
    for k in kernels.rows:
        flops[k.work.pipe] = flops.get(k.work.pipe, 0) + k.repeat * k.work.matrix_flops
    return flops


def _convolutional(kernels: Kernels) -> bool:
    flops = [(k.repeat * k.work.matrix_flops, isinstance(k.work.size, Conv)) for k in kernels.rows]
    return 2 * sum(n for n, conv in flops if conv) > sum(n for n, _ in flops)


def _tensor_cores(devices: Sequence[Device], pipe: str) -> list[bool]:
    """Whether each device does a pipe's work on tensor cores."""
    return [pipe_on(device, pipe).startswith("tensor_") for device in devices]


def _most_workspace(kernels: Kernels, each: NDArray[Any], devices: Sequence[Device], c: Constants) -> list[int]:
    """Bytes of workspace on each device: the most that a kernel takes, and cuBLAS's own, where there are products.

    That has a fixed size by generation, whatever the products: their partial sums lie in it, and so they don't make the
    memory fall where a larger batch needs no parts any more. each: bytes of every kernel on every device [n, g].
    """
    products = np.array([isinstance(k.work.size, Gemm) for k in kernels.rows], dtype=bool)
    most, cublas = each[~products].max(axis=0, initial=0), [0] * len(devices)
    if products.any():
        table = c.cublas_workspace
        cublas = [table.get(f"cc{d.capability[0]}", table["other"]) if d.kind == "gpu" else 0 for d in devices]
    return [int(x) for x in most + cublas]


def columns(devices: Sequence[Device], precision: str) -> list[list[int]]:
    """The indices of devices that can be columns of one run: of one kind, with units for the precision (a device that
    lacks one stands alone, for its graph has casts of its own).
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for j, device in enumerate(devices):
        alone = device.id if lacks_unit(device, precision) else ""
        groups.setdefault((device.kind, alone), []).append(j)
    return list(groups.values())


def _cpus(host: str, devices: Sequence[Device]) -> tuple[Host, ...]:
    """The host of that name for every device, or the one that is usual for each."""
    return tuple(launching(host, device) for device in devices)


def _processors(cpus: Sequence[Host], c: Constants) -> tuple[HostProcessor, ...]:
    """Hosts as what computes operators: the same for equal ones."""
    each = {cpu: HostProcessor(cpu, c) for cpu in cpus}
    return tuple(each[cpu] for cpu in cpus)


def _host_costs(
    runtime: Runtime, devices: Sequence[Device], cpus: Sequence[Host], c: Constants
) -> tuple[HostCosts, ...]:
    """The runtime's host costs for each device: derived from measured runs of it where there are any, scaled to its
    processor, and by what calibration found of the host that the device has.
    """
    measured = c.host.get(runtime.host_constants)
    usual = replace(runtime.host, **measured, source="calibrated") if measured else runtime.host
    paces = [(d.corrections.host, cpu.pace) for d, cpu in zip(devices, cpus, strict=True)]
    scaled = {(factor, pace): usual.scaled(factor).scaled(pace) for factor, pace in set(paces)}
    return tuple(scaled[at] for at in paces)


def _require_capturable(run: Graph) -> None:
    """Raise UsageError where no CUDA graph can be captured of a run."""
    flow = [n for o in run.operators if o.type in CONTROL for n in o.nodes]
    fallen = [n for note in run.notes if note.code == "host-fallback" for n in note.nodes]
    if fallen:
        nodes = printable(", ".join(dict.fromkeys(fallen))[:200])
        raise UsageError(f"a CUDA graph can't be captured: {nodes} runs on the CPU, for want of a CUDA kernel")
    if flow:
        nodes = printable(", ".join(flow)[:200])
        raise UsageError(f"a CUDA graph can't be captured: {nodes} depends on host-side control flow")
    copies = [o for o in run.operators if o.type in ("MemcpyFromHost", "MemcpyToHost")]
    if copies:
        nodes = printable(", ".join(dict.fromkeys(n for o in copies for n in o.nodes))[:200])
        many = ("is " if len(copies) == 1 else "are ") + counted(len(copies), "copy", "copies")
        raise UsageError(
            f"a CUDA graph can't be captured: there {many} between host and device (at {nodes}); {_on_host(run)}"
        )


def _on_host(run: Graph) -> str:
    """Why a run copies between host and device, and what helps."""
    fallen = {n for note in run.notes if note.code == "host-fallback" for n in note.nodes}
    lacking = dict.fromkeys(
        o.type.rpartition("::")[2] for o in run.operators if o.place == "host" and fallen & set(o.nodes)
    )
    if not lacking:
        return "export with fixed dimensions"
    types = printable(", ".join(lacking)[:200])
    runs = "has no CUDA kernel and runs" if len(lacking) == 1 else "have no CUDA kernel and run"
    return f"{types} {runs} on the host: use operators or types that have one"
