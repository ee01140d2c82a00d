"""Elementwise operators: one output element from one element of each operand.

The counting convention of every family:

- 1 FLOP: an addition, subtraction, multiplication, comparison, minimum, selection by a condition, sign
  change, rounding, conversion, logical or bit operation. A fused multiplication and addition is 2.
- `SPECIAL` FLOPs: a division, a root or any named function (exp, log, sin, erf, tanh, ...). A GPU's special function
  unit has a quarter of the vector rate or less.
- 0 FLOPs: copying, and arithmetic on addresses.

Anything else is the sum over the formula ONNX defines it by.
"""

from __future__ import annotations

from collections.abc import Sequence

from op_models.axes import LIKE_FIRST, Axes, by_element, numbered
from op_models.core import Maybe, Operator, Pointwise, Rows, Tensor, Work, work
from op_models.rules import AxesRule, Like, OutputRule, Outputs, as_first, op

SPECIAL = 4

SIMPLE = (
    "Abs", "Add", "And", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast",
    "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Mul",
    "Neg", "Not", "Or", "Relu", "Round", "Sign", "Sub", "ThresholdedRelu", "Where", "Xor",
)  # fmt: skip

SPECIALS = (
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Div", "Erf", "Exp", "Log",
    "Reciprocal", "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
)  # fmt: skip

SIGMOID = 2 + 2 * SPECIAL  # 1 / (1 + exp(-x))
SOFTPLUS = 1 + 2 * SPECIAL  # log(1 + exp x)
GELU = 4 + SPECIAL  # x / 2 (1 + erf(x / sqrt 2))
GELU_TANH = 8 + SPECIAL  # x / 2 (1 + tanh(c (x + d x x x)))
POW = 1 + 2 * SPECIAL  # exp(y log x)
DEQUANTISE = 2  # (x - zero) scale
REQUANTISE = 5  # min(top, max(bottom, round(x factor) + zero)): both scales in one factor
QUANTISE = 4 + SPECIAL  # min(top, max(bottom, round(x / scale) + zero))
MURMUR = 16  # multiplications, rotations and shifts that mix one word
BUCKET = 6 + SPECIAL  # the bucket of a distance: sign, bounds, and a logarithm for large ones

#: Vector FLOPs of one output element.
FLOPS: dict[str, int] = {
    **dict.fromkeys(SIMPLE, 1),
    **dict.fromkeys(SPECIALS, SPECIAL),
    **dict.fromkeys(("Affine", "ImageScaler"), 2),  # a x + b; with others below of ONNX Runtime's own in opset 1
    "Celu": 6 + SPECIAL,  # max(0, x) + min(0, a (exp(x / a) - 1))
    "DequantizeLinear": DEQUANTISE,
    "Elu": 3 + SPECIAL,  # x < 0 ? a (exp x - 1) : x
    "HardSigmoid": 4,  # max(0, min(1, a x + b))
    "HardSwish": 5,  # x max(0, min(1, x / 6 + 1 / 2))
    "LeakyRelu": 2,  # x < 0 ? a x : x
    "Mish": 1 + SPECIAL + SOFTPLUS,  # x tanh(softplus x)
    "Mod": 3 + SPECIAL,  # x - y floor(x / y)
    "PRelu": 2,  # x < 0 ? a x : x
    "ParametricSoftplus": 2 + SOFTPLUS,  # a softplus(b x)
    "Scale": 1,
    "ScaledTanh": 2 + SPECIAL,  # a tanh(b x)
    "QuantizeLinear": QUANTISE,
    "Selu": 4 + SPECIAL,  # c (x < 0 ? a exp x - a : x)
    "Shrink": 2,  # x beyond lambda ? x - bias : 0
    "Sigmoid": SIGMOID,
    "Softplus": SOFTPLUS,
    "Softsign": 2 + SPECIAL,  # x / (1 + |x|)
    **dict.fromkeys(("ai.onnx.ml::Binarizer", "ai.onnx.ml::Imputer", "ai.onnx.ml::OneHotEncoder"), 1),
    "ai.onnx.ml::Scaler": 2,  # (x - offset) scale
    "com.microsoft::BiasGelu": 1 + GELU,
    "com.microsoft::BiasSplitGelu": 3 + GELU,  # (x + b) gelu(y + c)
    **dict.fromkeys(("com.microsoft::ComplexMul", "com.microsoft::ComplexMulConj"), 3),  # 6 for two numbers
    "com.microsoft::DequantizeLinear": DEQUANTISE,
    "com.microsoft::DequantizeWithOrder": 1,
    "com.microsoft::GatedAdd": 2,  # x + gate y
    "com.microsoft::Gelu": GELU,
    "com.microsoft::MurmurHash3": MURMUR,
    **dict.fromkeys(("com.microsoft::QLinearAdd", "com.microsoft::QLinearMul"), 2 * DEQUANTISE + 1 + REQUANTISE),
    "com.microsoft::QLinearConcat": DEQUANTISE + REQUANTISE,
    "com.microsoft::QLinearLeakyRelu": DEQUANTISE + 2 + REQUANTISE,
    "com.microsoft::QLinearSigmoid": DEQUANTISE + SIGMOID + REQUANTISE,
    "com.microsoft::QLinearWhere": DEQUANTISE + 1 + REQUANTISE,
    "com.microsoft::QOrderedGelu": 1 + GELU + REQUANTISE,
    "com.microsoft::QuantizeLinear": QUANTISE,
    "com.microsoft::QuantizeWithOrder": QUANTISE - 1,  # without a zero point
    "com.microsoft::RelativePositionBias": BUCKET,
    "com.microsoft::ScaledSiLU": 2 + SIGMOID,
    "torch::addcmul": 2,  # x + y z
}


