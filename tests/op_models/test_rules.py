"""Every family against figures worked out by hand: operator, shapes, then what it costs."""

from __future__ import annotations

from typing import Any

import pytest

from op_models import Attention, Conv, Gemm, Move, Pointwise, Rows, Tensor, work_of
from op_models.pointwise import FLOPS


def i64(name: str, shape: tuple[int, ...], *value: int) -> Tensor:
    return Tensor(name, "int64", shape, "constant", value or None)


def boolean(*shape: int) -> Tensor:
    return Tensor("flags", "bool", shape)


def cost(op: Any) -> tuple[Any, int, int]:
    found = work_of(op)
    return found.size, found.matrix_flops, found.vector_flops


@pytest.mark.parametrize(
    ("type", "inputs", "output", "attrs", "size", "matrix", "vector"),
    [
        ("Conv", [(1, 3, 224, 224), (64, 3, 7, 7)], (1, 64, 112, 112),
         {"strides": [2, 2], "pads": [3, 3, 3, 3]},
         Conv(1, 3, 64, 12544, 49, 1, 4), 236_027_904, 0),
        ("Conv", [(2, 8, 10), (16, 8, 3), (16,)], (2, 16, 8), {}, Conv(2, 8, 16, 8, 3, 1, 1), 12_288, 256),
        ("Conv", [(1, 32, 14, 14), (32, 1, 3, 3)], (1, 32, 14, 14), {"group": 32},
         Conv(1, 32, 32, 196, 9, 32, 1), 112_896, 0),
        ("Conv", [(1, 2, 4, 4, 4), (4, 2, 2, 2, 2)], (1, 4, 2, 2, 2), {"strides": [2, 2, 2]},
         Conv(1, 2, 4, 8, 8, 1, 8), 1_024, 0),
        ("Conv", [(0, 3, 8, 8), (4, 3, 3, 3)], (0, 4, 6, 6), {}, Conv(0, 3, 4, 36, 9, 1, 1), 0, 0),
        ("com.microsoft::FusedConv", [(1, 2, 3, 3), (2, 2, 1, 1), (2,), (1, 2, 3, 3)], (1, 2, 3, 3),
         {"activation": "Relu"}, Conv(1, 2, 2, 9, 1, 1, 1), 72, 18 * 3),
        ("com.microsoft.nchwc::Conv", [(1, 2, 3, 3), (2, 2, 1, 1), None, (1, 2, 3, 3)], (1, 2, 3, 3),
         {"activation": "Relu"}, Conv(1, 2, 2, 9, 1, 1, 1), 72, 18 * 2),
        ("com.microsoft::FusedConv", [(1, 2, 3, 3), (2, 2, 1, 1)], (1, 2, 3, 3), {"activation": "Clip"},
         Conv(1, 2, 2, 9, 1, 1, 1), 72, 18 * 2),
        ("com.microsoft::FusedConv", [(1, 2, 3, 3), (2, 2, 1, 1)], (1, 2, 3, 3), {"activation": "Sigmoid"},
         Conv(1, 2, 2, 9, 1, 1, 1), 72, 18 * 10),
        ("ConvTranspose", [(1, 8, 5), (8, 2, 2)], (1, 2, 6), {},
         Conv(1, 8, 2, 6, 2, 1, 1, "transpose"), 320, 0),
        ("ConvTranspose", [(1, 8, 5, 5), (8, 2, 2, 2), (4,)], (1, 4, 10, 10), {"group": 2, "strides": [2, 2]},
         Conv(1, 8, 4, 100, 4, 2, 4, "transpose"), 2 * 8 * 25 * 2 * 4, 400),
    ],
)  # fmt: skip
def test_convolutions(
    make: Any, type: str, inputs: Any, output: Any, attrs: Any, size: Any, matrix: int, vector: int
) -> None:
    assert cost(make(type, inputs, output, **attrs)) == (size, matrix, vector)


