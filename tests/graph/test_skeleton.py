"""A model without its weights predicts what the whole one does, and tells nothing else of where it came from."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxperf
from onnxperf.graph import load
from onnxperf.graph.skeleton import INSIDE_BYTES, WEIGHTS, skeleton
from onnxperf.ground.errors import ModelError, UsageError
from tests.graph.test_rebatch import model, shapes

ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / "samples").glob("*.onnx")), *sorted((ROOT / "tests" / "data").glob("*.onnx"))]
SECRET = "/home/somebody/project"


def predicted(model: Any, **terms: Any) -> Any:
    """The whole answer, but for the model's name, which bytes don't have."""
    p = onnxperf.predict(model, gpu="l4", **terms)
    return replace(p, scenario=replace(p.scenario, model=""))


def parsed(data: bytes) -> ModelProto:
    return onnx.load_from_string(data)


def with_weights(proto: ModelProto, seed: int = 0) -> ModelProto:
    """The model with random numbers for what it keeps outside."""
    r = np.random.default_rng(seed)
    full = ModelProto()
    full.CopyFrom(proto)
    for t in full.graph.initializer:
        if t.data_location == TensorProto.EXTERNAL:
            dtype = helper.tensor_dtype_to_np_dtype(t.data_type)
            value = r.standard_normal(tuple(t.dims), np.float32).astype(dtype)
            t.CopyFrom(numpy_helper.from_array(value, t.name))
    return full


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_a_skeleton_predicts_the_same(path: Path) -> None:
    proto = onnx.load(path, load_external_data=False)
    names = {d.dim_param for i in proto.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    dims = {name: 1 if name == "batch" else 32 for name in names}
    made = skeleton(path)
    assert predicted(made, dims=dims) == predicted(path, dims=dims)
    assert skeleton(made) == made
    assert len(made) <= path.stat().st_size


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2"])
@pytest.mark.parametrize("runtime", ["ort-cuda", "ort-cpu", "tensorrt", "torch-eager"])
def test_so_does_one_of_a_model_that_has_its_weights(name: str, runtime: str) -> None:
    full = with_weights(onnx.load(ROOT / "samples" / f"{name}.onnx", load_external_data=False))
    made = skeleton(full)
    assert len(made) < 200_000 < full.ByteSize()
    assert predicted(made, runtime=runtime) == predicted(full, runtime=runtime)


def constant(name: str, value: np.ndarray[Any, Any]) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], name=f"make_{name}", value=numpy_helper.from_array(value, name))


def graph_of(width: int, axes: int, factor: float, spread: bool, seed: int) -> ModelProto:
    """Products, scalings and shape arithmetic whose weights and constants are of all sizes."""
    r = np.random.default_rng(seed)
    w = r.standard_normal((width, width)).astype(np.float32)
    scale = np.full(width, factor, np.float32) if not spread else r.standard_normal(width).astype(np.float32)
    shape = np.array([1, -1, *[1] * axes, width], np.int64)
    nodes = [
        constant("w2", w.T.copy()),
        helper.make_node("Constant", [], ["table"], value_ints=list(range(width))),
        helper.make_node("Constant", [], ["bias"], value_floats=scale.tolist()),
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Add", ["a", "bias"], ["b"], name="add"),
        helper.make_node("Pow", ["b", "scale"], ["c"], name="pow"),
        helper.make_node("MatMul", ["c", "w2"], ["d"], name="second"),
        helper.make_node("Gather", ["d", "table"], ["e"], name="gather", axis=1),
        helper.make_node("Reshape", ["e", "shape"], ["y"], name="reshape"),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, n) for n, v in (("w", w), ("scale", scale), ("shape", shape))],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@settings(deadline=None, max_examples=40)
@example(4097, 1, 2.0, True, 0)
@given(
    st.sampled_from([2, 64, 256, 257, 400]), st.integers(0, 2), st.sampled_from([1.0, 2.0, 0.5]), st.booleans(),
    st.integers(0, 3),
)  # fmt: skip
def test_weights_and_constants_of_all_sizes(width: int, axes: int, factor: float, spread: bool, seed: int) -> None:
    model = graph_of(width, axes, factor, spread, seed)
    made = skeleton(model)
    assert predicted(made) == predicted(model.SerializeToString())
    assert len(made) < 80_000


def messages(message: Message) -> list[Message]:
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            found += [m for v in (value if hasattr(value, "__len__") else [value]) for m in messages(v)]
    return found


def test_weights_go_everywhere_and_all_the_same_way() -> None:
    """From the graph, a branch, a function, sparse tensors and constants; small ones and whole numbers stay."""
    large = numpy_helper.from_array(np.arange(300, dtype=np.float32), "large")
    table = numpy_helper.from_array(np.arange(2000, dtype=np.int64), "table")
    small = numpy_helper.from_array(np.arange(256, dtype=np.float32), "small")
    then = helper.make_graph(
        [helper.make_node("Identity", ["inside"], ["o"])], "then", [],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, [300])],
        [numpy_helper.from_array(np.arange(300, dtype=np.float32), "inside")],
    )  # fmt: skip
    function = helper.make_function(
        "local", "F", ["i"], ["o"], [constant("k", np.arange(300, dtype=np.float32)),
        helper.make_node("Add", ["i", "k"], ["o"])], [helper.make_opsetid("", 17)],
    )  # fmt: skip
    nodes = [
        helper.make_node("If", ["yes"], ["a"], name="if", then_branch=then, else_branch=then),
        helper.make_node("F", ["a"], ["b"], name="call", domain="local"),
        helper.make_node("Add", ["b", "large"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("yes", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [300])], [large, table, small],
        sparse_initializer=[helper.make_sparse_tensor(
            numpy_helper.from_array(np.arange(1, 301, dtype=np.float32), "sparse"),
            numpy_helper.from_array(np.arange(300, dtype=np.int64), "at"), [1000],
        )],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[function])
    made = parsed(skeleton(model))
    tensors = [m for m in messages(made) if isinstance(m, TensorProto)]
    out = [t for t in tensors if t.data_location == TensorProto.EXTERNAL]
    assert {t.name for t in out} == {"large", "inside", "k", "sparse"}
    places = [{e.key: e.value for e in t.external_data} for t in out]
    assert {p["location"] for p in places} == {WEIGHTS}
    spans = sorted((int(p["offset"]), int(p["offset"]) + int(p["length"])) for p in places)
    assert all(end == begin for (_, end), (begin, _) in pairwise(spans))
    assert [f.name for f in made.functions] == ["F"]
    kept = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer if t.name in ("small", "table")}
    assert kept["small"].nbytes == INSIDE_BYTES and (kept["table"] == np.arange(2000)).all()
    assert predicted(made) == predicted(model)


def test_nothing_tells_where_it_came_from() -> None:
    model = with_weights(onnx.load(ROOT / "samples" / "mobilenetv2.onnx", load_external_data=False))
    for message in messages(model):
        if "doc_string" in message.DESCRIPTOR.fields_by_name:
            message.doc_string = SECRET
        if "metadata_props" in message.DESCRIPTOR.fields_by_name:
            message.metadata_props.add(key="source", value=SECRET)
    model.training_info.add().initialization.doc_string = SECRET
    before = model.SerializeToString(deterministic=True)
    made = skeleton(model)
    assert SECRET.encode() in before and SECRET.encode() not in made
    assert model.SerializeToString(deterministic=True) == before
    assert predicted(made) == predicted(model)


def beside(folder: Path, location: str, kind: int = TensorProto.INT64) -> Path:
    """A model whose new shape lies in a file."""
    shape = TensorProto(name="shape", data_type=kind, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        shape.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [shape],
    )  # fmt: skip
    path = folder / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return path


def test_small_numbers_beside_the_model_are_taken_in(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(np.array([3, 8], np.int64).tobytes())
    path = beside(tmp_path, "data.bin")
    made = skeleton(path)
    (tensor,) = parsed(made).graph.initializer
    assert tensor.data_location == TensorProto.DEFAULT and numpy_helper.to_array(tensor).tolist() == [3, 8]
    assert predicted(made) == predicted(path)


def test_what_is_not_there_or_not_the_models_stays_outside(tmp_path: Path) -> None:
    (tensor,) = parsed(skeleton(beside(tmp_path, "customer-name.bin"))).graph.initializer
    assert {e.key: e.value for e in tensor.external_data} == {"location": WEIGHTS, "offset": "0", "length": "16"}
    (tmp_path / "secret").write_bytes(bytes(16))
    (tmp_path / "model").mkdir()
    with pytest.raises(ModelError, match="outside the model's folder"):
        skeleton(beside(tmp_path / "model", "../secret"))
    (tmp_path / "model" / "link").symlink_to(tmp_path / "secret")
    (tensor,) = parsed(skeleton(beside(tmp_path / "model", "link"))).graph.initializer
    assert tensor.data_location == TensorProto.EXTERNAL and not tensor.raw_data


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        skeleton(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="not an ONNX model"):
        skeleton(b"\x00\x01\x02")


def test_data_that_each_sample_has_alike_are_noted_to_be() -> None:
    """So that a file of batch 4 can be changed to another without its weights, too: not where they are not there."""
    text = """(float[4, 2000] x) => (float[4, 2000] y, float[4, 1, 2000, 1] z)
        { y = Add(x, w) f = Flatten<axis = 2>(x) z = Gather(f, at) }"""
    rng = np.random.default_rng(0)
    rows = rng.random((1, 2000), np.float32)
    for w, noted in ((np.repeat(rows, 4, 0), "1x4"), (rng.random((4, 2000), np.float32), "")):
        whole = model(text)
        at = np.arange(8000, dtype=np.int64).reshape(4, 1, 2000)
        whole.graph.initializer.extend([numpy_helper.from_array(w, "w"), numpy_helper.from_array(at, "at")])
        bare = skeleton(whole)
        kept = {t.name: t for t in parsed(bare).graph.initializer}
        assert [e.value for e in kept["w"].metadata_props] == [noted] * bool(noted) and not kept["w"].raw_data
        assert (numpy_helper.to_array(kept["at"]) == at).all()
        assert skeleton(bare) == bare
        if noted:
            assert shapes(load(bare, batch=1)) == shapes(load(whole, batch=1))
            continue
        with pytest.raises(UsageError, match="its data are not there"):
            load(bare, batch=1)
