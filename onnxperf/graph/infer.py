"""The static graph of a model whose inputs are bound."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path

from onnx import ModelProto

from onnxperf.errors import ModelError, UsageError
from onnxperf.graph.bind import Binding, nearest
from onnxperf.graph.core import Graph
from onnxperf.graph.order import live_operators
from onnxperf.graph.proto import Shape, dtype_of
from onnxperf.graph.trips import TripCounts
from onnxperf.graph.walk import Walk


def infer(
    model: ModelProto,
    binding: Binding,
    shapes: Mapping[str, Shape],
    trip_counts: Mapping[str, int],
    name: str,
    folder: Path | None,
) -> Graph:
    """The static, folded `Graph` of a model whose inputs are bound.

    Raises ModelError for graphs that contradict themselves and UsageError for requests they can't meet.
    """
    walk = Walk(model, binding, shapes, folder, TripCounts(model.graph, trip_counts))
    inputs = []
    walk.store(model.graph, ChainMap())
    for info in model.graph.input:
        if info.name in binding.inputs:
            dtype = dtype_of(info.type.tensor_type.elem_type)
            inputs.append(walk.define(info.name, dtype, binding.inputs[info.name], "input"))
        elif info.name not in walk.tensors:  # up to IR 3, initialisers are among the inputs
            walk.carry(info.name, info.type, "input")
    walk.nodes(model.graph, ChainMap())
    walk.trips.check_used()
    made = {*walk.tensors, *(o for n in model.graph.node for o in n.output)}
    for wanted in shapes:
        if wanted not in made and wanted not in binding.inputs:
            near = nearest(wanted, (*binding.inputs, *made))
            have = ", ".join(map(repr, binding.inputs))
            raise UsageError(f"--shapes names {wanted!r}, which the model never computes; its inputs are {have}{near}")
    outputs = []
    for info in model.graph.output:
        if info.name not in walk.tensors:
            raise ModelError(f"output {info.name!r} is made by no node")
        outputs.append(walk.tensors[info.name])
    live = live_operators(walk.operators, outputs, walk.together)
    return Graph(name, live, tuple(inputs), tuple(outputs), binding.batch, tuple(walk.notes))
