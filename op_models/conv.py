"""Convolutions: 2 FLOPs for every kernel element (tap) and channel of every output, also where it lies on padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod

from op_models.axes import Axes, by_pattern
from op_models.core import NHWC, Conv, Gemm, Maybe, Operator, Tensor, Work, given, work
from op_models.pointwise import REQUANTISE, SIGMOID, activated
from op_models.rules import Like, Outputs, op

LAST = "channels_last"
INTERPOLATE = 2 * 4  # four neighbours, weighted


def of_one_group(pattern: str) -> Callable[..., Axes]:
    """Images by themselves, and channels of the result; in several groups these need channels of their own alone."""

    def rule(op: Operator, *, group: int = 1) -> Axes:
        return by_pattern(op, f"{pattern if group == 1 else 'N ... -> N ...'} | convolves along {{}}")

    return rule


@op("QLinearConv", inputs=(0, 3, 8), axes=of_one_group("N ..., , , o ..., o?, o?, , , o -> N o ..."))
@op("com.microsoft::QLinearConv", inputs=(0, 3, 8), outputs=Like("Conv", (0, 3), dtype=7))
@op("ConvInteger", inputs=(0, 1), axes=of_one_group("N c ..., o c ..., , o? -> N o ..."))
@op("com.microsoft::NhwcConv", "com.microsoft::NhwcFusedConv", outputs=Like("Conv", (0, 1), channels_last=True))
@op(NHWC + "Conv", outputs=Like("Conv", (0, 1), channels_last=True))
@op("com.microsoft::FusedConv", outputs=Like("Conv", (0, 1)))
@op("com.microsoft.nchwc::Conv", outputs=Like("Conv", (0, 1)))
@op("Conv", axes=of_one_group("N c ..., o c ..., o -> N o ..."))
def conv(
    op: Operator, x: Tensor, w: Tensor, b: Maybe = None, z: Maybe = None, *, group: int = 1,
    strides: Sequence[int] | None = None, activation: str = "", channels_last: int = 0, memory_format: str = "",
    native: int = 0,
) -> Work:  # fmt: skip
    """2 N Cout OH OW (Cin/group) KH KW; vector: bias, residual, activation and requantisation, once per output."""
    # channels are the last axis of ONNX Runtime's NHWC operators; under PyTorch's memory_format, of memory alone
    last = bool(channels_last) or "::Nhwc" in op.type or op.type.startswith(NHWC)
    taps, out = prod(w.shape[2:]), prod(op.out.shape[1:-1] if last else op.out.shape[2:])
    cin, stride = x.shape[-1 if last else 1], prod(strides or (1,))
    last = last or memory_format == LAST
    size = Conv(x.shape[0], cin, w.shape[0], out, taps, group, stride, last=last, native=bool(native))
    after = given(b, z) + activated(activation) + REQUANTISE * ("QLinear" in op.type)
    seen = prod(min(1.0, side / max(step, 1)) for side, step in zip(w.shape[2:], strides or (), strict=False))
    read = {0: ceil(x.size * seen)}  # strides wider than the kernel skip the rest
    return work(op, size, matrix=2 * op.out.size * w.shape[1] * taps, vector=op.out.size * after, read=read)


def transposed(
    x: Tensor, w: Tensor, pads: Maybe = None, *, group: int = 1, strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None, output_padding: Sequence[int] | None = None,
) -> Outputs:  # fmt: skip
    """(d - 1) stride + (k - 1) dilation + 1 along each axis, with what is added behind and without padding."""
    n = x.rank - 2
    around = tuple(map(int, pads.value)) if pads is not None and pads.value else (0,) * 2 * n
    steps, holes, more = strides or (1,) * n, dilations or (1,) * n, output_padding or (0,) * n
    sides = [
        (x.shape[2 + a] - 1) * steps[a] + (w.shape[2 + a] - 1) * holes[a] + 1 + more[a] - around[a] - around[a + n]
        for a in range(n)
    ]
    return [(x.dtype, (x.shape[0], w.shape[1] * group, *sides))]


@op(NHWC + "ConvTranspose", outputs=Like("ConvTranspose", (0, 1), channels_last=True))
@op("ConvTranspose", axes=of_one_group("N c ..., c o ..., o -> N o ..."))
@op("com.microsoft::ConvTransposeWithDynamicPads", inputs=(0, 1, 3), outputs=transposed)
def conv_transpose(
    op: Operator, x: Tensor, w: Tensor, b: Maybe = None, *, group: int = 1, strides: Sequence[int] | None = None,
    memory_format: str = "", native: int = 0,
) -> Work:  # fmt: skip
    """2 N Cin H W (Cout/group) KH KW: every input element is multiplied by every tap; vector: the bias."""
    last = op.type.startswith(NHWC)
    taps, out = prod(w.shape[2:]), prod(op.out.shape[1:-1] if last else op.out.shape[2:])
    cin, cout, stride = x.shape[-1 if last else 1], w.shape[1] * group, prod(strides or (1,))
    last = last or memory_format == LAST
    size = Conv(x.shape[0], cin, cout, out, taps, group, stride, "transpose", last, native=bool(native))
    return work(op, size, matrix=2 * x.size * w.shape[1] * taps, vector=op.out.size * given(b))


@op("DeformConv")
def deformable(
    op: Operator, x: Tensor, w: Tensor, offset: Tensor, b: Maybe = None, mask: Maybe = None, *, group: int = 1,
    strides: Sequence[int] | None = None,
) -> Work:  # fmt: skip
    """A convolution whose inputs are interpolated, and masked, once per input channel and tap."""
    plain = conv(op, x, w, b, group=group, strides=strides)
    sampled = x.shape[0] * x.shape[1] * prod(op.out.shape[2:]) * prod(w.shape[2:])
    extra = sampled * (INTERPOLATE + given(mask))
    return work(op, plain.size, matrix=plain.matrix_flops, vector=plain.vector_flops + extra)


def convolved_and_state(x: Tensor, w: Tensor, *, channels_last: int = 0) -> Outputs:
    """As x[batch, channels, length], and the last values of each channel, which the next run begins with."""
    batch, length = x.shape[0], w.shape[-1] - 1
    return [(x.dtype, x.shape), (x.dtype, (batch, length, *x.shape[2:]) if channels_last else (*x.shape[:2], length))]


def causal_axes(op: Operator, *, channels_last: int = 0) -> Axes:
    """Samples and channels by themselves."""
    x = "N . c" if channels_last else "N c ."
    return by_pattern(op, f"{x}, c . ., c, {x} -> {x}, {x}")


@op("com.microsoft::CausalConvWithState", outputs=convolved_and_state, continued={1: 3}, axes=causal_axes)
@op("CausalConvWithState", continued={1: 3}, axes=causal_axes)
def causal_conv(
    op: Operator, x: Tensor, w: Tensor, b: Maybe = None, *, activation: str = "", channels_last: int = 0
) -> Work:
    """A depthwise convolution: 2 taps per output; vector: the bias, and x sigmoid(x) as `activation`."""
    channels, taps = w.shape[0], prod(w.shape[2:])
    length = x.shape[1 if channels_last else -1]
    size = Conv(x.shape[0], channels, channels, length, taps, channels, 1, last=bool(channels_last))
    after = given(b) + (1 + SIGMOID) * (activation in ("silu", "swish"))
    return work(op, size, matrix=2 * x.size * taps, vector=x.size * after)


def embedded_words(words: Tensor, weight: Tensor) -> Outputs:
    """A vector of filters for each word."""
    return [(weight.dtype, (*words.shape[:-1], weight.shape[0]))]


@op("com.microsoft::WordConvEmbedding", outputs=embedded_words)
def word_convolution(op: Operator, words: Tensor, weight: Tensor, bias: Tensor, table: Tensor) -> Work:
    """2 words windows filters taps, the maximum over the windows of a word; each letter is a row of the table."""
    letters, (filters, *_), window = words.shape[-1], weight.shape, weight.shape[-2]
    count, places = words.size // max(letters, 1), max(letters - window + 1, 1)
    size = Gemm(1, count * places, filters, window * table.shape[-1])
    vector = count * places * filters * 3
    matrix = 2 * size.m * size.n * size.k
    return work(op, size, matrix=matrix, vector=vector, dtype=weight.dtype, read={3: words.size * table.shape[-1]})
