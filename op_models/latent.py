"""Attention to a cache of latent vectors (DeepSeek-V2, arXiv:2405.04434): the operator that serving engines run.

No operator of ONNX or ONNX Runtime does this: LatentAttention is onnxperf's own. In ONNX it is a TensorScatter that
writes the new vectors [batch, new, dim], and an Attention of opset 24 that has the cache as the one head of keys, and
its first elements, by a Slice, as that of values; FlashMLA, FlashInfer and TensorRT-LLM read it once for both.
"""

from __future__ import annotations

from op_models.attention import attend, seen, touched
from op_models.axes import Axes, by_pattern
from op_models.core import Attention, Maybe, Operator, Tensor, Work
from op_models.rules import Outputs, op


def latent_outputs(q: Tensor, new: Tensor, past: Maybe = None, *, v_head_size: int) -> Outputs:
    """Weighted latent vectors [tokens, heads, v_head_size], and the cache in the buffer that came in."""
    caches = [(past.dtype, past.shape)] if past is not None else []
    return [(q.dtype, (*q.shape[:2], v_head_size)), *caches]


def latent_axes(op: Operator, q: Tensor) -> Axes:
    """Heads of queries by themselves; all share the cache."""
    return by_pattern(op, ". h . -> . h . | attends along {}", sizes={"h": q.shape[1]})


@op("onnxperf::LatentAttention", outputs=latent_outputs, continued={1: 2}, axes=latent_axes)
def latent_attention(
    op: Operator, q: Tensor, new: Tensor, past: Tensor, lengths: Maybe = None, total: Maybe = None, *, v_head_size: int
) -> Work:
    """2 tokens heads keys (dim + v_head_size), for queries [tokens, heads, dim] and a cache [batch, 1, length, dim]."""
    _, heads, dim = q.shape
    batch, queries, _ = new.shape
    keys = int(total.value[0]) if total is not None and total.value else seen(op, past, queries)
    read, written = touched(op, keys, queries)
    size = Attention(batch, heads, 1, queries, keys, dim, v_head_size, causal=True, shared=True)
    return attend(op, size, masks=0, read=read, written=written)
