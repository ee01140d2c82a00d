"""What `onnxruntime.transformers.optimizer` does to a model before ONNX Runtime sees it (use_gpu=True, opt_level=0).

Published figures of "optimized" BERT and GPT-2 use it. It fuses more than the runtime itself: where a residual sum is
read elsewhere too, SkipLayerNormalization gives it as a second result, and the bias of a product joins what follows.

Attention is recognised as exporters wrote BERT before transformers 4.4x, or without a mask. RotaryEmbedding, and
embeddings whose positions are constants, are left alone: the tool does not recognise them in today's exports either.
It did recognise GPT-2 with a past state in exports of its day; here that is recognised as today's exporter writes it.
"""

from __future__ import annotations

from dataclasses import replace
from math import isclose

from onnxperf.fusions import common
from onnxperf.fusions.common import BIAS, HALF_OR_SINGLE
from onnxperf.fusions.engine import Fused, Fusion, Miss, Pass, fused, since, without_identities
from onnxperf.fusions.pattern import A, B, C, Call, Match, Variable, X, Y, alone, call, kept, op, pattern, shared
from onnxperf.graph import Graph
from op_models import Operator, Tensor

#: Normalisations, and what each becomes together with the sum before it.
NORMS = {f"{kind}LayerNormalization": f"com.microsoft::Skip{kind}LayerNormalization" for kind in ("", "Simplified")}
FAST_GELU = "com.microsoft::FastGelu"
PRODUCT = kept(op.MatMul(...))
BIASED = alone(PRODUCT + BIAS)
SUM = op.Add(X, Y)


def _skip_layer_norm(m: Match) -> Fused | Miss | None:
    """A sum of two activations and the normalisation behind it; where others read the sum, it is a result as well."""
    add, norm, x, skip = m[SUM], m.root, m[X], m[Y]
    if x.stored or skip.stored:
        return None
    if x.rank < skip.rank or x.size < skip.size:
        x, skip = skip, x
    if x.rank != 3 or skip.shape not in (x.shape, (1, *x.shape[1:]), x.shape[1:]):
        return Miss(f"the summands do not fit: {list(x.shape)}, {list(skip.shape)}", add.nodes)
    for t in add.present:
        gather = m.g.made_by(t, "Gather")
        if gather is not None and gather.present[1].kind != "input":
            return Miss("the sum is one of embeddings", add.nodes)
    out = m.fused(NORMS[norm.type], (x, skip, *norm.inputs[1:])).operator
    if not m.g.only_user(add.out):
        out = replace(out, outputs=(*out.outputs, add.out))
    return Fused((add, norm), out, early=True)


def _skip_layer_norm_alone(m: Match) -> Fused | Miss | None:
    """The same until 1.12, whose kernel has no second result."""
    answer = _skip_layer_norm(m)
    second = isinstance(answer, Fused) and len(answer.operator.outputs) > 1
    return Miss("the sum has other consumers", m.root.nodes) if second else answer


SKIP = call(tuple(NORMS), SUM, ...)
skip_layer_norm = pattern("SkipLayerNormalization", SKIP, since="1.13")(_skip_layer_norm)
skip_layer_norm_alone = pattern("SkipLayerNormalization", SKIP, since="1.4", until="1.12")(_skip_layer_norm_alone)


@pattern("QuickGelu", X * op.Sigmoid(common.SCALED), start="Sigmoid", since="1.4")
def quick_gelu(m: Match) -> Fused | None:
    """x sigmoid(1.702 x), CLIP's; SiLU stays as it is."""
    return common.scaled_sigmoid(m) if isclose(m.factor(common.SCALED), 1.702, rel_tol=1e-3) else None


@pattern("bias + Gelu", call(("Gelu", "com.microsoft::Gelu", FAST_GELU), BIASED), since="1.4")
def bias_gelu(m: Match) -> Fused | None:
    """The bias of a product goes along with the Gelu behind it."""
    if m[BIAS].rank != 1 or m.root.attrs.get("approximate", "none") != "none":
        return None
    type = FAST_GELU if m.root.type == FAST_GELU else "com.microsoft::BiasGelu"
    return m.fused(type, (m[PRODUCT].out, m[BIAS]))


