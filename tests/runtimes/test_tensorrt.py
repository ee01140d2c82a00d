"""TensorRT's rules on the smallest models they match, and what they make of the samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxperf import ModelError, predict
from onnxperf.graph import Graph, load
from onnxperf.lowering.lower import lower
from onnxperf.passes.precision import precision
from onnxperf.runtimes import RUNTIMES, of_version, run_graph
from op_models import Conv, Operator, work_of
from tests.zoo import PLAIN, SAMPLES, sizes

TENSORRT = RUNTIMES["tensorrt"]
CONV = "(float[1,3,8,8] x) => (float[1,4,6,6] y) "
SIBLINGS = "(float[1,8,8,8] x) => (float[1,8,8,8] y, float[1,8,8,8] v) "
POINTS: dict[str, Any] = {"w": (8, 8, 1, 1), "u": (8, 8, 1, 1)}
CONVS = "(float[1,3,8,8] x) => (float[1,4,6,6] y, float[1,4,6,6] v) "
SKIP = "(float[1,3,8,8] x, float[1,4,6,6] r) => (float[1,4,6,6] y) "
HIDDEN = "(float[2,3,4] x) => (float[2,3,4] y) "
TWO = "(float[2,3,4] x, float[2,3,4] z) => (float[2,3,4] y) "
W: dict[str, Any] = {"w": (4, 3, 3, 3)}

#: model, weights, the kernels
MATCHES: dict[str, tuple[str, dict[str, Any], str]] = {
    "activation": (CONV + "{c=Conv(x,w) y=Relu(c)}", W, "FusedConv"),
    "bias, batch norm, activation": (
        CONV + "{c=Conv(x,w,s) n=BatchNormalization(c,s,s,s,s) y=Relu(n)}", {**W, "s": (4,)}, "FusedConv",
    ),
    "a ReLU that leaks, in float32": (CONV + "{c=Conv(x,w) y=LeakyRelu(c)}", W, "Conv LeakyRelu"),
    "swish in float32": (CONV + "{c=Conv(x,w) s=Sigmoid(c) y=Mul(c,s)}", W, "Conv QuickGelu"),
    "residual": (SKIP + "{c=Conv(x,w) a=Add(r,c) y=Relu(a)}", W, "FusedConv"),
    "two convolutions, one sum": (
        CONV + "{c=Conv(x,w) r=Relu(c) d=Conv(x,u) a=Add(d,r) y=Relu(a)}", {**W, "u": (4, 3, 3, 3)},
        "FusedConv FusedConv",
    ),
    "an activation that is not the only reader": (
        CONVS + "{c=Conv(x,w) v=Relu(c) y=Add(c,v)}", W, "Conv Relu Add",
    ),
    "a summand that broadcasts": (
        "(float[1,3,8,8] x, float[1,4,1,1] r) => (float[1,4,6,6] y) {c=Conv(x,w) y=Add(r,c)}", W, "Conv Add",
    ),
    "siblings of several taps": (
        CONVS + "{y=Conv(x,w) v=Conv(x,u)}", {**W, "u": (4, 3, 3, 3)}, "Conv Conv",
    ),
    "siblings": (SIBLINGS + "{y=Conv(x,w) v=Conv(x,u)}", POINTS, "Conv"),
    "siblings with ReLU": (
        SIBLINGS + "{c=Conv(x,w) y=Relu(c) d=Conv(x,u) v=Relu(d)}", POINTS, "FusedConv",
    ),
    "siblings with another activation": (
        SIBLINGS + "{c=Conv(x,w) y=HardSwish(c) d=Conv(x,u) v=HardSwish(d)}", POINTS,
        "Conv HardSwish HardSwish",
    ),
    "siblings that end otherwise": (
        SIBLINGS + "{y=Conv(x,w) d=Conv(x,u) v=Relu(d)}", POINTS, "Conv FusedConv",
    ),
    "linear layers side by side": (
        "(float[2,3,4] x) => (float[2,3,5] y, float[2,3,6] z) {c=MatMul(x,w) y=Add(c,b) d=MatMul(x,u) z=Add(d,k)}",
        {"w": (4, 5), "b": (5,), "u": (4, 6), "k": (6,)}, "Gemm",
    ),
    "linear and gelu in float32": (
        HIDDEN + "{c=MatMul(x,w) a=Add(c,b) y=Gelu(a)}", {"w": (4, 4), "b": (4,)}, "Gemm Gelu",
    ),
    "linear and ReLU": (HIDDEN + "{c=MatMul(x,w) a=Add(c,b) y=Relu(a)}", {"w": (4, 4), "b": (4,)}, "FusedGemm"),
    "linear and residual": (HIDDEN + "{c=MatMul(x,w) a=Add(c,b) y=Add(a,x)}", {"w": (4, 4), "b": (4,)},
                            "FusedMatMulActivation"),
    "a chain that reads a value twice": (HIDDEN + "{a=Exp(x) b=Add(a,x) c=Tanh(b) y=Mul(c,a)}", {}, "Pointwise"),
    "a chain of all": (TWO + "{a=Exp(x) b=Add(a,z) y=Tanh(b)}", {}, "Pointwise"),
    "a chain before rows": (TWO + "{a=Mul(x,h) b=Add(a,z) y=Softmax<axis=-1>(b)}", {"h": 0.5}, "Softmax"),
    "residual before rows": (
        TWO + "{a=Add(x,z) y=LayerNormalization<axis=-1>(a,s,s)}", {"s": (4,)}, "SkipLayerNormalization",
    ),
    "attention in float32": (
        TWO + "{t=Transpose<perm=[0,2,1]>(z) a=MatMul(x,t) m=Mul(a,h) p=Softmax<axis=-1>(m) y=MatMul(p,z)}",
        {"h": 0.5}, "MatMul Softmax MatMul",
    ),
    "concatenation of what kernels write": (
        "(float[1,3,8,8] x) => (float[1,6,8,8] y) {a=Relu(x) b=Exp(x) y=Concat<axis=1>(a,b)}", {}, "Relu Exp",
    ),
    "a view between product and activation": (
        "(float[2,3,4] x) => (float[6,4] y) {c=MatMul(x,w) t=Flatten<axis=2>(c) y=Tanh(t)}", {"w": (4, 4)},
        "MatMul Tanh",
    ),
    "parts of what a kernel writes": (
        "(float[2,6] x) => (float[2,3] y, float[2,3] z) {a=Relu(x) y,z=Split<axis=1,num_outputs=2>(a)}", {}, "Relu",
    ),
    "concatenation of a part": (
        "(float[2,6] x) => (float[2,6] y) {a=Relu(x) b,c=Split<axis=1,num_outputs=2>(a) d=Exp(c)"
        " y=Concat<axis=1>(d,b)}", {}, "Relu Exp Contiguous",
    ),
    "siblings beside one with another bias": (
        "(float[3,4] x) => (float[3,5] y, float[3,5] z, float[3,5] v) {y=Gemm(x,w,b) z=Gemm(x,u,b) v=Gemm(x,k,m)}",
        {"w": (4, 5), "u": (4, 5), "k": (4, 5), "b": (5,), "m": (3, 5)}, "Gemm Gemm",
    ),
    "concatenation of an input": (
        "(float[1,3,8,8] x) => (float[1,6,8,8] y) {a=Relu(x) y=Concat<axis=1>(a,x)}", {}, "Relu Contiguous",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MATCHES)
def test_kernels(run: Callable[..., Graph], types: Callable[[Graph], Counter[str]], name: str) -> None:
    text, weights, kernels = MATCHES[name]
    assert types(run(text, runtime="tensorrt", **weights)) == Counter(kernels.split())


#: The same in half precision, with more channels than an image has.
HALF = {
    "swish": ("{c=Conv<pads=[1,1,1,1]>(x,w) g=Sigmoid(c) y=Mul(c,g)}", "FusedConv"),
    "swish, then a residual": (
        "{c=Conv<pads=[1,1,1,1]>(x,w) g=Sigmoid(c) m=Mul(c,g) y=Add(m,x)}", "FusedConv",
    ),
    "swish behind a depthwise convolution": (
        "{c=Conv<pads=[1,1,1,1],group=16>(x,n) g=Sigmoid(c) y=Mul(c,g)}", "Conv QuickGelu",
    ),
    "a part that is a residual": (
        "{h=Conv<pads=[1,1,1,1]>(x,w) a,b=Split<axis=1,num_outputs=2>(h) c=Conv<pads=[1,1,1,1]>(b,v) r=Relu(c)"
        " d=Add(r,b) y=Concat<axis=1>(a,d)}", "Conv Contiguous FusedConv Contiguous Contiguous",
    ),
    "a part that is only read": (
        "{h=Conv<pads=[1,1,1,1]>(x,w) a,b=Split<axis=1,num_outputs=2>(h) c=Conv<pads=[1,1,1,1]>(b,v) d=Relu(c)"
        " y=Concat<axis=1>(a,d)}", "Conv FusedConv Contiguous",
    ),
    "pooling in a concatenation": (
        "{h=Conv<pads=[1,1,1,1]>(x,f) p=MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>(h) y=Concat<axis=1>(h,p)"
        "}", "Conv MaxPool Contiguous",
    ),
    "a view between convolutions": (
        "{h=Conv<pads=[1,1,1,1]>(x,w) l=Flatten<axis=2>(h) g=Exp(l) y=Reshape<allowzero=0>(g,s)}",
        "Conv Contiguous Exp",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HALF)
def test_kernels_in_half_precision(
    make: Callable[..., onnx.ModelProto], types: Callable[[Graph], Counter[str]], name: str
) -> None:
    text, kernels = HALF[name]
    weights = {"w": (16, 16, 3, 3), "n": (16, 1, 3, 3), "v": (8, 8, 3, 3), "f": (8, 16, 3, 3)}
    model = make("(float[1,16,8,8] x) => (float[1,16,8,8] y) " + text, weights)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 16, 8, 8]), "s"))
    expected = Counter(kernels.split()) + Counter({"Contiguous": 1})  # of the image that is fed in
    assert types(run_graph(precision(load(model), "fp16"), TENSORRT)) == expected


def test_a_reshape_moves_behind_what_follows_a_product() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Reshape", ["p", "s"], ["v"]),
        helper.make_node("Gelu", ["v"], ["g"]),
        helper.make_node("MatMul", ["x", "u"], ["q"]),
        helper.make_node("Reshape", ["q", "s"], ["r"]),
        helper.make_node("Add", ["r", "z"], ["y"]),
    ]
    io = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in
          (("x", [6, 4]), ("z", [2, 3, 4]), ("g", [2, 3, 4]), ("y", [2, 3, 4]))]  # fmt: skip
    stored = [numpy_helper.from_array(np.ones((4, 4), np.float32), n) for n in "wu"]
    stored.append(numpy_helper.from_array(np.array([2, 3, 4], np.int64), "s"))
    model = helper.make_model(helper.make_graph(nodes, "g", io[:2], io[2:], stored))
    run = run_graph(load(model), TENSORRT)
    found = Counter(o.type.rpartition("::")[2] for o in run.operators if o.place == "gpu")
    assert found == {"MatMul": 1, "Gelu": 1, "FusedMatMulActivation": 1}
    assert [t.shape for t in run.outputs] == [(2, 3, 4)] * 2


def heads(rank: int, dim: int = 8, scale: bool = True) -> onnx.ModelProto:
    """softmax(Q K^T / 2 + mask) V of four heads, as exporters write it."""
    q = [2, 5, 4, dim] if rank == 4 else [8, 5, dim]
    split = [0, 2, 1, 3] if rank == 4 else [0, 1, 2]
    back = [0, 2, 3, 1] if rank == 4 else [0, 2, 1]
    nodes = [
        helper.make_node("Transpose", ["q"], ["qh"], perm=split),
        helper.make_node("Transpose", ["k"], ["kh"], perm=back),
        helper.make_node("Transpose", ["v"], ["vh"], perm=split),
        helper.make_node("Mul", ["qh", "half"], ["qs"]),
        helper.make_node("MatMul", ["qs", "kh"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "vh"], ["o"]),
        helper.make_node("Transpose", ["o"], ["y"], perm=split),
    ]
    io = [helper.make_tensor_value_info(n, TensorProto.FLOAT, q) for n in ("q", "k", "v", "y")]
    io.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [5, 5]))
    half = numpy_helper.from_array(np.array(0.5, np.float32), "half")
    graph = helper.make_graph(nodes, "g", [*io[:3], io[4]], [io[3]], [half])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize(
    ("rank", "dim", "dtype", "fused"),
    [
        (4, 8, "fp16", True),
        (3, 8, "bf16", True),
        (4, 256, "fp16", True),
        (4, 257, "fp16", False),
        (4, 8, "fp32", False),
    ],
)
def test_attention_is_one_kernel_in_half_precision(rank: int, dim: int, dtype: str, fused: bool) -> None:
    graph = precision(load(heads(rank, dim)), dtype)
    run = run_graph(graph, TENSORRT)
    kernels = [o for o in run.operators if o.place == "gpu"]
    assert (len(kernels) == 1) == fused
    assert matrix(run) == matrix(graph)
    if fused:
        assert kernels[0].type == "tensorrt::Attention"
        assert {t.name for t in kernels[0].present} == {"q", "k", "v", "mask"}
    else:
        assert any("attention did not apply" in n.message for n in run.notes)


@pytest.mark.parametrize(("version", "transposed"), [("8.4", 4), ("8.5", 1)])
def test_a_transpose_between_products_of_activations_is_no_kernel_since_85(version: str, transposed: int) -> None:
    """Heads too wide for one kernel: k, v and the result are read and written by strides, q is scaled between."""
    run = run_graph(precision(load(heads(4, 257)), "fp16"), of_version(TENSORRT, version))
    assert sum(o.type == "Transpose" for o in run.operators if o.place == "gpu") == transposed


def matrix(graph: Graph) -> int:
    return sum(o.repeat * work_of(o).matrix_flops for o in graph.operators if o.place != "free")


@pytest.mark.slow
@pytest.mark.parametrize("path", PLAIN, ids=lambda p: p.stem)
@pytest.mark.parametrize("dtype", ["keep", "fp16", "int8"])
def test_fusion_leaves_products_and_nodes_as_they_are(path: Path, dtype: str) -> None:
    dims = {"batch": 2, "sequence": 16} if "dynamic" in path.stem else dict(sizes(path) or {})
    if "batch" in dims:
        dims["batch"] = 2  # an Expand to a batch of 1 does nothing and is left out, with its node
    graph = precision(load(path, dims=dims), dtype)
    run = run_graph(graph, TENSORRT)
    assert matrix(run) == matrix(graph)
    made = {t.name for o in run.operators for t in o.outputs}
    read = {t.name for o in run.operators for t in o.present if not t.stored}
    assert read <= made | {t.name for t in run.inputs}
    assert {t.name for t in run.outputs} <= made
    nothing = {
        n for o in graph.operators if o.type == "Add" for n in o.nodes if any(t.value == (0,) for t in o.present)
    }
    assert {n for o in graph.operators for n in o.nodes} - nothing <= {n for o in run.operators for n in o.nodes}


def test_a_resnet_is_its_convolutions() -> None:
    run = run_graph(load(SAMPLES / "resnet50.onnx"), TENSORRT)
    found = Counter(o.type.rpartition("::")[2] for o in run.operators if o.place == "gpu")
    assert found == {"FusedConv": 49, "Conv": 4, "MaxPool": 1, "ReduceMean": 1, "Gemm": 1}
    assert sum(len(o.inputs) > 3 for o in run.operators if o.type == "com.microsoft::FusedConv") == 16


def quantised(between: str = "") -> onnx.ModelProto:
    """Two convolutions between QuantizeLinear and DequantizeLinear."""
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.1])
    zero = helper.make_tensor("i", TensorProto.INT8, [], [0])
    weights = [numpy_helper.from_array(np.ones((4, 4, 3, 3), np.int8), n) for n in ("w", "u")]
    nodes = []
    for x, w, y in (("x", "w", "h"), ("h", "u", "y")):
        nodes += [
            helper.make_node("QuantizeLinear", [x, "s", "i"], [f"{x}q"]),
            helper.make_node("DequantizeLinear", [f"{x}q", "s", "i"], [f"{x}d"]),
            helper.make_node("DequantizeLinear", [w, "s", "i"], [f"{w}d"]),
            helper.make_node("Conv", [f"{x}d", f"{w}d"], [f"{y}c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"{y}c"], [y]),
        ]
    io = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 8, 8]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", io[:1], io[1:], [scale, zero, *weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])


def test_quantisation_disappears_into_kernels() -> None:
    run = run_graph(load(quantised()), TENSORRT)
    kernels: list[Operator] = [o for o in run.operators if o.place == "gpu"]
    assert [o.type.rpartition("::")[2] for o in kernels] == ["Cast", "FusedConv", "FusedConv", "Cast"]
    assert [(o.present[0].dtype, o.out.dtype) for o in kernels] == [
        ("float32", "int8"), ("int8", "int8"), ("int8", "float16"), ("float16", "float32"),
    ]  # fmt: skip
    assert {work_of(o).pipe for o in kernels[1:3]} == {"tensor_int8"}


def residual(calibrated: bool) -> onnx.ModelProto:
    """A residual block; with Q and DQ before the convolutions alone, or none, to be quantised with a precision."""
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.1])
    zero = helper.make_tensor("i", TensorProto.INT8, [], [0])
    dtype = np.float32 if calibrated else np.int8
    weights = [numpy_helper.from_array(np.ones((8, 8, 3, 3), dtype), n) for n in "wuv"]
    nodes = []
    for x, w, y in (("x", "w", "a"), ("ar", "u", "b"), ("br", "v", "c")):
        if not calibrated:
            nodes += [
                helper.make_node("QuantizeLinear", [x, "s", "i"], [f"{x}q"]),
                helper.make_node("DequantizeLinear", [f"{x}q", "s", "i"], [f"{x}d"]),
                helper.make_node("DequantizeLinear", [w, "s", "i"], [f"{w}d"]),
            ]
        nodes.append(helper.make_node("Conv", [x, w] if calibrated else [f"{x}d", f"{w}d"], [y], pads=[1, 1, 1, 1]))
        if y != "c":
            nodes.append(helper.make_node("Relu", [y], [f"{y}r"]))
    nodes += [
        helper.make_node("Add", ["c", "ar"], ["sum"]),
        helper.make_node("MaxPool", ["sum"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    io = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 8, 8]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 4, 4]),
    ]
    stored = weights if calibrated else [scale, zero, *weights]
    graph = helper.make_graph(nodes, "g", io[:1], io[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])


def test_a_calibrated_network_keeps_its_residual_in_8_bits() -> None:
    run = run_graph(precision(load(residual(calibrated=True)), "int8"), TENSORRT)
    first, second, third = [o for o in run.operators if o.type == "com.microsoft::FusedConv"]
    assert first.out.dtype == second.out.dtype == "int8"
    assert [t.dtype for t in third.present] == ["int8"] * 3  # image, weights, residual
    assert third.out.dtype == "float16"  # nothing behind it is quantised
    assert not [o for o in run.operators if o.type == "QuantizeLinear"]


def test_a_residual_that_a_file_leaves_unquantised_stays_in_half_precision() -> None:
    run = run_graph(load(residual(calibrated=False)), TENSORRT)
    first, second, third = [o for o in run.operators if o.type == "com.microsoft::FusedConv"]
    assert (first.out.dtype, second.out.dtype) == ("float16", "int8")
    assert [t.dtype for t in third.present] == ["int8", "int8", "float16"]
    assert len([o for o in run.operators if o.type == "QuantizeLinear"]) == 1


def test_integers_have_32_bits_until_9(make: Callable[..., onnx.ModelProto]) -> None:
    graph = load(make("(float[4,8] x, int64[4,3] i) => (float[4,3] y) {y=GatherElements<axis=1>(x,i)}", {}))
    then, today = (run_graph(graph, of_version(TENSORRT, v)) for v in ("8.6", "10"))
    assert [r.operators[-1].present[1].dtype for r in (then, today)] == ["int32", "int64"]


@pytest.mark.parametrize(("version", "pipe"), [("8.4", "fp32"), ("8.6", "tensor_tf32")])
def test_gemms_take_tf32_since_85(make: Callable[..., onnx.ModelProto], version: str, pipe: str) -> None:
    graph = load(make("(float[2,3,4] x) => (float[2,3,4] y) {y=MatMul(x,w)}", {"w": (4, 4)}))
    runtime = of_version(TENSORRT, version)
    assert [k.work.pipe for k in lower(run_graph(graph, runtime), runtime).rows] == [pipe]


@pytest.mark.parametrize("gpu", ["p4", "gtx-1080"])
def test_half_precision_is_not_slower_where_a_card_has_little_of_it(gpu: str) -> None:
    half, single = (predict(Blocks("none").model, gpu=gpu, runtime="tensorrt", precision=p) for p in ("fp16", "fp32"))
    assert half.seconds < 1.05 * single.seconds


def test_parts_that_are_given_out_are_written(make: Callable[..., onnx.ModelProto]) -> None:
    text = "(float[64,2048] x) => (float[64,1024] y, float[64,1024] v) {y,v=Split<axis=1,num_outputs=2>(x)}"
    run = run_graph(load(make(text, {})), TENSORRT)
    written = {t.name for o in run.operators for t in o.outputs if o.place == "gpu"}
    assert written == {"y", "v"}


def test_an_operand_that_is_copied_leaves_the_others_in_place(make: Callable[..., onnx.ModelProto]) -> None:
    for order in ("x,b", "b,x"):
        body = f"{{a=Conv<pads=[1,1,1,1]>(x,w) b=Sin(a) c=Concat<axis=1>({order}) d=Concat<axis=1>(c,x) y=Exp(d)}}"
        text = "(float[1,16,8,8] x) => (float[1,48,8,8] y) " + body
        run = run_graph(precision(load(make(text, {"w": (16, 16, 3, 3)})), "fp16"), TENSORRT)
        copies = [o for o in run.operators if o.type == "Contiguous"]
        assert len(copies) == 3 and len({o.out.name for o in copies}) == 3  # the image for the convolution, and twice


def test_products_in_half_precision_are_summed_in_it() -> None:
    """Which GeForce cards do at twice the rate, as others do in either."""
    desktop, server = (predict(Blocks("none", 8, 112, 256).model, gpu=g, runtime="tensorrt", precision="fp16") for g in
                       ("rtx-3090", "a40"))  # fmt: skip
    assert {k.work.pipe for k in desktop.run.kernels.rows if k.work.matrix_flops} == {"tensor_fp16_either"}
    rates = [p.run.devices[0].dense_flops for p in (desktop, server)]
    assert rates[1]["tensor_fp16"] > 2 * rates[0]["tensor_fp16"]
    assert desktop.seconds < 1.4 * server.seconds


def test_a_quantised_linear_layer_has_its_bias(make: Callable[..., onnx.ModelProto]) -> None:
    """Also where it stands beside others that read the same tensor; Q and DQ before the bias part them."""
    before = (
        "(float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z)"
        "{a=QuantizeLinear(x,s,i) b=DequantizeLinear(a,s,i) c=DequantizeLinear(wi,s,i) d=DequantizeLinear(ui,s,i)"
        " e=MatMul(b,c) f=Add(e,k) y=Relu(f) h=MatMul(b,d) j=Add(h,k) z=Relu(j)}"
    )
    text = (
        "(float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z)"
        "{a=QuantizeLinear(x,s,i) b=DequantizeLinear(a,s,i) c=DequantizeLinear(wi,s,i) d=DequantizeLinear(ui,s,i)"
        " e=MatMul(b,c) f=QuantizeLinear(e,s,i) g=DequantizeLinear(f,s,i) y=Add(g,k)"
        " h=MatMul(b,d) j=QuantizeLinear(h,s,i) l=DequantizeLinear(j,s,i) z=Add(l,k)}"
    )
    found = []
    for written in (before, text):
        model = make(written, {"k": (4,), "s": 0.1})
        model.graph.initializer.append(helper.make_tensor("i", TensorProto.INT8, [], [0]))
        model.graph.initializer.extend(numpy_helper.from_array(np.ones((4, 4), np.int8), n) for n in ("wi", "ui"))
        run = run_graph(load(model), TENSORRT)
        found.append((Counter(o.type for o in run.operators if o.place == "gpu"), len(misplaced(run))))
    assert found[0] == ({"Cast": 3, "com.microsoft::FusedGemm": 1}, 0)
    assert found[1] == ({"Cast": 1, "MatMul": 1, "tensorrt::Pointwise": 2}, 1)


class Blocks:
    """Residual blocks of two convolutions, with Q and DQ where TensorRT's guide has them or, by `kind`, elsewhere."""

    def __init__(self, kind: str, blocks: int = 2, side: int = 56, channels: int = 64):
        self.kind, self.channels, self.nodes = kind, channels, list[onnx.NodeProto]()
        self.stored = [helper.make_tensor("i", TensorProto.INT8, [], [0])]
        for name, value in (("s", 0.1), ("t", 0.2)):
            self.stored.append(helper.make_tensor(name, TensorProto.FLOAT, [], [value]))
        x = self.node("Relu", "x")
        for i in range(blocks):
            x = self.block(x, "t" if kind == "scales" and not i else "s")
        y = self.convolution(self.pair(x))
        self.io = [helper.make_tensor_value_info(t, TensorProto.FLOAT, [1, channels, side, side]) for t in ("x", y)]

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def pair(self, x: str, scale: str = "s") -> str:
        if self.kind == "none":
            return x
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, scale, "i"), scale, "i")

    def convolution(self, x: str, narrow: bool = True) -> str:
        narrow = narrow and self.kind not in ("none", "operands")
        array = np.ones((self.channels, self.channels, 3, 3), np.int8 if narrow else np.float32)
        self.stored.append(numpy_helper.from_array(array, f"w{len(self.nodes)}"))
        w = self.stored[-1].name
        return self.node("Conv", x, self.node("DequantizeLinear", w, "s", "i") if narrow else w, pads=[1, 1, 1, 1])

    def block(self, x: str, scale: str) -> str:
        first = self.convolution(self.pair(x))
        first = self.node("Relu", self.pair(first) if self.kind == "activation" else first)
        second = self.convolution(self.pair(first), narrow=self.kind != "operand")
        second = self.pair(second) if self.kind == "sum" else second
        shortcut = x if self.kind in ("residual", "readers") else self.pair(x, scale)
        if self.kind == "readers":
            shortcut = self.node("Sin", shortcut)
        return self.node("Relu", self.node("Add", second, shortcut))

    @property
    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, self.kind, self.io[:1], self.io[1:], self.stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)


