"""How long each kernel takes on each device: kernels and devices in, `Estimates` out.

Equal works are estimated once; works of one size type are columns of one array. No estimate beats the speed-of-light
bound, whatever the model says. At the end all kernels of a run share one power budget a card.
"""

from __future__ import annotations

from onnxperf.latency.cards import pipe_on
from onnxperf.latency.constants import Constants, shipped
from onnxperf.latency.estimate import Estimates, alone, correction_name, estimate, floors, single
from onnxperf.latency.families import family_of
from onnxperf.latency.method import Method
from onnxperf.latency.terms import BOUNDS, Array, KernelTerms

__all__ = [
    "BOUNDS", "Array", "Constants", "Estimates", "KernelTerms", "Method", "alone", "correction_name", "estimate",
    "family_of", "floors", "pipe_on", "shipped", "single",
]  # fmt: skip
