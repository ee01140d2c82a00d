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

from onnxperf.ground.errors import EnvironmentFailure, ModelError, unreadable

#: The extra that exports the models of a package, and the names of the classes there that these derive from.
CLASSES = {
    "torch": ("torch", {"Module", "ExportedProgram", "ONNXProgram"}),
    "keras": ("tf", {"Layer"}),
    "tensorflow": ("tf", {"GenericFunction", "Function", "ConcreteFunction", "AutoTrackable"}),
}
NEEDS = {"torch": ("torch", "onnxscript"), "tf": ("tensorflow", "tf2onnx")}
EXPORTING = RLock()  # exporters, and the redirection of what they print, are not safe in several threads
SUFFIXES = (".keras", ".h5")  # files of whole Keras models
Examples = Mapping[str, Any] | Sequence[Any] | None  # example inputs, by name or in order


def framework(model: object) -> str | None:
    """The extra that exports a model, "torch" or "tf"; None for an ONNX file, bytes, a ModelProto and all else."""
    if isinstance(model, (str, os.PathLike)):
        path = os.fsdecode(model)  # a path may give bytes
        saved = os.path.isfile(os.path.join(path, "saved_model.pb"))
        return "tf" if path.endswith(SUFFIXES) or saved else None
    for c in type(model).__mro__:
        extra, names = CLASSES.get(c.__module__.partition(".")[0], (None, ()))
        if c.__name__ in names:
            return extra
    return None


def source(
    model: object, example_inputs: Examples = None, batch: int | None = None, open_batch: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None, dynamic: Mapping[str, Mapping[int, str]] | None = None,
    train: bool = False,
) -> tuple[Any, Examples]:  # fmt: skip
    """The model to read a graph from, and the example inputs whose shapes that graph is still to be given.

    A framework's model becomes an onnx.ModelProto without weights, exported at the shapes of the examples, of which
    none are left; its leading dimension is `batch` where that is given, and stays open with `open_batch`; `shapes`, by
    input name, close what a model of Keras or TensorFlow leaves open; `dynamic` names the axes that one of PyTorch
    leaves open, by input name; with `train` its dropout is that of train mode. Anything else is returned as it is, with
    its examples. Raises EnvironmentFailure where the framework or its exporter is missing, UsageError where the inputs
    do not fit, ModelError where the model can't be exported.
    """
    extra = framework(model)
    if extra is None:
        return model, example_inputs
    if isinstance(model, (str, os.PathLike)) and os.path.isfile(model):
        _check_keras(os.fsdecode(model))
    if missing := [name for name in NEEDS[extra] if find_spec(name) is None]:
        raise EnvironmentFailure(
            f"a model of {NEEDS[extra][0]} is exported with {' and '.join(missing)}: pip install 'onnxperf[{extra}]'"
        )
    is_size = isinstance(batch, int) and not isinstance(batch, bool) and 0 < batch < 1 << 31
    try:
        with EXPORTING:
            proto = import_module(f"onnxperf.export.from_{extra}").proto
            # a batch that is no size is refused later, where it is bound to the graph
            request = (model, example_inputs, batch if is_size else None, open_batch)
            return proto(*request, shapes) if extra == "tf" else proto(*request, dynamic or {}, train), None
    except SystemExit:
        raise ModelError("the model's own code asked to exit while it was exported") from None


def _check_keras(path: str) -> None:
    """Raise ModelError where a file is none that Keras writes: a zip archive or HDF5, by its name."""
    from onnxperf.graph.other_formats import KERAS, TEXT, other_format

    try:
        with open(path, "rb") as file:
            head = file.read(TEXT)
    except OSError as e:
        raise unreadable(path, e) from None
    if not head.startswith(KERAS[os.path.splitext(path)[1]]):
        what = other_format(head) if head else "empty"
        raise ModelError(f"{path} is not a Keras model: it is {what or 'neither a zip archive nor HDF5'}")


__all__ = ["framework", "source"]
