"""What torch.compile's Inductor makes of operators: loops of its own, and calls of libraries.

When a result lies in memory: `inductor_memory`. Which loops share a kernel: `inductor_fusion`.

Sources: torch/_inductor of PyTorch 2.4 to 2.13: graph.py (`decide_layout_opt`), lowering.py (`cat`, pools, reductions),
kernel/conv.py (biases), fx_passes/post_grad.py (`unfuse_bias_add_to_pointwise`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

from onnxperf.fusions.inductor_loops import Box, Loop, Read, View, preferred
from onnxperf.fusions.inductor_memory import HALF, REDUCTIONS, Memory, Ways, copied, number, parts_of
from onnxperf.fusions.torch_calls import ALONE, ROLL
from onnxperf.fusions.torch_strides import (
    Shape,
    Strides,
    channels_last,
    contiguous,
    dense,
    in_order_of,
    lies,
    multipliable,
    suggests_last,
    value,
)
from onnxperf.fusions.torch_strides import view as as_view
from onnxperf.graph import CONTROL, Graph
from onnxperf.ground.rules import work_or_bytes
from onnxperf.passes.parts import INDEX_PUT, MAX_SUM, TANGENT, VAR_MEAN
from onnxperf.passes.tape import BACKWARD, FORWARD, phase_of
from op_models import Operator, Tensor
from op_models.core import FLOATS
from op_models.gradients import FLOPS as GRADIENTS
from op_models.pointwise import FLOPS

#: Of torch/_inductor/config.py and lowering.py: sums of fewer elements than `WRITTEN_OUT` and windows of up to
#: `WIDEST_WINDOW` are written out; so many tensors at most are joined within a loop.
WRITTEN_OUT, WIDEST_WINDOW, MOST_JOINED = 8, 25, 8
FEW_CONVOLUTIONS = 300  # calls and weights for each convolution, from which on the layout stays as it is
#: About how many calls an operator is once decomposed, where it is not one.
CALLS = {
    "Attention": 2, "BatchNormalization": 16, "Gelu": 7, "Gemm": 4, "GroupNormalization": 14, "HardSwish": 7,
    "LayerNormalization": 9, "MatMul": 6, "Resize": 40, "Softmax": 6, "Swish": 5,
}  # fmt: skip
#: Time of a convolution in channels_last, for 1 in NCHW, as `decide_layout_opt` weighs FLOPs.
GROUPED, SMALL, NARROWING, OTHERS = 1.358, 0.783, 0.725, 0.823
SMALL_CHANNELS = 64

ELEMENTWISE = frozenset({
    *(t for t in FLOPS if "::" not in t), *GRADIENTS, "torch::addcmul", "torch::lerp", "torch::rsqrt", "Clip",
    "FastGelu", "Gelu", "Max", "Mean", "Min", "Pow", "QuickGelu", "Sum", "Swish",
})  # fmt: skip
SOURCES = frozenset({"ConstantOfShape", "EyeLike", "Range", "torch::count"})  # they read nothing
RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
SHUFFLES = frozenset({"DepthToSpace", "SpaceToDepth"})
VIEWS = RESHAPES | SHUFFLES | {"Expand", "Slice", "Split", "Transpose"}
NORMS = frozenset({"GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"})
SHARES = frozenset({"LogSoftmax", "Softmax"})
WINDOWS = frozenset({"AveragePool", "LpPool", "MaxPool"})
WINDOW_GRADIENTS = frozenset({"com.microsoft::AveragePoolGrad", "com.microsoft::MaxPoolGrad"})
INDEXED = frozenset({
    ROLL, "Gather", "GatherElements", "GatherND", "Pad", "Resize", "Tile", "Trilu", "Upsample",
})  # fmt: skip
IN_LOOPS = ELEMENTWISE | SOURCES | VIEWS | NORMS | SHARES | REDUCTIONS | WINDOWS | INDEXED | {
    "BatchNormalization", "Concat", "torch::dropout", INDEX_PUT, MAX_SUM, VAR_MEAN,
}  # fmt: skip
#: Operators whose decomposition reads an operand twice, and the position of that.
TWICE = {
    **dict.fromkeys((*NORMS, *SHARES), 0),
    **dict.fromkeys((
        "Celu", "Elu", "FastGelu", "Gelu", "HardSwish", "LeakyRelu", "Mish", "QuickGelu", "Selu", "Softplus", "Swish",
    ), 0),
    **dict.fromkeys((
        "com.microsoft::GeluGrad", "com.microsoft::SigmoidGrad", "com.microsoft::TanhGrad", "torch::hardswish_backward",
        "torch::mish_backward", "torch::silu_backward",
    ), 1),
}  # fmt: skip
#: About how many operations an element takes beside its reads, where it is not one.
OPERATIONS = {
    "BatchNormalization": 9, "FastGelu": 10, "Gelu": 7, "HardSigmoid": 6, "HardSwish": 7, "Mish": 7, "Swish": 3,
}  # fmt: skip
#: How many elements of its input an element of a Resize is made of.
TAPS = {"linear": 4, "cubic": 16}
PADDED_HEAD = 8  # attention's kernels take heads of a multiple of it
PRODUCTS, CONVOLUTIONS = ("MatMul", "Gemm"), ("Conv", "ConvTranspose")


def inductor(
    graph: Graph, last: bool, ways: Ways, all_last: bool, lying: Mapping[str, Strides] = MappingProxyType({})
) -> Memory:
    """The loops and the calls of libraries, in an order in which they can run, and where each tensor is.

    last: weights and images with four axes are channels_last already; all_last: all convolutions run in channels_last;
    lying: how tensors of another graph lie.
    """
    memory = Memory(graph, all_last, last, ways, IN_LOOPS, TWICE, lying)
    for o in graph.operators:
        if all(t.kind == "constant" or (t.value is not None and t.dtype not in FLOATS) for t in o.outputs):
            for t in o.outputs:  # sizes, which Python works out
                memory.lies(replace(t, kind="constant"), contiguous(t.shape))
        else:
            LOWERED.get(o.type, call)(memory, o)
    for t in graph.outputs:
        _output(memory, t)
    return memory


def prefers_last(graph: Graph, trains: bool = False) -> bool:
    """Whether all convolutions run in channels_last: `decide_layout_opt`, by their FLOPs in inference, in training
    unless one is grouped or narrows, or all have few channels.
    """
    convolutions = [o for o in graph.operators if o.type in CONVOLUTIONS]
    weights = {t.name for o in graph.operators for t in o.present if t.kind == "weight"}
    calls = sum(CALLS.get(o.type, 1) for o in graph.operators if o.outputs and o.out.value is None) + len(weights)
    if not convolutions or calls >= FEW_CONVOLUTIONS * len(convolutions):
        return False
    if trains:
        shapes = [o.present[1].shape for o in convolutions]
        grouped = any(o.attrs.get("group", 1) > 1 and s[1] > 1 for o, s in zip(convolutions, shapes, strict=True))
        narrowing = any(s[0] * 2 <= s[1] and s[2:3] > (1,) for s in shapes)
        return not grouped and not narrowing and any(max(s[:2]) > SMALL_CHANNELS for s in shapes)
    flops = weighted = 0.0
    for o in convolutions:
        outputs, inputs, *taps = o.present[1].shape
        each = work_or_bytes(o)[0].matrix_flops
        if o.attrs.get("group", 1) > 1 and inputs > 1:
            factor = GROUPED
        elif max(outputs, inputs) <= SMALL_CHANNELS:
            factor = SMALL
        else:
            factor = NARROWING if outputs * 2 <= inputs and taps[:1] > [1] else OTHERS
        flops, weighted = flops + each, weighted + each * factor
    return weighted <= flops


# In loops


def elementwise(m: Memory, o: Operator) -> None:
    """An element from one of each operand."""
    operands = [m.widened(o, i) for i, t in enumerate(o.present) if not number(t)]
    _spread(m, o, operands)


def _spread(m: Memory, o: Operator, operands: Sequence[View]) -> None:
    """An element of the result from one of each operand, spread over the axes that it lacks."""
    views = [v.expanded(o.out.shape) for v in operands]
    m.computed(o, views, (r for v in views for r in v.loads()), 1, OPERATIONS.get(o.type, 1))


def source(m: Memory, o: Operator) -> None:
    """Numbers that no tensor is read for."""
    m.computed(o, (), (), 1, 1)


def batch_norm(m: Memory, o: Operator) -> None:
    """(x - mean) / deviation * scale + shift."""
    x, *parameters = o.present
    column = (1, x.shape[1], *(1 for _ in x.shape[2:])) if x.rank > 1 else x.shape
    _spread(m, o, [m.at(x), *(m.at(t).reshaped(column) for t in parameters[:4])])


def norm(m: Memory, o: Operator) -> None:
    """Mean and variance of rows, then each element by them."""
    by_channel = o.type in ("GroupNormalization", "InstanceNormalization")
    if by_channel and o.present[0].rank < 2:  # PyTorch refuses it
        call(m, o)
        return
    x, parameters = m.widened(o), [m.at(t) for t in o.present[1:3]]
    names = ("#scale",) if o.type == "RMSNormalization" else ("#mean", "#scale")
    column = (*x.shape[1:2], *(1 for _ in x.shape[2:]))
    if o.type == "GroupNormalization":
        images, groups = x.shape[0], o.attrs.get("num_groups", 1)
        rows = x.reshaped((images, groups, prod(x.shape[1:]) // max(groups, 1)))
        wide = (images, groups, x.shape[1] // max(groups, 1))
        stats = [s.expanded(wide).reshaped((images, *column)) for s in m.statistics(o, rows, [2], names)]
    else:
        axis = 2 if o.type == "InstanceNormalization" else o.attrs.get("axis", -1) % len(x.shape)
        stats = m.statistics(o, x, range(axis, len(x.shape)), names)
    if by_channel:
        parameters = [p.reshaped((1, *column)) for p in parameters]
    _spread(m, o, [x, *stats, *parameters])


def shares(m: Memory, o: Operator) -> None:
    """exp(x - maximum) / sum, along one axis."""
    x = m.widened(o)
    stats = m.statistics(o, x, [o.attrs.get("axis", -1) % max(len(x.shape), 1)], ("#max", "#sum"), after=True)
    _spread(m, o, [x, *stats])


def var_mean(m: Memory, o: Operator) -> None:
    """Variance and mean along axes, in one pass."""
    views = m.statistics(o, m.at(o.present[0]), o.attrs["axes"], ("#0", "#1"))
    m.seen.update((t.name, v) for t, v in zip(o.outputs, views, strict=True))


def max_sum(m: Memory, o: Operator) -> None:
    """The maximum along an axis, and the sum of exponentials below it."""
    views = m.statistics(o, m.at(o.present[0]), [o.attrs["axis"]], ("#0", "#1"), after=True)
    m.seen.update((t.name, v) for t, v in zip(o.outputs, views, strict=True))


def dropout(m: Memory, o: Operator) -> None:
    """Random numbers, which elements they keep, and those elements."""
    mask = o.outputs[1]
    m.computed(replace(o, outputs=(mask,)), (), (), 1, 10)
    _spread(m, o, [m.at(o.present[0]), m.at(mask)])


def index_put(m: Memory, o: Operator) -> None:
    """Rows that are added to those of a table in memory."""
    table, ids, rows = (m.at(t) for t in o.present)
    m.keep(table)
    reads = {(r.buffer, r.key(rows.shape, range(len(rows.shape)))): r.elements for r in rows.loads()}
    reads |= {(r.buffer, ((0, hash(o.name)),)): r.elements for v in (table, ids) for r in v.loads()}
    count = prod(rows.shape)
    parts = parts_of([rows], o)
    flops = count * (1 + (0.0 if rows.box.kept else rows.box.flops))
    m.items.append(Loop(count, 1, reads, {(o.out.name, ((0, hash(o.name)),)): count}, flops, parts, o.out))
    m.lies(o.out, contiguous(o.out.shape))


def reduction(m: Memory, o: Operator) -> None:
    """A sum, mean or maximum along axes; a short one is written out."""
    x = m.at(o.present[0])
    axes = _reduced(o, len(x.shape))
    width = prod(x.shape[i] for i in axes)
    if width == 1:
        m.put(o.out, x.reshaped(o.out.shape))
    elif width < WRITTEN_OUT:
        m.computed(o, [x], _again(x, width), width, width)
    else:
        (result,) = m.statistics(o, x, axes, ("",))
        m.seen[o.out.name] = result.reshaped(o.out.shape)


def _reduced(o: Operator, rank: int) -> list[int]:
    """The axes that a reduction takes away."""
    if o.type.startswith("Global"):
        return list(range(2, rank))
    if o.type.startswith("Arg"):
        return [o.attrs.get("axis", 0) % max(rank, 1)]
    axes = o.attrs.get("axes") or value(o, 1)
    everything = [] if o.attrs.get("noop_with_empty_axes") else range(rank)
    return sorted({int(a) % rank for a in axes} if axes else everything)


def _again(x: View, times: int, salt: object = 0) -> list[Read]:
    """What is read of a tensor at several places that no strides tell."""
    return [Read(r.buffer, None, hash((i, salt, r)), r.elements) for i in range(times) for r in x.loads()]


def window(m: Memory, o: Operator) -> None:
    """A pool, whose window is written out and reads memory; one of more than 25 elements is a library's."""
    taps = prod(o.attrs.get("kernel_shape", (1,)))
    if taps > WIDEST_WINDOW or any(t.dtype != "int8" for t in o.outputs[1:]):
        call(m, o)
        return
    x = m.at(o.present[0])
    if len(x.box.reads) > 1:
        m.keep(x, m.all_last)
    x = m.at(o.present[0])
    for t in o.outputs:
        m.computed(replace(o, outputs=(t,)), [x], _again(x, taps), taps, 2 * taps)
    if x.strides is not None and suggests_last(x.shape, x.strides):
        m.keep(m.seen[o.out.name], True)


