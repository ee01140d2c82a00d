"""Which constants hold the same for every sample of a file's batch: stored ones by their data, and what is computed
from these by operators that compute each sample by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import NodeProto

from onnxperf.graph.batch_node import NodeAt
from onnxperf.graph.batch_place import Across, Batch, Place, SameMemory, Unproved, repeated, same_memory
from onnxperf.graph.batch_rules import places_of
from onnxperf.graph.proto import attributes, domain_of
from onnxperf.graph.state import State
from onnxperf.graph.stored_data import DIFFERS, differing
from onnxperf.graph.values import Array, content, evaluate
from onnxperf.ground.errors import Error
from op_models import Tensor

MOST_ELEMENTS = 1 << 20  # of large constants that are read or computed, all together
DEEPEST = 16  # nodes, one behind the other, that such a constant is computed by


class Repeats:
    """What is found of the constants of a model in its own batch; `follow` takes their nodes in order.

    Where the batch sits in memory is told by how many blocks hold it whole (see `Place.outer`): `blocks` has each such
    number at which a constant repeats itself, `alike` the axes along which it does so at any.
    """

    def __init__(self, state: State, batch: Batch):
        self.original, self.batch = state, batch
        self.alike: dict[str, frozenset[int]] = {}
        self.blocks: dict[str, set[int]] = {}
        self.makers: dict[str, str] = {}
        self._compared: dict[tuple[str, int], str] = {}
        self._nodes: dict[str, NodeProto] = {}
        self._elements: dict[str, Array | None] = {}
        self._effort = MOST_ELEMENTS

    def elements(self, name: str, depth: int = DEEPEST) -> Array | None:
        """The elements of a constant of whole numbers, also where it is too large for its value to be kept; None where
        they are not known, or more than MOST_ELEMENTS with all others that were asked for.
        """
        tensor = self.original.tensors.get(name)
        if (
            name in self.original.values
            or tensor is None
            or not tensor.stored
            or tensor.dtype not in ("int32", "int64")
        ):
            return self.original.values.get(name)
        if name not in self._elements:
            self._elements[name] = self._computed(tensor, name, depth) if tensor.size <= self._effort else None
        return self._elements[name]

    def _computed(self, tensor: Tensor, name: str, depth: int) -> Array | None:
        """The elements of a constant, read or computed of those that its node reads."""
        self._effort -= tensor.size
        if (stored := self.original.stored.get(tensor.name)) is not None:
            return content(stored, self.original.folder, MOST_ELEMENTS)
        node = self._nodes.get(name)
        if node is None or not depth:
            return None
        read = {i: value for i in node.input if i and (value := self.elements(i, depth - 1)) is not None}
        return evaluate(node, read, self.original.types, self.original.opsets, MOST_ELEMENTS).get(name)

    def why_not(self, name: str, place: Place) -> str:
        """Why a constant can't be said to hold the same for each sample at a place; "" where it does."""
        tensor = self.original.tensors[name]
        outer = place.outer(tensor.shape)
        if self.batch.old == 1 or place.axis in self.alike.get(name, ()) or outer in self.blocks.get(name, ()):
            return ""
        if (value := self.original.values.get(name)) is not None:
            return "" if repeated(value, place, self.batch) is not None else DIFFERS
        if name in self.makers:
            how = f"it is computed by {self.makers[name]}, of which the same for each sample can't be shown"
            return f"can't be compared from sample to sample because {how}"
        key = tensor.name, outer
        if key not in self._compared:
            self._compared[key] = self._why_data_differ(tensor, outer)
        return self._compared[key]

    def _why_data_differ(self, tensor: Tensor, outer: int) -> str:
        stored = self.original.stored.get(tensor.name)
        why = "it is sparse or made by the exporter"
        if stored is not None:
            try:
                return differing(stored, self.original.folder, outer, self.batch.old)
            except (OSError, ValueError, TypeError, Error):
                why = "its data can't be read"
        return f"can't be compared from sample to sample because {why}"

    def follow(self, node: NodeProto, label: str) -> None:
        """Take down where the outputs of a node repeat themselves that reads nothing but constants."""
        outs = [o for o in node.output if (t := self.original.tensors.get(o)) is not None and t.stored]
        self._nodes.update(dict.fromkeys(outs, node))
        if self.batch.old == 1 or node.op_type == "Constant":
            return
        self.makers.update(dict.fromkeys(outs, f"node {label!r} ({node.op_type})"))
        if not outs or not all(i in self.original.tensors for i in node.input if i):
            return
        if axes := self._made_alike(node):
            self.alike[outs[0]] = axes
        if node.op_type == "Tile" and (times := self.original.values.get(node.input[1])) is not None:
            shape = self.original.tensors[node.output[0]].shape
            whole = [axis for axis, n in enumerate(times.ravel()) if n and n % self.batch.old == 0]
            self.blocks.setdefault(node.output[0], set()).update(Place(axis).outer(shape) for axis in whole)
        for index, name in enumerate(node.input):
            for place in self._places(name) if name else ():
                for out, outer in self._left(node, index, place):
                    self.blocks.setdefault(out, set()).add(outer)

    def _made_alike(self, node: NodeProto) -> frozenset[int]:
        """The axes along which an operator repeats its input."""
        if node.op_type not in ("ConstantOfShape", "Expand"):  # others may have no input, as SequenceEmpty
            return frozenset()
        before, after = (self.original.tensors.get(name) for name in (node.input[0], node.output[0]))
        if before is None or after is None:
            return frozenset()
        if node.op_type == "ConstantOfShape":
            return frozenset(range(after.rank))
        padded = (1,) * (after.rank - before.rank) + before.shape
        return frozenset(axis for axis, (d, to) in enumerate(zip(padded, after.shape, strict=True)) if d == 1 != to)

    def _places(self, name: str) -> set[Place]:
        """Where an input repeats itself: one place in each axis that can hold the batch, and those of its blocks."""
        tensor, old, held = self.original.tensors[name], self.batch.old, set[Place]()
        for axis, size in enumerate(tensor.shape if tensor.stored else ()):
            whole = Place(axis)
            spread = axis in self.alike.get(name, ()) and whole.fits(tensor.shape, old)
            if spread or (size == old and not self.why_not(name, whole)):
                held.add(whole)
            places = (same_memory(tensor.shape, axis, outer, old) for outer in self.blocks.get(name, ()))
            held.update(place for place in places if place is not None)
        return held

    def _left(self, node: NodeProto, index: int, place: Place) -> Iterator[tuple[str, int]]:
        """The outputs that repeat themselves where one input does so at a place, and in how many blocks."""
        state, domain = self.original, domain_of(node)
        tensors = [state.tensors.get(i) for i in node.input]
        n = NodeAt(
            f"{domain}::{node.op_type}" if domain else node.op_type, attributes(node), state.opsets.get(domain, 0),
            tensors, [state.tensors.get(o) for o in node.output],
            [place if i == index else None for i in range(len(node.input))],
            [(state.values.get(i), state.values.get(i)) for i in node.input],
            list(node.input), self.why_not, self.elements, self.batch,
        )  # fmt: skip
        try:
            places = places_of(n)
        except (Across, Unproved):
            return
        for k, out in enumerate(node.output):
            at = places[k] if isinstance(places, tuple) and k < len(places) else places
            tensor = state.tensors.get(out)
            if tensor is None or not tensor.stored:
                continue
            if isinstance(at, SameMemory):
                yield out, at.outer
            elif isinstance(at, Place) and at.fits(tensor.shape, self.batch.old):
                yield out, at.outer(tensor.shape)
