"""Operators that exporters write as several nodes: recognised once, here, for every runtime."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, pi, sqrt

from onnxperf.runtimes.engine import EXTENDED, Fused, Miss, Rewriter, fused, fusion
from op_models import Operator, Tensor


def scalar(tensor: Tensor | None) -> float | None:
    """The number in a stored one-element tensor."""
    if tensor is None or not tensor.stored or tensor.value is None or len(tensor.value) != 1:
        return None
    return float(tensor.value[0])


def operands(op: Operator | None, constant: float) -> Tensor | None:
    """The other operand of a sum or product whose one operand is (nearly) `constant`."""
    if op is None or len(op.present) != 2:
        return None
    for value, other in (op.present, op.present[::-1]):
        number = scalar(value)
        if number is not None and isclose(number, constant, rel_tol=1e-3):
            return other
    return None


def other(op: Operator | None, tensor: Tensor | None) -> Tensor | None:
    """The operand of a binary operator that is not `tensor`."""
    if op is None or tensor is None or len(op.present) != 2:
        return None
    first, second = op.present
    return second if first.name == tensor.name else first if second.name == tensor.name else None


def scaled(op: Operator | None) -> tuple[Tensor, float] | None:
    """x and the number c of an operator that computes c x, be it Mul(x, c), Mul(c, x) or Div(x, 1/c)."""
    if op is None or op.type not in ("Mul", "Div"):
        return None
    x, divisor = op.present
    number = scalar(divisor)
    if op.type == "Div":
        number = 1 / number if number else None
    elif number is None:
        x, number = divisor, scalar(x)
    return (x, number) if number and x.shape == op.out.shape else None


def next_op(g: Rewriter, op: Operator | None, *types: str) -> Operator | None:
    """The one user of an operator's output, if it is of one of `types`."""
    user = g.only_user(op.out) if op is not None else None
    return user if user is not None and user.type in types else None


def _half_times(g: Rewriter, gate: Operator) -> tuple[Operator, Tensor, list[Operator]] | None:
    """From (1 + f(x)) on: multiplied by x and 0.5 in either order. Gives the last operator, x, and all of them."""
    product = next_op(g, gate, "Mul")
    factor = other(product, gate.out)
    if product is None or factor is None:
        return None
    half = g.made_by(factor, "Mul")
    x = operands(half, 0.5)
    if half is not None and x is not None and g.only_user(half.out) is product:
        return product, x, [half, product]
    last = next_op(g, product, "Mul")
    if last is not None and operands(last, 0.5) is not None:
        return last, factor, [product, last]
    return None


@fusion("Gelu", anchor="Erf")
def gelu(g: Rewriter, erf: Operator) -> Fused | Miss | None:
    """0.5 x (1 + erf(x / sqrt 2)), as torch's exporters wrote it before opset 20."""
    quotient = g.made_by(erf.inputs[0], "Div")  # ONNX Runtime does not recognise the Mul of other exporters
    x, factor = scaled(quotient) or (None, 0.0)
    gate = next_op(g, erf, "Add")
    if quotient is None or x is None or gate is None or operands(gate, 1.0) is None:
        return None
    if not isclose(factor, 1 / sqrt(2), rel_tol=1e-3):
        return None
    found = _half_times(g, gate)
    if found is None:
        return Miss("its 1 + erf(x / sqrt 2) is not multiplied by x and 0.5 alone", gate.nodes)
    last, multiplied, tail = found
    if multiplied.name != x.name:
        return Miss("erf and product read different tensors", last.nodes)
    return fused("com.microsoft::Gelu", last, (quotient, erf, gate, *tail), (x,))


