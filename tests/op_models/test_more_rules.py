"""The rarer families against figures worked out by hand: operator, shapes, then what it costs.

SPECIAL functions are 4, a sigmoid 10, a softmax 8 an element and 4 a row, Gelu by tanh 12, Gelu by erf 8; out of
integers is 2, into them 8, and from one scale to another 5.
"""

from __future__ import annotations

from typing import Any

import pytest

from op_models import Attention, Conv, Gemm, Move, Pointwise, Recurrent, Rows, Tensor, work_of

MS = "com.microsoft::"
ML = "ai.onnx.ml::"


def u8(name: str, *shape: int) -> Tensor:
    return Tensor(name, "uint8", shape)


def i64(name: str, shape: tuple[int, ...], *value: int) -> Tensor:
    return Tensor(name, "int64", shape, "constant", value or None)


IMAGE, FILTERS = u8("x", 1, 2, 3, 3), u8("w", 4, 2, 1, 1)


@pytest.mark.parametrize(
    ("type", "inputs", "output", "attrs", "size", "matrix", "vector"),
    [
        ("QLinearConv", [IMAGE, (), u8("a"), FILTERS, (), u8("b"), (), u8("c"), (4,)], u8("y", 1, 4, 3, 3), {},
         Conv(1, 2, 4, 9, 1, 1, 1), 2 * 36 * 2, 36 * (1 + 5)),
        (MS + "QLinearConv", [u8("x", 1, 3, 3, 2), (), (), FILTERS, (), ()], u8("y", 1, 3, 3, 4), {"channels_last": 1},
         Conv(1, 2, 4, 9, 1, 1, 1, last=True), 2 * 36 * 2, 36 * 5),
        ("ConvInteger", [IMAGE, FILTERS, u8("a"), u8("b")], (1, 4, 3, 3), {}, Conv(1, 2, 4, 9, 1, 1, 1), 144, 0),
        (MS + "NhwcConv", [(1, 3, 3, 2), (4, 2, 1, 1), (4,)], (1, 3, 3, 4), {}, Conv(1, 2, 4, 9, 1, 1, 1, last=True),
         144, 36),
        (MS + "ConvTransposeWithDynamicPads", [(1, 8, 5), (8, 2, 2), (2,)], (1, 2, 6), {},
         Conv(1, 8, 2, 6, 2, 1, 1, "transpose"), 320, 0),
        ("DeformConv", [(1, 2, 4, 4), (3, 2, 2, 2), (1, 8, 3, 3), (3,), (1, 4, 3, 3)], (1, 3, 3, 3), {},
         Conv(1, 2, 3, 9, 4, 1, 1), 2 * 27 * 8, 27 + 2 * 9 * 4 * 9),
        ("CausalConvWithState", [(2, 8, 10), (8, 1, 4), (8,)], (2, 8, 10), {"activation": "silu"},
         Conv(2, 8, 8, 10, 4, 8, 1), 2 * 160 * 4, 160 * (1 + 11)),
        ("QLinearMatMul", [u8("a", 5, 7), (), (), u8("b", 7, 3), (), ()], u8("y", 5, 3), {}, Gemm(1, 5, 3, 7), 210, 75),
        ("MatMulInteger", [u8("a", 5, 7), u8("b", 7, 3), u8("z"), u8("y")], (5, 3), {}, Gemm(1, 5, 3, 7), 210, 0),
        (MS + "MatMulIntegerToFloat", [u8("a", 5, 7), u8("b", 7, 3), (), (), None, None, (3,)], (5, 3), {},
         Gemm(1, 5, 3, 7), 210, 15 * 3),
        (MS + "DynamicQuantizeMatMul", [(5, 7), u8("b", 7, 3), (), u8("z"), (3,)], (5, 3), {},
         Gemm(1, 5, 3, 7), 210, 15 * 3 + 35 * 10),
        (MS + "QOrderedMatMul", [u8("a", 5, 7), (), u8("b", 7, 3), (), (), (3,)], u8("y", 5, 3), {},
         Gemm(1, 5, 3, 7), 210, 15 * 6),
        (MS + "QGemm", [u8("a", 5, 7), (), (), u8("b", 3, 7), (), (), (3,)], u8("y", 5, 3), {"transB": 1},
         Gemm(1, 5, 3, 7, False, True), 210, 15 * 6),
        (MS + "FusedGemm", [(5, 7), (7, 3), (3,)], (5, 3), {"activation": "Sigmoid"}, Gemm(1, 5, 3, 7), 210, 15 * 11),
        (MS + "GemmFastGelu", [(2, 5, 7), (7, 3), (3,)], (2, 5, 3), {}, Gemm(1, 10, 3, 7), 420, 30 * 13),
        (MS + "GemmFloat8", [(5, 7), (3, 7), None, (), ()], (5, 3), {"transB": 1, "activation": "RELU"},
         Gemm(1, 5, 3, 7, False, True), 210, 15),
        (MS + "FusedMatMulActivation", [(5, 7), (7, 3)], (5, 3), {"activation": "Tanh", "alpha": 0.5},
         Gemm(1, 5, 3, 7), 210, 15 * 5),
        (MS + "TransposeMatMul", [(7, 5), (7, 3)], (5, 3), {"transA": 1}, Gemm(1, 5, 3, 7, True, False), 210, 0),
        (MS + "MatMulNBits", [(2, 5, 64), u8("w", 16, 2, 16), (16, 2), None, None, (16,)], (2, 5, 16),
         {"N": 16, "K": 64, "bits": 4, "block_size": 32}, Gemm(1, 10, 16, 64, False, True), 20480, 2 * 1024 + 160),
        (MS + "MatMulBnb4", [(5, 64), u8("w", 512), (16,)], (5, 16), {"N": 16, "K": 64},
         Gemm(1, 5, 16, 64, False, True), 10240, 2048),
        (MS + "MatMulFpQ4", [(5, 64), u8("w", 576), i64("s", (2,))], (5, 16), {},
         Gemm(1, 5, 16, 64, False, True), 10240, 2048),
        (MS + "CDist", [(5, 7), (3, 7)], (5, 3), {"metric": "euclidean"}, Gemm(1, 5, 3, 7, False, True), 210,
         2 * (35 + 21) + 15 * 8),
        (MS + "GatedRelativePositionBias", [(2, 6, 32), (32,), (1, 4, 6, 6), (8, 16), (16,), (1, 4, 1, 1)],
         (2, 4, 6, 6), {"num_heads": 4}, Gemm(1, 48, 16, 8), 2 * 48 * 8 * 16, 384 + 48 * (16 + 20 + 3) + 288),
        ("Einsum", [(5, 7), (7, 3)], (5, 3), {"equation": "ij,jk->ik"}, Gemm(1, 5, 3, 7), 210, 0),
        ("Einsum", [(5, 7, 2), (7, 3)], (5, 3), {"equation": "ijx,jk->ik"}, Gemm(1, 5, 3, 7), 210, 70),
        ("Einsum", [(5, 7), (7, 3), (3, 11)], (5, 11), {"equation": "ij,jk,kl->il"}, Gemm(1, 5, 11, 3), 210 + 330, 0),
        ("Einsum", [(5,), (7,)], (5, 7), {"equation": "i,j->ij"}, Pointwise(35), 0, 35),
        ("Einsum", [(5, 7)], (5,), {"equation": "ij->i"}, Rows(5, 7), 0, 35),
        ("Einsum", [(5, 5)], (5,), {"equation": "ii->i"}, Move(5, 1), 0, 0),
        ("Einsum", [(2, 5, 7)], (2, 7, 5), {"equation": "...ij->...ji"}, Move(70, 1), 0, 0),
        (ML + "LinearRegressor", [(6, 4)], (6, 2), {"coefficients": (0.5,) * 8, "intercepts": (1.0, 1.0)},
         Gemm(1, 6, 2, 4), 96, 12),
        (ML + "SVMClassifier", [(6, 4)], (6, 2),
         {"support_vectors": (0.5,) * 40, "coefficients": (0.5,) * 10, "kernel_type": "RBF"},
         Gemm(1, 6, 10, 4), 2 * 6 * (40 + 10), 60 * 6),
        (ML + "SVMRegressor", [(6, 4)], (6, 1), {"coefficients": (0.5,) * 4}, Gemm(1, 6, 1, 4), 48, 0),
        ("LinearAttention", [(2, 6, 32), (2, 6, 16), (2, 6, 20), None, (2, 6, 2), (2, 6, 2)], (2, 6, 40),
         {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "gated_delta"}, Gemm(4, 24, 10, 8),
         2 * 2 * 6 * 8 * 10 * (4 + 2 * 2), 2 * 6 * 2 * 10 * (8 + 2) + 4 * 24),
    ],
)  # fmt: skip
def test_products(
    make: Any, type: str, inputs: Any, output: Any, attrs: Any, size: Any, matrix: int, vector: int
) -> None:
    found = work_of(make(type, inputs, output, **attrs))
    assert (found.size, found.matrix_flops, found.vector_flops) == (size, matrix, vector)


