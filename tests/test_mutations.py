"""Models with something changed in them must give a clear refusal or a sane prediction, never a crash.

More of the same by hand: ONNXPERF_MUTATIONS=100 pytest tests/test_mutations.py tries a hundred times as many.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.parser import parse_model

import onnxperf

SAMPLES = Path(__file__).parents[1] / "samples"
FACTOR = int(os.environ.get("ONNXPERF_MUTATIONS", "1"))

SIZES = (-1, 0, 1, 2, 3, 7, 64, 4096, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -1.0, 1.5, 1e30, float("inf"), float("nan"))
TYPES = (
    "Abs", "Add", "ArgMax", "AveragePool", "BatchNormalization", "Cast", "Concat", "Constant", "ConstantOfShape",
    "Conv", "ConvTranspose", "DequantizeLinear", "Einsum", "Expand", "Flatten", "GRU", "Gather", "GatherND", "Gemm",
    "If", "LSTM", "LayerNormalization", "Loop", "MatMul", "MaxPool", "NonZero", "OneHot", "Pad", "RandomNormal",
    "Range", "ReduceSum", "Reshape", "Resize", "Scan", "ScatterND", "SequenceAt", "SequenceConstruct", "Shape", "Size",
    "Slice", "Softmax", "Split", "SplitToSequence", "Squeeze", "StringNormalizer", "Tile", "TopK", "Transpose",
    "Unsqueeze", "Where", "NoSuchOperator", "",
)  # fmt: skip
NAMES = ("", "x", "no_such_tensor", "a\nb", "\x1b[31mred", "<script>", "x" * 3000)


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all graphs inside it."""
    yield graph
    for node in graph.node:
        for a in node.attribute:
            for inner in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
                yield from graphs(inner)


def _graph(r: Random, m: ModelProto) -> GraphProto:
    return r.choice(list(graphs(m.graph)))


def _node(r: Random, m: ModelProto) -> NodeProto:
    nodes = _graph(r, m).node
    return r.choice(nodes) if nodes else NodeProto()


def _info(r: Random, m: ModelProto) -> ValueInfoProto:
    g = m.graph
    infos = r.choice([x for x in (g.input, g.output, g.value_info) if x] or [[ValueInfoProto()]])
    return r.choice(infos)


def _tensor(r: Random, m: ModelProto) -> TensorProto:
    found = [*m.graph.initializer, *(a.t for n in m.graph.node for a in n.attribute if a.HasField("t"))]
    return r.choice(found) if found else TensorProto()


def _name(r: Random, m: ModelProto) -> str:
    node = _node(r, m)
    return r.choice((*node.input, *node.output, r.choice(NAMES)))


def set_dim(r: Random, m: ModelProto) -> None:
    info = _info(r, m)
    if info.type.tensor_type.shape.dim:
        dim = r.choice(info.type.tensor_type.shape.dim)
        if r.random() < 0.3:
            dim.dim_param = r.choice(("batch", "n", *NAMES))
        elif r.random() < 0.1:
            dim.Clear()
        else:
            dim.dim_value = r.choice(SIZES)


def change_rank(r: Random, m: ModelProto) -> None:
    shape = _info(r, m).type.tensor_type.shape
    if r.random() < 0.5 and shape.dim:
        del shape.dim[r.randrange(len(shape.dim))]
    else:
        shape.dim.add(dim_value=r.choice(SIZES))


def change_kind(r: Random, m: ModelProto) -> None:
    info = _info(r, m)
    how = r.randrange(4)
    if how == 0:
        info.type.tensor_type.elem_type = r.randrange(-2, 30)
    elif how == 1:
        info.ClearField("type")
    elif how == 2:
        info.type.sequence_type.elem_type.tensor_type.elem_type = r.randrange(30)
    else:
        info.type.optional_type.elem_type.tensor_type.elem_type = r.randrange(30)


def change_type(r: Random, m: ModelProto) -> None:
    node = _node(r, m)
    node.op_type = r.choice((*TYPES, _node(r, m).op_type))
    if r.random() < 0.1:
        node.domain = r.choice(("ai.onnx", "com.microsoft", "ai.onnx.ml", "nowhere", "\n"))


