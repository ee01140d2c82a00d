"""ONNX Runtime's layout NCHWc, in which its CPU provider runs convolutions at level `all` (nchwc_transformer.cc).

Channels stand in blocks of as many float32 as a vector register holds: 16 with AVX-512, which is assumed here, 8 with
AVX2; on Arm there is no such layout. Operators behind a convolution stay in the layout where they can, and sums and
activations become part of the convolution. ReorderInput and ReorderOutput change the layout at its borders. Tensors
keep the shapes that they have outside it, so that channels which only fill up a block are not counted.
"""

from __future__ import annotations

from dataclasses import replace

from onnxperf.fusions import ort_quantised
from onnxperf.fusions.engine import Fused, Fusion, Miss, Pass, Rewriter, fused
from onnxperf.fusions.ort_extended import AFTER_CONV
from onnxperf.fusions.ort_layout import perm_of
from onnxperf.fusions.pattern import Match, Y, alone, call, pattern
from onnxperf.graph import Graph
from op_models import Operator, Tensor
from op_models.move import BLOCK

DOMAIN = "com.microsoft.nchwc::"
CONV, INPUT, OUTPUT = f"{DOMAIN}Conv", f"{DOMAIN}ReorderInput", f"{DOMAIN}ReorderOutput"
ALIGNED = 4  # channels come in multiples of this, or are not reordered
INTO_CONV = ("Relu", "Sigmoid", "Tanh", "HardSigmoid")
POINTWISE = (*INTO_CONV, "Gelu", "com.microsoft::Gelu", "com.microsoft::QuickGelu")
POOLS = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
#: Coordinate transformations of a linear Resize that have a kernel; of a nearest one, only `asymmetric` with floor has.
LINEAR = ("half_pixel", "asymmetric", "align_corners")


def _fits(conv: Operator) -> bool:
    """Whether the weights are stored, and the channels come in blocks or can fill them up."""
    stored, group = conv.present[1:], conv.attrs.get("group", 1)
    if not stored or stored[0].rank != 4 or not all(t.stored for t in stored):
        return False
    cout, cin = stored[0].shape[:2]
    if group == 1:
        return _reads_nchw(conv) or cin % ALIGNED == 0
    if cin == 1 and cout == group:
        return cout % ALIGNED == 0
    return cin % BLOCK == 0 and cout % (group * BLOCK) == 0


def _reads_nchw(conv: Operator) -> bool:
    """Whether a convolution has so few input channels, as an image has, that it reads them in NCHW."""
    return conv.attrs.get("group", 1) == 1 and conv.present[1].shape[1] < BLOCK


def _into(g: Rewriter, op: Operator, x: Tensor) -> Operator | None:
    """The convolution whose result `op` alone reads, if it has no activation yet."""
    conv = g.made_by(x, CONV)
    if conv is None or g.only_user(x) is not op or "activation" in conv.attrs or conv.repeat != op.repeat:
        return None
    return conv


def _sum_or_product(g: Rewriter, op: Operator) -> Fused | None:
    """A sum or product in the layout; the sum of two joins a convolution that has no summand yet, the first if it can.

    All operands have one shape; those of a sum may differ in batch, height or width, and are then broadcast.
    """
    if any(t.shape != op.out.shape for t in op.present):
        repeated = op.type != "Mul" and all(t.shape[1] == op.out.shape[1] for t in op.present)
        return Fused((op,), op) if repeated else None
    for x, summand in (op.present, op.present[::-1]) if len(op.present) == 2 and op.type != "Mul" else ():
        conv = _into(g, op, x)
        if conv is not None and len(conv.inputs) < 4:
            return fused(CONV, op, (conv, op), (*(*conv.inputs, None)[:3], summand), dict(conv.attrs))
    return Fused((op,), op)


def _resize(op: Operator, x: Tensor) -> Fused | None:
    """The Upsample that replaces a Resize by whole factors; None for any other."""
    how, where = (op.attrs.get(k, v) for k, v in (("mode", "nearest"), ("coordinate_transformation_mode", LINEAR[0])))
    down = how == "nearest" and where == "asymmetric" and op.attrs.get("nearest_mode") == "floor"
    sides = zip(x.shape, op.out.shape, strict=True)
    whole = x.shape[:2] == op.out.shape[:2] and all(a and b % a == 0 for a, b in sides)
    has_kernel = whole and (down or (how == "linear" and where in LINEAR))
    return Fused((op,), replace(op, type=f"{DOMAIN}Upsample", inputs=(x,))) if has_kernel else None


