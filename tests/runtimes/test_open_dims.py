"""Sessions with open dimensions against those with fixed ones: what ONNX Runtime's CUDA provider makes of each.

The expected operators are those of the graphs that ONNX Runtime 1.31 writes for its CUDA provider
(`SessionOptions.optimized_model_filepath`): with dimensions as they stand here, and with each fixed by
`add_free_dimension_override_by_name`. Views are left out.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import onnxperf
from onnxperf.fusions.ort_extended import _unlike
from onnxperf.graph import depends_on_data, fixed, is_static, known_dims, load
from tests.runtimes.conftest import build

SAMPLES = Path(__file__).parents[2] / "samples"
VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}
SIZES = {"b": 2, "s": 3, "c": 2, "t": 5}
WEIGHTS: dict[str, Any] = {"w": (4, 4), "h": (4,), "g": (4,)}
STACK = "(float[b,s,4] x, float[b,s,4] z) => (float[b,s,4] y) "
OTHER = "(float[b,s,4] x, float[c,s,4] z) => (float[d,s,4] y) "
SCORES = "(float[b,2,s,t] x, float[b,1,1,t] z) => (float[b,2,s,t] y) "
SPLIT = "(float[b,s,4] x) => (float[b,s,2,2] y) "
HEADS = "(float[b,s,2,4] x) => (float[b,2,s,4] y, int64[m] n) "
FOUND = "(float[4,4] x) => (float[n,4] y) "
NUMBERS = (
    "i=Constant<value_int=0>() j=Constant<value_int=1>() u=Constant<value_ints=[0]>() k=Constant<value_ints=[2,2]>()"
)
TARGET = (
    "p=Gather(n,i) q=Gather(n,j) v=Unsqueeze(p,u) o=Unsqueeze(q,u) t=Concat<axis=0>(v,o,k) c=Reshape(r,t) y=Relu(c)"
)
TURNED = "r=Relu(x) t=Transpose<perm=[0,2,1,3]>(r)"
KEPT = "Add:1 Concat:1 Expand:1 Gather:2 NonZero:1 Shape:1"
CUT = " ".join(f"i{n}=Constant<value_ints=[{n}]>()" for n in range(4))
HALVES = "(float[b,s,4] x) => (float[b,2,s,1] y, float[b,2,s,1] z) "
#: A graph, its operators in a session with open dimensions, and in one with fixed dimensions.
CASES = {
    "stack of matrices": (
        STACK + "{r=Relu(x) m=MatMul(r,w) y=Add(m,h)}", "Add:1 MatMul:1 Relu:1", "BiasRows:1 Gemm:1 Relu:1",
    ),
    "residual": (
        STACK + "{r=Relu(x) a=Add(r,z) y=LayerNormalization(a,g)}",
        "Relu:1 SkipLayerNormalization:1", "Relu:1 SkipLayerNormalization:1",
    ),
    "residual of other names": (
        OTHER + "{r=Relu(x) a=Add(r,z) y=LayerNormalization(a,g)}",
        "Add:1 LayerNormalization:1 Relu:1", "Relu:1 SkipLayerNormalization:1",
    ),
    "bias of scores": (SCORES + "{a=Add(x,z) y=Softmax(a)}", "BiasSoftmax:1", "BiasSoftmax:1"),
    "target of its own sizes": (f"{SPLIT}{{{NUMBERS} r=Relu(x) n=Shape(r) {TARGET}}}", "Relu:2", "Relu:2"),
    "pieces of what is split into its own sizes": (
        f"{HALVES}{{{NUMBERS} {CUT} r=Relu(x) n=Shape(r) {TARGET.replace('y=Relu(c)', '')}"
        "e=Transpose<perm=[0,2,1,3]>(c) y=Slice(e,i0,i1,i3) z=Slice(e,i1,i2,i3)}",
        "Relu:1 Split:1 Transpose:2", "Relu:1 Split:1 Transpose:2",
    ),
    "shape of a transpose": (
        f"{HEADS}{{{TURNED} y=Sigmoid(t) n=Shape(t)}}",
        "Gather:1 Relu:1 Shape:1 Sigmoid:1 Transpose:1", "Relu:1 Sigmoid:1 Transpose:1",
    ),
    "shape of what stays transposed": (
        f"{HEADS}{{{TURNED} y=MatMul(t,w) n=Shape(t)}}",
        "MatMul:1 Relu:1 Shape:1 Transpose:1", "MatMul:1 Relu:1 Transpose:1",
    ),
    "static part of a shape": (
        "(float[b,s,4] x) => (int64[m] y, int64[k] n) {r=Relu(x) y=Shape<start=2>(r) n=Shape<end=2>(r)}",
        "Relu:1 Shape:2", "",
    ),
    "pieces of a shape": (
        f"(float[b,s] x) => (int64 y, int64 n) {{{NUMBERS} r=Relu(x) t=Shape(r) p=Gather(t,i) q=Gather(t,j) y=Neg(p)"
        " n=Neg(q)}", "Gather:2 Neg:2 Relu:1 Shape:1", "",
    ),
    "as many as are found": (
        f"{FOUND}{{{NUMBERS} z=NonZero(x) l=Gather(z,i) a=Gather(x,l) t=Shape(a) f=Concat<axis=0>(t) e=Expand(h,f)"
        " y=Add(a,e)}", KEPT, KEPT,
    ),
}  # fmt: skip


def predicted(text: str, **terms: Any) -> onnxperf.Prediction:
    model = build(text, WEIGHTS, 17)
    names = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim}
    return onnxperf.predict(model, gpu="l4", dims={k: v for k, v in SIZES.items() if k in names}, **terms)


def operators(p: onnxperf.Prediction) -> str:
    types = Counter(o.type.rpartition("::")[2] for o in p.run.run_graph.operators)
    return " ".join(f"{type}:{n}" for type, n in sorted(types.items()) if type not in VIEWS)


@pytest.mark.parametrize(("text", "opened", "closed"), CASES.values(), ids=CASES)
def test_a_session_is_what_it_knows_of_its_shapes(text: str, opened: str, closed: str) -> None:
    assert operators(predicted(text)) == opened
    assert operators(predicted(text, fix_dims=True)) == closed


@pytest.mark.parametrize("text", [text for text, *_ in CASES.values()], ids=CASES)
def test_fixed_dimensions_are_those_of_a_file_without_open_ones(text: str) -> None:
    model = build(text, WEIGHTS, 17)
    for d in (d for i in model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param):
        d.dim_value = SIZES[d.dim_param]
    static, closed = onnxperf.predict(model, gpu="l4"), predicted(text, fix_dims=True)
    assert operators(static) == operators(closed)
    assert static.seconds == closed.seconds


def test_the_answer_says_which_session_it_is_of() -> None:
    text = CASES["stack of matrices"][0]
    opened, closed, static = (
        predicted(text),
        predicted(text, fix_dims=True),
        predicted(CASES["as many as are found"][0]),
    )
    codes = [{w.code for w in p.warnings} & {"open-dims", "fixed-dims"} for p in (opened, closed, static)]
    assert codes == [{"open-dims"}, {"fixed-dims"}, set()]
    assert "dynamic dimensions as exported" in opened.scope
    assert "dimensions fixed" in closed.scope
    for runtime in ("torch-eager", "tensorrt"):
        other = predicted(text, runtime=runtime)
        assert "dimensions" not in other.scope
        assert other.seconds == predicted(text, runtime=runtime, fix_dims=True).seconds


def test_sizes_that_the_data_decide_are_upper_bounds() -> None:
    p = predicted(CASES["as many as are found"][0])
    note = next(w for w in p.warnings if w.code == "upper-bound")
    assert "depend on the data" in note.message
    certain = predicted("(float[4,4] x) => (float[4,4] y) {a=Relu(x) y=Sigmoid(a)}")
    assert p.low_seconds / p.seconds < certain.low_seconds / certain.seconds
    assert p.lower_bound_seconds <= p.low_seconds
    graph = load(build(CASES["as many as are found"][0], WEIGHTS, 17))
    assert all(depends_on_data(o.out) for o in graph.operators if o.type in ("NonZero", "Expand", "Add"))
    assert fixed(graph).operators[-1].out.shape == graph.operators[-1].out.shape


def test_what_is_known_of_open_dimensions() -> None:
    """Sizes stay numbers for costs; behind a Reshape to a target that only a run computes, none is known."""
    graph = load(build(STACK.replace("b,s", "b,3") + "{r=Relu(x) y=Add(r,z)}", WEIGHTS, 17), dims={"b": 2})
    assert [t.shape for t in graph.inputs] == [(2, 3, 4)] * 2
    assert [known_dims(o.out) for o in graph.operators] == [("b", 3, 4)] * 2
    halved = "{t=Shape(x) f=Div(t,t) e=Mul(t,f) r=Reshape(x,e) v=Relu(r) q=Flatten(v) n=Shape(q) o=Neg(n)}"
    graph = load(build("(float[b,s,4] x) => (int64[2] o) " + halved, {}, 17), dims={"b": 2, "s": 3})
    assert next(known_dims(o.out) for o in graph.operators if o.type == "Reshape") == (None,) * 3


def test_a_stored_vector_does_not_make_open_sizes_known() -> None:
    """What is unknown of a second input stays so, and the product behind it is no Gemm."""
    target = f"{CUT} t=Shape(x) p=Gather(t,i0) q=Sub(p,p) e=Slice(t,q,i3,i0)"
    text = f"(float[b,s,4] x) => (float[b,s,4] y) {{{target} r=ConstantOfShape(e) a=Add(h,r) v=Relu(a)"
    text += " m=MatMul(v,w) y=Add(m,h)}"
    graph = load(build(text, WEIGHTS, 17), dims={"b": 2, "s": 3})
    assert not any(is_static(o.out) for o in graph.operators if o.type in ("Add", "Relu", "MatMul"))
    assert "Gemm" not in {k.op for k in predicted(text).kernels}


def test_gpt2_with_open_dimensions_is_the_graph_that_onnx_runtime_makes() -> None:
    found = {}
    for fix in (False, True):
        run = onnxperf.predict(
            SAMPLES / "gpt2-dynamic.onnx", gpu="l4", dims={"batch": 2, "sequence": 128}, fix_dims=fix
        ).run
        types = Counter(o.type.rpartition("::")[2] for o in run.run_graph.operators if o.type not in VIEWS)
        found[fix] = types.total() - sum(o.name.endswith("#bias") for o in run.run_graph.operators)
    assert found == {False: 242, True: 223}


def test_a_branch_by_a_size_is_decided_where_the_size_is_fixed() -> None:
    text = (
        "(float[N,4] x) => (float[N,4] y) {s=Shape(x) p=ReduceProd<keepdims=0>(s) e=Equal(p,none) y=If(e)"
        " <then_branch=a () => (float[N,4] u) {u=Abs(x)}, else_branch=b () => (float[N,4] v) {v=Neg(x)}>}"
    )
    graph = load(build(text, {"none": 0}, 17), dims={"N": 3})
    assert [o.type for o in graph.operators] == ["Shape", "ReduceProd", "Equal", "If", "Neg", "Identity"]
    assert [o.type for o in fixed(graph).operators] == ["Neg", "Identity"]


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ((2, "s", 8), (2, "s", 8), ""),
        ((None, None, 8), (None, None, 8), "axis 0 and 1 of a summand is dynamic"),
        ((2, None, 8), (2, 4, 8), "axis 1 of a summand is dynamic"),
        ((2, 4, 8), (1, 4, 8), "the summands differ in shape: [2, 4, 8], [1, 4, 8]"),
        ((2, 3, 4, 8), (2, 3, 4, 8), "the summands have 4 and 4 axes, where it takes three of each"),
    ],
)
def test_what_keeps_a_residual_sum_from_being_fused_is_said(one: Any, other: Any, says: str) -> None:
    assert _unlike(one, other).startswith(says) and bool(_unlike(one, other)) == bool(says)
