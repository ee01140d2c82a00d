"""Fusions that several runtimes make, of operators that exporters write as several nodes.

The modules of the runtimes list them, in order and by level.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import pi, sqrt

from onnxperf.fusions.engine import Fused, Miss, Rewriter
from onnxperf.fusions.pattern import A, B, Match, Variable, X, Y, alone, op, pattern, scale
from onnxperf.graph import Graph, KnownDims, known_dims
from op_models import NHWC, Operator, Tensor
from op_models.core import BITS

HALF_OR_SINGLE = frozenset({"float32", "float16", "bfloat16"})  # what ONNX Runtime's own kernels know
GAMMA, BETA, BIAS = (Variable(name, stored=True) for name in ("gamma", "beta", "bias"))
#: The name that PyTorch's exporter gives the result of a batch norm, which it folds into the convolution before.
BATCH_NORM = re.compile(r"getitem(_\d+)?(#nhwc)?")
EPSILON = Variable("epsilon")
PRODUCT = op.MatMul(A, B)


#: Products as ONNX writes them and ONNX Runtime fuses them.
PRODUCTS = frozenset({"Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul"})
#: What runs that hold such products in 8 bits rest on, under runtimes that have no kernels for them.
NO_KERNELS = "8-bit GEMM and convolution, for which it has no kernels (TensorRT has)"


def narrow(t: Tensor) -> bool:
    """Whether a tensor has 8 bits or fewer, as quantised ones do."""
    return 0 < BITS[t.dtype] <= 8 and t.dtype != "bool"


def has_narrow_products(run: Graph) -> bool:
    """Whether a run multiplies operands of 8 bits, both of them, in operators that are made for floating-point ones."""
    products = (o for o in run.operators if o.type.rpartition("::")[2] in PRODUCTS and len(o.present) > 1)
    return any(all(map(narrow, o.present[:2])) for o in products)


def _above(g: Graph | Rewriter, t: Tensor) -> Iterator[Operator]:
    """The operators that a tensor is made by, directly or not."""
    reached, waiting = set[str](), [t]
    while waiting:
        maker = g.made_by(waiting.pop())
        if maker is not None and maker.name not in reached:
            reached.add(maker.name)
            waiting += maker.present
            yield maker


#: What a release of ONNX Runtime knows of a tensor's shape before the model runs.
Knows = Callable[[Graph | Rewriter, Tensor], KnownDims | None]


def today(g: Graph | Rewriter, t: Tensor) -> KnownDims | None:
    """What is known as the file and ONNX's own inference of open shapes say."""
    return known_dims(t)


def until(*of_shapes: str) -> Knows:
    """An older release knows a whole shape, but behind a Reshape to one that other operators than these compute."""

    def knows(g: Graph | Rewriter, t: Tensor) -> KnownDims | None:
        reshapes = (o for o in _above(g, t) if o.type == "Reshape" and len(o.present) > 1)
        in_runs = any(o.type not in of_shapes for r in reshapes for o in _above(g, r.present[1]))
        return None if in_runs else tuple(map(int, t.shape))

    return knows


UNTIL_112 = until()
UNTIL_116 = until("Shape", "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice", "Cast", "Identity", "Constant")


def bias_of(conv: Operator) -> Tensor | None:
    """The bias of a convolution, also one that a file lacks because a batch norm without training had only zeros to
    give: the trained model has it.
    """
    x, weight, bias = (*conv.inputs, None, None, None)[:3]
    if bias is None and x and weight and weight.stored and BATCH_NORM.fullmatch(conv.out.name):
        channels = conv.out.shape[-1:] if conv.type.startswith(NHWC) else conv.out.shape[1:2]
        return replace(weight, name=f"{weight.name}#bias", dtype=x.dtype, shape=channels)
    return bias


BY_ERF = 1.0 + op.Erf(X / sqrt(2))  # a Div: where x is multiplied instead, ONNX Runtime does not recognise it


def _gelu(m: Match) -> Fused | Miss:
    """0.5 x (1 + erf(x / sqrt 2)), as torch's exporters wrote it before opset 20."""
    if Y not in m:
        return Miss("its 1 + erf(x / sqrt 2) is not multiplied by x and 0.5 alone", m.root.nodes)
    if m[X].name != m[Y].name:
        return Miss("erf and Mul read different tensors", m.root.nodes)
    return m.fused("com.microsoft::Gelu", (m[X],))


