"""Exports models of Keras and TensorFlow by tf2onnx, with or without their weights.

A model is traced once, as a ConcreteFunction that runs it for inference. Without weights, variables of more than
MAX_VALUE elements become inputs of its graph, so that tf2onnx never holds their data; in the result they become weights
without data. Smaller variables become constants with made-up numbers, on which tf2onnx folds and fuses as it does on
real ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxperf.export.quiet import quiet
from onnxperf.export.tf_model import (
    MAX_REASON,
    Callee,
    callee_of,
    callee_of_file,
    loops,
    nodes,
    reason,
    specs_of,
    traced,
    with_open_batch,
)
from onnxperf.graph.proto import domain_of, nodes_in, schema_of
from onnxperf.graph.skeleton import skeleton
from onnxperf.graph.values import MAX_VALUE
from onnxperf.ground.errors import Error, ModelError, printable

OPSET = 18
MAX_LOOPED = 1 << 26  # elements of a weight that a loop reads: of constants alone tf2onnx makes an LSTM operator
RECURRENT = {"LSTM", "GRU", "RNN"}
#: Operators that touch files or call Python: tf2onnx would run even these where they depend on constants alone.
UNSAFE = re.compile("File|Restore|Save|Reader|Dataset|PyFunc")

with quiet():
    import keras
    import tensorflow as tf
    import tf2onnx.convert
    from tensorflow.python.framework import convert_to_constants as freeze


def proto(
    model: Any, example_inputs: Any = None, batch: int | None = None, open_batch: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> ModelProto:  # fmt: skip
    """A model of Keras or TensorFlow as an onnx.ModelProto without weights; the model is not changed.

    Except that a Keras model that is not built is built for its example inputs, as its first call would do.

    model: a Keras model or layer, a tf.function, a ConcreteFunction, an object with signatures or a call, or the path
    of a SavedModel's folder, of a .keras or an .h5 file; no code that a file brings is run.
    example_inputs: arrays or tensors, by name or in the order of the inputs, read for their shapes and types (an array
    of float64, NumPy's default, counts as float32); without them, the model's own inputs at batch 1.
    batch: the leading dimension of the inputs where it is open; open_batch: keep it open, under the name "batch".
    shapes: sizes by input name, of inputs that the model declares; they count before those of the examples.

    Raises UsageError where the inputs do not fit or must be given, ModelError where the model can't be exported.
    """
    with quiet(), tf.device("CPU"):
        callee = callee_of_file(Path(model)) if isinstance(model, (str, os.PathLike)) else callee_of(model)
        exported = _exported(
            callee, specs_of(callee, example_inputs, batch, open_batch, shapes), example_inputs, shapes
        )
        bare: ModelProto = ModelProto.FromString(skeleton(exported))
        return bare


def write(model: str, example_inputs: Any, path: Path) -> None:
    """Write the ONNX file of a Keras file or of a SavedModel's folder, with its weights.

    Loading a SavedModel can run parts of it. Raises what `proto` does, and whatever the exporter raises.
    """
    of_keras = partial(keras.saving.load_model, compile=False, safe_mode=True)
    load = tf.saved_model.load if os.path.isdir(model) else of_keras
    with quiet(), tf.device("CPU"):
        loaded = load(model)  # kept until the end: it holds the variables
        callee = callee_of(loaded)
        exported = _exported(callee, specs_of(callee, example_inputs), example_inputs, with_weights=True)
        path.write_bytes(exported.SerializeToString())


def _exported(
    callee: Callee, structure: Any, examples: Any, shapes: Mapping[str, Sequence[int]] | None = None,
    with_weights: bool = False,
) -> ModelProto:  # fmt: skip
    """The ONNX model that tf2onnx makes of a model with inputs of these specs.

    tf2onnx makes a recurrent operator of the loop of a Keras layer only where the batch is open; where it makes one,
    the batch gets its size afterwards.
    """
    specs, function = tf.nest.flatten(structure), traced(callee, structure)
    opened = with_open_batch(callee, examples, shapes, function) if loops(function) else None
    if opened is not None:
        model = _converted(callee.name, opened, specs, with_weights)
        if RECURRENT & {n.op_type for n in model.graph.node}:
            return model
    return _converted(callee.name, function, specs, with_weights)


def _converted(name: str, function: Any, specs: Sequence[Any], with_weights: bool) -> ModelProto:
    """The ONNX model that tf2onnx makes of a ConcreteFunction, whose inputs get the sizes of these specs."""
    inputs = [s.name for s in specs]
    reads, makes = [t.name for t in function.inputs[: len(inputs)]], [t.name for t in function.outputs]
    keys = function.structured_outputs if isinstance(function.structured_outputs, Mapping) else ()
    outputs = sorted(map(str, keys)) or [f"output_{i}" for i in range(len(makes))]
    new = dict(zip([*reads, *makes], [*inputs, *outputs], strict=False))
    try:
        graph, weights = _frozen(name, function, with_weights)
        convert = partial(tf2onnx.convert.from_graph_def, opset=OPSET, tensors_to_rename=new, **HANDLERS)
        model, _ = convert(graph, name, [*reads, *weights], makes)
    except Error:
        raise
    except Exception as e:  # tf2onnx raises many kinds
        raise ModelError(f"tf2onnx can't export {name!r}: {reason(e)}") from None
    opsets, sizes = {o.domain: o.version for o in model.opset_import}, dict(zip(inputs, specs, strict=True))
    _refuse(name, {n.op_type for n in nodes_in(model.graph.node) if schema_of(n.op_type, domain_of(n), opsets) is None})
    for i in list(model.graph.input):
        kind = i.type.tensor_type
        if i.name in weights:
            model.graph.initializer.append(TensorProto(name=i.name, data_type=kind.elem_type, dims=weights[i.name]))
            model.graph.input.remove(i)
        elif kind.shape.dim and not kind.shape.dim[0].dim_value:
            if (size := sizes[i.name].shape[0]) is None:
                kind.shape.dim[0].dim_param = "batch"
            else:
                kind.shape.dim[0].dim_value = size
    model.graph.name = name
    done: ModelProto = model
    return done


def _erfc(graph: Any, node: Any, *_: Any) -> None:
    """Convert Erfc, which Keras uses for an exact Gelu and tf2onnx does not know, to 1 - Erf."""
    dtype, shape = graph.get_dtype(node.output[0]), graph.get_shape(node.output[0])
    erf, one = graph.make_node("Erf", node.input), graph.make_const(f"{node.name}/one", np.ones((), "float32"))
    graph.remove_node(node.name)
    both = [one.output[0], erf.output[0]]
    graph.make_node("Sub", both, name=node.name, outputs=node.output, dtypes=[dtype], shapes=[shape])


HANDLERS: dict[str, Any] = {"custom_op_handlers": {"Erfc": (_erfc, [])}}


def _frozen(name: str, function: Any, with_weights: bool) -> tuple[Any, dict[str, list[int]]]:
    """The GraphDef of a function, calls inlined and variables replaced by constants; and the shapes of large variables.

    Those become inputs of the GraphDef, by whose names the shapes are given; `with_weights` there are none.
    """
    inlined = freeze._FunctionConverterDataInEager(function, False, True, variable_names_allowlist=frozenset())
    variables = {id(v.handle): v for v in function.graph.variables}
    captured = {inner.op.name: variables.get(id(outer), outer) for outer, inner in function.graph.captures}
    captures = {node: (value.dtype, value.shape) for node, value in captured.items()}
    for node in inlined.graph_def.node:
        if node.op in ("VarHandleOp", "VariableV2"):
            captures[node.name] = (tf.as_dtype(node.attr["dtype"].type), tf.TensorShape(node.attr["shape"].shape))
    _refuse(name, {"lookup tables" for dtype, _ in captures.values() if dtype == tf.resource})
    origin = _passed_on(inlined.graph_def)
    read_by_loops = (read for node in inlined.graph_def.node if "While" in node.op for read in node.input)
    large, looped = {}, {origin.get(read, read) for read in read_by_loops}
    for i, (node, (dtype, shape)) in enumerate(captures.items()):
        value = captured.get(node)
        most = MAX_LOOPED if node in looped else MAX_VALUE
        if with_weights and value is not None:
            data = value.numpy()
        elif (size := shape.num_elements()) is None or size > most:
            large[node], data = shape, np.zeros(())
        elif value is None or (dtype.is_floating and isinstance(value, tf.Variable)):
            data = np.full(shape, (1024 + i) / 65536)
        else:
            data = value.numpy()
        data = np.asarray(data, dtype.as_numpy_dtype)
        inlined.tensor_data[node] = freeze._TensorData(data, dtype.as_datatype_enum, None)
    graph, _ = freeze._replace_variables_by_constants(inlined)
    graph = tf2onnx.tf_loader.fix_freezing_errors(graph)  # nothing is assigned to a constant
    graph = tf2onnx.tf_loader.fix_freezing_errors_part2(graph)  # in a loop a Gather reads one, no variable
    _refuse(name, {n.op for n in nodes(graph) if UNSAFE.search(n.op)})
    for compiled in (*graph.library.function, *graph.node):  # functions for XLA are not inlined unless these go
        compiled.attr.pop("_noinline", None)
        compiled.attr.pop("_XlaMustCompile", None)
    for node in graph.node:
        shapes = node.attr["output_shapes"].list.shape if "While" in node.op else ()
        for read, shape in zip(node.input, shapes, strict=False):
            if (variable := origin.get(read, read)) in large:  # a large variable that a loop passes on
                shape.CopyFrom(large[variable].as_proto())
        if node.name in large:
            node.op = "Placeholder"
            del node.attr["value"]
            node.attr["shape"].shape.CopyFrom(large[node.name].as_proto())
    return graph, {f"{node}:0": shape.as_list() for node, shape in large.items()}


def _passed_on(graph: Any) -> dict[str, str]:
    """What comes out of each Identity of a GraphDef: inlined calls, as those of a SavedModel, leave one for each."""
    passed: dict[str, str] = {n.name: n.input[0] for n in graph.node if n.op == "Identity" and n.input}
    for name, read in passed.items():
        seen = {name}
        while read in passed and read not in seen:
            seen.add(read)
            read = passed[read]
        passed[name] = read
    return passed


def _refuse(name: str, operators: set[str]) -> None:
    """Raise ModelError where there are operators that can't be exported."""
    if operators:
        shown = printable(", ".join(sorted(operators))[:MAX_REASON])
        change = "write it with other operators, or leave it out (text and tables go before the model)"
        raise ModelError(f"{name!r} can't be exported, for tf2onnx has nothing in ONNX for {shown}: {change}")
