"""Every activation's shape must equal what ONNX Runtime's own symbolic shape inference finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
import pytest
from onnx import ModelProto, helper
from onnx.parser import parse_model

from onnxperf.graph import Graph, load
from tests.zoo import PLAIN, sizes

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
BIG = 4096  # elements: tables that shape arithmetic may read stay where they are
SIZES = {
    "gpt2-dynamic": ({"batch": 1, "sequence": 1}, {"batch": 1, "sequence": 128}, {"batch": 3, "sequence": 17}),
    "distilbert-dynamic": ({"batch": 1, "sequence": 128}, {"batch": 2, "sequence": 384}),
    "keras-vgg16": ({"batch": 1},),
}


def cases() -> Iterator[object]:
    for path in PLAIN:
        for dims in SIZES.get(path.stem, (sizes(path) or {},)):
            at = "-".join(map(str, dims.values()))
            yield pytest.param(path, dims, id=f"{path.stem}-{at}" if at else path.stem)
    for path in sorted(LIGHT.glob("*.onnx")):
        yield pytest.param(path, {}, id=path.stem)


def bound(model: ModelProto, dims: Mapping[str, int]) -> ModelProto:
    """The model with its open dimensions set, no shapes but the inputs', and big weights as inputs.

    ONNX Runtime's inference gives up at the masks of old Dropouts, which nothing reads.
    """
    for node in model.graph.node:
        if node.op_type == "Dropout":
            del node.output[1:]
    for info in (*model.graph.input, *model.graph.output):
        for d in info.type.tensor_type.shape.dim:
            if d.dim_param in dims:
                d.dim_value = dims[d.dim_param]
            else:
                d.ClearField("dim_param")  # a sum, say: it is inferred
    del model.graph.value_info[:]
    weights = list(model.graph.initializer)
    known = {i.name for i in model.graph.input}
    del model.graph.initializer[:]
    for t in weights:
        if prod(t.dims) <= BIG and t.data_location != t.EXTERNAL:
            model.graph.initializer.append(t)
        elif t.name not in known:
            model.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    return model


def activations(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {t.name: t.shape for o in graph.operators for t in o.outputs}


@pytest.mark.parametrize(("path", "dims"), list(cases()))
def test_shapes_equal_onnxruntimes(
    path: Path, dims: Mapping[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime's shape inference")
    pytest.importorskip("sympy", reason="onnxruntime's shape inference needs sympy")
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    monkeypatch.chdir(tmp_path)  # it leaves a file behind where it fails
    graph = load(path, dims=dims)
    model = bound(onnx.load(path, load_external_data=False), dims)
    inferred = SymbolicShapeInference.infer_shapes(model, auto_merge=True)
    theirs = {
        info.name: tuple(d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim)
        for info in (*inferred.graph.value_info, *inferred.graph.output)
    }
    ours = activations(graph)
    assert not [n for n in graph.notes if n.code == "assumed-shape"]
    assert len(ours) >= len(graph.operators)
    assert ours == {name: theirs[name] for name in ours}


@pytest.mark.parametrize("pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("strides", "output_padding"), [([2, 2], [1, 1]), ([2, 3], [1, 0]), ([2, 2], [0, 0])])
def test_a_transposed_convolution_has_the_shape_that_it_runs_with(
    pad: str, strides: list[int], output_padding: list[int]
) -> None:
    """With SAME padding the output has input x stride positions, whatever `output_padding` is."""
    x, w, y = (
        helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [1, 2, 3, 3]), ("w", [2, 1, 3, 3]), ("y", None))
    )
    attrs = {"auto_pad": pad, "strides": strides, "output_padding": output_padding}
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["t"], **attrs), helper.make_node("Relu", ["t"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x, w], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ran = session.run(None, {"x": np.ones((1, 2, 3, 3), np.float32), "w": np.ones((2, 1, 3, 3), np.float32)})
    assert load(model).outputs[0].shape == ran[0].shape


#: Nodes that compute n, a list of sizes, of s, those of x, as older opsets write them: with attributes.
COMPUTED = {
    7: [
        "n = Slice<starts = [1], ends = [3], axes = [0]>(s)",
        "g = Gather(s, one) n = Unsqueeze<axes = [0]>(g)",
        "g = Slice<starts = [0], ends = [1]>(s) q = Squeeze<axes = [0]>(g) n = Unsqueeze<axes = [0]>(q)",
        "a, b = Split<axis = 0, split = [1, 2]>(s) n = Concat<axis = 0>(b, a)",
        "f = Cast<to = 1>(s) r = ReduceProd<axes = [0], keepdims = 1>(f) n = Cast<to = 7>(r)",
        "f = Cast<to = 1>(s) c = Clip<max = 3.0>(f) n = Cast<to = 7>(c)",
        "f = Cast<to = 1>(s) t, i = TopK<k = 2, axis = 0>(f) n = Cast<to = 7>(t)",
    ],
    11: [
        "n = Slice(s, one_of, three_of)",
        "g = Gather(s, one) n = Unsqueeze<axes = [0]>(g)",
        "f = Cast<to = 1>(s) r = ReduceSum<axes = [0], keepdims = 1>(f) n = Cast<to = 7>(r)",
    ],
    13: ["g = Gather(s, one) n = Unsqueeze(g, zero_of)", "r = ReduceSum(s, zero_of) n = Identity(r)"],
    18: ["f = Cast<to = 1>(s) r = ReduceProd(f, zero_of) n = Cast<to = 7>(r)"],
}  # fmt: skip


@pytest.mark.parametrize(("opset", "nodes"), [(opset, nodes) for opset, each in COMPUTED.items() for nodes in each])
def test_sizes_are_computed_as_the_opset_of_the_file_has_it(opset: int, nodes: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[2, 3, 4] x) => (int64[k] n)
      <int64 one = {{1}}, int64[1] zero_of = {{0}}, int64[1] one_of = {{1}}, int64[1] three_of = {{3}}>
      {{ s = Shape(x) {nodes} }}"""
    model = parse_model(text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (n,) = session.run(None, {"x": np.zeros((2, 3, 4), np.float32)})
    assert load(model).outputs[0].value == tuple(n.tolist())
