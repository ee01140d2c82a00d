"""A rule of one's own, from the decorator to the answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import onnxperf
import op_models
from op_models import OpModelError
from op_models.rules import _OUTPUTS, _RULES


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Rules are the process's; one test must not teach the next."""
    tables: tuple[dict[str, Any], ...] = (_RULES, _OUTPUTS)
    before = [dict(table) for table in tables]
    yield
    for table, rules in zip(tables, before, strict=True):
        table.clear()
        table.update(rules)


def model(**attrs: Any) -> onnx.ModelProto:
    """y = MyOp(x, w), with x and y of 512 x 1024 and w of 1024."""
    node = helper.make_node("MyOp", ["x", "w"], ["y"], "mine", domain="my.domain", **attrs)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [512, 1024]) for n in "xy")
    w = helper.make_tensor("w", TensorProto.FLOAT, [1024], [0.0] * 1024)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("my.domain", 1)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y], [w]), opset_imports=opsets)


def test_a_rule_of_ones_own_is_used() -> None:
    unknown = onnxperf.predict(model(), gpu="l4").kernels[0]
    assert (unknown.source, unknown.flops) == ("assumed", 0)

    @onnxperf.op("my.domain::MyOp")
    def my_op(op: Any, x: Any, w: Any, *, alpha: float = 1.0) -> Any:
        """max(0, alpha x + w): 3 an element, 2 where alpha is 1."""
        return onnxperf.work(op, onnxperf.Pointwise(x.size), vector=x.size * (2 + (alpha != 1.0)))

    for attrs, each in (({}, 2), ({"alpha": 0.5}, 3), ({"beta": 0.5}, 2)):
        found = onnxperf.predict(model(**attrs), gpu="l4").kernels[0]
        assert (found.source, found.flops, found.nodes) == ("analytic", each * 512 * 1024, ("mine",))
        assert found.bytes_read == 4 * (512 * 1024 + 1024)


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


def test_a_rule_may_take_a_size_with_a_model_of_its_own() -> None:
    @onnxperf.op("my.domain::MyOp")
    def my_op(op: Any, x: Any, w: Any) -> Any:
        """x M + w with a matrix M that is made up on the way."""
        size = onnxperf.Gemm(1, x.shape[0], w.shape[0], x.shape[1])
        return onnxperf.work(op, size, matrix=2 * size.m * size.n * size.k)

    found = onnxperf.predict(model(), gpu="l4").kernels[0]
    assert found.flops == 2 * 512 * 1024 * 1024
    assert found.seconds > 2 * 512 * 1024 * 1024 / 121e12


def test_registering_twice_raises() -> None:
    def mine(op: Any) -> Any:
        return onnxperf.work(op, onnxperf.Pointwise(1))

    onnxperf.op("my.domain::MyOp")(mine)
    with pytest.raises(OpModelError, match=r"my\.domain::MyOp has a rule already"):
        onnxperf.op("my.domain::MyOp")(mine)
    with pytest.raises(OpModelError, match="Conv has a rule already"):
        onnxperf.op("Conv")(mine)


def test_everything_a_rule_is_made_of_is_at_hand() -> None:
    shared = set(onnxperf.__all__) & set(op_models.__all__)
    sizes = {"Attention", "Conv", "Gemm", "Move", "Pointwise", "Recurrent", "Rows"}
    assert shared == {"Operator", "Tensor", "Work", "op", "work", *sizes}
    assert all(getattr(onnxperf, name) is getattr(op_models, name) for name in shared)
