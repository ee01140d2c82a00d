"""What would make a run faster: the same run under other terms."""

from __future__ import annotations

from dataclasses import replace

from gpu_specs import Device
from onnxperf.errors import Error
from onnxperf.graph import Graph
from onnxperf.pipeline import answer
from onnxperf.prediction import Prediction, Scenario

WORTH = 0.97  # of the time: less is not named


def changes(graph: Graph, device: Device, scenario: Scenario, now: Prediction) -> list[tuple[str, Prediction]]:
    """The same run under other terms, where they help: half precision, a CUDA graph, both."""
    if scenario.method != "tile-wave" or device.kind == "cpu":
        return []
    half = {"precision": "fp16"} if scenario.precision in ("keep", "fp32", "tf32") else {}
    replay = {"cuda_graph": True} if not scenario.cuda_graph and scenario.streams == 1 else {}
    found = []
    for what, terms in (
        ("--precision fp16", half),
        ("--cuda-graph", replay),
        ("--precision fp16 --cuda-graph", {**half, **replay} if half and replay else {}),
    ):
        if not terms:
            continue
        try:
            then = answer(graph, device, replace(scenario, **terms))
        except Error:
            continue
        if then.seconds < WORTH * now.seconds:
            found.append((what, then))
    return found
