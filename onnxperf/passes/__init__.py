"""Changes to a graph before a runtime optimises it: each takes a graph and gives another."""

from onnxperf.passes.autocast import autocast, with_fast_norms
from onnxperf.passes.ort_training import ORT
from onnxperf.passes.precision import AMP, CALIBRATED, PRECISIONS, QUANTISED, lacks_unit, precision
from onnxperf.passes.tape import FORWARD, PHASES, phase_of
from onnxperf.passes.torch_training import TORCH
from onnxperf.passes.training import (
    LOSSES,
    OPTIMIZERS,
    Autograd,
    Training,
    holds_backward,
    kept_by_training,
    training_step,
    with_phases,
)  # fmt: skip

__all__ = [
    "AMP", "CALIBRATED", "FORWARD", "LOSSES", "OPTIMIZERS", "ORT", "PHASES", "PRECISIONS", "QUANTISED", "TORCH",
    "Autograd", "Training", "autocast", "holds_backward", "kept_by_training", "lacks_unit", "phase_of", "precision",
    "training_step", "with_fast_norms", "with_phases",
]  # fmt: skip
