"""The order of nodes, in which every tensor is made before it is read; and which operators the outputs need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnx import GraphProto, NodeProto

from onnxperf.errors import ModelError
from onnxperf.graph.proto import CONTROL, captured
from op_models import Operator, Tensor


def ordered(
    graph: GraphProto, defined: set[str] | None, taken: set[str], prefix: str = ""
) -> Iterator[tuple[NodeProto, str]]:
    """The nodes, each with a unique label, in an order in which every tensor is made before it is read.

    In a valid file that is the file's own order; another file is sorted. Each label begins with `prefix`; the new ones
    are added to `taken`, the labels in use. Raises ModelError for cycles, and for tensors that no node makes unless
    they are `defined` already. In a body `defined` is None: what it reads from outside was checked with its node.
    """
    makers = {o: i for i, n in enumerate(graph.node) for o in n.output if o}
    needs = []
    for i, node in enumerate(graph.node):
        reads = [r for r in (*node.input, *captured(node)) if r]
        for r in reads:
            if defined is not None and r not in defined and r not in makers:
                raise ModelError(f"node {_label(node, i)!r} ({node.op_type}) reads {r!r}, which nothing makes")
        needs.append([makers[r] for r in reads if r in makers and not (defined and r in defined)])
    in_order = all(maker < i for i, reads in enumerate(needs) for maker in reads)
    for i in range(len(needs)) if in_order else _sorted(graph, needs):
        label = prefix + _label(graph.node[i], i)
        while label in taken:
            label = f"{label}_{i}"
        taken.add(label)
        yield graph.node[i], label


def _sorted(graph: GraphProto, needs: Sequence[Sequence[int]]) -> list[int]:
    import networkx

    dag = networkx.DiGraph((maker, i) for i, reads in enumerate(needs) for maker in reads)
    dag.add_nodes_from(range(len(needs)))
    try:
        return list(networkx.lexicographical_topological_sort(dag))
    except networkx.NetworkXUnfeasible:
        loop = networkx.find_cycle(dag)
        names = ", ".join(repr(_label(graph.node[i], i)) for i, _ in loop[:4])
        raise ModelError(f"the graph has a cycle through {names}{' ...' if len(loop) > 4 else ''}") from None


def _label(node: NodeProto, index: int) -> str:
    return node.name or f"{node.op_type}_{index}"


def read_names(graph: GraphProto) -> set[str]:
    """The names of all tensors that a node reads or the graph returns."""
    read = {i for n in graph.node for i in n.input}
    return read | {c for n in graph.node for c in captured(n)} | {o.name for o in graph.output}


def live_operators(
    operators: Sequence[Operator], outputs: Iterable[Tensor], made_together: Mapping[str, str]
) -> tuple[Operator, ...]:
    """The operators that the outputs depend on; runtimes drop the others, too.

    Outputs of one control-flow node are needed together: `made_together` has the first of them for each. The operator
    that stands before a body is needed wherever one of the body is.
    """

    def name(t: Tensor) -> str:
        return made_together.get(t.name, t.name)

    needed = {name(t) for t in outputs}
    live: list[Operator] = []
    for o in reversed(operators):
        enters = o.type in CONTROL and live and live[-1].name.startswith(f"{o.name}/")
        if enters or any(name(t) in needed for t in o.outputs):
            live.append(o)
            needed.update(map(name, o.present))
    return tuple(reversed(live))
