"""Where operators leave the batch, for those that compute each sample by itself; others have no rule here.

A rule is given a node with the batch in at least one input. It answers the place of the batch in each output, one place
for all of them, or None where the outputs' own shapes tell. It asks for edits where constants hold the batch. It raises
`Across` where samples are not computed apart, `Unproved` where constants hold what can't be told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnxperf.graph.batch_moves import MOVES
from onnxperf.graph.batch_node import NodeAt
from onnxperf.graph.batch_place import Across, Place, SameMemory, axes_of
from op_models.pointwise import SIMPLE, SPECIALS

Places = Place | SameMemory | tuple[Place | None, ...] | None


def elementwise(n: NodeAt) -> Place:
    """Operands are spread over each other's axes."""
    return n.spread([i for i, t in enumerate(n.inputs) if t is not None])


def first(n: NodeAt) -> Place:
    """The output is like the first input; the others are parameters."""
    return n.only()


def image(n: NodeAt) -> Place:
    """[N, C, ...]: each image by itself."""
    place = n.only()
    if place.axis:
        raise Across("the batch is not the leading dimension of its input")
    if n.attrs.get("training_mode"):
        raise Across("it takes the mean of all samples")
    return place


def product(n: NodeAt, a: int = 0, b: int = 1) -> Place:
    """MatMul of the inputs a and b."""
    left, right, p, q = n.shape(a), n.shape(b), n.place(a), n.place(b)
    rank = len(n.out())
    if any(i not in (a, b) and place is not None for i, place in enumerate(n.places)):
        raise Across("a parameter depends on the batch")
    if (p and p.axis == len(left) - 1) or (q and q.axis == max(len(right) - 2, 0)):
        raise Across("it adds up along the batch")
    rows = p is not None and p.axis == len(left) - 2
    columns = q is not None and q.axis == len(right) - 1
    if rows or columns:
        if p is not None and q is not None:
            raise Across("it multiplies samples with each other")
        if p is not None:
            return Place(rank - 1 - (len(right) > 1), p.parts)
        return Place(rank - 1, q.parts if q is not None else 1)
    spread = n.spread([a, b], [max(len(left) - 2, 0), max(len(right) - 2, 0)])
    return spread


def quantised_product(n: NodeAt) -> Place:
    """QLinearMatMul: scales and zero points between the operands."""
    return product(n, 0, 3)


def gemm(n: NodeAt) -> Place:
    """Rows of the first or columns of the second operand, and a bias spread over both."""
    rows, columns = int(bool(n.attrs.get("transA"))), int(not n.attrs.get("transB"))
    p, q = n.place(0), n.place(1)
    if p is not None and q is not None:
        raise Across("it multiplies samples with each other")
    if (p and p.axis != rows) or (q and q.axis != columns):
        raise Across("it adds up along the batch")
    if p is None and q is None:
        raise Across("only its bias depends on the batch")
    place = Place(0, p.parts) if p else Place(1, q.parts if q else 1)
    if n.has(2):
        axis = place.axis - 2 + len(n.shape(2))
        if n.place(2) is not None or (axis >= 0 and n.shape(2)[axis] != 1):
            n.require(2, Place(axis, place.parts))
    return place


def along(default: int, does: str, flattens_before: int = 0) -> Callable[[NodeAt], Place]:
    """Operators that compute along one axis; before some opset along all from that axis on."""

    def rule(n: NodeAt) -> Place:
        rank = len(n.shape(0))
        old = n.version < flattens_before
        axis = n.axis(default=1 if old else default)
        return n.apart(n.only(), range(axis, rank) if old else (axis,), does)

    return rule


def layer_norm(n: NodeAt) -> Place:
    """From an axis to the last."""
    place, rank = n.only(), len(n.shape(0))
    return n.apart(place, range(n.axis(default=-1), rank), "normalises")


def skip_layer_norm(n: NodeAt) -> Place:
    """A sum of two, then along the last axis."""
    if any(n.place(i) for i in range(2, len(n.inputs))):
        raise Across("a parameter depends on the batch")
    return n.apart(n.spread([0, 1]), (len(n.shape(0)) - 1,), "normalises")


def mean_variance(n: NodeAt) -> Place:
    """Over axes 0, 2 and 3 unless it is told others."""
    return n.apart(n.only(), axes_of(n.attrs.get("axes", (0, 2, 3)), len(n.shape(0))), "normalises")


def cumulative(n: NodeAt) -> Place:
    """CumSum: its axis is an input."""
    return n.apart(n.only(), axes_of(n.value(1).ravel().tolist(), len(n.shape(0))), "adds up")


def reduction(n: NodeAt) -> Place:
    """Axes that go, or become 1."""
    place, rank = n.only(), len(n.shape(0))
    axes = n.axes()
    if not axes:
        axes = () if n.attrs.get("noop_with_empty_axes") else tuple(range(rank))
    n.apart(place, axes, "reduces")
    gone = 0 if n.attrs.get("keepdims", 1) else sum(a < place.axis for a in axes)
    return Place(place.axis - gone, place.parts)


def arg_reduction(n: NodeAt) -> Place:
    """ArgMax and ArgMin: one axis."""
    place, axis = n.only(), n.axis()
    n.apart(place, (axis,), "reduces")
    return Place(place.axis - (not n.attrs.get("keepdims", 1) and axis < place.axis), place.parts)


def top(n: NodeAt) -> Place:
    """TopK along an axis."""
    return n.apart(n.only(), (n.axis(default=-1),), "selects")


