"""What onnx defines an operator by: a function of others, which runs where a runtime has no kernel for the operator."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from onnx import ModelProto, ValueInfoProto, defs, helper, inliner

from onnxperf.graph.bind import bind
from onnxperf.graph.infer import infer
from onnxperf.graph.inlined_size import MESSAGE, TEXT, check_expansion
from onnxperf.graph.open_dims import Open
from onnxperf.graph.proto import NUMBERS, tensor_type
from onnxperf.ground.errors import Error, ModelError
from op_models import Operator, Tensor

INLINE_FIRST = "inline them with onnx.inliner.inline_selected_functions, and predict what that gives"
MAX_SIGNATURES = 256  # of a model: a body takes some ten milliseconds, and real models have no more than 30


@dataclass(frozen=True, slots=True)
class _Signature:
    """All that the body of an operator depends on, which is not what the operator and its tensors are called."""

    operator: Operator = field(compare=False)
    inlined: frozenset[str]
    key: tuple[Any, ...]


def definitions(operators: Sequence[Operator], inlined: Collection[str], name: str) -> list[tuple[Operator, ...]]:
    """For each operator those that it runs as: the `definition` of one of these types, else itself.

    Raises ModelError where the model of this name would become too large.
    """
    signatures = [_signature(o, inlined) if o.type in inlined else None for o in operators]
    if (forms := len(set(filter(None, signatures)))) > MAX_SIGNATURES:
        what = "operators that onnx defines by functions, which differ in attributes or shapes"
        raise ModelError(f"{name} has {forms:,} forms of {what}; the limit is {MAX_SIGNATURES}: {INLINE_FIRST}")
    bodies = [None if signature is None else _body(signature) for signature in signatures]
    pairs = [(o, body) for o, body in zip(operators, bodies, strict=True) if body is not None]
    size = sum((MESSAGE + (1 + len(b.outputs)) * (TEXT + len(o.name))) for o, body in pairs for b in body)
    what = f"{name}: taking apart the operators that onnx defines by functions"
    check_expansion(what, sum(len(body) for _, body in pairs), size, INLINE_FIRST)
    return [(o,) if body is None else _placed(o, body) for o, body in zip(operators, bodies, strict=True)]


def definition(o: Operator, inlined: Collection[str]) -> tuple[Operator, ...] | None:
    """The operators that onnx defines one by, those of the types `inlined` among them taken apart in turn; None for an
    operator that is no function. Nothing of it is folded, since a session has folded all it can before.
    """
    body = _body(_signature(o, inlined))
    return None if body is None else _placed(o, body)


def _placed(o: Operator, body: Sequence[Operator]) -> tuple[Operator, ...]:
    """The body of a signature in the place of an operator that has it."""
    tensors = {f"i{i}": t for i, t in enumerate(_of_today(o).inputs) if t is not None}
    tensors.update((f"o{i}", t) for i, t in enumerate(o.outputs))

    def named(t: Tensor) -> Tensor:
        if (outer := tensors.get(t.name)) is None:
            tensors[t.name] = outer = replace(t, name=f"{o.name}#{t.name}")
        return outer

    return tuple([
        replace(
            b, name=f"{o.name}#{b.name}", inputs=tuple([t and named(t) for t in b.inputs]),
            outputs=tuple(map(named, b.outputs)), nodes=o.nodes, repeat=o.repeat,
        )
        for b in body
    ])  # fmt: skip


def _signature(o: Operator, inlined: Collection[str]) -> _Signature:
    tensors = [None if t is None else (t.dtype, _dims(t), t.stored, t.stored and t.value) for t in o.inputs]
    outputs = [(t.dtype, _dims(t)) for t in o.outputs]
    key = o.type, o.version, repr(sorted(o.attrs.items())), tuple(tensors), tuple(outputs)
    return _Signature(o, frozenset(inlined), key)


def _dims(t: Tensor) -> tuple[Any, ...]:
    """A shape, and of its open sizes all that tells them apart: as numbers they equal others."""
    return tuple([(int(d), d.symbol, d.from_data, d.ranked) if isinstance(d, Open) else d for d in t.shape])


@lru_cache(4 * MAX_SIGNATURES)
def _body(signature: _Signature) -> tuple[Operator, ...] | None:
    """The operators that onnx defines one of this signature by, whose inputs are called i0, i1, ... in it, and its
    outputs o0, o1, ...; None where it is no function, or one that nobody can take apart.
    """
    o = signature.operator
    if any(t.dtype == "opaque" for t in (*o.present, *o.outputs)) or (schema := _schema(_of_today(o))) is None:
        return None
    older, o = o.version, _of_today(o)
    ins = {f"i{i}": t for i, t in enumerate(o.inputs) if t is not None}
    outs = {f"o{i}": t for i, t in enumerate(o.outputs)}
    opened = dict[str, Open]()
    model = _model(o, schema, ins, outs, opened)
    types = [("", type) for type in signature.inlined]
    sizes = {name: int(d) for name, d in opened.items()}
    try:
        flat = inliner.inline_selected_functions(model, types, inline_schema_functions=True)
    except Exception:  # the C++ inliner raises many kinds, such as where it can't infer a type inside: of no elements
        return None
    try:
        body = infer(flat, bind(flat, {}, sizes, None), {}, {}, o.type, None, folds=False).graph
    except Error:
        return None

    def shaped(t: Tensor) -> Tensor:
        return replace(t, shape=tuple([opened.get(d.symbol, d) if isinstance(d, Open) else d for d in t.shape]))

    def today(b: Operator) -> Operator:
        inputs, outputs = tuple([t and shaped(t) for t in b.inputs]), tuple(map(shaped, b.outputs))
        if o.version != older and b.type == "Cast" and b.present[0].name in ("i1", "i2"):
            b = replace(b, type="Identity", attrs={})  # only the later definition casts scale and bias
        return replace(b, inputs=inputs, outputs=outputs)

    return tuple(map(today, body.operators))


def _of_today(o: Operator) -> Operator:
    """The operator as an opset has it that onnx still defines: GroupNormalization of opsets 18 to 20, whose scale and
    bias have a value for each group, as that of 21, where they have one for each channel.
    """
    if o.type != "GroupNormalization" or not 18 <= o.version < 21:
        return o
    x, *parameters = o.present
    return replace(o, version=21, inputs=(x, *(replace(t, shape=x.shape[1:2], value=None) for t in parameters)))


def _schema(o: Operator) -> Any:
    """The schema of an operator that onnx defines by a function, or None."""
    try:
        schema: Any = defs.get_schema(o.type, o.version or defs.onnx_opset_version(), "")
    except defs.SchemaError:
        return None
    return schema if schema.has_function or schema.has_context_dependent_function else None


def _model(
    o: Operator, schema: Any, ins: Mapping[str, Tensor], outs: Mapping[str, Tensor], opened: dict[str, Open]
) -> ModelProto:
    """A model of the operator alone that reads and makes these tensors, with the small constants among them and all
    attributes written out. `opened` gets the open dimensions by the names that they have in it.
    """

    def info(name: str, t: Tensor) -> ValueInfoProto:
        names = [d.symbol or f"{name}_{i}" if isinstance(d, Open) else "" for i, d in enumerate(t.shape)]
        opened.update({n: d for n, d in zip(names, t.shape, strict=True) if isinstance(d, Open)})
        return helper.make_value_info(name, tensor_type(t.dtype, [n or d for n, d in zip(names, t.shape, strict=True)]))

    node = helper.make_node(o.type, [f"i{i}" if t else "" for i, t in enumerate(o.inputs)], list(outs), **o.attrs)
    defaults = (a.default_value for name, a in schema.attributes.items() if name not in o.attrs)
    node.attribute.extend(default for default in defaults if default.name)
    stored = (n for n, t in ins.items() if t.stored and t.value is not None)
    values = [helper.make_tensor(n, NUMBERS[ins[n].dtype], ins[n].shape, ins[n].value or ()) for n in stored]
    inputs, outputs = ([info(name, t) for name, t in tensors.items()] for tensors in (ins, outs))
    graph = helper.make_graph([node], o.name, inputs, outputs, values)
    opset = helper.make_opsetid("", o.version or defs.onnx_opset_version())
    return helper.make_model(graph, opset_imports=[opset])
