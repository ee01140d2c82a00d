"""Backward kernels: gradients of operators' inputs and weights, losses, and what an optimiser does to the parameters.

Types of com.microsoft are those of ONNX Runtime Training, which a graph that holds its backward has; types of torch are
kernels of PyTorch's autograd that no ONNX operator computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from op_models.attention import attention
from op_models.conv import LAST
from op_models.core import IN_REGISTERS, Attention, Conv, Maybe, Move, Operator, Pointwise, Rows, Tensor, Work, work
from op_models.move import concat, split
from op_models.normalize import grouped
from op_models.pointwise import GELU, GELU_TANH, SIGMOID, SOFTPLUS, SPECIAL, costing
from op_models.reduce import along, beyond
from op_models.rules import Outputs, as_first, op

#: Vector FLOPs of one element of a gradient that is elementwise, from the gradient behind it and x or y.
FLOPS: dict[str, int] = {
    "com.microsoft::BiasFastGeluGrad_dX": 2 * GELU_TANH,
    "com.microsoft::BiasGeluGrad_dX": 2 * GELU,
    "com.microsoft::DropoutGrad": 2,
    "com.microsoft::EluGrad": 3 + SPECIAL,
    "com.microsoft::FastGeluGrad": 2 * GELU_TANH,
    "com.microsoft::GeluGrad": 2 * GELU,
    "com.microsoft::HardSigmoidGrad": 3,
    "com.microsoft::LeakyReluGrad": 2,
    "com.microsoft::QuickGeluGrad": 4 + SIGMOID,
    "com.microsoft::ReluGrad": 2,
    "com.microsoft::Scale": 1,
    "com.microsoft::SigmoidGrad": 3,
    "com.microsoft::TanhGrad": 3,
    "torch::clamp_backward": 3,
    "torch::dropout_backward": 2,
    "torch::hardswish_backward": 5,
    "torch::mish_backward": 5 + SPECIAL + SOFTPLUS + SIGMOID,
    "torch::mse_loss_backward": 3,
    "torch::silu_backward": 4 + SIGMOID,
    "torch::softplus_backward": 2 + 2 * SPECIAL,
}


@op(*FLOPS, outputs=dict.fromkeys((t for t in FLOPS if t.startswith("com.")), as_first))
def elementwise(op: Operator) -> Work:
    """The FLOPs of the table `FLOPS`, per element."""
    return costing(op, FLOPS[op.type])


@op("torch::dropout")
def dropout(op: Operator, x: Tensor) -> Work:
    """A random number, a comparison, and a factor; the mask is written as well."""
    return work(op, Pointwise(x.size), vector=x.size * 4)


@op("torch::convolution_weight_gradient")
def weight_gradient(
    op: Operator, grad: Tensor, x: Tensor, *, group: int = 1, strides: Sequence[int] | None = None, transposed: int = 0,
    memory_format: str = "", native: int = 0,
) -> Work:  # fmt: skip
    """As many FLOPs as the convolution itself: every tap of every weight is summed over all positions and images."""
    image, result = (grad, x) if transposed else (x, grad)
    taps, out, stride = prod(op.out.shape[2:]), prod(result.shape[2:]), prod(strides or (1,))
    last = memory_format == LAST
    size = Conv(
        image.shape[0], image.shape[1], result.shape[1], out, taps, group, stride, "weights", last, native=bool(native)
    )
    return work(op, size, matrix=2 * result.size * (image.shape[1] // max(group, 1)) * taps)


@op("com.microsoft::LogSoftmaxGrad", "com.microsoft::LogSoftmaxGrad_13")
@op("com.microsoft::SoftmaxGrad", "com.microsoft::SoftmaxGrad_13", outputs=as_first)
def softmax_gradient(op: Operator, grad: Tensor, y: Tensor, *, axis: int = -1) -> Work:
    """y (grad - sum(grad y)): a sweep that sums, one that writes; an exponential per element for LogSoftmax."""
    # a warp keeps short rows in its registers (softmax_warp_backward in PyTorch and ONNX Runtime), as a softmax does
    each, (rows, width) = 4 + SPECIAL * ("Log" in op.type), along(grad.shape, axis)
    return work(op, Rows(rows, width, 2 if width <= IN_REGISTERS else 1), vector=grad.size * each)


def of_operands(grad: Tensor, x: Tensor, w: Tensor) -> Outputs:
    """The gradients of an image or input, its weights or scale, and a bias."""
    return [(x.dtype, x.shape), (w.dtype, w.shape), (w.dtype, w.shape[:1])]


@op("com.microsoft::ConvGrad", "com.microsoft::ConvTransposeGrad", outputs=of_operands)
def convolution_gradients(op: Operator, grad: Tensor, x: Tensor, w: Tensor, *, group: int = 1) -> Work:
    """As many FLOPs for the image as for the weights; ONNX Runtime runs a kernel for each."""
    transposed, taps = "Transpose" in op.type, prod(w.shape[2:])
    image, result = (grad, x) if transposed else (x, grad)
    size = Conv(image.shape[0], image.shape[1], result.shape[1], prod(result.shape[2:]), taps, group, 1)
    kernels = sum(t.shape in (x.shape, w.shape) for t in op.outputs)
    return work(op, size, matrix=kernels * 2 * result.size * (image.shape[1] // max(group, 1)) * taps)


@op("com.microsoft::LayerNormalizationGrad", "com.microsoft::SimplifiedLayerNormalizationGrad", outputs=of_operands)
@op("torch::layer_norm_backward")
def norm_gradient(op: Operator, grad: Tensor, x: Tensor, *, axis: int = -1) -> Work:
    """Gradient of the input of a normalisation: two sums over each row, then each element."""
    return work(op, Rows(*beyond(x.shape, axis), 1), vector=x.size * 9)


@op("torch::layer_norm_weight_gradient")
def norm_weight_gradient(op: Operator, grad: Tensor, x: Tensor) -> Work:
    """Gradients of scale and bias: each column is summed over all rows, of which a block takes 32 at a time."""
    columns = max(op.out.size, 1)
    return work(op, Rows(columns, x.size // columns, block=32, run=1), vector=x.size * 4)


@op("torch::group_norm_backward")
def group_gradient(op: Operator, grad: Tensor, x: Tensor, *, num_groups: int = 1) -> Work:
    """As of a layer's normalisation, with groups of channels as rows."""
    return work(op, Rows(*grouped(x, num_groups), 1), vector=x.size * 9)


