"""Control flow: the bodies of If, Loop, Scan and SequenceMap become part of the graph, run as often as they are.

A body's names get that of its node before them. An operator with the node's type stands before the body and makes
what the body is handed; behind it, one operator for each output hands on what the last run left, or all runs together.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onnx import AttributeProto, GraphProto, NodeProto, TypeProto, helper

from onnxperf.errors import ModelError, UsageError
from onnxperf.graph.core import Note, fresh
from onnxperf.graph.order import read_names
from onnxperf.graph.proto import NUMBERS, Shape, attributes, captured, is_tensor, made_in, plain, times
from op_models import Operator, Tensor, work_or_bytes

if TYPE_CHECKING:
    from onnxperf.graph.walk import Walk

MAX_INLINED = 200_000  # nodes in bodies
MAX_REPEAT = 10**12  # runs of one operator
#: What a body returns at last; the type that all runs make of it together (None where only the last counts); the axis.
Result = tuple[Tensor, TypeProto | None, int]


def scoped(node: NodeProto, names: ChainMap[str, str]) -> NodeProto:
    """A node of a body under its names in the graph; bodies of its own leave it, what they read becomes its input."""
    outer = [c for c in captured(node) if c not in node.input]
    return NodeProto(
        op_type=node.op_type,
        domain=node.domain,
        input=[names.get(i, i) for i in (*node.input, *outer)],
        output=[names.get(o, o) for o in node.output],
        attribute=[a for a in node.attribute if not a.HasField("g") and not a.graphs],
    )


class Site:
    """A control-flow node where it stands; `names` are those in the graph of the tensors that bodies around it make."""

    def __init__(self, walk: Walk, node: NodeProto, label: str, names: ChainMap[str, str]):
        self.walk, self.node, self.label, self.names = walk, node, label, names
        self.inputs = [walk.operand(names.get(i, i), label) if i else None for i in node.input]
        self.vague = any(t.name in walk.vague for t in self.inputs if t)
        self.version = walk.opsets.get("", 0)
        walk.trips.met[label] = node.op_type

    def refuse(self, why: str) -> ModelError:
        """The error for a node whose bodies don't fit it."""
        return ModelError(f"node {self.label!r} ({self.node.op_type}) can't run: {why}")

    def body(self, attribute: str, inputs: int, outputs: int) -> tuple[GraphProto, list[str], ChainMap[str, str]]:
        """The body in an attribute, the names of its inputs, and the names in the graph of all that it makes."""
        found = [a.g for a in self.node.attribute if a.name == attribute and a.type == AttributeProto.GRAPH]
        if not found:
            raise self.refuse(f"it has no {attribute}")
        graph = found[0]
        stored = {t.name for t in graph.initializer}
        arguments = [i.name for i in graph.input if i.name not in stored]
        if (len(arguments), len(graph.output)) != (inputs, outputs):
            has, needs = f"{len(arguments)} inputs and {len(graph.output)} outputs", f"{inputs} and {outputs}"
            raise self.refuse(f"its {attribute} has {has}, where {needs} are needed")
        if "" in arguments:
            raise self.refuse(f"an input of its {attribute} has no name")
        own = {name: fresh(f"{self.label}/{name}", self.walk.names) for name in made_in(graph)}
        return graph, arguments, self.names.new_child(own)

    def argument(self, name: str, type: TypeProto, like: Tensor | None = None) -> Tensor:
        """What a body gets under `name`: an activation, whose content differs from run to run."""
        if not is_tensor(type):
            return self.walk.carry(name, type)
        dtype, shape = self.walk.resolve(name, type, None, self.label, (like,), self.vague)
        return self.walk.define(name, dtype, shape, "activation")

    def enter(self, outputs: Sequence[Tensor] = ()) -> None:
        """The operator that decides whether and how often the body runs, and hands it its `outputs`."""
        kind, label, given = self.node.op_type, self.label, tuple(self.inputs)
        self.walk.operators.append(Operator(label, kind, given, tuple(outputs), {}, self.version, (label,)))

    def run(self, graph: GraphProto, names: ChainMap[str, str]) -> list[Tensor]:
        """Walk a body; its outputs."""
        walk = self.walk
        walk.inlined += len(graph.node)
        if walk.inlined > MAX_INLINED:
            raise ModelError(f"the bodies of loops and branches hold more than {MAX_INLINED:,} nodes")
        walk.read.update(names.get(r, r) for r in read_names(graph))
        walk.declared.update((names[i.name], i) for i in (*graph.value_info, *graph.output) if i.name in names.maps[0])
        walk.store(graph, names)
        walk.depth += 1
        walk.nodes(graph, names, f"{self.label}/")
        walk.depth -= 1
        return [walk.operand(names.get(o.name, o.name), self.label) for o in graph.output]

    def trips(self, fixed: int | None) -> int:
        """How often the body runs: as the model says, else as asked for, else once."""
        given = self.walk.trips.of(self.label, self.node)
        if fixed is not None:
            if given not in (None, fixed):
                raise UsageError(f"--trip-count {plain(self.label)}={given}: the model itself runs it {fixed} times")
            return fixed
        if given is not None:
            return given
        flag = f"--trip-count {plain(self.label)}=N"
        message = f"how often {self.label!r} runs depends on the data; time and range are for once (set it with {flag})"
        self.walk.notes.append(Note("assumed-trip-count", message, (self.label,)))
        self.vague = True
        return 1

    def repeat(self, start: int, trips: int) -> None:
        """Let the operators from `start` on run `trips` times."""
        inside = self.walk.operators[start:]
        most = max((o.repeat for o in inside), default=0) * trips
        if most > MAX_REPEAT:
            message = f"node {self.label!r} ({self.node.op_type}) would run an operator {most:,} times"
            raise UsageError(message) if self.walk.trips.given else ModelError(message)
        self.walk.operators[start:] = [replace(o, repeat=o.repeat * trips) for o in inside if trips]

    def hand_on(self, results: Sequence[Result], sure: bool = False) -> None:
        """The node's outputs, in order; where `sure`, their content is that of the results."""
        walk, made = self.walk, []
        for k, (t, stacked, axis) in enumerate(results):
            name = self.node.output[k] if k < len(self.node.output) else ""
            out = self.names.get(name, name) if name else fresh(f"{self.label}/{t.name}", walk.names)
            kind, value = "activation", None
            if sure and t.stored and not stacked:
                kind, value = t.kind, walk.values.get(t.name)
            type = stacked or walk.types[t.name]
            if is_tensor(type):
                vague = self.vague or t.name in walk.vague
                new = walk.define(out, *walk.resolve(out, type, value, self.label, (t,), vague), kind, value)
            else:
                new = walk.carry(out, type)
            made.append(out)
            if kind == "activation":
                what = "Identity" if not stacked else "Concat" if is_tensor(type) else "SequenceConstruct"
                attrs = {"axis": axis} if what == "Concat" else {}
                label = fresh(f"{self.label}/{what}_{k}", walk.labels)
                walk.operators.append(Operator(label, what, (t,), (new,), attrs, self.version, (self.label,)))
        walk.together.update(dict.fromkeys(made, made[0]) if made else {})

    def known(self, t: Tensor | None) -> int | None:
        """The one number in a tensor, where it is known before the run."""
        value = self.walk.values.get(t.name) if t is not None else None
        return int(value.flat[0]) if value is not None and value.size == 1 and value.dtype.kind in "iub" else None

    def axis(self, attrs: Mapping[str, Any], name: str, k: int, rank: int) -> int:
        """Along which axis the k-th tensor is taken apart or put together."""
        axes = attrs.get(name) or ()
        axis = axes[k] if isinstance(axes, tuple) and k < len(axes) else 0
        if not isinstance(axis, int):
            raise self.refuse(f"its {name} are no whole numbers")
        if not -rank <= axis < rank and not self.vague:
            raise self.refuse(f"a tensor with {rank} axes has no axis {axis}")
        return axis % max(rank, 1)


