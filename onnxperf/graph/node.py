"""One node: the types of its outputs, their values where they are known before the run, and whether it runs at all.

`onnx.shape_inference` infers a node from its inputs' types and known values, `onnx.reference` evaluates small
arithmetic (see `values`). A node that depends on weights and constants alone is folded: it is executed once, ahead of
time, and no operator of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from onnx import NodeProto, TypeProto, ValueInfoProto, defs, helper, numpy_helper, shape_inference
from onnx.shape_inference import InferenceError

from onnxperf.graph.checks import contradiction, misuse
from onnxperf.graph.core import Note, is_trained
from onnxperf.graph.custom_operators import custom_types
from onnxperf.graph.one_node import infer_one
from onnxperf.graph.open_dims import SELECTIONS, is_known, is_static, known_dims, shape_is_lost
from onnxperf.graph.outputs import clash, define_output, pattern_of, upper_bound
from onnxperf.graph.proto import (
    attributes,
    closed,
    dims_of,
    domain_of,
    dtype_of,
    graphs_in,
    operator_type,
    plain,
    static,
    tensor_type,
    times,
)  # fmt: skip
from onnxperf.graph.sequences import elements_of, result_shape
from onnxperf.graph.state import SMALL, State
from onnxperf.graph.values import ARITHMETIC, Values, constant, evaluate, first_line, measure
from onnxperf.ground.errors import ModelError, printable
from op_models import Operator, Tensor, caches, known, output_rule

#: Operators whose inputs have to agree in all their axes: a mask that is stored does so at its own size alone.
SPREAD = frozenset({"Add", "And", "Concat", "Div", "Expand", "Mul", "Or", "Sub", "Where"})
MAX_SHOWN = 8  # sizes of a list that a message names
FLOATS_READ = frozenset({"Resize", "Upsample", "Range"})  # shape inference needs the values of their float inputs
DEPRECATED = frozenset({"GroupNormalization"})  # in opsets 18 to 20, where ONNX Runtime still runs it


class _Node(NamedTuple):
    """A node with what is known about it before its outputs are inferred.

    `type` is "Conv" or, outside ai.onnx, "domain::Type"; `written` are its attributes in the file, `attrs` what they
    say, one object for all nodes that have the same; `captured` are the tensors that its subgraphs read; `assumed` says
    that the shape of one of its inputs is an assumption.
    """

    proto: NodeProto
    label: str
    domain: str
    type: str
    schema: defs.OpSchema | None
    written: tuple[bytes, ...]
    attrs: dict[str, Any]
    inputs: tuple[Tensor | None, ...]
    captured: tuple[Tensor, ...]
    assumed: bool


def check_form(state: State, node: NodeProto, label: str) -> None:
    """Raise ModelError for a node that its operator's definition forbids, such as one with too few inputs."""
    schema = state.schema(node.op_type, domain_of(node))
    if wrong := misuse(node, schema) if schema is not None else "":
        raise ModelError(f"node {label!r} ({plain(node.op_type)}) is malformed: {wrong}")


def infer_node(state: State, node: NodeProto, label: str) -> None:
    """Define the outputs of a node and, where it is not folded, add its operator.

    Raises ModelError, or UsageError where the request changed the sizes in the file, for a node that can't run.
    """
    domain = domain_of(node)
    if node.op_type == "Constant" and not domain:
        return _define_constant(state, node, label)
    inputs = tuple(state.tensor(i, label) if i else None for i in node.input)
    outer = tuple(state.tensor(c, label) for c in state.captures.alone(node))
    assumed = any(t.name in state.assumed for t in (*inputs, *outer) if t)
    type, schema = operator_type(node), state.schema(node.op_type, domain)
    written = tuple([a.SerializeToString() for a in node.attribute])
    if (attrs := state.attributes.get(written)) is None:
        state.attributes[written] = attrs = attributes(node)
    n = _Node(node, label, domain, type, schema, written, attrs, inputs, outer, assumed)
    types = _infer_types(state, n, schema) if schema is not None else _custom_types(state, n)
    shapes, inferred = [t.shape if t else None for t in inputs], [dims_of(types.get(o)) for o in node.output]
    if wrong := "" if assumed or domain else contradiction(type, n.attrs, shapes, inferred):
        message = f"node {label!r} ({type}) does not fit its inputs {_signature(state, node)}: {wrong}"
        raise state.refusal(message + (_made_for_others(state, inputs) if type in SPREAD else ""))
    folded = _is_folded(state, n)
    outputs = tuple(_define_outputs(state, n, types, folded))
    if not assumed:
        _check_reshape(state, n, outputs)
    elif not domain and not all(_fits(t, types.get(t.name)) for t in outputs):
        _note_misfit(state, n)
        type = f"ai.onnx::{node.op_type}"  # the operator's rule would not understand it: it counts as unknown
    uncertain = any(t.name in state.assumed for t in outputs)
    if schema is None and (uncertain or not known(type)):
        operator = f"{plain(domain or 'ai.onnx')}::{plain(node.op_type)}"
        work = "" if known(type) else " and its work is not known: it counts the bytes that it reads and writes"
        says = f"{operator} is not defined in onnx{work}; its shapes are {('as the file says', 'assumed')[uncertain]}"
        state.notes.append(Note("unknown-operator", says, (label,)))
    if node.attribute and (inside := sum(len(g.node) for g in graphs_in([node]))):
        says = f"{type} holds graphs of {inside:,} nodes, which are not counted: the predicted time is too short"
        state.notes.append(Note("body-not-counted", printable(says), (label,)))
    if not folded:
        operands: tuple[Tensor | None, ...] = (*inputs, *outer)
        while operands and operands[-1] is None:
            operands = operands[:-1]
        version = state.opsets.get(domain, 0)
        state.operators.append(Operator(label, type, operands, outputs, n.attrs, version, (label,)))


