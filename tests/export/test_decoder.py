"""Graphs made from a config.json: as many parameters, FLOPs and bytes of cache as are published, and valid ONNX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxperf
from onnxperf.export.decoder import decoder, parameters
from onnxperf.export.decoder_config import POSITIONS, config_of, read_config
from onnxperf.export.decoder_families import FAMILIES, SAME
from onnxperf.ground.errors import ModelError, UsageError
from onnxperf.running.pipeline import Request, run_of

LLAMA2 = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "intermediate_size": 11008, "max_position_embeddings": 4096,
}  # fmt: skip
LLAMA3 = {**LLAMA2, "vocab_size": 128256, "num_key_value_heads": 8, "intermediate_size": 14336}
MISTRAL = {**LLAMA3, "model_type": "mistral", "vocab_size": 32000}
TINY = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 32, "torch_dtype": "float32",
}  # fmt: skip


def sizes(vocab: int, hidden: int, layers: int, heads: int, kv_heads: int, inner: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": inner, "max_position_embeddings": 4096, **more,
    }  # fmt: skip


#: What latent attention adds to a configuration, and DeepSeek's own sizes of it.
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
SMALL_LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "first_k_dense_replace": 9,
}  # fmt: skip
GPT_OSS = sizes(201088, 2880, 24, 64, 8, 2880, model_type="gpt_oss", num_local_experts=32, num_experts_per_tok=4,
                quantization_config={"quant_method": "mxfp4"})  # fmt: skip
#: Configurations as published on Hugging Face, and the parameters that their pages give, in 10^9.
PUBLISHED = {
    "Llama-3.2-1B": (sizes(128256, 2048, 16, 32, 8, 8192, model_type="llama", tie_word_embeddings=True), 1.24),
    "Llama-2-7B": (LLAMA2, 6.74),
    "Llama-3.1-8B": (LLAMA3, 8.03),
    "Qwen2.5-7B": (sizes(152064, 3584, 28, 28, 4, 18944, model_type="qwen2"), 7.62),
    "Qwen3-8B": (sizes(151936, 4096, 36, 32, 8, 12288, model_type="qwen3"), 8.19),
    "Mistral-7B": (MISTRAL, 7.24),
    "Mixtral-8x7B": ({**MISTRAL, "model_type": "mixtral"}, 46.7),
    "Phi-3-mini": (sizes(32064, 3072, 32, 32, 32, 8192, model_type="phi3"), 3.82),
    "Gemma-2-2b": (sizes(256000, 2304, 26, 8, 4, 9216, model_type="gemma2", sliding_window=4096), 2.61),
    "Gemma-2b": (sizes(256000, 2048, 18, 8, 1, 16384, model_type="gemma"), 2.51),
    "Qwen3-30B-A3B": (
        sizes(151936, 2048, 48, 32, 4, 6144, model_type="qwen3_moe", head_dim=128, moe_intermediate_size=768,
              num_experts=128, num_experts_per_tok=8), 30.5,
    ),
    "Qwen1.5-MoE-A2.7B": (
        sizes(151936, 2048, 24, 16, 16, 5632, model_type="qwen2_moe", moe_intermediate_size=1408, num_experts=60,
              num_experts_per_tok=4, shared_expert_intermediate_size=5632), 14.3,
    ),
    "DeepSeek-V2-Lite": (
        sizes(102400, 2048, 27, 16, 16, 10944, model_type="deepseek_v2", moe_intermediate_size=1408, q_lora_rank=None,
              n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, first_k_dense_replace=1, **LATENT), 15.7,
    ),
    "DeepSeek-V3": (
        sizes(129280, 7168, 61, 128, 128, 18432, model_type="deepseek_v3", moe_intermediate_size=2048, q_lora_rank=1536,
              n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=3, **LATENT), 671,
    ),
    "deepseek-moe-16b": (
        sizes(102400, 2048, 28, 16, 16, 10944, model_type="deepseek", moe_intermediate_size=1408, n_routed_experts=64,
              n_shared_experts=2, num_experts_per_tok=6, first_k_dense_replace=1), 16.4,
    ),
    "Gemma-3-4b": (  # its text decoder; the file leaves out what transformers' configuration has by default
        {"model_type": "gemma3", "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024,
        }}, 3.88,
    ),
    "Mistral-Small-3.1": (
        {"model_type": "mistral3", "text_config": sizes(131072, 5120, 40, 32, 8, 32768, model_type="mistral",
                                                        head_dim=128)}, 23.57,
    ),
    "Llama-4-Scout": (
        {"model_type": "llama4", "text_config": sizes(
            202048, 5120, 48, 40, 8, 8192, model_type="llama4_text", intermediate_size_mlp=16384, use_qk_norm=True,
            num_local_experts=16, num_experts_per_tok=1, interleave_moe_layer_step=1)}, 107.8,
    ),
    "Llama-4-Maverick": (
        sizes(202048, 5120, 48, 40, 8, 8192, model_type="llama4_text", intermediate_size_mlp=16384,
              num_local_experts=128, num_experts_per_tok=1, interleave_moe_layer_step=2), 400.7,
    ),
    "gpt-oss-20b": (GPT_OSS, 20.9),
    "gpt-oss-120b": ({**GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128}, 116.8),
    "GLM-4-9B-0414": (sizes(151552, 4096, 40, 32, 2, 13696, model_type="glm4", head_dim=128), 9.4),
    "Llama-3.1-70B": (sizes(128256, 8192, 80, 64, 8, 28672, model_type="llama"), 70.55),
    "Llama-3.1-405B": (sizes(128256, 16384, 126, 128, 8, 53248, model_type="llama"), 405.85),
    "Qwen2.5-0.5B": (sizes(151936, 896, 24, 14, 2, 4864, model_type="qwen2", tie_word_embeddings=True), 0.494),
    "Qwen2.5-14B": (sizes(152064, 5120, 48, 40, 8, 13824, model_type="qwen2"), 14.77),
    "Qwen2.5-72B": (sizes(152064, 8192, 80, 64, 8, 29568, model_type="qwen2"), 72.7),
    "Qwen3-32B": (sizes(151936, 5120, 64, 64, 8, 25600, model_type="qwen3"), 32.76),
    "Qwen3-235B-A22B": (
        sizes(151936, 4096, 94, 64, 4, 12288, model_type="qwen3_moe", head_dim=128, moe_intermediate_size=1536), 235.1,
    ),
    "Mixtral-8x22B": (sizes(32768, 6144, 56, 48, 8, 16384, model_type="mixtral"), 140.6),
    "Mistral-Nemo": (sizes(131072, 5120, 40, 32, 8, 14336, model_type="mistral", head_dim=128), 12.25),
    "Mistral-Large-2": (sizes(32768, 12288, 88, 96, 8, 28672, model_type="mistral"), 122.6),
    "Ministral-3-8B": (
        {"model_type": "mistral3", "text_config": sizes(131072, 4096, 34, 32, 8, 14336, model_type="ministral3")}, 8.49,
    ),
    "Phi-4": (sizes(100352, 5120, 40, 40, 10, 17920, model_type="phi3"), 14.66),
    "Gemma-2-9b": (sizes(256000, 3584, 42, 16, 8, 14336, model_type="gemma2"), 9.24),
    "Gemma-2-27b": (sizes(256000, 4608, 46, 32, 16, 36864, model_type="gemma2", head_dim=128), 27.23),
    "Gemma-3-1b": (sizes(262144, 1152, 26, 4, 1, 6912, model_type="gemma3_text"), 1.0),
    "DeepSeek-V2": (
        sizes(102400, 5120, 60, 128, 128, 12288, model_type="deepseek_v2", moe_intermediate_size=1536, q_lora_rank=1536,
              n_routed_experts=160, n_shared_experts=2, num_experts_per_tok=6, first_k_dense_replace=1, **LATENT),
        235.7,
    ),
    "Gemma-4-31B": (
        {"model_type": "gemma4", "text_config": sizes(
            262144, 5376, 60, 32, 16, 21504, model_type="gemma4_text", hidden_size_per_layer_input=0,
            attention_k_eq_v=True, num_global_key_value_heads=4)}, 30.7,
    ),
    "Gemma-4-26B-A4B": (
        sizes(262144, 2816, 30, 16, 8, 2112, model_type="gemma4_text", hidden_size_per_layer_input=0,
              attention_k_eq_v=True, num_global_key_value_heads=2, enable_moe_block=True, num_experts=128,
              top_k_experts=8, moe_intermediate_size=704), 25.2,
    ),
    "DeepSeek-V3.2": (
        sizes(129280, 7168, 61, 128, 128, 18432, model_type="deepseek_v32", q_lora_rank=1536, **LATENT), 671.9,
    ),
    "GLM-5": (
        sizes(154880, 6144, 78, 64, 64, 12288, model_type="glm_moe_dsa", q_lora_rank=2048, kv_lora_rank=512,
              qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256), 744,
    ),
    "Kimi-K2": (
        sizes(163840, 7168, 61, 64, 64, 18432, model_type="kimi_k2", moe_intermediate_size=2048, q_lora_rank=1536,
              n_routed_experts=384, n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=1, **LATENT),
        1026.4,
    ),
    "GPT-2": ({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}, 0.1244),
    "GPT-2-XL": ({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 1600, "n_layer": 48, "n_head": 25}, 1.558),
    "StarCoder": (
        {"model_type": "gpt_bigcode", "vocab_size": 49152, "n_embd": 6144, "n_layer": 40, "n_head": 48,
         "n_inner": 24576, "n_positions": 8192}, 15.5,
    ),
    "OPT-6.7B": (
        {"model_type": "opt", "vocab_size": 50272, "hidden_size": 4096, "num_hidden_layers": 32, "ffn_dim": 16384,
         "num_attention_heads": 32, "max_position_embeddings": 2048, "word_embed_proj_dim": 4096}, 6.658,
    ),
    "Falcon-7B": (
        {"model_type": "falcon", "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
         "num_attention_heads": 71, "num_kv_heads": 71}, 6.92,
    ),
    "Falcon-40B": (
        {"model_type": "falcon", "vocab_size": 65024, "hidden_size": 8192, "num_hidden_layers": 60,
         "num_attention_heads": 128, "num_kv_heads": 8, "new_decoder_architecture": True}, 41.3,
    ),
    "Pythia-6.9B": (sizes(50432, 4096, 32, 32, 32, 16384, model_type="gpt_neox"), 6.857),
    "GPT-NeoX-20B": (sizes(50432, 6144, 44, 64, 64, 24576, model_type="gpt_neox"), 20.55),
    "Phi-1.5": (sizes(51200, 2048, 24, 32, 32, 8192, model_type="phi"), 1.418),
    "Phi-2": (sizes(51200, 2560, 32, 32, 32, 10240, model_type="phi", partial_rotary_factor=0.4), 2.78),
    "Phi-3.5-MoE": (
        sizes(32064, 4096, 32, 32, 8, 6400, model_type="phimoe", attention_bias=True, lm_head_bias=True), 41.87,
    ),
    "StarCoder2-3B": (sizes(49152, 3072, 30, 24, 2, 12288, model_type="starcoder2"), 3.03),
    "StarCoder2-7B": (sizes(49152, 4608, 32, 36, 4, 18432, model_type="starcoder2"), 7.174),
    "StableLM-3B": (sizes(50304, 2560, 32, 32, 32, 6912, model_type="stablelm"), 2.795),
    "Command-R": (sizes(256000, 8192, 40, 64, 64, 22528, model_type="cohere"), 34.98),
    "Command-R7B": (sizes(256000, 4096, 32, 32, 8, 14336, model_type="cohere2"), 8.03),
    "Command-A": (sizes(256000, 12288, 64, 96, 8, 36864, model_type="cohere2"), 111.06),
    "Minitron-4B": (sizes(256000, 3072, 32, 24, 8, 9216, model_type="nemotron", head_dim=128), 4.19),
    "Granite-3.1-2B": (sizes(49155, 2048, 40, 32, 8, 8192, model_type="granite", tie_word_embeddings=True), 2.53),
    "Granite-3.1-8B": (sizes(49155, 4096, 40, 32, 8, 12800, model_type="granite", tie_word_embeddings=True), 8.17),
    "Granite-3.1-3B-A800M": (
        sizes(49155, 1536, 32, 24, 8, 512, model_type="granitemoe", num_local_experts=40, num_experts_per_tok=8,
              tie_word_embeddings=True), 3.3,
    ),
    "OLMo-2-7B": (sizes(100352, 4096, 32, 32, 32, 11008, model_type="olmo2"), 7.3),
    "OLMo-2-13B": (sizes(100352, 5120, 40, 40, 40, 13824, model_type="olmo2"), 13.72),
    "OLMo-3-7B": (sizes(100278, 4096, 32, 32, 32, 11008, model_type="olmo3"), 7.3),
    "OLMoE-1B-7B": (sizes(50304, 2048, 16, 16, 16, 1024, model_type="olmoe"), 6.92),
    "EXAONE-3.5-7.8B": (
        {"model_type": "exaone", "vocab_size": 102400, "hidden_size": 4096, "num_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "activation_function": "silu"}, 7.82,
    ),
    "EXAONE-4.0-32B": (
        sizes(102400, 5120, 64, 40, 8, 27392, model_type="exaone4", sliding_window_pattern="LLLG"), 32.0,
    ),
    "SmolLM3-3B": (sizes(128256, 2048, 36, 16, 4, 11008, model_type="smollm3"), 3.08),
    "Seed-OSS-36B": (sizes(155136, 5120, 64, 80, 8, 27648, model_type="seed_oss"), 36.15),
    "ERNIE-4.5-0.3B": (sizes(103424, 1024, 18, 16, 2, 3072, model_type="ernie4_5"), 0.361),
    "ERNIE-4.5-21B-A3B": (
        sizes(103424, 2560, 28, 20, 4, 12288, model_type="ernie4_5_moe", moe_intermediate_size=1536), 21.83,
    ),
    "Qwen3-Next-80B-A3B": (sizes(151936, 2048, 48, 16, 2, 5632, model_type="qwen3_next"), 79.67),
    "Qwen3.5-9B": ({"model_type": "qwen3_5", "text_config": sizes(248320, 4096, 32, 16, 4, 12288)}, 8.95),
    "Qwen3.5-27B": (
        sizes(248320, 5120, 64, 24, 4, 17408, model_type="qwen3_5_text", linear_num_value_heads=48), 26.9,
    ),
    "Qwen3.5-35B-A3B": (sizes(248320, 2048, 40, 16, 2, 512, model_type="qwen3_5_moe_text"), 34.66),
    "Mamba-2.8B": (
        {"model_type": "mamba", "vocab_size": 50280, "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16,
         "tie_word_embeddings": True}, 2.77,
    ),
    "Mamba-Codestral-7B": (
        {"model_type": "mamba2", "vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "state_size": 128,
         "n_groups": 8, "num_heads": 128, "head_dim": 64}, 7.285,
    ),
    "Nemotron-Nano-9B-v2": (
        {"model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 4480, "num_hidden_layers": 56,
         "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
         "num_attention_heads": 40, "intermediate_size": 15680, "mamba_head_dim": 80}, 8.89,
    ),
    "Nemotron-3-Nano-30B-A3B": (
        {"model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 2688, "num_hidden_layers": 52,
         "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "num_attention_heads": 32,
         "num_key_value_heads": 2, "intermediate_size": 1856, "mamba_num_heads": 64, "n_routed_experts": 128,
         "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712}, 31.58,
    ),
    "Jamba-v0.1": (sizes(65536, 4096, 32, 32, 8, 14336, model_type="jamba"), 51.57),
    "Granite-4.0-H-Tiny": (
        {"model_type": "granitemoehybrid", "vocab_size": 100352, "hidden_size": 1536, "num_hidden_layers": 40,
         "num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 512, "num_local_experts": 64,
         "num_experts_per_tok": 6, "mamba_n_heads": 48, "mamba_d_state": 128, "tie_word_embeddings": True,
         "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)]}, 6.94,
    ),
    "MiniMax-M2": (sizes(200064, 3072, 62, 48, 8, 1536, model_type="minimax_m2"), 228.7),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "weights"),
    [*((n, None) for n in PUBLISHED), *((n, w) for n in [*PUBLISHED][::5] for w in ("int4", "int8"))],
)
def test_graphs_have_the_published_parameters(name: str, weights: str | None) -> None:
    given, billions = PUBLISHED[name]
    config = config_of(given)
    model = decoder(config, dtype="float16", weights=weights)
    assert parameters(model, config) == pytest.approx(1e9 * billions, rel=0.004)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PUBLISHED][::2])
def test_graphs_have_the_parameters_of_transformers(name: str) -> None:
    """Of its models without weights, for the types that it has: to a few scales that are folded into weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = PUBLISHED[name][0]
    text = {"model_type": given["model_type"], **given.get("text_config", given)}
    kind = {"kimi_k2": "deepseek_v3", "exaone": "llama", "qwen3_5": "qwen3_5_text"}.get(
        text["model_type"], text["model_type"]
    )
    if kind == "deepseek" or text.get("sliding_window_pattern") == "LLLG" or "num_layers" in text:
        pytest.skip("transformers has no such type, or does not take all names of its keys")
    sizes = {key: value for key, value in text.items() if key not in ("model_type", "quantization_config")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
    count = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
    config = config_of(given)
    assert parameters(decoder(config, dtype="float16"), config) == pytest.approx(count, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen2.5-7B", "Gemma-2-2b"])
def test_a_decode_step_has_two_flops_for_each_parameter(name: str) -> None:
    """And 4 heads head_dim for each token of context; but the embedding is looked up, not multiplied."""
    config, context = config_of(PUBLISHED[name][0]), 1000
    model = decoder(config, dtype="float16")
    dims = {"batch_size": 1, "sequence_length": 1, "total_sequence_length": context, "max_sequence_length": 2048}
    run = run_of(Request(model, dims=dims), "h100")
    flops = sum(k.repeat * k.work.matrix_flops for k in run.kernels.rows)
    multiplied = parameters(model, config) - (0 if config.tied else config.vocab * config.hidden)
    attention = 4 * config.layers * config.heads * config.head_dim * context
    assert flops == pytest.approx(2 * multiplied + attention, rel=0.002)
    cache = sum(t.bytes for t in run.typed_graph.inputs if t.name.startswith("past"))
    assert cache == 2 * 2048 * config.cache_elements()


@pytest.mark.parametrize("name", ["Mixtral-8x7B", "deepseek-moe-16b"])
def test_a_mixture_multiplies_by_the_experts_that_are_taken(name: str) -> None:
    c = config_of(PUBLISHED[name][0])
    model = decoder(c, dtype="float16")
    dims = {"batch_size": 1, "sequence_length": 1, "total_sequence_length": 1, "max_sequence_length": 64}
    flops = sum(k.repeat * k.work.matrix_flops for k in run_of(Request(model, dims=dims), "h100").kernels.rows)
    idle = sum(c.sparse) * (c.experts - c.taken) * 3 * c.hidden * c.expert_inner
    assert flops == pytest.approx(2 * (parameters(model, c) - c.vocab * c.hidden - idle), rel=0.002)


@pytest.mark.parametrize("kind", [
    "llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "glm4", "gpt_oss", "llama4_text", "mixtral",
])  # fmt: skip
def test_onnx_accepts_the_graphs(kind: str) -> None:
    """With ONNX Runtime's norm, which it keeps under ai.onnx, where onnx knows none, in its own domain."""
    config = config_of({**TINY, **SMALL_LATENT, "model_type": kind, "head_dim": 16})
    accepted(decoder(config, dtype="float16", prune_head=True))


def accepted(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "SimplifiedLayerNormalization":
            node.domain = "com.microsoft"
    model.graph.initializer.extend(())
    for t in model.graph.initializer:
        if t.data_location == onnx.TensorProto.EXTERNAL:
            size = int(np.prod(t.dims)) * {onnx.TensorProto.FLOAT16: 2, onnx.TensorProto.UINT8: 1}[t.data_type]
            t.ClearField("external_data")
            t.data_location, t.raw_data = onnx.TensorProto.DEFAULT, bytes(size)
    onnx.checker.check_model(model)


def filled(model: onnx.ModelProto) -> None:
    """Give the weights of a model values at random."""
    rng = np.random.default_rng(0)
    for t in model.graph.initializer:
        if t.data_location == onnx.TensorProto.EXTERNAL:
            whole = t.data_type == onnx.TensorProto.UINT8
            values = rng.integers(0, 256, t.dims, np.uint8) if whole else rng.normal(0, 0.1, t.dims).astype(np.float32)
            t.CopyFrom(onnx.numpy_helper.from_array(values, t.name))


@pytest.mark.parametrize("weights", [None, "int4", "int8"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma3_text", "gpt_oss"])
@pytest.mark.slow
def test_onnx_runtime_runs_the_graphs(kind: str, weights: str | None) -> None:
    """On its CPU provider, where there are kernels: a prompt gives finite logits, and writes the cache in place."""
    ort = pytest.importorskip("onnxruntime")
    model = decoder(config_of({**TINY, "model_type": kind, "head_dim": 16}), dtype="float32", weights=weights)
    filled(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    shapes = {i.name: i.shape for i in session.get_inputs()}
    feeds = {n: np.zeros((2, 2, 32, 16), np.float32) for n in shapes if n.startswith("past")}
    feeds |= {"input_ids": np.ones((2, 5), np.int64), "attention_mask": np.ones((2, 5), np.int64)}
    logits, *caches = session.run(None, feeds)
    assert logits.shape == (2, 5, 96) and np.isfinite(logits).all() and np.abs(logits).max() > 0
    assert all(c.shape == (2, 2, 32, 16) for c in caches)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt_oss"])
def test_onnx_runtime_keeps_keys_and_values_in_8_bits(kind: str) -> None:
    """A prompt and a token after it give nearly the logits that they give with a cache in full precision."""
    ort = pytest.importorskip("onnxruntime")
    found, config = {}, config_of({**TINY, "model_type": kind, "head_dim": 16})
    for cache, dtype in ((None, np.float32), ("int8", np.int8)):
        model = decoder(config, dtype="float32", cache=cache)
        filled(model)
        for t in model.graph.initializer:
            if t.name.endswith(("k_scale", "v_scale")):
                t.CopyFrom(onnx.numpy_helper.from_array(np.array([0.01], np.float32), t.name))
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs() if i.name.startswith("past")]
        caches = [np.zeros((1, 2, 32, 16), dtype) for _ in names]
        for past, new in ((0, 5), (5, 1)):
            feeds = dict(zip(names, caches, strict=True))
            ids, mask = np.arange(past, past + new)[None], np.ones((1, past + new), np.int64)
            found[cache], *caches = session.run(None, {**feeds, "input_ids": ids, "attention_mask": mask})
        assert {c.dtype for c in caches} == {np.dtype(dtype)} and all(c[:, :, :6].any() for c in caches)
    np.testing.assert_allclose(found["int8"], found[None], atol=0.02 * np.abs(found[None]).max())
    assert (found["int8"] != found[None]).any()


@pytest.mark.parametrize(("kind", "cache"), [("llama", "fp8"), ("gpt_oss", "int8")])
def test_a_cache_of_8_bits_is_one_that_onnx_runtime_has_kernels_for(kind: str, cache: str) -> None:
    """Its CUDA provider, in half precision; and --precision changes neither caches nor their scales."""
    given = {**TINY, "model_type": kind, "head_dim": 16, "torch_dtype": "float16"}
    accepted(decoder(config_of(given), dtype="float16", cache=cache))
    for precision in ("keep", "bf16"):
        g = onnxperf.llm(config=given, gpu="h100", prompt=8, output=4, cache=cache, precision=precision)
        assert g.cache_bytes_per_token == config_of(given).cache_elements()
        assert not any("GroupQueryAttention" in note for note in g.notes)
    with pytest.raises(UsageError, match="a cache of 'fp4' is not known: it is fp8 or int8"):
        decoder(config_of(given), dtype="float16", cache="fp4")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": None}, ": has no model_type; known are cohere, "),
        ({"model_type": "gpt9"}, "'gpt9' is not known; known are cohere, cohere2, deepseek"),
        ({"model_type": "lama"}, "did you mean llama"),
        ({"model_type": "qwen3_6_text"}, "'qwen3_6_text' is not known; known"),
        ({"model_type": "qwen4_next"}, "'qwen4_next' is not known; known"),
        ({"model_type": "qwen3_next", "linear_num_value_heads": 3}, "linear_num_value_heads must be a multiple of 16"),
        ({"model_type": "jamba", "layers_block_type": ["mlp", "mamba"]}, "layers_block_type must be 2 of full_att"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-?"}, "hybrid_override_pattern must be 2 of full"),
        ({"model_type": "mamba2", "n_groups": 3}, "n_groups must be a divisor of 128 heads"),
        ({"model_type": "gemma9"}, "'gemma9' is not known; known"),
        ({"model_type": "mamba3"}, "'mamba3' is not known; known"),
        ({"model_type": "falcon_mamba"}, "'falcon_mamba' is not known; known"),
        ({"model_type": "olmo_hybrid"}, "'olmo_hybrid' is not known; known"),
        ({"model_type": "granite_swa"}, "'granite_swa' is not known; known"),
        ({"model_type": "qwen4_moe"}, "'qwen4_moe' is not known; known"),
        ({"model_type": "qwen3moe"}, "'qwen3moe' is not known; known"),
        ({"model_type": "starcoder"}, "'starcoder' is not known; known"),
        ({"model_type": "granit"}, "did you mean granite"),
        ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before is False, of which no graph"),
        ({"model_type": "opt", "word_embed_proj_dim": 32}, "word_embed_proj_dim is 32, of which no graph"),
        ({"model_type": "falcon", "alibi": True}, "alibi is True, of which no graph"),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 0}}, "hidden_size must be a whole number"),
        ({"model_type": "deepseek_v3"}, "qk_nope_head_dim must be a whole number"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number from 1 to 256"),
        ({"num_key_value_heads": 3}, "can't share 3 heads"),
        (
            {"num_attention_heads": 3, "num_key_value_heads": 3},
            "hidden_size 64 is not a multiple of num_attention_heads 3, and there is no head_dim",
        ),
        ({"hidden_act": "swiglu9"}, "activation 'swiglu9' is not known"),
        ({"torch_dtype": "float64"}, "torch_dtype 'float64' is not known"),
        ({"layer_types": ["full_attention"]}, "layer_types must be 2 of full_attention, sliding_attention"),
        ({"layer_types": [["full_attention"], {}]}, "layer_types must be 2 of"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "a token can't take 9 experts .* of 8"),
        (
            {
                "model_type": "qwen3_moe",
                "mlp_only_layers": 3,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 8,
            },
            "mlp_only_layers must be a list of layers",
        ),
    ],
)
def test_wrong_configurations_say_what_is_wrong(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        config_of({**TINY, **change})


@pytest.mark.slow
def test_no_type_of_transformers_is_taken_for_another() -> None:
    """Whoever asks for an architecture that is not known is not led to one that is."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    for kind in {*CONFIG_MAPPING_NAMES, *(f"{kind}_text" for kind in CONFIG_MAPPING_NAMES)}:
        if kind not in {*FAMILIES, *SAME}:
            with pytest.raises(UsageError, match=r"is not known; known are"):
                config_of({**TINY, "model_type": kind})


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a": "' + "x" * (1 << 20) + '"}'])
def test_files_that_are_no_configuration_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(path)
    with pytest.raises(UsageError, match="no such file"):
        read_config(tmp_path / "missing.json")
    with pytest.raises(UsageError, match="can't read"):
        read_config(tmp_path)
    path.write_text(json.dumps(TINY))
    assert read_config(path) == config_of(TINY)


def test_heads_of_another_width_need_no_multiple() -> None:
    assert config_of({**TINY, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16}).head_dim == 16


@pytest.mark.parametrize("engine", ["ort-genai", "vllm"])
def test_what_a_configuration_does_not_say_is_told(engine: str) -> None:
    """Where the limit on contexts is passed, no file is said to have set it."""
    silent = {key: value for key, value in TINY.items() if key not in ("torch_dtype", "max_position_embeddings")}
    asked: dict[str, Any] = {"gpu": "l4", "prompt": 64, "output": 8, "engine": engine}
    limit = "the configuration has no max_position_embeddings: up to 4,096 tokens are taken for a llama model"
    untyped = "the configuration has no torch_dtype: float16 is taken, and --precision says another"
    assert {limit, untyped} <= {*onnxperf.llm(config=silent, **asked).notes}
    said = {**silent, "max_position_embeddings": 128, "torch_dtype": "float16"}
    assert not {limit, untyped} & {*onnxperf.llm(config=said, **asked).notes}
    assert untyped not in onnxperf.llm(config=silent, precision="bf16", **asked).notes
    with pytest.raises(UsageError, match=rf"come to 4,096 \+ 8 tokens, but {limit}"):
        onnxperf.llm(config=silent, **{**asked, "prompt": 4096})
    with pytest.raises(UsageError, match=r"come to 200 \+ 8 tokens, but the model was made for 128"):
        onnxperf.llm(config=said, **{**asked, "prompt": 200})


@pytest.mark.slow
def test_contexts_are_as_long_by_default_as_in_transformers() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    for kind in CONFIG_MAPPING_NAMES.keys() & FAMILIES.keys() - {"mamba", "mamba2"}:
        theirs = CONFIG_MAPPING[kind]()
        longest = getattr(theirs, "n_positions", None) or theirs.max_position_embeddings
        assert FAMILIES[kind].get("max_position_embeddings", POSITIONS) == longest, kind


@pytest.mark.parametrize("engine", ["ort-genai", "vllm"])
def test_weights_in_a_format_that_nobody_knows_are_told(engine: str) -> None:
    quantised = {**TINY, "quantization_config": {"quant_method": "bits9"}}
    asked: dict[str, Any] = {"gpu": "l4", "prompt": 16, "output": 8, "engine": engine}
    told = "the configuration stores weights as bits9: here they are "
    assert any(note.startswith(told) for note in onnxperf.llm(config=quantised, **asked).notes)
    assert not any(note.startswith(told) for note in onnxperf.llm(config=quantised, **asked, weights="int4").notes)


def test_windows_are_those_of_the_family() -> None:
    def windows(**more: Any) -> list[int]:
        model = decoder(config_of({**TINY, "sliding_window": 8, **more}), dtype="float16")
        nodes = [n for n in model.graph.node if n.op_type == "GroupQueryAttention"]
        return [a.i for n in nodes for a in n.attribute if a.name == "local_window_size"]

    assert windows(model_type="mistral") == [8, 8]
    assert windows(model_type="gemma2") == [8, -1]
    assert windows(model_type="qwen2") == [-1, -1]
    qwen = {"model_type": "qwen2", "use_sliding_window": True}
    assert windows(**qwen) == [-1, -1]  # transformers' max_window_layers is 28
    assert windows(**qwen, max_window_layers=0) == [8, 8]
    assert windows(**qwen, max_window_layers=1) == [-1, 8]
    assert windows(**qwen, layer_types=["sliding_attention", "full_attention"]) == [8, -1]
    assert windows(model_type="mistral", sliding_window=None) == [-1, -1]
    assert windows(model_type="gemma3_text", num_hidden_layers=7) == [8, 8, 8, 8, 8, -1, 8]
    assert windows(model_type="gemma3_text", num_hidden_layers=3, sliding_window_pattern=2) == [8, -1, 8]
    assert windows(model_type="gpt_oss") == [8, -1]
    assert windows(model_type="llama4_text", num_hidden_layers=4, attention_chunk_size=16) == [16, 16, 16, -1]
    assert windows(model_type="gemma2", layer_types=["full_attention", "sliding_attention"]) == [-1, 8]
    assert config_of({**{k: v for k, v in TINY.items() if k != "sliding_window"}, "model_type": "mistral"}).windows == (
        4096, 4096,
    )  # fmt: skip


def test_null_is_none_of_it_whatever_the_family_has() -> None:
    """A gemma-2 without caps says null, where a file that leaves the key out has the family's cap."""
    usual, without = ({**TINY, "model_type": "gemma2", **more} for more in ({}, {"attn_logit_softcapping": None}))
    assert (config_of(usual).softcap, config_of(without).softcap) == (50.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen3_moe", {"decoder_sparse_step": 2}),
        ("qwen3_moe", {"mlp_only_layers": [0, 2]}),
        ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3], "shared_expert_intermediate_size": 32}),
        ("qwen2_moe", {"shared_expert_intermediate_size": 32}),
    ],
)
def test_layers_have_experts_where_transformers_gives_them_some(kind: str, more: dict[str, Any]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    given = {**TINY, "model_type": kind, "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2,
             "moe_intermediate_size": 32, "head_dim": 16, **more}  # fmt: skip
    of_type = {k: v for k, v in given.items() if k not in ("model_type", "torch_dtype")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **of_type))
    theirs = tuple(hasattr(layer.mlp, "experts") for layer in model.model.layers)
    assert config_of(given).sparse == theirs
    nodes = {n.name for n in decoder(config_of(given), dtype="float16").graph.node if n.op_type == "MoE"}
    assert nodes == {f"/model/layers.{i}/moe" for i, sparse in enumerate(theirs) if sparse}


