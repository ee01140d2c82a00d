"""GreedySearch, BeamSearch and Sampling count their decoders, once for each token."""

from __future__ import annotations

import re

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxperf import ModelError, predict
from onnxperf.graph import Graph, load

PAST = "float[2, b, 2, p, 4] past_0"
GPT = f"""decoder = d (int32[b, s] input_ids, int32[b, s] position_ids, int32[b, t] attention_mask, {PAST})
    => (float[b, s, 64] logits, float[2, b, 2, t, 4] present_0) {{
        x = Gather(e, input_ids)
        a, present_0 = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (x, w, bias, attention_mask, past_0)
        logits = MatMul(a, h)
    }}"""
#: An encoder that also gives the first logits, as that of T5 does, and a decoder that reads one token and two caches.
T5 = """encoder = f (int32[b, s] encoder_input_ids, int32[b, s] encoder_attention_mask, int32[b, one] decoder_input_ids)
    => (float[b, one, 64] logits, float[b, s, 8] encoder_hidden_states) {
        x = Gather(e, encoder_input_ids)
        encoder_hidden_states = Relu(x)
        first = Gather(e, decoder_input_ids)
        logits = MatMul(first, h)
    },
    decoder = d (int32[b, one] input_ids, int32[b, s] encoder_attention_mask, float[b, 2, p, 4] past_key_self_0,
                 float[b, 2, s, 4] past_key_cross_0)
    => (float[b, one, 64] logits, float[b, 2, t, 4] present_key_self_0, float[b, 2, s, 4] seen) {
        first = Gather(e, input_ids)
        logits = MatMul(first, h)
        new = Reshape(first, heads)
        present_key_self_0 = Concat <axis = 2> (past_key_self_0, new)
        seen = Relu(past_key_cross_0)
    }"""


