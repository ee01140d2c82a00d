"""Quantised models in ONNX Runtime: QuantizeLinear and DequantizeLinear around operators, and dynamic quantisation.

Level `basic` gives every reader a DequantizeLinear of its own, whatever the provider. Level `extended` makes 8-bit
operators of what stands between them for the CPU provider, as on x86-64, where activations are unsigned.
"""

from __future__ import annotations

from dataclasses import replace

from onnxperf.graph import Graph
from onnxperf.runtimes import patterns
from onnxperf.runtimes.engine import ALL, BASIC, EXTENDED, Fused, Miss, Pass, Rewriter, fused, fusion
from onnxperf.runtimes.ort_layout import PUSH, inverse, perm_of, shape_under
from onnxperf.runtimes.patterns import next_op
from op_models import Operator, Tensor

#: Operators that move elements, or choose among them, and so work on quantised ones as they are.
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


def _one_reader_each(graph: Graph) -> Graph:
    """A DequantizeLinear for each that reads one of an activation, and for the graph's outputs."""
    copies: list[Operator] = []
    there: set[str] = set()
    made = {o.out.name: o for o in graph.operators if o.type == "DequantizeLinear"}
    if not made:
        return graph
    for o in graph.operators:
        inputs = list(o.inputs)
        for i, t in enumerate(inputs):
            dq = made.get(t.name) if t is not None else None
            if t is None or dq is None or (t.name not in there and t.name not in graph.output_names):
                there.add(t.name if t is not None else "")
                continue
            own = inputs[i] = replace(t, name=f"{t.name}#{o.name}#{i}")
            copies.append(replace(dq, name=f"{dq.name}#{o.name}#{i}", outputs=(own,)))
        copies.append(o if tuple(inputs) == o.inputs else replace(o, inputs=tuple(inputs)))
    return graph if len(copies) == len(graph.operators) else replace(graph, operators=tuple(copies))


ONE_READER_EACH = Pass("a DequantizeLinear each", BASIC, _one_reader_each, once=True)


def _grid(op: Operator) -> tuple[object, ...]:
    """Scale and zero point of a QuantizeLinear or DequantizeLinear, comparable."""
    return tuple(t and (t.value if t.value is not None else t.name) for t in (*op.inputs[1:3], None)[:2])


@fusion("signed to unsigned", anchor="QuantizeLinear", level=EXTENDED)
def unsigned(g: Rewriter, q: Operator) -> Fused | None:
    """Signed activations become unsigned ones, where one DequantizeLinear reads them."""
    dq = next_op(g, q, "DequantizeLinear")
    if dq is None or q.out.dtype != "int8" or len(q.inputs) < 3 or len(dq.inputs) < 3 or q.inputs[2] is None:
        return None
    zero = q.inputs[2]
    value = tuple(v + 128 for v in zero.value) if zero.value is not None else None
    zero = replace(zero, name=f"{zero.name}#unsigned", dtype="uint8", value=value)
    out = replace(q.out, name=f"{q.out.name}#unsigned", dtype="uint8")
    before = replace(q, inputs=(*q.inputs[:2], zero), outputs=(out,))
    return Fused((q, dq), replace(dq, inputs=(out, dq.inputs[1], zero)), (before,))


@fusion("quantised as it is", anchor=MOVES, level=EXTENDED)
def moves(g: Rewriter, op: Operator) -> Fused | Miss | None:
    """What only moves elements does so with quantised ones, where their grid stays the same."""
    dq, q = g.made_by(op.inputs[0], "DequantizeLinear"), next_op(g, op, "QuantizeLinear")
    if dq is None or q is None:
        return None
    if _grid(dq) != _grid(q) or dq.present[0].dtype != q.out.dtype:
        return Miss("scale or zero point change", op.nodes)
    return fused(op.type, q, (dq, op, q), (dq.inputs[0], *op.inputs[1:]), dict(op.attrs))