def test_layers_without_experts_are_those_of_the_configuration() -> None:
    def sparse(**more: Any) -> tuple[bool, ...]:
        experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
        return config_of({**TINY, **experts, "num_hidden_layers": 4, **more}).sparse

    assert sparse(model_type="llama4_text", interleave_moe_layer_step=2) == (False, True, False, True)
    assert sparse(model_type="glm4_moe", n_routed_experts=4, first_k_dense_replace=1) == (False, True, True, True)


def test_weights_that_are_stored_in_fewer_bits_are_taken_or_told() -> None:
    experts = decoder(config_of(GPT_OSS), dtype="bfloat16")
    assert {n.op_type for n in experts.graph.node if "MoE" in n.op_type} == {"QMoE"}
    given = {**TINY, "quantization_config": {"quant_method": "fp8"}}
    sizes = {"prompt": 8, "output": 4, "gpu": "l4"}
    assert any("stores weights as fp8" in note for note in onnxperf.llm(config=given, **sizes).notes)
    for config, more in ((TINY, {}), (given, {"weights": "int4"})):
        assert not any("stores weights" in note for note in onnxperf.llm(config=config, **sizes, **more).notes)


def test_the_package_offers_it() -> None:
    assert "llm" in onnxperf.__all__ and callable(onnxperf.llm)