@pattern(
    "bias + SkipLayerNormalization", call(NORMS["LayerNormalization"], BIASED, Y, A, B, commutes=True), since="1.4"
)
def bias_skip_layer_norm(m: Match) -> Fused | None:
    """The bias of a product goes along with the residual sum behind it."""
    if m[BIAS].rank != 1:
        return None
    return m.merged(m.root, inputs=(m[PRODUCT].out, m[Y], m[A], m[B], m[BIAS]))


MAKER = kept(call((*NORMS, *NORMS.values(), FAST_GELU, "com.microsoft::Attention"), ...))
FLAT = shared(op.Reshape(MAKER, ...))
GEMM = op.Gemm(FLAT, A, B)


@pattern("Gemm -> MatMul + Add", op.Reshape(GEMM, ...), start="Gemm", since="1.4")
def unreshaped(m: Match) -> Fused | None:
    """GPT-2's: a Gemm between Reshapes, behind a normalisation or FastGelu, is a product of the stack again."""
    gemm, after, x = m[GEMM], m.root, m[FLAT].present[0]
    if gemm.attrs.get("transA") or gemm.attrs.get("transB") or after.out.shape[:-1] != x.shape[:-1]:
        return None
    product = replace(after.out, name=f"{after.out.name}#product")
    matmul = replace(gemm, type="MatMul", inputs=(x, m[A]), outputs=(product,), attrs={})
    return Fused(m.parts, replace(after, type="Add", inputs=(product, m[B]), attrs={}), (matmul,))


def _projection() -> tuple[Call, ...]:
    """Queries, keys or values [batch, heads, length, size] as a biased product of [batch, length, hidden]."""
    matmul = op.MatMul(...)
    add = matmul + Variable("bias")
    reshape = op.Reshape(add, ...)
    return op.Transpose(reshape), reshape, add, matmul


QUERIES, KEYS, VALUES = _projection(), _projection(), _projection()
SCORES = op.MatMul(QUERIES[0], KEYS[0])
SCALED = op.Div(SCORES, ...)
MASKED = SCALED + C
SOFTMAX = op.Softmax(MASKED | SCALED)
WEIGHED = op.MatMul(SOFTMAX, VALUES[0])
TURNED = op.Transpose(WEIGHED)

#: The mask [batch, length] of tokens, spread over heads and queries as (1 - mask) * -10000.
TOKENS = Variable("tokens")
SPREAD = op.Unsqueeze(op.Unsqueeze(op.Cast(TOKENS) | TOKENS, ...), ...)
MASK = (1.0 - (op.Cast(SPREAD) | SPREAD)) * Variable("lowest")


@pattern("Attention", op.Reshape(TURNED, ...), start="Softmax", since="1.4")
def attention(m: Match) -> Fused | Miss:
    """Three biased projections of one tensor, scaled and masked scores, their Softmax, and the values weighed by it."""
    softmax, products = m[SOFTMAX], [m[p[3]] for p in (QUERIES, KEYS, VALUES)]
    x, weight = products[0].present
    if any(p.present[0].name != x.name or not p.present[1].stored for p in products):
        return Miss("queries, keys and values are not projections of one tensor", softmax.nodes)
    if x.dtype not in HALF_OR_SINGLE:
        return Miss(f"there is no kernel for {x.dtype}", products[0].nodes)
    mask = next(MASK.match(m[C], m), None) if MASKED in m else m
    if mask is None:
        return Miss("its mask is not in a recognised form", m[MASKED].nodes)
    width = sum(p.out.shape[-1] for p in products)
    weight = replace(weight, name=f"{products[0].name}#qkv", shape=(x.shape[-1], width), value=None)
    bias = replace(weight, name=f"{m[QUERIES[2]].name}#qkv", shape=(width,))
    length, before = _lengths(mask) if TOKENS in mask else (None, ())
    calls = (*QUERIES, *KEYS, *VALUES, SCORES, SCALED, *([MASKED] if MASKED in m else []), SOFTMAX, WEIGHED, TURNED)
    parts, inputs = (*(m[c] for c in calls), m.root), (x, weight, bias, *([length] if length else []))
    attrs = {"num_heads": m[QUERIES[0]].out.shape[1]}
    return replace(fused("com.microsoft::Attention", m.root, parts, inputs, attrs), before=before)


