"""Further nodes that ONNX Runtime's CUDA provider runs as several kernels, or as a slower one than others have.

The sources are those of release 1.22. Softmax over another axis than the last, from opset 13 on: Transpose, Softmax,
Transpose (providers/cuda/math/softmax.cc). MatMulNBits and MatMulBnb4: see `ort_cuda_packed`. CumSum: a thread for each
element adds all that come before it (providers/cuda/math/cumsum_impl.cu). NonMaxSuppression: for each class of each
image the scores are sorted, the boxes compared, the winners put together, and the host waits for their number
(object_detection/non_max_suppression_impl.cu). Loop: the host waits for the device after each run of the body, since it
reads the condition (providers/cpu/controlflow/loop.cc, sync_subgraph_fetches); a Scan does not. Beside that and its
nodes a run of a body costs the host next to nothing: 0.3 us with the CPU provider of 1.31, with bodies of 1 and 11
nodes on a Xeon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from onnxperf.fusions import ort_training
from onnxperf.fusions.ort_packed import BNB4, PACKED
from onnxperf.graph import Graph
from onnxperf.ground.releases import Release
from onnxperf.passes.tape import WITHIN
from op_models import Operator, Tensor

#: Attribute of a kernel for whose end the host waits before it goes on.
WAITED_FOR = "waited for"


def separate(graph: Graph, at: Release) -> Graph:
    """The placed graph with such nodes replaced by their kernels in a release."""
    if any(o.type in (PACKED, BNB4) for o in graph.operators):
        from onnxperf.fusions.ort_cuda_packed import separate as packed

        graph = packed(graph, at)
    return replace(graph, operators=_waited([k for o in graph.operators for k in _kernels(o)]))


def _waited(operators: list[Operator]) -> tuple[Operator, ...]:
    """The operators, with the last kernel of each Loop's body marked as WAITED_FOR."""
    loops = {n for o in operators if o.type == "Loop" for n in o.nodes}
    lengths = {len(n) for n in loops}
    for i in range(len(operators) - 1, -1, -1) if loops else ():
        o, label = operators[i], next(iter(operators[i].nodes), "")
        around = {label[:n] for n in lengths if label[n : n + 1] == "/"} & loops if o.place == "gpu" else set()
        if around:
            operators[i] = replace(o, attrs={**o.attrs, WAITED_FOR: 1})
            loops -= around
    return tuple(operators)


def _kernels(o: Operator) -> Iterator[Operator]:
    kernels = KERNELS.get(o.type) if o.place == "gpu" else None
    yield from kernels(o) if kernels is not None else (o,)


def _softmax(o: Operator) -> Iterator[Operator]:
    """Transpose, Softmax along the last axis, Transpose."""
    x, axis = o.present[0], o.attrs.get("axis", -1)
    if 0 < o.version < 13 or not isinstance(axis, int) or x.rank < 2 or axis % x.rank == x.rank - 1:
        yield o
        return
    perm = list(range(x.rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    turned = replace(o.out, name=f"{o.name}#turned", shape=tuple(x.shape[a] for a in perm))
    shares = replace(turned, name=f"{o.name}#shares")
    turn = replace(o, name=turned.name, type="Transpose", version=0, outputs=(turned,), attrs={"perm": tuple(perm)})
    yield turn
    yield replace(o, inputs=(turned,), outputs=(shares,), attrs={**o.attrs, "axis": x.rank - 1, WITHIN: 1})
    yield replace(turn, name=f"{o.name}#back", inputs=(shares,), outputs=o.outputs, attrs={**turn.attrs, WITHIN: 1})


def _cumulative_sum(o: Operator) -> Iterator[Operator]:
    yield replace(o, attrs={**o.attrs, "serial": 1})


def _suppression(o: Operator) -> Iterator[Operator]:
    """Kernels for each class of each image, and what puts all winners together."""
    boxes, scores = (*o.inputs, None, None)[:2]
    if boxes is None or scores is None or boxes.rank != 3 or scores.rank != 3 or not scores.size:
        yield o
        return
    images, classes, number = scores.shape
    often = replace(o, repeat=o.repeat * images * classes, attrs={WITHIN: 1}, version=0)
    class_scores, image_boxes = replace(scores, shape=(1, 1, number)), replace(boxes, shape=(1, number, boxes.shape[2]))
    order = Tensor(f"{o.name}#order", scores.dtype, (1, 1, number))
    mask = Tensor(f"{o.name}#kept", "bool", (1, number))
    winners = Tensor(f"{o.name}#won", "int64", (number,))
    count = Tensor(f"{o.name}#count", "int32", (1,))
    yield replace(often, name=order.name, type="TopK", inputs=(class_scores,), outputs=(order,))
    yield replace(often, name=mask.name, inputs=(image_boxes, order), outputs=(mask,))
    yield replace(often, name=winners.name, type="Compress", inputs=(mask, mask), outputs=(winners, count))
    on_host = (replace(count, name=f"{count.name}#d2h"),)
    yield replace(often, name=count.name, type="MemcpyToHost", inputs=(count,), outputs=on_host, place="copy")
    yield replace(o, type="Concat", inputs=(winners,), attrs={"axis": 0, WITHIN: 1}, version=0)


KERNELS: dict[str, Callable[[Operator], Iterator[Operator]]] = {
    "Softmax": _softmax, "LogSoftmax": _softmax, "CumSum": _cumulative_sum, "NonMaxSuppression": _suppression,
    **ort_training.KERNELS,
}  # fmt: skip
