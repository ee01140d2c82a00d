"""What ONNX Runtime's CUDA provider fused in older releases, as graphs that 1.11, 1.12 and 1.16 wrote show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onnxperf.graph import load
from onnxperf.runtimes import LEVELS, RUNTIMES, WITHIN, of_version, run_graph
from op_models import Operator
from tests.runtimes.conftest import build
from tests.runtimes.test_ort_language import BETWEEN_CASTS
from tests.runtimes.test_ort_language import NORM as HALF_NORM

CUDA = RUNTIMES["ort-cuda"]
CONV = "(float[1,4,8,8] x, float[1,4,8,8] z) => (float[1,4,8,8] y) "
HALF = CONV.replace("float[1,4,8,8] x", "float[1,4,8,8] x, float[4,4,3,3] w, float[4] b").replace("float", "float16")
W: dict[str, Any] = {"w": (4, 4, 3, 3), "b": (4,)}
STACK = "(float[2,3,4] x) => (float[2,3,4] y) "
SUM = "(float[2,3,4] x, float[2,3,4] z, int64[3] s) => (float[2,3,4] y) "
NORM = (
    "{r=Relu(x) m=ReduceMean<axes=[-1]>(r) c=Sub(r,m) q=Pow(c,two) v=ReduceMean<axes=[-1]>(q) e=Add(v,eps) t=Sqrt(e)"
    " d=Div(c,t) s=Mul(d,g) y=Add(s,b)}"
)


def operators(text: str, release: str | None, opset: int = 20, apart: bool = False, **weights: Any) -> list[Operator]:
    """What a release runs on the GPU; `apart`: with nodes taken apart into kernels."""
    runtime = CUDA if release is None else of_version(CUDA, release)
    runtime = runtime if apart else replace(runtime, place=lambda g: g)
    run = run_graph(load(build(text, weights, opset)), runtime, LEVELS["all"])
    return [o for o in run.operators if o.place == "gpu"]


def types(*args: Any, **more: Any) -> list[str]:
    return [o.type.rpartition("::")[2] for o in operators(*args, **more)]


@pytest.mark.parametrize(
    ("text", "fuses"),
    [
        (CONV + "{c=Conv<pads=[1,1,1,1]>(x,w,b) y=Relu(c)}", True),
        (CONV + "{c=Conv<pads=[1,1,1,1]>(x,w) y=Relu(c)}", True),
        (CONV + "{c=Conv<pads=[1,1,1,1]>(x,w,b) a=Add(c,z) y=Relu(a)}", True),
        (CONV + "{c=Conv<pads=[1,1,1,1]>(x,w,b) a=Add(z,c) y=Relu(a)}", True),
        (CONV.replace("z)", "z, float[1,4,8,8] p)") + "{c=Conv<pads=[1,1,1,1]>(x,w,b) y=Add(c,z)}", False),
        (CONV + "{c=Conv<pads=[1,1,1,1]>(x,w,b) y=Sigmoid(c)}", False),
        (CONV + "{c=Conv<pads=[1,1,1,1]>(x,w,b) y=LeakyRelu(c)}", False),
        (HALF + "{c=Conv<pads=[1,1,1,1]>(x,w,b) y=Relu(c)}", False),
    ],
)
def test_from_1_7_until_1_19_a_convolution_and_its_relu_are_one_node(text: str, fuses: bool) -> None:
    weights = {} if text.startswith(HALF) else W
    for release in (None, "1.6", "1.20"):
        assert "FusedConv" not in types(text, release, **weights)
    for release in ("1.11", "1.12", "1.16", "1.19"):
        assert (types(text, release, **weights) == ["FusedConv"]) == fuses


def test_the_node_is_launched_once_and_runs_as_the_kernels_it_falls_back_on() -> None:
    text = CONV + "{c=Conv<pads=[1,1,1,1]>(x,w,b) a=Add(c,z) y=Relu(a)}"
    one = operators(text, "1.16", apart=True, **W)
    assert [o.type for o in one] == ["Conv", "Add", "Add", "Relu"]
    assert [WITHIN in o.attrs for o in one] == [False, True, True, True]
    assert one[0].inputs[1:] == operators(text, None, apart=True, **W)[0].inputs[1:], "the bias is not in the product"
    read = [{t.name for t in o.present} for o in one]
    assert all(before.out.name in names for before, names in zip(one, read[1:], strict=False))
    assert ("b" in read[1], "z" in read[2], one[-1].out.name) == (True, True, "y")


@pytest.mark.parametrize(
    ("text", "release", "opset", "expected"),
    [
        (STACK + "{s=Sigmoid(x) y=Mul(x,s)}", "1.16", 20, ["QuickGelu"]),
        (STACK + "{s=Sigmoid(x) y=Mul(x,s)}", "1.12", 20, ["Sigmoid", "Mul"]),
        ("(float[2,3,4] x, float[4] p) => (float[2,3,4] y) {a=Add(x,p) y=Softmax(a)}", "1.12", 13, ["BiasSoftmax"]),
        ("(float[2,3,4] x, float[4] p) => (float[2,3,4] y) {a=Add(x,p) y=Softmax(a)}", "1.11", 13, ["Add", "Softmax"]),
        (
            "(float[2,3,4] x, float[4] p) => (float[2,3,4] y) {a=Add(x,p) y=Softmax<axis=2>(a)}", "1.11", 11,
            ["BiasSoftmax"],
        ),
    ],
)  # fmt: skip
def test_a_rule_came_with_a_release(text: str, release: str, opset: int, expected: list[str]) -> None:
    assert types(text, release, opset) == expected


BEFORE, BEHIND = BETWEEN_CASTS.values()
MEAN_FIRST = ["Relu", "ReduceMean", "Sub"]


@pytest.mark.parametrize(
    ("text", "release", "expected"),
    [
        (BEFORE, "1.16", ["Relu", "LayerNormalization"]), (BEFORE, "1.12", ["Relu", "LayerNormalization"]),
        (BEHIND, "1.16", ["Relu", "LayerNormalization"]),
        (BEHIND, "1.12", [*MEAN_FIRST, "SimplifiedLayerNormalization", "Add"]),
        (BEHIND, "1.11", [*MEAN_FIRST, "Cast", "Pow", "ReduceMean", "Add", "Sqrt", "Div", "Cast", "Mul", "Add"]),
    ],
)  # fmt: skip
def test_norms_between_casts_came_one_by_one(text: str, release: str, expected: list[str]) -> None:
    """As the CPU provider of these releases showed with doubles in place of half precision."""
    assert types(text, release, 13, **HALF_NORM) == expected


RUN = "(float[2,3,4] x, float[2,3,4] z, int64[3] l, int64[1] i, int64[2] k) => (float[2,3,4] y) "
STORED, JOINED, ADDED = "r=Relu(x)", "n=Concat<axis=0>(i,k) r=Reshape(x,n)", "n=Add(l,l) r=Reshape(x,n)"
RELEASES = ("1.11", "1.12", "1.16", None)


@pytest.mark.parametrize(
    ("before", "apart"),
    [(STORED, ()), (JOINED, ("1.11", "1.12", None)), (ADDED, RELEASES)],
    ids=["stored", "joined", "added"],
)
def test_a_rule_that_asks_for_a_shape_wants_it_before_the_run(before: str, apart: tuple[str | None, ...]) -> None:
    weights: dict[str, Any] = {"two": 2.0, "eps": 0.0, "g": (4,), "b": (4,), "w": (4, 4), "h": (4,)}
    norm = NORM.replace("r=Relu(x)", before)
    residual = f"{{{before} v=Relu(r) a=Add(v,z) y=LayerNormalization(a,g)}}"
    for release in RELEASES:
        found = types(RUN + norm, release, 14, **weights)
        stays = release in apart and release is not None
        assert ("LayerNormalization" in found) == stays, "an older release keeps an epsilon of 0 without a shape"
        assert ("SkipLayerNormalization" in types(RUN + residual, release, g=(4,))) == (release not in apart)
    softmax, linear = f"{{{before} a=Add(r,h) y=Softmax(a)}}", f"{{{before} m=MatMul(r,w) y=Add(m,h)}}"
    assert ("BiasSoftmax" in types(RUN + softmax, None, **weights)) == (None not in apart)
    assert ("Gemm" in types(RUN + linear, None, **weights)) == (None not in apart)
