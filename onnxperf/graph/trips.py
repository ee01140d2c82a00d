"""Trip counts: how often loops run where the model leaves it open, as --trip-count gives them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from onnx import GraphProto, NodeProto

from onnxperf.errors import UsageError
from onnxperf.graph.bind import nearest
from onnxperf.graph.proto import nodes_in, plain

LOOPS = frozenset({"Loop", "SequenceMap"})
MAX_TRIPS = 10**9  # the largest count that can be given


class TripCounts:
    """The given trip counts, by a node's label in the graph ("outer/inner") or by its own name where that is unique.

    `seen` gets the operator type of every control-flow node by its label. Raises UsageError for counts above MAX_TRIPS.
    """

    def __init__(self, graph: GraphProto, given: Mapping[str, int]):
        for name, count in given.items():
            if count > MAX_TRIPS:
                raise UsageError(f"--trip-count {plain(name)}={count} can't be used: the limit is {MAX_TRIPS:,}")
        self.given = given
        self.own = Counter(n.name for n in nodes_in(graph.node) if n.op_type in LOOPS) if given else Counter[str]()
        self.seen: dict[str, str] = {}
        self.used: set[str] = set()

    def of(self, label: str, node: NodeProto) -> int | None:
        """The count that is given for a loop; None where there is none."""
        name = label if label in self.given or self.own[node.name] != 1 else node.name
        self.used.add(name)
        return self.given.get(name)

    def check_used(self) -> None:
        """Raise UsageError where a count is given for anything but a loop that needs one."""
        for name in self.given.keys() - self.used:
            loops = [label for label, type in self.seen.items() if type in LOOPS]
            why = {"Scan": "a Scan is as long as its inputs", "If": "an If does not loop"}.get(self.seen.get(name, ""))
            have = ", ".join(map(repr, loops)) or "none that runs"
            why = why or f"the model's loops: {have}{nearest(name, loops)}"
            raise UsageError(f"--trip-count {plain(name)}={self.given[name]}: {why}")
