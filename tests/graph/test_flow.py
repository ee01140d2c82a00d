"""Bodies of control flow as part of the graph; what ONNX Runtime's own runs return is the oracle for shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.parser import parse_model

from onnxperf import ModelError, UsageError
from onnxperf.graph import Graph, load

STORED = (
    "int64 m = {5}, bool c = {1}, bool f = {0}, int64 none = {0}, int64[1] one = {1}, float[2, 3] s = {1,2,3,4,5,6}"
)
IF = """If(FLAG) <then_branch = a () => (float[2, 3] p) { p = Add(x, s) },
    else_branch = b () => (float[3, 3] q) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { q = MatMul(w, x) }>"""
LOOP = """Loop(LIMIT, c, x) <body = l (int64 i, bool g, float[2, 3] v) => (bool k, float[2, 3] o) {
    k = CONDITION o = Add(v, s) }>"""
WITHIN = """Loop(m, c, x) <body = outer (int64 i, bool g, float[2, 3] v) => (bool k, float[2, 3] o, float[3, 2] r) {
    k = Identity(g) t = Neg(v) three = Constant<value_int = 3>()
    o, u = Loop(three, , t) <body = inner (int64 j, bool h, float[2, 3] w) => (bool l, float[2, 3] p, float[2] q) {
        l = Identity(h) p = Add(w, t) q = ReduceSum<keepdims = 0>(p, one) }>
    r = Abs(u) }>"""
SCAN = """Scan<num_scan_inputs = 2, AXES
    body = l (float[3] h, float[3] a, float[2, 3] b) => (float[3] n, float[2, 3] t) {
    n = Add(h, a) t = Mul(b, n) }>(z, x, y)"""
OLD = """Scan<num_scan_inputs = 1, body = l (float[3] h, float[3] a) => (float[3] n, float[1, 3] t) {
    n = Add(h, a) t = Unsqueeze<axes = [0]>(n) }>(, z, x)"""
MAP = """SequenceMap(l, x) <body = b (float[2, 3] e, float[2, 3] a) => (float[2, 3] o) { o = Add(e, a) }>"""


def text(inputs: str, outputs: str, nodes: str, opset: int = 17) -> str:
    return f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) <{STORED}> {{ {nodes} }}'


def looped(limit: str = "m", condition: str = "Identity(g)") -> str:
    return text("float[2, 3] x", "float[] y", f"y = {LOOP.replace('LIMIT', limit).replace('CONDITION', condition)}")


def branched(flag: str, more: str = "") -> str:
    return text(f"float[2, 3] x{more}", "float[] y", f"y = {IF.replace('FLAG', flag)}")


#: What to run, and how often its operators do.
CASES: dict[str, tuple[str, dict[str, list[int] | None]]] = {
    "if-then": (branched("c"), {"Add": [1]}),
    "if-else": (branched("f"), {"MatMul": [1]}),
    "if-data": (branched("d", ", bool d"), {"If": [1], "MatMul": [1]}),
    "loop": (looped(), {"Loop": [1], "Add": [5]}),
    "loop-goes-on": (looped(condition="Not(f)"), {"Loop": [1], "Add": [5]}),
    "loop-stops": (looped(condition="Identity(f)"), {"Loop": [1], "Add": [1]}),
    "loop-without-limit-stops": (looped("", "Identity(f)"), {"Loop": [1], "Add": [1]}),
    "loop-never": (looped("none"), {"Loop": [1]}),
    "loop-never-stacks": (
        text("float[2, 3] x", "float[] y, int64[] z",
             """y, z = Loop(none, c, x) <body = l (int64 i, bool g, float[2, 3] v) =>
             (bool k, float[2, 3] o, int64[1] j) { k = Identity(g) o = Neg(v) j = Identity(one) }>"""),
        {"Loop": [1], "Neg": None, "Concat": [1]},
    ),
    "loop-from-shape": (
        text("float[N, 3] x", "float[] y, float[] z",
             """n = Shape(x) l = Squeeze(n0) n0 = Slice(n, none1, one) none1 = Constant<value_ints = [0]>()
             y, z = Loop(l, , x) <body = l (int64 i, bool g, float[N, 3] v) => (bool k, float[N, 3] o, float[3] w) {
             k = Identity(g) o = Neg(v) w = ReduceSum<keepdims = 0>(v, none1) }>"""),
        {"Loop": [1], "Neg": [4], "ReduceSum": [4]},
    ),
    "loop-with-a-row-of-one-as-number": (
        text("float[2, 3] x", "float[] y, int64[] z",
             """y, z = Loop(m, c, x) <body = l (int64[1] i, bool g, float[2, 3] v) =>
             (bool k, float[2, 3] o, int64[1] j) { k = Identity(g) o = Neg(v) j = Identity(i) }>"""),
        {"Loop": [1], "Neg": [5]},
    ),
    "loop-only-stacked": (
        text("float[2, 3] x", "float[] y",
             """w, y = Loop(m, c, x) <body = l (int64 i, bool g, float[2, 3] v) =>
             (bool k, float[2, 3] o, float[2] r) {
             k = Identity(g) o = Exp(v) r = ReduceSum<keepdims = 0>(v, one) }>"""),
        {"Loop": [1], "Exp": [5], "ReduceSum": [5], "Concat": [1]},
    ),
    "loop-in-loop": (text("float[2, 3] x", "float[] y, float[] z", f"y, z = {WITHIN}"),
                     {"Loop": [1, 5], "Neg": [5], "Add": [15], "ReduceSum": [15], "Abs": [5], "Concat": [5, 1]}),
    "scan": (text("float[3] z, float[4, 3] x, float[4, 2, 3] y", "float[] n, float[] t",
                  "n, t = " + SCAN.replace("AXES", "")),
             {"Scan": [1], "Add": [4], "Mul": [4]}),
    "scan-along-axes": (
        text("float[3] z, float[3, 4] x, float[2, 3, 4] y", "float[] n, float[] t", "n, t = " + SCAN.replace(
            "AXES", "scan_input_axes = [1, -1], scan_output_axes = [-1], scan_input_directions = [1, 0],")),
        {"Scan": [1], "Add": [4], "Mul": [4]},
    ),
    "scan-in-batches": (text("float[6, 3] z, float[6, 4, 3] x", "float[] n, float[] t", f"n, t = {OLD}", 8),
                        {"Scan": [1], "Add": [24], "Unsqueeze": [24]}),
    "sequence-through-a-loop": (
        text("float[2, 3] x", "float[] y",
             """l = SequenceConstruct(x) n = Loop(m, c, l) <body = b (int64 i, bool g, seq(float[2, 3]) v) =>
             (bool k, seq(float[2, 3]) o) { k = Identity(g) e = SequenceAt(v, i) r = Neg(e) o = SequenceInsert(v, r) }>
             zero = Constant<value_int = 0>() y = SequenceAt(n, zero)"""),
        {"Loop": [1], "SequenceAt": [5, 1], "Neg": [5]},
    ),
    "sequence-map": (
        text("float[2, 3] x", "float[] y",
             f"l = SequenceConstruct(x) n = {MAP} zero = Constant<value_int = 0>() y = SequenceAt(n, zero)"),
        {"SequenceMap": [1], "Add": [1]},
    ),
    "sequence-split": (
        text("float[2, 6] x", "float[] y, float[] z",
             """two = Constant<value_int = 2>() l = SplitToSequence<axis = 1>(x, two) y = SequenceAt(l, none)
             n = SplitToSequence<axis = 1, keepdims = 0>(x) z = SequenceAt(n, none)"""),
        {"SplitToSequence": [1, 1]},
    ),
    "sequence-from-nothing": (
        text("float[2, 3] x", "float[] y, int64[] z",
             """a = SequenceEmpty() b = Loop(m, c, a) <body = l (int64 i, bool g, seq(float[2, 3]) v) =>
             (bool k, seq(float[2, 3]) o) { k = Identity(g) o = SequenceInsert(v, x) }>
             d = SequenceErase(b) y = SequenceAt(d, none) z = SequenceLength(d)"""),
        {"SequenceInsert": [5]},
    ),
    "optional-through-a-loop": (
        text("float[2, 3] x", "float[] y, bool[] z",
             """a = Optional(x) b = Loop(m, c, a) <body = l (int64 i, bool g, optional(float[2, 3]) v) =>
             (bool k, optional(float[2, 3]) o) {
             k = Identity(g) e = OptionalGetElement(v) n = Neg(e) o = Optional(n) }>
             y = OptionalGetElement(b) z = OptionalHasElement(b)""", 18),
        {"Neg": [5], "Optional": [1, 5]},
    ),
}  # fmt: skip


def repeats(graph: Graph) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for o in graph.operators:
        found.setdefault(o.type, []).append(o.repeat)
    return found


def outputs_of(model: ModelProto, dims: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Shapes of what ONNX Runtime returns."""
    ort = pytest.importorskip("onnxruntime", reason="its runs are the oracle")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for out in model.graph.output:  # rank 0 in the text stands for any
        out.type.tensor_type.ClearField("shape")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {}
    for i in session.get_inputs():
        shape = [dims.get(d, d) for d in i.shape]
        feeds[i.name] = np.zeros(shape, bool if i.type == "tensor(bool)" else np.float32)
    found = session.run(None, feeds)
    return {o.name: a.shape for o, a in zip(session.get_outputs(), found, strict=True)}


