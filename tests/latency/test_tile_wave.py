"""What the tile-wave model must show, whatever its constants: waves, splits, caches, power, fallbacks."""

from dataclasses import replace

import numpy as np
import pytest

import gpu_specs
from onnxperf.lab.constants import unmeasured
from onnxperf.latency import BOUNDS, pipe_on, shipped
from onnxperf.lowering.lower import Kernel, Kernels
from op_models import Attention, Conv, Gemm, Pointwise, Rows, Transfer, Work
from tests.estimating import estimate

A100 = gpu_specs.load("a100-sxm4-80gb")
T4 = gpu_specs.load("t4")
P100 = gpu_specs.load("p100-pcie-16gb")


def gemm(m: int, n: int, k: int, *, batch: int = 1, pipe: str = "tensor_fp16", dtype: str = "float16") -> Work:
    width = 4 if dtype == "float32" else 2
    read = width * batch * (m * k + k * n)
    stored = width * k * n if batch == 1 else 0
    return Work(Gemm(batch, m, n, k), dtype, pipe, read, width * batch * m * n, stored, 2 * batch * m * n * k)


def seconds(w: Work, device: gpu_specs.Device = A100, *, stored: int = 10**10, copies: int = 1) -> float:
    rows = tuple(Kernel(str(i), "MatMul", (), w) for i in range(copies))
    return float(estimate(Kernels(rows, (), stored), [device]).seconds[0, 0])


def test_one_block_more_than_a_wave_costs_a_wave() -> None:
    def blocks(rows: int) -> float:  # P100 has 56 SMs and tiles of 128 columns by 64 rows
        return seconds(gemm(64 * rows, 128 * 8, 512, pipe="fp32", dtype="float32"), P100)

    assert blocks(8) - blocks(7) > 3 * (blocks(7) - blocks(6))


@pytest.mark.parametrize("device", [A100, T4, P100], ids=lambda d: d.id)
@pytest.mark.parametrize("rows", [1, 4])
def test_products_with_few_rows_stream_the_matrix(device: gpu_specs.Device, rows: int) -> None:
    """A vector times 64 MB of weights in float32 takes the time of reading them, not of filling tiles."""
    w = gemm(rows, 4096, 4096, pipe="fp32", dtype="float32")
    stream = w.bytes / device.bandwidth_Bps
    assert stream < seconds(w, device) < 1.6 * stream
    assert seconds(replace(w, size=Gemm(1, 4096, rows, 4096)), device) == pytest.approx(seconds(w, device))


def test_a_long_thin_product_is_split_along_k() -> None:
    rows = (Kernel("k", "MatMul", (), gemm(16, 64, 65536)),)
    e = estimate(Kernels(rows, (), 10**10), [A100])
    assert "split" in str(e.variant[0, 0])
    assert e.launches[0, 0] == 2
    assert e.workspace[0, 0] > 0


def test_large_products_come_near_the_sustained_rate() -> None:
    rate = 2 * 8192**3 / seconds(gemm(8192, 8192, 8192))
    assert 0.6 * 312e12 < rate < 0.95 * 312e12


def test_weights_of_a_small_model_stay_in_l2() -> None:
    l40s, w = gpu_specs.load("l40s"), gemm(1, 8192, 1024)  # 17 MB of weights; its L2 holds 100
    dram = w.weight_bytes / l40s.bandwidth_Bps
    assert seconds(w, l40s, stored=w.weight_bytes) < dram < seconds(w, l40s, stored=10**10)


def test_tf32_needs_tensor_cores_that_know_it() -> None:
    plain, tf32 = (gemm(2048, 2048, 2048, pipe=p, dtype="float32") for p in ("fp32", "tensor_tf32"))
    assert seconds(tf32, A100) < 0.5 * seconds(plain, A100)
    assert seconds(tf32, T4) == seconds(plain, T4)


def test_pipes_fall_back_to_what_the_card_has() -> None:
    p4, p100 = gpu_specs.load("p4"), gpu_specs.load("p100-pcie-16gb")
    assert pipe_on(A100, "tensor_bf16") == "tensor_bf16"
    assert pipe_on(T4, "tensor_bf16") == "fp32"
    assert pipe_on(T4, "tensor_fp8") == "tensor_fp16"
    assert pipe_on(gpu_specs.load("v100-sxm2-16gb"), "tensor_int8") == "tensor_fp16"
    assert pipe_on(p100, "fp16") == "fp16"
    assert pipe_on(p100, "tensor_fp16") == "fp32"  # products sum up in single precision
    assert pipe_on(p4, "tensor_fp16") == "fp32"  # its half-precision units run at a 64th


def test_a_small_card_is_slowed_by_its_power_limit() -> None:
    rows = tuple(Kernel(str(i), "MatMul", (), gemm(4096, 4096, 4096, pipe="fp32", dtype="float32")) for i in range(9))
    e = estimate(Kernels(rows, (), 10**10), [T4, A100])
    assert e.power_factor[0] > 1.3
    assert e.power_factor[1] < 1.2
    once = estimate(Kernels(rows, (), 10**10), [T4], "sum")
    assert np.allclose(e.seconds[:, 0], once.seconds[:, 0] * e.power_factor[0])


def test_tensor_cores_that_wait_for_other_kernels_have_more_watts_and_a_faster_clock() -> None:
    """A FLOP of theirs takes more energy then, up to what it takes at full clock."""
    product, stream = gemm(8192, 8192, 8192), Work(Pointwise(10**8), "float16", "fp16", 10**8, 10**8, 0)
    joules = []
    for repeat in (0, 20, 1000, 100_000):
        rows = (Kernel("p", "MatMul", (), product), Kernel("s", "Relu", (), stream, repeat=repeat))
        joules.append(estimate(Kernels(rows, (), 10**10), [T4, A100]).joules[0])
    t4, a100 = np.transpose(joules)
    assert 1.2 * t4[0] < t4[1] < 0.8 * t4[2] == 0.8 * t4[3]
    assert a100[3] < 1.2 * a100[0]


