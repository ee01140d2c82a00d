"""Operators that exporters write as several nodes: recognised once, here, for every runtime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isclose, pi, sqrt

from onnxperf.runtimes.engine import BASIC, EXTENDED, Fused, Miss, Rewriter, fused, fusion
from op_models import Operator, Tensor


def scalar(tensor: Tensor | None) -> float | None:
    """The number in a stored one-element tensor."""
    if tensor is None or not tensor.stored or tensor.value is None or len(tensor.value) != 1:
        return None
    return float(tensor.value[0])


def operands(op: Operator | None, constant: float) -> Tensor | None:
    """The other operand of a binary operator whose one operand is (nearly) `constant`."""
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


def next_op(g: Rewriter, op: Operator | None, *types: str) -> Operator | None:
    """The one user of an operator's output, if it is of one of `types`."""
    user = g.only_user(op.out) if op is not None else None
    return user if user is not None and user.type in types else None


@fusion("Identity elimination", anchor=("Identity", "Dropout"))
def drop_identity(g: Rewriter, op: Operator) -> Fused | None:
    """Identity, and Dropout outside training, hand their input on."""
    x = op.present[0]
    if op.out.name in g.graph.output_names or len(op.outputs) > 1 or x.dtype != op.out.dtype:
        return None
    return Fused((op,), alias=(op.out, x))


@fusion("Cast elimination", anchor="Cast")
def drop_cast(g: Rewriter, op: Operator) -> Fused | None:
    """A Cast to the type its input has already."""
    if op.present[0].dtype != op.out.dtype or op.out.name in g.graph.output_names:
        return None
    return Fused((op,), alias=(op.out, op.present[0]))


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
    scaled = g.made_by(erf.inputs[0], "Div", "Mul")
    if scaled is None:
        return None
    constant = sqrt(2) if scaled.type == "Div" else 1 / sqrt(2)
    x = operands(scaled, constant)
    gate = next_op(g, erf, "Add")
    if x is None or gate is None or operands(gate, 1.0) is None:
        return None
    found = _half_times(g, gate)
    if found is None:
        return Miss("its 1 + erf(x / sqrt 2) is not multiplied by x and 0.5 alone", gate.nodes)
    last, factor, tail = found
    if factor.name != x.name:
        return Miss("erf and product read different tensors", last.nodes)
    return fused("com.microsoft::Gelu", last, (scaled, erf, gate, *tail), (x,))


@fusion("FastGelu", anchor="Tanh", level=EXTENDED)
def fast_gelu(g: Rewriter, tanh: Operator) -> Fused | Miss | None:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GPT-2's."""
    scaled = g.made_by(tanh.inputs[0], "Mul")
    inner = g.made_by(operands(scaled, sqrt(2 / pi)), "Add")
    gate = next_op(g, tanh, "Add")
    if scaled is None or inner is None or gate is None or operands(gate, 1.0) is None:
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
        return fused("com.microsoft::FastGelu", last, (power, product, inner, scaled, tanh, gate, *tail), (x,))
    return None


@fusion("LayerNormalization", anchor="Sqrt")
def layer_norm(g: Rewriter, root: Operator) -> Fused | Miss | None:
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) gamma + beta, as exported before opset 17."""
    epsilon = g.made_by(root.inputs[0], "Add")
    variance = next((m for m in (g.made_by(t, "ReduceMean") for t in (epsilon.present if epsilon else ())) if m), None)
    square = g.made_by(variance.inputs[0], "Pow", "Mul") if variance else None
    centred = g.made_by(square.inputs[0], "Sub") if square else None
    mean = g.made_by(centred.inputs[1], "ReduceMean") if centred else None
    quotient = next_op(g, root, "Div")
    if epsilon is None or variance is None or square is None or centred is None or mean is None or quotient is None:
        return None
    x = centred.present[0]
    if mean.present[0].name != x.name or quotient.present[0].name != centred.out.name:
        return None
    if variance.out.shape != (*x.shape[:-1], 1):
        return Miss(
            f"the mean is not taken over the last axis alone: {x.shape} -> {variance.out.shape}",
            variance.nodes,
        )
    scale = next_op(g, quotient, "Mul")
    shift = next_op(g, scale, "Add")
    gamma, beta = other(scale, quotient.out), other(shift, scale.out if scale else None)
    if scale is None or shift is None or gamma is None or beta is None or not (gamma.stored and beta.stored):
        return Miss("no stored scale and bias follow the quotient", quotient.nodes)
    parts = (mean, centred, square, variance, epsilon, root, quotient, scale, shift)
    change = fused("LayerNormalization", shift, parts, (x, gamma, beta), {"axis": -1})
    return replace(change, operator=replace(change.operator, version=17)) if change.operator else change


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
    if top.present[0].name != x.name or total.out.rank != x.rank:
        return None
    reduced = [i for i, (a, b) in enumerate(zip(x.shape, total.out.shape, strict=True)) if a != b]
    if len(reduced) != 1 or (g.users(exp.out) != (total, quotient) and len(g.users(exp.out)) != 2):
        return None
    return fused("Softmax", quotient, (top, shifted, exp, total, quotient), (x,), {"axis": reduced[0]})


def biased_product(g: Rewriter, add: Operator) -> Iterator[tuple[Operator, Tensor]]:
    """The MatMuls that feed an Add, each with the Add's other operand."""
    for product, bias in (add.present, add.present[::-1]):
        matmul = g.made_by(product, "MatMul")
        if matmul is not None:
            yield matmul, bias


@fusion("MatMul + Add -> Gemm", anchor="Add", level=BASIC)
def matmul_add(g: Rewriter, add: Operator) -> Fused | Miss | None:
    """A product with a stored matrix and a bias along its columns; leading axes are folded by free reshapes."""
    for matmul, bias in biased_product(g, add):
        weight = matmul.inputs[1]
        if weight is None or weight.rank != 2 or matmul.present[0].rank < 2:
            continue
        if not bias.stored or bias.size != add.out.shape[-1] or bias.shape[-1:] != add.out.shape[-1:]:
            return Miss(f"the summand {list(bias.shape)} is no stored bias of {add.out.shape[-1]} columns", add.nodes)
        if g.only_user(matmul.out) is None:
            return Miss("the product is used elsewhere as well", matmul.nodes)
        return fused("Gemm", add, (matmul, add), (matmul.inputs[0], weight, bias))
    return None
