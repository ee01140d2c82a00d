"""What each family of decoders is, as data: the defaults of its configuration, and what its code does that no key says.

Keys are those of transformers' configurations, under one name each (ALIASES). Beside them a row may say
norm: "rms", "layer" (with a bias) or "scale" (a layer norm without one); placement: of norms, see PLACEMENTS;
position: "rope" or "learned" (a table that is added), whose rows begin behind position_offset others;
rotates: "windowed" where layers that see all positions rotate nothing; interleaved: neighbours are rotated together;
local_tables: windowed layers have tables of cosines and sines of their own; scaled: the embedding by sqrt(hidden);
value_norm: values are normed; layer_scalar: a number multiplies what a layer gives;
qk_norm: of queries and keys, by "head" or "whole"; sinks: attention has a learnt logit for nothing;
clamped: the activation of experts is; qkv_bias, out_bias, head_bias, expert_bias: products have biases;
plain: the MLP has no gate; latent: attention is;
window: the key of the window's size; full_every: so often a layer sees all positions, as the full_first do;
full_at: of so many layers which, the last unless it says so; others: what the others are;
state: what linear attention is, "delta", "mamba" or "mamba2" (see decoder_states);
state_norms: of its time steps, B and C;
single: a layer is either a mixer or an MLP; gate: a product of its own gates what attention gives;
moe_at, last_of_step: of so many layers the last has experts, not the first; shared_gate: a gate weights shared experts;
must: values that other keys must have (a name: that key's), as no graph is written of others;
names: of keys in this family alone.
"""

from __future__ import annotations

from typing import Any

