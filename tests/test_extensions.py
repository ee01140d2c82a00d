"""What is added to the house takes one file: nothing else is touched, and it is there wherever its kind is asked for.

Each test writes that file into an empty folder and uses what it brings.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import gpu_specs
import onnxperf
from gpu_specs import catalogue
from onnxperf.cli import cli
from op_models import OpModelError
from op_models.rules import _RULES

ROOT = Path(__file__).parents[1]
RESNET = ROOT / "samples" / "resnet50.onnx"


def added(folder: Path, name: str, text: str) -> Path:
    """The one file of an extension."""
    path = folder / name
    path.write_text(dedent(text), encoding="utf-8")
    return path


def imported(path: Path) -> None:
    """Run a module as a user's own code does."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


# a card

CARD = """
    name = "My Card"
    architecture = "Ada"
    capability = "8.9"
    node_nm = 5
    [processor]
    sms = 116
    lanes = 128
    base_MHz = 795
    boost_MHz = 2040
    smem_KiB = 100
    threads_per_sm = 1536
    [memory]
    memory_kind = "GDDR6"
    bandwidth_GBps = 600
    capacity_GiB = 24
    l2_MiB = 96
    [dense_TFLOPS]
    fp32 = 60.6
    tensor_tf32 = 120
    tensor_fp16 = 242
    [power_and_links]
    tdp_W = 144
    pcie = { gen = 4, lanes = 16 }
"""


def test_a_card_is_one_file(tmp_path: Path) -> None:
    path = added(tmp_path, "my-card.toml", CARD)
    mine = onnxperf.predict(RESNET, gpu=path)
    assert mine.scenario.gpu == "my-card" and mine.seconds < onnxperf.predict(RESNET, gpu="l4").seconds
    for command in (["predict"], ["explain", "--node", mine.kernels[0].nodes[0]]):
        run = CliRunner().invoke(cli, [command[0], str(RESNET), "--gpu", str(path), *command[1:]])
        assert run.exit_code == 0 and "My Card" in run.stdout, run.output
    assert [p.name for p in tmp_path.iterdir()] == ["my-card.toml"]


@pytest.fixture
def _other_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The cards that ship are those of an empty folder."""
    caches = (catalogue.ids, catalogue._stems, catalogue._shipped, catalogue._names)
    monkeypatch.setattr(catalogue, "_CARDS", tmp_path)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("_other_cards")
def test_a_card_that_ships_is_one_file_and_is_known_by_its_names(tmp_path: Path) -> None:
    added(tmp_path, "my-card.toml", 'nvml_names = ["NVIDIA My Card"]\n' + dedent(CARD))
    assert gpu_specs.ids() == ("my-card",)
    assert onnxperf.predict(RESNET, gpu="NVIDIA My Card").scenario.gpu == "my-card"
    assert "My Card" in CliRunner().invoke(cli, ["gpus"]).stdout


# an operator


@pytest.fixture
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


@pytest.mark.usefixtures("_forgotten")
def test_an_operator_is_one_rule(tmp_path: Path) -> None:
    unknown = onnxperf.predict(model(), gpu="l4").kernels[0]
    assert (unknown.source, unknown.flops) == ("assumed", 0)
    rule = '''
        import onnxperf

        @onnxperf.op("my.domain::MyOp")
        def my_op(op, x, w, *, alpha=1.0):
            """max(0, alpha x + w): 3 an element, 2 where alpha is 1."""
            return onnxperf.work(op, onnxperf.Pointwise(x.size), vector=x.size * (2 + (alpha != 1.0)))
    '''
    imported(added(tmp_path, "my_operators.py", rule))
    for attrs, each in (({}, 2), ({"alpha": 0.5}, 3), ({"beta": 0.5}, 2)):
        found = onnxperf.predict(model(**attrs), gpu="l4").kernels[0]
        assert (found.source, found.flops, found.nodes) == ("analytic", each * 512 * 1024, ("mine",))
        assert found.bytes_read == 4 * (512 * 1024 + 1024)


@pytest.mark.usefixtures("_forgotten")
def test_a_rule_may_take_a_size_with_a_model_of_its_own() -> None:
    @onnxperf.op("my.domain::MyOp")
    def my_op(op: Any, x: Any, w: Any) -> Any:
        """x M + w with a matrix M that is made up on the way."""
        size = onnxperf.Gemm(1, x.shape[0], w.shape[0], x.shape[1])
        return onnxperf.work(op, size, matrix=2 * size.m * size.n * size.k)

    found = onnxperf.predict(model(), gpu="l4").kernels[0]
    assert found.flops == 2 * 512 * 1024 * 1024
    assert found.seconds > 2 * 512 * 1024 * 1024 / 121e12


@pytest.mark.usefixtures("_forgotten")
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
