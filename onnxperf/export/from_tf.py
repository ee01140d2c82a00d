"""Exports models of Keras and TensorFlow by tf2onnx, without their weights.

A model is traced once, as a ConcreteFunction that runs it for inference. In its graph, variables of more than MAX_VALUE
elements become inputs, so that tf2onnx never holds their data; in its result they become weights without data. Smaller
variables become constants with made-up numbers, on which tf2onnx folds and fuses as it does on real ones.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxperf.errors import Error, ModelError, UsageError, printable
from onnxperf.export.quiet import quiet
from onnxperf.graph.proto import domain_of, nodes_in, schema_of, times
from onnxperf.graph.skeleton import skeleton
from onnxperf.graph.values import MAX_VALUE

OPSET = 18
MAX_FILE = 1 << 31  # bytes; protobuf allows no more
MAX_CONFIG = 64 << 20  # bytes: the description of a Keras model
MAX_REASON = 300  # characters of an error of TensorFlow or Keras
SERVED = "serving_default"  # the signature that is exported
#: Operators that touch files or call Python: tf2onnx would run even these where they depend on constants alone.
UNSAFE = re.compile("File|Restore|Save|Reader|Dataset|PyFunc")


with quiet():
    import keras
    import tensorflow as tf
    import tf2onnx.convert
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
    from tensorflow.python.framework import convert_to_constants as freeze


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


def proto(model: Any, example_inputs: Any = None, batch: int | None = None, open_batch: bool = False) -> ModelProto:
    """A model of Keras or TensorFlow as an onnx.ModelProto without weights; the model is not changed.

    model: a Keras model or layer, a tf.function, a ConcreteFunction, an object with signatures or a call, or the path
    of a SavedModel's folder, of a .keras or an .h5 file; no code that a file brings is run.
    example_inputs: arrays or tensors, by name or in the order of the inputs, read for their shapes and types (an array
    of float64, NumPy's default, counts as float32); without them, the model's own inputs at batch 1.
    batch: the leading dimension of the inputs where it is open; open_batch: keep it open, under the name "batch".

    Raises UsageError where the inputs do not fit or must be given, ModelError where the model can't be exported.
    """
    with quiet(), tf.device("CPU"):
        callee = _file(Path(model)) if isinstance(model, (str, os.PathLike)) else _callee(model)
        specs = _specs(callee, example_inputs, batch, open_batch)
        return _exported(callee.name, _traced(callee, specs), [s.name for s in tf.nest.flatten(specs)])


def write(model: str, example_inputs: Any, path: Path) -> None:
    """Write the ONNX file of a Keras file or of a SavedModel's folder, with its weights.

    Loading a SavedModel can run parts of it. Raises what `proto` does, and whatever the exporter raises.
    """
    of_keras = partial(keras.saving.load_model, compile=False, safe_mode=True)
    load = tf.saved_model.load if os.path.isdir(model) else of_keras
    with quiet(), tf.device("CPU"):
        loaded = load(model)  # kept until the end: it holds the variables
        callee = _callee(loaded)
        specs = _specs(callee, example_inputs)
        run = tf.function(_flat(callee, specs), autograph=False)
        tf2onnx.convert.from_function(run, tf.nest.flatten(specs), opset=OPSET, output_path=str(path), **HANDLERS)


def _callee(model: Any) -> Callee:
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
    own = getattr(call, "input_signature", None)
    return Callee(name, call, own and (tuple(own), {}), list(inspect.signature(call).parameters))


def _keras(model: Any) -> Callee:
    """The function that runs a Keras model."""
    if (backend := keras.backend.backend()) != "tensorflow":
        change = "set KERAS_BACKEND=tensorflow before keras is imported, and load the model again"
        raise UsageError(f"Keras runs on {backend} here, and only models on TensorFlow can be exported: {change}")
    if not model.built:  # tracing would build it, and so change it
        raise UsageError(f"the Keras model {model.name!r} is not built: call it once on an input, then ask again")
    call, flat = partial(model, training=False), getattr(model, "inputs", None)
    if not flat:
        return Callee(model.name, call, None, list(inspect.signature(model.call).parameters))
    inputs = model.input if hasattr(model, "input") else flat[0]  # a Sequential has one, and no structure
    return Callee(model.name, call, ((tf.nest.map_structure(_spec, inputs),), {}))


def _file(path: Path) -> Callee:
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
        raise UsageError(f"can't read {path}: {e.strerror}") from None
    except Exception as e:  # frameworks raise many kinds here
        why = _reason(e)
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
    for node in _nodes(graph):
        node.op = new.get(node.op, node.op)
        for call in (c for a in node.attr.values() for c in (a.func, *a.list.func) if c.name in new):
            call.name = new[call.name]
    del graph.library.gradient[:]
    whole = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph, name=""), [])
    tensor, infos = whole.graph.as_graph_element, sorted(signature.inputs.items())
    outputs = {name: tensor(info.name) for name, info in signature.outputs.items()}
    specs = [tf.TensorSpec(info.tensor_shape, info.dtype, name) for name, info in infos]
    return Callee(folder.resolve().name, whole.prune([tensor(i.name) for _, i in infos], outputs), (tuple(specs), {}))


def _nodes(graph: Any) -> list[Any]:
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


def _specs(callee: Callee, examples: Any, batch: int | None = None, open_batch: bool = False) -> Any:
    """The TensorSpecs that the model is traced with, in the structure (args, kwargs), each with a unique name."""
    structure = _arguments(callee, examples) if callee.inputs is None else callee.inputs
    own = given = tf.nest.flatten(structure)
    if strange := [type(s).__name__ for s in own if not isinstance(s, tf.TensorSpec)]:
        raise ModelError(f"the model takes a {strange[0]}; only dense tensors can be exported")
    names: list[str] = []
    for i, s in enumerate(own):
        names.append(f"{s.name or 'input'}_{i}" if s.name is None or s.name in names else s.name)
    lead = next((s.shape[0] for s in own if s.shape.rank), 1) if callee.inputs is None else None
    if examples is not None and callee.inputs is not None:
        if isinstance(examples, Mapping) and set(examples) == set(names):
            examples = [examples[name] for name in names]
        examples = examples if isinstance(examples, (Mapping, list, tuple)) else [examples]
        if isinstance(examples, Mapping) or len(examples) != len(own):
            shown = list(examples) if isinstance(examples, Mapping) else len(examples)
            raise UsageError(f"example_inputs are {shown}, but the model takes {len(own)}: {names}")
        given = [_spec(x, name) for x, name in zip(examples, names, strict=True)]
    specs = []
    for mine, its, name in zip(own, given, names, strict=True):
        if its.shape.rank is None or None in its.shape[1:].as_list():
            shape = "any shape" if its.shape.rank is None else f"the shape {times(its.shape.as_list())}"
            raise UsageError(f"input {name!r} takes {shape}: give example_inputs")
        opened = mine.shape.rank is None or mine.shape[:1] == [lead]
        size = (opened and batch) or (its.shape.rank and its.shape[0]) or 1
        dims = [None if opened and open_batch else size, *its.shape[1:]] if its.shape.rank else []
        specs.append(tf.TensorSpec(dims, mine.dtype, name))
    return tf.nest.pack_sequence_as(structure, specs)


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


def _traced(callee: Callee, specs: Any) -> Any:
    """The ConcreteFunction that runs the model on inputs of these specs, which it takes as a flat list."""
    flat = [tf.TensorSpec(s.shape, s.dtype) for s in tf.nest.flatten(specs)]
    try:
        return tf.function(_flat(callee, specs), input_signature=flat).get_concrete_function()
    except Exception as e:  # whatever the model's own code raises
        shown = ", ".join(f"{s.name}[{times(s.shape.as_list())}]" for s in tf.nest.flatten(specs))
        raise UsageError(f"{callee.name!r} does not run on {shown}: {_reason(e)}") from None


def _flat(callee: Callee, specs: Any) -> Callable[..., Any]:
    """A function that runs the model on the inputs of `specs` as a flat list."""

    def run(*leaves: Any) -> Any:
        args, kwargs = tf.nest.pack_sequence_as(specs, leaves)
        return callee.call(*args, **kwargs)

    return run


def _exported(name: str, function: Any, inputs: Sequence[str]) -> ModelProto:
    """The ONNX model that tf2onnx makes of a ConcreteFunction with inputs of these names, its weights without data."""
    reads, makes = [t.name for t in function.inputs[: len(inputs)]], [t.name for t in function.outputs]
    keys = function.structured_outputs if isinstance(function.structured_outputs, Mapping) else ()
    outputs = sorted(map(str, keys)) or [f"output_{i}" for i in range(len(makes))]
    new = dict(zip([*reads, *makes], [*inputs, *outputs], strict=False))
    try:
        graph, weights = _frozen(name, function)
        convert = partial(tf2onnx.convert.from_graph_def, opset=OPSET, tensors_to_rename=new, **HANDLERS)
        model, _ = convert(graph, name, [*reads, *weights], makes)
    except Error:
        raise
    except Exception as e:  # tf2onnx raises many kinds
        raise ModelError(f"tf2onnx can't export {name!r}: {_reason(e)}") from None
    opsets = {o.domain: o.version for o in model.opset_import}
    _refuse(name, {n.op_type for n in nodes_in(model.graph.node) if schema_of(n.op_type, domain_of(n), opsets) is None})
    for i in list(model.graph.input):
        kind = i.type.tensor_type
        if i.name in weights:
            model.graph.initializer.append(TensorProto(name=i.name, data_type=kind.elem_type, dims=weights[i.name]))
            model.graph.input.remove(i)
        elif kind.shape.dim and not kind.shape.dim[0].dim_value:
            kind.shape.dim[0].dim_param = "batch"
    model.graph.name = name
    bare: ModelProto = ModelProto.FromString(skeleton(model))
    return bare


def _erfc(graph: Any, node: Any, *_: Any) -> None:
    """Convert Erfc, which Keras uses for an exact Gelu and tf2onnx does not know, to 1 - Erf."""
    dtype, shape = graph.get_dtype(node.output[0]), graph.get_shape(node.output[0])
    erf, one = graph.make_node("Erf", node.input), graph.make_const(f"{node.name}/one", np.ones((), "float32"))
    graph.remove_node(node.name)
    both = [one.output[0], erf.output[0]]
    graph.make_node("Sub", both, name=node.name, outputs=node.output, dtypes=[dtype], shapes=[shape])


HANDLERS: dict[str, Any] = {"custom_op_handlers": {"Erfc": (_erfc, [])}}


def _frozen(name: str, function: Any) -> tuple[Any, dict[str, list[int]]]:
    """The GraphDef of a function, calls inlined and variables replaced by constants; and the shapes of large variables.

    Those become inputs of the GraphDef, by whose names the shapes are given.
    """
    inlined = freeze._FunctionConverterDataInEager(function, False, True, variable_names_allowlist=frozenset())
    variables = {id(v.handle): v for v in function.graph.variables}
    captured = {inner.op.name: variables.get(id(outer), outer) for outer, inner in function.graph.captures}
    found = {node: (value.dtype, value.shape) for node, value in captured.items()}
    for node in inlined.graph_def.node:
        if node.op in ("VarHandleOp", "VariableV2"):
            found[node.name] = (tf.as_dtype(node.attr["dtype"].type), tf.TensorShape(node.attr["shape"].shape))
    _refuse(name, {"lookup tables" for dtype, _ in found.values() if dtype == tf.resource})
    large = {}
    for i, (node, (dtype, shape)) in enumerate(found.items()):
        value = captured.get(node)
        if (size := shape.num_elements()) is None or size > MAX_VALUE:
            large[node], data = shape, np.zeros(())
        elif value is None or (dtype.is_floating and isinstance(value, tf.Variable)):
            data = np.full(shape, (1024 + i) / 65536)
        else:
            data = value.numpy()
        data = np.asarray(data, dtype.as_numpy_dtype)
        inlined.tensor_data[node] = freeze._TensorData(data, dtype.as_datatype_enum, None)
    graph, _ = freeze._replace_variables_by_constants(inlined)
    _refuse(name, {n.op for n in _nodes(graph) if UNSAFE.search(n.op)})
    for compiled in (*graph.library.function, *graph.node):  # functions for XLA are not inlined unless these go
        compiled.attr.pop("_noinline", None)
        compiled.attr.pop("_XlaMustCompile", None)
    for node in graph.node:
        shapes = node.attr["output_shapes"].list.shape if "While" in node.op else ()
        for read, shape in zip(node.input, shapes, strict=False):
            if read in large:  # a large variable that a loop passes on
                shape.CopyFrom(large[read].as_proto())
        if node.name in large:
            node.op = "Placeholder"
            del node.attr["value"]
            node.attr["shape"].shape.CopyFrom(large[node.name].as_proto())
    return graph, {f"{node}:0": shape.as_list() for node, shape in large.items()}


def _refuse(name: str, operators: set[str]) -> None:
    """Raise ModelError where there are operators that can't be exported."""
    if operators:
        shown = printable(", ".join(sorted(operators))[:MAX_REASON])
        change = "write it with other operators, or leave it out (text and tables go before the model)"
        raise ModelError(f"{name!r} can't be exported, for tf2onnx has nothing in ONNX for {shown}: {change}")


def _reason(error: BaseException) -> str:
    """The message of an error of TensorFlow or Keras in one line, without the stack frames and arguments around it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("Arguments received by")[0]
    text = re.sub(r"'\{\{node (\S+)\}\} = (\w+)\[[^']*'", r"\1 (\2)", text)
    text = re.split(r"^ *\w+(?:Error|Exception): ", text, flags=re.MULTILINE)[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip() and "Exception encountered" not in line]
    return printable((lines or [type(error).__name__])[0])[:MAX_REASON]
