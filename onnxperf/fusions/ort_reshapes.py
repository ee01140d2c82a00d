"""What ONNX Runtime does to a Reshape that stands near a Transpose."""

from __future__ import annotations

from dataclasses import replace

from onnxperf.fusions.engine import Pass, redirected
from onnxperf.graph import Graph, is_static, without_unneeded
from op_models import Operator, Tensor


def _groups(whole: tuple[int, ...], split: tuple[int, ...]) -> list[tuple[int, ...]] | None:
    """The axes of `split` that make up each axis of `whole`, as few as do; None where axes are not merely split."""
    groups, at = list[tuple[int, ...]](), 0
    for d in whole:
        start, size = at, 1
        while at < len(split) and (at == start or size < d):
            size, at = size * split[at], at + 1
        if size != d or at == start:
            return None
        groups.append(tuple(range(start, at)))
    return groups if at == len(split) else None


def split_first(turned: Operator, split: Operator, perm: tuple[int, ...]) -> tuple[Operator, ...] | None:
    """Where a Reshape only splits axes that a Transpose has moved by `perm`: a Reshape that splits them before."""
    x, y, out = turned.present[0], turned.out, split.out
    if len(split.present) < 2 or not (split.present[1].stored and is_static(x) and is_static(out)):
        return None
    if (groups := _groups(y.shape, out.shape)) is None:
        return None
    order = [a for i in range(len(perm)) for a in groups[perm.index(i)]]  # of the axes of the result, as x has them
    view = replace(y, name=f"{y.name}#{split.name}", shape=tuple(out.shape[a] for a in order))
    target = replace(split.present[1], name=f"{view.name}#target", kind="constant", value=view.shape)
    first = replace(split, name=f"{split.name}#split", inputs=(x, target), outputs=(view,))
    attrs = {"perm": tuple(order.index(a) for a in range(out.rank))}
    moved = replace(turned, name=f"{turned.name}#{split.name}", inputs=(view,), outputs=split.outputs, attrs=attrs)
    return first, moved


def _without_detours(graph: Graph) -> Graph:
    """Without the Reshapes that give something the shape again that it had before another Reshape."""

    def instead(o: Operator) -> tuple[Tensor] | None:
        before = graph.made_by(o.present[0]) if o.type == "Reshape" else None
        x = before.present[0] if before is not None and before.type == "Reshape" else None
        return (x,) if x is not None and x.shape == o.out.shape and is_static(x) else None

    short = redirected(graph, instead)
    return graph if short is graph else without_unneeded(short)


DETOURS = Pass("Reshapes to the shape there was", _without_detours, once=True, since="1.4")
