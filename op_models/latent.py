"""Attention to a cache of latent vectors (DeepSeek-V2, arXiv:2405.04434): the operator that serving engines run.

No operator of ONNX or ONNX Runtime does this: LatentAttention is onnxperf's own. In ONNX it is a TensorScatter that
writes the new vectors [batch, new, dim], and an Attention of opset 24 that has the cache as the one head of keys, and
its first elements, by a Slice, as that of values; FlashMLA, FlashInfer and TensorRT-LLM read it once for both.

With sparse attention (DeepSeek-V3.2) each token attends to the keys with the highest scores by an indexer: products of
a few small heads with keys that are kept beside the cache, ReLU, a weighted sum over heads, and the choice of the
highest. All of that is one SparseIndexer here, whose scores do not leave the kernel.
"""

from __future__ import annotations

from op_models.attention import attend, seen, touched
from op_models.axes import Axes, by_pattern
from op_models.core import Attention, Gemm, Maybe, Operator, Tensor, Work, work
from op_models.rules import Outputs, op


def chosen_outputs(q: Tensor, new: Tensor, past: Tensor, *, count: int) -> Outputs:
    """Positions [batch, tokens, count], and the cache in the buffer that came in."""
    return [("int32", (*q.shape[:2], count)), (past.dtype, past.shape)]


@op(
    "onnxperf::SparseIndexer", outputs=chosen_outputs, continued={1: 2},
    axes="N . ., N . ., N . . ., N . ., N -> N . ., N . . .",
)  # fmt: skip
def indexer(
    op: Operator, q: Tensor, new: Tensor, past: Tensor, weights: Tensor, lengths: Maybe = None, total: Maybe = None
) -> Work:
    """2 tokens heads keys dim of queries [batch, tokens, heads dim] and a cache [batch, 1, length, dim]; for each of
    these scores a ReLU and its part of the weighted sum over heads, and 2 for each key to choose among them."""
    batch, queries, dim = new.shape
    keys = int(total.value[0]) if total is not None and total.value else seen(op, past, queries)
    heads = weights.shape[-1]
    read, written = touched(op, keys, queries)
    size, scores = Gemm(batch, queries * heads, keys, dim), batch * queries * keys
    matrix = 2 * scores * heads * dim
    return work(op, size, matrix=matrix, vector=scores * (3 * heads + 2), read=read, written=written)


def latent_outputs(q: Tensor, new: Tensor, past: Maybe = None, *, v_head_size: int) -> Outputs:
    """Weighted latent vectors [tokens, heads, v_head_size], and the cache in the buffer that came in."""
    caches = [(past.dtype, past.shape)] if past is not None else []
    return [(q.dtype, (*q.shape[:2], v_head_size)), *caches]


def latent_axes(op: Operator, q: Tensor) -> Axes:
    """Heads of queries by themselves; all share the cache."""
    return by_pattern(op, ". h . -> . h . | attends along {}", sizes={"h": q.shape[1]})


@op("onnxperf::LatentAttention", outputs=latent_outputs, continued={1: 2}, axes=latent_axes)
def latent_attention(
    op: Operator, q: Tensor, new: Tensor, past: Tensor, lengths: Maybe = None, total: Maybe = None,
    scale: Maybe = None, chosen: Maybe = None, *, v_head_size: int,
) -> Work:  # fmt: skip
    """2 tokens heads keys (dim + v_head_size), for queries [tokens, heads, dim] and a cache [batch, 1, length, dim];
    each token has keys of its own where these are `chosen`: those before it, on average, and no more than chosen."""
    _, heads, dim = q.shape
    batch, queries, _ = new.shape
    keys = int(total.value[0]) if total is not None and total.value else seen(op, past, queries)
    read, written = touched(op, keys, queries)
    if chosen is not None:
        most, past_keys = chosen.shape[-1], max(keys - queries, 0)
        rising = max(min(queries, most - past_keys), 0)  # tokens that have fewer keys than are chosen
        seen_by_all = rising * past_keys + rising * (rising + 1) // 2 + (queries - rising) * most
        several = -(-seen_by_all // max(queries, 1))
        read[2] = min(read[2], batch * queries * several * dim) if 2 in read else batch * keys * dim
        size = Attention(batch * queries, heads, 1, 1, max(several, 1), dim, v_head_size, causal=True, shared=True)
        return attend(op, size, masks=0, read=read, written=written)
    size = Attention(batch, heads, 1, queries, keys, dim, v_head_size, causal=True, shared=True)
    return attend(op, size, masks=0, read=read, written=written)