TIMES_HALF = (BY_ERF | 1.0 + op.Erf(X * sqrt(0.5))) * 0.5
gelu = pattern("Gelu", BY_ERF * alone(Y * 0.5), BY_ERF * Y * 0.5, BY_ERF, start="Erf")(_gelu)
#: The offline optimizer also knows it where 1 + erf is halved first, as torch's newer exporter writes it.
gelu_any = pattern("Gelu", BY_ERF * alone(Y * 0.5), BY_ERF * Y * 0.5, TIMES_HALF * Y, BY_ERF, start="Erf")(_gelu)


CUBIC = (X + X**3 * 0.044715) * sqrt(2 / pi)
FACTORED = (X * sqrt(2 / pi)) * ((X * 0.044715) * X + 1.0)  # BLOOM's
BY_TANH = 1.0 + op.Tanh(CUBIC | FACTORED)


HALVED_FIRST = BY_TANH * alone(X * 0.5)


def _fast_gelu(m: Match) -> Fused | Miss:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GPT-2's."""
    if m.root is m[BY_TANH]:
        return Miss("its 1 + tanh(...) is not multiplied by x and 0.5 alone", m.root.nodes)
    return m.fused("com.microsoft::FastGelu", (m[X],))


#: ONNX Runtime knows it only where x is halved first; TensorRT and the offline optimizer know both orders.
fast_gelu = pattern("FastGelu", HALVED_FIRST, BY_TANH, start="Tanh")(_fast_gelu)
fast_gelu_any = pattern("FastGelu", HALVED_FIRST, BY_TANH * X * 0.5, BY_TANH, start="Tanh")(_fast_gelu)


SCALED = scale(X)


def scaled_sigmoid(m: Match, dtypes: frozenset[str] = HALF_OR_SINGLE) -> Fused | None:
    """x sigmoid(alpha x), where alpha is a number; 1, as in SiLU, is not written."""
    if m[X].dtype not in dtypes:
        return None
    return m.fused("com.microsoft::QuickGelu", (m[X],), {"alpha": m.factor(SCALED) if SCALED in m else 1.0})


TIMES_SIGMOID = pattern("QuickGelu", X * op.Sigmoid(X), X * op.Sigmoid(SCALED), start="Sigmoid")
quick_gelu = TIMES_SIGMOID(scaled_sigmoid)
quick_gelu_or_double = TIMES_SIGMOID(lambda m: scaled_sigmoid(m, HALF_OR_SINGLE | {"float64"}))


def _other_axes(m: Match, mean: Operator) -> Miss | None:
    """A Miss if a mean is not taken over the last axis of X alone."""
    x, out = m[X], mean.out
    if out.shape == (*x.shape[:-1], 1):
        return None
    return Miss(f"the mean is not taken over the last axis alone: {list(x.shape)} -> {list(out.shape)}", mean.nodes)


def _norm(m: Match, type: str, *weights: Tensor) -> Fused:
    return m.fused(type, (m[X], *weights), {"axis": -1})


def _norm_of_cast(m: Match, type: str, *weights: Tensor) -> Fused:
    """A norm that reads what is cast for it alone as it was, as ONNX Runtime's kernel on a GPU does."""
    norm, cast = _norm(m, type, *weights), m.g.made_by(m[X], "Cast")
    if cast is None or cast.out.name in m.g.graph.output_names or cast.present[0].dtype not in HALF_OR_SINGLE:
        return norm
    if not set(m.g.readers[cast.out.name]) <= set(norm.replaced):
        return norm
    return m.fused(type, (cast.present[0], *weights), {"axis": -1}, (cast,))


CENTRED = X - op.ReduceMean(X, ...)
VARIANCE = op.ReduceMean(CENTRED**2, ...)
NORMALISED = CENTRED / op.Sqrt(VARIANCE + EPSILON)
CAST_CENTRED = op.Cast(CENTRED)
CAST_VARIANCE = op.ReduceMean(CAST_CENTRED**2, ...)
CAST_NORMALISED = CAST_CENTRED / op.Sqrt(CAST_VARIANCE + EPSILON)


