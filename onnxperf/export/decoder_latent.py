"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, and V3), as serving engines compute it.

The cache holds a vector for each token and layer that all heads share: the latent one, of which keys and values are
made, and the elements of keys that are rotated. A prompt expands the latent vectors of its own tokens to keys and
values of every head, and attends to these. What continues a cache does not expand it: the weights that would make keys
are multiplied into the queries, and those that make values into what attention gives (`absorbed` weights), so that
every head attends to the vectors themselves (LatentAttention, see op_models.latent). Both are one model in two graphs,
with the same weights; those that are absorbed are stacked by heads, and not packed into 4 or 8 bits. A cache in FP8 has
a scale of 1 where a prompt begins it. With sparse attention (DeepSeek-V3.2) what continues a cache begins it as well:
kernels take the keys that were chosen from the cache, of a prompt's tokens too.

Of each head's queries and keys `head_dim` less `nope_dim` elements are rotated; those of the keys are one head's.
Weights of queries and keys are taken to be stored so that the parts to rotate come first, and keys and values apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxperf.export.decoder_config import DecoderConfig
from onnxperf.export.decoder_writer import MS, OWN, Read, Writer


def latent_prompt(w: Writer, c: DecoderConfig, at: str, i: int, x: str, read: Read) -> str:
    """Attention of a layer among the tokens of a prompt, which begins the cache."""
    q, latent, shared = _projected(w, c, at, x, _tables(c, i, read))
    rows = _cached(w, at, latent, shared)
    if w.cache != w.type:
        rows = w.node("Cast", f"{at}/cache/Cast", [rows], to=w.cache)
    rows = w.node("Unsqueeze", f"{at}/cache/Unsqueeze", [rows, w.integers(f"{at}/head", 1)])
    past = f"past_key_values.{i}.latent"
    w.node("TensorScatter", f"{at}/cache/write", [past, rows], [past.replace("past_key_values", "present")])
    keys = w.product(f"{at}/k_b_proj", latent, c.latent, c.heads * c.nope_dim)
    values = w.product(f"{at}/v_b_proj", latent, c.latent, c.heads * c.v_dim)
    shared = w.node("Unsqueeze", f"{at}/k_rope/Unsqueeze", [shared, w.integers(f"{at}/axis", 2)])
    shared = w.node("Expand", f"{at}/k_rope/Expand", [shared, w.integers(f"{at}/to_heads", 1, 1, c.heads, 1)])
    apart = w.node("Reshape", f"{at}/k_heads", [keys, w.integers(f"{at}/heads", 0, 0, c.heads, c.nope_dim)])
    keys = w.node("Concat", f"{at}/k_concat", [shared, apart], axis=-1)
    keys = w.node("Reshape", f"{at}/k_joined", [keys, w.integers(f"{at}/joined", 0, 0, c.heads * c.head_dim)])
    y = w.node(
        f"{MS}::MultiHeadAttention", f"{at}/MultiHeadAttention", [q, keys, values], num_heads=c.heads,
        scale=c.attention_scale, unidirectional=1,
    )  # fmt: skip
    return w.product(f"{at}/o_proj", y, c.heads * c.v_dim, c.hidden)


def latent_step(w: Writer, c: DecoderConfig, at: str, i: int, x: str, read: Read) -> str:
    """Attention of a layer to the cache and new tokens. Tokens of all samples are rows of the absorbed products, a
    stack of one for each head.
    """
    q, latent, shared = _projected(w, c, at, x, _tables(c, i, read))
    q = w.node("Reshape", f"{at}/q_heads", [q, w.integers(f"{at}/heads", -1, c.heads, c.head_dim)])
    parts, sizes = [f"{at}/q_rope", f"{at}/q_nope"], w.integers(f"{at}/q_sizes", c.rope_dim, c.nope_dim)
    turned, plain = w.node("Split", f"{at}/q_split", [q, sizes], parts, axis=-1), parts[1]
    q = w.node("Concat", f"{at}/q_concat", [_by_head(w, c, f"{at}/k_b_proj", plain, c.nope_dim, c.latent), turned],
               axis=-1)  # fmt: skip
    past = f"past_key_values.{i}.latent"
    inputs = [q, _cached(w, at, latent, shared), past, *read.lengths, *w.scales(at, "cache")]
    if c.index_count:
        inputs += ["" if len(inputs) == 5 else inputs.pop(), _chosen(w, c, at, i, x, read)]
    y = w.node(
        f"{OWN}::LatentAttention", f"{at}/LatentAttention", inputs,
        [f"{at}/LatentAttention", past.replace("past_key_values", "present")], v_head_size=c.latent,
        scale=c.attention_scale,
    )  # fmt: skip
    y = _by_head(w, c, f"{at}/v_b_proj", y, c.latent, c.v_dim)
    y = w.node("Reshape", f"{at}/joined", [y, w.integers(f"{at}/width", 0, c.heads * c.v_dim)])
    y = w.product(f"{at}/o_proj", y, c.heads * c.v_dim, c.hidden)
    return w.node("Reshape", f"{at}/o_proj/Reshape", [y, "/model/shape"])


