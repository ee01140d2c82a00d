"""Models built to fill the memory, to hang or to crash: refused in a sentence, or predicted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper
from onnx.parser import parse_model

import onnxperf
from onnxperf.graph import node, proto, state
from onnxperf.ground import errors


def stored(kind: int, dims: list[int], values: list[int], name: str) -> TensorProto:
    return helper.make_tensor(name, kind, dims, values)


BOMBS = {
    "one hot": ("y = OneHot<axis = -1>(none, depth, pair)",
                {"none": ([0], []), "depth": ([], [200_000_000]), "pair": ([2], [0, 1])}),
    "tiles": ("y = Tile(empty, times)", {"empty": ([0, 8], []), "times": ([2], [1, 200_000_000])}),
    "expanded": ("y = Expand(empty, shape)", {"empty": ([0, 1], []), "shape": ([2], [0, 500_000_000])}),
}  # fmt: skip


@pytest.mark.parametrize("case", BOMBS)
def test_an_empty_result_does_not_pass_through_a_huge_one(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference would hold gigabytes on the way to a tensor of no elements: such nodes are not evaluated."""
    from onnxperf.graph import load

    evaluated = []
    monkeypatch.setattr("onnx.reference.ReferenceEvaluator", lambda graph, **_: evaluated.append(graph))
    text, constants = BOMBS[case]
    head = '<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (int64[m, n] y, float[2] z)'
    model = parse_model(f"{head} {{ {text} z = Relu(x) }}")
    model.graph.initializer.extend(stored(TensorProto.INT64, *constants[name], name) for name in constants)
    graph = load(model)
    assert not evaluated and 0 in graph.outputs[0].shape


def test_a_tensor_of_too_many_dimensions_is_refused() -> None:
    x, y = (helper.make_tensor_value_info(n, 1, [1] * 8000) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    with pytest.raises(onnxperf.ModelError, match="8,000 dimensions: the limit is 64"):
        onnxperf.predict(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), gpu="l4")


def test_an_operator_newer_than_its_opset_may_have_no_inputs() -> None:
    x, y = (helper.make_tensor_value_info(n, 1, [3]) for n in "xy")
    nodes = [helper.make_node("NonZero", [""], ["q"]), helper.make_node("Relu", ["x"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 8)])
    (kernel,) = onnxperf.predict(model.SerializeToString(), gpu="l4", runtime="torch-compile").kernels
    assert kernel.nodes == ("Relu_1",)


def test_an_ir_version_that_nobody_knows_is_refused() -> None:
    x, y = (helper.make_tensor_value_info(n, 1, [1]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=2**31)
    with pytest.raises(onnxperf.ModelError, match="IR version 2147483648 is newer than"):
        onnxperf.predict(model, gpu="l4")


@pytest.mark.skipif(os.name != "posix", reason="pipes have names on POSIX alone")
def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(onnxperf.UsageError, match="not a regular file"):
        onnxperf.predict(tmp_path / "pipe.onnx", gpu="l4")


@pytest.mark.skipif(os.name != "posix", reason="links need rights on other systems")
def test_external_data_on_a_link_to_itself_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    shape = TensorProto(name="shape", data_type=TensorProto.INT64, dims=[2], data_location=1)
    for key, value in (("location", "loop"), ("offset", "0"), ("length", "16")):
        shape.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(n, 1, dims) for n, dims in (("x", [4]), ("y", [2, 2])))
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["y"])], "g", [x], [y], [shape])
    (tmp_path / "m.onnx").write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    )
    assert onnxperf.predict(tmp_path / "m.onnx", gpu="l4").seconds > 0


