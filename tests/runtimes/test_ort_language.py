"""What ONNX Runtime's CUDA provider makes of pieces of language models, operator by operator.

The expected operators are those of the graphs that ONNX Runtime 1.31 writes for its CUDA provider, views left out;
test_cuda_oracle.py compares them with the provider itself, where that can be started.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxperf.fusions.ort_transformers import RULES
from tests.cuda_oracle import ours
from tests.runtimes.conftest import build
from tests.runtimes.test_oracle import count, offline

HIDDEN = "(float[2,8] x) => (float[2,8] y) "
MASKED = "(bool[4,4] x) => (bool[4,4] y) {g=%s(c,d) h=And(x,g) y=Not(h)}"
COMPARED = HIDDEN + "{g=GreaterOrEqual(x,x) f=Cast<to=1>(g) %s b=Add(a,v) y=Relu(b)}"
LINES: dict[str, Any] = {"c": [[0], [1], [2], [3]], "d": 0}
LINEAR: dict[str, Any] = {"w": (8, 8), "v": (8,), "s": [2, 8]}
GELU: dict[str, Any] = {"half": 0.5, "s": 0.7978845608, "k": 0.044715, "one": 1.0}
FACTORED = "{r=Relu(x) a=Mul(r,s) b=Mul(r,k) c=Mul(b,r) d=Add(c,one) e=Mul(a,d) t=Tanh(e) g=Add(t,one) "
CUT: dict[str, Any] = {"z": [0], "n": [4], "e": [2**63 - 1], "axis": [2], "one": [1], "i": [1], "j": [-1]}
HALVES = "a=Slice(r,z,n,axis,one) b=Slice(r,n,e,axis,one) m=Tanh(b) y=Mul(a,m)}"
PART = "(float[2,3,8] x) => (float[2,%d,4] y) {"
THREE = "(float[2,3,6,8] x) => (float[2,3,4,8] y) {r=Relu(x) a=Slice(r,z,n,axis,one) b=Gather<axis=2>(r,q) "
NORM: dict[str, Any] = {
    "g": np.ones(8, np.float16), "f": (8,), "two": 2.0, "eps": 1e-5, "stack": np.ones((1, 1, 8), np.float16),
}  # fmt: skip
RMS = (
    "(float16[2,3,8] x) => (float16[2,3,8] y) {r=Relu(x) c=Cast<to=1>(r) p=Pow(c,two) m=ReduceMean<axes=[-1]>(p)"
    " a=Add(m,eps) s=Sqrt(a) d=Div(c,s) "
)
UNFUSED = "Add:1 Cast:2 Div:1 Mul:1 Pow:1 ReduceMean:1 Relu:1 Sqrt:1"
MEAN = "(float16[2,3,8] x) => (float16[2,3,8] y) {r=Relu(x) m=ReduceMean<axes=[-1]>(r) u=Sub(r,m) c=Cast<to=1>(u) "
CAST = "(float16[2,3,8] x) => (float16[2,3,8] y) {r=Relu(x) c=Cast<to=1>(r) m=ReduceMean<axes=[-1]>(c) u=Sub(c,m) "
OVER = "p=Pow(%s,two) v=ReduceMean<axes=[-1]>(p) a=Add(v,eps) s=Sqrt(a) d=Div(%s,s) "
HALF = "e=Cast<to=10>(d) h=Mul(e,g) y=Add(h,g)}"
BETWEEN_CASTS = {"before the mean": CAST + OVER % ("u", "u") + HALF, "behind the mean": MEAN + OVER % ("c", "c") + HALF}
KEYS = "(float[1,4,3,8] q, float[1,3,4,8] x) => (float[1,4,3,3] y) {k=Transpose<perm=[0,2,1,3]>(x) "
FLAT_KEYS = "f=Reshape(k,s) t=Transpose<perm=[0,2,1]>(f) r=Reshape(t,u) y=MatMul(q,r)}"
NEGATED = "(bool[4] m, float[4] x, float[4] w) => (float[4] y) {n=Not(m) a=Where(n,x,c) b=Where(n,w,c) z=Add(a,b) %s}"
TIMES = "(float16[2,4] x) => (float16[2,4] y) {r=Relu(x) "
#: Keys and queries that a table of rotations multiplies, which the keys' Transpose is pushed through first.
ROTATED = (
    "(float[1,3,4,8] a, float[1,3,4,8] b) => (float[1,4,3,3] y) {q=Transpose<perm=[0,2,1,3]>(a) l=Sin(q)"
    " k=Transpose<perm=[0,2,1,3]>(b) o=Mul(q,c) p=Add(o,l) m=Mul(k,c) n=Transpose<perm=[0,1,3,2]>(m) y=MatMul(p,n)}"
)
#: A graph, its weights, its opset, and its operators.
CASES: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "a comparison of constants before opset 16": (
        MASKED % "GreaterOrEqual", LINES, 14, "And:1 GreaterOrEqual:1 Not:1",
    ),
    "and from then on": (MASKED % "LessOrEqual", LINES, 16, "And:1 Not:1"),
    "a product behind a comparison": (
        COMPARED % "a=MatMul(f,w)", LINEAR, 14, "Add:1 Cast:1 GreaterOrEqual:1 MatMul:1 Relu:1",
    ),
    "its shape is known again behind a Reshape": (
        COMPARED % "r=Reshape(f,s) a=MatMul(r,w)", LINEAR, 14, "Cast:1 Gemm:1 GreaterOrEqual:1 Relu:1",
    ),
    "a same-size Expand of an unknown shape": (
        COMPARED % "r=Expand(f,s) a=MatMul(r,w)", LINEAR, 14,
        "Add:1 Cast:1 Expand:1 GreaterOrEqual:1 MatMul:1 Relu:1",
    ),
    "BLOOM's Gelu": (HIDDEN + FACTORED + "h=Mul(r,half) m=Mul(h,g) y=Abs(m)}", GELU, 17, "Abs:1 FastGelu:1 Relu:1"),
    "halved last": (
        HIDDEN + FACTORED + "h=Mul(r,g) m=Mul(h,half) y=Abs(m)}", GELU, 17, "Abs:1 Add:2 Mul:6 Relu:1 Tanh:1",
    ),
    "halves": (PART % 3 + "r=Relu(x) " + HALVES, CUT, 18, "Mul:1 Relu:1 Split:1 Tanh:1"),
    "halves of one of several outputs": (
        PART % 3 + "w=Concat<axis=1>(x,x) r,u=Split<axis=1,num_outputs=2>(w) " + HALVES, CUT, 18,
        "Concat:1 Mul:1 Slice:2 Split:1 Tanh:1",
    ),
    "a Slice and Gathers": (
        THREE + "c=Gather<axis=2>(r,w) d=Mul(b,c) y=Add(a,d)}", {**CUT, "q": [4], "w": [5]}, 18,
        "Add:1 Mul:1 Relu:1 Split:1",
    ),
    "with a gap": (
        THREE + "y=Add(a,b)}", {**CUT, "q": [5]}, 18, "Add:1 Gather:1 Relu:1 Slice:1",
    ),
    "an empty piece": (
        "(float[2,3] x) => (float[2,3] y) {r=Relu(x) a=Slice(r,z,n,one) b=Slice(r,n,e,one) y=Concat<axis=1>(a,b)}",
        CUT, 18, "Concat:1 Relu:1 Slice:2",
    ),
    "RMSNorm in half precision": (
        RMS + "e=Cast<to=10>(d) y=Mul(g,e)}", NORM, 17, "Relu:1 SimplifiedLayerNormalization:1",
    ),
    "scaled in single precision": (
        RMS + "e=Mul(d,f) y=Cast<to=10>(e)}", NORM, 17, "Cast:1 Relu:1 SimplifiedLayerNormalization:1",
    ),
    "whose cast others read": (
        RMS + "e=Cast<to=10>(d) o=Mul(e,g) n=Neg(c) l=Cast<to=10>(n) y=Add(l,o)}", NORM, 17,
        "Add:1 Cast:2 Neg:1 Relu:1 SimplifiedLayerNormalization:1",
    ),
    "scaled by more than a vector": (RMS + "e=Cast<to=10>(d) y=Mul(e,stack)}", NORM, 17, UNFUSED),
    **{
        f"LayerNorm, cast {where}": (text, NORM, 17, "LayerNormalization:1 Relu:1")
        for where, text in BETWEEN_CASTS.items()
    },
    "LayerNorm whose root is cast": (
        MEAN + "p=Pow(c,two) v=ReduceMean<axes=[-1]>(p) a=Add(v,eps) s=Sqrt(a) e=Cast<to=10>(s) d=Div(u,e)"
        " h=Mul(d,g) y=Add(h,g)}", NORM, 17,
        "Add:2 Cast:2 Div:1 Mul:1 Pow:1 ReduceMean:2 Relu:1 Sqrt:1 Sub:1",
    ),
    "keys turned in a stack": (
        KEYS + FLAT_KEYS, {"s": [4, 3, 8], "u": [1, 4, 8, 3]}, 18, "FusedMatMul:1 Transpose:1",
    ),
    "one head's keys": (
        KEYS.replace(",4,8] x", ",1,8] x") + FLAT_KEYS, {"s": [1, 3, 8], "u": [1, 1, 8, 3]}, 18,
        "MatMul:1 Transpose:2",
    ),
    "a mask negated for several": (NEGATED % "y=Identity(z)", {"c": 0.0}, 17, "Add:1 Where:2"),
    "and used as it is": (NEGATED % "f=Cast<to=1>(n) y=Add(z,f)", {"c": 0.0}, 17, "Add:2 Cast:1 Not:1 Where:2"),
    "constants in half precision": (
        TIMES + "k=Sqrt(c) y=Mul(r,k)}", {"c": np.ones((2, 4), np.float16)}, 18, "Mul:1 Relu:1 Sqrt:1",
    ),
    "constants moved in half precision": (
        TIMES + "k=Expand(c,s) y=Mul(r,k)}", {"c": np.ones((1, 4), np.float16), "s": [2, 4]}, 18, "Mul:1 Relu:1",
    ),
    "what is found in a constant": (
        "(float[4,4] x) => (float[n] y) {r=Relu(x) n=NonZero(c) t=Transpose(n) y=GatherND(r,t)}",
        {"c": np.eye(4, dtype=np.float32)}, 14, "GatherND:1 NonZero:1 Relu:1 Transpose:1",
    ),
    "a norm in an opset that lacks it": (
        "(float[2,3,8] x) => (float[2,3,8] y) {n=LayerNormalization(x,v,v) m=MatMul(n,w) a=Add(m,v) y=Relu(a)}",
        LINEAR, 14, "Gemm:1 LayerNormalization:1 Relu:1",
    ),
    "a bias and Gelu by tanh": (
        '(float[2,3,8] x) => (float[2,3,8] y) {r=Relu(x) a=Add(r,v) y=Gelu<approximate="tanh">(a)}', LINEAR, 20,
        "FastGelu:1 Relu:1",
    ),
    "the shape of what is transposed": (
        "(float[n,3,4,8] x) => (float[n,4,3,8] y, int64[4] s) {r=Relu(x) a=Transpose<perm=[0,2,1,3]>(r) t=Shape(a)"
        " s=Neg(t) u=Unsqueeze(a,i) y=Squeeze(u,i)}", {"i": [2]}, 18,
        "Gather:1 Neg:1 Relu:1 Shape:1 Transpose:1",
    ),
    "keys of open sizes turned in a stack": (
        KEYS.replace("float[1,3,4,8]", "float[n,3,4,8]") + FLAT_KEYS,
        {"s": [-1, 3, 8], "u": [-1, 4, 8, 3]}, 18, "MatMul:1 Transpose:2",
    ),
    "norms with equal weights": (
        "(float[2,3,8] x) => (float[2,3,8] y) {g=Identity(v) a=LayerNormalization(x,v,v) b=LayerNormalization(x,g,g)"
        " y=Add(a,b)}", LINEAR, 17, "Add:1 LayerNormalization:1",
    ),
    "rotated queries and keys": (ROTATED, {"c": (1, 1, 3, 8)}, 18, "Add:1 MatMul:1 Mul:2 Sin:1 Transpose:3"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "weights", "opset", "operators"), CASES.values(), ids=CASES)
def test_a_piece_of_a_language_model(text: str, weights: dict[str, Any], opset: int, operators: str) -> None:
    found: Counter[str] = ours(build(text, weights, opset))
    assert " ".join(f"{type}:{n}" for type, n in sorted(found.items())) == operators


STACK = "(float[2,3,8] x) => (float[2,3,8] y) {r=Relu(x) "
#: A graph, and its views: those that ONNX Runtime has inserted, merged or left as they are.
VIEWS = {
    "a stack of matrices": (STACK + "m=MatMul(r,w) a=Add(m,v) y=Abs(a)}", 2),
    "two in a row": (STACK + "m=MatMul(r,w) a=Add(m,v) l=MatMul(a,w) b=Add(l,v) y=Abs(b)}", 3),
    "a Reshape behind it": (STACK + "m=MatMul(r,w) a=Add(m,v) b=Reshape(a,s) c=Abs(b) l=Reshape(c,t) y=Neg(l)}", 3),
    "a zero that is a size": (STACK + "b=Reshape<allowzero=1>(r,s) c=Reshape<allowzero=1>(b,t) y=Abs(c)}", 2),
    "views in a row": (STACK + "b=Reshape(r,s) c=Unsqueeze(b,z) d=Reshape(c,t) y=Abs(d)}", 1),
    "behind an Unsqueeze": (STACK + "b=Unsqueeze(r,z) c=Reshape(b,s) d=Reshape(c,t) y=Abs(d)}", 2),
    "a view that others read": (STACK + "b=Reshape(r,s) c=Reshape(b,t) d=ReduceSum(b) e=Abs(c) y=Mul(e,d)}", 2),
    "pieces without their axis": (STACK + "b=Gather(r,i) c=Gather(r,j) d=Mul(b,c) y=Add(r,d)}", 2),
}
SIZES: dict[str, Any] = {"w": (8, 8), "v": (8,), "s": [6, 8], "t": [2, 3, 8], "z": [0], "i": 0, "j": 1}


@pytest.mark.parametrize(("text", "views"), VIEWS.values(), ids=VIEWS)
def test_the_host_passes_views_that_onnx_runtime_inserts(run: Any, text: str, views: int) -> None:
    graph = run(text, opset=18, **SIZES)
    found = [o.place for o in graph.operators if o.type in ("Reshape", "Squeeze", "Unsqueeze")]
    assert found == ["free"] * views
    assert len({o.name for o in graph.operators}) == len(graph.operators)


HALVED = "(float[2,3,8] x) => (float[2,3,8] y) {m=MatMul(x,w) a=Add(m,v) s=%s e=Erf(s) o=Add(e,one) %s y=Abs(l)}"
ROOT = {"w": (8, 8), "v": (8,), "root": 1.4142135, "inverse": 0.70710678, "one": 1.0, "half": 0.5}


@pytest.mark.parametrize(
    ("scaled", "product", "found"),
    [
        ("Div(a,root)", "h=Mul(half,o) l=Mul(a,h)", True), ("Mul(a,inverse)", "h=Mul(half,o) l=Mul(a,h)", True),
        ("Div(a,root)", "h=Mul(a,o) l=Mul(h,half)", True), ("Mul(a,inverse)", "h=Mul(a,o) l=Mul(h,half)", False),
    ],
)  # fmt: skip
def test_the_offline_optimizer_knows_gelu_as_exporters_write_it(
    tmp_path: Path, scaled: str, product: str, found: bool
) -> None:
    model = build(HALVED % (scaled, product), ROOT, 18)
    onnx.save(model, tmp_path / "gelu.onnx")
    own = count(model, RULES)
    assert own["BiasGelu"] == found
    assert own == offline(tmp_path / "gelu.onnx", "bert", num_heads=2, hidden_size=8)
