"""The run graph as rows: one kernel for each device activity, in launch order, with what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from onnxperf.graph import Graph
from onnxperf.runtimes import Runtime
from op_models import Gemm, Move, Operator, Tensor, Transfer, Work, bytes_only, known, work, work_of

COMPUTE, COPY = "compute", "copy"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One device activity. It leads every microsecond back to ONNX nodes.

    host_s: what the host spends until it has launched this kernel, counted from the launch before it;
    after: indices of the kernels whose results it reads; assumed: no rule knows the operator; blocks: the host reads
    the result and waits for it.
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


@dataclass(frozen=True, slots=True)
class Kernels:
    """All kernels of one run; `tail_s` is host time after the last launch.

    `stored_bytes` is how much of the weights a run reads, each weight once: rows of a table, not the table.
    """

    rows: tuple[Kernel, ...]
    tail_s: float
    stored_bytes: int


def lower(graph: Graph, runtime: Runtime, *, tf32: bool | None = None, include_transfers: bool = False) -> Kernels:
    """The kernels of a placed graph.

    tf32: True and False overrule the runtime's policy; include_transfers adds the copies of inputs to the device
    and of outputs back.
    """
    host = runtime.host
    rows: list[Kernel] = []
    made: dict[str, tuple[int, ...]] = {}  # tensor -> the kernels it comes from
    stored: dict[str, int] = {}  # weight -> the most of it that one kernel reads
    waiting = 0.0
    if include_transfers:
        for t in graph.inputs:
            made[t.name] = (len(rows),)
            rows.append(_transfer(f"{t.name}.h2d", t, "h2d", (), host.copy_s))
    for o in graph.operators:
        after = tuple(sorted({k for t in o.present for k in made.get(t.name, ())}))
        if o.place in ("free", "host"):
            waiting += host.node_s + (host.host_op_s if o.place == "host" else 0.0)
            for t in o.outputs:
                made[t.name] = after
            continue
        if o.type in ("MemcpyFromHost", "MemcpyToHost"):
            way = "h2d" if o.type == "MemcpyFromHost" else "d2h"
            row = replace(_transfer(o.name, o.out, way, after, waiting + host.copy_s, o), blocks=way == "d2h")
        else:
            w, assumed = _work(o, runtime, tf32)
            row = Kernel(o.name, o.type, o.nodes, w, waiting + host.node_s + host.launch_s, after, assumed=assumed)
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
            rows.append(_transfer(f"{t.name}.d2h", t, "d2h", made.get(t.name, ()), host.copy_s + waiting))
            waiting = 0.0
    return Kernels(tuple(_named_apart(rows)), waiting, sum(stored.values()))


def _named_apart(rows: list[Kernel]) -> Iterator[Kernel]:
    """Names are keys for whoever reads the answer: what a room inserted may be called like a node of the file."""
    taken: set[str] = set()
    for row in rows:
        name = row.name
        while name in taken:
            name += "'"
        taken.add(name)
        yield row if name == row.name else replace(row, name=name)


def _transfer(
    name: str, t: Tensor, way: str, after: tuple[int, ...], host_s: float, o: Operator | None = None
) -> Kernel:
    size = Transfer(t.bytes, way)
    w = Work(size, t.dtype, "fp32", t.bytes if way == "d2h" else 0, t.bytes if way == "h2d" else 0, 0)
    return Kernel(name, o.type if o else "Transfer", o.nodes if o else (), w, host_s, after, COPY)


def _work(o: Operator, runtime: Runtime, tf32: bool | None) -> tuple[Work, bool]:
    """The work of an operator, and whether it is assumed: an operator that no rule understands costs its bytes."""
    if o.type == "Contiguous":
        return work(o, Move(o.out.size, o.out.shape[-1] if o.out.shape else 1)), False
    try:
        w = work_of(o)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # a form the rule does not know
        return bytes_only(o), True
    if w.matrix_flops and w.pipe == "fp32" and w.dtype == "float32":
        kind = "Gemm" if isinstance(w.size, Gemm) else type(w.size).__name__
        if (kind in runtime.policy.tf32) if tf32 is None else tf32:
            w = replace(w, pipe="tensor_tf32")
    return w, not known(o.type)
