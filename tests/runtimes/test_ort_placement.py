"""What ONNX Runtime leaves on the host, and the copies that this needs."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onnxperf.fusions import placement
from onnxperf.graph import CONTROL, Graph, load
from onnxperf.runtimes import RUNTIMES, run_graph
from op_models import BITS, IN_PLACE, Operator, Tensor, work_of

SAMPLES = Path(__file__).parents[2] / "samples"
OPEN = "(float[N,4] x) => "


def places(graph: Graph) -> list[tuple[str, str]]:
    return [(o.type, o.place) for o in graph.operators]


def test_shape_arithmetic_stays_on_the_host_and_needs_no_copy(run: Any) -> None:
    text = OPEN + "(float[M] y) <int64[1] k = {-1}> {s=Shape(x) p=ReduceProd<keepdims=1>(s) v=Reshape(x,p) y=Neg(v)}"
    assert places(run(text))[:3] == [("Shape", "host"), ("ReduceProd", "host"), ("Reshape", "free")]


def test_a_static_model_has_no_shape_arithmetic(run: Any) -> None:
    text = "(float[3,4] x) => (float[12] y) {s=Shape(x) p=ReduceProd<keepdims=1>(s) v=Reshape(x,p) y=Neg(v)}"
    assert places(run(text)) == [("Reshape", "free"), ("Neg", "gpu")]


@pytest.mark.parametrize("runtime", ["ort-cuda", "ort-cpu"])
@pytest.mark.parametrize(
    ("view", "shape"),
    [("Reshape(a,k)", "12"), ("Flatten(a)", "3,4"), ("Squeeze(a)", "3,4"), ("Identity(a)", "3,1,4")],
)
def test_a_view_that_makes_an_output_is_a_copy(run: Any, view: str, shape: str, runtime: str) -> None:
    """ONNX Runtime plans no output of the graph into the buffer of another tensor; one that is read on is a view."""
    text = f"(float[3,1,4] x) => (float[{shape}] y) <int64[1] k = {{-1}}> {{a=Abs(x) v={view} y=Neg(v)}}"
    between = run(text, runtime=runtime).operators
    made = run(text.replace("v=", "y=").replace("y=Neg(v)", ""), runtime=runtime).operators[-1]
    assert [o.place for o in between if o.type in view] in (["free"], []), "an Identity is left out"
    assert made.type not in view or (made.place == "gpu" and work_of(made).bytes_written == 4 * 12)


@pytest.mark.parametrize(
    "made", ["Gather(s,k) m=ReduceMax<keepdims=0>(r) c=Cast<to=7>(m)", "Gather(s,k) c=Identity(k)"]
)
def test_what_follows_a_shape_stays_on_the_host_behind_what_has_no_kernel(run: Any, made: str) -> None:
    """BitwiseAnd has none, with an operand from the device or without; ONNX Runtime 1.31 writes the same copies."""
    text = f"(float[N,4] x) => (float[N,4] y) <int64 k = {{1}}> {{r=Abs(x) s=Shape(r) g={made} b=BitwiseAnd(g,c)"
    graph = run(text + " e=Add(b,k) f=Cast<to=1>(e) y=Mul(r,f)}", opset=18)
    placed = dict(places(graph))
    assert (placed["BitwiseAnd"], placed["Add"], placed["Mul"]) == ("host", "host", "gpu")
    (up,) = (o for o in graph.operators if o.type == "MemcpyFromHost")
    assert up.present[0].name == "f"


def test_nothing_follows_what_has_no_kernel_to_the_host_without_a_shape(run: Any) -> None:
    assert places(run("(float[3,4] x) => (float[3,4] y) {r=Relu(x) h=Hardmax(r) y=Abs(h)}"))[-2:] == [
        ("MemcpyFromHost", "copy"), ("Abs", "gpu"),
    ]  # fmt: skip


def test_what_reads_shapes_and_inputs_alone_follows_to_the_host(run: Any) -> None:
    graph = run("(float[N,4] x, int64[2] i) => (int64[2] y, int64[2] z){s=Shape(x) y=Add(s,i) z=Mul(s,i)}")
    assert places(graph) == [("Shape", "host"), ("Add", "host"), ("Mul", "host")], "the input is fed on the host"
    assert placement.fed_on_host(graph) == {"i"}


def test_an_input_that_both_sides_read_is_fed_on_the_host_and_copied_by_the_graph(run: Any) -> None:
    """ONNX Runtime's memcpy transformer does so; `x`, whose shape alone the host reads, stays on the device."""
    graph = run("(float[N,4] x, int64[2] i) => (int64[2] y, float[2] z){s=Shape(x) y=Add(s,i) z=Cast<to=1>(i)}")
    assert sorted(places(graph)) == [
        ("Add", "host"), ("Cast", "gpu"), ("MemcpyFromHost", "copy"), ("Shape", "host"),
    ]  # fmt: skip
    copy = next(o for o in graph.operators if o.place == "copy")
    assert copy.nodes == ("Cast_2",), "a copy is answered for by the node that asks for it"
    assert placement.fed_on_host(graph) == {"i"}


