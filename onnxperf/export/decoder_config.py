"""The sizes of a decoder-only language model, read from the config.json that Hugging Face's transformers writes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxperf.export.decoder_families import ACTIVATIONS, ALIASES, FAMILIES, OTHERS, SAME, STRUCTURE
from onnxperf.export.decoder_quantised import Stored, stored
from onnxperf.ground.errors import ModelError, UsageError, near_names, printable, unreadable

MAX_CONFIG = 1 << 20  # bytes of a file
MAX_SIZE, MAX_LAYERS = 1 << 24, 256  # a layer takes some 0.1 s to predict; no published model has 150
POSITIONS = 4096  # of the longest context where nobody says, at least, unless positions are learned
MAX_FACTOR = 60_000  # of float16's largest number, 65,504
DTYPES = ("float16", "bfloat16", "float32")
FULL, WINDOWED, LINEAR = "full_attention", ("sliding_attention", "chunked_attention"), "linear_attention"
#: Other names of a layer's kind; letters are Nemotron-H's.
KINDS = {"attention": FULL, "indexed_attention": FULL, "mamba": LINEAR, "M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
ATTENDING = ("attention", "latent")  # mixers with a cache that grows
ALIKE = 0.85  # of 1: how alike a misspelt name is to the right one


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer of a decoder is.

    mixer: what reads other tokens, "attention", "latent", or a kind of `State`; mlp: "dense", "experts" or "both"; ""
    for none; window: how many keys a query sees, 0 for all; rotated: elements of a head that are rotated by the
    position, 0 for none; local: by the tables of windowed layers, where these have their own; kv_heads, head_dim,
    inner: as in DecoderConfig, of this layer; back: by how many layers the one whose cache it reads is before it;
    same_values: values are keys before their norm; sparsity: the share of the MLP's gates that count as nothing;
    indexed: sparse attention chooses its own keys, not those of the layer before it.
    """

    mixer: str
    mlp: str
    window: int
    rotated: int
    local: bool
    kv_heads: int
    head_dim: int
    inner: int
    back: int
    same_values: bool = False
    sparsity: float = 0.0
    indexed: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """What a layer of linear attention keeps instead of keys and values: a matrix [key_dim, value_dim] for each of its
    `heads`, and the last taps - 1 inputs of a convolution.

    kind: "delta", "mamba2", or "mamba", whose heads are channels; key_heads: of queries and keys, C and B; bias: of the
    convolution; rank: of Mamba's time steps; norms: of its time steps, B and C.
    """

    kind: str
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    taps: int
    bias: bool = False
    rank: int = 0
    norms: bool = False

    @property
    def width(self) -> int:
        """Of values, of all heads."""
        return self.heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: values, and queries and keys where these are not made of its result."""
        return self.width + (0 if self.kind == "mamba" else 2 * self.key_heads * self.key_dim)

    def elements(self) -> int:
        """Of a sample in one layer."""
        return self.width * self.key_dim + (self.taps - 1) * self.channels


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes in elements, and what a layer has.

    blocks: the layers; inner: width of a dense MLP; positions: the longest context; dtype: of DTYPES, as the weights
    are stored; tied: the head has the embedding's weights; norm, placement, position, interleaved, qk_norm, plain,
    head_bias: as in a row of FAMILIES; position_offset: rows of the table of positions before the first;
    embed_scale, residual_scale, logit_scale: factors of the embedding, of what a part adds, and of the logits;
    attention_scale: of scores; sinks: attention has a learnt logit for nothing; experts: 0 in a dense model, else each
    token takes `taken` of them, of width `expert_inner`, beside `shared_inner`; normalised: their weights add to 1;
    shared_gate: the shared one is weighted by a gate; expert_bias: experts and their router have biases; clamped: their
    activation is gpt-oss's; expert_bits: of their stored weights, 0 for dtype; stored_as: how a file of weights that
    are quantised otherwise has them, "" where none are; stored: the same as data, where the format is known.
    latent: of DeepSeek-V2's and V3's attention, the width of the vector that keys and values are made of, else 0;
    q_latent: of queries, 0 where they are made of the input; nope_dim: of head_dim, what is not rotated; v_dim: of a
    head's values; index_heads, index_dim: of the products by which sparse attention chooses index_count keys, 0 where
    all are seen. unsaid: which of dtype and max_position_embeddings the configuration does not have. gate:
    attention's result is gated; value_norm: values are normed by head; per_layer: width of the
    input that each layer has of each token, of per_layer_vocab; layer_scalar: a number multiplies what a layer gives;
    streams: residual ones beside each other; low_rank: of the product beside attention that they go with; state: what
    layers of linear attention keep.
    """

    model_type: str
    vocab: int
    hidden: int
    blocks: tuple[Layer, ...]
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    positions: int
    dtype: str
    activation: str
    epsilon: float
    attention_scale: float
    norm: str = "rms"
    placement: str = "pre"
    position: str = "rope"
    position_offset: int = 0
    interleaved: bool = False
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    plain: bool = False
    qk_norm: str = ""
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    sinks: bool = False
    softcap: float = 0.0
    final_softcap: float = 0.0
    experts: int = 0
    taken: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    normalised: bool = True
    shared_gate: bool = False
    expert_bias: bool = False
    clamped: bool = False
    expert_bits: int = 0
    stored_as: str = ""
    stored: Stored | None = None
    latent: int = 0
    q_latent: int = 0
    nope_dim: int = 0
    v_dim: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_count: int = 0
    gate: bool = False
    value_norm: bool = False
    per_layer: int = 0
    per_layer_vocab: int = 0
    layer_scalar: bool = False
    streams: int = 1
    low_rank: int = 0
    unsaid: tuple[str, ...] = ()
    state: State | None = None

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.blocks)

    @property
    def windows(self) -> tuple[int, ...]:
        """How many keys a query sees in each layer, 0 for all."""
        return tuple(b.window for b in self.blocks)

    @property
    def sparse(self) -> tuple[bool, ...]:
        """Which layers have experts."""
        return tuple(b.mlp == "experts" for b in self.blocks)

    @property
    def rope_dim(self) -> int:
        """Of latent attention's head_dim, what is rotated."""
        return self.head_dim - self.nope_dim

    @property
    def prompt_apart(self) -> bool:
        """Whether a prompt has a graph of its own: with latent attention to all keys."""
        return self.latent > 0 and not self.index_count

    def cache_elements(self, *, tokens: int = 1, capped: bool = False) -> int:
        """Elements that so many tokens of a sample take in the cache: 2 kv_heads head_dim of a token in each layer
        with attention, and latent + rope_dim with latent attention, whatever the number of heads, beside index_dim in
        layers that are indexed. capped: layers with a window keep the last of them alone.
        """
        total = 0
        for b in self.blocks:
            if b.mixer in ATTENDING and not b.back:
                each = self.latent + self.rope_dim if self.latent else 2 * b.kv_heads * b.head_dim
                total += (each + self.index_dim * b.indexed) * (min(b.window or tokens, tokens) if capped else tokens)
        return total


