"""What onnx defines an operator by: a function of others, which runs where a runtime has no kernel for the operator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from onnx import ModelProto, ValueInfoProto, defs, helper, inliner

from onnxperf.graph.bind import bind
from onnxperf.graph.infer import infer
from onnxperf.graph.open_dims import Open
from onnxperf.graph.proto import NUMBERS, tensor_type
from op_models import Operator, Tensor


def definition(o: Operator, inlined: Collection[str]) -> tuple[Operator, ...] | None:
    """The operators that onnx defines one by, those of the types `inlined` among them taken apart in turn; None for an
    operator that is no function. Nothing of it is folded, since a session has folded all it can before.
    """
    if any(t.dtype == "opaque" for t in (*o.present, *o.outputs)) or (schema := _schema(_of_today(o))) is None:
        return None
    older, o = o.version, _of_today(o)
    ins = {f"i{i}": t for i, t in enumerate(o.inputs) if t is not None}
    outs = {f"o{i}": t for i, t in enumerate(o.outputs)}
    tensors, opened = {**ins, **outs}, dict[str, Open]()
    model = _model(o, schema, ins, outs, opened)
    flat = inliner.inline_selected_functions(model, [("", type) for type in inlined], inline_schema_functions=True)
    sizes = {name: int(d) for name, d in opened.items()}
    body = infer(flat, bind(flat, {}, sizes, None), {}, {}, o.name, None, folds=False).graph

    def named(t: Tensor) -> Tensor:
        shape = tuple([opened.get(d.symbol, d) if isinstance(d, Open) else d for d in t.shape])
        return tensors.get(t.name) or replace(t, name=f"{o.name}#{t.name}", shape=shape)

    def placed(b: Operator) -> Operator:
        inputs, outputs = tuple([t and named(t) for t in b.inputs]), tuple(map(named, b.outputs))
        if o.version != older and b.type == "Cast" and b.present[0].name in ("i1", "i2"):
            b = replace(b, type="Identity", attrs={})  # only the later definition casts scale and bias
        return replace(b, name=f"{o.name}#{b.name}", inputs=inputs, outputs=outputs, nodes=o.nodes, repeat=o.repeat)

    return tuple(map(placed, body.operators))


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
