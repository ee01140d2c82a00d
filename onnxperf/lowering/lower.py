"""The run graph as rows: one kernel for each device activity, in launch order, with what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from onnxperf.fusions.ort_cuda_nodes import WAITED_FOR
from onnxperf.fusions.placement import fed_on_host
from onnxperf.fusions.torch_strides import ACROSS, RUN
from onnxperf.graph import Graph, depends_on_data, fresh
from onnxperf.ground.rules import work_or_bytes
from onnxperf.lowering.runtime import HostCosts, Policy, Runtime
from onnxperf.passes.tape import FORWARD, PHASES, WITHIN, phase_of
from op_models import (
    FLOATS,
    Collective,
    Conv,
    Gemm,
    Move,
    Operator,
    Pointwise,
    Rows,
    Tensor,
    Transfer,
    Work,
    steps_of,
    work,
)

TO_DEVICE, TO_HOST = "h2d", "d2h"
TRANSFER = "Transfer"  # the type of a copy of an input or output, which is no operator
SMALL = 1024  # elements: an operator on the host with no larger tensor takes the time that the runtime has for one


class Processor(Protocol):
    """What computes the host's operators: `onnxperf.latency.processor.HostProcessor`."""

    def seconds(self, work: Work) -> float:
        """How long an operator takes, beside what the runtime spends on it."""


class HostNode(NamedTuple):
    """A node for which the host launches nothing: a view, or an operator that the host itself computes.

    computed: the host computes it; work: what it computes, None where the tensors are small; assumed: why that is its
    bytes alone, as of a kernel. name, op, nodes: those of its operator.
    """

    repeat: int
    computed: bool
    work: Work | None = None
    name: str = ""
    op: str = ""
    nodes: tuple[str, ...] = ()
    assumed: str = ""

    @property
    def unknown(self) -> bool:
        """Whether nobody knows all of its work."""
        return bool(self.assumed or (self.work is not None and self.work.steps.unknown))

    def seconds(self, costs: HostCosts, cpu: Processor) -> float:
        """Host time of one repeat, without walking to the node: 0 for a view."""
        if not self.computed:
            return 0.0
        return costs.host_op_s if self.work is None else max(costs.host_op_s, cpu.seconds(self.work))

    def passing(self, costs: HostCosts, cpu: Processor) -> float:
        """Host time of all repeats, with walking to the node."""
        return self.repeat * (costs.walk_s + self.seconds(costs, cpu))