def read_config(path: str | os.PathLike[str]) -> DecoderConfig:
    """The sizes in a config.json.

    Raises UsageError where there is no such file, where the configuration can't be, and for a model type that is not
    known; ModelError where the file is no JSON object, or too large.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_CONFIG + 1)
    except OSError as e:
        raise unreadable(path, e) from None
    if len(data) > MAX_CONFIG:
        raise ModelError(f"{os.fspath(path)} is larger than 1 MiB, which no model's config.json is")
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        raise ModelError(f"{os.fspath(path)} is not valid JSON") from None
    if not isinstance(config, dict):
        raise ModelError(f"{os.fspath(path)} is not a model's config.json: it is not a JSON object")
    return config_of(config, os.fspath(path))


def config_of(config: Mapping[str, Any], where: str = "config.json") -> DecoderConfig:
    """The sizes in a configuration that was read from `where`, of the text decoder where there is more. Raises what
    `read_config` does.
    """
    if isinstance(config.get("text_config"), Mapping):
        config = {**config, **config["text_config"]}
    kind = config.get("model_type")
    kind = SAME.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in FAMILIES:
        near = _misspelt(kind) if isinstance(kind, str) else []
        hint = f" (did you mean {near[0]}?)" if near else ""
        wrong = "has no model_type" if kind is None else f"model_type {kind!r:.60} is not known{hint}"
        raise UsageError(f"{where}: {wrong}; known are {', '.join(sorted({*FAMILIES, *SAME}))}")
    keys = Keys(config, FAMILIES[kind], where)
    hidden, heads, act = keys.size("hidden_size"), keys.size("num_attention_heads"), keys.text("hidden_act", "silu")
    act = keys.text("hidden_activation", act)
    head_dim, dtype = keys.size("head_dim", max(hidden // heads, 1)), keys.text("dtype", "float16")
    if act not in ACTIVATIONS:
        raise UsageError(f"{where}: activation {act!r:.60} is not known; known are {', '.join(ACTIVATIONS)}")
    if dtype not in DTYPES:
        raise UsageError(f"{where}: torch_dtype {dtype!r:.60} is not known; known are {', '.join(DTYPES)}")
    kv_heads = 1 if keys.flag("multi_query") and not keys.flag("new_decoder_architecture") else heads
    kv_heads = keys.size("num_key_value_heads", kv_heads) if kv_heads > 1 else 1
    if heads % kv_heads:
        raise UsageError(f"{where}: {heads} attention heads can't share {kv_heads} heads of keys and values evenly")
    latent = _latent(keys) if keys.flag("latent") else {}
    if hidden % heads and not latent and keys.get("head_dim") is None:
        both = (f"{keys.spelt.get(key, key)} {keys.get(key)}" for key in ("hidden_size", "num_attention_heads"))
        raise UsageError(f"{where}: {' is not a multiple of '.join(both)}, and there is no head_dim")
    head_dim = latent.get("head_dim", head_dim)
    bias, attention_bias = keys.flag("use_bias"), keys.flag("attention_bias")
    widths, qk_norm = keys.get("intermediate_size"), keys.get("qk_norm", keys.flag("use_qk_norm"))
    inner = keys.size("intermediate_size", 4 * hidden) if not isinstance(widths, list) else 1  # of each layer
    if not keys.get("num_experts"):  # the shared MLP is the only one
        inner = keys.size("shared_expert_intermediate_size", inner)
    sizes = {
        "model_type": kind, "vocab": keys.size("vocab_size"), "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim, "inner": keys.size("intermediate_size_mlp", inner),
        "positions": _positions(keys),
        "unsaid": tuple(key for key in ("dtype", "max_position_embeddings") if key not in keys.said),
        "dtype": dtype, "activation": ACTIVATIONS[act],
        "epsilon": keys.number("rms_norm_eps", 1e-6),
        "norm": keys.get("norm", "rms"), "placement": _placement(keys), "position": keys.text("position", "rope"),
        "position_offset": keys.get("position_offset", 0), "interleaved": keys.flag("interleaved"),
        "tied": keys.flag("tie_word_embeddings"),
        "qkv_bias": keys.flag("qkv_bias", bias or attention_bias),
        "out_bias": keys.flag("out_bias", bias or attention_bias), "mlp_bias": keys.flag("mlp_bias", bias),
        "head_bias": keys.flag("head_bias"), "plain": keys.flag("plain"),
        "qk_norm": qk_norm if qk_norm in ("head", "whole") else "head" if qk_norm else "", "sinks": keys.flag("sinks"),
        "softcap": keys.number("attn_logit_softcapping", 0.0),
        "final_softcap": keys.number("final_logit_softcapping", 0.0), "expert_bias": keys.flag("expert_bias"),
        "clamped": keys.flag("clamped"),
        **_scales(keys, hidden, head_dim), **_stored(keys.get("quantization_config")), **_experts(keys, inner),
        **latent, "gate": keys.flag("gate"), "value_norm": keys.flag("value_norm"),
        "per_layer": keys.size("hidden_size_per_layer_input", 0, least=int(keys.get("altup_num_inputs", 1) != 1)),
        "per_layer_vocab": keys.size("vocab_size_per_layer_input", 1), "layer_scalar": keys.flag("layer_scalar"),
        "streams": keys.size("altup_num_inputs", 1, most=16),
        "low_rank": keys.size("laurel_rank", 0, least=0),
        "state": _state(keys, hidden) if keys.get("state") else None,
    }  # fmt: skip
    return DecoderConfig(blocks=_blocks(keys, sizes), **sizes)


def _positions(keys: Keys) -> int:
    """The longest context: as the configuration has it, else by transformers' default, but POSITIONS at least where a
    longer one needs no larger table of learned ones.
    """
    longest = keys.size("max_position_embeddings", POSITIONS)
    learned = keys.text("position", "rope") == "learned"
    return longest if learned or "max_position_embeddings" in keys.said else max(longest, POSITIONS)


class Keys:
    """What a configuration that was read from `where` says under the names of FAMILIES, and what the family says where
    it says nothing. null says that there is none of it. Raises UsageError for what can't be.
    """

    def __init__(self, config: Mapping[str, Any], usual: Mapping[str, Any], where: str) -> None:
        names = {**ALIASES, **usual.get("names", {})}
        named = {names[key]: (key, value) for key, value in config.items() if key in names}
        named |= {key: (key, value) for key, value in config.items() if key not in names and key not in STRUCTURE}
        rope, share = config.get("rope_parameters"), "partial_rotary_factor"
        if isinstance(rope, Mapping) and share in rope:
            named[share] = share, rope[share]
        self.spelt = {key: name for key, (name, _) in named.items()}
        self.said = {key for key, (_, value) in named.items() if value is not None}
        both = {**usual, **{key: value for key, (_, value) in named.items()}}
        self.values, self.where = {key: value for key, value in both.items() if value is not None}, where
        for key, value in usual.get("must", {}).items():
            value = self.values.get(value) if isinstance(value, str) else value
            if (other := self.values.get(key, value)) != value:
                raise UsageError(f"{where}: {self.spelt[key]} is {other!r:.40}, of which no graph is written")

    def get(self, key: str, usual: Any = None) -> Any:
        """The value as it stands there."""
        return self.values.get(key, usual)

    def flag(self, key: str, usual: bool = False) -> bool:
        """Whether there is something."""
        return bool(self.values.get(key, usual))

    def wrong(self, key: str, must: str) -> UsageError:
        """The error of a value that must be something else."""
        return UsageError(f"{self.where}: {self.spelt.get(key, key)} must be {must}, not {self.get(key)!r:.60}")

    def size(self, key: str, usual: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        """A whole number."""
        value = self.get(key, usual)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most:,}")
        return value

    def number(self, key: str, usual: float, least: float = 0.0) -> float:
        """A number that half precision has."""
        value = self.get(key, usual)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= MAX_FACTOR:
            raise self.wrong(key, f"a number from {least} to {MAX_FACTOR:,}")
        return float(value)

    def text(self, key: str, usual: str) -> str:
        """A name."""
        value = self.get(key, usual)
        return value if isinstance(value, str) else repr(value)

    def each(self, key: str, count: int, kinds: tuple[Any, ...], usual: list[Any]) -> list[Any]:
        """One of `kinds` for each of so many layers."""
        values = self.get(key, usual)
        if not isinstance(values, list) or len(values) != count or not all(v in kinds for v in values):
            raise self.wrong(key, f"{count} of {', '.join(map(str, kinds))}")
        return values


def _misspelt(kind: str) -> list[str]:
    """The known type whose name a type is with a slip of the pen. Another version, a word more, or what transformers
    has as another type, is another architecture, whose answers would be wrong.
    """
    if kind in OTHERS:
        return []
    version, words = [c for c in kind if c.isdigit()], kind.count("_")
    alike = [x for x in FAMILIES if [c for c in x if c.isdigit()] == version and x.count("_") == words]
    return near_names(kind, alike, cutoff=ALIKE)


def _placement(keys: Keys) -> str:
    """Where norms stand; in Falcon's models, which have one family, by other keys."""
    placement: str = keys.get("placement", "pre")
    if keys.flag("new_decoder_architecture"):
        return "parallel" if keys.get("num_ln_in_parallel_attn", 2) == 1 else "parallel_two"
    return placement if keys.flag("parallel_attn", True) else "pre"


