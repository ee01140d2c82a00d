"""ai.onnx.ml: the outputs of every operator are those that ONNX Runtime makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxperf.graph import load

ONE, MANY = (4,), (7, 4)  # one sample of four features, and seven
LABELS = {"classlabels_ints": [0, 1, 2, 3]}
TREE = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
}  # fmt: skip
LEAVES: dict[str, Any] = {"treeids": [0, 0], "nodeids": [1, 2], "ids": [0, 1], "weights": [1.0, 2.0]}
KERNEL = {"kernel_params": [0.1, 0.0, 3.0], "rho": [0.1]}


def vectors(classes: int, probabilities: bool, strings: bool = False) -> dict[str, Any]:
    pairs = classes * (classes - 1) // 2
    names: dict[str, Any] = {"classlabels_ints": [*range(classes)]}
    if strings:
        names = {"classlabels_strings": [f"c{i}" for i in range(classes)]}
    sigmoids = {"prob_a": [-1.0] * pairs, "prob_b": [0.1] * pairs} if probabilities else {}
    return {
        **KERNEL, "kernel_type": "RBF", "vectors_per_class": [3] * classes, "rho": [0.1] * pairs,
        "support_vectors": [0.1] * (12 * classes), "coefficients": [0.1] * (3 * classes * (classes - 1)),
        **names, **sigmoids,
    }  # fmt: skip


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("LinearClassifier", "float32", {"coefficients": [0.1] * 16, "intercepts": [0.1] * 4, **LABELS}),
    (
        "LinearClassifier", "float32",
        {"coefficients": [0.1] * 4, "intercepts": [0.1], "classlabels_strings": ["no", "yes"]},
    ),
    ("LinearRegressor", "float32", {"coefficients": [0.1] * 12, "intercepts": [0.1] * 3, "targets": 3}),
    ("LinearRegressor", "float32", {"coefficients": [0.1] * 4}),
    *(("SVMClassifier", "float32", vectors(n, p)) for n in (2, 3, 4) for p in (True, False)),
    ("SVMClassifier", "float32", vectors(4, False, strings=True)),
    ("SVMClassifier", "float32", {**KERNEL, "kernel_type": "LINEAR", "coefficients": [0.1] * 16, **LABELS}),
    (
        "SVMRegressor", "float32",
        {**KERNEL, "kernel_type": "RBF", "n_supports": 3, "support_vectors": [0.1] * 12, "coefficients": [0.1] * 3},
    ),
    (
        "TreeEnsembleClassifier", "float32",
        {**TREE, "classlabels_int64s": [5, 6], **{f"class_{k}": v for k, v in LEAVES.items()}},
    ),
    ("TreeEnsembleRegressor", "float32", {**TREE, "n_targets": 2, **{f"target_{k}": v for k, v in LEAVES.items()}}),
    *(("Scaler", dtype, {"offset": [1.0] * 4, "scale": [2.0] * 4}) for dtype in ("float32", "float64", "int64")),
    *(("Normalizer", dtype, {"norm": "L2"}) for dtype in ("float32", "float64", "int64")),
    *(("FeatureVectorizer", dtype, {"inputdimensions": [4]}) for dtype in ("float32", "float64", "int64")),
    ("Imputer", "float32", {"imputed_value_floats": [1.0] * 4, "replaced_value_float": 0.0}),
    ("Binarizer", "float32", {"threshold": 0.5}),
    ("OneHotEncoder", "int64", {"cats_int64s": [0, 1, 2]}),
    ("LabelEncoder", "int64", {"keys_int64s": [0], "values_floats": [1.0]}),
    ("CategoryMapper", "int64", {"cats_strings": ["a"], "cats_int64s": [1]}),
    ("ArrayFeatureExtractor", "float32", {}),
]  # fmt: skip


def model(op: str, x: np.ndarray[Any, Any], attrs: dict[str, Any]) -> ModelProto:
    """One operator on x, and indices where it picks columns."""
    indices = [numpy_helper.from_array(np.array([0, 2]), "i")] if op == "ArrayFeatureExtractor" else []
    names = ["label", "scores"] if op.endswith("Classifier") else ["y"]
    node = helper.make_node(op, ["x", *(t.name for t in indices)], names, domain="ai.onnx.ml", **attrs)
    given = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    graph = helper.make_graph([node], "g", given, [helper.make_empty_tensor_value_info(n) for n in names], indices)
    ids = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=ids, ir_version=8)


@pytest.mark.parametrize("shape", [ONE, MANY], ids=["one sample", "samples"])
@pytest.mark.parametrize(
    ("op", "dtype", "attrs"), CASES, ids=[f"{op}-{dtype}-{i}" for i, (op, dtype, _) in enumerate(CASES)]
)
def test_outputs_are_those_of_onnx_runtime(op: str, dtype: str, attrs: dict[str, Any], shape: tuple[int, ...]) -> None:
    if op.startswith("Tree") and shape == ONE:
        pytest.skip("onnx's own inference asks for two axes")
    x = np.zeros(shape, dtype)
    made = model(op, x, attrs)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = [("string" if y.dtype == object else str(y.dtype), y.shape) for y in session.run(None, {"x": x})]
    assert [(t.dtype, t.shape) for t in load(made).outputs] == expected


def test_a_dictionary_becomes_one_row() -> None:
    entries = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", int64_vocabulary=[3, 5, 8])
    graph = helper.make_graph(
        [node], "g", [helper.make_value_info("x", entries)], [helper.make_empty_tensor_value_info("y")]
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("", 17)], ir_version=8
    )
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": {3: 1.0}})
    assert [(t.dtype, t.shape) for t in load(made).outputs] == [(str(y.dtype), y.shape)]
