"""DeepSeek's latent attention: what is computed, by ONNX Runtime, and what it costs, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import gpu_specs
import onnxperf
from onnxperf.answer.notes import notes
from onnxperf.export.decoder import decoder, parameters
from onnxperf.export.decoder_config import DecoderConfig, config_of
from onnxperf.language.core import steps_of
from onnxperf.latency.intervals import in_domain
from onnxperf.running.pipeline import Request
from onnxperf.running.run import Run
from tests.export.test_decoder import PUBLISHED, SMALL_LATENT, TINY, accepted, filled

ROOT = Path(__file__).parents[2]
V2, V3 = (PUBLISHED[name][0] for name in ("DeepSeek-V2-Lite", "DeepSeek-V3"))
SMALL = {**TINY, **SMALL_LATENT, "model_type": "deepseek_v2"}
#: Two layers of V3, one with its experts.
FEW = {**V3, "num_hidden_layers": 2, "first_k_dense_replace": 1, "vocab_size": 1024}


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("weights", [None, "int4"])
def test_both_graphs_are_the_same_model(weights: str | None, begins: bool) -> None:
    """Absorbed weights are those that expand the latent vector, in another order."""
    for name in ("DeepSeek-V2-Lite", "DeepSeek-V3"):
        given, billions = PUBLISHED[name]
        config = config_of(given)
        model = decoder(config, dtype="bfloat16", weights=weights, begins=begins)
        assert parameters(model, config) == pytest.approx(1e9 * billions, rel=0.004)
    accepted(decoder(config_of(SMALL), dtype="float16", weights=weights, prune_head=True, begins=begins))


#: What LatentAttention is, in ONNX, of two samples.
BODY = """<domain: "onnxperf", opset_import: ["" : 24]>
LatentAttention <scale, v_head_size> (q, new, past, last, total) => (y, present) {{
    one = Constant <value_ints = [1]> ()
    zero = Constant <value_ints = [0]> ()
    axis = Constant <value_ints = [3]> ()
    size = Constant <value_ints = [{values}]> ()
    by_sample = Constant <value_ints = [2, -1, {heads}, {dim}]> ()
    by_token = Constant <value_ints = [-1, {heads}, {values}]> ()
    positions = Cast <to = 7> (last)
    filled = Add (positions, one)
    count = Shape <start = 1, end = 2> (new)
    before = Sub (filled, count)
    rows = Unsqueeze (new, one)
    present = TensorScatter (past, rows, before)
    values = Slice (present, zero, size, axis)
    apart = Reshape (q, by_sample)
    queries = Transpose <perm = [0, 2, 1, 3]> (apart)
    found = Attention <scale: float = @scale, is_causal = 1> (queries, present, values, , , , filled)
    turned = Transpose <perm = [0, 2, 1, 3]> (found)
    y = Reshape (turned, by_token)
}}"""


def session(c: DecoderConfig, begins: bool, weights: dict[str, NDArray[Any]]) -> Any:
    """ONNX Runtime's of a graph with these weights, those that are absorbed stacked by heads."""
    ort = pytest.importorskip("onnxruntime")
    model = decoder(c, dtype="float32", begins=begins)
    for t in model.graph.initializer:
        if t.data_location == onnx.TensorProto.EXTERNAL:
            values = weights[t.name]
            if t.name.endswith(("k_b_proj.weight", "v_b_proj.weight")) and not begins:
                values = values.reshape(c.latent, c.heads, -1).transpose((1, 2, 0) if "k_b" in t.name else (1, 0, 2))
            t.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(values), t.name))
    if not begins:
        text = BODY.format(heads=c.heads, dim=c.latent + c.rope_dim, values=c.latent)
        model.functions.append(onnx.parser.parse_function(text))
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_absorbed_weights_continue_what_expanded_keys_and_values_begin() -> None:
    """A prompt in one run, or in two by the cache of the first, ends with the same logits and the same cache."""
    c = config_of(SMALL)
    model = decoder(c, dtype="float32", begins=True)
    filled(model)
    kept = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    begin, go_on = (session(c, begins, kept) for begins in (True, False))

    def run(with_: Any, first: int, last: int, caches: list[Any]) -> Any:
        places = np.tile(np.arange(first, last), (2, 1))
        feeds = {"input_ids": (places + np.array([[1], [7]])) % 96, "position_ids": places}
        feeds |= {f"past_key_values.{i}.latent": x for i, x in enumerate(caches)}
        feeds["attention_mask"] = np.ones((2, last), np.int64)
        return with_.run(None, {i.name: feeds[i.name] for i in with_.get_inputs()})

    empty = [np.zeros((2, 1, 16, c.latent + c.rope_dim), np.float32) for _ in range(c.layers)]
    whole, *caches = run(begin, 0, 9, empty)
    _, *some = run(begin, 0, 5, empty)
    chunk, *more = run(go_on, 5, 8, some)
    token, *last = run(go_on, 8, 9, more)
    assert np.abs(whole).max() > 0.01
    np.testing.assert_allclose(np.concatenate((chunk, token), 1), whole[:, 5:], rtol=1e-3, atol=1e-4)
    for found, wanted in zip(last, caches, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert sum(x[0, 0, 0].size for x in caches) == c.cache_elements() == c.layers * (32 + 8)


def ran(given: dict[str, Any], batch: int, new: int, past: int, longest: int = 4096, **terms: Any) -> Run:
    made = steps_of(None, "h200", Request(b"", terms=terms), {**given, "max_position_embeddings": 1 << 17})[0]
    return made.made_for(longest)._run(batch, new, past)


def flops(run: Run) -> int:
    return sum(k.repeat * k.work.matrix_flops for k in run.kernels.rows)


@pytest.mark.parametrize(("new", "past"), [(1, 1000), (1000, 0), (100, 900)])
def test_both_graphs_have_two_flops_for_each_parameter_and_those_of_attention(new: int, past: int) -> None:
    """Keys of 512 + 64 and values of 512 elements behind absorbed weights, of 192 and 128 in a prompt."""
    c = config_of({**V2, "num_hidden_layers": 2, "first_k_dense_replace": 2})
    dense = {**V2, "num_hidden_layers": 2, "first_k_dense_replace": 2}
    multiplied = parameters(decoder(c, dtype="float16"), c) - c.vocab * c.hidden
    attention = 2 * c.layers * c.heads * new * (past + new) * ((512 + 64 + 512) if past else (192 + 128))
    assert flops(ran(dense, 1, new, past)) == pytest.approx(2 * new * multiplied + attention, rel=0.001)


def test_keys_and_values_are_one_cache_that_is_read_once() -> None:
    """By a decode step of V3: the vectors before the new one, the new one, queries, and the lengths."""
    run = ran(FEW, 16, 1, 3000, parallel="tp=8")
    found = [k.work for k in run.kernels.rows if k.op.endswith("LatentAttention")]
    assert len(found) == 2 and {w.size[:7] for w in found} == {(16, 16, 1, 1, 3001, 576, 512)}
    assert {w.bytes_read for w in found} == {16 * 2 * 576 * (3000 + 1 + 16) + 4 * 16 + 4}
    assert {w.bytes_written for w in found} == {16 * 2 * (16 * 512 + 576)}
    assert not in_domain(found, ["attention_decode"] * 2, run.constants).any()
    assert any(n.code == "outside-calibration" for n in notes(run, 0))


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100", "b200"])
@pytest.mark.parametrize("batch", [1, 64])
def test_attention_takes_about_as_long_as_its_bytes_or_its_flops(gpu: str, batch: int) -> None:
    """No less, and less than four times as long: 128 heads share a vector, so that products and bytes are near."""
    given = {**FEW, "torch_dtype": "bfloat16"}
    run = steps_of(None, gpu, Request(b""), given)[0].made_for(4096)._run(batch, 1, 4000)
    card = gpu_specs.load(gpu)
    for i, k in enumerate(run.kernels.rows):
        if k.op.endswith("LatentAttention"):
            least = max(k.work.bytes / card.bandwidth_Bps, k.work.matrix_flops / card.dense_flops["tensor_bf16"])
            assert least < run.estimates.seconds[i, 0] < 4 * least + 20e-6


@pytest.mark.slow
def test_the_cache_is_as_small_as_engines_keep_it_on_every_gpu() -> None:
    """576 elements of 2 bytes a layer; a GPU of eight has as many of each sample, or an eighth of the samples."""
    one, heads, experts = (
        onnxperf.llm(config=FEW, gpu="h200", prompt=64, output=9, batch=8, parallel=plan)
        for plan in (None, "tp=8", "ep=8")
    )
    assert {g.cache_bytes_per_token for g in (one, heads, experts)} == {2 * 2 * 576}
    assert [g.batches[0].cache_bytes for g in (one, heads, experts)] == [8 * 73 * 2304, 8 * 73 * 2304, 73 * 2304]
    assert heads.weights_bytes < 0.16 * one.weights_bytes and experts.weights_bytes < 0.3 * one.weights_bytes
    assert config_of(V3).cache_elements() * 2 == 70272  # bytes of a token


def test_attention_of_latent_vectors_is_said_to_be_unmeasured() -> None:
    latent, usual = (onnxperf.llm(config=c, gpu="h100", prompt=16, output=4) for c in (SMALL, TINY))
    says = "latent attention (MLA) is not validated under ONNX Runtime"
    assert any(says in note for note in latent.notes) and not any(says in note for note in usual.notes)
    with pytest.raises(onnxperf.Error, match="tp=3 does not divide"):
        onnxperf.llm(config=SMALL, gpu="h100", prompt=16, output=4, parallel="tp=3")


def test_what_was_measured_of_latent_attention_is_said_under_engines() -> None:
    """The figures are those of the page, which none of the sparse models is in."""
    page = " ".join((ROOT / "onnxperf/language/accuracy.md").read_text(encoding="utf-8").split())
    assert "in 82 of these rows, all on H200" in page and "together 11% off in the median, first tokens 47%" in page
    one: dict[str, Any] = {"gpu": "h200", "prompt": 16, "output": 4}
    for engine in ("vllm", "sglang", "trtllm"):
        (note,) = (n for n in onnxperf.llm(config=SMALL, engine=engine, **one).notes if "(MLA)" in n)
        assert (
            "82 closed loops" in note
            and "on H200" in note
            and "11% off" in note
            and "47%" in note
            and "not validated" not in note
        )
    sparse = {**FEW, "model_type": "deepseek_v32"}
    (note,) = (n for n in onnxperf.llm(config=sparse, engine="vllm", **one).notes if "(MLA)" in n)
    assert "was not measured with sparse attention" in note and "82" not in note


def test_a_cache_in_fp8_is_half_as_large() -> None:
    """As engines offer it; queries, and the new vector before it is written, have 16 bits."""
    g = onnxperf.llm(config=SMALL, gpu="h100", prompt=16, output=4, cache="fp8", precision="bf16")
    assert g.cache_bytes_per_token == config_of(SMALL).cache_elements() == 2 * (32 + 8)
    for begins in (True, False):
        accepted(decoder(config_of(SMALL), dtype="float16", cache="fp8", begins=begins))
    own = steps_of(None, "h200", Request(b""), FEW, cache="fp8")[0].made_for(4096)
    found = {k.work.bytes_read for k in own._run(16, 1, 3000).kernels.rows if k.op.endswith("LatentAttention")}
    assert found == {16 * 576 * (3000 + 2 + 2 * 128) + 4 * 16 + 4 + 4}
    written = [k.work for k in own._run(16, 8, 0).kernels.rows if k.op == "TensorScatter"]
    assert [w.bytes_written for w in written] == [16 * 8 * 576] * 2
    with pytest.raises(onnxperf.Error, match="a cache of 'int8' is not known with latent attention: it is fp8"):
        onnxperf.llm(config=SMALL, gpu="h100", prompt=16, output=4, cache="int8")


V32 = {**PUBLISHED["DeepSeek-V3.2"][0], "num_hidden_layers": 3, "first_k_dense_replace": 3, "vocab_size": 1024}


def test_sparse_attention_reads_the_keys_that_are_chosen() -> None:
    """Of 4,001 keys 2,048 by a step, whose scores take all keys of 128; of 1,001 all."""
    for past, count in ((4000, 2048), (1000, 1001)):
        run = ran(V32, 2, 1, past, longest=8192)
        found, scored = ([k.work for k in run.kernels.rows if k.op.endswith(x)] for x in ("LatentAttention", "Indexer"))
        assert len(found) == len(scored) == 3
        assert {w.size[:7] for w in found} == {(2, 128, 1, 1, count, 576, 512)}
        chosen = 4 * 2 * 2048
        assert {w.bytes_read for w in found} == {
            2 * 2 * 576 * (min(2048, past) + 1 + 128) + 4 * 2 + 4 + chosen,
        }  # fmt: skip
        assert {w.matrix_flops for w in scored} == {2 * 2 * 64 * 128 * (past + 1)}
        assert {w.bytes_read for w in scored} == {2 * 2 * (128 * (past + 1) + 64 * 129) + 4 * 2 + 4}
    assert config_of(V32).cache_elements() == 3 * (576 + 128)


def test_tokens_of_a_prompt_have_the_keys_before_them_or_those_that_are_chosen() -> None:
    """4,096 tokens: 2,048 with 1 to 2,048 keys, and 2,048 with 2,048, which is 1,536.25 on average."""
    found = [k.work for k in ran(V32, 1, 4096, 0).kernels.rows if k.op.endswith("LatentAttention")]
    assert {w.size[:7] for w in found} == {(4096, 128, 1, 1, 1537, 576, 512)}


def test_layers_may_attend_to_the_keys_that_another_chose() -> None:
    """As GLM-5's configuration says it of each layer, or by a number."""
    base = {**PUBLISHED["GLM-5"][0], "num_hidden_layers": 4}
    for more in (
        {"indexer_types": ["full", "shared", "shared", "full"]},
        {"index_topk_freq": 3, "index_skip_topk_offset": 1},
    ):
        c = config_of({**base, **more})
        assert [b.indexed for b in c.blocks] == [True, False, False, True]
        nodes = {n.name: n for n in decoder(c, dtype="float16").graph.node}
        chosen = [nodes[f"/model/layers.{i}/attn/LatentAttention"].input[6] for i in range(4)]
        assert chosen == [f"/model/layers.{i}/attn/indexer" for i in (0, 0, 0, 3)]
        assert c.cache_elements() == 4 * 576 + 2 * 128
    accepted(decoder(config_of({**base, "n_routed_experts": 8, "vocab_size": 64, "hidden_size": 64}), dtype="float16"))
