"""Products on tensor cores: what tiles, waves, caches and power must show, whatever the constants."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_specs
from onnxperf.latency import alone, floors, shipped, single
from onnxperf.latency.cards import Cards, at_own_clock
from onnxperf.latency.power import energy
from onnxperf.methods import METHODS
from op_models import BITS, Gemm, Work

DEVICES = [d for d in map(gpu_specs.load, gpu_specs.ids()) if "tensor_fp16" in d.dense_flops]
A100 = gpu_specs.load("a100-sxm4-80gb")
FIVE = tuple(map(gpu_specs.load, ("t4", "a100-sxm4-80gb", "l40s", "h100-sxm", "b200-sxm")))
PIPES = {"float16": "tensor_fp16", "bfloat16": "tensor_bf16", "int8": "tensor_int8", "float8e4m3fn": "tensor_fp8"}
side = st.integers(0, 14).flatmap(lambda e: st.integers(2**e, 2 ** (e + 1)))


def product(m: int, n: int, k: int, *, batch: int = 1, dtype: str = "float16", bits: int = 0) -> Work:
    """bits: of a weight that is stored in fewer bits than it is multiplied in."""
    stored = n * k * (bits or BITS[dtype]) // 8 * (batch == 1)
    read = m * k * batch * BITS[dtype] // 8 + (stored or batch * n * k * BITS[dtype] // 8)
    flops, unpack = 2 * batch * m * n * k, 2 * n * k if bits else 0
    return Work(Gemm(batch, m, n, k), dtype, PIPES[dtype], read, 2 * batch * m * n, stored, flops, unpack)


def seconds(*works: Work, card: str = "a100-sxm4-80gb", budget: bool = True) -> list[float]:
    return [float(t) for t in alone(works, [gpu_specs.load(card)], shipped(), budget).seconds[:, 0]]


@settings(max_examples=60, deadline=None)
@given(side, side, side, st.sampled_from((1, 1, 16)), st.sampled_from(sorted(PIPES)))
@pytest.mark.slow
def test_no_product_beats_physics(m: int, n: int, k: int, batch: int, dtype: str) -> None:
    """The floor holds on every card whatever the model says; what it says itself is not far below it."""
    w = product(m, n, k, batch=batch, dtype=dtype)
    took = alone([w], DEVICES, shipped()).seconds
    assert np.isfinite(took).all()
    assert (took >= floors([w], DEVICES) * (1 - 1e-9)).all()
    for device in FIVE:
        said, least = single(w, device, shipped(), METHODS["tile-wave"], w.weight_bytes)
        assert said.seconds[0, 0] > 0.5 * least.seconds[0, 0], device.id


@pytest.mark.slow
def test_the_floor_is_hardly_ever_needed() -> None:
    sizes = np.exp2(np.random.default_rng(0).uniform(0, 14, (150, 3))).astype(int).tolist()
    said = [
        single(w, device, shipped(), METHODS["tile-wave"], w.weight_bytes)
        for w in (product(m, n, k) for m, n, k in sizes)
        for device in FIVE
    ]
    assert np.mean([b.seconds[0, 0] < least.seconds[0, 0] for b, least in said]) < 0.01


@pytest.mark.parametrize(
    "card", ["a100-sxm4-80gb", "l40s", "a40", "h100-sxm", "b200-sxm", "v100-sxm2-16gb", "rtx-3090"]
)
@pytest.mark.parametrize("vary", range(3))
def test_more_work_takes_longer_in_the_large(card: str, vary: int) -> None:
    """Four times as much of a dimension is never faster: tiles and splits leave small steps, no large ones."""
    for base in ((64, 1024, 1024), (1024, 1024, 4096), (4096, 4096, 4096)):
        sizes = [tuple(s * 4**i if j == vary else s for j, s in enumerate(base)) for i in range(3)]
        times = seconds(*(product(*s) for s in sizes), card=card)
        assert times == sorted(times)


def test_a_card_with_more_of_everything_is_not_slower() -> None:
    works = [product(m, 4096, 4096) for m in (1, 16, 128, 1024, 8192)]
    for less, more in (("a30", "a100-sxm4-80gb"), ("l4", "l40s"), ("h100-pcie", "h100-sxm"), ("b200-sxm", "gb200")):
        for slow, fast in zip(seconds(*works, card=less), seconds(*works, card=more), strict=True):
            assert fast <= slow * 1.01, (less, more)


def test_large_products_reach_most_of_what_power_leaves() -> None:
    """Cards that are held to a part of the hardware's rate lose next to nothing of what is left."""
    w = product(8192, 8192, 8192)
    for device in DEVICES:
        cards = Cards([device], shipped())
        whole = (cards.whole_rate(["tensor_fp16"]) < 1.01 * cards.rate(["tensor_fp16"])).all()
        full, held = alone([w], [device], shipped(), False).seconds[0, 0], alone([w], [device], shipped()).seconds[0, 0]
        reached = w.matrix_flops / at_own_clock(device, shipped()).dense_flops["tensor_fp16"] / full
        assert 0.6 < reached <= (0.98 if whole else 1), device.id
        assert full <= held < 3.5 * full, device.id
    l4, l40s = seconds(w, card="l4"), seconds(w, card="l40s")
    assert l4[0] > 2.5 * l40s[0]  # 72 W against 350