@pytest.mark.parametrize(
    ("type", "inputs", "attrs", "flops"),
    [
        ("Relu", [(2, 3)], {}, 1), ("Add", [(2, 3), (3,)], {}, 1), ("Equal", [(2, 3), ()], {}, 1),
        ("Cast", [(2, 3)], {}, 1), ("Where", [(2, 3), (2, 3), ()], {}, 1), ("BitShift", [(2, 3), (2, 3)], {},
         1),
        ("IsNaN", [(2, 3)], {}, 1), ("Div", [(2, 3), ()], {}, 4), ("Erf", [(2, 3)], {}, 4), ("Sqrt", [(2, 3)],
         {}, 4),
        ("Sigmoid", [(2, 3)], {}, 10), ("Softplus", [(2, 3)], {}, 9), ("Mish", [(2, 3)], {}, 14),
        ("Elu", [(2, 3)], {}, 7), ("Celu", [(2, 3)], {}, 10), ("Selu", [(2, 3)], {}, 8), ("HardSwish",
         [(2, 3)], {}, 5),
        ("HardSigmoid", [(2, 3)], {}, 4), ("LeakyRelu", [(2, 3)], {}, 2), ("Shrink", [(2, 3)], {}, 2),
        ("Pow", [(2, 3), i64("e", (), 1)], {}, 0), ("com.microsoft::BiasSplitGelu", [(2, 6), (6,)], {}, 11),
        ("PRelu", [(2, 3), (1,)], {}, 2), ("Mod", [(2, 3), ()], {}, 7), ("Softsign", [(2, 3)], {}, 6),
        ("QuantizeLinear", [(2, 3), (), ()], {}, 8), ("DequantizeLinear", [(2, 3), ()], {}, 2),
        ("Sum", [(2, 3), (3,), ()], {}, 2), ("Max", [(2, 3)], {}, 0), ("Mean", [(2, 3), (2, 3)], {}, 2),
        ("Pow", [(2, 3), ()], {}, 9), ("Pow", [(2, 3), i64("e", (), 2)], {}, 1), ("Pow",
         [(2, 3), i64("e", (), 3)], {}, 2),
        ("Pow", [(2, 3), i64("e", (3,), 2, 2, 2)], {}, 1), ("Pow", [(2, 3), i64("e", (3,), 2, 3, 2)], {}, 9),
        ("Pow", [(2, 3), Tensor("e", "float32", (), "constant", (0.5,))], {}, 4),
        ("Clip", [(2, 3)], {"min": 0.0, "max": 6.0}, 2), ("Clip", [(2, 3), None, ()], {}, 1), ("Clip",
         [(2, 3)], {}, 0),
        ("Gelu", [(2, 3)], {}, 8), ("Gelu", [(2, 3)], {"approximate": "tanh"}, 12),
        ("com.microsoft::Gelu", [(2, 3)], {}, 8), ("com.microsoft::BiasGelu", [(2, 3), (3,)], {}, 9),
        ("com.microsoft::FastGelu", [(2, 3)], {}, 12), ("com.microsoft::FastGelu", [(2, 3), (3,)], {}, 13),
        ("com.microsoft::QuickGelu", [(2, 3)], {}, 12), ("com.microsoft::QuickGelu", [(2, 3)], {"alpha": 1.0},
         11),
        ("Swish", [(2, 3)], {}, 11), ("Swish", [(2, 3)], {"alpha": 2.0}, 12), ("SwiGLU", [(2, 3), (2, 3)], {},
         12),
        ("Dropout", [(2, 3), (), None], {}, 0), ("com.microsoft::BiasDropout", [(2, 3), (3,), (2, 3)], {}, 2),
        ("com.microsoft::BiasAdd", [(2, 3), (3,), (2, 3)], {}, 2),
    ],
)  # fmt: skip
def test_pointwise(make: Any, type: str, inputs: Any, attrs: Any, flops: int) -> None:
    op = make(type, inputs, (2, 3), **attrs)
    assert cost(op) == (Pointwise(6), 0, 6 * flops)
    assert work_of(op).bytes_read == sum(t.bytes for t in op.present)


def test_pointwise_table_follows_the_convention() -> None:
    assert min(FLOPS.values()) == 1
    assert {FLOPS[t] for t in ("Abs", "And", "Less", "Floor", "Not", "Neg")} == {1}
    assert {FLOPS[t] for t in ("Exp", "Log", "Sin", "Tanh", "Reciprocal", "Acosh")} == {4}


def test_cast_like_reads_only_the_type_of_its_second_operand(make: Any) -> None:
    assert work_of(make("CastLike", [(2, 3), Tensor("like", "float16", (100,))])).bytes_read == 24


def test_broadcast_operands_cost_their_own_bytes(make: Any) -> None:
    found = work_of(make("Add", [(1, 3), (4, 1)], (4, 3)))
    assert (found.size, found.bytes_read, found.bytes_written) == (Pointwise(12), 28, 48)


