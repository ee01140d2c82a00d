"""Tensor parallelism of products in packed weights, of mixtures, and of attention that contains its product."""

from __future__ import annotations

from typing import Any

import pytest

import onnxperf
from onnxperf.ground.errors import UsageError
from onnxperf.language.core import steps_of
from onnxperf.running.pipeline import Request
from op_models import work_of
from tests.export.test_decoder import LLAMA3, PUBLISHED
from tests.runtimes.conftest import build

#: Two layers of each, and few words, so that what every GPU computes whole is little.
CONFIGS = {
    name: {**config, "num_hidden_layers": 2, "vocab_size": 4096, "first_k_dense_replace": 1}
    for name, config in (
        ("llama", LLAMA3), *((name, PUBLISHED[name][0]) for name in ("Qwen3-8B", "Mixtral-8x7B", "DeepSeek-V3")),
    )
}  # fmt: skip


def run(config: dict[str, Any], parallel: str | None, weights: str | None, new: int = 16, past: int = 0) -> Any:
    steps, _ = steps_of(None, "h100", Request(b"", terms={"parallel": parallel}), config, weights=weights)
    return steps.made_for(64)._run(2, new, past)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, "int4", "int8"])
@pytest.mark.parametrize(("name", "at"), [*((name, (16, 0)) for name in CONFIGS), ("DeepSeek-V3", (1, 16))])
def test_a_gpu_has_its_part_of_flops_weights_and_cache(name: str, at: tuple[int, int], weights: str | None) -> None:
    one, two = (run(CONFIGS[name], p, weights, *at) for p in (None, "tp=2"))
    flops = [sum(work_of(o).matrix_flops for o in r.own_graph.operators) for r in (one, two)]
    assert 0.5 <= flops[1] / flops[0] < 0.54
    stored = [sum(t.bytes for t in _weights(r)) for r in (one, two)]
    assert 0.5 <= stored[1] / stored[0] < 0.54
    caches = [sum(t.bytes for t in r.own_graph.inputs if "past" in t.name) for r in (one, two)]
    shared = "kv_lora_rank" in CONFIGS[name]  # by all heads
    assert caches[1] == (caches[0] if shared else caches[0] / 2)
    reduced = [o for o in two.own_graph.operators if o.type == "nccl::AllReduce" or "all_reduce" in o.name]
    assert len(reduced) >= 2 * 2, "two in each layer at least"


def _weights(r: Any) -> list[Any]:
    """The stored tensors of the products and mixtures of a run, each once."""
    operators = [
        o for o in r.own_graph.operators if o.type.rpartition("::")[2] in ("MatMul", "MatMulNBits", "MoE", "QMoE")
    ]
    return list({t.name: t for o in operators for t in o.present[1:] if t.stored}.values())


def test_blocks_of_packed_weights_stay_whole() -> None:
    config = {**CONFIGS["llama"], "intermediate_size": 32 * 6}
    assert run(config, "tp=2", "int4").own_graph
    with pytest.raises(UsageError, match=r"tp=4 does not divide 6 blocks of weights of node .*: tp=2 fits"):
        run(config, "tp=4", "int4").own_graph  # noqa: B018


def test_attention_that_contains_its_product_is_divided_by_heads() -> None:
    text = """(float[2,8,256] x, float[2,2,4,100,64] past) => (float[2,8,256] y, float[2,2,4,108,64] present)
    {a, present = com.microsoft.Attention<num_heads=4,unidirectional=1>(x, w, b, , past)  y = MatMul(a, o)}"""
    model = build(text, {"w": (256, 768), "b": (768,), "o": (256, 256)})
    one, two = (onnxperf.predict(model, gpu="h100", parallel=p) for p in (None, "tp=2"))
    assert two.work["matrix_flops"] * 2 == one.work["matrix_flops"]
    past = [next(t.shape for t in p.run.own_graph.inputs if t.name == "past") for p in (one, two)]
    assert past == [(2, 2, 4, 100, 64), (2, 2, 2, 100, 64)]
    with pytest.raises(UsageError, match="tp=3 does not divide 4 heads"):
        onnxperf.predict(model, gpu="h100", parallel="tp=3")
