"""FLOPs of the samples against torch's own counter, whatever the runtime makes of the graph."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from onnxperf.graph import Graph, load
from onnxperf.lower import lower
from onnxperf.passes import precision
from onnxperf.runtimes import LEVELS, RUNTIMES, run_graph

SAMPLES = Path(__file__).parents[1] / "samples"
COUNTED = json.loads((SAMPLES / "flops.json").read_text())


def flops(graph: Graph, runtime: str = "ort-cuda", level: str = "all") -> int:
    run = run_graph(graph, RUNTIMES[runtime], LEVELS[level])
    return sum(k.work.matrix_flops for k in lower(run, RUNTIMES[runtime]).rows)


def sample(name: str) -> Graph:
    return load(SAMPLES / f"{name}.onnx", dims={"batch": 1, "sequence": 128} if "dynamic" in name else None)


@pytest.fixture(scope="module")
def make() -> ModuleType:
    """samples/make.py, which builds the models in torch."""
    pytest.importorskip("transformers")
    pytest.importorskip("onnxscript")
    spec = importlib.util.spec_from_file_location("make", SAMPLES / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["bert-base", "gpt2", "resnet50", "vit-base-16"])
def test_torch_counts_the_same(make: ModuleType, name: str) -> None:
    assert flops(sample(name)) == pytest.approx(make.matrix_flops(make.SAMPLES[name]), rel=1e-3)


@pytest.mark.parametrize("name", COUNTED)
def test_every_level_runtime_and_type_has_the_same_products(name: str) -> None:
    graph = sample(name)
    half = precision(graph, "fp16")
    counts = {flops(g, runtime, level) for g in (graph, half) for runtime in RUNTIMES for level in LEVELS}
    counts.add(flops(precision(graph, "int8")))
    assert len(counts) == 1
    assert counts.pop() == pytest.approx(COUNTED[name], rel=1e-3)


@pytest.mark.parametrize(("name", "gmacs"), [("resnet50", 4.089), ("mobilenetv2", 0.3008)])
def test_published_multiply_adds(name: str, gmacs: float) -> None:
    assert flops(sample(name)) / 2e9 == pytest.approx(gmacs, rel=2e-4)