def _note_misfit(state: State, n: _Node) -> None:
    """Note that a node can't run on the shapes that are assumed of its inputs, so that its FLOPs are not counted."""
    names = [plain(t.name) for t in n.inputs if t is not None and t.name in state.assumed]
    flags = " ".join(f"--shapes {name}:..." for name in dict.fromkeys(names))
    says = f"{n.type} {plain(n.label)!r} does not fit what is assumed of its inputs {_signature(state, n.proto)}"
    message = f"{says}: its FLOPs are not counted (give {flags or '--shapes'})"
    state.notes.append(Note("not-counted", message, (n.label,)))


def _define_constant(state: State, node: NodeProto, label: str) -> None:
    """Define the output of a Constant node."""
    content = constant(node, state.folder)
    if content is None:
        raise ModelError(f"node {label!r} (Constant) holds no value")
    dtype, shape, value = content
    state.define(node.output[0], dtype, shape, "constant", value)
    if node.attribute[0].HasField("t"):
        state.stored[node.output[0]] = node.attribute[0].t


def _infer_types(state: State, n: _Node, schema: defs.OpSchema) -> Mapping[str, TypeProto]:
    """The types of a node's outputs that `onnx.shape_inference` knows."""
    node = n.proto
    read = {
        i: value.reshape(()) if node.op_type == "Range" and value.size == 1 else value
        for i in node.input
        if (value := state.values.get(i)) is not None and (value.dtype.kind in "iub" or node.op_type in FLOATS_READ)
    }
    if n.captured or sum(value.size for value in read.values()) > SMALL:
        return _infer_alone(state, n, schema, read)
    # most nodes of a model equal another but for names, and have outputs of the same types then
    types = tuple([state.types[i].SerializeToString() if i else b"" for i in node.input])
    held = [(v.dtype, v.shape, v.tobytes()) if (v := read.get(i)) is not None else None for i in node.input if read]
    key = (n.type, node.overload, n.written, types, tuple(held), *map(bool, node.output))
    if (outputs := state.inferred.get(key)) is None:
        by_name = _infer_alone(state, n, schema, read)
        state.inferred[key] = outputs = tuple(by_name.get(o) for o in node.output)
    return {o: type for o, type in zip(node.output, outputs, strict=True) if type is not None}


def _infer_alone(state: State, n: _Node, schema: defs.OpSchema, read: Values) -> dict[str, TypeProto]:
    """What `_infer_types` answers for a node; `read` are those of its inputs that are known before the run."""
    node = n.proto
    if schema.deprecated and n.type in DEPRECATED:
        return custom_types(node, n.type, n.attrs, n.inputs)
    types = {i: state.types[i] for i in (*node.input, *state.captures.names(node)) if i}
    data = {name: numpy_helper.from_array(value) for name, value in read.items()}
    try:
        outputs: dict[str, TypeProto] = infer_one(
            schema, node, types, data, opset_imports=state.opset_imports, ir_version=state.ir_version
        )
        if schema.has_type_and_shape_inference_function:
            lacks = output_rule(n.type) is not None and any(dims_of(outputs.get(o)) is None for o in node.output if o)
            return outputs | custom_types(node, n.type, n.attrs, n.inputs) if lacks else outputs
        if any(dims_of(outputs.get(o)) is None for o in node.output if o):
            outputs = _infer_through_function(state, node, types)
        if any(dims_of(outputs.get(o)) is None for o in node.output if o):  # the function has Reshapes that stay open
            outputs |= custom_types(node, n.type, n.attrs, n.inputs)
        return outputs
    except InferenceError as e:
        why = first_line(e).rpartition("] ")[2].rpartition("): ")[2] or first_line(e)
        message = f"node {n.label!r} ({node.op_type}) does not fit its inputs {_signature(state, node)}: {why}"
        message += _made_for_others(state, n.inputs) if n.type in SPREAD else ""
    except Exception as e:  # malformed nodes make the C++ side raise whatever it likes
        message = f"node {n.label!r} ({node.op_type}) is malformed: {first_line(e)}"
    if n.assumed:
        return {}
    raise state.refusal(message)