def misplaced(graph: Graph) -> list[Any]:
    return [n for n in graph.notes if n.code == "unfused-quantisation"]


@pytest.mark.parametrize(
    ("kind", "fix", "pairs", "names"),
    [
        ("residual", "put Q and DQ on the shortcut too: 3 Q/DQ pairs not fused", 3, ["QuantizeLinear1", "Add10"]),
        ("activation", "quantise behind bias, residual and activation, not before them: 2 Q/DQ pairs", 2,
         ["QuantizeLinear5", "DequantizeLinear6", "Relu7"]),
        ("sum", "quantise behind bias, residual and activation, not before them: 2 Q/DQ pairs", 2,
         ["QuantizeLinear10", "DequantizeLinear11", "Add14"]),
        ("operand", "quantise both operands, activations per tensor, weights per channel: 2 Q/DQ pairs", 2,
         ["DequantizeLinear7", "Conv8"]),
        ("scales", "give all readers of a tensor one scale: 2 Q/DQ pairs", 2, ["QuantizeLinear1", "QuantizeLinear10"]),
    ],
)  # fmt: skip
def test_q_and_dq_that_do_not_fuse_are_named_with_what_fuses_them_and_take_longer(
    kind: str, fix: str, pairs: int, names: list[str]
) -> None:
    good, bad = (predict(Blocks(k).model, gpu="t4", runtime="tensorrt") for k in ("as the guide says", kind))
    assert not misplaced(good.run.run_graph)
    (note,) = misplaced(bad.run.run_graph)
    assert note.message.startswith(fix) and {*names} <= {*note.nodes}
    assert note in bad.warnings and f"{pairs} Q/DQ pairs" in note.message
    assert good.seconds < bad.seconds and len(good.kernels) <= len(bad.kernels)
    assert note.message[:60] in bad.report() and "unfused" not in good.report()


