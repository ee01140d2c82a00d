"""ONNX Runtime's CUDA and CPU providers: what they fuse, in their order, and what the host thread costs.

Rules and their levels follow graph_transformer_utils.cc (1.2x-1.31), and what ONNX Runtime 1.31 itself writes: tests
compare the CPU provider's graphs at every level (at `all`, as on a machine with AVX-512). The CUDA provider also writes
its graph where its library loads but no GPU is there; for twelve of fourteen models, compared by hand at every level,
it was ours (not for a TorchScript BERT and for open dimensions): convolution or Gemm and activation stay separate
kernels, a BiasSoftmax is one. What cuDNN fuses below that can't be seen without a GPU.
Quantised models keep QuantizeLinear and DequantizeLinear as kernels of their own on CUDA, one for each reader.
"""

from __future__ import annotations

from dataclasses import replace

from onnxperf.graph import Graph
from onnxperf.runtimes import ort_basic as basic
from onnxperf.runtimes import ort_extended as extended
from onnxperf.runtimes import ort_layout as layout
from onnxperf.runtimes import ort_nchwc as nchwc
from onnxperf.runtimes import ort_quantised as quantised
from onnxperf.runtimes import patterns
from onnxperf.runtimes.engine import EXTENDED, Fusion, HostCosts, Pass, Policy, Runtime
from onnxperf.runtimes.ort_attention import apart
from onnxperf.runtimes.placement import FREE, place

LEVEL_1: tuple[Fusion | Pass, ...] = (
    quantised.ONE_READER_EACH,
    basic.ELIMINATION,
    basic.casts,
    basic.div_mul,
    basic.relu_clip,
    basic.gemm_sum,
    basic.gemm_transpose,
    basic.not_where,
    basic.conv_affine,
    basic.conv_batch_norm,
    basic.pad,
    basic.matmul_batch_norm,
    basic.COMMON_SUBEXPRESSIONS,
    basic.matmul_add,
    basic.since(patterns.gelu, 20),
    basic.since(patterns.layer_norm, 17),
    layout.PUSH,
)
LEVEL_2_FIRST: tuple[Fusion | Pass, ...] = (layout.of_matrices, layout.PUSH_AGAIN)
LEVEL_2_CPU: tuple[Fusion | Pass, ...] = (
    quantised.unsigned,
    quantised.moves,
    quantised.linear,
    extended.gemm_activation,
    quantised.matmul_integer_to_float,
    quantised.dynamic_quantize_matmul,
    extended.conv_activation,
)
LEVEL_2: tuple[Fusion | Pass, ...] = (
    replace(patterns.gelu, level=EXTENDED),
    patterns.layer_norm,
    extended.rms_norm,
    extended.split,
    extended.matmul_transpose,
    extended.bias_gelu,
    basic.matmul_add_left,
    extended.skip_layer_norm,
    extended.bias_skip_layer_norm,
    patterns.fast_gelu,
    extended.quick_gelu,
)


def beside(graph: Graph) -> Graph:
    """Every operator on the provider itself, nothing copied; views are free."""
    return replace(
        graph, operators=tuple(replace(o, place="free" if o.type in FREE else "gpu") for o in graph.operators)
    )


CUDA = Runtime(
    name="ort-cuda",
    fusions=(*LEVEL_1, *LEVEL_2_FIRST, *LEVEL_2, extended.bias_softmax, extended.matmul_scale),
    place=lambda graph: apart(place(graph)),
    policy=Policy(tf32=frozenset({"Gemm", "Conv", "Recurrent"})),
    host=HostCosts(
        run_s=10e-6, node_s=1.5e-6, launch_s=3.5e-6, host_op_s=2e-6, copy_s=8e-6, sync_s=5e-6, gap_s=1e-6,
        replay_s=12e-6, replay_gap_s=0.6e-6, source="assumed",
    ),
    describe="ONNX Runtime, CUDA provider, inputs and outputs bound on the device",
)  # fmt: skip

CUDA_112 = replace(
    CUDA,
    name="ort-cuda-1.12",
    fusions=tuple(
        basic.matmul_add_flat if f is basic.matmul_add else f for f in CUDA.fusions if f is not basic.matmul_add_left
    ),
    place=lambda graph: apart(place(graph), fused=False),
    describe="ONNX Runtime until 1.12, CUDA provider, inputs and outputs bound on the device",
)

CPU = Runtime(
    name="ort-cpu",
    fusions=(
        basic.inlined, *LEVEL_1, *LEVEL_2_FIRST, *LEVEL_2_CPU, *LEVEL_2, extended.matmul_scale, nchwc.LAYOUT,
        quantised.channels_last, quantised.MOVED_ON, nchwc.conv_sum,
    ),
    place=beside,
    policy=Policy(),
    host=HostCosts(
        run_s=30e-6, node_s=0.4e-6, launch_s=0.0, host_op_s=0.0, copy_s=0.0, sync_s=0.0, gap_s=0.0, replay_s=0.0,
        replay_gap_s=0.0, source="assumed",
    ),
    describe="ONNX Runtime, CPU provider",
    kind="cpu",
)  # fmt: skip
