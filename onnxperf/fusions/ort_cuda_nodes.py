"""Further nodes that ONNX Runtime's CUDA provider runs as several kernels, or as a slower one than others have.

The sources are those of release 1.22. Softmax over another axis than the last, from opset 13 on: Transpose, Softmax,
Transpose (providers/cuda/math/softmax.cc). MatMulNBits and MatMulBnb4 with more than one row: a kernel writes the whole
matrix in the type of the product, and cuBLAS reads that (contrib_ops/cuda/quantization/matmul_nbits.cc; the kernel of
its own, matmul_4bits.cu, is for one row). CumSum: a thread for each element adds all that come before it
(providers/cuda/math/cumsum_impl.cu). NonMaxSuppression: for each class of each image the scores are sorted, the boxes
compared, the winners put together, and the host waits for their number (object_detection/non_max_suppression_impl.cu).
Loop: the host waits for the device after each run of the body, since it reads the condition
(providers/cpu/controlflow/loop.cc, sync_subgraph_fetches); a Scan does not. Beside that and its nodes a run of a body
costs the host next to nothing: 0.3 us with the CPU provider of 1.31, with bodies of 1 and 11 nodes on a Xeon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from onnxperf.fusions import ort_training
from onnxperf.fusions.ort_kernels import WITHIN
from onnxperf.graph import Graph
from op_models import Operator, Tensor

#: Attribute of a kernel for whose end the host waits before it goes on.
WAITED_FOR = "waited for"


def separate(graph: Graph) -> Graph:
    """The placed graph with such nodes replaced by their kernels."""
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


def _packed_product(o: Operator) -> Iterator[Operator]:
    """The weights in the type of the product, and the product; with one row they are unpacked in the product itself."""
    if len(o.present) < 2:  # a file that no runtime takes
        yield o
        return
    a, packed = o.present[:2]
    columns, k = o.attrs.get("N"), o.attrs.get("K")
    if not isinstance(columns, int) or not isinstance(k, int) or min(columns, k) <= 0 or a.size <= k:
        yield o
        return
    bias = tuple(o.inputs[5:6]) if o.type == "com.microsoft::MatMulNBits" else ()
    whole = Tensor(f"{o.name}#weights", a.dtype, (columns, k))
    of_weights = [t for t in (packed, *o.inputs[2:5]) if t is not None]
    yield replace(o, name=whole.name, type="DequantizeBlocks", inputs=tuple(of_weights), outputs=(whole,))
    attrs = {"transB": 1, WITHIN: 1}
    yield replace(o, type="com.microsoft::FusedMatMul", inputs=(a, whole, *bias), attrs=attrs, version=0)


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
    one, of_one = replace(scores, shape=(1, 1, number)), replace(boxes, shape=(1, number, boxes.shape[2]))
    order = Tensor(f"{o.name}#order", scores.dtype, (1, 1, number))
    kept = Tensor(f"{o.name}#kept", "bool", (1, number))
    won = Tensor(f"{o.name}#won", "int64", (number,))
    count = Tensor(f"{o.name}#count", "int32", (1,))
    yield replace(often, name=order.name, type="TopK", inputs=(one,), outputs=(order,))
    yield replace(often, name=kept.name, inputs=(of_one, order), outputs=(kept,))
    yield replace(often, name=won.name, type="Compress", inputs=(kept, kept), outputs=(won, count))
    there = (replace(count, name=f"{count.name}#d2h"),)
    yield replace(often, name=count.name, type="MemcpyToHost", inputs=(count,), outputs=there, place="copy")
    yield replace(o, type="Concat", inputs=(won,), attrs={"axis": 0, WITHIN: 1}, version=0)


KERNELS: dict[str, Callable[[Operator], Iterator[Operator]]] = {
    "Softmax": _softmax, "LogSoftmax": _softmax, "CumSum": _cumulative_sum, "NonMaxSuppression": _suppression,
    "com.microsoft::MatMulNBits": _packed_product, "com.microsoft::MatMulBnb4": _packed_product,
    **ort_training.KERNELS,
}  # fmt: skip
