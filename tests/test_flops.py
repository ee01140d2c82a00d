"""FLOPs of the samples and of small models of many architectures against torch's own counter, whatever the runtime
makes of the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from onnxperf.graph import Graph, load
from onnxperf.lowering.lower import lower
from onnxperf.passes.precision import precision
from onnxperf.runtimes import LEVELS, RUNTIMES, Runtime, run_graph
from tests.runtimes.conftest import EVERY, TODAYS, ways
from tests.zoo import COUNTED, SAMPLES, sizes, zoo

__all__ = ["zoo"]  # a fixture


def flops(graph: Graph, runtime: Runtime = RUNTIMES["ort-cuda"], level: str = "all") -> int:
    return sum(k.work.matrix_flops for k in lower(run_graph(graph, runtime, LEVELS[level]), runtime).rows)


def sample(name: str) -> Graph:
    """The sample at the size it is counted at."""
    path = SAMPLES / f"{name}.onnx"
    return load(path, dims=sizes(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-base", "gpt2", "lstm", "resnet50", "vit-base-16", "yolox-s"])
def test_torch_counts_the_same(zoo: ModuleType, name: str) -> None:
    assert flops(sample(name)) == pytest.approx(zoo.export.matrix_flops(zoo.SAMPLES[name]), rel=1e-3)


#: Samples of which another has the same operators, only fewer of them.
LARGER = {"roberta-large": "roberta-base", "gpt2-large": "gpt3-xl", "gpt3-2.7b": "gpt3-xl"}


LAST = ("all",)


@pytest.mark.slow
@pytest.mark.parametrize(("i", "name"), [*enumerate(n for n in COUNTED if n not in LARGER)])
def test_every_level_runtime_and_type_has_the_same_products(i: int, name: str) -> None:
    """Of four samples one in older releases, one in half precision, one at each level: each of these changes operators
    that many samples share.
    """
    graph = sample(name)
    runtimes = EVERY if i % 4 == 0 else TODAYS
    counts = {flops(graph, runtime, level) for runtime in runtimes for level in (ways(runtime) if i % 4 == 2 else LAST)}
    if i % 4 == 1:
        half = precision(graph, "fp16")
        counts |= {flops(half, runtime) for runtime in TODAYS}
    counts.add(flops(precision(graph, "int8")))
    assert len(counts) == 1
    assert counts.pop() == pytest.approx(COUNTED[name]["matrix_flops"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "smaller"), LARGER.items())
def test_a_larger_model_has_the_operators_of_a_smaller_one_and_its_own_count(name: str, smaller: str) -> None:
    graph = sample(name)
    assert {(o.type, o.version) for o in graph.operators} == {(o.type, o.version) for o in sample(smaller).operators}
    assert flops(graph) == pytest.approx(COUNTED[name]["matrix_flops"], rel=1e-3)


def test_levels_with_the_same_rules_run_the_same_operators() -> None:
    graph = load(SAMPLES / "distilbert-dynamic.onnx", dims={"batch": 1, "sequence": 16})
    for runtime in TODAYS:
        runs = {level: [o.type for o in run_graph(graph, runtime, n).operators] for level, n in LEVELS.items()}
        assert [*runs] == [*LEVELS] and all(runs[level] in [runs[way] for way in ways(runtime)] for level in runs)
    assert [len(ways(RUNTIMES[r])) for r in ("ort-cuda", "ort-cpu", "torch-eager")] == [3, 4, 1]


#: As published, or as TensorFlow's profiler counts them (samples/make_keras.py).
MULTIPLY_ADDS = {
    "resnet50": 4.089, "mobilenetv2": 0.3008, "keras-resnet50": 3.858, "keras-mobilenetv2": 0.3008,
    "keras-efficientnetb0": 0.3858, "keras-densenet121": 2.834, "keras-inceptionv3": 5.713, "keras-vgg16": 15.47,
    "alexnet": 0.7142,
}  # fmt: skip


@pytest.mark.parametrize(("name", "gmacs"), MULTIPLY_ADDS.items())
def test_published_multiply_adds(name: str, gmacs: float) -> None:
    assert flops(sample(name)) / 2e9 == pytest.approx(gmacs, rel=2e-4)


EAGER = {"attn_implementation": "eager"}  # torch counts no fused attention on the host
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
WORDS = {"vocab_size": 96, "use_cache": False, **EAGER}
GROUPED = {**SMALL, **WORDS, "num_key_value_heads": 1}
TOKENS, IMAGE = {"input_ids": (1, 16)}, {"pixel_values": (1, 3, 64, 64)}
PATCHES = {"image_size": 64, "patch_size": 16}
CLIP = {"text_config": {**SMALL, "vocab_size": 96}, "vision_config": {**SMALL, **PATCHES}, "projection_dim": 24}

#: Model class, configuration class, its fields, and the shapes of the inputs: the library's own code at small sizes.
#: ViT is a part of CLIP; ResNet and MobileNetV2 are samples, which torch counts as a whole.
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "bert": ("BertModel", "BertConfig", {**SMALL, **WORDS}, TOKENS),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 32, "n_layer": 1, "n_head": 2, **WORDS}, TOKENS),
    "opt": (
        "OPTForCausalLM", "OPTConfig",
        {**SMALL, **WORDS, "ffn_dim": 48, "word_embed_proj_dim": 32}, TOKENS,
    ),
    "t5": (
        "T5Model", "T5Config", {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2, **WORDS},
        {**TOKENS, "decoder_input_ids": (1, 8)},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED, TOKENS),
    "mixtral": (
        "MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, TOKENS,
    ),
    "swin": (
        "SwinForImageClassification", "SwinConfig",
        {"image_size": 64, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4, **EAGER}, IMAGE,
    ),
    "convnext": (
        "ConvNextForImageClassification", "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, IMAGE,
    ),
    "clip": ("CLIPModel", "CLIPConfig", {**CLIP, **EAGER}, {**TOKENS, **IMAGE}),
    "whisper": (
        "models.whisper.modeling_whisper.WhisperEncoder", "WhisperConfig",
        {
            "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
            "num_mel_bins": 20, "max_source_positions": 50, **EAGER,
        },
        {"input_features": (1, 20, 100)},
    ),
}  # fmt: skip


def named(module: Any, name: str) -> Callable[..., Any]:
    """An attribute of a module by its dotted name."""
    for part in name.split("."):
        module = getattr(module, part)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_counts_as_in_torch(name: str) -> None:
    pytest.importorskip("onnxscript")
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    model, config, fields, shapes = ARCHITECTURES[name]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of libraries, about each other
        built = named(hf, model)(named(hf, config)(**fields)).eval()
        if name == "mixtral":
            built.set_experts_implementation("batched_mm")  # the one form that can be exported
        inputs = {
            k: torch.zeros(v, dtype=torch.long if k.endswith("ids") else torch.float32) for k, v in shapes.items()
        }
        with FlopCounterMode(display=False) as counter:
            built(**inputs)
        exported = torch.onnx.export(built, (), kwargs=inputs, dynamo=True, verbose=False, external_data=False)
    graph = load(exported.model_proto)
    counted = counter.get_total_flops()
    assert counted > 100_000
    for runtime, level in (("ort-cuda", "all"), ("ort-cuda", "disabled"), ("torch-eager", "all")):
        assert flops(graph, RUNTIMES[runtime], level) == pytest.approx(counted, rel=1e-3)
