"""What an H100 told of: cuDNN's reductions under ONNX Runtime, weights from DRAM, few groups, norms without plane."""

import csv
import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpu_specs
import onnxperf
from onnxperf.lab.datasets import SAMPLE
from onnxperf.latency import shipped
from onnxperf.latency.cards import Cards
from onnxperf.latency.estimate import estimated, kernel_models
from op_models import Conv, Operator, Pointwise, Tensor, Work
from op_models.normalize import batch_norm


def reduction(type: str, shape: list[int], axes: list[int], dtype: int) -> bytes:
    """A model of one reduction, which a card runs behind another operator."""
    left = [1 if k in axes else d for k, d in enumerate(shape)]
    named = helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes)
    graph = helper.make_graph(
        [helper.make_node(type, ["x", "axes"], ["y"], keepdims=1, name="reduction")], type,
        [helper.make_tensor_value_info("x", dtype, shape)], [helper.make_tensor_value_info("y", dtype, left)], [named],
    )  # fmt: skip
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())


def kernels(type: str, shape: list[int], axes: list[int], dtype: int = TensorProto.FLOAT) -> list[str]:
    p = onnxperf.predict(reduction(type, shape, axes, dtype), gpu="h100-sxm", ort_version="1.30")
    return [k.op for k in p.kernels]


@pytest.mark.parametrize(
    ("type", "axes", "single", "half"),
    [
        ("ReduceSum", [3], 1, 1),  # the last axes
        ("ReduceMean", [2, 3], 1, 1),
        ("ReduceMean", [0], 1, 1),  # the first
        ("ReduceMean", [0, 1, 2, 3], 1, 1),
        ("ReduceSum", [1], 2, 3),  # in the middle
        ("ReduceMean", [1, 2], 2, 3),
        ("ReduceSum", [0, 2], 2, 3),
        ("ReduceMax", [0], 2, 3),  # a column, but no sum
        ("ReduceL2", [1, 2], 3, 4),
    ],
)
def test_reductions_of_elements_that_lie_apart_are_cudnns(type: str, axes: list[int], single: int, half: int) -> None:
    shape = [8, 6, 4, 10]
    assert len(kernels(type, shape, axes)) == single
    assert len(kernels(type, shape, axes, TensorProto.FLOAT16)) == half


def test_axes_of_one_lie_nowhere() -> None:
    assert len(kernels("ReduceSum", [8, 1, 4, 10], [1, 2, 3])) == 1
    assert len(kernels("ReduceSum", [1, 6, 4, 10], [1])) == 1


def measured(op: str, precision: str) -> list[tuple[list[int], float]]:
    """Shapes in, and microseconds without CUPTI's .6 a kernel, of nodes of more than 30 us."""
    text = gzip.decompress((SAMPLE / "h100/kernels.csv.gz").read_bytes()).decode()
    rows = [r for r in csv.DictReader(text.splitlines()) if r["op"] == op and r["arguments"] == precision]
    return [
        (json.loads(r["shapes"])[0], float(r["us"]) - 0.6 * int(r["launches"])) for r in rows if float(r["us"]) > 30
    ]


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
@pytest.mark.parametrize(("op", "axes"), [("ReduceSum", [1]), ("ReduceL2", [1, 2])])
def test_reductions_take_what_an_h100_takes(op: str, axes: list[int], precision: str) -> None:
    """They were chosen in sight of these rows."""
    rows, errors = measured(f"ort::{op}", precision), []
    dtype = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.FLOAT
    for shape, us in rows:
        p = onnxperf.predict(reduction(op, shape, axes, dtype), gpu="h100-sxm", ort_version="1.30")
        errors.append(abs(p.sum_seconds * 1e6 / us - 1))
    assert len(errors) >= 3 and max(errors) < 0.45 and sum(errors) / len(errors) < 0.25, errors


def seconds(w: Work, gpu: str = "h100-sxm") -> float:
    cards = Cards([gpu_specs.load(gpu)], shipped())
    return float(estimated([w], cards, kernel_models, np.zeros((1, 1)))[0].seconds[0, 0])


def test_a_batch_norm_without_positions_has_no_plane() -> None:
    x, scale = Tensor("x", "float16", (6272, 256)), Tensor("w", "float16", (256,))
    size = batch_norm(Operator("BatchNormalization", "n", (x, *(scale,) * 4), (replace(x, name="y"),)), x).size
    assert isinstance(size, Pointwise) and size.plane == 0
    image = replace(x, shape=(32, 256, 14, 14))
    size = batch_norm(
        Operator("BatchNormalization", "n", (image, *(scale,) * 4), (replace(image, name="y"),)), image
    ).size
    assert isinstance(size, Pointwise) and size.plane == 196


def test_weights_come_from_dram_however_small() -> None:
    moved = Work(Pointwise(262_144), "float32", "fp32", 1 << 20, 1 << 19, 0)
    cold, load_s = replace(moved, weight_bytes=1 << 20), shipped().pointwise["load_s"]
    assert seconds(moved) + load_s < seconds(cold) < seconds(moved) + 3 * load_s


def layer(groups: int, last: bool = False) -> float:
    """A 3x3 filter of ResNeSt's second stage, by groups."""
    k, out, bytes_ = 9 * 128 // groups, 28 * 28, 2 * 32 * 128 * 28 * 28
    size = Conv(32, 128, 256, out, 9, groups, 1, last=last)
    flops = 2 * 32 * out * 256 * k
    return seconds(Work(size, "float16", "tensor_fp16", bytes_, 2 * bytes_, 2 * 256 * k, flops))


@pytest.mark.parametrize(("last", "measured"), [(False, 58.8e-6), (True, 52.6e-6)])
def test_few_groups_take_one_kernel_each(last: bool, measured: float) -> None:
    """Two groups of 64 channels on an H100: 58.8 us of eight kernels in NCHW, 52.6 of six with channels last."""
    assert layer(2, last) == pytest.approx(measured, rel=0.25)
    assert layer(2, last) > layer(1, last)  # with half the products
