"""What serving engines add to the kernels of a model."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

import onnxperf
from onnxperf.export.decoder_config import config_of
from onnxperf.ground.errors import UsageError
from onnxperf.ground.names import ENGINES as NAMES
from onnxperf.language.core import thinned, traffic
from onnxperf.language.engines import ENGINES
from onnxperf.language.generation import Lengths
from onnxperf.language.served import ERRORS, bare, joined
from onnxperf.language.steps import Steps
from onnxperf.running.pipeline import Request, find
from onnxperf.running.terms import as_terms
from tests.steps_once import steps_once

LLAMA = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 5632, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN = {**LLAMA, "model_type": "qwen3", "head_dim": 128}
EXPERTS = {
    **LLAMA, "model_type": "deepseek_v3", "num_key_value_heads": 16, "n_routed_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 512, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 128,
    "q_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
}  # fmt: skip
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}


def shared_file(name: str) -> Path:
    path = Path(__file__).parents[3] / "shared" / "data" / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path


def runs(config: Any, engine: str = "vllm", gpu: str = "h100", **terms: Any) -> Steps:
    steps, _ = steps_once(None, gpu, Request(b"", terms=as_terms(terms)), config, engine=engine)
    return steps.made_for(2000)


def test_every_engine_is_offered_and_the_usual_one_adds_nothing() -> None:
    assert tuple(ENGINES) == NAMES and all(e.name == name for name, e in ENGINES.items())
    usual = ENGINES["ort-genai"]
    assert (usual.reduce, usual.joined, usual.step_s, usual.mixed, usual.front_s) == (None, False, 0.0, True, 0.0)


def test_budgets_follow_the_memory_of_a_card() -> None:
    """vLLM gives a server 8192 new tokens an iteration from 70 GiB on, but on an A100; SGLang has five steps."""
    cards = ("h100", "a100-sxm-80gb", "l4")
    assert [ENGINES["vllm"].tokens(find(gpu)[0]) for gpu in cards] == [8192, 2048, 2048]
    cards = ("l4", "l40s", "h100", "h200", "b200-sxm")
    assert [ENGINES["sglang"].tokens(find(gpu)[0]) for gpu in cards] == [2048, 4096, 8192, 8192, 16384]
    assert ENGINES["trtllm"].tokens(find("l4")[0]) == 8192


def test_sglang_sets_memory_apart() -> None:
    """On an H100 of 81,559 MiB 13,440, which is its mem_fraction_static of .835 there; on four cards 512 requests."""
    h100 = find("h100-sxm")[0]
    assert ENGINES["sglang"].reserved(h100, 1) == (512 + 12288 + 512 + 128) * 2**20
    assert ENGINES["sglang"].reserved(h100, 4) == (512 + 12288 + 1024 + 512) * 2**20
    assert (
        ENGINES["sglang"].reserved(find("a100-sxm-80gb")[0], 1)
        >= 10 * 2**30
        > ENGINES["sglang"].reserved(find("l4")[0], 1)
    )


def test_an_all_reduce_takes_one_stage_or_two() -> None:
    """One stage reads n - 1 messages, two read 2 (n - 1) / n of one: these pay for large ones and many GPUs."""
    reduce, link = (
        replace(ENGINES["vllm"].reduce, hop_s=0.0, starts=((8, 5e-6), (9, 4e-6)), stage_s=1e-6, share=0.5),
        4e11,
    )
    assert reduce.seconds(100_000, 2, link, 9) == pytest.approx(4e-6 + 1e5 / 2e11)
    assert reduce.seconds(100_000, 8, link, 12) == pytest.approx(4e-6 + 7e5 / 2e11)
    assert reduce.seconds(10_000_000, 8, link, 9) == pytest.approx(4e-6 + 7e-6 + 2e7 * 7 / 8 / 2e11)


def test_measured_all_reduces_are_met() -> None:
    """Each engine's, of 256 B to 1 MiB on 2, 4 and 8 GPUs, in a CUDA graph: half of them within a tenth."""
    table = pytest.importorskip("pandas").read_parquet(shared_file("collectives/collectives.parquet"))
    table = table[(table.op == "all_reduce") & (table.bytes <= 1 << 20) & (table.dtype != "int8")]
    implementations = {"vllm": "vLLM_custom_graph", "sglang": "SGLang_CustomAllReduce_graph", "trtllm": "TRTLLM"}
    for name, implementation in implementations.items():
        rows = table[(table.impl == implementation) & table.gpu.isin(["a100_sxm", "h200_sxm", "b200_sxm"])]
        reduce = ENGINES[name].reduce
        assert reduce is not None and len(rows) > 90
        major = rows.gpu.map({"a100_sxm": 8, "h200_sxm": 9, "b200_sxm": 10})
        columns = zip(rows.bytes, rows.n_gpus, rows.link_GBs_unidir * 1e9, major, rows.latency_us, strict=True)
        errors = [abs(reduce.seconds(*shape) / us / 1e-6 - 1) for *shape, us in columns]
        assert sorted(errors)[len(errors) // 2] < 0.1


def test_products_that_read_the_same_are_one() -> None:
    """Queries, keys and values, gate and up, with the activation; norms of heads are elementwise."""
    run = replace(runs(QWEN), thin=None)._run(4, 1, 100)
    before, after = run.run_graph, joined(run.run_graph)
    products = [o for o in after.operators if o.type == "MatMul"]
    assert len([o for o in before.operators if o.type == "MatMul"]) == 12 * 7 + 1 and len(products) == 12 * 4 + 1
    assert {o.present[1].shape for o in products} == {
        (2048, 16 * 128 + 2 * 4 * 128), (2048, 2048), (2048, 2 * 5632), (5632, 2048), (2048, 32000)
    }  # fmt: skip
    assert not any("Gelu" in o.type or (o.type.startswith("Simplified") and o.out.rank == 4) for o in after.operators)
    made = {t.name for o in after.operators for t in o.outputs}
    assert all(t.stored or t.kind == "input" or t.name in made for o in after.operators for t in o.present)
    assert sum(t.bytes for t in stored_of(after)) == sum(t.bytes for t in stored_of(before))


def stored_of(graph: Any) -> list[Any]:
    return list({t.name: t for o in graph.operators for t in o.present if t.stored}.values())


def test_few_layers_tell_of_many() -> None:
    """The thin decoders of a run give its time within half a percent, and its bytes."""
    for config in (LLAMA, EXPERTS):
        steps = runs(config, precision="fp8")
        assert steps.thin is not None
        for run in ((8, 1, 1000), (1, 512, 0)):
            few, whole = steps.at(*run), replace(steps, thin=None, kept={}).at(*run)
            assert few.seconds == pytest.approx(whole.seconds, rel=0.005)
            assert few.memory.weights_bytes == whole.memory.weights_bytes


def test_periods_of_layers() -> None:
    less, more, times = thinned(config_of(LLAMA))
    assert (less.layers, more.layers, times) == (2, 3, 10)
    less, more, times = thinned(config_of(EXPERTS))
    assert (less.sparse, more.sparse, times) == ((False, True, True), (False, True, True, True), 9)
    every = {**LLAMA, "model_type": "gemma2", "num_hidden_layers": 13, "head_dim": 128}
    less, more, times = thinned(config_of(every))
    assert (less.layers, more.layers, times) == (5, 7, 4) and more.windows[:5] == less.windows


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        (LLAMA, 16.0), ({**LLAMA, "quantization_config": BLOCKS}, 8 + 32 / 128**2),
        ({**LLAMA, "quantization_config": AWQ}, 4 + 20 / 128), ({**LLAMA, "quantization_config": NVFP4}, 4 + 8 / 16),
    ],
)  # fmt: skip
@pytest.mark.parametrize("gpu", ["h100", "b200", "a100"])
def test_weights_are_stored_as_the_configuration_says(config: dict[str, Any], bits: float, gpu: str) -> None:
    """Products in few bits, with scales; the embedding, the head and norms in 16."""
    layer = 2048 * (2048 + 2 * 4 * 128 + 2048 + 3 * 5632)
    expected = 12 * layer * bits / 8 + 2 * 2 * 32000 * 2048
    assert runs(config, gpu=gpu).at(1, 1, 10).memory.weights_bytes == pytest.approx(expected, rel=0.01)


GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "num_experts_per_tok": 4, "attention_bias": True,
    "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
QWEN_7B = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944, "torch_dtype": "float16",
    "quantization_config": AWQ,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published"),
    [
        ({**GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128}, 60.8 * 2**30),  # arXiv:2508.10925, table 1
        ({**GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32}, 12.8 * 2**30),
        (QWEN_7B, 5.57e9),  # the two files of Qwen/Qwen2.5-7B-Instruct-AWQ
    ],
)
def test_checkpoints_have_their_published_bytes(config: dict[str, Any], published: float) -> None:
    assert runs(config).at(1, 1, 10).memory.weights_bytes == pytest.approx(published, rel=0.01)


def test_keys_and_values_are_kept_as_the_configuration_says() -> None:
    """Checkpoints of modelopt in FP8 keep them in 8 bits, half of what the activations have."""
    modelopt = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    halved = runs({**LLAMA, "quantization_config": modelopt})
    assert runs(LLAMA, precision="fp8").cache_bytes_per_token() == 2 * halved.cache_bytes_per_token()


def test_fp8_reads_half_and_leaves_the_head_and_attention() -> None:
    """Products read 8 bits at 8 bits' rate, without a kernel that quantises; lm_head and attention have 16."""
    steps = replace(runs(LLAMA, precision="fp8"), thin=None)
    half = replace(steps, stored=None, kept={})
    assert 0.5 < steps.at(1, 1, 10).seconds / half.at(1, 1, 10).seconds < 0.85
    rows = bare_rows(steps)
    assert {k.work.dtype for k in rows if k.op == "MatMul" and "lm_head" not in k.name} == {"float8e4m3fn"}
    assert {k.work.dtype for k in rows if "lm_head" in k.name or "Attention" in k.op} == {"bfloat16"}
    assert not any("Quantize" in k.op for k in rows)