def _choose(site: Site) -> None:
    """If: the branch that a known condition picks, else the one that costs more."""
    walk, node, branches = site.walk, site.node, ("then_branch", "else_branch")
    condition = site.known(site.inputs[0])
    if condition is not None:
        graph, _, names = site.body(branches[not condition], 0, len(node.output))
        return site.hand_on([(t, None, 0) for t in site.run(graph, names)], sure=True)
    site.enter()
    start, notes = len(walk.operators), len(walk.notes)
    found = []
    for branch in branches:
        graph, _, names = site.body(branch, 0, len(node.output))
        results = site.run(graph, names)
        operators, said = walk.operators[start:], walk.notes[notes:]
        found.append((_cost(walk, operators), branch, results, operators, said))
        del walk.operators[start:], walk.notes[notes:]
    (_, branch, results, operators, said), (*_, others, _, _) = found if found[0][0] >= found[1][0] else found[::-1]
    walk.operators += operators
    message = f"which branch {site.label!r} takes depends on the data; taken as its {branch}, which costs more"
    walk.notes += [*said, Note("assumed-branch", message, (site.label,))]
    differ = [k for k, (one, other) in enumerate(zip(results, others, strict=True)) if one.shape != other.shape]
    walk.vague.update(results[k].name for k in differ)
    site.hand_on([(t, None, 0) for t in results])
    for out in (site.names.get(node.output[k], node.output[k]) for k in differ if node.output[k]):
        shape = times(walk.tensors[out].shape)
        walk.assume(out, f"the shape of {out!r} depends on the branch; taken as {shape}", site.label)