def _scales(keys: Keys, hidden: int, head_dim: int) -> dict[str, float]:
    """Factors of the embedding, of what each part adds, of scores and of logits."""
    scores = keys.number("query_pre_attn_scalar", head_dim, least=1) ** -0.5
    return {
        "embed_scale": hidden**0.5 if keys.flag("scaled") else keys.number("embedding_multiplier", 1.0),
        "residual_scale": keys.number("residual_multiplier", 1.0),
        "attention_scale": keys.number("attention_multiplier", scores),
        "logit_scale": keys.number("logit_scale", 1.0) / keys.number("logits_scaling", 1.0, least=0.01),
    }


def _blocks(keys: Keys, sizes: Mapping[str, Any]) -> tuple[Layer, ...]:
    """What each layer is."""
    count = keys.size("num_hidden_layers", most=MAX_LAYERS)
    kinds, local = _kinds(keys, count), keys.flag("local_tables")
    window = keys.size(keys.get("window", "sliding_window"), 0, least=0) if keys.flag("use_sliding_window", True) else 0
    windows = [window if k in WINDOWED else 0 for k in kinds]
    back = _back(kinds, keys.size("num_kv_shared_layers", 0, least=0, most=count))
    indexed = _indexed(keys, count) if sizes.get("index_count") else [False] * count
    blocks, of_each = [], _of_each(keys, count)
    for i, (mixer, mlp, rotates) in enumerate(
        zip(_mixers(keys, sizes, kinds), _mlps(keys, sizes, kinds), _rotating(keys, windows), strict=True)
    ):
        whole = kinds[i] == FULL and bool(keys.get("global_head_dim"))  # Gemma 4's, of more elements
        widths = {**_widths(keys, sizes, whole, back[i] > 0), **of_each[i]}
        rotated = _rotated(keys, sizes, widths["head_dim"] if whole else 0) if rotates and mixer in ATTENDING else 0
        blocks.append(
            Layer(mixer, mlp, windows[i], rotated, windows[i] > 0 and local, back=back[i], indexed=indexed[i],
                  **widths)
        )  # fmt: skip
    return tuple(blocks)


