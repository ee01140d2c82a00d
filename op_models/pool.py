"""Pooling: every element of every window (tap) is accumulated once, also where it lies on padding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from op_models.core import NHWC, Operator, Pointwise, Rows, Tensor, Work, work
from op_models.pointwise import POW, REQUANTISE, SPECIAL
from op_models.rules import Like, op

BY_CHANNEL = "N c ... -> N c ..., N c ..."  # of each image


def pooled(op: Operator, taps: int, tap: int, result: int) -> Work:
    """`tap` FLOPs per tap and `result` FLOPs per output, with one thread per output."""
    return work(op, Pointwise(op.out.size, taps=taps), vector=op.out.size * (taps * tap + result))


def overall(op: Operator, x: Tensor, tap: int, result: int) -> Work:
    """As `pooled`, but with one output per channel, which is a row that many threads share."""
    rows = op.out.size
    return work(op, Rows(rows, x.size // rows if rows else 0), vector=x.size * tap + rows * result)


def lp(p: int) -> tuple[int, int]:
    """FLOPs per tap and per output of a p-norm: the sum of |x|^p, and the p-th root."""
    return {1: (2, 0), 2: (2, SPECIAL)}.get(p, (2 + POW, POW))


@op("com.microsoft::MaxpoolWithMask", "com.microsoft.nchwc::MaxPool", outputs=Like("MaxPool"))
@op("MaxPool", axes=BY_CHANNEL)
@op("com.microsoft::NhwcMaxPool", NHWC + "MaxPool", outputs=Like("MaxPool", channels_last=True))
def max_pool(op: Operator, x: Tensor, *, kernel_shape: Sequence[int]) -> Work:
    """1 comparison per tap."""
    return pooled(op, prod(kernel_shape), 1, 0)


@op("com.microsoft.nchwc::AveragePool", outputs=Like("AveragePool"))
@op("AveragePool", axes=BY_CHANNEL)
@op("com.microsoft::QLinearAveragePool", outputs=Like("AveragePool"))
@op(NHWC + "AveragePool", outputs=Like("AveragePool", channels_last=True))
def average_pool(op: Operator, x: Tensor, *, kernel_shape: Sequence[int]) -> Work:
    """1 addition per tap, and the factor 1/taps; if quantised, scales and zero points are applied per output."""
    return pooled(op, prod(kernel_shape), 1, 1 + (1 + REQUANTISE) * ("QLinear" in op.type))


@op("LpPool", axes=BY_CHANNEL)
def lp_pool(op: Operator, x: Tensor, *, kernel_shape: Sequence[int], p: int = 2) -> Work:
    """The p-norm of the taps."""
    return pooled(op, prod(kernel_shape), *lp(p))


@op(NHWC + "GlobalMaxPool", outputs=Like("GlobalMaxPool", channels_last=True))
@op("com.microsoft.nchwc::GlobalMaxPool", outputs=Like("GlobalMaxPool"))
@op("GlobalMaxPool", axes=BY_CHANNEL)
def global_max_pool(op: Operator, x: Tensor) -> Work:
    """1 comparison per input element."""
    return overall(op, x, 1, 0)


@op(NHWC + "GlobalAveragePool", outputs=Like("GlobalAveragePool", channels_last=True))
@op("com.microsoft.nchwc::GlobalAveragePool", outputs=Like("GlobalAveragePool"))
@op("GlobalAveragePool", axes=BY_CHANNEL)
def global_average_pool(op: Operator, x: Tensor) -> Work:
    """1 addition per input element, and a factor per channel."""
    return overall(op, x, 1, 1)


@op("com.microsoft::QLinearGlobalAveragePool", outputs=Like("GlobalAveragePool"))
def quantised_average(op: Operator, x: Tensor) -> Work:
    """1 addition per input element; zero point, factor and requantisation per channel."""
    rows = op.out.size
    return work(op, Rows(rows, x.size // rows if rows else 0), vector=x.size + rows * (2 + REQUANTISE))


@op("GlobalLpPool", axes=BY_CHANNEL)
def global_lp_pool(op: Operator, x: Tensor, *, p: int = 2) -> Work:
    """The p-norm of each channel."""
    return overall(op, x, *lp(p))