def test_a_tensor_that_another_operator_reads_without_q_is_in_half_precision() -> None:
    """Whose result is a residual without Q as well."""
    notes = misplaced(run_graph(load(Blocks("readers", blocks=1).model), TENSORRT))
    residual, readers = sorted(notes, key=lambda n: n.message)
    assert readers.message.startswith("quantise a tensor for all its readers, or for none: 1 Q/DQ pair ")
    assert {"QuantizeLinear1", "Sin10"} <= {*readers.nodes} and "Add11" in residual.nodes


def test_8_bits_are_slower_than_half_precision_where_no_product_has_both_operands_quantised() -> None:
    half, narrow = (
        predict(Blocks(kind).model, gpu="t4", runtime="tensorrt", precision=p)
        for kind, p in (("none", "fp16"), ("operands", "keep"))
    )
    assert half.seconds < narrow.seconds and len(misplaced(narrow.run.run_graph)) == 1


def test_a_precision_quantises_nothing_that_does_not_fuse() -> None:
    for kind in ("none", "as the guide says"):
        p = predict(Blocks(kind).model, gpu="t4", runtime="tensorrt", precision="int8")
        assert not misplaced(p.run.run_graph)


@pytest.mark.parametrize("gpu", ["t4", "l4", "a100", "h100"])
def test_8_bits_are_faster_than_half_precision(gpu: str) -> None:
    """As every published pair of engines is. At full clock twice at most, but for what L2 comes to hold: rate and bytes
    are twice and half; the rest is what the power limit takes from half precision, whose FLOPs take more energy.
    """
    half, narrow = (
        predict(SAMPLES / "keras-resnet50.onnx", gpu=gpu, runtime="tensorrt", precision=p, batch=128)
        for p in ("fp16", "int8")
    )
    ratio = half.seconds / narrow.seconds
    limits = [float(p.run.estimates.power_factor[0]) for p in (half, narrow)]
    assert ratio > 1.25 and limits[0] >= limits[1] >= 1
    assert ratio * limits[1] / limits[0] < 2.3


