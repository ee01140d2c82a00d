"""Dimensions of decoders as exporters name them, bound to a run's lengths."""

from __future__ import annotations

from typing import Any

import onnx.parser
import pytest
from onnx import ModelProto, TensorProto, helper

import onnxperf
from onnxperf.export.decoder import decoder
from onnxperf.export.decoder_config import config_of
from onnxperf.graph.decoder_dims import decoder_dims
from onnxperf.ground.errors import UsageError
from tests.export.test_decoder import TINY


def model(ids: tuple[Any, ...], past: tuple[Any, ...] | None, mask: tuple[Any, ...] | None = None) -> ModelProto:
    """Token ids and a cache, which passes through a Neg."""
    whole, real = TensorProto.INT64, TensorProto.FLOAT16
    inputs = [helper.make_tensor_value_info("input_ids", whole, ids)]
    nodes = [helper.make_node("Cast", ["input_ids"], ["logits"], to=real)]
    outputs = [helper.make_tensor_value_info("logits", real, ids)]
    if mask:
        inputs.append(helper.make_tensor_value_info("attention_mask", whole, mask))
        nodes.append(helper.make_node("Neg", ["attention_mask"], ["seen"]))
        outputs.append(helper.make_tensor_value_info("seen", whole, mask))
    if past:
        inputs.append(helper.make_tensor_value_info("past_key_values.0.key", real, past))
        nodes.append(helper.make_node("Neg", ["past_key_values.0.key"], ["present"]))
        outputs.append(helper.make_tensor_value_info("present", real, past))
    return helper.make_model(helper.make_graph(nodes, "decoder", inputs, outputs), ir_version=10)


def test_names_are_taken_from_their_places() -> None:
    dims = decoder_dims(model(("b", "s"), ("b", 2, "p", 4), ("b", "t")))
    assert dims.bound(3, 1, 7, 99) == {"b": 3, "s": 1, "p": 7, "t": 8}
    fixed = decoder_dims(model((1, "s"), (1, 2, "p", 4)))
    assert fixed.bound(1, 5, 7, 99) == {"s": 5, "p": 7}
    with pytest.raises(UsageError, match="batch is fixed at 1, it can't be 3"):
        fixed.bound(3, 5, 7, 99)
    with pytest.raises(UsageError, match="one name, 'n', for lengths that differ: 1 and 7"):
        decoder_dims(model(("b", "n"), ("b", 2, "n", 4))).bound(3, 1, 7, 99)
    with pytest.raises(UsageError, match="is not a decoder"):
        decoder_dims(model(("b", "s", 1), None))


@pytest.mark.parametrize("mask", ["past_sequence_length + sequence_length", "total", "past_sequence_length + 1"])
def test_masks_are_as_long_as_past_and_new_tokens(mask: str) -> None:
    built = model(("b", "sequence_length"), ("b", 2, "past_sequence_length", 4), ("b", mask))
    g = onnxperf.llm(built, gpu="l4", prompt=8, output=4, batch=2, chunk=1 if "+ 1" in mask else None)
    assert g.cache_bytes_per_token == 2 * 4 * 2


@pytest.mark.parametrize("kind", [{}, {"model_type": "qwen3", "head_dim": 16}], ids=["packed", "keys apart"])
def test_caches_are_written_in_place_whatever_the_outputs_are_called(kind: dict[str, Any]) -> None:
    """ONNX Runtime GenAI's files declare past and present of different lengths, and are run with one buffer."""
    own, declared = (decoder(config_of({**TINY, **kind}), dtype="float16") for _ in range(2))
    for info in (*declared.graph.input, *declared.graph.output):
        name = {"past": "past_sequence_length", "pres": "total_sequence_length"}.get(info.name[:4])
        if name:
            info.type.tensor_type.shape.dim[2].dim_param = name
    one, two = (onnxperf.llm(m, gpu="l4", prompt=16, output=9, batch=[2]) for m in (own, declared))
    assert one.batches == two.batches and one.largest_batch == two.largest_batch


def test_each_input_may_have_names_of_its_own() -> None:
    """torch.export with Dim.DYNAMIC names the length of each cache apart, where nothing in the model compares them."""
    built = model(("s10", "s70"), ("s10", 2, "s15", 4), ("s43", "s53"))
    (cache,) = (i for i in built.graph.input if i.name.startswith("past"))
    other = built.graph.input.add()
    other.CopyFrom(cache)
    other.name = "past_key_values.0.value"
    other.type.tensor_type.shape.dim[2].dim_param = "s89"
    positions = built.graph.input.add()
    positions.CopyFrom(built.graph.input[0])
    positions.name = "position_ids"
    positions.type.tensor_type.shape.dim[0].dim_param = "s11"
    found = decoder_dims(built).bound(3, 2, 7, 99)
    assert found == {"s10": 3, "s70": 2, "s11": 3, "s15": 7, "s89": 7, "s43": 3, "s53": 9}


def written_by_scatter(length: int | str) -> ModelProto:
    """Keys and values that a TensorScatter writes into a buffer, and an Attention of opset 24 that reads it."""
    text = f"""<ir_version: 11, opset_import: ["" : 24]>
    decoder (int64[b, s] input_ids, float16[b, 2, s, 8] x, int64[b] at, int64[b] filled,
             float16[b, 2, {length}, 8] past_key_values) => (float16[b, 2, s, 8] logits, float16[b, 2, {length}, 8] now)
    {{ now = TensorScatter (past_key_values, x, at)
       logits = Attention <is_causal = 1> (x, now, now, , , , filled) }}"""
    return onnx.parser.parse_model(text)


def test_a_buffer_that_a_scatter_writes_is_as_long_as_a_whole_sample() -> None:
    """Its one length is not that of the past, which would grow by a copy; or it is fixed."""
    found = decoder_dims(written_by_scatter("most"))
    assert found.in_place and found.bound(3, 2, 7, 99) == {"b": 3, "s": 2, "most": 99}
    fixed = decoder_dims(written_by_scatter(64))
    assert fixed.room == 64 and fixed.bound(3, 2, 7, 50) == {"b": 3, "s": 2}


def test_a_buffer_of_grouped_attention_may_have_a_fixed_length() -> None:
    """Of which a step reads what is filled, as of one that is as long as the sample."""
    built, usual = (decoder(config_of(TINY), dtype="float16") for _ in range(2))
    for info in (*built.graph.input, *built.graph.output):
        if info.name.startswith(("past", "present")):
            info.type.tensor_type.shape.dim[2].dim_value = 64
    fixed, open_ = (onnxperf.llm(m, gpu="l4", prompt=16, output=9, batch=2).batches[0] for m in (built, usual))
    assert fixed.token.seconds == pytest.approx(open_.token.seconds, rel=1e-3)
    assert (fixed.cache_bytes, fixed.longest_context) == (open_.cache_bytes * 64 // 25, 64)


def test_caches_of_a_fixed_length_have_room_for_so_many_tokens() -> None:
    """As torch's StaticCache: the whole buffer is read and given back in every run."""
    built = model(("b", "s"), ("b", 2, 64, 4))
    g = onnxperf.llm(built, gpu="l4", prompt=16, output=9, batch=[2])
    assert g.cache_bytes_per_token == 2 * 4 * 2 and g.batches[0].longest_context == 64
    assert g.batches[0].cache_bytes == 2 * 64 * g.cache_bytes_per_token
    with pytest.raises(UsageError, match="room for 64 tokens, not for 73"):
        onnxperf.llm(built, gpu="l4", prompt=64, output=9)
