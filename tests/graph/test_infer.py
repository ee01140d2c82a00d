"""Shapes, folding and what is carried along, on small models."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper
from onnx.parser import parse_model

from onnxperf import ModelError, UsageError
from onnxperf.graph import Graph, load

HEAD = '<ir_version: 9, opset_import: ["" : 18, "nowhere" : 1]>'


def run(text: str, **given: Any) -> Graph:
    return load(parse_model(f"{HEAD} {text}"), **given)


def types(graph: Graph) -> list[str]:
    return [o.type for o in graph.operators]


def shape(graph: Graph, name: str) -> tuple[int, ...]:
    return {t.name: t.shape for o in graph.operators for t in o.outputs}[name]


# folding


def test_what_depends_on_weights_alone_leaves_the_graph() -> None:
    g = run(
        "g (float[2, 3] x) => (float[2, 4] y) <float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}>"
        "{ t = Transpose<perm=[1, 0]>(w) c = Constant<value_float = 2.0>() s = Mul(t, c) y = MatMul(x, s) }"
    )
    assert types(g) == ["MatMul"]
    assert [(t.name, t.shape) for t in g.stored()] == [("s", (3, 4))]
    weight = g.operators[0].inputs[1]
    assert weight is not None and weight.value == (2, 8, 14, 20, 4, 10, 16, 22, 6, 12, 18, 24)


def test_a_big_fold_is_a_weight_without_a_value() -> None:
    g = run(
        "g (float[64, 128] x) => (float[64, 128] y)"
        "{ s = Constant<value = int64[2] {64, 128}>() z = ConstantOfShape(s) y = Add(x, z) }"
    )
    assert [(t.kind, t.value, t.shape) for t in g.stored()] == [("weight", None, (64, 128))]


def test_random_numbers_and_dequantised_weights_stay() -> None:
    g = run(
        "g (float[2, 3] x) => (float[2, 3] y) <int8[2, 3] q = {1,2,3,4,5,6}, float s = {0.5}>"
        "{ r = RandomNormal<shape = [2, 3]>() w = DequantizeLinear(q, s) t = Add(x, r) y = Add(t, w) }"
    )
    assert types(g) == ["RandomNormal", "DequantizeLinear", "Add", "Add"]


def test_dead_nodes_and_unread_outputs_are_dropped() -> None:
    g = run("g (float[2, 4] x) => (float[2, 4] y) { y, mask = Dropout(x) dead = Abs(x) }")
    assert types(g) == ["Dropout"]
    assert [t.name for t in g.operators[0].outputs] == ["y"]


def test_shape_arithmetic_runs_only_where_dimensions_are_open() -> None:
    body = "{ s = Shape(x) i = Constant<value_ints=[0]>() n = Gather(s, i) m = Constant<value_ints=[-1]>()"
    body += " t = Concat<axis=0>(n, m) y = Reshape(x, t) }"
    assert types(run(f"g (float[2, 3, 4] x) => (float[2, 12] y) {body}")) == ["Reshape"]
    g = run(f"g (float[n, 3, 4] x) => (float[n, 12] y) {body}", dims={"n": 2})
    assert types(g) == ["Shape", "Gather", "Concat", "Reshape"]
    assert shape(g, "y") == (2, 12)
    target = g.operators[-1].inputs[1]
    assert target is not None and target.value == (2, -1)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_arithmetic_of_shapes(n: int) -> None:
    """Slice, Range, Cast, Div, Size, Where, Equal, Expand and ConstantOfShape between a Shape and its use."""
    g = run(
        """g (float[n, 6] x) => (float[a, b] y, float[c] r, float[d] z) {
            zero = Constant<value_int=0>() one = Constant<value_int=1>() two = Constant<value_int=2>()
            zeros = Constant<value_ints=[0]>() ones = Constant<value_ints=[1]>() minus = Constant<value_ints=[-1]>()
            s = Shape(x) lead = Slice(s, zeros, ones) size = Size(x) half = Div(size, two)
            h = Unsqueeze(half, zeros) target = Concat<axis=0>(h, minus) y = Reshape(x, target)
            steps = Range(zero, half, one) r = Cast<to=1>(steps)
            same = Equal(lead, minus) chosen = Where(same, ones, lead) z = ConstantOfShape(chosen)
        }""",
        dims={"n": n},
    )
    assert (shape(g, "y"), shape(g, "r"), shape(g, "z")) == ((3 * n, 2), (3 * n,), (n,))


def test_shape_of_a_part() -> None:
    g = run("g (float[2, 3, n] x) => (int64[k] y) { y = Shape<start=-2, end=9>(x) }", dims={"n": 5})
    assert g.outputs[0].value == (3, 5)


# what is carried along


@pytest.mark.parametrize("opset", [13, 18])
def test_operators_that_onnx_defines_by_a_body(opset: int) -> None:
    graph = "g (float[2,1] x, float[3] y) => (bool[2,3] z) { z = GreaterOrEqual(x, y) }"
    found = load(parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {graph}'))
    assert found.operators[0].out.shape == (2, 3)
    assert found.notes == ()


def test_scalars_empty_tensors_and_absent_inputs() -> None:
    g = run(
        "g (float[2, 0, 4] x, float s) => (float[2, 0, 4] y, float[2, 5, 4] p) {"
        " m = Mul(x, s) y = Clip(m, , s) c = Constant<value = int64[6] {0, 2, 0, 0, 3, 0}>() p = Pad(x, c) }"
    )
    assert (shape(g, "y"), shape(g, "p")) == ((2, 0, 4), (2, 5, 4))
    clip = next(o for o in g.operators if o.type == "Clip")
    assert [t and t.name for t in clip.inputs] == ["m", None, "s"]


def test_unknown_operators_take_the_first_inputs_shape_and_are_noted() -> None:
    g = run("g (float[2, 3] x) => (float[2, 3] y) { t = nowhere.Gizmo<size=3>(x) y = Relu(t) }")
    assert types(g) == ["nowhere::Gizmo", "Relu"]
    assert shape(g, "t") == (2, 3)
    assert g.operators[0].attrs == {"size": 3}
    assert {n.code for n in g.notes} == {"unknown-operator", "assumed-shape"}
    assert all(n.nodes == ("Gizmo_0",) for n in g.notes)


def test_an_assumed_shape_never_makes_a_model_unusable() -> None:
    """What the file says comes first, then what follows needs; what does not fit that is assumed in turn."""
    g = run("g (float[2, 3] x, float[7, 5] w) => (float[2, 5] y) { t = nowhere.Gizmo(x) u = MatMul(t, w) y = Relu(u) }")
    assert shape(g, "t") == (2, 7) and shape(g, "y") == (2, 5)
    assert [n.code for n in g.notes].count("assumed-shape") == 1
    assert types(g) == ["nowhere::Gizmo", "MatMul", "Relu"]
    g = run(
        """g (float[2, 3] x, float[7, 5] w, float[6, 5] v) => (float[2, 5] y) {
            t = nowhere.Gizmo(x) s = MatMul(t, v) u = MatMul(t, w) y = Relu(u) }"""
    )
    assert shape(g, "y") == (2, 5)
    assert [n.code for n in g.notes].count("assumed-shape") == 2
    assert types(g) == ["nowhere::Gizmo", "ai.onnx::MatMul", "Relu"]  # no rule would understand the product
    g = run(
        "g (float[2, 3] x, float[7, 5] w) => (float[2, 5] y) { t = nowhere.Gizmo(x) y = MatMul(t, w) }",
        shapes={"t": (2, 7)},
    )
    assert [n.code for n in g.notes] == ["unknown-operator"]


def test_bodies_and_what_they_read_from_outside() -> None:
    g = run(
        """g (bool c, float[2, 3] x, float[2, 3] z) => (float[2, 3] y) {
            t = Abs(x)
            y = If(c) <then_branch = a () => (float[2, 3] p) { p = Add(t, z) },
                       else_branch = b () => (float[2, 3] q) { q = Identity(z) }>
        }"""
    )
    assert types(g) == ["Abs", "If", "Add", "Identity"]
    assert [[t.name for t in o.present] for o in g.operators[1:]] == [["c"], ["t", "z"], ["If_1/p"]]
    assert shape(g, "y") == (2, 3)


def test_sequences_optionals_and_strings() -> None:
    model = parse_model(
        f"""{HEAD} g (float[2, 3] x, float[2, 3] z) => (float[2, 3] y) {{
            s = SequenceConstruct(x, z) i = Constant<value_int=1>() y = SequenceAt(s, i)
            o = Optional(x) h = OptionalHasElement(o) }}"""
    )
    model.graph.input.append(helper.make_tensor_value_info("text", TensorProto.STRING, [4]))
    model.graph.input.append(helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None))
    model.graph.node.append(helper.make_node("SequenceLength", ["parts"], ["count"]))
    model.graph.node.append(helper.make_node("StringConcat", ["text", "text"], ["twice"]))
    model.opset_import[0].version = 20
    for name, dtype, dims in (("h", TensorProto.BOOL, []), ("count", TensorProto.INT64, []), ("twice", 8, [4])):
        model.graph.output.append(helper.make_tensor_value_info(name, dtype, dims))
    g = load(model)
    assert [t.name for t in g.outputs] == ["y", "h", "count", "twice"]
    assert shape(g, "twice") == (4,)
    assert [t.dtype for t in g.inputs] == ["float32", "float32", "string"]


def test_shared_initialisers_are_one_tensor() -> None:
    g = run(
        "g (float[2, 3] x) => (float[2, 3] y) <float[3] b = {1, 2, 3}>{ t = Add(x, b) u = Add(t, b) y = Mul(u, b) }"
    )
    assert [t.name for t in g.stored()] == ["b"]


def test_the_graph_as_networkx() -> None:
    dag = run("g (float[2] x) => (float[2] y) { a = Abs(x) b = Neg(a) y = Add(a, b) }").digraph()
    assert sorted(dag.edges) == [("Abs_0", "Add_2"), ("Abs_0", "Neg_1"), ("Neg_1", "Add_2")]
    assert dag.nodes["Neg_1"]["operator"].type == "Neg"


# what is refused

WEIGHTS = (
    "float[6, 3, 3, 3] w3, float[6, 4, 3, 3] w4, float[4, 2, 9, 9] w9, float[6, 4, 3] flat, float[3] s, float[8] l"
)
MISFITS = [
    ("Conv(x, w3)", "'Conv_0'.*made for 3 channels, its input has 4"),
    ("Conv<group=2>(x, w4)", "made for 8 channels"),
    ("Conv<group=0>(x, w4)", "among 0 groups"),
    ("Conv<group=4>(x, w4)", "among 4 groups"),
    ("Conv(x, flat)", "6x4x3 do not fit|malformed|does not fit"),
    ("Conv<dilations=[4, 4]>(x, w4)", "a kernel of 3x3 is larger than its padded input of 8x8"),
    ("ConvTranspose(x, w4)", "made for 6 channels"),
    ("ConvTranspose<pads=[9, 9, 9, 9]>(x, w9)", "its output would be"),
    ("MaxPool<kernel_shape=[9, 9]>(x)", "a kernel of 9x9 is larger than its padded input of 8x8"),
    ("BatchNormalization(x, s, s, s, s)", "does not fit its inputs"),
    ("InstanceNormalization(x, s, s)", "its input has 4 channels, a parameter is 3"),
    ("LayerNormalization(x, s)", "scale or bias of 3 does not fit the normalised 8"),
]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("g (float[2, 3] x, float[4, 5] w) => (float[2, 5] y) { y = MatMul(x, w) }", r"'MatMul_0'.*x\[2x3\], w\[4x5\]"),
        (
            "g (float[2, 3] x) => (float[2, 4] y) { y = Abs(x) }",
            "contradicts itself: the file says 2x4, .* make it 2x3",
        ),
        ("g (float[2, 3] x) => (float[3] y) { y = Abs(x) }", "the file says 3, its inputs make it 2x3"),
        ("g (float[6] x) => (float[k] y) { s = Constant<value_ints=[4]>() y = Reshape(x, s) }", "can't make 4 of 6"),
        ("g (float[6] x) => (float[k] y) { y = Softmax<axis=9223372036854775807>(x) }", "Softmax.*axis"),
        ("g (float[6] x) => (float[k] y) { y = Softmax<axis=1.5>(x) }", "attribute 'axis' must be of type INT"),
        ("g (float[6] x) => (float[k] y) { y, z = Split<num_outputs=3>(x) }", "2 outputs, but num_outputs is 3"),
        (
            "g (float[2, 2, 2] x, int64[2, 1] i) => (float[k, l] y) { y = GatherND<batch_dims=-2>(x, i) }",
            "batch_dims -2 is out of range",
        ),
        ("g (float[6] x) => (float[k] y) { y = Abs(x, x) }", "Abs.*has 2 inputs"),
        ("g (float[6] x) => (float[k] y) { y = MatMul(x, ) }", "'MatMul_0'.* its input 'B' is missing|has 1 input$"),
        ("g (float[6] x) => (float[k] y) { y = MatMul(, x) }", "'MatMul_0'.* its input 'A' is missing"),
        ("g (float[6] x) => (float[k] y) { y = Constant() }", "holds no value"),
        (
            "g (bool c, float[6] x) => (float[k] y) { y, z = If(c) <then_branch = a () => (float[6] p) { p = Abs(x) },"
            " else_branch = b () => (float[6] q) { q = Neg(x) }> }",
            "2 outputs, but its then_branch has 1",
        ),
        *(
            (f"g (float[1, 4, 8, 8] x, {WEIGHTS}) => (float[a, b, c, d] y) {{ y = {node} }}", said)
            for node, said in MISFITS
        ),
        ("g (float[6] x) => (float[k] y) { x = Abs(x) y = Abs(x) }", "'x' is defined twice|cycle"),
    ],
)
def test_a_model_that_contradicts_itself(text: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        run(text)


CONSTANTS = """
    int64[3] huge = {1048576, 1048576, 32}, int64[1] many = {4096}, int64[2] line = {1, 1099511627776},
    int64 zero = {0}, int64 one = {1}, int64 far = {1099511627776}, int64[2] pads = {0, 1099511627776},
    float[1] x = {1}, float[1, 1, 1] t = {1}, float[2] two = {0, 1}, float[3] scales = {1048576.0, 1048576.0, 1.0}
