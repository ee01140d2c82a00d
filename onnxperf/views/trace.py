"""A prediction as a trace in Chrome's format, which https://ui.perfetto.dev opens, with the fields of ONNX Runtime's
profiles.

A lane for the host, one for each stream, one for copies, one for exchanges with other GPUs or, where these are of
several process groups, one for each kind of them. GPUs that do the same have one group of lanes, whose name says which
they are; stages of a pipeline have one each. As in a profile, what the host does for a node is an event of
category Node, what runs on the device for it one of category Kernel, which names that event as its parent; every event
stands on a line of its own, times are in microseconds. A processor computes kernels itself: its lane has Node events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from onnxperf.answer.host_timeline import HostStep, host_steps
from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.answer.prediction import Prediction
from onnxperf.ground.errors import printable
from onnxperf.ground.tables import shortened
from onnxperf.ground.version import VERSION
from onnxperf.lowering.lower import TRANSFER
from onnxperf.passes.plan import Plan
from onnxperf.running.microbatches import stage_of
from onnxperf.views.headline import launches
from op_models import Operator, Tensor

PID = 1 << 22  # no process of Linux has it, so that a profile beside the trace keeps lanes of its own
HOST = "host"
ENDING = "_kernel_time"  # of the names of nodes' events
ON_CPU = "CPUExecutionProvider"
PROVIDERS = {"ort-cuda": "CUDAExecutionProvider", "ort-cpu": ON_CPU, "tensorrt": "TensorrtExecutionProvider"}
TYPES = {"float32": "float", "float64": "double"}  # that ONNX Runtime has other names for
Event = dict[str, Any]
Operators = Mapping[int | str, tuple[int, Operator]]


def trace(p: Prediction) -> str:
    """The trace of a prediction, as JSON text. Names have no control characters."""
    return text(events_of(p))


def text(events: Iterable[Event]) -> str:
    """Events as JSON, each on a line of its own."""
    lines = (json.dumps(e, allow_nan=False) for e in events)
    return "[\n" + ",\n".join(lines) + "\n]"


def events_of(p: Prediction, title: str = "predicted", runtime: str = "") -> list[Event]:
    """The names of a prediction's lanes, and its events by lane and time. title: what the name of the process begins
    with; runtime: what runs it, where that is not the prediction's.
    """
    runtime = runtime or p.run.runtime.title or p.scenario.runtime
    on_streams = p.kernels if launches(p) or not p.run.method.scheduled else ()
    lanes = {name: PID + i for i, name in enumerate((HOST, *sorted({k.stream for k in on_streams})))}
    operators = _operators(p)
    events = [_of_the_run(p), *(_of_a_step(p, s, operators) for s in host_steps(p.run, p.column))]
    if p.scenario.cuda_graph:
        events.append(event("Session", PID, 0.0, p.run.host_costs[p.column].replay_s, "cudaGraphLaunch", {}))
    stage = _stage_of(p)
    events += (_of_a_kernel(k, lanes[k.stream], PID + stage(i)) for i, k in enumerate(on_streams))
    events.sort(key=lambda e: (e["tid"], e["ts"], -e["dur"]))
    return [*_names(p, lanes, f"{title}: {shortened(p.scenario.model)} on {p.device.name} ({runtime})"), *events]


def _names(p: Prediction, lanes: Mapping[str, int], name: str) -> Iterator[Event]:
    """The names of the process and its lanes, and the order of the lanes."""
    for s, whose in enumerate(_gpus_of_each(p.run.plan)):
        yield _metadata("process_name", PID, {"name": printable(name + whose)}, PID + s)
        for i, (lane, tid) in enumerate(lanes.items()):
            yield _metadata("thread_name", tid, {"name": lane}, PID + s)
            yield _metadata("thread_sort_index", tid, {"sort_index": i}, PID + s)


def _gpus_of_each(plan: Plan) -> list[str]:
    """Whose lanes each group shows, by ranks from 0: a stage's GPUs stand next to each other, and all do the same."""
    if plan.gpus == 1:
        return [""]
    each = plan.gpus // plan.pp
    ranks = [f"GPU {s}" if each == 1 else f"GPUs {s * each}-{(s + 1) * each - 1}, identical" for s in range(plan.pp)]
    return [f", stage {s + 1} of {plan.pp}: {rank}" if plan.pp > 1 else f", {rank}" for s, rank in enumerate(ranks)]


