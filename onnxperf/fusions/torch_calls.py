"""Recover the calls of PyTorch that its exporters write as several nodes, or have folded into others.

Eager PyTorch runs each call as one kernel or a few, and autocast chooses types by the call.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import pi, prod, sqrt
from typing import Any, NamedTuple

from onnxperf.fusions import common
from onnxperf.fusions.engine import DISABLED, Fused, Miss, Rewriter, Rules, fusion, merged, since
from onnxperf.fusions.pattern import Match, Pattern, Variable, X, op, pattern, scaled
from onnxperf.passes.autocast import MARK
from op_models import Operator, Tensor

#: The name that exporters (torch.onnx.export(dynamo=True) and TorchScript's) give the bias of a convolution with a
#: batch norm folded in. A convolution that had a bias before is recognised by its output's name (`common.BATCH_NORM`).
FOLDED_BIAS = re.compile(r"\.weight_bias$|^onnx::Conv_\d+$")
#: The name of a module's own bias.
OWN_BIAS = re.compile(r"(^|\.)bias$")
#: torch.addcmul, and the name that torch.onnx.export(dynamo=True) gives its result.
ADDCMUL, ADDCMUL_NAME = "torch::addcmul", re.compile(r"^addcmul(_\d+)?$")
#: An attention that is a library's kernel and nothing else (`op_models.Attention.alone`).
ALONE = "alone"
#: The last product of an attention that runs as products, which no rule takes for the call.
BY_PRODUCTS = "by products"
#: The type in which these products are computed, of operands in one of HALF.
SINGLE, HALF = "float32", frozenset({"float16", "bfloat16"})
#: torch.roll along one axis.
ROLL = "torch::roll"
#: Names of stored tensors that are not parameters: PyTorch computes them from parameters in each run.
COMPUTED = re.compile(r"^(view|val|reshape|getitem|transpose|permute|mul|div|sub|add|tmp)(_\d+)?$")


def is_parameter(t: Tensor) -> bool:
    """Whether a tensor is a parameter of a module, and so has the memory format that the module was converted to."""
    return t.kind == "weight" and not COMPUTED.match(t.name)


@fusion("pad", anchor="Conv")
def pad(g: Rewriter, conv: Operator) -> Fused | None:
    """A convolution with uneven padding: torch.nn.Conv2d can't do that, so the exporter folded a Pad into it."""
    pads, x = conv.attrs.get("pads", ()), conv.inputs[0]
    first, last = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    if x is None or tuple(first) == tuple(last) or len(pads) != 2 * (x.rank - 2) or min(pads) < 0:
        return None
    sides = (d + a + b for d, a, b in zip(x.shape[2:], first, last, strict=True))
    padded = replace(x, name=f"{conv.name}#padded", kind="activation", shape=(*x.shape[:2], *sides), value=None)
    before = replace(conv, name=padded.name, type="Pad", version=0, inputs=(x,), outputs=(padded,), attrs={})
    even = {**conv.attrs, "pads": (0,) * len(pads)}
    return Fused((conv,), replace(conv, inputs=(padded, *conv.inputs[1:]), attrs=even), (before,))


@fusion("batch norm", anchor=("Conv", "ConvTranspose"))
def batch_norm(g: Rewriter, conv: Operator) -> Fused | None:
    """A convolution with a batch norm folded in: PyTorch runs the two one after the other. For an untrained batch norm
    the exporter leaves out the bias, which is zero. Where the result is a batch norm's, the bias is as well, unless it
    has the name of a module's own: whoever renames weights changes nothing.
    """
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    normed = common.BATCH_NORM.fullmatch(conv.out.name) is not None
    told = bias is not None and bias.stored and FOLDED_BIAS.search(bias.name) is not None
    folded = bias is None or told or (normed and bias.stored and not OWN_BIAS.search(bias.name))
    if not (normed or told):
        return None
    before = replace(conv.out, name=f"{conv.out.name}#conv")
    biases = (bias,) if bias is not None and not folded else ()
    alone = replace(conv, name=f"{conv.name}#conv", inputs=(*conv.inputs[:2], *biases), outputs=(before,))
    like = replace(conv.out, kind="weight", shape=conv.out.shape[1:2], value=None)
    params = (replace(like, name=f"{conv.out.name}#{part}") for part in ("scale", "shift", "mean", "variance"))
    norm = replace(conv, type="BatchNormalization", version=0, inputs=(before, *params), attrs={})
    return Fused((conv,), norm, (alone,))


