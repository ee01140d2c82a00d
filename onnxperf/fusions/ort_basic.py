"""ONNX Runtime's rules of level `basic`, the same for every provider: what leaves the graph or goes into weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from onnxperf.fusions import common, ort_layout, ort_qdq, ort_quantised
from onnxperf.fusions.engine import Fused, Fusion, Miss, Pass, hands_on, redirected, since
from onnxperf.fusions.pattern import A, B, C, Match, Variable, X, Y, alone, call, op, pattern, scalar, shared
from onnxperf.graph import Graph, is_static, known_dims, same_dims, without_unneeded
from op_models import FLOATS, Operator, Tensor
from op_models.core import Scalar

NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}
MOST_READERS = 1000  # of a negated condition: all of them are looked at for each
SHARED = 8  # elements at most of stored tensors that are compared by value, larger ones by name
SHARED_TYPES = FLOATS | {"int32", "int64"}  # others are compared by name, too
#: Not merged even where type and inputs are equal, and neither is anything random: each DequantizeLinear has one reader
#: on purpose, and what a ConstantOfShape is filled with is not among its attributes.
NEVER_SHARED = frozenset(
    {"If", "Loop", "Scan", "Dropout", "Bernoulli", "Multinomial", "DequantizeLinear", "ConstantOfShape"}
)
#: dtypes that hold every value of another: a Cast there and on loses nothing.
LOSSLESS = {
    "float32": {"float64"}, "float16": {"float32", "float64"}, "bfloat16": {"float32", "float64"},
    "int32": {"int64", "float64"}, "int16": {"int32", "int64"}, "int8": {"int16", "int32", "int64"},
    "uint8": {"int32", "int64"}, "bool": {"uint8", "int8", "int32", "int64", "float32", "float64"},
}  # fmt: skip


def from_opset(version: int, fusion: Fusion) -> Fusion:
    """A fusion for models of that opset or a later one only, which has what it makes as an operator of its own."""
    return replace(fusion, rule=lambda g, o: fusion.rule(g, o) if o.version >= version else None)


def until_opset(version: int, fusion: Fusion) -> Fusion:
    """A fusion for models of that opset or an earlier one only, whose later versions of operators it does not know."""
    return replace(fusion, rule=lambda g, o: fusion.rule(g, o) if o.version <= version else None)


def _eliminated(graph: Graph, knows: common.Knows | None = None, training: bool = False) -> Graph:
    """Without x + 0, x - 0, x * 1, x / 1, a Slice of everything, an Expand to the same shape, unless x is an input. A
    number stays where an older release, that `knows` less of shapes, has none for x, and with it a LayerNormalization
    in half precision, whose epsilon is 0. A session for inference does not ask whether a Dropout drops anything.
    """
    drops_nothing = knows is None and not training

    def instead(o: Operator) -> tuple[Tensor] | None:
        x = hands_on(o)
        if o.type in NEUTRAL:
            for a, b in (o.inputs, o.inputs[::-1]) if o.type in ("Add", "Mul") else (o.inputs,):
                if a and b and scalar(b) == NEUTRAL[o.type] and a.shape == o.out.shape:
                    unknown = knows is not None and knows(graph, a) is None
                    x = a if graph.made_by(a) and not unknown else None
        elif o.type in ("Slice", "Expand") and graph.made_by(o.present[0]):
            ends = (o.present[2].value or ()) if len(o.present) > 2 else ()
            expanded = o.type == "Expand" and o.present[1].stored and known_dims(o.present[0]) is not None
            everything = expanded or (ends and all(e >= 2**63 - 1 for e in ends))
            x = o.present[0] if everything and o.out.shape == o.present[0].shape else None
        elif o.type == "Dropout" and drops_nothing and len(o.outputs) == 1 and graph.made_by(o.present[0]):
            x = o.present[0]
        return None if x is None else (x,)

    return redirected(graph, instead)


def _shared(graph: Graph) -> Graph:
    """Operators of equal type, attributes and inputs are one (common subexpressions)."""
    seen: dict[object, tuple[Tensor, ...]] = {}

    def key(t: Tensor | None) -> object:
        if t is None or not t.stored or t.value is None or t.size > SHARED or t.dtype not in SHARED_TYPES:
            return t and t.name
        return t.dtype, t.shape, t.value

    def instead(o: Operator) -> tuple[Tensor, ...] | None:
        if o.type in NEVER_SHARED or o.type.startswith("Random"):
            return None
        attrs = str(sorted(o.attrs.items())) if o.attrs else ""
        signature = (o.type, tuple(map(key, o.inputs)), attrs, len(o.outputs), o.repeat)
        first = seen.setdefault(signature, o.outputs)
        return None if first is o.outputs else first

    return redirected(graph, instead)


def _with_stored_targets(graph: Graph, alike: bool = True) -> Graph:
    """Reshapes whose target is a Concat of stored numbers and of sizes of what they read, get a stored
    target: 0 stands for a size that is left in its place, -1 for at most one other that is computed.
    """
    operators = list(graph.operators)
    read = Counter(t.name for o in operators for t in o.present)
    for i, o in enumerate(operators):
        target = graph.made_by(o.present[1]) if o.type == "Reshape" and len(o.present) > 1 else None
        fits = target is not None and target.type == "Concat" and read[target.out.name] == 1
        content = _target(graph, o.present[0], target, alike) if target is not None and fits else None
        if content is not None:
            stored = replace(o.present[1], name=f"{o.name}#target", kind="constant", value=tuple(content))
            operators[i] = replace(o, inputs=(o.present[0], stored))
    unchanged = all(a is b for a, b in zip(operators, graph.operators, strict=True))
    return graph if unchanged else without_unneeded(replace(graph, operators=tuple(operators)))


def _target(graph: Graph, x: Tensor, concat: Operator, alike: bool) -> list[Scalar] | None:
    """The target that a Concat computes for a Reshape of x, as `_with_stored_targets` has it; None where it can't."""
    target: list[Scalar] = []
    for part in concat.present:
        if part.stored and part.value is not None:
            target += part.value
        elif part.shape != (1,):
            return None
        else:
            target.append(0 if _is_size(graph, part, x, len(target), alike) else -1)
    return target if target.count(-1) <= 1 else None