SCATTER = "(float[4,5] x, int64[2,1] i, float[2,5] u) => (float[4,5] y%s) {%s}"


@pytest.mark.parametrize(
    ("nodes", "more", "in_place"),
    [
        ("a=Abs(x) s=ScatterND(a,i,u) y=Neg(s)", "", True),
        ("a=Abs(x) j=Expand(i,k) s=ScatterElements(a,j,u) y=Neg(s)", "", True),
        ("s=ScatterND(x,i,u) y=Neg(s)", "", False),  # the caller's own buffer
        ("a=Abs(x) v=Reshape(a,k) s=ScatterND(v,i,u) y=Neg(s)", "", False),  # a view: of what is not looked into
        ("a=Abs(x) s=ScatterND(a,i,u) y=Add(a,s)", "", False),  # read elsewhere
        ("a=Abs(x) s=ScatterND(a,i,u) y=Neg(s)", ", float[4,5] a", False),  # given back as it was
        ("a=Abs(x) y=ScatterND(a,i,u)", "", False),  # an output is written where the caller wants it
    ],
)
def test_a_scatter_writes_in_place_where_nothing_else_needs_its_data(
    run: Any, nodes: str, more: str, in_place: bool
) -> None:
    shape = "4,5" if "Reshape" in nodes else "2,5"
    text = SCATTER % (more, nodes)
    text = text.replace(") {", f") <int64[2] k = {{{shape}}}> {{", 1)
    (scatter,) = (o for o in run(text).operators if o.type.startswith("Scatter"))
    assert (IN_PLACE in scatter.attrs) == in_place
    assert (work_of(scatter).bytes_written == 4 * 10) == in_place


def test_a_tensor_crosses_to_the_device_once(run: Any) -> None:
    text = (
        OPEN + "(float[2] y, float[2] z){s=Shape(x) f=Cast<to=1>(s) a=ReduceSum<keepdims=0>(x) y=Add(f,a) z=Mul(f,a)}"
    )
    graph = run(text, opset=12)
    copies = [o for o in graph.operators if o.type == "MemcpyFromHost"]
    assert [o.present[0].name for o in copies] == ["f"]
    users = [o for o in graph.operators if o.type in ("Add", "Mul")]
    assert {o.place for o in users} == {"gpu"} and {o.present[0].name for o in users} == {copies[0].out.name}


def test_a_shape_made_on_the_device_crosses_to_the_host(run: Any) -> None:
    text = "(float[3,4] x, int64[2] i) => (float[4,3] y, float[4,3] z) {k=Abs(i) y=Reshape(x,k) z=Expand(x,k)}"
    graph = run(text.replace("z=Expand(x,k)", "z=Reshape(x,k)"))
    assert places(graph) == [("Abs", "gpu"), ("MemcpyToHost", "copy"), ("Reshape", "gpu"), ("Reshape", "gpu")]
    assert graph.operators[1].out.name == graph.operators[2].present[1].name


def test_stored_shapes_need_no_copy(run: Any) -> None:
    text = "(float[3,4] x) => (float[4,3] y) <int64[2] k = {4,3}> {v=Reshape(x,k) y=Neg(v)}"
    assert places(run(text)) == [("Reshape", "free"), ("Neg", "gpu")]


def test_an_output_made_on_the_host_needs_no_copy(run: Any) -> None:
    assert places(run(OPEN + "(int64[2] y) {y=Shape(x)}")) == [("Shape", "host")]


