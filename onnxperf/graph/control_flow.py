"""Control flow: the bodies of If, Loop, Scan and SequenceMap become part of the graph, run as often as they are.

A tensor or node of a body is named after its control-flow node: "loop/x" is the x in the body of the node "loop". An
operator with the node's own type stands before the body and writes the inputs of the body; behind the body stands one
operator for each output: an Identity of what the last run left, or a Concat of what all runs made.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from onnx import AttributeProto, GraphProto, NodeProto, TypeProto, ValueInfoProto, helper

from onnxperf.errors import ModelError, UsageError
from onnxperf.graph.core import Note, fresh
from onnxperf.graph.order import read_names
from onnxperf.graph.outputs import resolve
from onnxperf.graph.proto import NUMBERS, Shape, attributes, captured, is_tensor, made_in, plain, times
from onnxperf.graph.state import State
from onnxperf.graph.trips import TripCounts
from op_models import Operator, Tensor, work_or_bytes

MAX_INLINED = 200_000  # nodes in bodies
MAX_REPEAT = 10**12  # runs of one operator

#: The names in the graph of the tensors that a body, and the bodies around it, define.
Names = ChainMap[str, str]
#: Infers the nodes of a body that has these names; the text is put before the names of its nodes.
Walk = Callable[[GraphProto, Names, str], None]


def scoped(node: NodeProto, names: Names) -> NodeProto:
    """A node of a body with the names of its tensors in the graph.

    Graphs in its attributes are taken out, and what they read from outside becomes an input of the node.
    """
    outer = [c for c in captured(node) if c not in node.input]
    return NodeProto(
        op_type=node.op_type,
        domain=node.domain,
        input=[names.get(i, i) for i in (*node.input, *outer)],
        output=[names.get(o, o) for o in node.output],
        attribute=[a for a in node.attribute if not a.HasField("g") and not a.graphs],
    )


class Body(NamedTuple):
    """A graph in an attribute, those of its inputs that are not stored in it, and the names of all that it defines."""

    graph: GraphProto
    inputs: list[ValueInfoProto]
    names: Names


class Output(NamedTuple):
    """What an output of a control-flow node is made of: a tensor of the body, as the last run leaves it.

    With a type `stacked`, it is made of what all runs leave, put together to that type along `axis`.
    """

    last: Tensor
    stacked: TypeProto | None = None
    axis: int = 0


@dataclass
class Inlining:
    """What the nodes of control flow in one model share."""

    state: State
    trips: TripCounts
    tensor_names: set[str]  # that are in use in the graph
    nodes: int = 0  # of all bodies
    costs: dict[str, tuple[int, int]] = field(default_factory=dict)  # FLOPs and bytes of one run, by operator
    made_together: dict[str, str] = field(default_factory=dict)  # an output of control flow: its node's first output


class ControlNode:
    """A control-flow node that is replaced by its bodies; `names` are those of the bodies around it."""

    def __init__(self, inlining: Inlining, walk: Walk, node: NodeProto, label: str, names: Names):
        self.inlining, self.walk, self.node, self.label, self.names = inlining, walk, node, label, names
        self.state = state = inlining.state
        self.inputs = [state.tensor(names.get(i, i), label) if i else None for i in node.input]
        self.assumed = any(t.name in state.assumed for t in self.inputs if t)
        self.version = state.opsets.get("", 0)
        inlining.trips.seen[label] = node.op_type

    def refusal(self, why: str) -> ModelError:
        """The error for a node whose bodies don't fit it."""
        return ModelError(f"node {self.label!r} ({self.node.op_type}) can't run: {why}")

    def body(self, attribute: str, inputs: int, outputs: int) -> Body:
        """The body in an attribute; ModelError where it has not this many inputs and outputs."""
        found = [a.g for a in self.node.attribute if a.name == attribute and a.type == AttributeProto.GRAPH]
        if not found:
            raise self.refusal(f"it has no {attribute}")
        graph = found[0]
        stored = {t.name for t in graph.initializer}
        read = [i for i in graph.input if i.name not in stored]
        if (len(read), len(graph.output)) != (inputs, outputs):
            has, needs = f"{len(read)} inputs and {len(graph.output)} outputs", f"{inputs} and {outputs}"
            raise self.refusal(f"its {attribute} has {has}, where {needs} are needed")
        if not all(i.name for i in read):
            raise self.refusal(f"an input of its {attribute} has no name")
        own = {name: fresh(f"{self.label}/{name}", self.inlining.tensor_names) for name in made_in(graph)}
        return Body(graph, read, self.names.new_child(own))

    def enter(
        self, body: Body | None = None, types: Sequence[TypeProto] = (), likes: Sequence[Tensor | None] = ()
    ) -> list[Tensor]:
        """Add the operator that decides whether and how often a body runs, and that writes the body's inputs.

        These have the given types, else the shapes of the tensors they are `likes` of; they are activations, as their
        content differs from run to run.
        """
        inputs = []
        for info, type, like in zip(body.inputs if body else (), types, likes, strict=True):
            name = body.names[info.name] if body else ""
            if is_tensor(type):
                found = resolve(self.state, name, self.label, like, type, assumed=self.assumed)
                inputs.append(self.state.define(name, *found, "activation"))
            else:
                inputs.append(self.state.define_opaque(name, type))
        self._add(self.label, self.node.op_type, tuple(self.inputs), tuple(inputs))
        return inputs

    def _add(
        self, label: str, type: str, inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor, ...], **attrs: int
    ) -> None:
        self.state.operators.append(Operator(label, type, inputs, outputs, attrs, self.version, (self.label,)))

    def run(self, body: Body) -> list[Tensor]:
        """Infer a body's nodes and add their operators; the body's outputs."""
        graph, names, state = body.graph, body.names, self.state
        self.inlining.nodes += len(graph.node)
        if self.inlining.nodes > MAX_INLINED:
            raise ModelError(f"the bodies of loops and branches hold more than {MAX_INLINED:,} nodes")
        state.read.update(names.get(r, r) for r in read_names(graph))
        own = names.maps[0]
        state.declared_in_bodies.update((own[i.name], i) for i in (*graph.value_info, *graph.output) if i.name in own)
        state.define_stored(graph, names)
        self.walk(graph, names, f"{self.label}/")
        return [state.tensor(names.get(o.name, o.name), self.label) for o in graph.output]

    def trip_count(self, fixed: int | None) -> int:
        """How often the body runs: as often as the model fixes, else as --trip-count says, else once, which is noted.

        Raises UsageError where --trip-count contradicts the model.
        """
        given = self.inlining.trips.of(self.label, self.node)
        if fixed is not None:
            if given not in (None, fixed):
                raise UsageError(f"--trip-count {plain(self.label)}={given}: the model itself runs it {fixed} times")
            return fixed
        if given is not None:
            return given
        flag = f"--trip-count {plain(self.label)}=N"
        message = f"how often {self.label!r} runs depends on the data; taken as once (set it with {flag})"
        self.state.notes.append(Note("assumed-trip-count", message, (self.label,)))
        self.assumed = True
        return 1

    def repeat(self, start: int, trips: int) -> None:
        """Let the operators from number `start` on run `trips` times; none is left where that is zero."""
        inside = self.state.operators[start:]
        most = max((o.repeat for o in inside), default=0) * trips
        if most > MAX_REPEAT:
            message = f"node {self.label!r} ({self.node.op_type}) would run an operator {most:,} times"
            raise UsageError(message) if self.inlining.trips.given else ModelError(message)
        self.state.operators[start:] = [replace(o, repeat=o.repeat * trips) for o in inside if trips]

    def define_outputs(self, outputs: Sequence[Output], folded: bool = False) -> None:
        """Define the node's outputs, in order; where it is `folded`, stored tensors stay so and need no operator."""
        state, made = self.state, []
        for k, (t, stacked, axis) in enumerate(outputs):
            name = self.node.output[k] if k < len(self.node.output) else ""
            out = self.names.get(name, name) if name else fresh(f"{self.label}/{t.name}", self.inlining.tensor_names)
            stored = folded and t.stored and not stacked
            kind, value = (t.kind, state.values.get(t.name)) if stored else ("activation", None)
            type = stacked or state.types[t.name]
            if is_tensor(type):
                assumed = self.assumed or t.name in state.assumed
                found = resolve(state, out, self.label, t, type, value=value, assumed=assumed)
                new = state.define(out, *found, kind, value)
            else:
                new = state.define_opaque(out, type)
            made.append(out)
            if kind == "activation":
                what = "Identity" if not stacked else "Concat" if is_tensor(type) else "SequenceConstruct"
                label = fresh(f"{self.label}/{what}_{k}", state.labels)
                self._add(label, what, (t,), (new,), **({"axis": axis} if what == "Concat" else {}))
        self.inlining.made_together.update(dict.fromkeys(made, made[0]) if made else {})

    def note_changed_shapes(self, before: Sequence[Tensor | None], after: Sequence[Tensor]) -> None:
        """Note which carried tensors leave the body with another shape than they enter it."""
        for old, new in zip(before, after, strict=False):
            if old is not None and old.shape != new.shape:
                shapes = f"({times(old.shape)}, {times(new.shape)}, ...)"
                says = f"what {self.label!r} makes of {old.name!r} changes its shape {shapes}; taken as the first run's"
                self.state.assume(new.name, says, self.label)

    def number(self, t: Tensor | None) -> int | None:
        """The one number in a tensor, where it is known before the run."""
        value = self.state.values.get(t.name) if t is not None else None
        return int(value.flat[0]) if value is not None and value.size == 1 and value.dtype.kind in "iub" else None

    def axis(self, attrs: Mapping[str, Any], name: str, k: int, rank: int) -> int:
        """The axis along which the k-th tensor, of this rank, is taken apart or put together, from an attribute."""
        axes = attrs.get(name) or ()
        axis = axes[k] if isinstance(axes, tuple) and k < len(axes) else 0
        if not isinstance(axis, int):
            raise self.refusal(f"its {name} are no whole numbers")
        if not -rank <= axis < rank and not self.assumed:
            raise self.refusal(f"a tensor with {rank} axes has no axis {axis}")
        return axis % max(rank, 1)