@pytest.mark.parametrize("case", CASES)
def test_bodies_are_part_of_the_graph(case: str) -> None:
    written, wanted = CASES[case]
    model, dims = parse_model(written), {"N": 4} if "[N" in written else {}
    theirs = outputs_of(model, dims)
    graph = load(model, dims=dims)
    assert {t.name: t.shape for t in graph.outputs} == theirs
    found = repeats(graph)
    assert {type: found.get(type) for type in wanted} == wanted
    assert len({o.name for o in graph.operators}) == len(graph.operators)
    made = [t.name for o in graph.operators for t in o.outputs]
    assert len(set(made)) == len(made)
    known = {t.name for t in graph.inputs}
    for o in graph.operators:
        assert all(t.stored or t.name in known for t in o.present)
        known.update(t.name for t in o.outputs)


# what only the run knows


def test_a_branch_that_data_choose_is_the_costlier_one() -> None:
    graph = load(parse_model(branched("d", ", bool d")))
    assert [(n.code, n.nodes) for n in graph.notes] == [("assumed-branch", ("If_0",)), ("assumed-shape", ("If_0",))]
    assert "else_branch" in graph.notes[0].message
    assert [t.name for t in graph.operators[0].present] == ["d"]
    assert "2x3" not in graph.notes[1].message and "3x3" in graph.notes[1].message