@pytest.mark.parametrize(
    ("type", "inputs", "attrs", "size", "vector"),
    [
        ("LayerNormalization", [(2, 5, 8), (8,), (8,)], {}, Rows(10, 8, 1), 80 * 7 + 10 * 7),
        ("LayerNormalization", [(2, 5, 8), (8,)], {}, Rows(10, 8, 1), 80 * 6 + 10 * 7),
        ("LayerNormalization", [(2, 5, 8), (5, 8)], {"axis": 1}, Rows(2, 40, 1), 80 * 6 + 2 * 7),
        ("LayerNormalization", [(2, 5, 8), (5, 8)], {"axis": -2}, Rows(2, 40, 1), 80 * 6 + 2 * 7),
        ("RMSNormalization", [(2, 5, 8), (8,)], {}, Rows(10, 8, 1), 80 * 4 + 10 * 6),
        ("SimplifiedLayerNormalization", [(2, 8), (8,)], {"axis": -1}, Rows(2, 8, 1), 16 * 4 + 2 * 6),
        ("com.microsoft::SimplifiedLayerNormalization", [(2, 8), (8,)], {}, Rows(2, 8, 1), 16 * 4 + 2 * 6),
        ("com.microsoft::SkipLayerNormalization", [(2, 8), (2, 8), (8,), (8,), (8,)], {}, Rows(2, 8, 1),
         16 * 9 + 14),
        ("com.microsoft::SkipLayerNormalization", [(2, 8), (2, 8), (8,)], {}, Rows(2, 8, 1), 16 * 7 + 14),
        ("com.microsoft::SkipSimplifiedLayerNormalization", [(2, 8), (2, 8), (8,)], {}, Rows(2, 8, 1),
         16 * 5 + 12),
        ("InstanceNormalization", [(2, 3, 4, 5), (3,), (3,)], {}, Rows(6, 20, 1), 120 * 7 + 6 * 7),
        ("GroupNormalization", [(2, 6, 4, 5), (6,), (6,)], {"num_groups": 3}, Rows(6, 40, 1),
         240 * 7 + 6 * 7),
        ("com.microsoft::GroupNorm", [(2, 4, 5, 6), (6,), (6,)], {"groups": 3, "activation": 1},
         Rows(6, 40, 1), 240 * 18 + 6 * 7),
        ("com.microsoft::SkipGroupNorm", [(2, 4, 5, 6), (6,), (6,), (2, 4, 5, 6)], {"groups": 3},
         Rows(6, 40, 1), 240 * 8 + 6 * 7),
        ("BatchNormalization", [(2, 3, 4), (3,), (3,), (3,), (3,)], {}, Pointwise(24), 48),
        ("MeanVarianceNormalization", [(2, 3, 4, 5)], {}, Rows(3, 40, 1), 120 * 5 + 3 * 7),
        ("MeanVarianceNormalization", [(2, 3, 4)], {"axes": [-1]}, Rows(6, 4, 1), 24 * 5 + 6 * 7),
        ("LpNormalization", [(2, 3, 4)], {"axis": 1}, Rows(8, 3, 1), 24 * 6 + 8 * 4),
        ("LpNormalization", [(2, 3, 4)], {"p": 1}, Rows(6, 4, 1), 24 * 6),
        ("LRN", [(2, 3, 4)], {"size": 5}, Pointwise(24), 24 * (10 + 2 + 9 + 4)),
        ("LayerNormalization", [(), ()], {}, Rows(1, 1, 1), 6 + 7),
        ("LayerNormalization", [(3, 0), (0,)], {}, Rows(3, 0, 1), 21),
        ("GroupNormalization", [(0, 6, 4), (6,), (6,)], {"num_groups": 3}, Rows(0, 0, 1), 0),
    ],
)  # fmt: skip
def test_normalisations(make: Any, type: str, inputs: Any, attrs: Any, size: Any, vector: int) -> None:
    op = make(type, inputs, **attrs)
    assert cost(op) == (size, 0, vector)
    assert work_of(op).bytes_read == sum(t.bytes for t in op.present)


@pytest.mark.parametrize(
    ("tail", "positions", "adds"),
    [((), 7, 4), ((None,), 7, 4), ((None, i64("pos", (2, 7))), 14, 4)],
)
def test_embedding_reads_the_rows_it_gathers(make: Any, tail: Any, positions: int, adds: int) -> None:
    ids, segments = Tensor("ids", "int32", (2, 7)), Tensor("segments", "int32", (2, 7))
    inputs = [ids, segments, (30522, 16), (512, 16), (99, 16), (16,), (16,), *tail]
    found = work_of(make("com.microsoft::EmbedLayerNormalization", inputs, (2, 7, 16)))
    assert found.size == Rows(14, 16, 1)
    assert found.vector_flops == 14 * 16 * (5 + adds) + 14 * 7
    index_bytes = 2 * 14 * 4 + (14 * 8 if positions == 14 else 0)
    assert found.bytes_read == index_bytes + 4 * 16 * (14 + positions + 14 + 1 + 1)


