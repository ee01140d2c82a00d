"""Elementwise kernels."""

from __future__ import annotations

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import streamed
from onnxperf.latency.terms import Array, KernelTerms
from onnxperf.latency.traffic import elementwise
from onnxperf.latency.works import Works
from op_models import Pointwise


def pointwise(works: Works, cards: Cards, constants: Constants, dram_share: Array) -> KernelTerms:
    """Traffic, or the instructions of one thread an element, whichever takes longer."""
    return elementwise(works, cards, constants, works.bytes, 0.0)


FAMILY = KernelFamily(Pointwise, pointwise, streamed, lambda w, on_tensor: "elementwise")