PLACEMENTS = {
    "pre": "before each part", "post": "behind each part", "both": "before and behind each part",
    "parallel": "one before both parts, which read the same", "parallel_two": "one before each of parallel parts",
}  # fmt: skip
GEMMA = {
    "tie_word_embeddings": True, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "scaled": True,
    "num_key_value_heads": 4, "sliding_window": 4096,
}  # fmt: skip
QWEN_DELTA = {
    "state": "delta", "qk_norm": "head", "gate": True, "head_dim": 256, "partial_rotary_factor": 0.25, "full_every": 4,
    "others": "linear_attention", "max_position_embeddings": 32768, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip
MAMBA = {
    "single": True, "position": "none", "others": "linear_attention", "num_attention_heads": 1,
    "max_position_embeddings": 1 << 20,
}  # fmt: skip
#: Keys of rows that no file decides.
STRUCTURE = frozenset({
    "norm", "placement", "position", "position_offset", "rotates", "interleaved", "local_tables", "scaled",
    "value_norm", "layer_scalar", "sinks", "expert_bias", "clamped", "plain", "latent", "window", "full_first",
    "full_at", "others", "state", "state_norms", "single", "gate", "moe_at", "last_of_step", "shared_gate", "must",
    "names",
})  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072},
    "ministral3": {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144},
    "mixtral": {
        "num_key_value_heads": 8, "num_experts": 8, "num_experts_per_tok": 2,
        "max_position_embeddings": 131072,
    },
    "phi3": {},
    "qwen2": {"qkv_bias": True, "full_first": 28, "use_sliding_window": False, "max_position_embeddings": 32768},
    "qwen2_moe": {
        "qkv_bias": True, "full_first": 28, "use_sliding_window": False, "last_of_step": True, "shared_gate": True,
        "norm_topk_prob": False, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "max_position_embeddings": 32768,
    },
    "qwen3": {
        "qk_norm": "head", "head_dim": 128, "full_first": 28, "use_sliding_window": False,
        "max_position_embeddings": 32768,
    },
    "qwen3_moe": {
        "qk_norm": "head", "head_dim": 128, "num_key_value_heads": 4, "use_sliding_window": False,
        "last_of_step": True, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "max_position_embeddings": 32768,
    },
    "gemma": {
        "tie_word_embeddings": True, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "scaled": True,
        "max_position_embeddings": 8192,
    },
    "gemma2": {
        **GEMMA, "placement": "both", "full_every": 2, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256,
        "max_position_embeddings": 8192,
    },
    "gemma3_text": {
        **GEMMA, "placement": "both", "qk_norm": "head", "full_every": 6, "vocab_size": 262208,
        "num_attention_heads": 8, "max_position_embeddings": 131072, "query_pre_attn_scalar": 256, "local_tables": True,
    },
    "gemma3n_text": {
        **GEMMA, "placement": "both", "qk_norm": "head", "value_norm": True, "full_every": 5, "vocab_size": 262400,
        "num_key_value_heads": 2, "sliding_window": 512, "max_position_embeddings": 32768, "query_pre_attn_scalar": 1,
        "local_tables": True, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
        "final_logit_softcapping": 30.0, "num_kv_shared_layers": 15, "altup_num_inputs": 4, "laurel_rank": 64,
        "must": {"altup_active_idx": 0, "altup_correct_scale": True},
    },
    "gemma4_text": {
        **GEMMA, "placement": "both", "qk_norm": "head", "value_norm": True, "full_every": 6, "vocab_size": 262144,
        "sliding_window": 512, "max_position_embeddings": 131072, "query_pre_attn_scalar": 1, "local_tables": True,
        "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144, "layer_scalar": True,
        "global_head_dim": 512,
    },
    "glm": {
        "partial_rotary_factor": 0.5, "attention_bias": True, "out_bias": False, "interleaved": True,
        "max_position_embeddings": 131072,
    },
    "glm4": {
        "partial_rotary_factor": 0.5, "attention_bias": True, "out_bias": False, "placement": "both",
        "interleaved": True,
        "max_position_embeddings": 131072,
    },
    "glm4_moe": {
        "partial_rotary_factor": 0.5, "out_bias": False, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "max_position_embeddings": 131072,
    },
    "gpt_oss": {
        "head_dim": 64, "attention_bias": True, "sinks": True, "expert_bias": True, "clamped": True, "full_every": 2,
        "sliding_window": 128, "max_position_embeddings": 131072, "num_experts": 8, "num_experts_per_tok": 2,
    },
    "llama4_text": {
        "head_dim": 128, "full_every": 4, "window": "attention_chunk_size", "attention_chunk_size": 8192,
        "max_position_embeddings": 131072,
        "rotates": "windowed", "interleaved": True, "last_of_step": True, "n_shared_experts": 1, "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "deepseek": {},
    "deepseek_v2": {
        "latent": True, "num_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False,
        "max_position_embeddings": 2048,
    },
    "deepseek_v3": {
        "latent": True, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "n_shared_experts": 1, "first_k_dense_replace": 3,
    },
    "deepseek_v32": {
        "latent": True, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "index_n_heads": 64, "index_head_dim": 128,
        "index_topk": 2048,
        "max_position_embeddings": 163840,
    },
    "glm_moe_dsa": {
        "latent": True, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "index_n_heads": 32, "index_head_dim": 128,
        "index_topk": 2048, "index_skip_topk_offset": 2, "index_topk_freq": 1,
        "max_position_embeddings": 202752,
    },
    "gpt2": {
        "norm": "layer", "position": "learned", "plain": True, "use_bias": True, "hidden_act": "gelu_new",
        "tie_word_embeddings": True, "max_position_embeddings": 1024,
    },
    "gpt_bigcode": {
        "norm": "layer", "position": "learned", "plain": True, "use_bias": True, "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True, "max_position_embeddings": 1024, "multi_query": True,
    },
    "opt": {
        "norm": "layer", "position": "learned", "position_offset": 2, "plain": True, "use_bias": True,
        "hidden_act": "relu", "tie_word_embeddings": True, "max_position_embeddings": 2048,
        "must": {"do_layer_norm_before": True, "word_embed_proj_dim": "hidden_size"},
    },
    "falcon": {
        "norm": "layer", "placement": "parallel", "plain": True, "hidden_act": "gelu", "multi_query": True,
        "tie_word_embeddings": True, "max_position_embeddings": 2048, "must": {"alibi": False},
    },
    "gpt_neox": {
        "norm": "layer", "placement": "parallel_two", "plain": True, "hidden_act": "gelu", "attention_bias": True,
        "mlp_bias": True, "partial_rotary_factor": 0.25, "max_position_embeddings": 2048,
        "must": {"use_parallel_residual": True},
    },
    "phi": {
        "norm": "layer", "placement": "parallel", "plain": True, "hidden_act": "gelu_new", "use_bias": True,
        "head_bias": True, "partial_rotary_factor": 0.5, "max_position_embeddings": 2048,
    },
    "phimoe": {
        "norm": "layer", "num_key_value_heads": 8, "num_experts": 16, "num_experts_per_tok": 2,
        "max_position_embeddings": 131072,
    },
    "starcoder2": {
        "norm": "layer", "plain": True, "hidden_act": "gelu_pytorch_tanh", "use_bias": True, "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "stablelm": {"norm": "layer", "partial_rotary_factor": 0.25, "must": {"use_parallel_residual": False}},
    "cohere": {
        "norm": "scale", "placement": "parallel", "interleaved": True, "tie_word_embeddings": True,
        "logit_scale": 0.0625, "max_position_embeddings": 8192, "must": {"use_qk_norm": False},
    },
    "cohere2": {
        "norm": "scale", "placement": "parallel", "interleaved": True, "tie_word_embeddings": True,
        "logit_scale": 0.0625, "max_position_embeddings": 8192, "sliding_window": 4096, "full_every": 4,
        "rotates": "windowed",
    },
    "nemotron": {"norm": "layer", "plain": True, "hidden_act": "relu2", "partial_rotary_factor": 0.5},
    "granite": {"max_position_embeddings": 2048},
    "granitemoe": {"num_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 2048},
    "olmo2": {"placement": "post", "qk_norm": "whole", "max_position_embeddings": 2048},
    "olmo3": {
        "placement": "post", "qk_norm": "whole", "max_position_embeddings": 2048, "sliding_window": 4096,
        "full_every": 4,
    },
    "olmoe": {"qk_norm": "whole", "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False},
    "exaone4": {
        "placement": "post", "qk_norm": "head", "sliding_window": 4096, "full_every": 4, "rotates": "windowed",
        "max_position_embeddings": 2048,
    },
    "smollm3": {
        "num_key_value_heads": 4, "tie_word_embeddings": True, "max_position_embeddings": 32768,
        "no_rope_layer_interval": 4, "use_sliding_window": False,
    },
    "seed_oss": {
        "attention_bias": True, "out_bias": False, "head_dim": 128, "num_key_value_heads": 8,
        "max_position_embeddings": 524288,
    },
    "ernie4_5": {
        "interleaved": True, "tie_word_embeddings": True, "head_dim": 128, "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
    },
    "ernie4_5_moe": {
        "interleaved": True, "tie_word_embeddings": True, "num_key_value_heads": 4, "max_position_embeddings": 131072,
        "num_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
        "last_of_step": True,
    },
    "dots1": {"qk_norm": "head", "sliding_window": 4096, "full_every": 1, "max_position_embeddings": 2048},
    "minimax_m2": {
        "qk_norm": "whole", "head_dim": 128, "num_key_value_heads": 8, "num_experts": 256, "num_experts_per_tok": 8,
        "rotary_dim": 64, "max_position_embeddings": 196608,
    },
    "qwen3_next": {
        **QWEN_DELTA, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 512,
        "num_experts_per_tok": 10, "last_of_step": True, "shared_gate": True, "num_key_value_heads": 2,
    },
    "qwen3_5_text": {**QWEN_DELTA, "num_key_value_heads": 4},
    "qwen3_5_moe_text": {
        **QWEN_DELTA, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 256,
        "num_experts_per_tok": 8, "last_of_step": True, "shared_gate": True, "num_key_value_heads": 2,
    },
    "mamba": {**MAMBA, "state": "mamba", "names": {"intermediate_size": "mamba_width"}, "mamba_d_state": 16},
    "mamba2": {
        **MAMBA, "state": "mamba2", "names": {"num_heads": "mamba_num_heads", "head_dim": "mamba_head_dim"},
        "mamba_d_state": 128, "mamba_n_groups": 8, "mamba_num_heads": 128, "mamba_head_dim": 64,
    },
    "nemotron_h": {
        "state": "mamba2", "single": True, "position": "none", "plain": True, "hidden_act": "relu2", "head_dim": 128,
        "num_key_value_heads": 8, "mamba_d_state": 128, "mamba_n_groups": 8, "mamba_num_heads": 128,
        "mamba_head_dim": 64, "n_shared_experts": 1, "must": {"moe_latent_size": None},
    },
    "granitemoehybrid": {
        "state": "mamba2", "position": "none", "names": {"position_embedding_type": "position"}, "num_experts": 8,
        "num_experts_per_tok": 2, "shared_expert_intermediate_size": 1024, "mamba_d_state": 256, "mamba_n_groups": 1,
        "mamba_num_heads": 128,
        "max_position_embeddings": 2048,
    },
    "jamba": {
        "state": "mamba", "position": "none", "state_norms": True, "num_key_value_heads": 8, "full_every": 8,
        "full_at": 4, "others": "linear_attention", "num_experts": 16, "num_experts_per_tok": 2, "moe_layer_freq": 2,
        "moe_at": 1, "mamba_d_state": 16, "max_position_embeddings": 262144, "norm_topk_prob": False,
    },
}  # fmt: skip
#: Model types that have the text decoder of another, in a table of its own (text_config) or beside the rest.
SAME = {
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2", "qwen2_5_vl": "qwen2", "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe", "kimi_k2": "deepseek_v3", "exaone": "llama",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
}  # fmt: skip
#: Types of transformers that are no slips of the pen, near as their names are to known ones.
OTHERS = {
    "glm4v", "glm4v_moe", "gpt_neo", "ministral", "mllama", "molmo2", "olmo", "pixtral", "qwen3_text",
    "xglm",
}  # fmt: skip
#: Other names of keys.
ALIASES = {
    "n_embd": "hidden_size", "n_embed": "hidden_size", "n_layer": "num_hidden_layers",
    "num_layers": "num_hidden_layers", "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
    "num_kv_heads": "num_key_value_heads", "n_inner": "intermediate_size", "ffn_dim": "intermediate_size",
    "ffn_hidden_size": "intermediate_size", "activation_function": "hidden_act", "activation": "hidden_act",
    "mlp_hidden_act": "hidden_act", "torch_dtype": "dtype",
    "bias": "use_bias", "enable_bias": "use_bias", "use_qkv_bias": "qkv_bias", "attention_out_bias": "out_bias",
    "lm_head_bias": "head_bias", "rotary_pct": "partial_rotary_factor", "layer_norm_eps": "rms_norm_eps",
    "layer_norm_epsilon": "rms_norm_eps", "norm_epsilon": "rms_norm_eps", "norm_eps": "rms_norm_eps",
    "sliding_window_pattern": "full_every",
    "max_window_layers": "full_first", "num_local_experts": "num_experts",
    "n_routed_experts": "num_experts", "moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok",
    "moe_num_shared_experts": "n_shared_experts", "moe_layer_start_index": "first_k_dense_replace",
    "moe_layer_interval": "moe_layer_freq", "interleave_moe_layer_step": "moe_layer_freq",
    "decoder_sparse_step": "moe_layer_freq", "top_k_experts": "num_experts_per_tok",
    "expert_layer_period": "moe_layer_freq", "expert_layer_offset": "moe_at",
    "attn_layer_period": "full_every", "attn_layer_offset": "full_at", "full_attention_interval": "full_every",
    "layers_block_type": "layer_types", "hybrid_override_pattern": "layer_types",
    "shared_intermediate_size": "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size": "shared_expert_intermediate_size", "mamba_n_heads": "mamba_num_heads",
    "mamba_d_head": "mamba_head_dim", "ssm_state_size": "mamba_d_state", "state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv", "n_groups": "mamba_n_groups", "use_conv_bias": "mamba_conv_bias",
    "time_step_rank": "mamba_dt_rank", "expand": "mamba_expand",
}  # fmt: skip
#: How an activation is written.
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "gelu": "gelu", "relu": "relu", "relu2": "relu2",
}  # fmt: skip