def _inline_if(node: ControlNode) -> None:
    """The branch that a known condition picks, else the one that costs more."""
    state, branches, count = node.state, ("then_branch", "else_branch"), len(node.node.output)
    condition = node.number(node.inputs[0])
    if condition is not None:
        results = node.run(node.body(branches[not condition], 0, count))
        return node.define_outputs([Output(t) for t in results], folded=True)
    node.enter()
    start, notes = len(state.operators), len(state.notes)
    found = []
    for branch in branches:
        results = node.run(node.body(branch, 0, count))
        operators, said = state.operators[start:], state.notes[notes:]
        found.append((_cost(node.inlining, operators), branch, results, operators, said))
        del state.operators[start:], state.notes[notes:]
    (_, branch, results, operators, said), (*_, others, _, _) = found if found[0][0] >= found[1][0] else found[::-1]
    state.operators += operators
    message = f"which branch {node.label!r} takes depends on the data; taken as its {branch}, which costs more"
    state.notes += [*said, Note("assumed-branch", message, (node.label,))]
    differ = [k for k, (one, other) in enumerate(zip(results, others, strict=True)) if one.shape != other.shape]
    state.assumed.update(results[k].name for k in differ)
    node.define_outputs([Output(t) for t in results])
    for out in (node.names.get(name, name) for k in differ if (name := node.node.output[k])):
        shape = times(state.tensors[out].shape)
        state.assume(out, f"the shape of {out!r} depends on the branch; taken as {shape}", node.label)


