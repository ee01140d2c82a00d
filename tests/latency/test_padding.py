"""No choice of a variant makes more work faster: a work takes no longer than a larger one that could run instead."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from onnx import parser

import gpu_specs
from onnxperf import predict
from onnxperf.latency import alone, shipped, single
from onnxperf.latency.cards import Cards
from onnxperf.latency.estimate import estimated, kernel_models
from onnxperf.latency.padding import above, grown
from onnxperf.methods import METHODS
from op_models import BITS, Attention, Conv, Gemm, Work

P100 = gpu_specs.load("p100-pcie-16gb")
PIPES = {
    "float32": ("fp32", "tensor_tf32"), "float16": ("tensor_fp16", "tensor_fp16_sums"), "bfloat16": ("tensor_bf16",),
    "int8": ("tensor_int8",), "float8e4m3fn": ("tensor_fp8",),
}  # fmt: skip
Kind = Callable[[random.Random, str, str], tuple[Callable[[int], Work], int]]


def between(rng: random.Random, least: float, most: float) -> int:
    return int(2 ** rng.uniform(least, most))


def product(dtype: str, pipe: str, batch: int, m: int, n: int, k: int, stored: bool = True) -> Work:
    width, second = BITS[dtype] // 8, n * k * (1 if stored else batch)
    moved, written = width * (batch * m * k + second), width * batch * m * n
    return Work(
        Gemm(batch, m, n, k), dtype, pipe, moved, written, width * second if stored else 0, 2 * batch * m * n * k
    )


def single_product(rng: random.Random, dtype: str, pipe: str) -> tuple[Callable[[int], Work], int]:
    unit, n, k = rng.choice((1, 8, 64)), between(rng, 5, 14), between(rng, 5, 14)
    n, k = max(n - n % unit, 1), max(k - k % unit, 1)
    return lambda rows: product(dtype, pipe, 1, rows, n, k), 12


def batched_product(rng: random.Random, dtype: str, pipe: str) -> tuple[Callable[[int], Work], int]:
    m, n, k = between(rng, 0, 11), between(rng, 3, 11), between(rng, 3, 9)
    return lambda batch: product(dtype, pipe, batch, m, n, k, stored=False), 9


def convolution(rng: random.Random, dtype: str, pipe: str) -> tuple[Callable[[int], Work], int]:
    cin, cout, out = 8 * between(rng, 0, 6), 8 * between(rng, 0, 6), between(rng, 2, 7) ** 2
    taps, stride, last, width = rng.choice((1, 9, 25)), rng.choice((1, 2)), rng.random() < 0.5, BITS[dtype] // 8
    groups = cin if rng.random() < 0.3 else 1
    cout = cin if groups > 1 else cout
    filters = width * cout * cin // groups * taps

    def work(images: int) -> Work:
        size = Conv(images, cin, cout, out, taps, groups, stride, last=last)
        moved, flops = width * images * cin * out * stride**2, 2 * images * cout * out * cin // groups * taps
        return Work(size, dtype, pipe, moved + filters, width * images * cout * out, filters, flops)

    return work, 7


def attention(rng: random.Random, dtype: str, pipe: str) -> tuple[Callable[[int], Work], int]:
    heads, dim, width = 2 ** rng.randint(0, 6), rng.choice((64, 128)), BITS[dtype] // 8
    shared, queries, causal = (
        max(1, heads // 2 ** rng.randint(0, 3)),
        rng.choice((1, 1, between(rng, 0, 12))),
        rng.random(),
    )
    keys = max(queries, between(rng, 4, 13))

    def work(batch: int) -> Work:
        size = Attention(batch, heads, shared, queries, keys, dim, dim, causal < 0.5)
        moved, written = (heads * queries + 2 * shared * keys) * dim, heads * queries * dim
        flops = 4 * batch * heads * queries * keys * dim
        return Work(size, dtype, pipe, width * batch * moved, width * batch * written, 0, flops)

    return work, 8


@pytest.mark.parametrize("kind", [single_product, batched_product, convolution, attention], ids=lambda k: k.__name__)
@pytest.mark.slow
def test_more_work_is_not_faster_on_any_card(kind: Kind) -> None:
    """Not every larger size is tried: of random pairs, one in a thousand may fall by a hundredth or more."""
    rng, devices = random.Random(kind.__name__), [gpu_specs.load(name) for name in gpu_specs.ids()]
    pairs = list[tuple[Work, Work]]()
    for _ in range(80):
        dtype = rng.choice(sorted(PIPES))
        work, most = kind(rng, dtype, rng.choice(PIPES[dtype]))
        size = between(rng, 0, most)
        pairs.append((work(size), work(size + rng.choice((1, max(1, size // 8), size, 3 * size, between(rng, 0, 5))))))
    works = [w for pair in pairs for w in pair]
    stored = np.array([[float(w.weight_bytes)] for w in works])
    seconds = estimated(works, Cards(devices, shipped()), kernel_models, stored)[0].seconds
    falls = seconds[::2] / seconds[1::2] - 1
    assert falls.max() < 0.05
    assert (falls > 0.01).mean() < 0.001


@pytest.mark.parametrize("gpu", ["p100-pcie-16gb", "gtx-1060-6gb", "l4", "a100-sxm4-80gb", "rtx-4090"])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_larger_batch_of_one_product_is_not_faster(gpu: str, precision: str) -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[batch,2048] x) => (float[batch,8192] y)
      { y = MatMul(x, w) }"""
    model = parser.parse_model(text)
    weights = model.graph.initializer.add(name="w", data_type=1, dims=[2048, 8192], data_location=1)
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(4 * 2048 * 8192))):
        weights.external_data.add(key=key, value=value)
    times = [predict(model, gpu=gpu, precision=precision, batch=b).seconds for b in (1, 4, 8, 16, 17, 32, 64, 128)]
    assert all(b >= 0.998 * a for a, b in pairwise(times))


def test_kernels_that_were_measured_are_modelled_as_they_ran() -> None:
    """cuBLAS 9 takes longer for 16 rows than for 32 on a P100 (DeepBench, 4096 x 4096: 0.40 and 0.17 ms)."""
    few, more = (product("float32", "fp32", 1, rows, 4096, 4096) for rows in (16, 32))
    measured = alone([few, more], [P100], shipped()).seconds[:, 0]
    assert measured[0] > 1.5 * measured[1]
    assumed = [single(w, P100, shipped(), METHODS["sum"], w.weight_bytes)[0] for w in (few, more)]
    assert assumed[0].seconds[0, 0] == assumed[1].seconds[0, 0]
    assert assumed[0].variant[0, 0] == assumed[1].variant[0, 0]
    assert assumed[0].detail["padding efficiency"][0, 0] == 0.5


def test_sizes_above_are_larger_and_in_order() -> None:
    for size in (0, 1, 7, 16, 100, 4097):
        sizes = above(size, 1e9) if size else above(size, 1e9, near=1)
        assert sizes == sorted(set(sizes)) and all(n > size for n in sizes)
        assert above(size, 2.0) == [n for n in sizes if n <= 2 * size]
    assert above(17, 1e9, near=5)[:5] == [18, 19, 20, 21, 22]


def test_more_rows_read_the_same_weights() -> None:
    w = product("float16", "tensor_fp16", 1, 10, 64, 32)
    larger = grown(w, "m", 30, w.weight_bytes)
    assert larger == product("float16", "tensor_fp16", 1, 30, 64, 32)
