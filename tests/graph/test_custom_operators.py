"""Shapes of ONNX Runtime's own operators: what it makes of them itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import ModelProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state

from onnxperf import predict
from onnxperf.graph import load
from onnxperf.graph.core import SEARCHES
from op_models import known, output_rule

F, B, I8, I16, I32, I64 = np.float32, np.uint8, np.int8, np.int16, np.int32, np.int64
#: Constants: scale and zero point, then sizes, an axis and numbers that shapes depend on.
SCALE: dict[str, Any] = {
    "s": np.array(0.1, F), "z": np.array(3, B), "crop": np.array([4, 5], I32), "axis": np.array(-2, I32),
    "pads": np.array([1, 0, 2, 3], I64), "around": np.array([1, 0, 1, 1], I64), "one": np.array([0.1], F),
    "zero": np.array([0], I8), "three": np.array([3], I64), "from": np.array(2, F), "to": np.array(9, F),
    "by": np.array(2, F), "seven": np.array([7], I64),
}  # fmt: skip


SCHEMAS = [s for s in onnxruntime_pybind11_state.get_all_operator_schema() if s.domain.startswith("com.microsoft")]


def array(*shape: int, dtype: Any = F) -> Any:
    return np.ones(shape, dtype)


#: How many positions of each sample are filled, less one, and the most of any.
FILLED = (np.array([2, 2], I32), np.array(3, I32))
#: type, inputs in order (a name with a shape is an input of the graph), attributes, number of outputs
CASES: dict[str, tuple[str, list[Any], dict[str, Any], int]] = {
    "FusedConv": ("FusedConv", [array(2, 3, 8, 9), array(4, 3, 3, 3)],
                  {"activation": "Relu", "strides": [2, 1], "pads": [1, 0, 1, 0]}, 1),
    "QLinearConv": (
        "QLinearConv", [array(1, 8, 9, 3, dtype=B), "s", "z", array(4, 3, 3, 3, dtype=B), "s", "z", "s", "z"],
        {"channels_last": 1}, 1,
    ),
    "FusedMatMul": ("FusedMatMul", [array(2, 5, 4), array(2, 6, 5)], {"transA": 1, "transB": 1}, 1),
    "FusedMatMul, rows before the batch": (
        "FusedMatMul", [array(5, 3, 2, 4), array(4, 3, 2, 6)], {"transBatchA": 1, "transBatchB": 1}, 1,
    ),
    "FusedMatMul, A alone": ("FusedMatMul", [array(4, 3, 5), array(3, 6, 4)],
                             {"transBatchA": 1, "transA": 1, "transB": 1}, 1),
    "FusedMatMul, B alone": ("FusedMatMul", [array(3, 5, 4), array(6, 3, 4)], {"transBatchB": 1, "transB": 1}, 1),
    "RMSNorm": ("ai.onnx::SimplifiedLayerNormalization", [array(2, 3, 4), array(4)], {}, 2),
    "RMSNorm over two axes": ("ai.onnx::SimplifiedLayerNormalization", [array(2, 3, 4), array(3, 4)], {"axis": 1}, 1),
    "FusedGemm": ("FusedGemm", [array(5, 4), array(6, 5)], {"transA": 1, "transB": 1, "activation": "Relu"}, 1),
    "QGemm": ("QGemm", [array(4, 5, dtype=B), "s", "z", array(5, 6, dtype=B), "s", "z", None, "s", "z"], {}, 1),
    "QGemm to float": ("QGemm", [array(4, 5, dtype=B), "s", "z", array(6, 5, dtype=B), "s", "z"], {"transB": 1}, 1),
    "MatMulIntegerToFloat": ("MatMulIntegerToFloat", [array(2, 4, 5, dtype=B), array(5, 6, dtype=B), "s", "s"], {}, 1),
    "DynamicQuantizeMatMul": ("DynamicQuantizeMatMul", [array(2, 4, 5), array(5, 6, dtype=B), "s"], {}, 1),
    "MatMulNBits": ("MatMulNBits", [array(2, 4, 64), array(48, 2, 16, dtype=B), array(96)],
                    {"K": 64, "N": 48, "bits": 4, "block_size": 32}, 1),
    "QLinearAdd": ("QLinearAdd", [array(2, 1, 5, dtype=B), "s", "z", array(4, 1, dtype=B), "s", "z", "s", "z"], {}, 1),
    "QLinearConcat": ("QLinearConcat", ["s", "z", array(2, 3, dtype=B), "s", "z", array(2, 4, dtype=B), "s", "z"],
                      {"axis": 1}, 1),
    "QLinearGlobalAveragePool": ("QLinearGlobalAveragePool", [array(2, 3, 5, 7, dtype=B), "s", "z", "s", "z"], {}, 1),
    "QLinearAveragePool": ("QLinearAveragePool", [array(2, 3, 6, 8, dtype=B), "s", "z", "s", "z"],
                           {"kernel_shape": [2, 3], "strides": [2, 1]}, 1),
    "BiasGelu": ("BiasGelu", [array(2, 3, 4), array(4)], {}, 1),
    "SkipLayerNormalization": ("SkipLayerNormalization", [array(2, 3, 4), array(2, 3, 4), array(4), array(4)], {}, 1),
    "EmbedLayerNormalization": (
        "EmbedLayerNormalization",
        [array(2, 3, dtype=I32), None, array(9, 4), array(5, 4), None, array(4), array(4), array(2, 3, dtype=I32)],
        {}, 2,
    ),
    "Attention": ("Attention", [array(2, 3, 8), array(8, 24), array(24)], {"num_heads": 2}, 1),
    "Attention, a state": ("Attention", [array(2, 3, 8), array(8, 24), array(24), None, array(2, 2, 2, 5, 4)],
                           {"num_heads": 2, "unidirectional": 1}, 2),
    "MultiHeadAttention": (
        "MultiHeadAttention", [array(2, 3, 8), array(2, 5, 8), array(2, 5, 12)], {"num_heads": 2}, 1,
    ),
    "MultiHeadAttention, its caches": (
        "MultiHeadAttention",
        [array(2, 3, 8), array(2, 3, 8), array(2, 3, 8), None, None, None, array(2, 2, 5, 4), array(2, 2, 5, 4)],
        {"num_heads": 2}, 3,
    ),
    "MultiHeadAttention, new caches": (
        "MultiHeadAttention", [array(2, 3, 8), array(2, 5, 8), array(2, 5, 8)], {"num_heads": 2}, 3,
    ),
    "MultiHeadAttention, keys of an encoder": (
        "MultiHeadAttention", [array(2, 3, 8), array(2, 2, 5, 4), array(2, 2, 5, 4)], {"num_heads": 2}, 1,
    ),
    "GroupQueryAttention": (
        "GroupQueryAttention", [array(2, 3, 64), array(2, 3, 16), array(2, 3, 16), None, None, *FILLED],
        {"num_heads": 8, "kv_num_heads": 2}, 3,
    ),
    "GroupQueryAttention, packed": (
        "GroupQueryAttention", [array(2, 3, 96), None, None, None, None, *FILLED],
        {"num_heads": 8, "kv_num_heads": 2}, 3,
    ),
    "QuantizeLinear": ("QuantizeLinear", [array(2, 3), "s", "z"], {}, 1),
    "DequantizeLinear": ("DequantizeLinear", [array(2, 3, dtype=B), "s", "z"], {}, 1),
    "GridSample": ("GridSample", [array(2, 3, 8, 8), array(2, 5, 6, 2)], {}, 1),
    "ExpandDims": ("ExpandDims", [array(2, 3, 4), "axis"], {}, 1),
    "CropAndResize": ("CropAndResize", [array(2, 3, 8, 8), array(6, 4), array(6, dtype=I32), "crop"], {}, 1),
    "UnfoldTensor": ("UnfoldTensor", [array(2, 10, 3)], {"size": 4, "step": 2, "dim": 1}, 1),
    "Pad": ("Pad", [array(4, 5), "pads"], {}, 1),
    "Range": ("Range", ["from", "to", "by"], {}, 1),
    "GatherND": ("GatherND", [array(3, 4, 5), array(6, 7, 2, dtype=I64)], {}, 1),
    "MurmurHash3": ("MurmurHash3", [array(3, 4, dtype=I32)], {"positive": 0}, 1),
    "NGramRepeatBlock": ("NGramRepeatBlock", [array(2, 5, dtype=I64), array(2, 9)], {"ngram_size": 3}, 1),
    "MatMulInteger16": ("MatMulInteger16", [array(4, 5, dtype=I16), array(5, 6, dtype=I16)], {}, 1),
    "ConvTransposeWithDynamicPads": (
        "ConvTransposeWithDynamicPads", [array(1, 4, 5, 6), array(4, 2, 3, 3), "around"],
        {"group": 2, "strides": [2, 1], "output_padding": [1, 0]}, 1,
    ),
    "DynamicQuantizeLSTM": (
        "DynamicQuantizeLSTM",
        [array(5, 2, 4), array(1, 4, 12, dtype=I8), array(1, 3, 12, dtype=I8), *[None] * 5, *("one", "zero") * 2],
        {"hidden_size": 3}, 3,
    ),
    "SampleOp": ("SampleOp", [array(3, 4)], {}, 1),
    "MaxpoolWithMask": ("MaxpoolWithMask", [array(1, 3, 8, 9), array(1, 3, 8, 9, dtype=I32)],
                        {"kernel_shape": [2, 3], "strides": [2, 1]}, 1),
    "LinearAttention": ("LinearAttention", [array(2, 3, 32), array(2, 3, 16), array(2, 3, 8)],
                        {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "linear"}, 2),
    "CausalConvWithState": ("CausalConvWithState", [array(2, 6, 5), array(6, 1, 4)], {}, 2),
    "MatMulBnb4": ("MatMulBnb4", [array(2, 64), array(64 * 48 // 2, dtype=B), array(64 * 48 // 64)],
                   {"K": 64, "N": 48, "block_size": 64, "quant_type": 1}, 1),
    "QEmbedLayerNormalization": (
        "QEmbedLayerNormalization",
        [array(2, 3, dtype=I32), None, array(9, 4, dtype=B), array(5, 4, dtype=B), None, array(4, dtype=B),
         array(4, dtype=B), array(2, 3, dtype=I32), "s", "s", None, "s", "s", "z", "z", None, "z", "z"], {}, 2,
    ),
    "CDist": ("CDist", [array(4, 3), array(6, 3)], {"metric": "euclidean"}, 1),
}  # fmt: skip


def model(type: str, given: list[Any], attrs: dict[str, Any], count: int) -> tuple[ModelProto, dict[str, Any]]:
    """One node; arrays are inputs, names are constants."""
    feeds = {f"x{i}": x for i, x in enumerate(given) if isinstance(x, np.ndarray)}
    names = [f"x{i}" if isinstance(x, np.ndarray) else x or "" for i, x in enumerate(given)]
    outputs = [f"y{i}" for i in range(count)]
    domain, _, name = type.rpartition("::")
    node = helper.make_node(name, names, outputs, domain=domain or "com.microsoft", **attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    results = [helper.make_empty_tensor_value_info(o) for o in outputs]
    constants = [numpy_helper.from_array(x, n) for n, x in SCALE.items()]
    graph = helper.make_graph([node], "g", inputs, results, constants)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8), feeds


@pytest.mark.parametrize("name", CASES)
def test_shapes_are_those_that_onnx_runtime_makes(name: str) -> None:
    proto, feeds = model(*CASES[name])
    options = ort.SessionOptions()
    options.log_severity_level = 4
    results = ort.InferenceSession(proto.SerializeToString(), options).run(None, feeds)
    graph = load(proto)
    assert [(t.shape, t.dtype) for t in graph.outputs] == [(r.shape, str(r.dtype)) for r in results]
    assert not [n for n in graph.notes if n.code in ("assumed-shape", "unknown-operator")]


@pytest.mark.parametrize(("scale", "made"), [("float", "float32"), ("float16", "float16")])
def test_an_rms_norm_has_the_dtype_of_its_scale(scale: str, made: str) -> None:
    """ONNX Runtime fuses Casts into it, so that its input may be wider than its output."""
    proto = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[n, 3, 8] x, {scale}[8] s) => ({scale}[n, 3, 8] y, float[n, 3, 1] f)
        {{ y, f = SimplifiedLayerNormalization<axis = -1>(x, s) }}""")
    ort.InferenceSession(proto.SerializeToString())  # which checks the types of the outputs
    assert [(t.shape, t.dtype) for t in load(proto, batch=5).outputs] == [((5, 3, 8), made), ((5, 3, 1), "float32")]


