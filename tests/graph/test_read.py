"""What a model may come as, functions, and data outside the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import FunctionProto, ModelProto, TensorProto, helper, numpy_helper
from onnx.parser import parse_model

from onnxperf import ModelError, UsageError
from onnxperf.graph import load

HEAD = '<ir_version: 9, opset_import: ["" : 18, "mine" : 1]>'
PLAIN = f"{HEAD} g (float[2, 3] x) => (float[2, 3] y) {{ y = Relu(x) }}"
FUNCTIONS = f"""{HEAD} g (float[2, 3] x) => (float[2, 3] y) {{ t = mine.twice(x) y = mine.twice(t) }}
<domain: "mine", opset_import: ["" : 18]> twice (a) => (c) {{ b = Abs(a) c = Neg(b) }}"""


def test_path_bytes_and_message_are_the_same(tmp_path: Path) -> None:
    model = parse_model(PLAIN)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    graphs = [load(m) for m in (path, str(path), model.SerializeToString(), model)]
    assert [g.name for g in graphs] == ["model.onnx", "model.onnx", "model", "g"]
    assert len({tuple((o.name, o.type, o.inputs, o.outputs) for o in g.operators) for g in graphs}) == 1


@pytest.mark.parametrize("model", [3, None, ["x"], object()])
def test_other_things_are_no_model(model: Any) -> None:
    with pytest.raises(UsageError, match=r"give a path, bytes, an onnx.ModelProto, or a model"):
        load(model)


@pytest.mark.parametrize(("ir", "opset"), [(3, 7), (4, 9), (8, 17), (10, 21), (13, 26)])
def test_old_and_new_formats(ir: int, opset: int) -> None:
    model = parse_model(PLAIN)
    model.ir_version, model.opset_import[0].version = ir, opset
    assert [o.version for o in load(model).operators] == [opset]


def test_the_long_name_of_the_standard_domain() -> None:
    model = parse_model(PLAIN)
    model.opset_import[0].domain = model.graph.node[0].domain = "ai.onnx"
    assert [(o.type, o.version) for o in load(model).operators] == [("Relu", 18)]


# functions


def test_functions_are_inlined() -> None:
    g = load(parse_model(FUNCTIONS))
    assert [o.type for o in g.operators] == ["Abs", "Neg", "Abs", "Neg"]
    assert g.notes == ()


def test_inner_names_of_functions_never_meet_those_of_weights() -> None:
    model = parse_model(FUNCTIONS)
    inner = load(model).operators[0].out.name
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), inner))
    assert len(load(model).operators) == 4


def chain(length: int, calls: int, **last: Any) -> ModelProto:
    """Functions f0 ... each calling the next `calls` times."""
    model = parse_model(PLAIN)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    for i in range(length):
        called = f"f{i + 1}" if i + 1 < length else "Abs"
        domain = "mine" if i + 1 < length else ""
        nodes = [helper.make_node(called, [f"t{k}"], [f"t{k + 1}"], domain=domain) for k in range(calls)]
        f: FunctionProto = helper.make_function("mine", f"f{i}", ["t0"], [f"t{calls}"], nodes, opsets)
        model.functions.append(f)
    model.graph.node[0].op_type, model.graph.node[0].domain = "f0", "mine"
    return model


def test_nested_functions_are_bounded() -> None:
    assert len(load(chain(3, 4)).operators) == 64
    with pytest.raises(ModelError, match=r"inlining its functions would make .* nodes; the limit is"):
        load(chain(40, 10))


def test_bodies_inside_functions_count() -> None:
    model = chain(3, 100)
    branch = helper.make_graph([helper.make_node("Abs", ["a"], [f"b{i}"]) for i in range(1000)], "g", [], [])
    model.functions[2].node.append(helper.make_node("If", ["a"], ["z"], then_branch=branch, else_branch=branch))
    with pytest.raises(ModelError, match=r"would make 2.,...,... nodes"):
        load(model)


def test_big_bodies_are_bounded_too() -> None:
    model = chain(3, 30)
    model.functions[2].node[0].doc_string = "x" * 1_000_000
    with pytest.raises(ModelError, match=r"would make 8.. MiB of nodes; the limit is 96 MiB"):
        load(model)


def test_functions_that_call_each_other_are_refused() -> None:
    model = chain(3, 1)
    model.functions[2].node[0].op_type, model.functions[2].node[0].domain = "f0", "mine"
    with pytest.raises(ModelError, match="call each other in a circle"):
        load(model)


# weights


def weights(**fields: Any) -> ModelProto:
    model = parse_model(f"{HEAD} g (float[2, 3] x) => (float[] y) {{ y = Add(x, w) }}")
    model.graph.initializer.append(TensorProto(name="w", **{"data_type": TensorProto.FLOAT, **fields}))
    return model


@pytest.mark.parametrize("dims", [[2, 3], [2000, 3]])
def test_weights_that_were_taken_out_are_not_missed(dims: list[int]) -> None:
    assert load(weights(dims=dims), shapes={"x": dims}).operators[0].out.shape == tuple(dims)


@pytest.mark.parametrize(
    "fields",
    [
        {"dims": [2, 3], "raw_data": bytes(23)},
        {"dims": [2, 3], "raw_data": bytes(28)},
        {"dims": [2, 3], "float_data": [1.0]},
        {"dims": [3], "data_type": TensorProto.INT64},
        {"dims": [2000, 3000], "raw_data": bytes(24)},
        {"dims": [3], "data_type": TensorProto.STRING, "string_data": [b"a"]},
        {"dims": [3], "data_type": TensorProto.INT4, "raw_data": bytes(3)},
        {"dims": [3], "data_type": TensorProto.COMPLEX64, "float_data": [1.0] * 3},
    ],
)
def test_data_that_do_not_fill_their_shape(fields: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="'w': its data do not fill its shape"):
        load(weights(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"dims": [2, 3], "raw_data": bytes(24)},
        {"dims": [], "float_data": [1.0]},
        {"dims": [0, 3]},
        {"dims": [2000, 2, 3]},  # weightless
        {"dims": [3], "data_type": TensorProto.INT4, "raw_data": bytes(2)},
        {"dims": [3], "data_type": TensorProto.UINT4, "int32_data": [1, 2]},
        {"dims": [3], "data_type": TensorProto.BFLOAT16, "raw_data": bytes(6)},
        {"dims": [3], "data_type": TensorProto.FLOAT16, "int32_data": [1, 2, 3]},
        {"dims": [3], "data_type": TensorProto.COMPLEX64, "float_data": [1.0] * 6},
        {"dims": [3], "data_type": TensorProto.STRING, "string_data": [b"a", b"b", b"\xff"]},
        {"dims": [3], "data_type": TensorProto.FLOAT8E4M3FN, "raw_data": bytes(3)},
    ],
)
def test_data_of_every_kind(fields: dict[str, Any]) -> None:
    model = weights(**fields)
    model.opset_import[0].version = 25
    model.graph.node[0].op_type = "Identity"
    model.graph.node[0].input[:] = ["w"]
    assert load(model).outputs[0].shape == tuple(fields["dims"])


@pytest.mark.parametrize("dims", [[2**62, 2**62], [-1], [2**50], [-(2**63), 0]])
def test_impossible_sizes(dims: list[int]) -> None:
    with pytest.raises(ModelError, match="overflows"):
        load(weights(dims=dims))


@pytest.mark.parametrize("kind", [0, 99, -1])
def test_an_unknown_element_type(kind: int) -> None:
    with pytest.raises(ModelError, match="unknown element type"):
        load(weights(dims=[3], data_type=kind, raw_data=bytes(12)))


# external data


def outside(location: str, offset: str = "0") -> ModelProto:
    """A Reshape whose target is in another file."""
    model = parse_model(f"{HEAD} g (float[6] x) => (float[a, b] y) {{ y = Reshape(x, s) }}")
    s = TensorProto(name="s", data_type=TensorProto.INT64, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset)):
        s.external_data.add(key=key, value=value)
    model.graph.initializer.append(s)
    return model


def shape_of(path: Path) -> tuple[int, ...]:
    return load(path).outputs[0].shape


def test_a_small_table_beside_the_model_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(outside("tables/data.bin", "8").SerializeToString())
    assert "assumed-shape" in [n.code for n in load(path).notes]  # not there: a prediction all the same
    (tmp_path / "tables").mkdir()
    data = tmp_path / "tables" / "data.bin"
    data.write_bytes(np.array([7, 2, 3, 9], np.int64).tobytes())
    assert shape_of(path) == (2, 3)
    data.write_bytes(bytes(9))
    assert "assumed-shape" in [n.code for n in load(path).notes]


@pytest.mark.parametrize("offset", ["-8", "x", "9" * 30])
def test_offsets_that_make_no_sense(tmp_path: Path, offset: str) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(64))
    path = tmp_path / "model.onnx"
    path.write_bytes(outside("data.bin", offset).SerializeToString())
    assert "assumed-shape" in [n.code for n in load(path).notes]


@pytest.mark.parametrize(
    "location", ["../secret", "a/../../secret", "/etc/passwd", "C:\\x", "\\\\host\\x", "..\\x", "C:x"]
)
def test_data_outside_the_folder_are_refused(location: str) -> None:
    with pytest.raises(ModelError, match="'s' keeps its data outside the model's folder"):
        load(outside(location))
    second = outside("data.bin")
    second.graph.initializer[0].external_data.add(key="location", value=location)  # the last one counts
    with pytest.raises(ModelError, match="'s' keeps its data outside the model's folder"):
        load(second)


def test_no_way_out_through_links_and_pipes(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(np.array([2, 3], np.int64).tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    for location in ("link", "pipe", "", ".", "a\0b"):
        path = folder / "model.onnx"
        path.write_bytes(outside(location).SerializeToString())
        assert "assumed-shape" in [n.code for n in load(path).notes], location


def test_hidden_places_for_escaping_data() -> None:
    escaping = outside("../secret").graph.initializer[0]
    inside = parse_model(PLAIN)
    inside.graph.node[0].attribute.append(helper.make_attribute("value", escaping))
    sparse = parse_model(PLAIN)
    sparse.graph.sparse_initializer.add().values.CopyFrom(escaping)
    body = parse_model(PLAIN)
    body.graph.node[0].attribute.add(name="g", type=5).g.initializer.append(escaping)
    function = parse_model(FUNCTIONS)
    function.functions[0].node[0].attribute.append(helper.make_attribute("value", escaping))
    default, deep = parse_model(FUNCTIONS), parse_model(FUNCTIONS)
    default.functions[0].attribute_proto.append(helper.make_attribute("value", escaping))
    deep.functions[0].attribute_proto.add(name="g", type=5).g.initializer.append(escaping)
    for model in (inside, sparse, body, function, default, deep):
        with pytest.raises(ModelError, match="outside the model's folder"):
            load(model)


def test_nesting_is_bounded() -> None:
    model = parse_model(PLAIN)
    graph = model.graph
    for _ in range(1000):
        graph = graph.node.add(op_type="If", output=["z"]).attribute.add(name="then_branch", type=5).g
    with pytest.raises(ModelError, match="nests graphs more than 64 deep"):
        load(model)