@pytest.mark.parametrize(
    ("type", "inputs", "output", "version", "attrs", "size", "vector"),
    [
        ("Softmax", [(2, 3, 4)], (2, 3, 4), 12, {}, Rows(2, 12, 2), 24 * 8 + 2 * 4),
        ("Softmax", [(2, 3, 4)], (2, 3, 4), 11, {"axis": -1}, Rows(6, 4, 2), 24 * 8 + 6 * 4),
        ("Softmax", [(2, 3, 4)], (2, 3, 4), 13, {}, Rows(6, 4, 2), 24 * 8 + 6 * 4),
        ("Softmax", [(2, 3, 4)], (2, 3, 4), 0, {}, Rows(6, 4, 2), 24 * 8 + 6 * 4),
        ("LogSoftmax", [(2, 3, 4)], (2, 3, 4), 13, {"axis": 1}, Rows(8, 3, 2), 24 * 8 + 8 * 4),
        ("Softmax", [(2, 3, 4)], (2, 3, 4), 12, {"axis": 0}, Rows(1, 24, 2), 24 * 8 + 4),
        ("Hardmax", [(2, 3, 4)], (2, 3, 4), 7, {}, Rows(2, 12, 1), 24),
        ("com.microsoft::BiasSoftmax", [(2, 3, 4), (1, 3, 4)], (2, 3, 4), 1, {"axis": 2}, Rows(6, 4, 2),
         24 * 9 + 24),
        ("ReduceSum", [(2, 3, 4)], (2, 1, 4), 7, {"axes": [1]}, Rows(8, 3), 24),
        ("ReduceMean", [(2, 3, 4), i64("axes", (1,), -1)], (2, 3), 18, {"keepdims": 0}, Rows(6, 4), 24 + 6),
        ("ReduceMax", [(2, 3, 4)], (), 20, {"keepdims": 0}, Rows(1, 24), 24),
        ("ReduceSum", [(2, 3, 4)], (2, 3, 4), 13, {"noop_with_empty_axes": 1}, Rows(24, 1), 24),
        ("ReduceL1", [(2, 3, 4)], (2, 3, 1), 18, {}, Rows(6, 4), 48),
        ("ReduceL2", [(2, 3, 4)], (2, 3, 1), 18, {}, Rows(6, 4), 48 + 24),
        ("ReduceLogSum", [(2, 3, 4)], (2, 3, 1), 18, {}, Rows(6, 4), 24 + 24),
        ("ReduceLogSumExp", [(2, 3, 4)], (2, 3, 1), 18, {}, Rows(6, 4, 1), 24 * 7 + 6 * 5),
        ("ReduceSumSquare", [(2, 3, 4)], (2, 3, 1), 18, {}, Rows(6, 4), 48),
        ("ReduceSum", [(0, 3)], (3,), 13, {}, Rows(3, 0), 0),
        ("ReduceSum", [(0, 3)], (0,), 13, {}, Rows(0, 0), 0),
        ("ArgMax", [(2, 3, 4)], (2, 1, 4), 13, {"axis": 1}, Rows(8, 3), 24),
        ("ArgMin", [(2, 3, 4)], (1, 3, 4), 13, {}, Rows(12, 2), 24),
        ("com.microsoft::BiasSoftmax", [(2, 3, 4), (3, 4)], (2, 3, 4), 1, {}, Rows(2, 12, 2), 24 * 9 + 8),
        ("CumSum", [(2, 3, 4), i64("axis", (), 1)], (2, 3, 4), 14, {}, Rows(8, 3), 24),
        ("CumSum", [(2, 3, 4), i64("axis", (), -3)], (2, 3, 4), 14, {}, Rows(12, 2), 24),
        ("CumSum", [(2, 3, 4), Tensor("axis", "int32", ())], (2, 3, 4), 14, {}, Rows(6, 4), 24),
        ("TopK", [(2, 100), i64("k", (1,), 5)], (2, 5), 11, {}, Rows(2, 100, 3), 200 * 3),
        ("TopK", [(100, 2)], (1, 2), 9, {"axis": 0, "k": 1}, Rows(2, 100, 3), 200),
        ("MaskedSoftmax", [(2, 3, 48)], (2, 3, 48), 0, {}, Rows(6, 48, 2, 64), 288 * 8 + 6 * 4),
        ("Softmax", [()], (), 13, {}, Rows(1, 1, 2), 8 + 4),
    ],
)  # fmt: skip
def test_reductions(
    make: Any, type: str, inputs: Any, output: Any, version: int, attrs: Any, size: Any, vector: int
) -> None:
    assert cost(make(type, inputs, output, version=version, **attrs)) == (size, 0, vector)


