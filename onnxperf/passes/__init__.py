"""Changes to a graph before a runtime optimises it: each takes a graph and gives another."""

from onnxperf.ground.names import AMP, PRECISIONS, QUANTISED
from onnxperf.passes.autocast import autocast, with_fast_norms
from onnxperf.passes.exchanges import SHARED
from onnxperf.passes.experts import shard_experts
from onnxperf.passes.ort_training import ORT
from onnxperf.passes.plan import Plan, parse_plan, per_gpu
from onnxperf.passes.precision import CALIBRATED, lacks_unit, precision
from onnxperf.passes.shard import shard
from onnxperf.passes.stages import cuts, stage_of_nodes, staged
from onnxperf.passes.tape import BACKWARD, FORWARD, PHASE, PHASES, phase_of
from onnxperf.passes.torch_training import TORCH
from onnxperf.passes.training import (
    Autograd,
    Training,
    holds_backward,
    kept_by_training,
    training_step,
    with_phases,
)  # fmt: skip

__all__ = [
    "AMP", "BACKWARD", "CALIBRATED", "FORWARD", "ORT", "PHASE", "PHASES", "PRECISIONS",
    "QUANTISED", "SHARED", "TORCH", "Autograd", "Plan", "Training", "autocast", "cuts", "holds_backward",
    "kept_by_training", "lacks_unit", "parse_plan", "per_gpu", "phase_of", "precision", "shard", "shard_experts",
    "stage_of_nodes", "staged", "training_step", "with_fast_norms", "with_phases",
]  # fmt: skip
