"""What a model of Keras or TensorFlow is called with, and its trace: a ConcreteFunction that runs it for inference."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onnxperf.export.quiet import quiet
from onnxperf.graph.bind import left_open, sizes_of
from onnxperf.graph.proto import times
from onnxperf.ground.errors import Error, ModelError, UsageError, printable, unreadable

MAX_FILE = 1 << 31  # bytes; protobuf allows no more
MAX_CONFIG = 64 << 20  # bytes: the description of a Keras model
MAX_REASON = 300  # characters of an error of TensorFlow or Keras
EXAMPLE = 128  # a size in the example of a message
SERVED = "serving_default"  # the signature that is exported

with quiet():
    import keras
    import tensorflow as tf
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2


@dataclass(frozen=True)
class Callee:
    """A function that runs a model for inference.

    `inputs` are its TensorSpecs in the structure (args, kwargs); where the model does not declare them they are None,
    and `parameters` are the names of the function's parameters.
    """

    name: str
    call: Callable[..., Any]
    inputs: Any = None
    parameters: Sequence[str] = ()


def callee_of(model: Any) -> Callee:
    """The function that runs a model that is given as an object."""
    if isinstance(model, keras.Layer):
        return _keras(model)
    name = str(getattr(model, "name", None) or getattr(model, "__name__", None) or "model")
    if getattr(model, "signatures", None):
        model = _chosen(model.signatures)
    if isinstance(model, tf.types.experimental.ConcreteFunction):
        args, kwargs = model.structured_input_signature
        present = tuple(x for x in args if x is not None), {k: x for k, x in kwargs.items() if x is not None}
        return Callee(re.sub(r"b'__inference_(.+)_\d+'", r"\1", name), model, present)
    if not callable(model):
        raise ModelError(f"{name!r} has no signatures and can't be called: there is nothing to export")
    call = model.__call__ if isinstance(model, tf.Module) else model
    signature = getattr(call, "input_signature", None)
    return Callee(name, call, signature and (tuple(signature), {}), list(inspect.signature(call).parameters))


def _keras(model: Any) -> Callee:
    """The function that runs a Keras model."""
    if (backend := keras.backend.backend()) != "tensorflow":
        change = "set KERAS_BACKEND=tensorflow before keras is imported, and load the model again"
        raise UsageError(f"Keras runs on {backend} here, and only models on TensorFlow can be exported: {change}")
    call, flat = partial(model, training=False), getattr(model, "inputs", None)
    if not flat:
        return Callee(model.name, call, None, list(inspect.signature(model.call).parameters))
    inputs = model.input if hasattr(model, "input") else flat[0]  # a Sequential has one, and no structure
    return Callee(model.name, call, ((tf.nest.map_structure(_spec, inputs),), {}))


def callee_of_file(path: Path) -> Callee:
    """The function that runs the model in a file or folder, rebuilt from its description: no code in it is executed."""
    try:
        if path.suffix == ".h5":
            return _keras(keras.saving.load_model(path, compile=False, safe_mode=True))
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive, archive.open("config.json") as file:
                config = json.loads(file.read(MAX_CONFIG))
            config.pop("compile_config", None)
            return _keras(keras.saving.deserialize_keras_object(config, safe_mode=True))
        return _saved(path)
    except Error:
        raise
    except (FileNotFoundError, IsADirectoryError, PermissionError) as e:
        raise unreadable(path, e) from None
    except Exception as e:  # frameworks raise many kinds here
        why = reason(e)
        if "safe_mode" in str(e):
            why = "it brings Python code (a Lambda layer, say), which is not run; load the model, and give that"
        raise ModelError(f"{path} can't be used: {why}") from None


def _saved(folder: Path) -> Callee:
    """The function that a SavedModel serves, taken from its graph: tf.saved_model.load would run parts of it."""
    with (folder / "saved_model.pb").open("rb") as file:
        saved = saved_model_pb2.SavedModel.FromString(file.read(MAX_FILE))
    meta = next((m for m in saved.meta_graphs if "serve" in m.meta_info_def.tags), meta_graph_pb2.MetaGraphDef())
    graph, signature = meta.graph_def, _chosen(meta.signature_def)
    mark = hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()[:16]
    new = {f.signature.name: f"{f.signature.name}_{mark}" for f in graph.library.function}
    for f in graph.library.function:  # TensorFlow has one registry of functions per process, by their names
        f.signature.name = new[f.signature.name]
    for node in nodes(graph):
        node.op = new.get(node.op, node.op)
        node.attr.pop("_output_shapes", None)  # stands for variables, where a constant of another shape goes
        for call in (c for a in node.attr.values() for c in (a.func, *a.list.func) if c.name in new):
            call.name = new[call.name]
    del graph.library.gradient[:]
    whole = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph, name=""), [])
    tensor, infos = whole.graph.as_graph_element, sorted(signature.inputs.items())
    outputs = {name: tensor(info.name) for name, info in signature.outputs.items()}
    specs = [tf.TensorSpec(info.tensor_shape, info.dtype, name) for name, info in infos]
    return Callee(folder.resolve().name, whole.prune([tensor(i.name) for _, i in infos], outputs), (tuple(specs), {}))


def nodes(graph: Any) -> list[Any]:
    """The nodes of a GraphDef and of its functions."""
    return [*graph.node, *(n for f in graph.library.function for n in f.node_def)]


def _chosen(signatures: Mapping[str, Any]) -> Any:
    """The signature "serving_default" or the only one; ModelError where there is no such signature."""
    names = [name for name in signatures if not name.startswith("__")]
    name = SERVED if SERVED in names or len(names) != 1 else names[0]
    if name not in names:
        have = printable(", ".join(map(repr, names))[:MAX_REASON]) or "none"
        raise ModelError(f"the model has no signature {SERVED!r}, but {have}: load it, and give one of its signatures")
    return signatures[name]


def specs_of(
    callee: Callee, examples: Any, batch: int | None = None, open_batch: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Any:  # fmt: skip
    """The TensorSpecs that the model is traced with, in the structure (args, kwargs), each with a unique name.

    Sizes are those of `shapes`, else of the examples, else the model's own with a batch of 1. Raises UsageError where
    others stay open; the message names them all.
    """
    structure = _arguments(callee, examples) if callee.inputs is None else callee.inputs
    declared = wanted = tf.nest.flatten(structure)
    if strange := [type(s).__name__ for s in declared if not isinstance(s, tf.TensorSpec)]:
        raise ModelError(f"the model takes a {strange[0]}; only dense tensors can be exported")
    names: list[str] = []
    for i, s in enumerate(declared):
        names.append(f"{s.name or 'input'}_{i}" if s.name is None or s.name in names else s.name)
    lead = next((s.shape[0] for s in declared if s.shape.rank), 1) if callee.inputs is None else None
    if examples is not None and callee.inputs is not None:
        if isinstance(examples, Mapping) and set(examples) == set(names):
            examples = [examples[name] for name in names]
        examples = examples if isinstance(examples, (Mapping, list, tuple)) else [examples]
        if isinstance(examples, Mapping) or len(examples) != len(declared):
            shown = list(examples) if isinstance(examples, Mapping) else len(examples)
            raise UsageError(f"example_inputs are {shown}, but the model takes {len(declared)}: {names}")
        wanted = [_spec(x, name) for x, name in zip(examples, names, strict=True)]
    sizes = dict(zip(names, (s.shape for s in wanted), strict=True))
    sizes |= {name: tf.TensorShape(sizes_of(shape, name)) for name, shape in (shapes or {}).items() if name in sizes}
    _refuse_open(sizes)
    specs = []
    for mine, (name, its) in zip(declared, sizes.items(), strict=True):
        opened = mine.shape.rank is None or mine.shape[:1] == [lead]
        size = (opened and batch) or (its.rank and its[0]) or 1
        dims = [None if opened and open_batch else size, *its[1:]] if its.rank else []
        specs.append(tf.TensorSpec(dims, mine.dtype, name))
    return tf.nest.pack_sequence_as(structure, specs)


def _refuse_open(shapes: Mapping[str, Any]) -> None:
    """Raise UsageError where sizes other than the batch are open, with an example that closes all."""
    if unknown := [name for name, shape in shapes.items() if shape.rank is None]:
        raise UsageError(f"input {unknown[0]!r} takes any shape: give example_inputs")
    axes = [(name, axis, None) for name, s in shapes.items() for axis, d in enumerate(s) if axis and d is None]
    if axes:
        example = {n: tuple(d or (EXAMPLE if axis else 1) for axis, d in enumerate(s)) for n, s in shapes.items()}
        raise UsageError(f"{left_open(axes, example)}, or example_inputs")


def _arguments(callee: Callee, examples: Any) -> Any:
    """The TensorSpecs of example inputs, as (args, kwargs) of a function whose inputs are not declared."""
    if examples is None:
        raise UsageError(f"the inputs of {callee.name!r} are not declared: give example_inputs")
    if isinstance(examples, Mapping) and set(examples) <= set(callee.parameters):
        return (), {name: _spec(x, name) for name, x in examples.items()}
    values = examples if isinstance(examples, (list, tuple)) else [examples]
    named = zip(values, [*callee.parameters, *["input"] * len(values)], strict=False)
    return tuple(tf.nest.map_structure(partial(_spec, name=name), x) for x, name in named), {}


def _spec(x: Any, name: str | None = None) -> Any:
    """The TensorSpec of an example or of a Keras input; a NumPy array of float64 counts as float32."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise UsageError(f"the example of {name!r} is of type {type(x).__name__}: give an array or a tensor")
    dtype = getattr(x.dtype, "name", None) or str(x.dtype).rpartition(".")[2]
    usual = isinstance(x, np.ndarray) and dtype == "float64"
    return tf.TensorSpec(x.shape, "float32" if usual else dtype, name or x.name)