@pytest.mark.parametrize(
    ("type", "output", "attrs", "size", "vector"),
    [
        ("MaxPool", (1, 4, 3, 3), {"kernel_shape": [2, 2], "strides": [2, 2]}, Pointwise(36), 36 * 4),
        ("AveragePool", (1, 4, 4, 4), {"kernel_shape": [3, 3]}, Pointwise(64), 64 * 10),
        ("com.microsoft.nchwc::AveragePool", (1, 4, 4, 4), {"kernel_shape": [3, 3]}, Pointwise(64), 64 * 10),
        ("LpPool", (1, 4, 4, 4), {"kernel_shape": [3, 3]}, Pointwise(64), 64 * (18 + 4)),
        ("LpPool", (1, 4, 4, 4), {"kernel_shape": [3, 3], "p": 1}, Pointwise(64), 64 * 18),
        ("LpPool", (1, 4, 4, 4), {"kernel_shape": [3, 3], "p": 3}, Pointwise(64), 64 * (9 * 11 + 9)),
        ("GlobalAveragePool", (1, 4, 1, 1), {}, Rows(4, 36), 144 + 4),
        ("GlobalMaxPool", (1, 4, 1, 1), {}, Rows(4, 36), 144),
        ("GlobalLpPool", (1, 4, 1, 1), {}, Rows(4, 36), 288 + 16),
    ],
)
def test_pools(make: Any, type: str, output: Any, attrs: Any, size: Any, vector: int) -> None:
    op = make(type, [(1, 4, 6, 6)], output, **attrs)
    assert cost(op) == (size, 0, vector)
    assert work_of(op).bytes_read == 4 * 144


@pytest.mark.parametrize(
    ("type", "inputs", "output", "attrs", "size", "read"),
    [
        ("Identity", [(2, 3)], (2, 3), {}, Move(6, 6), 24),
        ("Reshape", [(2, 3), i64("shape", (1,), 6)], (6,), {}, Move(6, 6), 24 + 8),
        ("Transpose", [(2, 3, 4)], (4, 3, 2), {}, Move(24, 1), 96),
        ("Transpose", [(2, 3, 4)], (3, 2, 4), {"perm": [1, 0, 2]}, Move(24, 4), 96),
        ("Transpose", [(2, 3, 4, 5)], (3, 2, 4, 5), {"perm": [1, 0, 2, 3]}, Move(120, 20), 480),
        ("Transpose", [(1, 3, 1, 5)], (3, 1, 1, 5), {"perm": [1, 0, 2, 3]}, Move(15, 15), 60),
        ("Transpose", [(4, 1)], (1, 4), {"perm": [1, 0]}, Move(4, 4), 16),
        ("Transpose", [(4, 1)], (1, 4), {}, Move(4, 4), 16),
        ("com.microsoft.nchwc::ReorderInput", [(1, 32, 3, 3)], (1, 32, 3, 3), {}, Move(288, 1), 1152),
        ("com.microsoft.nchwc::ReorderOutput", [(1, 32, 3, 3)], (1, 3, 3, 32), {"channels_last": 1}, Move(288, 16),
         1152),
        ("com.microsoft.nchwc::Upsample", [(1, 32, 3, 3)], (1, 32, 6, 6), {}, Move(1152, 3), 1152),
        ("Concat", [(2, 3)], (2, 3), {"axis": 0}, Move(6, 6), 24),
        ("Split", [(4, 3)], (4, 3), {}, Move(12, 12), 48),
        ("Concat", [(2, 3, 4), (2, 5, 4)], (2, 8, 4), {"axis": 1}, Move(64, 16), 256),
        ("Concat", [(2, 3), (2, 3)], (2, 6), {"axis": -1}, Move(12, 3), 48),
        ("Slice", [(10, 4), i64("s", (1,), 0), i64("e", (1,), 2)], (2, 4), {}, Move(8, 8), 32 + 16),
        ("Slice", [(10, 4)], (10, 1), {"axes": [1], "starts": [0], "ends": [1]}, Move(10, 1), 40),
        ("Slice", [(10, 4), i64("s", (1,), 0), i64("e", (1,), 9), i64("a", (1,), -2), i64("t", (1,), 3)],
         (3, 4), {},
         Move(12, 4), 48 + 32),
        ("Slice", [(10, 4), i64("s", (1,), -1), i64("e", (1,), -9), i64("a", (1,), 1), i64("t", (1,), -1)],
         (10, 4), {},
         Move(40, 1), 160 + 32),
        ("Slice", [(4, 6), i64("s", (2,)), i64("e", (2,)), None, i64("t", (2,), 2, 1)], (2, 3), {},
         Move(6, 3), 24 + 48),
        ("Pad", [(2, 3), i64("p", (4,))], (4, 5), {}, Move(20, 3), 24 + 32),
        ("Pad", [(2, 3)], (1, 5), {"pads": [0, 1, -1, 1]}, Move(5, 3), 12),
        ("CenterCropPad", [(8, 6), i64("s", (2,))], (4, 6), {}, Move(24, 24), 96 + 16),
        ("Gather", [(30522, 768), i64("ids", (1, 128))], (1, 128, 768), {}, Move(98304, 768),
         98304 * 4 + 1024),
        ("Gather", [(5, 4), i64("ids", ())], (4,), {}, Move(4, 4), 16 + 8),
        ("Gather", [(5, 4, 3), i64("ids", (2,))], (5, 2, 3), {"axis": -2}, Move(30, 3), 120 + 16),
        ("Gather", [(2, 4), i64("ids", (100,))], (100, 4), {}, Move(400, 4), 32 + 800),
        ("GatherElements", [(50, 4), i64("ids", (2, 4))], (2, 4), {}, Move(8, 1), 32 + 64),
        ("GatherND", [(5, 4, 3), i64("ids", (2, 1))], (2, 4, 3), {}, Move(24, 12), 96 + 16),
        ("GatherND", [(5, 4, 3), i64("ids", (5, 1))], (5, 3), {"batch_dims": 1}, Move(15, 3), 60 + 40),
        ("ScatterElements", [(10, 4), i64("ids", (2, 4)), (2, 4)], (10, 4), {}, Move(48, 5), 160 + 64 + 32),
        ("ScatterND", [(10, 4), i64("ids", (3, 1)), (3, 4)], (10, 4), {}, Move(52, 13), 160 + 24 + 48),
        ("TensorScatter", [(2, 3, 9, 4), (2, 3, 1, 4)], (2, 3, 9, 4), {}, Move(240, 34), 864 + 96),
        ("Expand", [(1, 3), i64("shape", (2,))], (5, 3), {}, Move(15, 15), 12 + 16),
        ("ConstantOfShape", [i64("shape", (2,))], (5, 3), {}, Move(15, 15), 16),
        ("EyeLike", [(4, 4)], (4, 4), {}, Move(16, 16), 0),
        ("Shape", [(4, 5, 6)], i64("o", (3,)), {}, Move(3, 3), 0),
        ("DepthToSpace", [(1, 8, 2, 2)], (1, 2, 4, 4), {"blocksize": 2}, Move(32, 1), 128),
        ("Resize", [(1, 2, 8, 8)], (1, 2, 4, 4), {}, Move(32, 4), 128),
        ("Upsample", [(1, 2, 4, 4)], (1, 2, 8, 8), {"scales": [1, 1, 2, 2]}, Move(128, 4), 128),
        ("Tile", [()], (), {}, Move(1, 1), 4),
        ("Transpose", [()], (), {}, Move(1, 1), 4),
        ("Concat", [(0, 4), (0, 4)], (0, 4), {"axis": 0}, Move(0, 1), 0),
    ],
)  # fmt: skip
def test_movements(make: Any, type: str, inputs: Any, output: Any, attrs: Any, size: Any, read: int) -> None:
    op = make(type, inputs, output, **attrs)
    assert cost(op) == (size, 0, 0)
    assert work_of(op).bytes_read == read
    assert work_of(op).bytes_written == op.out.bytes


