"""Batch norms in training, sums of columns, casts and depthwise kernels against those of an H200."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod

import numpy as np
import pytest

import gpu_specs
from onnxperf.lab.datasets.reading import SAMPLE, read
from onnxperf.latency import shipped
from onnxperf.latency.cards import Cards
from onnxperf.latency.estimate import estimated, kernel_models
from op_models import Gemm, Operator, Pointwise, Rows, Tensor, Work
from op_models.gradients import batch_norm_gradient, batch_norm_training, norm_gradient

COLUMNS = ("op", "shapes", "types", "arguments", "layout", "kernel", "launches", "us")
TYPES = {"float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
#: Seconds that CUPTI counts beside those of a kernel.
BESIDE = 0.6e-6
Shape = tuple[int, ...]


def kernels(op: str, kernel: str = "") -> list[tuple[list[Shape], list[str], str, float, int]]:
    """Shapes and types of operands, layout, seconds and launches of measured kernels of an operator of PyTorch."""
    rows = [r for r in read(SAMPLE / "h200" / "kernels.csv.gz", COLUMNS) if r["op"] == op and kernel in r["kernel"]]
    return [
        (
            [tuple(s) for s in json.loads(r["shapes"])], r["types"].strip("[]").split(","), r["layout"],
            float(r["us"]) * 1e-6, int(r["launches"]),
        )
        for r in rows
    ]  # fmt: skip


def seconds(w: Work, gpu: str = "h200-sxm") -> float:
    cards = Cards([gpu_specs.load(gpu)], shipped())
    return float(estimated([w], cards, kernel_models, np.zeros((1, 1)))[0].seconds[0, 0])


def errors(pairs: list[tuple[Work, float, int]]) -> np.ndarray:
    assert len(pairs) >= 8
    return np.array([seconds(w) / max(s - BESIDE * n, 1e-7) - 1 for w, s, n in pairs])


def norm(rule: Callable[..., Work], shape: Shape, dtype: str, layout: str) -> Work:
    """A batch norm of an image, or its gradient."""
    backward = rule is batch_norm_gradient
    x = [Tensor(name, dtype, shape) for name in ("x", "g")[: 1 + backward]]
    op = Operator("n", "n", tuple(x), (Tensor("y", dtype, shape),))
    return rule(op, *x, memory_format="channels_last" if layout == "nhwc" else "")


@pytest.mark.parametrize(("layout", "dtype"), [("nchw", "float32"), ("nchw", "float16"), ("nhwc", "float16")])
@pytest.mark.parametrize(("op", "kernel", "rule"), [
    ("aten::cudnn_batch_norm", "tr_", batch_norm_training),
    ("aten::cudnn_batch_norm_backward", "b", batch_norm_gradient),
])  # fmt: skip
def test_batch_norms_in_training(op: str, kernel: str, rule: Callable[..., Work], layout: str, dtype: str) -> None:
    rows = [x for x in kernels(op, kernel) if x[2] == layout and TYPES[x[1][0]] == dtype]
    e = errors([(norm(rule, shapes[0], dtype, layout), s, n) for shapes, _, _, s, n in rows])
    assert abs(e).mean() < 0.25 and abs(e.mean()) < 0.15


def column_sum(shape: Shape, columns: int, dtype: str, block: int = 0) -> Work:
    size, width = prod(shape), 2 if dtype == "float16" else 4
    operands = 2 if block else 1
    return Work(Rows(columns, size // columns, 0, block, 1), dtype, "fp32", operands * width * size, 4 * columns, 0, 0,
                size)  # fmt: skip


def test_sums_of_columns() -> None:
    """Gradients of a linear layer's bias."""
    rows = [x for x in kernels("aten::sum", "reduce_kernel") if len(x[0][0]) == 2 and x[0][0][0] > x[0][0][1]]
    e = errors([(column_sum(s[0], s[0][1], TYPES[t[0]]), us, n) for s, t, _, us, n in rows if s[0][1] % 128 == 0])
    assert abs(e).mean() < 0.25 and abs(e.mean()) < 0.15


def test_gradients_of_scale_and_bias() -> None:
    """With those of the input, which are other rows: a block sums 128 columns, or as many as a row has."""
    rows = [x for x in kernels("aten::native_layer_norm_backward", "GammaBeta") if 100 < prod(x[0][0][:-1]) < 65536]
    pairs = []
    for (shape, *_), _, _, us, n in rows:
        x = [Tensor(name, "float32", shape) for name in "gx"]
        of_input = norm_gradient(Operator("n", "n", tuple(x), (Tensor("y", "float32", shape),)), *x)
        pairs.append((seconds(of_input) + seconds(column_sum(shape, shape[-1], "float32", 32)), us - BESIDE * n))
    e = np.array([a / b - 1 for a, b in pairs])
    assert len(e) >= 8 and abs(e).mean() < 0.2


@pytest.mark.parametrize(("kernel", "switched"), [("unrolled_elementwise", True), ("vectorized_elementwise", False)])
def test_casts(kernel: str, switched: bool) -> None:
    """From float16 each element's type is asked for."""

    def cast(shape: Shape) -> Work:
        size = prod(shape)
        read, written = (2, 4) if switched else (4, 2)
        return Work(Pointwise(size, switched=switched), "float16" if switched else "float32", "fp32", read * size,
                    written * size, 0, 0, size)  # fmt: skip

    wanted = ["float", "c10::Half"] if switched else ["c10::Half", "float"]
    rows = [x for x in kernels("aten::copy_", kernel) if x[1][:2] == wanted and prod(x[0][0]) > 10**7]
    e = errors([(cast(s[0]), us, n) for s, _, _, us, n in rows])
    assert abs(e).mean() < 0.2 and abs(e.mean()) < 0.15


def test_a_thread_reads_no_faster_than_its_block_can() -> None:
    """Of one channel more elements take longer, and so do more channels; no norm is slower for lying last."""
    for rule in (batch_norm_training, batch_norm_gradient):
        for layout in ("nchw", "nhwc"):
            of_sides = [seconds(norm(rule, (32, 64, n, n), "float16", layout)) for n in (7, 14, 28, 56, 112, 224)]
            of_channels = [seconds(norm(rule, (32, n, 28, 28), "float16", layout)) for n in (16, 64, 256, 1024, 4096)]
            assert of_sides == sorted(of_sides) and of_channels == sorted(of_channels)


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "b200-sxm"])
def test_products_that_tma_cannot_take_run_on_older_kernels(gpu: str) -> None:
    def product(m: int, n: int, k: int, padded: bool = False, dtype: str = "float16") -> float:
        pipe = "tensor_fp16" if dtype == "float16" else "tensor_fp8"
        size = Gemm(1, m, n, k, tb=True, padded=padded)
        return seconds(Work(size, dtype, pipe, 2 * (m * k + n * k), 2 * m * n, 0, 2 * m * n * k), gpu)

    whole = product(4096, 50264, 768)
    assert product(4096, 50257, 768) > 3 * whole > 2.8 * product(4096, 50257, 768, padded=True)
    assert product(4096, 768, 196) > 2 * product(4096, 768, 200)
    assert product(4095, 50264, 768) < 1.05 * whole  # rows of the left operand are whole words all the same


def test_older_cards_take_any_product() -> None:
    w = [Work(Gemm(1, 4096, n, 768, tb=True), "float16", "tensor_fp16", 2 * 768 * (4096 + n), 8192 * n, 0,
              8192 * n * 768) for n in (50257, 50264)]  # fmt: skip
    assert seconds(w[0], "a100-sxm4-80gb") < 1.05 * seconds(w[1], "a100-sxm4-80gb")
