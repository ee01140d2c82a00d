"""Convolutions of few channels and depthwise ones, products in FP32, attention, softmax and elementwise kernels against
those of an H200. Their forms were chosen in sight of these rows: derive/hopper.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper

import gpu_specs
import onnxperf
from onnxperf.lab.datasets.reading import SAMPLE, read
from onnxperf.latency import shipped
from onnxperf.latency.cards import Cards
from onnxperf.latency.estimate import estimated, kernel_models
from op_models import Conv, Pointwise, Work

COLUMNS = ("op", "shapes", "types", "arguments", "layout", "kernel", "launches", "us", "seen")
TYPES = {"float": TensorProto.FLOAT, "c10::Half": TensorProto.FLOAT16}
VIT = Path(__file__).parents[2] / "samples/vit-base-16.onnx"
BESIDE_US = 0.6  # microseconds that CUPTI counts beside those of a kernel


@cache
def rows() -> list[dict[str, str]]:
    return [*read(SAMPLE / "h200" / "kernels.csv.gz", COLUMNS)]


def weight(name: str, dtype: int, shape: Sequence[int]) -> TensorProto:
    """A weight whose values are in a file that is not there: predictions need none."""
    t = TensorProto(name=name, data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL)
    t.external_data.add(key="location", value="weights.bin")
    return t


def convolution(image: list[int], filters: list[int], stride: list[int], pad: list[int], type: str) -> bytes:
    """A model of one convolution."""
    dtype = TYPES[type]
    weights = weight("w", dtype, filters)
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=filters[2:], strides=stride, pads=pad * 2,
                            group=image[1] // filters[1])  # fmt: skip
    x, y = helper.make_tensor_value_info("x", dtype, image), helper.make_tensor_value_info("y", dtype, None)
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], [weights]))
    return bytes(model.SerializeToString())


def layers(layout: str, type: str) -> Iterator[tuple[list[int], list[int], list[int], list[int], str, float]]:
    """Image, filters, stride, padding, kernel and microseconds of cuDNN's convolutions of a layout and a type."""
    for r in rows():
        if r["op"] == "aten::cudnn_convolution" and r["layout"] == layout and r["types"].strip("[]").startswith(type):
            image, filters = json.loads(r["shapes"])[:2]
            lists = [json.loads(a) for a in json.loads(r["arguments"]) if a.startswith("[")]
            if len(image) == 4 and lists[2] == [1, 1]:
                us = float(r["us"]) - BESIDE_US * int(r["launches"])
                yield image, filters, lists[1], lists[0], r["kernel"], us


def errors(layout: str, type: str, kind: str) -> np.ndarray:
    """Relative errors of all layers of a kind."""
    relative = []
    for image, filters, stride, pad, kernel, us in layers(layout, type):
        last_all_the_same = layout == "nchw" and "nhwc" in kernel  # what the image is a view of lies so
        kinds = {
            "few channels": image[1] <= 4 and prod(filters[2:]) > 1,
            "depthwise": filters[1] == 1 < image[1] and not last_all_the_same,
            "no whole words": image[2] > 1 == prod(filters[2:]) and image[1] % 8 + filters[0] % 8 > 0,
        }
        if kinds[kind] and image[0] > 1:
            model = convolution(image, filters, stride, pad, type)
            p = onnxperf.predict(model, gpu="h200-sxm", runtime="torch-eager", layout=layout)
            relative.append(p.sum_seconds * 1e6 / us - 1)
    assert len(relative) >= 8
    return np.array(relative)


@pytest.mark.parametrize(("layout", "type", "kind", "most"), [
    ("nchw", "float", "few channels", 0.2),
    ("nchw", "c10::Half", "few channels", 0.25),
    ("nhwc", "c10::Half", "few channels", 0.2),
    ("nchw", "c10::Half", "depthwise", 0.25),
    ("nhwc", "c10::Half", "depthwise", 0.25),
    ("nhwc", "c10::Half", "no whole words", 0.35),
])  # fmt: skip
def test_convolutions(layout: str, type: str, kind: str, most: float) -> None:
    e = errors(layout, type, kind)
    assert abs(e).mean() < most and abs(np.median(e)) < most / 2 + 0.05