@pytest.mark.parametrize(
    ("gpu", "least", "most"), [("t4", 5500, 5500), ("a100-sxm4-80gb", 31000, 39000), ("h100-sxm", 73000, 88000)]
)
def test_throughput_in_8_bits_is_near_what_is_published(gpu: str, least: float, most: float) -> None:
    """ResNet-50 of MLPerf inference, images a second of one card with whole batches, within 15%."""
    batch = 128
    p = predict(SAMPLES / "resnet50.onnx", gpu=gpu, runtime="tensorrt", precision="int8", batch=batch)
    assert 0.85 * least < batch / p.seconds < 1.15 * most


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("(uint8[2,3] x, uint8[3,4] w) => (int32[2,4] y) {y=MatMulInteger(x,w)}", "MatMulInteger"),
        ("(float[2,3] x) => (uint8[2,3] y, float s, uint8 z) {y,s,z=DynamicQuantizeLinear(x)}", "quant_format=QDQ"),
        ("(float[2,3] x) => (float[2,3] y) {y=com.microsoft.FastGelu(x)}", "export the model anew"),
        ("(float[2,3] x, float s, uint8 z) => (uint8[2,3] y) {y=QuantizeLinear(x,s,z)}", "unsigned"),
        ("(float[1,2,4,4] x) => (float[1,2,3,3] y) {y=LpPool<kernel_shape=[2,2]>(x)}", "no such operator"),
    ],
)
def test_what_its_importer_rejects_is_an_error(make: Callable[..., onnx.ModelProto], text: str, says: str) -> None:
    with pytest.raises(ModelError, match=f"TensorRT can't import this model: .*{says}"):
        run_graph(load(make(text, {})), TENSORRT)


