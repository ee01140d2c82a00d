"""`Graph`: operators in execution order over static tensors, and the `Note` that explains a decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from op_models import Operator, Tensor

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should know: `code` for programs, `message` for people, `nodes` it concerns."""

    code: str
    message: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Graph:
    """Operators in execution order; every tensor has a static shape and one maker.

    `batch` is the number of samples in one run (the leading dimension of the inputs), `notes` what was
    assumed on the way here. Rooms never change a graph, they make another one.
    """

    name: str
    operators: tuple[Operator, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    batch: int = 1
    notes: tuple[Note, ...] = ()

    @cached_property
    def _makers(self) -> dict[str, Operator]:
        return {t.name: o for o in self.operators for t in o.outputs}

    @cached_property
    def _users(self) -> dict[str, tuple[Operator, ...]]:
        users: dict[str, dict[int, Operator]] = {}
        for o in self.operators:
            for t in o.present:
                users.setdefault(t.name, {})[id(o)] = o
        return {name: tuple(ops.values()) for name, ops in users.items()}

    @cached_property
    def output_names(self) -> frozenset[str]:
        """Names of the graph's outputs."""
        return frozenset(t.name for t in self.outputs)

    def made_by(self, tensor: Tensor | None) -> Operator | None:
        """The operator that writes `tensor`; None for inputs, weights and constants."""
        return self._makers.get(tensor.name) if tensor is not None else None

    def users(self, tensor: Tensor) -> tuple[Operator, ...]:
        """The operators that read `tensor`, in execution order, each once."""
        return self._users.get(tensor.name, ())

    def stored(self) -> Iterator[Tensor]:
        """Weights and constants that operators read, each once."""
        seen: set[str] = set()
        for o in self.operators:
            for t in o.present:
                if t.stored and t.name not in seen:
                    seen.add(t.name)
                    yield t

    def digraph(self) -> networkx.DiGraph[str]:
        """The graph as a networkx DAG: nodes are operator names with the `Operator` as attribute `operator`."""
        import networkx

        dag: networkx.DiGraph[str] = networkx.DiGraph(name=self.name)
        for o in self.operators:
            dag.add_node(o.name, operator=o)
            for t in o.present:
                maker = self.made_by(t)
                if maker is not None:
                    dag.add_edge(maker.name, o.name, tensor=t)
        return dag
