"""Kernels that move data: transposes, slices, gathers, concatenations."""

from __future__ import annotations

import numpy as np

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import joined, moving
from onnxperf.latency.terms import Array, KernelTerms
from onnxperf.latency.traffic import elementwise
from onnxperf.latency.works import Works
from op_models import Move


def move(works: Works, d: Cards, c: Constants, dram_share: Array) -> KernelTerms:
    """Movement: runs shorter than a sector fetch more than they use, and each element's place has to be computed."""
    width = np.maximum(works.bytes / np.maximum(works["elements"], 1) / 2, 0.5)
    run = np.maximum(works["run"] * width, width)
    waste = np.clip(c.pointwise["short_run_bytes"] / run, 1, c.pointwise["most_waste"])
    strided = works["run"] < works["elements"]
    nbytes = works.bytes * (1 + waste) / 2  # half of it is caught by L1 and L2
    return elementwise(works, d, c, nbytes, c.pointwise["address_slots"] * strided * works["elements"])


def processor_move(works: Works, d: Cards, c: Constants, fetch: Array) -> KernelTerms:
    """Copies: every contiguous run takes a few clocks beside its bytes."""
    runs = works["elements"] / np.maximum(works["run"], 1)
    return joined(
        works, d, runs * c.processor["run_clocks"] / (d.sms * d.hz), works.weights * fetch + moving(works, d, c)
    )


FAMILY = KernelFamily(Move, move, processor_move, lambda w, on_tensor: "movement")