def window_gradient(m: Memory, o: Operator) -> None:
    """The gradient of a pool, from those of all windows that an element is in."""
    kernel = o.attrs.get("kernel_shape", ())
    strides = o.attrs.get("strides", (1,) * len(kernel))
    taps = prod(
        max(1, *(h // s - max(0, (h - k) // s) for h in range(2 * k))) for k, s in zip(kernel, strides, strict=True)
    )
    if taps > WIDEST_WINDOW or any(t.dtype == "int64" for t in o.present):
        call(m, o)
        return
    views = [m.at(t) for t in o.present]
    if len(views[0].box.reads) > 1:
        m.keep(views[0], m.all_last)
    m.computed(o, views, (r for v in views for r in _again(v, taps)), taps, 4 * taps)


def indexed(m: Memory, o: Operator) -> None:
    """Elements at places that are computed: gathers, padding, other sizes."""
    x, *others = o.present
    seen = m.at(x)
    if o.type == "Gather" and number(others[0]) and others[0].value is not None:
        axis = o.attrs.get("axis", 0) % max(len(seen.shape), 1)
        part = tuple(1 if i == axis else d for i, d in enumerate(seen.shape))
        start = int(others[0].value[0]) % max(seen.shape[axis], 1)
        m.put(o.out, seen.sliced(axis, start, part).reshaped(o.out.shape))
        return
    taps = TAPS.get(o.attrs.get("mode", ""), 1) if o.type in ("Resize", "Upsample") else 1
    indices = [m.at(others[0])] if o.type.startswith("Gather") else []
    reads = [r._replace(elements=min(r.elements, o.out.size)) for r in _again(seen, taps, o.name)]
    m.computed(o, [seen, *indices], [*reads, *(r for v in indices for r in _again(v, 1, o.name))], taps, 4 + taps)


def concat(m: Memory, o: Operator) -> None:
    """Within a loop, or each operand is written to its place, which takes a copy of what lies elsewhere."""
    operands = [m.at(t) for t in o.present]
    copied = [not v.box.flexible for v in operands]
    alone = not any(t.name in m.graph.output_names for t in o.present)
    within = alone and ((any(copied) and only_elementwise(m, o.out)) or all(copied))
    if len(operands) <= MOST_JOINED and within and not any(_read_again(m, o, t) for t in o.present):
        m.computed(
            o, operands, (r for i, v in enumerate(operands) for r in _again(v, 1, (o.name, i))), 1, len(operands)
        )
        return
    last = o.out.rank == 4 and (m.all_last or all(v.strides and suggests_last(v.shape, v.strides) for v in operands))
    whole = channels_last(o.out.shape) if last else m.with_gaps(o.out, contiguous(o.out.shape))
    axis, start, written = o.attrs.get("axis", 0) % max(o.out.rank, 1), 0, list[Tensor]()
    for i, v in enumerate(operands):
        part = replace(o.out, name=f"{o.out.name}#{i}", shape=v.shape)
        if v.box.kept or v.moves:
            box, reads = Box(part, flops=0.0, parts=parts_of([v], o)), v.loads()
        else:  # other readers find it there
            box, reads = v.box, v.box.reads
            box.tensor, box.parts = part, (*box.parts, o)
        walks = [r.strides for r in reads if r.strides is not None]
        m.write(box, reads, whole, start * whole[axis], preferred(part.shape, [whole, *walks]))
        m.seen[part.name] = View(box, part.shape)
        written.append(part)
        start += v.shape[axis]
    m.items.append(Operator(o.name, "Concat", tuple(written), (o.out,), o.attrs, 0, o.nodes, "free"))
    m.lies(o.out, whole)


def _read_again(m: Memory, o: Operator, t: Tensor) -> bool:
    """Whether a tensor that is joined is computed for others too, or read by elementwise operators, or joined again."""
    others = [r for r in m.readers[t.name] if r is not o]
    return bool(others) and (not m.at(t).box.kept or any(r.type in ELEMENTWISE or r.type == "Concat" for r in others))


def only_elementwise(m: Memory, t: Tensor) -> bool:
    """Whether elementwise operators alone read a tensor, through whatever views."""
    among, waiting = ELEMENTWISE | {"BatchNormalization", "Concat", "Pad"}, [t.name]
    while waiting:
        name = waiting.pop()
        readers = m.readers[name]
        if name in m.graph.output_names or any(o.type not in among | VIEWS for o in readers):
            return False
        waiting += [out.name for o in readers if o.type not in among for out in o.outputs]
    return True


# Views


def reshape(m: Memory, o: Operator) -> None:
    """The same elements in another shape; where PyTorch has no such view, of a copy."""
    x = m.at(o.present[0])
    lie = x.eager
    if x.shape != o.out.shape and (lie is None or as_view(x.shape, lie, o.out.shape) is None):
        x = m.clone(o.present[0], o)
    m.put(o.out, x.reshaped(o.out.shape))


def transpose(m: Memory, o: Operator) -> None:
    """Axes in another order."""
    x = m.at(o.present[0])
    perm = o.attrs.get("perm") or range(len(x.shape))[::-1]
    m.put(o.out, x.by("transpose", o.out.shape, tuple(perm)))


def expand(m: Memory, o: Operator) -> None:
    """Repeated along axes."""
    m.put(o.out, m.at(o.present[0]).expanded(o.out.shape))


def split(m: Memory, o: Operator) -> None:
    """Parts along one axis."""
    x, start = m.at(o.present[0]), 0
    axis = o.attrs.get("axis", 0) % max(len(x.shape), 1)
    for t in o.outputs:
        m.put(t, x.sliced(axis, start, t.shape))
        start += t.shape[axis]


def cut(m: Memory, o: Operator) -> None:
    """From a start on, in steps, along some axes; backwards it is computed."""
    x = m.at(o.present[0])
    starts, steps = [0] * len(x.shape), [1] * len(x.shape)
    firsts, step_of = value(o, 1), value(o, 4)
    for i, axis in enumerate(int(a) for a in value(o, 3) or range(len(firsts))):
        size, first = x.shape[axis], int(firsts[i])
        starts[axis] = min(max(first + size if first < 0 else first, 0), max(size - 1, 0))
        steps[axis] = int(step_of[i]) if step_of else 1
    if min(steps, default=1) < 0:  # flip: PyTorch has no view that goes backwards
        m.computed(o, [x], _again(x, 1, o.name), 1, 1)
    else:
        m.put(o.out, x.by("slice", o.out.shape, (*starts, *steps)))


def shuffle(m: Memory, o: Operator) -> None:
    """Blocks of pixels to channels or back, as a view of six axes."""
    x = m.at(o.present[0])
    n, c, h, w = x.shape
    b = o.attrs["blocksize"]
    if o.type == "SpaceToDepth":
        wide, perm = (n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4)
    elif o.attrs.get("mode", "DCR") == "DCR":
        wide, perm = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    else:
        wide, perm = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    turned = x.reshaped(wide).by("transpose", tuple(wide[i] for i in perm), perm)
    m.put(o.out, turned.reshaped(o.out.shape))


# Calls of libraries


def _dense(shape: Shape, strides: Strides) -> bool:
    return lies(shape, strides, contiguous(shape))


def _anyhow(shape: Shape, strides: Strides) -> bool:
    return True


def _made(m: Memory, o: Operator, strides: Mapping[str, Strides] | None = None) -> None:
    """A call, whose results lie in memory, contiguous if no strides are told."""
    m.items.append(o)
    for t in o.outputs:
        m.lies(t, (strides or {}).get(t.name) or contiguous(t.shape))


def call(m: Memory, o: Operator) -> None:
    """A library's kernel, or the host, whose operands lie in memory."""
    read = (t if t is None or number(t) else m.as_read(t, o, _dense) for t in o.inputs)
    _made(m, replace(o, inputs=tuple(read), place="host" if o.type in CONTROL else o.place))


def attention(m: Memory, o: Operator) -> None:
    """Queries, keys and values with any strides but of their last axis, which eager PyTorch has to have next to each
    other as well (`sdpa_constraint`). FlashAttention's result lies as the queries that it reads do, that of other
    kernels head by head. Heads are padded to a multiple of 8.
    """

    def fits(t: Tensor) -> Callable[[Shape, Strides], bool]:
        eager = m.eager_strides(t)
        by_rows = not eager or eager[-1] == 1 or t.shape[-1] == 1

        def of(shape: Shape, strides: Strides) -> bool:
            rows = not strides or strides[-1] == 1 or shape[-1] == 1
            return rows and (by_rows or in_order_of(shape, strides, contiguous(shape)))

        return of

    read = [
        t and (_padded(m, o, t) if i < 3 and t.shape[-1] % PADDED_HEAD else m.as_read(t, o, fits(t)))
        for i, t in enumerate(o.inputs)
    ]
    t, o = o.out, replace(o, attrs={**o.attrs, ALONE: 1})
    if t.rank != 4:
        _made(m, replace(o, inputs=tuple(read)))
        return
    whole = replace(t, name=f"{t.name}#heads", shape=(*t.shape[:-1], -(-t.shape[-1] // PADDED_HEAD) * PADDED_HEAD))
    whole = t if whole.shape == t.shape else whole
    queries = _strides_of(m, o.present[0], read[0] or o.present[0]) if whole is t else m.eager_strides(o.present[0])
    flash = t.dtype in HALF and len(o.present) == 3
    lie = dense(whole.shape, queries) if flash and queries else _by_heads(whole.shape)
    _made(m, replace(o, inputs=tuple(read), outputs=(whole, *o.outputs[1:])), {whole.name: lie})
    if whole is not t:
        m.put(t, m.at(whole).sliced(3, 0, t.shape))


def _by_heads(shape: Shape) -> Strides:
    """The strides of heads that lie next to each other at each position."""
    _, heads, length, columns = shape
    return (heads * length * columns, columns, heads * columns, 1)


def attention_gradient(m: Memory, o: Operator) -> None:
    """The gradients of queries, keys and values lie as these came."""

    def by_rows(shape: Shape, strides: Strides) -> bool:
        return not strides or strides[-1] == 1 or shape[-1] == 1

    read = tuple(t and m.as_read(t, o, by_rows) for t in o.inputs)
    _made(m, replace(o, inputs=read), {t.name: _by_heads(t.shape) for t in o.outputs if t.rank == 4})


def _by_rows(shape: Shape) -> Strides:
    """The strides of images with rows of all channels next to each other."""
    _, channels, height, width = shape
    return (channels * height * width, width, channels * width, 1)


def weight_gradient(m: Memory, o: Operator) -> None:
    """The gradient of a convolution's weights, in the order of axes of its images. With one channel in, the order of
    these weights' axes is taken from strides of which two are 1, and images are copied to it (kernel/conv.py).
    """
    seen = [m.at(t) for t in o.present]
    last = o.out.rank == 4 and (m.all_last or any(v.strides and suggests_last(v.shape, v.strides) for v in seen))
    wanted = channels_last if last else contiguous
    read = _as_they_lie(m, o, wanted)
    if last and o.out.shape[1] == 1 < o.out.shape[0]:
        read[1] = m.as_read(o.present[1], o, lambda s, strides: lies(s, strides, _by_rows(s)), _by_rows)
    attrs = {**o.attrs, "memory_format": "channels_last"} if last else o.attrs
    _made(m, replace(o, inputs=tuple(read), attrs=attrs), {o.out.name: wanted(o.out.shape)})


def tangent(m: Memory, o: Operator) -> None:
    """The gradient that a backward graph starts from, which eager PyTorch fills."""
    _made(m, replace(o, type="ConstantOfShape"))


def _padded(m: Memory, o: Operator, t: Tensor) -> Tensor:
    """An operand of attention with its heads filled up with zeros, in memory."""
    columns = -(-t.shape[-1] // PADDED_HEAD) * PADDED_HEAD
    wide = replace(t, name=f"{t.name}#pad#{o.name}", shape=(*t.shape[:-1], columns), kind="activation", value=None)
    x = m.at(t)
    m.seen[wide.name] = View(Box(wide, tuple(_again(x, 1, wide.name)), 2, 0.0, parts_of([x], o)), wide.shape)
    return m.as_read(wide, o, _anyhow)


def convolution(m: Memory, o: Operator) -> None:
    """In channels_last where all are, or its image or weights lie so; its bias is added by whoever reads it."""
    if o.out.rank != 4:
        last = False
    else:
        seen = [m.at(t).strides for t in o.present[:2]]
        last = m.all_last or any(s and suggests_last(t.shape, s) for t, s in zip(o.present, seen, strict=False))
    wanted = channels_last if last else contiguous
    if phase_of(o) == FORWARD:
        there = [m.as_read(t, o, lambda s, strides: in_order_of(s, strides, wanted(s)), wanted) for t in o.present[:2]]
        read = [_whole(m, o, t, x, wanted) for t, x in zip(o.present, there, strict=False)]
    else:
        read = _as_they_lie(m, o, wanted)
    attrs = {**o.attrs, "memory_format": "channels_last"} if last else o.attrs
    bias = o.inputs[2] if len(o.inputs) > 2 else None
    if bias is not None and not m.all_last:  # constrain_conv_to_fx_strides
        m.keep(m.at(bias))
    column = None if bias is None else m.at(bias).reshaped((1, bias.size, *(1 for _ in o.out.shape[2:])))
    _with_bias(m, replace(o, inputs=tuple(read), attrs=attrs), wanted(o.out.shape), column)


def _as_they_lie(m: Memory, o: Operator, wanted: Callable[[Shape], Strides]) -> list[Tensor]:
    """The operands of a gradient as they are; the library copies what lies in another order."""
    return [_whole(m, o, t, m.as_read(t, o, _anyhow), wanted) for t in o.present]


def _strides_of(m: Memory, t: Tensor, there: Tensor) -> Strides | None:
    """The strides of a tensor that a library reads, `there` in memory: itself or a copy."""
    seen = m.at(t)
    return seen.strides if there.name == seen.box.tensor.name else m.at(there).strides


def _whole(m: Memory, o: Operator, t: Tensor, there: Tensor, wanted: Callable[[Shape], Strides]) -> Tensor:
    """An operand, `there` in memory, as the library reads it, which copies what has gaps or lies in another order
    (`cudnn_convolution` in ATen/native/cudnn/ConvShared.cpp).
    """
    if lies(t.shape, _strides_of(m, t, there) or contiguous(t.shape), wanted(t.shape)):
        return there
    copy = replace(t, name=f"{t.name}#contiguous#{o.name}", kind="activation", value=None)
    _made(m, Operator(copy.name, "Contiguous", (there,), (copy,), {}, 0, o.nodes, "copy"), {copy.name: wanted(t.shape)})
    return copy


def product(m: Memory, o: Operator) -> None:
    """Matrices with one unit stride and leading axes that are one. A bias is added by the elementwise operators that
    read the result, if no other do.
    """

    def fits(shape: Shape, strides: Strides) -> bool:
        return multipliable(Tensor("", "float32", shape), strides)

    x, bias = o.inputs[0], o.inputs[2] if len(o.inputs) > 2 else None
    strided = x is not None and x.rank > 2 and m.at(x).eager != contiguous(x.shape)  # torch adds it apart then
    first = x
    if x is not None and strided and any(phase_of(r) == BACKWARD and r.type == "Reshape" for r in m.readers[x.name]):
        first = m.clone(x, o).box.tensor  # the gradient of the weights reads it too, as one matrix
    elif x is not None and x.rank > 2 and not m.at(x).moves:
        m.keep(m.at(x), eager=True)
    if first is not None and first.rank > 2 and len(o.present) > 1 and o.present[1].rank == 2:
        first = _as_rows(m, first, o)
    read = tuple(t and m.as_read(t, o, fits) for t in (first, *o.inputs[1:2]))
    apart = strided or (only_elementwise(m, o.out) and not (m.ways.adds_in_half and o.out.dtype in HALF))
    if bias is None or apart:
        _with_bias(m, replace(o, inputs=read), contiguous(o.out.shape), m.at(bias) if bias is not None else None)
    else:
        _made(m, replace(o, inputs=(*read, m.as_read(bias, o, _anyhow))))


def _as_rows(m: Memory, t: Tensor, o: Operator) -> Tensor:
    """A tensor whose rows a product takes as those of one matrix, copied as such where gaps are in the way."""
    seen = m.at(t)
    rows = prod(t.shape[:-1]), t.shape[-1]
    if seen.strides is None or not in_order_of(t.shape, seen.strides, contiguous(t.shape)):
        return t
    if as_view(t.shape, seen.strides, rows) is not None:
        return t
    matrix = replace(t, name=f"{t.name}#rows#{o.name}", shape=rows, kind="activation", value=None)
    m.seen[matrix.name] = View(copied(matrix, seen.reshaped(rows), o), rows)
    return replace(matrix, shape=t.shape)


def _with_bias(m: Memory, o: Operator, strides: Strides, bias: View | None) -> None:
    """A product, and the addition of a bias as an elementwise operator."""
    if bias is None:
        _made(m, o, {o.out.name: strides})
        return
    before = replace(o.out, name=f"{o.out.name}#sum")
    _made(m, replace(o, outputs=(before,)), {before.name: strides})
    added = replace(o, name=f"{o.name}#bias", type="Add", version=0, inputs=(before, bias.box.tensor), attrs={})
    _spread(m, added, [m.at(before), bias])


def _output(m: Memory, t: Tensor) -> None:
    """An output of the graph lies in memory."""
    if t.name not in m.seen:
        return
    read = m.as_read(t, None, _anyhow)
    maker = m.graph.made_by(t)
    if read.name != t.name and maker is not None:
        m.items.append(Operator(f"{t.name}#view", "Identity", (read,), (t,), {}, 0, maker.nodes, "free"))


def _each(
    function: Callable[[Memory, Operator], None], types: Iterable[str]
) -> dict[str, Callable[[Memory, Operator], None]]:
    return dict.fromkeys(types, function)


#: How an operator is lowered, by its type; others are calls.
LOWERED: Mapping[str, Callable[[Memory, Operator], None]] = {
    **_each(elementwise, ELEMENTWISE), **_each(source, SOURCES), **_each(reshape, RESHAPES), **_each(shuffle, SHUFFLES),
    **_each(norm, NORMS), **_each(shares, SHARES), **_each(reduction, REDUCTIONS), **_each(window, WINDOWS),
    **_each(indexed, INDEXED), **_each(convolution, CONVOLUTIONS), **_each(product, PRODUCTS), "Attention": attention,
    **_each(window_gradient, WINDOW_GRADIENTS), "torch::attention_backward": attention_gradient,
    "torch::convolution_weight_gradient": weight_gradient, "torch::dropout": dropout, INDEX_PUT: index_put,
    MAX_SUM: max_sum, TANGENT: tangent, VAR_MEAN: var_mean,
    "BatchNormalization": batch_norm, "Concat": concat, "Expand": expand, "Slice": cut, "Split": split,
    "Transpose": transpose,
}  # fmt: skip
