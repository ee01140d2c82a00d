"""The run graph as rows: one kernel for each device activity, in launch order, with what it waits for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnxperf.graph import Graph, fresh
from onnxperf.runtimes import HOSTS, WITHIN, Host, Runtime, paced
from op_models import Conv, Move, Operator, Tensor, Transfer, Work, work, work_or_bytes

COMPUTE, COPY = "compute", "copy"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One device activity. It leads every microsecond back to ONNX nodes.

    repeat: how often it runs, one after the other; host_s: what the host spends until it has launched the last of
    them, counted from the launch before; after: indices of the kernels whose results it reads; assumed: no rule knows
    the operator; blocks: the host waits for the result.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    work: Work
    host_s: float
    after: tuple[int, ...] = ()
    stream: str = COMPUTE
    assumed: bool = False
    blocks: bool = False
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class Kernels:
    """All kernels of one run; `tail_s` is host time after the last launch.

    `stored_bytes` is how much of the weights a run reads, each weight once: rows of a table, not the table.
    """

    rows: tuple[Kernel, ...]
    tail_s: float
    stored_bytes: int


def lower(
    graph: Graph,
    runtime: Runtime,
    *,
    cpu: Host = HOSTS["server"],
    tf32: bool | None = None,
    include_transfers: bool = False,
    pinned: bool = True,
) -> Kernels:
    """The kernels of a placed graph.

    cpu: the processor that launches them; tf32: True and False overrule the runtime's policy; include_transfers adds
    the copies of inputs to the device and of outputs back, from and to pinned or pageable memory.
    """
    host = paced(runtime.host, cpu)
    rows: list[Kernel] = []
    made: dict[str, tuple[int, ...]] = {}  # tensor -> the kernels it comes from
    stored: dict[str, int] = {}  # weight -> the most of it that one kernel reads
    waiting = 0.0
    if include_transfers:
        for t in graph.inputs:
            made[t.name] = (len(rows),)
            rows.append(_transfer(f"{t.name}.h2d", t, "h2d", pinned, (), host.copy_s))
    for o in graph.operators:
        after = tuple(sorted({k for t in o.present for k in made.get(t.name, ())}))
        if o.place in ("free", "host"):
            waiting += o.repeat * (host.node_s + (on_host(o, host.host_op_s, cpu) if o.place == "host" else 0.0))
            for t in o.outputs:
                made[t.name] = after
            continue
        if o.type in ("MemcpyFromHost", "MemcpyToHost"):
            way = "h2d" if o.type == "MemcpyFromHost" else "d2h"
            host_s = waiting + o.repeat * host.copy_s
            row = replace(_transfer(o.name, o.out, way, True, after, host_s, o), blocks=way == "d2h")
        else:
            w, assumed = _work(o, runtime, tf32)
            walked = 0.0 if WITHIN in o.attrs else host.node_s
            host_s = waiting + o.repeat * (walked + host.launch_s)
            own = runtime.kind == "cpu"  # the host computes it, before it goes on
            row = Kernel(o.name, o.type, o.nodes, w, host_s, after, assumed=assumed, blocks=own, repeat=o.repeat)
        for t in o.outputs:
            made[t.name] = (len(rows),)
        for t in o.present:
            if t.stored:
                stored[t.name] = max(stored.get(t.name, 0), min(t.bytes, row.work.weight_bytes))
        rows.append(row)
        waiting = 0.0
    if include_transfers:
        at_home = {t.name for o in graph.operators if o.place == "host" for t in o.outputs}
        for t in graph.outputs:
            if t.name in at_home:
                continue
            rows.append(_transfer(f"{t.name}.d2h", t, "d2h", pinned, made.get(t.name, ()), host.copy_s + waiting))
            waiting = 0.0
    # Names are keys for whoever reads the answer: what a room inserted may be called like a node of the file.
    taken: set[str] = set()
    return Kernels(tuple(replace(r, name=fresh(r.name, taken)) for r in rows), waiting, sum(stored.values()))


def on_host(o: Operator, least: float, cpu: Host) -> float:
    """Seconds of an operator that the processor computes itself: its bytes, its FLOPs, or the least any takes."""
    if all(t.size <= 1024 for t in (*o.present, *o.outputs)):
        return least
    w = work_or_bytes(o)[0]
    return max(least, w.bytes / cpu.bandwidth_Bps, w.flops / cpu.flops)


def _transfer(
    name: str, t: Tensor, way: str, pinned: bool, after: tuple[int, ...], host_s: float, o: Operator | None = None
) -> Kernel:
    """A copy over the bus; the host takes part in one from or to pageable memory, and waits."""
    size = Transfer(t.bytes, way, pinned)
    w = Work(size, t.dtype, "fp32", t.bytes if way == "d2h" else 0, t.bytes if way == "h2d" else 0, 0)
    type, nodes, repeat = (o.type, o.nodes, o.repeat) if o else ("Transfer", (), 1)
    return Kernel(name, type, nodes, w, host_s, after, COPY, blocks=not pinned, repeat=repeat)


def _work(o: Operator, runtime: Runtime, tf32: bool | None) -> tuple[Work, bool]:
    """The work of a kernel on the pipe that the runtime's policy picks for products."""
    if o.type == "Contiguous":
        return work(o, Move(o.out.size, o.out.shape[-1] if o.out.shape else 1)), False
    w, assumed = work_or_bytes(o)
    allowed = type(w.size).__name__ in runtime.policy.tf32 if tf32 is None else tf32
    if allowed and w.matrix_flops and w.pipe == "fp32" and w.dtype == "float32":
        w = replace(w, pipe="tensor_tf32")
    if runtime.policy.channels_last and isinstance(w.size, Conv):
        w = replace(w, size=w.size._replace(last=True))
    return w, assumed
