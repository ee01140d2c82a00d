"""What a serving engine adds to the kernels of a model: its scheduler, its all-reduce, what it fuses, its host.

Behaviour is that of the engines' public code, of the releases named; figures are its defaults, or fitted where a
comment says so. Nothing here depends on a model, and on a card only where the engine itself looks at its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_specs import Device

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Reduce:
    """An all-reduce of small messages over memory that the GPUs of a node map to each other, in one kernel.

    With one stage every GPU reads all messages: start + hop (n - 1) + bytes (n - 1) / (share link). With two it adds up
    its part and reads the others': start + (hop + stage) (n - 1) + 2 bytes (n - 1) / n / (share link). The faster
    counts, or NCCL's, to which large messages go.

    Fitted to the all-reduces of 512 B to 8 MiB of each engine on 2, 4 and 8 A100, H200 and B200 in a CUDA graph
    (ai-dynamo/aiconfigurator @095f58a), 111 medians for six figures: median error 4% (vLLM, SGLang) and 6%.

    starts: start by the major compute capability, of which an older one stands for those that were not measured.
    """

    starts: tuple[tuple[int, float], ...]
    hop_s: float
    share: float
    stage_s: float

    def seconds(self, message: int, ranks: int, link_Bps: float, major: int) -> float:
        """How long a message of so many bytes takes among GPUs of one node, of a major compute capability."""
        n, rate = ranks - 1, self.share * link_Bps
        start_s = next((s for at, s in reversed(self.starts) if at <= major), self.starts[0][1]) + self.hop_s * n
        return min(start_s + message * n / rate, start_s + self.stage_s * n + 2 * message * n / ranks / rate)


@dataclass(frozen=True, slots=True)
class Engine:
    """How an engine runs a model.

    budget, small_budget: new tokens of an iteration on a card with `large_bytes` of memory and below; mixed, whole: see
    `Server`; memory: share of the card's memory that it takes for all; cache: share of what is left for keys and values
    that it takes for them; block: tokens of a block of the cache; reduce: its all-reduce, None for NCCL's; norms: that
    of small messages has the norm behind it in it. joined: products that read the same are one, the activation runs
    with the product of gate and up, norms of heads with the rotation, and logits are of the last position. step_s,
    request_s: the host's part of an iteration that no kernel hides, and of each request in it; launch_s: of each kernel
    of an iteration with prompts, which no CUDA graph replays: the GPU waits where that is longer than its kernels.
    These three and front_s are fitted to served rows of dense models on H100 and H200 (onnxperf/lab/served), launch_s,
    one figure for all, and routing_s to those of experts as well: what a layer of experts takes beside its products and
    the sum, in `routing` small kernels (choice of experts, counting and sorting of tokens, activation, quantisation of
    both products' rows, copies: as in vllm/model_executor/layers/fused_moe).
    front_s: between the end of a request and the arrival of the next at the scheduler, in a closed loop.
    """

    name: str
    title: str
    budget: int = 2048
    small_budget: int = 2048
    large_bytes: int = 0
    mixed: bool = True
    whole: bool = False
    memory: float = 1.0
    cache: float = 1.0
    block: int = 1
    reduce: Reduce | None = None
    norms: bool = False
    joined: bool = False
    step_s: float = 0.0
    request_s: float = 0.0
    launch_s: float = 0.0
    front_s: float = 0.0
    routing_s: float = 0.0
    routing: int = 0

    def tokens(self, device: Device) -> int:
        """New tokens of an iteration on a card."""
        return self.budget if device.capacity_bytes >= self.large_bytes else self.small_budget


ENGINES: Mapping[str, Engine] = {
    "ort-genai": Engine("ort-genai", "ONNX Runtime GenAI"),
    # vLLM 0.12. vllm/engine/arg_utils.py, get_batch_defaults: 8192 tokens for a server on cards of 70 GiB and more but
    # the A100, else 2048; vllm/config/cache.py: gpu_memory_utilization 0.9, blocks of 16 tokens; its V1 scheduler gives
    # decode steps their tokens first and fills up with chunks of prompts.
    "vllm": Engine(
        "vllm", "vLLM", budget=8192, small_budget=2048, large_bytes=70 * GIB, memory=0.9, block=16, joined=True,
        reduce=Reduce(((8, 5.0e-6), (9, 4.2e-6), (10, 7.1e-6)), 0.08e-6, 0.53, 0.76e-6),
        step_s=0.5e-3, request_s=20e-6, launch_s=60e-6, front_s=10e-3, routing_s=20e-6, routing=5,
    ),
    # SGLang 0.5. python/sglang/srt/server_args.py: chunked_prefill_size 2048 below 35 GB, 8192 below 160 GB,
    # mem_fraction_static some 0.88, page_size 1, enable_mixed_chunk off, so that prompts go before decode steps.
    "sglang": Engine(
        "sglang", "SGLang", budget=8192, small_budget=2048, large_bytes=35 * GIB, mixed=False, memory=0.88, joined=True,
        reduce=Reduce(((8, 5.2e-6), (9, 4.2e-6), (10, 7.2e-6)), 0.07e-6, 0.58, 1.1e-6),
        step_s=0.0, request_s=20e-6, launch_s=60e-6, front_s=10e-3, routing_s=20e-6, routing=5,
    ),
    # TensorRT-LLM 1.0. tensorrt_llm/llmapi/llm_args.py: max_num_tokens 8192, enable_chunked_prefill off, so that
    # prompts stay whole, KvCacheConfig.free_gpu_memory_fraction 0.9, tokens_per_block 32; its all-reduce has the
    # residual and the norm behind it in it (AllReduceFusionOp.RESIDUAL_RMS_NORM).
    "trtllm": Engine(
        "trtllm", "TensorRT-LLM", budget=8192, small_budget=8192, whole=True, cache=0.9, block=32, joined=True,
        norms=True,
        reduce=Reduce(((8, 4.5e-6), (9, 3.0e-6), (10, 4.7e-6)), 0.07e-6, 0.60, 14e-6),
        step_s=0.5e-3, request_s=5e-6, launch_s=60e-6, front_s=20e-3, routing_s=20e-6, routing=5,
    ),
}  # fmt: skip
