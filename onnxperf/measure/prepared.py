"""A job made ready: the model read, its dimensions bound, its inputs and weights looked at, before anything runs."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass, replace
from typing import Any

from onnxperf.errors import EnvironmentFailure, UsageError, printable
from onnxperf.graph import Graph, load
from onnxperf.graph.proto import nodes_in
from onnxperf.graph.read import read
from onnxperf.graph.skeleton import skeleton
from onnxperf.measure import inputs, weights
from onnxperf.measure.environment import free_bytes
from onnxperf.measure.job import Job, Plan
from onnxperf.measure.record import Subject
from onnxperf.passes import precision
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph

NOT_SINGLE = frozenset({"float16", "bfloat16", "float64"})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that can be measured: its static graph, what the process is given, and what to feed."""

    graph: Graph
    plan: Plan
    feeds: tuple[inputs.Feed, ...]
    opset: int
    known: frozenset[str]  # names of the file's nodes

    @classmethod
    def of(cls, job: Job) -> Prepared:
        """Read the model, bind its dimensions, and look whether there is room for its weights.

        Raises UsageError, ModelError, EnvironmentFailure.
        """
        graph = load(job.model, shapes=job.shapes, dims=job.dims, batch=job.batch)
        proto, _, folder = read(job.model)
        if job.precision in ("fp32", "tf32") and any(
            t.dtype in NOT_SINGLE for t in (*graph.inputs, *graph.stored()) if t.size > 1
        ):
            raise UsageError(f"{graph.name} is not stored in float32: measure it with --precision keep")
        absent = weights.absent(proto, folder)
        need, free = sum(map(weights.bytes_of, absent)), free_bytes()
        if free is not None and need > free:
            raise EnvironmentFailure(
                f"{graph.name}: its weights take {need / 1e9:.3g} GB, and {free / 1e9:.3g} GB of memory are free"
            )
        feeds = inputs.feeds(graph)
        if job.inputs is not None:
            arrays = inputs.given(job.inputs, graph)
            feeds = tuple(replace(f, array=arrays[f.name]) for f in feeds)
        shapes = {t.name: t.shape for t in graph.inputs}
        sizes, dims = weights.changed(proto, shapes), weights.named(proto, shapes)
        path = isinstance(job.model, (str, os.PathLike))
        as_is = path and not absent and not sizes and job.precision != "fp16"
        source = os.fspath(job.model) if path else _bytes(job.model)
        plan = Plan(
            source, graph.name, str(folder or ""), as_is, sizes, dims, bool(absent), job.provider, job.precision,
            job.opt_level, job.seed,
        )  # fmt: skip
        opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
        return cls(graph, plan, feeds, opset, frozenset(n.name for n in nodes_in(proto.graph.node)))


def subject_of(job: Job, it: Prepared) -> Subject:
    """What the measurement says of the model."""
    with io.BytesIO(it.plan.source) if isinstance(it.plan.source, bytes) else open(it.plan.source, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Subject(it.graph.name, digest, it.opset, "random" if it.plan.random else "stored", skeleton(job.model))


def _bytes(model: Any) -> bytes:
    return model if isinstance(model, bytes) else bytes(model.SerializeToString())


def check_hosted(job: Job, it: Prepared, hosted: tuple[tuple[str, str], ...]) -> None:
    """Refuse a session that runs nodes on the CPU which belong on the GPU."""
    if not hosted or job.allow_host:
        return
    run = run_graph(precision(it.graph, job.precision), RUNTIMES[job.runtime], LEVELS[job.opt_level])
    ours = {n for o in run.operators if o.place == "gpu" for n in o.nodes}
    made = {name for name, _ in hosted if name not in it.known and any(n and n in name for n in ours)}
    if astray := [f"{name} ({type})" for name, type in hosted if name in ours or name in made]:
        shown = printable(", ".join(astray[:5])[:300]) + (f" and {len(astray) - 5} more" if len(astray) > 5 else "")
        raise EnvironmentFailure(
            f"{it.graph.name}: ONNX Runtime runs nodes on the CPU that belong on the GPU: {shown};"
            " --allow-host measures it all the same"
        )
