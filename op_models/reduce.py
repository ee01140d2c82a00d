"""Reductions along rows: softmax, reduce, arg, cumulative sums, selection."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from op_models.axes import Axes, by_axis, by_row, numbered, told
from op_models.core import BITS, Maybe, Operator, Pointwise, Rows, Tensor, Work, given, work
from op_models.pointwise import DEQUANTISE, REQUANTISE, SPECIAL
from op_models.rules import Like, OutputRule, Outputs, as_first, op

#: FLOPs of a softmax per element: maximum, difference, exp, sum, and the factor 1/sum (one division per row).
SOFTMAX = 4 + SPECIAL


def along(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """The number of rows and their width where one axis is reduced; a scalar is one row of one element."""
    if not shape:
        return 1, 1
    axis %= len(shape)
    return prod(shape[:axis] + shape[axis + 1 :]), shape[axis]


def beyond(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """The number of rows and their width where all axes from `axis` on form the row."""
    return prod(shape[:axis]), prod(shape[axis:])


def softmax_rows(op: Operator, x: Tensor, axis: int | None) -> tuple[int, int]:
    """Before opset 13 all axes from `axis` on (1 by default) form the row, since then one axis (the last)."""
    if 0 < op.version < 13:
        return beyond(x.shape, 1 if axis is None else axis)
    return along(x.shape, -1 if axis is None else axis)


#: As `softmax_rows`.
SHARES = by_axis("takes shares along {}", onward_before=13)


@op("Softmax", "LogSoftmax", axes=SHARES)
def softmax(op: Operator, x: Tensor, *, axis: int | None = None) -> Work:
    """Three sweeps: maximum, sum of exp(x - maximum), scale. LogSoftmax has a logarithm for the division."""
    rows, width = softmax_rows(op, x, axis)
    return work(op, Rows(rows, width, 2), vector=x.size * SOFTMAX + rows * SPECIAL)


@op("MaskedSoftmax")
def masked_softmax(op: Operator, x: Tensor, mask: Maybe = None) -> Work:
    """Softmax with one thread per element, in blocks of 32 to 1024: that of ONNX Runtime's unfused attention."""
    rows, width = softmax_rows(op, x, -1)
    block = min(max(32, 2 ** (width - 1).bit_length()), 1024)
    return work(op, Rows(rows, width, 2, block), vector=x.size * (SOFTMAX + given(mask)) + rows * SPECIAL)


@op("com.microsoft::QLinearSoftmax", outputs=as_first)
def quantised_softmax(op: Operator, x: Tensor, *, axis: int = -1) -> Work:
    """Softmax along one axis between a dequantisation and a requantisation."""
    rows, width = along(x.shape, axis)
    return work(op, Rows(rows, width, 2), vector=x.size * (DEQUANTISE + SOFTMAX + REQUANTISE) + rows * SPECIAL)


@op("SoftmaxCrossEntropyLoss")
def cross_entropy(op: Operator, x: Tensor, labels: Tensor, weights: Maybe = None) -> Work:
    """LogSoftmax over axis 1; one score of each row is weighted and summed."""
    rows, width = along(x.shape, 1)
    return work(op, Rows(rows, width, 2), vector=x.size * SOFTMAX + rows * (SPECIAL + 2 + given(weights)))


@op("NegativeLogLikelihoodLoss")
def likelihood(op: Operator, x: Tensor, labels: Tensor, weights: Maybe = None) -> Work:
    """One score per label is negated, weighted and summed."""
    return work(op, Rows(1, labels.size), vector=labels.size * (2 + given(weights)), read={0: labels.size})


@op("Hardmax", axes=SHARES)
def hardmax(op: Operator, x: Tensor, *, axis: int | None = None) -> Work:
    """1 comparison per element, then a sweep that writes."""
    return work(op, Rows(*softmax_rows(op, x, axis), 1), vector=x.size)


@op("com.microsoft::BiasSoftmax", outputs=as_first)
def bias_softmax(op: Operator, x: Tensor, bias: Tensor, *, axis: int = 1) -> Work:
    """Softmax of x + bias; all axes from `axis` on form the row."""
    rows, width = beyond(x.shape, axis)
    return work(op, Rows(rows, width, 2), vector=x.size * (1 + SOFTMAX) + rows * SPECIAL)


