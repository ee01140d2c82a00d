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

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onnxperf.fusions import ort_basic, ort_extended, ort_training, ort_transformers
from onnxperf.fusions.common import NO_KERNELS, has_narrow_products
from onnxperf.fusions.engine import BASIC, DISABLED, EXTENDED, Fusion, Pass
from onnxperf.fusions.ort_cuda_nodes import separate
from onnxperf.fusions.ort_kernels import apart
from onnxperf.fusions.ort_nhwc import TO_NHWC
from onnxperf.fusions.ort_views import with_views
from onnxperf.fusions.placement import place
from onnxperf.lowering.runtime import HostCosts, Policy, Runtime

if TYPE_CHECKING:
    from onnxperf.passes.training import Autograd

CUDA = Runtime(
    name="ort-cuda",
    host_constants="ort",
    rules={BASIC: ort_basic.RULES, EXTENDED: ort_extended.CUDA},
    offline={DISABLED: ort_transformers.RULES},
    place=lambda graph: separate(apart(place(with_views(graph)))),
    policy=Policy(tf32=frozenset({"Gemm", "Conv", "Recurrent"})),
    host=HostCosts(
        run_s=10e-6, walk_s=0.4e-6, node_s=1.5e-6, launch_s=3.5e-6, host_op_s=0.3e-6, copy_s=8e-6, sync_s=5e-6,
        gap_s=1e-6, replay_s=12e-6, replay_gap_s=0.6e-6, source="assumed",
    ),
    title="ONNX Runtime CUDA",
    describe="ONNX Runtime, CUDA provider, inputs and outputs bound on the device",
    unmeasured=lambda run: NO_KERNELS if has_narrow_products(run) else "",
)  # fmt: skip


def _until(release: str, runtime: Runtime, extended: tuple[Fusion | Pass, ...], **changed: Any) -> Runtime:
    """The provider as it was up to a release, with that release's rules of level `extended`."""
    describe = f"ONNX Runtime until {release}, CUDA provider, inputs and outputs bound on the device"
    return replace(runtime, rules={**runtime.rules, EXTENDED: extended}, describe=describe, **changed)


#: Compared by hand with the graphs that 1.11, 1.12 and 1.16 write.
CUDA_116 = _until(
    "1.16", replace(CUDA, rules={BASIC: ort_basic.RULES_116}), ort_extended.CUDA_116,
    place=lambda graph: separate(apart(place(graph)), packed_rows={}),
)  # fmt: skip
CUDA_112 = _until(
    "1.12", replace(CUDA, rules={BASIC: ort_basic.RULES_112}), ort_extended.CUDA_112,
    offline={DISABLED: ort_transformers.RULES_112},
    place=lambda graph: separate(apart(place(graph), fused=False), packed_rows={}),
)  # fmt: skip
CUDA_111 = _until("1.11", CUDA_112, ort_extended.CUDA_111)
CUDA_110 = _until("1.10", CUDA_112, ort_extended.CUDA_110)
#: Built with CUDA 10, whose cuBLAS has no kernels for odd sizes on tensor cores (its manual, until 11.0).
CUDA_16 = _until("1.6", CUDA_112, ort_extended.CUDA_16, policy=replace(CUDA.policy, tensor_multiple=8))


def _autograd() -> Autograd:
    """How it differentiates, which no prediction of inference loads."""
    from onnxperf.passes.ort_training import ORT

    return ORT


#: The last release that trains is 1.19; its graphs are those of the rules until 1.16.
TRAINING = replace(
    CUDA_116, autograd=_autograd, before_training={BASIC: ort_training.BEFORE}, title="ONNX Runtime Training",
    describe="ONNX Runtime Training 1.19, CUDA provider", unmeasured=lambda run: "training steps",
)  # fmt: skip
LAST = replace(CUDA, rules={**CUDA.rules, BASIC: (*ort_basic.RULES, TO_NHWC)})
OLDER = {"1.6": CUDA_16, "1.10": CUDA_110, "1.11": CUDA_111, "1.12": CUDA_112, "1.16": CUDA_116}
RUNTIME = replace(CUDA, versions=OLDER, layouts={"nchw": CUDA, "nhwc": LAST}, training=TRAINING)
