"""What `onnxruntime.transformers.optimizer` does to a model before ONNX Runtime sees it (use_gpu=True, opt_level=0).

Published figures of "optimized" BERT and GPT-2 use it. It fuses more than the runtime itself: a residual sum whose
value goes on is a second result of SkipLayerNormalization, and biases join what follows a product. An attention is
recognised in the form of BERT before transformers 4.4x and of no mask; RotaryEmbedding and embeddings whose positions
are constants are left alone, as that tool leaves those of today's exports. GPT-2 with a past state, which it recognised
in exports of its day, is recognised in the form that today's exporter gives the same code.
"""

from __future__ import annotations

from dataclasses import replace
from math import isclose

from onnxperf.graph import Graph
from onnxperf.runtimes import ort_extended as extended
from onnxperf.runtimes import patterns
from onnxperf.runtimes.engine import DISABLED, Fused, Fusion, Miss, Pass, Rewriter, fused, fusion, without_identities
from onnxperf.runtimes.patterns import next_op, other, scalar
from op_models import Operator, Tensor

NORMS = {
    "LayerNormalization": "com.microsoft::SkipLayerNormalization",
    "SimplifiedLayerNormalization": "com.microsoft::SkipSimplifiedLayerNormalization",
}


@fusion("SimplifiedLayerNormalization", anchor="Sqrt", level=DISABLED)
def rms_norm(g: Rewriter, root: Operator) -> Fused | None:
    """x / sqrt(mean(x^2) + epsilon) gamma, be it by Div, Reciprocal or one over the root."""
    under = _up(g, root.inputs[0], "Add", "ReduceMean", "Pow")
    if not under or scalar(under[2].inputs[1]) != 2:
        return None
    epsilon, mean, square = under
    x = square.present[0]
    quotient = next_op(g, root, "Div", "Reciprocal")
    inner: list[Operator] = []
    if quotient is not None and (quotient.type == "Reciprocal" or scalar(quotient.inputs[0]) == 1):
        inner, quotient = [quotient], next_op(g, quotient, "Mul")
    scale = next_op(g, quotient, "Mul")
    gamma = other(scale, quotient.out if quotient else None)
    if quotient is None or scale is None or gamma is None or mean.out.shape != (*x.shape[:-1], 1):
        return None
    if x.name not in {t.name for t in quotient.present} or not gamma.stored or gamma.rank != 1:
        return None
    parts = (square, mean, epsilon, root, *inner, quotient, scale)
    return fused("SimplifiedLayerNormalization", scale, parts, (x, gamma), {"axis": -1})


@fusion("SkipLayerNormalization", anchor=tuple(NORMS), level=DISABLED)
def skip_layer_norm(g: Rewriter, norm: Operator) -> Fused | Miss | None:
    """A sum of two activations and the normalisation behind it; where others read the sum, it is a result as well."""
    add = g.made_by(norm.inputs[0], "Add")
    if add is None or any(t.stored for t in add.present):
        return None
    x, skip = add.present
    if x.rank < skip.rank or x.size < skip.size:
        x, skip = skip, x
    if x.rank != 3 or skip.shape not in (x.shape, (1, *x.shape[1:]), x.shape[1:]):
        return Miss(f"the summands do not fit: {list(x.shape)}, {list(skip.shape)}", add.nodes)
    for t in add.present:
        gather = g.made_by(t, "Gather")
        if gather is not None and gather.present[1].kind != "input":
            return Miss("the sum is one of embeddings", add.nodes)
    out = fused(NORMS[norm.type], norm, (add, norm), (x, skip, *norm.inputs[1:])).operator
    if not g.only_user(add.out):
        out = replace(out, outputs=(*out.outputs, add.out))
    return Fused((add, norm), out, early=True)


@fusion("SkipLayerNormalization", anchor=tuple(NORMS), level=DISABLED)
def skip_layer_norm_alone(g: Rewriter, norm: Operator) -> Fused | Miss | None:
    """The same until 1.12, whose kernel has no second result."""
    found = skip_layer_norm.rule(g, norm)
    second = isinstance(found, Fused) and len(found.operator.outputs) > 1
    return Miss("the sum is used elsewhere as well", norm.nodes) if second else found


@fusion("QuickGelu", anchor="Sigmoid", level=DISABLED)
def quick_gelu(g: Rewriter, sigmoid: Operator) -> Fused | None:
    """x sigmoid(1.702 x), CLIP's; SiLU stays as it is."""
    found = extended.quick_gelu.rule(g, sigmoid)
    return found if isinstance(found, Fused) and isclose(found.operator.attrs["alpha"], 1.702, rel_tol=1e-3) else None


def _bias(g: Rewriter, tensor: Tensor | None) -> tuple[Operator, Tensor, Tensor] | None:
    """The Add of a stored vector to a product that makes `tensor`, the product, and the vector."""
    add = g.made_by(tensor, "Add")
    if add is None or not g.only_user(add.out):
        return None
    for matmul, bias in patterns.biased_product(g, add):
        if bias.stored and bias.rank == 1:
            return add, matmul.out, bias
    return None