@pytest.mark.parametrize(
    ("type", "shapes", "attrs", "shape"),
    [
        ("GroupQueryAttention", [(2, 3, 64), (2, 3, 16), (2, 3, 16)], {"num_heads": 8, "kv_num_heads": 2}, (2, 3, 64)),
        ("GroupQueryAttention", [(2, 3, 96)], {"num_heads": 8, "kv_num_heads": 2}, (2, 3, 64)),
        ("BiasSplitGelu", [(2, 3, 64), (64,)], {}, (2, 3, 32)),
        ("RotaryEmbedding", [(2, 3, 64), (2, 3), (9, 4), (9, 4)], {}, (2, 3, 64)),
        ("Rfft", [(2, 5, 16)], {"signal_ndim": 1, "onesided": 1, "normalized": 0}, (2, 5, 9, 2)),
        ("Irfft", [(2, 5, 9, 2)], {"signal_ndim": 1, "onesided": 1, "normalized": 0}, (2, 5, 16)),
        ("GemmFloat8", [(5, 4), (6, 5)], {"transA": 1, "transB": 1, "dtype": 10}, (4, 6)),
        ("TorchEmbedding", [(9, 4), (2, 3)], {}, (2, 3, 4)),
        ("RestorePadding", [(7, 16), (2, 5)], {}, (2, 5, 16)),
        ("QOrderedMatMul", [(2, 4, 5), (), (5, 6)], {}, (2, 4, 6)),
        ("ReduceSumInteger", [(2, 3, 4)], {"axes": [1], "keepdims": 0}, (2, 4)),
        ("PackedAttention", [(7, 8), (8, 24)], {"num_heads": 2}, (7, 8)),
        ("PackedMultiHeadAttention", [(7, 8), (7, 8), (7, 12)], {"num_heads": 2}, (7, 12)),
        ("PackedMultiHeadAttention", [(7, 2, 3, 4)], {"num_heads": 2}, (7, 8)),
        (
            "PagedAttention",
            [(7, 96), None, None, (9, 16, 2, 8), (9, 16, 2, 8)],
            {"num_heads": 8, "kv_num_heads": 2},
            (7, 64),
        ),
        (
            "SparseAttention",
            [(2, 3, 96), None, None, (2, 2, 9, 8), (2, 2, 9, 8)],
            {"num_heads": 8, "kv_num_heads": 2},
            (2, 3, 64),
        ),
        ("GatedRelativePositionBias", [(2, 5, 8)], {"num_heads": 2}, (2, 2, 5, 5)),
        ("MatMulBlockQuantizedFp8Weight", [(2, 64), (48, 64)], {}, (2, 48)),
        ("FusedConv", [(2, 3), (4, 3, 3, 3)], {}, (2, 3)),
        ("MatMulNBits", [(2, 64)], {}, (2, 64)),
    ],
)
def test_shapes_that_the_cpu_provider_does_not_make(
    type: str, shapes: list[Any], attrs: dict[str, Any], shape: tuple[int, ...]
) -> None:
    """The last two don't fit, and are taken as their first input."""
    proto, _ = model(type, [None if s is None else array(*s) for s in shapes], attrs, 1)
    assert load(proto).outputs[0].shape == shape


