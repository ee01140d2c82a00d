"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, and V3), as an export of transformers' code has it.

Keys and values are made of a latent vector, and the cache holds them in full, for every head, as transformers' code
does: not the latent vector alone, which serving engines keep. One Attention, of opset 23, reads the past and writes a
longer cache; there is no padding for which it would need a mask. Of each head's queries and keys `head_dim` less
`nope_dim` elements are rotated; those of the keys are one head's, and copied to all. Weights are taken to be stored so
that the parts to rotate come first, and keys and values apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxperf.export.decoder_config import DecoderConfig
from onnxperf.export.decoder_writer import MS, Writer


def latent_attention(w: Writer, c: DecoderConfig, at: str, layer: int, x: str, read: Sequence[str]) -> str:
    """Attention of a layer; read: the tables of cosines and sines."""
    at, rope = f"{at}/attn", c.head_dim - c.nope_dim
    q, width = x, c.hidden
    if c.q_latent:
        q = w.norm(f"{at}/q_a_norm", w.product(f"{at}/q_a_proj", x, c.hidden, c.q_latent), c.q_latent)
        width = c.q_latent
    q = _rotated(w, f"{at}/q_rotary", w.product(f"{at}/q_b_proj", q, width, c.heads * c.head_dim), c.heads, rope, read)
    both = w.product(f"{at}/kv_a_proj", x, c.hidden, c.latent + rope)
    sizes = w.integers(f"{at}/kv_sizes", c.latent, rope)
    latent = w.node("Split", f"{at}/kv_split", [both, sizes], [f"{at}/latent", f"{at}/k_rope"], axis=-1)
    latent = w.norm(f"{at}/kv_a_norm", latent, c.latent)
    keys = w.product(f"{at}/k_b_proj", latent, c.latent, c.heads * c.nope_dim)
    values = w.product(f"{at}/v_b_proj", latent, c.latent, c.heads * c.v_dim)
    shared = _rotated(w, f"{at}/k_rotary", f"{at}/k_rope", 1, rope, read)
    shared = w.node("Unsqueeze", f"{at}/k_rope/Unsqueeze", [shared, w.integers(f"{at}/axis", 2)])
    shared = w.node("Expand", f"{at}/k_rope/Expand", [shared, w.integers(f"{at}/to_heads", 1, 1, c.heads, 1)])
    apart = w.node("Reshape", f"{at}/k_heads", [keys, w.integers(f"{at}/heads", 0, 0, c.heads, c.nope_dim)])
    keys = w.node("Concat", f"{at}/k_concat", [shared, apart], axis=-1)
    keys = w.node("Reshape", f"{at}/k_joined", [keys, w.integers(f"{at}/joined", 0, 0, c.heads * c.head_dim)])
    caches = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
    outputs = [f"{at}/Attention", *(name.replace("past_key_values", "present") for name in caches)]
    y = w.node(
        "Attention", outputs[0], [q, keys, values, "", *caches], outputs, q_num_heads=c.heads, kv_num_heads=c.heads,
        scale=c.head_dim**-0.5, is_causal=1,
    )  # fmt: skip
    return w.product(f"{at}/o_proj", y, c.heads * c.v_dim, c.hidden)


def _rotated(w: Writer, name: str, x: str, heads: int, rope: int, tables: Sequence[str]) -> str:
    """Each head's first `rope` elements rotated by the position."""
    return w.node(
        f"{MS}::RotaryEmbedding", name, [x, "position_ids", *tables], num_heads=heads, rotary_embedding_dim=rope,
    )  # fmt: skip
