"""A model that is fixed to one batch, at another: its nodes are followed, and the constants among them that hold the
batch are replaced.

The model is inferred as it is, and at a probing batch that no size of it equals by chance. Where an input of a node
holds the batch, the operator's rule says where its outputs do, and which of its constants must hold it. Constants are
replaced only where every sample is computed by itself, as the file computes it; the batch that was asked for is then
inferred with these, and each of its shapes compared with those at the other two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto

from onnxperf.errors import ModelError, UsageError, printable
from onnxperf.graph.batch_node import Edit, Guess, NodeAt
from onnxperf.graph.batch_place import Across, Batch, Place, SameMemory, Unproved, repeated, same_memory
from onnxperf.graph.batch_rules import Places, places_of
from onnxperf.graph.bind import Binding
from onnxperf.graph.core import CONTROL, Graph, Note, fresh
from onnxperf.graph.infer import InferNode, Inferred, infer
from onnxperf.graph.node import infer_node
from onnxperf.graph.proto import Shape, attributes, domain_of, times
from onnxperf.graph.state import State
from onnxperf.graph.values import Array
from onnxperf.rules import work_or_bytes
from op_models import Operator

PROBE = 251  # a prime: times as large as the file's batch is the batch that is probed
HINT = "export the model with an open batch"
MOST_NAMED = 3  # nodes that the note names
MOST_WAYS = 24  # in which the batch may go through a model


class Followed(NamedTuple):
    """A model in its own batch and in the probing one, and which of its constants hold the batch, by node."""

    own: Inferred
    probed: Inferred
    edits: Mapping[str, list[Edit]]


#: What was found of a model, by the sizes that it has beside the batch: it holds for every batch.
Kept = dict[Any, Followed | None]


def inferred(
    model: ModelProto, binding: Binding, shapes: Mapping[str, Shape], trip_counts: Mapping[str, int], name: str,
    folder: Path | None, kept: Kept,
) -> Graph:  # fmt: skip
    """The static graph of a model whose inputs are bound, changed to their batch where it is made for another one.

    What was found out on the way goes to `kept`, which belongs to this model. Raises UsageError, which names a node,
    where the batch can't be changed; else what `infer` raises.
    """
    if not binding.batch_axes or binding.old_batch is None:
        return infer(model, binding, shapes, trip_counts, name, folder).graph
    old, new = binding.old_batch, binding.batch
    given = {tensor: shape for tensor, shape in shapes.items() if tensor in binding.inputs}

    def at(n: int, infer_one: InferNode = infer_node) -> Inferred:
        return infer(model, binding.at(n), shapes if n == new else given, trip_counts, name, folder, infer_one)

    sizes = (binding.at(old).inputs, binding.batch_axes, binding.symbols, trip_counts)
    key = tuple(tuple(sorted(each.items())) for each in sizes)
    try:
        if key not in kept:
            kept[key] = _followed(at, old, new)
        followed = kept[key]
        return at(new).graph if followed is None else _at_batch(at, followed, binding)
    except _Refusal as e:
        raise UsageError(f"{binding.refusal}: {e}; {HINT}") from None
    except UsageError as e:
        raise UsageError(f"{e}; {HINT}") from None


def _followed(at: Callable[..., Inferred], old: int, new: int) -> Followed | None:
    """The model in its own batch and the probing one; `new` is the batch whose sizes an error names. None where the
    model can't be inferred in its own batch.

    Where nodes by themselves leave open which axis holds the batch, every way is tried: all but one must fail.
    """
    try:
        own = at(old)
    except (UsageError, ModelError):  # the file's own sizes contradict each other: nothing to follow, nothing to change
        return None
    found, failed = list[Followed](), list[tuple[_Probe, Exception]]()
    ways, tried, open_at = [dict[Guess, bool]()], 0, ""
    while ways:
        way, tried = ways.pop(0), tried + 1
        probe = _Probe(own.state, Batch(old, PROBE * old), way)
        try:
            probed = at(probe.batch.new, probe.infer_node)
            probe.conclude(probed.graph)
            found.append(Followed(own, probed, probe.edits))
        except (UsageError, ModelError) as e:
            failed.append((probe, e))
        guesses = [guess for guess in probe.guesses if guess not in way]
        open_at = open_at or next((probe.guesses[guess] for guess in guesses), "")
        ways += [{**way, **dict.fromkeys(guesses[:i], False), guess: True} for i, guess in enumerate(guesses)]
        if len(found) > 1 or tried + len(ways) > MOST_WAYS:
            raise _Refusal(f"node {open_at!r} (Reshape) leaves open which axis of its output holds the batch")
    if found:
        return found[0]
    probe, error = failed[0]
    if not isinstance(error, _Refusal):
        at(new, _Edits(probe.edits, Batch(old, new)).infer_node)  # raises it with the sizes that were asked for
    raise error


def _at_batch(at: Callable[..., Inferred], followed: Followed, binding: Binding) -> Graph:
    """The graph at the batch of the binding; _Refusal where it does not grow with the batch."""
    own, probed, edits = followed
    batch = Batch(own.graph.batch, binding.batch)
    found = at(batch.new, _Edits(edits, batch).infer_node)
    if not edits:
        return found.graph
    _compare(own.state, probed.state, found.state)
    _compare_work(own.graph, found.graph)
    return replace(found.graph, notes=(*found.graph.notes, _note(edits, binding)))


class _Refusal(UsageError):
    """Why the batch can't be changed."""


