"""What all rooms share: which files of tests are slow, and what makes none of them slower than it need be."""

from __future__ import annotations

import gc
import os
import sys
from collections import OrderedDict
from copy import copy
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Before NumPy and PyTorch are loaded: their threads only wait for each other, and tests run side by side as it is.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.set_threshold(50_000, 20, 20)  # as the command sets it: PyTorch and TensorFlow are many objects that stay

TESTS = Path(__file__).parent
#: Files whose tests are all slow: exporters, comparisons with other programs, fits and processes. The quick loop does
#: not even import them. A slow test among quick ones is marked where it stands.
SLOW = (
    "lab/derive/test_constants.py",
    "lab/derive/test_host.py",
    "lab/derive/test_tensor.py",
    "export/test_command.py",
    "export/test_from_tf.py",
    "export/test_from_torch.py",
    "export/test_rebatch.py",
    "graph/test_against_ort.py",
    "graph/test_skeleton.py",
    "measure/test_measure.py",
    "calibrate/test_matching.py",
    "op_models/test_against_torch.py",
    "runtimes/test_oracle.py",
    "runtimes/test_torch_eager.py",
    "test_conformance.py",
    "test_samples_run.py",
    "test_testing.py",
    "lab/validate/test_measure_gpu.py",
    "views/test_in_browser.py",
)


def slow(path: Path) -> bool:
    """Whether all tests of a file are slow."""
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).as_posix() in SLOW


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are left out, leave out slow files, and with them PyTorch and TensorFlow."""
    return True if config.option.markexpr == "not slow" and slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow files, and run files with slow tests first: a long one that starts last has no company."""
    for item in items:
        if slow(item.path):
            item.add_marker("slow")
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """Have PyTorch read its tables of ONNX operators, and of operators that are made of others, once: for each export
    it does so anew, more than half of its time.
    """
    if "torch" not in sys.modules or not find_spec("onnxscript"):
        return
    from torch._export import utils
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    utils._materialize_cpp_cia_ops = cache(utils._materialize_cpp_cia_ops)
    read = cache(ONNXRegistry.from_torchlib)

    def from_torchlib(**terms: Any) -> ONNXRegistry:
        registry = copy(read(**terms))
        registry.functions = {target: [*functions] for target, functions in registry.functions.items()}
        return registry

    ONNXRegistry.from_torchlib = staticmethod(from_torchlib)


SAMPLES = TESTS.parent / "samples"
MOST_GRAPHS = 64


def infer_samples_once() -> None:
    """Infer a shipped sample once for all tests of a process that ask for the same sizes: a third of a prediction. It
    is read once for all sizes, so that its batch is followed once, too.

    No graph is ever changed, and the product shares them, too, where a model was read once. Not where a test watches
    what is read, and not across operators' rules that a test registers.
    """
    graph, registered = import_module("onnxperf.graph"), import_module("op_models").registered
    load, graphs, samples = graph.load, OrderedDict[Any, Any](), dict[Any, Any]()

    def shared(model: Any, *, examples: Any = None, **sizes: Any) -> Any:
        read = import_module("onnxperf.graph.read")
        path = Path(model).absolute() if isinstance(model, (str, Path)) else TESTS
        if examples is not None or path.parent != SAMPLES or read.read.__module__ != read.__name__:
            return load(model, examples=examples, **sizes)
        given = sorted((name, repr(value)) for name, value in sizes.items() if value is not None)
        key = (path, *given, rules := registered())
        if key not in graphs:
            if (path, rules) not in samples:
                samples[path, rules] = graph.opened(model)
            graphs[key] = load(samples[path, rules], **sizes)
        graphs.move_to_end(key)
        if len(graphs) > MOST_GRAPHS:
            graphs.popitem(last=False)
        return graphs[key]

    graph.load = shared


infer_samples_once()
