"""Infers a model at a batch by which no size of it is right by chance, and finds out which constants hold the batch."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from onnx import NodeProto

from onnxperf.graph.batch_node import Edit, Guess, NodeAt
from onnxperf.graph.batch_place import Across, Batch, Place, SameMemory, Unproved, repeated, same_memory
from onnxperf.graph.batch_repeats import Repeats
from onnxperf.graph.batch_rules import Places, places_of
from onnxperf.graph.core import AT_BATCH, CONTROL, Graph, fresh
from onnxperf.graph.node import infer_node
from onnxperf.graph.proto import Shape, attributes, domain_of, times
from onnxperf.graph.state import State
from onnxperf.graph.values import MAX_VALUE, Array
from onnxperf.ground.errors import UsageError


class Refusal(UsageError):
    """Why the batch can't be changed."""


class Edits:
    """Infers nodes with the constants that hold a batch in the place of their own."""

    def __init__(self, edits: Mapping[str, list[Edit]], batch: Batch):
        self.edits, self.batch = edits, batch
        self._constants: dict[tuple[str, Place | None], str] = {}

    def infer_node(self, state: State, node: NodeProto, label: str) -> NodeProto:
        """Infer a node, changed where it has to be, and give it back."""
        if label in self.edits:
            changed = NodeProto()
            changed.CopyFrom(node)
            for edit in self.edits[label]:
                changed.input.extend([""] * (edit.index + 1 - len(changed.input)))
                changed.input[edit.index] = self._constant(state, changed.input[edit.index] or label, edit)
            node = changed
        infer_node(state, node, label)
        return node

    def _constant(self, state: State, name: str, edit: Edit) -> str:
        """The name of the constant that an edit asks for."""
        if edit.tensor and (edit.tensor, edit.place) in self._constants:
            return self._constants[edit.tensor, edit.place]
        constant = fresh(f"{edit.tensor or name}{AT_BATCH}{self.batch.new}", state.tensor_names)
        scaled = edit.place.scaled(edit.base, self.batch) if edit.place else edit.base
        if edit.tensor and edit.place:
            value: Array | None = state.values.get(edit.tensor) if prod(scaled) <= MAX_VALUE else None
            value = None if value is None else repeated(value, edit.place, self.batch)
            state.define(constant, state.tensors[edit.tensor].dtype, scaled, "constant", value)
            self._constants[edit.tensor, edit.place] = constant
        else:
            state.define(constant, "int64", (len(scaled),), "constant", np.array(scaled, dtype=np.int64))
        return constant


