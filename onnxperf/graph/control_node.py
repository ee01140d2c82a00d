"""A node of control flow that is replaced by its bodies: what If, Loop, Scan and SequenceMap have in common.

A tensor or node of a body is named after its control-flow node: "loop/x" is the x in the body of the node "loop". An
operator with the node's own type stands before the body and writes the inputs of the body; behind the body stands one
operator for each output: an Identity of what the last run left, or a Concat of what all runs made.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from onnx import AttributeProto, GraphProto, NodeProto, TypeProto, ValueInfoProto

from onnxperf.graph.bind import listed, nearest
from onnxperf.graph.core import Note, fresh
from onnxperf.graph.open_dims import is_static, known_dims
from onnxperf.graph.outputs import define_output
from onnxperf.graph.proto import LOOPS, Captures, is_tensor, made_in, nodes_in, plain, tensor_type, times
from onnxperf.graph.sequences import Elements
from onnxperf.graph.state import State
from onnxperf.ground.errors import ModelError, UsageError
from op_models import Operator, Tensor

MAX_INLINED = 200_000  # nodes in bodies
MAX_REPEAT = 10**12  # runs of one operator
MAX_TRIPS = 10**9  # the largest trip count that can be given

#: The names in the graph of the tensors that a body, and the bodies around it, define.
Names = ChainMap[str, str]
#: Infers the nodes of a body that has these names; the text is the prefix of their labels.
Walk = Callable[[GraphProto, Names, str], None]


def scoped(node: NodeProto, names: Names, captures: Captures) -> NodeProto:
    """A node of a body with the names of its tensors in the graph.

    Graphs in its attributes are taken out, and what they read from outside becomes an input of the node.
    """
    outer = captures.alone(node)
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

    With a type `stacked`, it is made of what all runs leave, put together to that type along `axis`. `held` is what it
    holds as a sequence, where that is not what the tensor does.
    """

    last: Tensor
    stacked: TypeProto | None = None
    axis: int = 0
    held: Elements | None = None


class TripCounts:
    """How often loops run, as --trip-count gives it where the model leaves it open.

    A count is given by a node's label in the graph ("outer/inner") or by its own name where that is unique. `seen` gets
    the operator type of every control-flow node by its label. Raises UsageError for counts above MAX_TRIPS.
    """

    def __init__(self, graph: GraphProto, counts: Mapping[str, int]):
        for name, count in counts.items():
            if count > MAX_TRIPS:
                raise UsageError(f"--trip-count {plain(name)}={count} can't be used: the limit is {MAX_TRIPS:,}")
        self.counts = counts
        self.names = Counter(n.name for n in nodes_in(graph.node) if n.op_type in LOOPS) if counts else Counter[str]()
        self.seen: dict[str, str] = {}
        self.used: set[str] = set()
        self.parts: dict[str, str] = {}  # labels under which runs of a loop stand apart, with the loop's own

    def count(self, label: str, node: NodeProto) -> int | None:
        """The count that is given for a loop; None where there is none."""
        label = self.whole(label)
        name = label if label in self.counts or self.names[node.name] != 1 else node.name
        self.used.add(name)
        return self.counts.get(name)

    def whole(self, label: str) -> str:
        """The label of a node of a body, without those of runs that stand apart."""
        for part, loop in reversed(self.parts.items()):
            if label == part or label.startswith(f"{part}/"):
                label = loop + label[len(part) :]
        return label

    def check_used(self) -> None:
        """Raise UsageError where a count is given for anything but a loop that needs one."""
        for name in self.counts.keys() - self.used:
            loops = [label for label, type in self.seen.items() if type in LOOPS]
            why = {"Scan": "a Scan is as long as its inputs", "If": "an If does not loop"}.get(self.seen.get(name, ""))
            have = f"the model's loops are {listed(loops)}" if loops else "no Loop of the model runs"
            why = why or f"{have}{nearest(name, loops)}"
            raise UsageError(f"--trip-count {plain(name)}={self.counts[name]}: {why}")


