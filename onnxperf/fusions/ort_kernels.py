"""Nodes that ONNX Runtime's CUDA provider runs as several kernels: convolutions and products with a bias, reductions,
batch norms in half precision, com.microsoft::Attention.

A convolution's bias is added by a separate kernel (cudnnAddTensor in core/providers/cuda/nn/conv.cc; the option
`fuse_conv_bias` is off). A FusedConv, in releases until 1.19, asks cuDNN for one fused kernel; where cuDNN has none, it
runs the convolution, two cudnnAddTensor and a cudnnActivationForward (contrib_ops/cuda/fused_conv.cc). Assumed: these
separate kernels run, since whole models take as long with FusedConv as without (derive/conv.md).

A Gemm's bias of one row is spread over the result by a product of its own, ones by bias, which the other is added to
(core/providers/cuda/math/gemm.cc; kernels on an H200 under 1.30).

A reduction is cuDNN's unless it is a sum or mean over the first or the last axes alone (get_applicable_matrix_reduction
in core/providers/cuda/reduction/reduction_functions.cc). Half precision is then widened by a kernel of its own, the
root of squares passes over its input twice, and a last kernel scales or narrows the result (kernels on an H100 under
1.30). A batch norm in half precision widens its four vectors in every run (core/providers/cuda/nn/batch_norm.cc).

Until 1.12 attention was not fused (contrib_ops/cuda/bert/attention.cc, attention_impl.cu). Its kernels: broadcast the
bias to all rows; the product to queries, keys and values, on top of that; transpose to separate the heads; concatenate
past and new keys and values; scores; softmax; the product with the values; transpose to join the heads. Since 1.13
there are fused kernels for half precision: TensorRT's from Turing on, memory-efficient or flash attention since 1.14.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onnxperf.fusions import common
from onnxperf.graph import Graph
from onnxperf.passes.tape import WITHIN
from op_models import NHWC, Operator, Tensor
from op_models.axes import Unknown
from op_models.reduce import REDUCED, inside_rows

AXES = ("axes", "axis", "noop_with_empty_axes")
FUSED_CONV = "com.microsoft::FusedConv"
CONVOLUTIONS = ("Conv", "ConvTranspose", NHWC + "Conv", NHWC + "ConvTranspose", FUSED_CONV)


def apart(graph: Graph, fused: bool = True) -> Graph:
    """The graph with such nodes replaced by their kernels. fused: half-precision Attention has a fused kernel."""
    return replace(graph, operators=tuple(k for o in graph.operators for k in _kernels(o, fused)))


def _kernels(o: Operator, fused: bool) -> Iterator[Operator]:
    if o.type in CONVOLUTIONS and o.place == "gpu":
        yield from _convolution(o)
    elif o.type == "Gemm" and o.place == "gpu":
        yield from _product(o)
    elif o.type in REDUCED and o.place == "gpu" and _apart(o):
        yield from _reduction(o)
    elif o.type == "BatchNormalization" and o.place == "gpu" and o.out.dtype == "float16":
        yield from _batch_norm(o)
    elif _usual(o):
        yield from _attention(o, fused)
    else:
        yield o


def _convolution(o: Operator) -> Iterator[Operator]:
    """The product, then what is added to it and the activation, each as a kernel of its own."""
    x, weight, _, summand = (*o.inputs, None, None, None, None)[:4]
    activation = o.attrs.get("activation")
    after = [(n, "Add", (t,)) for n, t in (("bias", common.bias_of(o)), ("sum", summand)) if t is not None]
    steps = [*after, *([("activation", str(activation), ())] if activation else [])]
    if x is None or weight is None or not steps:
        yield o
        return
    result = replace(o.out, name=f"{o.name}#product")
    yield replace(o, type="Conv" if o.type == FUSED_CONV else o.type, inputs=(x, weight), outputs=(result,))
    for name, type, operands in steps:
        out = o.out if name == steps[-1][0] else replace(result, name=f"{o.name}#{name}ed")
        kernel = replace(o, name=f"{o.name}#{name}", type=type, inputs=(result, *operands), outputs=(out,), version=0)
        yield replace(kernel, attrs={WITHIN: 1})
        result = out


def _product(o: Operator) -> Iterator[Operator]:
    """A Gemm whose bias is a row: ones times that row fill the result, and the product is added to it."""
    bias = (*o.inputs, None, None, None)[2]
    if bias is None or bias.size != o.out.shape[-1]:
        yield o
        return
    rows = replace(o.out, name=f"{o.name}#rows")
    yield replace(
        o, name=f"{o.name}#bias", type="BiasRows", inputs=(bias,), outputs=(rows,), attrs={WITHIN: 1}, version=0
    )
    yield replace(o, inputs=(*o.inputs[:2], rows))


def _apart(o: Operator) -> bool:
    """Whether the elements of a row lie apart, other than those of whole columns of a sum or a mean."""
    x, *chosen = o.present
    try:
        inside = inside_rows(o, x, *chosen[:1], **{k: v for k, v in o.attrs.items() if k in AXES})
    except Unknown:
        return False
    long = [k in inside for k in range(x.rank) if x.shape[k] > 1]
    behind = True not in long or False not in long[long.index(True) :]
    ahead = False not in long or True not in long[long.index(False) :]
    return not behind and not (ahead and o.type in ("ReduceSum", "ReduceMean"))


def _reduction(o: Operator) -> Iterator[Operator]:
    """cuDNN's reduction in single precision, what widens its input and what scales its result."""
    x, half = o.present[0], o.out.dtype == "float16"
    wide, result = replace(x, name=f"{o.name}#wide", dtype="float32"), replace(o.out, name=f"{o.name}#result")
    kernel = replace(o, attrs={WITHIN: 1}, version=0)
    if half:
        yield replace(kernel, name=f"{o.name}#widened", type="Cast", inputs=(x,), outputs=(wide,))
        x, result = wide, replace(result, dtype="float32")
    attrs = {**o.attrs, WITHIN: 1, "apart": 1}
    if o.type == "ReduceL2":
        largest = replace(result, name=f"{o.name}#largest")
        yield replace(o, name=f"{o.name}#first", inputs=(x, *o.inputs[1:]), outputs=(largest,), attrs=attrs)
    yield replace(o, inputs=(x, *o.inputs[1:]), outputs=(result,), attrs=attrs)
    yield replace(kernel, name=f"{o.name}#scaled", type="Cast", inputs=(result,), outputs=(o.out,))