def _session_types(state: State, n: _Node) -> Mapping[str, TypeProto] | None:
    """The types of a node's outputs as a session infers them that lacks the shape of an input, or of the result itself;
    None where it lacks nothing, and in a model with open inputs, of which `OpenShapes` tells.
    """
    if state.binding.dynamic:
        return None
    tensors = [t for t in (*n.inputs, *n.captured) if t]
    selected = n.type in SELECTIONS and all(t.stored for t in tensors)
    lost = selected or shape_is_lost(n.type, state.opsets.get("", 1))
    in_runs = any(not t.stored and t.name in state.values for t in tensors)  # sizes, computed when it runs
    if not lost and not in_runs and all(map(is_static, tensors)):
        return None
    if n.schema is None:  # ONNX Runtime's own operators mostly keep the shape of their first input
        if not tensors or is_static(tensors[0]):
            return None
        return dict.fromkeys(n.proto.output[:1], tensor_type(tensors[0].dtype, known_dims(tensors[0])))
    read = {i: state.tensors[i] for i in (*n.proto.input, *state.captures.names(n.proto)) if i}
    types = {i: state.types[i] if is_static(t) else tensor_type(t.dtype, known_dims(t)) for i, t in read.items()}
    stored = (i for i, t in read.items() if t.stored and i in state.values)
    values = {name: numpy_helper.from_array(state.values[name]) for name in stored}
    context: Any = {"opset_imports": state.opset_imports, "ir_version": state.ir_version}
    try:
        outputs: dict[str, TypeProto] = infer_one(n.schema, n.proto, types, values, **context)
    except Exception:  # onnx raises many kinds here; then nothing is known
        return {}
    return outputs


def _custom_types(state: State, n: _Node) -> Mapping[str, TypeProto]:
    """The types of a node's outputs by the rules of op_models; of caches by what is given, else by the file, where only
    their length differs.

    Whether a cache grows or is changed in place is up to who calls the model: both lengths are right.
    """
    types = custom_types(n.proto, n.type, n.attrs, n.inputs)
    for name in (n.proto.output[i] for i in caches(n.type) if i < len(n.proto.output)):
        type, info = types.get(name), state.declared.get(name)
        declared = closed(state.binding.declared(info)) if info is not None else None
        shape, claim = static(type), state.given_shapes.get(name, declared)
        if type and shape and claim and len(shape) == len(claim) and (shape[:-2], shape[-1]) == (claim[:-2], claim[-1]):
            types[name] = tensor_type(dtype_of(type.tensor_type.elem_type), claim)
    return types


def _infer_through_function(state: State, node: NodeProto, types: Mapping[str, TypeProto]) -> dict[str, TypeProto]:
    """Output types of an operator that onnx defines by a function, such as GreaterOrEqual before opset 16.

    `infer_one` does not look into functions; inference of a whole model, here of one node, does.
    """
    inputs = [ValueInfoProto(name=name, type=type) for name, type in types.items()]
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "one", inputs, outputs)
    model = helper.make_model(graph, opset_imports=state.opset_imports, ir_version=state.ir_version)
    return {o.name: o.type for o in shape_inference.infer_shapes(model).graph.output}


def _is_folded(state: State, n: _Node) -> bool:
    """Whether a node is executed ahead of the run, so that the graph has no operator for it."""
    if not state.folds or n.schema is None or not is_known(n.type, n.inputs):
        return False
    if state.binding.trains and n.type != "Identity" and any(t is not None and is_trained(t) for t in n.inputs):
        return False
    declared = (state.declared.get(o) for o in n.proto.output)
    sized = all(info is not None and static(info.type) is not None for info in declared)
    return sized or not shape_is_lost(n.type, state.opsets.get("", 1))


