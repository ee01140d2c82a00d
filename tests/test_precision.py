"""Who decides the dtype, and who decides TF32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path

import pytest
from onnx import defs, parser

import gpu_specs
import onnxperf
from onnxperf.graph import Graph, load
from onnxperf.ground.names import PRECISIONS
from onnxperf.lowering.lower import lower
from onnxperf.passes.precision import FLOAT32_ONLY, QUANTISED, precision
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph
from op_models import Operator, Tensor, work_of

SAMPLES = Path(__file__).parents[1] / "samples"
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


@pytest.mark.parametrize(
    ("card", "older", "least", "most"),
    [
        ("p40", "1.6", 30, 64), ("gtx-1080", "1.7", 30, 64), ("p100-pcie-16gb", "1.6", 0.4, 0.65),
        ("p40", "1.8", 0.8, 1.1), ("p40", None, 0.8, 1.1), ("p100-pcie-16gb", None, 0.8, 1.1),
    ],
)  # fmt: skip
def test_what_fp16_gains_without_tensor_cores_follows_from_what_the_release_sums_in(
    card: str, older: str | None, least: float, most: float
) -> None:
    """A language model in FP16 on a P40: 44 times slower with cublasHgemm than in FP32 (ggml-org/llama.cpp, pull
    request 3370); DeepBench's products on a P100, FP16 summed in FP32 to FP32: 1.00 (median of 160).
    """
    text = """<ir_version: 7, opset_import: ["" : 12]> g (float[512,1024] x) => (float[512,4096] y)
      <float[1024,4096] w> { y = MatMul(x, w) }"""
    model = parser.parse_model(text)
    del model.graph.initializer[:]
    model.graph.initializer.add(name="w", data_type=1, dims=[1024, 4096]).raw_data = bytes(4 * 1024 * 4096)
    single, half = (onnxperf.predict(model, gpu=card, precision=p, ort_version=older) for p in ("fp32", "fp16"))
    assert least < half.seconds / single.seconds < most
    (note,) = (n.message for n in half.warnings if n.code == "no-unit")
    assert f"summed in {'FP16' if older in ('1.6', '1.7') else 'FP32'}" in note


def test_convolutions_are_summed_in_fp32_in_every_release() -> None:
    text = """<ir_version: 7, opset_import: ["" : 12]> g (float[8,64,56,56] x, float[64,64,3,3] w)
      => (float[8,64,56,56] y) { y = Conv<pads=[1,1,1,1]>(x, w) }"""
    then, now = (
        onnxperf.predict(parser.parse_model(text), gpu="p40", precision="fp16", ort_version=v) for v in ("1.6", "1.8")
    )
    assert then.kernels[0].seconds == now.kernels[0].seconds


def test_no_precision_is_left_out() -> None:
    assert PRECISIONS == ("keep", "fp32", "tf32", "fp16", "bf16", "int8", "fp8", "amp")


def test_tensors_that_are_put_in_never_take_a_name_of_the_file() -> None:
    text = "g (float[2,8] x) => (float[2,8] y, float[2,8] z) <float[8,8] m> { y = MatMul(x, m) z = Abs(x) }"
    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 20]> ' + text)
    model.graph.node[1].output[0] = model.graph.output[1].name = "x.int8"
    del model.graph.initializer[:]
    model.graph.initializer.add(name="m", data_type=1, dims=[8, 8]).raw_data = bytes(256)
    made = [t.name for o in precision(load(model), "int8").operators for t in o.outputs]
    assert sorted(made) == sorted(set(made)) and "x.int8" in made


def small(text: str, opset: int = 20, **weights: tuple[int, ...]) -> Graph:
    """A model from text, with float weights of these shapes."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]> g {text}')
    for name, shape in weights.items():
        model.graph.initializer.add(name=name, data_type=1, dims=shape).raw_data = bytes(4 * prod(shape))
    return load(model)


def steps(graph: Graph) -> list[str]:
    """What each operator reads and writes, in short."""
    short = {"float32": "f", "float16": "h", "bfloat16": "b", "int8": "q", "float8e4m3fn": "8"}
    return [
        f"{o.type} {''.join(short.get(t.dtype, 'i') for t in o.present)}>"
        + "".join(short.get(t.dtype, "i") for t in o.outputs)
        for o in graph.operators
    ]


LINEAR = "(float[2,8] x) => (float[2,4] y) { a = Abs(x) m = MatMul(a, w) y = Add(m, c) }"