@dataclass(frozen=True, slots=True)
class Kernel:
    """One device activity, with the names of the ONNX nodes whose work it does.

    after: indices of the kernels whose results it reads; repeat: how often it runs, one after the other; assumed: why
    the work is its bytes alone, "" where a rule says what it is; blocks: the host waits for the result; rank: the
    process, with a host thread and a card of its own, that launches it.
    skipped: the nodes that the host passes before it launches this kernel; visited: the launch includes visiting a
    node (it does not for the second and later kernels of one node); at_most: the data decide its sizes, which are
    upper bounds; phase: the part of a training step that it belongs to; operator: the one that it computes, None for a
    copy of an input or output.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    work: Work
    after: tuple[int, ...] = ()
    assumed: str = ""
    blocks: bool = False
    repeat: int = 1
    rank: int = 0
    skipped: tuple[HostNode, ...] = ()
    visited: bool = True
    at_most: bool = False
    phase: str = FORWARD
    operator: Operator | None = field(default=None, compare=False, repr=False)

    @property
    def communicates(self) -> bool:
        """Whether it exchanges data with other GPUs: it runs on the stream of its process group."""
        return isinstance(self.work.size, Collective)

    @property
    def group(self) -> str:
        """The kind of the process group of an exchange (dp, tp, pp or ep); "" for others."""
        return str(self.operator.attrs.get("group", "")) if self.operator and self.communicates else ""

    @property
    def way(self) -> str:
        """TO_DEVICE or TO_HOST for a copy between host and device, "" for a kernel."""
        return self.work.size.way if isinstance(self.work.size, Transfer) else ""


@dataclass(frozen=True, slots=True)
class Kernels:
    """All kernels of one run; `tail` are the nodes that the host passes after the last launch.

    `stored_bytes` is how much of the weights a run reads, each weight once: rows of a table, not the table.
    """

    rows: tuple[Kernel, ...]
    tail: tuple[HostNode, ...] = ()
    stored_bytes: int = 0

    @property
    def on_host(self) -> tuple[HostNode, ...]:
        """The operators that the host computes itself, in order."""
        passed = (*(n for k in self.rows for n in k.skipped), *self.tail)
        return tuple(n for n in passed if n.computed)

    @property
    def all_work(self) -> tuple[Kernel | HostNode, ...]:
        """Whatever has work: the kernels, then what the host computes."""
        return (*self.rows, *self.on_host)

    def host_seconds(self, costs: HostCosts, cpu: Processor) -> tuple[list[float], float]:
        """Seconds that the host spends for each kernel, from the launch before to its own, and after the last launch.

        Those of a kernel include the nodes that the host passes before it, and the launches of all its repeats.
        """
        launches, in_phase = [], {phase: costs.of(phase) for phase in PHASES}
        for k in self.rows:
            c = in_phase[k.phase]
            asked_s = c.library_s if type(k.work.size) in (Gemm, Conv) else 0.0
            launch_s = c.copy_s if k.way else (c.node_s if k.visited else 0.0) + c.launch_s + asked_s
            launches.append(_passing(k.skipped, c, cpu) + k.repeat * launch_s)
        return launches, _passing(self.tail, in_phase[self.last_phase], cpu)

    @property
    def last_phase(self) -> str:
        """The phase that a run ends with."""
        return self.rows[-1].phase if self.rows else FORWARD


def _passing(nodes: Sequence[HostNode], costs: HostCosts, cpu: Processor) -> float:
    """Seconds in which the host passes nodes without a launch, and computes those that are its own."""
    return sum((n.passing(costs, cpu) for n in nodes), 0.0) if nodes else 0.0


#: Elementwise kernels that passes insert, of contrib operators, which load several elements at once.
VECTORISED = frozenset({"DequantizeBlocks"})


def lower(
    graph: Graph, runtime: Runtime, *, tf32: bool | None = None, include_transfers: bool = False, pinned: bool = True
) -> Kernels:
    """The kernels of a placed graph.

    tf32: True and False overrule the runtime's policy; include_transfers adds the copies of inputs to the device, but
    for those that stay on the host, and of outputs back, from and to pinned or pageable memory.
    """
    rows, works = _Rows(), dict[Any, tuple[Work, str]]()
    staying = fed_on_host(graph)
    for t in (t for t in graph.inputs if include_transfers and t.name not in staying):
        rows.add(_transfer(f"{t.name}.h2d", t, TO_DEVICE, pinned), written=(t,))
    for o in graph.operators:
        after = rows.makers(o.present)
        if o.place in ("free", "host"):
            rows.skip(o, after)
        elif o.type in ("MemcpyFromHost", "MemcpyToHost"):
            way = TO_DEVICE if o.type == "MemcpyFromHost" else TO_HOST
            copy = _transfer(o.name, o.out, way, True)
            copy = replace(copy, op=o.type, nodes=o.nodes, repeat=o.repeat, after=after, blocks=way == TO_HOST)
            rows.add(copy, o.present, o.outputs)
        else:
            if (worked := works.get(alike := _alike(o))) is None:
                works[alike] = worked = _work(o, runtime, tf32)
            w, assumed = worked
            row = Kernel(
                o.name, o.type, o.nodes, w, after, assumed=assumed, repeat=o.repeat,
                blocks=runtime.synchronous or WAITED_FOR in o.attrs, visited=WITHIN not in o.attrs,
                at_most=any(map(depends_on_data, (*o.present, *o.outputs))), phase=phase_of(o), operator=o,
            )  # fmt: skip
            rows.add(row, o.present, o.outputs)
    if include_transfers:
        on_host = {t.name for o in graph.operators if o.place == "host" for t in o.outputs}
        for t in graph.outputs:
            if t.name not in on_host:
                rows.add(replace(_transfer(f"{t.name}.d2h", t, TO_HOST, pinned), after=rows.makers((t,))))
    return rows.kernels()


@dataclass(slots=True)
class _Rows:
    """The kernels so far, which of them make each tensor, and the nodes passed since the last launch."""

    launched: list[Kernel] = field(default_factory=list)
    maker_of: dict[str, tuple[int, ...]] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)  # weight -> the most bytes of it that one kernel reads
    skipped: list[HostNode] = field(default_factory=list)

    def makers(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """The kernels that make any of these tensors."""
        return tuple(sorted({k for t in tensors for k in self.maker_of.get(t.name, ())}))

    def skip(self, o: Operator, after: tuple[int, ...]) -> None:
        """Pass a node without a launch: kernels that read its outputs wait for those that made its inputs."""
        self.skipped.append(host_node(o))
        self.maker_of.update((t.name, after) for t in o.outputs)

    def add(self, kernel: Kernel, read: Sequence[Tensor] = (), written: Sequence[Tensor] = ()) -> None:
        """Launch a kernel that makes these tensors."""
        self.maker_of.update((t.name, (len(self.launched),)) for t in written)
        for t in read:
            if t.stored:
                self.stored[t.name] = max(self.stored.get(t.name, 0), min(t.bytes, kernel.work.weight_bytes))
        self.launched.append(replace(kernel, skipped=tuple(self.skipped)) if self.skipped else kernel)
        self.skipped.clear()

    def kernels(self) -> Kernels:
        """All rows, under unique names: an operator that a pass inserted may be called like a node of the file."""
        taken: set[str] = set()
        names = [fresh(k.name, taken) for k in self.launched]
        rows = (k if k.name == name else replace(k, name=name) for k, name in zip(self.launched, names, strict=True))
        return Kernels(tuple(rows), tuple(self.skipped), sum(self.stored.values()))


def host_node(o: Operator) -> HostNode:
    """What the host does for an operator that is a view (place "free") or that it computes itself ("host")."""
    if o.place != "host" or all(t.size <= SMALL for t in (*o.present, *o.outputs)):
        return HostNode(o.repeat, o.place == "host", None, o.name, o.type, o.nodes)
    w, assumed = work_on_cpu(o)
    return HostNode(o.repeat, True, w, o.name, o.type, o.nodes, assumed)


def work_on_cpu(o: Operator) -> tuple[Work, str]:
    """The work of an operator under ONNX Runtime on a processor, and why it is assumed, or ""."""
    w, assumed = work_or_bytes(o)
    return replace(w, steps=steps_of(o)), assumed


def _transfer(name: str, t: Tensor, way: str, pinned: bool) -> Kernel:
    """A copy over the bus; the host takes part in one from or to pageable memory, and waits."""
    read, written = (t.bytes if way == direction else 0 for direction in (TO_HOST, TO_DEVICE))
    w = Work(Transfer(t.bytes, way, pinned), t.dtype, "fp32", read, written, 0)
    return Kernel(name, TRANSFER, (), w, blocks=not pinned)


def _alike(o: Operator) -> Any:
    """What operators of a graph have in common whose work is the same; equal attributes of nodes are one object."""
    at: dict[str, int] = {}
    tensors = [t and (at.setdefault(t.name, len(at)), t.dtype, t.shape, t.kind, t.value) for t in o.inputs]
    return o.type, o.version, id(o.attrs), *tensors, *[(t.dtype, t.shape) for t in o.outputs]


def _work(o: Operator, runtime: Runtime, tf32: bool | None) -> tuple[Work, str]:
    """The work of a kernel on the pipe that the runtime's policy picks for products, and why it is assumed, or ""."""
    if o.type == "Contiguous":
        return work(o, Move(o.out.size, o.attrs.get(RUN, o.out.shape[-1] if o.out.shape else 1))), ""
    w, assumed = work_on_cpu(o) if runtime.synchronous else work_or_bytes(o)
    allowed = type(w.size).__name__ in runtime.policy.tf32 if tf32 is None else tf32
    if allowed and w.matrix_flops and w.pipe == "fp32" and w.dtype == "float32":
        w = replace(w, pipe="tensor_tf32")
    if isinstance(w.size, Gemm) and w.pipe == "tensor_fp16":
        w = replace(w, pipe=_half_pipe(w.size, runtime.policy))
    if isinstance(w.size, Gemm) and runtime.policy.pads:
        w = replace(w, size=w.size._replace(padded=True))
    if isinstance(w.size, Conv):
        policy, last = runtime.policy, w.size.last or runtime.policy.channels_last
        w = replace(
            w, size=w.size._replace(last=last, planned=policy.planned, timed=policy.timed, turned=policy.turned)
        )
    if isinstance(w.size, Rows) and w.size.passes and runtime.policy.turned:
        w = replace(w, size=w.size._replace(run=0))  # steps under cuDNN 8.3 show no block that waits for its channel
    if isinstance(w.size, Pointwise) and ACROSS in o.attrs:
        w = replace(w, size=w.size._replace(across=o.attrs[ACROSS], run=o.attrs[RUN]))
    if runtime.policy.timed and w.pipe == "tensor_fp16":
        w = replace(w, pipe="tensor_fp16_either")
    if runtime.policy.timed and isinstance(w.size, Pointwise):
        w = replace(w, size=w.size._replace(taps=0, scaled=False, plane=0))
    of_onnx = "::" not in o.type and o.type not in VECTORISED
    if isinstance(w.size, Pointwise) and runtime.policy.single_elements and of_onnx:
        w = replace(w, size=w.size._replace(single=True))
    if isinstance(w.size, Pointwise) and (asked := _asks_types(o, w.size, runtime.policy)):
        w = replace(w, size=w.size._replace(switched=asked))
    return w, assumed


def _asks_types(o: Operator, size: Pointwise, policy: Policy) -> int:
    """Of how many operands a kernel asks for each element what its type is before it converts it: casts that have no
    kernel of their own, and elementwise operators whose operands are of several floating-point types
    (needs_dynamic_casting in ATen's CUDALoops.cuh); a single number is converted before.
    """
    if o.type == "Cast":
        return int(o.present[0].dtype in policy.switched)
    asked = [t.dtype for t in o.present if t.dtype in FLOATS and t.size > 1]
    return len(asked) if policy.switched and len({*asked}) > 1 and not size.scaled else 0


def _half_pipe(size: Gemm, policy: Policy) -> str:
    """The pipe of a product in FP16: tensor cores where its sizes allow it, and what its sums are kept in."""
    on_tensor = not (size.n % policy.tensor_multiple or size.k % policy.tensor_multiple)
    if policy.sums_in_fp16:
        return "tensor_fp16_sums" if on_tensor else "fp16_sums"
    return "tensor_fp16" if on_tensor else "fp32"
