"""Every fusion rule on the smallest model that matches and on those that nearly do."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from onnxperf.fusions.ort_views import with_views
from onnxperf.graph import Graph, load
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph
from op_models import Operator, Tensor

SAMPLES = Path(__file__).parents[2] / "samples"

CONV = "(float[1,3,8,8] x) => (float[1,4,6,6] y) "
BOTH = "(float[1,3,8,8] x) => (float[1,4,6,6] y, float[1,4,6,6] c) "
W: dict[str, Any] = {"w": (4, 3, 3, 3)}
ADD, MUL, NORM = "{c=Conv(x,w) y=Add(c,b)}", "{c=Conv(x,w) y=Mul(c,b)}", "{c=Conv(x,w) y=BatchNormalization(c,s,s,s,s)}"
STACK = "(float[2,3,4] x) => (float[2,3,5] y) "
FLAT = "(float[3,4] x) => (float[3,5] y) "
LINEAR = "{c=MatMul(x,w) y=Add(c,b)}"
HIDDEN = "(float[2,3,4] x) => (float[2,3,4] y) "
TWO = "(float[2,3,4] x, float[2,3,4] z) => (float[2,3,4] y) "
SKIP = "{c=Add(x,z) y=LayerNormalization<axis=-1>(c,s,s)}"
GELU = "{a=Div(x,r) e=Erf(a) g=Add(e,o) p=Mul(x,h) y=Mul(p,g)}"
G: dict[str, Any] = {"r": 2**0.5, "o": 1.0, "h": 0.5}
TANH = "{a=Pow(x,t) b=Mul(a,k) c=Add(x,b) d=Mul(c,q) e=Tanh(d) f=Add(e,o) g=Mul(x,h) y=Mul(g,f)}"
T: dict[str, Any] = {"t": 3.0, "k": 0.044715, "q": 0.7978845608, "o": 1.0, "h": 0.5}
LAYER = (
    "{m=ReduceMean<axes=[-1]>(x) c=Sub(x,m) q=Pow(c,two) v=ReduceMean<axes=[-1]>(q) e=Add(v,eps) r=Sqrt(e)"
    " d=Div(c,r) s=Mul(d,g) y=Add(s,b)}"
)
N: dict[str, Any] = {"two": 2.0, "eps": 1e-5, "g": (4,), "b": (4,), "opset": 14}
RMS = "{q=Pow(x,two) v=ReduceMean<axes=[-1]>(q) e=Add(v,eps) r=Sqrt(e) d=Div(x,r) y=Mul(d,g)}"
INVERSE = RMS.replace("d=Div(x,r)", "i=Div(one,r) d=Mul(x,i)")
R: dict[str, Any] = {"two": 2.0, "eps": 1e-5, "g": (4,), "opset": 14}
PRODUCT = "(float[2,3,4] x, float[2,4,3] z) => (float[2,3,3] y) "
TRANSPOSED = "(float[2,3,4] x, float[2,3,4] z) => (float[2,3,3] y) "
SQUARE = "(float[2,3,3] x, float[2,3,3] z) => (float[2,3,3] y, float[2,3,3] v) "
FLIP = "t=Transpose<perm=[0,2,1]>(z)"

#: model, weights, what ORT's CUDA provider runs
MATCHES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bias of a convolution": (CONV + ADD, {**W, "b": (4, 1, 1)}, "Conv"),
    "bias of rank four": (CONV + ADD, {**W, "b": (1, 4, 1, 1)}, "Conv"),
    "bias on a bias": (CONV + "{c=Conv(x,w,d) y=Add(c,b)}", {**W, "d": (4,), "b": (4, 1, 1)}, "Conv"),
    "scale of channels": (CONV + MUL, {**W, "b": (4, 1, 1)}, "Conv"),
    "scale of all": (CONV + MUL, {**W, "b": 2.0}, "Conv"),
    "scale, then bias": (CONV + "{c=Conv(x,w) d=Mul(c,b) y=Add(d,b)}", {**W, "b": (4, 1, 1)}, "Conv"),
    "batch norm": (CONV + NORM, {**W, "s": (4,)}, "Conv"),
    "batch norm, transposed": (
        "(float[1,3,8,8] x) => (float[1,4,10,10] y) {c=ConvTranspose(x,w) y=BatchNormalization(c,s,s,s,s)}",
        {"w": (3, 4, 3, 3), "s": (4,)}, "ConvTranspose",
    ),
    # the Reshape back to a stack makes an output of the graph, so that it is a copy
    "linear of a stack": (STACK + LINEAR, {"w": (4, 5), "b": (5,)}, "Gemm Reshape"),
    "linear, bias first": (STACK + "{c=MatMul(x,w) y=Add(b,c)}", {"w": (4, 5), "b": (5,)}, "Gemm Reshape"),
    "bias made on the way": (
        "(float[2,3,4] x, float[5] b) => (float[2,3,5] y) " + LINEAR, {"w": (4, 5)}, "Gemm Reshape",
    ),
    "matrix as summand": ("(float[3,4] x, float[3,5] b) => (float[3,5] y) " + LINEAR, {"w": (4, 5)}, "Gemm"),
    "column as summand": (FLAT + LINEAR, {"w": (4, 5), "b": (3, 1)}, "Gemm"),
    "two products": (FLAT + "{c=MatMul(x,w) d=MatMul(x,v) y=Add(c,d)}", {"w": (4, 5), "v": (4, 5)}, "MatMul Gemm"),
    "skip": (TWO + SKIP, {"s": (4,)}, "SkipLayerNormalization"),
    "skip without bias": (TWO + SKIP.replace("s,s", "s"), {"s": (4,)}, "SkipLayerNormalization"),
    "skip of oneself": (
        HIDDEN + "{c=Add(x,x) y=LayerNormalization(c,s,s)}", {"s": (4,)}, "SkipLayerNormalization",
    ),
    "bias and gelu": (HIDDEN + "{c=Add(b,x) y=Gelu(c)}", {"b": (4,)}, "BiasGelu"),
    "gelu, half of x": (HIDDEN + GELU, G, "Gelu"),
    "gelu, half at the end": (
        HIDDEN + "{a=Div(x,r) e=Erf(a) g=Add(o,e) p=Mul(g,x) y=Mul(h,p)}", G, "Gelu",
    ),
    "bias and gelu of tanh": (HIDDEN + '{c=Add(x,b) y=Gelu<approximate="tanh">(c)}', {"b": (4,)}, "FastGelu"),
    "gelu with bias": (HIDDEN + "{u=Add(x,v)" + GELU[1:].replace("(x,", "(u,"), {**G, "v": (4,)}, "BiasGelu"),
    "gelu of tanh": (HIDDEN + TANH, T, "FastGelu"),
    "layer norm": (HIDDEN + LAYER, N, "LayerNormalization"),
    "rms norm": (HIDDEN + RMS, R, "SimplifiedLayerNormalization"),
    "rms norm, scale first": (HIDDEN + RMS.replace("(d,g)", "(g,d)"), R, "SimplifiedLayerNormalization"),
    "rms norm by one over the root": (HIDDEN + INVERSE, {**R, "one": 1.0}, "SimplifiedLayerNormalization"),
    "transposed operand": (TRANSPOSED + "{" + FLIP + " y=MatMul(x,t)}", {}, "FusedMatMul"),
    "transposed twice": (
        "(float[2,4,3] x, float[2,3,4] z) => (float[2,3,3] y)"
        "{" + FLIP + " u=Transpose<perm=[0,2,1]>(x) y=MatMul(u,t)}", {}, "FusedMatMul",
    ),
    "transposed for two": (SQUARE + "{" + FLIP + " y=MatMul(x,t) v=MatMul(t,x)}", {}, "FusedMatMul FusedMatMul"),
    "transposed for others too": (
        SQUARE + "{" + FLIP + " y=MatMul(x,t) v=Relu(t)}", {}, "FusedMatMul Transpose Relu",
    ),
    "scaled product": (PRODUCT + "{p=MatMul(x,z) y=Mul(s,p)}", {"s": 0.125}, "FusedMatMul"),
    "divided product": (PRODUCT + "{p=MatMul(x,z) y=Div(p,s)}", {"s": 8.0}, "FusedMatMul"),
    "scaled operands": (PRODUCT + "{a=Mul(x,s) b=Div(z,s) y=MatMul(a,b)}", {"s": 0.5}, "FusedMatMul"),
    "scaled behind transposed": (
        TRANSPOSED + "{" + FLIP + " a=Mul(x,s) b=Mul(t,s) y=MatMul(a,b)}", {"s": 0.5}, "FusedMatMul",
    ),
    "padded": (
        "(float[1,3,8,8] x) => (float[1,4,8,8] y) {t=Pad(x,p) y=Conv(t,w)}",
        {**W, "p": [0, 0, 1, 1, 0, 0, 1, 1]}, "Conv",
    ),
    "relu, then clip": (HIDDEN + "{c=Relu(x) y=Clip(c,l,h)}", {"l": 0.0, "h": 6.0}, "Clip"),
    "gemm and sum": (FLAT + "{c=Gemm(x,w) y=Sum(c,b)}", {"w": (4, 5), "b": (5,)}, "Gemm"),
    "silu": (HIDDEN + "{s=Sigmoid(x) y=Mul(x,s)}", {}, "QuickGelu"),
    "skip with bias": (TWO + "{b=Add(x,v) c=Add(b,z) y=LayerNormalization<axis=-1>(c,s,s)}", {"s": (4,), "v": (4,)},
                       "SkipLayerNormalization"),
    "two halves": (
        "(float[2,6] x) => (float[2,3] y, float[2,3] z) {y=Slice(x,a,b,i) z=Slice(x,b,c,i)}",
        {"a": [0], "b": [3], "c": [6], "i": [1]}, "Split",
    ),
    "chain of identities": (HIDDEN + "{a=Identity(x) b=Identity(a) c=Dropout(b) y=Relu(c)}", {}, "Relu"),
    "cast to its own type": (HIDDEN + "{a=Cast<to=1>(x) y=Relu(a)}", {}, "Relu"),
}  # fmt: skip

#: model, weights, what stays, a word of the note or "" where no rule saw anything
MISSES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "convolution and relu": (CONV + "{c=Conv(x,w) y=Relu(c)}", W, "Conv Relu", ""),
    "bias comes first": (CONV + "{c=Conv(x,w) y=Add(b,c)}", {**W, "b": (4, 1, 1)}, "Conv Add", ""),
    "one number as bias": (CONV + ADD, {**W, "b": 2.0}, "Conv Add", "not one number a channel"),
    "bias along the wrong axis": (CONV + ADD, {**W, "b": (6,)}, "Conv Add", "not one number a channel"),
    "scale of more axes": (
        "(float[1,3,8,8] x) => (float[1,1,4,6,6] y) " + MUL, {**W, "b": (1, 1, 1, 1, 1)}, "Conv Mul", "a channel",
    ),
    "weights are not constants": (
        "(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) " + ADD, {"b": (4, 1, 1)}, "Conv Add",
        "weights are not constants",
    ),
    "convolution used elsewhere": (BOTH + ADD, {**W, "b": (4, 1, 1)}, "Conv Add", "other consumers"),
    "convolution and itself": (CONV + "{c=Conv(x,w) y=Add(c,c)}", W, "Conv Add", ""),
    "batch norm, used elsewhere": (BOTH + NORM, {**W, "s": (4,)}, "Conv BatchNormalization", "other consumers"),
    "batch norm in training": (
        "(float[1,3,8,8] x) => (float[1,4,6,6] y, float[4] m)"
        "{c=Conv(x,w) y,m,v=BatchNormalization<training_mode=1>(c,s,s,s,s)}",
        {**W, "s": (4,)}, "Conv BatchNormalization", "",
    ),
    "statistics are no constants": (
        "(float[1,3,8,8] x, float[4] s) => (float[1,4,6,6] y) " + NORM, W, "Conv BatchNormalization", "not constants",
    ),
    "bias of two axes": (STACK + LINEAR, {"w": (4, 5), "b": (1, 5)}, "MatMul Add", "adds only a vector to a stack"),
    "bias of more axes than the product": (
        "(float[3,4] x) => (float[1,3,5] y) " + LINEAR, {"w": (4, 5), "b": (1, 1, 5)}, "MatMul Add", "Gemm can't add",
    ),
    "product grows in the sum": (
        "(float[1,4] x) => (float[3,5] y) " + LINEAR, {"w": (4, 5), "b": (3, 5)}, "MatMul Add", "Gemm can't add",
    ),
    "stack of matrices": (STACK + LINEAR, {"w": (2, 4, 5), "b": (5,)}, "MatMul Add", ""),
    "product is an output": (
        "(float[3,4] x) => (float[3,5] y, float[3,5] c) " + LINEAR, {"w": (4, 5), "b": (5,)}, "MatMul Add",
        "other consumers",
    ),
    "two products of stacks": (
        STACK + "{c=MatMul(x,w) d=MatMul(x,v) y=Add(c,d)}", {"w": (4, 5), "v": (4, 5)}, "MatMul MatMul Add",
        "adds only a vector to a stack",
    ),
    "skip of another shape": (
        "(float[2,3,4] x, float[1,3,4] z) => (float[2,3,4] y) " + SKIP, {"s": (4,)}, "Add LayerNormalization", "differ",
    ),
    "skip of two axes": (
        "(float[3,4] x, float[3,4] z) => (float[3,4] y) " + SKIP, {"s": (4,)}, "Add LayerNormalization", "2 and 2 axes",
    ),
    "skip over two axes": (
        TWO + SKIP.replace("-1", "1"), {"s": (3, 4)}, "Add LayerNormalization", "over the last axis alone",
    ),
    "sum is used elsewhere": (
        TWO.replace("y)", "y, float[2,3,4] c)") + SKIP, {"s": (4,)}, "Add LayerNormalization", "other consumers",
    ),
    "mean is an output": (
        TWO.replace("y)", "y, float[2,3,1] m)") + SKIP.replace(" y", " y,m"), {"s": (4,)}, "Add LayerNormalization",
        "other consumers",
    ),
    "bias of all axes": (HIDDEN + "{c=Add(x,b) y=Gelu(c)}", {"b": (2, 3, 4)}, "Add Gelu", "no summand is a bias"),
    "gelu by another constant": (HIDDEN + GELU, {**G, "r": 1.5}, "Div Erf Add Mul Mul", ""),
    "gelu upside down": (HIDDEN + GELU.replace("(x,r)", "(r,x)"), G, "Div Erf Add Mul Mul", ""),
    "gelu of two tensors": (TWO + GELU.replace("Mul(x", "Mul(z"), G, "Div Erf Add Mul Mul", "different tensors"),
    "gate is an output": (
        HIDDEN.replace("y)", "y, float[2,3,4] e)") + GELU, G, "Div Erf Add Mul Mul", "",
    ),
    "half of x is an output": (
        HIDDEN.replace("y)", "y, float[2,3,4] a)") + GELU, G, "Div Erf Add Mul Mul", "other consumers",
    ),
    "tanh of a fourth power": (HIDDEN + TANH, {**T, "t": 4.0}, "Pow Mul Add Mul Tanh Add Mul Mul", ""),
    "layer norm over axis 1": (
        HIDDEN + LAYER.replace("-1", "1"), {**N, "g": (3, 1), "b": (3, 1)},
        "ReduceMean Cast Sub Pow ReduceMean Cast Add Sqrt Div Mul Add", "over the last axis alone",
    ),
    "layer norm of third powers": (
        HIDDEN + LAYER, {**N, "two": 3.0}, "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add", "",
    ),
    "layer norm without bias": (
        HIDDEN + LAYER.replace("s=Mul(d,g) y=Add(s,b)", "y=Mul(d,g)"), N,
        "ReduceMean Sub SimplifiedLayerNormalization", "",
    ),
    "mean of layer norm used": (
        HIDDEN.replace("y)", "y, float[2,3,1] m)") + LAYER, N,
        "ReduceMean Sub SimplifiedLayerNormalization Add", "",
    ),
    "other axes transposed": (
        "(float[2,3,2,4] x, float[2,2,2,4] z) => (float[2,2,3,2] y)"
        "{t=Transpose<perm=[0,2,1,3]>(x) u=Transpose<perm=[0,1,3,2]>(z) y=MatMul(t,u)}",
        {}, "Transpose FusedMatMul", "moves more than the last two axes",
    ),
    "rms norm with a reciprocal": (
        HIDDEN + RMS.replace("d=Div(x,r)", "i=Reciprocal(r) d=Mul(x,i)"), R,
        "Pow ReduceMean Add Sqrt Reciprocal Mul Mul", "",
    ),
    "rms norm over two axes": (
        HIDDEN + RMS.replace("[-1]", "[1,2]"), R, "Pow ReduceMean Add Sqrt Div Mul", "over the last axis alone",
    ),
    "rms norm of another tensor": (
        TWO + RMS.replace("Div(x", "Div(z"), R, "Pow ReduceMean Add Sqrt Div Mul", "",
    ),
    "rms norm without a scale": (
        HIDDEN + RMS.replace("d=Div", "y=Div").replace(" y=Mul(d,g)", ""), R, "Pow ReduceMean Add Sqrt Div",
        "no stored scale",
    ),
    "scale of columns": (PRODUCT + "{p=MatMul(x,z) y=Mul(p,s)}", {"s": (3,)}, "MatMul Mul", ""),
    "scale of more axes than the product": (
        PRODUCT.replace("[2,3,3]", "[1,2,3,3]") + "{p=MatMul(x,z) y=Mul(p,s)}", {"s": (1, 1, 1, 1)}, "MatMul Mul", "",
    ),
    "number divided by product": (PRODUCT + "{p=MatMul(x,z) y=Div(s,p)}", {"s": 8.0}, "MatMul Div", ""),
}  # fmt: skip

#: shapes of scores and of what is added before their Softmax -> what only the CUDA provider makes of both
BIASED = {
    "rows of each image": ("2,3,4,8", "2,1,1,8", "BiasSoftmax"),
    "one row": ("2,3,4,8", "8", "BiasSoftmax"),
    "one matrix": ("2,3,4,8", "1,1,4,8", "BiasSoftmax"),
    "as many": ("2,3,4,8", "2,3,4,8", "BiasSoftmax"),
    "a matrix of each image": ("2,3,4,8", "2,1,4,8", "Add Softmax"),
    "a column": ("2,3,4,8", "2,3,4,1", "Add Softmax"),
}


@pytest.mark.parametrize("name", BIASED)
def test_bias_and_softmax_on_cuda_alone(run: Any, types: Any, rules: Any, make: Any, name: str) -> None:
    scores, bias, expected = BIASED[name]
    text = f"(float[{scores}] x, float[{bias}] b) => (float[{scores}] y) {{a=Add(x,b) y=Softmax<axis=-1>(a)}}"
    graph = run(text)
    assert types(graph) == Counter(expected.split())
    assert bool(notes(graph)) == (expected != "BiasSoftmax")
    assert rules(make(text, {}), "extended") == Counter(["Add", "Softmax"])


def notes(graph: Graph) -> list[str]:
    return [n.message for n in graph.notes if n.code == "not-fused"]


@pytest.mark.parametrize("name", MATCHES)
def test_a_rule_fuses_what_it_is_made_for(run: Any, types: Any, make: Any, name: str) -> None:
    text, weights, expected = MATCHES[name]
    graph = run(text, **weights)
    assert types(graph) == Counter(expected.split())
    before = load(make(text, {k: v for k, v in weights.items() if k != "opset"}, weights.get("opset", 20)))
    kept = {n for o in graph.operators for n in o.nodes}
    dropped = {o.name for o in before.operators if o.type in ("Identity", "Cast", "Dropout")}
    assert kept == {o.name for o in before.operators} - dropped, "every node is answered for"
    assert [t.name for t in graph.outputs] == [t.name for t in before.outputs]


@pytest.mark.parametrize("name", MISSES)
def test_what_nearly_matches_stays_and_says_why(run: Any, types: Any, name: str) -> None:
    text, weights, expected, why = MISSES[name]
    graph = run(text, **weights)
    assert types(graph) == Counter(expected.split())
    assert [n for n in notes(graph) if why in n] if why else not notes(graph)


#: Cases in which it asks for more or less than the mathematics.
OWN = {"gelu of tanh", "layer norm of third powers", "mean is an output"}


@pytest.mark.parametrize("level", ["basic", "extended"])
@pytest.mark.parametrize("name", sorted({*MATCHES, *MISSES} - OWN))
def test_onnx_runtime_itself_fuses_the_same(make: Any, oracle: Any, rules: Any, name: str, level: str) -> None:
    """The rules of its CPU provider, which the CUDA provider shares but for those listed in `ort`."""
    text, weights = (MATCHES.get(name) or MISSES[name])[:2]
    model = make(text, {k: v for k, v in weights.items() if k != "opset"}, weights.get("opset", 20))
    assert rules(model, level) == oracle(model, level)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("disabled", "MatMul Add Transpose MatMul"), ("basic", "Gemm Transpose MatMul"),
        ("extended", "Gemm FusedMatMul"), ("all", "Gemm FusedMatMul"),
    ],
)  # fmt: skip
def test_levels_switch_rules(run: Any, types: Any, level: str, expected: str) -> None:
    text = "(float[3,4] x) => (float[3,3] y) {c=MatMul(x,w) d=Add(c,b) t=Transpose(x) y=MatMul(d,t)}"
    assert types(run(text, w=(4, 4), b=(4,), level=level)) == Counter(expected.split())


def test_eager_finds_its_calls_at_every_level(run: Any, types: Any) -> None:
    exp = "{m=ReduceMax<axes=[2]>(x) s=Sub(x,m) e=Exp(s) t=ReduceSum(e,ax) y=Div(e,t)}"
    text = "(float[2,3,4] x) => (float[2,3,4] y) <int64[1] ax = {-1}>" + exp
    for level in LEVELS:
        assert types(run(text, opset=14, runtime="torch-eager", level=level)) == Counter(["Softmax"])
        assert types(run(STACK + LINEAR, runtime="torch-eager", level=level, w=(4, 5), b=(5,))) == Counter(["Gemm"])
    used = text.replace("y)", "y, float[2,3,4] e)", 1)
    assert "Softmax" not in types(run(used, opset=14, runtime="torch-eager"))
    summed = "(float[3,4] x, float[3,5] b) => (float[3,5] y) " + LINEAR
    assert types(run(summed, runtime="torch-eager", w=(4, 5))) == Counter(["MatMul", "Add"])
    assert types(run(STACK + LINEAR, runtime="torch-eager", w=(4, 5), b=(3, 5))) == Counter(["MatMul", "Add"])


def test_flags_and_alpha_of_a_product(run: Any) -> None:
    text, weights, _ = MATCHES["scaled behind transposed"]
    (product,) = run(text, **weights).operators
    assert dict(product.attrs) == {"alpha": 0.25, "transB": 1}
    assert [t.name for t in product.present] == ["x", "z"]
    (product,) = run(PRODUCT + "{a=Mul(x,s) p=MatMul(a,z) y=Div(p,s)}", s=8.0).operators
    assert product.attrs["alpha"] == 1
    (product,) = run(PRODUCT + "{p=MatMul(x,z) q=Div(p,s) y=Div(q,s)}", s=2.0).operators
    assert product.attrs["alpha"] == 0.25


def test_only_a_sum_gives_a_convolution_a_bias(run: Any) -> None:
    (scaled,) = run(CONV + MUL, **W, b=(4, 1, 1)).operators
    assert [t.shape for t in scaled.present[1:]] == [(4, 3, 3, 3)]
    shifted, bias = run(CONV + ADD, **W, b=(4, 1, 1)).operators  # two kernels of one node
    assert [t.shape for t in shifted.present[1:]] == [(4, 3, 3, 3)]
    assert [t.shape for t in bias.present[1:]] == [(4,)] and bias.nodes == shifted.nodes


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ("bert-base", {"SkipLayerNormalization": 25, "FusedMatMul": 12, "BiasGelu": 0, "Gelu": 12, "Gemm": 73}),
        ("gpt2", {"FastGelu": 12, "FusedMatMul": 12, "SkipLayerNormalization": 1, "Gemm": 48}),
        ("vit-base-16", {"FusedMatMul": 12, "SkipLayerNormalization": 1, "Gelu": 12}),
        ("resnet50", {"Conv": 53, "Relu": 49, "Add": 16}),
        ("mobilenetv2", {"Conv": 52, "Clip": 35, "Add": 10}),
    ],
)
def test_samples_fuse_as_onnx_runtime_fuses_them(types: Any, sample: str, expected: dict[str, int]) -> None:
    found = types(run_graph(load(SAMPLES / f"{sample}.onnx"), RUNTIMES["ort-cuda"]))
    assert {name: found[name] for name in expected} == expected


def test_a_chain_of_views_takes_memory_by_its_length() -> None:
    """Each view of a chain once held the names of all before it: 40,000 took 6 GB."""
    x, y = (Tensor(name, "float32", (4,)) for name in "xy")
    made = [x, *(replace(x, name=f"t{i}") for i in range(3000)), y]
    pairs = enumerate(pairwise(made))
    chain = tuple(Operator(f"r{i}", "Reshape", (a,), (b,), {}, 17, (f"r{i}",)) for i, (a, b) in pairs)
    tracemalloc.start()
    try:
        merged = with_views(Graph("g", chain, (x,), (y,)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (whole,) = merged.operators
    assert whole.inputs == (x,) and whole.nodes == tuple(o.name for o in chain)
    assert peak < 8e6  # of names alone, 3000^2 / 2 would be 36 MB