@pytest.mark.parametrize(("sample", "host"), [("gpt2-dynamic", 9), ("distilbert-dynamic", 4)])
@pytest.mark.parametrize("batch", [1, 3])
def test_dynamic_samples_are_placed_as_by_onnx_runtime(sample: str, host: int, batch: int) -> None:
    """The counts are those of the assignments that ONNX Runtime 1.31 records, where Shape counts as CUDA's."""
    graph = run_graph(load(SAMPLES / f"{sample}.onnx", dims={"sequence": 32, "batch": batch}), RUNTIMES["ort-cuda"])
    types = [o.type for o in graph.operators if o.place == "host"]
    assert types.count("Shape") == 3 and len(types) == 3 + host
    assert set(types) == {"Shape", "Squeeze", "Concat"}
    assert not any(o.type.startswith("Memcpy") for o in graph.operators)


IMAGE = "(float[1,4,8,8] x, float[4,4,3,3] w) => (float[A,B,C,D] y) {y="
STEPS = "(float[5,2,4] x, float[1,%d,4] w, float[1,%d,6] r) => (float[A,B,C,D] y) {y="
ROW = "(float[2,3] x) => (int64[A,B] y) {y="
LSTM, GRU, RNN = (f"{STEPS % (n, n)}{type}<hidden_size=6" for type, n in (("LSTM", 24), ("GRU", 18), ("RNN", 6)))


@pytest.mark.parametrize(
    ("text", "opset", "place"),
    [
        (IMAGE + "Conv<pads=[0,1,1,1]>(x,w)}", 20, "gpu"),
        (IMAGE + "Conv<auto_pad='SAME_UPPER'>(x,w)}", 20, "gpu"),
        (IMAGE + "ConvTranspose<pads=[1,1,1,1]>(x,w)}", 20, "gpu"),
        (IMAGE + "ConvTranspose<pads=[0,1,1,1]>(x,w)}", 20, "host"),
        (IMAGE + "ConvTranspose<auto_pad='SAME_UPPER'>(x,w)}", 20, "host"),
        (IMAGE + "MaxPool<kernel_shape=[2,2]>(x)}", 21, "gpu"),
        (IMAGE + "MaxPool<kernel_shape=[2,2]>(x)}", 22, "host"),
        (IMAGE + "AveragePool<kernel_shape=[2,2]>(x)}", 22, "gpu"),
        (IMAGE.replace("float", "float16") + "Tan(x)}", 22, "host"),
        (IMAGE.replace("float", "float16") + "Sin(x)}", 22, "gpu"),
        (LSTM + ">(x,w,r)}", 20, "gpu"),
        (LSTM + ",direction='reverse',activations=['sigmoid','tanh','tanh']>(x,w,r)}", 20, "gpu"),
        (LSTM + ",clip=1.0>(x,w,r)}", 20, "host"),
        (LSTM + ",input_forget=1>(x,w,r)}", 20, "host"),
        (GRU + ">(x,w,r)}", 20, "host"),
        (GRU + ",linear_before_reset=1>(x,w,r)}", 20, "gpu"),
        (RNN + ">(x,w,r)}", 20, "gpu"),
        (RNN + ",activations=['Relu']>(x,w,r)}", 20, "host"),
        (ROW + "ArgMax<axis=1>(x)}", 20, "gpu"),
        (ROW + "ArgMax<axis=1,select_last_index=1>(x)}", 20, "host"),
        ("(float[2,3] x) => (float8e5m2[A,B] y) {y=Cast<to=19>(x)}", 20, "gpu"),
        ("(float[2,3] x) => (string[A,B] y) {y=Cast<to=8>(x)}", 20, "host"),
        ("(float[2,3] x) => (float[A,B] y) {y=Celu(x)}", 20, "host"),
        ("(float[2,3] x) => (float[A,B] y) {y=com.microsoft.Gelu(x)}", 20, "gpu"),
        ("(float[2,3] x) => (float[A,B] y) {y=com.microsoft.CDist(x,x)}", 20, "host"),
        ("(float[2,3] x) => (float[A,B] y) {y=SwiGLU(x)}", 20, "gpu"),  # runs as the function that defines it
        ("(int8[2,3] x, int8[3,4] w) => (int32[A,B] y) {y=MatMulInteger(x,w)}", 20, "gpu"),
        ("(uint8[2,3] x, int8[3,4] w) => (int32[A,B] y) {y=MatMulInteger(x,w)}", 20, "host"),
    ],
)
def test_what_has_a_cuda_kernel_runs_there(make: Any, text: str, opset: int, place: str) -> None:
    """Places as ONNX Runtime 1.31 records them for the same models."""
    model = make(text.replace("'", '"'), {}, opset)
    graph = placement.place(replace(load(model), notes=()))
    o = next(o for o in graph.operators if o.place != "copy")
    assert o.place == place
    assert [(n.code, n.nodes) for n in graph.notes] == [("host-fallback", o.nodes)] * (place == "host")
    assert not [c.type for c in graph.operators if c.place == "copy"], "what the host reads alone is fed there"