def _is_size(graph: Graph, part: Tensor, x: Tensor, axis: int, alike: bool) -> bool:
    """Whether a part of a target is the size of that axis of x: Unsqueeze(Gather(Shape(x), axis)), or, if `alike`, of
    another tensor that is known to be as long along it.
    """
    unsqueeze = graph.made_by(part)
    gather = graph.made_by(unsqueeze.present[0]) if unsqueeze is not None and unsqueeze.type == "Unsqueeze" else None
    shape = graph.made_by(gather.present[0]) if gather is not None and gather.type == "Gather" else None
    if gather is None or shape is None or shape.type != "Shape" or scalar(gather.present[1]) != axis:
        return False
    size, x_size = ((known_dims(t) or ())[axis : axis + 1] for t in (shape.present[0], x))
    return shape.present[0].name == x.name or (alike and bool(size) and same_dims(size, x_size))


#: Sizes of another tensor: pull request 29027.
RESHAPES = Pass("Reshape with a stored target", _with_stored_targets, since="1.29")
RESHAPES_128 = Pass(RESHAPES.name, lambda g: _with_stored_targets(g, alike=False), since="1.4", until="1.28")
ELIMINATION = Pass("elimination of what does nothing", _eliminated, since="1.17")
ELIMINATION_TRAINING = Pass(ELIMINATION.name, lambda graph: _eliminated(graph, training=True), since="1.4")
#: Until 1.12, no shape was computed before the model ran.
ELIMINATION_112 = Pass(ELIMINATION.name, lambda g: _eliminated(g, common.UNTIL_112), since="1.4", until="1.12")
ELIMINATION_116 = Pass(ELIMINATION.name, lambda g: _eliminated(g, common.UNTIL_116), since="1.13", until="1.16")
COMMON_SUBEXPRESSIONS = Pass("common subexpressions", _shared, once=True, since="1.4")


FIRST_CAST = alone(op.Cast(X))


