"""Where Model Explorer shows the nodes of a model: the ids that its adapter for ONNX, model-explorer-onnx, gives them.

The id of a node is its name. A node without one is called "node", and one whose name another node of its graph has gets
a number behind it. Nodes of an If stand in the graph around it, under "IF/then_branch/NAME"; the body of a loop in the
main graph is a graph of its own, "LOOP/body"; bodies further inside are not shown.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from onnx import GraphProto, ModelProto

from onnxperf.graph.infer import labelled
from onnxperf.graph.proto import Captures, operator_type
from onnxperf.graph.read import parsed
from onnxperf.ground.errors import UsageError


class Place(NamedTuple):
    """A node that is shown: the id of its graph, and its own."""

    graph: str
    node: str


def places(model: str | os.PathLike[str] | bytes | ModelProto) -> tuple[str, dict[str, tuple[Place, ...]]]:
    """The id of the main graph; and for each node, by the name that predictions have for it, its place, if it is shown,
    then those of the loops around it, innermost first.

    Raises UsageError for a model with functions, whose nodes have no name of their own there, and as `predict` does.
    """
    proto, name, _ = parsed(model)
    if proto.functions:
        inline = "onnx.inliner.inline_local_functions"
        raise UsageError(f"Model Explorer shows functions apart, and {name} has some: inline them with {inline} first")
    main = proto.graph.name
    return main, dict(_Walk(main).through(proto.graph, main, "", "", ()))


@dataclass(frozen=True)
class _Walk:
    """A walk through all graphs in the order in which the adapter names their nodes."""

    main: str
    counts: Counter[str] = field(default_factory=Counter)
    labels: set[str] = field(default_factory=set)
    captures: Captures = field(default_factory=Captures)

    def through(
        self, graph: GraphProto, shown_in: str | None, path: str, prefix: str, around: tuple[Place, ...]
    ) -> Iterator[tuple[str, tuple[Place, ...]]]:
        """The nodes of a graph that stands in the graph of this id, or in none; path: before their ids there; prefix:
        before the names that predictions have for them; around: the loops that it is the body of.
        """
        taken: set[str] = set()
        for node, label in labelled(graph, self.labels, self.captures, prefix):
            id = path + self._unique(node.name or "node", taken)
            here = around if shown_in is None else (Place(shown_in, id), *around)
            yield label, here
            for a in node.attribute:
                if not a.HasField("g"):
                    continue
                if operator_type(node) == "If":
                    yield from self.through(a.g, shown_in, f"{id}/{a.name}/", f"{label}/", around)
                else:
                    body = f"{id}/{a.name}" if shown_in == self.main else None
                    yield from self.through(a.g, body, "", f"{label}/", here)

    def _unique(self, name: str, taken: set[str]) -> str:
        """A name that no other node of the graph has; numbers are counted across all graphs."""
        unique = name
        while unique in taken:
            self.counts[name] += 1
            unique = f"{name}_{self.counts[name]}"
        taken.add(unique)
        return unique
