"""Reshapes to sizes of what they read, to which ONNX Runtime gives a stored target, so that it learns their shapes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from onnxperf.graph.proto import domain_of

Makers = Mapping[str, NodeProto]
Stored = Mapping[str, list[int]]
UNKNOWN = -2  # a part of a target of which it is not known how many numbers it is
MOST_AXES, MOST_BYTES = 64, 256  # of a target, and of a tensor that is a part of one


def give_targets(graph: GraphProto) -> None:
    """Give a Reshape whose target joins numbers and sizes of what it reads these numbers: 0 for a size in its own
    place, -1 for at most one other that is computed.
    """
    makers = {o: n for n in graph.node for o in n.output if not domain_of(n)}
    stored = {t.name: v for t in graph.initializer if (v := _numbers(t)) is not None}
    for n in graph.node:
        if n.op_type == "Constant" and len(n.attribute) == 1 and (v := _constant(n)) is not None:
            stored[n.output[0]] = v
    for n in graph.node:
        joined = makers.get(n.input[1]) if n.op_type == "Reshape" and len(n.input) > 1 else None
        if joined is None or joined.op_type != "Concat" or len(joined.input) > MOST_AXES:
            continue
        target: list[int] = []
        for part in joined.input:
            target += stored[part] if part in stored else _size(makers, stored, part, n.input[0], len(target))
        if target.count(-1) <= 1 and UNKNOWN not in target:
            name = f"{n.output[0]}#target"
            graph.initializer.append(numpy_helper.from_array(np.array(target, np.int64), name))
            n.input[1] = name


def _size(makers: Makers, stored: Stored, part: str, x: str, axis: int) -> list[int]:
    """What stands for a part of a target: 0 for Unsqueeze(Gather(Shape(x), axis)), -1 for another single number."""
    unsqueeze = makers.get(part)
    if unsqueeze is None or unsqueeze.op_type != "Unsqueeze":
        return [UNKNOWN]
    gather = makers.get(unsqueeze.input[0])
    if gather is None or gather.op_type != "Gather":
        return [-1]
    shape = makers.get(gather.input[0])
    of_input = shape is not None and shape.op_type == "Shape" and shape.input[0] == x and not shape.attribute
    return [0 if of_input and stored.get(gather.input[1]) == [axis] else -1]


def _constant(node: NodeProto) -> list[int] | None:
    """The whole numbers of a Constant, or None."""
    value = helper.get_attribute_value(node.attribute[0])
    if isinstance(value, TensorProto):
        return _numbers(value)
    numbers = value if isinstance(value, list | tuple) else [value]
    return [int(v) for v in numbers] if all(isinstance(v, int) for v in numbers) else None


def _numbers(t: TensorProto) -> list[int] | None:
    """The whole numbers that a small tensor holds, or None."""
    whole = t.data_type in (TensorProto.INT64, TensorProto.INT32) and t.data_location != TensorProto.EXTERNAL
    if not whole or len(t.dims) > 1 or t.ByteSize() > MOST_BYTES:
        return None
    try:
        return [int(v) for v in numpy_helper.to_array(t).reshape(-1)]
    except Exception:  # a broken tensor raises many kinds: it is then not known
        return None
