"""What tests of latency models share: works as a run's kernels, the time of one alone, five cards of five kinds."""

from __future__ import annotations

import gpu_specs
from onnxperf.latency import alone, shipped
from onnxperf.lowering.lower import Kernel, Kernels
from op_models import Work

#: Of five architectures, from a small card to a large one, where what is shown is no card's own.
FIVE = tuple(map(gpu_specs.load, ("p100-pcie-16gb", "t4", "a100-sxm4-80gb", "l40s", "h100-sxm")))


def kernels(*works: Work, stored: int = 10**9) -> Kernels:
    """A run of these works, one after the other, of a model with so many bytes of weights."""
    return Kernels(tuple(Kernel(f"k{i}", "Op", (f"n{i}",), w) for i, w in enumerate(works)), (), stored)


def seconds(w: Work, device: gpu_specs.Device, budget: bool = False) -> float:
    """What a work takes alone on a card; `budget` says whether the card's power limit holds it back."""
    return float(alone([w], [device], shipped(), budget).seconds[0, 0])
