"""Speculative decoding: the formula, the runs that a step consists of, memory of two models, and what can't be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import onnxperf
from onnxperf.ground.errors import Error, UsageError
from onnxperf.language.arrivals import Arrival
from onnxperf.language.generation import Lengths, first_token, needed_bytes
from onnxperf.language.prices import prices
from onnxperf.language.service import Server, simulate
from onnxperf.language.steps import Steps
from onnxperf.running.pipeline import Request
from onnxperf.running.terms import as_terms
from tests.language.test_generation import SAMPLES, SMALL
from tests.language.test_laws import DENSE, LESS
from tests.language.test_service import linear, price
from tests.steps_once import steps_once

TINY_DRAFT = {**SMALL, "num_hidden_layers": 1}
DRAFT = {**DENSE, "num_hidden_layers": 1, "hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8,
         "num_key_value_heads": 2}  # fmt: skip


def speculating(
    config: Any = DENSE, draft: Any = DRAFT, accept: float = 0.7, tokens: int = 4, gpu: str = "l4", **more: Any
) -> Steps:
    terms = as_terms({k: v for k, v in more.items() if k != "engine"})
    engine = more.get("engine", "ort-genai")
    how = {"config": config, "engine": engine, "draft": draft, "accept": accept, "draft_tokens": tokens}
    return steps_once(None, gpu, Request(b"", terms=terms), **how)[0].made_for(600)


def test_tokens_of_a_step_are_those_of_the_formula() -> None:
    """(1 - a^(K + 1)) / (1 - a); 1 where nothing is accepted, K + 1 where all is, 1 + a of one proposed token."""
    for a, k in ((0.7, 4), (0.5, 1), (0.9, 10), (0.999, 64)):
        assert speculating(SMALL, TINY_DRAFT, a, k).per_step == pytest.approx((1 - a ** (k + 1)) / (1 - a))
    assert [speculating(SMALL, TINY_DRAFT, a, 4).per_step for a in (0.0, 1.0)] == [1, 5]
    assert speculating(SMALL, TINY_DRAFT, 0.25, 1).per_step == 1.25
    assert speculating(SMALL, TINY_DRAFT, 0.7, 4).per_step == pytest.approx(2.7731)


def test_tokens_of_a_step_are_the_mean_of_drawn_ones() -> None:
    """Tokens are accepted until the first that is not; one more is the model's own."""
    accepted = np.random.default_rng(0).random((200_000, 4)) < 0.6
    drawn = 1 + np.cumprod(accepted, axis=1).sum(axis=1)
    assert speculating(SMALL, TINY_DRAFT, 0.6, 4).per_step == pytest.approx(drawn.mean(), rel=0.01)


def test_a_step_is_runs_of_the_draft_and_one_of_the_model() -> None:
    own, draft = (steps_once(None, "l4", Request(b""), c)[0].made_for(604) for c in (DENSE, DRAFT))
    steps = speculating()
    (b,) = onnxperf.llm(config=DENSE, gpu="l4", prompt=500, output=2, draft=DRAFT, accept=0.7).batches
    step = draft.seconds(1, 1, 500).times(4) + own.seconds(1, 5, 500)
    assert steps.decode(1, (500,)).ends() == pytest.approx(step.ends())
    assert b.token.ends() == pytest.approx(step.times(1 / 2.7731).ends())
    assert b.begin.ends() == b.end.ends() == pytest.approx(step.ends())
    assert b.first.ends() == pytest.approx((own.seconds(1, 500, 0) + draft.seconds(1, 500, 0)).ends())
    assert b.speculation is not None
    assert b.speculation.without.ends() == pytest.approx(own.seconds(1, 1, 500).ends())
    assert b.speculation.speedup == pytest.approx(b.speculation.without.seconds / b.token.seconds)
    assert (b.speculation.proposal + b.speculation.verification).ends() == pytest.approx(step.ends())


