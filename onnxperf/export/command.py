"""The commands `export`, which writes the ONNX file of a framework's model, and `strip`, which removes weights."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto
from onnx.checker import check_model

from gpu_specs.toml_file import missing
from onnxperf.export import framework, source
from onnxperf.graph.read import contents, stored_tensors
from onnxperf.graph.skeleton import skeleton
from onnxperf.graph.targets import check_target
from onnxperf.graph.values import first_line
from onnxperf.ground.errors import ModelError, UsageError, counted
from onnxperf.ground.output import aside, write_file

MAX_ELEMENTS = 1 << 28  # of an example input, which is held in memory
STRIPPED = "onnxperf.stripped"  # the key in the metadata of a stripped model
Axis = tuple[str, int, str]  # an open dimension: the input's name, the axis, its own name
Input = tuple[str, tuple[int, ...], str]  # an example input: name or "", shape, dtype


def _torch_model(text: str) -> Any:
    """The PyTorch model that MODULE:FACTORY names; the module is imported, which runs its code.

    Raises UsageError where there is no such model, or where that code fails.
    """
    where, _, name = text.rpartition(":")
    if not (where and name):
        raise UsageError(f"{text!r} is not a model: write MODULE:FACTORY, such as mymodels:build")
    with _user_code(f"{where} can't be imported"):
        module = _imported(where)
    with _user_code(f"{where} can't give {name!r}"):
        model = getattr(module, name, None)
    if model is None:
        raise UsageError(f"{where} has no {name!r}: write MODULE:FACTORY, such as mymodels:build")
    if framework(model) is None and callable(model):
        with _user_code(f"{text} failed"):
            model = model()
    if framework(model) != "torch":
        raise UsageError(f"{text} is a {type(model).__name__}, no torch.nn.Module")
    return model


def _imported(where: str) -> ModuleType:
    """A module by its name, looked for in the working directory first, or by the path of its file."""
    path = Path(where)
    if path.suffix != ".py":
        sys.path.insert(0, os.getcwd())
        return import_module(where)
    sys.path.insert(0, str(path.parent.resolve()))  # as Python does for a script, so that it can import its neighbours
    name = f"onnxperf_export_{path.stem}"  # differs from the names of all other modules
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # it ends with .py
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _user_code(failed: str) -> Iterator[None]:
    """Run a user's code: whatever it raises, also SystemExit, becomes a UsageError that begins with `failed`.

    What it prints goes to stderr.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as e:
        raise UsageError(f"{failed}: {type(e).__name__}: {first_line(e)}") from None


def _keras_file(path: str) -> str:
    """Check that a path is that of a Keras file or of a SavedModel's folder, and return it."""
    if not os.path.exists(path):
        raise UsageError(missing(path))
    if framework(path) != "tf":
        raise UsageError(f"{path} is neither a Keras file (*.keras, *.h5) nor a SavedModel folder")
    return path


def run(
    named: str, extra: str, inputs: Sequence[Input], out: str, weightless: bool, dynamic: Sequence[Axis] = ()
) -> None:
    """Write the model that MODULE:FACTORY or a path names as the ONNX file `out`; large weights go to files beside it.

    extra: "torch" or "tf"; inputs: examples, by name or in order; dynamic: dimensions that a model of PyTorch shall
    leave open. With `weightless` there are no weights in it. Raises
    UsageError, ModelError or EnvironmentFailure, as `onnxperf.export.source` does.
    """
    _check_target(out)
    model = _torch_model(named) if extra == "torch" else _keras_file(named)
    try:
        _write(model, extra, _examples(extra, inputs), out, weightless, _axes(dynamic, inputs))
    except UsageError as e:
        said = str(e).removesuffix(", or example_inputs").replace("example_inputs", "--input")
        raise UsageError(said.replace("--shapes", "--input")) from None