#: Operators whose outputs have a size that the content of their inputs decides, which is assumed with a note.
BY_CONTENT = {"DynamicTimeWarping", "Tokenizer", "Unique"}


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.name)
def test_every_contributed_operator_has_rules_or_a_note_that_its_work_is_not_known(schema: Any) -> None:
    """Those of the installed release. Operators that hold graphs are taken apart (GreedySearch and its like)."""
    type = f"{schema.domain}::{schema.name}"
    if type in SEARCHES:
        return
    if known(type):
        assert output_rule(type) is not None or schema.name in BY_CONTENT
        return
    proto, _ = model(type, [array(2, 8) for _ in range(max(schema.min_input, 1))], {}, max(schema.min_output, 1))
    says = next(w.message for w in predict(proto, gpu="l4").warnings if w.code == "unknown-operator")
    assert says.startswith(f"{type} is not defined in onnx and its work is not known")


def test_what_onnx_runtime_has_optimised_keeps_its_work(tmp_path: Any) -> None:
    """The file that ONNX Runtime writes has the products of the file it read."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "u"], ["g"]),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    weights = {"w": (8, 3, 3, 3), "u": (8, 16)}
    io = [helper.make_tensor_value_info("x", 1, [1, 3, 32, 32]), helper.make_tensor_value_info("y", 1, [1, 16])]
    stored = [numpy_helper.from_array(rng.standard_normal(s).astype(F), n) for n, s in weights.items()]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", io[:1], io[1:], stored), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    ort.InferenceSession(proto.SerializeToString(), options)
    after = predict(tmp_path / "optimised.onnx", gpu="l4", opt_level="disabled", runtime="ort-cpu")
    assert {k.op for k in after.kernels} >= {"com.microsoft::FusedConv", "com.microsoft::FusedGemm"}
    assert after.work["matrix_flops"] == predict(proto, gpu="l4").work["matrix_flops"]


#: A step of a decoder. Where the caches end is up to who calls it: in the buffers of the past, or one position further.
STEP = """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
g (float16[2, 1, 64] q, float16[2, 1, 32] k, float16[2, 1, 32] v, float16[2, 4, past, 8] pk, float16[2, 4, past, 8] pv,
   int32[2] lengths, int32{number} total)
  => (float16[2, 1, 64] y, float16[2, 4, {present}, 8] k2, float16[2, 4, {present}, 8] v2) {{
    y, k2, v2 = com.microsoft.GroupQueryAttention
      <num_heads = 8, kv_num_heads = 4> (q, k, v, pk, pv, lengths, total) }}"""


@pytest.mark.parametrize(
    ("past", "present", "length", "total", "read", "written"),
    [
        (100, "past", 100, 60, 59, 1),
        (100, "past", 100, None, 99, 1),
        (100, "100", 100, 100, 99, 1),
        (100, "101", 101, None, 100 + 101, 101),
        (100, "now", 101, None, 100 + 101, 101),
    ],
)
@pytest.mark.parametrize("number", ["", "[1]"])
def test_a_cache_is_changed_in_place_or_grows_as_the_file_says(
    past: int, present: str, length: int, total: int | None, read: int, written: int, number: str
) -> None:
    dims = {"past": past} | ({"now": length} if present == "now" else {}) | ({"total": total} if total else {})
    text = STEP.format(number=number, present=present)
    p = predict(onnx.parser.parse_model(text).SerializeToString(), gpu="l4", dims=dims)
    [kernel] = [k for k in p.kernels if k.op.endswith("GroupQueryAttention")]
    position = 2 * 2 * 2 * 4 * 8  # bytes of keys and values
    assert [t.shape[2] for t in p.run.graph.outputs[1:]] == [length, length]
    assert kernel.bytes_read == 2 * 128 * 2 + 2 * 4 + 4 + position * read
    assert kernel.bytes_written == 128 * 2 + position * written
    notes = [n.message for n in p.warnings if n.code == "assumed-length"]
    full = "KV caches of 100 positions are assumed full: the length in use is known only at run time"
    assert notes == ([f"{full} (--dim NAME=N sets an input that is a number)"] if not total and length == 100 else [])
    assert not [n for n in p.warnings if n.code in ("stale-shape", "assumed-shape")]


def test_what_a_scatter_changes_in_place_is_no_cache() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[2, 16, 8] x, int64[4, 1] at, float[4, 16, 8] new)
        => (float[2, 16, 8] y) { a = Exp (x)  b = ScatterND (a, at, new)  y = Exp (b) }"""
    p = predict(onnx.parser.parse_model(text).SerializeToString(), gpu="l4")
    assert any("in place" in o.attrs for o in p.run.run_graph.operators)
    assert "assumed-length" not in {n.code for n in p.warnings}


