"""Estimates by a method's name, and predictions on several cards that share a run, as tests ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_specs import Device
from onnxperf import latency
from onnxperf.answer.prediction import Prediction, summarise
from onnxperf.lab.baselines import BASELINES
from onnxperf.lab.constants import left_out
from onnxperf.latency import Constants, Estimates
from onnxperf.lowering.lower import Kernels
from onnxperf.methods import METHODS
from onnxperf.running.pipeline import Gpu, request_for, runs


def estimate(
    kernels: Kernels, devices: Sequence[Device], method: str = "tile-wave", constants: Constants | None = None
) -> Estimates:
    """All kernels on all devices, also by a method to compare with."""
    constants = constants or (left_out() if method in BASELINES else None)
    return latency.estimate(kernels, devices, (METHODS | BASELINES)[method], constants)


def predict_on(gpus: Sequence[Gpu], model: Any, **terms: Any) -> list[Prediction]:
    """A prediction for each card, in runs that cards share where they can."""
    return [summarise(run, j) for run, j in runs(request_for(model, **terms), gpus)]