@pattern("Cast + Cast", op.Cast(FIRST_CAST), since="1.4")
def casts(m: Match) -> Fused | None:
    """A Cast to a wider type and the Cast behind it are one, or none where that gives the first type again."""
    x, wide, out = m[X].dtype, m[FIRST_CAST].out.dtype, m.root.out.dtype
    if wide not in LOSSLESS.get(x, ()):
        return None
    return m.fused("Cast" if x != out else "Identity", (m[X],), m.root.attrs)


@pattern("Div + Mul", alone(1.0 / Y) * X, since="1.4")
def div_mul(m: Match) -> Fused:
    """x times 1 / y is x / y."""
    return m.fused("Div", (m[X], m[Y]))


RELU = op.Relu(X)


@pattern("Relu + Clip", op.Clip(RELU, ...), start="Relu", since="1.4")
def relu_clip(m: Match) -> Fused | Miss:
    """A Clip behind a Relu does the work of both: its lower bound is raised to zero."""
    bounds = m.root.inputs[1:]
    if bounds and bounds[0] is not None and scalar(bounds[0]) is None:
        return Miss("the lower bound is not a constant", m.root.nodes)
    return m.fused("Clip", (m[X], *bounds), m.root.attrs)


GEMM = op.Gemm(A, B)


@pattern("Gemm + Sum", op.Sum(GEMM, C), since="1.4")
def gemm_sum(m: Match) -> Fused | None:
    """The second operand of a Sum becomes the summand of the Gemm that is the first."""
    gemm = m[GEMM]
    if gemm.out.shape != m.root.out.shape:
        return None
    return m.fused("Gemm", (m[A], m[B], m[C]), {**gemm.attrs, "beta": 1.0})


A_TURNED, B_TURNED = alone(op.Transpose(A)), alone(op.Transpose(B))
GEMM_OF_TURNED = op.Gemm(A_TURNED, B, ...) | op.Gemm(A, B_TURNED, ...)


@pattern("Gemm + Transpose", GEMM_OF_TURNED | op.Transpose(GEMM), start="Gemm", since="1.4")
def gemm_transpose(m: Match) -> Fused | None:
    """The transposition of an operand or of the result becomes a flag of the Gemm."""
    if GEMM in m:  # (A B)^T is B^T A^T
        attrs = m[GEMM].attrs
        turned = {"transA": 1 - attrs.get("transB", 0), "transB": 1 - attrs.get("transA", 0)}
        return m.fused("Gemm", (m[B], m[A]), {**attrs, **turned}) if m.root.out.rank == 2 else None
    side, flag = (A_TURNED, "transA") if A_TURNED in m else (B_TURNED, "transB")
    if m[side].out.rank != 2:
        return None
    inputs = (m[A], m[B], *m.root.inputs[2:])
    return m.fused("Gemm", inputs, {**m.root.attrs, flag: 1 - m.root.attrs.get(flag, 0)})


NEGATED = shared(op.Not(C))


@pattern("Not + Where", op.Where(NEGATED, X, Y), since="1.25")
def not_where(m: Match) -> Fused | None:
    """The two values to choose from change places, instead of the condition being negated: in all that read it, or in
    none.
    """
    negated = m[NEGATED].out
    if len(m.g.readers[negated.name]) > MOST_READERS:
        return None
    rest = [u for u in m.g.users(negated) if u.type != "Where" or u.present[0].name != negated.name]
    return m.fused("Where", (m[C], m[Y], m[X])) if not rest else None


not_where_124 = until_opset(15, not_where.of("1.4", "1.24"))  # as its graphs show


CONV = op.Conv(...)
ANY_CONV = call(("Conv", "ConvTranspose"), ...)


@pattern("Conv + BatchNormalization", op.BatchNormalization(ANY_CONV, ...), since="1.4")
def conv_batch_norm(m: Match) -> Fused | Miss | None:
    """The scale and shift of a normalisation in inference go into weights and bias."""
    conv, norm = m[ANY_CONV], m.root
    if norm.attrs.get("training_mode"):
        return None
    if not all(t.stored for t in (*conv.present[1:], *norm.present[1:])):
        return Miss("weights or statistics are not constants", norm.nodes)
    return _into_weights(m, conv, norm.inputs[2])


