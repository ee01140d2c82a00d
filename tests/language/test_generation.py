"""Generation: first and further tokens, memory, and what is said of models and lengths that can't be."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, parser

import onnxperf
from onnxperf.ground.errors import ModelError, UsageError
from onnxperf.language.generation import Lengths, first_token, needed_bytes
from onnxperf.language.steps import Seconds, Steps
from onnxperf.running.pipeline import Request
from onnxperf.running.terms import as_terms
from tests.export.test_decoder import LLAMA2, TINY
from tests.language.test_laws import DENSE, MIXED
from tests.steps_once import steps_once

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
SMALL = {**TINY, "max_position_embeddings": 4096}


def steps(config: dict[str, Any] = SMALL, longest: int = 512, **terms: Any) -> Steps:
    return steps_once(None, "l4", Request(b"", terms=terms), config)[0].made_for(longest)


def test_a_generation_is_its_prompt_and_its_steps() -> None:
    g = onnxperf.llm(config=SMALL, gpu="l4", prompt=100, output=5, batch=[2])
    (b,) = g.batches
    own = steps(longest=105)
    assert b.first == own.seconds(2, 100, 0)
    each = [own.seconds(2, 1, past).seconds for past in (100, 101, 102, 103)]
    assert b.token.seconds == pytest.approx(np.mean(each), rel=0.01)
    assert b.whole.seconds == pytest.approx(b.first.seconds + sum(each), rel=0.01)
    assert b.tokens_per_second == pytest.approx(10 / b.whole.seconds)
    assert b.token.low_seconds < b.token.seconds < b.token.high_seconds


@pytest.mark.slow
def test_steps_between_are_interpolated() -> None:
    """Prompt and context are long enough for the steps to differ; few are predicted."""
    own = steps(LLAMA2, 4096)
    pasts = range(1000, 4001)
    mean = own.over(4, 1, pasts).times(1 / len(pasts))
    assert len(own.kept) == 3
    ends = [own.seconds(4, 1, past).seconds for past in (1000, 4000)]
    assert ends[0] < mean.seconds < ends[1]
    for past in (1700, 3100):
        known = np.interp(past, [1000, 2500, 4000], [own.seconds(4, 1, p).seconds for p in (1000, 2500, 4000)])
        assert own.seconds(4, 1, past).seconds == pytest.approx(known, rel=0.02)


def test_chunks_are_runs_after_each_other() -> None:
    own = steps(longest=512)
    assert Lengths(10, 2, 4).prompt_runs() == ((4, 0), (4, 4), (2, 8))
    assert Lengths(8, 2, 4).prompt_runs() == ((4, 0), (4, 4))
    assert Lengths(8, 2, 100).prompt_runs() == Lengths(8, 2).prompt_runs() == ((8, 0),)
    found = first_token(own, 1, Lengths(300, 2, 128))
    each = [own.seconds(1, 128, 0), own.seconds(1, 128, 128), own.seconds(1, 44, 256)]
    assert found.ends() == pytest.approx(sum(each, Seconds()).ends())


@pytest.mark.slow
def test_the_largest_batch_is_the_last_that_fits() -> None:
    g = onnxperf.llm(config=LLAMA2, gpu="a100-sxm-80gb", prompt=1000, output=100, batch=1)
    own, lengths = steps_once(None, "a100-sxm-80gb", Request(b""), LLAMA2)[0].made_for(1100), Lengths(1000, 100)
    assert needed_bytes(own, g.largest_batch, lengths) <= g.capacity_bytes
    assert needed_bytes(own, g.largest_batch + 1, lengths) > g.capacity_bytes
    assert onnxperf.llm(config=LLAMA2, gpu="t4", prompt=3000, output=100, batch=8).largest_batch == 1
    assert onnxperf.llm(config={**LLAMA2, "num_hidden_layers": 60}, gpu="t4", prompt=9, output=2).largest_batch == 0


@pytest.mark.slow
def test_the_cache_has_the_bytes_of_the_formula() -> None:
    g = onnxperf.llm(config=LLAMA2, gpu="a100-sxm-80gb", prompt=100, output=28, batch=[1, 4])
    assert g.cache_bytes_per_token == 2 * 32 * 4096 * 2
    assert [b.cache_bytes for b in g.batches] == [128 * 524288, 4 * 128 * 524288]
    assert g.weights_bytes == pytest.approx(2 * 6.74e9, rel=0.01)
    room = g.capacity_bytes - g.weights_bytes
    assert g.batches[1].longest_context == 4096 and 0.9 * room < 4 * 33_500 * 524288 < room


@pytest.mark.slow
def test_the_longest_context_is_what_memory_has_room_for() -> None:
    longer = {**LLAMA2, "max_position_embeddings": 1 << 20}
    most = onnxperf.llm(config=longer, gpu="a100-sxm-80gb", prompt=100, output=28).batches[0].longest_context
    own = steps_once(None, "a100-sxm-80gb", Request(b""), longer)[0].made_for(most)
    memory = own.at(1, 1, most - 2).memory
    assert abs(memory.capacity_bytes - memory.total_bytes - memory.context_bytes) < 10 * 524288


@pytest.mark.slow
def test_four_bits_take_less_memory_and_time() -> None:
    plain, packed = (onnxperf.llm(config=LLAMA2, gpu="l4", weights=w) for w in (None, "int4"))
    assert packed.weights_bytes < 0.32 * plain.weights_bytes
    assert packed.batches[0].token.seconds < 0.5 * plain.batches[0].token.seconds
    assert packed.cache_bytes_per_token == plain.cache_bytes_per_token


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["fp8", "int8"])
def test_a_cache_of_8_bits_is_half_as_large_and_read_in_half_the_bytes(cache: str) -> None:
    sizes = {"config": DENSE, "gpu": "h200", "batch": 64, "prompt": 8000, "chunk": 16}
    plain, less = (onnxperf.llm(**sizes, cache=c) for c in (None, cache))
    assert less.cache_bytes_per_token == 4 * 2 * 1024 == plain.cache_bytes_per_token / 2
    (a,), (b,) = plain.batches, less.batches
    saved = 64 * 8256 * 4 * 2 * 1024
    assert a.cache_bytes - b.cache_bytes == saved
    assert saved == pytest.approx(a.needed_bytes - b.needed_bytes, rel=0.1)  # its allocator rounds up
    assert 0.4 < b.token.seconds / a.token.seconds < 0.8
    assert less.weights_bytes == pytest.approx(plain.weights_bytes, rel=1e-5)  # and scales
    assert 1.8 < less.largest_batch / plain.largest_batch < 2.1
    assert (plain.to_dict()["cache"], less.to_dict()["cache"]) == (None, cache)
    run = steps_once(None, "h200", Request(b""), DENSE, cache=cache)[0].made_for(9000)._run(64, 1, 8000)
    read = 64 * (8000 * 2 * 1024 + 2 * (6144 + 2 * 64) + 4) + 4 + 2 * 4  # cache; queries to values, tables; scales
    assert {k.work.bytes_read for k in run.kernels.rows if k.op.endswith("GroupQueryAttention")} == {read}


@pytest.mark.slow
def test_four_gpus_divide_weights_and_cache() -> None:
    one, four = (onnxperf.llm(config=LLAMA2, gpu="h100", parallel=plan) for plan in (None, "tp=4"))
    assert four.plan == "tp=4" and four.cache_bytes_per_token * 4 == one.cache_bytes_per_token
    assert four.weights_bytes == pytest.approx(one.weights_bytes / 4, rel=0.03)
    assert one.batches[0].token.seconds / 4 < four.batches[0].token.seconds < one.batches[0].token.seconds


@pytest.mark.parametrize(("kind", "weights"), [("llama", None), ("qwen2", "int4"), ("qwen3", None)])
def test_heads_of_keys_are_copied_to_gpus_that_have_none(kind: str, weights: str | None) -> None:
    """As if the model had a head for each, which is what engines make of its weights."""
    few, enough = (
        onnxperf.llm(
            config={**SMALL, "model_type": kind, "head_dim": 32, "num_attention_heads": 8, "num_key_value_heads": kv,
                    "hidden_size": 256, "intermediate_size": 512},
            gpu="h100", prompt=64, output=9, batch=4, weights=weights, parallel="tp=4",
        ) for kv in (2, 4)
    )  # fmt: skip
    assert few.batches == enough.batches and few.cache_bytes_per_token == enough.cache_bytes_per_token
    assert few.weights_bytes == enough.weights_bytes and few.largest_batch == enough.largest_batch
    assert any("2 KV heads are replicated" in note for note in few.notes)
    with pytest.raises(UsageError, match="does not divide 3 heads"):
        odd = {**SMALL, "num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 192}
        onnxperf.llm(config=odd, gpu="h100", prompt=64, output=9, parallel="tp=4")


def test_steps_of_several_gpus_are_replayed_from_a_cuda_graph() -> None:
    """Short steps wait for their launches, more so when they are divided."""
    at = {"config": SMALL, "gpu": "h100", "prompt": 64, "output": 9, "batch": 4, "precision": "fp16"}
    for plan in ("tp=4", "dp=2,tp=2"):
        launched, replayed = (onnxperf.llm(**at, parallel=plan, cuda_graph=graph) for graph in (False, True))
        assert replayed.batches[0].token.seconds < launched.batches[0].token.seconds
        assert replayed.largest_batch == launched.largest_batch and replayed.plan == plan
    with pytest.raises(UsageError, match="CUDA graphs of pipeline stages"):
        onnxperf.llm(**at, parallel="pp=2", cuda_graph=True)


@pytest.mark.slow
def test_groups_of_gpus_divide_the_batch() -> None:
    """Each of two groups does what one GPU does with half of it; who has more samples decides."""
    one, two = (onnxperf.llm(config=DENSE, gpu="h100", batch=b, parallel=p) for b, p in ((3, None), ((5, 6), "dp=2")))
    (alone,) = one.batches
    for b in two.batches:
        assert (b.first, b.token, b.needed_bytes) == (alone.first, alone.token, alone.needed_bytes)
        assert b.tokens_per_second == pytest.approx(alone.tokens_per_second * b.batch / 3)
    assert two.largest_batch == 2 * one.largest_batch


@pytest.mark.slow
def test_a_pipeline_takes_turns() -> None:
    """A step takes its stages one after the other; two microbatches keep both busy, whatever the step before."""
    whole, empty, full = (
        onnxperf.llm(config=DENSE, gpu="h100", batch=64, parallel=p) for p in (None, "pp=2", "pp=2:microbatches=2")
    )
    (one,), (serial,), (turns,) = whole.batches, empty.batches, full.batches
    assert one.token.seconds < serial.token.seconds < 1.05 * one.token.seconds
    assert turns.token.seconds < 0.95 * serial.token.seconds and turns.first.seconds < 0.85 * serial.first.seconds
    assert empty.cache_bytes_per_token == full.cache_bytes_per_token == 0.75 * whole.cache_bytes_per_token  # 3 layers
    assert turns.cache_bytes < turns.needed_bytes < one.needed_bytes
    assert 0.7 * serial.needed_bytes < turns.needed_bytes < serial.needed_bytes  # logits are made one by one
    assert full.largest_batch % 2 == 0 and full.largest_batch > whole.largest_batch


@pytest.mark.slow
def test_experts_are_divided_with_the_batch() -> None:
    one, two = (onnxperf.llm(config=MIXED, gpu="h100", batch=b, parallel=p) for b, p in ((8, None), (16, "ep=2")))
    assert two.weights_bytes < 0.7 * one.weights_bytes and two.batches[0].cache_bytes == one.batches[0].cache_bytes
    assert 0.5 * one.batches[0].token.seconds < two.batches[0].token.seconds < one.batches[0].token.seconds


@pytest.mark.slow
def test_files_with_past_lengths_are_continued() -> None:
    step, prompt = SAMPLES / "gpt2-past.onnx", SAMPLES / "gpt2-dynamic.onnx"
    g = onnxperf.llm(step, prefill=prompt, gpu="l4", prompt=128, output=64, batch=[1, 2])
    b = g.batches[1]
    whole = onnxperf.predict(prompt, gpu="l4", batch=2, dims={"sequence": 128})
    assert b.first.seconds == pytest.approx(whole.seconds)
    begin = onnxperf.predict(step, gpu="l4", batch=2, dims={"past": 128})
    assert b.begin.seconds == pytest.approx(begin.seconds)
    assert g.cache_bytes_per_token == 2 * 12 * 768 * 4
    with pytest.raises(UsageError, match="takes one token at a time"):
        onnxperf.llm(step, gpu="l4")


@pytest.mark.parametrize(
    ("model", "asked", "says"),
    [
        ("gpt2.onnx", {}, "has no inputs for a KV cache|it has no inputs for"),
        ("resnet50.onnx", {}, "is not a decoder"),
        (None, {}, "give either the decoder"),
        (None, {"config": SMALL, "prefill": "x"}, "leave prefill out"),
        ("gpt2-past.onnx", {"config": SMALL}, "give either the decoder"),
        ("gpt2-past.onnx", {"weights": "int4"}, "need config"),
        ("gpt2-past.onnx", {"cache": "fp8"}, "cache and prune.* need config: a file has its own"),
        (None, {"config": SMALL, "cache": "int4"}, "a cache of 'int4' is not known: it is fp8 or int8"),
        (None, {"config": SMALL, "weights": "int3"}, "'int3' are not known"),
        (None, {"config": SMALL, "prompt": 4000}, "made for 4,096"),
        (None, {"config": SMALL, "output": 1}, "at least 2"),
        (None, {"config": SMALL, "batch": 0}, "whole numbers from 1"),
        (None, {"config": SMALL, "batch": []}, "whole numbers from 1"),
        (None, {"config": SMALL, "chunk": 0}, "chunk must be a whole number"),
        (None, {"config": SMALL, "mode": "training"}, "leave mode out"),
        (None, {"config": SMALL, "precision": "fp12"}, "unknown precision"),
        (
            None,
            {"config": SMALL, "dims": {"sequence_length": 3}},
            "output decide 'sequence_length'",
        ),
        (None, {"config": SMALL, "dims": [3]}, "dims must map names to sizes"),
        (None, {"config": SMALL, "dims": {"x": 3}}, "'x'"),
        (None, {"config": SMALL, "gpu": ["l4"]}, "gpu|card"),
        (None, {"config": SMALL, "parallel": "ep=2"}, "ep=2: the model has no operator"),
        (None, {"config": SMALL, "parallel": "tp=3"}, "tp=3 does not divide 4 heads .*: tp=2 fits"),
        (None, {"config": SMALL, "parallel": "pp=2:microbatches=2", "qps": 1}, "with microbatches"),
    ],
)
def test_what_cannot_be_says_why(model: str | None, asked: dict[str, Any], says: str) -> None:
    with pytest.raises((UsageError, ModelError), match=says):
        onnxperf.llm(model and SAMPLES / model, **{"gpu": "l4", **asked})


def measured() -> list[tuple[int, int, float]]:
    """New tokens, total length and measured seconds of Llama-2-7B at batch 4 on an A100, none of them fitted to."""
    path = ROOT / "onnxperf/lab/datasets/sample/ort_cuda/with_graphs.csv"
    table = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    rows = [r for r in table if r["id"].startswith("llama2") and r["gpu"].startswith("a100")]
    assert {r["use"] for r in rows} == {"score"}
    dims = [dict(pair.split("=") for pair in r["dims"].split()) for r in rows]
    return [
        (int(d["sequence_length"]), int(d["total_sequence_length"]), float(r["measured_ms"]) / 1e3)
        for d, r in zip(dims, rows, strict=True)
    ]


@pytest.mark.slow
def test_runs_of_llama_2_are_as_far_off_as_help_says() -> None:
    own, _ = steps_once(None, "a100-sxm-80gb", Request(b""), LLAMA2)
    own, rows = own.made_for(4096), measured()
    found = [(own.seconds(4, new, total - new), seconds, new) for new, total, seconds in rows]
    assert sum(s.low_seconds < seconds < s.high_seconds for s, seconds, _ in found) == 9
    page = (ROOT / "onnxperf/language/accuracy.md").read_text(encoding="utf-8").splitlines()
    lines = [
        f"| {new} | {total} | {1e3 * m:.1f} | {1e3 * own.seconds(4, new, total - new).seconds:.1f} |"
        for new, total, m in rows
    ]
    assert sorted(line.rpartition(" | ")[0] + " |" for line in page if line[:3].strip("| ").isdigit()) == sorted(lines)
    errors = {k: [abs(s.seconds / m - 1) for s, m, new in found if (new > 1) == k] for k in (True, False)}
    assert len(errors[True]) == len(errors[False]) == 6
    assert [round(100 * np.mean(errors[k])) for k in (False, True)] == [2, 7]
    assert [round(100 * max(errors[k])) for k in (False, True)] == [3, 15]


@pytest.mark.parametrize(
    ("gpu", "asked", "says"),
    [
        ("t4", {"precision": "tf32"}, "t4 has no tensor cores for TF32"),
        ("a100", {"precision": "fp8"}, "has no FP8 units"),
        ("h100", {"precision": "fp8"}, "are not validated by a measurement"),
        ("h100", {"parallel": "tp=2"}, "each of 2 GPUs has a part"),
        ("l4", {"precision": "fp16", "weights": "int4"}, "they are first written out"),
    ],
)
def test_what_a_step_takes_for_granted_is_said(gpu: str, asked: dict[str, Any], says: str) -> None:
    g = onnxperf.llm(config=SMALL, gpu=gpu, prompt=64, output=8, **asked)
    assert any(says in note for note in g.notes)
    assert not any(says in note for note in onnxperf.llm(config=SMALL, gpu="l4", prompt=64, output=8).notes)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_experts_are_quantised_with_the_products(precision: str) -> None:
    """Weights in 8 bits but for the embedding, and no step is slower for it."""
    plain, less = (onnxperf.llm(config=MIXED, gpu="h200", batch=[1, 64], precision=p) for p in ("keep", precision))
    embedding = 32000 * 4096 * 2
    assert less.weights_bytes - embedding == pytest.approx((plain.weights_bytes - embedding) / 2, rel=0.05)
    for a, b in zip(less.batches, plain.batches, strict=True):
        assert 0.4 < a.token.seconds / b.token.seconds < 1 and 0.4 < a.first.seconds / b.first.seconds < 1


GEMMA3 = {
    "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "sliding_window": 512,
    "sliding_window_pattern": 6, "max_position_embeddings": 32768, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip


def test_windows_are_said_not_to_cap_the_cache() -> None:
    """4 x 32,768 + 22 x 512 positions of 1,024 bytes are 145,752,064 bytes, as the report of a served model has it."""
    config = {**GEMMA3, "torch_dtype": "bfloat16"}
    g = onnxperf.llm(config=config, gpu="l4", prompt=64, output=8)
    assert g.cache_bytes_per_token == 26 * 1024
    (note,) = (n for n in g.notes if "see the last 512 positions only" in n)
    assert (
        note.startswith("22 of 26 layers") and "keeps 146 MB for a sample of 32,768 positions instead of 872 MB" in note
    )
    assert not any("positions only" in n for n in onnxperf.llm(config=SMALL, gpu="l4", prompt=64, output=8).notes)


@pytest.mark.parametrize(
    ("gpu", "terms", "stored", "said"),
    [("l4", {}, "bf16", "bfloat16"), ("t4", {}, "fp16", "float16"), ("l4", {"precision": "fp32"}, "fp32", "")],
)
def test_a_configuration_in_float32_is_served_in_16_bits(gpu: str, terms: Any, stored: str, said: str) -> None:
    small = {**SMALL, "torch_dtype": "float32"}
    g = onnxperf.llm(config=small, gpu=gpu, prompt=64, output=8, **terms)
    same = onnxperf.llm(config=SMALL, gpu=gpu, prompt=64, output=8, precision=stored)
    assert (g.weights_bytes, g.batches[0].first.seconds) == (same.weights_bytes, same.batches[0].first.seconds)
    assert [f"served in {said}," in n for n in g.notes if "is float32" in n] == ([True] if said else [])


ATTENDING = """<ir_version: 9, opset_import: ["" : 17]>
dec (int64[batch,seq] ids, float[batch,2,past,8] past_k, float[?,?,16] encoded)
 => (float[batch,seq,16] y, float[batch,2,total,8] present_k)
{ x = Gather(table, ids)
  heads = Constant<value_ints=[0, 0, 2, 8]>()
  split = Reshape(x, heads)
  k = Transpose<perm=[0, 2, 1, 3]>(split)
  present_k = Concat<axis=2>(past_k, k)
  turned = Transpose<perm=[0, 2, 1]>(encoded)
  scores = MatMul(x, turned)
  shares = Softmax<axis=-1>(scores)
  y = MatMul(shares, encoded) }"""


def test_lengths_decide_shapes_and_dims_and_shapes_set_the_others() -> None:
    """A decoder that attends to an input whose axes have no names."""
    model = parser.parse_model(ATTENDING)
    model.graph.initializer.append(TensorProto(name="table", data_type=1, dims=[100, 16], raw_data=bytes(6400)))
    asked: dict[str, Any] = {"gpu": "l4", "prompt": 32, "output": 8, "batch": [1, 4]}
    with pytest.raises(UsageError, match=r'give shapes=\{"encoded": \[1, 128, 16\]\}'):
        onnxperf.llm(model, **asked)
    short, long = (onnxperf.llm(model, **asked, shapes={"encoded": (1, n, 16)}) for n in (100, 500_000))
    assert all(b.token.seconds > 1.3 * a.token.seconds for a, b in zip(short.batches, long.batches, strict=True))
    run: dict[str, Any] = {"dims": {"batch": 4, "seq": 32, "past": 0}, "shapes": {"encoded": (1, 500_000, 16)}}
    assert long.batches[1].first.seconds == onnxperf.predict(model, gpu="l4", **run).seconds
    for decided in ("ids", "past_k"):
        with pytest.raises(UsageError, match=f"batch, prompt and output decide '{decided}': leave it out of shapes"):
            onnxperf.llm(model, **asked, shapes={decided: (1, 8)})
    with pytest.raises(UsageError, match="shapes must map names to sizes; a list does not"):
        onnxperf.llm(model, **asked, shapes=[1])


def phi3(hidden: int, layers: int, heads: int, kv_heads: int, inner: int) -> dict[str, Any]:
    return {
        "model_type": "phi3", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": inner, "vocab_size": 32064, "torch_dtype": "float16",
    }  # fmt: skip


MEDIUM, MINI = phi3(5120, 40, 40, 10, 17920), phi3(3072, 32, 32, 32, 8192)
QWEN = {
    "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "torch_dtype": "float16",
    "tie_word_embeddings": True,
}  # fmt: skip
A100, V100 = "a100-sxm-80gb", "v100-sxm2-16gb"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config", "gpu", "release", "weights", "batch", "length", "graph", "ms"),
    [
        ("Phi-3-medium", MEDIUM, A100, "1.18", "int4", 1, 144, False, 8.645),
        ("Phi-3-medium", MEDIUM, A100, "1.18", "int4", 16, 192, False, 47.135),
        ("Phi-3-medium", MEDIUM, A100, "1.18", None, 1, 144, False, 21.133),
        ("Phi-3-medium", MEDIUM, A100, "1.18", None, 16, 192, False, 22.915),
        ("Phi-3-mini", MINI, V100, "1.26", "int4", 1, 144, False, 5.624),
        ("Phi-3-mini", MINI, V100, "1.26", "int4", 1, 144, True, 5.168),
        ("Qwen2.5-0.5B", QWEN, "h200", "1.27", "int4", 1, 520, False, 1.941),
        ("Qwen2.5-0.5B", QWEN, "h200", "1.27", "int4", 1, 520, True, 1.802),
    ],
)  # fmt: skip
def test_steps_with_packed_weights_are_as_far_off_as_help_says(
    name: str, config: dict[str, Any], gpu: str, release: str, weights: str | None, batch: int, length: int,
    graph: bool, ms: float,
) -> None:  # fmt: skip
    terms = as_terms({"precision": "fp16", "ort_version": release, "cuda_graph": graph})
    request = Request(b"", terms=terms)
    steps, _ = steps_once(None, gpu, request, config, weights=weights, prune_lm_head=True)
    seconds = steps.made_for(length + 1).seconds(batch, 1, length).seconds
    page = (ROOT / "onnxperf/language/accuracy.md").read_text(encoding="utf-8")
    error = 1e3 * seconds / ms - 1
    way = f"{gpu}, {release}{', CUDA graph' * graph}"
    line = f"| {name} | {weights or 'fp16'} | {way} | {batch} | {ms:.1f} | {1e3 * seconds:.1f} | {error:+.0%} |"
    assert line in page