def _mixers(keys: Keys, sizes: Mapping[str, Any], kinds: list[str]) -> list[str]:
    """What mixes tokens in layers of these kinds."""
    attention, state = "latent" if sizes.get("latent") else "attention", keys.text("state", "")
    return ["" if kind in ("mlp", "moe") else state if kind == LINEAR else attention for kind in kinds]


def _mlps(keys: Keys, sizes: Mapping[str, Any], kinds: list[str]) -> list[str]:
    """What layers of these kinds have for each token by itself."""
    if keys.flag("single"):
        return [{"moe": "experts", "mlp": "dense"}.get(kind, "") for kind in kinds]
    sparse = _sparse(keys, len(kinds)) if sizes["experts"] else [False] * len(kinds)
    return [("both" if keys.flag("enable_moe_block") else "experts") if s else "dense" for s in sparse]


def _rotating(keys: Keys, windows: list[int]) -> list[bool]:
    """Which layers rotate queries and keys."""
    rotating, count = [w > 0 or not any(windows) or keys.get("rotates") != "windowed" for w in windows], len(windows)
    if every := keys.size("no_rope_layer_interval", 0, least=0):
        rotating = [(i + 1) % every > 0 for i in range(count)]
    return keys.each("no_rope_layers", count, (0, 1), rotating) if keys.get("no_rope_layers") else rotating


