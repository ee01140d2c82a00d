"""Layers that attend to the keys and values of others, and layers of several sizes (Gemma 4)."""

from __future__ import annotations

from typing import Any

import onnxperf
from onnxperf.export.decoder import decoder
from onnxperf.export.decoder_config import config_of
from onnxperf.graph import opened
from onnxperf.language.core import steps_of
from onnxperf.language.steps import Steps
from onnxperf.running.pipeline import Request
from tests.export.test_decoder import accepted, sizes

E2B = sizes(
    262144, 1536, 10, 8, 1, 6144, model_type="gemma4_text", num_kv_shared_layers=5, use_double_wide_mlp=True,
    layer_types=[*["sliding_attention"] * 4, "full_attention"] * 2, torch_dtype="bfloat16",
)  # fmt: skip


def test_layers_share_the_keys_and_values_of_the_last_of_their_kind() -> None:
    c = config_of(E2B)
    assert [b.back for b in c.blocks] == [0, 0, 0, 0, 0, 2, 3, 4, 5, 5]
    assert [b.head_dim for b in c.blocks] == [256, 256, 256, 256, 512] * 2
    assert [b.inner for b in c.blocks] == [6144] * 5 + [12288] * 5
    assert c.cache_elements() == 2 * (4 * 256 + 512)
    assert c.cache_elements(tokens=1000, capped=True) == 2 * (4 * 256 * 512 + 512 * 1000)
    model = decoder(c, dtype="float16")
    assert {i.name for i in model.graph.input if "past" in i.name} == {
        f"past_key_values.{i}.{part}" for i in range(5) for part in ("key", "value")
    }
    few = {"vocab_size": 64, "vocab_size_per_layer_input": 64, "intermediate_size": 96}
    accepted(decoder(config_of({**E2B, **few}), dtype="float16"))


def test_a_step_reads_the_cache_of_a_layer_once_for_each_that_shares_it() -> None:
    """A window of 512 of 256 elements, or 2,001 of 512; one head of keys."""

    def work(**terms: Any) -> list[Any]:
        steps = steps_of(None, "h100", Request(b"", terms=terms), E2B)[0].made_for(4096)
        return [k.work for k in steps._run(2, 1, 2000).kernels.rows if k.op.endswith("CachedAttention")]

    found, rows = work(), 2 * 2  # samples, bytes
    cached = {512: rows * 2 * 512 * 256, 2001: rows * 2 * 2001 * 512}
    assert [w.size.keys for w in found] == [512, 512, 512, 512, 2001]
    for w in found:
        operands = rows * 8 * w.size.dim
        assert cached[w.size.keys] + operands < w.bytes_read < cached[w.size.keys] + 1.2 * operands
        assert w.bytes_written == operands
    g = onnxperf.llm(config=E2B, gpu="h100", prompt=64, output=9)
    assert g.cache_bytes_per_token == 2 * config_of(E2B).cache_elements()
    assert not any("no rule" in note for note in g.notes)
    assert any("5 of 10 layers attend to the keys and values of another" in note for note in g.notes)


def test_windows_bound_the_caches_of_engines_that_drop_the_rest() -> None:
    """Keys and values of 16 layers of 4,096 positions, or of 8 and 8 of 512; a step takes as long."""
    given = sizes(1024, 2048, 16, 16, 8, 4096, model_type="olmo3", sliding_window=512, torch_dtype="bfloat16",
                  layer_types=["sliding_attention", "full_attention"] * 8)  # fmt: skip
    c = config_of(given)
    whole, capped = (opened(decoder(c, dtype="bfloat16", capped=x)) for x in (False, True))
    runs = [Steps(m, "h100", Request(b"")).made_for(4096)._run(2, new, past) for m in (whole, capped)
            for new, past in ((1, 4000), (2048, 0))]  # fmt: skip
    held = [sum(t.bytes for t in run.typed_graph.inputs if "past" in t.name) for run in runs]
    each = 2 * 2 * 2 * 8 * 128  # bytes of a position in a layer
    assert held == [each * 16 * 4096] * 2 + [each * 8 * (4096 + 512)] * 2
    assert c.cache_elements(tokens=4096, capped=True) * 2 * 2 == held[2]
    for first, second in ((0, 2), (1, 3)):
        seconds = [float(runs[i].timeline.total_s[0]) for i in (first, second)]
        assert abs(seconds[1] / seconds[0] - 1) < 0.01
        assert runs[second].memory(0).total_bytes < runs[first].memory(0).total_bytes - 0.9 * (held[0] - held[2])