def test_an_interrupt_while_another_one_ends_the_command_has_no_traceback() -> None:
    code = """
import sys, onnxperf.cli
def settle():
    raise KeyboardInterrupt
onnxperf.cli.settle_streams = settle
from onnxperf.__main__ import main
sys.argv[1:] = ["gpus", "l4"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_an_early_interrupt_has_no_traceback() -> None:
    code = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxperf.cli.arguments":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from onnxperf.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


RELU = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
FUNCTIONS = '<ir_version: 9, opset_import: ["" : 18, "f" : 1]>'


def doubling(levels: int, weight: int) -> ModelProto:
    """Functions each of which calls the next twice; the last holds a constant of so many bytes."""
    model = parse_model(f"{FUNCTIONS} {RELU}")
    model.graph.node[0].op_type, model.graph.node[0].domain = "f0", "f"
    for i in range(levels):
        body = [helper.make_node(f"f{i + 1}", [a], [b], domain="f") for a, b in (("a", "b"), ("b", "c"))]
        if i == levels - 1:
            value = helper.make_tensor("", TensorProto.UINT8, [weight], bytes(weight), raw=True)
            body = [helper.make_node("Constant", [], ["k"], value=value), helper.make_node("Relu", ["a"], ["c"])]
        model.functions.append(helper.make_function("f", f"f{i}", ["a"], ["c"], body, model.opset_import))
    return model


@pytest.mark.parametrize(
    ("levels", "weight", "says"),
    [
        (17, 1, "would make 262,142 nodes; the limit is 50,000: inline them with onnx.inliner"),
        (10, 400_000, "would make 196 MiB of nodes; the limit is 96 MiB: inline them with onnx.inliner"),
    ],
)
def test_functions_that_make_very_much_of_little_are_refused(levels: int, weight: int, says: str) -> None:
    with pytest.raises(onnxperf.ModelError, match=says):
        onnxperf.predict(doubling(levels, weight), gpu="l4")
    assert onnxperf.predict(doubling(3, 10), gpu="l4").seconds > 0


def test_a_name_that_is_a_file_of_its_own_is_refused() -> None:
    """It would be written into the label of everything that its node holds."""
    model = parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {RELU}')
    model.graph.node[0].name = "n" * 4096
    assert onnxperf.predict(model, gpu="l4").seconds > 0
    model.graph.node[0].name += "n"
    with pytest.raises(onnxperf.ModelError, match=r"name 'n{100}\.\.\.' has 4,097 characters; the limit is 4,096"):
        onnxperf.predict(model, gpu="l4")


def test_names_of_bodies_in_bodies_have_one_limit_together() -> None:
    shape = "float[2] y"
    text = f"then_branch = a () => ({shape}) {{ y = Relu(x) }}, else_branch = b () => ({shape}) {{ y = Abs(x) }}"
    for _ in range(3):
        text = text.replace("y = Relu(x)", f"y = If(c) <{text}>")
    text = f"g (float[2] x, bool c) => ({shape}) {{ y = If(c) <{text}> }}"
    model = parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    graph = model.graph
    while (node := graph.node[0]).op_type == "If":
        node.name, graph = "n" * 2000, node.attribute[0].g
    with pytest.raises(onnxperf.ModelError, match="with those of the nodes around it more than 4,096 characters"):
        onnxperf.predict(model, gpu="l4")


def test_folding_opens_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference implementation would load external data of an attribute, from the folder that it runs in."""
    (tmp_path / "secret.bin").write_bytes((37).to_bytes(8, "little"))
    monkeypatch.chdir(tmp_path)
    model = parse_model("""<ir_version: 9, opset_import: ["" : 20]> g (float[1] x) => (float[n, n] y)
        <int64[1] sides = {2}> { shape = ConstantOfShape(sides) zeros = ConstantOfShape(shape) y = Add(zeros, x) }""")
    value = TensorProto(name="v", dims=[1], data_type=TensorProto.INT64, data_location=TensorProto.EXTERNAL)
    for key, of in (("location", "secret.bin"), ("offset", "0"), ("length", "8")):
        value.external_data.add(key=key, value=of)
    model.graph.node[0].attribute.append(helper.make_attribute("value", value))
    p = onnxperf.predict(model, gpu="l4")
    assert p.run.graph.outputs[0].shape != (37, 37) and "assumed-shape" in {n.code for n in p.warnings}


def test_a_range_beyond_its_own_type_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """limit - start overflows in int32, so that onnx infers a small size: NumPy would make 107 million numbers."""
    from onnxperf.graph import values

    made: list[int] = []
    arange = np.arange
    monkeypatch.setattr(np, "arange", lambda *terms, **more: made.append(1) or arange(*terms[:1], **more))
    model = parse_model("""<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[2] y)
        <int32 a = {-2147483648}, int32 b = {2147483647}, int32 c = {40}> {
            r = Range(a, b, c) f = Cast <to = 1> (r) s = ReduceSum <keepdims = 0> (f) y = Add(x, s)
        }""")
    onnxperf.predict(model, gpu="l4")
    assert not made
    assert values._steps(*(np.array(n) for n in (0, 10, 3))) == pytest.approx(10 / 3)


def test_a_search_inside_a_search_is_refused() -> None:
    """Each level would be walked twice, 2^depth in all."""
    inner = "decoder = e (int32[b, s] input_ids) => (float[b, s, 8] l) { l = Relu(x) }"
    body = f"""decoder = d (int32[b, s] input_ids) => (float[b, s, 8] logits) {{
        t = com.microsoft.GreedySearch <{inner}> (ids, most) logits = Cast <to = 1> (t) }}"""
    model = parse_model(f"""<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>
        g (int32[1, 4] ids, float[1, 4, 8] x) => (int32[1, 8] y) <int32[1] most = {{8}}> {{
            y = com.microsoft.GreedySearch <{body}> (ids, most)
        }}""")
    with pytest.raises(onnxperf.ModelError, match="it stands inside another search"):
        onnxperf.predict(model, gpu="l4")


