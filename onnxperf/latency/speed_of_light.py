"""The speed-of-light bound of a kernel, which no latency model may beat; n works on g devices are [n, g]."""

from __future__ import annotations

import numpy as np

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.families import family_of
from onnxperf.latency.terms import Array, KernelTerms, plain_terms
from onnxperf.latency.works import Works


def of_card(works: Works, cards: Cards, constants: Constants, stored: Array) -> KernelTerms:
    """FLOPs at peak, bytes at DRAM's rate (at L2's where they all fit), or a launch, whichever takes longest.

    Matrix and vector units can work side by side, so the larger of the two counts. stored [n, 1]: bytes of the model's
    weights that the run reads; where L2 can't hold them all, what exceeds it comes from DRAM in every run.
    """
    from_dram = np.maximum(0, 1 - cards.l2 / np.maximum(stored, 1))
    fewest = family_of(works.each[0]).fewest_flops(works, cards)
    compute = np.maximum(works.executed * fewest / works.rate, works.vector / works.vector_rate)
    fastest = np.where(works.bytes <= cards.l2, np.maximum(cards.l2_Bps, cards.bandwidth), cards.bandwidth)
    memory = np.maximum(works.bytes / fastest, from_dram * works.weights / cards.bandwidth)
    launch = np.full_like(compute, constants.launch["floor_s"])
    return plain_terms(compute, memory, 0.0, launch, np.maximum(np.maximum(compute, memory), launch))


def of_processor(works: Works, cards: Cards, constants: Constants, stored: Array) -> KernelTerms:
    """FLOPs at peak, or bytes at the rate of the innermost cache, whichever takes longer."""
    compute = works.matrix / works.rate
    memory = np.broadcast_to(works.bytes / (cards.sms * cards.hz * constants.processor["l1_bytes"]), compute.shape)
    nothing = np.zeros_like(compute)
    return plain_terms(compute, memory, nothing, nothing, np.maximum(compute, memory))
