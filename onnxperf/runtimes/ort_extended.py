"""ONNX Runtime's rules of level `extended`: operators of its own in place of several.

A rule is made for the providers that have the kernel (`ort` lists them), and for the dtypes those know.
"""

from __future__ import annotations

from dataclasses import replace

from onnxperf.runtimes import patterns
from onnxperf.runtimes.engine import EXTENDED, Fused, Miss, Rewriter, fused, fusion
from onnxperf.runtimes.patterns import next_op, scalar, scaled
from op_models import FLOATS, Operator, Tensor

HALF_OR_SINGLE = frozenset({"float32", "float16", "bfloat16"})
#: What ONNX Runtime's CPU kernels of Gemm and Conv apply to their result.
AFTER_GEMM = (
    "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Elu", "Selu", "Softplus", "Softsign", "ThresholdedRelu",
)  # fmt: skip
AFTER_CONV = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip")


def _activated(type: str, product: Operator, after: Operator) -> Fused:
    attrs = {**product.attrs, "activation": after.type, **{f"activation_{k}": v for k, v in after.attrs.items()}}
    return fused(f"com.microsoft::{type}", after, (product, after), product.inputs, attrs)


@fusion("Gemm + activation", anchor="Gemm", level=EXTENDED)
def gemm_activation(g: Rewriter, gemm: Operator) -> Fused | None:
    """An activation that alone reads a Gemm; where Reshapes surround the Gemm, none does."""
    after = next_op(g, gemm, *AFTER_GEMM)
    if after is None or gemm.out.dtype != "float32" or gemm.inputs[0] is None or gemm.inputs[0].rank != 2:
        return None
    return _activated("FusedGemm", gemm, after)


@fusion("Conv + activation", anchor="Conv", level=EXTENDED)
def conv_activation(g: Rewriter, conv: Operator) -> Fused | Miss | None:
    """An activation that alone reads a convolution; a Clip between constants."""
    after = next_op(g, conv, *AFTER_CONV)
    if after is None or conv.out.dtype != "float32":
        return None
    if not all(t.stored for t in after.present[1:]):
        return Miss("the bounds of the Clip are no constants", after.nodes)
    return _activated("FusedConv", conv, after)


@fusion("QuickGelu", anchor="Sigmoid", level=EXTENDED)
def quick_gelu(g: Rewriter, sigmoid: Operator) -> Fused | None:
    """x sigmoid(alpha x), be alpha 1 (SiLU) or a number."""
    product = next_op(g, sigmoid, "Mul")
    x = patterns.other(product, sigmoid.out)
    if product is None or x is None or x.dtype not in HALF_OR_SINGLE:
        return None
    before = g.made_by(sigmoid.inputs[0], "Mul")
    y, alpha = scaled(before) or (None, 0.0)
    if sigmoid.present[0].name == x.name:
        return fused("com.microsoft::QuickGelu", product, (sigmoid, product), (x,), {"alpha": 1.0})
    if before is not None and y is not None and y.name == x.name:
        return fused("com.microsoft::QuickGelu", product, (before, sigmoid, product), (x,), {"alpha": alpha})
    return None


def _pieces(op: Operator) -> tuple[int, int, int] | None:
    """The axis of which a Slice or Gather takes a run, and from where to where."""
    x, rest = op.present[0], op.present[1:]
    if not x.rank or not rest:
        return None
    values = [t.value if t.stored else None for t in rest]
    if op.type == "Gather":
        if rest[0].size != 1 or rest[0].rank > 1 or not values[0]:
            return None
        axis = op.attrs.get("axis", 0) % x.rank
        at = int(values[0][0]) % x.shape[axis]
        return axis, at, at + 1
    if any(v is None or len(v) != 1 for v in values) or len(values) < 3 or (len(values) > 3 and values[3] != (1,)):
        return None
    start, end, axis = (int(v[0]) for v in values[:3] if v)
    axis %= x.rank
    size = x.shape[axis]
    low, high = (min(max(n + size if n < 0 else n, 0), size) for n in (start, end))
    return axis, low, high


