"""Where ONNX Runtime puts QuantizeLinear and DequantizeLinear, for every provider.

What is expected are the graphs of release 1.31; `test_cuda_oracle` asks the CUDA provider for them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from onnxperf.fusions.engine import BASIC, optimise
from onnxperf.fusions.ort_basic import RULES_116
from onnxperf.fusions.placement import place
from onnxperf.graph import load
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph
from tests.cuda_oracle import LEFT_OUT
from tests.runtimes.conftest import build

T = "Transpose<perm=[0,2,1]>"
Q, DQ = "QuantizeLinear", "DequantizeLinear"
GRID: dict[str, Any] = {
    "s": np.float32(0.1), "z": np.uint8(3), "s2": np.float32(0.2), "z2": np.uint8(5), "n": np.int8(0),
    "v": np.float32(-10), "bias": np.arange(4, dtype=np.float32), "m1": [-1], "a0": [0], "a1": [1],
    "i0": np.array(0), "sx": np.float32(0.1), "zx": np.uint8(3), "s4": np.full(4, 0.1, np.float32),
    "z4": np.full(4, 3, np.uint8), "w8": np.ones((4, 3, 3, 3), np.int8), "wf": np.ones((4, 3, 3, 3), np.float32),
    "k": np.ones((4, 3), np.int8), "rate": np.float32(0.1), "yes": np.array(True), "g": np.ones((4, 5), np.int8),
    "b5": np.ones(5, np.float32),
}  # fmt: skip


def q(x: str, grid: str = "s,z", axis: str = "") -> str:
    """`xq` and `xd`: a tensor, quantised and dequantised."""
    return f"{x}q={Q}{axis}({x},{grid}) {x}d={DQ}{axis}({x}q,{grid})"


X, ONE = "(float[2,3,4] x) => ", "(float[2,3,4] x) => (float[2,3,4] y) "
OUT = "y=Sigmoid(rd)}"
TURNED = X + "(float[2,4,3] y"
IMAGE = f"(float[1,3,8,8] x) => (float[1,4,6,6] y) {{{q('x')} "
CHOSEN = f"(bool[2,3,4] m, float[2,3,4] x) => (float[2,3,4] y) {{t=Tanh(x) {q('t')} "
PAIR = f"{{t=Tanh(x) {q('t')} "
POOLED = X + "(float[2,3,3] y) {t=Tanh(x) r=MaxPool<kernel_shape=[2]>(t)"
OPEN = "(float[b,c,4] x) => (float[b,n] y) {t=Tanh(x) "
READ = ONE[:-2] + ", float[2,3,4] w) "
SIZES = "h=Shape(%s) e=Gather(h,i0) u=Unsqueeze(e,a0) c=Concat<axis=0>(u,m1) r=Reshape(%s,c) y=Abs(r)}"
#: Text, opset, and the operators that are left, views apart.
TEXTS: dict[str, tuple[str, int, str]] = {
    "back through a Transpose": (TURNED + f") {{t=Tanh(x) r={T}(t) {q('r')} {OUT}", 20,
     "DQ:2 Q:2 Sigmoid:1 Tanh:1 Transpose:1"),
    "back through two": (X + f"(float[24] y) {{t=Tanh(x) u={T}(t) r=Reshape(u,m1) {q('r')} {OUT}", 20,
     "DQ:3 Q:3 Sigmoid:1 Tanh:1 Transpose:1"),
    "back to an input": (TURNED + f", float[2,3,4] w) {{r={T}(x) w=Relu(x) {q('r')} {OUT}", 20,
     "DQ:2 Q:2 Relu:1 Sigmoid:1 Transpose:1"),
    "back, read before": (TURNED + f", float[2,3,4] w) {{t=Tanh(x) w=Relu(t) r={T}(t) {q('r')} {OUT}", 20,
     "DQ:1 Q:1 Relu:1 Sigmoid:1 Tanh:1 Transpose:1"),
    "back, read behind": (TURNED + f", float[2,4,3] w) {{t=Tanh(x) r={T}(t) w=Relu(r) {q('r')} {OUT}", 20,
     "DQ:1 Q:1 Relu:1 Sigmoid:1 Tanh:1 Transpose:1"),
    "back, each channel": (
        X + f"(float[1,2,3,4] y) {{t=Tanh(x) r=Unsqueeze(t,a0) {q('r', 's4,z4', '<axis=3>')} {OUT}", 20,
     "DQ:1 Q:1 Sigmoid:1 Tanh:1"),
    "back, each channel turned": (TURNED + f") {{t=Tanh(x) r={T}(t) {q('r', 's4,z4', '<axis=1>')} {OUT}", 20,
     "DQ:2 Q:2 Sigmoid:1 Tanh:1 Transpose:1"),
    "back through a pool": (f"{POOLED} {q('r')} {OUT}", 20,
     "DQ:2 MaxPool:1 Q:2 Sigmoid:1 Tanh:1"),
    "an old pool": (f"{POOLED} {q('r')} {OUT}", 11,
     "DQ:1 MaxPool:1 Q:1 Sigmoid:1 Tanh:1"),
    "a new pool": (f"{POOLED} {q('r')} {OUT}", 22,
     "DQ:1 MaxPool:1 Q:1 Sigmoid:1 Tanh:1"),
    "not through a Gather": (X + f"(float[3,4] y) {{t=Tanh(x) r=Gather(t,i0) {q('r')} {OUT}", 20,
     "DQ:1 Gather:1 Q:1 Sigmoid:1 Tanh:1"),
    "on through a Slice": (X + f"(float[1,3,4] y) {PAIR}r=Slice(td,a0,a1) y=Sigmoid(r)}}", 20,
     "DQ:2 Q:2 Sigmoid:1 Slice:1 Tanh:1"),
    "on to two": (TURNED + f", float[2,4,3] w) {PAIR}r={T}(td) y=Sigmoid(r) w=Relu(r)}}", 20,
     "DQ:3 Q:2 Relu:1 Sigmoid:1 Tanh:1 Transpose:1"),
    "on to a QuantizeLinear": (TURNED + f", uint8[2,4,3] w) {PAIR}r={T}(td) y=Sigmoid(r) w={Q}(r,s2,z2)}}", 20,
     "DQ:1 Q:2 Sigmoid:1 Tanh:1 Transpose:1"),
    "on to an output": (TURNED.replace(" y", " r") + f") {PAIR}r={T}(td)}}", 20,
     "DQ:2 Q:2 Tanh:1 Transpose:1"),
    "on to an output and on": (TURNED + f", float[2,4,3] r) {PAIR}r={T}(td) y=Sigmoid(r)}}", 20,
     "DQ:3 Q:2 Sigmoid:1 Tanh:1 Transpose:1"),
    "other scales around": (X + f"(float[24] y) {PAIR}u={T}(td) r=Reshape(u,m1) {q('r', 's2,z2')} {OUT}", 20,
     "DQ:3 Q:3 Sigmoid:1 Tanh:1 Transpose:1"),
    "a constant turned": (f"{X}(float[2,3,4] y) {{{q('x')} c={DQ}(k,s,n) t=Transpose(c) y=Add(xd,t)}}", 20,
     "Add:1 DQ:2 Q:1"),
    "a constant cut": (f"(float[2,3] x) => (float[2,3] y) {{{q('x')} c={DQ}(k,s,n) t=Slice(c,a0,a1) y=Add(xd,t)}}", 20,
     "Add:1 DQ:2 Q:1 Slice:1"),
    "a stack of matrices": (
        f"{X}(float[2,3,5] y) {{{q('x')} w={DQ}(g,s2,n) p=MatMul(xd,w) r=Add(p,b5) {q('r', 's2,z2')} y=Tanh(rd)}}", 20,
     "DQ:6 Gemm:1 Q:4 Tanh:1"),
    "two pairs": (f"{ONE}{PAIR}{q('td', 's2,z2')} y=Sigmoid(tdd)}}", 20,
     "DQ:1 Q:1 Sigmoid:1 Tanh:1"),
    "three pairs": (f"{ONE}{PAIR}{q('td', 's2,z2')} {q('tdd')} y=Sigmoid(tddd)}}", 20,
     "DQ:1 Q:1 Sigmoid:1 Tanh:1"),
    "two pairs, none of zero points": (f"{ONE}{{t=Tanh(x) {q('t', 's')} {q('td', 's2')} y=Sigmoid(tdd)}}", 20,
     "DQ:2 Q:2 Sigmoid:1 Tanh:1"),
    "two pairs, the first read": (f"{READ}{PAIR}{q('td', 's2,z2')} w=Relu(td) y=Sigmoid(tdd)}}", 20,
     "DQ:3 Q:2 Relu:1 Sigmoid:1 Tanh:1"),
    "two pairs, one of two scales": (
        f"{ONE}{{t=Tanh(x) tq={Q}(t,s,z) td={DQ}(tq,s2,z2) {q('td')} y=Sigmoid(tdd)}}", 20,
     "DQ:2 Q:2 Sigmoid:1 Tanh:1"),
    "quantised twice, cast": (f"{ONE}{PAIR}u={Q}(td,s2,z2) y=Cast<to=1>(u)}}", 20,
     "Cast:1 DQ:1 Q:2 Tanh:1"),
    "quantised again as it was": (f"{ONE}{PAIR}u={Q}(td,s,z) y=Cast<to=1>(u)}}", 20,
     "Cast:1 Q:1 Tanh:1"),
    "a number of a Where": (f"{CHOSEN}r=Where(m,td,v) {q('r', 's2,z2')} {OUT}", 20,
     "DQ:3 Q:2 Sigmoid:1 Tanh:1 Where:1"),
    "a number of a Where, first": (f"{CHOSEN}r=Where(m,v,td) {q('r', 's2,z2')} {OUT}", 20,
     "DQ:3 Q:2 Sigmoid:1 Tanh:1 Where:1"),
    "a vector of a Where": (f"{CHOSEN}r=Where(m,td,s4) {q('r', 's2,z2')} {OUT}", 20,
     "DQ:2 Q:2 Sigmoid:1 Tanh:1 Where:1"),
    "a Where of other bytes": (f"{CHOSEN}r=Where(m,td,v) {q('r', 's2,n')} {OUT}", 20,
     "DQ:2 Q:2 Sigmoid:1 Tanh:1 Where:1"),
    "a Where not quantised": (f"{CHOSEN}y=Where(m,td,v)}}", 20,
     "DQ:1 Q:1 Tanh:1 Where:1"),
    "a bias": (f"{IMAGE}w={DQ}(w8,s,n) r=Conv(xd,w,bias) {q('r')} {OUT}", 20,
     "Conv:1 DQ:4 Q:2 Sigmoid:1"),
    "a bias before a Relu": (f"{IMAGE}w={DQ}(w8,s,n) r=Conv(xd,w,bias) u=Relu(r) {q('u')} y=Sigmoid(ud)}}", 20,
     "Conv:1 DQ:4 Q:2 Relu:1 Sigmoid:1"),
    "a bias, not quantised": (f"{IMAGE}w={DQ}(w8,s,n) r=Conv(xd,w,bias) y=Sigmoid(r)}}", 20,
     "Conv:1 DQ:2 Q:1 Sigmoid:1"),
    "weights": (f"{IMAGE}r=Conv(xd,wf) {q('r')} {OUT}", 20,
     "Conv:1 DQ:3 Q:2 Sigmoid:1"),
    "weights and a bias": (f"{IMAGE}r=Conv(xd,wf,bias) {q('r')} {OUT}", 20,
     "Conv:1 DQ:4 Q:2 Sigmoid:1"),
    "scales alike": (f"{ONE}{{{q('x')} a=Tanh(xd) b={Q}(x,sx,zx) c={DQ}(b,sx,zx) e=Cos(c) y=Sub(a,e)}}", 20,
     "Cos:1 DQ:2 Q:2 Sub:1 Tanh:1"),
    "dropping": (f"{ONE}{{t=Tanh(x) d=Dropout(t,rate,yes) {q('d')} y=Sigmoid(dd)}}", 20,
     "DQ:1 Q:1 Sigmoid:1 Tanh:1"),
    "sizes of what is read twice": (OPEN + q("t") + SIZES % ("td", "td"), 20,
     "Abs:1 DQ:2 Q:2 Tanh:1"),
    "sizes of another": ("(float[b,c,4] x, float[b,5] o) => (float[b,n] y) {t=Tanh(x) " + SIZES % ("o", "t"), 20,
     "Abs:1 Tanh:1"),
    "sizes of another batch": ("(float[b,c,4] x, float[d,5] o) => (float[b,n] y) {t=Tanh(x) " + SIZES % ("o", "t"), 20,
     "Abs:1 Concat:1 Gather:1 Shape:1 Tanh:1"),
}  # fmt: skip


def weights(text: str) -> dict[str, Any]:
    """Those that a text reads."""
    return {name: w for name, w in GRID.items() if re.search(rf"[(,]{name}[,)]", text.partition("{")[2])}


def whole(operators: str) -> str:
    """The operators, types in full."""
    return operators.replace("DQ:", f"{DQ}:").replace(" Q:", f" {Q}:")


CASES = {name: (text, weights(text), opset, whole(operators)) for name, (text, opset, operators) in TEXTS.items()}


def found(model: ModelProto, runtime: str, level: str = "all") -> Counter[str]:
    way = replace(RUNTIMES[runtime], place=place) if runtime == "ort-cuda" else RUNTIMES[runtime]
    open_dims = {d.dim_param: 3 for t in model.graph.input for d in t.type.tensor_type.shape.dim if d.dim_param}
    graph = run_graph(load(model, dims=open_dims), way, LEVELS[level])
    working = (o.type.rpartition("::")[2] for o in graph.operators if o.place != "free")
    return Counter(t for t in working if t not in LEFT_OUT)


@pytest.mark.parametrize("name", CASES)
def test_where_pairs_stand(name: str) -> None:
    text, given, opset, operators = CASES[name]
    types = found(build(text, given, opset), "ort-cuda")
    assert " ".join(f"{type}:{n}" for type, n in sorted(types.items())) == operators


@pytest.mark.parametrize("name", CASES)
def test_the_same_for_the_processor(name: str, oracle: Callable[..., Counter[str]]) -> None:
    text, given, opset, _ = CASES[name]
    model = build(text, given, opset)
    assert found(model, "ort-cpu", "basic") == Counter(
        {t: n for t, n in oracle(model, "basic").items() if t not in LEFT_OUT}
    )


#: What release 1.16 makes of some otherwise, at level `basic` (of a Slice it knows nothing there).
UNTIL_116 = {
    "back through two": "DQ:3 Q:3 Sigmoid:1 Tanh:1 Transpose:1",
    "on through a Slice": "DQ:1 Q:1 Sigmoid:1 Slice:1 Tanh:1",
    "on to a QuantizeLinear": "DQ:1 Q:2 Sigmoid:1 Tanh:1 Transpose:1",
    "three pairs": "DQ:1 Q:1 Sigmoid:1 Tanh:1",
    "a number of a Where": "DQ:2 Q:2 Sigmoid:1 Tanh:1 Where:1",
    "weights and a bias": "Conv:1 DQ:2 Q:2 Sigmoid:1",
    "sizes of another": "Abs:1 Concat:1 Gather:1 Shape:1 Tanh:1",
}


@pytest.mark.parametrize("name", UNTIL_116)
def test_release_116(name: str) -> None:
    text, given, opset, _ = CASES[name]
    graph = load(build(text, given, opset), dims=dict.fromkeys("bc", 3) if "[b" in text else {})
    types = Counter(o.type for o in optimise(graph, {BASIC: RULES_116}, BASIC).operators)
    found = " ".join(f"{type}:{n}" for type, n in sorted(types.items()) if type not in LEFT_OUT)
    assert found == whole(UNTIL_116[name])
