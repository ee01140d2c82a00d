"""What works come to is kept: it is what they come to when estimated anew, each once, and not more than some."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest

from onnxperf import sweep
from onnxperf.latency import shipped
from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.estimate import Ledger, estimated, kernel_models
from onnxperf.latency.families import FAMILIES
from onnxperf.latency.terms import Array, KernelTerms
from op_models import Conv, Gemm, Move, Rows, Work
from tests.decide.models import net
from tests.latency.conftest import FIVE

ESTIMATE = import_module("onnxperf.latency.estimate")
STORED = 10**7
PRODUCTS = [
    Work(Gemm(1, m, 256, 512), dtype, pipe, 2 * m * 768, 2 * m * 256, 2**18, 2 * m * 256 * 512)
    for m in (1, 16, 100, 4096)
    for dtype, pipe in (("float32", "fp32"), ("float16", "tensor_fp16"))
]
CONVOLUTIONS = [
    Work(Conv(n, 64, 64, 56 * 56, 9, 1, 1), "float32", "fp32", 803_000 * n, 803_000 * n, 147_456, 231_211_008 * n)
    for n in (1, 2, 3, 8, 64)
]
ROWS = Work(Rows(4096, 64, 0, 1), "float32", "fp32", 2**20, 2**20, 0, 0, 2**20)
MOVE = Work(Move(4096, 64), "float32", "fp32", 2**20, 2**20, 0, 0, 2**20)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """The works that are estimated, as a test goes on."""
    every = list[Work]()

    def counted(work_list: list[Work], *more: Any) -> Any:
        every.extend(work_list)
        return estimated(work_list, *more)

    monkeypatch.setattr(ESTIMATE, "estimated", counted)
    return every


def ledger() -> Ledger:
    return Ledger(FIVE, shipped(), kernel_models)


def same(kept: Any, anew: Any) -> bool:
    pairs = [*zip(kept[0][:-1], anew[0][:-1], strict=True), (kept[1], anew[1])]
    pairs += [(kept[2][name], anew[2][name]) for name in {**kept[2], **anew[2]}]
    return all(np.array_equal(a, b) for a, b in pairs)


def test_a_work_is_estimated_once_and_comes_to_the_same(asked: list[Work]) -> None:
    works, kept = [*PRODUCTS, *CONVOLUTIONS, ROWS], ledger()
    for some in (works[:3], works[1:9], works[::-1], works, works[4:5] * 2):
        anew = estimated(some, Cards(FIVE, shipped()), kernel_models, np.full((len(some), 1), float(STORED)))
        assert same(kept.entries(some, [STORED] * len(some)), anew)
    assert len(asked) == len(set(asked)) == len(works)


def test_runs_that_read_other_weights_are_estimated_together() -> None:
    """Each as alone, though products which could be padded are tried in the run that reads the fewest weights."""
    assert FAMILIES[Gemm].monotone
    each = [(w, STORED * n) for n in (1, 3, 40) for w in PRODUCTS]
    cards, works = Cards(FIVE, shipped()), [w for w, _ in each]
    stored = np.array([[float(n)] for _, n in each])
    terms = estimated(works, cards, kernel_models, stored)[0]
    alone = [estimated([w], cards, kernel_models, stored[i : i + 1])[0].seconds for i, w in enumerate(works)]
    assert np.array_equal(terms.seconds, np.concatenate(alone))


@pytest.mark.parametrize("pipe", ["fp32", "tensor_tf32", "tensor_fp16"])
def test_no_product_takes_less_time_where_more_of_the_weights_come_from_dram(pipe: str) -> None:
    sides = np.exp2(np.random.default_rng(0).uniform(0, 14, (100, 3))).astype(int).tolist()
    size, dtype = (2, "float16") if pipe == "tensor_fp16" else (4, "float32")
    works = [
        Work(Gemm(1, m, n, k), dtype, pipe, size * (m + n) * k, size * m * n, size * n * k, 2 * m * n * k)
        for m, n, k in sides
    ]
    cards, shape = Cards(FIVE, shipped()), (len(works), len(FIVE))
    each = [FAMILIES[Gemm].card(Works(works, cards), cards, np.full(shape, x)).seconds for x in np.linspace(0, 1, 9)]
    assert (np.diff(each, axis=0) >= -1e-12 * each[0]).all()


def test_equal_sizes_of_two_types_are_two_works(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shuffle(NamedTuple):  # with the fields of a Move
        elements: int
        run: int
        threads: int = 0
        tile: int = 1

    def slower(works: Works, cards: Cards, dram_share: Array) -> KernelTerms:
        terms = FAMILIES[Move].card(works, cards, dram_share)
        return terms._replace(seconds=2 * terms.seconds)

    monkeypatch.setitem(FAMILIES, Shuffle, replace(FAMILIES[Move], size=Shuffle, card=slower))
    kept, cards, shuffle = ledger(), Cards(FIVE, shipped()), replace(MOVE, size=Shuffle(4096, 64))
    assert shuffle == MOVE
    for w in (shuffle, MOVE):
        assert same(kept.entries([w], [STORED]), estimated([w], cards, kernel_models, np.full((1, 1), float(STORED))))
    seconds = [kept.entries([w], [STORED])[0].seconds for w in (shuffle, MOVE)]
    assert not np.array_equal(*seconds)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch, asked: list[Work]) -> None:
    monkeypatch.setattr(ESTIMATE, "CELLS", 3 * len(FIVE))
    kept = ledger()
    for w in (*PRODUCTS, *PRODUCTS):
        kept.entries([w], [STORED])
    assert len(asked) == 2 * len(PRODUCTS)
    assert kept.entries(PRODUCTS, [STORED] * len(PRODUCTS))[1].shape == (len(PRODUCTS), len(FIVE))


def test_no_works_come_to_nothing() -> None:
    kept = ledger()
    terms, floor_s, busy = kept.entries([], [])
    assert terms.seconds.shape == floor_s.shape == (0, len(FIVE)) and not busy
    assert kept.entries([ROWS], [STORED])[2].keys() == {"DRAM", "matrix", "vector"}


def test_batches_of_a_sweep_share_their_works(asked: list[Work]) -> None:
    """Batches are estimated together, a layer's beside each other, and no work twice."""
    ESTIMATE.ledger.cache_clear()
    sweep(net(), gpu=["t4", "l4"], batch=[1, 2, 4, 8, 16])
    convolutions = [w for w in asked if isinstance(w.size, Conv)]
    assert [w.size.images for w in convolutions[:5]] == [1, 2, 4, 8, 16]
    assert len(asked) == len(set(asked)) and len(convolutions) % 5 == 0
