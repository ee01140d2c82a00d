"""Models whose views are looked at: one of a few nodes, and one whose names are out to harm whoever shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper, parser

from tests.device_files import PROCESSOR
from tests.test_cli import run

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
small (float[batch,8,28,28] x, float[16,8,3,3] w, float[16,16,3,3] v) => (float[batch,16] y) {
  a = Conv<pads=[1,1,1,1]>(x, w)
  b = Relu(a)
  c = Conv<pads=[1,1,1,1]>(b, v)
  d = Add(c, b)
  e = Relu(d)
  f = GlobalAveragePool(e)
  g = Flatten(f)
  y = Softmax(g)
}"""
#: A script, quotes, mathematics, an escape sequence, a line's end, a mark that turns the direction of text, and length.
HOSTILE = "<script>alert('x')</script>\"&$\\frac{1}{0}$ $x$ \x1b[31m\nb\u202e\u200f|" + "n" * 4000


def small(*names: str) -> ModelProto:
    """A network of eight nodes with its weights; its nodes are called as given, or by their places and types."""
    made = parser.parse_model(TEXT)
    for i, node in enumerate(made.graph.node):
        node.name = names[i] if i < len(names) else f"/layer{i}/{node.op_type}"
    for info in list(made.graph.input)[1:]:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        weights = np.random.default_rng(0).random(shape, np.float32)
        made.graph.initializer.append(numpy_helper.from_array(weights, info.name))
        made.graph.input.remove(info)
    onnx.checker.check_model(made)
    return made


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("views") / "small.onnx"
    path.write_bytes(small().SerializeToString())
    return path


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("views") / "a$^$<b>.onnx"
    path.write_bytes(small(*(f"{HOSTILE}{i}" for i in range(8))).SerializeToString())
    return path


@pytest.fixture(scope="session")
def processor(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("views") / "this-cpu.toml"
    path.write_text(PROCESSOR, encoding="utf-8")
    return str(path)


@pytest.fixture
def onnxperf_cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.delenv("COLUMNS", raising=False)
    return lambda *arguments: run(capsys, monkeypatch, *map(str, arguments))
