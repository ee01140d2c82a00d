"""Formats of stored weights, against configurations as checkpoints have them."""

from __future__ import annotations

from typing import Any

import pytest

from onnxperf.export.decoder_quantised import FP8, Stored, module, stored
from onnxperf.ground.errors import UsageError

BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
W4 = {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True}
FLOATS8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16, "symmetric": True}


def compressed(weights: Any, inputs: Any, *ignore: str) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": [*ignore]}


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        (BLOCKS, Stored("fp8", 8, True, 128 * 128, 32, "fp8")),
        ({"quant_method": "fp8", "activation_scheme": "static"}, Stored("fp8", 8, True, 0, 32, "fp8")),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
            Stored("awq", 4, False, 128, 20),
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, Stored("gptq", 4, False, 128, 16)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True}, Stored("gptq", 8, False, 128, 16)),
        ({"quant_method": "mxfp4"}, Stored("mxfp4", 4, True, 32, 8, "", ("*.self_attn",))),
        (compressed(FLOATS8, FLOATS8, "lm_head"), Stored("compressed-tensors", 8, True, 0, 16, "fp8", ("lm_head",))),
        (compressed(W4, None), Stored("compressed-tensors", 4, False, 32, 16)),
        (compressed(NVFP4, NVFP4), Stored("compressed-tensors", 4, True, 16, 8, "fp4")),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
            Stored("nvfp4", 4, True, 16, 8, "fp4", ("lm_head",)),
        ),
        (
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
            Stored("fp8", 8, True, 0, 32, "fp8", ("lm_head",)),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
            Stored("fp8", 8, True, 0, 32, "fp8", cache="fp8"),
        ),
        (
            {**compressed(FLOATS8, FLOATS8), "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
            Stored("compressed-tensors", 8, True, 0, 16, "fp8", cache="fp8"),
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, None), ({}, None), (None, None), ("fp8", None),
        ({"quantization": "x", "producer": "y", "config_groups": 3, "ignore": {}}, None),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": 3}}}, None),
    ],
)  # fmt: skip
def test_formats(configuration: Any, expected: Stored | None) -> None:
    assert stored(configuration) == expected


def test_modules_have_the_names_of_checkpoints() -> None:
    assert [module(n) for n in (
        "/model/layers.1/attn/q_proj/MatMul", "/model/layers.1/moe", "/model/layers.1/moe/router/MatMul",
        "/model/layers.1/moe/shared_expert/gate_proj/MatMul", "/lm_head/MatMul", "/model/layers.3/mlp/down_proj/MatMul",
    )] == [
        "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.experts", "model.layers.1.mlp.gate",
        "model.layers.1.mlp.shared_experts.gate_proj", "lm_head", "model.layers.3.mlp.down_proj",
    ]  # fmt: skip


def test_what_is_excluded_keeps_16_bits() -> None:
    """The head and routers always; modules by name, by prefix, by pattern and by a simple regular expression."""
    q, experts, head = "/model/layers.1/attn/q_proj/MatMul", "/model/layers.1/moe", "/lm_head/MatMul"
    assert [FP8.excludes(n) for n in (q, experts, head, "/model/layers.1/moe/router/MatMul")] == [
        False,
        False,
        True,
        True,
    ]
    for name in ("model.layers.1.self_attn.q_proj", "model.layers.1", "model.layers.*.self_attn", "re:.*self_attn.*"):
        of = stored({**BLOCKS, "modules_to_not_convert": [name]})
        assert of is not None and of.excludes(q) and not of.excludes("/model/layers.2/mlp/down_proj/MatMul")


def test_hostile_patterns_cost_nothing_and_sizes_that_cannot_be_are_refused() -> None:
    of = stored({**BLOCKS, "ignore": ["re:" + ".*a" * 5000, "*" * 10_000, 5, None]})
    assert of is not None and not of.excludes("/model/layers.1/attn/q_proj/MatMul")
    for wrong in ({"bits": "4"}, {"bits": 64}, {"group_size": 1.5}, {"group_size": True}):
        with pytest.raises(UsageError, match="quantization_config must be a whole number"):
            stored({"quant_method": "awq", **wrong})
