"""Attention to keys and values of grouped heads: ONNX Runtime's GroupQueryAttention, which writes the cache in place.

Layers that share the keys and values of another (Gemma 3n, Gemma 4) read its cache by CachedAttention, an operator of
onnxperf (op_models.attention): ONNX Runtime has none that writes nothing and sees a window.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxperf.export.decoder_config import DecoderConfig, Layer
from onnxperf.export.decoder_writer import MS, OWN, Read, Writer


def attention(w: Writer, c: DecoderConfig, at: str, i: int, x: str, read: Read) -> str:
    """Attention of a layer to its cache, or to that of the layer whose keys and values it shares."""
    layer = c.blocks[i]
    keys = layer.kv_heads * layer.head_dim
    widths = {"q": c.heads * layer.head_dim, "k": keys, "v": 0 if layer.same_values else keys}
    gate = w.product(f"{at}/gate_proj", x, c.hidden, widths["q"], c.qkv_bias) if c.gate else ""
    if layer.back:
        y = _cached(w, c, at, i, x, read)
        return w.product(f"{at}/o_proj", y, widths["q"], c.hidden, c.out_bias)
    if c.qk_norm:
        parts = _normed(w, c, at, layer, x, widths)
    else:
        parts = [w.product(f"{at}/qkv_proj", x, c.hidden, sum(widths.values()), c.qkv_bias), "", ""]
    caches = [f"past_key_values.{i}.{part}" for part in ("key", "value")]
    outputs = [f"{at}/GroupQueryAttention", *(name.replace("past_key_values", "present") for name in caches)]
    scales = w.scales(at, "k", "v")
    more = ["", "", w.weight(f"{at}/sinks", c.heads) if c.sinks else ""] if c.sinks or scales else []
    kept = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8} if scales else {}
    tables = read.tables[layer.rotated, layer.local] if layer.rotated else ("", "") if more else ()
    y = w.node(
        f"{MS}::GroupQueryAttention", outputs[0], [*parts, *caches, *read.lengths, *tables, *more, *scales], outputs,
        num_heads=c.heads, kv_num_heads=layer.kv_heads, scale=c.attention_scale, local_window_size=layer.window or -1,
        softcap=c.softcap, do_rotary=int(layer.rotated > 0), rotary_interleaved=int(c.interleaved), **kept,
    )  # fmt: skip
    if gate:
        y = w.node("Mul", f"{at}/gate/Mul", [y, w.node("Sigmoid", f"{at}/gate/Sigmoid", [gate])])
    return w.product(f"{at}/o_proj", y, widths["q"], c.hidden, c.out_bias)


def _normed(w: Writer, c: DecoderConfig, at: str, layer: Layer, x: str, widths: Mapping[str, int]) -> list[str]:
    """Queries, keys and values, of which the first two are normed, and in some models the last."""
    parts = {p: w.product(f"{at}/{p}_proj", x, c.hidden, n, c.qkv_bias) for p, n in widths.items() if n}
    parts.setdefault("v", parts["k"])
    normed = {p: _of_heads(w, c, f"{at}/{p}_norm", parts[p], widths[p], layer.head_dim) for p in ("q", "k")}
    values = parts["v"]
    if c.value_norm:
        scale = w.constant(f"{at}/v_norm/scale", layer.head_dim, 1.0)
        values = by_heads(w, f"{at}/v_norm", values, layer.head_dim, scale, c.epsilon)
    return [normed["q"], normed["k"], values]


def _cached(w: Writer, c: DecoderConfig, at: str, i: int, x: str, read: Read) -> str:
    """Attention of a layer's queries to the cache of another, which that has written in this run."""
    layer, width = c.blocks[i], c.heads * c.blocks[i].head_dim
    q = w.product(f"{at}/q_proj", x, c.hidden, width, c.qkv_bias)
    q = _of_heads(w, c, f"{at}/q_norm", q, width, layer.head_dim) if c.qk_norm else q
    inputs = [q, *(f"present.{i - layer.back}.{p}" for p in ("key", "value")), *read.lengths]
    inputs += read.tables[layer.rotated, layer.local] if layer.rotated else ()
    return w.node(
        f"{OWN}::CachedAttention", f"{at}/CachedAttention", inputs, num_heads=c.heads, kv_num_heads=layer.kv_heads,
        scale=c.attention_scale, local_window_size=layer.window or -1,
    )  # fmt: skip


def _of_heads(w: Writer, c: DecoderConfig, name: str, x: str, width: int, dim: int) -> str:
    """The norm of queries or keys, of each head by itself or of all."""
    if c.qk_norm == "whole":
        return w.norm(name, x, width, c.epsilon)
    return by_heads(w, name, x, dim, w.weight(f"{name}.weight", dim), c.epsilon)


def by_heads(w: Writer, name: str, x: str, dim: int, scale: str, epsilon: float) -> str:
    """The RMS norm of each head of so many elements."""
    split, joined = w.integers(f"{name}/heads", 0, 0, -1, dim), w.integers(f"{name}/width", 0, 0, -1)
    y = w.node("Reshape", f"{name}/Reshape_1", [x, split])
    y = w.node("SimplifiedLayerNormalization", name, [y, scale], axis=-1, epsilon=epsilon, stash_type=1)
    return w.node("Reshape", f"{name}/Reshape_2", [y, joined])
