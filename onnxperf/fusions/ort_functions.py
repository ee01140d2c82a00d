"""Functions: an operator without a kernel runs as the operators that onnx defines it by.

ONNX Runtime takes functions apart when it has given each operator to a provider: behind level `basic`, whose rules see
none of it, and before `extended`. So what such a function casts and computes of shapes stays, constants or not.
"""

from __future__ import annotations

from dataclasses import replace

from onnxperf.fusions.engine import Fusion, Pass
from onnxperf.graph import Graph
from onnxperf.passes.step import holds_backward

#: Functions of ai.onnx for which neither provider of release 1.31 has a kernel.
ON_CUDA = frozenset({
    "Bernoulli", "CastLike", "CenterCropPad", "GroupNormalization", "Mish", "NegativeLogLikelihoodLoss",
    "SoftmaxCrossEntropyLoss", "SwiGLU", "Swish",
})  # fmt: skip
ON_CPU = ON_CUDA | {"HardSwish"}


def inlined(graph: Graph, functions: frozenset[str] = ON_CUDA) -> Graph:
    """The graph with these functions taken apart. ONNX Runtime Training has a kernel for the cross entropy. Raises
    ModelError where they make too many operators.
    """
    if holds_backward(graph):
        functions = functions - {"SoftmaxCrossEntropyLoss"}
    if functions.isdisjoint(o.type for o in graph.operators):
        return graph
    from onnxperf.graph.definitions import definitions

    bodies = definitions(graph.operators, functions, graph.name)
    return replace(graph, operators=tuple(b for body in bodies for b in body))


def inline(functions: frozenset[str]) -> Fusion | Pass:
    """The same as a rule of level `extended`."""
    return Pass("functions inlined", lambda graph: inlined(graph, functions), once=True, since="1.4")
