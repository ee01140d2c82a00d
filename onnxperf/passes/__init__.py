"""Changes to a graph before a runtime optimises it: each takes a graph and gives another."""

from onnxperf.passes.autocast import autocast, with_fast_norms
from onnxperf.passes.exchanges import SHARED
from onnxperf.passes.experts import shard_experts
from onnxperf.passes.plan import Plan, parse_plan, per_gpu
from onnxperf.passes.precision import AMP, CALIBRATED, PRECISIONS, QUANTISED, lacks_unit, precision
from onnxperf.passes.shard import shard
from onnxperf.passes.stages import cuts, stage_of_nodes, staged
from onnxperf.passes.tape import BACKWARD, FORWARD, PHASE, PHASES, phase_of
from onnxperf.passes.training import GRADIENTS, LOSSES, OPTIMIZERS, Training, kept_by_training, training_step

__all__ = [
    "AMP", "BACKWARD", "CALIBRATED", "FORWARD", "GRADIENTS", "LOSSES", "OPTIMIZERS", "PHASE", "PHASES", "PRECISIONS",
    "QUANTISED", "SHARED", "Plan", "Training", "autocast", "cuts", "kept_by_training", "lacks_unit", "parse_plan",
    "per_gpu", "phase_of", "precision", "shard", "shard_experts", "stage_of_nodes", "staged", "training_step",
    "with_fast_norms",
]  # fmt: skip
