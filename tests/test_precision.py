"""Who decides the dtype, and who decides TF32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod

import pytest
from onnx import parser

from onnxperf.graph import Graph, load
from onnxperf.lower import lower
from onnxperf.passes import PRECISIONS, precision
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph

MODEL = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[1,3,8,8] x, int64[1,2] i, float[64,8] table) => (float[1,4,6,6] y, float[1,2,2] q)
<float[4,3,3,3] w, float[4] b, float[8,8] m> {
  c = Conv(x, w, b)  y = Relu(c)
  e = Gather(table, i)  p = MatMul(e, m)  t = Transpose<perm=[0,2,1]>(p)  q = MatMul(p, t)
}
"""


@pytest.fixture(scope="module")
def graph() -> Graph:
    model = parser.parse_model(MODEL)
    del model.graph.initializer[:]  # the parser makes them without data
    for name, shape in (("w", [4, 3, 3, 3]), ("b", [4]), ("m", [8, 8])):
        model.graph.initializer.add(name=name, data_type=1, dims=shape).raw_data = bytes(4 * prod(shape))
    return load(model)


def dtypes(graph: Graph) -> dict[str, str]:
    tensors = (*graph.inputs, *(t for o in graph.operators for t in (*o.present, *o.outputs)), *graph.outputs)
    return {t.name: t.dtype for t in tensors}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("keep", "float32"), ("fp32", "float32"), ("tf32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")],
)
def test_every_floating_tensor_has_the_type(graph: Graph, name: str, dtype: str) -> None:
    found = dtypes(precision(graph, name))
    assert found.pop("i") == "int64"
    assert set(found.values()) == {dtype}
    assert found.keys() >= {"x", "y", "w", "b", "m", "q", "table"}


def test_float32_is_asked_for_in_a_half_precision_model_too(graph: Graph) -> None:
    half = precision(graph, "fp16")
    assert set(dtypes(precision(half, "fp32")).values()) == {"float32", "int64"}
    assert precision(half, "keep") is half


@pytest.mark.parametrize(("name", "dtype"), [("int8", "int8"), ("fp8", "float8e4m3fn")])
def test_products_with_stored_weights_are_quantised_and_the_rest_keeps(graph: Graph, name: str, dtype: str) -> None:
    run = precision(graph, name)
    types = [o.type for o in run.operators]
    assert Counter(types) - Counter(o.type for o in graph.operators) == Counter(QuantizeLinear=2)
    for o in run.operators:
        kinds = [t.dtype for t in o.present]
        if o.type == "QuantizeLinear":
            assert (kinds[0], o.out.dtype, o.out.size) == ("float32", dtype, o.present[0].size)
            assert types[types.index("QuantizeLinear") + 1] == "Conv"
        elif any(t.stored for t in o.present):
            assert kinds[:2] == [dtype, dtype]
            assert kinds[2:] in ([], ["float32"]), "the bias keeps"
            assert o.out.dtype == "float32"
        else:
            assert dtype not in kinds, o.type
    assert [t.dtype for t in (*run.inputs, *run.outputs)] == [t.dtype for t in (*graph.inputs, *graph.outputs)]


def test_one_activation_is_quantised_once() -> None:
    text = "(float[3,4] x) => (float[3,4] y, float[3,4] z) { y = MatMul(x, w)  z = MatMul(x, w) }"
    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 20]> g ' + text)
    model.graph.initializer.add(name="w", data_type=1, dims=[4, 4]).raw_data = bytes(64)
    run = precision(load(model), "int8")
    assert [o.type for o in run.operators] == ["QuantizeLinear", "MatMul", "MatMul"]
    assert sum(t.bytes for t in run.stored()) == 16 + 4, "weights are stored quantised, a scale beside them"


Pipes = Callable[..., list[str]]


@pytest.fixture
def pipes(graph: Graph) -> Pipes:
    """The units that multiply: of the convolution, of the product with weights, of that with an activation."""

    def pipes(name: str, runtime: str) -> list[str]:
        run = RUNTIMES[runtime]
        tf32 = {"fp32": False, "tf32": True}.get(name)
        rows = lower(run_graph(precision(graph, name), run, LEVELS["all"]), run, tf32=tf32).rows
        return [k.work.pipe.removeprefix("tensor_") for k in rows if k.work.matrix_flops]

    return pipes


@pytest.mark.parametrize(
    ("name", "ort", "eager"),
    [
        ("keep", "tf32 tf32 tf32", "tf32 fp32 fp32"),
        ("fp32", "fp32 fp32 fp32", "fp32 fp32 fp32"),
        ("tf32", "tf32 tf32 tf32", "tf32 tf32 tf32"),
        ("fp16", "fp16 fp16 fp16", "fp16 fp16 fp16"),
        ("bf16", "bf16 bf16 bf16", "bf16 bf16 bf16"),
        ("int8", "int8 int8 tf32", "int8 int8 fp32"),
        ("fp8", "fp8 fp8 tf32", "fp8 fp8 fp32"),
    ],
)
def test_which_unit_multiplies(pipes: Pipes, name: str, ort: str, eager: str) -> None:
    assert pipes(name, "ort-cuda") == ort.split()
    assert pipes(name, "torch-eager") == eager.split()


def test_no_precision_is_left_out() -> None:
    assert PRECISIONS == ("keep", "fp32", "tf32", "fp16", "bf16", "int8", "fp8")


def test_tensors_that_are_put_in_never_take_a_name_of_the_file() -> None:
    text = "g (float[2,8] x) => (float[2,8] y, float[2,8] z) <float[8,8] m> { y = MatMul(x, m) z = Abs(x) }"
    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 20]> ' + text)
    model.graph.node[1].output[0] = model.graph.output[1].name = "x.int8"
    del model.graph.initializer[:]
    model.graph.initializer.add(name="m", data_type=1, dims=[8, 8]).raw_data = bytes(256)
    made = [t.name for o in precision(load(model), "int8").operators for t in o.outputs]
    assert sorted(made) == sorted(set(made)) and "x.int8" in made