def _chosen(w: Writer, c: DecoderConfig, at: str, i: int, x: str, read: Read) -> str:
    """The keys that each token attends to (DeepSeek-V3.2), which this layer chooses or the last one that does; its own
    small keys lie beside the cache.
    """
    if not c.blocks[i].indexed:
        last = max(k for k in range(i) if c.blocks[k].indexed)
        return f"/model/layers.{last}/attn/indexer"
    name, tables = f"{at}/indexer", _tables(c, i, read)
    q = w.product(f"{name}/wq_b", f"{at}/q_a_norm", c.q_latent, c.index_heads * c.index_dim)
    k = w.norm(f"{name}/k_norm", w.product(f"{name}/wk", x, c.hidden, c.index_dim), c.index_dim, 1e-6, "layer")
    parts = [_rotated(w, f"{name}/q_rotary", q, c.index_heads, c.rope_dim, tables),
             _rotated(w, f"{name}/k_rotary", k, 1, c.rope_dim, tables)]  # fmt: skip
    weights = w.product(f"{name}/weights_proj", x, c.hidden, c.index_heads)
    past = f"past_key_values.{i}.index"
    outputs = [name, past.replace("past_key_values", "present")]
    w.node(f"{OWN}::SparseIndexer", name, [*parts, past, weights, *read.lengths], outputs, count=c.index_count)
    return name


def tokens_shape(w: Writer, c: DecoderConfig) -> None:
    """The shape [batch, tokens, hidden] that rows of all samples' tokens get back, once for all layers."""
    ids = w.node("Shape", "/model/shape/Shape", ["input_ids"])
    w.node("Concat", "/model/shape", [ids, w.integers("/model/shape/hidden", c.hidden)], axis=0)


def _tables(c: DecoderConfig, i: int, read: Read) -> tuple[str, str]:
    """Those of cosines and sines of a layer."""
    return read.tables[c.blocks[i].rotated, c.blocks[i].local]


def _projected(w: Writer, c: DecoderConfig, at: str, x: str, tables: Sequence[str]) -> tuple[str, str, str]:
    """Queries of all heads, the latent vector, and what of the keys all heads share, rotated."""
    q, width = x, c.hidden
    if c.q_latent:
        q = w.norm(f"{at}/q_a_norm", w.product(f"{at}/q_a_proj", x, c.hidden, c.q_latent), c.q_latent, c.epsilon)
        width = c.q_latent
    q = w.product(f"{at}/q_b_proj", q, width, c.heads * c.head_dim)
    both = w.product(f"{at}/kv_a_proj", x, c.hidden, c.latent + c.rope_dim)
    parts, sizes = [f"{at}/latent", f"{at}/k_rope"], w.integers(f"{at}/kv_sizes", c.latent, c.rope_dim)
    latent = w.norm(
        f"{at}/kv_a_norm", w.node("Split", f"{at}/kv_split", [both, sizes], parts, axis=-1), c.latent, c.epsilon
    )
    queries = _rotated(w, f"{at}/q_rotary", q, c.heads, c.rope_dim, tables)
    return queries, latent, _rotated(w, f"{at}/k_rotary", parts[1], 1, c.rope_dim, tables)


def _cached(w: Writer, at: str, latent: str, shared: str) -> str:
    """What the cache keeps of new tokens [batch, tokens, latent + rope]: values are its first part."""
    return w.node("Concat", f"{at}/cache/Concat", [latent, shared], axis=-1)


def _by_head(w: Writer, c: DecoderConfig, name: str, x: str, k: int, n: int) -> str:
    """Rows [tokens, heads, k] times a weight of each head [heads, k, n], as rows [tokens, heads, n]."""
    stack = w.node("Transpose", f"{name}/by_head", [x], perm=(1, 0, 2))
    y = w.node("MatMul", f"{name}/MatMul", [stack, w.weight(f"{name}.weight", c.heads, k, n)])
    return w.node("Transpose", f"{name}/by_token", [y], perm=(1, 0, 2))


def _rotated(w: Writer, name: str, x: str, heads: int, rope: int, tables: Sequence[str]) -> str:
    """Each head's first `rope` elements rotated by the position."""
    return w.node(
        f"{MS}::RotaryEmbedding", name, [x, "position_ids", *tables], num_heads=heads, rotary_embedding_dim=rope,
    )  # fmt: skip