def test_nothing_accepted_is_slower_and_all_accepted_divides_the_step() -> None:
    none, every = (onnxperf.llm(config=DENSE, gpu="l4", prompt=500, output=9, draft=DRAFT, accept=a) for a in (0, 1))
    (a,), (b,) = none.batches, every.batches
    assert a.token.seconds == pytest.approx(5 * b.token.seconds) and a.first == b.first
    assert a.token.seconds == pytest.approx((a.begin.seconds + a.end.seconds) / 2)
    assert a.speculation is not None and b.speculation is not None
    assert a.speculation.speedup < 1 < b.speculation.speedup
    assert any("longer with the draft than without it at batch 1" in note for note in none.notes)
    assert not any("longer with the draft" in note for note in every.notes)


def test_many_samples_leave_less_to_gain() -> None:
    """Verifying reads weights as often as a step and computes five times as much, which costs in large batches."""
    g = onnxperf.llm(config=DENSE, gpu="l4", prompt=100, output=9, batch=[1, 64, 128], draft=DRAFT, accept=0.3)
    gains = [b.speculation.speedup for b in g.batches if b.speculation is not None]
    assert gains[0] > 1 > gains[1] > gains[2]
    assert any(note.endswith("without it at batch 64 and more") for note in g.notes)


def test_both_models_and_both_caches_are_in_memory() -> None:
    asked: dict[str, Any] = {"config": DENSE, "gpu": "l4", "prompt": 500, "output": 100, "batch": [1, 8]}
    plain, small = onnxperf.llm(**asked), onnxperf.llm(**{**asked, "config": DRAFT})
    both = onnxperf.llm(**asked, draft=DRAFT, accept=0.5)
    assert both.draft is not None and both.weights_bytes == plain.weights_bytes
    assert both.draft.weights_bytes == small.weights_bytes
    assert both.draft.cache_bytes_per_token == small.cache_bytes_per_token == 2 * 2 * 128 * 2
    for a, b, c in zip(plain.batches, both.batches, small.batches, strict=True):
        assert b.cache_bytes == a.cache_bytes + c.cache_bytes
        kept = small.weights_bytes + c.cache_bytes
        assert b.needed_bytes == pytest.approx(a.needed_bytes + kept, rel=0.01)
        assert b.longest_context <= a.longest_context
    assert both.largest_batch < plain.largest_batch
    steps, lengths = speculating(), Lengths(500, 100)
    assert needed_bytes(steps, both.largest_batch, lengths) <= both.capacity_bytes
    assert needed_bytes(steps, both.largest_batch + 1, lengths) > both.capacity_bytes


def test_the_draft_may_be_the_larger_one_in_memory() -> None:
    """Whichever runs, the other keeps its weights."""
    one, other = ((DENSE, DRAFT), (DRAFT, DENSE))
    needs = [needed_bytes(speculating(*pair), 4, Lengths(500, 100)) for pair in (one, other)]
    assert needs[0] == pytest.approx(needs[1], rel=0.02)


def test_an_engine_replays_the_verification_and_its_host_works_once() -> None:
    steps = speculating(engine="vllm")
    draft, host = steps.draft, steps.engine.step_s + 8 * steps.engine.request_s
    assert draft is not None
    alone = steps_once(None, "l4", Request(b""), DRAFT, engine="vllm")[0].made_for(604).seconds(8, 1, 500).seconds
    assert draft.proposal(8, (500,)).seconds == pytest.approx(4 * (alone - host))
    bare = draft.verifying._bare([(8, 5, 500)])[0].outline.seconds
    assert draft.verification(8, (500,)).seconds == pytest.approx(bare + host)
    logits = [s._run(2, 5, 500).graph.outputs[0].shape for s in (steps, draft.verifying)]
    assert [shape[1] for shape in logits] == [1, 5]


def test_requests_take_as_many_steps_as_their_tokens_need() -> None:
    """Ten tokens behind the first at 2.5 a step are four steps after contexts of 30, 32.5, 35 and 37.5."""
    server = Server(running=8, cache_tokens=10**9, budget=100, width=4, per_step=2.5)
    (one,) = simulate([Arrival(0.0, 30, 11)], server, price).served
    assert one.each_token * 10 == pytest.approx(sum(price(1, 30 + 2.5 * i, 0, 0) for i in range(4)))
    assert [server.steps(replace(one, arrival=Arrival(0, 9, n))) for n in (1, 2, 3, 4, 6, 7)] == [0, 1, 1, 2, 2, 3]
    assert server.held(one) == 30 + 11 + 3


