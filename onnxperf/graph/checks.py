"""Finds nodes that can't run and that `onnx.shape_inference` lets pass, or that make it end the process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from onnx import NodeProto, defs

from onnxperf.graph.proto import MAX_RANK, Dims, Shape, plain, times
from onnxperf.ground.errors import counted

WEIGHTS_AT = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "ConvTranspose": 1}  # the input that holds the weights
TERM = r"[A-Za-z ]*(\.\.\.[A-Za-z ]*)?"  # one way to match each text: no backtracking
EQUATION = re.compile(rf"{TERM}(,{TERM})*(->{TERM})?")  # of an Einsum
WINDOWS = frozenset({*WEIGHTS_AT, "MaxPool", "AveragePool", "LpPool"})


def misuse(node: NodeProto, schema: defs.OpSchema) -> str:
    """What is wrong with the number of a node's inputs and outputs or with its attributes; "" for nothing.

    `onnx.shape_inference` takes these to be right, and some (Split's parts, an axis beyond 32 bits) make it end the
    process, or never return (an Einsum without "->" and with a character that is no letter).
    """
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return f"it has {counted(len(node.input), 'input')}"
    if "" in node.input and node.op_type != "Resize":  # old files leave out its roi, which is not optional
        for formal, name in zip(schema.inputs, node.input, strict=False):
            if not name and formal.option == defs.OpSchema.FormalParameterOption.Single:
                return f"its input {formal.name!r} is missing"
    if not schema.min_output <= len(node.output) <= schema.max_output:
        return f"it has {counted(len(node.output), 'output')}"
    allowed: Mapping[str, Any] = schema.attributes if node.attribute else {}
    for a in node.attribute:
        name, defined = a.name, allowed.get(a.name)
        if defined is not None and a.type != defined.type.value:
            return f"its attribute {name!r} must be of type {defined.type.name}"
        if name == "axis" and abs(a.i) > MAX_RANK:
            return f"axis {a.i} is out of range"
        if name == "batch_dims" and not 0 <= a.i <= MAX_RANK:
            return f"batch_dims {a.i} is out of range"
        if name == "num_outputs" and node.op_type == "Split" and a.i != len(node.output):
            return f"it has {counted(len(node.output), 'output')}, but num_outputs is {a.i}"
        if name == "equation" and node.op_type == "Einsum" and not EQUATION.fullmatch(a.s.decode("latin-1")):
            return f"its equation '{plain(a.s.decode('latin-1'))}' has more than letters, commas, '...' and '->'"
        if name in ("then_branch", "else_branch") and len(a.g.output) != len(node.output):
            return f"it has {counted(len(node.output), 'output')}, but its {name} has {len(a.g.output)}"
    return ""


def contradiction(
    type: str, attrs: Mapping[str, Any], inputs: Sequence[Shape | None], outputs: Sequence[Dims | None]
) -> str:
    """Why an operator can't run on inputs of these shapes, where `onnx.shape_inference` lets it pass; "" where it can.

    It finds weights and parameters that don't fit the channels, windows larger than the padded input, and negative or
    empty `outputs`, the inferred shapes.
    """
    x = inputs[0] if inputs else None
    if x is None:
        return ""
    wrong = (_check_window if type in WINDOWS else _check_norm)(type, attrs, x, inputs)
    for dims in filter(None, outputs):
        if any(d is not None and (d < 0 or (d == 0 and type in WINDOWS and 0 not in x)) for d in dims):
            wrong = wrong or f"its output would be {times(dims)}"
    return wrong


def _check_window(type: str, attrs: Mapping[str, Any], x: Shape, inputs: Sequence[Shape | None]) -> str:
    """Why a window can't slide over an input `x` [N, C, ...]; "" where it can."""
    at, kernel = WEIGHTS_AT.get(type), tuple(attrs.get("kernel_shape", ()))
    w = inputs[at] if at is not None and at < len(inputs) else None
    if w is not None:
        if len(w) != len(x) or len(x) < 3:
            return f"weights {times(w)} do not fit {times(x)}"
        if kernel and kernel != w[2:]:
            return f"kernel_shape is {times(kernel)}, but its weights are {times(w)}"
        kernel = w[2:]
        group = attrs.get("group", 1)
        if group < 1 or w[0] % group:
            return f"weights {times(w)} can't be shared out among {group} groups"
        channels = w[0] if type == "ConvTranspose" else w[1] * group
        if x[1] != channels:
            return f"its weights are made for {channels} channels, its input has {x[1]}"
    n = len(kernel)
    computed = attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or attrs.get("ceil_mode")
    if type == "ConvTranspose" or n != len(x) - 2 or 0 in x or computed:
        return ""
    pads, dilations = attrs.get("pads") or (0,) * 2 * n, attrs.get("dilations") or (1,) * n
    if len(pads) != 2 * n or len(dilations) != n:
        return f"pads or dilations are not those of {counted(n, 'axis', 'axes')}"
    padded = [d + before + after for d, before, after in zip(x[2:], pads[:n], pads[n:], strict=True)]
    if any((k - 1) * step + 1 > d for k, step, d in zip(kernel, dilations, padded, strict=True)):
        return f"a kernel of {times(kernel)} is larger than its padded input of {times(padded)}"
    return ""


def _check_norm(type: str, attrs: Mapping[str, Any], x: Shape, inputs: Sequence[Shape | None]) -> str:
    """Why the parameters of a normalisation don't fit its input `x`; "" where they do."""
    if type == "LayerNormalization":
        axis = attrs.get("axis", -1)
        axes = x[axis:] if -len(x) <= axis < len(x) else x
        for p in filter(None, inputs[1:3]):
            if any(d not in (1, size) for d, size in zip(p[::-1], axes[::-1], strict=False)):
                return f"a scale or bias of {times(p)} does not fit the normalised {times(axes)}"
    last = {"BatchNormalization": 5, "InstanceNormalization": 3}.get(type)
    if last is not None and attrs.get("spatial", 1):  # once, every element could have its own parameters
        channels = x[1] if len(x) > 1 else 1
        for parameter in inputs[1:last]:
            if parameter is not None and parameter != (channels,):
                return f"its input has {channels} channels, a parameter is {times(parameter)}"
    return ""
