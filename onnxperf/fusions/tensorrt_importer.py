"""What TensorRT's importer takes: opsets and operators, by release, and the forms of quantised models.

Sources: onnx-tensorrt, docs/operators.md of releases 6.0, 7.2, 8.0, 8.2, 8.4, 8.5, 9.2, 10.0 and 10.15, and its
docs/Changelog.md. Where the one of 7.2 has what 6.0 lacks, it is taken to have come with 7.0.
"""

from __future__ import annotations

from op_models import Operator

Q, DQ = "QuantizeLinear", "DequantizeLinear"
#: The highest opset of ONNX that each release supports. Of 10.6 and 10.11, that of the ONNX they were built with.
OPSETS = {
    "6.0": 10, "7.0": 11, "7.2": 11, "8.0": 13, "8.5": 17, "8.6": 17, "9.0": 19, "9.3": 19, "10.0": 20, "10.6": 22,
    "10.11": 23, "10.15": 24,
}  # fmt: skip
NEWEST = "10.15"
#: The first release that takes an operator of ONNX, by release; the others all take it.
SINCE = {
    **dict.fromkeys((
        "And", "ConstantOfShape", "DequantizeLinear", "Equal", "Erf", "Expand", "GRU", "Greater", "LSTM", "Less",
        "Loop", "Not", "Or", "QuantizeLinear", "RNN", "RandomUniform", "RandomUniformLike", "Range", "Scan", "Size",
        "Tile", "Where",
    ), "7.0"),
    **dict.fromkeys((
        "Celu", "CumSum", "EyeLike", "GatherElements", "GlobalLpPool", "GreaterOrEqual", "LessOrEqual",
        "LpNormalization", "NonMaxSuppression", "ReverseSequence",
    ), "8.0"),
    **dict.fromkeys((
        "Einsum", "GatherND", "If", "IsNaN", "Round", "Scatter", "ScatterElements", "ScatterND", "Sign",
    ), "8.2"),
    **dict.fromkeys(("Shrink", "Xor"), "8.4"),
    **dict.fromkeys((
        "GridSample", "HardSwish", "MeanVarianceNormalization", "Mod", "NonZero", "OneHot", "RandomNormal",
        "RandomNormalLike", "RoiAlign", "Trilu",
    ), "8.5"),
    **dict.fromkeys(("GroupNormalization", "IsInf", "LayerNormalization"), "8.6"),
    **dict.fromkeys(("Hardmax", "CastLike"), "9.2"),
    "Gelu": "10.0", "DeformConv": "10.1", "STFT": "10.5", "Attention": "10.14",
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), "10.4"),
    **dict.fromkeys(("RMSNormalization", "RotaryEmbedding", "TensorScatter"), "10.15"),
}  # fmt: skip
#: Operators of ONNX that TensorRT's importer does not take (onnx-tensorrt, operators.md of release 10).
NOT_IMPORTED = frozenset({
    "AffineGrid", "Bernoulli", "BitShift", "CenterCropPad", "Col2Im", "Compress", "ConvInteger", "Det",
    "DynamicQuantizeLinear", "LpPool", "MatMulInteger", "MaxRoiPool", "MaxUnpool", "MelWeightMatrix", "Multinomial",
    "NegativeLogLikelihoodLoss", "QLinearConv", "QLinearMatMul", "SoftmaxCrossEntropyLoss", "StringNormalizer",
    "TfIdfVectorizer", "Unique",
})  # fmt: skip
#: Operators of other domains that it takes, since it looks at the name alone.
BY_NAME = frozenset({f"com.microsoft::{type}" for type in (Q, DQ, "Gelu")})
DOMAINS = ("com.microsoft", "com.ms.internal", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.training")
QDQ = "quantize_static with quant_format=QDQ, activation_type=QInt8, weight_type=QInt8 and ActivationSymmetric"


def refused(o: Operator) -> str:
    """Why TensorRT's importer does not take an operator in any release and what to do, "" where it does.

    Operators of domains that nobody knows may be plugins, which it looks for by name.
    """
    if o.type in NOT_IMPORTED and ("Integer" in o.type or "Quantize" in o.type or o.type.startswith("QLinear")):
        return f"it takes quantised models as QuantizeLinear and DequantizeLinear around plain operators ({QDQ})"
    if o.type in NOT_IMPORTED:
        return "it has no such operator: replace it, add a plugin, or leave this part to ONNX Runtime"
    if o.type.startswith(DOMAINS) and o.type not in BY_NAME:
        return "they are not ONNX's: export the model anew, without optimising or quantising it for ONNX Runtime"
    if o.type.rpartition("::")[2] not in (Q, DQ) or not o.outputs or not o.present:
        return ""
    if "uint8" in (o.present[0].dtype, o.out.dtype):
        return f"it has no unsigned 8-bit activations ({QDQ})"
    zero = o.inputs[2] if len(o.inputs) > 2 else None
    return f"zero points must be 0 ({QDQ})" if zero is not None and any(zero.value or ()) else ""