def _stage_of(p: Prediction) -> Callable[[int], int]:
    """The stage of a pipeline that each kernel of the run belongs to, by its index; the first where there are none."""
    if p.run.plan.pp == 1:
        return lambda index: 0
    return lambda index: stage_of(p.run.kernels.rows[index], p.run.stage_of) or 0


def _metadata(name: str, tid: int, args: Mapping[str, str | int], pid: int = PID) -> Event:
    return {"cat": "__metadata", "pid": pid, "tid": tid, "ts": 0, "ph": "M", "name": name, "args": args}


def event(cat: str, tid: int, begin_s: float, end_s: float, name: str, args: Mapping[str, Any]) -> Event:
    """A complete event; both ends are rounded alike to a nanosecond, so that neighbours don't overlap."""
    begin, end = (round(s * 1e9) for s in (begin_s, end_s))
    head = {"cat": cat, "pid": PID, "tid": tid, "dur": (end - begin) / 1e3, "ts": begin / 1e3, "ph": "X"}
    return {**head, "name": printable(name), "args": args}


def _of_the_run(p: Prediction) -> Event:
    """The whole run, with what was asked and how sure the answer is."""
    s = p.scenario
    args = {
        "onnxperf_version": VERSION, "model": printable(s.model), "gpu": s.gpu, "device": p.device.name,
        "runtime": s.runtime, "precision": s.precision, "method": s.method, "batch": s.batch,
        "low_us": p.low_seconds * 1e6, "high_us": p.high_seconds * 1e6, "interval": p.interval, "scope": p.scope,
        **({"parallel": str(p.run.plan)} if p.run.plan.gpus > 1 else {}),
    }  # fmt: skip
    return event("Session", PID, 0.0, p.seconds, "model_run", args)


def _of_a_step(p: Prediction, step: HostStep, operators: Operators) -> Event:
    """What the host does for a node, or for a copy of an input or output, which is no node."""
    index, operator = operators.get(step.name if step.kernel is None else step.kernel, (0, None))
    if operator is None:
        return event("Session", PID, step.begin_s, step.end_s, step.name, {})
    runtime = p.scenario.runtime
    args = {
        "op_name": printable(step.op.rpartition("::")[2]),
        "provider": ON_CPU if step.computed else PROVIDERS.get(runtime, printable(p.run.runtime.title or runtime)),
        "node_index": str(index), "nodes": [printable(n) for n in step.nodes],
        "input_type_shape": [_shape(t) for t in operator.present],
        "output_type_shape": [_shape(t) for t in operator.outputs],
        "parameter_size": _bytes(t for t in operator.present if t.stored),
        "activation_size": _bytes(t for t in operator.present if not t.stored),
        "output_size": _bytes(operator.outputs),
        "thread_scheduling_stats": "",  # as in a profile of a single thread
    }  # fmt: skip
    return event("Node", PID, step.begin_s, step.end_s, step.name + ENDING, args)


def _of_a_kernel(k: KernelPrediction, tid: int, pid: int) -> Event:
    """What runs on a stream for a node: all repeats of a kernel."""
    args = {
        "op_name": printable(k.op.rpartition("::")[2]), "parent_name": printable(k.name) + ENDING, "stream": k.stream,
        "nodes": [printable(n) for n in k.nodes], "bound_by": k.bound_by, "waited_for": k.stalled_on,
        "low_us": k.low_seconds * 1e6, "high_us": k.high_seconds * 1e6, "flops": k.flops, "bytes_read": k.bytes_read,
        "bytes_written": k.bytes_written, "variant": k.variant, "repeat": k.repeat, "module": printable(k.module),
    }  # fmt: skip
    return event("Kernel", tid, k.start_seconds, k.start_seconds + k.seconds, k.name, args) | {"pid": pid}


def _operators(p: Prediction) -> Operators:
    """The operators of the run and their places in it, by the index of their kernel; by name where they have none."""
    operators: dict[int | str, tuple[int, Operator]] = {}
    launched = (i for i, k in enumerate(p.run.kernels.rows) if k.op != TRANSFER)
    for place, o in enumerate(p.run.run_graph.operators):
        operators[o.name if o.place in ("free", "host") else next(launched)] = (place, o)
    return operators


def _shape(t: Tensor) -> dict[str, list[int]]:
    return {TYPES.get(t.dtype, t.dtype): list(t.shape)}


def _bytes(tensors: Iterable[Tensor]) -> str:
    return str(sum(t.bytes for t in tensors))
