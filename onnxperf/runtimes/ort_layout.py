"""ONNX Runtime's TransposeOptimizer: a Transpose is pushed behind what reads it where that saves transposing.

It walks the operators once, in order, at each level. A Transpose moves on where the inputs get cheaper and the result
is no dearer (an axis of more than one element costs one), or a Transpose further on may cancel it. Operators that
ONNX Runtime pushes through but that are not in the tables here (Resize, Tile, Gather of many, ...) stop it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onnxperf.graph import Graph
from onnxperf.runtimes.engine import Fused, Pass, Rewriter, without_identities
from onnxperf.runtimes.pattern import Match, X, op, pattern
from onnxperf.runtimes.placement import REDUCTIONS
from op_models import Operator, Tensor

Perm = tuple[int, ...]
POINTWISE = frozenset({
    "Abs", "Add", "And", "Cast", "Ceil", "Celu", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual",
    "Log", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round",
    "Selu", "Sigmoid", "Sign", "Sin", "Cos", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh",
    "ThresholdedRelu", "Where", "Xor",
})  # fmt: skip
ALONG = frozenset({"Softmax", "LogSoftmax", "Hardmax", "Concat", "Split"})
MOST_PERMS = 16  # different ones that are tried at one operator
PER_TENSOR = frozenset({"QuantizeLinear", "DequantizeLinear"})
#: Where 8-bit operators have their operands.
OPERANDS = {f"com.microsoft::QLinear{t}": (0, 3) if t in ("Add", "Mul") else (0,) for t in (
    "Add", "Mul", "Sigmoid", "LeakyRelu",
)}  # fmt: skip


def perm_of(op: Operator) -> Perm:
    """The permutation of a Transpose."""
    return tuple(op.attrs.get("perm", range(op.out.rank - 1, -1, -1)))


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes another."""
    return tuple(perm.index(i) for i in range(len(perm)))


def shape_under(perm: Perm, t: Tensor) -> tuple[int, ...]:
    """The shape of a tensor transposed."""
    return tuple(t.shape[p] for p in perm)


def _readers(op: Operator) -> tuple[int, ...]:
    """The inputs at which a Transpose may be pushed through an operator; none where it can't be."""
    if op.type in POINTWISE or op.type == "Concat":
        return tuple(i for i, t in enumerate(op.inputs) if t is not None)
    if op.type in OPERANDS:
        return OPERANDS[op.type]
    old = op.type in ("Softmax", "LogSoftmax", "Hardmax") and op.version < 13  # the row is more than one axis there
    first = op.type in ALONG or op.type in REDUCTIONS or op.type in ("Transpose", "Pad", "Slice", "Squeeze", "Gather")
    per_tensor = op.type in PER_TENSOR and op.present[1].size == 1
    return (0,) if (first or per_tensor) and not old else ()


def _cost(g: Rewriter, t: Tensor, perm: Perm) -> int:
    """What it takes to undo `perm` at an input: nothing where stored, less than nothing where it cancels."""
    rank = sum(d != 1 for d in t.shape)
    before = g.made_by(t, "Transpose")
    if before is None:
        return 0 if t.stored else rank
    return -rank if perm_of(before) == perm else 0


def _axes(op: Operator, index: int, rank: int) -> tuple[int, ...] | None:
    """The axes an operator names in an attribute or a stored input, counted from the front."""
    given: Any = op.attrs.get("axes")
    if given is None and len(op.inputs) > index and (t := op.inputs[index]) is not None:
        if not t.stored or t.value is None:
            return None
        given = t.value
    return tuple(int(a) % rank for a in given) if given is not None else tuple(range(rank))