def _cost(walk: Walk, operators: Sequence[Operator]) -> tuple[int, int]:
    """FLOPs and bytes of all runs; each operator's own are asked for once, however deep it stands."""
    for o in operators:
        if o.name not in walk.costs:
            w, _ = work_or_bytes(o)
            walk.costs[o.name] = w.flops, w.bytes
    runs = [(o.repeat, *walk.costs[o.name]) for o in operators]
    return sum(n * flops for n, flops, _ in runs), sum(n * size for n, _, size in runs)


def _loop(site: Site) -> None:
    """Loop: M runs where neither its own condition nor the body's ends it before."""
    walk, (limit, go, *carried) = site.walk, site.inputs
    count = len(carried)
    graph, arguments, names = site.body("body", 2 + count, 1 + max(len(site.node.output), count))
    if None in carried:
        raise site.refuse("the first value of what it carries is missing")
    ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in graph.input}  # ONNX Runtime gives what is declared
    own = [helper.make_tensor_type_proto(n, (1,) * (ranks[a] == 1)) for n, a in zip((7, 9), arguments, strict=False)]
    types = [*own, *(walk.types[t.name] for t in carried if t)]
    likes = (None, None, *carried)
    site.enter([site.argument(names[a], type, t) for a, type, t in zip(arguments, types, likes, strict=True)])
    start, notes = len(walk.operators), len(walk.notes)
    again, *results = site.run(graph, names)
    most, first = site.known(limit), 1 if go is None else site.known(go)
    stays = first if _passed_on(graph, arguments[1]) else site.known(again)
    fixed = None
    if first == 0 or (most is not None and most <= 0):
        fixed = 0
    elif first and stays is not None and (limit is None or most is not None):
        fixed = most if stays else 1
    trips = site.trips(fixed)
    site.repeat(start, trips)
    if fixed == 0:
        del walk.notes[notes:]
    _changes(site, carried, results)
    last = [t for t in carried if t] if not trips else results[:count]
    stacked = [(t, _tensor(t, (trips, *t.shape)), 0) for t in results[count:]]
    site.hand_on([*((t, None, 0) for t in last), *stacked], sure=fixed == 0)


def _passed_on(graph: GraphProto, condition: str) -> bool:
    """True where a Loop's body gives its condition back as it got it."""
    source = {o: n.input[0] for n in graph.node if n.op_type == "Identity" for o in n.output}
    name = graph.output[0].name
    while name in source:
        name = source[name]
    return bool(name == condition)


