"""Quantised models in ONNX Runtime: QuantizeLinear and DequantizeLinear around operators, and dynamic quantisation.

Level `basic` makes them surround each operator, for every provider (see `ort_qdq`). Level
`extended` fuses an operator between DequantizeLinear and QuantizeLinear to an 8-bit one, for the CPU provider alone and
as on x86-64, where activations are unsigned.
"""

from __future__ import annotations

from dataclasses import replace

from onnxperf.fusions.common import BIAS
from onnxperf.fusions.engine import Fused, Fusion, Miss, Pass, Rewriter, fused, fusion, merged
from onnxperf.fusions.ort_layout import PUSH, inverse, perm_of, shape_under
from onnxperf.fusions.ort_qdq import grid, whole
from onnxperf.fusions.pattern import A, B, C, Match, X, Y, call, op, pattern, shared
from onnxperf.graph import Graph
from op_models import Operator

#: Operators that only move or choose elements: these work on quantised elements as they do on others.
MOVES = (
    "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Gather", "GatherElements", "Slice", "Expand", "Tile",
    "MaxPool", "Resize",
)  # fmt: skip
LINEAR = {
    **{t: f"com.microsoft::QLinear{t}" for t in (
        "Add", "Mul", "Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool", "Concat",
    )},
    "Conv": "QLinearConv", "MatMul": "QLinearMatMul", "Gemm": "com.microsoft::QGemm",
}  # fmt: skip
SIGNED_WEIGHTS = ("Conv", "MatMul", "Gemm")
TO_FLOAT = "com.microsoft::MatMulIntegerToFloat"


QUANTIZE = op.QuantizeLinear(X, A, B)


@pattern("signed to unsigned", op.DequantizeLinear(QUANTIZE, Y, C, ...), start="QuantizeLinear", since="1.4")
def unsigned(m: Match) -> Fused | None:
    """Signed activations become unsigned ones, where a single DequantizeLinear reads them."""
    q, zero = m[QUANTIZE], m[B]
    if q.out.dtype != "int8":
        return None
    value = tuple(v + 128 for v in zero.value) if zero.value is not None else None
    zero = replace(zero, name=f"{zero.name}#unsigned", dtype="uint8", value=value)
    out = replace(q.out, name=f"{q.out.name}#unsigned", dtype="uint8")
    before = replace(q, inputs=(*q.inputs[:2], zero), outputs=(out,))
    return Fused((q, m.root), replace(m.root, inputs=(out, m[Y], zero)), (before,))


DEQUANTIZE = op.DequantizeLinear(X, ...)


#: Until 1.12, of two pairs in a row both stayed.
@pattern("DequantizeLinear + QuantizeLinear", op.QuantizeLinear(DEQUANTIZE, A, ...), since="1.13")
def requantised(m: Match) -> Fused | None:
    """Nothing, where scale and zero point stay the same. Two pairs in a row are one."""
    x, dq, q = m[X], m[DEQUANTIZE], m.root
    is_output, first = q.out.name in m.g.graph.output_names, m.g.made_by(x, "QuantizeLinear")
    if x.dtype != q.out.dtype or (is_output and (m.g.users(q.out) or not m.g.made_by(x))):
        return None
    if grid(dq) == grid(q) and (is_output or m.g.only_user(q.out)):
        return m.fused("Identity", (x,))
    if first is None or is_output or not _in_a_row(m.g, first, dq, q):
        return None
    return merged((first, dq, q), q, inputs=(first.inputs[0], *q.inputs[1:]))


def _in_a_row(g: Rewriter, first: Operator, dq: Operator, q: Operator) -> bool:
    """Whether two operators are a pair that nothing else reads, and one begins pairs behind it, with zero points."""
    readers = g.users(q.out)
    pairs = grid(first) == grid(dq) and all(u.type == "DequantizeLinear" and grid(u) == grid(q) for u in readers)
    scales = all(len(o.present) == 3 and whole(o) for o in (first, q))
    return pairs and scales and g.only_user(first.out) is dq


MOVE = call(MOVES, DEQUANTIZE, ...)


def _moves(m: Match) -> Fused | Miss:
    """What only moves elements moves quantised ones, where scale and zero point stay the same."""
    move, dq, q = m[MOVE], m[DEQUANTIZE], m.root
    if grid(dq) != grid(q) or m[X].dtype != q.out.dtype or len(q.present) < 3 or not whole(q):
        return Miss("scale or zero point change", move.nodes)
    return m.fused(move.type, (m[X], *move.inputs[1:]), move.attrs)


moves = pattern("quantised as it is", op.QuantizeLinear(MOVE, ...), start=MOVES, since="1.4")(_moves)
#: The CUDA provider has no MaxPool of opset 22: the CPU provider has its rule for that.
pools = pattern("quantised as it is", op.QuantizeLinear(MOVE, ...), start="MaxPool", since="1.4")(
    lambda m: _moves(m) if m[MOVE].version >= 22 else None
)


