"""What the tile-wave model must show, whatever its constants: waves, splits, caches, power, fallbacks."""

import numpy as np
import pytest

import gpu_specs
from onnxperf.latency import estimate, pipe_on, shipped
from onnxperf.lower import Kernel, Kernels
from op_models import Conv, Gemm, Pointwise, Rows, Work

A100 = gpu_specs.load("a100-sxm4-80gb")
T4 = gpu_specs.load("t4")
P100 = gpu_specs.load("p100-pcie-16gb")


def gemm(m: int, n: int, k: int, *, batch: int = 1, pipe: str = "tensor_fp16", dtype: str = "float16") -> Work:
    width = 4 if dtype == "float32" else 2
    read = width * batch * (m * k + k * n)
    stored = width * k * n if batch == 1 else 0
    return Work(Gemm(batch, m, n, k), dtype, pipe, read, width * batch * m * n, stored, 2 * batch * m * n * k)


def seconds(w: Work, device: gpu_specs.Device = A100, *, stored: int = 10**10, copies: int = 1) -> float:
    rows = tuple(Kernel(str(i), "MatMul", (), w, 0.0) for i in range(copies))
    return float(estimate(Kernels(rows, 0.0, stored), [device]).seconds[0, 0])


def test_one_block_more_than_a_wave_costs_a_wave() -> None:
    def blocks(rows: int) -> float:  # P100 has 56 SMs and tiles of 128 columns by 64 rows
        return seconds(gemm(64 * rows, 128 * 8, 512, pipe="fp32", dtype="float32"), P100)

    assert blocks(8) - blocks(7) > 3 * (blocks(7) - blocks(6))


def test_a_long_thin_product_is_split_along_k() -> None:
    rows = (Kernel("k", "MatMul", (), gemm(16, 64, 65536), 0.0),)
    e = estimate(Kernels(rows, 0.0, 10**10), [A100])
    assert "split" in str(e.choice[0, 0])
    assert e.launches[0, 0] == 2
    assert e.workspace[0, 0] > 0


def test_large_products_come_near_the_sustained_rate() -> None:
    rate = 2 * 8192**3 / seconds(gemm(8192, 8192, 8192))
    assert 0.6 * 312e12 < rate < 0.95 * 312e12


def test_weights_of_a_small_model_stay_in_l2() -> None:
    w = gemm(1, 4096, 1024)  # 8 MB of weights, a fifth of an A100's L2
    assert seconds(w, stored=w.weight_bytes) < 0.9 * seconds(w, stored=10**10)


def test_tf32_needs_tensor_cores_that_know_it() -> None:
    plain, tf32 = (gemm(2048, 2048, 2048, pipe=p, dtype="float32") for p in ("fp32", "tensor_tf32"))
    assert seconds(tf32, A100) < 0.5 * seconds(plain, A100)
    assert seconds(tf32, T4) == seconds(plain, T4)


def test_pipes_fall_back_to_what_the_card_has() -> None:
    p4, p100 = gpu_specs.load("p4"), gpu_specs.load("p100-pcie-16gb")
    assert pipe_on(A100, "tensor_bf16") == "tensor_bf16"
    assert pipe_on(T4, "tensor_bf16") == "fp32"
    assert pipe_on(T4, "tensor_fp8") == "tensor_fp16"
    assert pipe_on(gpu_specs.load("thor"), "tensor_int8") == "tensor_fp16"
    assert pipe_on(p100, "tensor_fp16") == "fp16"
    assert pipe_on(p4, "tensor_fp16") == "fp32"  # its half-precision units run at a 64th


def test_a_small_card_is_slowed_by_its_power_limit() -> None:
    rows = tuple(
        Kernel(str(i), "MatMul", (), gemm(4096, 4096, 4096, pipe="fp32", dtype="float32"), 0.0) for i in range(9)
    )
    e = estimate(Kernels(rows, 0.0, 10**10), [T4, A100])
    assert e.factor[0] > 1.3
    assert e.factor[1] < 1.2
    once = estimate(Kernels(rows, 0.0, 10**10), [T4], "sum")
    assert np.allclose(e.seconds[:, 0], once.seconds[:, 0] * e.factor[0])


def test_depthwise_convolutions_do_not_use_tiles() -> None:
    width, positions = 4, 112 * 112
    nbytes = width * 32 * positions
    w = Work(Conv(1, 32, 32, positions, 9, 32, 1), "float32", "fp32", nbytes, nbytes, 4 * 288, 2 * 32 * positions * 9)
    e = estimate(Kernels((Kernel("k", "Conv", (), w, 0.0),), 0.0, 10**10), [A100])
    assert e.choice[0, 0] == "direct"


def test_calibration_effects_scale_their_term() -> None:
    from dataclasses import replace

    slow = replace(A100, effects=gpu_specs.Effects(compute=1.0, memory=2.0, launch=1.0, source="test"))
    n = 10**9
    copy = Work(Pointwise(n), "float32", "fp32", 4 * n, 4 * n, 0)
    assert seconds(copy, slow) == pytest.approx(2 * seconds(copy, A100), rel=1e-3)
    product = gemm(8192, 8192, 8192)
    assert seconds(product, slow) < 1.3 * seconds(product, A100)


@pytest.mark.parametrize("width", [64, 1024, 1025, 50_000])
def test_rows_cost_at_least_their_traffic_and_grow_with_rows(width: int) -> None:
    def rows(count: int) -> float:
        n = count * width
        return seconds(Work(Rows(count, width, 2), "float32", "fp32", 4 * n, 4 * n, 0, 0, 8 * n))

    assert rows(2_000) < rows(20_000) < rows(200_000)


def test_constants_say_where_they_come_from() -> None:
    assert shipped().source == "assumed: prototype"
