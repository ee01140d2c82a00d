"""What measured kernels took beside a model, by their sizes and cards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gpu_specs
from onnxperf.lab.datasets import Table, kernels
from onnxperf.lab.derive.residuals import residuals
from onnxperf.latency import alone, shipped
from onnxperf.latency.cards import Cards
from onnxperf.latency.families.gemm import TENSOR_CORES, of_sizes
from onnxperf.latency.residuals import OTHER, as_text, weights_for
from op_models import Gemm, Work

PLAIN = shipped().having({"tensor_gemm.types.half.residual": {}})
PRODUCTS = of_sizes("half")


def product(m: int, n: int, k: int, batch: int = 1) -> Work:
    read, written, flops = 2 * batch * (m * k + k * n), 2 * batch * m * n, 2 * batch * m * n * k
    return Work(Gemm(batch, m, n, k, 0, 0), "bfloat16", "tensor_bf16", read, written, 0, flops, 0)


WORKS = [product(m, n, k) for m in (1, 20, 300, 8192) for n in (256, 4096) for k in (512, 8000)]


def factors(card: str, table: dict[str, str], *works: Work) -> np.ndarray:
    return PRODUCTS.factors(works, Cards([gpu_specs.load(card)], PLAIN), table)[:, 0]


def constant(log: float) -> str:
    """Weights that make one factor of all sizes."""
    return as_text(log * (np.arange(PRODUCTS.hats(WORKS).shape[1]) == 0))


def test_hats_of_a_size_and_of_a_pair_share_out_one() -> None:
    hats = PRODUCTS.hats([*WORKS, product(1, 1, 1), product(1 << 20, 1 << 20, 1 << 20)])
    axes = [len(knots) for knots in PRODUCTS.knots]
    ends = np.cumsum([1, *axes, axes[0] * axes[1], axes[0] * axes[2], axes[1] * axes[2]])
    assert hats.shape[1] == ends[-1] and (hats >= 0).all()
    assert np.allclose([part.sum(axis=1) for part in np.split(hats, ends[:-1], axis=1)], 1)


def test_a_card_has_its_own_then_those_of_the_same_sms_then_those_of_others() -> None:
    table = {"h100-sxm": constant(0.1), "h200-sxm": constant(0.3), OTHER: constant(-0.1)}
    expected = {"h100-sxm": 0.1, "h200-sxm": 0.3, "h100-pcie": 0.2, "h20": -0.1, "l40s": -0.1}
    for card, log in expected.items():
        assert factors(card, table, *WORKS) == pytest.approx(np.exp(log)), card
    assert factors("l40s", {"h100-sxm": constant(0.1)}, *WORKS) == pytest.approx(1)
    assert not len(weights_for(gpu_specs.load("l40s"), {"l40s": "", OTHER: ""}))


def test_only_products_like_the_measured_ones_are_held() -> None:
    tf32 = replace(product(64, 4096, 4096), pipe="tensor_tf32")
    table = {OTHER: constant(0.5)}
    assert factors("h100-sxm", table, product(64, 64, 64, batch=8), tf32, WORKS[0]) == pytest.approx(
        [1, 1, np.exp(0.5)]
    )


def test_a_users_own_corrections_come_on_top() -> None:
    card, c = gpu_specs.load("h200-sxm"), PLAIN.having({"tensor_gemm.types.half.residual": {OTHER: constant(0.2)}})
    own = replace(card, corrections=gpu_specs.Corrections(1.3, 1.3, 1.3, source="here"))
    plain, learned = (alone(WORKS, [own], x, budget=False).seconds for x in (PLAIN, c))
    assert learned == pytest.approx(plain * np.exp(0.2))


def test_what_rows_take_beside_the_model_is_learned_by_card_and_for_others() -> None:
    """Rows of small m take twice as long on one card: it learns that, others half of it, and no card is left out."""
    gpus = ("h200-sxm", "l40s")
    known = kernels()["gemm bfloat16"]
    works = [product(m, n, k) for m in (1, 2, 8, 512, 4096) for n in (256, 1024, 4096, 8192) for k in (512, 2048, 8192)]
    model = known.seconds(works, [gpu_specs.load(g) for g in gpus], PLAIN)
    small = np.array([w.size.m <= 8 for w in works])
    seconds = model * np.where(small[:, None] & np.array([[True, False]]), 2.0, 1.0)
    names = np.full(seconds.shape, "", dtype=object)
    table = Table("gemm bfloat16", "graph", tuple(works), gpus, seconds, np.zeros(len(works), dtype=bool), names, {})
    found = residuals(TENSOR_CORES, [table], PLAIN)
    c = PLAIN.having(found)
    made = known.seconds(works, [gpu_specs.load(g) for g in gpus], c) / model
    assert (made[small, 0] > 1.6).all() and (made[~small, 0] < 1.25).all()
    assert (abs(made[:, 1] - 1) < 0.2).all()
    assert set(residuals(TENSOR_CORES, [table], PLAIN, each_card=False)) == {f"{PRODUCTS.path}.{OTHER}"}
    assert residuals(TENSOR_CORES, [], PLAIN) == {}
