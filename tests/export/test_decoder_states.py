"""Layers of linear attention: what they keep, and what a step and a prompt cost."""

from __future__ import annotations

from typing import Any

import pytest

import gpu_specs
import onnxperf
from onnxperf.export.decoder import decoder, parameters
from onnxperf.export.decoder_config import config_of
from onnxperf.language.core import steps_of
from onnxperf.running.pipeline import Request
from onnxperf.running.run import Run
from tests.export.test_decoder import PUBLISHED, accepted

#: Few layers of each kind, at the width of published models.
HYBRIDS: dict[str, dict[str, Any]] = {
    "delta": {**PUBLISHED["Qwen3.5-9B"][0]["text_config"], "model_type": "qwen3_5_text", "num_hidden_layers": 4},
    "mamba2": {**PUBLISHED["Mamba-Codestral-7B"][0], "num_hidden_layers": 3},
    "mamba": {**PUBLISHED["Mamba-2.8B"][0], "num_hidden_layers": 3},
    "with experts": {**PUBLISHED["Jamba-v0.1"][0], "num_hidden_layers": 8},
    "one part a layer": {
        **PUBLISHED["Nemotron-Nano-9B-v2"][0], "num_hidden_layers": 4, "hybrid_override_pattern": "M-*-",
    },
}  # fmt: skip


def ran(name: str, batch: int, new: int, past: int, **terms: Any) -> Run:
    given = {**HYBRIDS[name], "torch_dtype": "bfloat16"}
    steps = steps_of(None, "h100", Request(b"", terms=terms), given, prune_lm_head=True)[0]
    return steps.made_for(4096)._run(batch, new, past)


@pytest.mark.parametrize("name", HYBRIDS)
def test_onnx_accepts_the_graphs(name: str) -> None:
    model = decoder(config_of({**HYBRIDS[name], "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96}),
                    dtype="float16")  # fmt: skip
    for t in model.graph.initializer:  # of decays, which are in float32
        t.data_type = 10 if t.data_type == 1 and t.data_location == 1 else t.data_type
    accepted(model)


@pytest.mark.parametrize("name", ["delta", "mamba2", "mamba"])
def test_a_step_reads_and_writes_each_state_whatever_the_context(name: str) -> None:
    c = config_of(HYBRIDS[name])
    assert c.state is not None
    runs = [ran(name, 8, 1, past) for past in (100, 4000)]
    both = [[k.work for k in run.kernels.rows if k.op.endswith(("LinearAttention", "StateSpace"))] for run in runs]
    assert both[0] == both[1] and len(both[0]) == 3
    matrix, conv = 4 * 8 * c.state.width * c.state.key_dim, 2 * 8 * (c.state.taps - 1) * c.state.channels
    for w in both[0]:
        scales = 4 * c.state.width * c.state.key_dim if name == "mamba" else 0  # A, of all samples
        operands = scales + 2 * 8 * (2 * c.state.width + 2 * c.state.key_heads * c.state.key_dim)
        assert 2 * matrix < w.bytes < 2 * matrix + 2.2 * operands
    kernels = [k.work for k in runs[0].kernels.rows if k.op.endswith("CausalConvWithState")]
    assert len(kernels) == 3 and all(w.bytes > 2 * conv for w in kernels)
    held = sum(t.bytes for t in runs[0].typed_graph.inputs if "state" in t.name)
    assert held == 3 * (matrix + conv)


def test_a_delta_net_has_the_flops_of_its_recurrence_in_a_step_and_of_its_chunks_in_a_prompt() -> None:
    """16 heads of queries and keys of 128, 32 of values: 3 products with a state; and chunks of 64 tokens."""
    state, among = 2 * 128 * 128 * 32 * 3, 2 * 64 * 128 * (16 + 32 + 16 + 2 * 32)
    for new, each in ((1, state), (512, state + among)):
        found = [
            k.work for k in ran("delta", 2, new, 0 if new > 1 else 9).kernels.rows if k.op.endswith("LinearAttention")
        ]
        assert {w.matrix_flops for w in found} == {2 * new * each}


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize(("new", "past"), [(1, 2000), (512, 0)])
def test_runs_take_no_less_than_weights_and_flops_do(name: str, new: int, past: int) -> None:
    """And not many times more: a small multiple of both beside some microseconds a kernel."""
    run, card = ran(name, 1, new, past), gpu_specs.load("h100")
    work = [k.work for k in run.kernels.rows]
    flops, moved = sum(w.matrix_flops for w in work), sum(w.bytes for w in work)
    least = max(flops / card.dense_flops["tensor_bf16"], moved / card.bandwidth_Bps)
    assert least < float(run.timeline.total_s[0]) < 4 * least + 8e-6 * len(work)


@pytest.mark.parametrize("name", HYBRIDS)
def test_what_a_sample_keeps_is_counted_and_said(name: str) -> None:
    given = HYBRIDS[name]
    c, g = config_of(given), onnxperf.llm(config=given, gpu="h100", prompt=64, output=9, batch=4)
    kept = 0
    for b in c.blocks:
        if c.state and b.mixer == c.state.kind:
            kept += 4 * c.state.width * c.state.key_dim + 2 * (c.state.taps - 1) * c.state.channels
    assert g.cache_bytes_per_token == 2 * c.cache_elements()
    assert g.batches[0].cache_bytes == 4 * (73 * 2 * c.cache_elements() + kept) and g.largest_batch > 4
    assert sum("linear attention and state spaces" in note for note in g.notes) == 1
    assert not any("no rule" in note or "attention is not fused" in note for note in g.notes)


def test_gpus_divide_heads_of_states() -> None:
    """Weights and states of a delta net and of Mamba-2 with several groups; one group is shared by all its heads."""
    for name in ("delta", "mamba2"):
        one, two = (
            onnxperf.llm(config=HYBRIDS[name], gpu="h100", prompt=64, output=9, parallel=p) for p in (None, "tp=2")
        )
        assert two.batches[0].cache_bytes == one.batches[0].cache_bytes / 2
        assert two.weights_bytes < 0.7 * one.weights_bytes
    given = {**HYBRIDS["mamba2"], "n_groups": 1}
    with pytest.raises(onnxperf.Error, match="tp=2 does not divide 1 heads"):
        onnxperf.llm(config=given, gpu="h100", prompt=64, output=9, parallel="tp=2")


def test_parameters_do_not_depend_on_how_weights_are_stored() -> None:
    for given in HYBRIDS.values():
        c = config_of(given)
        whole, packed = (parameters(decoder(c, dtype="float16", weights=w), c) for w in (None, "int4"))
        assert whole == packed
