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
