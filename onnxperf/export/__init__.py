"""Exports models of PyTorch, Keras and TensorFlow to ONNX: in memory, without weights, by the usual exporters.

The frameworks are extras, which are imported only when a model of theirs is given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from threading import RLock
from typing import Any

from onnxperf.errors import EnvironmentFailure, ModelError

#: The classes that a framework's models derive from, by the package that defines them and their name.
CLASSES = {
    ("torch", "Module"): "torch",
    ("torch", "ExportedProgram"): "torch",
    ("torch", "ONNXProgram"): "torch",
    ("keras", "Layer"): "tf",
    ("tensorflow", "GenericFunction"): "tf",
    ("tensorflow", "Function"): "tf",
    ("tensorflow", "ConcreteFunction"): "tf",
    ("tensorflow", "AutoTrackable"): "tf",
}
NEEDS = {"torch": ("torch", "onnxscript"), "tf": ("tensorflow", "tf2onnx")}
EXPORTING = RLock()  # exporters, and the redirection of what they print, are not safe in several threads
SUFFIXES = (".keras", ".h5")  # files of whole Keras models


def framework(model: object) -> str | None:
    """The extra that exports a model, "torch" or "tf"; None for an ONNX file, bytes, a ModelProto and all else."""
    if isinstance(model, (str, os.PathLike)):
        path = os.fsdecode(model)  # a path may give bytes
        saved = os.path.isfile(os.path.join(path, "saved_model.pb"))
        return "tf" if path.endswith(SUFFIXES) or saved else None
    for c in type(model).__mro__:
        if found := CLASSES.get((c.__module__.partition(".")[0], c.__name__)):
            return found
    return None


def source(
    model: object,
    example_inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    batch: int | None = None,
    open_batch: bool = False,
) -> tuple[Any, Mapping[str, Any] | Sequence[Any] | None]:
    """The model to read a graph from, and the example inputs whose shapes that graph is still to be given.

    A framework's model becomes an onnx.ModelProto without weights, exported at the shapes of the examples, of which
    none are left; its leading dimension is `batch` where that is given, and stays open with `open_batch`. Anything else
    is returned as it is, with its examples. Raises EnvironmentFailure where the framework or its exporter is missing,
    UsageError where the inputs do not fit, ModelError where the model can't be exported.
    """
    extra = framework(model)
    if extra is None:
        return model, example_inputs
    if missing := [name for name in NEEDS[extra] if find_spec(name) is None]:
        raise EnvironmentFailure(
            f"a model of {NEEDS[extra][0]} is exported with {' and '.join(missing)}: pip install 'onnxperf[{extra}]'"
        )
    try:
        with EXPORTING:
            proto = import_module(f"onnxperf.export.from_{extra}").proto
            return proto(model, example_inputs, batch if _is_batch(batch) else None, open_batch), None
    except SystemExit:
        raise ModelError("the model's own code asked to exit while it was exported") from None


def _is_batch(batch: Any) -> bool:
    """Whether `batch` is a size; anything else is refused later, where it is bound to the graph."""
    return isinstance(batch, int) and not isinstance(batch, bool) and 0 < batch < 1 << 31


__all__ = ["framework", "source"]