@pytest.mark.parametrize("present", ["past", "101"])
def test_attention_with_a_shared_buffer_keeps_its_length(present: str) -> None:
    shared = present == "past"
    text = f"""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
    g (float[2, 1, 32] x, float[2, 2, 4, past, 8] before, int32[1] n, float[32, 96] w)
    => (float[2, 1, 32] y, float[] after) {{ y, after = com.microsoft.Attention
      <num_heads = 4, past_present_share_buffer = {int(shared)}> (x, w, , , before, , n) }}"""
    graph = load(onnx.parser.parse_model(text), dims={"past": 100})
    assert graph.outputs[1].shape == (2, 2, 4, 100 if shared else 101, 8)


def test_a_graph_inside_an_unknown_operator_is_said_not_to_be_counted() -> None:
    body = "body = d (float[n, m] a) => (float[n, m] b) { f = Relu(a) b = Exp(f) }"
    text = f"""<ir_version: 9, opset_import: ["" : 18, "some.where" : 1]>
        g (float[1, 8] x) => (float[1, 8] y) {{ y = some.where.Repeat <{body}> (x) }}"""
    p = predict(onnx.parser.parse_model(text), gpu="l4")
    [note] = [n for n in p.warnings if n.code == "body-not-counted"]
    assert "some.where::Repeat holds graphs of 2 nodes, which are not counted" in note.message and note.nodes
    assert "body-not-counted" in p.report()