@fusion("bias + Gelu", anchor=("Gelu", "com.microsoft::Gelu", "com.microsoft::FastGelu"), level=DISABLED)
def bias_gelu(g: Rewriter, gelu: Operator) -> Fused | None:
    """The bias of a product goes along with the Gelu behind it."""
    found = _bias(g, gelu.inputs[0]) if len(gelu.present) == 1 else None
    if found is None or gelu.attrs.get("approximate", "none") != "none":
        return None
    add, x, bias = found
    type = gelu.type if gelu.type.endswith("FastGelu") else "com.microsoft::BiasGelu"
    return fused(type, gelu, (add, gelu), (x, bias))


@fusion("bias + SkipLayerNormalization", anchor="com.microsoft::SkipLayerNormalization", level=DISABLED)
def bias_skip_layer_norm(g: Rewriter, norm: Operator) -> Fused | None:
    """The bias of a product goes along with the residual sum behind it."""
    for side in (0, 1) if len(norm.inputs) == 4 else ():
        found = _bias(g, norm.inputs[side])
        if found is not None:
            add, x, bias = found
            merged = replace(norm, inputs=(x, norm.inputs[1 - side], *norm.inputs[2:], bias))
            return Fused((add, norm), replace(merged, nodes=(*add.nodes, *norm.nodes)))
    return None


@fusion("Gemm -> MatMul + Add", anchor="Gemm", level=DISABLED)
def unreshaped(g: Rewriter, gemm: Operator) -> Fused | None:
    """GPT-2's: a Gemm between Reshapes, behind a normalisation or FastGelu, is a product of the stack again."""
    before, after = g.made_by(gemm.inputs[0], "Reshape"), next_op(g, gemm, "Reshape")
    made = g.made_by(before.inputs[0]) if before is not None else None
    if before is None or after is None or made is None or len(gemm.present) != 3:
        return None
    behind = (*NORMS, *NORMS.values(), "com.microsoft::FastGelu", "com.microsoft::Attention")
    x = before.present[0]
    plain = not gemm.attrs.get("transA") and not gemm.attrs.get("transB")
    if made.type not in behind or not plain or after.out.shape[:-1] != x.shape[:-1]:
        return None
    product = replace(after.out, name=f"{after.out.name}#product")
    matmul = replace(gemm, type="MatMul", inputs=(x, gemm.inputs[1]), outputs=(product,), attrs={})
    add = replace(after, type="Add", inputs=(product, gemm.inputs[2]), attrs={})
    gone = (before,) if g.only_user(before.out) else ()
    return Fused((*gone, gemm, after), add, (matmul,))


def _up(g: Rewriter, t: Tensor | None, *types: str) -> list[Operator]:
    """The operators above `t`, each of which makes the first input of the one below; none where one is another."""
    found: list[Operator] = []
    for type in types:
        op = g.made_by(t, type)
        if op is None:
            return []
        t, found = op.inputs[0], [*found, op]
    return found


def _projected(g: Rewriter, t: Tensor | None) -> list[Operator]:
    """Transpose, Reshape, Add and MatMul that make queries, keys or values of [batch, heads, length, size], or none."""
    found = _up(g, t, "Transpose", "Reshape", "Add")
    matmul = next((m for m, _ in patterns.biased_product(g, found[2])), None) if found else None
    return [*found, matmul] if matmul else []


def _mask(g: Rewriter, t: Tensor | None) -> Tensor | None:
    """The mask [batch, length] behind (1 - mask) * -10000, spread over heads and queries."""
    scale = g.made_by(t, "Mul")
    turned = next((m for m in (g.made_by(x, "Sub") for x in (scale.present if scale else ())) if m), None)
    if turned is None or scalar(turned.inputs[0]) != 1:
        return None
    cast = g.made_by(turned.inputs[1], "Cast")
    spread = _up(g, cast.inputs[0] if cast else turned.inputs[1], "Unsqueeze", "Unsqueeze")
    if not spread:
        return None
    mask = spread[1].inputs[0]
    before = g.made_by(mask, "Cast")  # one cast, to what the kernel reads, is enough
    return before.inputs[0] if before else mask