def _layer_norm(m: Match, fused: Callable[..., Fused] = _norm) -> Fused | Miss:
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) gamma + beta, as exported before opset 17."""
    if miss := _other_axes(m, m[VARIANCE] if VARIANCE in m else m[CAST_VARIANCE]):
        return miss
    if BETA not in m:
        return Miss("no stored scale and bias follow the quotient", m.root.nodes)
    return fused(m, "LayerNormalization", m[GAMMA], m[BETA])


layer_norm = pattern("LayerNormalization", NORMALISED * GAMMA + BETA, NORMALISED, start="Sqrt")(_layer_norm)
#: Where half precision is cast for it, before the mean or, after ONNX Runtime 1.12, behind it.
layer_norm_of_cast, layer_norm_of_cast_112 = (
    pattern("LayerNormalization", form * GAMMA + BETA, NORMALISED, start="Sqrt")(
        lambda m: _layer_norm(m, _norm_of_cast)
    )
    for form in (
        NORMALISED | op.Cast(NORMALISED) | CAST_NORMALISED | op.Cast(CAST_NORMALISED),
        NORMALISED | op.Cast(NORMALISED),
    )
)
#: As TorchScript's exporter writes a norm of half precision before opset 17: what is centred is cast to doubles.
layer_norm_exported = pattern(
    "LayerNormalization", (NORMALISED | op.Cast(CAST_NORMALISED)) * GAMMA + BETA, NORMALISED, start="Sqrt"
)(_layer_norm)


MEAN_SQUARE = op.ReduceMean(X**2, ...)
ROOT = op.Sqrt(MEAN_SQUARE + EPSILON)
QUOTIENT, BY_INVERSE = X / ROOT, X * (op.Reciprocal(ROOT) | 1.0 / ROOT)
RMS_NORM = "SimplifiedLayerNormalization"


def _rms_norm(m: Match, fused: Callable[..., Fused] = _norm) -> Fused | Miss:
    """x / sqrt(mean(x^2) + epsilon) gamma, Llama's."""
    if miss := _other_axes(m, m[MEAN_SQUARE]):
        return miss
    if GAMMA not in m or m[GAMMA].shape != m[X].shape[-1:]:
        return Miss("no stored scale follows the quotient", m.root.nodes)
    return fused(m, RMS_NORM, m[GAMMA])


#: ONNX Runtime does not know it with a Reciprocal or with one over the root; TensorRT and the offline optimizer do.
rms_norm = pattern(RMS_NORM, QUOTIENT * GAMMA, QUOTIENT, start="Sqrt")(_rms_norm)
rms_norm_of_cast = pattern(RMS_NORM, (QUOTIENT | op.Cast(QUOTIENT)) * GAMMA, QUOTIENT, start="Sqrt")(
    lambda m: _rms_norm(m, _norm_of_cast)
)
rms_norm_any = pattern(RMS_NORM, (QUOTIENT | BY_INVERSE) * GAMMA, start="Sqrt")(_rms_norm)


HIGHEST = op.ReduceMax(X, ...)
EXP = op.Exp(X - HIGHEST)
TOTAL = op.ReduceSum(EXP, ...)


@pattern("Softmax", EXP / TOTAL)
def softmax(m: Match) -> Fused | None:
    """exp(x - max x) / sum exp(x - max x) along one axis."""
    x, total = m[X], m[TOTAL].out
    if total.rank != x.rank or m[HIGHEST].out.shape != total.shape:
        return None
    reduced = [i for i, (a, b) in enumerate(zip(x.shape, total.shape, strict=True)) if a != b]
    return m.fused("Softmax", (x,), {"axis": reduced[0]}) if len(reduced) == 1 else None


@pattern("linear layer", PRODUCT + BIAS)
def linear(m: Match) -> Fused | None:
    """x W + b of stored W and b, which exporters write as two nodes where x has more than two axes."""
    weight, bias = m[B], m[BIAS]
    fits = weight.stored and weight.rank == 2 and bias.shape == weight.shape[1:]
    return m.fused("Gemm", (m[A], weight, bias)) if fits else None
