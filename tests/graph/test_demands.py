"""The shape of what an operator nobody knows makes, by what reads it; ONNX says which operands operators take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

import onnxperf
from onnxperf.graph import load
from tests.runtimes.conftest import build

#: What follows f, which my.Foo makes of x[8,64] or of the input that is given; the weights; the shape of f.
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "matmul": ("y=MatMul(f,w)", {"w": (128, 32)}, (8, 128)),
    "matmul from the right": ("y=MatMul(w,f)", {"w": (8, 16)}, (16, 32)),
    "relu, cast and matmul": ("a=Relu(f) b=Cast<to=1>(a) y=MatMul(b,w)", {"w": (128, 32)}, (8, 128)),
    "bias and matmul": ("a=Add(f,b) y=MatMul(a,w)", {"b": (128,), "w": (128, 32)}, (8, 128)),
    "transposed weight": ("v=Transpose<perm=[1,0]>(w) y=MatMul(f,v)", {"w": (32, 128)}, (8, 128)),
    "gemm": ("y=Gemm<transB=1>(f,w)", {"w": (32, 128)}, (8, 128)),
    "gemm, turned": ("y=Gemm<transA=1>(f,w)", {"w": (128, 32)}, (128, 8)),
    "declared": ("y=Tanh(f)", {}, (8, 32)),
    "bias alone": ("a=Add(f,b) y=my.Bar(a)", {"b": (96,)}, (8, 96)),
    "layer norm": ("a=LayerNormalization(f,s,s) y=my.Bar(a)", {"s": (96,)}, (8, 96)),
    "transpose": ("a=Transpose<perm=[1,0]>(f) y=Relu(a)", {}, (32, 8)),
    "reshape": ("a=Reshape(f,r) y=my.Bar(a)", {"r": [4, 6, 64]}, (8, 64)),
    "unsqueeze": ("a=Unsqueeze(f,o) b=Squeeze(a,o) y=Abs(b)", {"o": [0]}, (8, 32)),
    "concat": ("y=Concat<axis=1>(f,c)", {"c": (8, 12)}, (8, 20)),
    "first of two that read it": ("a=MatMul(f,w) b=MatMul(f,v) y=Add(a,b)", {"w": (128, 32), "v": (128, 32)}, (8, 128)),
    "nothing follows": ("y=my.Bar(f)", {}, (8, 64)),
    "spread": ("y=Mul(f,g)", {"g": (1, 64)}, (8, 32)),
}  # fmt: skip
IMAGES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "conv": ("y=Conv<pads=[1,1,1,1]>(f,w)", {"w": (16, 24, 3, 3)}, (2, 16, 10, 10), (2, 24, 10, 10)),
    "conv by two": ("y=Conv<pads=[1,1,1,1],strides=[2,2]>(f,w)", {"w": (16, 24, 3, 3)}, (2, 16, 5, 5), (2, 24, 10, 10)),
    "grouped": ("y=Conv<group=4>(f,w)", {"w": (16, 6, 1, 1)}, (2, 16, 7, 7), (2, 24, 7, 7)),
    "batch norm, pool": (
        "a=BatchNormalization(f,s,s,s,s) b=MaxPool<kernel_shape=[2,2],strides=[2,2]>(a) y=Relu(b)", {"s": (24,)},
        (2, 24, 5, 5), (2, 24, 10, 10),
    ),
    "transposed": ("y=ConvTranspose(f,w)", {"w": (24, 4, 3, 3)}, (2, 4, 10, 10), (2, 24, 8, 8)),
    "global pool": ("y=GlobalAveragePool(f)", {}, (2, 24, 1, 1), (2, 24, 8, 8)),
}  # fmt: skip


def model(
    nodes: str, weights: dict[str, Any], x: tuple[int, ...] = (8, 64), y: tuple[int, ...] = (8, 32)
) -> ModelProto:
    sizes = [",".join(map(str, shape)) for shape in (x, y)]
    made = build(f"(float[{sizes[0]}] x) => (float[{sizes[1]}] y) {{f=my.Foo(x) {nodes}}}", weights, 18)
    if "my" not in {o.domain for o in made.opset_import}:
        made.opset_import.append(helper.make_opsetid("my", 1))
    return made


def shape(made: ModelProto) -> tuple[int, ...]:
    return load(made).operators[0].out.shape


@pytest.mark.parametrize(("nodes", "weights", "expected"), CASES.values(), ids=CASES)
def test_the_shape_that_its_readers_need(nodes: str, weights: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert shape(model(nodes, weights)) == expected


@pytest.mark.parametrize(("nodes", "weights", "y", "expected"), IMAGES.values(), ids=IMAGES)
def test_images(nodes: str, weights: dict[str, Any], y: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert shape(model(nodes, weights, (2, 3, 8, 8), y)) == expected


def test_another_rank_keeps_the_batch_and_the_product_its_flops() -> None:
    prediction = onnxperf.predict(model("y=Gemm(f,w)", {"w": (512, 10)}, (1, 3, 32, 32), (1, 10)), gpu="l4")
    assert prediction.work["matrix_flops"] == 2 * 512 * 10
    needs = "the shape of 'f' can't be inferred; assumed 1x512, which what reads it needs"
    assert any(w.message.startswith(needs) for w in prediction.warnings)


def test_an_operator_that_embeds_whole_numbers_makes_what_its_weights_are() -> None:
    made = build("(int64[4,16] x) => (float[4,16,32] y) {f=my.Embed(x) y=MatMul(f,w)}", {"w": (128, 32)}, 18)
    out = load(made).operators[0].out
    assert (out.dtype, out.shape) == ("float32", (4, 16, 128))


def test_in_a_body_too() -> None:
    made = build("(float[8,64] x) => (float[8,32] y) {"
                 "y=If(c)<then_branch=t () => (float[8,32] p) {f=my.Foo(x) p=MatMul(f,w)},"
                 "else_branch=e () => (float[8,32] q) {q=MatMul(x,v)}>}",
                 {"w": (128, 32), "v": (64, 32), "c": np.array(True)}, 18)  # fmt: skip
    assert [o.out.shape for o in load(made).operators if o.type == "my::Foo"] == [(8, 128)]


def test_what_is_known_of_it_precedes() -> None:
    made = model("y=MatMul(f,w)", {"w": (128, 32)})
    assert load(made, shapes={"f": (8, 128)}).notes[0].code == "unknown-operator"
    made.graph.value_info.append(helper.make_tensor_value_info("f", 1, [8, 128]))
    assert shape(made) == (8, 128) and "assumed-shape" not in [n.code for n in load(made).notes]


def test_what_can_not_run_on_it_says_so_and_how_to_mend_it() -> None:
    made = model("a=MatMul(f,w) b=MatMul(f,v) y=Add(a,b)", {"w": (128, 32), "v": (96, 32)})
    notes = [n.message for n in load(made).notes if n.code == "not-counted"]
    assert len(notes) == 1 and "its FLOPs are not counted (give --shapes f:...)" in notes[0]


def test_many_of_them_take_a_time_that_grows_with_their_number() -> None:
    nodes = " ".join(f"f{i + 1}=my.Foo(f{i})" for i in range(2000))
    assert len(load(model(f"f0=Relu(f) {nodes} y=MatMul(f2000,w)", {"w": (128, 32)})).operators) == 2003


def test_heads_that_are_split_by_sizes_nobody_knows_take_the_flops_of_attention() -> None:
    """One head of all columns multiplies as much as all heads do, and no tensor is larger than those of one head."""
    text = """(float[2,48,64] x, int64[4] split, int64[3] join) => (float[2,48,64] y) {
      q=Reshape(x,split) k=Reshape(x,split) v=Reshape(x,split)
      a=Transpose<perm=[0,2,1,3]>(q) b=Transpose<perm=[0,2,3,1]>(k) c=Transpose<perm=[0,2,1,3]>(v)
      s=MatMul(a,b) p=Softmax(s) o=MatMul(p,c) t=Transpose<perm=[0,2,1,3]>(o) u=Reshape(t,join) y=MatMul(u,w) }"""
    made = build(text, {"w": (64, 64)}, 18)
    graph = load(made)
    assert {o.out.shape for o in graph.operators if o.type == "Reshape"} == {(2, 48, 1, 64), (2, 48, 64)}
    rows = 2 * 48
    assert onnxperf.predict(made, gpu="l4").work["matrix_flops"] == 2 * (2 * rows * 48 * 64) + 2 * rows * 64 * 64