def drop_attribute(r: Random, m: ModelProto) -> None:
    attributes = _node(r, m).attribute
    if attributes:
        del attributes[r.randrange(len(attributes))]


def change_attribute(r: Random, m: ModelProto) -> None:
    node = _node(r, m)
    a = r.choice(node.attribute) if node.attribute else node.attribute.add(name=r.choice(("axis", "to", "perm", "")))
    how = r.randrange(7)
    if how == 0:
        a.type = r.randrange(0, 15)
    elif how == 1:
        a.type, a.i = AttributeProto.INT, r.choice(SIZES)
    elif how == 2:
        a.type, a.f = AttributeProto.FLOAT, r.choice(FLOATS)
    elif how == 3:
        a.type, a.s = AttributeProto.STRING, r.choice((b"", b"\xff\xfe", b"SAME_UPPER", b"ij,jk->ik", b"i" * 3000))
    elif how == 4:
        a.type = AttributeProto.INTS
        a.ints[:] = [r.choice(SIZES) for _ in range(r.randrange(6))]
    elif a.ints:
        a.ints[r.randrange(len(a.ints))] = r.choice(SIZES)
    else:
        a.ref_attr_name = "elsewhere"


def change_inputs(r: Random, m: ModelProto) -> None:
    names = _node(r, m).input
    how = r.randrange(5)
    if how == 0 and names:
        del names[r.randrange(len(names))]
    elif how == 1 and len(names) > 1:
        swapped = r.sample(list(names), len(names))
        names[:] = swapped
    elif how == 2 and names:
        names[r.randrange(len(names))] = ""
    elif how == 3:
        names.append(_name(r, m))
    elif names:
        names[r.randrange(len(names))] = _name(r, m)


def change_outputs(r: Random, m: ModelProto) -> None:
    names = _node(r, m).output
    how = r.randrange(3)
    if how == 0 and names:
        del names[r.randrange(len(names))]
    elif how == 1:
        names.append(_name(r, m))
    elif names:
        names[r.randrange(len(names))] = r.choice(("", _name(r, m)))


def change_nodes(r: Random, m: ModelProto) -> None:
    nodes = _graph(r, m).node
    how = r.randrange(4)
    if how == 0 and nodes:
        del nodes[r.randrange(len(nodes))]
    elif how == 1 and nodes:
        nodes.add().CopyFrom(r.choice(nodes))
    elif how == 2 and len(nodes) < 500:
        shuffled = r.sample([NodeProto.FromString(n.SerializeToString()) for n in nodes], len(nodes))
        del nodes[:]
        nodes.extend(shuffled)
    elif nodes:
        r.choice(nodes).name = r.choice(NAMES)


def change_graph(r: Random, m: ModelProto) -> None:
    g = m.graph
    how = r.randrange(5)
    if how == 0:
        del g.output[r.randrange(len(g.output) + 1) :]
    elif how == 1:
        del g.input[r.randrange(len(g.input) + 1) :]
    elif how == 2:
        g.output.add().CopyFrom(helper.make_tensor_value_info(_name(r, m), TensorProto.FLOAT, None))
    elif how == 3:
        g.input.add().CopyFrom(helper.make_tensor_value_info(_name(r, m), TensorProto.FLOAT, [r.choice(SIZES)]))
    else:
        del g.value_info[:]


def change_tensor(r: Random, m: ModelProto) -> None:
    t = _tensor(r, m)
    how = r.randrange(7)
    if how == 0 and m.graph.initializer:
        del m.graph.initializer[r.randrange(len(m.graph.initializer))]
    elif how == 1 and t.dims:
        t.dims[r.randrange(len(t.dims))] = r.choice(SIZES)
    elif how == 2:
        t.data_type = r.randrange(-2, 30)
    elif how == 3:
        t.raw_data = r.randbytes(r.choice((0, 1, 8, 24)))
    elif how == 4 and t.data_type == TensorProto.INT64 and len(t.raw_data) >= 8:
        t.raw_data = r.choice(SIZES).to_bytes(8, "little", signed=True) + t.raw_data[8:]
    elif how == 5:
        t.data_location = TensorProto.EXTERNAL
        t.external_data.add(key=r.choice(("location", "offset", "length")), value=r.choice(("../x", "/x", "x", "-1")))
    else:
        t.name = _name(r, m)


