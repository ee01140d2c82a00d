"""Fused attention: what every card has to show, whatever the constants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_specs
from onnxperf.lab.datasets import Table
from onnxperf.lab.derive.fit import fitted_rows
from onnxperf.latency import alone, floors, shipped
from onnxperf.latency.cards import Cards, at_own_clock
from onnxperf.latency.families.attention import ATTENTION
from op_models import Operator, Tensor, Work, work_or_bytes

CARDS = [gpu_specs.load(i) for i in gpu_specs.ids() if gpu_specs.load(i).kind == "gpu"]
TENSOR = [d for d in CARDS if "tensor_bf16" in d.dense_flops]


def attend(
    batch: int, heads: int, kv: int, queries: int, keys: int, dim: int = 128, causal: bool = False,
    types: tuple[str, str] = ("bfloat16", "bfloat16"),
) -> Work:  # fmt: skip
    q = Tensor("q", types[0], (batch, heads, queries, dim))
    k, v = (Tensor(name, types[1], (batch, kv, keys, dim)) for name in "kv")
    out = Tensor("y", "bfloat16", q.shape)
    return work_or_bytes(Operator("a", "Attention", (q, k, v), (out,), {"is_causal": int(causal)}))[0]


def seconds(*works: Work) -> np.ndarray:
    return alone(works, CARDS, shipped(), budget=False).seconds


def test_more_keys_batch_or_heads_never_take_less_time_by_much() -> None:
    """Other tiles and parts can fill the SMs better, but by a wave at most."""
    for queries in (1, 512):
        keys = seconds(*(attend(64, 16, 4, queries, n) for n in (512, 1024, 2048, 4096, 8192)))
        batch = seconds(*(attend(b, 16, 4, queries, 2048) for b in (1, 4, 16, 64, 256)))
        heads = seconds(*(attend(64, h, h, queries, 2048) for h in (4, 8, 16, 32)))
        for found in (keys, batch, heads):
            assert (found[1:] > 0.95 * found[:-1]).all()
            assert (found[-1] > 1.5 * found[0]).all()


@settings(max_examples=40, deadline=None)
@given(
    queries=st.integers(2, 16), batch=st.sampled_from([1, 8, 64]), heads=st.sampled_from([(12, 12, 64), (32, 8, 128)]),
    causal=st.booleans(), keys=st.lists(st.integers(17, 20_000), min_size=2, max_size=12, unique=True),
)  # fmt: skip
def test_few_queries_never_get_faster_by_more_keys(
    queries: int, batch: int, heads: tuple[int, int, int], causal: bool, keys: list[int]
) -> None:
    """To a cache longer than the queries: where a kernel for decoding takes over, it is because that is faster; a wave
    of parts is the most that can fall: up to 18% of the time in a sweep of 17 to 20,000 keys on these cards.

    Once it took over at eight times as many keys as queries, and 64 heads with 2 queries took a 14th of the time.
    """
    h, kv, dim = heads
    works = [attend(batch, h, kv, queries, k, dim, causal) for k in sorted(keys)]
    found = alone(works, TENSOR, shipped(), budget=False).seconds
    assert (found > 0.8 * np.maximum.accumulate(found, axis=0)).all()


def test_heads_that_share_their_keys_are_read_once() -> None:
    """A cache beyond L2 takes as long as its bytes: multi-query attention reads a 32nd of them.

    The model says so; A100's library was measured to take up to 1.7 times as long as its bytes.
    """
    shared, own = seconds(attend(64, 32, 1, 1, 16384), attend(64, 32, 32, 1, 16384))
    assert (own > 5 * shared).all()
    least = floors((attend(64, 32, 32, 1, 16384),), TENSOR)[0]
    model = shipped().having({"attention.residual": {}})
    found = alone([attend(64, 32, 32, 1, 16384)], TENSOR, model, budget=False).seconds[0]
    assert (found < 1.5 * least).all()


def test_what_is_masked_is_skipped() -> None:
    causal, full = seconds(attend(8, 16, 16, 8192, 8192, causal=True), attend(8, 16, 16, 8192, 8192))
    assert ((causal / full > 0.45) & (causal / full < 0.75)).all()


def test_a_cache_of_8_bits_streams_faster() -> None:
    narrow = attend(64, 32, 8, 1, 16384, types=("bfloat16", "float8e4m3fn"))
    half, whole = alone([narrow, attend(64, 32, 8, 1, 16384)], TENSOR, shipped(), budget=False).seconds
    assert (half < 0.8 * whole).all()


def test_long_prompts_run_at_a_fair_share_of_the_rate() -> None:
    work = attend(4, 32, 32, 16384, 16384)
    for d, found in zip(TENSOR, alone([work], TENSOR, shipped(), budget=False).seconds[0], strict=True):
        share = work.matrix_flops / found / at_own_clock(d, shipped()).dense_flops["tensor_bf16"]
        cards = Cards([d], shipped())
        whole = (cards.whole_rate(["tensor_bf16"]) < 1.01 * cards.rate(["tensor_bf16"])).all()
        assert 0.3 < share < (0.9 if whole else 1), d.id  # held to a part of its rate, it hides what is beside it


def test_few_queries_to_a_long_cache_are_split_along_the_keys() -> None:
    b = alone([attend(1, 8, 8, 1, 65536), attend(256, 32, 8, 1, 1024)], TENSOR, shipped())
    assert all(" split " in name for name in b.variant[0]) and (b.launches[0] == 2).all() and (b.workspace[0] > 0).all()
    assert not any(" split " in name for name in b.variant[1])


def test_a_projection_inside_is_a_product_beside() -> None:
    """com.microsoft::Attention multiplies by its weights too: at a product's rate, however short the sequence is."""
    x, w = Tensor("x", "float16", (8, 128, 1024)), Tensor("w", "float16", (1024, 3072), "weight")
    b = Tensor("b", "float16", (3072,), "weight")
    op = Operator("a", "com.microsoft::Attention", (x, w, b), (Tensor("y", "float16", x.shape),), {"num_heads": 16})
    inside, _ = work_or_bytes(op)
    bare = attend(8, 16, 16, 128, 128, 64)
    product = 2 * x.size * 3072 / np.array([d.dense_flops["tensor_fp16"] for d in TENSOR])
    more = np.diff(alone([bare, inside], TENSOR, shipped(), budget=False).seconds, axis=0)[0]
    assert (more > product).all() and (more < 4 * product + 1e-5).all()