def _evaluate(state: State, n: _Node, types: Mapping[str, TypeProto]) -> Values:
    """The values of a node's outputs that are known before the run."""
    if n.type in ("Shape", "Size") and n.inputs and n.inputs[0] is not None:
        return measure(n.proto, n.inputs[0].shape)
    if n.domain or n.type not in ARITHMETIC or not state.affords(n.proto):
        return {}
    return evaluate(n.proto, state.values, types, state.opsets)


def _define_outputs(state: State, n: _Node, types: Mapping[str, TypeProto], folded: bool) -> Iterator[Tensor]:
    """Define the outputs of a node, but for optional ones that nothing reads, which a kernel does not write."""
    values, session_types = _evaluate(state, n, types), _session_types(state, n)
    for index, out in enumerate(n.proto.output):
        if not out or (out not in state.read and _may_be_left_out(n.schema, index)):
            continue
        if folded and n.type == "Identity" and out not in state.output_names and n.inputs[0] is not None:
            yield state.define_same(out, n.inputs[0])
            continue
        type, kind = types.get(out), "constant" if folded else "activation"
        if type is not None and n.type == "SequenceInsert" and dims_of(type.sequence_type.elem_type) is None:
            # into an empty sequence
            type = TypeProto(sequence_type=TypeProto.Sequence(elem_type=state.types[n.proto.input[1]]))
        first = pattern_of(n.type, index, next(filter(None, n.inputs), None), n.attrs)
        at_most = upper_bound(n.type, index, n.inputs, n.attrs)
        shape, exact = result_shape(n.type, n.inputs, n.attrs, state.sequences, state.values)
        if shape is not None:
            dtype = state.tensors[n.proto.input[0]].dtype
            type, at_most = tensor_type(dtype, shape if exact and not n.assumed else None), shape
        yield define_output(
            state, out, n.label, first, type, kind, value=values.get(out), assumed=n.assumed, at_most=at_most,
            session_types=session_types, held=elements_of(n.type, n.inputs, n.attrs, state.sequences, state.values),
        )  # fmt: skip


def _may_be_left_out(schema: defs.OpSchema | None, index: int) -> bool:
    """Whether an operator may leave out its output number `index`."""
    if schema is None or index >= len(schema.outputs):
        return False
    return schema.outputs[index].option == defs.OpSchema.FormalParameterOption.Optional


def _check_reshape(state: State, n: _Node, outputs: Sequence[Tensor]) -> None:
    """Refuse a Reshape that changes the number of elements."""
    if n.type != "Reshape" or not n.inputs[0] or not outputs or n.inputs[0].dtype == "opaque":
        return
    data, out = n.inputs[0], outputs[0]
    if data.size != out.size:
        message = f"node {n.label!r} (Reshape) can't make {times(out.shape)} of {times(data.shape)}"
        raise state.refusal(message + _made_for_others(state, n.inputs[1:], computed=True))


def _made_for_others(state: State, read: Iterable[Tensor | None], computed: bool = False) -> str:
    """That the constants among what a node reads may be made for other sizes of open dimensions; "" without any.

    computed: so may those that what it reads is computed from.
    """
    stored = [t for t in read if t is not None and (t.stored or computed) and t.rank]
    if not stored or not state.binding.symbols or state.binding.refusal:
        return ""
    names = " and ".join(f"{t.name!r} ({_content(state, t)})" for t in stored[:2])
    sizes = ", ".join(f"{plain(name)}={size}" for name, size in state.binding.symbols.items())
    return (
        f": the file has constants in {names}, made for other sizes than {sizes}; give those that it was exported with,"
        " or export it again with these dimensions dynamic"
    )


def _content(state: State, t: Tensor) -> str:
    """The elements of a short list of sizes, or else a tensor's shape."""
    value = state.values.get(t.name)
    short = value is not None and value.ndim == 1 and value.size <= MAX_SHOWN and value.dtype.kind == "i"
    return times(value.tolist()) if value is not None and short else times(t.shape)


def _fits(tensor: Tensor, inferred: TypeProto | None) -> bool:
    """Whether a tensor has the shape that was inferred for it."""
    dims = dims_of(inferred)
    return inferred is not None and (dims is None or not clash(tensor.shape, dims))


def _signature(state: State, node: NodeProto) -> str:
    """The inputs of a node as text: name[1x3x224x224], ..."""
    return ", ".join(f"{plain(i)}[{times(state.tensors[i].shape)}]" for i in node.input if i) or "(none)"
