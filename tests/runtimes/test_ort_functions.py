"""What ONNX Runtime's CUDA provider makes of operators that it has no kernel for, as onnx defines them by functions.

The expected operators are those of the graphs that ONNX Runtime 1.31 writes, views left out; test_cuda_oracle.py
compares them with the provider itself, where that can be started.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import onnxperf
from onnxperf import ModelError
from onnxperf.fusions.placement import place
from onnxperf.graph import Open, load
from onnxperf.graph.definitions import definition, definitions
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph
from tests.cuda_oracle import ours
from tests.runtimes.conftest import build

IMAGE = "(float[2,8,4,4] x) => (float[2,8,h,w] y) {r=Relu(x) %s y=Abs(a)}"
HALF = IMAGE.replace("float", "float16")
NORM = "a=GroupNormalization<num_groups=2>(r,g,g)"
NORMALISED = "Abs:1 Add:2 Cast:5 Concat:1 Div:2 Mul:3 ReduceMean:2 Relu:1 Shape:4 Sqrt:1 Sub:2"
ROWS = "(float[2,5] x, int64[2] t) => (float y) {r=Relu(x) a=%s(r,t) y=Abs(a)}"
SIZES: dict[str, Any] = {"s": [3, 3], "g": (8,), "one": 1.0}
#: A graph, its weights, its opset, and its operators.
CASES: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "GroupNormalization": (IMAGE % NORM, SIZES, 21, NORMALISED),
    "GroupNormalization of groups' scales": (
        IMAGE % NORM, {"g": (2,)}, 18, NORMALISED.replace("Cast:5", "Cast:3"),
    ),
    "GroupNormalization in half precision": (HALF % NORM, {"g": np.ones(8, np.float16)}, 21, NORMALISED),
    "Swish": (IMAGE % "a=Swish<alpha=1.5>(r)", {}, 24, "Abs:1 Cast:1 Mul:2 Relu:1 Sigmoid:1"),
    "Mish": (IMAGE % "a=Mish(r)", {}, 22, "Abs:1 Mul:1 Relu:1 Softplus:1 Tanh:1"),
    "Mish stops a Transpose": (
        "(float[1,8,4,4] x) => (float[1,8,4,4] y) {t=Transpose<perm=[0,2,3,1]>(x) m=Mish(t)"
        " y=Transpose<perm=[0,3,1,2]>(m)}", {}, 18, "Mul:1 Softplus:1 Tanh:1 Transpose:2",
    ),
    "HardSwish has a kernel": (IMAGE % "a=HardSwish(r)", {}, 22, "Abs:1 HardSwish:1 Relu:1"),
    "CenterCropPad": (
        IMAGE % "a=CenterCropPad<axes=[2,3]>(r,s)", SIZES, 18,
        "Abs:1 Add:1 Concat:1 Div:2 Gather:2 Max:1 Pad:1 Relu:1 Shape:2 Slice:1 Sub:3",
    ),
    "CastLike of its own type": (IMAGE % "a=CastLike(r,one)", SIZES, 19, "Abs:1 Cast:1 Relu:1"),
    "NegativeLogLikelihoodLoss": (
        ROWS % "NegativeLogLikelihoodLoss", {}, 13, "Abs:1 GatherElements:1 Neg:1 ReduceMean:1 Relu:1 Slice:1",
    ),
    "SoftmaxCrossEntropyLoss": (
        ROWS % "SoftmaxCrossEntropyLoss", {}, 13,
        "Abs:1 GatherElements:1 LogSoftmax:1 Neg:1 ReduceMean:1 Relu:1 Shape:1 Slice:1 Transpose:2",
    ),
    "Bernoulli": (IMAGE % "a=Bernoulli(r)", {}, 15, "Abs:1 Cast:1 Greater:1 RandomUniformLike:1 Relu:1"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "weights", "opset", "operators"), CASES.values(), ids=CASES)
def test_a_function_runs_as_it_is_defined(text: str, weights: dict[str, Any], opset: int, operators: str) -> None:
    found: Counter[str] = ours(build(text, weights, opset))
    assert " ".join(f"{type}:{n}" for type, n in sorted(found.items())) == operators


@pytest.mark.parametrize("level", LEVELS)
def test_at_every_level_and_what_it_computes_of_shapes_on_the_host(level: str) -> None:
    runtime = replace(RUNTIMES["ort-cuda"], place=place)
    graph = run_graph(load(build(IMAGE % NORM, SIZES, 21)), runtime, LEVELS[level])
    host = [o.type for o in graph.operators if o.place == "host"]
    assert sorted(host) == ["Concat", "Div", "Shape", "Shape", "Shape", "Shape"]
    body = [o for o in graph.operators if o.type not in ("Relu", "Abs")]
    assert {o.nodes for o in body} == {("GroupNormalization_1",)}
    assert len({o.name for o in body}) == len(body) == 29
    assert not any(o.place == "copy" for o in graph.operators)


def test_open_sizes_stay_open_in_what_a_function_makes() -> None:
    text = (IMAGE % NORM).replace("2,8,4,4", "N,8,H,4").replace("2,8,h,w", "N,8,H,4")
    graph = load(build(text, SIZES, 21), dims={"N": 3, "H": 6})
    body = definition(graph.operators[1], ("GroupNormalization",))
    assert body is not None
    made = {t.name.rpartition("#")[2].partition("__")[0]: t.shape for o in body for t in o.outputs}
    assert made["XU"] == (3, 8, 6, 4) and [isinstance(d, Open) for d in made["XU"]] == [True, False, True, False]
    assert made["X3D"] == (3, 2, 96) and body[-1].out is graph.operators[1].out


def test_equal_operators_are_taken_apart_alike_whatever_they_are_called() -> None:
    text = "(float[2,8,4,4] x) => (float[2,8,4,4] y) {a=Mish(x) b=Mish(a) y=Mish(b)}"
    graph = place(load(build(text, {}, 22)))
    bodies = [[o for o in graph.operators if o.nodes == (f"Mish_{i}",)] for i in range(3)]
    assert [[o.type for o in body] for body in bodies] == [["Softplus", "Tanh", "Mul"]] * 3
    assert len({t.name for o in graph.operators for t in o.outputs}) == 9
    assert [body[0].inputs[0].name for body in bodies] == ["x", "a", "b"]
    assert [body[-1].out.name for body in bodies] == ["a", "b", "y"]


def test_a_body_is_that_of_its_own_attributes_and_open_sizes() -> None:
    text = "(float[N,8] x, float[5,8] z) => (float[N,8] y, float[5,8] w) {y=Swish<alpha=1.5>(x) w=Swish<alpha=2.5>(z)}"
    first, second = load(build(text, {}, 24), dims={"N": 5}).operators
    bodies = [definition(o, ("Swish",)) or () for o in (first, second)]
    assert [{t.value for o in body for t in o.present if t.value} for body in bodies] == [{(1.5,)}, {(2.5,)}]
    assert [isinstance(body[-1].out.shape[0], Open) for body in bodies] == [True, False]


@pytest.mark.slow
def test_functions_of_onnx_have_the_limits_of_a_files_own() -> None:
    nodes = " ".join(f"t{i + 1}=Mish(t{i})" for i in range(16_667))
    model = build(f"(float[2] t0) => (float[2] t16667) {{{nodes}}}", {}, 22)
    with pytest.raises(ModelError, match=r"taking apart .* functions would make 50,001 nodes; the limit is 50,000"):
        onnxperf.predict(model, gpu="t4")
    assert onnxperf.predict(model, gpu="t4", runtime="tensorrt").kernels
    long = build("(float[2] x) => (float[2] y) {y=Mish(x)}", {}, 22)
    o = replace(load(long).operators[0], name="n" * 4000)
    with pytest.raises(ModelError, match="MiB of nodes; the limit is 96 MiB"):
        definitions([o] * 5000, ("Mish",), "long")


def test_there_is_a_limit_to_the_forms_that_are_taken_apart() -> None:
    nodes = " ".join(f"t{i + 1}=Swish<alpha={i}.5>(t{i})" for i in range(300))
    with pytest.raises(ModelError, match="has 300 forms of operators that onnx defines by functions"):
        onnxperf.predict(build(f"(float[2] t0) => (float[2] t300) {{{nodes}}}", {}, 24), gpu="t4")


@pytest.mark.parametrize("kind", ["initializer", "input"])
def test_what_onnx_cannot_take_apart_stays_one_operator(kind: str) -> None:
    rows = ROWS.replace("2,5", "0,5").replace("int64[2]", "int64[0]") % "SoftmaxCrossEntropyLoss"
    model = build(rows.replace("{r=Relu(x)", "{r=Identity(x)"), {}, 13)
    if kind == "initializer":
        model.graph.initializer.append(TensorProto(name="x", data_type=1, dims=[0, 5]))
    graph = place(load(model))
    assert "SoftmaxCrossEntropyLoss" in [o.type for o in graph.operators]
    assert not [note for note in onnxperf.predict(model, gpu="t4").warnings if note.code == "failed-fusion"]


def test_what_is_no_function_has_no_definition() -> None:
    graph = load(build("(float[2] x) => (float[2] y) {a=com.microsoft.Gelu(x) y=Abs(a)}", {}, 18))
    assert [definition(o, ()) for o in graph.operators] == [None, None]