def _lengths(m: Match) -> tuple[Tensor, tuple[Operator, ...]]:
    """The number of tokens of each sequence, which the kernel reads: the sum of the mask, made once for all layers."""
    mask, softmax = m[TOKENS], m[SOFTMAX]
    length = Tensor(f"{mask.name}#length", "int32", mask.shape[:1])
    if m.g.made_by(length) is not None:
        return length, ()
    whole = replace(length, name=f"{mask.name}#int32", shape=mask.shape)
    cast = Operator(whole.name, "Cast", (mask,), (whole,), {"to": 6}, 0, softmax.nodes, repeat=softmax.repeat)
    attrs = {"axes": (1,), "keepdims": 0}
    total = replace(cast, name=length.name, type="ReduceSum", inputs=(whole,), outputs=(length,), attrs=attrs)
    return length, (cast, total)


STATE = Variable("state")
ROWS = op.Reshape(X, ...)
QKV_GEMM = op.Gemm(ROWS, A, B)
QKV = op.Reshape(QKV_GEMM, ...)
SPLIT = op.Split(QKV, ...)
HEADS = tuple(op.Reshape(SPLIT, ...) for _ in "qkv")
QUERY, KEY, VALUE = (op.Transpose(h) for h in HEADS)
PAST = (op.Gather(STATE, ...), op.Gather(STATE, ...))
ALL_KEYS, ALL_VALUES = op.Concat(PAST[0], KEY), op.Concat(PAST[1], VALUE)
KEYS_TURNED = op.Transpose(ALL_KEYS)
PAST_SCORES = op.MatMul(QUERY, KEYS_TURNED)
PAST_SCALED = op.Div(PAST_SCORES, ...)
CAUSAL = op.Where(C, PAST_SCALED, ...)
PAST_SOFTMAX = op.Softmax(CAUSAL | PAST_SCALED)
PAST_WEIGHED = op.MatMul(PAST_SOFTMAX, ALL_VALUES)
PAST_TURNED = op.Transpose(PAST_WEIGHED)
#: In the order in which the fused operator names its nodes.
PAST_PARTS = (
    QUERY, HEADS[0], SPLIT, QKV, QKV_GEMM, ROWS, KEY, HEADS[1], VALUE, HEADS[2], ALL_KEYS, ALL_VALUES, KEYS_TURNED,
    PAST_SCALED, PAST_SCORES, CAUSAL, *PAST,
)  # fmt: skip


@pattern("Attention with past", op.Reshape(PAST_TURNED, ...), start="Softmax", since="1.4")
def attention_with_past(m: Match) -> Fused | None:
    """GPT-2's: one product makes queries, keys, values; the last two go behind a past state, and become the present."""
    caches = (m[ALL_KEYS], m[ALL_VALUES])
    grown = [u for c in caches for u in m.g.users(c.out) if u.type == "Unsqueeze"]
    present = m.g.only_user(grown[0].out, "Concat") if grown else None
    if present is None:
        return None
    merged, turned, x = m.root, m[PAST_TURNED], m[X]
    inner = (*(m[c] for c in PAST_PARTS if c in m), *grown)
    parts = (*inner, m[PAST_SOFTMAX], m[PAST_WEIGHED], turned, merged, present)
    attrs = {"num_heads": turned.out.shape[2], "unidirectional": 1}
    operator = fused("com.microsoft::Attention", merged, parts, (x, m[A], m[B], None, m[STATE]), attrs).operator
    joined = replace(turned.out, name=f"{merged.out.name}#joined", shape=x.shape)
    operator = replace(operator, outputs=(joined, present.out))
    return Fused(parts, replace(merged, inputs=(joined, *merged.inputs[1:])), (operator,))


def _live(graph: Graph) -> Graph:
    """The graph without operators whose results nothing reads."""
    needed, operators = set(graph.output_names), []
    for o in reversed(graph.operators):
        if any(t.name in needed for t in o.outputs):
            needed.update(t.name for t in o.present)
            operators.append(o)
    return graph if len(operators) == len(graph.operators) else replace(graph, operators=tuple(reversed(operators)))


RULES: tuple[Fusion | Pass, ...] = (
    *since("1.4", Pass("identities", without_identities), common.layer_norm, common.rms_norm_any, common.gelu_any,
           common.fast_gelu_any), quick_gelu, skip_layer_norm_alone, skip_layer_norm, attention, attention_with_past,
    unreshaped, bias_gelu, bias_skip_layer_norm, Pass("pruning", _live, since="1.4"),
)  # fmt: skip
