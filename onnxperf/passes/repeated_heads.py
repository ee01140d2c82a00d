"""Heads of keys and values that are fewer than the GPUs that divide them: each is copied to several, as engines do.

Every GPU computes and keeps at least one head. The graph is written as if the model had as many heads as there are GPUs
(vLLM and TensorRT-LLM repeat the columns of their weights); it is then divided as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from onnxperf.graph import Graph, Note
from onnxperf.passes.shard_rules import stated
from onnxperf.passes.shard_weights import COLUMNS, PACKED, PLAIN, matrix
from op_models import Operator, Tensor

GROUPED = "com.microsoft::GroupQueryAttention"
KEY, VALUE, PASTS, PRESENTS = 1, 2, (3, 4), (1, 2)  # positions of inputs, and of outputs
#: Between a product and the attention, what leaves heads where they are; behind a Reshape there is an axis of them.
FOLLOWED = frozenset({
    "Add", "Cast", "Identity", "Reshape", "RMSNormalization", "SimplifiedLayerNormalization",
    "com.microsoft::RotaryEmbedding",
})  # fmt: skip


@dataclass(slots=True)
class _Wider:
    """Tensors by name as they are with more heads, and how many columns operators with stored operands get more."""

    makers: Mapping[str, Operator]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)


def with_repeated_heads(graph: Graph, ranks: int) -> Graph:
    """The graph with a head of keys and values for each of `ranks` GPUs, where grouped attention has fewer of them and
    their number divides that; as it is where there are enough, or where they don't come straight from products.
    """
    wider = _Wider({t.name: o for o in graph.operators for t in o.outputs})
    for o in graph.operators:
        kv_heads = int(o.attrs.get("kv_num_heads") or 0)
        if (
            o.type != GROUPED
            or not kv_heads
            or kv_heads >= ranks
            or ranks % kv_heads
            or int(o.attrs.get("num_heads") or 0) % ranks
        ):
            continue
        if not _widen(o, kv_heads, ranks, wider):
            return graph
    if not wider.heads:
        return graph
    fewest = min(wider.heads.values())
    says = f"{fewest} KV heads are replicated, so that each of {ranks} GPUs has one"
    return replace(
        graph, operators=tuple(_wider(o, wider, ranks) for o in graph.operators),
        inputs=tuple(wider.tensors.get(t.name, t) for t in graph.inputs),
        outputs=tuple(wider.tensors.get(t.name, t) for t in graph.outputs),
        notes=(*graph.notes, Note("repeated-heads", says)),
    )  # fmt: skip


def _widen(o: Operator, kv_heads: int, ranks: int, wider: _Wider) -> bool:
    """Note what is wider before and behind an attention; False where that is not known."""
    caches = [t for i in PASTS if i < len(o.inputs) and (t := o.inputs[i]) is not None]
    caches += [o.outputs[i] for i in PRESENTS if i < len(o.outputs)]
    if any(t.rank != 4 or t.shape[1] != kv_heads for t in caches):
        return False
    for t in caches:
        wider.tensors[t.name] = replace(t, shape=(t.shape[0], ranks, *t.shape[2:]))
    wider.heads[o.name] = kv_heads
    keys, query = o.inputs[KEY], o.inputs[0]
    if keys is None:  # one product makes all three
        width = query.shape[-1] // (int(o.attrs["num_heads"]) + 2 * kv_heads) if query is not None else 0
        return query is not None and _back(query, 2 * (ranks - kv_heads), width, wider)
    values = o.inputs[VALUE]
    each = keys.shape[-1] // kv_heads
    return values is not None and all(_back(t, ranks - kv_heads, each, wider) for t in (keys, values))


def _back(t: Tensor, heads: int, width: int, wider: _Wider) -> bool:
    """Give a tensor more heads of a width, and all that it is made of, as far as a product with stored columns."""
    while t.name not in wider.tensors:
        if t.rank not in (3, 4) or (o := wider.makers.get(t.name)) is None:
            return False
        more = heads if t.rank == 4 else heads * width
        wider.tensors[t.name] = replace(t, shape=(*t.shape[:2], t.shape[2] + more, *t.shape[3:]))
        if o.type in (*PLAIN, PACKED) and matrix(o) is not None:
            wider.columns[o.name] = heads * width
            return True
        if o.type not in FOLLOWED:
            return False
        wider.columns[o.name] = heads * width
        t = next((x for x in o.present if not x.stored), t)
    return True


def _wider(o: Operator, wider: _Wider, ranks: int) -> Operator:
    """An operator with the tensors, weights and number of heads that it has then."""
    inputs = [wider.tensors.get(t.name, t) if t is not None else None for t in o.inputs]
    outputs = tuple(wider.tensors.get(t.name, t) for t in o.outputs)
    attrs = dict(o.attrs)
    if o.name in wider.heads:
        attrs["kv_num_heads"] = ranks
    more = wider.columns.get(o.name, 0)
    if more and (size := matrix(o)) is not None and o.type in (*PLAIN, PACKED):
        axes = stated(o)
        attrs |= {name: size[1] + more for name, letter in axes.counts.items() if letter == COLUMNS}
        for i, axis in axes.holding(COLUMNS):
            if (t := inputs[i]) is not None:
                inputs[i] = _scaled(t, axis, size[1] + more, size[1])
    elif more and o.type == "Reshape" and len(inputs) > 1 and (shape := inputs[1]) is not None:
        inputs[1] = replace(shape, name=f"{o.name}#shape", value=outputs[0].shape)
    elif more and o.type == "Add":
        before = o.out.shape[-1]
        inputs = [_scaled(t, t.rank - 1, before + more, before) if t is not None and t.stored else t for t in inputs]
    return replace(o, inputs=tuple(inputs), outputs=outputs, attrs=attrs)


def _scaled(t: Tensor, axis: int, now: int, before: int) -> Tensor:
    """A stored tensor with more columns along an axis, or as it is where it has one for all."""
    if not t.rank or t.shape[axis] % before:
        return t
    return replace(t, shape=(*t.shape[:axis], t.shape[axis] // before * now, *t.shape[axis + 1 :]), value=None)