class _Probe:
    """Infers a model at the probing batch, and collects by node which constants hold the batch.

    `own` is the model in its own batch. `across` are the nodes that may compute across samples: no harm where no
    constant holds the batch, as the model is then the same at every batch.
    """

    def __init__(self, own: State, batch: Batch, before: Mapping[Guess, bool]):
        self.own, self.batch, self.before = own, batch, before
        self.edits: dict[str, list[Edit]] = {}
        self.across: dict[str, str] = {}
        self.guessed = False
        self.guesses: dict[Guess, str] = {}  # the first node that each is made at
        self.places: dict[str, Place | None] = {}
        self.lost: set[str] = set()
        self.alike: dict[str, frozenset[int]] = {}  # axes along which a tensor repeats itself
        self._apply = _Edits(self.edits, batch)

    def infer_node(self, state: State, node: NodeProto, label: str) -> None:
        """Infer a node, with other constants where its own hold the batch, and tell where its outputs hold it."""
        where = f"node {label!r} ({node.op_type})"
        reads = [i for i in node.input if i]
        held = [i for i in reads if self._holds(state, i)]
        try:
            found = self._follow(state, node, label) if held else None
        except Across as e:
            found = None
            self.across[label] = f"{where} can't be shown to compute each sample by itself: {e}"
        except Unproved as e:
            raise _Refusal(f"{where}: {e}") from None
        self._apply.infer_node(state, node, label)
        if node.op_type == "Expand" and not held:
            self.alike[node.output[0]] = self._repeats(node)
        for k, out in enumerate(o for o in node.output if o):
            place = found[k] if isinstance(found, tuple) and k < len(found) else found
            if isinstance(place, SameMemory):
                place = self._seen(state, out, place)
            if out in state.tensors and isinstance(place, Place):
                self._expect(state, out, place, where)

    def _repeats(self, node: NodeProto) -> frozenset[int]:
        """The axes that an Expand makes of axes of 1, or without any."""
        before, after = (self.own.tensors[name].shape for name in (node.input[0], node.output[0]))
        padded = (1,) * (len(after) - len(before)) + before
        return frozenset(axis for axis, d in enumerate(padded) if d == 1)

    def _seen(self, state: State, out: str, same: SameMemory) -> Place | None:
        """The place in an output whose shape is computed in the graph; None where its shape has no such place."""
        own, shape = self.own.tensors[out].shape, state.tensors[out].shape
        every = (same_memory(own, axis, same.outer, self.batch.old) for axis in range(len(own)))
        return next((p for p in every if p and p.scaled(own, self.batch) == shape), None)

    def _follow(self, state: State, node: NodeProto, label: str) -> Places:
        """Where a node's outputs hold the batch, by the operator's rule; None where their own shapes tell."""
        lost = [i for i in node.input if i in self.lost]
        if lost:
            if node.op_type == "Reshape" and not self._is_flat(state, node):
                raise Unproved(f"where its input {lost[0]!r} holds the batch is not known")
            raise Across(f"where its input {lost[0]!r} holds the batch is not known")
        domain, own = domain_of(node), self.own
        n = NodeAt(
            f"{domain}::{node.op_type}" if domain else node.op_type, attributes(node), state.opsets.get(domain, 0),
            [own.tensors.get(i) for i in node.input], [own.tensors.get(o) for o in node.output],
            [self.places.get(i) for i in node.input],
            [(own.values.get(i), state.values.get(i)) for i in node.input],
            [self.alike.get(i, frozenset()) for i in node.input], self.batch, before=self.before,
        )  # fmt: skip
        found = places_of(n)
        self.guessed = self.guessed or bool(n.guesses or n.twins)
        self.guesses = {**dict.fromkeys(n.guesses, label), **self.guesses}
        if n.edits:
            self.edits[label] = n.edits
        return found

    def _is_flat(self, state: State, node: NodeProto) -> bool:
        """Whether a Reshape's target is computed from the batch, or is one axis of all elements."""
        own, probed = (s.values.get(node.input[1]) for s in (self.own, state))
        same = own is not None and probed is not None and own.shape == probed.shape and (own == probed).all()
        return not same or (own is not None and own.ravel().tolist() == [-1])

    def _holds(self, state: State, name: str) -> bool:
        """Whether a tensor's shape depends on the batch; then `places` or `lost` has it."""
        if name in self.places:
            return self.places[name] is not None
        if name in self.lost:
            return True
        own, shape = self.own.tensors.get(name), state.tensors[name].shape
        if own is None:
            self.lost.add(name)
            return True
        place = None
        if own.shape != shape:
            place = next((p for p in map(Place, range(len(shape))) if self._is_alone(own.shape, shape, p)), None)
            if place is None:
                self.lost.add(name)
                return True
        self.places[name] = place
        return place is not None

    def _is_alone(self, own: Shape, shape: Shape, place: Place) -> bool:
        """Whether the axis of a place holds the batch and nothing else."""
        alone = place.axis < len(own) and own[place.axis] == self.batch.old
        return alone and place.scaled(own, self.batch) == shape

    def _expect(self, state: State, out: str, place: Place, where: str) -> None:
        """Take down where an output holds the batch; _Refusal where its shape is another."""
        own, shape = self.own.tensors.get(out), state.tensors[out].shape
        if own is None or not place.fits(own.shape, self.batch.old) or place.scaled(own.shape, self.batch) != shape:
            made = times(own.shape) if own is not None else "nothing"
            raise _Refusal(f"{where} makes {made} of a batch of {self.batch.old}, and no such shape of a larger one")
        self.places[out] = place

    def conclude(self, graph: Graph) -> None:
        """Raise _Refusal where constants hold the batch, and not every sample is shown to be computed by itself."""
        if not self.edits and not self.guessed:
            return
        live = {n for o in graph.operators for n in o.nodes}
        flow = next((o for o in graph.operators if o.type in CONTROL), None)
        if flow is not None:
            raise _Refusal(f"node {flow.name!r} ({flow.type}) holds graphs, which are not followed")
        if across := [why for label, why in self.across.items() if label in live]:
            raise _Refusal(across[0])
        for t in graph.outputs:
            place = self.places.get(t.name)
            if place is not None and self.own.tensors[t.name].shape[place.axis] != self.batch.old:
                raise _Refusal(f"output {t.name!r} has no axis of its own for the batch")


