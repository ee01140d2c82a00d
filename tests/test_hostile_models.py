"""Models built to fill the memory, to hang or to crash: refused in a sentence, or predicted."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.parser import parse_model

import onnxperf


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
    from onnxperf.graph import load, values

    evaluated = []
    monkeypatch.setattr(values, "ReferenceEvaluator", lambda node, **_: evaluated.append(node.op_type))
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


def test_an_ir_version_that_nobody_knows_is_refused() -> None:
    x, y = (helper.make_tensor_value_info(n, 1, [1]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=2**31)
    with pytest.raises(onnxperf.ModelError, match="IR version 2147483648 is newer than"):
        onnxperf.predict(model, gpu="l4")


@pytest.mark.skipif(os.name != "posix", reason="pipes have names on POSIX alone")
def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(onnxperf.UsageError, match="is no regular file"):
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
        (10, 400_000, "would make 195 MiB of nodes; the limit is 128 MiB: inline them with onnx.inliner"),
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
    for ask in (onnxperf.compare, partial(onnxperf.recommend, latency_ms=10, qps=100)):
        with pytest.raises(onnxperf.UsageError, match="the model's batch is 0"):
            ask(model, gpu=["l4", "t4"])
    assert not [c for c in onnxperf.whatif(model, gpu="l4").changes if c.what.startswith("--batch")]
