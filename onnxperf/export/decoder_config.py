"""The sizes of a decoder-only language model, read from the config.json that Hugging Face's transformers writes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxperf.ground.errors import UsageError, near_names, printable

MAX_CONFIG = 1 << 20  # bytes of a file
MAX_SIZE, MAX_LAYERS = 1 << 24, 256  # a layer takes some 0.1 s to predict; no published model has 150
DTYPES = ("float16", "bfloat16", "float32")
#: What transformers' configurations of these model types take for keys that a file leaves out, and what their code
#: does that no key says: norms of queries and keys, biases, gemma's norms after blocks and scaled embedding.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8},
    "phi3": {},
    "qwen2": {"qkv_bias": True},
    "qwen2_moe": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "head_dim": 128},
    "qwen3_moe": {"qk_norm": True, "head_dim": 128, "num_key_value_heads": 4},
    "gemma": {"tie_word_embeddings": True, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "scaled": True},
    "gemma2": {
        "tie_word_embeddings": True, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "scaled": True,
        "post_norms": True, "full_every": 2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "num_key_value_heads": 4, "sliding_window": 4096,
    },
    "gemma3_text": {
        "tie_word_embeddings": True, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "scaled": True,
        "post_norms": True, "qk_norm": True, "full_every": 6, "vocab_size": 262208, "num_attention_heads": 8,
        "num_key_value_heads": 4, "sliding_window": 4096, "max_position_embeddings": 131072,
    },
    "glm": {"partial_rotary_factor": 0.5, "out_bias": False},
    "glm4": {"partial_rotary_factor": 0.5, "out_bias": False, "post_norms": True},
    "glm4_moe": {"partial_rotary_factor": 0.5, "out_bias": False},
    "gpt_oss": {
        "head_dim": 64, "attention_bias": True, "sinks": True, "expert_bias": True, "full_every": 2,
        "sliding_window": 128, "max_position_embeddings": 131072,
    },
    "llama4_text": {"head_dim": 128, "full_every": 4, "attention_chunk_size": 8192, "max_position_embeddings": 131072},
    "deepseek": {},
    "deepseek_v2": {},
    "deepseek_v3": {},
}  # fmt: skip
#: Model types that have the text decoder of another, in a table of its own (text_config) or beside the rest.
TEXT = {
    "gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral", "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2", "qwen2_5_vl": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}  # fmt: skip
FULL, WINDOWED = "full_attention", ("sliding_attention", "chunked_attention")
ALIKE = 0.85  # of 1: how alike a misspelt name is to the right one
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "gelu": "gelu"}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes in elements, and what a layer has.

    inner: width of a dense MLP; positions: the longest context; dtype: of DTYPES, as the weights are stored; tied:
    the head has the embedding's weights; windows: how many keys a query sees in each layer, 0 for all; sinks: attention
    has a learnt logit for nothing; experts: 0 in a dense model, else each token takes `taken` of them, of width
    `expert_inner`, beside `shared_inner`, in the layers that are `sparse`; shared_gate: the shared one is weighted by a
    gate; expert_bias: experts and their router have biases; expert_bits: of their stored weights, 0 for dtype;
    stored_as: how a file of weights that are quantised otherwise has them, "" where none are.
    latent: of DeepSeek-V2's and V3's attention, the width of the vector that keys and values are made of, else 0;
    q_latent: of queries, 0 where they are made of the input; nope_dim: of head_dim, what is not rotated; v_dim: of a
    head's values.
    """

    model_type: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotated: int
    inner: int
    positions: int
    dtype: str
    activation: str
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    scaled: bool = False
    post_norms: bool = False
    windows: tuple[int, ...] = ()
    sinks: bool = False
    softcap: float = 0.0
    final_softcap: float = 0.0
    experts: int = 0
    taken: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    shared_gate: bool = False
    sparse: tuple[bool, ...] = ()
    expert_bias: bool = False
    expert_bits: int = 0
    stored_as: str = ""
    latent: int = 0
    q_latent: int = 0
    nope_dim: int = 0
    v_dim: int = 0

    @property
    def rope_dim(self) -> int:
        """Of latent attention's head_dim, what is rotated."""
        return self.head_dim - self.nope_dim

    def cache_elements(self) -> int:
        """Elements that a token adds to the cache: 2 layers kv_heads head_dim, and with latent attention layers (latent
        + rope_dim), whatever the number of heads.
        """
        if self.latent:
            return self.layers * (self.latent + self.rope_dim)
        return 2 * self.layers * self.kv_heads * self.head_dim