def test_split_reads_pieces_and_writes_every_output(make: Any) -> None:
    found = work_of(make("Split", [(4, 12)], (4, 3), (4, 3), (4, 6), axis=-1))
    assert (found.size, found.bytes_read, found.bytes_written) == (Move(48, 4), 192, 192)


@pytest.mark.parametrize(
    ("type", "inputs", "output", "attrs", "vector"),
    [
        ("Range", [(), (), ()], (10,), {}, 20),
        ("OneHot", [(5,), (), (2,)], (5, 10), {}, 50),
        ("Trilu", [(4, 4)], (4, 4), {}, 16),
        ("NonZero", [(4, 4)], i64("o", (2, 3)), {}, 16),
        ("ScatterElements", [(10,), (3,), (3,)], (10,), {"reduction": "add"}, 3),
        ("ScatterND", [(10,), (3, 1), (3,)], (10,), {"reduction": "max"}, 3),
        ("Resize", [(1, 2, 4, 4)], (1, 2, 8, 8), {"mode": "linear"}, 128 * 2 * 4),
        ("Resize", [(1, 2, 4, 4)], (1, 2, 4, 8), {"mode": "cubic"}, 64 * 2 * 4),
        ("Resize", [(1, 2, 12, 4)], (1, 2, 4, 4), {"mode": "linear", "antialias": 1}, 32 * 2 * 6),
    ],
)
def test_movements_that_calculate(make: Any, type: str, inputs: Any, output: Any, attrs: Any, vector: int) -> None:
    assert cost(make(type, inputs, output, **attrs))[1:] == (0, vector)


PAST = (2, 4, 10, 8)


