"""The static graph of a model whose inputs are bound: its nodes are inferred one after the other, bodies in place."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path

from onnx import GraphProto, ModelProto

from onnxperf.errors import ModelError, UsageError
from onnxperf.graph.bind import Binding, nearest
from onnxperf.graph.control_flow import INLINE
from onnxperf.graph.control_node import ControlNode, Inlining, Names, scoped
from onnxperf.graph.core import Graph
from onnxperf.graph.node import check_form, infer_node
from onnxperf.graph.order import live_operators, ordered
from onnxperf.graph.proto import Shape, domain_of, dtype_of, made_in
from onnxperf.graph.state import State
from onnxperf.graph.trips import TripCounts
from op_models import Tensor


def infer(
    model: ModelProto, binding: Binding, shapes: Mapping[str, Shape], trip_counts: Mapping[str, int], name: str,
    folder: Path | None,
) -> Graph:  # fmt: skip
    """The static, folded `Graph` of a model whose inputs are bound.

    shapes: of tensors, by name; trip_counts: of loops, by node; name: of the graph; folder: where the model's file
    lies. Raises ModelError for a graph that contradicts itself and UsageError for a request that it can't meet.
    """
    state = State(model, binding, shapes, folder)
    inlining = Inlining(state, TripCounts(model.graph, trip_counts), set(made_in(model.graph)))

    def walk(graph: GraphProto, names: Names, prefix: str = "") -> None:
        """Infer the nodes of the graph or, with a prefix for their labels, of a body that has these names."""
        defined = None if prefix else set(state.tensors)
        for node, label in ordered(graph, defined, state.labels, prefix):
            check_form(state, node, label)
            if node.op_type in INLINE and not domain_of(node):
                INLINE[node.op_type](ControlNode(inlining, walk, node, label, names))
            else:
                infer_node(state, scoped(node, names) if prefix else node, label)

    names: Names = ChainMap()
    state.define_stored(model.graph, names)
    inputs = _define_inputs(state, model.graph)
    walk(model.graph, names)
    inlining.trips.check_used()
    _check_shapes_used(state, model.graph, shapes)
    outputs = []
    for info in model.graph.output:
        if info.name not in state.tensors:
            raise ModelError(f"output {info.name!r} is made by no node")
        outputs.append(state.tensors[info.name])
    live = live_operators(state.operators, outputs, inlining.made_together)
    return Graph(name, live, inputs, tuple(outputs), binding.batch, tuple(state.notes))


def _define_inputs(state: State, graph: GraphProto) -> tuple[Tensor, ...]:
    """Define the inputs of the graph, and return those that are tensors."""
    inputs = []
    for info in graph.input:
        if (shape := state.binding.inputs.get(info.name)) is not None:
            inputs.append(state.define(info.name, dtype_of(info.type.tensor_type.elem_type), shape, "input"))
        elif info.name not in state.tensors:  # up to IR 3, initialisers are among the inputs
            state.define_opaque(info.name, info.type, "input")
    return tuple(inputs)


def _check_shapes_used(state: State, graph: GraphProto, shapes: Mapping[str, Shape]) -> None:
    """Raise UsageError where --shapes names a tensor that the model does not have."""
    inputs, made = state.binding.inputs, {*state.tensors, *(o for n in graph.node for o in n.output)}
    for wanted in shapes:
        if wanted not in made and wanted not in inputs:
            near = nearest(wanted, (*inputs, *made))
            have = ", ".join(map(repr, inputs))
            raise UsageError(f"--shapes names {wanted!r}, which the model never computes; its inputs are {have}{near}")
