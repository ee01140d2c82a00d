"""Shapes of the operators that ONNX Runtime adds (domain com.microsoft), as far as they come in files.

Most have the output of an operator of ai.onnx on some of their inputs, which is asked in their place. For one that
is not here the file's own shapes hold, else its first input's: true of activations, normalisations and their like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from onnx import NodeProto, TypeProto, defs, helper
from onnx.shape_inference import infer_node_outputs

from onnxperf.graph.proto import NUMBERS, Shape, static
from op_models import Tensor

OPSET = 13  # of the operators asked: axes are attributes, no shape depends on a value
#: The operator of ai.onnx, the inputs it gets, and which input's dtype the output has.
LIKE: dict[str, tuple[str, tuple[int, ...], int]] = {
    "FusedConv": ("Conv", (0, 1), 0), "NhwcConv": ("Conv", (0, 1), 0), "NhwcFusedConv": ("Conv", (0, 1), 0),
    "QLinearConv": ("Conv", (0, 3), 7), "FusedGemm": ("Gemm", (0, 1), 0), "QGemm": ("Gemm", (0, 3), 8),
    "GemmFastGelu": ("MatMul", (0, 1), 0), "FusedMatMul": ("MatMul", (0, 1), 0),
    "TransposeMatMul": ("MatMul", (0, 1), 0), "FusedMatMulActivation": ("MatMul", (0, 1), 0),
    "MatMulIntegerToFloat": ("MatMul", (0, 1), 2),
    "DynamicQuantizeMatMul": ("MatMul", (0, 1), 0), "QLinearAdd": ("Add", (0, 3), 0), "QLinearMul": ("Mul", (0, 3), 0),
    "QLinearWhere": ("Where", (0, 1, 4), 1), "QLinearAveragePool": ("AveragePool", (0,), 0),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,), 0), "QLinearReduceMean": ("ReduceMean", (0,), 0),
    "NhwcMaxPool": ("MaxPool", (0,), 0),
}  # fmt: skip
#: What has the shape of its first input.
SAME = frozenset({
    "BiasAdd", "BiasDropout", "BiasGelu", "BiasSoftmax", "BitmaskDropout", "BitmaskBiasDropout", "ComplexMul",
    "ComplexMulConj", "FastGelu", "GatedAdd", "Gelu", "GroupNorm", "Inverse", "LongformerAttention", "MoE",
    "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "QMoE", "QuickGelu", "RotaryEmbedding", "ScaledSiLU",
    "SimplifiedLayerNormalization", "SkipGroupNorm", "Trilu",
})  # fmt: skip
SKIP_NORMS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
Outputs = dict[int, tuple[str, Shape]]  # by position


def contributed(node: NodeProto, attrs: Mapping[str, Any], inputs: Sequence[Tensor | None]) -> dict[str, TypeProto]:
    """The types of a com.microsoft node's outputs by name, as far as they are known."""
    found = {}
    with suppress(Exception):  # a form it can't have; and malformed ones make the C++ side raise whatever it likes
        like = node.op_type in LIKE or node.op_type == "QLinearConcat"
        found = _like(node, attrs, inputs) if like else _own(node.op_type, attrs, inputs)
    pairs = ((node.output[i], found[i]) for i in found if i < len(node.output))
    return {o: helper.make_tensor_type_proto(NUMBERS.get(dtype, 0), shape) for o, (dtype, shape) in pairs}


def _like(node: NodeProto, attrs: Mapping[str, Any], inputs: Sequence[Tensor | None]) -> Outputs:
    if node.op_type == "QLinearConcat":
        type, at, like = "Concat", tuple(range(2, len(inputs), 3)), 2
    else:
        type, at, like = LIKE[node.op_type]
    last = bool(attrs.get("channels_last")) or node.op_type.startswith("Nhwc")
    shapes = [t.shape for i in at if (t := inputs[i]) is not None]
    if last:
        shapes[0] = (shapes[0][0], shapes[0][-1], *shapes[0][1:-1])
    if type == "MatMul":
        turned = (attrs.get("transA"), attrs.get("transB"))
        shapes = [(*s[:-2], s[-1], s[-2]) if turn else s for s, turn in zip(shapes, turned, strict=True)]
    schema = defs.get_schema(type, OPSET, "")
    kept = [a for a in node.attribute if a.name in schema.attributes]
    kinds = [9 if type == "Where" and not k else 1 for k in range(len(shapes))]  # a condition is bool
    types = {f"i{k}": helper.make_tensor_type_proto(kinds[k], shape) for k, shape in enumerate(shapes)}
    asked = NodeProto(op_type=type, input=list(types), output=["o"], attribute=kept)
    shape = static(infer_node_outputs(schema, asked, types, {}).get("o"))
    if shape is None:
        return {}
    source = inputs[like] if like < len(inputs) else None
    dtype = source.dtype if source is not None else "float32"
    return {0: (dtype, (shape[0], *shape[2:], shape[1]) if last else shape)}


