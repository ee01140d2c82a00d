"""Copies between host and device."""

from __future__ import annotations

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.constants import Constants
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import joined
from onnxperf.latency.terms import Array, KernelTerms, plain_terms
from op_models import Transfer


def transfer(works: Works, cards: Cards, constants: Constants, dram_share: Array) -> KernelTerms:
    """A copy over PCIe: bytes / (share of the link's rate) + start.

    From or to pageable memory, the driver copies through a pinned buffer of its own, at `pageable_Bps` at most.
    """
    pinned = works["pinned"] == 1
    rate = np.where(pinned, constants.transfer["achieved"], constants.transfer["pageable"]) * cards.pcie
    memory = works["bytes"] / np.where(pinned, rate, np.minimum(rate, constants.transfer["pageable_Bps"]))
    launch = np.where(pinned, constants.transfer["start_s"], constants.transfer["pageable_start_s"])
    return plain_terms(0.0, memory, 0.0, launch, memory + launch)


def processor_transfer(works: Works, cards: Cards, constants: Constants, fetch: Array) -> KernelTerms:
    """Takes no time: host and device are one."""
    return joined(works, cards, np.zeros_like(works.rate), np.zeros_like(works.rate))


FAMILY = KernelFamily(Transfer, transfer, processor_transfer, lambda w, on_tensor: "transfer")