def _rotated(keys: Keys, sizes: Mapping[str, Any], whole: int) -> int:
    """How many elements of a head are rotated; whole: all of so many are, if some by nothing."""
    share = int((sizes["head_dim"] - sizes.get("nope_dim", 0)) * keys.number("partial_rotary_factor", 1.0))
    part = whole or keys.size("rotary_dim", max(share, 2))
    return part // 2 * 2 if sizes["position"] == "rope" else 0


def _of_each(keys: Keys, layers: int) -> list[dict[str, Any]]:
    """What lists say of each layer: widths of MLPs, and shares of their gates that count as nothing."""
    lists = {"inner": "intermediate_size", "sparsity": "activation_sparsity_pattern"}
    listed = {name: keys.get(key) for name, key in lists.items() if isinstance(keys.get(key), list)}
    for name, values in listed.items():
        least, most, kind = (1, MAX_SIZE, int) if name == "inner" else (0, 0.999, (int, float))
        if len(values) != layers or not all(isinstance(v, kind) and least <= v <= most for v in values):
            raise keys.wrong(lists[name], f"{layers} numbers from {least} to {most:,}")
    return [{name: values[i] for name, values in listed.items()} for i in range(layers)]


def _widths(keys: Keys, sizes: Mapping[str, Any], whole: bool, shares: bool) -> dict[str, Any]:
    """Sizes of a layer; whole: of those with Gemma 4's larger heads; shares: it has no keys and values of its own."""
    same, kv_heads = whole and keys.flag("attention_k_eq_v"), sizes["kv_heads"]
    return {
        "head_dim": keys.size("global_head_dim") if whole else sizes["head_dim"],
        "kv_heads": keys.size("num_global_key_value_heads", kv_heads) if same else kv_heads,
        "inner": sizes["inner"] * (2 if shares and keys.flag("use_double_wide_mlp") else 1), "same_values": same,
    }  # fmt: skip


