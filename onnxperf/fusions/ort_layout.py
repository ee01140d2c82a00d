"""ONNX Runtime's TransposeOptimizer: a Transpose is pushed behind what reads it where that saves transposing.

It walks the operators once, in order, at each level. Transposing a tensor costs as much as the tensor has axes longer
than one. A Transpose moves on where that saves more at the operator's inputs than it adds at its outputs, or where it
saves anything and the new one meets a Transpose further on: any, if nothing else reads the result, or else one that
undoes it. Nothing is saved by a Transpose that stays for another reader. Operators that ONNX Runtime pushes through but
that are not in the tables here (Resize, Gather of several indices, ...) stop it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from onnxperf.fusions.engine import Fused, Pass, Rewriter, folded, without_identities
from onnxperf.fusions.ort_reshapes import split_first
from onnxperf.fusions.placement import REDUCTIONS
from onnxperf.graph import Graph, known_dims
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
FIRST = frozenset({"Transpose", "Pad", "Slice", "Squeeze", "Unsqueeze", "Gather", "Shape", "Reshape"})
STOPS = frozenset({"Shape", "Reshape"})  # no Transpose beyond these counts
OTHERS = frozenset({"Tile", "Resize", "MaxPool", "ArgMax", "ArgMin"})  # known to ONNX Runtime beside these
Leading = dict[str, set[Perm]]  # of a tensor, permutations of Transposes that operators lead to from there
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
    first = op.type in ALONG or op.type in REDUCTIONS or op.type in FIRST
    per_tensor = op.type in PER_TENSOR and len(op.present) > 1 and op.present[1].size == 1
    return (0,) if (first or per_tensor) and not old else ()


def _read(op: Operator) -> list[Tensor]:
    """The tensors at those inputs."""
    return [t for i in _readers(op) if (t := op.inputs[i]) is not None]


def _long_axes(t: Tensor) -> int:
    """How many axes are longer than one, those of an open size among them; 5 where not even the rank is known."""
    dims = known_dims(t)
    return 5 if dims is None else sum(d != 1 for d in dims)


def _cost(g: Rewriter, t: Tensor, perm: Perm) -> int:
    """What it takes to undo `perm` at an input: nothing where stored, less than nothing where it cancels."""
    rank = _long_axes(t)
    before = g.made_by(t, "Transpose")
    if before is None:
        return 0 if t.stored else rank
    return -rank if perm_of(before) == perm and _removable(g, t) else 0


def _removable(g: Rewriter, turned: Tensor) -> bool:
    """Whether a Transpose may leave once it has moved through all that reads it. A Gemm of a stack of matrices reads it
    through a Reshape.
    """
    output = turned.name in g.graph.output_names
    stack = turned.rank > 2
    return not output and all(o.type in OTHERS or _readers(o) or (stack and o.type == "Gemm") for o in g.users(turned))


def _axes(op: Operator, index: int, rank: int) -> tuple[int, ...] | None:
    """The axes an operator names in an attribute or a stored input, counted from the front."""
    axes: Any = op.attrs.get("axes")
    if axes is None and len(op.inputs) > index and (t := op.inputs[index]) is not None:
        if not t.stored or t.value is None:
            return None
        axes = t.value
    return tuple(int(a) % rank for a in axes) if axes is not None else tuple(range(rank))


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
    if op.type == "Unsqueeze":
        new = _axes(op, 1, op.out.rank)
        return (attrs, {}, _widened(perm, new)) if new is not None and len({*new}) == op.out.rank - rank else None
    if op.type not in REDUCTIONS and op.type not in ("Squeeze", "Slice"):
        return attrs, {}, perm
    index = 3 if op.type == "Slice" else 1
    old_axes = _axes(op, index, rank)
    if old_axes is None or (op.type == "Slice" and len(op.inputs) < 4):
        return None
    axes, drops = tuple(perm[a] for a in old_axes), op.type == "Squeeze" or not attrs.get("keepdims", 1)
    values = {index: axes} if len(op.inputs) > index and "axes" not in attrs else {}
    out_perm = _without(perm, old_axes) if drops else perm
    return {**attrs, "axes": axes} if "axes" in attrs else attrs, values, out_perm


def _without(perm: Perm, axes: tuple[int, ...]) -> Perm:
    rest = [p for i, p in enumerate(perm) if i not in axes]
    return tuple(sorted(rest).index(p) for p in rest)


def _widened(perm: Perm, new: tuple[int, ...]) -> Perm:
    """The permutation with further axes that stay where they are."""
    rank = len(perm) + len(new)
    old, axes = [a for a in range(rank) if a not in new], iter(perm)
    return tuple(a if a in new else old[next(axes)] for a in range(rank))


def _push(
    g: Rewriter, op: Operator, transpose: Operator, leading: Leading, always: frozenset[Perm]
) -> tuple[Operator, ...] | None:
    """Move a Transpose that the operator reads behind it: the new operators, or None where it does not pay."""
    perm = perm_of(transpose)
    if not perm or len(perm) != transpose.present[0].rank or not _in_order(tuple(sorted(perm))):
        return None
    if op.type == "Transpose":
        return (_composed(transpose, op),)
    if op.type in STOPS:
        if not _removable(g, transpose.out):
            return None
        return _shape_turned(transpose, op) if op.type == "Shape" else split_first(transpose, op, perm)
    front = max(t.rank for t in _read(op)) - len(perm)  # axes that broadcasting adds in front
    whole = (*range(front), *(p + front for p in perm))
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


def _shape_turned(transpose: Operator, shape: Operator) -> tuple[Operator, ...]:
    """The shape of what a Transpose reads, and a Gather that brings its sizes into the order of the result."""
    x, perm = transpose.present[0], perm_of(transpose)[shape.attrs.get("start", 0) : shape.attrs.get("end")]
    sizes = replace(shape.out, name=f"{shape.out.name}#whole", shape=(x.rank,), value=None)
    order = replace(sizes, name=f"{shape.out.name}#order", kind="constant", shape=(len(perm),), value=perm)
    whole = replace(shape, name=f"{shape.name}#whole", inputs=(x,), outputs=(sizes,), attrs={})
    return whole, replace(shape, type="Gather", inputs=(sizes, order), attrs={"axis": 0})


def _pays(g: Rewriter, op: Operator, perm: Perm, leading: Leading) -> bool:
    """Whether undoing `perm` at the inputs saves more than transposing the results costs, if that is to be paid."""
    cost = sum(_cost(g, t, perm) for t in _read(op))
    later = any(_meets(g, t, perm, leading.get(t.name)) for t in op.outputs)
    return cost < 0 and (later or cost + max(map(_long_axes, op.outputs)) < 0)


def _meets(g: Rewriter, t: Tensor, perm: Perm, ahead: set[Perm] | None) -> bool:
    """Whether a Transpose behind `t` becomes one with another ahead, or none where several operators read `t`."""
    alone = len(g.users(t)) == 1 and t.name not in g.graph.output_names
    return bool(ahead) and (alone or inverse(perm) in (ahead or ()))


def _untransposed(
    g: Rewriter, op: Operator, perm: Perm, values: dict[int, tuple[int, ...]]
) -> tuple[list[Operator], tuple[Tensor | None, ...]]:
    """The inputs of an operator with `perm` undone, or with new values, and the Transposes that this takes."""
    new, inputs, back = list[Operator](), list(op.inputs), inverse(perm)
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
        transposes = (o for o in g.users(t) if o.type == "Transpose" and (perm_of(o), o.repeat) == (back, op.repeat))
        if (turn := next(transposes, None)) is not None:
            inputs[i] = turn.out
            if g.place[turn] > g.place[op]:  # it serves this operator as well, and so stands before it
                g.forget(turn)
                new.append(turn)
            continue
        name, kind = f"{t.name}#{op.name}#{i}", t.kind if t.stored else "activation"
        inputs[i] = undone = replace(t, name=name, shape=shape_under(back, t), kind=kind, value=None)
        if t.stored and t.rank == len(perm):
            _turn_back(g, op, t, undone, perm)
        elif not t.stored:
            new.append(Operator(name, "Transpose", (t,), (undone,), {"perm": back}, 0, op.nodes, repeat=op.repeat))
    return new, tuple(inputs)


def _turn_back(g: Rewriter, op: Operator, stored: Tensor, turned: Tensor, perm: Perm) -> None:
    """Give the other readers of a stored tensor, which is turned for one, a Transpose of what it has become: it costs
    nothing, as `folded` takes it out again, but undoing it counts as a gain.
    """
    readers = sorted((u for u in g.users(stored) if u is not op), key=g.place.__getitem__)
    if not readers:
        return
    whole = replace(stored, name=f"{turned.name}#back", kind="activation", value=None)
    transpose = Operator(whole.name, "Transpose", (turned,), (whole,), {"perm": perm}, 0, op.nodes, repeat=op.repeat)
    for j, u in enumerate(readers):
        inputs = tuple([whole if t is not None and t.name == stored.name else t for t in u.inputs])
        g.apply(Fused((u,), replace(u, inputs=inputs), (transpose,) if j == 0 else ()))


def _transposed(op: Operator, perm: Perm, like: Operator) -> Iterator[Operator]:
    """The operator on untransposed inputs, and behind it the Transposes that its outputs then need."""
    before = [replace(t, name=f"{t.name}#{op.name}", shape=shape_under(inverse(perm), t)) for t in op.outputs]
    yield replace(op, outputs=tuple(before))
    for x, y in zip(before, op.outputs, strict=True):
        name = f"{like.name}#{y.name}"
        yield Operator(name, "Transpose", (x,), (y,), {"perm": perm}, 0, like.nodes, repeat=op.repeat)


def _leading(graph: Graph) -> Leading:
    """Tensors from which operators that can be pushed through lead to a Transpose."""
    leading: Leading = {}
    for o in reversed(graph.operators):
        if o.type == "Transpose":
            leading.setdefault(o.present[0].name, set()).add(perm_of(o))
        elif o.type not in STOPS and (ahead := [p for t in o.outputs for p in leading.get(t.name, ())]):
            for t in _read(o):
                leading[t.name] = {*leading.get(t.name, ()), *ahead[:MOST_PERMS]}
    return leading


def _in_turn(graph: Graph) -> list[Operator]:
    """The operators in the order in which ONNX Runtime's graph passes visit them: what an operator reads stands before
    it, and first what the last of these depends on (Graph::ReverseDFSFrom).
    """
    place = {o: i for i, o in enumerate(graph.operators)}
    read = {t.name for o in graph.operators for t in o.present}
    todo = [(o, False) for o in graph.operators if not any(t.name in read for t in o.outputs)]
    seen, order = set[Operator](), list[Operator]()
    while todo:
        o, ready = todo.pop()
        if ready:
            order.append(o)
        elif o not in seen:
            seen.add(o)
            makers = {m for t in o.present if (m := graph.made_by(t)) is not None}
            todo += [(o, True), *((m, False) for m in sorted(makers - seen, key=place.__getitem__))]
    return order


def pushed(graph: Graph, always: frozenset[Perm] = frozenset()) -> Graph:
    """The graph with its Transposes moved on: those in `always` through anything but a Concat, even where it costs."""
    if not any(o.type == "Transpose" for o in graph.operators):
        return graph
    g, leading, changed = Rewriter(graph), _leading(graph), False
    for first in _in_turn(graph):
        now = g.made_by(first.out) if first.outputs else first
        todo, moves = [now] if now is not None else [], 0
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
    return folded(without_identities(g.result()), {"Transpose"}) if changed else graph


PUSH = Pass("transposes moved on", pushed, once=True, since="1.4")