def read_config(path: str | os.PathLike[str]) -> DecoderConfig:
    """The sizes in a config.json.

    Raises UsageError where there is no such file, where it is no such configuration, and for a model type that is not
    known.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_CONFIG + 1)
    except OSError as e:
        raise UsageError(f"can't read {os.fspath(path)}: {e.strerror or e}") from None
    if len(data) > MAX_CONFIG:
        raise UsageError(f"{os.fspath(path)} is larger than 1 MiB, which no model's config.json is")
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError(f"{os.fspath(path)} is not valid JSON") from None
    if not isinstance(config, dict):
        raise UsageError(f"{os.fspath(path)} is not a model's config.json: it is not a JSON object")
    return config_of(config, os.fspath(path))


def config_of(config: Mapping[str, Any], where: str = "config.json") -> DecoderConfig:
    """The sizes in a configuration that was read from `where`, of the text decoder where there is more. Raises what
    `read_config` does.
    """
    if isinstance(config.get("text_config"), Mapping):
        config = {**config, **config["text_config"]}
    kind = config.get("model_type")
    kind = TEXT.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in FAMILIES:
        near = _misspelt(kind) if isinstance(kind, str) else []
        hint = f" (did you mean {near[0]}?)" if near else ""
        types = ", ".join(sorted({*FAMILIES, *TEXT}))
        raise UsageError(f"{where}: model_type {kind!r:.60} is not known{hint}; known are {types}")
    usual = FAMILIES[kind]
    c = {key: value for key, value in {**usual, **config}.items() if value is not None}  # null: there is none of it

    def size(key: str, usual: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        value = c.get(key, usual)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise UsageError(f"{where}: {key} must be a whole number from {least} to {most:,}, not {value!r:.60}")
        return value

    def share(key: str, usual: float) -> float:
        value = c.get(key, usual)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e6:
            raise UsageError(f"{where}: {key} must be a number, not {value!r:.60}")
        return float(value)

    hidden, heads, act = (
        size("hidden_size"),
        size("num_attention_heads"),
        c.get("hidden_activation", c.get("hidden_act", usual.get("hidden_act", "silu"))),
    )
    head_dim, dtype = size("head_dim", max(hidden // heads, 1)), c.get("torch_dtype", c.get("dtype", "float16"))
    if not isinstance(act, str) or act not in ACTIVATIONS:
        raise UsageError(f"{where}: activation {act!r:.60} is not known; known are {', '.join(ACTIVATIONS)}")
    if dtype not in DTYPES:
        raise UsageError(f"{where}: torch_dtype {dtype!r:.60} is not known; known are {', '.join(DTYPES)}")
    layers = size("num_hidden_layers", most=MAX_LAYERS)
    kv_heads = size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise UsageError(f"{where}: {heads} attention heads can't share {kv_heads} heads of keys and values evenly")
    latent = _latent(size, config) if kind in ("deepseek_v2", "deepseek_v3") else {}
    head_dim = latent.pop("head_dim", head_dim)
    rotated = latent.pop("rotated", int(head_dim * share("partial_rotary_factor", 1.0)))
    return DecoderConfig(
        model_type=kind, vocab=size("vocab_size"), hidden=hidden, layers=layers,
        heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        rotated=max(2, rotated // 2 * 2),
        inner=size("intermediate_size_mlp", size("intermediate_size")),
        positions=size("max_position_embeddings", 4096), dtype=dtype,
        activation=ACTIVATIONS[act], tied=bool(c.get("tie_word_embeddings", False)),
        qkv_bias=bool(c.get("qkv_bias", c.get("attention_bias", False))),
        out_bias=bool(c.get("out_bias", c.get("attention_bias", False))), mlp_bias=bool(c.get("mlp_bias", False)),
        qk_norm=bool(c.get("qk_norm", c.get("use_qk_norm", False))), scaled=bool(c.get("scaled")),
        post_norms=bool(c.get("post_norms")), windows=_windows(kind, c, layers, size, where),
        sinks=bool(c.get("sinks")), softcap=share("attn_logit_softcapping", 0.0),
        final_softcap=share("final_logit_softcapping", 0.0), expert_bias=bool(c.get("expert_bias")),
        **_stored(c.get("quantization_config")), **_experts(kind, c, layers, size, where), **latent,
    )  # fmt: skip


def _misspelt(kind: str) -> list[str]:
    """The known type whose name a type is with a slip of the pen. Another version, or a word more, is another
    architecture, whose answers would be wrong.
    """
    version = [c for c in kind if c.isdigit()]
    return near_names(kind, [x for x in FAMILIES if [c for c in x if c.isdigit()] == version], cutoff=ALIKE)


def _windows(kind: str, c: Mapping[str, Any], layers: int, size: Any, where: str) -> tuple[int, ...]:
    """How many keys a query sees in each layer, 0 for all: by layer_types, else as the family's code does."""
    qwen = kind.startswith("qwen")
    key = "attention_chunk_size" if kind == "llama4_text" else "sliding_window"
    window = size(key, 0, least=0) if c.get("use_sliding_window", not qwen) else 0
    first = size("max_window_layers", 28, least=0) if qwen and kind != "qwen3_moe" else 0  # these see all
    every = size("sliding_window_pattern", size("full_every", 0, least=0), least=0)
    usual = [FULL if i < first or (every and (i + 1) % every == 0) else WINDOWED[0] for i in range(layers)]
    kinds = c.get("layer_types", usual)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(k in (FULL, *WINDOWED) for k in kinds):
        raise UsageError(f"{where}: layer_types must be {layers} of {', '.join((FULL, *WINDOWED))}, not {kinds!r:.60}")
    return tuple(0 if k == FULL else window for k in kinds)