@pattern("MatMul + BatchNormalization", op.BatchNormalization(common.PRODUCT, ...), since="1.17")
def matmul_batch_norm(m: Match) -> Fused | Miss | None:
    """The scale goes into the matrix, the shift becomes the summand of a Gemm (pull request 17915)."""
    norm = m.root
    if norm.attrs.get("training_mode") or norm.out.rank != 2:
        return None
    if not all(t.stored for t in (m[B], *norm.present[1:])):
        return Miss("the matrix or statistics are not constants", norm.nodes)
    return m.fused("Gemm", (m[A], m[B], norm.inputs[2]))


CONSTANT = Variable("constant", stored=True)


@pattern("Conv + Add / Mul", call(("Add", "Mul"), CONV, CONSTANT), since="1.4")
def conv_affine(m: Match) -> Fused | Miss:
    """A constant for each channel, added or multiplied as second operand, goes into bias or weights."""
    conv, affine, constant = m[CONV], m.root, m[CONSTANT]
    column = (conv.out.shape[1], *(1 for _ in conv.out.shape[2:]))
    number = affine.type == "Mul" and constant.size == 1 and affine.out.shape == conv.out.shape
    if not number and constant.shape not in (column, (1, *column)):
        return Miss(f"the constant {list(constant.shape)} is not one number a channel", affine.nodes)
    if not all(t.stored for t in conv.present[1:]):
        return Miss("the convolution's weights are not constants", conv.nodes)
    return _into_weights(m, conv, constant if affine.type == "Add" else None)


def _into_weights(m: Match, conv: Operator, shift: Tensor | None) -> Fused:
    """The convolution in place of all that has matched; with a `shift`, it has a bias."""
    inputs = conv.inputs
    if shift is not None and not any(conv.inputs[2:]):
        bias = replace(shift, name=f"{conv.name}#bias", shape=conv.out.shape[1:2], value=None)
        inputs = (*conv.inputs[:2], bias)
    return m.merged(conv, inputs=inputs, outputs=m.root.outputs[:1])


PADDED = alone(op.Pad(X, ...))