@pytest.mark.parametrize(
    ("channels", "side", "edge", "us"), [(64, 112, 1, 153.6), (96, 56, 1, 62.5), (192, 28, 1, 31.9), (304, 8, 9, 73.2)]
)
def test_depthwise_filters_of_unusual_sizes_have_no_kernel_of_their_own(
    channels: int, side: int, edge: int, us: float
) -> None:
    """Of an H100, 32 images with channels last; those of 1x1 have a stride of 2."""
    stride, pad = (2, 0) if edge == 1 else (1, edge // 2)
    model = convolution([32, channels, side, side], [channels, 1, edge, edge], [stride] * 2, [pad] * 2, "c10::Half")
    p = onnxperf.predict(model, gpu="h100-sxm", runtime="torch-eager", layout="nhwc")
    assert p.sum_seconds * 1e6 == pytest.approx(us, rel=0.1)


def test_groups_of_odd_widths_are_widened_where_channels_lie_last() -> None:
    """Visformer's on an RTX 4090 and 3090, which were a tenth too fast in whole networks."""

    def launches(gpu: str, layout: str, width: int) -> int:
        model = convolution([32, 8 * width, 28, 28], [8 * width, width, 3, 3], [1, 1], [1, 1], "c10::Half")
        p = onnxperf.predict(model, gpu=gpu, runtime="torch-eager", layout=layout)
        return int(p.run.estimates.launches[0, 0])

    assert launches("rtx-4090", "nhwc", 48) - launches("rtx-4090", "nhwc", 64) == 4
    assert launches("rtx-3090", "nhwc", 24) - launches("rtx-3090", "nhwc", 32) == 4
    assert launches("rtx-4090", "nchw", 48) == launches("rtx-4090", "nchw", 64)
    assert launches("v100-sxm2-16gb", "nhwc", 48) == launches("v100-sxm2-16gb", "nhwc", 64)


def test_l2_is_slower_as_it_fills_from_hopper_on() -> None:
    def ratio(gpu: str) -> float:
        device, w = gpu_specs.load(gpu), Work(Pointwise(1 << 23), "float16", "fp32", 1 << 24, 1 << 24, 0)
        both = (estimated([w], Cards([device], shipped().having({"l2.far": far})), kernel_models, np.zeros((1, 1)))[0]
                for far in (shipped().l2["far"], 0.0))  # fmt: skip
        slower, without = (float(terms.seconds[0, 0]) for terms in both)
        return slower / without

    assert ratio("h200") > 1.1 and ratio("a100-80gb") == 1.0


def test_of_one_position_nothing_is_turned() -> None:
    """A squeeze and excitation's layers are products of one kernel; over 7x7 positions images are turned."""

    def kernels(side: int) -> tuple[float, int]:
        model = convolution([32, 480, side, side], [24, 480, 1, 1], [1, 1], [0, 0], "c10::Half")
        p = onnxperf.predict(model, gpu="h200-sxm", runtime="torch-eager")
        return p.sum_seconds, int(p.run.estimates.launches[0, 0])

    assert kernels(1)[1] == 1 < kernels(7)[1]
    assert kernels(1)[0] < 0.5 * kernels(7)[0]


def seconds(w: Work) -> float:
    cards = Cards([gpu_specs.load("h200-sxm")], shipped())
    return float(estimated([w], cards, kernel_models, np.zeros((1, 1)))[0].seconds[0, 0])


def test_few_groups_run_one_by_one() -> None:
    def layer(groups: int) -> float:
        channels = 64 * groups
        read = 2 * 32 * channels * 196
        return seconds(Work(Conv(32, channels, channels, 196, 9, groups, 1), "float16", "tensor_fp16", read, read,
                            2 * 9 * 64 * channels, 2 * 32 * 196 * 9 * 64 * channels))  # fmt: skip

    assert layer(6) > 1.5 * layer(7), "57.9 us of 24 kernels"
    assert layer(6) == pytest.approx(57.9e-6, rel=0.3)


@pytest.mark.parametrize(("op", "spread", "most"), [("aten::mul", True, 0.2), ("aten::add", False, 0.25)])
def test_elementwise_kernels_of_mixed_types_ask_for_them(op: str, spread: bool, most: float) -> None:
    """Half precision and single: a scale of each channel, and what is added to a residual stream."""
    errors = []
    for r in rows():
        if r["op"] != op or not ("Half" in r["types"] and "float" in r["types"]) or int(r["launches"]) != 1:
            continue
        shapes = [s for s in json.loads(r["shapes"]) if s]
        size = max(map(prod, shapes))
        if size < 10**6 or (min(map(prod, shapes)) < size) is not spread or "elementwise" not in r["kernel"]:
            continue
        widths = [4 if t == "float" else 2 for t in r["types"].strip("[]").split(",") if t in TYPES]
        read = sum(w * prod(s) for w, s in zip(widths, shapes, strict=False))
        w = Work(Pointwise(size, spread, switched=2), "float32", "fp32", read, 4 * size, 0, 0, size)
        errors.append(seconds(w) * 1e6 / (float(r["us"]) - BESIDE_US) - 1)
    assert len(errors) >= 8 and np.mean(np.abs(errors)) < most


def test_only_eager_kernels_ask_for_types() -> None:
    """A residual stream in FP32 and what a product in FP16 adds to it; torch.compile generates a kernel for both."""

    def asked(runtime: str, precision: str) -> set[str]:
        run = onnxperf.predict(VIT, gpu="l4", runtime=runtime, precision=precision).run
        sizes = ((k.op, k.work.size) for k in run.kernels.rows if k.op != "Cast")
        return {op for op, size in sizes if isinstance(size, Pointwise) and size.switched}

    assert asked("torch-eager", "amp") == {"Add"}
    assert not asked("torch-eager", "fp16") and not asked("torch-compile", "amp") and not asked("ort-cuda", "fp16")


def calls(op: str, type: str, several: bool = False) -> Iterator[tuple[list[list[int]], float]]:
    """Shapes and microseconds of the calls of an operator in NCHW, all kernels of a call together; `several`: as well
    where not all calls of these shapes ran the same kernels.
    """
    together: dict[str, list[tuple[int, float]]] = {}
    for r in rows():
        if r["op"] == op and r["layout"] == "nchw" and r["types"].strip("[]").startswith(type):
            us = float(r["us"]) - BESIDE_US * int(r["launches"])
            together.setdefault(r["shapes"], []).append((int(r["seen"]), us))
    for shapes, kernels in together.items():
        most = max(seen for seen, _ in kernels)
        if several or all(seen == most for seen, _ in kernels):
            yield [x for x in json.loads(shapes) if x], sum(seen * us for seen, us in kernels) / most


def off(model: bytes, us: float) -> float:
    """The relative error of a model's kernels under eager PyTorch."""
    p = onnxperf.predict(model, gpu="h200-sxm", runtime="torch-eager", precision="keep")
    return sum(k.seconds for k in p.kernels) * 1e6 / us - 1


def of_one(node: NodeProto, type: str, *shapes: list[int], weights: Sequence[list[int]] = (), opset: int = 17) -> bytes:
    """A model of one operator, whose inputs have these shapes, weights last."""
    dtype = TYPES[type]
    names, stored = list(node.input), list(node.input)[len(shapes) :]
    inputs = [helper.make_tensor_value_info(n, dtype, x) for n, x in zip(names, shapes, strict=False)]
    held = [weight(n, dtype, shape) for n, shape in zip(stored, weights, strict=True)]
    out = helper.make_tensor_value_info(node.output[0], dtype, None)
    graph = helper.make_graph([node], "g", inputs, [out], held)
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8).SerializeToString()
    )


