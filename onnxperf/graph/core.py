"""`Graph`: operators in execution order over static tensors, and the `Note` that explains a decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from op_models import FLOATS, Operator, Tensor

if TYPE_CHECKING:
    import networkx


#: Operators of ONNX Runtime that run a decoder once for each token.
SEARCHES = frozenset(f"com.microsoft::{name}" for name in ("BeamSearch", "GreedySearch", "Sampling"))
#: The code of the note on a sequence whose length is not known: no bound on memory holds then.
UNKNOWN_LENGTH = "unknown-length"
#: In names of constants that hold a batch, before the batch.
AT_BATCH = " at batch "
#: Operators whose bodies become part of the graph.
CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"}) | SEARCHES


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should know: `code` for programs, `message` for people, `nodes` it concerns."""

    code: str
    message: str
    nodes: tuple[str, ...] = ()


def fresh(name: str, taken: set[str]) -> str:
    """The name, changed until it is not in `taken`, to which it is added."""
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def is_trained(t: Tensor) -> bool:
    """Whether training changes a tensor: a floating-point weight; single numbers are constants of the code."""
    return t.kind == "weight" and t.dtype in FLOATS and t.rank > 0


@dataclass(frozen=True, eq=False)
class Graph:
    """Operators in execution order; every tensor has a static shape and is written by at most one operator.

    `batch` is the number of samples in one run (the leading dimension of the inputs), `notes` say what was assumed
    while the graph was made, `modules` which module of a framework a node was exported from, by the node's name. A
    graph is never changed; a change makes another graph.
    """

    name: str
    operators: tuple[Operator, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    batch: int = 1
    notes: tuple[Note, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _makers(self) -> dict[str, Operator]:
        return {t.name: o for o in self.operators for t in o.outputs}

    @cached_property
    def output_names(self) -> frozenset[str]:
        """Names of the graph's outputs."""
        return frozenset(t.name for t in self.outputs)

    @cached_property
    def readers(self) -> dict[str, list[Operator]]:
        """By the name of a tensor the operators that read it, as often as they do."""
        readers: dict[str, list[Operator]] = {}
        for o in self.operators:
            for t in o.present:
                readers.setdefault(t.name, []).append(o)
        return readers

    def made_by(self, tensor: Tensor | None) -> Operator | None:
        """The operator that writes `tensor`; None for inputs, weights and constants."""
        return self._makers.get(tensor.name) if tensor is not None else None

    def stored(self) -> Iterable[Tensor]:
        """Weights and constants that operators read or the graph returns, each once."""
        read = (t for o in self.operators for t in o.present)
        return {t.name: t for t in (*read, *self.outputs) if t.stored}.values()

    def digraph(self) -> networkx.DiGraph[str]:
        """The graph as a networkx DAG: nodes are operator names with the `Operator` as attribute `operator`."""
        import networkx

        dag: networkx.DiGraph[str] = networkx.DiGraph(name=self.name)
        dag.add_nodes_from((o.name, {"operator": o}) for o in self.operators)
        reads = ((o, t, self.made_by(t)) for o in self.operators for t in o.present)
        dag.add_edges_from((maker.name, o.name, {"tensor": t}) for o, t, maker in reads if maker is not None)
        return dag