def test_tensor_cores_that_are_held_back_lose_less_of_what_is_left() -> None:
    """H20's are H100's at a quarter of the rate: what they wait for is there by the time."""
    w = product(8192, 8192, 8192)
    cards = [gpu_specs.load(g) for g in ("h20", "h100-sxm")]
    reached = [
        w.matrix_flops / alone([w], [d], shipped(), False).seconds[0, 0] / d.dense_flops["tensor_fp16"] for d in cards
    ]
    assert 0.9 < reached[0] < 1 and reached[0] > reached[1] + 0.05


@pytest.mark.parametrize("gpu", ["t4", "a100-sxm4-80gb", "l40s", "rtx-3090", "b300-sxm"])
def test_a_flop_of_8_bit_integers_takes_a_quarter_of_the_energy(gpu: str) -> None:
    """Multipliers grow with the square of their bits, whatever a card's rates are; here at a power limit that is never
    met.
    """
    cards = Cards([replace(gpu_specs.load(gpu), tdp_W=1e6)], shipped())
    works = [
        replace(product(4096, 4096, 4096, dtype=d), bytes_read=0, bytes_written=0, weight_bytes=0)
        for d in ("float16", "int8")
    ]
    half, narrow = energy(works, cards, np.zeros((2, 1)))[:, 0]
    assert narrow == pytest.approx(half / 4)


@pytest.mark.parametrize(("card", "measured"), [("l40s", 555e12), ("a100-sxm4-80gb", 555e12)])
def test_power_leaves_8_bit_integers_the_rate_that_was_measured(card: str, measured: float) -> None:
    """Products of 8,192 rows and 12 ms and more, medians of tensor_core; L40S has 200 to 255 TFLOPS in BF16 for it."""
    w = product(8192, 16384, 16384, dtype="int8")
    assert w.matrix_flops / seconds(w, card=card)[0] == pytest.approx(measured, rel=0.1)


def test_short_kernels_are_over_before_the_limit_acts() -> None:
    device, short, long = gpu_specs.load("l40s"), product(1024, 2048, 4096), product(32768, 8192, 8192)
    for w, part in ((short, 0.2), (long, 0.9)):
        full, burst, held = (
            float(alone([w], [device], shipped(), budget, 1, 1.5e-3 * (i == 1)).seconds[0, 0])
            for i, budget in enumerate((False, True, True))
        )
        assert full <= burst <= held
        assert (burst - full <= part * (held - full)) == (w is short)