@pytest.mark.parametrize(
    ("name", "card", "expected", "said"),
    [
        ("keep", "t4", "Abs f>f|MatMul ff>f|Add ff>f", ""),
        ("fp32", "t4", "Abs f>f|MatMul ff>f|Add ff>f", ""),
        ("fp16", "t4", "Abs h>h|MatMul hh>h|Add hh>h", ""),
        ("fp16", "p100", "Abs h>h|MatMul hh>h|Add hh>h", ""),
        ("bf16", "l4", "Abs b>b|MatMul bb>b|Add bb>b", ""),
        ("bf16", "t4", "Abs b>b|Cast b>f|MatMul ff>f|Cast f>b|Add bb>b", "T4 bfloat16 in it, float32"),
        ("bf16", "v100", "Abs b>b|Cast b>f|MatMul ff>f|Cast f>b|Add bb>b", "V100 bfloat16 float32"),
        ("int8", "t4", "Abs f>f|QuantizeLinear ff>q|MatMul qq>f|Add ff>f", ""),
        ("int8", "v100", "Abs f>f|DequantizeLinear qh>h|Cast f>h|MatMul hh>h|Cast h>f|Add ff>f", "V100 int8 half"),
        ("int8", "p100", "Abs f>f|DequantizeLinear qf>f|MatMul ff>f|Add ff>f", "P100 int8 stored"),
        ("fp8", "l4", "Abs f>f|QuantizeLinear ff>8|MatMul 88>f|Add ff>f", ""),
        (
            "fp8",
            "a100",
            "Abs f>f|DequantizeLinear 8h>h|Cast f>h|MatMul hh>h|Cast h>f|Add ff>f",
            "A100 float8e4m3fn half",
        ),
    ],
)
def test_a_card_runs_in_the_types_it_has(name: str, card: str, expected: str, said: str) -> None:
    graph, device = small(LINEAR, w=(8, 4), c=(4,)), gpu_specs.load(card)
    found = precision(graph, name, device)
    assert steps(found) == expected.split("|")
    assert [n.code for n in found.notes] == ["no-dtype"] * bool(said)
    for word in said.lower().replace(",", "").split():
        assert word in found.notes[0].message.lower()
    again = precision(found, name, device)
    assert (steps(again), again.notes) == (steps(found), found.notes), "asking twice changes nothing"
    made = [t.name for o in found.operators for t in o.outputs]
    assert len(set(made)) == len(made)
    assert [(t.name, t.shape) for t in found.outputs] == [(t.name, t.shape) for t in graph.outputs]
    assert found.outputs[0].dtype == found.operators[-1].out.dtype


@pytest.mark.parametrize(
    ("text", "half", "bfloat"),
    [
        (
            "(float[1,9,4] b, float[1,2,9] s, int64[1] n) => (int64[K,3] y) {c=Abs(b) y=NonMaxSuppression(c,s,n)}",
            "Abs h>h|Cast h>f|Cast h>f|NonMaxSuppression ffi>i",
            "Abs b>b|Cast b>f|Cast b>f|NonMaxSuppression ffi>i",
        ),
        (
            "(float[2,3] x) => (float[2,3] y) {a=Celu(x) y=Celu(a)}",
            "Cast h>f|Celu f>f|Cast f>h|Celu f>f|Cast f>h",
            "Cast b>f|Celu f>f|Cast f>b|Celu f>f|Cast f>b",
        ),
        ("(float[2,3] x) => (float[2,3] y) {y=Shrink(x)}", "Shrink h>h", "Cast b>f|Shrink f>f|Cast f>b"),
        ("(float[2,3] x) => (float[2,3] y) {y=Round(x)}", "Round h>h", "Round b>b"),
        (
            "(float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] k = {1.0,1.0,2.0,2.0}> {y=Resize(x,,k)}",
            "Resize hf>h",
            "Resize bf>b",
        ),
        (
            "(float[2,8] x) => (float[2,2] y) {y=com.microsoft.CDist(x,x)}",
            "Cast h>f|com.microsoft::CDist ff>f|Cast f>h",
            "Cast b>f|com.microsoft::CDist ff>f|Cast f>b",
        ),
    ],
)  # fmt: skip
def test_what_has_no_half_precision_keeps_float32_between_casts(text: str, half: str, bfloat: str) -> None:
    graph = small(text)
    for name, expected in (("fp16", half), ("bf16", bfloat)):
        found = precision(graph, name, gpu_specs.load("l4"))
        assert steps(found) == expected.split("|")
        assert found.notes == graph.notes, "that is no lack of the card"
        assert steps(precision(found, name, gpu_specs.load("l4"))) == steps(found)