def traced(callee: Callee, specs: Any) -> Any:
    """The ConcreteFunction that runs the model on inputs of these specs, which it takes as a flat list."""
    flat = [tf.TensorSpec(s.shape, s.dtype) for s in tf.nest.flatten(specs)]
    try:
        return tf.function(_flat(callee, specs), input_signature=flat).get_concrete_function()
    except Exception as e:  # whatever the model's own code raises
        shown = ", ".join(f"{s.name}[{times(s.shape.as_list())}]" for s in tf.nest.flatten(specs))
        raise UsageError(f"{callee.name!r} does not run on {shown}: {reason(e)}") from None


def _flat(callee: Callee, specs: Any) -> Callable[..., Any]:
    """A function that runs the model on the inputs of `specs` as a flat list."""

    def run(*leaves: Any) -> Any:
        args, kwargs = tf.nest.pack_sequence_as(specs, leaves)
        return callee.call(*args, **kwargs)

    return run


def loops(function: Any) -> bool:
    """Whether there are while loops in a ConcreteFunction."""
    return any("While" in n.op for n in nodes(function.graph.as_graph_def()))


def with_open_batch(callee: Callee, examples: Any, shapes: Mapping[str, Sequence[int]] | None, function: Any) -> Any:
    """A ConcreteFunction traced anew with an open batch; None where it was open, or where that can't be."""
    with suppress(UsageError):
        opened = traced(callee, specs_of(callee, examples, open_batch=True, shapes=shapes))
        return opened if [t.shape for t in opened.inputs] != [t.shape for t in function.inputs] else None
    return None


def reason(error: BaseException) -> str:
    """The message of an error of TensorFlow or Keras in one line, without the stack frames and arguments around it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("Arguments received by")[0]
    text = re.sub(r"'\{\{node (\S+)\}\} = (\w+)\[[^']*'", r"\1 (\2)", text)
    text = re.split(r"^ *\w+(?:Error|Exception): ", text, flags=re.MULTILINE)[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip() and "Exception encountered" not in line]
    return printable((lines or [type(error).__name__])[0])[:MAX_REASON]
