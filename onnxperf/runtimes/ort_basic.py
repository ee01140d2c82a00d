"""ONNX Runtime's rules of level `basic`, the same for every provider: what leaves the graph or goes into weights.

The layout pass of this level is in `ort_layout`, that of quantised models in `ort_quantised`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from onnxperf.graph import Graph
from onnxperf.runtimes import patterns
from onnxperf.runtimes.engine import (
    BASIC,
    EXTENDED,
    Fused,
    Fusion,
    Miss,
    Pass,
    Rewriter,
    fused,
    fusion,
    hands_on,
    redirected,
)
from onnxperf.runtimes.patterns import next_op, scalar
from op_models import FLOATS, Operator, Tensor

NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}
SHARED = 8  # elements of equal constants that are taken for one
#: And everything random. A DequantizeLinear has one reader; the value of a ConstantOfShape is not among the attrs.
NEVER_SHARED = frozenset(
    {"If", "Loop", "Scan", "Dropout", "Bernoulli", "Multinomial", "DequantizeLinear", "ConstantOfShape"}
)
#: dtypes that a Cast may pass through without a trace.
LOSSLESS = {
    "float32": {"float64"}, "float16": {"float32", "float64"}, "bfloat16": {"float32", "float64"},
    "int32": {"int64", "float64"}, "int16": {"int32", "int64"}, "int8": {"int16", "int32", "int64"},
    "uint8": {"int32", "int64"}, "bool": {"uint8", "int8", "int32", "int64", "float32", "float64"},
}  # fmt: skip


def since(rule: Fusion, version: int) -> Fusion:
    """A rule at the basic level, for models of opsets that have what it makes as an operator of their own."""
    return replace(rule, level=BASIC, rule=lambda g, o: rule.rule(g, o) if o.version >= version else None)


def _eliminated(graph: Graph) -> Graph:
    """x + 0, x * 1, x - 0, x / 1, a Slice of everything, an Expand to the same shape; not of the graph's inputs."""

    def instead(o: Operator) -> tuple[Tensor] | None:
        x = hands_on(o)
        if o.type in NEUTRAL:
            pairs = ((0, 1),) if o.type in ("Sub", "Div") else ((0, 1), (1, 0))
            for i, j in pairs:
                a, b = o.inputs[i], o.inputs[j]
                if a and b and b.rank <= 1 and scalar(b) == NEUTRAL[o.type] and a.shape == o.out.shape:
                    x = a if graph.made_by(a) else None
        elif o.type in ("Slice", "Expand") and graph.made_by(o.present[0]):
            ends = (o.present[2].value or ()) if len(o.present) > 2 else ()
            everything = o.type == "Expand" or (ends and all(e >= 2**63 - 1 for e in ends))
            x = o.present[0] if everything and o.out.shape == o.present[0].shape else None
        return None if x is None else (x,)

    return redirected(graph, instead)


def _shared(graph: Graph) -> Graph:
    """Operators that compute the same from the same are one (common subexpressions)."""
    seen: dict[object, tuple[Tensor, ...]] = {}

    def key(t: Tensor | None) -> object:
        if t is None or not t.stored or t.value is None or t.size > SHARED:
            return t and t.name
        return t.dtype, t.shape, t.value

    def instead(o: Operator) -> tuple[Tensor, ...] | None:
        if o.type in NEVER_SHARED or o.type.startswith("Random"):
            return None
        attrs = str(sorted(o.attrs.items())) if o.attrs else ""
        what = (o.type, tuple(map(key, o.inputs)), attrs, len(o.outputs), o.repeat)
        found = seen.setdefault(what, o.outputs)
        return None if found is o.outputs else found

    return redirected(graph, instead)


ELIMINATION = Pass("elimination of what does nothing", BASIC, _eliminated)
COMMON_SUBEXPRESSIONS = Pass("common subexpressions", BASIC, _shared, once=True)


@fusion("Cast + Cast", anchor="Cast")
def casts(g: Rewriter, last: Operator) -> Fused | None:
    """A Cast through a wider type and on is one Cast, or none."""
    first = g.made_by(last.present[0], "Cast")
    if first is None or not g.only_user(first.out):
        return None
    x = first.present[0]
    if first.out.dtype not in LOSSLESS.get(x.dtype, ()):
        return None
    return fused("Cast" if x.dtype != last.out.dtype else "Identity", last, (first, last), (x,), dict(last.attrs))