def triangle(n: NodeAt) -> Place:
    """Trilu: the last two axes are a matrix."""
    rank = len(n.shape(0))
    return n.apart(n.only(), (rank - 2, rank - 1), "masks")


def one_hot(n: NodeAt) -> Place:
    """One more axis."""
    place, rank = n.only(), len(n.shape(0)) + 1
    return Place(place.axis + (place.axis >= n.axis(default=-1, rank=rank)), place.parts)


def grid_sample(n: NodeAt) -> Place:
    """Images, and where they are read: one of each for a sample."""
    place = Place(0, (n.place(0) or n.place(1) or Place(0)).parts)
    n.require(0, place)
    n.require(1, place)
    return place


def recurrent(n: NodeAt) -> tuple[Place | None, ...]:
    """[sequence, batch, size], or with layout 1 the batch first; lengths and initial states have the batch, too."""
    first = bool(n.attrs.get("layout"))
    at = Place(0 if first else 1)
    if n.place(0) != at:
        raise Across("the batch is not where it reads one")
    if any(n.place(i) for i in (1, 2, 3, 7)):
        raise Across("a parameter depends on the batch")
    if n.has(4):
        n.require(4, Place(0))
    for i in (5, 6):
        if n.has(i):
            n.require(i, at)
    return (Place(0) if first else Place(2), at, at)


def attention(n: NodeAt) -> Place:
    """Queries, keys and values, now and before, of one sample; a mask that is spread over the scores."""
    place = Place(0)
    for i in (0, 1, 2, 4, 5, 6):
        if n.has(i):
            n.require(i, place)
    if n.has(3):
        rank = len(n.shape(3))
        if n.place(3) not in (None, Place(0)) or (n.place(3) and rank != 4):
            raise Across("its mask holds the batch elsewhere")
        if rank == 4 and n.shape(3)[0] != 1:
            n.require(3, place)
    return place


def einsum(n: NodeAt) -> Place:
    """The batch has one letter, which stays."""
    equation = str(n.attrs.get("equation", "")).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    letters = terms.split(",")
    if not arrow or "." in equation or len(letters) != len(n.inputs):
        raise Across("its equation leaves axes open")
    held = [(term[p.axis], p.parts, n.shape(i)[p.axis]) for i, term in enumerate(letters) if (p := n.place(i))]
    if len(set(held)) != 1:
        raise Across("its inputs hold the batch in different axes")
    letter, parts, size = held[0]
    if letter not in result:
        raise Across("it adds up along the batch")
    if any(term.count(letter) > 1 for term in (*letters, result)):
        raise Across("it takes a diagonal of the batch")
    for i, term in enumerate(letters):
        if letter in term and n.place(i) is None:
            if n.shape(i)[term.index(letter)] != size:
                raise Across("it spreads the batch over another axis")
            n.require(i, Place(term.index(letter), parts))
    return Place(result.index(letter), parts)


def dynamic_quantise(n: NodeAt) -> tuple[Place | None, ...]:
    """The values have the batch; one scale and one zero point are of all samples."""
    return n.only(), None, None


def measured(n: NodeAt) -> tuple[Place | None, ...]:
    """Shape and Size: what they say depends on the batch, its own shape does not."""
    return (None,)


Rule = Callable[[NodeAt], Places]
RULES: Mapping[str, Rule] = {
    **MOVES,
    **dict.fromkeys((
        *SIMPLE, *SPECIALS, "Max", "Min", "Mean", "Mod", "Pow", "PRelu", "Sum", "com.microsoft::BiasGelu",
        "com.microsoft::FastGelu", "com.microsoft::BiasAdd",
    ), elementwise),
    **dict.fromkeys((
        "Cast", "CastLike", "Celu", "Clip", "DequantizeLinear", "Dropout", "Elu", "Gelu", "HardSigmoid", "HardSwish",
        "Identity", "LeakyRelu", "Mish", "QuantizeLinear", "Selu", "Shrink", "Sigmoid", "Softplus", "Softsign",
        "Swish", "ThresholdedRelu", "com.microsoft::Gelu", "com.microsoft::QuickGelu",
    ), first),
    **dict.fromkeys((
        "AveragePool", "BatchNormalization", "Col2Im", "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace",
        "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN",
        "LpPool", "MaxPool", "QLinearConv", "SpaceToDepth",
    ), image),
    **dict.fromkeys(("MatMul", "MatMulInteger"), product),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), layer_norm),
    **dict.fromkeys((
        "com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization",
    ), skip_layer_norm),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), along(-1, "takes shares", flattens_before=13)),
    "LpNormalization": along(-1, "normalises"),
    **dict.fromkeys((
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
        "ReduceProd", "ReduceSum", "ReduceSumSquare",
    ), reduction),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_reduction),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
    **dict.fromkeys(("Shape", "Size"), measured),
    "Attention": attention,
    "CumSum": cumulative,
    "DynamicQuantizeLinear": dynamic_quantise,
    "Einsum": einsum,
    "Gemm": gemm,
    "GridSample": grid_sample,
    "MeanVarianceNormalization": mean_variance,
    "OneHot": one_hot,
    "QLinearMatMul": quantised_product,
    "TopK": top,
    "Trilu": triangle,
}  # fmt: skip


def places_of(n: NodeAt) -> Places:
    """Where a node leaves the batch. Raises Across for operators without a rule."""
    if n.type not in RULES:
        raise Across("whether it computes each sample by itself is not known")
    try:
        return RULES[n.type](n)
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):  # forms that the operator can't have
        raise Across("it has a form that is not understood") from None