def _through(op: Operator, perm: Perm) -> tuple[dict[str, Any], dict[int, tuple[int, ...]], Perm] | None:
    """Attributes and stored values (by input) of an operator on untransposed inputs, and the result's permutation."""
    attrs, rank = dict(op.attrs), len(perm)
    if op.type in ALONG:
        attrs["axis"] = perm[attrs.get("axis", 0 if op.type == "Split" else -1) % rank]
        return attrs, {}, perm
    if op.type == "Gather":
        axis, taken = attrs.get("axis", 0) % rank, op.present[1]
        if not taken.stored or taken.rank:
            return None
        attrs["axis"] = perm[axis]
        return attrs, {}, _without(perm, (axis,))
    if op.type == "Pad":
        amounts = op.inputs[1].value if len(op.inputs) == 2 and op.inputs[1] else None
        if amounts is None or len(amounts) != 2 * rank:
            return None
        back = inverse(perm)
        return attrs, {1: tuple(int(amounts[h + p]) for h in (0, rank) for p in back)}, perm
    if op.type in REDUCTIONS or op.type in ("Squeeze", "Slice"):
        index = 3 if op.type == "Slice" else 1
        named = _axes(op, index, rank)
        if named is None or (op.type == "Slice" and len(op.inputs) < 4):
            return None
        axes = tuple(perm[a] for a in named)
        gone = op.type == "Squeeze" or (op.type != "Slice" and not attrs.get("keepdims", 1))
        kept = _without(perm, named) if gone else perm
        if "axes" in attrs:
            return {**attrs, "axes": axes}, {}, kept
        return attrs, {index: axes} if len(op.inputs) > index else {}, kept
    return attrs, {}, perm


def _without(perm: Perm, axes: tuple[int, ...]) -> Perm:
    left = [p for i, p in enumerate(perm) if i not in axes]
    return tuple(sorted(left).index(p) for p in left)


def _push(g: Rewriter, op: Operator, at: int, leading: set[str]) -> tuple[Operator, ...] | None:
    """Move the Transpose at input `at` behind the operator: the new operators, or None where it does not pay."""
    transpose = g.made_by(op.inputs[at], "Transpose")
    readers = _readers(op)
    if transpose is None or at not in readers or transpose.repeat != op.repeat:
        return None
    perm = perm_of(transpose)
    if not perm or len(perm) != transpose.present[0].rank or sorted(perm) != list(range(len(perm))):
        return None
    if op.type == "Transpose":
        composed = tuple(perm[p] for p in perm_of(op))
        merged = replace(op, inputs=(transpose.present[0],), nodes=(*transpose.nodes, *op.nodes))
        if composed == tuple(range(len(perm))):
            return (replace(merged, type="Identity", attrs={}),)
        return (replace(merged, attrs={"perm": composed}),)
    rank = max(t.rank for i in readers if (t := op.inputs[i]) is not None)
    perm = (*range(rank - len(perm)), *(p + rank - len(perm) for p in perm))
    cost = sum(_cost(g, t, perm_of(transpose)) for i in readers if (t := op.inputs[i]) is not None)
    if not any(t.name in leading for t in op.outputs):
        cost += max(sum(d != 1 for d in t.shape) for t in op.outputs) if cost < 0 else 0
    through = _through(op, perm)
    if cost >= 0 or through is None:
        return None
    attrs, values, out_perm = through
    if any(t.rank != len(out_perm) for t in op.outputs):
        return None  # a shape is assumed
    back, new, inputs = inverse(perm), [], list(op.inputs)
    for i, t in enumerate(op.inputs):
        if t is None or (i in readers and t.size == 1):
            continue
        if i in values:
            shape = (len(values[i]),)
            inputs[i] = replace(t, name=f"{t.name}#{op.name}", kind="constant", shape=shape, value=values[i])
        elif i in readers:
            before = g.made_by(t, "Transpose")
            if before is not None and perm_of(before) == perm:
                inputs[i] = before.present[0]
                continue
            full = replace(t, shape=(1,) * (rank - t.rank) + t.shape)
            name, kind = f"{t.name}#{op.name}#{i}", t.kind if t.stored else "activation"
            inputs[i] = undone = replace(full, name=name, shape=shape_under(back, full), kind=kind, value=None)
            if not t.stored:
                turn = {"perm": back}
                new.append(Operator(name, "Transpose", (t,), (undone,), turn, 0, op.nodes, repeat=op.repeat))
    moved = replace(op, inputs=tuple(inputs), attrs=attrs)
    if out_perm == tuple(range(len(out_perm))):
        return (*new, moved)
    undo, turns = inverse(out_perm), []
    for t in op.outputs:
        undone, name = replace(t, name=f"{t.name}#{op.name}", shape=shape_under(undo, t)), f"{transpose.name}#{t.name}"
        attrs = {"perm": out_perm}
        turns.append(Operator(name, "Transpose", (undone,), (t,), attrs, 0, transpose.nodes, repeat=op.repeat))
    return (*new, replace(moved, outputs=tuple(o.present[0] for o in turns)), *turns)