def _own(type: str, attrs: Mapping[str, Any], inputs: Sequence[Tensor | None]) -> Outputs:
    x, w, *rest = (*inputs, None, None, None)[: max(len(inputs), 3)]
    if x is None:
        return {}
    if type in SAME or type in SKIP_NORMS:
        return dict.fromkeys((0, 3) if type in SKIP_NORMS else (0,), (x.dtype, x.shape))
    if type == "BiasSplitGelu":
        return {0: (x.dtype, (*x.shape[:-1], x.shape[-1] // 2))}
    if type in ("MatMulNBits", "MatMulBnb4"):
        return {0: (x.dtype, (*x.shape[:-1], int(attrs["N"])))}
    if type == "EmbedLayerNormalization" and rest[0] is not None:
        hidden = (rest[0].dtype, (*x.shape, rest[0].shape[1]))
        return {0: hidden, 1: ("int32", x.shape[:1]), 2: hidden}
    if w is None:
        return _packed(type, attrs, x)
    if type == "DequantizeLinear":
        return {0: (w.dtype, x.shape)}
    if type == "QuantizeLinear":
        return {0: (rest[0].dtype if rest[0] is not None else "uint8", x.shape)}
    if type in ("Attention", "QAttention"):
        heads, third = int(attrs["num_heads"]), w.shape[1] // 3
        columns = attrs.get("qkv_hidden_sizes") or (third, third, third)
        past = inputs[4 if type == "Attention" else 8 : (5 if type == "Attention" else 9)]
        length = x.shape[1] + (past[0].shape[3] if past and past[0] is not None else 0)
        scale = inputs[3] if type == "QAttention" else x
        dtype = scale.dtype if scale is not None else "float32"
        present = (2, x.shape[0], heads, length, columns[1] // heads)
        return {0: (dtype, (*x.shape[:2], columns[2])), 1: (dtype, present)}
    if type == "MultiHeadAttention" and x.rank == 3 and rest[0] is not None:
        v = rest[0]
        return {0: (x.dtype, (*x.shape[:2], v.shape[2] if v.rank == 3 else v.shape[1] * v.shape[3]))}
    if type == "GroupQueryAttention":
        return {0: (x.dtype, x.shape), **_caches(x, inputs)}
    if type == "GatherBlockQuantized" and rest[0] is not None:
        axis, bits = attrs.get("gather_axis", 0), attrs.get("bits", 4)
        shape = (*x.shape[:axis], *w.shape, *x.shape[axis + 1 :])
        return {0: (rest[0].dtype, (*shape[:-1], shape[-1] * (8 // bits if x.dtype == "uint8" else 1)))}
    if type == "CDist":
        return {0: (x.dtype, (x.shape[0], w.shape[0]))}
    return {}


def _packed(type: str, attrs: Mapping[str, Any], x: Tensor) -> Outputs:
    """Attention whose first input holds queries, keys and values."""
    heads = int(attrs.get("num_heads", 0))
    if type == "MultiHeadAttention" and x.rank == 5:
        return {0: (x.dtype, (*x.shape[:2], x.shape[2] * x.shape[4]))}
    if type == "GroupQueryAttention" and x.rank == 3:
        dim = x.shape[2] // (heads + 2 * int(attrs["kv_num_heads"]))
        return {0: (x.dtype, (*x.shape[:2], heads * dim))}
    return {}


def _caches(x: Tensor, inputs: Sequence[Tensor | None]) -> Outputs:
    """Keys and values kept for later: in the buffers that came in, or longer by the new ones."""
    past = [t for t in inputs[3:5] if t is not None]
    total = [max(t.shape[2], x.shape[1]) for t in past]
    return {1 + k: (t.dtype, (*t.shape[:2], n, t.shape[3])) for k, (t, n) in enumerate(zip(past, total, strict=True))}
