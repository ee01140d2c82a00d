"""The views that ONNX Runtime inserts and merges: they cost no kernel, but the host passes each of them in every run.

MatMulAddFusion (optimizer/matmul_add_fusion.cc) makes a Gemm of a product with a stack of matrices by a Reshape to rows
before it and one back behind it. A Split in place of Gathers of one index leaves the axis that a Squeeze then takes
out (optimizer/gather_fusion.cc). ReshapeFusion (optimizer/reshape_fusion.cc) makes one of a Reshape and the views
behind it, where nothing else reads what is between them, their sizes are known, and a 0 in no target is a size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import NamedTuple

from onnxperf.graph import Graph, is_static
from op_models import Operator, Tensor

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})


def with_views(graph: Graph, merged: bool = True) -> Graph:
    """The graph with these views; merged: those in a row are one where they can be."""
    whole = replace(graph, operators=tuple(v for o in graph.operators for v in around(o)))
    return _merged(whole) if merged else whole


def around(o: Operator) -> Iterator[Operator]:
    """An operator and the views before and behind it."""
    if not o.present or not o.outputs:
        yield o
        return
    if o.type == "Split":
        yield from _pieces(o)
        return
    if o.type != "Gemm" or o.present[0].rank < 3:
        yield o
        return
    x, y = o.present[0], o.out
    rows = _flat(x, f"{x.name}#{o.name}#rows")
    product = _flat(y, f"{y.name}#rows")
    yield replace(o, name=rows.name, type="Reshape", inputs=(x,), outputs=(rows,), attrs={})
    yield replace(o, inputs=(rows, *o.inputs[1:]), outputs=(product,))
    yield replace(o, name=f"{o.name}#stack", type="Reshape", inputs=(product,), outputs=(y,), attrs={})


def _pieces(o: Operator) -> Iterator[Operator]:
    """A Split with the axis in all its pieces, and a Squeeze for each that has been a Gather of one index."""
    rank, axis = o.present[0].rank, o.attrs.get("axis", 0)
    pieces = {t.name: replace(t, name=f"{t.name}#piece") for t in o.outputs if t.rank < rank}
    pieces = {name: replace(t, shape=(*t.shape[:axis], 1, *t.shape[axis:])) for name, t in pieces.items()}
    yield replace(o, outputs=tuple(pieces.get(t.name, t) for t in o.outputs)) if pieces else o
    for t in o.outputs:
        if t.name in pieces:
            yield replace(o, name=t.name, type="Squeeze", inputs=(pieces[t.name],), outputs=(t,), attrs={})


def _flat(t: Tensor, name: str) -> Tensor:
    return replace(t, name=name, kind="activation", shape=(prod(t.shape[:-1]), t.shape[-1]), value=None)


class _Chain(NamedTuple):
    """A Reshape and the views behind it: what the first reads, and the nodes of all."""

    read: tuple[Tensor | None, ...]
    nodes: list[str]


def _merged(graph: Graph) -> Graph:
    """The graph with one Reshape for a Reshape and the views behind it."""
    uses = Counter(t.name for o in graph.operators for t in o.present)
    chains: dict[str, _Chain] = {}  # by what their last view makes
    inner, operators = set[str](), list[tuple[Operator, _Chain | None]]()
    for o in graph.operators:
        view = o.type in VIEWS and o.present and o.outputs
        mergeable = view and is_static(o.out) and not o.attrs.get("allowzero")
        chain = chains.get(o.present[0].name) if mergeable else None
        if chain is not None:
            inner.add(o.present[0].name)
            chain.nodes.extend(o.nodes)
            o = replace(o, type="Reshape", inputs=chain.read, attrs={})
        if mergeable and o.type == "Reshape" and uses[o.out.name] == 1 and o.out.name not in graph.output_names:
            chains[o.out.name] = _Chain(o.inputs[:1], [*o.nodes]) if chain is None else chain
        operators.append((o, chain))
    rest = ((o, chain) for o, chain in operators if inner.isdisjoint(t.name for t in o.outputs))
    merged = (replace(o, nodes=tuple(dict.fromkeys(chain.nodes))) if chain else o for o, chain in rest)
    return replace(graph, operators=tuple(merged))