class Probe:
    """Infers a model at the probing batch, and collects by node which constants hold the batch.

    `original` is the model in its own batch. `across` are the nodes that may compute across samples: no harm where no
    constant holds the batch, as the model is then the same at every batch.
    """

    def __init__(self, original: State, batch: Batch, before: Mapping[Guess, bool]):
        self.original, self.batch, self.before = original, batch, before
        self.edits: dict[str, list[Edit]] = {}
        self.across: dict[str, str] = {}
        self.guessed = False
        self.guesses: dict[Guess, str] = {}  # the first node that each is made at
        self.places: dict[str, Place | None] = {}
        self.lost: set[str] = set()
        self.numbered: dict[str, frozenset[int]] = {}  # columns of indices that are the numbers of samples
        self._repeats = Repeats(original, batch)
        self._apply = Edits(self.edits, batch)

    def infer_node(self, state: State, node: NodeProto, label: str) -> NodeProto:
        """Infer a node, with other constants where its own hold the batch, give it back, and tell where its outputs
        hold it.
        """
        where = f"node {label!r} ({node.op_type})"
        held = [i for i in node.input if i in state.tensors and self._holds(state, i)] or self._told(state, node)
        try:
            places = self._follow(state, node, label) if held else None
        except Across as e:
            places = None
            self.across[label] = f"{where} can't be shown to compute each sample by itself: {e}"
        except Unproved as e:
            raise Refusal(f"{where}: {e}") from None
        changed = self._apply.infer_node(state, node, label)
        if not held:
            self._repeats.follow(node, label)
        for k, out in enumerate(node.output):
            place = places[k] if isinstance(places, tuple) and k < len(places) else places
            if out not in state.tensors:
                continue
            if isinstance(place, SameMemory):
                place = self._seen(state, out, place)
            if isinstance(place, Place):
                self._expect(state, out, place, where)
        return changed

    def _seen(self, state: State, out: str, same: SameMemory) -> Place | None:
        """The place in an output whose shape is computed in the graph; None where its shape has no such place."""
        original, probed = self.original.tensors.get(out), state.tensors[out]
        if original is None:
            return None
        every = (same_memory(original.shape, axis, same.outer, self.batch.old) for axis in range(original.rank))
        return next((p for p in every if p and p.scaled(original.shape, self.batch) == probed.shape), None)

    def _follow(self, state: State, node: NodeProto, label: str) -> Places:
        """Where a node's outputs hold the batch, by the operator's rule; None where their own shapes tell."""
        lost = [i for i in node.input if i in self.lost]
        if lost:
            if node.op_type == "Reshape" and not self._is_flat(state, node):
                raise Unproved(f"where its input {lost[0]!r} holds the batch is not known")
            raise Across(f"where its input {lost[0]!r} holds the batch is not known")
        domain, original = domain_of(node), self.original
        n = NodeAt(
            f"{domain}::{node.op_type}" if domain else node.op_type, attributes(node), state.opsets.get(domain, 0),
            [original.tensors.get(i) for i in node.input], [original.tensors.get(o) for o in node.output],
            [self.places.get(i) for i in node.input],
            [(original.values.get(i), state.values.get(i)) for i in node.input],
            list(node.input), self._repeats.why_not, self._repeats.elements, self.batch, before=self.before,
            numbered=self.numbered,
        )  # fmt: skip
        if node.op_type != "GatherND" and any(i in self.numbered for i in node.input):
            raise Across("it reads the numbers of samples")
        places = places_of(n)
        if n.columns:
            self.numbered[node.output[0]] = frozenset(n.columns)
        self.guessed = self.guessed or bool(n.guesses or n.twins)
        self.guesses = {**dict.fromkeys(n.guesses, label), **self.guesses}
        if n.edits:
            self.edits[label] = n.edits
        return places

    def _is_flat(self, state: State, node: NodeProto) -> bool:
        """Whether a Reshape's target is computed from the batch, or is one axis of all elements."""
        original, probed = (s.values.get(node.input[1]) for s in (self.original, state))
        same = (
            original is not None
            and probed is not None
            and original.shape == probed.shape
            and (original == probed).all()
        )
        return not same or (original is not None and original.ravel().tolist() == [-1])

    def _holds(self, state: State, name: str) -> bool:
        """Whether a tensor's shape depends on the batch; then `places` or `lost` has it."""
        if name in self.places:
            return self.places[name] is not None
        if name in self.lost:
            return True
        original, shape = self.original.tensors.get(name), state.tensors[name].shape
        if original is None:
            self.lost.add(name)
            return True
        place = None
        if original.shape != shape:
            place = next((p for p in map(Place, range(len(shape))) if self._is_alone(original.shape, shape, p)), None)
            if place is None:
                self.lost.add(name)
                return True
        self.places[name] = place
        return place is not None

    def _told(self, state: State, node: NodeProto) -> list[str]:
        """The sizes that an Expand spreads a constant over, where they are computed from the batch."""
        if node.op_type != "Expand" or domain_of(node):
            return []
        before, probed = (s.values.get(node.input[1]) for s in (self.original, state))
        same = before is probed or (before is not None and probed is not None and np.array_equal(before, probed))
        return [] if same else [node.input[1]]

    def _is_alone(self, original: Shape, shape: Shape, place: Place) -> bool:
        """Whether the axis of a place holds the batch and nothing else."""
        alone = place.axis < len(original) and original[place.axis] == self.batch.old
        return alone and place.scaled(original, self.batch) == shape

    def _expect(self, state: State, out: str, place: Place, where: str) -> None:
        """Take down where an output holds the batch; Refusal where its shape is another."""
        original, shape = self.original.tensors.get(out), state.tensors[out].shape
        if (
            original is None
            or not place.fits(original.shape, self.batch.old)
            or place.scaled(original.shape, self.batch) != shape
        ):
            size = times(original.shape) if original is not None else "nothing"
            raise Refusal(f"{where} makes {size} of a batch of {self.batch.old}, and no such shape of a larger one")
        self.places[out] = place

    def conclude(self, graph: Graph) -> None:
        """Raise Refusal where constants hold the batch, and not every sample is shown to be computed by itself."""
        if not self.edits and not self.guessed:
            return
        live = {n for o in graph.operators for n in o.nodes}
        flow = next((o for o in graph.operators if o.type in CONTROL), None)
        if flow is not None:
            raise Refusal(f"node {flow.name!r} ({flow.type}) holds graphs, which are not followed")
        if across := [why for label, why in self.across.items() if label in live]:
            raise Refusal(across[0])
        for t in graph.outputs:
            place = self.places.get(t.name)
            if place is not None and self.original.tensors[t.name].shape[place.axis] != self.batch.old:
                raise Refusal(f"output {t.name!r} has no axis of its own for the batch")
