"""Fused attention, and what of it is fitted; forms that were tried: derive/attention.md."""

from __future__ import annotations

from typing import Any

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.constants import Constants, ConstantSet, Parameter
from onnxperf.latency.families.gemm import TENSOR_CORES
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.fused_attention import attention
from onnxperf.latency.processor import joined, moving
from onnxperf.latency.terms import Array, KernelTerms
from op_models import Attention, Work


def processor_attention(works: Works, cards: Cards, constants: Constants, fetch: Array) -> KernelTerms:
    """Two products and a softmax of 5 FLOPs a score; what they hand to each other goes through the caches."""
    scores = works["batch"] * works["heads"] * works["queries"] * works["keys"]
    softmax_s = 5 * scores / constants.processor["vector_flops"] / (cards.sms * cards.hz)
    return joined(works, cards, works.executed / works.rate + softmax_s, moving(works, cards, constants))


def _error_class(w: Work, on_tensor: bool) -> str:
    """On tensor cores by what it is for: one query to a cache, a causal prompt, or an encoder."""
    s: Any = w.size
    if not on_tensor:
        return "attention"
    return f"attention_{'decode' if s.queries == 1 else 'prefill' if s.causal else 'encoder'}"


ATTENTION = ConstantSet(
    "attention",
    parameters=(
        Parameter("attention.few.block", "clocks of a block, whatever its keys", 2200, 0.15),
        Parameter("attention.few.row", "clocks of a block for each element of its queries", 0.36, 0.3),
        Parameter("attention.few.chain", "clocks that 128 keys take a block by itself", 350, 0.5),
        Parameter("attention.wide", "clocks of a block of 64 rows or more for few queries", 4500, 0.2),
        Parameter("attention.few.norm", "how arithmetic and memory join", 2.0, 0.1),
        Parameter("attention.few.start", "clocks of start and drain", 15000, 0.2),
        Parameter("attention.combine", "clocks of the kernel behind parts of the keys", 2800, 0.1),
        Parameter("attention.dram", "share of the datasheet's bandwidth", 0.88, 0.05, most=0.95),
        Parameter("attention.many.block", "clocks of a block, whatever its keys", 3500, 0.3),
        Parameter("attention.many.row", "clocks of a block for each element of its queries", 0.25, 0.3),
        Parameter("attention.many.chain", "clocks that 128 keys take a block by itself", 1500, 0.5),
        Parameter("attention.many.start", "clocks of start and drain", 12000, 0.2),
        Parameter("attention.many.quantise", "clocks of the kernels that make 8 bits", 11000, 0.3),
        Parameter("attention.prompt", "clocks of start that a cache adds to causal prompts", 4500, 0.3),
        Parameter("attention.softmax_flops", "of a score, beside its exponential", 5.0, 0.3),
        Parameter("attention.energy", "of a FLOP, for that of a product's", 0.8, 0.2),
        Parameter("attention.class.mma.pipe", "share of the rate inside a step", 0.78, 0.1, most=1.0),
        Parameter("attention.class.wgmma.pipe", "share of the rate inside a step", 0.78, 0.1, most=1.0),
        Parameter("attention.class.tcgen05.pipe", "share of the rate inside a step", 0.78, 0.1, most=1.0),
        Parameter("attention.class.wgmma.softmax", "softmax's clocks, for mma.sync's", 1.0, 0.15),
        Parameter("attention.class.tcgen05.softmax", "softmax's clocks, for mma.sync's", 0.72, 0.15),
    ),
    after=(TENSOR_CORES,), sample=400, rare=0.5, weight=150.0, corrections=(0.08, 0.06, 0.12),
)  # fmt: skip
FAMILY = KernelFamily(
    Attention, attention, processor_attention, _error_class, layer=("heads", "dim"), constants=(ATTENTION,)
)