def test_a_gelu_of_another_domain_is_taken_by_name(run: Callable[..., Graph]) -> None:
    graph = run("(float[2,3] x) => (float[2,3] y) {y=com.microsoft.Gelu(x)}", runtime="tensorrt")
    assert [o.type for o in graph.operators] == ["com.microsoft::Gelu"]


@pytest.mark.parametrize(
    ("version", "precision", "what"),
    [(None, "fp16", ""), (None, "int8", ""), (None, "fp8", "of FP8 networks"), ("7.1", "fp16", ""),
     ("7.1", "int8", "of 8-bit networks")],
)  # fmt: skip
def test_what_no_row_confirms_is_said_and_has_a_wide_range(version: str | None, precision: str, what: str) -> None:
    model = residual(True)
    model.opset_import[0].version = 11
    gpu = "l4" if precision == "fp8" else "t4"
    p = predict(model, gpu=gpu, runtime="tensorrt", ort_version=version, precision=precision)
    found = [n.message for n in p.warnings if n.code == "unvalidated"]
    assert bool(found) == bool(what) and all(what in message for message in found)
    assert (p.high_seconds / p.seconds >= 2) == bool(what)


def test_what_goes_along_with_rows_still_counts(run: Callable[..., Graph]) -> None:
    text = TWO + "{a=Exp(x) b=Mul(a,z) y=LayerNormalization<axis=-1>(b,s,s)}"
    (kernel,) = [o for o in run(text, runtime="tensorrt", s=(4,)).operators if o.place == "gpu"]
    alone = sum(work_of(o).vector_flops for o in run(text, runtime="torch-eager", s=(4,)).operators)
    assert work_of(kernel).vector_flops == alone
    assert [t.shape for t in kernel.present] == [(2, 3, 4), (4,), (4,), (2, 3, 4)]