@pattern("silu", X * op.Sigmoid(X), start="Sigmoid")
def silu(m: Match) -> Fused:
    """x sigmoid(x)."""
    return m.fused("Swish", (m[X],))


def _by_tanh(cube: Pattern) -> Pattern:
    return 1.0 + op.Tanh((X + cube * 0.044715) * sqrt(2 / pi))


@pattern(
    "gelu",
    X * (common.BY_ERF * 0.5),
    X * (_by_tanh(X**3) * 0.5),
    (X * _by_tanh(X * (X * X))) * 0.5,
    start=("Erf", "Tanh"),
)
def gelu(m: Match) -> Fused:
    """torch's own gelu as exporters write it before opset 20: by erf x (0.5 (1 + erf)), by tanh x (0.5 (1 + tanh)) or,
    from TorchScript's, with x (x x) for the cube. Models that write a gelu out, such as gelu_new of transformers, begin
    with 0.5 x; that of TorchScript by erf is `common.gelu`.
    """
    approximate = "none" if common.BY_ERF in m else "tanh"
    return m.fused("Gelu", (m[X],), {"approximate": approximate})


SUMMAND, FACTOR = Variable("summand"), Variable("factor")


@pattern("addcmul", SUMMAND + FACTOR * X, start="Mul")
def addcmul(m: Match) -> Fused | None:
    """summand + factor x in one kernel. The exporter names the result after the call; a user's own sum has another
    name.
    """
    return m.fused(ADDCMUL, (m[SUMMAND], m[FACTOR], m[X])) if ADDCMUL_NAME.match(m.root.out.name) else None


SCALE, SHIFT, GROUPED = Variable("scale", stored=True), Variable("shift", stored=True), op.Reshape(X, ...)
NORM = op.InstanceNormalization(GROUPED, ...)
ROWS = op.Reshape(NORM, ...)


@pattern("group_norm", ROWS * SCALE + SHIFT, start="InstanceNormalization")
def group_norm(m: Match) -> Fused | Miss:
    """Group normalisation: an InstanceNormalization over groups of channels, then scale and shift by channel."""
    x, groups = m[X], m[GROUPED].out
    if m.root.out.shape != x.shape or groups.rank != 3 or x.rank < 3:
        return Miss("the rows are not groups of channels of one image", m.root.nodes)
    attrs = {"num_groups": groups.shape[1], MARK: m[NORM].attrs.get(MARK, "")}
    return m.fused("GroupNormalization", (x, m[SCALE], m[SHIFT]), attrs)


Q, K, V, MASK = (Variable(name) for name in ("q", "k", "v", "mask"))
SCORES, SWAP = op.MatMul(Q, K), (0, 2, 1)
SHARES = op.Softmax(SCORES | SCORES + MASK)
#: The name that torch.onnx.export(dynamo=True) gives the result of torch.nn.functional.scaled_dot_product_attention.
SDPA_NAME = re.compile(r"^scaled_dot_product_attention(_\d+)?$")
WITHOUT_NAN = op.Where(op.IsNaN(SHARES), Variable("zero"), SHARES)  # a boolean mask may leave no key to a query


class Scaled(NamedTuple):
    """An attention whose queries and keys are both scaled, as exporters write it: queries, keys of the values' leading
    axes, the operators inside, and one that makes the keys, where that is none of the graph.
    """

    q: Tensor
    keys: Tensor
    inside: tuple[Operator, ...]
    before: tuple[Operator, ...]


def _scaled(m: Match) -> Scaled | None:
    """softmax(a q (a k)^T + mask) v. The exporters scale both q and k by a, but where it is 1; hand-written code does
    not.
    """
    q_scaled, k_scaled = m.g.made_by(m[Q], "Mul"), m.g.made_by(m[K], "Mul")
    q, k = scaled(q_scaled), scaled(k_scaled)
    if q is None and k is None and SDPA_NAME.match(m.root.out.name):
        q, k, q_scaled, k_scaled = (m[Q], 1.0), (m[K], 1.0), None, None
    if q is None or k is None or q[1] != k[1] or m[V].rank != 4:
        return None
    shape = (*m[V].shape[:-1], q[0].shape[-1])
    before: tuple[Operator, ...] = ()
    keys, views = _untransposed(m.g, k[0], shape)
    turned = turned_back(m.g.made_by(k[0], "Transpose")) or _grouped_again(m.g, k[0], shape)
    if keys is None and turned is not None:
        keys, before = turned.out, (turned,)
    if keys is None or keys.shape != shape:
        return None
    inside = [o for o in (*views, q_scaled, k_scaled) if o is not None and m.g.only_user(o.out)]
    return Scaled(q[0], keys, tuple(inside), before)


