"""Attention in one operator, and rotary embeddings.

Matrix FLOPs are those of both whole products, 2 B heads q k (dim + dim_v), also under a causal mask: so do
PyTorch's FlopCounterMode and the unfused MatMuls count. `Attention.causal` tells a latency model that a flash
kernel may skip masked tiles. Only keys that no query of a causal sliding window sees are left out altogether.
A score costs its scale, its share of the softmax, and 1 for each mask; a softcap a tanh and 2.
"""

from __future__ import annotations

from op_models.core import Attention, Operator, Pointwise, Tensor, Work, given, op, work
from op_models.pointwise import SPECIAL
from op_models.reduce import SOFTMAX

ROTATE = 3  # x cos - y sin


def attend(
    op: Operator,
    size: Attention,
    *,
    masks: int,
    softcap: float = 0.0,
    matrix: int = 0,
    vector: int = 0,
    read: dict[int, int] | None = None,
) -> Work:
    """2 B heads q k (dim + dim_v), softmax of B heads q rows, and what a rule adds."""
    rows = size.batch * size.heads * size.queries
    scores = rows * size.keys
    score = 1 + SOFTMAX + masks + size.causal + (2 + SPECIAL if softcap else 0)
    matrix += 2 * scores * (size.dim + size.dim_v)
    return work(op, size, matrix=matrix, vector=vector + scores * score + rows * SPECIAL, read=read)


def layout(t: Tensor, heads: int) -> tuple[int, int, int]:
    """Heads, length, head size of [B, L, heads dim], [B, heads, L, dim] or packed [B, L, heads, n, dim]."""
    if t.rank == 4:
        return t.shape[1], t.shape[2], t.shape[3]
    if t.rank == 5:
        return t.shape[2], t.shape[1], t.shape[4]
    return heads, t.shape[1], t.shape[2] // max(heads, 1)


def length(past: Tensor | None) -> int:
    """Positions held in a cache [..., heads, length, dim]."""
    return past.shape[-2] if past is not None else 0


@op("Attention")
def attention(
    op: Operator,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    *,
    q_num_heads: int = 1,
    kv_num_heads: int = 1,
    is_causal: int = 0,
    softcap: float = 0.0,
    left_window_size: int = -1,
) -> Work:
    """2 B heads q (past + k) (dim + dim_v); a boolean mask is 1 a score like an added one."""
    heads, queries, dim = layout(q, q_num_heads)
    kv_heads, new, _ = layout(k, kv_num_heads)
    keys = length(past) + new
    if is_causal and left_window_size >= 0:
        keys = min(keys, left_window_size + queries)
    dim_v = layout(v, kv_num_heads)[2]
    size = Attention(q.shape[0], heads, kv_heads, queries, keys, dim, dim_v, bool(is_causal))
    return attend(op, size, masks=given(mask), softcap=softcap)


@op("com.microsoft::Attention")
def attention_ort(
    op: Operator,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    num_heads: int,
    unidirectional: int = 0,
    do_rotary: int = 0,
    qkv_hidden_sizes: tuple[int, ...] | None = None,
) -> Work:
    """The projection 2 B S H (3H), which runs inside, plus 2 B heads S (past + S) (dim + dim_v)."""
    third = w.shape[1] // 3
    hidden_q, hidden_k, hidden_v = qkv_hidden_sizes or (third, third, third)
    heads, (batch, queries) = max(num_heads, 1), x.shape[:2]
    keys = length(past) + queries
    dim, dim_v = hidden_q // heads, hidden_v // heads
    size = Attention(batch, heads, heads, queries, keys, dim, dim_v, bool(unidirectional))
    vector = batch * queries * (w.shape[1] * given(b) + ROTATE * (hidden_q + hidden_k) * bool(do_rotary))
    return attend(op, size, masks=given(mask, bias), matrix=2 * x.size * w.shape[1], vector=vector)


@op("com.microsoft::MultiHeadAttention")
def multi_head_attention(
    op: Operator,
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    past: Tensor | None = None,
    *,
    num_heads: int,
    unidirectional: int = 0,
) -> Work:
    """2 B heads q (past + k) (dim + dim_v); keys and values may be packed with the queries or the keys."""
    heads, queries, dim = layout(q, num_heads)
    k = k or q
    _, new, _ = layout(k, num_heads)
    dim_v = layout(v or k, num_heads)[2]
    size = Attention(q.shape[0], heads, heads, queries, length(past) + new, dim, dim_v, bool(unidirectional))
    projected = q.shape[0] * heads * (queries * dim + new * (dim + dim_v))
    return attend(op, size, masks=given(mask, bias), vector=projected * given(b))


@op("com.microsoft::GroupQueryAttention")
def group_query_attention(
    op: Operator,
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    past: Tensor | None = None,
    past_v: Tensor | None = None,
    lengths: Tensor | None = None,
    total: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    causal: int = 1,
    do_rotary: int = 0,
    local_window_size: int = -1,
    softcap: float = 0.0,
) -> Work:
    """2 B heads q k (dim + dim); k is the total length where that is known, else past + new."""
    batch, queries, hidden = q.shape
    dim = hidden // max(num_heads + (2 * kv_num_heads if k is None else 0), 1)
    keys = length(past) + (queries if k is None else k.shape[1])
    if total is not None and total.value:
        keys = int(total.value[0])
    if causal and local_window_size > 0:
        keys = min(keys, local_window_size + queries - 1)
    size = Attention(batch, num_heads, kv_num_heads, queries, keys, dim, dim, bool(causal))
    part = 2 * cos.shape[-1] if do_rotary and cos is not None else 0
    rotated = batch * queries * (num_heads + kv_num_heads) * part
    table = {i: batch * queries * t.shape[-1] for i, t in ((7, cos), (8, sin)) if t is not None}
    return attend(op, size, masks=given(bias), softcap=softcap, vector=ROTATE * rotated, read=table)


def rotate(op: Operator, x: Tensor, tables: dict[int, Tensor], positions: Tensor | None, heads: int, part: int) -> Work:
    """3 a rotated element; of tables [positions, dim/2] only the rows of these positions are read."""
    half = next(iter(tables.values())).shape[-1]
    dim = x.shape[-1] if x.rank == 4 else x.shape[-1] // max(heads, 1)
    rotated = x.size // dim * min(part, dim) if part and dim else x.size
    rows = max(x.shape[-2], positions.size if positions is not None else 0)
    read = dict.fromkeys(tables, rows * half) if positions is not None else None
    return work(op, Pointwise(x.size), vector=ROTATE * rotated, read=read)


@op("RotaryEmbedding")
def rotary_embedding(
    op: Operator,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Work:
    """3 a rotated element; without position ids the tables are as long as the batch and read whole."""
    return rotate(op, x, {1: cos, 2: sin}, positions, num_heads, rotary_embedding_dim)


@op("com.microsoft::RotaryEmbedding")
def rotary_embedding_ort(
    op: Operator,
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Work:
    """3 a rotated element."""
    return rotate(op, x, {2: cos, 3: sin}, positions, num_heads, rotary_embedding_dim)
