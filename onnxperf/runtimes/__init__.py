"""The graph as it is really run: a static graph and a runtime in; fused, placed, with copies inserted, out."""

from __future__ import annotations

from onnxperf.graph import Graph
from onnxperf.runtimes.engine import ALL, LEVELS, HostCosts, Policy, Runtime, optimise
from onnxperf.runtimes.hosts import HOSTS, Host, paced
from onnxperf.runtimes.ort import CUDA
from onnxperf.runtimes.torch_eager import EAGER

RUNTIMES: dict[str, Runtime] = {r.name: r for r in (CUDA, EAGER)}

__all__ = ["ALL", "HOSTS", "LEVELS", "RUNTIMES", "Host", "HostCosts", "Policy", "Runtime", "paced", "run_graph"]


def run_graph(graph: Graph, runtime: Runtime, level: int = ALL) -> Graph:
    """What `runtime` makes of `graph` at an optimisation level of LEVELS."""
    return runtime.place(optimise(graph, runtime.fusions, level))
