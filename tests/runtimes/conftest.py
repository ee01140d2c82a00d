"""Small models from text, as runtimes see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser
from onnx import load as load_model

from onnxperf.fusions import torch_calls
from onnxperf.fusions.engine import DISABLED, Rules, optimise
from onnxperf.graph import Graph, load
from onnxperf.runtimes import LEVELS, RUNTIMES, Runtime, of_version, run_graph
from onnxperf.runtimes.ort_cpu import RUNTIME as CPU

Run = Callable[..., Graph]
#: Older releases of each runtime, between which something changed.
OLDER = {
    "ort-cpu": ("1.4", "1.12", "1.16"), "ort-cuda": ("1.4", "1.6", "1.10", "1.11", "1.12", "1.16", "1.19", "1.22"),
    "tensorrt": ("6.0", "7", "8.6"), "torch-compile": ("2.9",), "torch-eager": ("1.12",),
}  # fmt: skip
#: Every runtime as it is today, with each layout; then their older releases.
TODAYS = tuple(way for r in RUNTIMES.values() for way in (r, *r.layouts.values()))
EVERY = (*TODAYS, *(of_version(r, v) for r in RUNTIMES.values() for v in OLDER[r.name]))


def ways(runtime: Runtime) -> list[str]:
    """The levels of a runtime, of those at which the same rules are open to it the first; of an older release, whose
    rules are a choice of the same, that of all rules alone.
    """
    if runtime not in TODAYS:
        return ["all"]
    open_to = {level: {k for k in runtime.rules if k <= n} for level, n in LEVELS.items()}
    return [level for i, level in enumerate(open_to) if open_to[level] not in [*open_to.values()][:i]]


def without_cuda_s_choice() -> Runtime:
    """torch.compile with every attention as one call: which kernel runs one is chosen by PyTorch's build for CUDA."""
    compiled, left_out = RUNTIMES["torch-compile"], torch_calls.by_products
    rules = [r for r in compiled.rules[DISABLED] if r.of(left_out.since, left_out.until) != left_out]
    assert len(rules) == len(compiled.rules[DISABLED]) - 1
    return replace(compiled, rules={DISABLED: tuple(rules)})


def build(text: str, weights: dict[str, tuple[int, ...] | float], opset: int = 20) -> ModelProto:
    """A model from the parser's text; weights are given by shape, or by value where they are one number."""
    head = f'<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]> g '
    model = parser.parse_model(head + text)
    for name, w in weights.items():
        array = np.full(w, 0.1, np.float32) if isinstance(w, tuple) else np.asarray(w)
        array = array.astype(np.float32) if isinstance(w, float) else array
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
    """How many operators of each type, domains left out, do some work on the GPU; a convolution has its bias."""

    def counted(graph: Graph) -> Counter[str]:
        working = (o for o in graph.operators if o.place != "free" and not o.name.endswith("#bias"))
        return Counter(o.type.rpartition("::")[2] for o in working)

    return counted


#: Views, which cost nothing: ONNX Runtime adds them around a Gemm and merges or drops them elsewhere.
VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}


def optimised(model: ModelProto, level: str) -> Counter[str]:
    """How many operators of each type, views left out, ONNX Runtime's CPU provider makes of a model.

    Weights outside the file are zeros, in a file without blocks on the disk.
    """
    ort = pytest.importorskip("onnxruntime")
    own = ModelProto()
    own.CopyFrom(model)
    size = 0
    for t in own.graph.initializer:
        if t.data_location == TensorProto.EXTERNAL:
            length = prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize
            del t.external_data[:]
            for key, value in (("location", "zeros"), ("offset", size), ("length", length)):
                t.external_data.add(key=key, value=str(value))
            size += -(-length // 4096) * 4096
    with TemporaryDirectory() as folder:
        path = Path(folder)
        with (path / "zeros").open("wb") as file:
            file.truncate(size)
        (path / "in.onnx").write_bytes(own.SerializeToString())
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level.upper()}")
        options.optimized_model_filepath = str(path / "out.onnx")
        if size:
            external = "session.optimized_model_external_initializers_"
            options.add_session_config_entry(f"{external}file_name", "out.bin")
            options.add_session_config_entry(f"{external}min_size_in_bytes", "1024")
        ort.InferenceSession(path / "in.onnx", options, providers=["CPUExecutionProvider"])
        nodes = load_model(path / "out.onnx", load_external_data=False).graph.node
    return Counter(blocked(n.domain, n.op_type) for n in nodes if n.op_type not in VIEWS)


@cache
def sixteen() -> bool:
    """Whether ONNX Runtime keeps 16 channels side by side here, as it does with AVX-512."""
    pool = "(float[1,%d,4,4] x) => (float[1,%d,2,2] y) {y=MaxPool<kernel_shape=[2,2],strides=[2,2]>(x)}"
    return ["nchwc::MaxPool" in optimised(build(pool % (n, n), {}), "all") for n in (8, 16)] == [False, True]


def as_sixteen(model: ModelProto, level: str) -> Counter[str]:
    """`optimised`, where that is the same as everywhere."""
    if level == "all" and not sixteen():
        pytest.skip("this processor has other blocks of channels than those of AVX-512")
    return optimised(model, level)


def blocked(domain: str, type: str) -> str:
    """An operator's type, with its domain where that says the layout."""
    return f"nchwc::{type}" if domain == "com.microsoft.nchwc" else type


def ours(model: ModelProto, level: str, rules: Rules = CPU.rules) -> Counter[str]:
    """The same of our own rules."""
    graph = CPU.place(optimise(load(model), rules, LEVELS[level]))
    types = (o.type.rpartition("::") for o in graph.operators if o.place != "free")
    return Counter(blocked(domain, type) for domain, _, type in types if type not in VIEWS)


@pytest.fixture(scope="session")
def oracle() -> Callable[..., Counter[str]]:
    """What ONNX Runtime itself makes of a model."""
    return as_sixteen


@pytest.fixture(scope="session")
def rules() -> Callable[..., Counter[str]]:
    """What our rules make of it."""
    return ours