"""


@pytest.mark.parametrize(
    ("node", "out"),
    [
        ("y = ConstantOfShape(huge)", (2**20, 2**20, 2**5)),
        ("y = Expand(x, huge)", (2**20, 2**20, 2**5)),
        ("y = Tile(t, huge)", (2**20, 2**20, 2**5)),
        ("y = Range(zero, far, one)", (2**40,)),
        ("y = Pad(x, pads)", (2**40 + 1,)),
        ("y = Resize(t, , scales)", (2**20, 2**20, 1)),
        ("y = OneHot(many, far, two)", (1, 2**40)),
        ('v = ConstantOfShape(many) y = Einsum<equation="i,j,k->ijk">(v, v, v)', (4096, 4096, 4096)),
        ('v = ConstantOfShape(many) y = Einsum<equation="i,j,k,l,m->">(v, v, v, v, v)', (1,)),
        ("y = Conv<pads=[60000000, 60000000], strides=[120000000]>(t, t)", (1, 1, 2)),
        ("m = ConstantOfShape(line) y = EyeLike(m)", (1, 2**40)),
    ],
)
def test_huge_results_are_never_made(node: str, out: Sequence[int]) -> None:
    """Also where all inputs are constants, so that the result could be computed ahead of time."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    g = run(f"g (float[1] live) => (float[] z) <{CONSTANTS}> {{ {node} c = Cast<to=1>(y) z = Mul(c, live) }}")
    assert shape(g, "z") == out
    assert types(g) == ["Mul"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 100_000  # KiB


def test_what_fits_is_not_refused() -> None:
    nodes = [
        "Conv<pads=[1, 1, 1, 1]>(x, w4)", "ConvTranspose(x, w9)", "LayerNormalization(x, l, l)",
        'MaxPool<kernel_shape=[9, 9], auto_pad="SAME_UPPER">(x)', "MaxPool<kernel_shape=[9, 9], pads=[1, 1, 1, 1]>(x)",
    ]  # fmt: skip
    for node in nodes:
        run(f"g (float[1, 4, 8, 8] x, {WEIGHTS}) => (float[a, b, c, d] y) {{ y = {node} }}")
    unknown = "{ t = nowhere.Gizmo(x) y = Conv(t, w3) }"
    run(f"g (float[1, 4, 8, 8] x, {WEIGHTS}) => (float[a, b, c, d] y) {unknown}")


def test_a_contradiction_that_was_asked_for_is_the_requests_fault() -> None:
    resnet = Path(__file__).parents[2] / "samples/resnet50.onnx"
    with pytest.raises(UsageError, match=r"1x4x224x224 can't be used, .*'node_Conv_753' .*made for 3 channels"):
        load(resnet, shapes={"pixel_values": (1, 4, 224, 224)})


def test_many_values_take_bounded_memory() -> None:
    """Each is small; together they are not. What comes after them is still known where it is small."""
    adds = " ".join(f"t{i + 1} = Add(t{i}, c)" for i in range(500))
    shapes = "s = Constant<value_ints=[3, 2]>() y = Reshape(x, s)"
    text = "g (float[6] x) => (float[a, b] y, float[k] t500) <int64[1] n = {4096}>"
    tracemalloc.start()
    g = run(f"{text} {{ c = ConstantOfShape(n) t0 = ConstantOfShape(n) {adds} {shapes} }}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6  # bytes; without a limit, a hundred million
    assert shape(g, "y") == (3, 2)


def test_dimensions_that_overflow() -> None:
    text = "g (float[8] x) => (float[] y) <int64[1] n = {1125899906842624}> { y = Tile(x, n) }"
    with pytest.raises(ModelError, match="'y' can't have the shape 9007199254740992: a dimension overflows"):
        run(text)


def test_a_shape_left_over_from_tracing_does_not_stop_an_open_model() -> None:
    text = "g (float[N,4] x) => (float[1,4] y) { y = Relu(x) }"
    with_one, with_eight = run(text), run(text, batch=8)
    assert with_one.outputs[0].shape == (1, 4)
    assert with_eight.outputs[0].shape == (8, 4)
    assert [n.code for n in with_eight.notes] == ["stale-shape"]


@pytest.mark.parametrize(
    ("last", "shape"), [("", (1, 1, 4, 6)), (", size", (1, 1, 9, 8))], ids=["by its attributes", "as it is given"]
)
def test_an_unpooled_image_has_the_shape_that_it_is_given(last: str, shape: tuple[int, ...]) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1, 1, 2, 3] x, int64[1, 1, 2, 3] i) => (float[] y)
        <int64[4] size = {{1, 1, 9, 8}}> {{ y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(x, i{last}) }}"""
    graph = load(parse_model(text))
    assert (graph.outputs[0].shape, graph.notes) == (shape, ())


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ("t = Constant<value = int64[3] {4, 2, 8}>() y = Reshape(x, t)", "constants in 't' (4x2x8), made for"),
        ("f = Constant<value = int64[2] {2, 8}>() n = Constant<value = int64[1] {4}>() t = Concat<axis = 0>(n, f) "
         "y = Reshape(x, t)", "constants in 't' (4x2x8), made for"),
        ("m = Constant<value = float[4, 1] {0, 0, 0, 0}>() y = Add(x, m)", "constants in 'm' (4x1), made for"),
    ],
)  # fmt: skip
def test_constants_made_for_other_sizes_are_named(nodes: str, says: str) -> None:
    made = parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g (float[S, 16] x) => (float[A] y) {{ {nodes} }}')
    made.graph.output[0].type.tensor_type.ClearField("shape")
    assert load(made, dims={"S": 4}).operators
    with pytest.raises(ModelError) as e:
        load(made, dims={"S": 5})
    assert f"{says} other sizes than S=5; give those that it was exported with" in str(e.value)


@pytest.mark.parametrize("opset", [11, 18, 22])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("side", "kernel", "stride", "pad", "out"),
    # as torch.nn.functional.max_pool2d(..., ceil_mode=True) and ONNX Runtime make it
    [
        (5, 3, 3, 1, 2),
        (5, 2, 2, 1, 3),
        (7, 2, 2, 1, 4),
        (4, 1, 2, 0, 2),
        (4, 2, 3, 1, 2),
        (6, 3, 2, 0, 3),
        (7, 3, 2, 1, 4),
    ],
)
def test_no_window_begins_in_the_padding_behind(
    pool: str, opset: int, side: int, kernel: int, stride: int, pad: int, out: int
) -> None:
    """Whatever the opset, as what was exported by PyTorch says of its own shapes."""
    if pool == "LpPool" and opset < 18:
        return  # it had no ceil_mode
    attrs = f"ceil_mode=1, kernel_shape=[{kernel}], strides=[{stride}], pads=[{pad}, {pad}]"
    head = f'<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    body = f"g (float[1, 2, {side}] x) => (float[1, 2, {out}] y) {{ y = {pool} <{attrs}> (x) }}"
    assert load(parse_model(f"{head} {body}")).outputs[0].shape == (1, 2, out)
    last = f"g (float[1, {side}, 2] x) => (float[n, m, c] y) {{ y = com.microsoft.Nhwc{pool} <{attrs}> (x) }}"
    if pool == "MaxPool":
        assert load(parse_model(f"{head} {last}")).outputs[0].shape == (1, out, 2)


@pytest.mark.parametrize(("attrs", "pieces"), [({}, 5), ({"maxsplit": 1}, 2), ({"maxsplit": 40}, 5)])
def test_text_that_is_split_has_one_axis_more(attrs: dict[str, int], pieces: int) -> None:
    """How many pieces there are only the data tell: no square of the number of strings."""
    node = helper.make_node("StringSplit", ["x"], ["y", "n"], delimiter=" ", **attrs)
    given = [helper.make_tensor_value_info("x", TensorProto.STRING, [100, 3])]
    outputs = [helper.make_empty_tensor_value_info(name) for name in "yn"]
    made = helper.make_model(
        helper.make_graph([node], "g", given, outputs), ir_version=9, opset_imports=[helper.make_opsetid("", 20)]
    )
    graph = load(made)
    assert [t.shape for t in graph.outputs] == [(100, 3, pieces), (100, 3)]
    assert f"assumed 100x3x{pieces} (set it with --shapes y:...)" in graph.notes[0].message
