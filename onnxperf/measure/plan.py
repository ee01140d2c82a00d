"""A job made ready to run: the model read, its dimensions bound, its inputs and weights looked at."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onnxperf.graph import Graph, load
from onnxperf.graph.proto import nodes_in
from onnxperf.graph.read import read
from onnxperf.graph.skeleton import skeleton
from onnxperf.ground.errors import EnvironmentFailure, UsageError, printable
from onnxperf.ground.tables import size
from onnxperf.measure import inputs, weights
from onnxperf.measure.environment import free_bytes
from onnxperf.measure.job import Job, Plan
from onnxperf.measure.record import Subject
from onnxperf.measure.session import OutOfMemory
from onnxperf.passes.precision import precision
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph

NOT_SINGLE = frozenset({"float16", "bfloat16", "float64"})


def prepare(job: Job) -> Plan:
    """Read the model of a job, bind its dimensions, and look whether there is room for its weights.

    Raises UsageError, ModelError, EnvironmentFailure.
    """
    graph = load(job.model, shapes=job.shapes, dims=job.dims, batch=job.batch)
    if held := next((n.nodes[0] for n in graph.notes if n.code == "rebatched"), None):
        why = f"a file is measured as it is, and node {held!r} has another batch in a constant"
        raise UsageError(f"--batch {graph.batch} can't be used: {why}; export the model with a dynamic batch")
    proto, _, folder = read(job.model)
    if job.precision in ("fp32", "tf32") and any(
        t.dtype in NOT_SINGLE for t in (*graph.inputs, *graph.stored()) if t.size > 1
    ):
        raise UsageError(f"{graph.name} is not stored in float32: measure it with --precision keep")
    absent = weights.absent(proto, folder)
    _check_room(graph, job, sum(map(weights.bytes_of, absent)))
    shapes = {t.name: t.shape for t in graph.inputs}
    values: Mapping[str, Any] = {**inputs.ranges(graph), **inputs.objects(proto, shapes, job.seed)}
    if job.inputs is not None:
        values = inputs.given(job.inputs, graph)
    return Plan(
        job=replace(job, model=_source(job.model), shapes=None, dims=None, batch=None, inputs=None),
        graph=graph,
        folder=folder,
        values=values,
        sizes=weights.changed(proto, shapes),
        dims=weights.named(proto, shapes),
        random=bool(absent),
        opset=next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0),
        nodes=frozenset(n.name for n in nodes_in(proto.graph.node)),
    )


def _check_room(graph: Graph, job: Job, made_up: int) -> None:
    """Raise OutOfMemory where memory can't hold what a run takes at least: the system would end the process.

    On a processor that is all weights, the inputs, and what the largest operator reads and writes beside them; for a
    card, whose own memory holds these, the random weights, of which the file lacks `made_up` bytes.
    """
    free, stored, most = free_bytes(), made_up, 0
    if job.provider == "cpu":
        typed = precision(graph, job.precision)
        stored = sum(t.bytes for t in typed.stored())
        inputs_bytes = sum(t.bytes for t in typed.inputs)
        moved = ({t.name: t.bytes for t in (*o.present, *o.outputs) if not t.stored} for o in typed.operators)
        most = max((sum(m.values()) for m in moved), default=0) + inputs_bytes
    if free is not None and stored + most > free:
        raise OutOfMemory(
            f"{graph.name}: it takes at least {size(stored + most)} of memory, {size(stored)} of it for weights, and"
            f" {size(free)} are free: close other programs, use a smaller batch or shorter"
            " inputs, or a machine with more memory"
        )


def _source(model: Any) -> str | bytes:
    """A model's path, or the bytes of its file."""
    if isinstance(model, (str, os.PathLike)):
        return os.fsdecode(model)
    return model if isinstance(model, bytes) else bytes(model.SerializeToString())


def subject_of(plan: Plan) -> Subject:
    """What the measurement says of the model."""
    model = plan.source
    with io.BytesIO(model) if isinstance(model, bytes) else open(model, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Subject(plan.graph.name, digest, plan.opset, "random" if plan.random else "stored", skeleton(model))


def check_hosted(plan: Plan, hosted: tuple[tuple[str, str], ...]) -> None:
    """Refuse a session that runs nodes on the CPU which belong on the GPU, unless the job allows that.

    hosted: names and types of the nodes on the CPU. Raises EnvironmentFailure.
    """
    if not hosted or plan.job.allow_host:
        return
    graph = precision(plan.graph, plan.job.precision)
    run = run_graph(graph, RUNTIMES[plan.job.runtime], LEVELS[plan.job.opt_level])
    ours = {n for o in run.operators if o.place == "gpu" for n in o.nodes}
    # nodes that ONNX Runtime's rewrites made are named after those that they stand for
    rewritten = {name for name, _ in hosted if name not in plan.nodes and any(n and n in name for n in ours)}
    if astray := [f"{name} ({type})" for name, type in hosted if name in ours or name in rewritten]:
        listed = printable(", ".join(astray[:5])[:300]) + (f" and {len(astray) - 5} more" if len(astray) > 5 else "")
        raise EnvironmentFailure(
            f"{plan.graph.name}: ONNX Runtime runs nodes on the CPU that belong on the GPU: {listed};"
            " --allow-host measures anyway"
        )