def bare_rows(steps: Steps) -> Any:
    from onnxperf.language.quantised import quantised

    run = steps._run(1, 1, 10)
    return replace(run, placed=quantised(joined(run.run_graph), steps.stored, run.devices[0])).kernels.rows


def test_small_messages_take_the_engines_all_reduce() -> None:
    """Decode steps on 8 GPUs gain most of it; TensorRT-LLM's has the norm in it."""
    seconds = {}
    for name in ("vllm", "trtllm"):
        steps = runs(LLAMA, name, parallel="tp=4")
        run = steps._run(8, 1, 100)
        slow = bare([run], replace(steps.engine, reduce=None), None)[0].outline.seconds
        seconds[name] = bare([run], steps.engine, None)[0].outline.seconds
        assert 0.4 < seconds[name] / slow < 0.95
    assert seconds["trtllm"] < seconds["vllm"]
    alone = runs(LLAMA)
    run = alone._run(8, 1, 100)
    assert bare([run], alone.engine, None) == bare([run], replace(alone.engine, reduce=None), None)


def test_ranges_are_those_of_served_rows() -> None:
    """Of dense models and of experts, whatever the precision."""
    for config, width in ((LLAMA, ERRORS[False]), (EXPERTS, ERRORS[True])):
        for precision in ("bf16", "fp8"):
            o = runs(config, precision=precision).at(8, 1, 500)
            assert o.high_seconds / o.seconds == pytest.approx(exp(width))
            assert exp(-width) <= o.low_seconds / o.seconds * 1.001 < 1.001


def test_the_host_takes_its_part() -> None:
    steps = replace(runs(LLAMA, "trtllm"), kept={})
    e = steps.engine
    idle = replace(steps, engine=replace(e, step_s=0.0, request_s=0.0, launch_s=0.0), kept={})
    assert steps.at(8, 1, 100).seconds == pytest.approx(idle.at(8, 1, 100).seconds + e.step_s + 8 * e.request_s)
    launched = steps._bare([(1, 16, 0)])[0].launches * e.launch_s
    assert launched > idle.at(1, 16, 0).seconds
    assert steps.at(1, 16, 0).seconds == pytest.approx(launched + e.step_s + e.request_s)


def test_layers_of_experts() -> None:
    """One all-reduce for the shared and the other experts; what their products write is read; routing takes time."""
    steps = replace(runs(EXPERTS, parallel="tp=2"), thin=None)
    run = steps._run(1, 256, 0)
    before, after = run.run_graph, joined(run.run_graph)
    count = [[o.type for o in g.operators].count("nccl::AllReduce") for g in (before, after)]
    assert count[0] - count[1] == 11
    sums = [o for o in after.operators if o.name.endswith("/moe#sum")]
    assert len(sums) == 11 and {o.present[0].shape for o in sums} == {(256 * 4, 3 * 256 + 2048)}
    idle = replace(steps.engine, routing_s=0.0, routing=0)
    (with_routing,), (without,) = (bare([run], engine, None) for engine in (steps.engine, idle))
    assert with_routing.outline.seconds - without.outline.seconds == pytest.approx(11 * steps.engine.routing_s)
    assert with_routing.launches - without.launches == 11 * steps.engine.routing


