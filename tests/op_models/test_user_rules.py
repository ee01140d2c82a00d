"""A rule of one's own, from the decorator to the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import onnxperf
from op_models import OpModelError
from op_models.core import _RULES


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Rules are the process's; one test must not teach the next."""
    before = dict(_RULES)
    yield
    _RULES.clear()
    _RULES.update(before)


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
    import op_models

    shared = set(onnxperf.__all__) & set(op_models.__all__)
    sizes = {"Attention", "Conv", "Gemm", "Move", "Pointwise", "Recurrent", "Rows"}
    assert shared == {"Operator", "Tensor", "Work", "op", "work", *sizes}
    assert all(getattr(onnxperf, name) is getattr(op_models, name) for name in shared)
