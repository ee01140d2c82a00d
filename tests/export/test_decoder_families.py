"""Every family that is known: it predicts, at no less than its bytes take, and what can't be is said, not raised."""

from __future__ import annotations

import random
from typing import Any

import pytest

import gpu_specs
import onnxperf
from onnxperf.export.decoder import decoder
from onnxperf.export.decoder_config import config_of
from onnxperf.export.decoder_families import ALIASES, FAMILIES, OTHERS, PLACEMENTS, SAME
from onnxperf.ground.errors import UsageError
from tests.export.test_decoder import PUBLISHED, SMALL_LATENT, TINY
from tests.export.test_decoder_logits import MODELS

#: A configuration of each family, from those whose logits or parameters are held to others'.
SMALL: dict[str, dict[str, Any]] = {
    **{kind: {**TINY, **SMALL_LATENT, "head_dim": 16, "model_type": kind} for kind in ("mistral", "gemma", "deepseek")},
    **{kind: {**given, "model_type": kind} for kind, given in MODELS.values()},
    **{
        kind: {**TINY, **SMALL_LATENT, "model_type": kind, "head_dim": 16, "num_local_experts": 4,
               "moe_num_experts": 4, "moe_k": 2}
        for kind in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "llama4_text", "dots1",
                     "minimax_m2", "phimoe", "ernie4_5_moe")
    },
}  # fmt: skip


def test_each_family_has_a_configuration_here() -> None:
    assert set(SMALL) == set(FAMILIES)
    published = {
        given.get("text_config", given).get("model_type", given["model_type"]) for given, _ in PUBLISHED.values()
    }
    missing = set(FAMILIES) - {SAME.get(kind, kind) for kind in published}
    assert missing <= {"deepseek", "glm", "dots1", "glm4_moe", "gemma3n_text"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_each_family_predicts(kind: str) -> None:
    """A prompt, and a token after it, which reads at least half of the weights: embeddings and experts aside."""
    given = {**SMALL[kind], "torch_dtype": "bfloat16"}
    g = onnxperf.llm(config=given, gpu="h100", prompt=16, output=2, prune_lm_head=True)
    c, card = config_of(given), gpu_specs.load("h100")
    idle = sum(c.sparse) * 2 * 3 * (c.experts - c.taken) * c.hidden * c.expert_inner
    embedding = 2 * (c.vocab * c.hidden + c.per_layer_vocab * c.per_layer * c.layers)
    least = (g.weights_bytes - idle - embedding) / 2 / card.bandwidth_Bps
    batch = g.batches[0]
    assert 0 < least < batch.token.seconds < 2e-3 and batch.token.seconds < 2 * batch.first.seconds
    assert g.largest_batch > 1 and not any("no rule" in note or "unknown" in note for note in g.notes)


def test_rows_say_what_is_known() -> None:
    names = {*ALIASES.values(), *(k for row in FAMILIES.values() for k in row)}
    assert not {*SAME} & {*FAMILIES} and {*SAME.values()} <= {*FAMILIES} and not OTHERS & {*FAMILIES, *SAME}
    assert {row.get("placement", "pre") for row in FAMILIES.values()} == {*PLACEMENTS}
    assert not {*ALIASES} & names


@pytest.mark.parametrize("kind", FAMILIES)
def test_nonsense_in_a_configuration_is_refused_with_words(kind: str) -> None:
    """Any value of any key: a configuration, or a UsageError that names the key."""
    rng, base = random.Random(kind), SMALL[kind]
    values: list[Any] = [None, True, -1, 0, 1, 3, 7, 1 << 30, 0.5, "x", "", [], [1], ["full_attention"], {}, {"a": 1}]
    for key in {*base, *FAMILIES[kind], "layer_types", "rope_parameters", "mlp_only_layers", "indexer_types"} - {
        "model_type"
    }:
        for value in rng.sample(values, 8):
            try:
                c = config_of({**base, key: value})
            except UsageError as e:
                assert str(e).startswith("config.json: ")
            else:
                decoder(c, dtype="float16") if c.layers * c.hidden < 4096 and c.layers < 9 else None