CALL = pattern("scaled_dot_product_attention", op.MatMul(SHARES | WITHOUT_NAN, V), start=("Softmax", "IsNaN"))


def _attention(m: Match) -> Fused | None:
    """The call, as one operator. A mask without padding is not given to it where nothing is traced: transformers leaves
    it out (`_ignore_bidirectional_mask_sdpa`, masking_utils.py).
    """
    parts = _scaled(m)
    if parts is None or BY_PRODUCTS in m.root.attrs:
        return None
    mask = (m[MASK],) if MASK in m and not _repeats_last(m.g, m[MASK]) else ()
    whole = m.fused("Attention", (parts.q, parts.keys, m[V], *mask))
    return replace(whole, replaced=(*parts.inside, *whole.replaced), before=parts.before)


def _written_out(m: Match) -> Fused | None:
    """The code that models had before PyTorch 2 brought the call: two products and a softmax. Scores are scaled, or the
    queries where a mask or bias is added, as in timm's models (assumed of others).
    """
    parts = _scaled(m)
    if parts is None:
        return None
    scores = m[SCORES].out
    scale = Tensor(f"{m.root.name}#scale", scores.dtype, (), "constant", (parts.q.shape[-1] ** -0.5,))
    turned = _turned(m, parts.keys)
    if MASK in m:
        first = _call(m, "Mul", "scaled", (parts.q, scale), parts.q)
        product = _call(m, "MatMul", "scores", (first.out, turned.out), scores)
        last = _call(m, "Add", "masked", (product.out, m[MASK]), scores)
        calls = [turned, first, product, last]
    else:
        product = _call(m, "MatMul", "scores", (parts.q, turned.out), scores)
        last = _call(m, "Mul", "scaled", (product.out, scale), scores)
        calls = [turned, product, last]
    shares = _call(m, "Softmax", "shares", (last.out,), scores, axis=-1)
    whole = m.fused("MatMul", (shares.out, m[V]))
    return replace(whole, replaced=(*parts.inside, *whole.replaced), before=(*parts.before, *calls, shares))


def _by_products(m: Match) -> Fused | None:
    """The call where a mask keeps it from all fused kernels: products of scaled queries and keys in FP32 and a softmax
    (`_scaled_dot_product_attention_math`, transformers/attention.cpp), in whose kernel the search for rows without any
    key is taken to be hidden.
    """
    parts = _scaled(m)
    if parts is None or MASK not in m or not _repeats_last(m.g, m[MASK]) or BY_PRODUCTS in m.root.attrs:
        return None
    scores = replace(m[SCORES].out, dtype=SINGLE if m[SCORES].out.dtype in HALF else m[SCORES].out.dtype)
    root = Tensor(f"{m.root.name}#scale", scores.dtype, (), "constant", (parts.q.shape[-1] ** -0.25,))
    single, calls, read = {MARK: SINGLE}, [*parts.before], list[Tensor]()
    for part, t in (("q", parts.q), ("k", parts.keys), ("v", m[V])):
        if t.dtype != scores.dtype:
            calls.append(_call(m, "Cast", part, (t,), replace(t, dtype=scores.dtype), to=scores.dtype))
        read.append(t if t.dtype == scores.dtype else calls[-1].out)
    turned = _turned(m, read[1])
    first = _call(m, "Mul", "queries", (read[0], root), read[0], **single)
    second = _call(m, "Mul", "keys", (turned.out, root), turned.out, **single)
    product = _call(m, "MatMul", "scores", (first.out, second.out), scores, **single)
    masked = _call(m, "Add", "masked", (product.out, m[MASK]), scores, **single)
    shares = _call(m, "Softmax", "shares", (masked.out,), scores, axis=-1, **single)
    calls += [turned, first, second, product, masked, shares]
    result, kept = replace(m.root.out, dtype=scores.dtype), {**single, BY_PRODUCTS: 1}
    whole = m.fused("MatMul", (shares.out, read[2]), kept)
    if result.dtype != m.root.out.dtype:
        last = _call(m, "MatMul", "values", (shares.out, read[2]), result)
        calls.append(replace(last, attrs=kept))
        whole = m.fused("Cast", (last.out,), {"to": m.root.out.dtype})
    return replace(whole, replaced=(*parts.inside, *whole.replaced), before=tuple(calls))