@pytest.mark.parametrize(
    ("type", "inputs", "attrs", "size", "extra_matrix", "score", "extra_vector"),
    [
        ("Attention", [(2, 4, 6, 8), (2, 4, 7, 8), (2, 4, 7, 5)], {}, Attention(2, 4, 4, 6, 7, 8, 5, False),
         0, 9, 0),
        ("Attention", [(2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8), boolean(6, 6)],
         {"is_causal": 1, "softcap": 30.0},
         Attention(2, 4, 2, 6, 6, 8, 8, True), 0, 9 + 1 + 1 + 6, 0),
        ("Attention", [(2, 6, 32), (2, 6, 32), (2, 6, 20), None, PAST, (2, 4, 10, 5)],
         {"q_num_heads": 4, "kv_num_heads": 4}, Attention(2, 4, 4, 6, 16, 8, 5, False), 0, 9, 0),
        ("Attention", [(2, 4, 1, 8), (2, 4, 90, 8), (2, 4, 90, 8)], {"is_causal": 1, "left_window_size": 15},
         Attention(2, 4, 4, 1, 16, 8, 8, True), 0, 10, 0),
        ("Attention", [(2, 4, 1, 8), (2, 4, 90, 8), (2, 4, 90, 8)], {"is_causal": 1, "left_window_size": 0},
         Attention(2, 4, 4, 1, 1, 8, 8, True), 0, 10, 0),
        ("Attention", [(2, 4, 1, 8), (2, 4, 90, 8), (2, 4, 90, 8)], {"is_causal": 0, "left_window_size": 15},
         Attention(2, 4, 4, 1, 90, 8, 8, False), 0, 9, 0),
        ("com.microsoft::MultiHeadAttention", [(2, 6, 8), (2, 7, 8), (2, 7, 8)], {"num_heads": 1},
         Attention(2, 1, 1, 6, 7, 8, 8, False), 0, 9, 0),
        ("com.microsoft::Attention", [(2, 6, 8), (8, 24)], {"num_heads": 1},
         Attention(2, 1, 1, 6, 6, 8, 8, False), 2 * 12 * 8 * 24, 9, 0),
        ("com.microsoft::GroupQueryAttention", [(2, 6, 48), *[None] * 6, (99, 4), (99, 4)],
         {"num_heads": 4, "kv_num_heads": 1}, Attention(2, 4, 1, 6, 6, 8, 8, True), 0, 10, 0),
        ("com.microsoft::GroupQueryAttention", [(2, 6, 48)],
         {"num_heads": 4, "kv_num_heads": 1, "causal": 0, "local_window_size": 1},
         Attention(2, 4, 1, 6, 6, 8, 8, False), 0, 9, 0),
        ("com.microsoft::GroupQueryAttention", [(2, 1, 48), None, None, (2, 1, 10, 8), (2, 1, 10, 8)],
         {"num_heads": 4, "kv_num_heads": 1, "local_window_size": 1},
         Attention(2, 4, 1, 1, 1, 8, 8, True), 0, 10, 0),
        ("Attention", [(2, 4, 0, 8), (2, 4, 7, 8), (2, 4, 7, 5)], {}, Attention(2, 4, 4, 0, 7, 8, 5, False),
         0, 9, 0),
        ("com.microsoft::Attention", [(2, 6, 32), (32, 96), (96,), (2, 6)], {"num_heads": 4},
         Attention(2, 4, 4, 6, 6, 8, 8, False), 2 * 12 * 32 * 96, 10, 12 * 96),
        ("com.microsoft::Attention", [(2, 6, 32), (32, 84), None, None, (2, 2, 4, 10, 8)],
         {"num_heads": 4, "unidirectional": 1, "qkv_hidden_sizes": [32, 32, 20], "do_rotary": 1},
         Attention(2, 4, 4, 6, 16, 8, 5, True), 2 * 12 * 32 * 84, 10, 12 * 3 * 64),
        ("com.microsoft::MultiHeadAttention", [(2, 6, 32), (2, 7, 32), (2, 7, 20)], {"num_heads": 4},
         Attention(2, 4, 4, 6, 7, 8, 5, False), 0, 9, 0),
        ("com.microsoft::MultiHeadAttention",
         [(2, 6, 32), (2, 6, 32), (2, 6, 32), (96,), None, (1, 1, 6, 6), PAST, PAST],
         {"num_heads": 4}, Attention(2, 4, 4, 6, 16, 8, 8, False), 0, 10, 12 * 96),
        ("com.microsoft::MultiHeadAttention", [(2, 6, 4, 3, 8)], {"num_heads": 4, "unidirectional": 1},
         Attention(2, 4, 4, 6, 6, 8, 8, True), 0, 10, 0),
        ("com.microsoft::MultiHeadAttention", [(2, 6, 32), (2, 7, 4, 2, 8)], {"num_heads": 4},
         Attention(2, 4, 4, 6, 7, 8, 8, False), 0, 9, 0),
        ("com.microsoft::MultiHeadAttention", [(2, 6, 32), (2, 4, 7, 8), (2, 4, 7, 8)], {"num_heads": 4},
         Attention(2, 4, 4, 6, 7, 8, 8, False), 0, 9, 0),
        ("com.microsoft::GroupQueryAttention", [(2, 6, 32), (2, 6, 16), (2, 6, 16)],
         {"num_heads": 4, "kv_num_heads": 2},
         Attention(2, 4, 2, 6, 6, 8, 8, True), 0, 10, 0),
        ("com.microsoft::GroupQueryAttention", [(2, 1, 64), None, None, PAST, PAST],
         {"num_heads": 4, "kv_num_heads": 2},
         Attention(2, 4, 2, 1, 11, 8, 8, True), 0, 10, 0),
        ("com.microsoft::GroupQueryAttention",
         [(2, 1, 64), None, None, PAST, PAST, None, i64("total", (), 5), (99, 4), (99, 4)],
         {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "softcap": 50.0},
         Attention(2, 4, 2, 1, 5, 8, 8, True), 0, 16, 3 * 2 * 6 * 8),
        ("com.microsoft::GroupQueryAttention", [(2, 1, 64), None, None, PAST, PAST],
         {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 4}, Attention(2, 4, 2, 1, 4, 8, 8, True), 0,
         10, 0),
    ],
)  # fmt: skip
def test_attention(
    make: Any,
    type: str,
    inputs: Any,
    attrs: Any,
    size: Attention,
    extra_matrix: int,
    score: int,
    extra_vector: int,
) -> None:
    rows = size.batch * size.heads * size.queries
    matrix = 2 * rows * size.keys * (size.dim + size.dim_v) + extra_matrix
    vector = rows * size.keys * score + rows * 4 + extra_vector
    assert cost(make(type, inputs, **attrs)) == (size, matrix, vector)