@op("com.microsoft::BatchNormalizationGrad", outputs=of_operands)
@op("torch::batch_norm_backward")
def batch_norm_gradient(op: Operator, grad: Tensor, x: Tensor, *, memory_format: str = "") -> Work:
    """Two sums over each channel, then each element."""
    return work(op, channels(x, memory_format), vector=x.size * 9)


def channels(x: Tensor, memory_format: str) -> Rows:
    """A row for each channel, in two sweeps."""
    number = x.shape[1] if x.rank > 1 else 1
    run = 1 if memory_format == LAST else max(prod(x.shape[2:]), 1)
    return Rows(number, x.size // max(number, 1), 1, run=run)


def normalised_and_statistics(x: Tensor, scale: Tensor) -> Outputs:
    """The result, the running mean and variance, and the batch's mean and inverse deviation."""
    return [(x.dtype, x.shape), *[(scale.dtype, scale.shape)] * 4]


@op("com.microsoft::BatchNormInternal", outputs=normalised_and_statistics)
@op("torch::batch_norm_training")
def batch_norm_training(op: Operator, x: Tensor, *, memory_format: str = "") -> Work:
    """Normalisation by the batch's own mean and variance: two sweeps over each channel."""
    return work(op, channels(x, memory_format), vector=x.size * 7)


@op("MaxPoolGrad", "com.microsoft::MaxPoolGrad", "AveragePoolGrad", "com.microsoft::AveragePoolGrad")
def pooling_gradient(
    op: Operator, grad: Tensor, *, kernel_shape: Sequence[int] = (), strides: Sequence[int] | None = None
) -> Work:  # fmt: skip
    """Each element of an image asks the windows that it is in (max_pool_backward_nchw, avg_pool2d_backward_out_cuda_
    frame in PyTorch): its kernel's sides by the strides, rounded up."""
    windows = prod(ceil(side / max(step, 1)) for side, step in zip(kernel_shape, strides or kernel_shape, strict=False))
    return work(op, Pointwise(op.out.size, taps=windows), vector=grad.size)


@op("com.microsoft::ResizeGrad", "torch::upsample_backward", "torch::scatter_add")
def scattered(op: Operator, grad: Tensor) -> Work:
    """Each element of the gradient is added where it came from."""
    return work(op, Move(grad.size, 1), vector=grad.size, written={0: grad.size})


@op("torch::embedding_backward")
def embedding_gradient(op: Operator, grad: Tensor, ids: Tensor) -> Work:
    """Rows of the gradient are added to the rows of the table that they came from."""
    width = grad.size // max(ids.size, 1)
    return work(op, Move(grad.size, max(width, 1)), vector=grad.size, written={0: grad.size})


@op("com.microsoft::GatherGrad", "com.microsoft::GatherNDGrad", "com.microsoft::GatherElementsGrad")
def lookup_gradient(op: Operator) -> Work:
    """Elements of the gradient, the largest input of the output's type, are added to the places that they came from."""
    grad = max((t for t in op.present if t.dtype == op.out.dtype), key=lambda t: t.size, default=op.out)
    ids = max((t.size for t in op.present if t is not grad), default=1)
    run = grad.size // max(ids, 1) if "Elements" not in op.type else 1
    return work(op, Move(grad.size, max(run, 1)), vector=grad.size, written={0: grad.size})


@op("com.microsoft::DivGrad")
def division_gradient(op: Operator, grad: Tensor, a: Tensor, b: Tensor) -> Work:
    """grad / b and -grad a / b^2: 5 for each element."""
    return work(op, Pointwise(grad.size), vector=5 * grad.size)


def as_second(grad: Tensor, x: Tensor) -> Outputs:
    """One output with the dtype and the shape of the second input."""
    return [(x.dtype, x.shape)]


@op("com.microsoft::SoftmaxCrossEntropyLossGrad", "com.microsoft::SoftmaxCrossEntropyLossInternalGrad",
    outputs=as_second)  # fmt: skip
def cross_entropy_gradient(op: Operator, grad: Tensor, shares: Tensor, labels: Tensor) -> Work:
    """(exp(log p) - 1 where the label is) times the gradient: from the logarithms that the forward pass kept."""
    return work(op, Pointwise(shares.size), vector=shares.size * (SPECIAL + 3))


op("com.microsoft::ConcatTraining")(concat)
op("com.microsoft::SplitTraining")(split)


def flag() -> Outputs:
    """Whether something was done."""
    return [("bool", (1,))]


@op("com.microsoft::InPlaceAccumulatorV2", outputs=flag)
def accumulator(op: Operator, buffer: Tensor, value: Tensor) -> Work:
    """buffer += value, in place; the output is a flag."""
    sums = work(op, Pointwise(value.size), vector=value.size, read={0: value.size})
    return replace(sums, bytes_written=value.bytes)


@op("com.microsoft::SliceGrad", "torch::slice_backward")
def slice_gradient(op: Operator, grad: Tensor) -> Work:
    """The gradient is copied to its place among zeros."""
    return work(op, Move(grad.size, grad.shape[-1] if grad.shape else 1), written={0: grad.size})


@op("torch::attention_backward")
def attention_gradient(
    op: Operator, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Maybe = None, *, q_num_heads: int = 1,
    kv_num_heads: int = 1, is_causal: int = 0,
) -> Work:  # fmt: skip
    """Five products where the forward kernel has two, as scores are computed again: 2.5 times its FLOPs, at 1 / 1.2 of
    its rate (FlashAttention-2, https://arxiv.org/abs/2307.08691, figures 4, 6): as long as three such batches."""
    forward = replace(op, type="Attention", inputs=(q, k, v, mask), outputs=(grad,))
    heads = {"q_num_heads": q_num_heads, "kv_num_heads": kv_num_heads, "is_causal": is_causal}
    forward_work = attention(forward, q, k, v, mask, **heads)
    size = (
        forward_work.size._replace(batch=3 * forward_work.size.batch)
        if isinstance(forward_work.size, Attention)
        else forward_work.size
    )
    return work(op, size, matrix=5 * forward_work.matrix_flops // 2, vector=3 * forward_work.vector_flops)


@op("torch::foreach")
def foreach(op: Operator, *, elements: int, reads: int, writes: int, bits: int = 32) -> Work:
    """One elementwise pass over parameters, or what an optimiser keeps of each, from lists of tensors."""
    update, each = work(op, Pointwise(elements), vector=2 * elements), elements * bits // 8
    work(op, Rows(reads * each, writes * each))  # refuses negative and absurd numbers
    return replace(update, bytes_read=reads * each, bytes_written=writes * each, weight_bytes=0)
