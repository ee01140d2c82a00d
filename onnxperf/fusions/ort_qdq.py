"""QuantizeLinear and DequantizeLinear at ONNX Runtime's level `basic`, the same for every provider.

They are made to surround each operator, so that a later level may let it work in 8 bits: pairs of them stand on both
sides of what only moves elements (qdq_propagation.cc, onnx_transpose_optimization.cc), each reader of a dequantised
tensor has a DequantizeLinear of its own (ensure_unique_dq_for_node_unit.cc), and constant operands get one
(weight_bias_quantization.cc, where_dummy_dq.cc); of pairs in a row one stays (double_qdq_pairs_remover.cc). A provider
without 8-bit operators runs them all.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from onnxperf.fusions.engine import Fused, Pass, Rewriter, redirected
from onnxperf.fusions.ort_layout import inverse, perm_of
from onnxperf.fusions.ort_views import around
from onnxperf.graph import Graph, without_unneeded
from op_models import Operator, Tensor
from op_models.core import BITS

MICROSOFT = "com.microsoft::"
QUANTIZE, DEQUANTIZE = (
    (t, f"{MICROSOFT}{t}") for t in ("QuantizeLinear", "DequantizeLinear")
)  # that of ONNX Runtime knew 16 bits first
#: What quantised elements pass as they are; a MaxPool since opset 12.
PASSED = frozenset({"MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice"})
WEIGHTED = ("Conv", "ConvTranspose", "Gemm")


def grid(o: Operator) -> tuple[object, ...]:
    """Scale and zero point of a QuantizeLinear or DequantizeLinear: two grids are the same where these are equal."""
    return tuple(t and (t.value if t.value is not None else t.name) for t in (*o.inputs[1:3], None)[:2])


def whole(o: Operator) -> bool:
    """Whether one stored scale and zero point are those of all elements."""
    return all(t.stored and t.size == 1 for t in o.present[1:])


def _quantised(graph: Graph) -> bool:
    return any(o.type in QUANTIZE + DEQUANTIZE for o in graph.operators)


def _reader(g: Rewriter, t: Tensor) -> Operator | None:
    """The operator that alone reads a tensor, and once; the graph may return it as well."""
    readers = g.readers[t.name]
    return next(iter(readers)) if sum(readers.values()) == 1 else None


def _one_reader_each(graph: Graph) -> Graph:
    """A DequantizeLinear for each reader of one, and one for the graph's output."""
    operators: list[Operator] = []
    read = set(graph.output_names)
    dqs = {o.out.name: o for o in graph.operators if o.type in DEQUANTIZE}
    for o in graph.operators:
        inputs = list(o.inputs)
        for i, t in enumerate(inputs):
            if t is not None and (dq := dqs.get(t.name)) is not None:
                if t.name in read:
                    copy = inputs[i] = replace(t, name=f"{t.name}#{o.name}#{i}")
                    operators.append(replace(dq, name=f"{dq.name}#{o.name}#{i}", outputs=(copy,)))
                read.add(t.name)
        operators.append(o if tuple(inputs) == o.inputs else replace(o, inputs=tuple(inputs)))
    return graph if len(operators) == len(graph.operators) else replace(graph, operators=tuple(operators))


def _pair(t: Tensor, like: Operator, reader: str, axis: int | None = None) -> tuple[Operator, Operator]:
    """A QuantizeLinear of a tensor on the grid of another operator `like` these, and the DequantizeLinear behind."""
    prefix = MICROSOFT if like.type.startswith(MICROSOFT) else ""
    dtype = (like.out if like.type in QUANTIZE else like.present[0]).dtype
    name = f"{t.name}#{reader}"
    values = replace(t, name=f"{name}#quantised", dtype=dtype, kind="activation", value=None)
    again = replace(t, name=f"{name}#dequantised", kind="activation", value=None)
    attrs = {} if axis is None else {"axis": axis}
    new = replace(like, name=values.name, inputs=(t, *like.inputs[1:]), outputs=(values,), attrs=attrs)
    back = replace(new, name=again.name, inputs=(values, *like.inputs[1:]), outputs=(again,))
    return replace(new, type=f"{prefix}QuantizeLinear"), replace(back, type=f"{prefix}DequantizeLinear")