def test_a_loop_with_a_draft_has_the_mean_of_its_formula() -> None:
    """A step gives 4 tokens, and the prompts of others come between: (step + (n - 1) prefill / steps) / 4."""
    n, server = 16, Server(16, 10**9, 8192, mixed=False, width=5, per_step=4.0)
    arrivals = [Arrival(0.0, 100, 385 + 4 * (i % 9)) for i in range(40 * n)]
    found = simulate(arrivals, server, linear(0.01, 5e-5), n)
    mean = np.mean([s.each_token for s in found.served])
    assert mean == pytest.approx((0.01 + (n - 1) * 100 * 5e-5 / 100) / 4, rel=0.02)
    assert found.decoded == sum(-(-(a.output - 1) // 4) for a in arrivals)


def test_the_budget_holds_what_is_verified() -> None:
    calls = []
    server = Server(4, 10**9, 60, width=5, per_step=2.0)
    simulate([Arrival(0.01 * i, 70, 20) for i in range(30)], server, lambda *c: calls.append(c) or 0.01)
    assert max(5 * d + new for d, _, new, _ in calls) == 60
    with pytest.raises(UsageError, match="too small for 4 concurrent requests: each decode takes 5 tokens"):
        simulate([Arrival(0.0, 70, 20)], replace(server, budget=20), price)


def test_iterations_cost_what_their_runs_are_predicted_to() -> None:
    steps = speculating(engine="vllm")
    own, d = prices(steps, 16, 512)[0], steps.draft
    assert d is not None
    assert own(16, 1, 0, 0) == pytest.approx(steps.decode(16, (1,)).seconds)
    assert own(4, 400, 0, 0) == pytest.approx(steps.decode(4, (400,)).seconds, rel=0.02)
    assert own(0, 0, 256, 0) == pytest.approx(steps.seconds(1, 256, 0).seconds + d.steps.seconds(1, 256, 0).seconds)
    mixed = own(8, 300, 200, 0)
    assert own(0, 0, 200, 0) < mixed < own(0, 0, 200, 0) + own(8, 300, 0, 0)


def test_requests_with_a_draft_are_told_beside_those_without() -> None:
    asked: dict[str, Any] = {"config": DENSE, "gpu": "l4", "prompt": 200, "output": 50, "batch": 4, "engine": "vllm"}
    plain, both = (onnxperf.llm(**asked, concurrency=[1, 16], **d) for d in ({}, {"draft": DRAFT, "accept": 0.8}))
    for a, b in zip(plain.curve, both.curve, strict=True):
        ratio = a.times["time_per_output_token"].mean.seconds / b.times["time_per_output_token"].mean.seconds
        assert b.speedup == pytest.approx(ratio) and ratio > 1 and a.speedup is None
    alone = both.curve[0].times["time_per_output_token"].mean.seconds
    table = onnxperf.llm(**{**asked, "batch": 1}, draft=DRAFT, accept=0.8).batches[0].token.seconds
    assert alone == pytest.approx(table, rel=0.05)  # a last step may give tokens beyond the end
    assert both.curve[0].server.cache_tokens < plain.curve[0].server.cache_tokens
    arriving = onnxperf.llm(**asked, qps=2, requests=50, draft=DRAFT, accept=0.8).service
    assert arriving is not None and arriving.speedup is not None and arriving.speedup > 1
    data = both.to_dict()
    assert data["draft"]["tokens_per_step"] == pytest.approx(3.3616) and plain.to_dict()["draft"] is None
    assert set(data["batches"][0]["speculation"]) == {"proposal", "verification", "without", "speedup"}
    assert plain.to_dict()["batches"][0]["speculation"] is None


def test_several_gpus_divide_the_draft_as_well() -> None:
    one, two = (onnxperf.llm(config=DENSE, gpu="h100", draft=DRAFT, accept=0.7, parallel=p) for p in (None, "tp=2"))
    assert one.draft is not None and two.draft is not None
    assert two.draft.cache_bytes_per_token == one.draft.cache_bytes_per_token / 2
    rotations = 2 * 2 * 64 * (1 << 17)  # tables of each position, which every GPU has
    parts = [d.weights_bytes - rotations for d in (one.draft, two.draft)]
    assert parts[1] == pytest.approx(parts[0] / 2, rel=0.01)


def test_a_prompt_of_both_models_may_be_cached_and_in_chunks() -> None:
    steps, lengths = speculating(), Lengths(400, 50, 128, cached=0.5)
    assert steps.draft is not None
    runs = lengths.prompt_runs()
    assert runs == ((128, 200), (72, 328))
    each = [own.seconds(1, *run).seconds for own in (steps, steps.draft.steps) for run in runs]
    assert first_token(steps, 1, lengths).seconds == pytest.approx(sum(each))


def test_a_sample_may_reach_the_longest_context_of_both() -> None:
    asked: dict[str, Any] = {"config": SMALL, "gpu": "l4", "prompt": 4000, "output": 96, "accept": 0.5}
    assert onnxperf.llm(**asked, draft=TINY_DRAFT).batches[0].fits
    with pytest.raises(UsageError, match="the draft was made for 2,048"):
        onnxperf.llm(**asked, draft={**TINY_DRAFT, "max_position_embeddings": 2048})


MAMBA = {
    "model_type": "mamba2", "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 2,
    "head_dim": 64, "state_size": 16, "n_groups": 1, "conv_kernel": 4, "expand": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"accept": 0.5}, "accept and draft_tokens need draft"),
        ({"draft_tokens": 2}, "accept and draft_tokens need draft"),
        ({"draft": TINY_DRAFT}, "draft needs accept: how likely"),
        ({"draft": TINY_DRAFT, "accept": 1.5}, "accept must be a share from 0 to 1, not 1.5"),
        ({"draft": TINY_DRAFT, "accept": float("nan")}, "accept must be a share from 0 to 1"),
        ({"draft": TINY_DRAFT, "accept": 0.5, "draft_tokens": 10**9}, "a whole number from 1 to 64, not 1000000000"),
        ({"draft": TINY_DRAFT, "accept": 0.5, "draft_tokens": 0}, "a whole number from 1 to 64, not 0"),
        ({"draft": TINY_DRAFT, "accept": 0.5, "draft_tokens": 2.0}, "a whole number from 1 to 64, not 2.0"),
        (
            {"draft": {**TINY_DRAFT, "vocab_size": 999}, "accept": 0.5},
            "draft has a vocabulary of 999 tokens, and the model of [0-9,]+: it must be the same",
        ),
        ({"draft": {"model_type": "nonsense"}, "accept": 0.5}, "nonsense"),
        ({"draft": TINY_DRAFT, "accept": 0.5, "parallel": "pp=2:microbatches=2"}, "with microbatches is not predicted"),
        ({"draft": {**TINY_DRAFT, "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 48}, "accept": 0.5,
          "parallel": "tp=2"}, "draft: tp=2 does not divide 3 heads"),
    ],
)  # fmt: skip
def test_what_cannot_be_says_why(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(Error, match=says) as e:
        onnxperf.llm(config=SMALL, gpu="l4", prompt=64, output=8, **asked)
    assert e.value.exit_code == 2


def test_files_and_states_take_no_draft() -> None:
    with pytest.raises(UsageError, match="draft needs config"):
        onnxperf.llm(SAMPLES / "gpt2-past.onnx", gpu="l4", draft=TINY_DRAFT, accept=0.5)
    same = {**TINY_DRAFT, "vocab_size": 1000}
    for pair in ((MAMBA, same), (same, MAMBA)):
        with pytest.raises(UsageError, match="models with states, which take no token back"):
            onnxperf.llm(config=pair[0], gpu="l4", prompt=64, output=8, draft=pair[1], accept=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["l4", "h100", "b200"])
@pytest.mark.parametrize("engine", ["ort-genai", "vllm"])
def test_verifying_takes_no_less_than_a_step_and_no_more_than_steps_apart(gpu: str, engine: str) -> None:
    steps = speculating(gpu=gpu, engine=engine)
    assert steps.draft is not None
    for batch in (1, 8, 64):
        one, five = steps.seconds(batch, 1, 500).seconds, steps.draft.verification(batch, (500,)).seconds
        assert (1 - LESS) * one < five < 5 * one, (batch, one, five)
