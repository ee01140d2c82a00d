"""Convolutions: 2 FLOPs for every tap of every output, whatever the padding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from op_models.core import Conv, Operator, Tensor, Work, given, op, work
from op_models.pointwise import FLOPS

CLIP = 2  # the one fused activation without a fixed cost of its own: two bounds


@op("Conv", "com.microsoft::FusedConv")
def conv(
    op: Operator,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    group: int = 1,
    strides: Sequence[int] | None = None,
    activation: str = "",
) -> Work:
    """2 N Cout OH OW (Cin/group) KH KW; vector: bias, residual and activation, each once an output."""
    taps, out = prod(w.shape[2:]), prod(op.out.shape[2:])
    size = Conv(x.shape[0], x.shape[1], w.shape[0], out, taps, group, prod(strides or (1,)))
    after = given(b, z) + (FLOPS.get(activation, CLIP) if activation else 0)
    return work(op, size, matrix=2 * op.out.size * w.shape[1] * taps, vector=op.out.size * after)


@op("ConvTranspose")
def conv_transpose(
    op: Operator,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    group: int = 1,
    strides: Sequence[int] | None = None,
) -> Work:
    """2 N Cin H W (Cout/group) KH KW: every input element meets every tap; vector: the bias."""
    taps, out = prod(w.shape[2:]), prod(op.out.shape[2:])
    cout = w.shape[1] * group
    size = Conv(x.shape[0], x.shape[1], cout, out, taps, group, prod(strides or (1,)), "transpose")
    return work(op, size, matrix=2 * x.size * w.shape[1] * taps, vector=op.out.size * given(b))
