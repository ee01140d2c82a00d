"""A family of operators that is added to op_models: its work, and its outputs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

import onnxperf
import op_models


def model(**attrs: Any) -> onnx.ModelProto:
    """y = MyOp(x, w), with x and y of 512 x 1024 and w of 1024."""
    node = helper.make_node("MyOp", ["x", "w"], ["y"], "mine", domain="my.domain", **attrs)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [512, 1024]) for n in "xy")
    w = helper.make_tensor("w", TensorProto.FLOAT, [1024], [0.0] * 1024)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("my.domain", 1)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y], [w]), opset_imports=opsets)


FAMILY = '''
"""A family of its own."""

from op_models.core import Gemm, Operator, Tensor, Work, work
from op_models.rules import Like, Outputs, op


def widened(x: Tensor, w: Tensor, *, factor: int = 1) -> Outputs:
    """As many columns as the weights have rows, times the factor."""
    return [("float16", (*x.shape[:-1], w.shape[0] * factor))]


@op("my.domain::MyOp", outputs=widened)
@op("my.domain::Product", outputs=Like("MatMul", (0, 1)))
def my_op(op: Operator, x: Tensor, w: Tensor) -> Work:
    """2 m n k."""
    size = Gemm(1, x.shape[0], w.shape[0], x.shape[1])
    return work(op, size, matrix=2 * size.m * size.n * size.k)
'''


def test_an_operator_is_one_file(tmp_path: Path) -> None:
    """A file that is added to a copy of op_models gives its operators work, and outputs that no file declares."""
    shutil.copytree(Path(op_models.__file__).parent, tmp_path / "op_models")
    (tmp_path / "op_models/my_family.py").write_text(FAMILY, encoding="utf-8")
    proto = model(factor=3)
    proto.graph.node[0].output[0] = "wide"
    proto.graph.node.add(op_type="Relu", input=["wide"], output=["y"])
    proto.graph.output[0].ClearField("type")
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    code = (
        "import op_models; from onnxperf.graph import load; from op_models import work_of\n"
        f"assert op_models.__file__.startswith({str(tmp_path)!r})\n"
        f"graph = load({str(tmp_path / 'model.onnx')!r})\n"
        "print(graph.outputs[0].shape, graph.outputs[0].dtype, graph.notes, work_of(graph.operators[0]).matrix_flops)"
    )
    path = os.pathsep.join((str(tmp_path), str(Path(onnxperf.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == f"(512, 3072) float16 () {2 * 512 * 1024 * 1024}"