@pytest.mark.parametrize(("node", "terms"), [
    ("o = com.microsoft.MatMulNBits (i)", {}),
    ("o = com.microsoft.MatMulBnb4 (i)", {}),
    ('o, p, q = com.microsoft.QuantizeLinear ("")', {"runtime": "tensorrt", "precision": "bf16"}),
])  # fmt: skip
def test_operators_without_their_inputs_crash_nothing(node: str, terms: dict[str, str]) -> None:
    model = parse_model(f"""<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>
        g (float16[4, 4] i, float[2, 3] x) => (float[2, 3] y, o) {{ {node} y = Abs(x) }}""")
    with suppress(onnxperf.Error):
        assert onnxperf.predict(model, gpu="t4", **terms).seconds > 0


def test_a_batch_of_nothing_is_no_choice() -> None:
    model = parse_model('<ir_version: 9, opset_import: ["" : 20]> g (float[0, 3] x) => (float[0, 3] y) { y = Relu(x) }')
    for ask in (onnxperf.compare, partial(onnxperf.recommend, max_ms=10, qps=100), onnxperf.sweep):
        with pytest.raises(onnxperf.UsageError, match="the model's batch is 0"):
            ask(model, gpu=["l4", "t4"])
    assert not [c for c in onnxperf.whatif(model, gpu="l4").changes if c.what.startswith("--batch")]


def test_what_a_body_reads_is_not_looked_up_in_a_repeated_field() -> None:
    """A node of very many inputs, and a body that reads very many tensors, took their product in steps."""

    class Field(list[str]):
        def __contains__(self, name: object) -> bool:
            raise AssertionError("a repeated field is looked through from its start for each name")

    body = parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {RELU}').graph
    body.node[0].input[:] = ["seen", "own"]
    node: Any = SimpleNamespace(input=Field(["own", "x"]), attribute=[helper.make_attribute("body", body)])
    assert proto.Captures().alone(node) == ["seen"]


def nested_ifs(levels: int, inside: str) -> ModelProto:
    """If inside If, `levels` deep; the innermost holds these nodes."""
    for i in range(levels):
        other = f"else_branch = e () => (float[2] y) {{ y = Abs (x{i}) }}"
        inside = f"x{i} = Neg (x) y = If (c) <then_branch = t () => (float[2] y) {{ {inside} }}, {other}>"
    return parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g (float[2] x, bool c) => (float[2] y) {{ {inside} }}'
    )


def test_a_graph_inside_many_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, made_in = Counter[int](), proto.made_in

    def counted(graph: GraphProto) -> dict[str, None]:
        looked[len(graph.node)] += 1
        return made_in(graph)

    monkeypatch.setattr(proto, "made_in", counted)
    inner = " ".join(f"z{i} = Exp (x)" for i in range(10)) + " y = Relu (x)"
    assert onnxperf.predict(nested_ifs(8, inner), gpu="l4").seconds > 0
    assert 1 <= looked[11] <= 2  # for what it reads, and for its own run


def test_names_that_bodies_hide_are_told_apart() -> None:
    """w is made anew at the second level, under the name of a tensor outside: what is read below it is that one."""
    node, captures = nested_ifs(3, "v = Abs (w) y = Relu (v)").graph.node[1], proto.Captures()
    below = node.attribute[0].g.node[1].attribute[0].g
    assert list(captures.names(node)) == ["x", "c", "w", "x2"]
    below.node.insert(0, helper.make_node("Abs", ["u"], ["w"]))
    assert list(captures.names(node)) == ["x", "c", "w", "x2"]
    assert set(proto.Captures().names(node)) == {"x", "u", "c", "x2"}


def test_bodies_that_read_very_much_at_each_level_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nested_ifs(8, "y = Relu (x)")
    monkeypatch.setattr(proto, "MAX_CAPTURES", 20)
    with pytest.raises(onnxperf.ModelError, match="read more than 20 tensors, each counted at every level"):
        onnxperf.predict(model, gpu="l4")


def test_only_so_many_elements_are_evaluated_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx's reference takes microseconds for each: what comes behind the limit is not known, and no error."""
    from onnxperf.graph import load

    nodes = " ".join(f"k{i} = Add (k, k)" for i in range(10))
    text = f"g (float[2] x) => (float[2] y) <int64[4] k = {{0, 1, 2, 3}}> {{ {nodes} y = Relu (x) }}"
    model = parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    evaluated, evaluate = [], node.evaluate
    monkeypatch.setattr(node, "evaluate", lambda n, *rest: evaluated.append(n.op_type) or evaluate(n, *rest))
    monkeypatch.setattr(state, "MAX_EVALUATED", 4 * (state.EACH_NODE + 8))
    assert load(model).outputs[0].shape == (2,)
    assert evaluated == ["Add"] * 4