@fusion("Div + Mul", anchor="Mul")
def div_mul(g: Rewriter, product: Operator) -> Fused | None:
    """x times 1 / y is x / y."""
    for inverse, x in (product.present, product.present[::-1]):
        quotient = g.made_by(inverse, "Div")
        if quotient is not None and g.only_user(inverse) is product and scalar(quotient.inputs[0]) == 1:
            return fused("Div", product, (quotient, product), (x, quotient.inputs[1]))
    return None


@fusion("Relu + Clip", anchor="Relu")
def relu_clip(g: Rewriter, relu: Operator) -> Fused | Miss | None:
    """A Clip behind a Relu takes its lower bound, or zero."""
    clip = next_op(g, relu, "Clip")
    if clip is None:
        return None
    low = clip.inputs[1] if len(clip.inputs) > 1 else None
    if low is not None and scalar(low) is None:
        return Miss("the lower bound is no constant", clip.nodes)
    return fused("Clip", clip, (relu, clip), (*relu.inputs, *clip.inputs[1:]), dict(clip.attrs))


@fusion("Gemm + Sum", anchor="Sum")
def gemm_sum(g: Rewriter, total: Operator) -> Fused | None:
    """A Sum of two becomes the summand of the Gemm that comes first."""
    gemm = g.made_by(total.inputs[0], "Gemm")
    if gemm is None or len(total.present) != 2 or len(gemm.present) != 2 or gemm.out.shape != total.out.shape:
        return None
    return fused("Gemm", total, (gemm, total), (*gemm.inputs[:2], total.inputs[1]), {**gemm.attrs, "beta": 1.0})


@fusion("Gemm + Transpose", anchor="Gemm")
def gemm_transpose(g: Rewriter, gemm: Operator) -> Fused | None:
    """A transposed matrix, operand or result, becomes a flag of the product; a stack has a Reshape between."""
    flags = ("transA", "transB")
    for side, flag in enumerate(flags):
        before = g.made_by(gemm.inputs[side], "Transpose")
        if before is not None and before.out.rank == 2 and g.only_user(before.out):
            inputs = tuple(before.present[0] if i == side else t for i, t in enumerate(gemm.inputs))
            return fused("Gemm", gemm, (before, gemm), inputs, {**gemm.attrs, flag: 1 - gemm.attrs.get(flag, 0)})
    after = next_op(g, gemm, "Transpose")
    if after is None or len(gemm.present) != 2 or after.out.rank != 2:
        return None
    turned = {flag: 1 - gemm.attrs.get(other, 0) for flag, other in zip(flags, flags[::-1], strict=True)}
    return fused("Gemm", after, (gemm, after), gemm.present[::-1], {**gemm.attrs, **turned})


@fusion("function inlined", anchor=("HardSwish", "Mish"))
def inlined(g: Rewriter, op: Operator) -> Fused:
    """x f(x) of an operator for which the provider has no kernel, so that its definition is put in its place."""
    gate = op.present[0]
    before: list[Operator] = []
    for type in ("HardSigmoid",) if op.type == "HardSwish" else ("Softplus", "Tanh"):
        made = replace(op.out, name=f"{op.out.name}#{type}")
        before.append(replace(op, name=f"{op.name}#{type}", type=type, inputs=(gate,), outputs=(made,)))
        gate = made
    return Fused((op,), replace(op, type="Mul", inputs=(op.present[0], gate)), tuple(before))


@fusion("Not + Where", anchor="Where")
def not_where(g: Rewriter, where: Operator) -> Fused | None:
    """The choice is turned round instead of its condition."""
    condition, x, y = where.present
    no = g.made_by(condition, "Not")
    return fused("Where", where, (no, where), (no.inputs[0], y, x)) if no is not None else None


@fusion("Conv + BatchNormalization", anchor="BatchNormalization")
def conv_batch_norm(g: Rewriter, norm: Operator) -> Fused | Miss | None:
    """The scale and shift of inference go into weights and bias."""
    conv = g.made_by(norm.inputs[0], "Conv", "ConvTranspose")
    if conv is None or norm.attrs.get("training_mode"):
        return None
    if not all(t.stored for t in (*conv.present[1:], *norm.present[1:])):
        return Miss("weights or statistics are no constants", norm.nodes)
    return _conv(conv, norm, norm.inputs[2])


