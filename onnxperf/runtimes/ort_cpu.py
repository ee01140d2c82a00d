"""ONNX Runtime's CPU provider: which rules it has at which level, and what it spends on each operator."""

from __future__ import annotations

from dataclasses import replace

from onnxperf.fusions import ort_basic, ort_extended, ort_nchwc, ort_transformers
from onnxperf.fusions.engine import ALL, BASIC, DISABLED, EXTENDED
from onnxperf.fusions.ort_functions import ON_CPU, inlined
from onnxperf.fusions.ort_releases import NEWEST, OPSETS, says
from onnxperf.fusions.placement import is_view
from onnxperf.graph import Graph
from onnxperf.lowering.releases import Releases
from onnxperf.lowering.runtime import HostCosts, Policy, Runtime, StartCosts


def beside(graph: Graph) -> Graph:
    """The graph with every operator on the processor, which is the device here, and nothing copied; views are free, and
    functions are taken apart.
    """
    graph = inlined(graph, ON_CPU)
    outputs = {t.name for t in graph.outputs}
    placed = (replace(o, place="free" if is_view(o, outputs) else "gpu") for o in graph.operators)
    return replace(graph, operators=tuple(placed))


RUNTIME = Runtime(
    name="ort-cpu",
    rules={BASIC: ort_basic.RULES, EXTENDED: ort_extended.CPU, ALL: ort_nchwc.RULES},
    offline={DISABLED: ort_transformers.RULES},
    place=beside,
    policy=Policy(),
    host=HostCosts(
        run_s=30e-6, walk_s=0.4e-6, node_s=0.4e-6, launch_s=0.0, host_op_s=0.0, copy_s=0.0, sync_s=0.0, gap_s=0.0,
        replay_s=0.0, replay_gap_s=0.0, source="assumed",
    ),
    title="ONNX Runtime CPU",
    describe="ONNX Runtime, CPU provider",
    kind="cpu",
    start=StartCosts(library_s=(0.02, 0.5), code_s=(0.0, 0.0), search_s=(0.0, 0.0)),
    releases=Releases(OPSETS, NEWEST, lambda at: {}, says),
)  # fmt: skip