def _axes(dynamic: Sequence[Axis], inputs: Sequence[Input]) -> dict[str, dict[int, str]]:
    """The names of open dimensions by input and axis; UsageError where there is no such input or axis."""
    ranks, axes = {name: len(shape) for name, shape, _ in inputs if name}, dict[str, dict[int, str]]()
    for name, axis, dim in dynamic:
        if axis >= ranks.get(name, 0):
            has = (
                f"has axes 0 to {ranks[name] - 1}" if name in ranks else f"is no input: give --input {name}:1x128, say"
            )
            raise UsageError(f"--dynamic {name}:{axis}={dim}: {name!r} {has}")
        axes.setdefault(name, {})[axis] = dim
    return axes


def _write(
    model: Any, extra: str, examples: Any, out: str, weightless: bool, axes: Mapping[str, Mapping[int, str]]
) -> None:
    if weightless:
        write_file(out, source(model, examples, dynamic=axes)[0].SerializeToString(deterministic=True))
        return
    with aside(out) as path:
        try:
            import_module(f"onnxperf.export.from_{extra}").write(model, examples, path, *([axes] if axes else []))
        except (Exception, SystemExit) as e:  # exporters raise anything
            source(
                model, examples, dynamic=axes
            )  # raises an error that says what is wrong, if it can't be exported at all
            if isinstance(e, OSError):  # a full disk
                raise
            raise ModelError(f"{out} can't be written with weights, only --weightless: {first_line(e)}") from None
        _check_usable(path, out)


def _check_usable(path: Path, name: str) -> None:
    """Raise ModelError where onnx's checker refuses a file, or ONNX Runtime where that is installed."""
    try:
        check_model(path)
        if find_spec("onnxruntime"):
            ort = import_module("onnxruntime")
            options = ort.SessionOptions()
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.log_severity_level = 4  # the error says it all
            ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as e:  # both raise kinds of their own
        why = f"{name} was not written, for the exporter made a file that can't be run: {first_line(e)}"
        raise ModelError(why) from None


def _check_target(out: str, *sources: str) -> None:
    if Path(out).suffix != ".onnx":
        raise UsageError(f"-o {out}: the name of an ONNX file ends with .onnx")
    check_target(out, *sources, option="-o")


def _examples(extra: str, inputs: Sequence[Input]) -> Any:
    """Example inputs of zeros, PyTorch tensors or NumPy arrays: by name if they have names, else in order."""
    if not inputs:
        return None
    for name, shape, _ in inputs:
        if prod(shape) > MAX_ELEMENTS:
            raise UsageError(f"--input {name or 'x'.join(map(str, shape))} has more than {MAX_ELEMENTS:,} elements")
    names = [name for name, _, _ in inputs]
    if any(names) and len({*names, ""}) != len(names) + 1:
        raise UsageError("--input names an input twice, or only some of them: name every one once, or none")
    if extra == "torch":
        torch = import_module("torch")
        arrays = [torch.zeros(shape, dtype=getattr(torch, dtype)) for _, shape, dtype in inputs]
    else:
        arrays = [np.broadcast_to(np.zeros((), dtype), shape) for _, shape, dtype in inputs]
    return dict(zip(names, arrays, strict=True)) if any(names) else arrays


def strip(model: str, out: str) -> tuple[int, int, str]:
    """Write a model without its weights; what was removed is noted in its metadata.

    Returns the bytes of the model's file and of the new one, and that note. Raises UsageError, ModelError or
    EnvironmentFailure.
    """
    _check_target(out, model)
    proto = ModelProto.FromString(skeleton(model))
    removed = [t for t in stored_tensors(*contents(proto)) if t.data_location == TensorProto.EXTERNAL]
    nbytes = sum(int(e.value) for t in removed for e in t.external_data if e.key == "length")
    note = f"{counted(len(removed), 'tensor')}, {nbytes / 1e6:.1f} MB"
    proto.metadata_props.add(key=STRIPPED, value=note)
    data = proto.SerializeToString(deterministic=True)
    write_file(out, data)
    return os.stat(model).st_size, len(data), note
