"""ONNX Runtime's CUDA provider: its fusion rules at each optimisation level, and the costs of the host thread.

Rules and their levels follow graph_transformer_utils.cc (1.2x-1.31) and the optimised graphs that ONNX Runtime 1.31
writes. Tests compare the CPU provider's graphs at every level (at `all`, on a machine with AVX-512). The CUDA provider
writes its graph too wherever its library loads, even without a GPU. Compared by hand at every level, graphs were equal
for twelve of fourteen models, but not for a BERT exported by TorchScript and one with open dimensions. On CUDA a
convolution or Gemm and its activation stay separate kernels, a sum and its Softmax are one, and quantised models keep
QuantizeLinear and DequantizeLinear as kernels, but for weights of products alone (see `ort_packed`). What cuDNN fuses
beyond the graph can't be seen without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from onnxperf.fusions import ort_basic, ort_extended, ort_training, ort_transformers
from onnxperf.fusions.common import NO_KERNELS, has_narrow_products
from onnxperf.fusions.engine import BASIC, DISABLED, EXTENDED
from onnxperf.fusions.ort_cuda_nodes import separate
from onnxperf.fusions.ort_kernels import apart
from onnxperf.fusions.ort_nhwc import TO_NHWC
from onnxperf.fusions.ort_releases import NEWEST, OPSETS, says_on_cuda
from onnxperf.fusions.ort_views import with_views
from onnxperf.fusions.placement import place
from onnxperf.graph import Graph, Note
from onnxperf.ground.releases import Release, release
from onnxperf.lowering.releases import Releases
from onnxperf.lowering.runtime import HostCosts, Policy, Runtime, StartCosts, of_version

if TYPE_CHECKING:
    from onnxperf.passes.training import Autograd

TODAY = release(NEWEST)
#: Kernels of ONNX's elementwise operators load elements one by one (cu_inc/unary_elementwise_impl.cuh,
#: binary_elementwise_impl.cuh); contrib operators, such as BiasGelu, have vectorised ones.
POLICY = Policy(tf32=frozenset({"Gemm", "Conv", "Recurrent"}), single_elements=True)
#: Of a convolution: 0.3 to 1.35 s for six on an RTX 2080 Ti, and 0.3 to 0.85 ms each with HEURISTIC
#: (github.com/PaddlePaddle/PaddleX/pull/5057); 142 and 12 ms for those of a speech tokenizer on an H200 under 1.29
#: (github.com/sgl-project/sglang-omni/pull/2176), which also found that the plan is kept for the last shape alone. Each
#: node has its own (conv.h, CudnnConvState). Until 1.19 EXHAUSTIVE timed cuDNN's algorithms
#: (cudnnFindConvolutionForwardAlgorithmEx), since 1.20 it is mode B of its frontend's heuristics
#: (github.com/microsoft/onnxruntime/issues/22705).
START = StartCosts(
    library_s=(0.3, 3.0), search_s=(1e-3, 0.225),
    search="cudnn_conv_algo_search EXHAUSTIVE, the default, tries algorithms",
    quicker="HEURISTIC", quicker_s=(0.3e-3, 2e-3), again="also when an earlier shape returns",
)  # fmt: skip


def kernels(graph: Graph, at: Release = TODAY, registry: Release | None = None) -> Graph:
    """The graph as a release runs it, kernel by kernel; registry: the release whose operators there are, None: today's.

    Views in a row are merged since 1.21 (pull request 22494), fused attention came with 1.13.
    """
    viewed = with_views(graph, merged=at >= release("1.21"))
    fused = apart(place(viewed, registry), fused=at >= release("1.13"))
    run = separate(fused, at)
    return run if at >= release(RESIZES_VOLUMES) else replace(run, notes=(*run.notes, *_general_resizes(run)))


#: The release whose library has a kernel for nearest Resize of three axes, `_ResizeNearestKernel3D`: 1.24.4's has none.
RESIZES_VOLUMES = "1.25"


def _general_resizes(graph: Graph) -> Iterator[Note]:
    """A note on nearest Resize of a volume, which earlier releases leave to their kernel for any number of axes."""
    nodes = [
        n for o in graph.operators if o.type in ("Resize", "Upsample") and o.attrs.get("mode", "nearest") == "nearest"
        and o.place == "gpu" and o.out.rank > 2 and o.out.shape[-3] != o.present[0].shape[-3] for n in o.nodes
    ]  # fmt: skip
    if nodes:
        says = (
            f"before {RESIZES_VOLUMES} a nearest Resize of three axes runs a general kernel, published as 6 times as"
            " slow as PyTorch's on a T4 (github.com/microsoft/onnxruntime/issues/14596): predicted is the time of the"
            f" later kernel, so take {RESIZES_VOLUMES} or a later release"
        )
        yield Note("general-resize", says, tuple(dict.fromkeys(nodes)))


#: The release whose convolutions are those of cuDNN's frontend (pull request 19470).
FRONTEND = "1.20"


#: The first release that is built with CUDA 13, under which a product or convolution takes the host longer than another
#: node: 5.9 and 4.6 us more on a Xeon of 2023, in chains of one operator under 1.30 (lab/derive/hopper.md). Earlier
#: releases show no such difference.
CUDA_13 = "1.29"


def in_release(at: Release) -> Mapping[str, Any]:
    """What is another than today's. Until 1.6 it was built with CUDA 10, whose cuBLAS has no kernels for odd sizes on
    tensor cores (its manual, until 11.0). Until 1.7 products in FP16 were cublasHgemm's, summed in FP16
    (github.com/microsoft/onnxruntime/pull/7253); convolutions never were.
    """
    multiple = 8 if at <= release("1.6") else POLICY.tensor_multiple
    arena = "doubling" if at <= release("1.15") else POLICY.arena
    policy = replace(POLICY, tensor_multiple=multiple, sums_in_fp16=at <= release("1.7"), arena=arena)
    host = replace(CUDA.host, library_s=0.0 if at < release(CUDA_13) else CUDA.host.library_s)
    start = START if at >= release(FRONTEND) else replace(START, again="")
    return {"place": partial(kernels, at=at, registry=at), "policy": policy, "start": start, "host": host}


#: The option `prefer_nhwc` came with 1.20 (onnxruntime.ai, CUDA execution provider).
RELEASES = Releases(OPSETS, NEWEST, in_release, says_on_cuda, layouts="1.20")

CUDA = Runtime(
    name="ort-cuda",
    host_constants="ort",
    rules={BASIC: ort_basic.RULES, EXTENDED: ort_extended.CUDA},
    offline={DISABLED: ort_transformers.RULES},
    place=kernels,
    policy=POLICY,
    host=HostCosts(
        run_s=10e-6, walk_s=0.4e-6, node_s=1.5e-6, launch_s=3.5e-6, host_op_s=0.3e-6, copy_s=8e-6, sync_s=5e-6,
        gap_s=1e-6, replay_s=12e-6, replay_gap_s=0.6e-6, source="assumed", library_s=10e-6,
    ),
    title="ONNX Runtime CUDA",
    describe="ONNX Runtime, CUDA provider, inputs and outputs bound on the device",
    unmeasured=lambda run: NO_KERNELS if has_narrow_products(run) else "",
    releases=RELEASES, start=START,
)  # fmt: skip


def _autograd() -> Autograd:
    """How it differentiates, which no prediction of inference loads."""
    from onnxperf.passes.ort_training import ORT

    return ORT


#: The last release that trains is 1.19; its graphs are those of the rules until 1.16.
TRAINING = replace(
    of_version(CUDA, "1.16"), place=partial(kernels, at=release("1.16")), autograd=_autograd, releases=None,
    before_training={BASIC: ort_training.BEFORE}, title="ONNX Runtime Training",
    describe="ONNX Runtime Training 1.19, CUDA provider", unmeasured=lambda run: "training steps",
)  # fmt: skip
LAST = replace(CUDA, rules={**CUDA.rules, BASIC: (*ort_basic.RULES, TO_NHWC)})
RUNTIME = replace(CUDA, layouts={"nchw": CUDA, "nhwc": LAST}, training=TRAINING)
