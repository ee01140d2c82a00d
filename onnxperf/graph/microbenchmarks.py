"""Small ONNX models made from a list of operators, with which operators are measured one by one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

OPSET = 20
MISSING_FILE = "weights-not-included.bin"
TYPES = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int64": TensorProto.INT64, "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int32": TensorProto.INT32,
}  # fmt: skip
#: What writes an input anew before the operator that is measured, by its type.
BEFORE = {"float32": "Neg", "float16": "Neg", "int8": "BitwiseNot", "uint8": "BitwiseNot"}


class Weight(NamedTuple):
    """A weight of a type of its own; value: of all its elements, which then stand in the file, such as a scale."""

    shape: tuple[int, ...]
    dtype: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class SingleOperator:
    """One operator to be measured: the shapes of its inputs and weights, and its attributes.

    type: "Conv" or, outside ai.onnx, "domain::Type"; its operands are, in this order: `tables` (weights that stand
    before the inputs, as in a Gather), `inputs`, `weights`, and `constants` (small integers such as axes, None for an
    operand that is left out). order: the operands' places in that list, where they come in another order or twice.
    dtype: of inputs, weights and results; types: of the single inputs, and gives: of the results, where these have
    another. changed_rank: dimensions of the results, where the first input has others.
    """

    name: str
    type: str
    inputs: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[int, ...] | Weight, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[tuple[int, ...] | None, ...] = ()
    outputs: int = 1
    dtype: str = "float32"
    types: tuple[str, ...] = ()
    gives: str = ""
    tables: tuple[tuple[int, ...], ...] = ()
    changed_rank: int | None = None
    order: tuple[int, ...] = ()

    def node(self, reads: Sequence[str]) -> tuple[NodeProto, list[TensorProto]]:
        """The operator as a node that reads the tensors of these names as its inputs, and its weights and constants."""
        domain, _, type = self.type.rpartition("::")
        kinds = (("t", self.tables), ("w", self.weights))
        all_stored = ((f"{self.name}.{k}{i}", s) for k, shapes in kinds for i, s in enumerate(shapes))
        stored = [_weight(n, s if isinstance(s, Weight) else Weight(s, self.dtype)) for n, s in all_stored]
        names = [t.name for t in stored]
        names[len(self.tables) : len(self.tables)] = reads
        for i, values in enumerate(self.constants):
            names.append("" if values is None else f"{self.name}.c{i}")
            if values is not None:
                stored.append(helper.make_tensor(names[-1], TYPES["int64"], (len(values),), values))
        names = [names[i] for i in self.order] or names
        # ONNX Runtime names the kernels that it makes of a convolution after the result
        writes = [self.name, *(f"{self.name}.y{i}" for i in range(1, self.outputs))]
        return helper.make_node(type, names, writes, name=self.name, domain=domain, **self.attrs), stored


def separate_model(name: str, operators: Sequence[SingleOperator]) -> bytes:
    """An ONNX file in which no operator reads another's result: each has inputs, weights and outputs of its own.

    Floating and 8-bit inputs pass through a Neg or BitwiseNot first, so that an operator finds them in the cache as it
    does in a model, where another operator has just written them. Results pass through a GatherND, so that their memory
    is used again, as in a model. `is_wrapper` recognises both. The weights lie in a file that does not exist.
    """
    nodes, inputs, outputs, stored = [], list[ValueInfoProto](), list[ValueInfoProto](), list[TensorProto]()
    for o in operators:
        reads, rank = [], len(o.inputs[0]) if o.changed_rank is None else o.changed_rank
        for i, shape in enumerate(o.inputs):
            type = o.types[i] if i < len(o.types) else o.dtype
            reads.append(f"{o.name}.x{i}")
            inputs.append(helper.make_tensor_value_info(reads[i], TYPES[type], shape))
            if type in BEFORE:
                nodes.append(helper.make_node(BEFORE[type], [reads[i]], [f"{o.name}#in{i}"], name=f"{o.name}#in{i}"))
                reads[i] = f"{o.name}#in{i}"
        node, weights = o.node(reads)
        nodes.append(node)
        stored += weights
        for y in node.output:
            stored.append(helper.make_tensor(f"{y}.at", TYPES["int64"], (1, rank), (0,) * rank))
            nodes.append(helper.make_node("GatherND", [y, f"{y}.at"], [f"{y}#out"], name=f"{y}#out"))
            outputs.append(helper.make_tensor_value_info(f"{y}#out", TYPES[o.gives or o.dtype], (1,)))
    return _model(helper.make_graph(nodes, name, inputs, outputs, stored))


def is_wrapper(name: str) -> bool:
    """Whether a node of this name is one of those that `separate_model` puts around an operator."""
    return re.fullmatch(r".+#(in\d+|out)", name) is not None


def chain_model(name: str, operators: Sequence[SingleOperator]) -> bytes:
    """An ONNX file in which every operator reads the result of the one before.

    The last result has the shape of the first input. The weights lie in a file that does not exist.
    """
    first, nodes, stored = operators[0], list[NodeProto](), list[TensorProto]()
    at = "x"
    for o in operators:
        node, weights = o.node([at])
        nodes.append(node)
        stored += weights
        at = node.output[0]
    x, y = (helper.make_tensor_value_info(t, TYPES[first.dtype], first.inputs[0]) for t in ("x", at))
    return _model(helper.make_graph(nodes, name, [x], [y], stored))


def _model(graph: GraphProto) -> bytes:
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="onnxperf")
    return bytes(model.SerializeToString())


def _weight(name: str, w: Weight) -> TensorProto:
    """A weight whose data lie in a file that does not exist, or one with a value for all its elements."""
    if w.value is not None:
        return helper.make_tensor(name, TYPES[w.dtype], w.shape, [w.value] * prod(w.shape))
    t = TensorProto(name=name, data_type=TYPES[w.dtype], dims=w.shape, data_location=TensorProto.EXTERNAL)
    t.external_data.add(key="location", value=MISSING_FILE)
    return t
