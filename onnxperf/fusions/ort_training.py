"""Nodes of ONNX Runtime Training, and the kernels that its CUDA provider runs for those that take several.

The sources are those of release 1.19 (orttraining/training_ops/cuda). ConvGrad: cuDNN's gradients of the image, the
weights and the bias (nn/conv_grad.cc). LayerNormalizationGrad: a kernel for the input, one for scale and bias
(nn/layer_norm_impl.cu; a second one that adds up parts is left out). What adds elements of a gradient where they came
from fills its output with zeros first. SoftmaxCrossEntropyLoss: LogSoftmax, the scores of the labels, and their sum
(loss/softmax_cross_entropy_loss_impl.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from onnxperf.fusions import common, ort_basic, ort_extended
from onnxperf.fusions.engine import Fusion, Pass, since
from onnxperf.passes.tape import WITHIN
from op_models import Operator, Tensor

MS = "com.microsoft::"
#: What rewrites a graph before the backward pass is added (orttraining/core/optimizer/graph_transformer_utils.cc).
BEFORE: tuple[Fusion | Pass, ...] = since(
    "1.4",
    ort_basic.RESHAPES_128,
    ort_basic.ELIMINATION_TRAINING,
    common.layer_norm,
    ort_basic.COMMON_SUBEXPRESSIONS,
    common.gelu,
    common.rms_norm,
    common.fast_gelu,
    common.quick_gelu,
    ort_extended.bias_gelu_120,
)


def _within(o: Operator, type: str, inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor, ...]) -> Operator:
    """A kernel of a node that runs behind its first one."""
    attrs = {k: v for k, v in o.attrs.items() if k != WITHIN} | {WITHIN: 1}
    return replace(o, name=f"{o.name}#{type}", type=type, inputs=inputs, outputs=outputs, attrs=attrs, version=0)


def _convolution(o: Operator) -> Iterator[Operator]:
    """The image's gradient, the weights' and the bias's, of which the first may be missing."""
    grad, x, w = o.present[:3]
    transposed = "Transpose" in o.type
    image = next((t for t in o.outputs if t.shape == x.shape), None)
    weights = next((t for t in o.outputs if t.shape == w.shape and t is not image), None)
    bias = next((t for t in o.outputs if t not in (image, weights)), None)
    attrs = {k: v for k, v in o.attrs.items() if k in ("group", "strides", "dilations", "phase")}
    base = replace(o, attrs=attrs, version=0)
    parts: list[tuple[str, tuple[Tensor, ...], Tensor]] = []
    if image is not None:
        parts.append(("Conv" if transposed else "ConvTranspose", (grad, w), image))
    if weights is not None:
        parts.append(("torch::convolution_weight_gradient", (grad, x), weights))
    if bias is not None:
        parts.append(("ReduceSum", (grad,), bias))
    for i, (type, read, out) in enumerate(parts):
        kernel = _within(base, type, read, (out,)) if i else replace(base, type=type, inputs=read, outputs=(out,))
        if type.startswith("torch::"):
            weight_attrs = {k: v for k, v in kernel.attrs.items() if k != "dilations"} | {"transposed": int(transposed)}
            kernel = replace(kernel, attrs=weight_attrs)
        yield kernel


def _normalisation(o: Operator) -> Iterator[Operator]:
    """The gradient of the input, then those of scale and bias."""
    grad, x = o.present[:2]
    attrs = {k: v for k, v in o.attrs.items() if k in ("axis", "phase")}
    yield replace(o, type="torch::layer_norm_backward", inputs=(grad, x), outputs=o.outputs[:1], attrs=attrs, version=0)
    if len(o.outputs) > 1:
        rest = replace(o, attrs={k: v for k, v in attrs.items() if k != "axis"})
        yield _within(rest, "torch::layer_norm_weight_gradient", (grad, x), o.outputs[1:])


def _scattered(o: Operator) -> Iterator[Operator]:
    """Zeros, and the elements added to them."""
    zeros = replace(o.out, name=f"{o.name}#zeros")
    yield replace(o, name=zeros.name, type="ConstantOfShape", inputs=(), outputs=(zeros,), version=0)
    yield replace(o, attrs={**o.attrs, WITHIN: 1})


def _cross_entropy(o: Operator) -> Iterator[Operator]:
    """LogSoftmax, the labels' scores, and their sum."""
    x, labels = o.present[:2]
    shares = o.outputs[1] if len(o.outputs) > 1 else replace(x, name=f"{o.name}#shares", kind="activation")
    flat = {k: v for k, v in o.attrs.items() if k == "phase"}
    yield replace(o, name=shares.name, type="LogSoftmax", inputs=(x,), outputs=(shares,), attrs=flat, version=0)
    yield _within(replace(o, attrs=flat), "NegativeLogLikelihoodLoss", (shares, labels, *o.inputs[2:3]), o.outputs[:1])


def _whole(kernels: Callable[[Operator], Iterator[Operator]], inputs: int) -> Callable[[Operator], Iterator[Operator]]:
    """The same for nodes that have what the runtime needs of them; a file may hold others, which stay as they are."""

    def checked(o: Operator) -> Iterator[Operator]:
        return kernels(o) if len(o.present) >= inputs and o.outputs else iter((o,))

    return checked


SCATTERED = ("GatherElementsGrad", "GatherGrad", "GatherNDGrad", "ResizeGrad", "SliceGrad")
KERNELS: dict[str, Callable[[Operator], Iterator[Operator]]] = {
    **dict.fromkeys((MS + "ConvGrad", MS + "ConvTransposeGrad"), _whole(_convolution, 3)),
    **dict.fromkeys((f"{MS}{n}NormalizationGrad" for n in ("Layer", "SimplifiedLayer")), _whole(_normalisation, 2)),
    **dict.fromkeys((*(MS + name for name in SCATTERED), "MaxPoolGrad"), _whole(_scattered, 0)),
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", MS + "SoftmaxCrossEntropyLossInternal"), _whole(_cross_entropy, 2)),
}  # fmt: skip