def change_versions(r: Random, m: ModelProto) -> None:
    if r.random() < 0.3:
        m.ir_version = r.choice((0, 1, 3, 4, 10, 13, 99, -1))
    elif m.opset_import and r.random() < 0.9:
        r.choice(m.opset_import).version = r.choice((0, 1, 7, 8, 9, 10, 11, 12, 13, 18, 20, 24, 999))
    else:
        del m.opset_import[:]


CHANGES: tuple[Callable[[Random, ModelProto], None], ...] = (
    set_dim, change_rank, change_kind, change_type, change_type, drop_attribute, change_attribute, change_attribute,
    change_inputs, change_inputs, change_outputs, change_nodes, change_graph, change_tensor, change_tensor,
    change_versions,
)  # fmt: skip


def mutated(r: Random, data: bytes, most: int = 3) -> bytes:
    """A model with one to `most` changes to its fields."""
    model = ModelProto.FromString(data)
    for _ in range(r.randint(1, most)):
        r.choice(CHANGES)(r, model)
    return model.SerializeToString()


def damaged(r: Random, data: bytes) -> bytes:
    """A file with bytes flipped, cut out, put in or lost at its end."""
    broken = bytearray(data)
    for _ in range(r.randint(1, 4)):
        at = r.randrange(len(broken) + 1)
        how = r.randrange(4)
        if how == 0:
            del broken[at:]
        elif how == 1:
            del broken[at : at + r.randint(1, 64)]
        elif how == 2:
            broken[at:at] = r.randbytes(r.randint(1, 16))
        elif at < len(broken):
            broken[at] ^= 1 << r.randrange(8)
    return bytes(broken)


HEAD = '<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1, "nowhere" : 1]>'
SMALL = {
    "cnn": """g (float[n, 3, 16, 16] x) => (float[n, 10] y) <float[8, 3, 3, 3] w, float[8] b, float[10, 8] v> {
        c = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, w, b) r = Relu(c)
        p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(r) a = GlobalAveragePool(p) f = Flatten(a)
        y = Gemm<transB=1>(f, v) }""",
    "attention": """g (float[2, 6, 32] x, int64[2, 6] ids) => (float[2, 6, 32] y)
        <float[32, 32] w, float[32] s, float[99, 32] e> {
        t = Gather(e, ids) h = Add(x, t) q = MatMul(h, w) k = Transpose<perm=[0, 2, 1]>(h) a = MatMul(q, k)
        p = Softmax<axis=-1>(a) o = MatMul(p, h) m = Add(o, h) l = LayerNormalization(m, s, s)
        y = Gelu<approximate="tanh">(l) }""",
    "shapes": """g (float[n, 6, 8] x) => (float[] y) {
        s = Shape(x) i = Constant<value_int=1>() d = Gather(s, i) two = Constant<value_int=2>() h = Div(d, two)
        axes = Constant<value_ints=[0]>() u = Unsqueeze(h, axes) m = Constant<value_ints=[-1]>()
        t = Concat<axis=0>(u, m) b = Expand(x, s) r = Reshape(b, t) y, z = Split<axis=-1, num_outputs=2>(r) }""",
    "recurrent": """g (float[5, 2, 8] x) => (float[] y) <float[1, 64, 8] w, float[1, 64, 16] r> {
        y, h, c = LSTM<hidden_size=16>(x, w, r) }""",
    "bodies": """g (bool c, int64 trips, float[4, 4] x) => (float[] y) {
        t = If(c) <then_branch = a () => (float[4, 4] p) { p = MatMul(x, x) },
                   else_branch = b () => (float[4, 4] q) { q = Abs(x) }>
        y = Loop(trips, c, t) <body = l (int64 i, bool g, float[4, 4] v) => (bool k, float[4, 4] o)
            { k = Identity(g) o = Add(v, t) }> }""",
    "others": """g (float[2, 8] x, int8[8, 4] q, float s) => (float[] y) {
        d = DequantizeLinear(q, s) m = MatMul(x, d) u = nowhere.Gizmo<size=3>(m) l = SequenceConstruct(u, m)
        i = Constant<value_int=1>() e = SequenceAt(l, i) k = Constant<value_ints=[2]>() v, w = TopK(e, k)
        r = com.microsoft.FastGelu(v) n = NonZero(r) f = Cast<to=1>(n) y = ReduceSum<keepdims=0>(f) }""",
}


