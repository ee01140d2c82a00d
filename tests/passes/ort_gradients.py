"""What ONNX Runtime Training makes of models: written by onnxruntime-training, read by tests.

`python -m tests.passes.ort_gradients`, with onnxruntime-training 1.19.2 and PyTorch installed, writes
`ort_gradients.json`: of each case below the types of the nodes that compute gradients, and of each model of FOLDER
(see there) those of the graph that its session runs; one of these graphs with its backward pass is kept as a file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
EXPECTED = HERE / "ort_gradients.json"
#: Models in training, small ones with random weights, as PyTorch exports them at opset 14 without folding constants.
FOLDER = HERE / "ort_training"
ROWS, IMAGE = (4, 8, 16), (4, 8, 16, 16)
UNCOUNTED = ("Cast", "Constant", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze")  # views and sizes


def of(
    *floats: tuple[int, ...], op: str = "", constants: Sequence[Any] = (), outputs: int = 1, opset: int = 17,
    domain: str = "", **attrs: Any,
) -> dict[str, Any]:  # fmt: skip
    own = {"op": op, "constants": constants, "outputs": outputs, "opset": opset, "domain": domain}
    return {"floats": floats, "attrs": attrs, **own}


def numbers(*values: float, dtype: type = np.int64) -> np.ndarray:
    return np.array(values, dtype)


CASES: dict[str, dict[str, Any]] = {
    **{name: of(ROWS) for name in (
        "Abs", "Cos", "Erf", "Exp", "LeakyRelu", "Log", "LogSoftmax", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sin",
        "Softmax", "Sqrt", "Tanh",
    )},
    **{name: of(ROWS, ROWS) for name in ("Add", "Div", "Max", "Min", "Mul", "Sub")},
    "Add of a bias": of(ROWS, (16,), op="Add"), "Mul by a row": of(ROWS, (16,), op="Mul"),
    "Gelu": of(ROWS, opset=20), "FastGelu": of(ROWS, domain="com.microsoft"),
    "QuickGelu": of(ROWS, domain="com.microsoft"), "BiasGelu": of(ROWS, (16,), domain="com.microsoft"),
    "Pow": of(ROWS, constants=[np.float32(3)]), "Clip": of(ROWS, constants=[np.float32(0), np.float32(6)]),
    "Trilu": of((8, 8)), "Transpose": of(IMAGE, perm=[0, 2, 1, 3]),
    "Expand": of((1, 8, 1), constants=[numbers(4, 8, 16)]),
    "MatMul": of(ROWS, (16, 32)), "MatMul of batches": of(ROWS, (4, 16, 32), op="MatMul"),
    "MatMul with fewer axes": of((4, 2, 8, 16), (2, 16, 32), op="MatMul"),
    "Gemm": of((8, 16), (32, 16), (32,), transB=1),
    "Conv": of(IMAGE, (8, 8, 3, 3), (8,), kernel_shape=[3, 3]),
    "ConvTranspose": of(IMAGE, (8, 8, 3, 3), (8,), kernel_shape=[3, 3]),
    "MaxPool": of(IMAGE, kernel_shape=[2, 2]), "AveragePool": of(IMAGE, kernel_shape=[2, 2]),
    "GlobalAveragePool": of(IMAGE),
    "LayerNormalization": of(ROWS, (16,), (16,), outputs=3),
    "BatchNormalization": of(
        IMAGE, (8,), (8,), constants=[np.zeros(8, "f"), np.ones(8, "f")], outputs=3, training_mode=1
    ),
    "ReduceMean": of(IMAGE, axes=[2, 3]), "ReduceSum": of(ROWS, constants=[numbers(2)]), "ReduceL2": of(ROWS, axes=[2]),
    "Slice": of(ROWS, constants=[numbers(0), numbers(4), numbers(2)]), "Concat": of(ROWS, ROWS, axis=1),
    "Split": of(IMAGE, axis=1, outputs=2), "Pad": of(IMAGE, constants=[numbers(0, 0, 1, 1, 0, 0, 1, 1)]),
    "Gather": of(ROWS, constants=[numbers(1, 2)], axis=1), "GatherND": of(ROWS, constants=[np.array([[0], [1]])]),
    "GatherElements": of((4, 8), constants=[np.zeros((4, 8), np.int64)]),
    "TopK": of(ROWS, constants=[numbers(2)], outputs=2),
    "Resize": of(IMAGE, constants=[None, numbers(1, 1, 2, 2, dtype=np.float32)], mode="linear"),
}  # fmt: skip


def model_of(name: str) -> onnx.ModelProto:
    """A model with the operator of a case between products with weights and a sum, so that it has gradients."""
    case = CASES[name]
    inputs, stored, nodes, read = [], [], [], []
    for i, shape in enumerate(case["floats"]):
        inputs.append(helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape))
        stored.append(numpy_helper.from_array(np.ones(shape, np.float32), f"w{i}"))
        nodes.append(helper.make_node("Mul", [f"x{i}", f"w{i}"], [f"h{i}"], name=f"product{i}"))
        read.append(f"h{i}")
    for j, value in enumerate(case["constants"]):
        read.append("" if value is None else f"c{j}")
        stored += [] if value is None else [numpy_helper.from_array(np.asarray(value), f"c{j}")]
    type, outputs = case["op"] or name, [f"y{k}" for k in range(case["outputs"])]
    nodes.append(helper.make_node(type, read, outputs, name="op", domain=case["domain"], **case["attrs"]))
    nodes.append(helper.make_node("ReduceSum", ["y0"], ["loss"], name="total", keepdims=0))
    result = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    opsets = [helper.make_opsetid("", case["opset"]), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(
        helper.make_graph(nodes, name, inputs, [result], stored), opset_imports=opsets, ir_version=9
    )


def counted(types: Sequence[str]) -> dict[str, int]:
    """How many nodes there are of each type, without views and what computes sizes."""
    return dict(sorted(Counter(t for t in types if t not in UNCOUNTED).items()))


def _types(nodes: Any) -> list[str]:
    return [f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in nodes]


def _unfolded(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that a session would not fold if the gradient of the sum were not constant."""
    known = {t.name for t in graph.initializer} | {""}
    left = []
    for node in graph.node:
        gradient = any(name.endswith("_grad") for name in node.output)
        if node.op_type in ("Constant", "Shape", "Size") or (known.issuperset(node.input) and not gradient):
            known.update(node.output)
        else:
            left.append(node)
    return left