@pytest.mark.parametrize(("op", "kernels", "most"), [("aten::addmm", 60, 0.2), ("aten::mm", 50, 0.15)])
def test_products_on_cuda_cores_split_k_where_no_bias_is_added(op: str, kernels: int, most: float) -> None:
    """128 x 896 x 896 takes 12.4 us without a bias and 30 with one."""
    relative = []
    for shapes, us in calls(op, "float", several=True):
        if min(map(len, shapes[-2:])) < 2 or min(shapes[-2]) < 2:  # a vector
            continue
        (m, k), (_, n) = shapes[-2:]
        bias = [[n]] if op == "aten::addmm" else []
        node = helper.make_node("Gemm", ["x", "w", "b"][: 2 + len(bias)], ["y"], transB=1)
        relative.append(off(of_one(node, "float", [m, k], weights=[[n, k], *bias]), us))
    assert len(relative) >= kernels and np.mean(np.abs(relative)) < most


@pytest.mark.parametrize(("op", "type", "most"), [
    ("aten::_cudnn_attention_forward", "c10::Half", 0.2), ("aten::_efficient_attention_forward", "float", 0.2),
])  # fmt: skip
def test_attention_is_a_library_s_kernel_alone(op: str, type: str, most: float) -> None:
    relative = []
    for shapes, us in calls(op, type):
        q, k, v = (x if type == "c10::Half" else [x[0], x[2], x[1], x[3]] for x in shapes[:3])
        node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
        if q[1] == k[1]:
            relative.append(off(of_one(node, type, q, k, v, opset=23), us))
    assert len(relative) >= 5 and np.mean(np.abs(relative)) < most


@pytest.mark.parametrize(("op", "type", "most"), [
    ("aten::clamp_min_", "float", 0.15), ("aten::clamp_min_", "c10::Half", 0.15), ("aten::gelu", "float", 0.12),
    ("aten::gelu", "c10::Half", 0.12), ("aten::_softmax", "float", 0.3),
])  # fmt: skip
def test_streams_through_l2_and_dram(op: str, type: str, most: float) -> None:
    """Of 2 MB to 10 GB, and rows of a softmax of 49 to 196 elements."""
    kind = {"aten::clamp_min_": "Relu", "aten::gelu": "Gelu", "aten::_softmax": "Softmax"}[op]
    node = helper.make_node(kind, ["x"], ["y"])
    found = [(shapes[0], us) for shapes, us in calls(op, type) if prod(shapes[0]) > 10**5]
    relative = [off(of_one(node, type, x, opset=20), us) for x, us in found]
    assert len(relative) >= 8 and np.mean(np.abs(relative)) < most