def _pair_before(g: Rewriter, reader: Operator, like: Operator, axis: int | None = None) -> None:
    """The first operand of an operator is quantised and dequantised for it."""
    q, dq = _pair(reader.present[0], like, reader.name, axis)
    inputs = (dq.out, *reader.inputs[1:])
    g.apply(Fused((reader,), replace(reader, inputs=inputs), (q, dq)))


def _pair_behind(g: Rewriter, maker: Operator, like: Operator, axis: int | None = None) -> None:
    """The result of an operator is quantised, and dequantised for all that reads it and for the graph's output."""
    y, source = maker.out, replace(maker.out, name=f"{maker.out.name}#before")
    q, dq = _pair(source, like, maker.name, axis)
    outputs = (source, *maker.outputs[1:])
    g.apply(Fused((maker,), replace(dq, outputs=(y,)), (replace(maker, outputs=outputs), q)))


def _passes(o: Operator, slices: bool) -> bool:
    """Whether quantised elements may pass an operator as its first operand; slices: also a Slice."""
    return (slices or o.type != "Slice") and o.type in PASSED and (o.type != "MaxPool" or o.version >= 12)


def _before(g: Rewriter, reader: Operator) -> Tensor | None:
    """What an operator reads first, unless something else reads that as well; an input of the graph others may read."""
    t = reader.inputs[0]
    if t is None or (g.made_by(t) is not None and g.only_user(t) is not reader):
        return None
    return t


def _back(g: Rewriter, q: Operator, slices: bool) -> bool:
    """Pairs on the grid of a QuantizeLinear before what only moves elements; True where there are any."""
    t, changed = _before(g, q), False
    while (passing := g.made_by(t)) is not None and _passes(passing, slices):
        t = _before(g, passing)
        if t is None or g.made_by(t, *DEQUANTIZE):
            break
        _pair_before(g, passing, q)
        changed = True
    return changed


def _on(g: Rewriter, dq: Operator, several: bool) -> bool:
    """Pairs on the grid of a DequantizeLinear behind what only moves elements; True where there are any. several: also
    behind a Slice, and where several operators read the result.
    """
    passing, changed = g.only_user(dq.out), False
    while passing is not None and _passes(passing, several):
        y = passing.out
        users = g.users(y)
        if not several and len(users) + (y.name in g.graph.output_names) > 1:
            break
        if any(u.type in QUANTIZE for u in users) or not (users or y.name in g.graph.output_names):
            break
        following = g.only_user(y)
        _pair_behind(g, passing, dq)
        passing, changed = following, True
    return changed


def _written_out(g: Rewriter) -> None:
    """Reshapes around the product of a stack of matrices are written out where its operand or result is quantised."""
    for o in g.of_types(("Gemm",)):
        if o.present[0].rank > 2:
            dq, q = g.made_by(o.present[0], *DEQUANTIZE), g.only_user(o.out, *QUANTIZE)
            if any(end is not None and whole(end) for end in (dq, q)):
                *before, last = around(o)
                g.apply(Fused((o,), last, tuple(before)))


def _propagated(graph: Graph, several: bool = True, constants: bool = False) -> Graph:
    """With pairs before and behind what only moves elements; several: see `_on`, constants: behind stored ones too."""
    if not _quantised(graph):
        return graph
    g = Rewriter(graph)
    _written_out(g)
    changed = [_back(g, q, several) for q in g.of_types(QUANTIZE) if whole(q)]
    dqs = (dq for dq in g.of_types(DEQUANTIZE) if whole(dq) and (constants or not dq.present[0].stored))
    changed += [_on(g, dq, several) for dq in dqs]
    return g.result() if any(changed) else graph