def _turned(m: Match, keys: Tensor) -> Operator:
    """The keys with their last two axes swapped."""
    axes = (*range(keys.rank - 2), keys.rank - 1, keys.rank - 2)
    return _call(m, "Transpose", "turned", (keys,), replace(keys, shape=tuple(keys.shape[a] for a in axes)), perm=axes)


def _call(m: Match, kind: str, part: str, inputs: tuple[Tensor, ...], like: Tensor, **attrs: Any) -> Operator:
    """An operator inside of an attention, whose result has the type and shape of a tensor."""
    out = replace(m[SCORES].out, name=f"{m.root.name}#{part}", dtype=like.dtype, shape=like.shape)
    return replace(m.root, name=out.name, type=kind, version=0, inputs=inputs, outputs=(out,), attrs=attrs)


def _repeats_last(g: Rewriter, mask: Tensor) -> bool:
    """Whether the boolean that a mask is made from, as exporters write it, repeats one element along its last axis, as
    transformers' masks without padding do where they are traced: a stride of 0, which no fused kernel takes
    (`check_last_dim_stride_equals_1_dense`, cuda/sdp_utils.cpp).
    """
    chosen = g.made_by(mask, "Where")
    repeated = g.made_by(chosen.inputs[0], "Expand") if chosen is not None else None
    if chosen is None or repeated is None or any(t.size > 1 for t in chosen.present[1:]):
        return False
    x = repeated.present[0]
    return x.rank > 0 and x.shape[-1] == 1 < repeated.out.shape[-1]


attention, written_out, by_products = CALL(_attention), CALL(_written_out), CALL(_by_products)


def turned_back(o: Operator | None) -> Operator | None:
    """The keys before their last two axes were swapped, where that is part of another Transpose, as TorchScript's
    exporter merges the two.
    """
    perm = o.attrs.get("perm") if o is not None else None
    if o is None or not isinstance(perm, tuple) or len(perm) < 2:
        return None
    keys = replace(o.out, name=f"{o.name}#keys", shape=(*o.out.shape[:-2], o.out.shape[-1], o.out.shape[-2]))
    return replace(o, name=keys.name, outputs=(keys,), attrs={"perm": (*perm[:-2], perm[-1], perm[-2])})


def _grouped_again(g: Rewriter, t: Tensor, shape: tuple[int, ...]) -> Operator | None:
    """The keys before a Transpose between two Reshapes, where the first of these is merged with one before it, as that
    of keys which several heads share: a view of what the Transpose reads, in the shape of the keys.
    """
    last = g.made_by(t, "Reshape")
    turned = g.made_by(last.present[0], "Transpose") if last is not None else None
    if last is None or turned is None or turned.attrs.get("perm") != SWAP:
        return None
    x = turned.present[0]
    if x.shape != (prod(shape[:-2]), *shape[-2:]):
        return None
    keys = replace(x, name=f"{turned.name}#keys", shape=shape)
    target = Tensor(f"{keys.name}#shape", "int64", (len(shape),), "constant", shape)
    return replace(last, name=keys.name, inputs=(x, target), outputs=(keys,))


def _untransposed(g: Rewriter, t: Tensor, shape: tuple[int, ...]) -> tuple[Tensor | None, tuple[Operator, ...]]:
    """The keys of this shape before the Transpose (exporters put it between two Reshapes), and the views in between."""
    views: list[Operator] = []
    while (o := g.made_by(t, "Reshape", "Transpose")) is not None:
        views.insert(0, o)
        t = o.present[0]
        if t.shape == shape and "Transpose" in {before.type for before in views[:2]}:
            return t, tuple(views)
    return None, ()


