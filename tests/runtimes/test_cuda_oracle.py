"""The rules of `ort-cuda` against ONNX Runtime's own CUDA provider: as many operators of each type.

The provider starts on stubs in CUDA's place; `tests.cuda_stub` says what that takes. Views and copies are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import cuda_oracle, cuda_stub
from tests.runtimes import test_ort_functions, test_ort_products, test_ort_qdq, test_ort_vision
from tests.runtimes.conftest import build
from tests.runtimes.test_oracle import FILES, TINY
from tests.runtimes.test_ort_language import CASES, SIZES, VIEWS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    try:
        cuda_stub.stubs()
    except cuda_stub.Unavailable as why:
        pytest.skip(str(why))


#: Operators in 8 bits with scales of their own are for the CPU provider alone.
TEXTS = {n: case for n, case in (TINY | test_ort_products.CASES).items() if "QLinear" not in case[0]}


@pytest.mark.parametrize("name", TEXTS)
def test_tiny_models(name: str) -> None:
    text, weights = TEXTS[name]
    model = build(text, weights)
    assert cuda_oracle.ours(model) == cuda_oracle.theirs(model)


@pytest.mark.parametrize(("type", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_networks(type: str, gates: int) -> None:
    text = f"(float[5,2,4] x) => (float[5,1,2,8] y) {{h={type}<hidden_size=8>(x,w,r) y=Relu(h)}}"
    model = build(text, {"w": (1, gates * 8, 4), "r": (1, gates * 8, 8)})
    assert cuda_oracle.ours(model) == cuda_oracle.theirs(model) == {type: 1, "Relu": 1}


PIECES = {**CASES, **test_ort_functions.CASES, **test_ort_qdq.CASES, **test_ort_qdq.PACKED}


@pytest.mark.parametrize(("text", "weights", "opset", "operators"), PIECES.values(), ids=PIECES)
def test_pieces_of_models(text: str, weights: dict[str, Any], opset: int, operators: str) -> None:
    found = cuda_oracle.theirs(build(text, weights, opset))
    assert " ".join(f"{type}:{n}" for type, n in sorted(found.items())) == operators


@pytest.mark.parametrize(("text", "views"), VIEWS.values(), ids=VIEWS)
def test_views(text: str, views: int) -> None:
    nodes = cuda_stub.optimised(build(text, SIZES, 18)).graph.node
    assert sum(n.op_type in ("Reshape", "Squeeze", "Unsqueeze") for n in nodes) == views


@pytest.mark.parametrize("name", test_ort_vision.CASES)
def test_pieces_of_vision_models(name: str) -> None:
    found = cuda_oracle.theirs(test_ort_vision.model(name))
    assert test_ort_vision.as_text(found) == test_ort_vision.CASES[name][2]


@pytest.mark.parametrize("file", FILES)
def test_whole_models(file: str) -> None:
    model = cuda_oracle.read(ROOT / file)
    assert cuda_oracle.ours(model) == cuda_oracle.theirs(model)