class ControlNode:
    """A control-flow node that is replaced by its bodies; `names` are those of the bodies around it."""

    def __init__(self, state: State, trips: TripCounts, walk: Walk, node: NodeProto, label: str, names: Names):
        self.state, self.trips, self.walk = state, trips, walk
        self.node, self.label, self.names = node, label, names
        self.inputs = [state.tensor(names.get(i, i), label) if i else None for i in node.input]
        self.assumed = any(t.name in state.assumed for t in self.inputs if t)
        self.open = False  # whether nothing says how often a body runs, nor bounds it
        self.version = state.opsets.get("", 0)
        trips.seen[trips.whole(label)] = node.op_type

    def refusal(self, why: str) -> ModelError:
        """The error for a node whose bodies don't fit it."""
        return ModelError(f"node {self.label!r} ({self.node.op_type}) can't run: {why}")

    def inside(self, name: str) -> ControlNode:
        """The same node, for bodies whose operators stand under this name below its own label."""
        label = fresh(f"{self.label}/{name}", self.state.labels)
        return ControlNode(self.state, self.trips, self.walk, self.node, label, self.names)

    def has(self, attribute: str) -> bool:
        """Whether there is a body in this attribute."""
        return any(a.name == attribute and a.type == AttributeProto.GRAPH for a in self.node.attribute)

    def body(self, attribute: str, inputs: int | None = None, outputs: int | None = None) -> Body:
        """The body in an attribute; ModelError where it has not as many inputs and outputs as are given."""
        graphs = [a.g for a in self.node.attribute if a.name == attribute and a.type == AttributeProto.GRAPH]
        if not graphs:
            raise self.refusal(f"it has no {attribute}")
        graph = graphs[0]
        stored = {t.name for t in graph.initializer}
        read = [i for i in graph.input if i.name not in stored]
        counts = len(read), len(graph.output)
        if not graph.output or (inputs is not None and counts != (inputs, outputs)):
            has, needs = f"{counts[0]} inputs and {counts[1]} outputs", f"{inputs or 'some'} and {outputs or 'some'}"
            raise self.refusal(f"its {attribute} has {has}, where {needs} are needed")
        if not all(i.name for i in read):
            raise self.refusal(f"an input of its {attribute} has no name")
        names = {name: fresh(f"{self.label}/{name}", self.state.tensor_names) for name in made_in(graph)}
        return Body(graph, read, self.names.new_child(names))

    def enter(
        self, body: Body | None = None, types: Sequence[TypeProto] = (), likes: Sequence[Tensor | None] = (),
        operator: str = "", reads: Sequence[Tensor | None] | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """Add the operator that decides whether and how often a body runs, and that writes the body's inputs.

        These have the given types and, where a type leaves the shape open, that of the tensor in `likes`. They are
        activations, as their content differs from run to run. The operator is of the node's type and reads its inputs,
        unless others are given.
        """
        inputs = []
        for info, type, like in zip(body.inputs if body else (), types, likes, strict=True):
            name = body.names[info.name] if body else ""
            inputs.append(define_output(self.state, name, self.label, like, type, assumed=self.assumed))
        read = self.inputs if reads is None else reads
        self._add(self.label, operator or self.node.op_type, tuple(read), tuple(inputs))
        return inputs

    def add(self, type: str, inputs: Sequence[Tensor], dtype: str, shape: Sequence[int]) -> Tensor:
        """Add an operator that the node computes beside its bodies; what it makes."""
        label = fresh(f"{self.label}/{type}", self.state.labels)
        out = self.state.define(fresh(label, self.state.tensor_names), dtype, tuple(shape), "activation")
        self._add(label, type, tuple(inputs), (out,))
        return out

    def _add(
        self, label: str, type: str, inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor, ...], **attrs: int
    ) -> None:
        self.state.operators.append(Operator(label, type, inputs, outputs, attrs, self.version, (self.label,)))

    def run(self, body: Body) -> list[Tensor]:
        """Infer a body's nodes and add their operators; the body's outputs."""
        graph, names, state = body.graph, body.names, self.state
        state.nodes_inlined += len(graph.node)
        if state.nodes_inlined > MAX_INLINED:
            raise ModelError(f"the bodies of loops and branches hold more than {MAX_INLINED:,} nodes")
        state.read.update(names.get(r, r) for r in state.captures.read_names(graph))
        scope = names.maps[0]
        state.declared_in_bodies.update(
            (scope[i.name], i) for i in (*graph.value_info, *graph.output) if i.name in scope
        )
        state.define_stored(graph, names)
        state.graphs.append((graph, names))
        self.walk(graph, names, f"{self.label}/")
        return [state.tensor(names.get(o.name, o.name), self.label) for o in graph.output]

    def trip_count(self, fixed: int | None, most: int | None = None) -> int:
        """How often the body runs: as often as the model fixes, else as --trip-count says; else, with a note, as often
        as its constant limit `most` allows, or once where there is none. A limit above MAX_TRIPS stands for none.

        Raises UsageError where --trip-count contradicts the model.
        """
        request = self.trips.count(self.label, self.node)
        if fixed is not None:
            if request not in (None, fixed):
                raise UsageError(f"--trip-count {plain(self.label)}={request}: the model itself runs it {fixed} times")
            return fixed
        if request is not None:
            return request
        bounded = most is not None and most <= MAX_TRIPS
        trips, count = (most or 0, f"{most}, its limit") if bounded else (1, "once")
        flag = f"--trip-count {plain(self.label)}=N"
        message = f"how often {self.label!r} runs depends on the data; assumed {count} (set it with {flag})"
        self.state.notes.append(Note("assumed-trip-count", message, (self.label,)))
        self.assumed, self.open = True, not bounded
        return trips

    def repeat(self, start: int, trips: int) -> None:
        """Let the operators from number `start` on run `trips` times; none is left where that is zero."""
        inside = self.state.operators[start:]
        most = max((o.repeat for o in inside), default=0) * trips
        if most > MAX_REPEAT:
            message = f"node {self.label!r} ({self.node.op_type}) would run an operator {most:,} times"
            raise UsageError(message) if self.trips.counts else ModelError(message)
        self.state.operators[start:] = [replace(o, repeat=o.repeat * trips) for o in inside if trips]

    def define_outputs(self, outputs: Sequence[Output], folded: bool = False, with_values: bool = False) -> None:
        """Define the node's outputs, in order; where it is `folded`, stored tensors stay so and need no operator, and
        `with_values`, where it is known what runs, they have those that the body gives them.
        """
        state, names = self.state, []
        for k, (t, stacked, axis, held) in enumerate(outputs):
            name = self.node.output[k] if k < len(self.node.output) else ""
            out = self.names.get(name, name) if name else fresh(f"{self.label}/{t.name}", state.tensor_names)
            stored = folded and t.stored and not stacked
            kind = t.kind if stored else "activation"
            value = state.values.get(t.name) if stored or (with_values and not stacked) else None
            type, assumed = stacked or state.types[t.name], self.assumed or t.name in state.assumed
            lacks = {out: tensor_type(t.dtype, known_dims(t))} if not stacked and not is_static(t) else None
            new = define_output(
                state, out, self.label, t, type, kind, value=value, assumed=assumed, session_types=lacks, held=held
            )
            names.append(out)
            if kind == "activation":
                what = "Identity" if not stacked else "Concat" if is_tensor(type) else "SequenceConstruct"
                label = fresh(f"{self.label}/{what}_{k}", state.labels)
                self._add(label, what, (t,), (new,), **({"axis": axis} if what == "Concat" else {}))
        state.made_together.update(dict.fromkeys(names, names[0]) if names else {})

    def note_changed_shapes(self, before: Sequence[Tensor | None], after: Sequence[Tensor]) -> None:
        """Note which carried tensors leave the body with another shape than they enter it."""
        for old, new in zip(before, after, strict=False):
            if old is not None and old.shape != new.shape:
                shapes = f"({times(old.shape)}, {times(new.shape)}, ...)"
                says = f"what {self.label!r} makes of {old.name!r} changes its shape {shapes}; assumed the first run's"
                if new.name in self.state.sequences:  # what it holds in the end is known all the same
                    self.state.notes.append(Note("assumed-shape", says, (self.label,)))
                else:
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


class Runs(NamedTuple):
    """A node whose first run is in the graph: what its body reads and gave.

    attribute, types, likes: of the body's inputs, see `ControlNode.enter`; results: all that the body gives; read,
    made: the first of its inputs, and of its results, that is carried; carried: these inputs in the first run.
    """

    node: ControlNode
    attribute: str
    types: Sequence[TypeProto]
    likes: Sequence[Tensor | None]
    results: list[Tensor]
    read: int
    made: int
    carried: Sequence[Tensor]

    def after(self, results: Sequence[Tensor]) -> list[Tensor]:
        """What is carried on, among the results of a run."""
        return list(results[self.made : self.made + len(self.carried)])

    def grows(self) -> bool:
        """Whether the first run leaves a tensor of another shape than it was entered with."""
        sequences = self.node.state.sequences
        pairs = zip(self.carried, self.after(self.results), strict=True)
        return any(old.shape != new.shape and new.name not in sequences for old, new in pairs)