def _run(folder: Path) -> Any:
    """The nodes that a session runs of the training model, without the fusion that the CUDA provider lacks."""
    import onnxruntime as ort

    session = ort.SessionOptions()
    session.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session.optimized_model_filepath = str(folder / "run.onnx")
    ort.InferenceSession(
        str(folder / "training_model.onnx"),
        session,
        ["CPUExecutionProvider"],
        disabled_optimizers=["GemmActivationFusion"],
    )
    return onnx.load(folder / "run.onnx").graph.node


def _artifacts(model: onnx.ModelProto, weights: list[str], loss: bool, folder: Path) -> None:
    from onnxruntime.training import artifacts

    kind = artifacts.LossType.CrossEntropyLoss if loss else None
    artifacts.generate_artifacts(model, requires_grad=weights, loss=kind, artifact_directory=str(folder))


def main() -> None:
    """Write EXPECTED."""
    import tempfile

    found: dict[str, dict[str, dict[str, int]]] = {"cases": {}, "models": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            weights = [f"w{i}" for i in range(len(case["floats"]))]
            _artifacts(model_of(name), weights, False, Path(folder))
            nodes = _unfolded(onnx.load(f"{folder}/training_model.onnx").graph)
            own = [n for n in nodes if "Grad" in n.name + n.op_type and not n.name.startswith(("product", "total"))]
            found["cases"][name] = counted(_types(n for n in own if n.op_type != "InPlaceAccumulatorV2"))
        for path in sorted(FOLDER.glob("*.onnx")):
            model = onnx.load(path, load_external_data=False)
            kept = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and t.dims]
            for t in kept:  # the file has no weights
                del t.external_data[:]
                t.data_location, t.raw_data = 0, np.zeros(t.dims, np.float32).tobytes()
            weights = [t.name for t in kept if "running" not in t.name]
            _artifacts(model, weights, True, Path(folder))
            if path.stem == "resnet":
                (FOLDER / "held" / path.name).write_bytes(Path(folder, "training_model.onnx").read_bytes())
            nodes = _run(Path(folder))
            found["models"][path.stem] = counted(_types(nodes))
    EXPECTED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