@fusion("Gather / Slice -> Split", anchor=("Slice", "Gather"), level=EXTENDED)
def split(g: Rewriter, first: Operator) -> Fused | None:
    """Slices (or Gathers of one) that cut a tensor into pieces without gap or overlap are one Split."""
    x = first.present[0]
    same = [o for o in g.users(x) if o.type == first.type]
    if x.stored or len(same) < 2 or same[0] is not first:
        return None
    cut = [(piece, o) for o in same if (piece := _pieces(o))]
    if len(cut) < len(same):
        return None
    cut.sort(key=lambda c: c[0])
    axis = cut[0][0][0]
    ends = [0, *(piece[2] for piece, _ in cut)]
    if ends[-1] != x.shape[axis] or any(p[0] != axis or p[1] != e for (p, _), e in zip(cut, ends, strict=False)):
        return None
    ops = tuple(o for _, o in cut)
    merged = fused("Split", first, ops, (x,), {"axis": axis}).operator
    return Fused(ops, replace(merged, outputs=tuple(o.out for o in ops)), early=True)


@fusion("SimplifiedLayerNormalization", anchor="Sqrt", level=EXTENDED)
def rms_norm(g: Rewriter, root: Operator) -> Fused | Miss | None:
    """x / sqrt(mean(x^2) + epsilon) gamma, Llama's; written with a Reciprocal, ONNX Runtime does not know it."""
    epsilon = g.made_by(root.inputs[0], "Add")
    mean = next((m for m in (g.made_by(t, "ReduceMean") for t in (epsilon.present if epsilon else ())) if m), None)
    square = g.made_by(mean.inputs[0], "Pow") if mean else None
    quotient = next_op(g, root, "Div")
    if epsilon is None or mean is None or square is None or quotient is None:
        return None
    x = square.present[0]
    if quotient.present[0].name != x.name or scalar(square.inputs[1]) != 2:
        return None
    if mean.out.shape != (*x.shape[:-1], 1):
        change = f"{list(x.shape)} -> {list(mean.out.shape)}"
        return Miss(f"the mean is not taken over the last axis alone: {change}", mean.nodes)
    scale = next_op(g, quotient, "Mul")
    gamma = patterns.other(scale, quotient.out)
    if scale is None or gamma is None or not gamma.stored or gamma.shape != x.shape[-1:]:
        return Miss("no stored scale follows the quotient", quotient.nodes)
    parts = (square, mean, epsilon, root, quotient, scale)
    return fused("SimplifiedLayerNormalization", scale, parts, (x, gamma), {"axis": -1})


@fusion("SkipLayerNormalization", anchor="LayerNormalization", level=EXTENDED)
def skip_layer_norm(g: Rewriter, norm: Operator) -> Fused | Miss | None:
    """A residual sum of two [batch, sequence, hidden] and the LayerNormalization behind it in one kernel."""
    add = g.made_by(norm.inputs[0], "Add")
    if add is None:
        return None
    x, skip = add.present
    if x.dtype not in HALF_OR_SINGLE:
        return Miss(f"there is no kernel for {x.dtype}", add.nodes)
    if x.shape != skip.shape or x.rank != 3:
        return Miss(f"the summands are not two alike of three axes: {list(x.shape)}, {list(skip.shape)}", add.nodes)
    if norm.attrs.get("axis", -1) not in (-1, 2):
        return Miss("the normalisation is not over the last axis alone", norm.nodes)
    return fused("com.microsoft::SkipLayerNormalization", norm, (add, norm), (x, skip, *norm.inputs[1:]))


@fusion("BiasGelu", anchor=("com.microsoft::Gelu", "Gelu"), level=EXTENDED)
def bias_gelu(g: Rewriter, gelu: Operator) -> Fused | Miss | None:
    """A bias along the last axis and the Gelu behind it in one kernel."""
    add = g.made_by(gelu.inputs[0], "Add")
    if add is None or gelu.attrs.get("approximate", "none") != "none":
        return None
    for x, bias in (add.present, add.present[::-1]):
        if x.rank > 1 and bias.shape == x.shape[-1:]:
            return fused("com.microsoft::BiasGelu", gelu, (add, gelu), (x, bias))
    return Miss("no summand is a bias along the last axis", add.nodes)


def _product(g: Rewriter, matmul: Operator, side: int, before: Operator, x: Tensor, **flags: float) -> Fused:
    """The product that reads `x` itself where it read what `before` made of it; others may read that still."""
    inputs = tuple(x if i == side else t for i, t in enumerate(matmul.inputs))
    replaced = (before, matmul) if g.only_user(before.out) else (matmul,)
    return fused("com.microsoft::FusedMatMul", matmul, replaced, inputs, {**matmul.attrs, **flags})