def test_what_the_file_says_of_branches_that_differ_comes_first() -> None:
    model = parse_model(branched("d", ", bool d").replace("float[] y", "float[2, 3] y"))
    graph = load(model)
    assert graph.outputs[0].shape == (2, 3)
    assert "assumed 2x3" in graph.notes[1].message


def test_no_branch_is_known_to_be_the_result() -> None:
    """Both branches give constants, but not the same."""
    graph = load(parse_model(text("float[6] x, bool d", "float[] y", """w = If(d) <
        then_branch = a () => (int64[2] p) { p = Constant<value_ints = [2, 3]>() },
        else_branch = b () => (int64[2] q) { q = Constant<value_ints = [3, 2]>() }> y = Reshape(x, w)""")))  # fmt: skip
    assert [o.type for o in graph.operators] == ["If", "Identity", "Reshape"]
    assert graph.operators[1].out.value is None
    assert "assumed-shape" in [n.code for n in graph.notes]


UNKNOWN = text("float[2, 3] x, int64 n, bool d", "float[] y, float[] z", """
    y = Loop(n, c, x) <body = j (int64 i, bool g, float[2, 3] v) => (bool k, float[2, 3] o) {
        k = Identity(g) o = Add(v, s) }>
    z = Loop(m, d, x) <body = k (int64 i2, bool g2, float[2, 3] v2) => (bool k2, float[2, 3] o2) { k2 = Identity(g2)
        o2 = Loop(n, d, v2) <body = l (int64 i3, bool g3, float[2, 3] v3) => (bool k3, float[2, 3] o3) {
            k3 = Identity(g3) o3 = Exp(v3) }> }>""")  # fmt: skip