def _leading(graph: Graph) -> set[str]:
    """Tensors from which operators that can be pushed through lead to a Transpose."""
    leading: set[str] = set()
    for o in reversed(graph.operators):
        if o.type == "Transpose":
            leading.add(o.present[0].name)
        elif any(t.name in leading for t in o.outputs):
            leading.update(t.name for i in _readers(o) if (t := o.inputs[i]) is not None)
    return leading


def _pushed(graph: Graph) -> Graph:
    if not any(o.type == "Transpose" for o in graph.operators):
        return graph
    g, leading, changed = Rewriter(graph), _leading(graph), False
    for first in graph.operators:
        todo = [first]
        while todo:
            op = todo.pop(0)
            first_of: dict[Perm, int] = {}  # what it costs to move a Transpose depends on its permutation alone
            for i, t in enumerate(op.inputs):
                if (m := g.made_by(t, "Transpose")) is not None and m.repeat == op.repeat:
                    first_of.setdefault(perm_of(m), i)
            new = next((n for i in [*first_of.values()][:MOST_PERMS] if (n := _push(g, op, i, leading))), None)
            if new is None:
                continue
            sources = {id(m): m for t in op.present if (m := g.made_by(t, "Transpose"))}
            g.apply(Fused((op,), new[-1], new[:-1]))
            read = {t.name for o in new for t in o.present}
            for source in sources.values():
                if source.out.name not in read | graph.output_names and not g.users(source.out):
                    g.forget(source)
            changed, todo = True, [*(o for o in new if o.type != "Identity"), *todo]
    return without_identities(g.result(())) if changed else graph


PUSH = Pass("transposes moved on", _pushed, once=True)


TURNED = op.Transpose(X)


@pattern("Transpose + Reshape", op.Reshape(TURNED, ...), start="Transpose")
def of_matrices(m: Match) -> Fused | None:
    """Matrices transposed in a stack that a Reshape then splits into more axes: it is split first."""
    x, turned, split = m[X], m.op(TURNED), m.root
    y, out = turned.out, split.out
    if perm_of(turned) != (0, 2, 1) or out.rank < 4 or out.shape[-2:] != y.shape[-2:]:
        return None
    perm = (*range(out.rank - 2), out.rank - 1, out.rank - 2)
    second = replace(turned, outputs=split.outputs, attrs={"perm": perm})
    view = replace(y, name=f"{y.name}#view", shape=(*out.shape[:-2], *x.shape[-2:]))
    merged = m.g.made_by(x, "Reshape")
    if merged is not None and merged.present[0].shape == view.shape:  # what was split before needs no Reshape
        gone = (merged,) if m.g.only_user(x) else ()
        return Fused((*gone, turned, split), replace(second, inputs=merged.inputs[:1]))
    first = replace(split, inputs=(x,), outputs=(view,), attrs={})
    return Fused((turned, split), replace(second, inputs=(view,)), (first,))
