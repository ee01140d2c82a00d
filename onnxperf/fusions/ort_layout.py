"""ONNX Runtime's TransposeOptimizer: a Transpose is pushed behind what reads it where that saves transposing.

It walks the operators once, in order, at each level. Transposing a tensor costs as much as the tensor has axes longer
than one. A Transpose moves on where that saves more at the operator's inputs than it adds at its outputs, or where it
saves anything and a Transpose further on may cancel the new one. Operators that ONNX Runtime pushes through but that
are not in the tables here (Resize, Tile, Gather of several indices, ...) stop it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from onnxperf.fusions.engine import Fused, Pass, Rewriter, without_identities
from onnxperf.fusions.pattern import Match, X, op, pattern
from onnxperf.fusions.placement import REDUCTIONS
from onnxperf.graph import Graph
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
MOST_MOVES = 1000  # at one operator, and at what they leave
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
    """The shape of a tensor transposed; broadcasting adds the axes that it has fewer than `perm` in front."""
    shape = (1,) * (len(perm) - t.rank) + t.shape
    return tuple(shape[p] for p in perm)


def _in_order(perm: Perm) -> bool:
    """Whether a permutation leaves the axes as they are."""
    return perm == tuple(range(len(perm)))


def _readers(op: Operator) -> tuple[int, ...]:
    """The inputs at which a Transpose may be pushed through an operator; none where it can't be."""
    if op.type in POINTWISE or op.type == "Concat":
        return tuple(i for i, t in enumerate(op.inputs) if t is not None)
    if op.type in OPERANDS:
        return tuple(i for i in OPERANDS[op.type] if i < len(op.inputs))
    old = op.type in ("Softmax", "LogSoftmax", "Hardmax") and op.version < 13  # the row is more than one axis there
    first = op.type in ALONG or op.type in REDUCTIONS or op.type in ("Transpose", "Pad", "Slice", "Squeeze", "Gather")
    per_tensor = op.type in PER_TENSOR and len(op.present) > 1 and op.present[1].size == 1
    return (0,) if (first or per_tensor) and not old else ()


def _read(op: Operator) -> list[Tensor]:
    """The tensors at those inputs."""
    return [t for i in _readers(op) if (t := op.inputs[i]) is not None]


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
    if op.type in ALONG or op.type == "Gather":
        if op.type == "Gather" and (not op.present[1].stored or op.present[1].rank):
            return None
        axis = attrs.get("axis", 0 if op.type in ("Split", "Gather") else -1) % rank
        attrs["axis"] = perm[axis]
        return attrs, {}, _without(perm, (axis,)) if op.type == "Gather" else perm
    if op.type == "Pad":
        amounts = op.inputs[1].value if len(op.inputs) == 2 and op.inputs[1] else None
        if amounts is None or len(amounts) != 2 * rank:
            return None
        return attrs, {1: tuple(int(amounts[half + p]) for half in (0, rank) for p in inverse(perm))}, perm
    if op.type not in REDUCTIONS and op.type not in ("Squeeze", "Slice"):
        return attrs, {}, perm
    index = 3 if op.type == "Slice" else 1
    named = _axes(op, index, rank)
    if named is None or (op.type == "Slice" and len(op.inputs) < 4):
        return None
    axes, gone = tuple(perm[a] for a in named), op.type == "Squeeze" or not attrs.get("keepdims", 1)
    values = {index: axes} if len(op.inputs) > index and "axes" not in attrs else {}
    kept = _without(perm, named) if gone else perm
    return {**attrs, "axes": axes} if "axes" in attrs else attrs, values, kept


def _without(perm: Perm, axes: tuple[int, ...]) -> Perm:
    left = [p for i, p in enumerate(perm) if i not in axes]
    return tuple(sorted(left).index(p) for p in left)


def _push(
    g: Rewriter, op: Operator, transpose: Operator, leading: set[str], always: frozenset[Perm]
) -> tuple[Operator, ...] | None:
    """Move a Transpose that the operator reads behind it: the new operators, or None where it does not pay."""
    perm = perm_of(transpose)
    if not perm or len(perm) != transpose.present[0].rank or not _in_order(tuple(sorted(perm))):
        return None
    if op.type == "Transpose":
        return (_composed(transpose, op),)
    missing = max(t.rank for t in _read(op)) - len(perm)  # axes that broadcasting adds in front
    whole = (*range(missing), *(p + missing for p in perm))
    through = _through(op, whole)
    wanted = perm in always and op.type != "Concat"
    if through is None or not (wanted or _pays(g, op, perm, leading)):
        return None
    attrs, values, out_perm = through
    if any(t.rank != len(out_perm) for t in op.outputs):
        return None  # a shape is assumed
    before, inputs = _untransposed(g, op, whole, values)
    moved = replace(op, inputs=inputs, attrs=attrs)
    return (*before, *([moved] if _in_order(out_perm) else _transposed(moved, out_perm, transpose)))