def test_more_copies_of_weights_than_l2_holds_are_cold() -> None:
    device, w = gpu_specs.load("l40s"), product(8, 8192, 1024)  # 17 MB of 100
    once, turns = (float(alone([w], [device], shipped(), True, n).seconds[0, 0]) for n in (1, 20))
    assert once < w.weight_bytes / device.bandwidth_Bps < turns


def test_packed_weights_pay_where_rows_are_few_alone() -> None:
    few, many = (
        [seconds(product(m, 8192, 8192, bits=bits))[0] / seconds(product(m, 8192, 8192))[0] for bits in (8, 4)]
        for m in (16, 8192)
    )
    assert few[1] < few[0] < 0.8
    assert min(many) > 0.7


def test_fewer_bits_are_no_slower_where_rows_are_few() -> None:
    devices = [d for d in DEVICES if d.dense_flops.get("tensor_int8", 0) >= d.dense_flops["tensor_fp16"]]
    for m in (1, 4):
        works = [product(m, 4096, 8192, bits=8), product(m, 4096, 8192, bits=4), product(m, 4096, 8192, dtype="int8")]
        took = alone([product(m, 4096, 8192), *works], devices, shipped()).seconds
        assert (took[1:] < took[0]).all(), m


def test_a_type_that_a_card_has_no_unit_for_takes_the_factors_of_what_it_runs_on() -> None:
    work, devices = [product(512, 4096, 4096, dtype="float8e4m3fn")], [A100, gpu_specs.load("h100-sxm")]
    slower = {f"tensor_gemm.types.fp8.{f}": 9.0 for f in ("extra_k", "step_cycles")} | {
        "tensor_gemm.types.fp8.wgmma.extra_k": 9.0
    }
    before, after = (alone(work, devices, c).seconds[0] for c in (shipped(), shipped().having(slower)))
    assert after[0] == before[0] and after[1] > before[1]


def test_geforce_halves_the_peak_not_what_is_lost() -> None:
    cards = Cards([gpu_specs.load(i) for i in ("rtx-3090", "a40", "a100-sxm4-80gb")], shipped())
    ratio = cards.whole_rate(["tensor_fp16", "tensor_int8"]) / cards.rate(["tensor_fp16", "tensor_int8"])
    assert ratio == pytest.approx(np.array([[2, 1, 1], [1, 1, 1]]), rel=0.01)


@pytest.mark.parametrize(("held", "whole"), [("l20", "l40s"), ("l40", "l40s"), ("a10g", "a10"), ("h20", "h100-sxm")])
def test_a_card_held_to_a_part_of_its_tensor_cores_comes_nearer_to_its_peak(held: str, whole: str) -> None:
    """Operands reach them as fast as where they run in full."""
    w, cards = product(8192, 8192, 8192), [gpu_specs.load(i) for i in (held, whole)]
    peaks = np.array([c.dense_flops["tensor_fp16"] for c in cards])
    shares = w.matrix_flops / alone([w], cards, shipped(), budget=False).seconds[0] / peaks
    assert 1.05 * shares[1] < shares[0] < 1


def test_cublas_on_an_l20() -> None:
    """It was seen at 105 to 116 TFLOP/s, of 119.5."""
    w = product(8192, 8192, 8192)
    assert 105e12 < w.matrix_flops / alone([w], [gpu_specs.load("l20")], shipped(), budget=False).seconds[0, 0] < 116e12


@pytest.mark.parametrize("card", ["a100-sxm4-80gb", "h100-sxm", "rtx-3090"])
def test_the_shares_multiply_to_the_rate_of_the_arithmetic(card: str) -> None:
    w = product(1000, 3000, 5000)
    b, _ = single(w, gpu_specs.load(card), shipped(), METHODS["tile-wave"], 0.0)
    detail = {name: float(v[0, 0]) for name, v in b.detail.items()}
    shares = prod(v for name, v in detail.items() if name.endswith("efficiency"))
    peak = at_own_clock(gpu_specs.load(card), shipped()).dense_flops["tensor_fp16"]
    assert w.matrix_flops / peak / shares == pytest.approx(float((b.compute + b.latency)[0, 0]), rel=1e-9)
