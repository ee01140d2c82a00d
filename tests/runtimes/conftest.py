"""Small models from text, as runtimes see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from onnxperf.graph import Graph, load
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph

Run = Callable[..., Graph]


def build(text: str, weights: dict[str, tuple[int, ...] | float], opset: int = 20) -> ModelProto:
    """A model from the parser's text; weights are given by shape, or by value where they are one number."""
    head = f'<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]> g '
    model = parser.parse_model(head + text)
    for name, w in weights.items():
        array = np.full(w, 0.1, np.float32) if isinstance(w, tuple) else np.array(w, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.fixture(scope="session")
def make() -> Callable[..., ModelProto]:
    """The function that makes models."""
    return build


@pytest.fixture(scope="session")
def run() -> Run:
    """A small model as a runtime runs it."""

    def run(text: str, opset: int = 20, level: str = "all", runtime: str = "ort-cuda", **weights: object) -> Graph:
        return run_graph(load(build(text, weights, opset)), RUNTIMES[runtime], LEVELS[level])  # type: ignore[arg-type]

    return run


@pytest.fixture(scope="session")
def types() -> Callable[[Graph], Counter[str]]:
    """How many operators of each type, domains left out, do some work on the GPU."""
    return lambda graph: Counter(o.type.rpartition("::")[2] for o in graph.operators if o.place != "free")