def named() -> ModelProto:
    model = parse_model(UNKNOWN)
    model.graph.node[0].name, model.graph.node[1].name = "first", "outer"
    model.graph.node[1].attribute[0].g.node[1].name = "inner"
    return model


def test_trip_counts_that_only_the_run_knows() -> None:
    graph = load(named())
    assert [(n.code, n.nodes) for n in graph.notes] == [
        ("assumed-trip-count", (name,)) for name in ("first", "outer/inner", "outer")
    ]
    assert "--trip-count outer/inner=N" in graph.notes[1].message
    given = {"first": 7, "outer": 3}
    for inner in ("inner", "outer/inner"):
        graph = load(named(), trip_counts={**given, inner: 10**6})
        assert graph.notes == ()
        assert repeats(graph)["Add"] == [7] and repeats(graph)["Exp"] == [3 * 10**6]
    assert "Exp" not in repeats(load(named(), trip_counts={**given, "inner": 0}))


@pytest.mark.parametrize(
    ("written", "given", "said"),
    [
        (None, {"frist": 2}, "the model's loops are 'first', 'outer', 'outer/inner'; did you mean 'first'"),
        (None, {"first": -1}, "the trip count of 'first' can't be -1"),
        (None, {"first": 1.5}, "must be a whole number"),
        (None, {"first": 10**9 + 1}, "first=1000000001 can't be used: the limit is 1,000,000,000"),
        (None, {"outer": 10**7, "inner": 10**7}, "'outer' .Loop. would run an operator 100,000,000,000,000 times"),
        (CASES["loop"][0], {"Loop_0": 4}, "Loop_0=4: the model itself runs it 5 times"),
        (CASES["scan"][0], {"Scan_0": 4}, "Scan_0=4: a Scan is as long as its inputs"),
        (CASES["if-data"][0], {"If_0": 4}, "If_0=4: an If does not loop"),
        (CASES["if-data"][0], {"loop": 4}, "loop=4: no Loop of the model runs$"),
    ],
)
def test_trip_counts_that_can_not_be(written: str | None, given: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(parse_model(written) if written else named(), trip_counts=given)
    if written is CASES["loop"][0]:
        assert repeats(load(parse_model(written), trip_counts={"Loop_0": 5}))["Add"] == [5]


def test_loops_of_one_name_are_told_apart() -> None:
    model = named()
    model.graph.node[0].name = "inner"
    graph = load(model, trip_counts={"outer/inner": 4, "inner": 2, "outer": 1})
    assert (repeats(graph)["Add"], repeats(graph)["Exp"]) == ([2], [4])


def test_elements_of_a_sequence_of_unknown_length() -> None:
    model = parse_model(
        text("float[2, 3] x", "float[] z", f"y = {MAP} i = Constant<value_int = 0>() z = SequenceAt(y, i)")
    )
    model.graph.input.append(helper.make_tensor_sequence_value_info("l", TensorProto.FLOAT, [2, 3]))
    graph = load(model)
    assert [n.code for n in graph.notes] == ["unknown-length", "assumed-trip-count"]
    assert graph.outputs[0].shape == (2, 3)
    assert repeats(load(model, trip_counts={"SequenceMap_0": 9}))["Add"] == [9]


def test_what_grows_is_as_large_as_the_last_run_leaves_it() -> None:
    written = """y = Loop(m, c, x) <body = l (int64 i, bool g, float[a, b] v) => (bool k, float[d, e] o) {
        k = Identity(g) o = Concat<axis = 0>(v, x) }> z = Abs(y)"""
    graph = load(parse_model(text("float[2, 3] x", "float[] y, float[] z", written)))
    assert [t.shape for t in graph.outputs] == [(12, 3), (12, 3)] and graph.notes == ()
    assert [o.out.shape[0] for o in graph.operators if o.type == "Concat"] == [4, 6, 8, 10, 12]


def test_a_loop_keeps_what_its_next_run_needs() -> None:
    """Nobody reads the carried value behind the loop, but each run needs it; a dead loop leaves with its body."""
    graph = load(parse_model(CASES["loop-only-stacked"][0]))
    assert [t.name for t in graph.outputs] == ["y"] and graph.made_by(graph.outputs[0]).type == "Concat"
    assert [o.out.name for o in graph.operators if o.type == "Exp"] == ["Loop_0/o"]
    dead = load(parse_model(text("float[2, 3] x", "float[] y", f"u, w = {WITHIN} y = Abs(x)")))
    assert [o.type for o in dead.operators] == ["Abs"]


def test_names_in_bodies() -> None:
    """A body may use a name again, and a name that its own would get may be taken."""
    graph = load(parse_model(text("float[2, 3] x, bool d", "float[] y, float[] z", """
        y = If(d) <then_branch = a () => (float[] t) { t = MatMul(x, s2) },
            else_branch = b () => (float[] t) { t = Abs(x) }>
        s2 = Transpose<perm = [1, 0]>(s) q = Neg(x) t = Exp(q) z = Neg(t)""")))  # fmt: skip
    model = parse_model(
        text("float[2, 3] x, bool d", "float[] y, float[] z", f"y = {IF.replace('FLAG', 'd')} z = Abs(x)")
    )
    model.graph.node[1].name = "If_0/MatMul_0"
    model.graph.node[1].output[0] = model.graph.output[1].name = "If_0/q"
    taken = load(model)
    for g in (graph, taken):
        assert len({o.name for o in g.operators}) == len(g.operators)
        assert max(Counter(t.name for o in g.operators for t in o.outputs).values()) == 1
    assert [o.out.name for o in taken.operators if o.type == "MatMul"] == ["If_0/q'"]
    assert [t.name for o in graph.operators if o.name == "Neg_4" for t in o.present] == ["t"]


def test_a_tensor_in_a_body_can_be_given_a_shape() -> None:
    model = parse_model(looped().replace("o = Add(v, s)", "u = nowhere.Gizmo(v) o = Add(u, x)"))
    model.opset_import.add(domain="nowhere", version=1)
    assert "--shapes Loop_0/u:..." in next(n.message for n in load(model).notes if n.code == "assumed-shape")
    graph = load(model, shapes={"Loop_0/u": (1, 3)})
    assert [o.out.shape for o in graph.operators if o.type == "nowhere::Gizmo"] == [(1, 3)]
    with pytest.raises(UsageError, match=r"names 'Loop_0/w', which the model never computes.*did you mean 'Loop_0/"):
        load(model, shapes={"Loop_0/w": (1, 3)})


def test_operators_of_others_keep_their_bodies() -> None:
    model = parse_model(looped())
    inner = GraphProto(name="inner", node=[NodeProto(op_type="Add", input=["v", "x"], output=["q"])])
    inner.output.add(name="q")
    node = model.graph.node[0].attribute[0].g.node[1]
    node.CopyFrom(helper.make_node("Repeat", ["s"], ["o"], domain="nowhere", body=inner))
    model.opset_import.add(domain="nowhere", version=1)
    (custom,) = [o for o in load(model).operators if o.type == "nowhere::Repeat"]
    assert [t.name for t in custom.present] == ["s", "Loop_0/v", "x"]
    assert custom.repeat == 5


# at their largest


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        ("y = NonZero(x)", (2, 6)),
        ("y = Unique<axis = -1>(x)", (2, 3)),
        ("t, u, v, y = Unique(x)", (6,)),
        ("y = Compress<axis = 0>(x, two)", (2, 3)),
        ("y = Compress(x, two)", (2,)),
        ("y = Slice(x, ends, ends)", (2, 3)),
        ("y, i = TopK(x, ends)", (2, 3)),
        ("y = NonMaxSuppression(boxes, scores, most)", (4 * 5 * 3, 3)),
        ("y = NonMaxSuppression(boxes, scores, many)", (4 * 5 * 10, 3)),
        ("y = NonMaxSuppression(boxes, scores, ends)", (4 * 5 * 10, 3)),
        ("y = NonMaxSuppression(boxes, scores)", (0, 3)),
    ],
)
def test_what_data_decide_is_taken_at_its_largest(node: str, shape: tuple[int, ...]) -> None:
    inputs = "float[2, 3] x, bool[2] two, int64[1] ends, float[4, 10, 4] boxes, float[4, 5, 10] scores"
    limits = "most = Constant<value_ints = [3]>() many = Constant<value_ints = [11]>()"
    graph = load(parse_model(text(inputs, "float[] y", f"{limits} {node} z = Abs(y)")))
    assert graph.outputs[0].shape == shape
    assert all("its upper bound" in n.message for n in graph.notes if n.code == "assumed-shape")
    assert "assumed-shape" in [n.code for n in graph.notes]