def _pad(m: Match) -> Fused | Miss:
    """Zeros padded around an image become the padding of the operator that reads them alone."""
    before, window, rest = m[PADDED], m.root, m[PADDED].inputs[1:]
    amounts = rest[0].value if rest and rest[0] else before.attrs.get("pads")
    value = (scalar(rest[1]) if len(rest) > 1 and rest[1] else before.attrs.get("value", 0.0)) if amounts else None
    if before.attrs.get("mode", "constant") != "constant" or value != 0 or len(rest) > 2 or not amounts:
        return Miss("the padding value is not zero", before.nodes)
    ends = (amounts[: len(amounts) // 2], amounts[len(amounts) // 2 :])
    if min(amounts) < 0 or any(half[0] or half[1] for half in ends):
        return Miss(f"the padding {list(amounts)} is not around images alone", before.nodes)
    if window.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return Miss(f"the padding behind it is {window.attrs['auto_pad']}", window.nodes)
    added = [int(n) for half in ends for n in half[2:]]
    pads = tuple(a + b for a, b in zip(added, window.attrs.get("pads") or [0] * len(added), strict=False))
    return m.merged(window, inputs=(m[X], *window.inputs[1:]), attrs={**window.attrs, "pads": pads})


PAD_RULE, PADDED_WINDOW = "Pad + Conv / Pool", call(("Conv", "MaxPool", "AveragePool"), PADDED, ...)
#: Pull requests 18136, of an AveragePool 21556, of what has no padding itself 22001; opset 21 as graphs of 1.25 show.
pad = pattern(PAD_RULE, PADDED_WINDOW, since="1.25")(_pad)
pad_124 = until_opset(20, pad.of("1.20", "1.24"))
pad_119 = until_opset(
    20,
    pattern(PAD_RULE, PADDED_WINDOW, since="1.19", until="1.19")(lambda m: _pad(m) if "pads" in m.root.attrs else None),
)
pad_118 = until_opset(
    20,
    pattern(PAD_RULE, PADDED_WINDOW, since="1.17", until="1.18")(
        lambda m: _pad(m) if "pads" in m.root.attrs and m.root.type != "AveragePool" else None
    ),
)


BIASED = common.PRODUCT + C


def _left_to_attention(m: Match) -> bool:
    """Whether three MatMuls and a residual sum read one LayerNormalization, as ONNX Runtime's Attention rule wants."""
    after = m.g.only_user(m.root.out, "Add")
    residual = after.present if after is not None else ()
    for t in (m[A], *(t for t in residual if t.name != m.root.out.name)):
        norm = m.g.made_by(t, "LayerNormalization")
        users = Counter(u.type for u in m.g.users(norm.out)) if norm is not None else Counter[str]()
        if users and (users["MatMul"], users["Add"], users.total() - users["Shape"]) == (3, 1, 4):
            return True
    return False


def _gemm(m: Match, knows: common.Knows = common.today) -> Fused | Miss | None:
    """A product with a matrix and the Add behind it, where Gemm can add that: a vector along the columns, or a matrix
    to the product of two matrices. Free Reshapes fold the leading axes of a stack of matrices.
    """
    x, matrix, summand, out = m[A], m[B], m[C], m[common.PRODUCT].out
    rows, added = knows(m.g, x), knows(m.g, summand)
    if matrix.rank != 2 or out.dtype not in FLOATS or rows is None or added is None:
        return None
    if len(rows) != 2 and not (is_static(x) and is_static(matrix)):
        return Miss("a stack of matrices is folded into one only where its sizes are known beforehand", m.root.nodes)
    fits = same_dims(added, matrix.shape[1:])
    if x.rank == 2 and summand.rank == 2:
        dims = knows(m.g, out) or ()
        each = zip(added, dims, strict=False)
        fits = len(added) == len(dims) and all(d == 1 or same_dims((d,), (n,)) for d, n in each)
    if fits:
        return m.fused("Gemm", (x, matrix, summand))
    reason = "Gemm can't add" if x.rank == 2 else "Gemm adds only a vector to a stack of matrices, not"
    return Miss(f"{reason} {list(summand.shape)} to {list(out.shape)}", m.root.nodes)


GEMM_RULE = "MatMul + Add -> Gemm"
#: The products around an attention are left for the next level, which takes them since 1.23 (pull request 25017); until
#: 1.20, stacks of matrices were left alone (22494).
matmul_add = pattern(GEMM_RULE, BIASED, since="1.21")(lambda m: None if _left_to_attention(m) else _gemm(m))
matmul_add_left = pattern(GEMM_RULE, BIASED, since="1.23")(_gemm)
matmul_add_flat = pattern(GEMM_RULE, BIASED, since="1.17", until="1.20")(
    lambda m: _gemm(m) if m.root.out.rank == 2 else None
)
matmul_add_flat_116 = pattern(GEMM_RULE, BIASED, since="1.4", until="1.16")(
    lambda m: _gemm(m, common.UNTIL_116) if m.root.out.rank == 2 else None
)

RULES: tuple[Fusion | Pass, ...] = (
    ort_qdq.ONE_READER_EACH, ELIMINATION_112, ELIMINATION_116, ELIMINATION, casts, div_mul, relu_clip,
    gemm_sum, gemm_transpose, not_where_124, not_where, conv_affine, conv_batch_norm, pad_118, pad_119, pad_124, pad,
    matmul_batch_norm,
    ort_quantised.requantised, COMMON_SUBEXPRESSIONS, ort_qdq.UNITS,
    matmul_add_flat_116, matmul_add_flat, matmul_add, RESHAPES_128, RESHAPES,
    *since("1.4", from_opset(20, common.gelu), from_opset(17, common.layer_norm)),
    ort_qdq.PROPAGATION_118, ort_qdq.PROPAGATION_126, ort_qdq.PROPAGATION,
    ort_qdq.OPERANDS_121, ort_qdq.OPERANDS_122, ort_qdq.OPERANDS,
    ort_qdq.ONE_READER_EACH, ort_qdq.WHERES_125, ort_qdq.WHERES, ort_layout.PUSH,
    ort_qdq.TRANSPOSES_116, ort_qdq.TRANSPOSES_118, ort_qdq.TRANSPOSES,
)  # fmt: skip
