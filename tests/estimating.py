"""Estimates by a method's name, as most tests ask for them."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_specs import Device
from onnxperf import latency
from onnxperf.lab.baselines import BASELINES
from onnxperf.lab.constants import left_out
from onnxperf.latency import Constants, Estimates
from onnxperf.lowering.lower import Kernels
from onnxperf.methods import METHODS


def estimate(
    kernels: Kernels, devices: Sequence[Device], method: str = "tile-wave", constants: Constants | None = None
) -> Estimates:
    """All kernels on all devices, also by a method to compare with."""
    constants = constants or (left_out() if method in BASELINES else None)
    return latency.estimate(kernels, devices, (METHODS | BASELINES)[method], constants)