@fusion("8-bit operator", anchor=tuple(LINEAR), since="1.4")
def linear(g: Rewriter, o: Operator) -> Fused | Miss | None:
    """An operator between DequantizeLinear and QuantizeLinear, on unsigned activations and weights of either sign."""
    q = g.only_user(o.out, "QuantizeLinear")
    dqs = [dq for t in o.inputs if (dq := g.made_by(t, "DequantizeLinear"))]
    if not dqs or len(dqs) < len(o.present):
        return None
    kinds = [dq.present[0].dtype for dq in dqs]
    weights = 1 if o.type in SIGNED_WEIGHTS else len(kinds)
    if set(kinds[:weights]) != {"uint8"}:
        return Miss(f"activations are not unsigned 8-bit: {', '.join(kinds)}", o.nodes)
    if q is not None and q.out.dtype != kinds[0]:
        return Miss(f"the result is {q.out.dtype}, its operand {kinds[0]}", o.nodes)
    if q is None and o.type not in ("Gemm", "MatMul"):
        return Miss("no QuantizeLinear alone reads the result", o.nodes)
    if q is None and o.type == "MatMul":
        (a, a_scale, a_zero), (b, b_scale, b_zero) = (dq.inputs[:3] for dq in dqs)
        return fused(TO_FLOAT, o, (*dqs, o), (a, b, a_scale, b_scale, a_zero, b_zero))
    grids = [t for d in dqs for t in d.inputs] if o.type == "Concat" else [t for d in dqs[:2] for t in d.inputs[:3]]
    bias = [dq.inputs[0] for dq in dqs[2:]] if o.type in SIGNED_WEIGHTS else []
    target = q.inputs[1:3] if q is not None else ()
    tail = (*bias, *target) if o.type == "Gemm" else (*target, *bias)
    last = (o,) if q is None else (o, q)
    return fused(LINEAR[o.type], last[-1], (*dqs, *last), (*grids, *tail), dict(o.attrs))


INTEGER = op.MatMulInteger(A, B, ...)
SCALES = shared(X * Y)
IN_FLOAT = op.Cast(INTEGER) * SCALES


@pattern("MatMulIntegerToFloat", IN_FLOAT + BIAS | IN_FLOAT, start="MatMulInteger", since="1.4")
def matmul_integer_to_float(m: Match) -> Fused | None:
    """An integer product, its Cast, both scales, and perhaps a bias: what dynamic quantisation writes."""
    zeros = (*m[INTEGER].inputs[2:], None, None)[:2]
    bias = (m[BIAS],) if BIAS in m else ()
    if any(t.shape != m.root.out.shape[-1:] for t in bias):
        return None
    return m.fused(TO_FLOAT, (m[A], m[B], m[X], m[Y], *zeros, *bias))


QUANTISED = op.DynamicQuantizeLinear(X)


@pattern("DynamicQuantizeMatMul", call(TO_FLOAT, QUANTISED, ...), since="1.4")
def dynamic_quantize_matmul(m: Match) -> Fused | Miss:
    """The product together with the quantisation of its operand, which no other product shares."""
    quantise = m[QUANTISED]
    if any(u is not m.root for t in quantise.outputs for u in m.g.users(t)):
        return Miss("others read the quantised operand as well", quantise.nodes)
    _, b, _, b_scale, _, b_zero, *bias = m.root.inputs
    return m.fused("com.microsoft::DynamicQuantizeMatMul", (m[X], b, b_scale, b_zero, *bias))


#: At level `extended`, for the CPU provider.
RULES: tuple[Fusion | Pass, ...] = (unsigned, moves, linear, matmul_integer_to_float, dynamic_quantize_matmul)


@fusion("channels last", anchor=("QLinearConv", "MaxPool"), since="1.4")
def channels_last(g: Rewriter, o: Operator) -> Fused | None:
    """8-bit convolutions, and pools behind them, run channels last between two Transposes, which are then moved on."""
    x, y = o.present[0], o.out
    last, pool = (0, *range(2, x.rank), 1), o.type == "MaxPool"
    before = g.made_by(x, "Transpose") if x.dtype in ("int8", "uint8") and len(o.outputs) == 1 else None
    if pool and (before is None or perm_of(before) != inverse(last)):
        return None
    type = "com.microsoft::NhwcMaxPool" if pool else "com.microsoft::QLinearConv"
    a, b = (replace(t, name=f"{t.name}#{o.name}", kind="activation", shape=shape_under(last, t)) for t in (x, y))
    first = Operator(a.name, "Transpose", (x,), (a,), {"perm": last}, 0, o.nodes, repeat=o.repeat)
    after = replace(first, name=b.name, inputs=(b,), outputs=(y,), attrs={"perm": inverse(last)})
    attrs = {**o.attrs, "channels_last": 1}
    return Fused((o,), after, (first, replace(o, type=type, inputs=(a, *o.inputs[1:]), outputs=(b,), attrs=attrs)))


def _moved_on(graph: Graph) -> Graph:
    last = ("com.microsoft::QLinearConv", "com.microsoft::NhwcMaxPool")
    return PUSH.run(graph) if any(o.type in last for o in graph.operators) else graph


MOVED_ON = Pass("transposes around channels last moved on", _moved_on, since="1.4")
