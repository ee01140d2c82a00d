"""Logits of small models with random weights: those of the graphs, in ONNX Runtime, are transformers'."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from onnxperf.export.decoder import decoder
from onnxperf.export.decoder_config import DecoderConfig, config_of
from tests.later import later

torch, transformers = later("torch"), later("transformers")
pytestmark = pytest.mark.slow

Weights = dict[str, NDArray[Any]]
#: Sizes under the names that most configurations have.
SIZES = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "pad_token_id": 0,
}  # fmt: skip
OLD = {"vocab_size": 96, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64, "layer_norm_epsilon": 1e-5}
FALCON = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 96,
          "max_position_embeddings": 64}  # fmt: skip
#: Heads of 32 elements, each of which has keys of its own.
WIDE = {**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}, "num_attention_heads": 2}
WINDOWS = {"num_hidden_layers": 5, "sliding_window": 4}
ROPE = {
    "rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.0, "original_max_position_embeddings": 64,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
#: Latent attention, whose experts route in a way that MoE does not have: layers are dense.
LATENT = {
    **{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}, "num_key_value_heads": 4, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "first_k_dense_replace": 9,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip
DELTA = {
    "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 8, "partial_rotary_factor": 0.5,
}  # fmt: skip
GEMMA4 = {
    **SIZES, "num_hidden_layers": 5, "head_dim": 16, "global_head_dim": 32, "sliding_window": 4,
    "vocab_size_per_layer_input": 96, "final_logit_softcapping": 5.0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
FEW = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "layer_norm_epsilon": 1e-5}
#: Of a family, what its configuration says beside SIZES, or instead of them.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SIZES),
    "qwen2": ("qwen2", SIZES),
    "qwen3": ("qwen3", {**SIZES, "head_dim": 32}),
    "phi3": ("phi3", SIZES),
    "gemma2": ("gemma2", {**SIZES, **WINDOWS, "head_dim": 16, "query_pre_attn_scalar": 24}),
    "gemma3": ("gemma3_text", {**SIZES, **WINDOWS, "num_hidden_layers": 7, "head_dim": 16}),
    "glm": ("glm", {**SIZES, "head_dim": 32}),
    "glm4": ("glm4", {**SIZES, "head_dim": 32}),
    "gpt2": ("gpt2", OLD),
    "gpt_bigcode": ("gpt_bigcode", OLD),
    "opt": ("opt", {**{k: v for k, v in WIDE.items() if k != "intermediate_size"}, "ffn_dim": 96}),
    "falcon": ("falcon", FALCON),
    "falcon of two norms": ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon of one norm": (
        "falcon",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon in turn": ("falcon", {**FALCON, "parallel_attn": False, "bias": True}),
    "gpt_neox": ("gpt_neox", {**WIDE, "rotary_pct": 0.5}),
    "phi": ("phi", {**WIDE, "partial_rotary_factor": 0.5}),
    "starcoder2": ("starcoder2", {**SIZES, "sliding_window": 4}),
    "stablelm": (
        "stablelm",
        {**WIDE, "num_key_value_heads": 1, "use_qkv_bias": True, "partial_rotary_factor": 0.5},
    ),
    "cohere": ("cohere", SIZES),
    "cohere2": ("cohere2", {**SIZES, **WINDOWS}),
    "nemotron": ("nemotron", {**WIDE, "num_key_value_heads": 1}),
    "granite": (
        "granite",
        {**SIZES, "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
         "attention_multiplier": 0.3},
    ),
    "olmo2": ("olmo2", SIZES),
    "olmo3": ("olmo3", {**SIZES, **WINDOWS}),
    "exaone4": ("exaone4", {**SIZES, **WINDOWS, "head_dim": 16}),
    "smollm3": ("smollm3", {**SIZES, "num_hidden_layers": 5}),
    "seed_oss": ("seed_oss", {**SIZES, "head_dim": 16}),
    "ernie4_5": ("ernie4_5", {**SIZES, "head_dim": 16, "use_bias": True}),
    "ministral3": ("ministral3", {**SIZES, "head_dim": 16, "rope_parameters": ROPE}),
    "mixtral": ("mixtral", {**SIZES, **EXPERTS}),
    "granitemoe": ("granitemoe", {**SIZES, **EXPERTS, "attention_multiplier": 0.25}),
    "olmoe": ("olmoe", {**SIZES, "num_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        {**SIZES, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "norm_topk_prob": True},
    ),
    "qwen2_moe": (
        "qwen2_moe",
        {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "shared_expert_intermediate_size": 32},
    ),
    "gpt_oss": ("gpt_oss", {**SIZES, **EXPERTS, "head_dim": 16, "sliding_window": 4, "rope_parameters": ROPE}),
    "deepseek_v2": ("deepseek_v2", {**LATENT, "q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", {**LATENT, "q_lora_rank": 24}),
    "qwen3_next": (
        "qwen3_next",
        {**SIZES, **DELTA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "shared_expert_intermediate_size": 32},
    ),
    "qwen3_5": ("qwen3_5_text", {**SIZES, **DELTA}),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {**SIZES, **DELTA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "shared_expert_intermediate_size": 32},
    ),
    "gemma3n": (
        "gemma3n_text",
        {**SIZES, "num_hidden_layers": 5, "head_dim": 16, "sliding_window": 4, "vocab_size_per_layer_input": 96,
         "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2, "laurel_rank": 8,
         "layer_types": GEMMA4["layer_types"], "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0, 0.0],
         "intermediate_size": [96, 96, 64, 64, 64]},
    ),
    "gemma4": (
        "gemma4_text",
        {**GEMMA4, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    ),
    "gemma4 whose values are keys": (
        "gemma4_text",
        {**GEMMA4, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
    "mamba": ("mamba", {**FEW, "state_size": 8, "conv_kernel": 4, "time_step_rank": 4}),
    "mamba2": ("mamba2", {**FEW, "state_size": 8, "conv_kernel": 4, "num_heads": 8, "head_dim": 16, "n_groups": 2}),
    "nemotron_h": (
        "nemotron_h",
        {**SIZES, "head_dim": 16, "hybrid_override_pattern": "M-*M-", "ssm_state_size": 8, "mamba_num_heads": 8,
         "mamba_head_dim": 16, "n_groups": 2, "num_hidden_layers": 5, "time_step_min": 1e-9},
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        {**SIZES, **EXPERTS, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
         "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_n_groups": 1, "shared_intermediate_size": 32,
         "attention_multiplier": 0.3, "residual_multiplier": 0.5},
    ),
    "granitemoehybrid without experts": (
        "granitemoehybrid",
        {**SIZES, "num_local_experts": 0, "layer_types": ["full_attention", "full_attention", "linear_attention"],
         "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_n_groups": 1, "shared_intermediate_size": 32,
         "attention_multiplier": 0.3, "position_embedding_type": "rope"},
    ),
    "jamba": (
        "jamba",
        {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 3, "attn_layer_offset": 1,
         "expert_layer_period": 2,
         "expert_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
    ),
}  # fmt: skip
DELTAS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
AROUND_ONE = ("gemma2", "gemma3_text", "nemotron", *DELTAS)  # families whose code adds 1 to the weights of norms
#: transformers' names of weights as those of the graphs.
NAMES = (
    (r"^(model|transformer|gpt_neox|decoder|backbone)\.", ""),
    (r"^(model|decoder)\.", ""),
    (r"^h\.", "layers."),
    (r"^(wte|embed_in|word_embeddings|embeddings)\.", "embed_tokens."),
    (r"^wpe\.", "embed_positions."),
    (r"^(ln_f|final_layer_norm|final_layernorm|norm_f)\.", "norm."),
    (r"^embed_out\.", "lm_head."),
    (r"\.mixer\.(up|down)_proj\.", r".mlp.\1_proj."),
    (r"\.self_attn\.out_proj\.", ".attn.o_proj."),
    (r"\.(self_attn|attention|self_attention|linear_attn|mixer|mamba)\.", ".attn."),
    (r"\.feed_forward\.", ".mlp."),
    (r"\.pre_ff_layernorm\.", ".post_attention_layernorm."),
    (r"\.dt_proj\.bias", ".dt_bias"),
    (r"\.shared_mlp\.input_linear\.", ".mlp.shared_expert.gate_up_proj."),
    (r"\.shared_mlp\.output_linear\.", ".mlp.shared_expert.down_proj."),
    (r"\.block_sparse_moe\.", ".mlp."),
    (r"\.attn\.(c_attn|query_key_value)\.", ".attn.qkv_proj."),
    (r"\.attn\.(c_proj|dense)\.", ".attn.o_proj."),
    (r"\.(q|k|q_a|kv_a)_layernorm\.", r".\1_norm."),
    (r"\.kv_a_proj_with_mqa\.", ".kv_a_proj."),
    (r"\.(mlp\.)?(c_fc|fc1|dense_h_to_4h)\.", ".mlp.up_proj."),
    (r"\.(mlp\.c_proj|fc2|mlp\.fc2|dense_4h_to_h|mlp\.dense_4h_to_h)\.", ".mlp.down_proj."),
    (r"\.(ln_1|ln_attn|self_attn_layer_norm)\.", ".input_layernorm."),
    (r"\.(ln_2|ln_mlp)\.", ".post_attention_layernorm."),
    (r"(layers\.\d+)\.final_layer_norm\.", r"\1.post_attention_layernorm."),
    (r"\.mlp\.(gate|router|router\.layer)\.(weight|bias)", r".moe.router.\2"),
    (r"\.mlp\.experts\.", ".moe."),
    (r"\.mlp\.shared_expert", ".shared_expert"),
)


def taken(model: Any, c: DecoderConfig) -> Weights:
    """transformers' weights by the names of the graphs, laid out as these have them."""
    state: Weights = {}
    for key, value in model.state_dict().items():
        for pattern, name in NAMES:
            key = re.sub(pattern, name, key)
        state[key] = value.detach().float().numpy()
    turned = c.model_type == "gpt2"  # whose products have weights [in, out]
    weights: Weights = {}
    for key, value in state.items():
        if c.model_type in AROUND_ONE and "norm" in key and ".attn.norm." not in key and key.endswith("weight"):
            value = value + 1
        if (
            value.ndim == 2
            and key.endswith("weight")
            and not key.startswith("embed")
            and not (turned and "layers" in key)
        ):
            value = value.T
        weights[key] = value
    for i in range(c.layers):
        at = f"layers.{i}"
        for kind in ("weight", "bias"):
            _joined(weights, c, f"{at}.attn", kind)
            for mlp in (f"{at}.mlp", f"{at}.shared_expert"):
                if (both := weights.pop(f"{mlp}.gate_up_proj.{kind}", None)) is not None:
                    weights[f"{mlp}.gate_proj.{kind}"], weights[f"{mlp}.up_proj.{kind}"] = np.split(both, 2, -1)
        _of_experts(weights, f"{at}.moe", c)
        _of_states(weights, f"{at}.attn", c)
        _of_latent(weights, f"{at}.attn", c)
        for key in [k for k in weights if k.startswith(f"{at}.shared_expert.") and not c.experts]:
            weights[key.replace("shared_expert", "mlp")] = weights.pop(key)
        _norms(weights, c, at)
    for name in ("model_projection", "projection_norm"):
        if (value := weights.pop(f"per_layer_{name}.weight", None)) is not None:
            weights[f"per_layer.{name}.weight"] = value
    weights.setdefault("lm_head.weight", weights["embed_tokens.weight"].T)
    return weights


