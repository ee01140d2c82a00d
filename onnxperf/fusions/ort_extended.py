"""ONNX Runtime's rules of level `extended`: operators of its own in place of several.

Each provider has those for which it has kernels, in the types that these know.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import dropwhile

from onnxperf.fusions import common, ort_basic, ort_functions, ort_layout, ort_packed, ort_quantised
from onnxperf.fusions.common import HALF_OR_SINGLE
from onnxperf.fusions.engine import Fused, Fusion, Miss, Pass, Rewriter, fused, fusion, since
from onnxperf.fusions.ort_layout import perm_of
from onnxperf.fusions.ort_reshapes import DETOURS
from onnxperf.fusions.pattern import A, B, Match, X, Y, alone, call, op, pattern, scalar, scale, shared
from onnxperf.graph import KnownDims, Open, same_dims
from op_models import FLOATS, Operator

#: What ONNX Runtime's CPU kernels of Gemm and Conv apply to their result.
AFTER_GEMM = (
    "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Elu", "Selu", "Softplus", "Softsign", "ThresholdedRelu",
)  # fmt: skip
AFTER_CONV = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip")
SKIP = "com.microsoft::SkipLayerNormalization"
FUSED_MATMUL = "com.microsoft::FusedMatMul"


def _activated(m: Match, type: str, product: Operator) -> Fused:
    attrs = {**product.attrs, "activation": m.root.type, **{f"activation_{k}": v for k, v in m.root.attrs.items()}}
    return m.fused(f"com.microsoft::{type}", product.inputs, attrs)


GEMM = op.Gemm(X, ...)


@pattern("Gemm + activation", call(AFTER_GEMM, GEMM, ...), start="Gemm", since="1.4")
def gemm_activation(m: Match) -> Fused | None:
    """An activation that alone reads the product of two matrices; behind that of a stack stands a Reshape."""
    if m[GEMM].out.dtype != "float32" or m[X].rank != 2:
        return None
    return _activated(m, "FusedGemm", m[GEMM])


@pattern("Conv + activation", call(AFTER_CONV, ort_basic.CONV, ...), start="Conv", since="1.4")
def conv_activation(m: Match) -> Fused | Miss | None:
    """An activation that alone reads a convolution; a Clip needs constant bounds."""
    conv = m[ort_basic.CONV]
    if conv.out.dtype != "float32":
        return None
    if not all(t.stored for t in m.root.present[1:]):
        return Miss("the bounds of the Clip are not constants", m.root.nodes)
    return _activated(m, "FusedConv", conv)


RELU_CONV = alone(ort_basic.CONV)
BEFORE_RELU = alone(RELU_CONV + Y)


@pattern("Conv + Add + Relu", op.Relu(BEFORE_RELU), op.Relu(RELU_CONV), start="Conv", since="1.7", until="1.19")
def conv_relu(m: Match) -> Fused | Miss | None:
    """A Relu of a convolution, or of its sum with a tensor of its shape, as one call of cuDNN (pull request 6351; gone
    with 19470, which made convolutions those of cuDNN's frontend).
    """
    conv, out = m[RELU_CONV], m[RELU_CONV].out
    if out.dtype != "float32":
        return None
    summand = m[Y] if BEFORE_RELU in m else None
    if summand is not None and summand.shape != out.shape:
        return Miss(f"the summands differ in shape: {list(out.shape)}, {list(summand.shape)}", m[BEFORE_RELU].nodes)
    inputs = (*conv.inputs[:2], common.bias_of(conv), summand)
    return m.fused("com.microsoft::FusedConv", inputs, {**conv.attrs, "activation": "Relu"})


def _piece(o: Operator) -> tuple[int, int, int] | None:
    """Axis, start and end of what a Slice or Gather takes; None unless it is one run of neighbours."""
    x, *rest = o.present
    numbers = [n for t in rest if (n := scalar(t)) is not None]
    if not x.rank or not rest or len(numbers) < len(rest):
        return None
    if o.type == "Gather":
        axis = o.attrs.get("axis", 0) % x.rank
        at = int(numbers[0]) % max(x.shape[axis], 1)
        return (axis, at, at + 1) if rest[0].rank <= 1 else None
    if len(numbers) < 3 or numbers[3:] not in ([], [1]):
        return None
    start, end, axis = map(int, numbers[:3])
    low, high, _ = slice(start, end).indices(x.shape[axis % x.rank])
    return (axis % x.rank, low, high) if low < high else None


PIECES = ("Slice", "Gather")


SPLIT_RULE = "Gather / Slice -> Split"


@fusion(SPLIT_RULE, anchor="Gather", since="1.14", until="1.17")
def split_gathers(g: Rewriter, first: Operator) -> Fused | None:
    """As `split`, where only Gathers read the tensor (pull request 13095)."""
    return _split(g, first) if all(u.type == "Gather" for u in g.users(first.present[0])) else None


def _split(g: Rewriter, first: Operator) -> Fused | None:
    """Slices and Gathers of one index that cut a tensor into pieces without gap or overlap are one Split, unless the
    tensor is one of several results of a node of the file.
    """
    x = first.present[0]
    cuts = [o for o in g.users(x) if o.type in PIECES and o.present[0].name == x.name]
    if x.stored or len(cuts) < 2 or cuts[0] is not first or g.made_by(x, "Shape"):
        return None
    maker = g.made_by(x)
    if maker is not None and len(maker.outputs) > 1 and (maker.type != "Split" or len(maker.nodes) == 1):
        return None
    pieces = {o: piece for o in cuts if (piece := _piece(o))}
    ops = sorted(pieces, key=pieces.__getitem__)
    if len(ops) < len(cuts):
        return None
    axes, starts, ends = zip(*(pieces[o] for o in ops), strict=True)
    if len({*axes}) > 1 or (*starts, x.shape[axes[0]]) != (0, *ends) or isinstance(x.shape[axes[0]], Open):
        return None
    change = fused("Split", first, ops, (x,), {"axis": axes[0]})
    return replace(change, operator=replace(change.operator, outputs=tuple(o.out for o in ops)), early=True)


#: Pull request 19600. Until opset 12 a Split has no such operand.
split = ort_basic.from_opset(13, fusion(SPLIT_RULE, anchor=PIECES, since="1.18")(_split))


RESIDUAL = op.Add(X, Y)


def _unlike(first: KnownDims, second: KnownDims) -> str:
    """Why two summands are not known to be of the same three sizes; "" where they are."""
    if len(first) != 3 or len(second) != 3:
        return f"the summands have {len(first)} and {len(second)} axes, where it takes three of each"
    if same_dims(first, second):
        return ""
    unknown = [str(axis) for axis, sizes in enumerate(zip(first, second, strict=True)) if None in sizes]
    if not unknown:
        return f"the summands differ in shape: {list(first)}, {list(second)}"
    return f"axis {' and '.join(unknown)} of a summand is dynamic, so that the shapes can't be proven equal"


def skips(knows: common.Knows, since: str, until: str = "") -> Fusion:
    """The rule of releases that know this of shapes."""

    def rule(m: Match) -> Fused | Miss:
        """A residual sum of two [batch, sequence, hidden] and the LayerNormalization behind it in one kernel."""
        x, skip, add, norm = m[X], m[Y], m[RESIDUAL], m.root
        if x.dtype not in HALF_OR_SINGLE:
            return Miss(f"there is no kernel for {x.dtype}", add.nodes)
        first, second = knows(m.g, x), knows(m.g, skip)
        if first is None or second is None:
            return Miss("the shape of a summand is known only when it runs", add.nodes)
        if why := _unlike(first, second):
            return Miss(why, add.nodes)
        if norm.attrs.get("axis", -1) not in (-1, 2):
            return Miss("the normalisation is not over the last axis alone", norm.nodes)
        return m.fused(SKIP, (x, skip, *norm.inputs[1:]))

    return pattern("SkipLayerNormalization", op.LayerNormalization(RESIDUAL, ...), since=since, until=until)(rule)


skip_layer_norm_112 = skips(common.UNTIL_112, "1.4", "1.12")
skip_layer_norm_116 = skips(common.UNTIL_116, "1.13", "1.16")
skip_layer_norm = skips(common.today, "1.17")

BIASED = alone(X + common.BIAS)


@pattern("SkipLayerNormalization + bias", call(SKIP, BIASED, Y, ..., commutes=True), since="1.4")
def bias_skip_layer_norm(m: Match) -> Fused | None:
    """A bias added to either summand joins the kernel, if it is the second operand or added to a product."""
    x, bias, norm = m[X], m[common.BIAS], m.root
    joins = x is m[BIASED].inputs[0] or m.g.made_by(x, "MatMul")
    if not joins or bias.shape != x.shape[-1:] or x.rank != 3 or len(norm.inputs) > 4:
        return None
    return m.fused(SKIP, (x, m[Y], *(*norm.inputs[2:], None)[:2], bias), norm.attrs)


SUM = X + Y


OWN_GELUS = ("com.microsoft::Gelu", "com.microsoft::FastGelu")


@pattern("BiasGelu", call(("Gelu", *OWN_GELUS), SUM), since="1.21")
def bias_gelu(m: Match) -> Fused | Miss:
    """A bias along the last axis and the Gelu, or its approximation by tanh, behind it in one kernel."""
    exact = m.root.type != "com.microsoft::FastGelu" and m.root.attrs.get("approximate", "none") == "none"
    if m[X].rank > 1 and m[Y].shape == m[X].shape[-1:]:
        return m.fused(f"com.microsoft::{'BiasGelu' if exact else 'FastGelu'}", (m[X], m[Y]))
    return Miss("no summand is a bias along the last axis", m[SUM].nodes)


#: Not yet the Gelu of opset 20, as its graphs show.
bias_gelu_120 = replace(bias_gelu, anchors=OWN_GELUS).of("1.4", "1.20")


A_TURNED, B_TURNED = shared(op.Transpose(A)), shared(op.Transpose(B))
MATMUL = ("MatMul", FUSED_MATMUL)


TURNED_OPERAND = call(MATMUL, A_TURNED, B) | call(MATMUL, A, B_TURNED)


def _flags(perm: tuple[int, ...]) -> tuple[str, ...]:
    """The flags of FusedMatMul, without the operand's letter, that stand for a permutation: one of the last two axes,
    or one that moves the first axis, of rows or of columns, behind those of the stack.
    """
    rank, stack = len(perm), (*range(1, len(perm) - 1),)
    if rank >= 2 and perm == (*range(rank - 2), rank - 1, rank - 2):
        return ("trans",)
    if rank >= 3 and perm == (*stack, 0, rank - 1):
        return ("transBatch",)
    return ("transBatch", "trans") if rank >= 3 and perm == (*stack, rank - 1, 0) else ()


def _matmul_transpose(m: Match, stacks: bool = True) -> Fused | Miss | None:
    """A transposition becomes flags of the product, or undoes one. That of a stack's axes needs an equal stack."""
    operand = "A" if A_TURNED in m else "B"
    turn, product = m[A_TURNED if operand == "A" else B_TURNED], m.root
    flags, attrs = _flags(perm_of(turn)), dict(product.attrs)
    if product.out.dtype not in FLOATS or turn.out.name in m.g.graph.output_names:
        return None
    if not flags or ("transBatch" in flags and not stacks):
        return Miss(f"the transposition {list(perm_of(turn))} moves more than the last two axes", turn.nodes)
    if "transBatch" in flags and (len({t.rank for t in product.present}) > 1 or f"transBatch{operand}" in attrs):
        return Miss(f"the transposition {list(perm_of(turn))} moves axes that the other operand lacks", turn.nodes)
    turned = {f"{flag}{operand}": 1 - attrs.get(f"{flag}{operand}", 0) for flag in flags}
    return m.fused(FUSED_MATMUL, (m[A], m[B]), attrs | turned)


matmul_transpose = pattern("MatMul + Transpose", TURNED_OPERAND, since="1.11")(_matmul_transpose)
#: Only the last two axes: libraries of 1.9 and 1.10 don't know transBatchA, that of 1.11 does.
matmul_transpose_110 = pattern("MatMul + Transpose", TURNED_OPERAND, since="1.4", until="1.10")(
    lambda m: _matmul_transpose(m, stacks=False)
)


CAST_TURNED = op.Cast(shared(op.Transpose(X)))


@pattern("Cast before Transpose", CAST_TURNED, since="1.7")
def cast_first(m: Match) -> Fused | None:
    """The transposed operand of a product is cast before it is transposed, so that the product may transpose it."""
    cast, turn = m.root, m.g.made_by(m.root.present[0], "Transpose")
    if turn is None or {turn.out.name, cast.out.name} & m.g.graph.output_names or not _flags(perm_of(turn)):
        return None
    if cast.out.dtype not in FLOATS or not any(u.type in MATMUL for u in m.g.users(cast.out)):
        return None
    early = replace(m[X], name=f"{cast.out.name}#early", dtype=cast.out.dtype, kind="activation", value=None)
    first = replace(cast, name=early.name, inputs=(m[X],), outputs=(early,))
    return Fused(m.parts, replace(turn, name=cast.out.name, inputs=(early,), outputs=cast.outputs), (first,))


PRODUCT = call(MATMUL, A, B)
SCALED = scale(PRODUCT)
A_SCALED, B_SCALED = shared(scale(A)), shared(scale(B))
SCALED_OPERAND = call(MATMUL, A_SCALED, B) | call(MATMUL, A, B_SCALED)


@pattern("MatMul + scale", SCALED, SCALED_OPERAND, start=MATMUL, since="1.4")
def matmul_scale(m: Match) -> Fused | None:
    """A number multiplied with the product, or with one of its operands, becomes its alpha."""
    product = m[PRODUCT] if SCALED in m else m.root
    (factor,) = (m.factor(part) for part in (SCALED, A_SCALED, B_SCALED) if part in m)
    if product.out.dtype not in FLOATS:
        return None
    alpha = float(product.attrs.get("alpha", 1.0)) * factor
    return m.fused(FUSED_MATMUL, (m[A], m[B]), {**product.attrs, "alpha": alpha})


def _bias_softmax(m: Match, knows: common.Knows = common.today) -> Fused | Miss:
    """A sum and the Softmax behind it, if the bias is broadcast along outer axes or along those next to the row."""
    x, bias, add, softmax = m[X], m[Y], m[SUM].out, m.root
    rank = add.rank
    if not rank or add.dtype not in ("float32", "float16", "float64"):
        return Miss(f"there is no kernel for {add.dtype}", m[SUM].nodes)
    scores, added = knows(m.g, x), knows(m.g, bias)
    if scores is None or added is None:
        return Miss("the shape of the scores is known only when it runs", m[SUM].nodes)
    axis = softmax.attrs.get("axis", -1 if softmax.version >= 13 else 1) % rank
    if softmax.version >= 13 and axis != rank - 1:
        return Miss("the row is not the last axis", softmax.nodes)
    if x.shape == add.shape and bias.rank <= rank:
        padded = (1,) * (rank - bias.rank) + added
        pairs = list(zip(scores[:axis], padded[:axis], strict=True))
        outer = all(same_dims((a,), (b,)) for a, b in dropwhile(lambda pair: pair[1] == 1, pairs))
        inner = all(b == 1 for _, b in dropwhile(lambda pair: same_dims(pair[:1], pair[1:]), pairs))
        if same_dims(padded[axis:], scores[axis:]) and (outer or inner):
            attrs = {"axis": axis, "is_inner_broadcast": int(inner and not outer)}
            return m.fused("com.microsoft::BiasSoftmax", (x, bias), attrs)
    return Miss("the bias repeats along axes in the middle, or inside the row", m[SUM].nodes)


BIAS_SOFTMAX = op.Softmax(SUM)
bias_softmax = pattern("BiasSoftmax", BIAS_SOFTMAX, since="1.17")(_bias_softmax)
bias_softmax_116 = pattern("BiasSoftmax", BIAS_SOFTMAX, since="1.12", until="1.16")(
    lambda m: _bias_softmax(m, common.UNTIL_116)
)
#: Not for the Softmax of opset 13.
bias_softmax_111 = pattern("BiasSoftmax", BIAS_SOFTMAX, since="1.4", until="1.11")(
    lambda m: _bias_softmax(m, common.UNTIL_116) if m.root.version < 13 else None
)

#: The CUDA provider's kernels of QuickGelu, of which the first came with 1.14, know doubles; those of norms read what
#: was cast for them.
CUDA: tuple[Fusion | Pass, ...] = (
    ort_functions.inline(ort_functions.ON_CUDA), ort_quantised.pools, *ort_packed.CUDA,
    common.gelu.of("1.4"), common.layer_norm.of("1.4", "1.11"), common.layer_norm_of_cast_112.of("1.12", "1.12"),
    common.layer_norm_of_cast.of("1.13"), common.rms_norm.of("1.4", "1.11"), common.rms_norm_of_cast.of("1.12"),
    split_gathers, split, cast_first, matmul_transpose_110, matmul_transpose, bias_gelu_120, bias_gelu,
    ort_basic.matmul_add_left,
    skip_layer_norm_112, skip_layer_norm_116, skip_layer_norm, bias_skip_layer_norm,
    common.fast_gelu.of("1.4"), common.quick_gelu_or_double.of("1.14"),
    bias_softmax_111, bias_softmax_116, bias_softmax, matmul_scale, ort_packed.bias.of("1.28"), conv_relu,
)  # fmt: skip
CPU: tuple[Fusion | Pass, ...] = (
    ort_functions.inline(ort_functions.ON_CPU), DETOURS, ort_layout.PUSH, *ort_quantised.RULES, *ort_packed.CPU,
    gemm_activation, conv_activation, *since("1.4", common.gelu, common.layer_norm, common.rms_norm),
    split_gathers, split, cast_first, matmul_transpose_110, matmul_transpose, bias_gelu_120, bias_gelu,
    ort_basic.matmul_add_left,
    skip_layer_norm_112, skip_layer_norm_116, skip_layer_norm, bias_skip_layer_norm,
    common.fast_gelu.of("1.4"), common.quick_gelu.of("1.14"), matmul_scale, ort_packed.bias,
)  # fmt: skip