def calling(nodes: str, *given: str, attribute: str = "") -> ModelProto:
    """A model that calls one function, of these nodes, on tensors of these names."""
    values = ", ".join(f"float[2] {name}" for name in given)
    call = f"y = f.f{f' <v = {chr(34)}{attribute}{chr(34)}>' if attribute else ''} ({', '.join(given)})"
    function = (
        f'<domain: "f", opset_import: ["" : 18, "q" : 1]> f {"<v>" if attribute else ""} (a) => (b) {{ {nodes} }}'
    )
    head = '<ir_version: 9, opset_import: ["" : 18, "f" : 1, "q" : 1]>'
    return parse_model(f"{head} g ({values}) => (float[2] y) {{ {call} }} {function}")


def test_names_and_attributes_count_as_often_as_functions_copy_them() -> None:
    """A function may write the name of an argument, and the value of an attribute, any number of times."""
    names = calling(f"b = Sum ({', '.join(['a'] * 30_000)})", "n" * 4000)
    assert names.ByteSize() < 1 << 17
    with pytest.raises(onnxperf.ModelError, match=r"inlining its functions would make 11\d MiB .* limit is 96 MiB"):
        onnxperf.predict(names, gpu="l4")
    copies = " ".join(f"c{i} = q.Q <w : string = @v> (a)" for i in range(300))
    attribute = calling(f"{copies} b = Relu (a)", "x", attribute="z" * 400_000)
    with pytest.raises(onnxperf.ModelError, match=r"inlining its functions would make 11\d MiB .* limit is 96 MiB"):
        onnxperf.predict(attribute, gpu="l4")
    fits = calling("c = q.Q <w : string = @v> (a) b = Relu (a)", "x", attribute="z" * 400_000)
    assert onnxperf.predict(fits, gpu="l4").seconds > 0


@pytest.mark.parametrize("passes", ["b = f.g (a)", "b = f.g <v : string = @v> (a)"])
def test_what_a_function_passes_on_counts_where_it_is_copied(passes: str) -> None:
    inner = f"b = Sum ({', '.join(['a'] * 30_000)})"
    name = "n" * 4000
    if "@" in passes:
        inner = " ".join(f"c{i} = q.Q <w : string = @v> (a)" for i in range(300)) + " b = Relu (a)"
        model = calling(inner, "x", attribute="z" * 400_000)
    else:
        model = calling(inner, name)
    outer = model.functions.add()
    outer.CopyFrom(model.functions[0])
    model.functions[0].name = "g"
    called = parse_model(f'{FUNCTIONS} {RELU} <domain: "f", opset_import: ["f" : 1]> f <v> (a) => (b) {{ {passes} }}')
    del outer.node[:]
    outer.node.extend(called.functions[0].node)
    outer.opset_import.add(domain="f", version=1)
    with pytest.raises(onnxperf.ModelError, match=r"inlining its functions would make 11\d MiB"):
        onnxperf.predict(model, gpu="l4")


def test_similar_names_are_looked_for_among_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """difflib takes milliseconds for a name of some length: a model may have hundreds of thousands."""
    compared: list[str] = []
    monkeypatch.setattr(errors, "get_close_matches", lambda name, names, **_: compared.extend(names) or [])
    names = ["x" * 300, *(f"block_{i}/relu" for i in range(5000))]
    assert errors.near_names("block_4321/rel", names) == []
    assert len(compared) == errors.MAX_COMPARED and "block_4321/relu" in compared and "x" * 300 not in compared
    monkeypatch.undo()
    assert errors.near_names("block_4321/rel", names) == ["block_4321/relu"]
    assert errors.near_names("x" * 299, names) == []


def test_long_names_are_cut_in_messages() -> None:
    inputs = [f"{i}{'n' * 4000}" for i in range(50)]
    values, names = ", ".join(f"float[2] i{i}" for i in inputs), ", ".join(f"i{i}" for i in inputs)
    text = f"g ({values}) => (float[2] y) {{ y = Sum ({names}) }}"
    model = parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    asked = "z" * 4000
    with pytest.raises(
        onnxperf.UsageError, match=r"names 'z{100}\.\.\.', which .* inputs are 'i0n.* \.\.\.$"
    ) as unknown:
        onnxperf.predict(model, gpu="l4", shapes={asked: (2,)})
    assert len(str(unknown.value)) < 3000
    with pytest.raises(onnxperf.UsageError, match=r"no dimension 'z{100}\.\.\.'"):
        onnxperf.predict(model, gpu="l4", dims={asked: 2})
    with pytest.raises(onnxperf.UsageError, match=r"is called 'z{100}\.\.\.'"):
        onnxperf.explain(model, asked, gpu="l4")
