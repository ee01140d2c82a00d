"""Attention in one operator, and rotary embeddings.

Matrix FLOPs are those of both whole products, 2 B heads q k (dim + dim_v), where B is the batch and q and k are the
numbers of queries and keys. They are counted in full under a causal mask, too, as PyTorch's FlopCounterMode and the
unfused MatMuls do; `Attention.causal` tells a latency model that a flash kernel may skip masked tiles. Only keys that
no query of a causal sliding window sees are left out. Vector FLOPs of a score are its scale, its part of the softmax,
and 1 for each mask; a softcap adds a tanh and 2. Where only the projection is in integers, all of the operator is
assumed to run in the output's type. Packed sequences are assumed to be of equal length.

A cache that is as long behind the operator as before it is one buffer: `before` says how many of its positions were
filled, and it is taken as full where that is not known. See `touched` for what of it is read and written.
"""

from __future__ import annotations

from dataclasses import replace

from op_models.axes import Axes, aligned, by_pattern
from op_models.core import Attention, Gemm, Maybe, Operator, OpModelError, Pointwise, Tensor, Work, given, work
from op_models.pointwise import DEQUANTISE, REQUANTISE, SIGMOID, SPECIAL
from op_models.reduce import SOFTMAX
from op_models.rules import Outputs, as_first, caches, op, shared_caches

ROTATE = 3  # x cos - y sin


def attend(
    op: Operator, size: Attention, *, masks: int, softcap: float = 0.0, matrix: int = 0, vector: int = 0,
    read: dict[int, int] | None = None, written: dict[int, int] | None = None, dtype: str | None = None,
) -> Work:  # fmt: skip
    """2 B heads q k (dim + dim_v), the softmax of B heads q rows, and the `matrix` and `vector` FLOPs around them.

    read, written: elements of inputs and outputs, by position, of which only a part is read or written. A cache that
    grows is made by a copy of its past and the new positions, which both products then read (in ONNX Runtime
    LaunchConcatNewToPastKV; where Attention runs as the function that defines it, a Concat).
    """
    scores = (rows := size.batch * size.heads * size.queries) * size.keys
    score = 1 + SOFTMAX + masks + size.causal + (2 + SPECIAL if softcap else 0)
    matrix += 2 * scores * (size.dim + size.dim_v)
    vector += scores * score + rows * SPECIAL
    done = work(op, size, matrix=matrix, vector=vector, read=read, written=written, dtype=dtype)
    grown = caches(op.type).keys() - shared_caches(op).keys()
    again = sum(op.outputs[o].bytes for o in grown if o < len(op.outputs))
    return replace(done, bytes_read=done.bytes_read + again) if again else done


def touched(op: Operator, keys: int, new: int) -> tuple[dict[int, int], dict[int, int]]:
    """Elements read of inputs and written of outputs, by position: of caches [..., length, dim] changed in place.

    Of the `keys` positions that queries see, those before the `new` ones are read; the new ones are written. A cache
    that grows is copied into another buffer: all of both, which is what counts without this (and see `attend`).
    """
    read, written = {}, {}
    for o, i in shared_caches(op).items():
        position = op.outputs[o].size // max(length(op.outputs[o]), 1)
        read[i], written[o] = position * max(keys - new, 0), position * new
    return read, written


def seen(op: Operator, past: Tensor | None, new: int, filled: Maybe = None) -> int:
    """How many keys queries see: the past ones, `known` at run time, and the new ones.

    Where the past is not known it is all that the past holds; with a cache that is changed in place the new ones are
    among that, as if it were full.
    """
    if filled is not None and filled.value:
        return int(filled.value[0]) + new
    return length(past) + (0 if shared_caches(op) else new)


def layout(t: Tensor, heads: int) -> tuple[int, int, int]:
    """Heads, length and head size of [B, L, heads dim], [B, heads, L, dim] or packed [B, L, heads, n, dim]."""
    if t.rank == 4:
        return t.shape[1], t.shape[2], t.shape[3]
    if t.rank == 5:
        return t.shape[2], t.shape[1], t.shape[4]
    return heads, t.shape[1], t.shape[2] // max(heads, 1)


def length(past: Tensor | None) -> int:
    """Number of positions in a cache [..., heads, length, dim]; 0 without one."""
    return past.shape[-2] if past is not None else 0