def _joined(weights: Weights, c: DecoderConfig, at: str, kind: str) -> None:
    """Queries, keys and values as one product, in this order, from three or from one that has them by heads."""
    if f"{at}.q_proj.{kind}" in weights and not c.qk_norm and not c.latent:
        weights[f"{at}.qkv_proj.{kind}"] = np.concatenate([weights.pop(f"{at}.{p}_proj.{kind}") for p in "qkv"], -1)
    groups = c.heads if c.model_type == "gpt_neox" else c.kv_heads if c.model_type == "falcon" else 0
    if groups and (both := weights.get(f"{at}.qkv_proj.{kind}")) is not None:
        if c.model_type == "falcon" and c.kv_heads == c.heads:
            groups = c.heads
        by_head = both.reshape(*both.shape[:-1], groups, -1, c.head_dim)
        parts = by_head[..., :-2, :], by_head[..., -2:-1, :], by_head[..., -1:, :]
        weights[f"{at}.qkv_proj.{kind}"] = np.concatenate([p.reshape(*both.shape[:-1], -1) for p in parts], -1)


def _of_states(weights: Weights, at: str, c: DecoderConfig) -> None:
    """What linear attention has, laid out by its parts; and queries apart from their gates."""
    s = c.state
    if s is None:
        return
    if (both := weights.pop(f"{at}.in_proj_qkvz.weight", None)) is not None:
        sizes = [s.key_dim, s.key_dim, *[s.heads // s.key_heads * s.value_dim] * 2]
        weights[f"{at}.in_proj_qkvz.weight"] = _by_part(both, s.key_heads, sizes)
        rates = weights.pop(f"{at}.in_proj_ba.weight")
        weights[f"{at}.in_proj_ba.weight"] = _by_part(rates, s.key_heads, [s.heads // s.key_heads] * 2)
    for name, parts in (("qkvz", ("qkv", "z")), ("ba", ("b", "a"))):
        if f"{at}.in_proj_{parts[0]}.weight" in weights:
            apart = [weights.pop(f"{at}.in_proj_{p}.weight") for p in parts]
            weights[f"{at}.in_proj_{name}.weight"] = np.concatenate(apart, -1)
    if c.gate and f"{at}.q_proj.weight" in weights:
        queries = _by_part(weights[f"{at}.q_proj.weight"], c.heads, [c.head_dim] * 2)
        weights[f"{at}.q_proj.weight"], weights[f"{at}.gate_proj.weight"] = np.split(queries, 2, -1)
    if s.kind == "delta" and f"{at}.A_log" in weights:
        weights[f"{at}.A_log"] = -np.exp(weights[f"{at}.A_log"])
    if s.kind == "mamba" and f"{at}.A_log" in weights:
        weights[f"{at}.A_log"] = weights[f"{at}.A_log"].reshape(s.heads, s.key_dim)


def _of_latent(weights: Weights, at: str, c: DecoderConfig) -> None:
    """Queries whose rotated elements come first, and halves of pairs apart; keys and values apart."""
    if not c.latent:
        return

    def halves(x: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate((x[..., 0::2], x[..., 1::2]), -1)

    q = weights.pop(f"{at}.q_b_proj.weight" if c.q_latent else f"{at}.q_proj.weight")
    plain, turned = np.split(q.reshape(len(q), c.heads, -1), [c.nope_dim], -1)
    weights[f"{at}.q_b_proj.weight"] = np.concatenate((halves(turned), plain), -1).reshape(q.shape)
    latent, turned = np.split(weights[f"{at}.kv_a_proj.weight"], [c.latent], -1)
    weights[f"{at}.kv_a_proj.weight"] = np.concatenate((latent, halves(turned)), -1)
    both = weights.pop(f"{at}.kv_b_proj.weight").reshape(c.latent, c.heads, -1)
    for part, value in zip("kv", np.split(both, [c.nope_dim], -1), strict=True):
        weights[f"{at}.{part}_b_proj.weight"] = value.reshape(c.latent, -1)


def _by_part(both: NDArray[Any], heads: int, sizes: list[int]) -> NDArray[Any]:
    """Columns that lie by heads, each of which has parts of these sizes, by parts."""
    by_head = both.reshape(len(both), heads, sum(sizes))
    parts = np.split(by_head, np.cumsum(sizes)[:-1], -1)
    return np.concatenate([p.reshape(len(both), -1) for p in parts], -1)


def _of_experts(weights: Weights, at: str, c: DecoderConfig) -> None:
    """Gates and ups of experts as rows that alternate; gpt-oss has them as columns that do."""
    both = weights.pop(f"{at}.gate_up_proj", None)
    if both is None:
        return
    down = weights.pop(f"{at}.down_proj")
    if c.expert_bias:
        for fc, proj, value in (("fc1", "gate_up_proj", both), ("fc2", "down_proj", down)):
            weights[f"{at}.{fc}.weight"] = value.swapaxes(1, 2)
            weights[f"{at}.{fc}.bias"] = weights.pop(f"{at}.{proj}_bias")
        return
    gate, up = np.split(both, 2, 1)
    weights[f"{at}.fc1.weight"] = np.stack((gate, up), 2).reshape(both.shape)
    weights[f"{at}.fc2.weight"] = down


def _norms(weights: Weights, c: DecoderConfig, at: str) -> None:
    """Norms of a layer under the names of the graphs, by where they stand."""
    names = {
        "pre": {"post_attention_layernorm": "post_attention_norm"},
        "parallel_two": {"post_attention_layernorm": "post_attention_norm"},
        "parallel": {}, "post": {},
        "both": {
            "pre_feedforward_layernorm": "pre_feedforward_norm",
            "post_self_attn_layernorm": "post_attention_layernorm", "post_mlp_layernorm": "post_feedforward_layernorm",
        },
    }[c.placement]  # fmt: skip
    if f"{at}.norm.weight" in weights:  # of a layer that is one part alone
        first = c.blocks[int(at.rpartition(".")[2])].mixer
        weights[f"{at}.{'input_layernorm' if first else 'post_attention_norm'}.weight"] = weights.pop(
            f"{at}.norm.weight"
        )
    if c.model_type == "glm4":  # whose second norm before a part has the name that gemma's first behind one has
        weights[f"{at}.pre_feedforward_layernorm.weight"] = weights.pop(f"{at}.post_attention_layernorm.weight")
    for key in [k for k in weights if k.startswith(f"{at}.")]:
        for old, new in names.items():
            if f".{old}." in key:
                weights[key.replace(old, new)] = weights.pop(key)


def filled(model: onnx.ModelProto, weights: Weights, rotary: Any) -> None:
    """Give the graph these weights, and tables of cosines and sines."""
    weights = dict(weights)
    for t in model.graph.initializer:
        if t.data_location != onnx.TensorProto.EXTERNAL:
            continue
        if t.name.endswith("_cache"):
            value = _table(t, rotary)
        else:
            value = weights.pop(t.name.removeprefix("/model/").removeprefix("/").replace("/", "."))
        assert value.shape == tuple(t.dims), (t.name, value.shape, tuple(t.dims))
        t.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(value, np.float32), t.name))
    assert not weights, f"not in the graph: {', '.join(weights)}"


def _table(t: onnx.TensorProto, rotary: Any) -> NDArray[Any]:
    """Cosines or sines of all positions."""
    kind = "sliding_attention" if t.name.startswith("local") else "full_attention"
    frequencies = getattr(rotary, f"{kind}_inv_freq", getattr(rotary, "inv_freq", None)).numpy()
    angles = np.arange(t.dims[0])[:, None] * frequencies
    return np.cos(angles) if "cos" in t.name else np.sin(angles)


#: What StateSpace is, in ONNX: Mamba-2's, and Mamba's, whose states have one column and decays by row.
SPACE = """<domain: "onnxperf", opset_import: ["" : 21, "com.microsoft" : 1]>
StateSpace (x, dt, b, c, a_log, d, bias, past, z) => (y, present) {{
    last = Constant <value_ints = [-1]> ()
    by_head = Constant <value_ints = [0, 0, {heads}, {dim}]> ()
    joined = Constant <value_ints = [0, 0, -1]> ()
    shifted = Add (dt, bias)
    rate = Softplus (shifted)
    grown = Exp (a_log)
    a = Neg (grown)
    each = Unsqueeze (rate, last)
    {decays}
    xs = Reshape (x, by_head)
    stepped = Mul (xs, each)
    values = Reshape (stepped, joined)
    result, state = com.microsoft.LinearAttention <q_num_heads = {groups}, kv_num_heads = {heads}, scale = 1.0,
        update_rule = "gated"> (c, b, values, before, decay)
    column = Unsqueeze (d, last)
    direct = Mul (xs, column)
    skipped = Reshape (direct, joined)
    ungated = Add (result, skipped)
    {ends}
}}"""
MAMBA = {
    "decays": """by_row = Mul (each, a)
    decay = Reshape (by_row, joined)
    before = Unsqueeze (past, last)""",
    "ends": """present = Squeeze (state, last)
    share = Sigmoid (z)
    gate = Mul (z, share)
    y = Mul (ungated, gate)""",
}
MAMBA2 = {
    "decays": """decay = Mul (rate, a)
    before = Identity (past)""",
    "ends": """present = Identity (state)
    y = Identity (ungated)""",
}


#: What CachedAttention is, in ONNX, of one sample.
CACHED = """<domain: "onnxperf", opset_import: ["" : 24, "com.microsoft" : 1]>
CachedAttention <scale, num_heads, local_window_size> (q, keys, values, last, total, cos, sin) => (y) {{
    axis = Constant <value_ints = [0]> ()
    row = Constant <value_ints = [1]> ()
    zero = Constant <value_int = 0> ()
    unit = Constant <value_int = 1> ()
    by_head = Constant <value_ints = [0, 0, {heads}, -1]> ()
    joined = Constant <value_ints = [0, 0, -1]> ()
    new = Shape <start = 1, end = 2> (q)
    room = Shape <start = 2, end = 3> (keys)
    count = Squeeze (new, axis)
    length = Squeeze (room, axis)
    most = Cast <to = 7> (total)
    first = Sub (most, count)
    places = Range (first, most, unit)
    positions = Unsqueeze (places, axis)
    turned = com.microsoft.RotaryEmbedding <num_heads = {heads}> (q, positions, cos, sin)
    apart = Reshape (turned, by_head)
    queries = Transpose <perm = [0, 2, 1, 3]> (apart)
    window = Constant <value_int: int = @local_window_size> ()
    all_places = Range (zero, length, unit)
    column = Unsqueeze (places, row)
    distance = Sub (column, all_places)
    before = GreaterOrEqual (distance, zero)
    inside = Less (distance, window)
    whole = Less (window, zero)
    near = Or (inside, whole)
    mask = And (before, near)
    found = Attention <scale: float = @scale> (queries, keys, values, mask)
    back = Transpose <perm = [0, 2, 1, 3]> (found)
    y = Reshape (back, joined)
}}"""


def logits(model: onnx.ModelProto, ids: NDArray[Any], cuts: tuple[int, ...]) -> NDArray[Any]:
    """Of a prompt that is taken in parts, each of which continues the last one's cache."""
    ort = pytest.importorskip("onnxruntime")
    for node in model.graph.node:  # ONNX Runtime 1.31's MoE without normalisation adds to what a reused buffer holds
        if node.op_type == "MoE":
            model.graph.output.append(onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    sizes = {"batch_size": len(ids), "max_sequence_length": 64}
    kept = {i.name: np.zeros([sizes.get(d, d) for d in i.shape], np.float32)
            for i in session.get_inputs() if i.name.startswith("past")}  # fmt: skip
    names, results = [i.name for i in session.get_inputs()], []
    for first, last in zip((0, *cuts), (*cuts, ids.shape[1]), strict=True):
        feeds = {"input_ids": ids[:, first:last], "attention_mask": np.ones((len(ids), last), np.int64), **kept,
                 "position_ids": np.tile(np.arange(first, last), (len(ids), 1))}  # fmt: skip
        given = [o.name for o in session.get_outputs()]
        outputs = dict(zip(given, session.run(None, {n: feeds[n] for n in names}), strict=True))
        results.append(outputs["logits"])
        kept = {name: outputs[name.replace("past_key_values", "present")] for name in kept}
    return np.concatenate(results, 1)


def rotary_of(model: Any) -> Any:
    return next((m for n, m in model.named_modules() if n.endswith(("rotary_emb", "rotary"))), None)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str) -> None:
    """Of a prompt in one run, and of one in three, of which the last takes one token.

    With latent attention only the first: test_decoder_latent holds what continues a cache to what begins it.
    """
    kind, sizes = MODELS[name]
    torch.manual_seed(0)
    theirs = transformers.AutoConfig.for_model(kind, **sizes)
    theirs._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(theirs).eval().float()
    with torch.no_grad():
        for key, p in model.named_parameters():
            around = 1.0 if "norm" in key and kind not in AROUND_ONE else 0.0
            p.copy_(torch.randn_like(p) * (0.3 if p.ndim > 1 else 0.2) + around)
    ids = np.random.default_rng(1).integers(1, 96, (1, 12))
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)).logits.numpy()
    c = config_of({"model_type": kind, **sizes, "torch_dtype": "float32"})
    graph = decoder(c, dtype="float32", begins=c.prompt_apart)
    if c.state and c.state.kind != "delta":
        of_kind = MAMBA if c.state.kind == "mamba" else MAMBA2
        sizes = {"heads": c.state.heads, "groups": c.state.key_heads, "dim": c.state.value_dim}
        graph.functions.append(onnx.parser.parse_function(SPACE.format(**sizes, **of_kind)))
    if any(b.back for b in c.blocks):
        graph.functions.append(onnx.parser.parse_function(CACHED.format(heads=c.heads)))
        graph.opset_import[0].version = 24
    filled(graph, taken(model, c), rotary_of(model))
    for cuts in ((),) if c.prompt_apart else ((), (7, 11)):
        np.testing.assert_allclose(
            logits(onnx.ModelProto.FromString(graph.SerializeToString()), ids, cuts),
            wanted,
            atol=2e-4 * np.abs(wanted).max(),
            rtol=1e-3,
        )