@fusion("MatMul + BatchNormalization", anchor="BatchNormalization")
def matmul_batch_norm(g: Rewriter, norm: Operator) -> Fused | Miss | None:
    """The scale goes into the matrix, the shift becomes the summand of a Gemm."""
    matmul = g.made_by(norm.inputs[0], "MatMul")
    if matmul is None or norm.attrs.get("training_mode") or matmul.out.rank != 2:
        return None
    matrix = matmul.present[1]
    if not all(t.stored for t in (matrix, *norm.present[1:])):
        return Miss("the matrix or statistics are no constants", norm.nodes)
    return fused("Gemm", norm, (matmul, norm), (*matmul.inputs, norm.inputs[2]))


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


@fusion("Pad + Conv / Pool", anchor=("Conv", "MaxPool", "AveragePool"))
def pad(g: Rewriter, window: Operator) -> Fused | Miss | None:
    """Zeros padded around an image become the padding of the operator that reads them alone."""
    before = g.made_by(window.inputs[0], "Pad")
    if before is None or not g.only_user(before.out):
        return None
    x, *rest = before.inputs
    amounts = rest[0].value if rest and rest[0] else before.attrs.get("pads")
    value = (scalar(rest[1]) if len(rest) > 1 and rest[1] else before.attrs.get("value", 0.0)) if amounts else None
    if before.attrs.get("mode", "constant") != "constant" or value != 0 or len(rest) > 2 or not amounts:
        return Miss("what is padded is not zeros", before.nodes)
    ends = (amounts[: len(amounts) // 2], amounts[len(amounts) // 2 :])
    if min(amounts) < 0 or any(half[0] or half[1] for half in ends):
        return Miss(f"the padding {list(amounts)} is not around images alone", before.nodes)
    if window.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return Miss(f"the padding behind it is {window.attrs['auto_pad']}", window.nodes)
    added = [int(n) for half in ends for n in half[2:]]
    pads = tuple(a + b for a, b in zip(added, window.attrs.get("pads") or [0] * len(added), strict=False))
    attrs, nodes = {**window.attrs, "pads": pads}, (*before.nodes, *window.nodes)
    return Fused((before, window), replace(window, inputs=(x, *window.inputs[1:]), attrs=attrs, nodes=nodes))


def _left_to_attention(g: Rewriter, x: Tensor, add: Operator) -> bool:
    """Three MatMuls and a residual sum read one LayerNormalization: ONNX Runtime keeps that for its Attention rule."""
    after = next_op(g, add, "Add")
    for t in (x, patterns.other(after, add.out)):
        norm = g.made_by(t, "LayerNormalization")
        users = Counter(u.type for u in g.users(norm.out)) if norm is not None else Counter[str]()
        if users and (users["MatMul"], users["Add"], users.total() - users["Shape"]) == (3, 1, 4):
            return True
    return False


def _gemm(g: Rewriter, add: Operator, preserve: bool) -> Fused | Miss | None:
    miss = None
    for matmul, summand in patterns.biased_product(g, add):
        x, matrix = matmul.present
        if matrix.rank != 2 or matmul.out.dtype not in FLOATS:
            continue
        if preserve and _left_to_attention(g, x, add):
            continue
        fits = summand.shape == matrix.shape[1:]
        if x.rank == 2 and summand.rank == 2:
            fits = all(d in (1, n) for d, n in zip(summand.shape, matmul.out.shape, strict=True))
        if fits:
            return fused("Gemm", add, (matmul, add), (x, matrix, summand))
        wanted = "Gemm can't add" if x.rank == 2 else "Gemm adds only a vector to a stack of matrices, not"
        miss = Miss(f"{wanted} {list(summand.shape)} to {list(matmul.out.shape)}", add.nodes)
    return miss


@fusion("MatMul + Add -> Gemm", anchor="Add")
def matmul_add(g: Rewriter, add: Operator) -> Fused | Miss | None:
    """A product with a matrix, and what Gemm can add to it: a vector along its columns, or a matrix to a matrix.

    Free reshapes fold the leading axes of a stack of matrices.
    """
    return _gemm(g, add, True)


@fusion("MatMul + Add -> Gemm", anchor="Add", level=EXTENDED)
def matmul_add_left(g: Rewriter, add: Operator) -> Fused | Miss | None:
    """The same for the products around an attention, which the basic level keeps."""
    return _gemm(g, add, False)


@fusion("MatMul + Add -> Gemm", anchor="Add")
def matmul_add_flat(g: Rewriter, add: Operator) -> Fused | Miss | None:
    """The same until 1.12, which left stacks of matrices alone."""
    return _gemm(g, add, False) if add.out.rank == 2 else None
