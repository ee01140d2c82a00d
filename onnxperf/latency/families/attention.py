"""Fused attention, and which of its constants are fitted. Forms that were tried: derive/attention.md."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.constants import ConstantSet, Parameter
from onnxperf.latency.families.gemm import TENSOR_CORES
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.fused_attention import attention
from onnxperf.latency.padding import larger_batches
from onnxperf.latency.processor import joined, moving
from onnxperf.latency.residuals import Residuals, scaled
from onnxperf.latency.terms import Array, KernelTerms
from op_models import BITS, Attention, Work


def processor_attention(works: Works, cards: Cards, fetch: Array) -> KernelTerms:
    """Two products and a softmax of 5 FLOPs a score; intermediate results stay in the caches."""
    scores = works["batch"] * works["heads"] * works["queries"] * works["keys"]
    softmax_s = 5 * scores / cards.constants.processor["vector_flops"] / (cards.sms * cards.hz)
    return joined(works, cards, works.executed / works.rate + softmax_s, moving(works, cards))


def _error_class(w: Work, on_tensor: bool) -> str:
    """The class of errors: on tensor cores decode (one query), prefill (causal) and encoder apart."""
    s: Any = w.size
    if not on_tensor:
        return "attention"
    return f"attention_{'decode' if s.queries == 1 else 'prefill' if s.causal else 'encoder'}"


def card_attention(works: Works, cards: Cards, dram_share: Array) -> KernelTerms:
    """Fused attention: the model's time times the measured residual of kernels of the same phase."""
    factors, tables = np.ones(works.rate.shape), cards.constants.attention.get("residual", {})
    for phase, of_phase in OF_SIZES.items():
        factors = factors * of_phase.factors(works.each, cards, tables.get(phase, {}))
    return scaled(attention(works, cards, dram_share), np.where(cards.tensor(works.pipes), factors, 1.0))


def _phase(w: Work) -> str:
    """The measured phase of a work: "decode", "prefill" (a causal prompt) or "encoder"; "" for all other works."""
    s: Any = w.size
    if BITS[w.dtype] > 16 or s.queries not in (1, s.keys) or s.dim != s.dim_v:
        return ""
    if s.queries == 1 or s.causal:
        return "decode" if s.queries == 1 else "prefill"
    return "encoder" if s.dim <= ENCODER_DIM else ""


def _is_of(phase: str, w: Work) -> bool:
    return _phase(w) == phase


def _places(works: Sequence[Work]) -> Array:
    """log2 of four sizes: batch x KV heads, query heads for each KV head, number of keys, head size. The fifth
    coordinate is 0 without 8-bit operands, 1 with an 8-bit KV cache, 2 with 8-bit queries as well.
    """
    rows = []
    for w in works:
        s: Any = w.size
        heads, group = s.batch * max(s.kv_heads, 1), s.heads / max(s.kv_heads, 1)
        of_keys = w.bytes_read - w.weight_bytes - s.batch * s.heads * s.queries * s.dim * BITS[w.dtype] / 8
        eight = of_keys < 1.5 * heads * s.keys * (s.dim + s.dim_v)
        rows.append((*np.log2(np.maximum((heads, group, s.keys, s.dim), 1)), float(eight) + (BITS[w.dtype] <= 8)))
    return np.array(rows)


HEADS, GROUP, KEYS = (0, 3, 6, 9, 12, 15), (0, 3, 6), (2, 5, 8, 11, 14, 17)  # log2: a knot for each factor of 8
ENCODER_DIM = 96  # largest head size of encoders: measured rows have 64, 72 and 80
DIMS = {"encoder": (6, np.log2(72), np.log2(80))}
OF_SIZES = {
    phase: Residuals(
        f"attention.residual.{phase}", (HEADS, GROUP, KEYS, DIMS.get(phase, (6, 7, np.log2(192), 8, 9)), (0, 1, 2)),
        holds=partial(_is_of, phase), sizes=_places,
    )
    for phase in ("decode", "prefill", "encoder")
}  # fmt: skip
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
    residuals=tuple(OF_SIZES.values()),
)  # fmt: skip
FAMILY = KernelFamily(
    size=Attention, card=card_attention, processor=processor_attention, error_class=_error_class,
    layer=("heads", "dim"), constants=(ATTENTION,), batch="batch",
    larger=lambda w, times: larger_batches(w, times, "batch", w.weight_bytes, near=64),
)  # fmt: skip