def test_group_query_attention_reads_only_its_rows_of_the_rotary_tables(make: Any) -> None:
    inputs = [(2, 1, 64), None, None, PAST, PAST, None, None, (99, 4), (99, 4)]
    found = work_of(make("com.microsoft::GroupQueryAttention", inputs, num_heads=4, kv_num_heads=2, do_rotary=1))
    assert found.bytes_read == 4 * (128 + 2 * 640 + 2 * 2 * 4)


@pytest.mark.parametrize(
    ("type", "inputs", "attrs", "vector", "read"),
    [
        ("RotaryEmbedding", [(2, 4, 6, 8), (99, 4), (99, 4), i64("pos", (2, 6))], {}, 3 * 384,
         4 * (384 + 96) + 96),
        ("RotaryEmbedding", [(2, 4, 6, 8), (2, 6, 4), (2, 6, 4)], {}, 3 * 384, 4 * (384 + 96)),
        ("RotaryEmbedding", [(2, 6, 32), (2, 6, 2), (2, 6, 2)], {"num_heads": 4, "rotary_embedding_dim": 4},
         3 * 192, 4 * (384 + 48)),
        ("com.microsoft::RotaryEmbedding", [(2, 6, 32), i64("pos", (1,)), (99, 4), (99, 4)], {},
         3 * 384, 4 * (384 + 48) + 8),
        ("com.microsoft::RotaryEmbedding", [(2, 4, 6, 8), i64("pos", (2, 6)), (99, 2), (99, 2)],
         {"rotary_embedding_dim": 4, "num_heads": 4}, 3 * 192, 4 * (384 + 48) + 96),
    ],
)  # fmt: skip
def test_rotary_embedding(make: Any, type: str, inputs: Any, attrs: Any, vector: int, read: int) -> None:
    op = make(type, inputs, **attrs)
    assert cost(op) == (Pointwise(384), 0, vector)
    assert work_of(op).bytes_read == read


@pytest.mark.parametrize("trans", [0, 1])
def test_a_product_whose_stack_stands_behind_its_first_axis(make: Any, trans: int) -> None:
    """As com.microsoft::FusedMatMul reads A: [m, stack, k], or [k, stack, m] where it is transposed as well."""
    a = (4, 2, 3, 5) if trans else (5, 2, 3, 4)
    both = {"transA": trans, "transBatchA": 1, "transBatchB": 1}
    found = work_of(make("com.microsoft::FusedMatMul", [a, (4, 2, 3, 7)], (2, 3, 5, 7), **both))
    assert found.size == Gemm(6, 5, 7, 4, bool(trans), False)
    assert found.matrix_flops == 2 * 6 * 5 * 7 * 4