#: Queries, keys and values by rank: h heads of keys, of which each has r heads of queries.
QUERIES = {3: "N q (h r .)", 4: "N (h r) q .", 5: "N q (h r) . ."}
KEYS = {3: "N . (h .)", 4: "N h . .", 5: "N . h . ."}
ATTENDS = "attends along {}"
#: The attributes that count heads.
HEADS = dict.fromkeys(("num_heads", "q_num_heads", "kv_num_heads"), "h")


def head_axes(op: Operator, heads: int, kv_heads: int, mask: int, pasts: tuple[int, int], more: str = "") -> Axes:
    """Samples and heads by themselves, and each query, which needs all keys.

    mask: the position of what is spread over the scores; pasts: those of caches; more: terms of the inputs behind.
    """
    if heads % kv_heads:
        raise OpModelError(f"{heads} heads can't share {kv_heads} heads of keys")
    ranks = [t.rank if t is not None else 0 for t in op.inputs[:3]]
    terms = [QUERIES[ranks[0]], *(KEYS[rank] if rank else "" for rank in ranks[1:]), *[""] * 8]
    for past in pasts:
        terms[past] = KEYS[4]
    pattern = (
        f"{','.join(terms[: max(*pasts, mask) + 1])}{more} -> {QUERIES[op.out.rank]}, {KEYS[4]}, {KEYS[4]} | {ATTENDS}"
    )
    stated = by_pattern(op, pattern, spread=(mask,), sizes={"h": kv_heads, "r": heads // kv_heads}, counts=HEADS)
    if len(op.inputs) <= mask or (t := op.inputs[mask]) is None or t.rank > 4:
        return stated
    q, scores = op.present[0], (("N",), ("h", "r"), ("q",), ())
    named = aligned(t, (q.shape[0], heads, layout(q, heads)[1], t.shape[-1]), scores)
    return replace(stated, inputs=(*stated.inputs[:mask], named, *stated.inputs[mask + 1 :]))


def attention_axes(op: Operator, q: Tensor, k: Tensor, *, q_num_heads: int = 0, kv_num_heads: int = 0) -> Axes:
    """Heads are an attribute, or the second of four axes."""
    return head_axes(op, layout(q, q_num_heads)[0], layout(k, kv_num_heads)[0], 3, (4, 5), ", N")


def multi_head_axes(op: Operator, *, num_heads: int) -> Axes:
    """Keys may be packed with queries, and values with keys."""
    return head_axes(op, num_heads, num_heads, 5, (6, 7))


def group_query_axes(op: Operator, *, num_heads: int, kv_num_heads: int) -> Axes:
    """Each head of keys has several of queries; keys and values may be packed with the queries."""
    return head_axes(op, num_heads, kv_num_heads, 10, (3, 4))


@op("ai.onnx.preview::FlexAttention", inputs=(0, 1, 2))
@op("tensorrt::Attention", inputs=(0, 1, 2, 3, 4, 6))
@op("Attention", inputs=(0, 1, 2, 3, 4, 6), continued={1: 4, 2: 5}, axes=attention_axes)
def attention(
    op: Operator, q: Tensor, k: Tensor, v: Tensor, mask: Maybe = None, past: Maybe = None, filled: Maybe = None, *,
    q_num_heads: int = 1, kv_num_heads: int = 1, is_causal: int = 0, softcap: float = 0.0, left_window_size: int = -1,
    alone: int = 0,
) -> Work:  # fmt: skip
    """2 B heads q (past + k) (dim + dim_v); a boolean mask costs 1 per score, as one that is added; of a cache the mean
    of what is `filled` counts, where that is known."""
    heads, queries, dim = layout(q, q_num_heads)
    kv_heads, new, _ = layout(k, kv_num_heads)
    keys, read = length(past) + new, {}
    if filled is not None and filled.value:
        keys = min(keys, max(round(sum(filled.value) / len(filled.value)), 0))
        read = {i: t.size // max(new, 1) * keys for i, t in ((1, k), (2, v))}
    if is_causal and left_window_size >= 0:
        keys = min(keys, left_window_size + queries)
    dim_v = layout(v, kv_num_heads)[2]
    sizes = (q.shape[0], heads, kv_heads, queries, keys, dim, dim_v)
    size = Attention(*sizes, causal=bool(is_causal), alone=bool(alone), masked=bool(given(mask)))
    return attend(op, size, masks=given(mask), softcap=softcap, read=read)


def attention_outputs(
    x: Tensor, w: Tensor, b: Maybe = None, mask: Maybe = None, past: Maybe = None, *, num_heads: int,
    qkv_hidden_sizes: tuple[int, ...] | None = None, past_present_share_buffer: int = 0,
) -> Outputs:  # fmt: skip
    """Values [batch, length, hidden], and keys and values [2, batch, heads, past + length, head size], or as long as
    the past where both share a buffer.
    """
    third = w.shape[1] // 3
    _, keys, values = qkv_hidden_sizes or (third, third, third)
    size = length(past) + (0 if past_present_share_buffer and past is not None else x.shape[1])
    return [(x.dtype, (*x.shape[:2], values)), (x.dtype, (2, x.shape[0], num_heads, size, keys // num_heads))]


def quantised_attention_outputs(
    x: Tensor, w: Tensor, b: Maybe, scale: Maybe, *rest: Maybe, num_heads: int,
    qkv_hidden_sizes: tuple[int, ...] | None = None,
) -> Outputs:  # fmt: skip
    """As those of com.microsoft::Attention, in the type of the first scale."""
    past = rest[4] if len(rest) > 4 else None
    real = replace(x, dtype=scale.dtype if scale is not None else "float32")
    return attention_outputs(real, w, past=past, num_heads=num_heads, qkv_hidden_sizes=qkv_hidden_sizes)


def masked_self_outputs(
    x: Tensor, w: Tensor, b: Maybe = None, mask: Maybe = None, past: Maybe = None, *, num_heads: int
) -> Outputs:
    """Values [batch, 1, hidden], and keys and values in the buffer that came in."""
    kept = (x.dtype, (2, x.shape[0], num_heads, x.shape[1], w.shape[1] // 3 // max(num_heads, 1)))
    return [(x.dtype, (*x.shape[:2], w.shape[1] // 3)), kept if past is None else (past.dtype, past.shape)]


def own_product_axes(op: Operator, *, num_heads: int) -> Axes:
    """The columns of its product are queries, keys and values by heads; so are caches [2, batch, heads, ...]."""
    pattern = f"N . ., . (. h .), (. h .), , . N h . . -> N . (h .), . N h . . | {ATTENDS}"
    return by_pattern(op, pattern, sizes={".": 3, "h": num_heads}, counts={**HEADS, "qkv_hidden_sizes": "h"})


@op("com.microsoft::QAttention", inputs=(0, 1, 2, 5, 8), outputs=quantised_attention_outputs)
@op(
    "com.microsoft::Attention", outputs=attention_outputs, continued={1: 4}, axes=own_product_axes,
)  # fmt: skip
@op("com.microsoft::DecoderMaskedSelfAttention", continued={1: 4}, outputs=masked_self_outputs)
def attention_ort(
    op: Operator, x: Tensor, w: Tensor, b: Maybe = None, mask: Maybe = None, past: Maybe = None, bias: Maybe = None,
    before: Maybe = None, *, num_heads: int, unidirectional: int = 0, do_rotary: int = 0,
    qkv_hidden_sizes: tuple[int, ...] | None = None,
) -> Work:  # fmt: skip
    """2 B S H (3H) for the projection that it contains, plus 2 B heads S (past + S) (dim + dim_v)."""
    third = w.shape[1] // 3
    hidden_q, hidden_k, hidden_v = qkv_hidden_sizes or (third, third, third)
    heads, (batch, queries) = max(num_heads, 1), x.shape[:2]
    keys = seen(op, past, queries, before)
    read, written = touched(op, keys, queries)
    dim, dim_v = hidden_q // heads, hidden_v // heads
    size = Attention(batch, heads, heads, queries, keys, dim, dim_v, bool(unidirectional))
    column = given(b) + DEQUANTISE * op.type.endswith("QAttention")
    vector = batch * queries * (w.shape[1] * column + ROTATE * (hidden_q + hidden_k) * bool(do_rotary))
    return attend(
        op, size, masks=given(mask, bias), matrix=2 * x.size * w.shape[1], vector=vector, dtype=op.out.dtype,
        read=read, written=written,
    )  # fmt: skip


def ordered_outputs(x: Tensor, *others: Maybe) -> Outputs:
    """Values [batch, length, hidden], in integers; the weights of values are input 7."""
    w = others[6] if len(others) > 6 else None
    return [(x.dtype, (*x.shape[:2], w.shape[1]))] if w is not None else []


@op("com.microsoft::QOrderedAttention", inputs=(0, 5, 6, 7, 17, 18, 19), outputs=ordered_outputs)
def ordered_attention(
    op: Operator, x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, mask: Maybe = None, past: Maybe = None,
    bias: Maybe = None, *, num_heads: int, unidirectional: int = 0,
) -> Work:  # fmt: skip
    """As com.microsoft::Attention, but all in integers and with three weights."""
    heads, (batch, queries) = max(num_heads, 1), x.shape[:2]
    dim, dim_v, columns = wq.shape[1] // heads, wv.shape[1] // heads, wq.shape[1] + wk.shape[1] + wv.shape[1]
    size = Attention(batch, heads, heads, queries, length(past) + queries, dim, dim_v, bool(unidirectional))
    matrix, vector = 2 * x.size * columns, batch * queries * columns * (1 + REQUANTISE)
    return attend(op, size, masks=given(mask, bias), matrix=matrix, vector=vector)


def unpacked(x: Tensor, offset: Tensor) -> Tensor:
    """Tokens [n, ...] without padding as [batch, n / batch, ...], in sequences of equal length."""
    batch = offset.shape[0]
    return replace(x, shape=(batch, -(-x.shape[0] // max(batch, 1)), *x.shape[1:]))


def packed_outputs(x: Tensor, w: Tensor, *, qkv_hidden_sizes: tuple[int, ...] | None = None) -> Outputs:
    """Values of all tokens [n, hidden]."""
    return [(x.dtype, (x.shape[0], qkv_hidden_sizes[2] if qkv_hidden_sizes else w.shape[1] // 3))]


def packed_multi_head_outputs(q: Tensor, k: Maybe = None, v: Maybe = None) -> Outputs:
    """Values of all tokens [n, hidden]; queries may hold keys and values, [n, heads, 3, head size]."""
    return [(q.dtype, (q.shape[0], v.shape[1] if v is not None else q.size // max(3 * q.shape[0], 1)))]


@op("com.microsoft::PackedAttention", inputs=(0, 1, 2, 3, 5), outputs=packed_outputs)
def packed_attention(
    op: Operator, x: Tensor, w: Tensor, b: Maybe, offset: Tensor, bias: Maybe = None, *, num_heads: int,
    qkv_hidden_sizes: tuple[int, ...] | None = None,
) -> Work:  # fmt: skip
    """As com.microsoft::Attention, on sequences without padding, which are assumed to be of equal length."""
    x = unpacked(x, offset)
    return attention_ort(op, x, w, b, bias=bias, num_heads=num_heads, qkv_hidden_sizes=qkv_hidden_sizes)


@op("com.microsoft::PackedMultiHeadAttention", inputs=(0, 1, 2, 3, 4, 6), outputs=packed_multi_head_outputs)
def packed_multi_head_attention(
    op: Operator, q: Tensor, k: Maybe, v: Maybe, b: Maybe, offset: Tensor, bias: Maybe = None, *, num_heads: int
) -> Work:
    """As MultiHeadAttention, on sequences without padding, which are assumed to be of equal length."""
    k, v = (t and unpacked(t, offset) for t in (k, v))
    return multi_head_attention(op, unpacked(q, offset), k, v, b, bias=bias, num_heads=num_heads)


@op("com.microsoft::LongformerAttention", inputs=(0, 1, 4), outputs=as_first)
def longformer(op: Operator, x: Tensor, w: Tensor, w_global: Tensor, *, num_heads: int, window: int) -> Work:
    """2 B S H (3H) for each of two projections; a query sees `window` keys on each side. Global tokens are ignored."""
    heads, (batch, queries) = max(num_heads, 1), x.shape[:2]
    dim, columns = w.shape[1] // 3 // heads, w.shape[1] + w_global.shape[1]
    size = Attention(batch, heads, heads, queries, min(queries, 2 * window + 1), dim, dim, False)
    return attend(op, size, masks=1, matrix=2 * x.size * columns, vector=batch * queries * columns)


def multi_head_outputs(
    q: Tensor, k: Maybe = None, v: Maybe = None, b: Maybe = None, mask: Maybe = None, bias: Maybe = None,
    past: Maybe = None, past_v: Maybe = None, before: Maybe = None, *, num_heads: int,
) -> Outputs:  # fmt: skip
    """Values [batch, length, hidden], keys and values [batch, heads, past + length, head size], or as long as the past
    where it is a buffer of which so many positions `before` are filled."""
    if q.rank not in (3, 5) or (q.rank == 3 and k is None):
        return []
    heads, queries, _ = layout(q, num_heads)
    _, new, dim = layout(k or q, num_heads)
    dim_v = layout(v or k or q, num_heads)[2]
    size = length(past) + (0 if before is not None and past is not None else new)
    kept = [(q.dtype, (q.shape[0], heads, size, d)) for d in (dim, dim_v)]
    return [(q.dtype, (q.shape[0], queries, heads * dim_v)), *kept]


def masked_multi_head_outputs(
    q: Tensor, k: Maybe = None, v: Maybe = None, mask: Maybe = None, bias: Maybe = None, past: Maybe = None,
    past_v: Maybe = None, *, num_heads: int,
) -> Outputs:  # fmt: skip
    """Values [batch, 1, hidden], keys and values in the buffers that came in; keys may be a cache, [N, heads, ...]."""
    hidden = v.shape[2] if v is not None and v.rank == 3 else v.shape[1] * v.shape[3] if v is not None else q.shape[2]
    kept = [None if t is None else (t.dtype, t.shape) for t in (past, past_v)]
    return [(q.dtype, (*q.shape[:2], hidden)), *kept]


@op(
    "com.microsoft::DecoderMaskedMultiHeadAttention", inputs=(0, 1, 2, 10, 3, 4, 5, 7), continued={1: 5, 2: 6},
    outputs=masked_multi_head_outputs,
)  # fmt: skip
@op(
    "com.microsoft::MultiHeadAttention", inputs=(0, 1, 2, 3, 4, 5, 6, 8), outputs=multi_head_outputs,
    continued={1: 6, 2: 7}, axes=multi_head_axes,
)  # fmt: skip
def multi_head_attention(
    op: Operator, q: Tensor, k: Maybe = None, v: Maybe = None, b: Maybe = None, mask: Maybe = None,
    bias: Maybe = None, past: Maybe = None, before: Maybe = None, *, num_heads: int, unidirectional: int = 0,
) -> Work:  # fmt: skip
    """2 B heads q (past + k) (dim + dim_v); keys may be packed with the queries, and values with the keys."""
    heads, queries, dim = layout(q, num_heads)
    k = k or q
    _, new, _ = layout(k, num_heads)
    dim_v = layout(v or k, num_heads)[2]
    keys = seen(op, past, new, before)
    read, written = touched(op, keys, new)
    size = Attention(q.shape[0], heads, heads, queries, keys, dim, dim_v, bool(unidirectional))
    vector = q.shape[0] * heads * (queries * dim + new * (dim + dim_v)) * given(b)
    return attend(op, size, masks=given(mask, bias), vector=vector, read=read, written=written)


def group_query_outputs(
    q: Tensor, k: Maybe = None, v: Maybe = None, past: Maybe = None, past_v: Maybe = None, *, num_heads: int,
    kv_num_heads: int, local_window_size: int = -1,
) -> Outputs:  # fmt: skip
    """Values [batch, length, hidden], then the caches: in the buffers that came in, or longer by the new positions; a
    buffer as long as the window keeps no more than that.
    """
    if q.rank != 3:
        return []
    dim = q.shape[2] // max(num_heads + (2 * kv_num_heads if k is None else 0), 1)
    new = (q.dtype, (q.shape[0], kv_num_heads, q.shape[1], dim))
    least = 0 if past is not None and past.shape[2] == local_window_size else q.shape[1]
    kept = [new if t is None else (t.dtype, (*t.shape[:2], max(t.shape[2], least), t.shape[3])) for t in (past, past_v)]
    return [(q.dtype, (*q.shape[:2], num_heads * dim)), *kept]


@op(
    "com.microsoft::GroupQueryAttention", outputs=group_query_outputs, continued={1: 3, 2: 4}, axes=group_query_axes,
)  # fmt: skip
def group_query_attention(
    op: Operator, q: Tensor, k: Maybe = None, v: Maybe = None, past: Maybe = None, past_v: Maybe = None,
    lengths: Maybe = None, total: Maybe = None, cos: Maybe = None, sin: Maybe = None, positions: Maybe = None,
    bias: Maybe = None, *, num_heads: int, kv_num_heads: int, causal: int = 1, do_rotary: int = 0,
    local_window_size: int = -1, softcap: float = 0.0,
) -> Work:  # fmt: skip
    """2 B heads q k (2 dim), where k is the total length, or past + new positions where that is not known."""
    batch, queries, hidden = q.shape
    dim = hidden // max(num_heads + (2 * kv_num_heads if k is None else 0), 1)
    new = queries if k is None else k.shape[1]
    keys = int(total.value[0]) if total is not None and total.value else seen(op, past, new)
    if causal and local_window_size > 0:
        keys = min(keys, local_window_size + queries - 1)
    size = Attention(batch, num_heads, kv_num_heads, queries, keys, dim, dim, bool(causal))
    part = 2 * cos.shape[-1] if do_rotary and cos is not None else 0
    rotated = batch * queries * (num_heads + kv_num_heads) * part
    read, written = touched(op, keys, new)
    read |= {i: batch * queries * t.shape[-1] for i, t in ((7, cos), (8, sin)) if t is not None}
    vector = ROTATE * rotated
    return attend(op, size, masks=given(bias), softcap=softcap, vector=vector, read=read, written=written)


def cached_axes(op: Operator, *, num_heads: int, kv_num_heads: int) -> Axes:
    """Each head of keys has several of queries."""
    sizes = {"h": kv_num_heads, "r": num_heads // max(kv_num_heads, 1)}
    counts = dict.fromkeys(("num_heads", "kv_num_heads"), "h")
    return by_pattern(op, f"N . (h r .), N h . ., N h . . -> N . (h r .) | {ATTENDS}", sizes=sizes, counts=counts)


@op("onnxperf::CachedAttention", outputs=as_first, axes=cached_axes)
def cached_attention(
    op: Operator, q: Tensor, keys: Tensor, values: Tensor, lengths: Maybe = None, total: Maybe = None,
    cos: Maybe = None, sin: Maybe = None, *, num_heads: int, kv_num_heads: int, local_window_size: int = -1,
) -> Work:  # fmt: skip
    """2 B heads q k (2 dim), of keys and values that another operator has written; queries are rotated."""
    batch, queries, _ = q.shape
    dim, count = keys.shape[3], int(total.value[0]) if total is not None and total.value else length(keys)
    if local_window_size > 0:
        count = min(count, local_window_size + queries - 1)
    read = dict.fromkeys((1, 2), batch * kv_num_heads * count * dim)
    read |= {i: batch * queries * t.shape[-1] for i, t in ((5, cos), (6, sin)) if t is not None}
    size = Attention(batch, num_heads, kv_num_heads, queries, count, dim, dim, True)
    rotated = batch * queries * num_heads * (2 * cos.shape[-1] if cos is not None else 0)
    return attend(op, size, masks=0, vector=ROTATE * rotated, read=read)


@op(
    "com.microsoft::SparseAttention", inputs=(0, 1, 3, 5, 6, 7, 9, 10), continued={1: 3, 2: 4},
    outputs=group_query_outputs,
)  # fmt: skip
def sparse_attention(
    op: Operator, q: Tensor, k: Maybe, past: Tensor, rows: Tensor, columns: Tensor, total: Maybe = None,
    cos: Maybe = None, sin: Maybe = None, *, num_heads: int, kv_num_heads: int, sparse_block_size: int,
    do_rotary: int = 0,
) -> Work:  # fmt: skip
    """2 B heads q keys (2 dim), where a query sees as many blocks of keys as a row of the mask has on average."""
    batch, queries, hidden = q.shape
    dim = hidden // max(num_heads + (2 * kv_num_heads if k is None else 0), 1)
    blocks = -(-columns.shape[-1] // max(rows.shape[-1] - 1, 1))
    longest = int(total.value[0]) if total is not None and total.value else length(past)
    keys = min(longest, blocks * sparse_block_size)
    read, written = touched(op, keys, queries)
    read |= {i: batch * queries * t.shape[-1] for i, t in ((9, cos), (10, sin)) if t is not None}
    rotated = batch * queries * (num_heads + kv_num_heads) * (2 * cos.shape[-1] if do_rotary and cos is not None else 0)
    size = Attention(batch, num_heads, kv_num_heads, queries, keys, dim, dim, True)
    return attend(op, size, masks=1, vector=ROTATE * rotated, read=read, written=written)


def paged_outputs(
    q: Tensor, k: Maybe, v: Maybe, keys: Tensor, values: Tensor, *, num_heads: int, kv_num_heads: int
) -> Outputs:
    """Values of all tokens [n, hidden], and the pages of keys and values, which are changed in place."""
    dim = q.shape[1] // max(num_heads + (2 * kv_num_heads if k is None else 0), 1)
    return [(q.dtype, (q.shape[0], num_heads * dim)), (keys.dtype, keys.shape), (values.dtype, values.shape)]


@op("com.microsoft::PagedAttention", inputs=(0, 1, 3, 6, 7), outputs=paged_outputs)
def paged_attention(
    op: Operator, q: Tensor, k: Maybe, cache: Tensor, lengths: Tensor, table: Tensor, *,
    num_heads: int, kv_num_heads: int, local_window_size: int = -1, softcap: float = 0.0,
) -> Work:  # fmt: skip
    """2 B heads q keys (2 dim), with as many keys as the block table holds; only new positions are written."""
    batch, blocks = table.shape
    queries = -(-q.shape[0] // max(batch, 1))
    dim = q.shape[1] // max(num_heads + (2 * kv_num_heads if k is None else 0), 1)
    keys = int(max(lengths.value)) + queries if lengths.value else blocks * cache.shape[1]
    keys = min(keys, local_window_size + queries - 1) if local_window_size > 0 else keys
    size = Attention(batch, num_heads, kv_num_heads, queries, keys, dim, dim, True)
    row = cache.shape[2] * cache.shape[3]
    whole = attend(op, size, masks=0, softcap=softcap, read=dict.fromkeys((3, 4), batch * keys * row))
    return replace(whole, bytes_written=op.out.bytes + 2 * replace(cache, shape=(q.shape[0], row)).bytes)


def scores_bias(q: Tensor, *, num_heads: int) -> Outputs:
    """One number for each score, of x[batch, length, hidden]."""
    return [(q.dtype, (q.shape[0], num_heads, q.shape[1], q.shape[1]))] if q.rank == 3 else []


@op("com.microsoft::GatedRelativePositionBias", outputs=scores_bias)
def gated_bias(op: Operator, q: Tensor, bias: Tensor, positions: Tensor, w: Tensor, *, num_heads: int) -> Work:
    """2 B S heads dim D for the product that makes two gates per row; then 1 per bias of a score."""
    dim, columns = w.shape
    size = Gemm(1, q.size // max(dim, 1), columns, dim)
    vector = q.size + size.m * (columns + 2 * SIGMOID + 3) + op.out.size
    return work(op, size, matrix=2 * size.m * dim * columns, vector=vector)


def rotary_axes(op: Operator, x: Tensor, positions: Maybe, cos: Tensor, *, num_heads: int = 0) -> Axes:
    """Each position and head by itself; the tables are read by positions."""
    ids = "N s" if positions is not None and positions.shape == (x.shape[0], x.shape[-2]) else ""
    pattern = {3: "N s (h .)", 4: "N h s ."}[x.rank]
    sizes = {".": x.shape[-1] // num_heads if num_heads else 2 * cos.shape[-1]}
    return by_pattern(op, f"{pattern}, {ids} -> {pattern} | rotates along {{}}", sizes=sizes, counts=HEADS)


@op("com.microsoft::RotaryEmbedding", inputs=(0, 2, 3, 1), outputs=as_first, axes=rotary_axes)
@op("com.microsoft::MRotaryEmbedding", inputs=(0, 2, 3, 1), outputs=as_first)
@op("RotaryEmbedding")
def rotary_embedding(
    op: Operator, x: Tensor, cos: Tensor, sin: Tensor, positions: Maybe = None, *, num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Work:  # fmt: skip
    """3 per rotated element; of the tables [positions, dim/2] only the rows of the position ids are read, if given."""
    dim = x.shape[-1] if x.rank == 4 else x.shape[-1] // max(num_heads, 1)
    rotated = x.size // dim * min(rotary_embedding_dim, dim) if rotary_embedding_dim and dim else x.size
    rows = max(x.shape[-2], positions.size if positions is not None else 0) * cos.shape[-1]
    read = {op.inputs.index(t): rows for t in (cos, sin)} if positions is not None else None
    return work(op, Pointwise(x.size), vector=ROTATE * rotated, read=read)
