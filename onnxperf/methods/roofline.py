"""roofline: max(FLOPs / peak, bytes / bandwidth, a launch), added up; to compare with."""

from __future__ import annotations

import numpy as np

from onnxperf.latency import KernelTerms, Method
from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.terms import Array
from op_models import Transfer


def roofline(works: Works, cards: Cards, stored: Array, bound: KernelTerms) -> KernelTerms:
    """max(FLOPs / peak, bytes / bandwidth) with the datasheet's figures and no cache; a launch is the least there is.

    FLOPs are those of the operator, tiles behind a mask among them. Source: Williams, Waterman and Patterson,
    "Roofline: an insightful visual performance model for multicore architectures", 2009.
    """
    link = isinstance(works.each[0].size, Transfer)
    memory = np.maximum(works.bytes / (cards.pcie if link else cards.bandwidth), bound.memory)
    compute = np.maximum(bound.compute, works.matrix / works.rate)
    return bound._replace(compute=compute, memory=memory, seconds=np.maximum(compute, memory))


METHOD = Method(
    name="roofline",
    describe="sum over kernels of max(FLOPs / peak, bytes / bandwidth, launch)",
    times=roofline,
    error_class="roofline",
    own_terms=True,
)