@fusion("unbind", anchor="Squeeze")
def unbind(g: Rewriter, first: Operator) -> Fused | None:
    """Slices of one element each that tile an axis, as exporters write `unbind`: one call, whose gradient is one call
    too.
    """
    cut = g.made_by(first.inputs[0], "Slice")
    if cut is None or cut.inputs[0] is None or cut.inputs[0].stored:
        return None
    x = cut.inputs[0]
    users = g.users(x)
    axis = next((a for a, (d, n) in enumerate(zip(x.shape, cut.out.shape, strict=True)) if d != n), -1)
    starts = [o.inputs[1].value if o.type == "Slice" and o.inputs[1] is not None else None for o in users]
    each = tuple(1 if a == axis else d for a, d in enumerate(x.shape))
    if axis < 0 or [*starts] != [(i,) for i in range(x.shape[axis])] or any(o.out.shape != each for o in users):
        return None
    if any(g.only_user(o.out, "Squeeze") is None for o in users):
        return None
    outputs, attrs = tuple(o.out for o in users), {"axis": axis, "num_outputs": len(users)}
    return replace(merged(users, cut, type="Split", version=0, inputs=(x,), outputs=outputs, attrs=attrs), early=True)


@fusion("roll", anchor="Concat")
def roll(g: Rewriter, joined: Operator) -> Fused | None:
    """An axis cut in two whose parts change places, as exporters write `roll`: one call, whose gradient is one too."""
    parts = [g.made_by(t, "Slice") for t in joined.inputs]
    x = parts[0].inputs[0] if parts and parts[0] is not None else None
    if x is None or x.stored or len(parts) != 2 or joined.out.shape != x.shape:
        return None
    second, first = parts
    axis = int(joined.attrs.get("axis", 0)) % x.rank
    if (
        first is None
        or second is None
        or first.inputs[0] != x
        or any(g.only_user(o.out) is None for o in (first, second))
    ):
        return None
    starts = [o.inputs[1].value if o.inputs[1] is not None else None for o in (first, second)]
    if starts != [(0,), (first.out.shape[axis],)]:
        return None
    return merged((second, first, joined), joined, type=ROLL, version=0, inputs=(x,), attrs={"axis": axis})


@fusion("order of gates", anchor=("GRU", "LSTM", "RNN"))
def order_of_gates(g: Rewriter, o: Operator) -> Fused | None:
    """A recurrent layer whose weights the exporter cuts and joins in ONNX's order of gates: PyTorch stores them so that
    its library takes them as they are.
    """
    inputs, gone = list(o.inputs), list[Operator]()
    for i, w in enumerate(o.inputs):
        moves, stored = _moved(g, w)
        if w is not None and moves and sum(t.size for t in stored.values()) == w.size:
            inputs[i] = replace(w, name=" ".join(stored), kind="weight")
            gone += moves
    return Fused((*gone, o), replace(o, inputs=tuple(inputs))) if gone else None


def _moved(g: Rewriter, t: Tensor | None) -> tuple[list[Operator], dict[str, Tensor]]:
    """The operators that make a tensor by moving stored ones, and these by name; none where others read it too."""
    o = g.made_by(t, "Concat", "Reshape", "Slice", "Unsqueeze")
    if t is None or o is None or not g.only_user(t):
        return [], {t.name: t} if t is not None and t.stored else {}
    moves, stored = list[Operator](), dict[str, Tensor]()
    for x in o.present if o.type == "Concat" else o.present[:1]:
        before, weights = _moved(g, x)
        moves += before
        stored |= weights
    return [*moves, o], stored


@fusion("layer's matrix", anchor=("MatMul", "Gemm"))
def stored_transposed(g: Rewriter, o: Operator) -> Fused | None:
    """A product with a linear layer's weight, stored as outputs x inputs by torch.nn.Linear and transposed by cuBLAS.

    Exporters transpose the weight and write a MatMul. A Gemm of a 2-D input stays as exported: addmm or linear.
    """
    x, w = o.inputs[:2]
    if x is None or w is None or not w.stored or w.rank != 2 or o.attrs.get("transB"):
        return None
    if o.type == "Gemm" and x.rank == 2:
        return None
    turned = replace(w, shape=w.shape[::-1])
    return Fused((o,), replace(o, inputs=(x, turned, *o.inputs[2:]), attrs={**o.attrs, "transB": 1}))


#: The first release known, the first that has the call of attention, and the last without.
OLDEST, CALLS_ATTENTION, WRITES_ATTENTION = "1.12", "2.0", "1.13"
RULES: Rules = {
    DISABLED: (
        *since(OLDEST, common.layer_norm_exported, common.gelu, gelu, common.softmax, common.linear, pad, batch_norm,
               silu, addcmul, group_norm, unbind, roll),
        attention.of(CALLS_ATTENTION), written_out.of(OLDEST, WRITES_ATTENTION),
        *since(OLDEST, order_of_gates, stored_transposed),
    )
}  # fmt: skip
