"""What ONNX Runtime's CUDA provider makes of pieces of vision models, operator by operator.

The expected operators are those of the graphs that ONNX Runtime 1.31 writes for its CUDA provider, views left out;
test_cuda_oracle.py compares them with the provider itself, where that can be started.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from tests.cuda_oracle import ours
from tests.runtimes.conftest import build

HEADS: dict[str, Any] = {"one": [1, 1, 1], "first": [0], "eps": 1e-6}
COSINE = (
    "(float[64,64,3,3,32] x) => (float[64,3,64,64] y) {t=Transpose<perm=[2,0,3,1,4]>(x) a,b,v=Split<axis=0>(t,one)"
    " q=Squeeze(a,first) k=Squeeze(b,first) n=ReduceL2<axes=[-1]>(q) m=ReduceL2<axes=[-1]>(k) c=Div(q,n) d=Div(k,m)"
    " e=Transpose<perm=[0,1,3,2]>(d) y=MatMul(c,e)}"
)
TURNED = "(float[3,4,5,6] x) => (%s) {t=Transpose<perm=[1,0,2,3]>(x) a=Relu(t) "
BACK, ON = "Transpose<perm=[1,0,2,3]>", "Transpose<perm=[0,1,3,2]>"
TO_IMAGE = "(float[2,49,64] x) => (%s) {t=Transpose<perm=[0,2,1]>(x) "
SIZES: dict[str, Any] = {
    "s": [2, 64, 7, 7],
    "flat": [2, 3136],
    "trailing": [2, 64, 49, 1],
    "g": (49,),
    "one": [1, 64, 49, 2],
}
PIECES = (
    "(float[2,8,16] x, float[2,4,8] u) => (float[2,8,8] y, float[2,8,8] z) {a,b=Split<axis=2>(x,s)"
    " c=Transpose<perm=[0,2,1]>(a) d=Concat<axis=1>(c,c) e=Concat<axis=1>(c,u) y=Relu(d) z=Exp(e)}"
)
QUANTISED = "(float[1,4,8,8] x) => (float[1,4,8,8] y) {r=Relu(x) %s y=Exp(c)}"
PAIRS: dict[str, Any] = {"s": 0.1, "t": 0.2, "z": np.int8(0), "w": np.ones((4, 4, 1, 1), np.int8)}
#: DETR's encoder: tokens and their positions, added for queries and keys, the tokens alone for values.
DETR = (
    "(float[1,64,4] x, float[1,64,4] p, float[1,4,64] l) => (float[1,4,64] y, float[1,4,64] z, float[1,4,64] o)"
    " {a=Transpose<perm=[0,2,1]>(x) b=Transpose<perm=[0,2,1]>(p) s=Add(a,b) k=MatMul(s,w) m=Add(k,v) y=Relu(m)"
    " i=MatMul(a,w) n=Add(i,v) r=Add(a,n) z=Relu(r) g=Add(l,b) o=MatMul(g,w)}"
)
BIASED: dict[str, Any] = {"w": (64, 64), "v": (64,)}
FOUND = "m=Greater(x,zero) i=NonZero(m) t=Transpose(i) g=GatherND(r,t) s=Shape(g) "
EMPTY = "p=ReduceProd<keepdims=0>(s) e=Equal(p,none) y=If(e) "
BRANCHES = EMPTY + "<then_branch=a () => (%s u) {u=Abs(g)}, else_branch=b () => (%s v) {h=Exp(g) v=Neg(h)}>"
SELECTED = "(float[6,4] x) => (float[n] y) {r=Relu(x) " + FOUND
HALVES = "(float16[3,4] x) => (float16[3,4] y) {r=Relu(x) "
STORED: dict[str, Any] = {"c": np.ones((3, 4), np.float16)}
#: Numbers of a selection's boxes, which a detector asks for before it goes on.
BOXES: dict[str, Any] = {"zero": 0.0, "none": 0, "first": [0], "end": [5]}
#: Text, weights of opset 17, and the operators.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "Swin v2's cosine attention": (
        COSINE, HEADS, "Div:2 FusedMatMul:1 ReduceL2:2 Split:1 Transpose:3"
    ),
    "two readers, one of them turns it back": (
        TURNED % "float[3,4,5,6] y, float[4,3,5,6] z" + f"y={BACK}(a) z=Exp(a)}}", {}, "Exp:1 Relu:1 Transpose:1"
    ),
    "two readers, one of them turns it further": (
        TURNED % "float[4,3,6,5] y, float[4,3,5,6] z" + f"y={ON}(a) z=Exp(a)}}", {}, "Exp:1 Relu:1 Transpose:2"
    ),
    "two readers that turn it differently": (
        TURNED % "float[4,3,6,5] y, float[4,5,3,6] z" + f"y={ON}(a) z=Transpose<perm=[0,2,1,3]>(a)}}", {},
        "Relu:1 Transpose:3",
    ),
    "one reader turns it further": (
        TURNED % "float[4,3,6,5] y" + f"e=Exp(a) y={ON}(e)}}", {}, "Exp:1 Relu:1 Transpose:1"
    ),
    "a result of the graph, turned back as well": (
        TURNED % "float[4,3,6,5] y, float[4,3,5,6] a" + f"y={ON}(a)}}", {}, "Relu:1 Transpose:2"
    ),
    "axes split": (
        TO_IMAGE % "float[2,7,7,64] y" + "r=Reshape(t,s) e=Exp(r) y=Transpose<perm=[0,2,3,1]>(e)}", SIZES, "Exp:1"
    ),
    "axes merged": (TO_IMAGE % "float[2,3136] y" + "r=Reshape(t,flat) y=Exp(r)}", SIZES, "Exp:1 Transpose:1"),
    "axes split, and another reader": (
        TO_IMAGE % "float[2,7,7,64] y, float[2,64,49] z" + "r=Reshape(t,s) e=Exp(r) y=Transpose<perm=[0,2,3,1]>(e)"
        " z=Relu(t)}", SIZES, "Exp:1 Relu:1 Transpose:1",
    ),
    "axes split, and a reader that lets nothing through": (
        TO_IMAGE % "float[2,7,7,64] y, float[2,64,49] z" + "r=Reshape(t,s) e=Exp(r) y=Transpose<perm=[0,2,3,1]>(e)"
        " z=LayerNormalization(t,g)}", SIZES, "Exp:1 LayerNormalization:1 Transpose:2",
    ),
    "a one added at the end": (
        TO_IMAGE % "float[2,49,64,1] y" + "r=Reshape(t,trailing) e=Exp(r) y=Transpose<perm=[0,2,1,3]>(e)}", SIZES,
        "Exp:1 Transpose:2",
    ),
    "splitting leads nowhere": (
        TO_IMAGE % "float[2,7,7,64] y" + "a=Relu(t) r=Reshape(a,s) e=Exp(r) y=Transpose<perm=[0,2,3,1]>(e)}", SIZES,
        "Exp:1 Relu:1 Transpose:2",
    ),
    "an axis added": (
        "(float[3,4,5] x) => (float[1,3,4,5] y) {t=Transpose<perm=[1,0,2]>(x) u=Unsqueeze(t,first)"
        " y=Transpose<perm=[0,2,1,3]>(u)}", HEADS, "",
    ),
    "CoaT's pieces, turned once for two": (PIECES, {"s": [4, 12]}, "Concat:2 Exp:1 Relu:1 Split:1 Transpose:2"),
    "two quantised pairs in a row": (
        QUANTISED % "q=QuantizeLinear(r,s,z) a=DequantizeLinear(q,s,z) b=QuantizeLinear(a,t,z)"
        " c=DequantizeLinear(b,t,z)", PAIRS, "DequantizeLinear:1 Exp:1 QuantizeLinear:1 Relu:1",
    ),
    "weights quantised twice alike": (
        "(float[1,4,8,8] x) => (float[1,4,8,8] y) {a=DequantizeLinear(w,s,z) q=QuantizeLinear(a,s,z)"
        " c=DequantizeLinear(q,s,z) y=Conv(x,c)}", PAIRS, "Conv:1 DequantizeLinear:1",
    ),
    "weights quantised twice, otherwise": (
        "(float[1,4,8,8] x) => (float[1,4,8,8] y) {a=DequantizeLinear(w,s,z) q=QuantizeLinear(a,t,z)"
        " c=DequantizeLinear(q,t,z) y=Conv(x,c)}", PAIRS, "Conv:1 DequantizeLinear:2 QuantizeLinear:1",
    ),
    "a quantised transpose that is undone": (
        QUANTISED % "u=Transpose<perm=[0,2,1,3]>(r) q=QuantizeLinear(u,s,z) a=DequantizeLinear(q,s,z)"
        " c=Transpose<perm=[0,2,1,3]>(a)", PAIRS, "DequantizeLinear:1 Exp:1 QuantizeLinear:1 Relu:1",
    ),
    "halves that the host computes in single precision": (
        HALVES + "h=Atan(r) g=Tan(h) k=Abs(h) y=Add(g,k)}", {}, "Abs:1 Add:1 Atan:1 Cast:3 Relu:1 Tan:1",
    ),
    "stored halves, there": (HALVES + "h=Mean(r,c) y=Abs(h)}", STORED, "Abs:1 Cast:2 Mean:1 Relu:1"),
    "positions added to tokens": (DETR, BIASED, "Add:3 Gemm:2 MatMul:1 Relu:2 Transpose:3"),
    "a branch by the number of what is selected": (
        SELECTED + BRANCHES % ("float[n]", "float[n]") + "}", BOXES,
        "Equal:1 Exp:1 GatherND:1 Greater:1 If:1 Neg:1 NonZero:1 ReduceProd:1 Relu:1 Shape:1 Transpose:1",
    ),
    "a branch by an open size": (
        "(float[N,4] x) => (float[N,4] y) {g=Relu(x) s=Shape(g) " + BRANCHES % (("float[N,4]",) * 2) + "}", BOXES,
        "Equal:1 Exp:1 If:1 Neg:1 ReduceProd:1 Relu:1 Shape:1",
    ),
    "a branch by a known size": (
        "(float[6,4] x) => (float[6,4] y) {g=Relu(x) s=Shape(g) " + BRANCHES % (("float[6,4]",) * 2) + "}", BOXES,
        "Exp:1 Neg:1 Relu:1",
    ),
    "as many as are selected, and known sizes beside them": (
        "(float[6,4] x) => (float[n] y, float[5,4] z) {r=Relu(x) " + FOUND + "c=ConstantOfShape(s) y=Add(c,g)"
        " l=Slice(r,first,end,first) u=Shape(l) f=ConstantOfShape(u) q=Add(l,f) z=Exp(q)}", BOXES,
        "Add:2 ConstantOfShape:1 Exp:1 GatherND:1 Greater:1 NonZero:1 Relu:1 Shape:1 Slice:1 Transpose:1",
    ),
}  # fmt: skip


def model(name: str) -> ModelProto:
    """One of these as a model."""
    return build(*CASES[name][:2], 17)


def as_text(found: Counter[str]) -> str:
    """Operators and their numbers in a line."""
    return " ".join(f"{type}:{n}" for type, n in sorted(found.items()))


@pytest.mark.parametrize("name", CASES)
def test_a_piece_of_a_vision_model(name: str) -> None:
    assert as_text(ours(model(name))) == CASES[name][2]
