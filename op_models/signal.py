"""Signals: Fourier transforms, windows, and random numbers."""

from __future__ import annotations

from math import prod

from op_models.core import Maybe, Operator, Pointwise, Rows, Tensor, Work, given, work
from op_models.pointwise import SPECIAL, costing
from op_models.rules import Outputs, op

RANDOM = 25  # integer operations per number: ten rounds of Philox 4x32, ten operations each, make four numbers
NORMAL = 2 + 2 * SPECIAL  # Box-Muller: sqrt(-2 log u) cos(2 pi v); two numbers share root and logarithm

#: Vector FLOPs of one output element.
MADE = {
    "Bernoulli": RANDOM + 1,
    "BlackmanWindow": 5 + 2 * SPECIAL,  # a - b cos(2 pi i / n) + c cos(4 pi i / n)
    "HammingWindow": 3 + SPECIAL,
    "HannWindow": 3 + SPECIAL,
    "MelWeightMatrix": 10,  # a triangle: distances to both neighbours, two slopes, bounds
}


def fft(n: int, real: bool) -> int:
    """5 n log2 n of a complex transform of n points (Cooley and Tukey, 1965); a real one takes half."""
    return 5 * n * max(n - 1, 0).bit_length() // (2 if real else 1)


def transform(op: Operator, count: int, n: int, real: bool, extra: int = 0) -> Work:
    """`count` transforms of n points with `extra` FLOPs each; a transform is a row that is swept twice."""
    return work(op, Rows(count, n, 1), vector=count * (fft(n, real) + extra))


def number(t: Tensor | None) -> int | None:
    """The first number of a tensor whose value is known; else None."""
    return int(t.value[0]) if t is not None and t.value else None


@op("DFT")
def dft(op: Operator, x: Tensor, length: Maybe = None, along: Maybe = None, *, axis: int = 1) -> Work:
    """5 n log2 n per transform; the axis is an attribute up to opset 19, then an input. Without a length, n is that of
    the side that is not half a spectrum, and a transform is real where either side is."""
    chosen = number(along) if along is not None else -2 if op.version >= 20 else axis
    points, results = (t.shape[-2 if chosen is None else chosen] for t in (x, op.out))
    count = x.size // (points * x.shape[-1]) if points * x.shape[-1] else 0
    return transform(op, count, number(length) or max(points, results), 1 in (x.shape[-1], op.out.shape[-1]))


@op("STFT")
def stft(op: Operator, x: Tensor, step: Tensor, window: Maybe = None, length: Maybe = None) -> Work:
    """A transform per frame, and 1 per point for the window."""
    n = number(length) or (window.shape[0] if window is not None else 2 * (op.out.shape[2] - 1))
    return transform(op, prod(op.out.shape[:2]), n, x.rank < 3 or x.shape[-1] == 1, n * given(window))


def half_spectrum(x: Tensor) -> Outputs:
    """Of n real numbers n/2 + 1 complex ones, as pairs."""
    return [(x.dtype, (*x.shape[:-1], x.shape[-1] // 2 + 1, 2))]


def from_half_spectrum(x: Tensor) -> Outputs:
    """Of m complex numbers, as pairs, 2 (m - 1) real ones."""
    return [(x.dtype, (*x.shape[:-2], 2 * (x.shape[-2] - 1)))]


@op("com.microsoft::Rfft", outputs=half_spectrum)
@op("com.microsoft::Irfft", outputs=from_half_spectrum)
def real_fft(op: Operator, x: Tensor, *, signal_ndim: int = 1) -> Work:
    """5/2 n log2 n per transform of the last axes of the real tensor."""
    side = x if op.type.endswith("Rfft") else op.out
    n = prod(side.shape[-signal_ndim:])
    return transform(op, side.size // n if n else 0, n, True)


@op(*MADE)
def make(op: Operator) -> Work:
    """The FLOPs of the table `MADE`, per output element."""
    return costing(op, MADE[op.type])


@op("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike")
def random(op: Operator) -> Work:
    """Per element a number by Philox, made normal if asked for, scaled and shifted; an input gives only its shape."""
    flops = RANDOM + 2 + (NORMAL if "Normal" in op.type else 0)
    return work(op, Pointwise(op.out.size), vector=op.out.size * flops, read={0: 0})


@op("Multinomial")
def multinomial(op: Operator, x: Tensor, *, sample_size: int = 1) -> Work:
    """The cumulative sum of exp along each row, then a binary search per sample."""
    rows, width = x.shape
    search = rows * sample_size * (RANDOM + width.bit_length())
    return work(op, Rows(rows, width, 1), vector=x.size * (1 + SPECIAL) + search)