# hostile files


def test_a_condition_of_another_type_is_not_known() -> None:
    model = parse_model(branched("n"))
    model.graph.initializer.append(helper.make_tensor("n", TensorProto.FLOAT, [], [float("nan")]))
    assert load(model).operators[0].type == "If"


def test_bodies_of_functions_in_bodies_of_functions() -> None:
    """Functions whose bodies call each other in branches are not deep themselves, but what comes of them is."""
    model = parse_model(text("float[2, 3] x, bool d", "float[] y", "y = local.f0(x, d)"))
    for k in range(80):
        call = helper.make_node(f"f{k + 1}", ["a", "d"], ["o"], domain="local")
        inner = GraphProto(name="b", node=[call if k < 79 else helper.make_node("Abs", ["a"], ["o"])])
        inner.output.add(name="o")
        node = helper.make_node("If", ["d"], ["z"], then_branch=inner, else_branch=inner)
        node.attribute[1].g.CopyFrom(GraphProto(name="e", output=[ValueInfoProto(name="a")]))
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        model.functions.append(helper.make_function("local", f"f{k}", ["a", "d"], ["z"], [node], opsets))
    model.opset_import.add(domain="local", version=1)
    with pytest.raises(ModelError, match=r"nests graphs more than 64 deep|can't be inlined"):
        load(model)