#: Vector FLOPs of activations that are fused into GEMMs and convolutions, where `FLOPS` does not have their name.
#: Operators that are next to nothing but a sigmoid.
SIGMOIDS = frozenset({"Sigmoid", "SwiGLU", "Swish", "com.microsoft::QuickGelu"})
FUSED = {"Clip": 2, "RELU": 1, "GELU": GELU, "Gelu": GELU, "FastGelu": GELU_TANH, "QuickGelu": SIGMOID + 2}


def activated(activation: str) -> int:
    """Vector FLOPs per output of a fused activation; 0 for ""."""
    return FUSED.get(activation, FLOPS.get(activation, 1)) if activation else 0


def costing(op: Operator, flops: int) -> Work:
    """Pointwise work with this number of vector FLOPs per output element."""
    size = Pointwise(op.out.size, spread(op), sigmoid=op.type in SIGMOIDS)
    return work(op, size, vector=op.out.size * flops)


def spread(op: Operator) -> bool:
    """Whether ONNX's or PyTorch's operator spreads an operand over axes of the result; a number needs no place."""
    iterated = "::" not in op.type or op.type.startswith("torch::")
    return iterated and any(t.size > 1 and t.shape != op.out.shape for t in op.present)


def half(x: Tensor) -> Outputs:
    """The first input's shape with half the columns."""
    return [(x.dtype, (*x.shape[:-1], x.shape[-1] // 2))]


def dequantised(x: Tensor, scale: Tensor) -> Outputs:
    """The first input's shape in the scale's type."""
    return [(scale.dtype, x.shape)]


def in_single(x: Tensor) -> Outputs:
    """The first input's shape in single precision, whatever its type."""
    return [("float32", x.shape)]


def hashed(x: Tensor, *, positive: int = 1) -> Outputs:
    """A whole number of 32 bits for each element."""
    return [("uint32" if positive else "int32", x.shape)]


def quantised(x: Tensor, scale: Tensor, zero: Maybe = None) -> Outputs:
    """The first input's shape in the zero point's type."""
    return [(zero.dtype if zero is not None else "uint8", x.shape)]


def position_bias(table: Tensor, queries: Tensor, keys: Tensor) -> Outputs:
    """[1, heads, queries, keys], of a table [buckets, heads] and two lengths, where these are known."""
    if not queries.value or not keys.value:
        return []
    return [(table.dtype, (1, table.shape[1], int(queries.value[0]), int(keys.value[0])))]


#: Outputs of those operators of the table that onnx does not define or infer.
OUTPUTS: dict[str, OutputRule] = {
    **dict.fromkeys((
        "com.microsoft::BiasGelu", "com.microsoft::ComplexMul", "com.microsoft::ComplexMulConj",
        "com.microsoft::GatedAdd", "com.microsoft::Gelu", "com.microsoft::QLinearLeakyRelu",
        "com.microsoft::QLinearSigmoid", "com.microsoft::ScaledSiLU",
    ), as_first),
    "ai.onnx.ml::Scaler": in_single,
    "com.microsoft::BiasSplitGelu": half,
    **dict.fromkeys(("com.microsoft::DequantizeLinear", "com.microsoft::DequantizeWithOrder"), dequantised),
    "com.microsoft::MurmurHash3": hashed,
    "com.microsoft::QOrderedGelu": as_first,
    "com.microsoft::QuantizeWithOrder": lambda x: [("int8", x.shape)],
    "com.microsoft::RelativePositionBias": position_bias,
    "com.microsoft::QLinearAdd": Like("Add", (0, 3)),
    "com.microsoft::QLinearConcat": Like("Concat", slice(2, None, 3), dtype=2),
    "com.microsoft::QLinearMul": Like("Mul", (0, 3)),
    "com.microsoft::QLinearWhere": Like("Where", (0, 1, 4), dtype=1),
    "com.microsoft::QuantizeLinear": quantised,
}  # fmt: skip


def scaled_axes(op: Operator, x: Tensor, scale: Tensor, zero: Maybe = None, *, axis: int = 1) -> Axes:
    """One scale and zero point for all, for each slice along an axis, or for each block of these."""
    names = numbered(x.rank, (axis,) if scale.rank > 1 else ())
    by = names if scale.rank > 1 else (names[axis],) if scale.size > 1 else None
    return Axes((names, by, by if zero is not None else None), (names,))


#: Operators of the table whose operands are spread over each other's axes, or scaled along one.
AXES: dict[str, AxesRule] = {
    **dict.fromkeys((
        *SIMPLE, *SPECIALS, "Celu", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Mod", "PRelu", "Selu",
        "Shrink", "Sigmoid", "Softplus", "Softsign", "com.microsoft::BiasGelu", "com.microsoft::Gelu",
    ), by_element),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), scaled_axes),
}  # fmt: skip


@op(*FLOPS, outputs=OUTPUTS, axes=AXES)
def elementwise(op: Operator) -> Work:
    """The FLOPs of the table `FLOPS`, per output element."""
    return costing(op, FLOPS[op.type])


@op("com.microsoft::BiasAdd", outputs=as_first, axes=by_element)
@op("Sum", "Max", "Min", "Mean", axes=by_element)
def fold(op: Operator) -> Work:
    """n - 1 per element for n operands, and 1 for the factor 1/n of a mean."""
    return costing(op, max(len(op.present) - (op.type != "Mean"), 0))


@op("Pow", axes=by_element)
def power(op: Operator, x: Tensor, y: Tensor) -> Work:
    """exp(y log x); a stored exponent of 2 or 3 is a multiplication instead, 1/2 a root."""
    short: dict[float, int] = {1: 0, 2: 1, 3: 2, 0.5: SPECIAL}
    exponents = set(y.value or ())
    return costing(op, short.get(exponents.pop(), POW) if len(exponents) == 1 else POW)


@op("Clip", axes=by_element)
def clip(
    op: Operator, x: Tensor, low: Maybe = None, high: Maybe = None, *, min: float | None = None,
    max: float | None = None,
) -> Work:  # fmt: skip
    """1 per element for each bound: attributes before opset 11, inputs since."""
    return costing(op, sum(bound is not None for bound in (low, high, min, max)))


@op("Gelu", axes=by_element)
def gelu(op: Operator, x: Tensor, *, approximate: str = "none") -> Work:
    """x/2 (1 + erf(x/sqrt 2)), or its approximation by tanh."""
    return costing(op, GELU_TANH if approximate == "tanh" else GELU)


@op("com.microsoft::FastGelu", outputs=as_first, axes=by_element)
def fast_gelu(op: Operator, x: Tensor, bias: Maybe = None) -> Work:
    """The approximation of Gelu by tanh, after an optional bias."""
    return costing(op, GELU_TANH + (bias is not None))


@op("Swish", "SwiGLU", axes={"Swish": by_element})
def swish(op: Operator, x: Tensor, gated: Maybe = None, *, alpha: float = 1.0) -> Work:
    """x sigmoid(alpha x), times the gated input if there is one."""
    return costing(op, SIGMOID + 1 + (alpha != 1.0) + (gated is not None))


@op("com.microsoft::QuickGelu", outputs=as_first, axes=by_element)
def quick_gelu(op: Operator, x: Tensor, *, alpha: float = 1.702) -> Work:
    """x sigmoid(alpha x)."""
    return costing(op, SIGMOID + 1 + (alpha != 1.0))


@op("tensorrt::Pointwise")
def chain(op: Operator, *, flops_per_element: int = 1) -> Work:
    """A chain of elementwise operators in one kernel, whose intermediate results stay in registers."""
    return costing(op, flops_per_element)


@op("com.microsoft::BitmaskDropout", outputs=as_first)
@op("Dropout", axes=by_element)
def dropout(op: Operator) -> Work:
    """A copy: nothing is dropped in inference."""
    return costing(op, 0)


@op("com.microsoft::BiasDropout", "com.microsoft::BitmaskBiasDropout", outputs=as_first)
def bias_dropout(op: Operator, x: Tensor, bias: Tensor, residual: Maybe = None) -> Work:
    """1 per element for bias and for residual; nothing is dropped in inference."""
    return costing(op, 1 + (residual is not None))


@op("DynamicQuantizeLinear", axes="* -> *")  # scale and zero point are of all values, the work is the same
def dynamic_quantise(op: Operator, x: Tensor) -> Work:
    """Minimum and maximum of all elements, then a sweep that quantises."""
    return work(op, Rows(1, x.size, 1), vector=(2 + QUANTISE) * x.size)


@op("CastLike", axes=LIKE_FIRST)
def cast_like(op: Operator) -> Work:
    """1 per element; of the second operand only the dtype is read."""
    return work(op, Pointwise(op.out.size), vector=op.out.size, read={1: 0})


@op("torch::triton_poi", "torch::triton_per", "torch::triton_red")
def triton(
    op: Operator, *, elements: int, flops: int, read: Sequence[int], written: Sequence[int] = (),
    rows: int = 0, width: int = 0, passes: int = 0,
) -> Work:  # fmt: skip
    """A kernel of torch.compile: elements `read` and `written` of each tensor, `flops` in all, `rows` of `width`."""
    size = Rows(rows, width, passes) if rows else Pointwise(elements, compiled=True)
    return work(op, size, vector=flops, read=dict(enumerate(read)), written=dict(enumerate(written)))
