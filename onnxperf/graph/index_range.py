"""Indices that are out of a table's bounds: their smallest and largest are known before the run, as are its rows.

PyTorch, and ONNX Runtime on the CPU, fail at such a node: a sequence longer than the table of positions, say.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from onnx import NodeProto

from onnxperf.graph.proto import attributes, domain_of
from onnxperf.graph.values import Values
from op_models import Tensor

Ends = tuple[int, int]  # the smallest and the largest of some indices
#: Operators that leave the numbers of their first input as they are.
SAME = frozenset({"Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"})


class IndexRanges:
    """The ends of tensors of indices, of any size, as nodes are followed in order; those of known values are read."""

    def __init__(self, tensors: Mapping[str, Tensor], values: Values):
        self._tensors, self._values = tensors, values
        self._ends: dict[str, Ends] = {}

    def follow(self, node: NodeProto) -> str:
        """Take down the ends of what a node makes; why its indices are out of bounds, "" where they aren't known to be.

        The tensors of the node must be known.
        """
        if domain_of(node) or not node.output:
            return ""
        ends = None
        if node.op_type == "Range":
            ends = self._of_range(node)
        elif node.op_type in SAME or (node.op_type == "Cast" and self._is_whole(node.output[0])):
            ends = self.ends(node.input[0])
        elif node.op_type == "Add":
            both = [self.ends(name) for name in node.input]
            if len(both) == 2 and both[0] and both[1]:
                ends = both[0][0] + both[1][0], both[0][1] + both[1][1]
        elif node.op_type == "Gather":
            return self._beyond(node)
        if ends is not None:
            self._ends[node.output[0]] = ends
        return ""

    def ends(self, name: str) -> Ends | None:
        """The smallest and the largest number of a tensor of whole numbers, or bounds of them; None if not known."""
        value = self._values.get(name)
        if value is not None and value.size and value.dtype.kind in "iu":
            return int(value.min()), int(value.max())
        return self._ends.get(name)

    def _is_whole(self, name: str) -> bool:
        return name in self._tensors and self._tensors[name].dtype in ("int32", "int64")

    def _of_range(self, node: NodeProto) -> Ends | None:
        bounds = [self._values.get(name) for name in node.input]
        if len(bounds) != 3 or not all(v is not None and v.size == 1 and v.dtype.kind in "iu" for v in bounds):
            return None
        start, limit, step = (int(v.flat[0]) for v in bounds if v is not None)
        count = ceil((limit - start) / step) if step else 0
        ends = start, start + (count - 1) * step
        return (min(ends), max(ends)) if count > 0 else None

    def _beyond(self, node: NodeProto) -> str:
        """Why a Gather reads rows that its table does not have."""
        ends, table = self.ends(node.input[1]), self._tensors.get(node.input[0])
        axis = int(attributes(node).get("axis", 0))
        if ends is None or table is None or not -table.rank <= axis < table.rank:
            return ""
        rows = table.shape[axis]
        if -rows <= ends[0] and ends[1] < rows:
            return ""
        wrong = ends[1] if ends[1] >= rows else ends[0]
        along = "rows" if axis == 0 else f"entries along axis {axis}"
        return f"reads index {wrong:,} of {table.name!r}, which has {rows:,} {along}: a run fails there"