def test_closed_loops_stay_in_step_where_prompts_go_first() -> None:
    lengths = Lengths(2048, 256)
    outputs = [traffic(lengths, None, None, None, None, 0, 8, ENGINES[n])[0].outputs for n in ("vllm", "sglang")]
    assert outputs == ["uniform:248:264", "256"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"runtime": "tensorrt"}, "decides --runtime itself"), ({"cuda_graph": True}, "decides --cuda-graph itself"),
        ({"precision": "int8"}, "serves in keep, bf16, fp16, fp8"),
        ({"parallel": "pp=2"}, "has no pipelines here"),
        ({"engine": "tgi"}, "unknown engine 'tgi': it is one of"), ({"model": b"x", "config": None}, "needs --config"),
    ],
)  # fmt: skip
def test_what_an_engine_does_not_take(asked: dict[str, Any], says: str) -> None:
    asked = {"config": LLAMA, "gpu": "h100", "engine": "vllm", "model": None, **asked}
    terms = {k: asked.pop(k) for k in ("runtime", "cuda_graph", "precision", "parallel") if k in asked}
    with pytest.raises(UsageError, match=says):
        steps_once(asked["model"], asked["gpu"], Request(b"", terms=terms), asked["config"], engine=asked["engine"])


@pytest.mark.slow
def test_engines_answer_and_differ() -> None:
    asked: dict[str, Any] = {
        "config": LLAMA,
        "gpu": "h100",
        "prompt": 1024,
        "output": 64,
        "batch": 1,
        "concurrency": 16,
    }
    answers = {
        name: onnxperf.llm(**asked, engine=name, precision="fp8" if name != "ort-genai" else "bf16") for name in NAMES
    }
    assert [g.engine for g in answers.values()] == [*NAMES] and answers["vllm"].to_dict()["engine"] == "vllm"
    assert answers["vllm"].precision == "fp8" and "vLLM: kernels" in " ".join(answers["vllm"].notes)
    times = {n: g.service.times["time_per_output_token"].mean.seconds for n, g in answers.items() if g.service}
    assert len(set(times.values())) == 4
    servers = {n: g.service.server for n, g in answers.items() if g.service}
    assert servers["sglang"].mixed is False and servers["trtllm"].whole and servers["vllm"].block == 16


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_largest_batch_is_what_the_cache_of_the_engine_holds(engine: str) -> None:
    """Beside iterations of its budget of tokens, not beside the prompts of all samples at once."""
    asked: dict[str, Any] = {"config": LLAMA, "gpu": "l4", "engine": engine, "prompt": 3000, "output": 496}
    whole, chunks = (onnxperf.llm(**asked, chunk=chunk) for chunk in (None, 256))
    assert (chunks.batches[0].needed_bytes < whole.batches[0].needed_bytes) == (engine != "sglang")
    most = whole.largest_batch
    g = onnxperf.llm(**asked, batch=[most, most + 1], qps=1.0, requests=2 * most)
    assert [b.fits for b in g.batches] == [True, False] and g.service is not None
    held = -(-3496 // ENGINES[engine].block) * ENGINES[engine].block
    assert most == g.service.server.cache_tokens // held
    assert g.batches[0].longest_context == pytest.approx(3496, rel=0.02)


@pytest.mark.parametrize("asked", [{"qps": 1e4}, {"concurrency": 1000}], ids=str)
def test_the_memory_of_a_server_is_that_of_the_requests_it_admits(asked: dict[str, Any]) -> None:
    """All of 1,000 at a time do not fit, and no more are admitted than do."""
    lengths: dict[str, Any] = {"config": LLAMA, "gpu": "l4", "engine": "vllm", "prompt": 3000, "output": 48}
    g = onnxperf.llm(**lengths, batch=1000, requests=1000, **asked)
    assert g.service is not None and not g.batches[0].fits
    memory, whole = g.service.memory_bytes, g.batches[0].capacity_bytes
    assert whole - 3048 * g.cache_bytes_per_token < memory <= whole < g.capacity_bytes
    assert g.to_dict()["service"]["memory_bytes"] == memory
