"""What a training step is, and how one in a file is told."""

from __future__ import annotations

from dataclasses import dataclass

from onnxperf.graph import Graph
from op_models import Operator


@dataclass(frozen=True, slots=True)
class Training:
    """What a training step is: the loss ("" for the sum of the outputs), the optimiser, whether activations are
    computed again in the backward pass instead of being kept, and after how many batches the parameters are updated;
    over how many GPUs, `stride` apart, gradients are averaged; added: the step is one of several microbatches, whose
    gradients are added to those before it while the backward pass goes on.
    """

    loss: str = ""
    optimizer: str = "adam"
    recompute: bool = False
    accumulate: int = 1
    copies: int = 1
    stride: int = 1
    added: bool = False


def holds_backward(graph: Graph) -> bool:
    """Whether a graph of a file holds a backward pass: operators of ONNX Runtime Training, called ...Grad."""
    return any(is_gradient(o) for o in graph.operators)


def is_gradient(o: Operator) -> bool:
    """Whether an operator is one of a backward pass."""
    return o.type.rpartition("::")[2].removesuffix("_13").removesuffix("_dX").endswith("Grad")