def _back(kinds: list[str], shared: int) -> list[int]:
    """By how many layers those before each are whose keys and values it has: the last `shared` have those of one of
    their kind.
    """
    first = len(kinds) - shared
    sources = [max((k for k in range(first) if kinds[k] == kind), default=i) for i, kind in enumerate(kinds)]
    return [0 if i < first else i - source for i, source in enumerate(sources)]


def _indexed(keys: Keys, layers: int) -> list[bool]:
    """Which layers choose the keys of sparse attention themselves; the first does."""
    every, first = keys.size("index_topk_freq", 1), keys.size("index_skip_topk_offset", 2, least=0)
    usual = ["shared" if max(i - first + 1, 0) % every else "full" for i in range(layers)]
    return [x == "full" or i == 0 for i, x in enumerate(keys.each("indexer_types", layers, ("full", "shared"), usual))]


def _kinds(keys: Keys, layers: int) -> list[str]:
    """The kind of each layer: by layer_types, else as the family's code does."""
    first, every = keys.size("full_first", 0, least=0), keys.get("full_every", 0)
    every = len(every) if isinstance(every, str) else keys.size("full_every", 0, least=0)  # "LLLG": every fourth
    others, at = keys.get("others", WINDOWED[0]), keys.size("full_at", max(every - 1, 0), least=0)
    usual = [FULL if i < first or (every and i % every == at) else others for i in range(layers)]
    listed = keys.get("layer_types", usual)
    if isinstance(listed, (list, str)):
        keys.values["layer_types"] = [KINDS.get(k, k) if isinstance(k, str) else k for k in listed]
    kinds = (
        FULL,
        *WINDOWED,
        *((LINEAR,) if keys.get("state") else ()),
        *(("mlp", "moe") if keys.get("single") else ()),
    )
    return keys.each("layer_types", layers, kinds, usual)


