"""What every generation keeps, whatever its model, card, lengths and batch."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise, product
from typing import Any

import pytest

import gpu_specs
import onnxperf
from onnxperf.language.generation import Lengths, first_token, needed_bytes
from onnxperf.language.steps import Steps
from onnxperf.running.pipeline import Request
from tests.export.test_decoder import LLAMA3
from tests.steps_once import steps_once

#: A few layers of Llama-3-8B and of a mixture of its size.
DENSE = {**LLAMA3, "num_hidden_layers": 4, "vocab_size": 32000, "max_position_embeddings": 1 << 17}
MIXED = {**DENSE, "model_type": "mixtral", "num_hidden_layers": 2}
CARDS = ("t4", "l4", "a100-sxm-80gb", "h200", "b200")
#: How much less time a larger run may be predicted to take, where another kernel or split is chosen.
LESS = 0.03


def steps(gpu: str, config: dict[str, Any] = DENSE, longest: int = 16384, **more: Any) -> Steps:
    """The steps of a model on a card, which keep their runs: many tests ask for the same."""
    return _steps(gpu, json.dumps(config), longest, **more)


@cache
def _steps(gpu: str, config: str, longest: int, weights: str | None = None, **terms: Any) -> Steps:
    request = Request(b"", terms=terms)
    return steps_once(None, gpu, request, json.loads(config), weights=weights)[0].made_for(longest)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize(
    ("config", "how"),
    [
        (DENSE, {}), (DENSE, {"weights": "int4"}), (DENSE, {"runtime": "torch-eager"}), (MIXED, {}),
        (DENSE, {"parallel": "tp=2"}),
    ],
)  # fmt: skip
def test_a_step_takes_no_less_with_more_context_or_samples(gpu: str, config: dict[str, Any], how: Any) -> None:
    own = steps(gpu, config, **how)
    contexts, batches = (1, 128, 1000, 1024, 16000), (1, 2, 3, 8, 9, 16, 17, 32, 64)
    for along in ([(8, past) for past in contexts], [(b, 1000) for b in batches]):
        times = {at: own.seconds(at[0], 1, at[1]).seconds for at in along}
        for one, other in pairwise(along):
            assert times[other] > (1 - LESS) * times[one], (one, other, times[one], times[other])


@pytest.mark.slow
@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("config", [DENSE, MIXED])
def test_a_prompt_takes_no_less_with_more_tokens_and_throughput_hardly_falls(gpu: str, config: dict[str, Any]) -> None:
    own, lengths = steps(gpu, config), (1, 16, 17, 100, 128, 129, 500, 512, 1000, 2048, 2049, 4096)
    times = [own.seconds(1, new, 0).seconds for new in lengths]
    for (one, t), (other, u) in pairwise(zip(lengths, times, strict=True)):
        assert u > (1 - LESS) * t, (one, other, t, u)
    batches = (1, 2, 4, 8, 16, 32, 64)
    rates = [b / own.seconds(b, 1, 1000).seconds for b in batches]
    assert all(more > 0.97 * less for less, more in pairwise(rates)), rates


@pytest.mark.slow
@pytest.mark.parametrize("gpu", CARDS)
def test_chunks_of_a_prompt_take_as_long_as_the_whole_or_longer(gpu: str) -> None:
    own = steps(gpu)
    for prompt, chunk in product((2048, 3000, 8192), (256, 512, 1000)):
        whole, parts = (first_token(own, 1, Lengths(prompt, 2, c)).seconds for c in (None, chunk))
        assert 0.97 < parts / whole < 2.5, (prompt, chunk, parts / whole)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize(("batch", "past"), [(1, 1), (1, 8000), (16, 4000)])
def test_a_step_takes_no_less_than_reading_weights_and_cache(gpu: str, batch: int, past: int) -> None:
    """Each weight but the embedding, of which a step gathers rows, and each key and value, at DRAM's bandwidth."""
    card = gpu_specs.load(gpu)
    for weights, bits in ((None, 16), ("int4", 4.5), ("int8", 8.5)):
        own = steps(gpu, weights=weights)
        layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
        read = (4 * layer + 4096 * 32000) * bits / 8 + batch * past * 4 * 2 * 1024 * 2
        assert own.seconds(batch, 1, past).seconds > read / card.bandwidth_Bps


@pytest.mark.parametrize("kv_heads", [1, 8, 32])
@pytest.mark.parametrize(("precision", "size"), [("fp16", 2), ("fp32", 4)])
def test_a_tokens_cache_has_the_bytes_of_grouped_heads(kv_heads: int, precision: str, size: int) -> None:
    own = steps("h100", {**DENSE, "num_key_value_heads": kv_heads}, precision=precision)
    assert own.cache_bytes_per_token() == 4 * 2 * kv_heads * 128 * size


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["t4", "l4", "h100"])
@pytest.mark.parametrize("how", [{}, {"weights": "int8"}, {"chunk": 256}, {"parallel": "tp=2"}])
def test_the_largest_batch_fits_and_one_more_does_not(gpu: str, how: dict[str, Any]) -> None:
    g = onnxperf.llm(config=DENSE, gpu=gpu, prompt=3000, output=500, **how)
    asked = {name: value for name, value in how.items() if name != "chunk"}
    own, lengths = steps(gpu, longest=3500, **asked), Lengths(3000, 500, how.get("chunk"))
    fits, too_much = (needed_bytes(own, g.largest_batch + more, lengths) for more in (0, 1))
    assert fits <= g.capacity_bytes < too_much


def test_one_gpu_in_a_plan_is_one_gpu() -> None:
    one, plain = (onnxperf.llm(config=DENSE, gpu="h100", parallel=p, prompt=500, output=9) for p in ("tp=1", None))
    assert one == plain and str(one) == str(plain) and one.to_dict()["parallel"] == ""