def test_rows_kept_back_are_in_no_fit() -> None:
    works = tuple(attend(1, h, h, 1, 1024) for h in (8, 16, 32, 64))
    times = np.array([[1e-5, 1e-5], [1e-5, np.nan], [1e-5, np.nan], [1e-5, np.nan]])
    kept = np.array([False, False, False, True])
    names = np.full(times.shape, "", dtype=object)
    table = Table("attention decode", "graph", works, ("h200-sxm", "a100-sxm4-80gb"), times, kept, names, {})
    found = fitted_rows([table, table], ATTENTION)
    assert [t.gpus for t in found] == [("h200-sxm",), ("a100-sxm4-80gb",)] * 2  # A100's rows would be drawn too seldom
    assert [len(t.works) for t in found] == [3, 1] * 2


@pytest.mark.parametrize("dim", [40, 64, 80, 96, 128, 192, 256])
def test_newer_cards_are_faster_at_any_head_size(dim: int) -> None:
    ids = ("a100-sxm4-80gb", "h100-sxm", "b200-sxm") if dim != 192 else ("a100-sxm4-80gb", "h100-sxm")
    found = alone([attend(8, 16, 16, 8192, 8192, dim)], [gpu_specs.load(i) for i in ids], shipped(), budget=False)
    assert (np.diff(found.seconds[0]) < 0).all()


def test_a_slower_kernel_stands_in_where_libraries_have_none() -> None:
    """Prompts of 8 bits on mma.sync have a kernel for heads of 128; what stands in for others takes longer a FLOP."""
    cards = [gpu_specs.load(g) for g in ("l40s", "h100-sxm")]
    eight = ("float8e4m3fn", "float8e4m3fn")
    works = [attend(8, 32, 32, 4096, 4096, dim, causal=True, types=eight) for dim in (64, 128, 256)]
    small, usual, large = alone(works, cards, shipped(), budget=False).seconds
    own = shipped().having({"attention.stand_in": []})
    plain_small, plain_usual, plain_large = alone(works, cards, own, budget=False).seconds
    assert usual[0] == plain_usual[0]
    assert small[0] > 1.5 * plain_small[0] and large[0] > 2 * plain_large[0]
    assert large[1] < 1.5 * plain_large[1]