def test_an_operator_between_two_worlds_is_copied_to_and_from(run: Any) -> None:
    graph = run("(float[2,3] x) => (float[2,3] y, float[2,3] z) {a=Abs(x) b=Tan(a) c=Celu(b) y=Abs(c) z=Neg(c)}")
    there_and_back = ["Abs", "MemcpyToHost", "Tan", "Celu", "MemcpyFromHost", "Abs", "Neg"]
    assert [o.type for o in graph.operators] == there_and_back
    assert [n.message.split(" in ")[0].split()[-1] for n in graph.notes] == ["Tan", "Celu"]


def test_what_a_host_operator_makes_does_not_draw_its_readers_to_the_host(run: Any) -> None:
    graph = run("(int64[4] x) => (int64[4] y, int64[4] z) {a=BitwiseNot(x) y=Abs(a) z=Mul(a,a)}")
    assert {o.type: o.place for o in graph.operators if o.type in ("BitwiseNot", "Abs", "Mul")} == {
        "BitwiseNot": "host", "Abs": "gpu", "Mul": "gpu",
    }  # fmt: skip


def test_a_type_that_neither_side_knows_is_said_to_be_refused(run: Any) -> None:
    graph = run("(bfloat16[2,3] x) => (bfloat16[2,3] y) {y=LeakyRelu(x)}")
    assert places(graph) == [("LeakyRelu", "gpu")]
    assert [n.code for n in graph.notes] == ["no-kernel"]


def test_strings_cross_without_a_copy_and_sequences_with_one(run: Any) -> None:
    graph = run("(string[4] x) => (string[4] y) {y=StringNormalizer(x)}")
    assert places(graph) == [("StringNormalizer", "host")]
    graph = run("(float[4,4] x, int64 i) => (float[4,4] y) {s=SplitToSequence(x) t=SequenceAt(s,i) y=Abs(t)}")
    assert [o.type for o in graph.operators] == ["SplitToSequence", "MemcpyFromHost", "SequenceAt", "Abs"]
    assert graph.operators[1].out.bytes == 4 * 4 * 4


def test_a_copy_in_a_loop_is_made_as_often_as_what_it_copies(make: Any) -> None:
    t = partial(Tensor, dtype="float32", shape=(4,))
    x, a, b, c = (t(name) for name in "xabc")
    ops = (
        Operator("p", "Abs", (x,), (a,), {}, 20, ("p",), repeat=1),
        Operator("q", "Tan", (a,), (b,), {}, 20, ("q",), repeat=7),
        Operator("r", "Abs", (b,), (c,), {}, 20, ("r",), repeat=7),
    )
    graph = placement.place(Graph("g", ops, (x,), (c,)))
    assert [(o.type, o.repeat) for o in graph.operators if o.place == "copy"] == [
        ("MemcpyToHost", 1), ("MemcpyFromHost", 7),
    ]  # fmt: skip


@pytest.mark.parametrize("attrs", [{"pads": 3}, {"pads": "x", "auto_pad": 1}, {"activations": 5, "clip": "a"}])
@pytest.mark.parametrize("type", ["ConvTranspose", "LSTM", "ArgMax"])
def test_attributes_of_a_wrong_type_break_nothing(type: str, attrs: dict[str, Any]) -> None:
    x = Tensor("x", "float32", (1, 2, 3))
    assert placement.has_kernel(Operator("n", type, (x, x, x), (x,), attrs, 13)) in (True, False)


def test_the_table_holds_what_the_header_says() -> None:
    table = json.loads((Path(placement.__file__).parent / "cuda_kernels.json").read_text(encoding="utf-8"))
    assert set(table) == {"about", "host_inputs", "kernels"} and "1.31.1" in table["about"]
    assert set(table["host_inputs"]) <= set(table["kernels"]) | CONTROL
    assert all(0 <= first < end for first, end in table["host_inputs"].values())
    for versions in table["kernels"].values():
        assert list(map(int, versions)) == sorted(map(int, versions))
        for kernel in (k for kernels in versions.values() for k in kernels):
            for where, _, types in (rule.partition("=") for rule in kernel.split()):
                assert set(types.split(",")) <= BITS.keys() and where.lstrip("o").isdigit()
