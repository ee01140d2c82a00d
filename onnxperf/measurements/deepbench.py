"""Products, convolutions and recurrent layers from the tables in `deepbench/` (Baidu's DeepBench, Apache-2.0)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from onnxperf.measurements.core import Row, Table, number, read, refusal, sizes, tables, work_of
from op_models import Tensor, Work

RIG = "deepbench"
CARDS = {
    "M40": "m40", "TitanX": "titan-x-maxwell", "TitanX_Pascal": "titan-x-pascal", "TitanXp": "titan-xp",
    "1080Ti": "gtx-1080-ti", "P100": "p100-pcie-16gb", "V100": "v100-sxm2-16gb", "T4": "t4",
}  # fmt: skip
LAYERS = {"Vanilla": ("RNN", 1), "LSTM": ("LSTM", 4), "GRU": ("GRU", 3)}


def kernels(folder: Path) -> list[Table]:
    """Forward passes in FP32 of the tables that lie in `folder`."""
    found: list[Table] = []
    for file, family, column, shape in FILES:
        if (folder / file).is_file():
            found += _table(folder / file, family, column, shape)
    return found


def _table(path: Path, family: str, column: str, shape: Callable[[dict[str, str]], Work | None]) -> list[Table]:
    rows, why = [], Counter[str]()
    for r in read(path, ("gpu", "mode", "precision", column)):
        if r["mode"] != "train" or r["precision"] != "Float":
            continue
        gpu, work, seconds = CARDS.get(r["gpu"]), shape(r), number(r, column) / 1e3
        if reason := refusal(gpu, work, seconds):
            why[reason] += 1
        elif gpu and work:
            rows.append(Row(family, gpu, work, seconds, True, r.get("fwd_algo") or ""))
    return tables(rows, RIG, {family: why})


def _tensor(*shape: int, kind: str = "activation") -> Tensor:
    return Tensor("t", "float32", shape, kind)


def product(r: dict[str, str]) -> Work | None:
    """C[m, n] = op(A) op(B); column-major in the source, hence with the operands' roles swapped in ours."""
    size = sizes(r, "M", "N", "K")
    if size is None:
        return None
    m, n, k = size
    ta, tb = r.get("A Transpose") == "T", r.get("B Transpose") == "T"
    b, a = _tensor(*((m, k) if ta else (k, m)), kind="weight"), _tensor(*((k, n) if tb else (n, k)))
    attrs = {"transA": int(tb), "transB": int(ta)}
    return work_of("Gemm", (a, b), _tensor(n, m), attrs)


def conv(r: dict[str, str]) -> Work | None:
    """A forward convolution, K filters of S x R over images of W x H."""
    size = sizes(r, "W", "H", "C", "N", "K", "S", "R", "stride_w", "stride_h")
    if size is None:
        return None
    w, h, c, n, k, s, taps, stride_w, stride_h = size
    (pad_w,), (pad_h,) = (sizes(r, side) or (0,) for side in ("pad_w", "pad_h"))
    out_w, out_h = (w + 2 * pad_w - s) // stride_w + 1, (h + 2 * pad_h - taps) // stride_h + 1
    if min(out_w, out_h) < 1:
        return None
    inputs = (_tensor(n, c, h, w), _tensor(k, c, taps, s, kind="weight"))
    attrs = {"pads": [pad_h, pad_w, pad_h, pad_w], "strides": [stride_h, stride_w], "kernel_shape": [taps, s]}
    return work_of("Conv", inputs, _tensor(n, k, out_h, out_w), attrs)


def recurrent(r: dict[str, str]) -> Work | None:
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
    w, h = _tensor(1, gates * units, 0, kind="weight"), _tensor(1, gates * units, units, kind="weight")
    out = _tensor(steps, 1, batch, units)
    return work_of(type, (_tensor(steps, batch, 0), w, h), out, {"hidden_size": units})


#: The tables: file, what its kernels are called, the column of times, and what makes a work of a record.
FILES = (
    ("gemm.csv.gz", "deepbench gemm", "time_ms", product),
    ("conv.csv.gz", "deepbench conv", "fwd_ms", conv),
    ("rnn.csv.gz", "deepbench rnn", "Time Forward (msec)", recurrent),
)