def test_depthwise_convolutions_do_not_use_tiles() -> None:
    width, positions = 4, 112 * 112
    nbytes = width * 32 * positions
    w = Work(Conv(1, 32, 32, positions, 9, 32, 1), "float32", "fp32", nbytes, nbytes, 4 * 288, 2 * 32 * positions * 9)
    e = estimate(Kernels((Kernel("k", "Conv", (), w),), (), 10**10), [A100])
    assert e.variant[0, 0] == "direct"


def test_calibration_effects_scale_their_term() -> None:
    slow = replace(A100, corrections=gpu_specs.Corrections(compute=1.0, memory=2.0, launch=1.0, source="test"))
    n = 10**9
    copy = Work(Pointwise(n), "float32", "fp32", 4 * n, 4 * n, 0)
    one, two = estimate(Kernels((Kernel("k", "Copy", (), copy),), (), 0), [A100, slow], "sum").seconds[0]
    assert two == pytest.approx(2 * one, rel=1e-3)
    product = gemm(8192, 8192, 8192)
    assert seconds(product, slow) < 1.3 * seconds(product, A100)


@pytest.mark.parametrize("width", [64, 1024, 1025, 50_000])
def test_rows_cost_at_least_their_traffic_and_grow_with_rows(width: int) -> None:
    def time(count: int) -> float:
        n = count * width
        return seconds(Work(Rows(count, width, 2), "float32", "fp32", 4 * n, 4 * n, 0, 0, 8 * n))

    assert time(2_000) < time(20_000) < time(200_000)


def test_constants_say_where_they_come_from() -> None:
    assert "measured kernels" in shipped().source
    assert all(len(argument) > 20 for argument in unmeasured().values())


def rows(count: int, width: int, passes: int) -> Work:
    n = count * width
    return Work(Rows(count, width, passes), "float32", "fp32", 4 * n, 4 * count, 0, 0, n)


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_long_rows_are_not_left_to_a_few_threads(passes: int) -> None:
    l4 = gpu_specs.load("l4")
    many, nbytes = rows(256, 1 << 20, passes), 4 * 256 * (1 << 20)
    assert seconds(many, l4) < (2.5 + passes) * nbytes / l4.bandwidth_Bps
    if passes == 0:  # one row alone is split over the card
        assert seconds(rows(1, 10**7, 0), l4) < 3 * 4e7 / l4.bandwidth_Bps


def test_a_transposed_convolution_does_the_work_its_flops_say() -> None:
    def conv(direction: str, positions: int, taps: int) -> float:
        nbytes = 4 * 256 * 64 * 64
        size = Conv(1, 256, 256, positions, taps, 1, 4, direction)
        flops = 2 * 256 * 256 * 16 * 64 * 64
        return seconds(Work(size, "float32", "fp32", nbytes, nbytes, 4 * 256 * 256 * 16, flops), T4)

    assert conv("transpose", 128 * 128, 16) == pytest.approx(conv("forward", 64 * 64, 16), rel=0.35)


def test_too_little_work_is_not_called_a_lack_of_arithmetic() -> None:
    thin = Kernels((Kernel("k", "MatMul", (), gemm(64, 64, 4096)),), (), 10**10)
    full = Kernels((Kernel("k", "MatMul", (), gemm(8192, 8192, 8192)),), (), 10**10)
    assert BOUNDS[estimate(thin, [A100]).bound[0, 0]] != "compute"
    assert BOUNDS[estimate(full, [A100]).bound[0, 0]] == "compute"


def test_copies_over_the_bus_take_no_part_in_the_power_budget() -> None:
    product = Kernel("p", "MatMul", (), gemm(4096, 4096, 4096, pipe="fp32", dtype="float32"))
    copy = Kernel("c", "Transfer", (), Work(Transfer(10**8, "h2d"), "float32", "fp32", 0, 10**8, 0))
    alone, together = (estimate(Kernels(r, (), 10**10), [T4]) for r in ((product,), (product, copy)))
    assert together.power_factor[0] == alone.power_factor[0] > 1.3
    assert together.seconds[1, 0] == pytest.approx(estimate(Kernels((copy,), (), 1), [T4]).seconds[0, 0])


def test_a_causal_kernel_skips_what_is_masked_and_no_more() -> None:
    def attention(queries: int, keys: int, causal: bool) -> tuple[float, float]:
        size = Attention(1, 16, 16, queries, keys, 128, 128, causal)
        w = Work(size, "float16", "tensor_fp16", 10**6, 10**6, 0, 4 * 16 * queries * keys * 128)
        e = estimate(Kernels((Kernel("k", "Attention", (), w),), (), 0), [A100])
        return float(e.seconds[0, 0]), float(e.floor_s[0, 0])

    (whole, floor), (half, half_floor) = attention(8192, 8192, False), attention(8192, 8192, True)
    assert half_floor == pytest.approx(floor / 2, rel=0.01)
    assert half < 0.6 * whole
    assert attention(1, 65536, True) == attention(1, 65536, False)


def test_a_card_without_half_precision_tensor_cores_may_have_others() -> None:
    p4 = gpu_specs.load("p4")
    dp4a = replace(p4, dense_flops=gpu_specs.Rates((*p4.dense_flops.items(), ("tensor_int8", 22.8e12))))
    assert seconds(gemm(1024, 1024, 1024, pipe="tensor_int8", dtype="int8"), dp4a) > 0