def search(type: str, graphs: str, most: str = "int32[1] most = {32}", reads: str = "") -> ModelProto:
    """A model of one such operator, with weights that its graphs read from outside; words are 64, beams 3."""
    outputs = "int32[2, 3, 32] tokens" if type == "BeamSearch" else "int32[2, 32] tokens"
    counts = ", n, n" if type == "BeamSearch" else ""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (int32[2, 8] ids{reads}) => ({outputs})
        <{most}, int32[1] least = {{1}}, int32[1] n = {{3}}, int64[4] heads = {{0, 2, 1, 4}}> {{
            tokens = com.microsoft.{type} <eos_token_id = 63, pad_token_id = 0, vocab_size = 64,
                model_type = {int(graphs is T5)}, {graphs}> (ids, most, least{counts})
        }}""")
    rng = np.random.default_rng(0)
    for name, shape in (("e", (64, 8)), ("w", (8, 24)), ("bias", (24,)), ("h", (8, 64))):
        values = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, shape, values.tobytes(), raw=True))
    return model


def runs(graph: Graph, type: str) -> list[tuple[int, tuple[int, ...]]]:
    """How often the operators of a type run, and what they make."""
    return [(o.repeat, o.out.shape) for o in graph.operators if o.type == type]


@pytest.mark.parametrize("type", ["GreedySearch", "Sampling"])
def test_the_prompt_is_read_once_and_then_each_token(type: str) -> None:
    graph = load(search(type, GPT))
    assert runs(graph, "MatMul") == [(1, (2, 8, 64)), (23, (2, 1, 64))]  # 32 tokens, 8 given, one from the first run
    assert runs(graph, "TopK") == [(1, (2, 1)), (23, (2, 1))]
    caches = [o.present[-1].shape for o in graph.operators if o.type == "com.microsoft::Attention"]
    assert caches == [(2, 2, 2, 0, 4), (2, 2, 2, 19, 4)]  # the mean of 8 to 30
    assert graph.outputs[0].shape == (2, 32)
    [note] = [n for n in graph.notes if n.code == "assumed-trip-count"]
    assert "assumed 23, its limit" in note.message
    assert not [n for n in graph.notes if n.code in ("body-not-counted", "unknown-operator")]


def test_beams_are_rows() -> None:
    graph = load(search("BeamSearch", GPT))
    assert runs(graph, "MatMul") == [(1, (6, 8, 64)), (23, (6, 1, 64))]
    assert runs(graph, "TopK") == [(1, (6, 6)), (23, (6, 6))] and graph.outputs[0].shape == (2, 3, 32)


def test_an_encoder_runs_once_and_without_beams() -> None:
    graph = load(search("BeamSearch", T5))
    assert runs(graph, "MatMul") == [(1, (2, 1, 64)), (30, (6, 1, 64))]
    assert runs(graph, "Relu") == [(1, (2, 8, 8)), (30, (6, 2, 8, 4))]  # what only the next run reads counts, too
    assert [o.present[0].shape for o in graph.operators if o.type == "Concat" and o.repeat == 30] == [(6, 2, 16, 4)]


def test_fewer_tokens_can_be_given() -> None:
    graph = load(search("GreedySearch", GPT), trip_counts={"GreedySearch_0": 5})
    assert runs(graph, "MatMul") == [(1, (2, 8, 64)), (5, (2, 1, 64))]
    assert not [n for n in graph.notes if n.code == "assumed-trip-count"]
    assert runs(load(search("GreedySearch", GPT), trip_counts={"GreedySearch_0": 0}), "MatMul") == [(1, (2, 8, 64))]


def test_the_number_of_tokens_can_be_an_input() -> None:
    model = search("GreedySearch", GPT, "int32[1] unused = {1}", ", int32[1] most")
    assert runs(load(model), "MatMul") == [(1, (2, 8, 64)), (1, (2, 1, 64))]
    assert runs(load(model, dims={"most": 64}), "MatMul")[1] == (55, (2, 1, 64))


def test_a_longer_answer_takes_longer() -> None:
    model = search("GreedySearch", GPT)
    short, long = (predict(model, gpu="l4", trip_counts={"GreedySearch_0": n}) for n in (10, 20))
    assert 1.5 < long.seconds / short.seconds < 2.1


def test_onnx_runtime_takes_such_a_model() -> None:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(search("GreedySearch", GPT).SerializeToString(), providers=["CPUExecutionProvider"])
    [tokens] = session.run(None, {"ids": np.full((2, 8), 5, np.int32)})
    assert tokens.shape == (2, 32)


@pytest.mark.parametrize(("old", "new", "why"), [
    ("past_0", "cache_0", "the input 'cache_0' of its graph is none that ONNX Runtime gives it"),
    ("logits = MatMul(a, h)", "b = MatMul(a, h) logits = Flatten(b)", "must be the logits, [batch, length, words]"),
    ("decoder = d", "other = d", "it has no decoder"),
])  # fmt: skip
def test_a_graph_that_onnx_runtime_refuses_is_an_error(old: str, new: str, why: str) -> None:
    graphs = GPT.replace("float[b, s, 64] logits", "float[b, s] logits") if "Flatten" in new else GPT
    with pytest.raises(ModelError, match=re.escape(why)):
        load(search("GreedySearch", graphs.replace(old, new)))


@pytest.mark.parametrize(
    ("type", "name", "value", "says"),
    [
        ("GreedySearch", "most", -5, "its max_length is -5, and must be at least 1"),
        ("GreedySearch", "most", 0, "its max_length is 0, and must be at least 1"),
        ("BeamSearch", "n", -3, "its num_beams is -3, and must be at least 1"),
    ],
)
def test_lengths_and_beams_below_one_are_refused(type: str, name: str, value: int, says: str) -> None:
    model = search(type, GPT)
    stored = next(t for t in model.graph.initializer if t.name == name)
    stored.CopyFrom(helper.make_tensor(name, TensorProto.INT32, [1], [value]))
    with pytest.raises(ModelError, match=says):
        load(model)


@pytest.mark.parametrize(("type", "most"), [("GreedySearch", 1), ("Sampling", 2), ("BeamSearch", 3)])
def test_more_outputs_than_the_operator_has_are_refused(type: str, most: int) -> None:
    model = search(type, GPT)
    model.graph.node[0].output.extend(f"more_{i}" for i in range(most - 1))
    assert load(model).operators
    model.graph.node[0].output.append("one_more")
    with pytest.raises(ModelError, match=f"it has {most + 1} outputs, where at most {most} are possible"):
        load(model)