def _stored(g: Rewriter, o: Operator, index: int, dtype: str, scale: Tensor) -> Operator:
    """The operator with a stored operand that is quantised: a DequantizeLinear makes it."""
    t = o.inputs[index]
    assert t is not None
    name = f"{t.name}#{o.name}"
    values = replace(t, name=f"{name}#quantised", dtype=dtype, kind="weight", value=None)
    zero = replace(scale, name=f"{name}#zero", dtype=dtype, value=None)
    out = replace(t, name=f"{name}#dequantised", kind="activation", value=None)
    dq = Operator(out.name, "DequantizeLinear", (values, scale, zero), (out,), {"axis": 0}, o.version, o.nodes)
    new = replace(o, inputs=(*o.inputs[:index], out, *o.inputs[index + 1 :]))
    g.apply(Fused((o,), new, (replace(dq, repeat=o.repeat),)))
    return new


def _stored_float(t: Tensor | None) -> bool:
    return t is not None and t.stored and t.dtype == "float32"


def _quantised_behind(g: Rewriter, o: Operator, between: tuple[str, ...]) -> bool:
    """Whether a product, or an operator of the types `between` behind it, is quantised."""
    reader = _reader(g, o.out)
    if reader is not None and reader.type in between:
        reader = _reader(g, reader.out)
    return reader is not None and reader.type in QUANTIZE


def _operands_quantised(graph: Graph, between: tuple[str, ...] | None = ("Relu", "Clip")) -> Graph:
    """Weights and biases of products behind DequantizeLinear are quantised, or none of both, where the product is, see
    `_quantised_behind`; None: of all.
    """
    g, changed = Rewriter(graph), False
    for o in g.of_types(WEIGHTED) if _quantised(graph) else ():
        w, bias = o.inputs[1], o.inputs[2] if len(o.inputs) > 2 else None
        dq, x = g.made_by(w, *DEQUANTIZE), g.made_by(o.inputs[0], *DEQUANTIZE)
        behind = between is None or _quantised_behind(g, o, between)
        if x is None or not behind or not (dq or _stored_float(w)):
            continue
        if bias is not None and not (_stored_float(bias) and bias.rank == 1 and x.present[1].stored):
            continue
        scale = replace((dq or x).present[1], name=f"{o.name}#scale", value=None)
        if dq is None:
            o = _stored(g, o, 1, "int8", scale)
        if bias is not None:
            _stored(g, o, 2, "int32", scale)
        changed |= dq is None or bias is not None
    return g.result() if changed else graph


def _wheres(graph: Graph, pairs: bool = True) -> Graph:
    """A number that a Where chooses instead of what is dequantised is so as well; pairs: if the result is quantised to
    the same type.
    """
    g, changed = Rewriter(graph), False
    for o in g.of_types(("Where",)) if _quantised(graph) else ():
        q = _reader(g, o.out)
        zero = [t.dtype for t in q.present[2:]] if q is not None and q.type in QUANTIZE else []
        for i in (1, 2):
            t, dq = o.inputs[i], g.made_by(o.inputs[3 - i], *DEQUANTIZE)
            like = dq is not None and (not pairs or (zero and [z.dtype for z in dq.present[2:]] == zero))
            if dq is not None and like and t is not None and _stored_float(t) and not t.rank:
                scale = replace(t, name=f"{t.name}#{o.name}#scale", value=None)
                o, changed = _stored(g, o, i, dq.present[0].dtype, scale), True
    return g.result() if changed else graph


def _axis(dq: Operator, perm: tuple[int, ...]) -> int | None:
    """The axis of a grid whose tensor a permutation has turned; None for a grid of all elements."""
    return None if dq.present[1].size == 1 else perm[dq.attrs.get("axis", 1) % len(perm)]


def _turns(dq: Operator, turn: Operator) -> bool:
    """Whether a Transpose moves before a DequantizeLinear: not that of stored elements that have scales by block, or
    less than 8 bits and no zero point, as a QuantizeLinear would make bytes of them; scales by row need its `perm`.
    """
    x = dq.present[0]
    narrow = BITS[x.dtype] < 8 and len(dq.present) < 3
    return not x.stored or (not (narrow or dq.attrs.get("block_size", 0)) and (whole(dq) or "perm" in turn.attrs))