def _inside(g: Rewriter, op: Operator, blocked: set[str]) -> Fused | None:
    """What replaces an operator in the layout (it may be the operator itself); None where it stays outside."""
    x = next((t for t in op.present if not t.stored), None)
    if x is None or x.rank != 4 or len(op.outputs) != 1 or op.out.dtype != "float32":
        return None
    if op.type in ("Conv", "com.microsoft::FusedConv"):
        return Fused((op,), replace(op, type=CONV)) if _fits(op) else None
    if op.type in POOLS:
        late = op.type.startswith("Global") and x.name not in blocked and g.made_by(x)
        uneven = op.attrs.get("ceil_mode") and op.attrs.get("count_include_pad")
        out = late or uneven or x.shape[1] % BLOCK
        return None if out else Fused((op,), replace(op, type=DOMAIN + op.type))
    stored = [t for t in op.present if t.stored]
    if not all(t.name in blocked for t in op.present if not t.stored):
        return None
    if op.type == "Resize":
        return _resize(op, x)
    norm = op.type == "BatchNormalization" and len(stored) == 4 and not op.attrs.get("training_mode")
    if norm or (op.type == "Mul" and stored and stored[0].shape[-3:] == (x.shape[1], 1, 1)):
        weight = replace(stored[0], name=f"{op.name}#nchwc", shape=(x.shape[1], 1, 1, 1), value=None)
        return fused(CONV, op, (op,), (x, weight, *stored[1:2]), {"group": x.shape[1]})
    if op.type == "Transpose" and perm_of(op) == (0, 2, 3, 1):
        return Fused((op,), replace(op, type=OUTPUT, attrs={"channels_last": 1}))
    if stored:
        return None
    if op.type in ("Add", "Sum", "Mul"):
        return _sum_or_product(g, op)
    conv = _into(g, op, x) if op.type in INTO_CONV else None
    if conv is not None:
        return fused(CONV, op, (conv, op), conv.inputs, {**conv.attrs, "activation": op.type})
    joins = op.type == "Concat" and op.attrs.get("axis") == 1 and not any(t.shape[1] % BLOCK for t in op.present)
    return Fused((op,), op) if joins or op.type in POINTWISE else None


def _blocked_inputs(op: Operator, blocked: set[str]) -> tuple[int, ...]:
    """The inputs that an operator reads in the layout."""
    if op.type == OUTPUT:
        return (0,)
    if not op.outputs or op.out.name not in blocked or op.type == INPUT:
        return ()
    first = op.type == CONV and _reads_nchw(op)
    return tuple(i for i, t in enumerate(op.inputs) if t is not None and not t.stored and i >= first)


def _bordered(graph: Graph, blocked: set[str]) -> Graph:
    """Tensors in the layout get names of their own, and what is read in the other layout is reordered."""

    def inside(t: Tensor) -> Tensor:
        return replace(t, name=f"{t.name}#nchwc", kind="activation")

    def reorder(type: str, x: Tensor, y: Tensor, op: Operator) -> Operator:
        return Operator(f"{x.name}#{type.removeprefix(DOMAIN)}", type, (x,), (y,), {}, 0, op.nodes, repeat=op.repeat)

    reads = {id(o): _blocked_inputs(o, blocked) for o in graph.operators}
    outside = graph.output_names | {
        t.name for o in graph.operators for i, t in enumerate(o.inputs) if t is not None and i not in reads[id(o)]
    }
    in_layout, operators = set(blocked), list[Operator]()
    for o in graph.operators:
        for i in reads[id(o)]:
            if (t := o.inputs[i]) is not None and t.name not in in_layout:
                operators.append(reorder(INPUT, t, inside(t), o))
                in_layout.add(t.name)
        inputs = tuple(inside(t) if t is not None and i in reads[id(o)] else t for i, t in enumerate(o.inputs))
        outputs = tuple(inside(t) if t.name in blocked else t for t in o.outputs)
        operators.append(replace(o, inputs=inputs, outputs=outputs))
        operators += (reorder(OUTPUT, inside(t), t, o) for t in o.outputs if t.name in blocked and t.name in outside)
    return replace(graph, operators=tuple(operators))


def _in_blocks(graph: Graph) -> Graph:
    g, blocked = Rewriter(graph), set[str]()
    for op in graph.operators:
        if (change := _inside(g, op, blocked)) is None:
            continue
        g.apply(change)
        new = change.operator
        if new.type != OUTPUT:
            blocked.add(new.out.name)
        for i in _blocked_inputs(new, blocked):  # a Transpose from channels last is one with the reordering
            before = g.made_by(new.inputs[i], "Transpose")
            if before is not None and perm_of(before) == (0, 3, 1, 2) and g.only_user(before.out):
                g.apply(Fused((before,), replace(before, type=INPUT, attrs={"channels_last": 1})))
                blocked.add(before.out.name)
    return _bordered(g.result(), blocked) if blocked else graph


LAYOUT = Pass("convolutions in blocks of channels", _in_blocks, once=True, since="1.4")


CONV_OUTSIDE = alone(call("Conv", ...))


@pattern("Conv + Add + activation", CONV_OUTSIDE + Y, since="1.4")
def conv_sum(m: Match) -> Fused | Miss | None:
    """A sum with a convolution outside the layout, and the activation that alone reads it."""
    conv, add, summand = m[CONV_OUTSIDE], m.root, m[Y]
    x = conv.out
    if len(conv.present) < 3 or x.rank != 4 or x.dtype != "float32":
        return None
    if x.shape != summand.shape:
        return Miss(f"the summands differ in shape: {list(x.shape)}, {list(summand.shape)}", add.nodes)
    after, parts, attrs = m.g.only_user(add.out, *AFTER_CONV), m.parts, dict(conv.attrs)
    if after is not None and all(t.stored for t in after.present[1:]):
        parts, attrs["activation"] = (*parts, after), after.type
    return fused("com.microsoft::FusedConv", parts[-1], parts, (*conv.inputs, summand), attrs)


#: At level `all`, for the CPU provider.
RULES: tuple[Fusion | Pass, ...] = (LAYOUT, ort_quantised.channels_last, ort_quantised.MOVED_ON, conv_sum)