def test_the_table_of_single_precision_follows_the_schemas() -> None:
    """Every operand that ONNX defines in float32 and not in half precision, in the last version before opset 25."""
    newest = {}
    for s in defs.get_all_schemas_with_history():
        if s.domain == "" and s.since_version <= 24 and not s.deprecated:
            newest[s.name] = max(newest.get(s.name, s), s, key=lambda s: s.since_version)
    for name, s in newest.items():
        allowed = {c.type_param_str: set(c.allowed_type_strs) for c in s.type_constraints}
        places = [(str(i), p) for i, p in enumerate(s.inputs)] + [(f"o{i}", p) for i, p in enumerate(s.outputs)]
        types = {where: allowed.get(p.type_str, {p.type_str}) for where, p in places}
        lacking = [where for where, t in types.items() if "tensor(float)" in t and "tensor(float16)" not in t]
        assert lacking == FLOAT32_ONLY.get(name, "").split(), name


def test_a_tensor_is_cast_once() -> None:
    text = "(float[2,8] x) => (float[2,4] y, float[2,4] z) { y = MatMul(x, w)  z = MatMul(x, w) }"
    found = precision(small(text, w=(8, 4)), "bf16", gpu_specs.load("t4"))
    assert steps(found) == ["Cast b>f", "MatMul ff>f", "Cast f>b", "MatMul ff>f", "Cast f>b"]
    assert sum(t.bytes for t in found.stored()) == 4 * 32, "weights are stored as they are multiplied"
    chain = "(float[2,8] x) => (float[2,8] y) { m = MatMul(x, w)  y = MatMul(m, w) }"
    found = precision(small(chain, w=(8, 8)), "bf16", gpu_specs.load("t4"))
    assert steps(found) == ["Cast b>f", "MatMul ff>f", "Cast f>b", "MatMul ff>f", "Cast f>b"], "read as it was made"


QDQ = """(float[2,8] x) => (float[2,4] y) <float s = {0.1}, int8 z = {0}, int8[8,4] v> {
  q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  y = MatMul(a, w) }"""


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_products_that_are_quantised_already_are_left(name: str) -> None:
    graph = small(QDQ.replace(", int8[8,4] v", ""), w=(8, 4))
    assert steps(precision(graph, name, gpu_specs.load("l4"))) == steps(graph)


def test_weights_of_few_bits_stay_as_they_are() -> None:
    text = """(float[2,32] x, uint8[4,1,16] b) => (float[2,4] y)
    { y = com.microsoft.MatMulNBits<K=32,N=4,bits=4,block_size=32>(x, b, s) }"""
    graph = small(text, s=(4,))
    assert steps(precision(graph, "fp16", gpu_specs.load("l4"))) == ["com.microsoft::MatMulNBits hih>h"]
    assert steps(precision(graph, "int8", gpu_specs.load("l4"))) == steps(graph)


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("card", ["t4", "p100", "l4"])
def test_bodies_of_loops_run_in_the_type_as_often_as_before(name: str, card: str) -> None:
    t = partial(Tensor, dtype="float32", shape=(4, 4))
    x, a, b, y, w = t("x"), t("a"), t("b"), t("y"), t("w", kind="weight")
    ops = (
        Operator("loop", "Loop", (x,), (a,), {}, 20, ("loop",)),
        Operator("body", "MatMul", (a, w), (b,), {}, 20, ("body",), repeat=5),
        Operator("end", "Identity", (b,), (y,), {}, 20, ("loop",)),
    )
    found = precision(Graph("g", ops, (x,), (y,)), name, gpu_specs.load(card))
    for o in found.operators:
        weights_only = all(t.stored for t in o.present)
        assert o.repeat == (1 if o.nodes == ("loop",) or weights_only else 5), o


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("card", ["t4", "v100", "p4", "a100", "h100"])
def test_no_precision_changes_what_products_multiply(name: str, card: str) -> None:
    graph = load(SAMPLES / "mobilenetv2.onnx")
    found = precision(graph, name, gpu_specs.load(card))
    assert sum(work_of(o).matrix_flops for o in found.operators) == sum(
        work_of(o).matrix_flops for o in graph.operators
    )


def test_a_precision_that_quantises_nothing_says_so() -> None:
    """A model that is quantised already, or multiplies no stored weight: its time is that of `keep`."""
    head = '<ir_version: 9, opset_import: ["" : 18]> g (float[8, 8] x) => (float[8, 8] y)'
    text = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = MatMul(d, d)"
    already = parser.parse_model(f"{head} <float s = {{0.1}}, int8 z = {{0}}> {{ {text} }}")
    for name in ("keep", "fp16", "int8", "fp8"):
        found = onnxperf.predict(already, gpu="l4", precision=name)
        assert [n.code for n in found.warnings].count("nothing-quantised") == (name in QUANTISED)
        usual = onnxperf.predict(SAMPLES / "resnet50.onnx", gpu="l4", precision=name)
        assert "nothing-quantised" not in {n.code for n in usual.warnings}