class _Edits:
    """Infers nodes with the constants that hold a batch in the place of their own."""

    def __init__(self, edits: Mapping[str, list[Edit]], batch: Batch):
        self.edits, self.batch = edits, batch
        self._made: dict[tuple[str, Place], str] = {}

    def infer_node(self, state: State, node: NodeProto, label: str) -> None:
        """Infer a node, changed where it has to be."""
        if label in self.edits:
            changed = NodeProto()
            changed.CopyFrom(node)
            for edit in self.edits[label]:
                changed.input[edit.index] = self._constant(state, node.input[edit.index], edit)
            node = changed
        infer_node(state, node, label)

    def _constant(self, state: State, name: str, edit: Edit) -> str:
        """The name of the constant that an edit asks for."""
        if edit.of and (edit.of, edit.place) in self._made:
            return self._made[edit.of, edit.place]
        made = fresh(f"{edit.of or name} at batch {self.batch.new}", state.tensor_names)
        scaled = edit.place.scaled(edit.base, self.batch)
        if edit.of:
            value: Array | None = state.values.get(edit.of)
            value = None if value is None else repeated(value, edit.place, self.batch)
            state.define(made, state.tensors[edit.of].dtype, scaled, "constant", value)
            self._made[edit.of, edit.place] = made
        else:
            state.define(made, "int64", (len(scaled),), "constant", np.array(scaled, dtype=np.int64))
        return made


def _compare(own: State, probed: State, found: State) -> None:
    """Raise _Refusal where a size at the batch that was asked for is not on the line through those at the others."""
    old, new, probe = own.binding.batch, found.binding.batch, probed.binding.batch
    for name, tensor in found.tensors.items():
        a, b = own.tensors.get(name), probed.tensors.get(name)
        if a is None or b is None:  # a constant that was put there
            continue
        sizes = zip(a.shape, b.shape, tensor.shape, strict=False)
        line = all((z - x) * (probe - old) == (y - x) * (new - old) for x, y, z in sizes)
        if not line or len({len(a.shape), len(b.shape), len(tensor.shape)}) > 1:
            shapes = f"{times(a.shape)} at batch {old}, {times(tensor.shape)} at batch {new}"
            raise _Refusal(f"tensor {name!r} does not grow with it ({shapes})")


def _compare_work(own: Graph, found: Graph) -> None:
    """Raise _Refusal where an operator's FLOPs neither stay as they are nor grow as the batch does."""
    before = {o.name: o for o in own.operators}

    def flops(o: Operator) -> int:
        return work_or_bytes(o)[0].flops * o.repeat

    for o in found.operators:
        one, now = (flops(before[o.name]), flops(o)) if o.name in before else (0, 0)
        if now != one and now * own.batch != one * found.batch:
            says = f"{one:,} FLOPs at batch {own.batch}, {now:,} at batch {found.batch}"
            raise _Refusal(f"node {o.name!r} ({o.type}) does not grow with it ({says})")


def _note(edits: Mapping[str, list[Edit]], binding: Binding) -> Note:
    """Which nodes were changed."""
    nodes = tuple(edits)
    named = ", ".join(nodes[:MOST_NAMED]) + (f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else "")
    what = f"the file is made for batch {binding.old_batch}: taken as for batch {binding.batch}, in its inputs"
    says = f"{what} ({', '.join(binding.batch_axes)}) and in {len(nodes)} nodes that hold it in constants: {named}"
    return Note("rebatched", printable(says), nodes)