def loop_node(body: GraphProto, inputs: int = 3, outputs: int = 1) -> NodeProto:
    return helper.make_node("Loop", ["m", "c", "x"][:inputs], [f"y{i}" for i in range(outputs)], name="odd", body=body)


def odd(node: NodeProto) -> ModelProto:
    model = parse_model(looped())
    model.graph.node[0].CopyFrom(node)
    model.graph.output[0].name = node.output[0]
    return model


def body(inputs: int, outputs: int, first: str = "i0") -> GraphProto:
    graph = GraphProto(name="b", input=[ValueInfoProto(name=f"i{i}" if i else first) for i in range(inputs)])
    graph.output.extend(ValueInfoProto(name=f"i{min(i + 1, inputs - 1)}" if inputs else "x") for i in range(outputs))
    return graph


def scan_node(inputs: str, count: int, **more: object) -> NodeProto:
    names = inputs.split()
    return helper.make_node("Scan", names, ["y"], name="odd", num_scan_inputs=count, body=body(len(names), 1), **more)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (loop_node(body(3, 0)), "'odd' .Loop. can't run: its body has 3 inputs and 0 outputs, where 3 and 2 are need"),
        (loop_node(body(2, 2)), "2 inputs and 2 outputs"),
        (loop_node(body(4, 2)), "4 inputs and 2 outputs"),
        (loop_node(body(3, 2), outputs=2), "3 inputs and 2 outputs, where 3 and 3"),
        (helper.make_node("Loop", ["m", "c", "x"], ["y"], name="odd"), "it has no body"),
        (helper.make_node("Loop", ["m", "c", ""], ["y"], name="odd", body=body(3, 2)), "carries is missing"),
        (
            helper.make_node("Loop", ["m", "c", "x"], ["y"], name="odd", body=body(3, 2, "")),
            "has no name|nothing makes",
        ),
        (helper.make_node("If", ["c"], ["y"], name="odd", else_branch=body(0, 1)), "no then_branch"),
        (helper.make_node("If", ["c"], ["y"], name="odd", then_branch=body(1, 1)), "then_branch has 1 inputs and 1"),
        (scan_node("x", 2), "2 of its 1 inputs"),
        (scan_node("x", 0), "0 of its 1 inputs"),
        (scan_node("x", -(2**60)), "inputs are to be scanned"),
        (scan_node("x", 1, scan_input_axes=[2**60]), "has no axis"),
        (scan_node("x", 1, scan_output_axes=[-3]), "has no axis -3"),
        (scan_node("x", 1, scan_output_axes=[0.5]), "are no whole numbers|must be of type INTS"),
        (scan_node("x one", 2), "different lengths: 1, 2"),
        (scan_node("c", 1), "a tensor with 0 axes has no axis 0"),
        (helper.make_node("Loop", ["big", "c", "x"], ["y"], name="odd", body=body(3, 2)), None),
    ],
)
def test_bodies_that_do_not_fit(node: NodeProto, said: str | None) -> None:
    model = odd(node)
    if said is None:
        model.graph.initializer.append(helper.make_tensor("big", TensorProto.INT64, [], [2**62]))
        assert load(model).outputs[0].shape == (2, 3)  # nothing in it runs so often
        model.graph.node[0].attribute[0].g.node.add(op_type="Abs", input=["i2"], output=["a"])
        said = "would run an operator 4,611,686,018,427,387,904 times"
    with pytest.raises(ModelError, match=said):
        load(model)


