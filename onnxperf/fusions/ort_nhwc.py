"""The layout NHWC of ONNX Runtime's CUDA provider, under its option `prefer_nhwc` (layout_transformation.cc).

Operators with an NHWC kernel get a Transpose before and one after them. The TransposeOptimizer then moves those after
them further down wherever it can, even if that saves nothing by itself, so that most cancel. Stored weights are
transposed once, when a session starts.
"""

from __future__ import annotations

from dataclasses import replace

from onnxperf.fusions.engine import Fused, Pass, Rewriter
from onnxperf.fusions.ort_layout import pushed, shape_under
from onnxperf.graph import Graph
from op_models import NHWC, Operator

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
#: CUDAExecutionProvider::ShouldConvertDataLayoutForOp, but for GridSample.
KERNELS = frozenset({
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalMaxPool",
    "LRN", "MaxPool", "SpaceToDepth",
})  # fmt: skip


def in_nhwc(graph: Graph) -> Graph:
    """The graph with its images in NHWC, where there are kernels for that."""
    g = Rewriter(graph)
    operators = [o for o in graph.operators if o.type in KERNELS and _image(o)]
    for o in operators:
        g.apply(_wrapped(o))
    return pushed(g.result(), frozenset({TO_FIRST})) if operators else graph


def _image(o: Operator) -> bool:
    """Whether an operator reads a 4-D tensor and writes one 4-D tensor."""
    return len(o.outputs) == 1 and o.out.rank == 4 and o.present[0].rank == 4


def _wrapped(o: Operator) -> Fused:
    """The operator in NHWC, between two Transposes."""
    x, y = o.present[0], o.out
    before = replace(x, name=f"{x.name}#nhwc#{o.name}", kind="activation", shape=shape_under(TO_LAST, x), value=None)
    after = replace(y, name=f"{y.name}#nhwc", shape=shape_under(TO_LAST, y))
    to_last = Operator(f"{o.name}#nhwc", "Transpose", (x,), (before,), {"perm": TO_LAST}, 0, o.nodes, repeat=o.repeat)
    kernel = replace(o, type=NHWC + o.type, version=0, inputs=(before, *o.inputs[1:]), outputs=(after,))
    to_first = replace(to_last, name=f"{o.name}#nchw", inputs=(after,), outputs=(y,), attrs={"perm": TO_FIRST})
    return Fused((o,), to_first, (to_last, kernel))


#: The option is of 1.20 (onnxruntime.ai, CUDA execution provider: prefer_nhwc).
TO_NHWC = Pass("NHWC", in_nhwc, once=True, since="1.20")