def _composed(first: Operator, second: Operator) -> Operator:
    """One Transpose in place of two, or an Identity where the second undoes the first."""
    perm = tuple(perm_of(first)[p] for p in perm_of(second))
    type, attrs = ("Identity", {}) if _in_order(perm) else ("Transpose", {"perm": perm})
    return replace(second, type=type, inputs=first.inputs[:1], attrs=attrs, nodes=(*first.nodes, *second.nodes))


def _pays(g: Rewriter, op: Operator, perm: Perm, leading: set[str]) -> bool:
    """Whether undoing `perm` at the inputs saves more than transposing the results costs, if that is to be paid."""
    cost = sum(_cost(g, t, perm) for t in _read(op))
    undone_later = any(t.name in leading for t in op.outputs)
    return cost < 0 and (undone_later or cost + max(sum(d != 1 for d in t.shape) for t in op.outputs) < 0)


def _untransposed(
    g: Rewriter, op: Operator, perm: Perm, values: dict[int, tuple[int, ...]]
) -> tuple[list[Operator], tuple[Tensor | None, ...]]:
    """The inputs of an operator with `perm` undone, or with new values, and the Transposes that this takes."""
    new, inputs = list[Operator](), list(op.inputs)
    for i, value in values.items():
        if (t := op.inputs[i]) is not None:
            inputs[i] = replace(t, name=f"{t.name}#{op.name}", kind="constant", shape=(len(value),), value=value)
    for i in _readers(op):
        if (t := op.inputs[i]) is None or t.size == 1:
            continue
        before = g.made_by(t, "Transpose")
        if before is not None and perm_of(before) == perm:
            inputs[i] = before.present[0]
            continue
        name, back, kind = f"{t.name}#{op.name}#{i}", inverse(perm), t.kind if t.stored else "activation"
        inputs[i] = undone = replace(t, name=name, shape=shape_under(back, t), kind=kind, value=None)
        if not t.stored:
            new.append(Operator(name, "Transpose", (t,), (undone,), {"perm": back}, 0, op.nodes, repeat=op.repeat))
    return new, tuple(inputs)


def _transposed(op: Operator, perm: Perm, like: Operator) -> Iterator[Operator]:
    """The operator on untransposed inputs, and behind it the Transposes that its outputs then need."""
    before = [replace(t, name=f"{t.name}#{op.name}", shape=shape_under(inverse(perm), t)) for t in op.outputs]
    yield replace(op, outputs=tuple(before))
    for x, y in zip(before, op.outputs, strict=True):
        name = f"{like.name}#{y.name}"
        yield Operator(name, "Transpose", (x,), (y,), {"perm": perm}, 0, like.nodes, repeat=op.repeat)


def _leading(graph: Graph) -> set[str]:
    """Tensors from which operators that can be pushed through lead to a Transpose."""
    leading: set[str] = set()
    for o in reversed(graph.operators):
        if o.type == "Transpose":
            leading.add(o.present[0].name)
        elif any(t.name in leading for t in o.outputs):
            leading.update(t.name for t in _read(o))
    return leading


def pushed(graph: Graph, always: frozenset[Perm] = frozenset()) -> Graph:
    """The graph with its Transposes moved on: those in `always` through anything but a Concat, even where it costs."""
    if not any(o.type == "Transpose" for o in graph.operators):
        return graph
    g, leading, changed = Rewriter(graph), _leading(graph), False
    for first in graph.operators:
        todo, moves = [first], 0
        while todo and (moves := moves + 1) < MOST_MOVES:
            op = todo.pop(0)
            sources = [m for t in op.present if (m := g.made_by(t, "Transpose"))]
            movable: dict[Perm, Operator] = {}  # what it costs to move a Transpose depends on its permutation alone
            for t in _read(op) if sources else ():
                if (m := g.made_by(t, "Transpose")) is not None and m.repeat == op.repeat:
                    movable.setdefault(perm_of(m), m)
            new = next((n for m in [*movable.values()][:MOST_PERMS] if (n := _push(g, op, m, leading, always))), None)
            if new is None:
                continue
            g.apply(Fused((op,), new[-1], new[:-1]))
            for source in {*sources}:
                if source.out.name not in graph.output_names and not g.users(source.out):
                    g.forget(source)
            changed, todo = True, [*(o for o in new if o.type != "Identity"), *todo]
    return without_identities(g.result()) if changed else graph


PUSH = Pass("transposes moved on", pushed, once=True)


TURNED = op.Transpose(X)


@pattern("Transpose + Reshape", op.Reshape(TURNED, ...), start="Transpose")
def of_matrices(m: Match) -> Fused | None:
    """Matrices transposed in a stack that a Reshape then splits into more axes: it is split first."""
    x, turned, split = m[X], m[TURNED], m.root
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