#: Vector FLOPs of one element read, those of one result, and the sweeps beyond the first.
REDUCE: dict[str, tuple[int, int, int]] = {
    **dict.fromkeys(("ArgMax", "ArgMin", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"), (1, 0, 0)),
    **dict.fromkeys(("ReduceL1", "ReduceSumSquare", "com.microsoft::IsAllFinite"), (2, 0, 0)),
    "ReduceL2": (2, SPECIAL, 0),
    "ReduceLogSum": (1, SPECIAL, 0),
    "ReduceLogSumExp": (3 + SPECIAL, 1 + SPECIAL, 1),  # maximum + log of the sum of exp(x - maximum)
    "ReduceMean": (1, 1, 0),
    "com.microsoft::QLinearReduceMean": (1, 2 + REQUANTISE, 0),
    "com.microsoft::ReduceSumInteger": (1, 0, 0),
}


def inside_rows(
    op: Operator, x: Tensor, chosen: Maybe = None, *, axes: Sequence[int] = (), axis: int = 0,
    noop_with_empty_axes: int = 0,
) -> set[int]:  # fmt: skip
    """The axes that are added up: an attribute, or since some opset an input; without any it is all of them. Raises
    Unknown where they are made in the run.
    """
    named = (axis,) if op.type.startswith("Arg") else axes or (told(chosen) if chosen is not None else ())
    return {k % max(x.rank, 1) for k in named or (() if noop_with_empty_axes else range(x.rank))}


def reduced_axes(
    op: Operator, x: Tensor, chosen: Maybe = None, *, axes: Sequence[int] = (), axis: int = 0, keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Axes:  # fmt: skip
    """Axes that go, or become 1."""
    inside = inside_rows(op, x, chosen, axes=axes, axis=axis, noop_with_empty_axes=noop_with_empty_axes)
    left = numbered(x.rank, inside)
    outputs = tuple(name for k, name in enumerate(left) if keepdims or k not in inside)
    return Axes((numbered(x.rank) if op.type == "ReduceSum" else left,), (outputs,), "reduces along {}")


def summed(x: Tensor, *, axes: Sequence[int], keepdims: int = 1) -> Outputs:
    """In 32 bits, without these axes or with a length of 1 along them."""
    inside = {axis % x.rank for axis in axes}
    return [("int32", tuple([1 if k in inside else d for k, d in enumerate(x.shape) if keepdims or k not in inside]))]


OUTPUTS: dict[str, OutputRule] = {
    "com.microsoft::IsAllFinite": lambda *tensors: [("bool", ())],
    "com.microsoft::QLinearReduceMean": Like("ReduceMean"),
    "com.microsoft::ReduceSumInteger": summed,
}
REDUCED = [t for t in REDUCE if "::" not in t]


@op(*REDUCE, outputs=OUTPUTS, axes=dict.fromkeys(REDUCED, reduced_axes))
def reduce(op: Operator, x: Tensor, *, run: int = 0, apart: int = 0) -> Work:
    """A row per output element, so neither axes nor keepdims need to be read. `run`: of a column, under PyTorch;
    `apart`: of elements that lie apart, under ONNX Runtime."""
    element, result, passes = REDUCE[op.type]
    rows = op.out.size
    size = Rows(rows, x.size // rows if rows else 0, passes, run=0 if passes else run, apart=bool(apart))
    return work(op, size, vector=x.size * element + rows * result)


def cumulated_axes(op: Operator, x: Tensor, axis: Tensor) -> Axes:
    """Its axis is an input."""
    return by_row(op, x, told(axis), "adds up along {}")


@op("CumSum", "CumProd", axes={"CumSum": cumulated_axes})
def cumulate(op: Operator, x: Tensor, axis: Maybe = None, *, serial: int = 0) -> Work:
    """1 per element; an axis that is known only at run time is assumed to be the last. Where a runtime marks it
    `serial`, each element's own thread adds all that come before it: (width + 1) / 2 per element."""
    numbers = axis.value if axis is not None else None
    rows, width = along(x.shape, int(numbers[0]) if numbers else -1)
    if serial:
        return work(op, Pointwise(x.size, steps=width), vector=rows * (width * (width + 1) // 2))
    return work(op, Rows(rows, width), vector=x.size)


@op("TopK", axes=by_axis("selects along {}"))
def top_k(op: Operator, x: Tensor, *, axis: int = -1) -> Work:
    """log2(k) + 1 comparisons per element; a radix selection sweeps once for each byte of an element."""
    _, k = along(op.out.shape, axis)
    size = Rows(*along(x.shape, axis), max(BITS[x.dtype] // 8 - 1, 0))
    return work(op, size, vector=x.size * k.bit_length())


@op("Unique", "com.microsoft::Unique")
def unique(op: Operator, x: Tensor) -> Work:
    """A radix sort, one sweep for each byte of an element, and 1 comparison of neighbours."""
    return work(op, Rows(1, x.size, max(BITS[x.dtype] // 8, 1)), vector=x.size)


@op("com.microsoft::DynamicTimeWarping")
def time_warping(op: Operator, x: Tensor) -> Work:
    """3 per cell: the minimum of three neighbours plus its own cost; one block works along the anti-diagonals."""
    return work(op, Rows(1, x.size), vector=3 * x.size)
