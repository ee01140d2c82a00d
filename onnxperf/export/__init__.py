"""Models that are still in their framework: exported in memory, without weights, by the framework's own exporter.

PyTorch and TensorFlow are extras, imported only when a model of theirs arrives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onnxperf.errors import EnvironmentFailure

#: Classes whose objects are models, by the package that defines them and their name: a model's class derives from one.
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
SUFFIXES = (".keras", ".h5")  # files of whole Keras models


def framework(model: object) -> str | None:
    """The extra that a model belongs to, torch or tf; None where it is no framework's: a file, bytes, a ModelProto."""
    if isinstance(model, (str, os.PathLike)):
        path = Path(os.fspath(model))
        return "tf" if path.suffix in SUFFIXES or (path / "saved_model.pb").is_file() else None
    for c in type(model).__mro__:
        if found := CLASSES.get((c.__module__.partition(".")[0], c.__name__)):
            return found
    return None


def source(
    model: object, example_inputs: Mapping[str, Any] | Sequence[Any] | None = None, open_batch: bool = False
) -> tuple[Any, Mapping[str, Any] | Sequence[Any] | None]:
    """What a graph is read from, and the examples that are still to be bound there.

    A framework's model becomes an onnx.ModelProto without weights, at the shapes of the examples; with `open_batch`
    its leading dimensions stay open. Anything else is given back as it is. Raises EnvironmentFailure where the
    framework or its exporter is missing, UsageError where the inputs do not fit, ModelError where it can't be exported.
    """
    extra = framework(model)
    if extra is None:
        return model, example_inputs
    if missing := [name for name in NEEDS[extra] if find_spec(name) is None]:
        raise EnvironmentFailure(
            f"a model of {NEEDS[extra][0]} is exported with {' and '.join(missing)}: pip install 'onnxperf[{extra}]'"
        )
    return import_module(f"onnxperf.export.from_{extra}").proto(model, example_inputs, open_batch=open_batch), None


__all__ = ["framework", "source"]