def _around_transposes(graph: Graph, before: bool = True, behind: bool = True) -> Graph:
    """A Transpose between an operator and a QuantizeLinear reads a DequantizeLinear (`before`), one behind a
    DequantizeLinear is quantised (`behind`, else of stored elements alone), where one operator at most reads what is
    between.
    """
    if not any(o.type in DEQUANTIZE for o in graph.operators):
        return graph
    g, changed = Rewriter(graph), False
    for o in g.of_types(("Transpose",)):
        x, readers = o.present[0], g.users(o.out)
        maker, q = g.made_by(x), g.only_user(o.out, *QUANTIZE)
        if maker is None or len(readers) > 1:
            continue
        if maker.type in DEQUANTIZE and q is None and (behind or maker.present[0].stored) and _turns(maker, o):
            _pair_behind(g, o, maker, _axis(maker, inverse(perm_of(o))))
        elif before and maker.type not in DEQUANTIZE and q is not None and g.only_user(x) is o:
            _pair_before(g, o, q, _axis(q, perm_of(o)))
        else:
            continue
        changed = True
    return g.result() if changed else graph


def _units_folded(graph: Graph) -> Graph:
    """What is dequantised, transposed and quantised again is stored where its content is."""
    makers = {t.name: o for o in graph.operators for t in o.outputs[:1]}

    def instead(o: Operator) -> tuple[Tensor] | None:
        turned = makers.get(o.present[0].name) if o.type in QUANTIZE else None
        dq = makers.get(turned.present[0].name) if turned is not None and turned.type == "Transpose" else None
        if dq is None or dq.type not in DEQUANTIZE or not all(t.stored for t in (*dq.present, *o.present[1:])):
            return None
        return (replace(o.out, kind="weight"),)

    folded = redirected(graph, instead) if _quantised(graph) else graph
    return graph if folded is graph else without_unneeded(folded)


ONE_READER_EACH = Pass("a DequantizeLinear each", _one_reader_each, since="1.4")
#: Slices and several readers: pull request 21313. Constants were left out between 1.26 and 1.27, as their graphs show.
PROPAGATION = Pass("pairs around what moves elements", _propagated, since="1.27")
PROPAGATION_126 = Pass(PROPAGATION.name, partial(_propagated, constants=True), since="1.19", until="1.26")
PROPAGATION_118 = Pass(PROPAGATION.name, partial(_propagated, several=False), since="1.4", until="1.18")
#: Pull requests 22889 and 22969, where the result is quantised 24537; a Relu or Clip between as graphs of 1.23 show.
OPERANDS = Pass("quantised operands", _operands_quantised, since="1.23")
OPERANDS_122 = Pass(OPERANDS.name, partial(_operands_quantised, between=()), since="1.22", until="1.22")
OPERANDS_121 = Pass(OPERANDS.name, partial(_operands_quantised, between=None), since="1.21", until="1.21")
#: Pull request 25576, of pairs alone 27109.
WHERES = Pass("quantised numbers of a Where", _wheres, since="1.26")
WHERES_125 = Pass(WHERES.name, partial(_wheres, pairs=False), since="1.24", until="1.25")
UNITS = Pass("quantised constants transposed", _units_folded, since="1.4")
#: Pull requests 11636 (of constants), 18444 (behind) and 20685 (before).
TRANSPOSES = Pass("pairs around Transposes", _around_transposes, once=True, since="1.19")
TRANSPOSES_118 = Pass(TRANSPOSES.name, partial(_around_transposes, before=False), once=True, since="1.17", until="1.18")
TRANSPOSES_116 = Pass(
    TRANSPOSES.name, partial(_around_transposes, before=False, behind=False), once=True, since="1.12", until="1.16"
)