@fusion("Attention", anchor="Softmax", level=DISABLED)
def attention(g: Rewriter, softmax: Operator) -> Fused | Miss | None:
    """Three biased projections of one tensor, scaled and masked scores, their Softmax, and the values weighed by it."""
    add = g.made_by(softmax.inputs[0], "Add")
    scaled = next((d for t in (add.present if add else softmax.present) if (d := g.made_by(t, "Div"))), None)
    scores = g.made_by(scaled.inputs[0], "MatMul") if scaled else None
    weighed = next_op(g, softmax, "MatMul")
    turned = next_op(g, weighed, "Transpose")
    merged = next_op(g, turned, "Reshape")
    if scaled is None or scores is None or weighed is None or turned is None or merged is None:
        return None
    q, k, v = (_projected(g, t) for t in (scores.inputs[0], scores.inputs[1], weighed.inputs[1]))
    if not q or not k or not v:
        return None
    x = q[3].present[0]
    if any(p[3].present[0].name != x.name or not p[3].present[1].stored for p in (q, k, v)):
        return Miss("queries, keys and values are not projections of one tensor", softmax.nodes)
    if x.dtype not in extended.HALF_OR_SINGLE:
        return Miss(f"there is no kernel for {x.dtype}", q[3].nodes)
    mask = _mask(g, other(add, scaled.out)) if add is not None else None
    if add is not None and mask is None:
        return Miss("its mask is written in a form that is not recognised", add.nodes)
    heads, width = q[0].out.shape[1], sum(p[3].out.shape[-1] for p in (q, k, v))
    weight = replace(q[3].present[1], name=f"{q[3].name}#qkv", shape=(x.shape[-1], width), value=None)
    bias = replace(weight, name=f"{q[2].name}#qkv", shape=(width,))
    masked = () if add is None else (add,)
    parts = (*q, *k, *v, scores, scaled, *masked, softmax, weighed, turned, merged)
    inputs: tuple[Tensor | None, ...] = (x, weight, bias)
    before: tuple[Operator, ...] = ()
    if mask is not None:  # the sum of a mask is the number of tokens: what the kernel reads; all layers share it
        length = Tensor(f"{mask.name}#length", "int32", mask.shape[:1])
        if g.made_by(length) is None:
            whole = replace(length, name=f"{mask.name}#int32", shape=mask.shape)
            cast = Operator(whole.name, "Cast", (mask,), (whole,), {"to": 6}, 0, softmax.nodes, repeat=softmax.repeat)
            attrs = {"axes": (1,), "keepdims": 0}
            total = replace(cast, name=length.name, type="ReduceSum", inputs=(whole,), outputs=(length,), attrs=attrs)
            before = (cast, total)
        inputs = (*inputs, length)
    one = fused("com.microsoft::Attention", merged, parts, inputs, {"num_heads": heads})
    return replace(one, before=before)


@fusion("Attention with past", anchor="Softmax", level=DISABLED)
def attention_with_past(g: Rewriter, softmax: Operator) -> Fused | None:
    """GPT-2's: one product makes queries, keys, values; the last two go behind a past state, and become the present."""
    where = g.made_by(softmax.inputs[0], "Where")
    above = _up(g, where.inputs[1] if where else softmax.inputs[0], "Div", "MatMul")
    weighed = next_op(g, softmax, "MatMul")
    turned = next_op(g, weighed, "Transpose")
    merged = next_op(g, turned, "Reshape")
    keys = _up(g, above[1].inputs[1], "Transpose", "Concat") if above else []
    values = _up(g, weighed.inputs[1], "Concat") if weighed else []
    if not keys or not values or weighed is None or turned is None or merged is None:
        return None
    caches, made = [keys[1], values[0]], []
    for t in (above[1].inputs[0], *(c.inputs[1] for c in caches)):
        made += _up(g, t, "Transpose", "Reshape", "Split", "Reshape", "Gemm", "Reshape")
    past = [o for c in caches if (o := g.made_by(c.inputs[0], "Gather"))]
    grown = [u for c in caches for u in g.users(c.out) if u.type == "Unsqueeze"]
    present = next_op(g, grown[0], "Concat") if grown else None
    if len(made) != 18 or len({id(o) for o in made}) != 10 or present is None or len(past) != 2:
        return None
    gemm, before, state = made[4], made[5], past[0].inputs[0]
    inner = (*made, *caches, keys[0], *above, *(() if where is None else (where,)), *past, *grown)
    parts = {id(o): o for o in (*inner, softmax, weighed, turned, merged, present)}.values()
    x, attrs = before.present[0], {"num_heads": turned.out.shape[2], "unidirectional": 1}
    inputs = (x, *gemm.inputs[1:3], None, state)
    one = fused("com.microsoft::Attention", merged, parts, inputs, attrs).operator
    joined = replace(turned.out, name=f"{merged.out.name}#joined", shape=x.shape)
    one = replace(one, outputs=(joined, present.out))
    return Fused(tuple(parts), replace(merged, inputs=(joined, *merged.inputs[1:])), (one,))


def _live(graph: Graph) -> Graph:
    """Without what nothing reads any more."""
    needed, kept = set(graph.output_names), []
    for o in reversed(graph.operators):
        if any(t.name in needed for t in o.outputs):
            needed.update(t.name for t in o.present)
            kept.append(o)
    return graph if len(kept) == len(graph.operators) else replace(graph, operators=tuple(reversed(kept)))


#: In order, all before the runtime's own rules.
TRANSFORMERS: tuple[Fusion | Pass, ...] = (
    Pass("identities", DISABLED, without_identities),
    replace(patterns.layer_norm, level=DISABLED),
    rms_norm,
    replace(patterns.gelu, level=DISABLED),
    replace(patterns.fast_gelu, level=DISABLED),
    quick_gelu,
    skip_layer_norm,
    attention,
    attention_with_past,
    unreshaped,
    bias_gelu,
    bias_skip_layer_norm,
    Pass("pruning", DISABLED, _live),
)
TRANSFORMERS_112 = tuple(skip_layer_norm_alone if f is skip_layer_norm else f for f in TRANSFORMERS)