def _stored(quantised: Any) -> dict[str, Any]:
    """How weights are stored in a file whose configuration says that they are quantised."""
    how = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
    if how == "mxfp4":  # of experts alone
        return {"expert_bits": 4}
    return {"stored_as": printable(f"{how or 'quantization_config'!s:.40}") if quantised else ""}


def _latent(size: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """What latent attention adds. Its heads are not grouped."""
    nope, rope = size("qk_nope_head_dim"), size("qk_rope_head_dim")
    return {
        "latent": size("kv_lora_rank"), "q_latent": size("q_lora_rank") if config.get("q_lora_rank") else 0,
        "nope_dim": nope, "v_dim": size("v_head_dim"), "head_dim": nope + rope, "rotated": rope,
    }  # fmt: skip


def _experts(kind: str, c: Mapping[str, Any], layers: int, size: Any, where: str) -> dict[str, Any]:
    """What a mixture of experts adds, under the keys of its family."""
    every = range(layers)
    if kind in ("mixtral", "gpt_oss", "llama4_text"):
        inner, step = size("intermediate_size"), size("interleave_moe_layer_step", 1)
        experts = {
            "experts": size("num_local_experts", 8), "taken": size("num_experts_per_tok", 2), "expert_inner": inner,
            "shared_inner": inner if kind == "llama4_text" else 0,
            "sparse": tuple((i + 1) % step == 0 for i in every),
        }  # fmt: skip
    elif kind.startswith("deepseek") or kind == "glm4_moe":
        inner = size("moe_intermediate_size")
        dense, step = size("first_k_dense_replace", 0, least=0), size("moe_layer_freq", 1)
        experts = {
            "experts": size("n_routed_experts"), "taken": size("num_experts_per_tok"), "expert_inner": inner,
            "shared_inner": inner * size("n_shared_experts", 0, least=0),
            "sparse": tuple(i >= dense and i % step == 0 for i in every),
        }  # fmt: skip
    elif kind in ("qwen2_moe", "qwen3_moe"):
        shared = size("shared_expert_intermediate_size") if kind == "qwen2_moe" else 0
        whole, step = c.get("mlp_only_layers", []), size("decoder_sparse_step", 1)
        if not isinstance(whole, list):
            raise UsageError(f"{where}: mlp_only_layers must be a list of layers, not {whole!r:.60}")
        dense_ones = {i for i in whole if isinstance(i, int)}
        experts = {
            "experts": size("num_experts"), "taken": size("num_experts_per_tok"),
            "expert_inner": size("moe_intermediate_size"), "shared_inner": shared, "shared_gate": shared > 0,
            "sparse": tuple((i + 1) % step == 0 and i not in dense_ones for i in every),
        }  # fmt: skip
    else:
        return {}
    if experts["taken"] > experts["experts"]:
        raise UsageError(
            f"{where}: a token can't take {experts['taken']} experts (num_experts_per_tok) of {experts['experts']}"
        )
    return experts