def _sparse(keys: Keys, layers: int) -> list[bool]:
    """Which layers have experts."""
    first, step = keys.size("first_k_dense_replace", 0, least=0), keys.size("moe_layer_freq", 1)
    place = keys.size("moe_at", step - 1 if keys.flag("last_of_step") else 0, least=0)
    whole = keys.get("mlp_only_layers", [])
    if not isinstance(whole, list):
        raise keys.wrong("mlp_only_layers", "a list of layers")
    usual = ["sparse" if i >= first and i % step == place and i not in whole else "dense" for i in range(layers)]
    return [kind == "sparse" for kind in keys.each("mlp_layer_types", layers, ("sparse", "dense"), usual)]


def _stored(quantised: Any) -> dict[str, Any]:
    """How weights are stored in a file whose configuration says that they are quantised."""
    how = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
    if how == "mxfp4":  # of experts alone
        return {"expert_bits": 4, "stored": stored(quantised)}
    return {
        "stored_as": printable(f"{how or 'quantization_config'!s:.40}") if quantised else "",
        "stored": stored(quantised),
    }


def _state(keys: Keys, hidden: int) -> State:
    """What a layer of linear attention keeps."""
    kind, taps = keys.text("state", ""), keys.size("mamba_d_conv", 4)
    if kind == "delta":
        groups, heads = (keys.size(f"linear_num_{x}_heads") for x in ("key", "value"))
        dim, value_dim = (keys.size(f"linear_{x}_head_dim") for x in ("key", "value"))
        if heads % groups:
            raise keys.wrong("linear_num_value_heads", f"a multiple of {groups}")
        return State(kind, groups, heads, dim, value_dim, keys.size("linear_conv_kernel_dim"))
    width, n, bias = (
        keys.size("mamba_expand", 2) * hidden,
        keys.size("mamba_d_state"),
        keys.flag("mamba_conv_bias", True),
    )
    auto = {"mamba_dt_rank": -(-hidden // 16), "mamba_head_dim": width // keys.size("mamba_num_heads", 1)}
    keys.values |= {key: value for key, value in auto.items() if keys.get(key, "auto") == "auto"}
    if kind == "mamba":
        return State(kind, 1, width, n, 1, taps, bias, keys.size("mamba_dt_rank"), keys.flag("state_norms"))
    groups, heads = keys.size("mamba_n_groups"), keys.size("mamba_num_heads")
    if heads % groups:
        raise keys.wrong("mamba_n_groups", f"a divisor of {heads} heads")
    return State(kind, groups, heads, n, keys.size("mamba_head_dim"), taps, bias)


def _latent(keys: Keys) -> dict[str, Any]:
    """What latent attention adds. Its heads are not grouped."""
    nope, rope = keys.size("qk_nope_head_dim"), keys.size("qk_rope_head_dim")
    return {
        "latent": keys.size("kv_lora_rank"), "q_latent": keys.size("q_lora_rank") if keys.get("q_lora_rank") else 0,
        "nope_dim": nope, "v_dim": keys.size("v_head_dim"), "head_dim": nope + rope,
        **({"index_heads": keys.size("index_n_heads"), "index_dim": keys.size("index_head_dim"),
            "index_count": keys.size("index_topk")} if keys.get("index_topk") else {}),
    }  # fmt: skip


def _experts(keys: Keys, inner: int) -> dict[str, Any]:
    """What a mixture of experts adds: their number, and the widths of those that tokens take and of the shared ones."""
    if not keys.get("num_experts"):
        return {"experts": 0}
    width = keys.size("moe_intermediate_size", inner)
    shared = width * keys.size("n_shared_experts", 0, least=0)
    experts = {
        "experts": keys.size("num_experts"), "taken": keys.size("num_experts_per_tok"), "expert_inner": width,
        "shared_inner": keys.size("shared_expert_intermediate_size", shared, least=0),
        "shared_gate": keys.flag("shared_gate"), "normalised": keys.flag("norm_topk_prob", True),
    }  # fmt: skip
    if experts["taken"] > experts["experts"]:
        raise UsageError(
            f"{keys.where}: a token can't take {experts['taken']} experts (num_experts_per_tok) of {experts['experts']}"
        )
    return experts