@fusion("8-bit operator", anchor=tuple(LINEAR), level=EXTENDED)
def linear(g: Rewriter, op: Operator) -> Fused | Miss | None:
    """An operator between DequantizeLinear and QuantizeLinear, on unsigned activations and weights of either sign."""
    q = next_op(g, op, "QuantizeLinear")
    dqs = [dq for t in op.inputs if (dq := g.made_by(t, "DequantizeLinear"))]
    if not dqs or len(dqs) < len(op.present):
        return None
    kinds = [dq.present[0].dtype for dq in dqs]
    weights = 1 if op.type in SIGNED_WEIGHTS else len(kinds)
    if set(kinds[:weights]) != {"uint8"}:
        return Miss(f"activations are not unsigned 8-bit: {', '.join(kinds)}", op.nodes)
    if q is not None and q.out.dtype != kinds[0]:
        return Miss(f"the result is {q.out.dtype}, its operand {kinds[0]}", op.nodes)
    if q is None and op.type not in ("Gemm", "MatMul"):
        return Miss("no QuantizeLinear alone reads the result", op.nodes)
    grids = [t for dq in dqs[:2] for t in dq.inputs[:3]] if op.type != "Concat" else [t for d in dqs for t in d.inputs]
    bias = [dq.inputs[0] for dq in dqs[2:]] if op.type in SIGNED_WEIGHTS else []
    target = list(q.inputs[1:3]) if q is not None else []
    tail = (*bias, *target) if op.type == "Gemm" else (*target, *bias)
    if q is None and op.type == "MatMul":
        (a, a_scale, a_zero), (b, b_scale, b_zero) = (dq.inputs[:3] for dq in dqs)
        return _to_float(op, (*dqs, op), (a, b, a_scale, b_scale, a_zero, b_zero))
    last = (op,) if q is None else (op, q)
    return fused(LINEAR[op.type], last[-1], (*dqs, *last), (*grids, *tail), dict(op.attrs))


def _to_float(last: Operator, replaced: tuple[Operator, ...], inputs: tuple[Tensor | None, ...]) -> Fused:
    return fused("com.microsoft::MatMulIntegerToFloat", last, replaced, inputs)


@fusion("MatMulIntegerToFloat", anchor="MatMulInteger", level=EXTENDED)
def matmul_integer_to_float(g: Rewriter, matmul: Operator) -> Fused | None:
    """An integer product, its Cast, both scales, and perhaps a bias: what dynamic quantisation writes."""
    cast = next_op(g, matmul, "Cast")
    product = next_op(g, cast, "Mul")
    scales = g.made_by(patterns.other(product, cast.out if cast else None), "Mul")
    if cast is None or product is None or scales is None:
        return None
    a, b, *zeros = matmul.inputs
    parts = [matmul, cast, product, *([scales] if g.only_user(scales.out) else [])]
    inputs = [a, b, *scales.present, *(*zeros, None, None)[:2]]
    add = next_op(g, product, "Add")
    bias = patterns.other(add, product.out)
    if add is not None and bias is not None and bias.stored and bias.shape == product.out.shape[-1:]:
        return _to_float(add, (*parts, add), (*inputs, bias))
    return _to_float(product, tuple(parts), tuple(inputs))


@fusion("DynamicQuantizeMatMul", anchor="com.microsoft::MatMulIntegerToFloat", level=EXTENDED)
def dynamic_quantize_matmul(g: Rewriter, matmul: Operator) -> Fused | Miss | None:
    """The product together with the quantisation of its operand, which no other product shares."""
    quantise = g.made_by(matmul.inputs[0], "DynamicQuantizeLinear")
    if quantise is None:
        return None
    if any(u is not matmul for t in quantise.outputs for u in g.users(t)):
        return Miss("others read the quantised operand as well", quantise.nodes)
    _, b, _, b_scale, _, b_zero, *bias = matmul.inputs
    inputs = (quantise.inputs[0], b, b_scale, b_zero, *bias)
    return fused("com.microsoft::DynamicQuantizeMatMul", matmul, (quantise, matmul), inputs)


@fusion("channels last", anchor=("QLinearConv", "MaxPool"), level=ALL)
def channels_last(g: Rewriter, op: Operator) -> Fused | None:
    """8-bit convolutions, and pools behind them, read and write channels last, between Transposes that then move on."""
    x, y = op.present[0], op.out
    last, pool = (0, *range(2, x.rank), 1), op.type == "MaxPool"
    before = g.made_by(x, "Transpose") if x.dtype in ("int8", "uint8") and len(op.outputs) == 1 else None
    if pool and (before is None or perm_of(before) != inverse(last)):
        return None
    type = "com.microsoft::NhwcMaxPool" if pool else "com.microsoft::QLinearConv"
    a, b = (replace(t, name=f"{t.name}#{op.name}", kind="activation", shape=shape_under(last, t)) for t in (x, y))
    first = Operator(a.name, "Transpose", (x,), (a,), {"perm": last}, 0, op.nodes, repeat=op.repeat)
    after = replace(first, name=b.name, inputs=(b,), outputs=(y,), attrs={"perm": inverse(last)})
    attrs = {**op.attrs, "channels_last": 1}
    return Fused((op,), after, (first, replace(op, type=type, inputs=(a, *op.inputs[1:]), outputs=(b,), attrs=attrs)))


def _moved_on(graph: Graph) -> Graph:
    last = ("com.microsoft::QLinearConv", "com.microsoft::NhwcMaxPool")
    return PUSH.run(graph) if any(o.type in last for o in graph.operators) else graph


MOVED_ON = Pass("transposes around channels last moved on", ALL, _moved_on)