def _batch_norm(o: Operator) -> Iterator[Operator]:
    """The batch norm, and four kernels that widen scale, summand, mean and variance."""
    x, *vectors = o.present
    wide = tuple(replace(t, name=f"{o.name}#{k}", dtype="float32") for k, t in enumerate(vectors))
    for t, w in zip(vectors, wide, strict=True):
        yield replace(o, name=w.name, type="Cast", inputs=(t,), outputs=(w,), attrs={WITHIN: 1}, version=0)
    yield replace(o, inputs=(x, *wide))


def _usual(o: Operator) -> bool:
    """Whether an Attention runs on the GPU, with queries, keys and values of one size, and with both states or none."""
    if o.type != "com.microsoft::Attention" or o.place != "gpu" or [t.rank for t in o.present[:2]] != [3, 2]:
        return False
    heads, states = o.attrs.get("num_heads"), [t.rank for t in (*o.inputs[4:5], *o.outputs[1:]) if t is not None]
    even = isinstance(heads, int) and heads > 0 and o.present[1].shape[1] % (3 * heads) == 0
    return even and states in ([], [5, 5]) and not o.attrs.get("qkv_hidden_sizes")


def _attention(o: Operator, fused: bool) -> Iterator[Operator]:
    x, weight = o.present[:2]
    bias, mask, state, added = (*o.inputs[2:6], None, None, None, None)[:4]
    heads = o.attrs["num_heads"]
    batch, length, width = *x.shape[:2], weight.shape[1] // 3
    dim = width // heads

    def tensor(name: str, *shape: int) -> Tensor:
        return replace(o.out, name=f"{o.name}#{name}", shape=shape)

    def kernel(type: str, out: Tensor, *inputs: Tensor | None, **attrs: int | tuple[int, ...]) -> Operator:
        attributes = {**attrs, WITHIN: 1} if type != "Gemm" else attrs
        return replace(o, name=out.name, type=type, inputs=inputs, outputs=(out,), attrs=attributes, version=0)

    packed = tensor("qkv", batch, length, 3 * width)
    if bias is not None and not fused:  # broadcast first, since the product adds a whole matrix
        rows = tensor("bias", batch, length, 3 * width)
        yield kernel("Expand", rows, bias)
        bias = rows
    yield kernel("Gemm", packed, x, weight, bias)
    if fused and state is None and o.out.dtype in ("float16", "bfloat16"):
        split = replace(packed, shape=(batch, length, heads, 3, dim))
        attrs = {f: o.attrs[f] for f in ("num_heads", "unidirectional") if f in o.attrs}
        yield kernel("com.microsoft::MultiHeadAttention", o.out, split, None, None, None, mask, added, **attrs)
        return
    split = replace(packed, shape=(batch, length, 3, heads, dim))
    laid = tensor("heads", 3, batch, heads, length, dim)
    yield kernel("Transpose", laid, split, perm=(2, 0, 3, 1, 4))
    q = k = v = replace(laid, shape=(batch, heads, length, dim))
    if state is not None:
        yield kernel("Concat", o.outputs[1], state, replace(laid, shape=(2, *laid.shape[1:])), axis=3)
        k = v = replace(o.outputs[1], shape=o.outputs[1].shape[1:])
    scores = tensor("scores", batch, heads, length, k.shape[2])
    shares = replace(scores, name=f"{o.name}#shares")
    weighed = tensor("weighed", batch, heads, length, dim)
    yield kernel("com.microsoft::FusedMatMul", scores, q, k, transB=1)
    yield kernel("MaskedSoftmax", shares, scores, mask)
    yield kernel("MatMul", weighed, shares, v)
    yield kernel("Transpose", replace(o.out, shape=(batch, length, heads, dim)), weighed, perm=(0, 2, 1, 3))
