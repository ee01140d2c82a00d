"""Products, convolutions and recurrent layers from the tables in `deepbench/` (Baidu's DeepBench, Apache-2.0).

Read are forward passes, in FP32 and on tensor cores in FP16. Not read: P100's 16-bit rows, which multiply in FP32, and
INT8, whose products run on vector units (T4: at most 24 of 130 TOPS).
"""

from __future__ import annotations

from collections.abc import Callable

import gpu_specs
from onnxperf.lab.datasets.dataset import Dataset, File, Kernels, long_enough, with_watts_to_spare
from onnxperf.lab.datasets.reading import Record, number, sizes, work_of
from onnxperf.lab.datasets.rigs import for_milliseconds, in_turn_on_uniform_numbers, on_uniform_numbers
from onnxperf.lab.datasets.table import Row, Table
from op_models import Tensor, Work

CARDS = {
    "M40": "m40", "TitanX": "titan-x-maxwell", "TitanX_Pascal": "titan-x-pascal", "TitanXp": "titan-xp",
    "1080Ti": "gtx-1080-ti", "P100": "p100-pcie-16gb", "V100": "v100-sxm2-16gb", "T4": "t4",
}  # fmt: skip
#: Precisions that are read: what their tables are called beside those in FP32, and the type of their tensors.
PRECISIONS = {
    "Float": ("", "float32"), "16 bit inputs, 16 bit multiplication, 32 bit addition": (" fp16", "float16"),
}  # fmt: skip
LAYERS = {"Vanilla": ("RNN", 1), "LSTM": ("LSTM", 4), "GRU": ("GRU", 3)}


def product(r: Record, dtype: str) -> Work | None:
    """C[m, n] = op(A) op(B); column-major in the source, hence with the operands' roles swapped in ours."""
    size = sizes(r, "M", "N", "K")
    if size is None:
        return None
    m, n, k = size
    ta, tb = r.get("A Transpose") == "T", r.get("B Transpose") == "T"
    b = Tensor("b", dtype, (m, k) if ta else (k, m), "weight")
    a = Tensor("a", dtype, (k, n) if tb else (n, k))
    return work_of("Gemm", (a, b), Tensor("c", dtype, (n, m)), {"transA": int(tb), "transB": int(ta)})


def conv(r: Record, dtype: str) -> Work | None:
    """A forward convolution, K filters of S x R over images of W x H.

    In FP16 channels are taken to lie last: rows on tensor cores leave no time for turning them round.
    """
    size = sizes(r, "W", "H", "C", "N", "K", "S", "R", "stride_w", "stride_h")
    if size is None:
        return None
    w, h, c, n, k, s, taps, stride_w, stride_h = size
    (pad_w,), (pad_h,) = (sizes(r, side) or (0,) for side in ("pad_w", "pad_h"))
    out_w, out_h = (w + 2 * pad_w - s) // stride_w + 1, (h + 2 * pad_h - taps) // stride_h + 1
    if min(out_w, out_h) < 1:
        return None
    last = dtype == "float16"
    image, result = ((n, h, w, c), (n, out_h, out_w, k)) if last else ((n, c, h, w), (n, k, out_h, out_w))
    inputs = Tensor("x", dtype, image), Tensor("w", dtype, (k, c, taps, s), "weight")
    attrs = {"pads": [pad_h, pad_w, pad_h, pad_w], "strides": [stride_h, stride_w], "kernel_shape": [taps, s]}
    return work_of("com.microsoft::NhwcConv" if last else "Conv", inputs, Tensor("y", dtype, result), attrs)


def recurrent(r: Record, dtype: str) -> Work | None:
    """One layer, one direction, the steps alone: what comes in is added to the gates, without a product of its own.

    The source's column of TFLOPS counts 2 batch gates hidden^2 a step. Were inputs multiplied as well, 22 rows would
    lie 1.11 to 1.76 times over the peak of their cards.
    """
    hidden = sizes(r, "Hidden units") or sizes(r, "Hidden Units")
    shape = sizes(r, "N", "Timesteps")
    kind = LAYERS.get((r.get("section") or "").rpartition(" ")[2])
    if hidden is None or shape is None or kind is None:
        return None
    (units,), (batch, steps), (type, gates) = hidden, shape, kind
    x, w = Tensor("x", dtype, (steps, batch, 0)), Tensor("w", dtype, (1, gates * units, 0), "weight")
    h, y = Tensor("h", dtype, (1, gates * units, units), "weight"), Tensor("y", dtype, (steps, 1, batch, units))
    return work_of(type, (x, w, h), y, {"hidden_size": units})


def _file(name: str, table: str, column: str, shape: Callable[[Record, str], Work | None]) -> File:
    """A file whose kernels in FP32 are called `table`, with their times in a `column`."""

    def row(r: Record) -> Row | None:
        if r["mode"] != "train" or r["precision"] not in PRECISIONS:
            return None
        suffix, dtype = PRECISIONS[r["precision"]]
        seconds, ran = number(r, column) / 1e3, r.get("fwd_algo") or ""
        return Row(table + suffix, CARDS.get(r["gpu"]), shape(r, dtype), seconds, True, ran)

    return File(name, ("gpu", "mode", "precision", column), row)


def _of_64_lanes(t: Table) -> Table:
    """Cards with 64 lanes an SM: on the others, one shape on one die differs by 2.8 with the library."""
    return with_watts_to_spare(t.on(g for g in t.gpus if gpu_specs.load(g).lanes == 64))


DATASET = Dataset(
    "deepbench", 20, "deepbench",
    kernels=(
        Kernels("deepbench gemm", "DeepBench GEMM", "gemm", 6e-6, _of_64_lanes, False, for_milliseconds),
        Kernels("deepbench conv", "DeepBench convolution", "convolution", 1e-5, kept_back=False),
        Kernels("deepbench rnn", "DeepBench recurrent", "recurrent", 1e-5, long_enough, False),
        Kernels("deepbench gemm fp16", "DeepBench FP16 GEMM", "tensor_gemm", 6e-6, kept_back=False,
                timed=in_turn_on_uniform_numbers),
        Kernels("deepbench conv fp16", "DeepBench FP16 convolution", "tensor_convolution", 1e-6, kept_back=False,
                timed=on_uniform_numbers),
        Kernels("deepbench rnn fp16", "DeepBench FP16 recurrent", "recurrent", 1e-5, long_enough, False),
    ),
    files=(
        _file("gemm.csv.gz", "deepbench gemm", "time_ms", product),
        _file("conv.csv.gz", "deepbench conv", "fwd_ms", conv),
        _file("rnn.csv.gz", "deepbench rnn", "Time Forward (msec)", recurrent),
    ),
)  # fmt: skip
