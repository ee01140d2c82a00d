"""Every rule against figures worked out by hand: one table of operators, their shapes, and what they cost.

Vector FLOPs of an element: a special function (exp, tanh, a division) 4, a sigmoid 10, Gelu by tanh 12, by erf 8; a
softmax 8 and 4 a row; from integers 2, to integers 8, and from one scale to another 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from op_models import IN_PLACE, NHWC, Attention, Conv, Gemm, Move, Pointwise, Recurrent, Rows, Tensor, work_of
from op_models.experts import taken
from op_models.pointwise import FLOPS

MS, ML, NCHWC = "com.microsoft::", "ai.onnx.ml::", "com.microsoft.nchwc::"


class Row(NamedTuple):
    """An operator and its work. Shapes are of float32 tensors; without `output`, it is like the first input.

    Bytes that are not stated are those of all inputs, each once, and of all outputs; weights, types and units of the
    arithmetic count only where they are stated.
    """

    type: str
    inputs: Sequence[Any]
    output: Any
    size: Any
    matrix: int = 0
    vector: int = 0
    read: int | None = None
    written: int | None = None
    weights: int | None = None
    dtype: str = ""
    pipe: str = ""
    version: int = 0
    attrs: Mapping[str, Any] = {}


def u8(name: str, *shape: int) -> Tensor:
    return Tensor(name, "uint8", shape)


def i64(name: str, shape: tuple[int, ...], *value: int) -> Tensor:
    return Tensor(name, "int64", shape, "constant", value or None)


def boolean(*shape: int) -> Tensor:
    return Tensor("flags", "bool", shape)


def each(type: str, flops: int, *others: Any, spread: bool = False, **attrs: Any) -> Row:
    """An elementwise operator on six elements, with so many FLOPs for each; `spread` as in `Pointwise`."""
    size = Pointwise(6, spread, sigmoid=type.removeprefix(MS) in ("QuickGelu", "Sigmoid", "SwiGLU", "Swish"))
    return Row(type, [(2, 3), *others], (2, 3), size, vector=6 * flops, attrs=attrs)


def attended(size: Attention, score: int, *, matrix: int = 0, vector: int = 0) -> tuple[Attention, int, int]:
    """Both products in full, `score` FLOPs for each of their scores and 4 a row, and what is computed beside them."""
    rows = size.batch * size.heads * size.queries
    products = 2 * rows * size.keys * (size.dim + size.dim_v)
    return size, products + matrix, rows * size.keys * score + rows * 4 + vector


def experts(type: str, tokens: int, third: bool = False, packed: int = 1, **attrs: int) -> Row:
    """Eight experts of 32 x 12 weights, two for each token: as many are read as have tokens, on average."""
    dtype, width, gap = ("uint8", 1, [None, None]) if type == "QMoE" else ("float32", 4, [None])
    sides = [(12, 32), (32, 12), *([(12, 32)] if third else [])]
    fc = [Tensor(f"fc{i}", dtype, (8, a, b // packed), "weight") for i, (a, b) in enumerate(sides)]
    weights, busy = 32 * 12 * len(fc), {1: 2, 3: 5, 100: 8}[tokens]  # 8 (1 - 0.75^tokens)
    stored = busy * weights // packed * width
    return Row(
        MS + type, [(tokens, 32), (tokens, 8), *(t for w in fc for t in (w, *gap))], None,
        Gemm(busy, -(-2 * tokens // busy), 12 * len(fc), 32, False, True), matrix=2 * tokens * 2 * weights,
        vector=tokens * 8 * 8 + tokens * 2 * (12 * (2 if third else 1) + 64) + 2 * busy * weights * (type == "QMoE"),
        read=tokens * (32 + 8) * 4 + stored, weights=stored, attrs={"k": 2, **attrs},
    )  # fmt: skip


IMAGE, FILTERS = u8("x", 1, 2, 3, 3), u8("w", 4, 2, 1, 1)
PAST, GROWN = (2, 4, 10, 8), (2, 4, 13, 8)
IDS, SEGMENTS = Tensor("ids", "int32", (2, 7)), Tensor("segments", "int32", (2, 7))
TABLES = [IDS, SEGMENTS, (30522, 16), (512, 16), (99, 16), (16,), (16,)]
CELLS = [("RNN", 1, 4), ("GRU", 3, 2 * 10 + 4 + 4), ("LSTM", 4, 3 * 10 + 2 * 4 + 4)]  # gates, and FLOPs beside them
UNITS = 2 * 10 * 3 * 8  # directions, steps, batch, hidden

TABLE = [
    # convolutions
    Row("Conv", [(1, 3, 224, 224), (64, 3, 7, 7)], (1, 64, 112, 112), Conv(1, 3, 64, 12544, 49, 1, 4),
        matrix=236_027_904, attrs={"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    Row("Conv", [(2, 8, 10), (16, 8, 3), (16,)], (2, 16, 8), Conv(2, 8, 16, 8, 3, 1, 1), matrix=12_288, vector=256),
    Row("Conv", [(1, 32, 14, 14), (32, 1, 3, 3)], (1, 32, 14, 14), Conv(1, 32, 32, 196, 9, 32, 1), matrix=112_896,
        attrs={"group": 32}),
    Row("Conv", [(1, 2, 4, 4, 4), (4, 2, 2, 2, 2)], (1, 4, 2, 2, 2), Conv(1, 2, 4, 8, 8, 1, 8), matrix=1_024,
        attrs={"strides": [2, 2, 2]}),
    Row("Conv", [(0, 3, 8, 8), (4, 3, 3, 3)], (0, 4, 6, 6), Conv(0, 3, 4, 36, 9, 1, 1)),
    Row(MS + "FusedConv", [(1, 2, 3, 3), (2, 2, 1, 1), (2,), (1, 2, 3, 3)], (1, 2, 3, 3), Conv(1, 2, 2, 9, 1, 1, 1),
        matrix=72, vector=18 * 3, attrs={"activation": "Relu"}),
    Row(NCHWC + "Conv", [(1, 2, 3, 3), (2, 2, 1, 1), None, (1, 2, 3, 3)], (1, 2, 3, 3), Conv(1, 2, 2, 9, 1, 1, 1),
        matrix=72, vector=18 * 2, attrs={"activation": "Relu"}),
    Row(MS + "FusedConv", [(1, 2, 3, 3), (2, 2, 1, 1)], (1, 2, 3, 3), Conv(1, 2, 2, 9, 1, 1, 1), matrix=72,
        vector=18 * 2, attrs={"activation": "Clip"}),
    Row(MS + "FusedConv", [(1, 2, 3, 3), (2, 2, 1, 1)], (1, 2, 3, 3), Conv(1, 2, 2, 9, 1, 1, 1), matrix=72,
        vector=18 * 10, attrs={"activation": "Sigmoid"}),
    Row("ConvTranspose", [(1, 8, 5), (8, 2, 2)], (1, 2, 6), Conv(1, 8, 2, 6, 2, 1, 1, "transpose"), matrix=320),
    Row("ConvTranspose", [(1, 8, 5, 5), (8, 2, 2, 2), (4,)], (1, 4, 10, 10), Conv(1, 8, 4, 100, 4, 2, 4, "transpose"),
        matrix=2 * 8 * 25 * 2 * 4, vector=400, attrs={"group": 2, "strides": [2, 2]}),
    Row("QLinearConv", [IMAGE, (), u8("a"), FILTERS, (), u8("b"), (), u8("c"), (4,)], u8("y", 1, 4, 3, 3),
        Conv(1, 2, 4, 9, 1, 1, 1), matrix=2 * 36 * 2, vector=36 * (1 + 5)),
    Row(MS + "QLinearConv", [u8("x", 1, 3, 3, 2), (), (), FILTERS, (), ()], u8("y", 1, 3, 3, 4),
        Conv(1, 2, 4, 9, 1, 1, 1, last=True), matrix=2 * 36 * 2, vector=36 * 5, attrs={"channels_last": 1}),
    Row("ConvInteger", [IMAGE, FILTERS, u8("a"), u8("b")], (1, 4, 3, 3), Conv(1, 2, 4, 9, 1, 1, 1), matrix=144),
    Row(MS + "NhwcConv", [(1, 3, 3, 2), (4, 2, 1, 1), (4,)], (1, 3, 3, 4), Conv(1, 2, 4, 9, 1, 1, 1, last=True),
        matrix=144, vector=36),
    Row(NHWC + "Conv", [(1, 3, 3, 2), (4, 2, 1, 1)], (1, 3, 3, 4), Conv(1, 2, 4, 9, 1, 1, 1, last=True), matrix=144),
    Row(NHWC + "ConvTranspose", [(1, 5, 5, 8), (8, 2, 2, 2)], (1, 10, 10, 4),
        Conv(1, 8, 4, 100, 4, 2, 4, "transpose", last=True), matrix=2 * 8 * 25 * 2 * 4,
        attrs={"group": 2, "strides": [2, 2]}),
    Row("Conv", [(1, 2, 3, 3), (4, 2, 1, 1)], (1, 4, 3, 3), Conv(1, 2, 4, 9, 1, 1, 1, last=True), matrix=144,
        attrs={"memory_format": "channels_last"}),
    Row(MS + "ConvTransposeWithDynamicPads", [(1, 8, 5), (8, 2, 2), (2,)], (1, 2, 6),
        Conv(1, 8, 2, 6, 2, 1, 1, "transpose"), matrix=320),
    Row("DeformConv", [(1, 2, 4, 4), (3, 2, 2, 2), (1, 8, 3, 3), (3,), (1, 4, 3, 3)], (1, 3, 3, 3),
        Conv(1, 2, 3, 9, 4, 1, 1), matrix=2 * 27 * 8, vector=27 + 2 * 9 * 4 * 9),
    Row("CausalConvWithState", [(2, 8, 10), (8, 1, 4), (8,)], (2, 8, 10), Conv(2, 8, 8, 10, 4, 8, 1),
        matrix=2 * 160 * 4, vector=160 * (1 + 11), attrs={"activation": "silu"}),
    *(Row("Conv", [(1, 1, 8, 8), (1, 1, *kernel)], (1, 1, 4, 4), Conv(1, 1, 1, 16, taps, 1, strides[0] * strides[1]),
          matrix=2 * 16 * taps, read=4 * (image + taps), attrs={"strides": strides})  # a stride may pass over pixels
      for kernel, taps, strides, image in (((1, 1), 1, (2, 2), 16), ((3, 3), 9, (2, 2), 64), ((1, 3), 3, (2, 1), 32))),
    # products
    Row("QLinearMatMul", [u8("a", 5, 7), (), (), u8("b", 7, 3), (), ()], u8("y", 5, 3), Gemm(1, 5, 3, 7), matrix=210,
        vector=75),
    Row("MatMulInteger", [u8("a", 5, 7), u8("b", 7, 3), u8("z"), u8("y")], (5, 3), Gemm(1, 5, 3, 7), matrix=210),
    Row(MS + "MatMulIntegerToFloat", [u8("a", 5, 7), u8("b", 7, 3), (), (), None, None, (3,)], (5, 3), Gemm(1, 5, 3, 7),
        matrix=210, vector=15 * 3),
    Row(MS + "DynamicQuantizeMatMul", [(5, 7), u8("b", 7, 3), (), u8("z"), (3,)], (5, 3), Gemm(1, 5, 3, 7), matrix=210,
        vector=15 * 3 + 35 * 10),
    Row(MS + "QOrderedMatMul", [u8("a", 5, 7), (), u8("b", 7, 3), (), (), (3,)], u8("y", 5, 3), Gemm(1, 5, 3, 7),
        matrix=210, vector=15 * 6),
    Row(MS + "QGemm", [u8("a", 5, 7), (), (), u8("b", 3, 7), (), (), (3,)], u8("y", 5, 3),
        Gemm(1, 5, 3, 7, False, True), matrix=210, vector=15 * 6, attrs={"transB": 1}),
    Row(MS + "FusedGemm", [(5, 7), (7, 3), (3,)], (5, 3), Gemm(1, 5, 3, 7), matrix=210, vector=15 * 11,
        attrs={"activation": "Sigmoid"}),
    Row(MS + "GemmFastGelu", [(2, 5, 7), (7, 3), (3,)], (2, 5, 3), Gemm(1, 10, 3, 7), matrix=420, vector=30 * 13),
    Row(MS + "GemmFloat8", [(5, 7), (3, 7), None, (), ()], (5, 3), Gemm(1, 5, 3, 7, False, True), matrix=210, vector=15,
        attrs={"transB": 1, "activation": "RELU"}),
    Row(MS + "FusedMatMulActivation", [(5, 7), (7, 3)], (5, 3), Gemm(1, 5, 3, 7), matrix=210, vector=15 * 5,
        attrs={"activation": "Tanh", "alpha": 0.5}),
    Row(MS + "TransposeMatMul", [(7, 5), (7, 3)], (5, 3), Gemm(1, 5, 3, 7, True, False), matrix=210,
        attrs={"transA": 1}),
    Row(MS + "MatMulNBits", [(2, 5, 64), u8("w", 16, 2, 16), (16, 2), None, None, (16,)], (2, 5, 16),
        Gemm(1, 10, 16, 64, False, True), matrix=20480, vector=2 * 1024 + 160,
        attrs={"N": 16, "K": 64, "bits": 4, "block_size": 32}),
    Row(MS + "MatMulBnb4", [(5, 64), u8("w", 512), (16,)], (5, 16), Gemm(1, 5, 16, 64, False, True), matrix=10240,
        vector=2048, attrs={"N": 16, "K": 64}),
    Row(MS + "MatMulFpQ4", [(5, 64), u8("w", 576), i64("s", (2,))], (5, 16), Gemm(1, 5, 16, 64, False, True),
        matrix=10240, vector=2048),
    Row(MS + "CDist", [(5, 7), (3, 7)], (5, 3), Gemm(1, 5, 3, 7, False, True), matrix=210,
        vector=2 * (35 + 21) + 15 * 8, attrs={"metric": "euclidean"}),
    Row(MS + "GatedRelativePositionBias", [(2, 6, 32), (32,), (1, 4, 6, 6), (8, 16), (16,), (1, 4, 1, 1)], (2, 4, 6, 6),
        Gemm(1, 48, 16, 8), matrix=2 * 48 * 8 * 16, vector=384 + 48 * (16 + 20 + 3) + 288, attrs={"num_heads": 4}),
    Row("LinearAttention", [(2, 6, 32), (2, 6, 16), (2, 6, 20), None, (2, 6, 2), (2, 6, 2)], (2, 6, 40),
        Gemm(4, 52, 10, 8), matrix=2 * 2 * 6 * (8 * 10 * (4 + 2 * 2) + 6 * (4 * (8 + 10) + 2 * (8 + 8 + 10))),
        vector=2 * 6 * 2 * 10 * (8 + 2) + 4 * 24,
        attrs={"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "gated_delta"}),
    Row("LinearAttention", [(2, 6, 32), (2, 6, 16), (2, 6, 20), None, (2, 6, 2), (2, 6, 2)], (2, 6, 40),
        Gemm(4, 34, 10, 8), matrix=2 * 2 * 6 * (8 * 10 * (4 + 2 * 2) + 2 * (4 * (8 + 10) + 2 * (8 + 8 + 10))),
        vector=2 * 6 * 2 * 10 * (8 + 2) + 4 * 24,
        attrs={"q_num_heads": 4, "kv_num_heads": 2, "chunk_size": 2}),  # gated_delta is the default
    Row("LinearAttention", [(2, 1, 32), (2, 1, 32), (2, 1, 80), (2, 8, 8, 10), (2, 1, 8), (2, 1, 8)], (2, 1, 80),
        Gemm(16, 3, 10, 8), matrix=2 * 2 * 8 * 10 * (8 + 2 * 8), vector=2 * 8 * 10 * (8 + 2) + 4 * 16,
        attrs={"q_num_heads": 4, "kv_num_heads": 8}),  # two states for each head of queries and keys
    Row("onnxperf::StateSpace", [(2, 1, 24), (2, 1, 6), (2, 1, 16), (2, 1, 16), (6,), (6,), (6,), (2, 6, 8, 4)],
        (2, 1, 24), Gemm(12, 2, 4, 8), matrix=2 * 2 * 8 * 4 * (6 + 6),
        vector=12 * 10 + 48 * 3 + 12 * (4 + 32)),
    Row("onnxperf::StateSpace", [(2, 5, 6), (2, 5, 6), (2, 5, 4), (2, 5, 4), (6, 4), (6,), (6,), (2, 6, 4), (2, 5, 6)],
        (2, 5, 6), Pointwise(60, steps=5), vector=60 * 10 + 60 * (3 + 12) + 60 * 4 * 10),
    Row(MS + "LinearAttentionGate", [(2, 3, 4), (4,), (4,), (2, 3, 4)], (2, 3, 4), Pointwise(24),
        vector=24 * 11 + 24 * 10),
    Row("LinearAttention", [(2, 6, 16), (2, 6, 16), (2, 6, 20)], (2, 6, 20), Gemm(4, 21, 10, 8),
        matrix=2 * 2 * 6 * (8 * 10 * (2 + 2) + 6 * 2 * (8 + 10)),
        attrs={"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}),
    Row(MS + "FusedMatMul", [(5, 2, 3, 4), (4, 2, 3, 7)], (2, 3, 5, 7), Gemm(6, 5, 7, 4), matrix=2 * 6 * 5 * 7 * 4,
        attrs={"transA": 0, "transBatchA": 1, "transBatchB": 1}),  # A as [m, stack, k]
    Row(MS + "FusedMatMul", [(4, 2, 3, 5), (4, 2, 3, 7)], (2, 3, 5, 7), Gemm(6, 5, 7, 4, True, False),
        matrix=2 * 6 * 5 * 7 * 4, attrs={"transA": 1, "transBatchA": 1, "transBatchB": 1}),  # A as [k, stack, m]
    Row("QLinearMatMul", [u8("a", 5, 7), (), (), u8("b", 7, 3)], (5, 3), Gemm(1, 5, 3, 7), matrix=210, vector=75,
        dtype="uint8"),
    Row(MS + "DynamicQuantizeMatMul", [(5, 7), u8("b", 7, 3), ()], (5, 3), Gemm(1, 5, 3, 7), matrix=210,
        vector=15 * 2 + 35 * 10, dtype="uint8"),
    Row(MS + "MatMulNBits", [Tensor("a", "float16", (5, 64)), u8("w", 16, 2, 16), (16, 2)], (5, 16),
        Gemm(1, 5, 16, 64, False, True), matrix=10240, vector=2048, dtype="float16", attrs={"N": 16, "K": 64}),
    Row(MS + "MatMulNBits", [(5, 64), Tensor("w", "uint8", (16, 2, 16), "weight"), (16, 2)], (5, 16),
        Gemm(1, 5, 16, 64, False, True), matrix=10240, vector=2048, read=4 * (320 + 32) + 512, weights=512,
        attrs={"N": 16, "K": 64}),  # read as they are stored
    # Einstein sums
    Row("Einsum", [(5, 7), (7, 3)], (5, 3), Gemm(1, 5, 3, 7), matrix=210, attrs={"equation": "ij,jk->ik"}),
    Row("Einsum", [(5, 7, 2), (7, 3)], (5, 3), Gemm(1, 5, 3, 7), matrix=210, vector=70,
        attrs={"equation": "ijx,jk->ik"}),
    Row("Einsum", [(5, 7), (7, 3), (3, 11)], (5, 11), Gemm(1, 5, 11, 3), matrix=210 + 330,
        attrs={"equation": "ij,jk,kl->il"}),
    Row("Einsum", [(5,), (7,)], (5, 7), Pointwise(35), vector=35, attrs={"equation": "i,j->ij"}),
    Row("Einsum", [(5, 7)], (5,), Rows(5, 7), vector=35, attrs={"equation": "ij->i"}),
    Row("Einsum", [(5, 5)], (5,), Move(5, 1), attrs={"equation": "ii->i"}),
    Row("Einsum", [(2, 5, 7)], (2, 7, 5), Move(70, 1), attrs={"equation": "...ij->...ji"}),
    *(Row("Einsum", shapes, out, size, matrix=2 * size.batch * size.m * size.n * size.k, attrs={"equation": equation})
      for equation, shapes, out, size in (
        ("ij,jk", [(5, 7), (7, 3)], (5, 3), Gemm(1, 5, 3, 7)),
        ("ij,kj->ik", [(5, 7), (3, 7)], (5, 3), Gemm(1, 5, 3, 7, False, True)),
        ("ji,jk->ki", [(7, 5), (7, 3)], (3, 5), Gemm(1, 5, 3, 7, True, False)),
        ("bhqd,bhkd->bhqk", [(2, 4, 6, 8), (2, 4, 7, 8)], (2, 4, 6, 7), Gemm(8, 6, 7, 8, False, True)),
        ("...ij,...jk->...ik", [(2, 1, 5, 7), (4, 7, 3)], (2, 4, 5, 3), Gemm(1, 10, 12, 7)),  # stacks of 2 and 4
        ("...ij,jk", [(2, 4, 5, 7), (7, 3)], (2, 4, 5, 3), Gemm(1, 40, 3, 7)),
        ("i,i->", [(9,), (9,)], (), Gemm(1, 1, 1, 9, False, True)),
        (" i j , j k -> i k ", [(5, 7), (7, 3)], (5, 3), Gemm(1, 5, 3, 7)),
      )),
    # attention
    Row("Attention", [(2, 4, 6, 8), (2, 4, 7, 8), (2, 4, 7, 5)], None,
        *attended(Attention(2, 4, 4, 6, 7, 8, 5, False), 9)),
    Row("Attention", [(2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8), boolean(6, 6)], None,
        *attended(Attention(2, 4, 2, 6, 6, 8, 8, True, masked=True), 9 + 1 + 1 + 6),
        attrs={"is_causal": 1, "softcap": 30.0}),
    Row("Attention", [(2, 6, 32), (2, 6, 32), (2, 6, 20), None, PAST, (2, 4, 10, 5)], None,
        *attended(Attention(2, 4, 4, 6, 16, 8, 5, False), 9), attrs={"q_num_heads": 4, "kv_num_heads": 4}),
    Row("Attention", [(2, 4, 1, 8), (2, 4, 90, 8), (2, 4, 90, 5), None, None, None, i64("filled", (2,), 10, 30)], None,
        *attended(Attention(2, 4, 4, 1, 20, 8, 5, False), 9), read=4 * 2 * 4 * (8 + 20 * (8 + 5)) + 16),
    Row("Attention", [(2, 4, 1, 8), (2, 4, 90, 8), (2, 4, 90, 8)], None,
        *attended(Attention(2, 4, 4, 1, 16, 8, 8, True), 10), attrs={"is_causal": 1, "left_window_size": 15}),
    Row("Attention", [(2, 4, 1, 8), (2, 4, 90, 8), (2, 4, 90, 8)], None,
        *attended(Attention(2, 4, 4, 1, 1, 8, 8, True), 10), attrs={"is_causal": 1, "left_window_size": 0}),
    Row("Attention", [(2, 4, 1, 8), (2, 4, 90, 8), (2, 4, 90, 8)], None,
        *attended(Attention(2, 4, 4, 1, 90, 8, 8, False), 9), attrs={"is_causal": 0, "left_window_size": 15}),
    Row(MS + "MultiHeadAttention", [(2, 6, 8), (2, 7, 8), (2, 7, 8)], None,
        *attended(Attention(2, 1, 1, 6, 7, 8, 8, False), 9), attrs={"num_heads": 1}),
    Row(MS + "Attention", [(2, 6, 8), (8, 24)], None,
        *attended(Attention(2, 1, 1, 6, 6, 8, 8, False), 9, matrix=2 * 12 * 8 * 24), attrs={"num_heads": 1}),
    Row(MS + "GroupQueryAttention", [(2, 6, 48), *[None] * 6, (99, 4), (99, 4)], None,
        *attended(Attention(2, 4, 1, 6, 6, 8, 8, True), 10), read=4 * (2 * 6 * 48 + 2 * 12 * 4),
        attrs={"num_heads": 4, "kv_num_heads": 1}),
    Row(MS + "GroupQueryAttention", [(2, 6, 48)], None, *attended(Attention(2, 4, 1, 6, 6, 8, 8, False), 9),
        attrs={"num_heads": 4, "kv_num_heads": 1, "causal": 0, "local_window_size": 1}),
    Row(MS + "GroupQueryAttention", [(2, 1, 48), None, None, (2, 1, 10, 8), (2, 1, 10, 8)], None,
        *attended(Attention(2, 4, 1, 1, 1, 8, 8, True), 10),
        attrs={"num_heads": 4, "kv_num_heads": 1, "local_window_size": 1}),
    Row("Attention", [(2, 4, 0, 8), (2, 4, 7, 8), (2, 4, 7, 5)], None,
        *attended(Attention(2, 4, 4, 0, 7, 8, 5, False), 9)),
    Row(MS + "Attention", [(2, 6, 32), (32, 96), (96,), (2, 6)], None,
        *attended(Attention(2, 4, 4, 6, 6, 8, 8, False), 10, matrix=2 * 12 * 32 * 96, vector=12 * 96),
        attrs={"num_heads": 4}),
    Row(MS + "Attention", [(2, 6, 32), (32, 84), None, None, (2, 2, 4, 10, 8)], None,
        *attended(Attention(2, 4, 4, 6, 16, 8, 5, True), 10, matrix=2 * 12 * 32 * 84, vector=12 * 3 * 64),
        attrs={"num_heads": 4, "unidirectional": 1, "qkv_hidden_sizes": [32, 32, 20], "do_rotary": 1}),
    Row(MS + "MultiHeadAttention", [(2, 6, 32), (2, 7, 32), (2, 7, 20)], None,
        *attended(Attention(2, 4, 4, 6, 7, 8, 5, False), 9), attrs={"num_heads": 4}),
    Row(MS + "MultiHeadAttention", [(2, 6, 32), (2, 6, 32), (2, 6, 32), (96,), None, (1, 1, 6, 6), PAST, PAST], None,
        *attended(Attention(2, 4, 4, 6, 16, 8, 8, False), 10, vector=12 * 96), attrs={"num_heads": 4}),
    Row(MS + "MultiHeadAttention", [(2, 6, 4, 3, 8)], None, *attended(Attention(2, 4, 4, 6, 6, 8, 8, True), 10),
        attrs={"num_heads": 4, "unidirectional": 1}),
    Row(MS + "MultiHeadAttention", [(2, 6, 32), (2, 7, 4, 2, 8)], None,
        *attended(Attention(2, 4, 4, 6, 7, 8, 8, False), 9), attrs={"num_heads": 4}),
    Row(MS + "MultiHeadAttention", [(2, 6, 32), (2, 4, 7, 8), (2, 4, 7, 8)], None,
        *attended(Attention(2, 4, 4, 6, 7, 8, 8, False), 9), attrs={"num_heads": 4}),
    Row(MS + "GroupQueryAttention", [(2, 6, 32), (2, 6, 16), (2, 6, 16)], None,
        *attended(Attention(2, 4, 2, 6, 6, 8, 8, True), 10), attrs={"num_heads": 4, "kv_num_heads": 2}),
    Row(MS + "GroupQueryAttention", [(2, 1, 64), None, None, PAST, PAST], None,
        *attended(Attention(2, 4, 2, 1, 11, 8, 8, True), 10), attrs={"num_heads": 4, "kv_num_heads": 2}),
    Row(MS + "GroupQueryAttention", [(2, 1, 64), None, None, PAST, PAST, None, i64("total", (), 5), (99, 4), (99, 4)],
        None, *attended(Attention(2, 4, 2, 1, 5, 8, 8, True), 16, vector=3 * 2 * 6 * 8),
        read=4 * (128 + 2 * 640 + 2 * 2 * 4) + 8,
        attrs={"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "softcap": 50.0}),
    Row(MS + "GroupQueryAttention", [(2, 1, 64), None, None, PAST, PAST], None,
        *attended(Attention(2, 4, 2, 1, 4, 8, 8, True), 10),
        attrs={"num_heads": 4, "kv_num_heads": 2, "local_window_size": 4}),
    Row("onnxperf::CachedAttention",
        [(2, 3, 32), (2, 2, 10, 8), (2, 2, 10, 8), None, i64("total", (), 7), (9, 4), (9, 4)],
        (2, 3, 32), *attended(Attention(2, 4, 2, 3, 6, 8, 8, True), 10, vector=3 * 2 * 3 * 4 * 8),
        attrs={"num_heads": 4, "kv_num_heads": 2, "local_window_size": 4},
        read=4 * (2 * 3 * 32 + 2 * 2 * 2 * 6 * 8 + 2 * 2 * 3 * 4) + 8),
    Row("onnxperf::SparseIndexer", [(2, 3, 32), (2, 3, 8), (2, 1, 10, 8), (2, 3, 4), None, i64("total", (), 7)],
        [(2, 3, 5), (2, 1, 10, 8)], Gemm(2, 12, 7, 8), matrix=2 * 42 * 4 * 8, vector=42 * 14,
        read=4 * (2 * 3 * (32 + 8 + 4) + 2 * 4 * 8) + 8, written=4 * (2 * 3 * 5 + 2 * 3 * 8)),
    Row("onnxperf::LatentAttention", [(6, 4, 8), (2, 3, 8), (2, 1, 10, 8), None, i64("total", (), 7), None, (2, 3, 6)],
        [(6, 4, 5), (2, 1, 10, 8)],
        *attended(Attention(6, 4, 1, 1, 6, 8, 5, True, True), 10), attrs={"v_head_size": 5},
        read=4 * (6 * 4 * 8 + 2 * 3 * 8 + 2 * 4 * 8 + 2 * 3 * 6) + 8, written=4 * (6 * 4 * 5 + 2 * 3 * 8)),
    Row("onnxperf::LatentAttention", [(6, 4, 8), (2, 3, 8), (2, 1, 10, 8), None, i64("total", (), 7)],
        [(6, 4, 5), (2, 1, 10, 8)], *attended(Attention(2, 4, 1, 3, 7, 8, 5, True, True), 10),
        read=4 * (6 * 4 * 8 + 2 * 3 * 8 + 2 * 4 * 8) + 8, written=4 * (6 * 4 * 5 + 2 * 3 * 8),
        attrs={"v_head_size": 5}),
    Row("tensorrt::Attention", [(2, 4, 6, 8), (2, 4, 7, 8), (2, 4, 7, 8)], None,
        *attended(Attention(2, 4, 4, 6, 7, 8, 8, False), 9)),
    Row("ai.onnx.preview::FlexAttention", [(2, 4, 6, 8), (2, 2, 7, 8), (2, 2, 7, 8)], None,
        *attended(Attention(2, 4, 2, 6, 7, 8, 8, False), 9)),
    Row(MS + "QAttention",
        [u8("x", 2, 6, 32), u8("w", 32, 96), (96,), (), (), None, u8("a"), u8("b"), (2, 2, 4, 10, 8)], None,
        *attended(Attention(2, 4, 4, 6, 16, 8, 8, False), 9, matrix=2 * 12 * 32 * 96, vector=12 * 96 * (1 + 2)),
        attrs={"num_heads": 4}),
    Row(MS + "DecoderMaskedSelfAttention", [(2, 1, 32), (32, 96), (96,), None, (2, 2, 4, 10, 8)], None,
        *attended(Attention(2, 4, 4, 1, 11, 8, 8, False), 9, matrix=2 * 2 * 32 * 96, vector=2 * 96),
        attrs={"num_heads": 4}),
    Row(MS + "DecoderMaskedMultiHeadAttention", [(2, 1, 32), (2, 1, 32), (2, 1, 32), None, None, (2, 4, 10, 8)], None,
        *attended(Attention(2, 4, 4, 1, 11, 8, 8, False), 9), attrs={"num_heads": 4}),
    Row(MS + "DecoderMaskedMultiHeadAttention", [(2, 1, 32), (2, 4, 7, 8), (2, 4, 7, 8)], None,
        *attended(Attention(2, 4, 4, 1, 7, 8, 8, False), 9), attrs={"num_heads": 4}),
    Row(MS + "QOrderedAttention", [(2, 6, 32), *[()] * 4, (32, 32), (32, 32), (32, 32)], None,
        *attended(Attention(2, 4, 4, 6, 6, 8, 8, False), 9, matrix=2 * 12 * 32 * 96, vector=12 * 96 * (1 + 5)),
        attrs={"num_heads": 4}),
    Row(MS + "PackedAttention", [(9, 32), (32, 96), (96,), (2, 6), (3,)], None,
        *attended(Attention(2, 4, 4, 5, 5, 8, 8, False), 9, matrix=2 * 10 * 32 * 96, vector=10 * 96),
        attrs={"num_heads": 4}),
    Row(MS + "PackedMultiHeadAttention", [(9, 4, 3, 8), None, None, None, (2, 6), (3,)], None,
        *attended(Attention(2, 4, 4, 5, 5, 8, 8, False), 9), attrs={"num_heads": 4}),
    Row(MS + "PackedMultiHeadAttention", [(10, 32), (10, 32), (10, 32), None, (2, 6), (3,)], None,
        *attended(Attention(2, 4, 4, 5, 5, 8, 8, False), 9), attrs={"num_heads": 4}),
    Row(MS + "LongformerAttention", [(2, 40, 32), (32, 96), (96,), (2, 40), (32, 96), (96,), (2, 40)], None,
        *attended(Attention(2, 4, 4, 40, 17, 8, 8, False), 10, matrix=2 * 80 * 32 * 192, vector=80 * 192),
        attrs={"num_heads": 4, "window": 8}),
    Row(MS + "SparseAttention",
        [(2, 16, 32), (2, 16, 16), (2, 16, 16), (2, 2, 64, 8), (2, 2, 64, 8), (1, 5), (1, 6), i64("n", (), 48)], None,
        *attended(Attention(2, 4, 2, 16, 32, 8, 8, True), 11),
        attrs={"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 16}),
    Row(MS + "PagedAttention", [(6, 32), (6, 16), (6, 16), (9, 16, 2, 8), (9, 16, 2, 8), (3,), (2,), (2, 4)], None,
        *attended(Attention(2, 4, 2, 3, 64, 8, 8, True), 10), read=4 * (384 + 2 * 2 * 64 * 16 + 3 + 2 + 8),
        written=4 * (192 + 2 * 6 * 16), attrs={"num_heads": 4, "kv_num_heads": 2}),
    Row(MS + "PagedAttention",
        [(2, 64), None, None, (9, 16, 2, 8), (9, 16, 2, 8), (3,), i64("past", (2,), 9, 20), (2, 4)], None,
        *attended(Attention(2, 4, 2, 1, 21, 8, 8, True), 10), read=4 * (128 + 2 * 2 * 21 * 16 + 3 + 8) + 2 * 8,
        written=4 * (128 + 2 * 2 * 16), attrs={"num_heads": 4, "kv_num_heads": 2}),
    Row(MS + "GroupQueryAttention", [(2, 1, 64), None, None, PAST, PAST, None, None, (99, 4), (99, 4)], None,
        *attended(Attention(2, 4, 2, 1, 11, 8, 8, True), 10, vector=3 * 2 * 6 * 8),
        read=4 * (128 + 2 * 640 + 2 * 2 * 4), attrs={"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}),
    Row(MS + "PagedAttention", [(2, 32), (2, 16), (2, 16), (100, 16, 2, 8), (100, 16, 2, 8), (3,), (2,), (2, 4)],
        [(2, 32), (100, 16, 2, 8), (100, 16, 2, 8)], *attended(Attention(2, 4, 2, 1, 64, 8, 8, True), 10),
        read=4 * (64 + 2 * 32 + 2 * (2 * 64 * 16) + 3 + 2 + 8), written=4 * (64 + 2 * 32),
        attrs={"num_heads": 4, "kv_num_heads": 2}),
    Row(MS + "QAttention", [u8("x", 2, 6, 8), u8("w", 8, 24), (24,)], (2, 6, 8),
        *attended(Attention(2, 1, 1, 6, 6, 8, 8, False), 9, matrix=2 * 12 * 8 * 24, vector=12 * 24 * (1 + 2)),
        dtype="float32", attrs={"num_heads": 1}),
    # caches in place: positions that are seen, but for the new ones, are read, the new ones written; else all of both
    Row(MS + "GroupQueryAttention", [(2, 1, 32), None, None, PAST, PAST, None, i64("total", (), 5)],
        [(2, 1, 16), PAST, PAST], *attended(Attention(2, 2, 4, 1, 5, 3, 3, True), 10),
        read=4 * (64 + 2 * 2 * 4 * 4 * 8) + 8, written=4 * (32 + 2 * 2 * 4 * 8),
        attrs={"num_heads": 2, "kv_num_heads": 4}),
    Row(MS + "GroupQueryAttention", [(2, 3, 32), (2, 3, 32), (2, 3, 32), PAST, PAST], [(2, 3, 32), PAST, PAST],
        *attended(Attention(2, 4, 4, 3, 10, 8, 8, True), 10), read=4 * (3 * 192 + 2 * 2 * 4 * 7 * 8),
        written=4 * (192 + 2 * 2 * 4 * 3 * 8), attrs={"num_heads": 4, "kv_num_heads": 4}),
    Row(MS + "GroupQueryAttention", [(2, 3, 32), (2, 3, 32), (2, 3, 32), PAST, PAST], [(2, 3, 32), GROWN, GROWN],
        *attended(Attention(2, 4, 4, 3, 13, 8, 8, True), 10), read=4 * (3 * 192 + 2 * 640 + 2 * 832),
        attrs={"num_heads": 4, "kv_num_heads": 4}),
    Row("Attention", [(2, 4, 3, 8), (2, 4, 3, 8), (2, 4, 3, 8), None, PAST, PAST], [(2, 4, 3, 8), GROWN, GROWN],
        *attended(Attention(2, 4, 4, 3, 13, 8, 8, False), 9), read=4 * (3 * 192 + 2 * 640 + 2 * 832)),
    Row(MS + "SparseAttention",
        [(2, 1, 32), (2, 1, 16), (2, 1, 16), (2, 2, 64, 8), (2, 2, 64, 8), (1, 5), (1, 6), i64("n", (), 48), None,
         (64, 4), (64, 4)],
        [(2, 1, 32), (2, 2, 64, 8), (2, 2, 64, 8)],
        *attended(Attention(2, 4, 2, 1, 32, 8, 8, True), 11, vector=3 * 2 * 6 * 8),
        read=4 * (64 + 2 * 32 + 2 * 2 * 2 * 31 * 8 + 11 + 2 * 2 * 4) + 8, written=4 * (64 + 2 * 2 * 2 * 8),
        attrs={"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 16, "do_rotary": 1}),
    Row(MS + "SparseAttention",
        [(2, 1, 32), (2, 1, 16), (2, 1, 16), (2, 2, 64, 8), (2, 2, 64, 8), (1, 5), (1, 6), i64("n", (), 48)],
        [(2, 1, 32), (2, 2, 64, 8), (2, 2, 64, 8)], *attended(Attention(2, 4, 2, 1, 32, 8, 8, True), 11),
        read=4 * (64 + 2 * 32 + 2 * 2 * 2 * 31 * 8 + 11) + 8, written=4 * (64 + 2 * 2 * 2 * 8),
        attrs={"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 16}),
    Row(MS + "DecoderMaskedMultiHeadAttention",
        [(2, 1, 32), (2, 1, 32), (2, 1, 32), None, None, PAST, PAST, i64("past", (1,), 6)], [(2, 1, 32), PAST, PAST],
        *attended(Attention(2, 4, 4, 1, 7, 8, 8, False), 9), read=4 * (3 * 64 + 2 * 2 * 4 * 6 * 8) + 8,
        written=4 * (64 + 2 * 2 * 4 * 8), attrs={"num_heads": 4}),
    Row(MS + "MultiHeadAttention",
        [(2, 1, 32), (2, 1, 32), (2, 1, 32), None, None, None, PAST, PAST], [(2, 1, 32), PAST, PAST],
        *attended(Attention(2, 4, 4, 1, 10, 8, 8, False), 9), read=4 * (3 * 64 + 2 * 2 * 4 * 9 * 8),
        written=4 * (64 + 2 * 2 * 4 * 8), attrs={"num_heads": 4}),
    *[Row(MS + type, [(2, 1, 32), (32, 96), (96,), None, (2, *PAST), None, i64("past", (1,), 6)],
          [(2, 1, 32), (2, *PAST)], *attended(Attention(2, 4, 4, 1, 7, 8, 8, False), 9, matrix=2 * 2 * 32 * 96,
          vector=2 * 96), read=4 * (64 + 32 * 96 + 96 + 2 * 2 * 4 * 6 * 8) + 8, written=4 * (64 + 2 * 2 * 4 * 8),
          attrs={"num_heads": 4, "past_present_share_buffer": 1})
      for type in ("Attention", "DecoderMaskedSelfAttention")],
    # rotary embeddings
    Row("RotaryEmbedding", [(2, 4, 6, 8), (99, 4), (99, 4), i64("pos", (2, 6))], None, Pointwise(384), vector=3 * 384,
        read=4 * (384 + 96) + 96),
    Row("RotaryEmbedding", [(2, 4, 6, 8), (2, 6, 4), (2, 6, 4)], None, Pointwise(384), vector=3 * 384),
    Row("RotaryEmbedding", [(2, 6, 32), (2, 6, 2), (2, 6, 2)], None, Pointwise(384), vector=3 * 192,
        attrs={"num_heads": 4, "rotary_embedding_dim": 4}),
    Row(MS + "RotaryEmbedding", [(2, 6, 32), i64("pos", (1,)), (99, 4), (99, 4)], None, Pointwise(384), vector=3 * 384,
        read=4 * (384 + 48) + 8),
    Row(MS + "RotaryEmbedding", [(2, 4, 6, 8), i64("pos", (2, 6)), (99, 2), (99, 2)], None, Pointwise(384),
        vector=3 * 192, read=4 * (384 + 48) + 96, attrs={"rotary_embedding_dim": 4, "num_heads": 4}),
    # recurrent layers and experts
    *(Row(type, [(10, 3, 5), (2, gates * 8, 5), (2, gates * 8, 8)], (10, 2, 3, 8), Recurrent(10, 3, 5, 8, 2, gates),
          matrix=2 * UNITS * gates * 13, vector=UNITS * (gates + beside),
          attrs={"hidden_size": 8, "direction": "bidirectional"}) for type, gates, beside in CELLS),
    *(Row(type, [(3, 10, 5), (2, gates * 8, 5), (2, gates * 8, 8), (2, gates * 16)], (3, 10, 2, 8),
          Recurrent(10, 3, 5, 8, 2, gates), matrix=2 * UNITS * gates * 13, vector=UNITS * (3 * gates + beside),
          attrs={"hidden_size": 8, "layout": 1}) for type, gates, beside in CELLS),
    Row(MS + "DynamicQuantizeLSTM",
        [(10, 3, 5), Tensor("w", "int8", (1, 5, 32), "weight"), Tensor("r", "int8", (1, 8, 32), "weight"), (1, 64)],
        (10, 1, 3, 8), Recurrent(10, 3, 5, 8, 1, 4), matrix=2 * 240 * 4 * 13,
        vector=240 * (4 * 3 + 42) + 10 * (150 + 240), pipe="tensor_int8"),
    *(experts(type, tokens, **form) for tokens in (1, 3, 100) for type, form in (
        ("MoE", {}), ("MoE", {"third": True}), ("QMoE", {"packed": 2}), ("QMoE", {"expert_weight_bits": 8}),
    )),
    # elementwise
    each("Relu", 1), each("Add", 1, (3,), spread=True), each("Equal", 1, ()), each("Cast", 1),
    each("Where", 1, (2, 3), ()),
    each("BitShift", 1, (2, 3)), each("IsNaN", 1), each("Div", 4, ()), each("Erf", 4), each("Sqrt", 4),
    each("Sigmoid", 10), each("Softplus", 9), each("Mish", 14), each("Elu", 7), each("Celu", 10), each("Selu", 8),
    each("HardSwish", 5), each("HardSigmoid", 4), each("LeakyRelu", 2), each("Shrink", 2),
    each("Pow", 0, i64("e", (), 1)),
    Row(MS + "BiasSplitGelu", [(2, 6), (6,)], (2, 3), Pointwise(6), vector=6 * 11),
    each("PRelu", 2, (1,)), each("Mod", 7, ()), each("Softsign", 6), each("QuantizeLinear", 8, (), ()),
    each("DequantizeLinear", 2, ()), each("Sum", 2, (3,), (), spread=True), each("Max", 0), each("Mean", 2, (2, 3)),
    each("Pow", 9, ()), each("Pow", 1, i64("e", (), 2)), each("Pow", 2, i64("e", (), 3)),
    each("Pow", 1, i64("e", (3,), 2, 2, 2), spread=True),
    each("Pow", 9, i64("e", (3,), 2, 3, 2), spread=True),
    each("Pow", 4, Tensor("e", "float32", (), "constant", (0.5,))), each("Clip", 2, min=0.0, max=6.0),
    each("Clip", 1, None, ()), each("Clip", 0), each("Gelu", 8), each("Gelu", 12, approximate="tanh"),
    each(MS + "Gelu", 8), each(MS + "BiasGelu", 9, (3,)), each(MS + "FastGelu", 12), each(MS + "FastGelu", 13, (3,)),
    each(MS + "QuickGelu", 12), each(MS + "QuickGelu", 11, alpha=1.0), each("Swish", 11), each("Swish", 12, alpha=2.0),
    each("SwiGLU", 12, (2, 3)), each("Dropout", 0, (), None), each(MS + "BiasDropout", 2, (3,), (2, 3)),
    each(MS + "BiasAdd", 2, (3,), (2, 3)),
    Row("CastLike", [(2, 3), Tensor("like", "float16", (100,))], (2, 3), Pointwise(6), vector=6, read=24),
    Row("Add", [(1, 3), (4, 1)], (4, 3), Pointwise(12, True), vector=12, read=28, written=48),
    Row("DynamicQuantizeLinear", [(2, 3)], u8("y", 2, 3), Rows(1, 6, 1), vector=60),
    Row(MS + "QLinearAdd", [u8("a", 2, 3), (), (), u8("b", 3), (), (), ()], u8("y", 2, 3), Pointwise(6), vector=60),
    Row(MS + "QLinearSigmoid", [u8("a", 2, 3), (), (), ()], u8("y", 2, 3), Pointwise(6), vector=6 * 17),
    Row("tensorrt::Pointwise", [(2, 3), (3,)], (2, 3), Pointwise(6), vector=42, attrs={"flops_per_element": 7}),
    Row("torch::addcmul", [(3,), (3,), (2, 3)], (2, 3), Pointwise(6, True), vector=12),
    # normalisations
    Row("LayerNormalization", [(2, 5, 8), (8,), (8,)], None, Rows(10, 8, 1), vector=80 * 7 + 10 * 7),
    Row("LayerNormalization", [(2, 5, 8), (8,)], None, Rows(10, 8, 1), vector=80 * 6 + 10 * 7),
    Row("LayerNormalization", [(2, 5, 8), (5, 8)], None, Rows(2, 40, 1), vector=80 * 6 + 2 * 7, attrs={"axis": 1}),
    Row("LayerNormalization", [(2, 5, 8), (5, 8)], None, Rows(2, 40, 1), vector=80 * 6 + 2 * 7, attrs={"axis": -2}),
    Row("RMSNormalization", [(2, 5, 8), (8,)], None, Rows(10, 8, 1), vector=80 * 4 + 10 * 6),
    Row("SimplifiedLayerNormalization", [(2, 8), (8,)], None, Rows(2, 8, 1), vector=16 * 4 + 2 * 6, attrs={"axis": -1}),
    Row(MS + "SimplifiedLayerNormalization", [(2, 8), (8,)], None, Rows(2, 8, 1), vector=16 * 4 + 2 * 6),
    Row(MS + "SkipLayerNormalization", [(2, 8), (2, 8), (8,), (8,), (8,)], None, Rows(2, 8, 1), vector=16 * 9 + 14),
    Row(MS + "SkipLayerNormalization", [(2, 8), (2, 8), (8,)], None, Rows(2, 8, 1), vector=16 * 7 + 14),
    Row(MS + "SkipSimplifiedLayerNormalization", [(2, 8), (2, 8), (8,)], None, Rows(2, 8, 1), vector=16 * 5 + 12),
    Row("InstanceNormalization", [(2, 3, 4, 5), (3,), (3,)], None, Rows(6, 20, 1), vector=120 * 7 + 6 * 7),
    Row("GroupNormalization", [(2, 6, 4, 5), (6,), (6,)], None, Rows(6, 40, 1), vector=240 * 7 + 6 * 7,
        attrs={"num_groups": 3}),
    Row(MS + "GroupNorm", [(2, 4, 5, 6), (6,), (6,)], None, Rows(6, 40, 1), vector=240 * 18 + 6 * 7,
        attrs={"groups": 3, "activation": 1}),
    Row(MS + "SkipGroupNorm", [(2, 4, 5, 6), (6,), (6,), (2, 4, 5, 6)], None, Rows(6, 40, 1), vector=240 * 8 + 6 * 7,
        attrs={"groups": 3}),
    Row("BatchNormalization", [(2, 3, 4), (3,), (3,), (3,), (3,)], None, Pointwise(24, scaled=True, plane=4),
        vector=48),
    Row("BatchNormalization", [(2, 3, 4), (3,), (3,), (3,), (3,)], [(2, 3, 4), (3,), (3,)], Rows(3, 8, 1),
        vector=24 * 7 + 3 * 7, attrs={"training_mode": 1}),
    Row("MeanVarianceNormalization", [(2, 3, 4, 5)], None, Rows(3, 40, 1), vector=120 * 5 + 3 * 7),
    Row("MeanVarianceNormalization", [(2, 3, 4)], None, Rows(6, 4, 1), vector=24 * 5 + 6 * 7, attrs={"axes": [-1]}),
    Row("LpNormalization", [(2, 3, 4)], None, Rows(8, 3, 1), vector=24 * 6 + 8 * 4, attrs={"axis": 1}),
    Row("LpNormalization", [(2, 3, 4)], None, Rows(6, 4, 1), vector=24 * 6, attrs={"p": 1}),
    Row("LRN", [(2, 8, 4)], None, Pointwise(64), vector=64 * (10 + 2 + 9 + 4), attrs={"size": 5}),
    Row("LRN", [(2, 3, 4)], None, Pointwise(24), vector=24 * (6 + 2 + 9 + 4), attrs={"size": 9999}),  # 3 channels
    Row(NHWC + "LRN", [(2, 4, 3)], None, Pointwise(24), vector=24 * (6 + 2 + 9 + 4), attrs={"size": 5}),
    Row("LayerNormalization", [(), ()], None, Rows(1, 1, 1), vector=6 + 7),
    Row("LayerNormalization", [(3, 0), (0,)], None, Rows(3, 0, 1), vector=21),
    Row("GroupNormalization", [(0, 6, 4), (6,), (6,)], None, Rows(0, 0, 1), attrs={"num_groups": 3}),
    Row(MS + "GatedRMSNorm", [(2, 8), (8,), (2, 8)], (2, 8), Rows(2, 8, 1), vector=16 * (3 + 13) + 2 * 6),
    Row(ML + "Normalizer", [(6, 4)], (6, 4), Rows(6, 4, 1), vector=24 * 6 + 24),
    *(Row(MS + "EmbedLayerNormalization", [*TABLES, *tail], (2, 7, 16), Rows(14, 16, 1),
          vector=14 * 16 * (5 + 4) + 14 * 7, read=index + 4 * 16 * (14 + positions + 14 + 1 + 1))
      for tail, positions, index in (
        ((), 7, 2 * 56), ((None,), 7, 2 * 56), ((None, i64("pos", (2, 7))), 14, 2 * 56 + 112),
      )),
    # reductions
    Row("Softmax", [(2, 3, 4)], (2, 3, 4), Rows(2, 12, 2), vector=24 * 8 + 2 * 4, version=12),
    Row("Softmax", [(2, 3, 4)], (2, 3, 4), Rows(6, 4, 2), vector=24 * 8 + 6 * 4, version=11, attrs={"axis": -1}),
    Row("Softmax", [(2, 3, 4)], (2, 3, 4), Rows(6, 4, 2), vector=24 * 8 + 6 * 4, version=13),
    Row("Softmax", [(2, 3, 4)], (2, 3, 4), Rows(6, 4, 2), vector=24 * 8 + 6 * 4),
    Row("LogSoftmax", [(2, 3, 4)], (2, 3, 4), Rows(8, 3, 2), vector=24 * 8 + 8 * 4, version=13, attrs={"axis": 1}),
    Row("Softmax", [(2, 3, 4)], (2, 3, 4), Rows(1, 24, 2), vector=24 * 8 + 4, version=12, attrs={"axis": 0}),
    Row("Hardmax", [(2, 3, 4)], (2, 3, 4), Rows(2, 12, 1), vector=24, version=7),
    Row(MS + "BiasSoftmax", [(2, 3, 4), (1, 3, 4)], (2, 3, 4), Rows(6, 4, 2), vector=24 * 9 + 24, version=1,
        attrs={"axis": 2}),
    Row("ReduceSum", [(2, 3, 4)], (2, 1, 4), Rows(8, 3), vector=24, version=7, attrs={"axes": [1]}),
    Row("ReduceMean", [(2, 3, 4), i64("axes", (1,), -1)], (2, 3), Rows(6, 4), vector=24 + 6, version=18,
        attrs={"keepdims": 0}),
    Row("ReduceMax", [(2, 3, 4)], (), Rows(1, 24), vector=24, version=20, attrs={"keepdims": 0}),
    Row("ReduceSum", [(2, 3, 4)], (2, 3, 4), Rows(24, 1), vector=24, version=13, attrs={"noop_with_empty_axes": 1}),
    Row("ReduceL1", [(2, 3, 4)], (2, 3, 1), Rows(6, 4), vector=48, version=18),
    Row("ReduceL2", [(2, 3, 4)], (2, 3, 1), Rows(6, 4), vector=48 + 24, version=18),
    Row("ReduceLogSum", [(2, 3, 4)], (2, 3, 1), Rows(6, 4), vector=24 + 24, version=18),
    Row("ReduceLogSumExp", [(2, 3, 4)], (2, 3, 1), Rows(6, 4, 1), vector=24 * 7 + 6 * 5, version=18),
    Row("ReduceSumSquare", [(2, 3, 4)], (2, 3, 1), Rows(6, 4), vector=48, version=18),
    Row("ReduceSum", [(0, 3)], (3,), Rows(3, 0), version=13),
    Row("ReduceSum", [(0, 3)], (0,), Rows(0, 0), version=13),
    Row("ArgMax", [(2, 3, 4)], (2, 1, 4), Rows(8, 3), vector=24, version=13, attrs={"axis": 1}),
    Row("ArgMin", [(2, 3, 4)], (1, 3, 4), Rows(12, 2), vector=24, version=13),
    Row(MS + "BiasSoftmax", [(2, 3, 4), (3, 4)], (2, 3, 4), Rows(2, 12, 2), vector=24 * 9 + 8, version=1),
    Row("CumSum", [(2, 3, 4), i64("axis", (), 1)], (2, 3, 4), Rows(8, 3), vector=24, version=14),
    Row("CumSum", [(2, 3, 4), i64("axis", (), 1)], (2, 3, 4), Pointwise(24, steps=3), vector=8 * 6,
        attrs={"serial": 1}),
    Row("DequantizeBlocks", [u8("w", 16, 2, 16), (16, 2)], (16, 64), Pointwise(1024), vector=2048),
    Row("CumSum", [(2, 3, 4), i64("axis", (), -3)], (2, 3, 4), Rows(12, 2), vector=24, version=14),
    Row("CumSum", [(2, 3, 4), Tensor("axis", "int32", ())], (2, 3, 4), Rows(6, 4), vector=24, version=14),
    Row("TopK", [(2, 100), i64("k", (1,), 5)], (2, 5), Rows(2, 100, 3), vector=200 * 3, version=11),
    Row("TopK", [(100, 2)], (1, 2), Rows(2, 100, 3), vector=200, version=9, attrs={"axis": 0, "k": 1}),
    Row("BiasRows", [(48,)], (2, 3, 48), Gemm(1, 6, 48, 1), vector=2 * 288),
    Row("MaskedSoftmax", [(2, 3, 48)], (2, 3, 48), Rows(6, 48, 2, 64), vector=288 * 8 + 6 * 4),
    Row("Softmax", [()], (), Rows(1, 1, 2), vector=8 + 4, version=13),
    Row(MS + "QLinearSoftmax", [u8("a", 2, 3), (), None, ()], u8("y", 2, 3), Rows(2, 3, 2), vector=6 * 15 + 8),
    Row(MS + "QLinearReduceMean", [u8("a", 4, 8), (), None, ()], u8("y", 4), Rows(4, 8), vector=32 + 28),
    Row("SoftmaxCrossEntropyLoss", [(4, 10, 6), (4, 6), (10,)], (), Rows(24, 10, 2), vector=240 * 8 + 24 * 7),
    Row("NegativeLogLikelihoodLoss", [(4, 10, 6), (4, 6)], (), Rows(1, 24), vector=48, read=4 * 24 + 4 * 24),
    Row("Unique", [(50,)], (50,), Rows(1, 50, 4), vector=50),
    Row(MS + "DynamicTimeWarping", [(20, 30)], (2, 50), Rows(1, 600), vector=1800),
    # pools
    Row("MaxPool", [(1, 4, 6, 6)], (1, 4, 3, 3), Pointwise(36, taps=4), vector=36 * 4,
        attrs={"kernel_shape": [2, 2], "strides": [2, 2]}),
    Row("AveragePool", [(1, 4, 6, 6)], (1, 4, 4, 4), Pointwise(64, taps=9), vector=64 * 10,
        attrs={"kernel_shape": [3, 3]}),
    Row(NCHWC + "AveragePool", [(1, 4, 6, 6)], (1, 4, 4, 4), Pointwise(64, taps=9), vector=64 * 10,
        attrs={"kernel_shape": [3, 3]}),
    Row("LpPool", [(1, 4, 6, 6)], (1, 4, 4, 4), Pointwise(64, taps=9), vector=64 * (18 + 4),
        attrs={"kernel_shape": [3, 3]}),
    Row("LpPool", [(1, 4, 6, 6)], (1, 4, 4, 4), Pointwise(64, taps=9), vector=64 * 18,
        attrs={"kernel_shape": [3, 3], "p": 1}),
    Row("LpPool", [(1, 4, 6, 6)], (1, 4, 4, 4), Pointwise(64, taps=9), vector=64 * (9 * 11 + 9),
        attrs={"kernel_shape": [3, 3], "p": 3}),
    Row("GlobalAveragePool", [(1, 4, 6, 6)], (1, 4, 1, 1), Rows(4, 36), vector=144 + 4),
    Row("GlobalMaxPool", [(1, 4, 6, 6)], (1, 4, 1, 1), Rows(4, 36), vector=144),
    Row("GlobalLpPool", [(1, 4, 6, 6)], (1, 4, 1, 1), Rows(4, 36), vector=288 + 16),
    Row(MS + "QLinearAveragePool", [u8("a", 1, 2, 4, 4)], u8("y", 1, 2, 2, 2), Pointwise(8, taps=4),
        vector=8 * (4 + 1 + 6), attrs={"kernel_shape": [2, 2]}),
    Row(MS + "QLinearGlobalAveragePool", [u8("a", 1, 2, 4, 4)], u8("y", 1, 2, 1, 1), Rows(2, 16), vector=32 + 14),
    # movements
    Row("Identity", [(2, 3)], (2, 3), Move(6, 6)),
    Row("Reshape", [(2, 3), i64("shape", (1,), 6)], (6,), Move(6, 6)),
    Row("Transpose", [(2, 3, 4)], (4, 3, 2), Move(24, 1)),
    Row("Transpose", [(64, 16)], (16, 64), Move(1024, 1, tile=16)),
    Row("Transpose", [(2, 64, 8, 9)], (2, 8, 9, 64), Move(2 * 64 * 72, 1, tile=32), attrs={"perm": [0, 2, 3, 1]}),
    Row("Transpose", [(2, 64, 1, 70)], (2, 1, 70, 64), Move(128 * 70, 1, tile=32), attrs={"perm": [0, 2, 3, 1]}),
    Row("Transpose", [(2, 3, 4, 5)], (2, 4, 3, 5), Move(120, 5), attrs={"perm": [0, 2, 1, 3]}),
    Row("Transpose", [(2, 3, 4)], (3, 2, 4), Move(24, 4), attrs={"perm": [1, 0, 2]}),
    Row("Transpose", [(2, 3, 4, 5)], (3, 2, 4, 5), Move(120, 20), attrs={"perm": [1, 0, 2, 3]}),
    Row("Transpose", [(1, 3, 1, 5)], (3, 1, 1, 5), Move(15, 15), attrs={"perm": [1, 0, 2, 3]}),
    Row("Transpose", [(4, 1)], (1, 4), Move(4, 4), attrs={"perm": [1, 0]}),
    Row("Transpose", [(4, 1)], (1, 4), Move(4, 4)),
    Row(NCHWC + "ReorderInput", [(1, 32, 3, 3)], (1, 32, 3, 3), Move(288, 1)),
    Row(NCHWC + "ReorderOutput", [(1, 32, 3, 3)], (1, 3, 3, 32), Move(288, 16), attrs={"channels_last": 1}),
    Row(NCHWC + "Upsample", [(1, 32, 3, 3)], (1, 32, 6, 6), Move(1152, 3)),
    Row("Concat", [(2, 3)], (2, 3), Move(6, 6), attrs={"axis": 0}),
    Row("Split", [(4, 3)], (4, 3), Move(12, 12)),
    Row("Concat", [(2, 3, 4), (2, 5, 4)], (2, 8, 4), Move(64, 16), attrs={"axis": 1}),
    Row("Concat", [(2, 3), (2, 3)], (2, 6), Move(12, 3), attrs={"axis": -1}),
    Row("Slice", [(10, 4), i64("s", (1,), 0), i64("e", (1,), 2)], (2, 4), Move(8, 8), read=32 + 16),
    Row("Slice", [(10, 4)], (10, 1), Move(10, 1), read=40, attrs={"axes": [1], "starts": [0], "ends": [1]}),
    Row("Slice", [(10, 4), i64("s", (1,), 0), i64("e", (1,), 9), i64("a", (1,), -2), i64("t", (1,), 3)], (3, 4),
        Move(12, 4), read=48 + 32),
    Row("Slice", [(10, 4), i64("s", (1,), -1), i64("e", (1,), -9), i64("a", (1,), 1), i64("t", (1,), -1)], (10, 4),
        Move(40, 1)),
    Row("Slice", [(4, 6), i64("s", (2,)), i64("e", (2,)), None, i64("t", (2,), 2, 1)], (2, 3), Move(6, 3),
        read=24 + 48),
    Row("Pad", [(2, 3), i64("p", (4,))], (4, 5), Move(20, 3)),
    Row("Pad", [(2, 3)], (1, 5), Move(5, 3), read=12, attrs={"pads": [0, 1, -1, 1]}),
    Row("CenterCropPad", [(8, 6), i64("s", (2,))], (4, 6), Move(24, 24), read=96 + 16),
    Row("Gather", [(30522, 768), i64("ids", (1, 128))], (1, 128, 768), Move(98304, 768), read=98304 * 4 + 1024),
    Row("Gather", [(5, 4), i64("ids", ())], (4,), Move(4, 4), read=16 + 8),
    Row("Gather", [(5, 4, 3), i64("ids", (2,))], (5, 2, 3), Move(30, 3), read=120 + 16, attrs={"axis": -2}),
    Row("Gather", [(2, 4), i64("ids", (100,))], (100, 4), Move(400, 4)),
    Row("GatherElements", [(50, 4), i64("ids", (2, 4))], (2, 4), Move(8, 1), read=32 + 64),
    Row("GatherND", [(5, 4, 3), i64("ids", (2, 1))], (2, 4, 3), Move(24, 12), read=96 + 16),
    Row("GatherND", [(5, 4, 3), i64("ids", (5, 1))], (5, 3), Move(15, 3), read=60 + 40, attrs={"batch_dims": 1}),
    Row("ScatterElements", [(10, 4), i64("ids", (2, 4)), (2, 4)], (10, 4), Move(48, 5)),
    Row("ScatterND", [(10, 4), i64("ids", (3, 1)), (3, 4)], (10, 4), Move(52, 13)),
    Row("ScatterND", [(10, 4), i64("ids", (3, 1)), (3, 4)], (10, 4), Move(12, 4), read=24 + 48, written=48,
        attrs={IN_PLACE: 1}),
    Row("ScatterND", [(10, 4), i64("ids", (3, 1)), (3, 4)], (10, 4), Move(12, 4), vector=12, read=48 + 24 + 48,
        written=48, attrs={IN_PLACE: 1, "reduction": "add"}),
    Row("TensorScatter", [(2, 3, 9, 4), (2, 3, 1, 4)], (2, 3, 9, 4), Move(24, 4), read=96, written=96),
    Row("TensorScatter", [(2, 3, 9, 4), (2, 3, 5, 4), i64("at", (2,))], (2, 3, 9, 4), Move(120, 20), read=480 + 16,
        written=480),
    Row("Expand", [(1, 3), i64("shape", (2,))], (5, 3), Move(15, 15)),
    Row("ConstantOfShape", [i64("shape", (2,))], (5, 3), Move(15, 15)),
    Row("EyeLike", [(4, 4)], (4, 4), Move(16, 16), read=0),
    Row("Shape", [(4, 5, 6)], i64("o", (3,)), Move(3, 3), read=0),
    Row("DepthToSpace", [(1, 8, 2, 2)], (1, 2, 4, 4), Move(32, 1), attrs={"blocksize": 2}),
    Row("Resize", [(1, 2, 8, 8)], (1, 2, 4, 4), Move(32, 4), read=128),
    Row("Upsample", [(1, 2, 4, 4)], (1, 2, 8, 8), Move(128, 4), attrs={"scales": [1, 1, 2, 2]}),
    Row("Tile", [()], (), Move(1, 1)),
    Row("Transpose", [()], (), Move(1, 1)),
    Row("Concat", [(0, 4), (0, 4)], (0, 4), Move(0, 1), attrs={"axis": 0}),
    Row("Range", [(), (), ()], (10,), Move(10, 10), vector=20),
    Row("OneHot", [(5,), (), (2,)], (5, 10), Move(50, 50), vector=50),
    Row("Trilu", [(4, 4)], (4, 4), Move(16, 16), vector=16),
    Row("NonZero", [(4, 4)], i64("o", (2, 3)), Move(16, 16), vector=16),
    Row("ScatterElements", [(10,), (3,), (3,)], (10,), Move(13, 3), vector=3, attrs={"reduction": "add"}),
    Row("ScatterND", [(10,), (3, 1), (3,)], (10,), Move(13, 3), vector=3, attrs={"reduction": "max"}),
    Row("Resize", [(1, 2, 4, 4)], (1, 2, 8, 8), Move(128, 4), vector=128 * 2 * 4, attrs={"mode": "linear"}),
    Row("Resize", [(1, 2, 4, 4)], (1, 2, 4, 8), Move(64, 4), vector=64 * 2 * 4, attrs={"mode": "cubic"}),
    Row("Resize", [(1, 2, 12, 4)], (1, 2, 4, 4), Move(32, 16), vector=32 * 2 * 6,
        attrs={"mode": "linear", "antialias": 1}),
    Row("Compress", [(4, 6), (4,)], (4, 6), Move(24, 6), vector=4, attrs={"axis": 0}),
    Row("Compress", [(4, 6), (24,)], (24,), Move(24, 1), vector=24),
    Row("ReverseSequence", [(4, 6, 5), (6,)], (4, 6, 5), Move(120, 5)),
    Row("MaxUnpool", [(1, 1, 2, 2), (1, 1, 2, 2)], (1, 1, 4, 4), Move(20, 1)),
    Row("Col2Im", [(1, 10, 20), (2,), (2,)], (1, 2, 5, 5), Move(200, 1), vector=200),
    Row("TfIdfVectorizer", [i64("x", (2, 10))], (2, 7), Move(54, 1), vector=14, attrs={"max_gram_length": 2}),
    Row(MS + "NGramRepeatBlock", [i64("x", (2, 10)), (2, 99)], (2, 99), Move(198, 198), vector=60,
        attrs={"ngram_size": 3}),
    Row("SplitToSequence", [(4, 6)], (24,), Move(24, 24), read=96, written=96),
    Row(ML + "FeatureVectorizer", [(6, 4), (6, 3)], (6, 7), Move(42, 3)),
    Row("Split", [(4, 12)], [(4, 3), (4, 3), (4, 6)], Move(48, 4), read=192, written=192, attrs={"axis": -1}),
    Row(MS + "GatherBlockQuantized",
        [Tensor("t", "uint8", (1000, 64), "weight"), Tensor("i", "int64", (3,)), (1000, 1)],
        (3, 128), Move(384, 128), vector=768, read=192 + 3 * 8 + 3 * 4, weights=192,
        attrs={"bits": 4, "block_size": 128}),
    *(Row(type, [(100, 100), Tensor("s", "opaque", ())], (100, 100), Move(0, 1), read=0, written=0)  # only handed on
      for type in ("If", "Loop", "Scan", "SequenceMap", "SequenceErase", "Optional")),
    Row("SequenceConstruct", [(3, 4), (5, 4)], (32,), Move(32, 16), read=128, written=128),
    Row("SequenceAt", [(320,), i64("i", ())], (8, 4), Move(32, 32), read=128 + 8, written=128),
    Row("SequenceInsert", [(320,), (8, 4)], (352,), Move(32, 32), read=128, written=128),
    Row("ConcatFromSequence", [(320,)], (80, 4), Move(320, 320), read=1280, written=1280),
    # images, signals, random numbers, matrices, classic models
    Row("GridSample", [(1, 3, 9, 9), (1, 4, 5, 2)], (1, 3, 4, 5), Move(60, 1), vector=480 + 240, read=4 * (4 * 60 + 40),
        attrs={"mode": "bilinear"}),
    Row("GridSample", [(1, 3, 9, 9), (1, 4, 5, 2)], (1, 3, 4, 5), Move(60, 1), vector=240, read=4 * (60 + 40),
        attrs={"mode": "nearest"}),
    Row("GridSample", [(1, 3, 9, 9), (1, 4, 5, 2)], (1, 3, 4, 5), Move(60, 1), vector=60 * 32 + 240,
        attrs={"mode": "cubic"}),
    Row("AffineGrid", [(2, 2, 3), (4,)], (2, 5, 7, 2), Pointwise(140), vector=560),
    Row("RoiAlign", [(1, 3, 9, 9), (5, 4), (5,)], (5, 3, 2, 2), Move(60, 1), vector=60 * 9 * 9,
        attrs={"sampling_ratio": 3}),
    Row("MaxRoiPool", [(1, 3, 9, 9), (5, 5)], (5, 3, 2, 2), Move(60, 1), vector=5 * 243),
    Row(MS + "CropAndResize", [(1, 3, 9, 9), (5, 4), (5,), (2,)], (5, 3, 2, 2), Move(60, 1), vector=480,
        read=4 * (240 + 20 + 5 + 2)),
    Row("NonMaxSuppression", [(1, 10, 4), (1, 3, 10)], (30, 3), Pointwise(135), vector=135 * 22),
    Row("ImageDecoder", [u8("x", 900)], u8("y", 8, 8, 3), Pointwise(192), vector=192 * 38),
    Row("DFT", [(2, 16, 1)], (2, 16, 2), Rows(2, 16, 1), vector=2 * 5 * 16 * 4 // 2, attrs={"axis": 1}),
    Row("DFT", [(2, 16, 2), i64("n", (), 10)], (2, 10, 2), Rows(2, 10, 1), vector=2 * 5 * 10 * 4, attrs={"axis": 1}),
    Row("DFT", [(2, 9, 2)], (2, 16, 1), Rows(2, 16, 1), vector=2 * 5 * 16 * 4 // 2,
        attrs={"axis": 1, "inverse": 1, "onesided": 1}),
    Row("DFT", [(2, 16, 1)], (2, 9, 2), Rows(2, 16, 1), vector=2 * 5 * 16 * 4 // 2, attrs={"axis": 1, "onesided": 1}),
    Row("STFT", [(2, 100, 1), i64("s", (), 10), (16,)], (2, 9, 9, 2), Rows(18, 16, 1), vector=18 * (160 + 16)),
    Row(MS + "Rfft", [(4, 16)], (4, 9, 2), Rows(4, 16, 1), vector=4 * 160),
    Row(MS + "Irfft", [(4, 9, 2)], (4, 16), Rows(4, 16, 1), vector=4 * 160),
    Row(MS + "Rfft", [(4, 8, 16)], (4, 8, 9, 2), Rows(4, 128, 1), vector=4 * 5 * 128 * 7 // 2,
        attrs={"signal_ndim": 2}),
    Row("HannWindow", [()], (100,), Pointwise(100), vector=700),
    Row("BlackmanWindow", [()], (100,), Pointwise(100), vector=1300),
    Row("RandomUniform", [], (10, 10), Pointwise(100), vector=2700),
    Row("RandomNormalLike", [(10, 10)], (10, 10), Pointwise(100), vector=3700, read=0),
    Row("Bernoulli", [(10, 10)], (10, 10), Pointwise(100), vector=2600),
    Row("Multinomial", [(2, 100)], (2, 5), Rows(2, 100, 1), vector=1000 + 10 * 32, attrs={"sample_size": 5}),
    Row("Det", [(5, 6, 6)], (5,), Rows(5, 36, 1), vector=5 * (144 + 6)),
    Row(MS + "Inverse", [(5, 6, 6)], (5, 6, 6), Rows(5, 36, 1), vector=5 * 432),
    Row(ML + "TreeEnsembleRegressor", [(6, 4)], (6, 1), Pointwise(12), vector=12 * 4,
        attrs={"nodes_treeids": (0,) * 7 + (1,) * 7, "nodes_featureids": (0,) * 14}),
    Row(ML + "TreeEnsemble", [(6, 4)], (6, 1), Pointwise(12), vector=12 * 4,
        attrs={"tree_roots": (0, 7), "nodes_featureids": (0,) * 14}),
    Row(ML + "Scaler", [(6, 4)], (6, 4), Pointwise(24), vector=48),
    Row(MS + "RelativePositionBias", [(32, 4), (1,), (1,)], (1, 4, 6, 6), Pointwise(144), vector=144 * 10),
    Row(ML + "LinearRegressor", [(6, 4)], (6, 2), Gemm(1, 6, 2, 4), matrix=96, vector=12,
        attrs={"coefficients": (0.5,) * 8, "intercepts": (1.0, 1.0)}),
    Row(ML + "SVMClassifier", [(6, 4)], (6, 2), Gemm(1, 6, 10, 4), matrix=2 * 6 * (40 + 10), vector=60 * 6,
        attrs={"support_vectors": (0.5,) * 40, "coefficients": (0.5,) * 10, "kernel_type": "RBF"}),
    Row(ML + "SVMRegressor", [(6, 4)], (6, 1), Gemm(1, 6, 1, 4), matrix=48, attrs={"coefficients": (0.5,) * 4}),
    Row("RandomUniformLike", [(10, 10)], (10, 10), Pointwise(100), vector=2700, read=0),
    Row("DFT", [(2, 16, 4, 2), None, i64("axis", (), -2)], (2, 16, 4, 2), Rows(32, 4, 1), vector=32 * 5 * 4 * 2,
        version=20),
    Row("DFT", [(2, 16, 4, 2), None, i64("axis", (), 1)], (2, 16, 4, 2), Rows(8, 16, 1), vector=8 * 5 * 16 * 4,
        version=20),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.type)
def test_work_is_what_the_table_says(make: Any, row: Row) -> None:
    outputs = row.output if isinstance(row.output, list) else [row.output] if row.output is not None else []
    op = make(row.type, row.inputs, *outputs, version=row.version, **row.attrs)
    found = work_of(op)
    assert (found.size, found.matrix_flops, found.vector_flops) == (row.size, row.matrix, row.vector)
    whole = sum({t.name: t.bytes for t in op.present}.values())
    assert found.bytes_read == (whole if row.read is None else row.read)
    assert found.bytes_written == (sum(t.bytes for t in op.outputs) if row.written is None else row.written)
    assert row.weights in (None, found.weight_bytes)
    assert row.dtype in ("", found.dtype) and row.pipe in ("", found.pipe)


def test_elementwise_functions_cost_1_or_as_special_functions_4() -> None:
    assert min(FLOPS.values()) == 1
    assert {FLOPS[t] for t in ("Abs", "And", "Less", "Floor", "Not", "Neg")} == {1}
    assert {FLOPS[t] for t in ("Exp", "Log", "Sin", "Tanh", "Reciprocal", "Acosh")} == {4}


def test_more_tokens_take_no_fewer_experts() -> None:
    """Of 64 experts, 8 for each token: 8, 15 (by two tokens one is taken twice), in the end all."""
    found = [taken(64, 8, tokens) for tokens in range(1, 200)]
    assert found[:2] == [8, 15] and found == sorted(found) and found[-1] == 64
    assert all(n <= min(64, 8 * tokens) for tokens, n in enumerate(found, 1))
    assert [taken(8, 2, 0), taken(0, 2, 5), taken(4, 9, 1)] == [0, 0, 4]