@pytest.mark.parametrize(
    ("type", "inputs", "output", "attrs", "size", "vector"),
    [
        ("DynamicQuantizeLinear", [(2, 3)], u8("y", 2, 3), {}, Rows(1, 6, 1), 60),
        (MS + "QLinearAdd", [u8("a", 2, 3), (), (), u8("b", 3), (), (), ()], u8("y", 2, 3), {}, Pointwise(6), 60),
        (MS + "QLinearSigmoid", [u8("a", 2, 3), (), (), ()], u8("y", 2, 3), {}, Pointwise(6), 6 * 17),
        (MS + "QLinearSoftmax", [u8("a", 2, 3), (), None, ()], u8("y", 2, 3), {}, Rows(2, 3, 2), 6 * 15 + 8),
        (MS + "QLinearAveragePool", [u8("a", 1, 2, 4, 4)], u8("y", 1, 2, 2, 2), {"kernel_shape": [2, 2]},
         Pointwise(8), 8 * (4 + 1 + 6)),
        (MS + "QLinearGlobalAveragePool", [u8("a", 1, 2, 4, 4)], u8("y", 1, 2, 1, 1), {}, Rows(2, 16), 32 + 14),
        (MS + "QLinearReduceMean", [u8("a", 4, 8), (), None, ()], u8("y", 4), {}, Rows(4, 8), 32 + 28),
        (MS + "GatedRMSNorm", [(2, 8), (8,), (2, 8)], (2, 8), {}, Rows(2, 8, 1), 16 * (3 + 13) + 2 * 6),
        ("tensorrt::Pointwise", [(2, 3), (3,)], (2, 3), {"flops_per_element": 7}, Pointwise(6), 42),
        ("SoftmaxCrossEntropyLoss", [(4, 10, 6), (4, 6), (10,)], (), {}, Rows(24, 10, 2), 240 * 8 + 24 * 7),
        ("NegativeLogLikelihoodLoss", [(4, 10, 6), (4, 6)], (), {}, Rows(1, 24), 48),
        ("Unique", [(50,)], (50,), {}, Rows(1, 50, 4), 50),
        ("Compress", [(4, 6), (4,)], (4, 6), {"axis": 0}, Move(24, 6), 4),
        ("Compress", [(4, 6), (24,)], (24,), {}, Move(24, 1), 24),
        ("ReverseSequence", [(4, 6, 5), (6,)], (4, 6, 5), {}, Move(120, 5), 0),
        ("MaxUnpool", [(1, 1, 2, 2), (1, 1, 2, 2)], (1, 1, 4, 4), {}, Move(20, 1), 0),
        ("Col2Im", [(1, 10, 20), (2,), (2,)], (1, 2, 5, 5), {}, Move(200, 1), 200),
        ("TfIdfVectorizer", [i64("x", (2, 10))], (2, 7), {"max_gram_length": 2}, Move(54, 1), 14),
        (MS + "NGramRepeatBlock", [i64("x", (2, 10)), (2, 99)], (2, 99), {"ngram_size": 3}, Move(198, 198), 60),
        ("SplitToSequence", [(4, 6)], Tensor("y", "opaque", ()), {}, Move(24, 24), 0),
        ("GridSample", [(1, 3, 9, 9), (1, 4, 5, 2)], (1, 3, 4, 5), {"mode": "bilinear"}, Move(60, 1), 480 + 240),
        ("GridSample", [(1, 3, 9, 9), (1, 4, 5, 2)], (1, 3, 4, 5), {"mode": "nearest"}, Move(60, 1), 240),
        ("GridSample", [(1, 3, 9, 9), (1, 4, 5, 2)], (1, 3, 4, 5), {"mode": "cubic"}, Move(60, 1), 60 * 32 + 240),
        ("AffineGrid", [(2, 2, 3), (4,)], (2, 5, 7, 2), {}, Pointwise(140), 560),
        ("RoiAlign", [(1, 3, 9, 9), (5, 4), (5,)], (5, 3, 2, 2), {"sampling_ratio": 3}, Move(60, 1), 60 * 9 * 9),
        ("MaxRoiPool", [(1, 3, 9, 9), (5, 5)], (5, 3, 2, 2), {}, Move(60, 1), 5 * 243),
        (MS + "CropAndResize", [(1, 3, 9, 9), (5, 4), (5,), (2,)], (5, 3, 2, 2), {}, Move(60, 1), 480),
        ("NonMaxSuppression", [(1, 10, 4), (1, 3, 10)], (30, 3), {}, Pointwise(135), 135 * 22),
        ("ImageDecoder", [u8("x", 900)], u8("y", 8, 8, 3), {}, Pointwise(192), 192 * 38),
        ("DFT", [(2, 16, 1)], (2, 16, 2), {"axis": 1}, Rows(2, 16, 1), 2 * 5 * 16 * 4 // 2),
        ("DFT", [(2, 16, 2), i64("n", (), 10)], (2, 10, 2), {"axis": 1}, Rows(2, 10, 1), 2 * 5 * 10 * 4),
        ("STFT", [(2, 100, 1), i64("s", (), 10), (16,)], (2, 9, 9, 2), {}, Rows(18, 16, 1), 18 * (160 + 16)),
        (MS + "Rfft", [(4, 16)], (4, 9, 2), {}, Rows(4, 16, 1), 4 * 160),
        (MS + "Irfft", [(4, 9, 2)], (4, 16), {}, Rows(4, 16, 1), 4 * 160),
        (MS + "Rfft", [(4, 8, 16)], (4, 8, 9, 2), {"signal_ndim": 2}, Rows(4, 128, 1), 4 * 5 * 128 * 7 // 2),
        ("HannWindow", [()], (100,), {}, Pointwise(100), 700),
        ("BlackmanWindow", [()], (100,), {}, Pointwise(100), 1300),
        ("RandomUniform", [], (10, 10), {}, Pointwise(100), 2700),
        ("RandomNormalLike", [(10, 10)], (10, 10), {}, Pointwise(100), 3700),
        ("Bernoulli", [(10, 10)], (10, 10), {}, Pointwise(100), 2600),
        ("Multinomial", [(2, 100)], (2, 5), {"sample_size": 5}, Rows(2, 100, 1), 1000 + 10 * 32),
        ("Det", [(5, 6, 6)], (5,), {}, Rows(5, 36, 1), 5 * (144 + 6)),
        (MS + "Inverse", [(5, 6, 6)], (5, 6, 6), {}, Rows(5, 36, 1), 5 * 432),
        (MS + "DynamicTimeWarping", [(20, 30)], (2, 50), {}, Rows(1, 600), 1800),
        (ML + "TreeEnsembleRegressor", [(6, 4)], (6, 1),
         {"nodes_treeids": (0,) * 7 + (1,) * 7, "nodes_featureids": (0,) * 14}, Pointwise(12), 12 * 4),
        (ML + "TreeEnsemble", [(6, 4)], (6, 1), {"tree_roots": (0, 7), "nodes_featureids": (0,) * 14},
         Pointwise(12), 12 * 4),
        (ML + "Normalizer", [(6, 4)], (6, 4), {}, Rows(6, 4, 1), 24 * 6 + 24),
        (ML + "Scaler", [(6, 4)], (6, 4), {}, Pointwise(24), 48),
        (ML + "FeatureVectorizer", [(6, 4), (6, 3)], (6, 7), {}, Move(42, 3), 0),
        (MS + "RelativePositionBias", [(32, 4), (1,), (1,)], (1, 4, 6, 6), {}, Pointwise(144), 144 * 10),
    ],
)  # fmt: skip
def test_work_without_products(
    make: Any, type: str, inputs: Any, output: Any, attrs: Any, size: Any, vector: int
) -> None:
    found = work_of(make(type, inputs, output, **attrs))
    assert (found.size, found.matrix_flops, found.vector_flops) == (size, 0, vector)


@pytest.mark.parametrize("axis", [-2, 1])
def test_a_newer_transform_takes_its_axis_from_an_input(make: Any, axis: int) -> None:
    op = make("DFT", [(2, 16, 4, 2), None, i64("axis", (), axis)], (2, 16, 4, 2), version=20)
    assert work_of(op).size == (Rows(32, 4, 1) if axis == -2 else Rows(8, 16, 1))


@pytest.mark.parametrize(
    ("type", "gates", "unit"),
    [("RNN", 1, 4), ("GRU", 3, 2 * 10 + 4 + 4), ("LSTM", 4, 3 * 10 + 2 * 4 + 4)],
)
def test_recurrent_layers(make: Any, type: str, gates: int, unit: int) -> None:
    rows, units = gates * 8, 2 * 10 * 3 * 8
    inputs = [(10, 3, 5), (2, rows, 5), (2, rows, 8)]
    found = work_of(make(type, inputs, (10, 2, 3, 8), hidden_size=8, direction="bidirectional"))
    assert found.size == Recurrent(10, 3, 5, 8, 2, gates)
    assert (found.matrix_flops, found.vector_flops) == (2 * units * gates * 13, units * (gates + unit))
    biased = work_of(make(type, [(3, 10, 5), *inputs[1:], (2, 2 * rows)], (3, 10, 2, 8), hidden_size=8, layout=1))
    assert (biased.size, biased.vector_flops) == (found.size, units * (3 * gates + unit))


def test_a_quantised_recurrent_layer_multiplies_in_integers(make: Any) -> None:
    w, r = Tensor("w", "int8", (1, 5, 32), "weight"), Tensor("r", "int8", (1, 8, 32), "weight")
    found = work_of(make(MS + "DynamicQuantizeLSTM", [(10, 3, 5), w, r, (1, 64)], (10, 1, 3, 8)))
    assert (found.size, found.pipe) == (Recurrent(10, 3, 5, 8, 1, 4), "tensor_int8")
    assert found.vector_flops == 240 * (4 * 3 + 42) + 10 * (150 + 240)


@pytest.mark.parametrize(
    ("type", "inputs", "dtype"),
    [
        ("QLinearMatMul", [u8("a", 5, 7), (), (), u8("b", 7, 3)], "uint8"),
        (MS + "DynamicQuantizeMatMul", [(5, 7), u8("b", 7, 3), ()], "uint8"),
        (MS + "MatMulNBits", [Tensor("a", "float16", (5, 64)), u8("w", 16, 2, 16), (16, 2)], "float16"),
        (MS + "QAttention", [u8("x", 2, 6, 8), u8("w", 8, 24), (24,)], "float32"),
    ],
)
def test_products_run_in_the_type_of_their_operands(make: Any, type: str, inputs: Any, dtype: str) -> None:
    attrs = {"num_heads": 1} if "Attention" in type else {}
    assert work_of(make(type, inputs, (2, 6, 8) if attrs else (5, 3), **attrs)).dtype == dtype


def test_packed_weights_are_read_as_they_are_stored(make: Any) -> None:
    w = Tensor("w", "uint8", (16, 2, 16), "weight")
    found = work_of(make(MS + "MatMulNBits", [(5, 64), w, (16, 2)], (5, 16), N=16, K=64))
    assert (found.weight_bytes, found.bytes_read) == (512, 4 * (320 + 32) + 512)


def test_quantised_tables_are_read_where_indices_point(make: Any) -> None:
    table = Tensor("t", "uint8", (1000, 64), "weight")
    op = make(
        MS + "GatherBlockQuantized", [table, Tensor("i", "int64", (3,)), (1000, 1)], (3, 128), bits=4, block_size=128
    )
    found = work_of(op)
    assert (found.size, found.vector_flops) == (Move(384, 128), 768)
    assert (found.weight_bytes, found.bytes_read) == (192, 192 + 3 * 8 + 3 * 4)


@pytest.mark.parametrize(
    ("type", "stored", "bits", "third"),
    [("MoE", 1, None, False), ("MoE", 1, None, True), ("QMoE", 2, None, False), ("QMoE", 1, 8, False)],
)
@pytest.mark.parametrize("tokens", [1, 3, 100])
def test_experts_with_tokens_are_read(
    make: Any, type: str, stored: int, bits: int | None, third: bool, tokens: int
) -> None:
    quantised = type == "QMoE"
    dtype, width = ("uint8", 1) if quantised else ("float32", 4)
    sides = [(12, 32), (32, 12), *([(12, 32)] if third else [])]
    fc = [Tensor(f"fc{i}", dtype, (8, a, b // stored), "weight") for i, (a, b) in enumerate(sides)]
    gaps: list[Any] = [None, None] if quantised else [None]
    inputs = [(tokens, 32), (tokens, 8), *(t for w in fc for t in (w, *gaps))]
    found = work_of(make(MS + type, inputs, **({"expert_weight_bits": bits} if bits else {}), k=2))
    each, busy = 32 * 12 * len(fc), min(8, 2 * tokens)
    assert found.matrix_flops == 2 * tokens * 2 * each
    assert found.weight_bytes == busy * each // stored * width
    assert found.size[:1] == (busy,)
    vector = tokens * 8 * 8 + tokens * 2 * (12 * (2 if third else 1) + 64)
    assert found.vector_flops == vector + (2 * busy * each if quantised else 0)


@pytest.mark.parametrize(
    ("type", "inputs", "attrs", "size", "projection"),
    [
        ("tensorrt::Attention", [(2, 4, 6, 8), (2, 4, 7, 8), (2, 4, 7, 8)], {},
         Attention(2, 4, 4, 6, 7, 8, 8, False), 0),
        ("ai.onnx.preview::FlexAttention", [(2, 4, 6, 8), (2, 2, 7, 8), (2, 2, 7, 8)], {},
         Attention(2, 4, 2, 6, 7, 8, 8, False), 0),
        (MS + "QAttention", [u8("x", 2, 6, 32), u8("w", 32, 96), (96,), (), (), None, u8("a"), u8("b"),
                             (2, 2, 4, 10, 8)], {"num_heads": 4}, Attention(2, 4, 4, 6, 16, 8, 8, False),
         2 * 12 * 32 * 96),
        (MS + "DecoderMaskedSelfAttention", [(2, 1, 32), (32, 96), (96,), None, (2, 2, 4, 10, 8)], {"num_heads": 4},
         Attention(2, 4, 4, 1, 11, 8, 8, False), 2 * 2 * 32 * 96),
        (MS + "DecoderMaskedMultiHeadAttention", [(2, 1, 32), (2, 1, 32), (2, 1, 32), None, None, (2, 4, 10, 8)],
         {"num_heads": 4}, Attention(2, 4, 4, 1, 11, 8, 8, False), 0),
        (MS + "DecoderMaskedMultiHeadAttention", [(2, 1, 32), (2, 4, 7, 8), (2, 4, 7, 8)], {"num_heads": 4},
         Attention(2, 4, 4, 1, 7, 8, 8, False), 0),
        (MS + "QOrderedAttention", [(2, 6, 32), *[()] * 4, (32, 32), (32, 32), (32, 32)], {"num_heads": 4},
         Attention(2, 4, 4, 6, 6, 8, 8, False), 2 * 12 * 32 * 96),
        (MS + "PackedAttention", [(9, 32), (32, 96), (96,), (2, 6), (3,)], {"num_heads": 4},
         Attention(2, 4, 4, 5, 5, 8, 8, False), 2 * 10 * 32 * 96),
        (MS + "PackedMultiHeadAttention", [(9, 4, 3, 8), None, None, None, (2, 6), (3,)], {"num_heads": 4},
         Attention(2, 4, 4, 5, 5, 8, 8, False), 0),
        (MS + "PackedMultiHeadAttention", [(10, 32), (10, 32), (10, 32), None, (2, 6), (3,)], {"num_heads": 4},
         Attention(2, 4, 4, 5, 5, 8, 8, False), 0),
        (MS + "LongformerAttention", [(2, 40, 32), (32, 96), (96,), (2, 40), (32, 96), (96,), (2, 40)],
         {"num_heads": 4, "window": 8}, Attention(2, 4, 4, 40, 17, 8, 8, False), 2 * 80 * 32 * 192),
        (MS + "SparseAttention", [(2, 16, 32), (2, 16, 16), (2, 16, 16), (2, 2, 64, 8), (2, 2, 64, 8), (1, 5), (1, 6),
                                  i64("n", (), 48)], {"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 16},
         Attention(2, 4, 2, 16, 32, 8, 8, True), 0),
        (MS + "PagedAttention", [(6, 32), (6, 16), (6, 16), (9, 16, 2, 8), (9, 16, 2, 8), (3,), (2,), (2, 4)],
         {"num_heads": 4, "kv_num_heads": 2}, Attention(2, 4, 2, 3, 64, 8, 8, True), 0),
        (MS + "PagedAttention", [(2, 64), None, None, (9, 16, 2, 8), (9, 16, 2, 8), (3,), i64("past", (2,), 9, 20),
                                 (2, 4)],
         {"num_heads": 4, "kv_num_heads": 2}, Attention(2, 4, 2, 1, 21, 8, 8, True), 0),
    ],
)  # fmt: skip
def test_attention_in_other_clothes(
    make: Any, type: str, inputs: Any, attrs: Any, size: Attention, projection: int
) -> None:
    found = work_of(make(type, inputs, **attrs))
    products = 2 * size.batch * size.heads * size.queries * size.keys * (size.dim + size.dim_v)
    assert (found.size, found.matrix_flops) == (size, products + projection)


def test_a_paged_cache_is_read_where_the_table_points_and_written_where_tokens_are_new(make: Any) -> None:
    cache = (100, 16, 2, 8)
    inputs = [(2, 32), (2, 16), (2, 16), cache, cache, (3,), (2,), (2, 4)]
    op = make(MS + "PagedAttention", inputs, (2, 32), cache, cache, num_heads=4, kv_num_heads=2)
    found = work_of(op)
    assert found.bytes_read == 4 * (64 + 2 * 32 + 2 * (2 * 64 * 16) + 3 + 2 + 8)
    assert found.bytes_written == 4 * (64 + 2 * 32)


@pytest.mark.parametrize("type", ["If", "Loop", "Scan", "SequenceMap", "SequenceAt", "SequenceInsert", "Optional"])
def test_what_only_hands_on_costs_nothing_itself(make: Any, type: str) -> None:
    found = work_of(make(type, [(100, 100), Tensor("s", "opaque", ())], (100, 100)))
    assert (found.flops, found.bytes, found.size) == (0, 0, Move(0, 1))


@pytest.mark.parametrize("type", ["RandomNormalLike", "RandomUniformLike"])
def test_random_numbers_look_only_at_the_shape(make: Any, type: str) -> None:
    assert work_of(make(type, [(10, 10)])).bytes_read == 0


@pytest.mark.parametrize(
    ("kernel", "strides", "read"), [((1, 1), (2, 2), 16), ((3, 3), (2, 2), 64), ((1, 3), (2, 1), 32)]
)
def test_strides_wider_than_the_kernel_pass_over_part_of_the_image(
    make: Any, kernel: tuple[int, int], strides: tuple[int, int], read: int
) -> None:
    found = work_of(make("Conv", [(1, 1, 8, 8), (1, 1, *kernel)], (1, 1, 4, 4), strides=strides))
    assert found.bytes_read == 4 * (read + kernel[0] * kernel[1])