@fusion("FastGelu", anchor="Tanh", level=EXTENDED)
def fast_gelu(g: Rewriter, tanh: Operator) -> Fused | Miss | None:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GPT-2's."""
    argument = g.made_by(tanh.inputs[0], "Mul")
    inner = g.made_by(operands(argument, sqrt(2 / pi)), "Add")
    gate = next_op(g, tanh, "Add")
    if argument is None or inner is None or gate is None or operands(gate, 1.0) is None:
        return None
    for cubic, x in (inner.present, inner.present[::-1]):
        product = g.made_by(cubic, "Mul")
        power = g.made_by(operands(product, 0.044715), "Pow")
        if product is None or power is None or power.present[0].name != x.name or scalar(power.inputs[1]) != 3:
            continue
        found = _half_times(g, gate)
        if found is None or found[1].name != x.name:
            return Miss("its gate is not multiplied by x and 0.5 alone", gate.nodes)
        last, _, tail = found
        return fused("com.microsoft::FastGelu", last, (power, product, inner, argument, tanh, gate, *tail), (x,))
    return None


@fusion("LayerNormalization", anchor="Sqrt", level=EXTENDED)
def layer_norm(g: Rewriter, root: Operator) -> Fused | Miss | None:
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) gamma + beta, as exported before opset 17."""
    epsilon = g.made_by(root.inputs[0], "Add")
    variance = next((m for m in (g.made_by(t, "ReduceMean") for t in (epsilon.present if epsilon else ())) if m), None)
    square = g.made_by(variance.inputs[0], "Pow") if variance else None
    centred = g.made_by(square.inputs[0], "Sub") if square else None
    mean = g.made_by(centred.inputs[1], "ReduceMean") if centred else None
    quotient = next_op(g, root, "Div")
    if epsilon is None or variance is None or square is None or centred is None or mean is None or quotient is None:
        return None
    x = centred.present[0]
    if mean.present[0].name != x.name or quotient.present[0].name != centred.out.name or scalar(square.inputs[1]) != 2:
        return None
    if variance.out.shape != (*x.shape[:-1], 1):
        change = f"{list(x.shape)} -> {list(variance.out.shape)}"
        return Miss(f"the mean is not taken over the last axis alone: {change}", variance.nodes)
    scale = next_op(g, quotient, "Mul")
    shift = next_op(g, scale, "Add")
    gamma, beta = other(scale, quotient.out), other(shift, scale.out if scale else None)
    if scale is None or shift is None or gamma is None or beta is None or not (gamma.stored and beta.stored):
        return Miss("no stored scale and bias follow the quotient", quotient.nodes)
    parts = (mean, centred, square, variance, epsilon, root, quotient, scale, shift)
    return fused("LayerNormalization", shift, parts, (x, gamma, beta), {"axis": -1})


@fusion("Softmax", anchor="Div")
def softmax(g: Rewriter, quotient: Operator) -> Fused | None:
    """exp(x - max x) / sum exp(x - max x) along one axis."""
    exp = g.made_by(quotient.inputs[0], "Exp")
    total = g.made_by(quotient.inputs[1], "ReduceSum")
    shifted = g.made_by(exp.inputs[0], "Sub") if exp else None
    top = g.made_by(shifted.inputs[1], "ReduceMax") if shifted else None
    if exp is None or total is None or shifted is None or top is None or total.present[0].name != exp.out.name:
        return None
    x = shifted.present[0]
    if top.present[0].name != x.name or total.out.rank != x.rank or top.out.shape != total.out.shape:
        return None
    reduced = [i for i, (a, b) in enumerate(zip(x.shape, total.out.shape, strict=True)) if a != b]
    if len(reduced) != 1:
        return None
    return fused("Softmax", quotient, (top, shifted, exp, total, quotient), (x,), {"axis": reduced[0]})


def biased_product(g: Rewriter, add: Operator) -> Iterator[tuple[Operator, Tensor]]:
    """The MatMuls that feed an Add, each with the Add's other operand."""
    for product, bias in (add.present, add.present[::-1]):
        matmul = g.made_by(product, "MatMul")
        if matmul is not None:
            yield matmul, bias


@fusion("linear layer", anchor="Add")
def linear(g: Rewriter, add: Operator) -> Fused | None:
    """x W + b of stored W and b, which exporters write as two nodes where x has more than two axes."""
    for matmul, bias in biased_product(g, add):
        weight = matmul.present[1]
        if weight.stored and weight.rank == 2 and bias.stored and bias.shape == weight.shape[1:]:
            return fused("Gemm", add, (matmul, add), (matmul.inputs[0], weight, bias))
    return None