def nested(depth: int, branches: int) -> ModelProto:
    """Ifs in Ifs, with a branch again in each of `branches` branches."""
    graph = GraphProto(name="b", node=[NodeProto(op_type="Abs", input=["x"], output=["o"])])
    graph.output.add(name="o")
    for level in range(depth):
        node = NodeProto(op_type="If", input=["d"], output=[f"o{level}"])
        for k, name in enumerate(("then_branch", "else_branch")):
            inner = graph if k < branches else GraphProto(name="e", output=[ValueInfoProto(name="x")])
            node.attribute.add(name=name, type=AttributeProto.GRAPH, g=inner)
        graph = GraphProto(name="b", node=[node])
        graph.output.add(name=f"o{level}")
    model = parse_model(branched("d", ", bool d"))
    model.graph.node[0].CopyFrom(graph.node[0])
    model.graph.output[0].name = graph.output[0].name
    return model


@pytest.mark.slow
def test_depth_and_breadth_are_bounded() -> None:
    assert len(load(nested(30, 1)).operators) == 30 + 1 + 30
    assert len(load(nested(9, 2)).operators) == 9 + 1 + 9
    wide = parse_model(looped())
    inside = wide.graph.node[0].attribute[0].g.node
    inside.extend(NodeProto(op_type="Abs", input=["v"], output=[f"a{i}"]) for i in range(200_000))
    with pytest.raises(ModelError, match="hold more than 200,000 nodes"):
        load(wide)