@fusion("MatMul + Transpose", anchor=("MatMul", "com.microsoft::FusedMatMul"), level=EXTENDED)
def matmul_transpose(g: Rewriter, matmul: Operator) -> Fused | Miss | None:
    """A transposition of the last two axes becomes a flag of the product."""
    miss = None
    for side, flag in ((0, "transA"), (1, "transB")):
        transpose = g.made_by(matmul.inputs[side], "Transpose")
        if transpose is None or matmul.attrs.get(flag):
            continue
        rank = transpose.out.rank
        perm = tuple(transpose.attrs.get("perm", range(rank - 1, -1, -1)))
        if rank >= 2 and perm == (*range(rank - 2), rank - 1, rank - 2):
            return _product(g, matmul, side, transpose, transpose.present[0], **{flag: 1})
        miss = Miss(f"the transposition {list(perm)} moves more than the last two axes", transpose.nodes)
    return miss


@fusion("MatMul + scale", anchor=("MatMul", "com.microsoft::FusedMatMul"), level=EXTENDED)
def matmul_scale(g: Rewriter, matmul: Operator) -> Fused | None:
    """A number multiplied with the product, or with one of its operands, becomes its alpha."""
    if matmul.out.dtype not in FLOATS:
        return None
    alpha = float(matmul.attrs.get("alpha", 1.0))
    after = next_op(g, matmul, "Mul", "Div")
    found = scaled(after)
    if after is not None and found is not None:
        attrs = {**matmul.attrs, "alpha": alpha * found[1]}
        return fused("com.microsoft::FusedMatMul", after, (matmul, after), matmul.inputs, attrs)
    for side in (0, 1):
        before = g.made_by(matmul.inputs[side], "Mul", "Div")
        found = scaled(before)
        if before is not None and found is not None:
            return _product(g, matmul, side, before, found[0], alpha=alpha * found[1])
    return None


@fusion("SkipLayerNormalization + bias", anchor="com.microsoft::SkipLayerNormalization", level=EXTENDED)
def bias_skip_layer_norm(g: Rewriter, norm: Operator) -> Fused | None:
    """A bias added to either summand goes along."""
    if len(norm.inputs) > 4:
        return None
    for side in (0, 1):
        add = g.made_by(norm.inputs[side], "Add")
        if add is None or not g.only_user(add.out):
            continue
        for x, bias in (add.present, add.present[::-1]):
            known = x is add.present[0] or g.made_by(x, "MatMul")  # it comes second, or behind a product
            if known and bias.stored and bias.shape == x.shape[-1:] and x.rank == 3:
                summands = (x, norm.inputs[1 - side])
                rest = (*norm.inputs[2:], None)[:2]
                return fused(norm.type, norm, (add, norm), (*summands, *rest, bias), dict(norm.attrs))
    return None


@fusion("BiasSoftmax", anchor="Softmax", level=EXTENDED)
def bias_softmax(g: Rewriter, softmax: Operator) -> Fused | Miss | None:
    """A sum and the Softmax behind it, where the bias repeats along outer axes, or along inner ones, before the row."""
    add = g.made_by(softmax.inputs[0], "Add")
    if add is None:
        return None
    if not add.out.rank or add.out.dtype not in ("float32", "float16", "float64"):
        return Miss(f"there is no kernel for {add.out.dtype}", add.nodes)
    rank = add.out.rank
    axis = softmax.attrs.get("axis", -1 if softmax.version >= 13 else 1) % rank
    if softmax.version >= 13 and axis != rank - 1:
        return Miss("the row is not the last axis", softmax.nodes)
    for x, bias in (add.present, add.present[::-1]):
        if x.shape != add.out.shape or bias.rank > rank:
            continue
        padded = (1,) * (rank - bias.rank) + bias.shape
        same = [a == b for a, b in zip(x.shape[:axis], padded[:axis], strict=True)]
        ones = [b == 1 for b in padded[:axis]]
        splits = range(axis + 1)
        outer = any(all(ones[:i]) and all(same[i:]) for i in splits)
        inner = any(all(same[:i]) and all(ones[i:]) for i in splits)
        if padded[axis:] == x.shape[axis:] and (outer or inner):
            attrs = {"axis": axis, "is_inner_broadcast": int(inner and not outer)}
            return fused("com.microsoft::BiasSoftmax", softmax, (add, softmax), (x, bias), attrs)
    return Miss("the bias repeats along axes in the middle, or inside the row", add.nodes)