def filled(text: str) -> bytes:
    """A model from its text; the weights listed there are zeros."""
    model = parse_model(f"{HEAD} {text}")
    for info in model.graph.value_info:
        kind = info.type.tensor_type
        dims = [d.dim_value for d in kind.shape.dim]
        model.graph.initializer.append(
            TensorProto(name=info.name, data_type=1, dims=dims, raw_data=bytes(4 * math.prod(dims)))
        )
    del model.graph.value_info[:]
    return model.SerializeToString()


MODELS = {name: filled(text) for name, text in SMALL.items()}


def no_constant(text: str) -> NoReturn:
    raise AssertionError(f"{text} is no JSON")


def check(data: bytes, **terms: Any) -> bool:
    """Predict: True for a prediction, which must be sane; False for a refusal, which must be one clear line."""
    try:
        p = onnxperf.predict(data, **{"gpu": "l4", **terms})
    except onnxperf.Error as e:
        assert str(e).strip()
        assert "\n" not in str(e) and "\r" not in str(e)
        assert e.exit_code in (2, 3)
        return False
    assert math.isfinite(p.seconds) and p.seconds > 0
    assert sum(p.bound_by.values()) == pytest.approx(1, abs=1e-9)
    assert all(share >= 0 for share in p.bound_by.values())
    assert 0 <= p.lower_bound_seconds <= p.critical_path_seconds * (1 + 1e-9) <= p.seconds * (1 + 3e-9)
    assert p.lower_bound_seconds > 0 or not p.kernels
    assert all(k.seconds > 0 for k in p.kernels)
    json.loads(p.to_json(), parse_constant=no_constant)
    return True


TERMS = st.fixed_dictionaries(
    {},
    optional={
        "gpu": st.sampled_from(["l4", "t4", "h100-sxm"]),
        "runtime": st.sampled_from(["ort-cuda", "torch-eager"]),
        "precision": st.sampled_from(["fp32", "tf32", "fp16", "bf16", "int8", "fp8"]),
        "method": st.sampled_from(["sum", "roofline"]),
        "opt_level": st.sampled_from(["disabled", "basic", "extended"]),
        "batch": st.sampled_from([1, 2, 8]),
        "streams": st.sampled_from([1, 4]),
        "include_transfers": st.booleans(),
    },
)
SEEDS = st.integers(0, 2**64 - 1)


def examples(n: int) -> Callable[[Any], Any]:
    # The usual run tries the same every time; a longer one tries others.
    return settings(max_examples=n * FACTOR, deadline=None, derandomize=FACTOR == 1, database=None)


@pytest.mark.parametrize("name", SMALL)
def test_the_models_are_sound(name: str) -> None:
    assert check(MODELS[name])


@examples(700)
@given(st.sampled_from(sorted(SMALL)), SEEDS, TERMS)
def test_changed_fields(name: str, seed: int, terms: dict[str, Any]) -> None:
    check(mutated(Random(seed), MODELS[name]), **terms)


@examples(250)
@given(st.sampled_from(sorted(SMALL)), SEEDS, TERMS)
def test_damaged_bytes(name: str, seed: int, terms: dict[str, Any]) -> None:
    check(damaged(Random(seed), MODELS[name]), **terms)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.onnx")), ids=lambda p: p.stem)
def test_samples_with_changes(path: Path) -> None:
    data = path.read_bytes()
    dims = {"sequence": 32} if "dynamic" in path.stem else {}

    @examples(14)
    @given(SEEDS, TERMS)
    def broken(seed: int, terms: dict[str, Any]) -> None:
        r = Random(seed)
        made = mutated(r, data) if r.random() < 0.8 else damaged(r, data)
        note(f"{path.stem}, seed {seed}")
        check(made, dims=dims, **terms)

    broken()


def test_a_good_part_of_the_changes_still_predicts() -> None:
    """Else the tests above would look at refusals only."""
    r = Random(0)
    predicted = sum(check(mutated(r, MODELS[name], 1)) for name in sorted(SMALL) for _ in range(20))
    assert predicted > 30