@pytest.mark.parametrize(("groups", "repeat"), [(1, 1), (2, 2), (4, 1)], ids=["plain", "grouped", "depthwise"])
def test_a_grouped_convolution_ran_group_by_group_until_71(
    make: Callable[..., onnx.ModelProto], groups: int, repeat: int
) -> None:
    text = f"(float[2,4,8,8] x, float[2,8,8,8] r) => (float[2,8,8,8] y) {{c=Conv<group={groups},pads=[1,1,1,1]>(x,w,b)"
    graph = load(make(text + " a=Add(c,r) y=Relu(a)}", {"w": (8, 4 // groups, 3, 3), "b": (8,)}))
    today, then = (run_graph(graph, r) for r in (TENSORRT, of_version(TENSORRT, "7.1")))
    (whole,), (part,) = today.operators, then.operators
    assert (whole.repeat, part.repeat, part.nodes) == (1, repeat, whole.nodes)
    a, b = work_of(whole), work_of(part)
    assert a.matrix_flops == repeat * b.matrix_flops and a.vector_flops == repeat * b.vector_flops
    assert a.bytes == repeat * b.bytes and a.weight_bytes == repeat * b.weight_bytes


def test_an_engine_in_fp16_takes_and_gives_float32_until_71(make: Callable[..., onnx.ModelProto]) -> None:
    graph = precision(load(make(CONV + "{y=Conv(x,w)}", W)), "fp16")
    today, then = (run_graph(graph, r) for r in (TENSORRT, of_version(TENSORRT, "7.1")))
    assert [o.type for o in today.operators] == ["Contiguous", "Conv"]
    assert [t.dtype for t in today.inputs] == ["float16"]
    assert [o.type for o in then.operators] == ["Cast", "Conv", "Cast"]
    assert [t.dtype for t in (*then.inputs, *then.outputs)] == ["float32", "float32"]
    size = lower(then, of_version(TENSORRT, "7.1")).rows[1].work.size
    assert isinstance(size, Conv) and size.planned
    single = run_graph(load(make(CONV + "{y=Conv(x,w)}", W)), of_version(TENSORRT, "7.1"))
    assert [o.type for o in single.operators] == ["Conv"]
