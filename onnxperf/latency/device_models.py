"""What differs in an estimate between a card and a processor: asked for once, by the device's kind.

Each has a speed-of-light bound, which no latency model may beat; n works on g devices are [n, g].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.families import family_of
from onnxperf.latency.family import KernelFamily, Model
from onnxperf.latency.processor import per_weight_byte, with_steps
from onnxperf.latency.terms import Array, KernelTerms, held_share, plain_terms


@dataclass(frozen=True, slots=True)
class DeviceModels:
    """How kernels are estimated on one kind of device.

    model: picks a family's latency model for it. weights: what that model is told of the weights [n, g], from how many
    bytes of them the run reads [n, 1]. bound: the speed-of-light bound. error_class: that of all works, or "" where
    each family has its own.
    """

    model: Callable[[KernelFamily], Model]
    weights: Callable[[Array, Cards], Array]
    bound: Callable[[Works, Cards, Array], KernelTerms]
    error_class: str = ""


def dram_share(stored: Array, cards: Cards) -> Array:
    """The share of the weights [n, g] that a run of `stored` bytes of them [n, 1] finds in DRAM rather than in L2.

    Weights can fill `hot` of L2's near partition.
    """
    coef = cards.constants.tensor_gemm
    return 1 - held_share(stored, coef["hot"] * cards.l2_near, coef["hot_sharpness"])


def card_bound(works: Works, cards: Cards, stored: Array) -> KernelTerms:
    """FLOPs at peak, bytes at DRAM's rate (at L2's where they all fit), what goes over a link between cards at its full
    rate, or a launch, whichever takes longest.

    Matrix and vector units can work side by side, so the larger of the two counts. stored [n, 1]: bytes of the model's
    weights that the run reads; where L2 can't hold them all, what exceeds it comes from DRAM in every run.
    detail: the seconds for which each of DRAM, matrix and vector units is busy, however much runs side by side.
    """
    from_dram = np.maximum(0, 1 - cards.l2 / np.maximum(stored, 1))
    family = family_of(works.each[0])
    fewest = family.fewest_flops(works, cards)
    matrix, vector = works.executed * fewest / works.rate, works.vector / works.vector_rate
    compute, held = np.maximum(matrix, vector), works.bytes <= cards.l2
    dram_s = np.maximum(np.where(held, 0.0, works.bytes), from_dram * works.weights) / cards.bandwidth
    memory = np.maximum(works.bytes / np.maximum(np.where(held, cards.l2_Bps, 0.0), cards.bandwidth), dram_s)
    memory = np.maximum(memory, family.link_s(works, cards))
    launch = np.broadcast_to(cards.start_s, compute.shape)
    terms = plain_terms(compute, memory, 0.0, launch, np.maximum(np.maximum(compute, memory), launch))
    return terms._replace(detail={"DRAM": dram_s, "matrix": matrix, "vector": vector})


def processor_bound(works: Works, cards: Cards, stored: Array) -> KernelTerms:
    """FLOPs at peak, or bytes at the rate of the innermost cache, whichever takes longer; a clock where there are none,
    as of an If.
    """
    compute = works.matrix / works.rate
    l1_Bps = cards.sms * cards.hz * cards.constants.processor["l1_bytes"]
    memory = np.broadcast_to(works.bytes / l1_Bps, compute.shape)
    nothing, busy = np.zeros_like(compute), np.maximum(compute, memory)
    clock = np.where(busy > 0, 0.0, 1 / cards.hz)
    return plain_terms(compute, memory, clock, nothing, busy + clock)


DEVICE_MODELS = {
    "gpu": DeviceModels(lambda family: family.card, dram_share, card_bound),
    "cpu": DeviceModels(lambda family: with_steps(family.processor), per_weight_byte, processor_bound, "processor"),
}