def _changes(site: Site, before: Sequence[Tensor | None], after: Sequence[Tensor]) -> None:
    """Note what a body gives back in another shape than it got it."""
    for old, new in zip(before, after, strict=False):
        if old is not None and old.shape != new.shape:
            shapes = f"({times(old.shape)}, {times(new.shape)}, ...)"
            message = f"what {site.label!r} makes of {old.name!r} changes its shape {shapes}; taken as the first run's"
            site.walk.assume(new.name, message, site.label)


def _scan(site: Site) -> None:
    """Scan: one run for each slice of its inputs; before opset 9 of each sequence in a batch."""
    walk, attrs = site.walk, attributes(site.node)
    old = site.version < 9  # inputs are [batch, length, ...], and their true lengths come first
    inputs = [t for t in site.inputs[old:] if t]
    scanned = attrs.get("num_scan_inputs", 0)
    if not isinstance(scanned, int) or not 0 < scanned <= len(inputs) or len(inputs) != len(site.inputs[old:]):
        raise site.refuse(f"{plain(str(scanned))} of its {len(inputs)} inputs are to be scanned")
    count = len(inputs) - scanned
    graph, arguments, names = site.body("body", len(inputs), len(site.node.output))
    lead = inputs[count].shape[:1] if old else ()
    shapes: list[Shape] = [t.shape[old:] for t in inputs[:count]]
    lengths = set()
    for k, t in enumerate(inputs[count:]):
        axis = site.axis(attrs, "scan_input_axes", k, t.rank) if not old else 1
        lengths.add(t.shape[axis] if axis < t.rank else 1)
        shapes.append(t.shape[2:] if old else (*t.shape[:axis], *t.shape[axis + 1 :]))
    if len(lengths) != 1 and not site.vague:
        raise site.refuse(f"its inputs are of different lengths: {', '.join(map(str, sorted(lengths)))}")
    length = max(lengths)
    types = [_tensor(t, s) for t, s in zip(inputs, shapes, strict=True)]
    handed = [site.argument(names[a], type, t) for a, type, t in zip(arguments, types, inputs, strict=True)]
    site.enter(handed)
    start = len(walk.operators)
    results = site.run(graph, names)
    site.repeat(start, lead[0] * length if lead else length)
    _changes(site, handed[:count], results)
    made: list[Result] = [(t, _tensor(t, (*lead, *t.shape)) if old else None, 0) for t in results[:count]]
    for k, t in enumerate(results[count:]):
        axis = site.axis(attrs, "scan_output_axes", k, t.rank + 1) if not old else 0
        made.append((t, _tensor(t, (*lead, *t.shape[:axis], length, *t.shape[axis:])), axis))
    site.hand_on(made)


def _tensor(t: Tensor, shape: Shape) -> TypeProto:
    """The type of a tensor with this element type."""
    return helper.make_tensor_type_proto(NUMBERS.get(t.dtype, 0), shape)


def _sequence_map(site: Site) -> None:
    """SequenceMap: one run for each element of a sequence, whose length only the run knows."""
    given = [t for t in site.inputs if t]
    graph, arguments, names = site.body("body", len(given), len(site.node.output))
    types = [site.walk.types[t.name] for t in given]
    types = [t.sequence_type.elem_type if t.HasField("sequence_type") else t for t in types]
    site.enter([site.argument(names[a], type) for a, type in zip(arguments, types, strict=True)])
    start = len(site.walk.operators)
    results = site.run(graph, names)
    trips = site.trips(None)
    site.repeat(start, trips)
    made = [TypeProto(sequence_type=TypeProto.Sequence(elem_type=site.walk.types[t.name])) for t in results]
    site.hand_on([(t, type, 0) for t, type in zip(results, made, strict=True)])


#: What becomes of the nodes of control flow.
FLOW: dict[str, Callable[[Site], None]] = {"If": _choose, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
