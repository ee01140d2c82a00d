"""Products on CUDA cores: what the library's tile, the waves and the caches must show, whatever the constants."""

from functools import partial
from math import prod

import pytest

import gpu_specs
from onnxperf.lab.constants import assumed
from onnxperf.lab.datasets import Row, tables
from onnxperf.lab.datasets.rigs import by_itself, for_milliseconds
from onnxperf.lab.derive.fit import fitted_rows
from onnxperf.latency import alone, shipped, single
from onnxperf.latency.families.gemm import CUDA_CORES
from onnxperf.methods import METHODS
from op_models import Gemm, Work
from tests.latency import conftest

A100, H100, P100, P4, T4, V100 = (
    gpu_specs.load(i) for i in ("a100-pcie-80gb", "h100-sxm", "p100-pcie-16gb", "p4", "t4", "v100-pcie-32gb")
)


def product(m: int, n: int, k: int, *, batch: int = 1, tb: bool = False, bias: bool = False) -> Work:
    stored = 4 * k * n if batch == 1 else 0
    size, read = Gemm(batch, m, n, k, False, tb), 4 * batch * (m * k + k * n)
    return Work(size, "float32", "fp32", read, 4 * batch * m * n, stored, 2 * batch * m * n * k, m * n * bias)


def chosen(w: Work, *devices: gpu_specs.Device) -> list[str]:
    return [str(name) for name in alone([w], devices, shipped()).variant[0]]


seconds = partial(conftest.seconds, budget=True)


def test_each_architecture_has_its_tiles() -> None:
    assert chosen(product(1024, 1024, 512, batch=64), P4, P100, T4, A100) == ["128x64", "128x64", "128x64", "128x128"]
    assert chosen(product(1024, 64, 512, batch=64), T4, P100) == ["64x64", "128x64"]  # nothing to waste, or no choice
    assert chosen(product(8192, 8192, 8192), A100) == ["128x64"]


def test_a_bias_takes_another_library_on_p100() -> None:
    plain, biased = product(4096, 4096, 1024, tb=True), product(4096, 4096, 1024, tb=True, bias=True)
    assert chosen(plain, P100) == ["128x128"]
    assert chosen(biased, P100) == ["32x128"]


def test_k_is_split_where_blocks_leave_sms_idle() -> None:
    assert "split" in chosen(product(256, 256, 65536), V100)[0]
    assert "split" not in chosen(product(8192, 8192, 1024), V100)[0]
    assert "split" not in chosen(product(256, 256, 65536, batch=2), V100)[0]


def test_large_dies_from_ampere_on_split_k_inside_a_block() -> None:
    """NeuSight's A100 of 80 GB took so long for these, in one part."""
    for m, n, k, took_ms in ((768, 768, 8192, 0.772), (960, 960, 8192, 1.226), (2048, 2048, 2048, 1.026)):
        w = product(m, n, k, tb=True, bias=True)
        assert "split" not in chosen(w, A100)[0]
        assert seconds(w, A100) == pytest.approx(took_ms * 1e-3, rel=0.1)
    assert "split" in chosen(product(256, 256, 65536), A100)[0]


def test_small_tiles_of_128_lanes_wait_for_their_loads() -> None:
    """NeuSight's H100 ran the first two at 33 to 35 TFLOP/s in tiles of 64 x 64, the last at 50."""
    for m, n, k, took_ms in ((1600, 1600, 2048, 0.296), (3072, 768, 4096, 0.582), (1024, 4096, 2048, 0.342)):
        assert seconds(product(m, n, k, tb=True, bias=True), H100) == pytest.approx(took_ms * 1e-3, rel=0.06)


def test_rows_that_begin_inside_a_sector_cost_old_cards_a_second_one() -> None:
    """BERT-large's layer took 1.20 ms on P100 (NeuSight); Volta's kernels share what they read."""
    whole, odd = (product(4096, 1024, k, tb=True, bias=True) for k in (1024, 1025))
    assert seconds(whole, P100) == pytest.approx(1.20e-3, rel=0.08)
    assert seconds(odd, P100) > 1.1 * seconds(whole, P100)
    assert seconds(odd, V100) < 1.02 * seconds(whole, V100)


@pytest.mark.parametrize("device", [A100, P100, V100], ids=lambda d: d.id)
def test_a_larger_product_is_not_faster(device: gpu_specs.Device) -> None:
    sides = [256, 512, 1024, 2048, 4096]
    times = [seconds(product(4096, side, 2048), device) for side in sides]
    assert times == sorted(times)
    assert 0.7 < 2 * 8192**3 / device.dense_flops["fp32"] / seconds(product(8192, 8192, 8192), device) < 1


def test_long_rows_cost_old_cards_their_sharing() -> None:
    """A transposed operand of 200 KB a row: Pascal walks it at a fraction of the pace, Volta does not mind."""
    along, across = (product(4096, 4096, 50_000, tb=tb, bias=True) for tb in (True, False))
    assert seconds(along, P100) > 1.4 * seconds(across, P100)
    assert seconds(along, V100) == pytest.approx(seconds(across, V100))


def test_details_multiply_to_the_rate_of_the_arithmetic() -> None:
    w = product(1000, 700, 900)
    b, _ = single(w, A100, shipped(), METHODS["tile-wave"], 0.0)
    detail = {name: float(v[0, 0]) for name, v in b.detail.items()}
    shares = prod(v for name, v in detail.items() if name.endswith("efficiency"))
    prologues = detail["counted waves"] * detail["prologue seconds"]
    arithmetic = w.matrix_flops / A100.dense_flops["fp32"] / shares
    assert (b.compute + b.latency)[0, 0] == pytest.approx(arithmetic + prologues, rel=1e-9)
    assert 0 < b.compute[0, 0] < b.seconds[0, 0]
    assert (b.workspace[0, 0] > 0) == (b.launches[0, 0] == 2) == ("split" in b.variant[0, 0])


def test_fits_see_training_rows_of_cards_at_full_clock_alone() -> None:
    rows = [
        Row("linear", g, product(512, 512, k), 1e-3, k == 512) for g in ("t4", "v100-pcie-32gb") for k in (512, 640)
    ]
    (table,) = fitted_rows(tables(rows, "torch", {}), CUDA_CORES)
    assert table.gpus == ("v100-pcie-32gb",)
    assert [w.matrix_flops for w in table.works] == [2 * 512 * 512 * 640]


def test_short_products_escape_the_power_limit_in_part() -> None:
    short, long = product(512, 512, 512), product(16384, 16384, 16384)
    limited, burst = (timed([short, long], [T4], assumed()) for timed in (by_itself, for_milliseconds))
    assert burst[1, 0] == pytest.approx(limited[1, 0], rel=0.02)
    assert (burst <= limited).all()


@pytest.mark.parametrize("card", ["a30", "l4", "rtx-a5000", "h100-sxm"])
def test_few_rows_lose_nothing_where_tf32_is_allowed(card: str) -> None:
    def took(pipe: str, m: int) -> float:
        w = Work(
            Gemm(1, m, 4096, 4096), "float32", pipe, 4 * (4096 + m) * 4096, 4 * m * 4096, 4 * 4096**2, 2 * m * 4096**2
        )
        return float(alone([w], [gpu_specs.load(card)], shipped()).seconds[0, 0])

    for m in (1, 2, 4):
        assert took("tensor_tf32", m) <= took("fp32", m)
