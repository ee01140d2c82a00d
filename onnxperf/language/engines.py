"""What a serving engine adds to the kernels of a model: its scheduler, its all-reduce, what it fuses, its host.

Behaviour is that of the engines' public code, of the releases named; figures are its defaults, or fitted where a
comment says so. Nothing here depends on a model, and on a card only where the engine itself looks at its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from gpu_specs import Device
from onnxperf.ground.names import USUAL_ENGINE
from onnxperf.running.scenario import PLATFORMS

GIB, MIB = 1 << 30, 1 << 20


def runner(engine: str, runtime: str) -> str:
    """What runs a decoder: the engine, or the runtime where that is not the one of ONNX Runtime GenAI on a GPU."""
    return runtime if engine == USUAL_ENGINE and runtime != PLATFORMS["gpu"].runtime else engine


class Tier(NamedTuple):
    """An engine's defaults on cards with less than `below_GiB` of memory: new tokens of an iteration, and the requests
    of its largest CUDA graph on fewer than four GPUs, and on more.
    """

    below_GiB: float
    tokens: int
    graphs: tuple[int, int] = (0, 0)


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

    tiers: its defaults by the memory of a card, ascending; smallest: the architecture whose cards take the first of
    them in any case; mixed, whole: see `Server`; memory: share of the card's memory that it takes for all; apart:
    instead of that, it sets memory apart for activations and CUDA graphs (`reserved`); cache: share of what is left for
    keys and values that it takes for them; block: tokens of a block of the cache; reduce: its all-reduce, None for
    NCCL's; norms: that of small messages has the norm behind it in it. joined: products that read the same are one, the
    activation runs with the product of gate and up, norms of heads with the rotation, and logits are of the last
    position. step_s, request_s: the host's part of an iteration that no kernel hides, and of each request in it;
    launch_s: of each kernel of an iteration with prompts, which no CUDA graph replays: the GPU waits where that is
    longer than its kernels. These three and front_s are fitted to served rows of dense models on H100 and H200
    (onnxperf/lab/served), launch_s, one figure for all, and routing_s to those of experts as well: what a layer of
    experts takes beside its products and the sum, in `routing` small kernels (choice of experts, counting and sorting
    of tokens, activation, quantisation of both products' rows, copies: as in vllm/model_executor/layers/fused_moe).
    front_s: from the client to the scheduler and back, which is also between the end of a request and the next that
    arrives in a closed loop; ahead: it prepares an iteration while the one before it runs, see `Server`.
    """

    name: str
    title: str
    tiers: tuple[Tier, ...] = (Tier(inf, 2048),)
    smallest: tuple[int, int] | None = None
    mixed: bool = True
    whole: bool = False
    memory: float = 1.0
    apart: bool = False
    cache: float = 1.0
    block: int = 1
    reduce: Reduce | None = None
    norms: bool = False
    joined: bool = False
    step_s: float = 0.0
    request_s: float = 0.0
    launch_s: float = 0.0
    front_s: float = 0.0
    ahead: bool = False
    routing_s: float = 0.0
    routing: int = 0

    def tier(self, device: Device) -> Tier:
        """Its defaults on a card."""
        small = device.capability == self.smallest
        return next(t for t in self.tiers if small or device.capacity_bytes < t.below_GiB * GIB)

    def tokens(self, device: Device) -> int:
        """New tokens of an iteration on a card."""
        return self.tier(device).tokens

    def reserved(self, device: Device, gpus: int) -> float:
        """Bytes that are set apart on each of so many cards: 512 + 1.5 tokens + 2 requests of a graph + 128 GPUs MiB,
        at least 10 GiB on cards of more than 60.

        Source: SGLang, python/sglang/srt/server_args.py, _handle_gpu_memory_settings.
        """
        tier = self.tier(device)
        apart = (512 + 1.5 * max(tier.tokens, 2048) + 2 * tier.graphs[gpus >= 4] + 128 * gpus) * MIB
        return max(apart, 10 * GIB) if device.capacity_bytes > 60 * GIB else apart


ENGINES: Mapping[str, Engine] = {
    "ort-genai": Engine("ort-genai", "ONNX Runtime GenAI"),
    # vLLM 0.12. vllm/engine/arg_utils.py, get_batch_defaults: a server takes 8192 tokens on cards of 70 GiB and more
    # but the A100 (PR 17885), else 2048; vllm/config/cache.py: gpu_memory_utilization 0.9, blocks of 16 tokens; its V1
    # scheduler (vllm/v1/core/sched/scheduler.py) gives decode steps their tokens first and fills up with chunks.
    "vllm": Engine(
        "vllm", "vLLM", tiers=(Tier(70, 2048), Tier(inf, 8192)), smallest=(8, 0), memory=0.9, block=16, joined=True,
        reduce=Reduce(((8, 5.0e-6), (9, 4.2e-6), (10, 7.1e-6)), 0.08e-6, 0.53, 0.76e-6),
        step_s=0.5e-3, request_s=20e-6, launch_s=60e-6, front_s=10e-3, routing_s=20e-6, routing=5,
    ),
    # SGLang 0.5. python/sglang/srt/server_args.py, _handle_gpu_memory_settings: chunked_prefill_size and
    # cuda_graph_max_bs by the memory of a card, of which the memory set apart follows; page_size 1; enable_mixed_chunk
    # off, so that prompts go before decode steps; disable_overlap_schedule off, so that iterations are prepared ahead.
    "sglang": Engine(
        "sglang", "SGLang", mixed=False, ahead=True, apart=True, joined=True,
        tiers=(
            Tier(20, 2048, (8, 8)), Tier(35, 2048, (24, 80)), Tier(60, 4096, (32, 160)), Tier(160, 8192, (256, 512)),
            Tier(inf, 16384, (512, 512)),
        ),
        reduce=Reduce(((8, 5.2e-6), (9, 4.2e-6), (10, 7.2e-6)), 0.07e-6, 0.58, 1.1e-6),
        step_s=0.0, request_s=20e-6, launch_s=60e-6, front_s=10e-3, routing_s=20e-6, routing=5,
    ),
    # TensorRT-LLM 1.0. tensorrt_llm/llmapi/llm_args.py: max_num_tokens 8192, enable_chunked_prefill off, so that
    # prompts stay whole, KvCacheConfig.free_gpu_memory_fraction ("default is 90%"), tokens_per_block 32; its all-reduce
    # has the residual and the norm behind it in it (AllReduceFusionOp.RESIDUAL_RMS_NORM); disable_overlap_scheduler
    # off, so that step n + 1 is launched before what step n gave is looked at (docs, features/overlap-scheduler).
    "trtllm": Engine(
        "trtllm", "TensorRT-LLM", tiers=(Tier(inf, 8192),), whole=True, ahead=True, cache=0.9, block=32, joined=True,
        norms=True,
        reduce=Reduce(((8, 4.5e-6), (9, 3.0e-6), (10, 4.7e-6)), 0.07e-6, 0.60, 14e-6),
        step_s=0.5e-3, request_s=5e-6, launch_s=60e-6, front_s=20e-3, routing_s=20e-6, routing=5,
    ),
}  # fmt: skip