def _cost(inlining: Inlining, operators: Sequence[Operator]) -> tuple[int, int]:
    """FLOPs and bytes of all runs. An operator in nested branches is asked only once, however deep it stands."""
    for o in operators:
        if o.name not in inlining.costs:
            w, _ = work_or_bytes(o)
            inlining.costs[o.name] = w.flops, w.bytes
    runs = [(o.repeat, *inlining.costs[o.name]) for o in operators]
    return sum(n * flops for n, flops, _ in runs), sum(n * size for n, _, size in runs)


def _inline_loop(node: ControlNode) -> None:
    """As many runs as the first input says, unless a condition ends the loop earlier.

    Inputs are the limit, the first condition and the carried tensors; the body reads its number, the condition and
    the carried tensors, and gives the next condition, the carried tensors, and tensors to be stacked.
    """
    state, carried = node.state, node.inputs[2:]
    count = len(carried)
    body = node.body("body", 2 + count, 1 + max(len(node.node.output), count))
    if None in carried:
        raise node.refusal("the first value of what it carries is missing")
    # ONNX Runtime gives the body its number and the condition in the rank that the body declares
    ranks = [len(i.type.tensor_type.shape.dim) for i in body.inputs]
    types = [helper.make_tensor_type_proto(n, (1,) * (rank == 1)) for n, rank in zip((7, 9), ranks, strict=False)]
    node.enter(body, [*types, *(state.types[t.name] for t in carried if t)], (None, None, *carried))
    start, notes = len(state.operators), len(state.notes)
    again, *results = node.run(body)
    fixed = _fixed_trips(node, body, again)
    trips = node.trip_count(fixed)
    node.repeat(start, trips)
    if fixed == 0:
        del state.notes[notes:]
    node.note_changed_shapes(carried, results)
    last = [t for t in carried if t] if not trips else results[:count]
    stacked = [Output(t, _tensor_type(t, (trips, *t.shape))) for t in results[count:]]
    node.define_outputs([*map(Output, last), *stacked], folded=fixed == 0)


