"""Changed graphs, to see what a change would bring: parts left out, dimensions padded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from onnxperf.graph import Graph
from op_models import Operator, Tensor

UNIT = 8  # elements: what tensor cores' operands of 16 bits are aligned to
LEAST = 64  # of a dimension that is padded: smaller ones are rarely one thing only
PRODUCTS = ("MatMul", "Gemm", "com.microsoft::FusedMatMul", "com.microsoft::FusedGemm")


def without(graph: Graph, nodes: Collection[str]) -> Graph:
    """The graph without the operators of these nodes: what they made is an input where others read it, and what only
    they read is an output.
    """
    kept = tuple(o for o in graph.operators if not set(o.nodes) & set(nodes))
    written = {t.name for o in kept for t in o.outputs}
    gone = {t.name: t for o in graph.operators for t in o.outputs if t.name not in written}
    read = {t.name for o in kept for t in o.present}
    new = {name: replace(t, kind="input") for name, t in gone.items() if name in read}
    left_over = [t for o in kept for t in o.outputs if t.name not in read and t.name not in graph.output_names]
    outputs = (*(t for t in graph.outputs if t.name not in gone), *left_over)
    operators = tuple(_reading(o, new) for o in kept)
    return replace(graph, operators=operators, inputs=(*graph.inputs, *new.values()), outputs=outputs)


def _reading(o: Operator, named: dict[str, Tensor]) -> Operator:
    """The operator, with those of its inputs replaced that have a new description."""
    if not any(t.name in named for t in o.present):
        return o
    return replace(o, inputs=tuple(named.get(t.name, t) if t is not None else None for t in o.inputs))


def unaligned(graph: Graph) -> Iterator[tuple[int, int]]:
    """Sizes of products that are no multiple of UNIT, with the next one; those of most products first."""
    counts: Counter[int] = Counter()
    for o in graph.operators:
        if o.type in PRODUCTS:
            sizes = {size for t in (*o.present[:2], o.out) for size in t.shape[-2:]}
            counts.update(size for size in sizes if size > LEAST and size % UNIT)
    for size, _ in counts.most_common():
        yield size, -(-size // UNIT) * UNIT


def padded(graph: Graph, size: int, to: int) -> Graph:
    """The graph with every dimension of a size made larger; attributes and values of tensors stay as they are."""

    def wider(t: Tensor) -> Tensor:
        shape = tuple(to if n == size else n for n in t.shape)
        return t if shape == t.shape or t.value is not None else replace(t, shape=shape)

    def wide(o: Operator) -> Operator:
        inputs = tuple(wider(t) if t is not None else None for t in o.inputs)
        return replace(o, inputs=inputs, outputs=tuple(map(wider, o.outputs)))

    return replace(
        graph, operators=tuple(map(wide, graph.operators)), inputs=tuple(map(wider, graph.inputs)),
        outputs=tuple(map(wider, graph.outputs)),
    )  # fmt: skip
