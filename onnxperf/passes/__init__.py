"""Changes to a graph before a runtime optimises it: each takes a graph and gives another."""

from onnxperf.passes.autocast import autocast, with_fast_norms
from onnxperf.passes.precision import AMP, CALIBRATED, PRECISIONS, QUANTISED, lacks_unit, precision
from onnxperf.passes.tape import BACKWARD, FORWARD, PHASES, phase_of
from onnxperf.passes.training import LOSSES, OPTIMIZERS, Training, kept_by_training, training_step

__all__ = [
    "AMP", "BACKWARD", "CALIBRATED", "FORWARD", "LOSSES", "OPTIMIZERS", "PHASES", "PRECISIONS", "QUANTISED", "Training",
    "autocast", "kept_by_training", "lacks_unit", "phase_of", "precision", "training_step", "with_fast_norms",
]  # fmt: skip