def _fixed_trips(node: ControlNode, body: Body, again: Tensor) -> int | None:
    """How often a Loop runs, where constants decide it; None where the data do."""
    limit, first = node.inputs[:2]
    most, enters = node.number(limit), 1 if first is None else node.number(first)
    if enters == 0 or (most is not None and most <= 0):
        return 0
    stays = enters if _passes_on(body.graph, body.inputs[1].name) else node.number(again)
    if enters and stays is not None and (limit is None or most is not None):
        return most if stays else 1
    return None


def _passes_on(graph: GraphProto, condition: str) -> bool:
    """Whether a Loop's body gives its condition back unchanged."""
    source = {o: n.input[0] for n in graph.node if n.op_type == "Identity" for o in n.output}
    name = graph.output[0].name
    while name in source:
        name = source[name]
    return bool(name == condition)


def _inline_scan(node: ControlNode) -> None:
    """One run for each slice of the scanned inputs; before opset 9, of each sequence in a batch.

    Inputs are the carried tensors, then the scanned ones; the body gives the carried tensors, and slices of outputs.
    """
    state, attrs = node.state, attributes(node.node)
    batched = node.version < 9  # inputs are [batch, length, ...], and their true lengths come first
    inputs = [t for t in node.inputs[batched:] if t]
    scanned = attrs.get("num_scan_inputs", 0)
    if not isinstance(scanned, int) or not 0 < scanned <= len(inputs) or len(inputs) != len(node.inputs[batched:]):
        raise node.refusal(f"{plain(str(scanned))} of its {len(inputs)} inputs are to be scanned")
    count = len(inputs) - scanned
    body = node.body("body", len(inputs), len(node.node.output))
    lead = inputs[count].shape[:1] if batched else ()
    shapes: list[Shape] = [t.shape[batched:] for t in inputs[:count]]
    lengths = set()
    for k, t in enumerate(inputs[count:]):
        axis = node.axis(attrs, "scan_input_axes", k, t.rank) if not batched else 1
        lengths.add(t.shape[axis] if axis < t.rank else 1)
        shapes.append(t.shape[2:] if batched else (*t.shape[:axis], *t.shape[axis + 1 :]))
    if len(lengths) != 1 and not node.assumed:
        raise node.refusal(f"its inputs are of different lengths: {', '.join(map(str, sorted(lengths)))}")
    length = max(lengths)
    entered = node.enter(body, [_tensor_type(t, s) for t, s in zip(inputs, shapes, strict=True)], inputs)
    start = len(state.operators)
    results = node.run(body)
    node.repeat(start, lead[0] * length if lead else length)
    node.note_changed_shapes(entered[:count], results)
    outputs = [Output(t, _tensor_type(t, (*lead, *t.shape)) if batched else None) for t in results[:count]]
    for k, t in enumerate(results[count:]):
        axis = node.axis(attrs, "scan_output_axes", k, t.rank + 1) if not batched else 0
        outputs.append(Output(t, _tensor_type(t, (*lead, *t.shape[:axis], length, *t.shape[axis:])), axis))
    node.define_outputs(outputs)


def _tensor_type(t: Tensor, shape: Shape) -> TypeProto:
    """The type of tensors of this shape with the element type of `t`."""
    return helper.make_tensor_type_proto(NUMBERS.get(t.dtype, 0), shape)


def _inline_sequence_map(node: ControlNode) -> None:
    """One run for each element of a sequence, whose length only the run knows."""
    state, inputs = node.state, [t for t in node.inputs if t]
    body = node.body("body", len(inputs), len(node.node.output))
    types = [state.types[t.name] for t in inputs]
    types = [t.sequence_type.elem_type if t.HasField("sequence_type") else t for t in types]
    node.enter(body, types, [None] * len(types))
    start = len(state.operators)
    results = node.run(body)
    node.repeat(start, node.trip_count(None))
    made = [TypeProto(sequence_type=TypeProto.Sequence(elem_type=state.types[t.name])) for t in results]
    node.define_outputs([Output(t, type) for t, type in zip(results, made, strict=True)])


#: The operators of control flow and how each is replaced by its bodies.
INLINE: dict[str, Callable[[ControlNode], None]] = {
    "If": _inline_if, "Loop": _inline_loop, "Scan": _inline_scan, "SequenceMap": _inline_sequence_map,
}  # fmt: skip
