"""The static graph of a model whose inputs are bound: its nodes are inferred one after the other, bodies in place."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto

from onnxperf.graph.bind import Binding, is_number, listed, nearest
from onnxperf.graph.control_flow import INLINE
from onnxperf.graph.control_node import ControlNode, Names, TripCounts, scoped
from onnxperf.graph.core import CONTROL, Graph
from onnxperf.graph.index_range import IndexRanges
from onnxperf.graph.module_path import module_of
from onnxperf.graph.node import check_form, infer_node
from onnxperf.graph.open_shapes import input_shape
from onnxperf.graph.outputs import define_output
from onnxperf.graph.proto import MAX_NAME, Captures, Shape, dtype_of, operator_type, plain
from onnxperf.graph.state import State
from onnxperf.ground.errors import ModelError, UsageError
from op_models import Operator, Tensor

#: Defines the outputs of a node by its label, and adds its operator; gives the node that it put in its place, if any.
InferNode = Callable[[State, NodeProto, str], NodeProto | None]


class Inferred(NamedTuple):
    """A graph, and what was known of each tensor on the way to it."""

    graph: Graph
    state: State


def infer(
    model: ModelProto, binding: Binding, shapes: Mapping[str, Shape], trip_counts: Mapping[str, int], name: str,
    folder: Path | None, infer_node: InferNode = infer_node, folds: bool = True,
) -> Inferred:  # fmt: skip
    """The static `Graph` of a model whose inputs are bound.

    shapes: of tensors, by name; trip_counts: of loops, by node; name: of the graph; folder: where the model's file
    lies; infer_node: what defines the outputs of one node, by its label; folds: leave out what depends on constants
    alone. Raises ModelError for a graph that contradicts itself and UsageError for a request that it can't meet.
    """
    state = State(model, binding, shapes, folder, folds)
    trips, ranges = TripCounts(model.graph, trip_counts), IndexRanges(state.tensors, state.values)
    beyond: dict[str, str] = {}
    modules: dict[str, str] = {}

    def walk(graph: GraphProto, names: Names, prefix: str = "") -> None:
        """Infer the nodes of the graph or, with a prefix for their labels, of a body that has these names."""
        defined = None if prefix else set(state.tensors)
        for node, label in _ordered(graph, defined, state.labels, state.captures, prefix):
            check_form(state, node, label)
            if module := module_of(node):
                modules[label] = module
            if (type := operator_type(node)) in INLINE:
                INLINE[type](ControlNode(state, trips, walk, node, label, names))
            else:
                node = infer_node(state, scoped(node, names, state.captures) if prefix else node, label) or node
                if not prefix and (wrong := ranges.follow(node)) and state.assumed.isdisjoint(node.input):
                    beyond[label] = wrong  # in a body, which may not run, nothing is known to be wrong

    names: Names = ChainMap()
    state.define_stored(model.graph, names)
    inputs = _define_inputs(state, model.graph)
    walk(model.graph, names)
    trips.check_used()
    _check_shapes_used(state, model.graph, shapes)
    outputs = []
    for info in model.graph.output:
        if info.name not in state.tensors:
            raise ModelError(f"output {info.name!r} is made by no node")
        outputs.append(state.tensors[info.name])
    live = _live(state.operators, outputs, state.made_together)
    if label := next((o.name for o in live if o.name in beyond), ""):
        raise _out_of_bounds(state, label, beyond[label])
    graph = Graph(name, live, inputs, tuple(outputs), binding.batch, tuple(state.notes), modules)
    return Inferred(graph, state)


def _out_of_bounds(state: State, label: str, why: str) -> ModelError | UsageError:
    """The error for a node that reads what its table does not have; a UsageError where asked sizes lead there."""
    message, sizes = f"node {label!r} (Gather) {why}", state.binding.symbols
    if not sizes or state.binding.refusal:
        return state.refusal(message)
    flags = ", ".join(f"{plain(name)}={size}" for name, size in sizes.items())
    return UsageError(f"{message}, at these sizes ({flags}); give smaller ones")


def _define_inputs(state: State, graph: GraphProto) -> tuple[Tensor, ...]:
    """Define the inputs of the graph, and return those that are tensors."""
    inputs = []
    for info in graph.input:
        if (shape := state.binding.inputs.get(info.name)) is not None:
            number = state.binding.symbols.get(info.name) if is_number(info) else None
            dtype = dtype_of(info.type.tensor_type.elem_type)
            value = None if number is None else np.full(shape, number, dtype)
            inputs.append(state.define(info.name, dtype, input_shape(info, shape), "input", value))
        elif info.name not in state.tensors:  # up to IR 3, initialisers are among the inputs
            define_output(state, info.name, "", None, info.type, "input")
    return tuple(inputs)


def _check_shapes_used(state: State, graph: GraphProto, shapes: Mapping[str, Shape]) -> None:
    """Raise UsageError where --shapes names a tensor that the model does not have."""
    inputs, outputs = (
        state.binding.inputs,
        {*state.tensors, *(o for n in graph.node for o in n.output)} if shapes else set(),
    )
    for wanted in shapes:
        if wanted not in outputs and wanted not in inputs:
            have = f"its inputs are {listed(inputs)}{nearest(wanted, (*inputs, *outputs))}"
            raise UsageError(f"--shapes names {plain(wanted)!r}, which the model never computes; {have}")


def _ordered(
    graph: GraphProto, defined: set[str] | None, taken: set[str], captures: Captures, prefix: str = ""
) -> Iterator[tuple[NodeProto, str]]:
    """The nodes, each with a unique label, in an order in which every tensor is made before it is read.

    In a valid file that is the file's own order; another file is sorted. Each label begins with `prefix`; the new ones
    are added to `taken`, the labels in use. Raises ModelError for cycles, and for tensors that no node makes unless
    they are `defined` already. In a body `defined` is None: what it reads from outside was checked with its node.
    """
    nodes = list(graph.node)
    makers = {o: i for i, n in enumerate(nodes) for o in n.output if o}
    needs = []
    for i, node in enumerate(nodes):
        reads = [r for r in (*node.input, *captures.names(node)) if r]
        for r in reads:
            if defined is not None and r not in defined and r not in makers:
                raise ModelError(f"node {_label(node, i)!r} ({node.op_type}) reads {r!r}, which nothing makes")
        needs.append([makers[r] for r in reads if r in makers and not (defined and r in defined)])
    in_order = all(maker < i for i, reads in enumerate(needs) for maker in reads)
    for i in range(len(needs)) if in_order else _sorted(nodes, needs):
        label = prefix + _label(nodes[i], i)
        while label in taken:
            label = f"{label}_{i}"
        if len(label) > MAX_NAME:
            why = f"with those of the nodes around it more than {MAX_NAME:,} characters"
            raise ModelError(f"the name of the node {plain(nodes[i].name)!r} has {why}")
        taken.add(label)
        yield nodes[i], label


def labelled(
    graph: GraphProto, taken: set[str] | None = None, captures: Captures | None = None, prefix: str = ""
) -> Iterator[tuple[NodeProto, str]]:
    """The nodes of a model's graph, without those in bodies of others, each with the name that its operator has. Of a
    body: the labels of nodes before it, which get those of its own, and what its labels begin with.
    """
    return _ordered(graph, None, set() if taken is None else taken, captures or Captures(), prefix)


def _sorted(nodes: Sequence[NodeProto], needs: Sequence[Sequence[int]]) -> list[int]:
    import networkx

    dag = networkx.DiGraph((maker, i) for i, reads in enumerate(needs) for maker in reads)
    dag.add_nodes_from(range(len(needs)))
    try:
        return list(networkx.lexicographical_topological_sort(dag))
    except networkx.NetworkXUnfeasible:
        loop = networkx.find_cycle(dag)
        names = ", ".join(repr(_label(nodes[i], i)) for i, _ in loop[:4])
        raise ModelError(f"the graph has a cycle through {names}{' ...' if len(loop) > 4 else ''}") from None


def _label(node: NodeProto, index: int) -> str:
    return node.name or f"{node.op_type}_{index}"


def _live(
    operators: Sequence[Operator], outputs: Iterable[Tensor], made_together: Mapping[str, str]
) -> tuple[Operator, ...]:
    """The operators that the outputs depend on; runtimes drop the others, too.

    Outputs of one control-flow node are needed together: `made_together` has the first of them for each. The operator
    that stands before a body is needed wherever one of the body is.
    """

    def name(t: Tensor) -> str:
        return made_together.get(t.name, t.name)

    needed = {name(t) for t in outputs}
    live: list[Operator] = []
    for o in reversed(operators):
        enters = o.type in CONTROL and live and live[-1].name.startswith(f"{o.name}/")
        if enters or any(name(t) in needed for t in o.outputs):
            live.append(o)
            needed.update(map(name, o.present))
    return tuple(reversed(live))
