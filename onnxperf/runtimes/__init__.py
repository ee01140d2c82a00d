"""The graph as it is really run: a static graph and a runtime in; fused, placed, with copies inserted, out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from onnxperf.graph import Graph, Note
from onnxperf.runtimes.engine import ALL, DISABLED, LEVELS, optimise
from onnxperf.runtimes.hosts import HOSTS, Host, paced, slower
from onnxperf.runtimes.ort import CPU, CUDA
from onnxperf.runtimes.ort_attention import WITHIN
from onnxperf.runtimes.placement import FLOW
from onnxperf.runtimes.runtime import HostCosts, Policy, Runtime, of_version
from onnxperf.runtimes.tensorrt import TENSORRT
from onnxperf.runtimes.torch_eager import EAGER

RUNTIMES: dict[str, Runtime] = {
    "ort-cuda": CUDA,
    "ort-cuda-1.12": of_version(CUDA, "1.12"),  # not a runtime of its own: to go once callers ask for the version
    "ort-cpu": CPU,
    "tensorrt": TENSORRT,
    "torch-eager": EAGER,
}

__all__ = [
    "ALL", "FLOW", "HOSTS", "LEVELS", "RUNTIMES", "WITHIN", "Host", "HostCosts", "Policy", "Runtime", "of_version",
    "paced", "run_graph", "slower",
]  # fmt: skip


def run_graph(graph: Graph, runtime: Runtime, level: int = ALL, transformers: bool = False) -> Graph:
    """What `runtime` makes of `graph` at an optimisation level of LEVELS.

    `transformers` says whether the optimizer of onnxruntime.transformers has been at work on the file before.
    """
    if transformers:
        before = Counter(o.type for o in graph.operators)
        graph = optimise(graph, runtime.offline, DISABLED)
        if not any(o.type.startswith("com.microsoft::") and not before[o.type] for o in graph.operators):
            note = Note("nothing-fused", "the optimizer of onnxruntime.transformers recognises nothing in this export")
            graph = replace(graph, notes=(*graph.notes, note))
    return runtime.place(optimise(graph, runtime.rules, level))
