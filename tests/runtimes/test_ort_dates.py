"""Since which release ONNX Runtime has a rule: what the release and the one before it write of a model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxperf.graph import load
from onnxperf.runtimes import LEVELS, RUNTIMES, of_version, run_graph
from tests.cuda_oracle import LEFT_OUT
from tests.runtimes.conftest import build
from tests.runtimes.test_oracle import PADDED, TINY, P, W
from tests.runtimes.test_ort_older import ADDED, RUN
from tests.runtimes.test_ort_qdq import CASES as PAIRS
from tests.runtimes.test_ort_qdq import PACKED, whole

FEW = "weights of few bits: "
FLAT, IMAGE = "(float[3,4] x) => (float[3,5] y) ", PADDED.replace("4,8,8", "3,8,8")
POOL, CUT = "t=Pad(x,p) y=AveragePool<kernel_shape=[3,3]%s>(t)", "y=%s(r,a%s) z=%s(r,c%s)}"
HALVES = "(float[2,6] x) => (float[2,3] y, float[2,3] z) {r=Relu(x) " + CUT % (("Slice", ",b,i") * 2)
HALVES = HALVES.replace("c,b", "b,d")
TWO = "(float[2,2,4] x) => (float[2,4] y, float[2,4] z) {r=Relu(x) " + CUT % (("Gather<axis=1>", "") * 2)
KEPT, FLIPPED = TINY["kept for attention"], "(bool[4] m, float[4] x) => (float[4] y) {n=Not(m) y=Where(n,x,c)}"
GELU = "(float[2,3,4] x) => (float[2,3,4] y) {a=Add(x,v) y=Gelu(a)}"
PAD_TWO, NO_PADS = "{t=Pad(x,p) y=Conv%s(t,w)}", "<pads=[0,0,0,0]>"
ENDS: dict[str, Any] = {"a": [0], "b": [3], "d": [6], "i": [1]}
ONES: dict[str, Any] = {"a": np.array(0), "c": np.array(1)}
AMOUNTS = {"p": P["p"]}


def of_pairs(name: str, opset: int = 0) -> tuple[str, dict[str, Any], int, str]:
    text, weights, own, _ = PAIRS[name]
    return text, weights, opset or own, "basic"


def of_packed(name: str) -> tuple[str, dict[str, Any], int, str]:
    text, weights, opset, _ = PACKED[FEW + name]
    return text, weights, opset, "extended"


#: A model, its weights, opset and level; and what releases leave of it, views apart. Written by their packages for the
#: CPU, but for weights in blocks of 4 bits, which 1.18 does not read at all.
MODELS: dict[str, tuple[tuple[str, dict[str, Any], int, str], dict[str, str]]] = {
    "a zero": ((RUN + f"{{{ADDED} m=Add(r,zero) y=Tanh(m)}}", {"zero": 0.0}, 17, "basic"),
     {"1.16": "Add:2 Tanh:1", "1.17": "Add:1 Tanh:1"}),
    "a stack": ((TINY["stack relu"][0], TINY["stack relu"][1], 18, "basic"),
     {"1.17": "Add:1 MatMul:1 Relu:1", "1.20": "Add:1 MatMul:1 Relu:1", "1.21": "Gemm:1 Relu:1"}),
    "left to attention": ((KEPT[0], KEPT[1], 20, "extended"),
     {"1.21": "Add:3 LayerNormalization:1 MatMul:4 Mul:2 Sub:1 Tanh:1",
      "1.22": "Add:3 LayerNormalization:1 MatMul:4 Mul:2 Sub:1 Tanh:1",
      "1.23": "Add:1 Gemm:2 LayerNormalization:1 MatMul:2 Mul:2 Sub:1 Tanh:1"}),
    "sizes of another": (of_pairs("sizes of another"),
     {"1.17": "Abs:1 Concat:1 Gather:1 Shape:1 Tanh:1", "1.28": "Abs:1 Concat:1 Gather:1 Shape:1 Tanh:1",
      "1.29": "Abs:1 Tanh:1"}),
    "a Slice passed": (of_pairs("on through a Slice"),
     {"1.17": "DQ:1 Q:1 Sigmoid:1 Slice:1 Tanh:1", "1.18": "DQ:1 Q:1 Sigmoid:1 Slice:1 Tanh:1",
      "1.19": "DQ:2 Q:2 Sigmoid:1 Slice:1 Tanh:1"}),
    "two readers": (of_pairs("on to two"),
     {"1.18": "DQ:1 Q:1 Relu:1 Sigmoid:1 Tanh:1 Transpose:1", "1.19": "DQ:3 Q:2 Relu:1 Sigmoid:1 Tanh:1 Transpose:1"}),
    "constants passed": (of_pairs("a constant cut"),
     {"1.18": "Add:1 DQ:2 Q:1 Slice:1", "1.19": "Add:1 DQ:3 Q:2 Slice:1", "1.26": "Add:1 DQ:3 Q:2 Slice:1",
      "1.27": "Add:1 DQ:2 Q:1 Slice:1"}),
    "a bias": (of_pairs("a bias"), {"1.20": "Conv:1 DQ:3 Q:2 Sigmoid:1", "1.21": "Conv:1 DQ:4 Q:2 Sigmoid:1"}),
    "weights": (of_pairs("weights"), {"1.20": "Conv:1 DQ:2 Q:2 Sigmoid:1", "1.21": "Conv:1 DQ:3 Q:2 Sigmoid:1"}),
    "a bias, not quantised": (of_pairs("a bias, not quantised"),
     {"1.20": "Conv:1 DQ:2 Q:1 Sigmoid:1", "1.21": "Conv:1 DQ:3 Q:1 Sigmoid:1", "1.22": "Conv:1 DQ:2 Q:1 Sigmoid:1"}),
    "a bias before a Relu": (of_pairs("a bias before a Relu"),
     {"1.21": "Conv:1 DQ:4 Q:2 Relu:1 Sigmoid:1", "1.22": "Conv:1 DQ:3 Q:2 Relu:1 Sigmoid:1",
      "1.23": "Conv:1 DQ:4 Q:2 Relu:1 Sigmoid:1"}),
    "a number of a Where": (of_pairs("a number of a Where"),
     {"1.23": "DQ:2 Q:2 Sigmoid:1 Tanh:1 Where:1", "1.24": "DQ:3 Q:2 Sigmoid:1 Tanh:1 Where:1"}),
    "a Where not quantised": (of_pairs("a Where not quantised"),
     {"1.23": "DQ:1 Q:1 Tanh:1 Where:1", "1.24": "DQ:2 Q:1 Tanh:1 Where:1", "1.25": "DQ:2 Q:1 Tanh:1 Where:1",
      "1.26": "DQ:1 Q:1 Tanh:1 Where:1"}),
    "a constant turned": (of_pairs("a constant turned", 18), {"1.16": "Add:1 DQ:2 Q:1", "1.18": "Add:1 DQ:2 Q:1"}),
    "a Transpose quantised": (of_pairs("back, each channel turned"),
     {"1.18": "DQ:1 Q:1 Sigmoid:1 Tanh:1 Transpose:1", "1.19": "DQ:2 Q:2 Sigmoid:1 Tanh:1 Transpose:1"}),
    "a Transpose of pairs": (of_pairs("on to an output and on"),
     {"1.17": "DQ:3 Q:2 Sigmoid:1 Tanh:1 Transpose:1"}),
    "4 bits in blocks": (of_packed("by block"), {"1.18": "DQ:1 MatMul:1", "1.19": "MatMulNBits:1"}),
    "8 bits": (of_packed("by column"), {"1.19": "DQ:1 MatMul:1", "1.24": "DQ:1 MatMul:1", "1.25": "MatMulNBits:1"}),
    "two of equal scales": (of_packed("two of equal scales"),
     {"1.24": "DQ:2 MatMul:2 Sub:1 Tanh:1", "1.25": "MatMulNBits:2 Sub:1 Tanh:1",
      "1.26": "MatMulNBits:2 Sub:1 Tanh:1", "1.27": "DQ:2 MatMul:2 Sub:1 Tanh:1"}),
    "a bias of few bits": (of_packed("packed in the file"), {"1.18": "Add:1 MatMulNBits:1", "1.19": "MatMulNBits:1"}),
    "Slices": ((HALVES, ENDS, 17, "extended"), {"1.17": "Relu:1 Slice:2", "1.18": "Relu:1 Split:1"}),
    "Gathers": ((TWO, ONES, 17, "extended"), {"1.15": "Relu:1 Split:1", "1.18": "Relu:1 Split:1"}),
    "Gathers of opset 11": ((TWO, ONES, 11, "extended"), {"1.17": "Relu:1 Split:1", "1.18": "Gather:2 Relu:1"}),
    "a Gelu": ((GELU, {"v": (4,)}, 20, "extended"), {"1.20": "Add:1 Gelu:1", "1.21": "BiasGelu:1"}),
    "a Pad": ((PADDED + PAD_TWO % NO_PADS, AMOUNTS | W, 17, "basic"), {"1.16": "Conv:1 Pad:1", "1.17": "Conv:1"}),
    "a Pad, none behind": ((PADDED + PAD_TWO % "", AMOUNTS | W, 17, "basic"),
     {"1.19": "Conv:1 Pad:1", "1.20": "Conv:1"}),
    "a Pad of opset 21": ((PADDED + PAD_TWO % "", AMOUNTS | W, 21, "basic"),
     {"1.24": "Conv:1 Pad:1", "1.25": "Conv:1"}),
    "an average": ((IMAGE + "{" + POOL % ",pads=[0,0,0,0]" + "}", AMOUNTS, 17, "basic"),
     {"1.18": "AveragePool:1 Pad:1", "1.19": "AveragePool:1"}),
    "a Not": ((FLIPPED, {"c": 0.0}, 16, "basic"), {"1.24": "Not:1 Where:1", "1.25": "Where:1"}),
    "a Not of opset 15": ((FLIPPED, {"c": 0.0}, 15, "basic"), {"1.16": "Where:1", "1.24": "Where:1"}),
    "a norm": ((FLAT + "{u=MatMul(x,w) y=BatchNormalization(u,s,s,s,s)}", {"w": (4, 5), "s": (5,)}, 17, "basic"),
     {"1.16": "BatchNormalization:1 MatMul:1", "1.17": "Gemm:1"}),
}  # fmt: skip


#: Where the package for CUDA wrote something else.
ON_CUDA = {
    "4 bits in blocks": {"1.19": "DQ:1 MatMul:1", "1.20": "MatMulNBits:1"},
    "a bias of few bits": {"1.19": "Add:1 MatMulNBits:1", "1.27": "Add:1 MatMulNBits:1", "1.28": "MatMulNBits:1"},
}


@pytest.mark.parametrize("runtime", ["ort-cpu", "ort-cuda"])
@pytest.mark.parametrize("name", MODELS)
def test_a_rule_is_there_since_a_release_and_not_in_the_one_before(name: str, runtime: str) -> None:
    (text, weights, opset, level), of_release = MODELS[name]
    of_release = ON_CUDA.get(name, of_release) if runtime == "ort-cuda" else of_release
    graph = load(build(text, weights, opset), dims={"b": 3, "c": 3} if "[b" in text else {})
    for number, operators in of_release.items():
        way = replace(of_version(RUNTIMES[runtime], number), place=lambda g: g)
        types = Counter(o.type.rpartition("::")[2] for o in run_graph(graph, way, LEVELS[level]).operators)
        left = " ".join(f"{type}:{n}" for type, n in sorted(types.items()) if type not in LEFT_OUT)
        assert left == whole(operators), number
