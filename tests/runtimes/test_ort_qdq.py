"""Where ONNX Runtime puts QuantizeLinear and DequantizeLinear, for every provider.

What is expected are the graphs of release 1.31; `test_cuda_oracle` asks the CUDA provider for them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto

from onnxperf.fusions.engine import BASIC, optimise
from onnxperf.fusions.ort_basic import RULES
from onnxperf.fusions.placement import place
from onnxperf.graph import load
from onnxperf.ground.releases import release
from onnxperf.runtimes import LEVELS, RUNTIMES, of_version, run_graph
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
    types = Counter(o.type for o in optimise(graph, {BASIC: RULES}, BASIC, release("1.16")).operators)
    found = " ".join(f"{type}:{n}" for type, n in sorted(types.items()) if type not in LEFT_OUT)
    assert found == whole(UNTIL_116[name])


FLAT = "(float[5,64] x) => (float[5,48] y) {"
STACK, OPEN_STACK = FLAT.replace("[5,", "[2,5,"), FLAT.replace("[5,", "[b,c,")
BY_BLOCK, BY_COLUMN = f"w={DQ}<axis=0,block_size=32>(p4,sb,zb)", f"w={DQ}(p8,sc)"
NBITS, KEPT = "MatMulNBits:1", f"{DQ}:1 MatMul:1"
ADDED = "m=MatMul(x,w) y=Add(m,bc)}"
TWO = f"{FLAT}w={DQ}(p8,%s) v={DQ}(q8,%s) t=Tanh(x) a=MatMul(x,w) b=MatMul(t,v) y=Sub(a,b)}}"
IN_4, OF_BLOCKS, OF_COLUMNS = np.ones((64, 48), ml_dtypes.int4), np.ones((2, 48)), np.arange(48, dtype=np.float32)
FEW: dict[str, Any] = {
    "p4": IN_4, "u4": np.ones((64, 48), ml_dtypes.uint4), "p8": IN_4.astype(np.int8), "u8": IN_4.astype(np.uint8),
    "q8": np.full((64, 48), 2, np.int8), "t8": np.ones((48, 64), np.int8), "d8": np.ones((1, 64, 48), np.int8),
    "p16": np.ones((64, 48), np.int16), "sb": OF_BLOCKS.astype(np.float32), "zb": OF_BLOCKS.astype(ml_dtypes.int4),
    "sr": np.ones((64, 3), np.float32), "s8": np.ones((8, 48), np.float32), "sc": OF_COLUMNS, "sd": OF_COLUMNS + 1,
    "zc": np.zeros(48, np.int8), "s0": np.float32(0.1), "s1": np.float32(0.2), "s2": np.float32(0.1),
    "r0": np.full(1, 0.1, np.float32), "z0": np.int8(0), "bc": OF_COLUMNS, "b1": np.ones((1, 48), np.float32),
    "sx": np.float32(0.3), "zx": np.uint8(3), "h0": np.float16(0.1), "packed": np.ones((48, 2, 16), np.uint8),
    "blocks": np.ones(96, np.float32), "t4": IN_4.T, "z4b": np.array(1, ml_dtypes.int4),
    "st": np.ones((48, 2), np.float32),
}  # fmt: skip
TO_TWO = f"{DQ}:2 MatMul:2 Sub:1 Tanh:1"
PACKED_TEXTS: dict[str, tuple[str, str]] = {
    "by block": (f"{FLAT}{BY_BLOCK} y=MatMul(x,w)}}", NBITS),
    "by column": (f"{FLAT}{BY_COLUMN} y=MatMul(x,w)}}", NBITS),
    "one scale": (f"{FLAT}w={DQ}(p8,s0,z0) y=MatMul(x,w)}}", NBITS),
    "unsigned": (f"{FLAT}w={DQ}(u8,s0) y=MatMul(x,w)}}", NBITS),
    "a stack": (f"{STACK}w={DQ}(u4,s0) y=MatMul(x,w)}}", NBITS),
    "open sizes": (f"{OPEN_STACK}{BY_BLOCK} y=MatMul(x,w)}}", NBITS),
    "transposed": (f"{FLAT}v={DQ}(t8,s0) w=Transpose(v) y=MatMul(x,w)}}", NBITS),
    "transposed by row": (f"{FLAT}v={DQ}<axis=0>(t8,sc) w=Transpose<perm=[1,0]>(v) y=MatMul(x,w)}}", NBITS),
    "transposed by row, axes unsaid": (
        f"{FLAT}v={DQ}<axis=0>(t8,sc) w=Transpose(v) y=MatMul(x,w)}}", f"{DQ}:1 FusedMatMul:1"),
    "transposed by block": (
        f"{FLAT}v={DQ}<axis=1,block_size=32>(t8,st) w=Transpose(v) y=MatMul(x,w)}}", f"{DQ}:1 FusedMatMul:1"),
    "transposed in 4 bits": (f"{FLAT}v={DQ}(t4,s0) w=Transpose(v) y=MatMul(x,w)}}", f"{DQ}:1 FusedMatMul:1"),
    "transposed in 4 bits, with a zero point": (f"{FLAT}v={DQ}(t4,s0,z4b) w=Transpose(v) y=MatMul(x,w)}}", NBITS),
    "blocks of 8": (f"{FLAT}w={DQ}<axis=0,block_size=8>(p8,s8) y=MatMul(x,w)}}", KEPT),
    "blocks along rows": (f"{FLAT}w={DQ}<axis=1,block_size=16>(p8,sr) y=MatMul(x,w)}}", KEPT),
    "an axis from the end": (f"{FLAT}w={DQ}<axis=-1>(p8,sc) y=MatMul(x,w)}}", KEPT),
    "one scale in a list": (f"{FLAT}w={DQ}(p8,r0) y=MatMul(x,w)}}", KEPT),
    "16 bits": (f"{FLAT}w={DQ}(p16,s0) y=MatMul(x,w)}}", KEPT),
    "a stack of weights": (f"(float[1,5,64] x) => (float[1,5,48] y) {{w={DQ}(d8,s0) y=MatMul(x,w)}}", KEPT),
    "weights first": (f"(float[64,5] x) => (float[48,5] y) {{w={DQ}(t8,s0) y=MatMul(w,x)}}", KEPT),
    "weights given": (f"(float[5,64] x, int8[64,48] p) => (float[5,48] y) {{w={DQ}(p,s0) y=MatMul(x,w)}}", KEPT),
    "cast": (f"{FLAT}v={DQ}(p8,h0) w=Cast<to=1>(v) y=MatMul(x,w)}}", f"Cast:1 {KEPT}"),
    "read twice": (f"{FLAT}{BY_COLUMN} t=Tanh(x) a=MatMul(x,w) b=MatMul(t,w) y=Sub(a,b)}}", TO_TWO),
    "two": (TWO % ("s0", "s1"), "MatMulNBits:2 Sub:1 Tanh:1"),
    "two of equal scales": (TWO % ("s0", "s2"), TO_TWO),
    "two of the same scales": (TWO % ("sc", "sc"), TO_TWO),
    "two of long equal scales": (TWO % ("sc", "bc"), "MatMulNBits:2 Sub:1 Tanh:1"),
    "two of the same zero points": (TWO % ("sc,zc", "sd,zc"), "MatMulNBits:2 Sub:1 Tanh:1"),
    "times its scale": (f"{FLAT}w={DQ}(p8,s0) m=MatMul(x,w) y=Mul(m,s2)}}", f"{DQ}:1 FusedMatMul:1"),
    "times another": (f"{FLAT}w={DQ}(p8,s0) m=MatMul(x,w) y=Mul(m,s1)}}", "MatMulNBits:1 Mul:1"),
    "result quantised": (
        f"{FLAT}{BY_COLUMN} m=MatMul(x,w) {q('m', 'sx,zx')} y=Tanh(md)}}", f"{DQ}:2 MatMul:1 {Q}:1 Tanh:1"),
    "a Gemm": (f"{FLAT}{BY_COLUMN} m=Gemm(x,w,bc) y=Relu(m)}}", "MatMulNBits:1 Relu:1"),
    "a Gemm with a matrix": (f"{FLAT}{BY_COLUMN} y=Gemm(x,w,b1)}}", f"{DQ}:1 Gemm:1"),
    "a Gemm of transposed weights": (f"{FLAT}w={DQ}(t8,s0) y=Gemm<transB=1>(x,w)}}", f"{DQ}:1 Gemm:1"),
    "a Gemm times 2": (f"{FLAT}{BY_COLUMN} y=Gemm<alpha=2.0>(x,w)}}", f"{DQ}:1 Gemm:1"),
    "a Gemm with half a bias": (f"{FLAT}{BY_COLUMN} y=Gemm<beta=0.5>(x,w,bc)}}", f"{DQ}:1 Gemm:1"),
    "a bias": (f"{STACK}{BY_BLOCK} {ADDED}", NBITS),
    "a bias, open sizes": (f"{OPEN_STACK}{BY_BLOCK} {ADDED}", NBITS),
    "a matrix added": (f"{STACK}{BY_BLOCK} {ADDED.replace('bc', 'b1')}", "Add:1 MatMulNBits:1"),
    "a bias before a Gelu": (f"{OPEN_STACK}{BY_BLOCK} m=MatMul(x,w) a=Add(m,bc) y=Gelu(a)}}",
     "BiasGelu:1 MatMulNBits:1"),
    "packed in the file": (
        f"{FLAT}m=com.microsoft.MatMulNBits<K=64,N=48,bits=4,block_size=32>(x,packed,blocks) y=Add(bc,m)}}", NBITS),
}  # fmt: skip
PACKED = {
    f"weights of few bits: {name}": (
        text, {n: w for n, w in FEW.items() if re.search(rf"[(,]{n}[,)]", text)}, 21, operators,
    )
    for name, (text, operators) in PACKED_TEXTS.items()
}  # fmt: skip


def listed(types: Counter[str]) -> str:
    return " ".join(f"{type}:{n}" for type, n in sorted(types.items()) if type not in LEFT_OUT)


@pytest.mark.parametrize("name", PACKED)
def test_weights_of_few_bits(name: str, oracle: Callable[..., Counter[str]]) -> None:
    text, given, opset, operators = PACKED[name]
    model = build(text, given, opset)
    assert listed(oracle(model, "extended")) == operators
    assert listed(found(model, "ort-cpu", "extended")) == listed(found(model, "ort-cuda")) == operators
    assert listed(found(model, "ort-cuda", "basic")) == listed(oracle(model, "basic"))


@pytest.mark.parametrize(
    ("name", "attrs", "inputs"),
    [
        ("by block", (4, 32), ["(48, 2, 16) uint8", "(96,) float32", "(48,) uint8"]),
        ("by column", (8, 32), ["(48, 2, 32) uint8", "(96,) float32", None]),
        ("unsigned", (8, 32), ["(48, 2, 32) uint8", "(96,) float32", "(96,) uint8"]),
        ("a bias", (4, 32), ["(48, 2, 16) uint8", "(96,) float32", "(48,) uint8", None, "(48,) float32"]),
        ("a bias, open sizes", (4, 32), ["(48, 2, 16) uint8", "(96,) float32", "(48,) uint8", None, "(48,) float32"]),
    ],
)
def test_packed_weights(name: str, attrs: tuple[int, int], inputs: list[str | None]) -> None:
    """What the nodes of release 1.31 hold."""
    text, given, opset, _ = PACKED[f"weights of few bits: {name}"]
    graph = run_graph(
        load(build(text, given, opset), dims={"b": 2, "c": 3} if "[b" in text else {}), RUNTIMES["ort-cpu"]
    )
    (product,) = (o for o in graph.operators if o.type == "com.microsoft::MatMulNBits")
    assert product.attrs == {"K": 64, "N": 48, "bits": attrs[0], "block_size": attrs[1]}
    assert [t and f"{t.shape} {t.dtype}" for t in product.inputs[1:]] == inputs


def test_packed_weights_until_116() -> None:
    text, given, opset, _ = PACKED["weights of few bits: by column"]
    graph = run_graph(load(build(text, given, opset)), of_version(RUNTIMES["ort-cuda"], "1.16"))
    assert listed(Counter(o.type for o in graph.operators)) == KEPT
