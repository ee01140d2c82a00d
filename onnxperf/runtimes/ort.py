"""ONNX Runtime's CUDA provider: what it fuses, and what its host thread costs.

Rules and their levels follow graph_transformer_utils.cc (1.2x-1.31). Convolution and activation stay separate
kernels: ONNX Runtime runs ConvActivationFusion for the CPU provider, not for CUDA.
"""

from __future__ import annotations

from dataclasses import replace

from onnxperf.runtimes import patterns
from onnxperf.runtimes.engine import (
    EXTENDED,
    Fused,
    HostCosts,
    Miss,
    Policy,
    Rewriter,
    Runtime,
    fused,
    fusion,
)
from onnxperf.runtimes.patterns import next_op, scaled
from onnxperf.runtimes.placement import place
from op_models import FLOATS, Operator, Tensor


@fusion("Conv + BatchNormalization", anchor="BatchNormalization")
def conv_batch_norm(g: Rewriter, norm: Operator) -> Fused | Miss | None:
    """The scale and shift of inference go into weights and bias."""
    conv = g.made_by(norm.inputs[0], "Conv", "ConvTranspose")
    if conv is None or norm.attrs.get("training_mode"):
        return None
    if not all(t.stored for t in (*conv.present[1:], *norm.present[1:])):
        return Miss("weights or statistics are no constants", norm.nodes)
    return _conv(conv, norm, norm.inputs[2])


@fusion("Conv + Add / Mul", anchor=("Add", "Mul"))
def conv_affine(g: Rewriter, affine: Operator) -> Fused | Miss | None:
    """A constant added to, or multiplied with, every channel goes into weights or bias; it comes second."""
    product, constant = affine.present
    conv = g.made_by(product, "Conv")
    if conv is None or not constant.stored:
        return None
    column = (conv.out.shape[1], *(1 for _ in conv.out.shape[2:]))
    one = affine.type == "Mul" and constant.size == 1 and affine.out.shape == product.shape
    if not one and constant.shape not in (column, (1, *column)):
        return Miss(f"the constant {list(constant.shape)} is not one number a channel", affine.nodes)
    if not all(t.stored for t in conv.present[1:]):
        return Miss("the convolution's weights are no constants", conv.nodes)
    return _conv(conv, affine, constant if affine.type == "Add" else None)


def _conv(conv: Operator, last: Operator, shift: Tensor | None) -> Fused:
    """The convolution with what follows folded in: it writes what the last one wrote, a shift gives it a bias."""
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    if bias is None and shift is not None:
        bias = replace(shift, name=f"{conv.name}#bias", shape=conv.out.shape[1:2], value=None)
    inputs = (*conv.inputs[:2], bias) if bias is not None else conv.inputs
    merged = replace(conv, inputs=inputs, outputs=last.outputs[:1], nodes=(*conv.nodes, *last.nodes))
    return Fused((conv, last), merged)


@fusion("MatMul + Add -> Gemm", anchor="Add")
def matmul_add(g: Rewriter, add: Operator) -> Fused | Miss | None:
    """A product with a matrix, and what Gemm can add to it: a vector along its columns, or a matrix to a matrix.

    Free reshapes fold the leading axes of a stack of matrices.
    """
    miss = None
    for matmul, summand in patterns.biased_product(g, add):
        x, matrix = matmul.present
        if matrix.rank != 2:
            continue
        fits = summand.shape == matrix.shape[1:]
        if x.rank == 2 and summand.rank == 2:
            fits = all(d in (1, n) for d, n in zip(summand.shape, matmul.out.shape, strict=True))
        if fits:
            return fused("Gemm", add, (matmul, add), (x, matrix, summand))
        wanted = "Gemm can't add" if x.rank == 2 else "Gemm adds only a vector to a stack of matrices, not"
        miss = Miss(f"{wanted} {list(summand.shape)} to {list(matmul.out.shape)}", add.nodes)
    return miss


@fusion("Div + Mul", anchor="Mul")
def div_mul(g: Rewriter, product: Operator) -> Fused | None:
    """x times 1 / y is x / y."""
    for inverse, x in (product.present, product.present[::-1]):
        quotient = g.made_by(inverse, "Div")
        if quotient is not None and g.only_user(inverse) is product and patterns.scalar(quotient.inputs[0]) == 1:
            return fused("Div", product, (quotient, product), (x, quotient.inputs[1]))
    return None


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
    if quotient.present[0].name != x.name or patterns.scalar(square.inputs[1]) != 2:
        return None
    if mean.out.shape != (*x.shape[:-1], 1):
        return Miss(
            f"the mean is not taken over the last axis alone: {list(x.shape)} -> {list(mean.out.shape)}", mean.nodes
        )
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


CUDA = Runtime(
    name="ort-cuda",
    fusions=(
        conv_batch_norm,
        conv_affine,
        div_mul,
        patterns.layer_norm,
        rms_norm,
        patterns.gelu,
        matmul_add,
        patterns.fast_gelu,
        skip_layer_norm,
        bias_gelu,
        matmul_transpose,
        matmul_scale,
    ),
    place=place,
    policy=Policy(tf32=frozenset({"Gemm", "Conv"})),
    host=HostCosts(
        run_s=10e-6, node_s=1.5e-6, launch_s=3.5e-6, host_op_s=2e-6, copy_s=8e-6, sync_s=5e-6, gap_s=1e-6,
        replay_s=12e-6, replay_gap_s=0.6e-6, source="assumed: prototype",
    ),
    describe="ONNX Runtime, CUDA provider, inputs and outputs bound on the device",
)  # fmt: skip
