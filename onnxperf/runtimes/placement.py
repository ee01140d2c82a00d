"""Where ONNX Runtime's CUDA provider runs an operator: on the GPU, on the host, or nowhere; and the copies between.

Free operators hand memory on; shape arithmetic stays on the host.
"""

from __future__ import annotations

from dataclasses import replace

from onnxperf.graph import Graph
from op_models import FLOATS, Operator, Tensor

FREE = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Optional", "OptionalGetElement"}
)
#: Inputs that CUDA kernels read from host memory: the target shapes, axes and sizes.
HOST_INPUTS: dict[str, slice] = {
    "Reshape": slice(1, 2), "Expand": slice(1, 2), "Tile": slice(1, 2), "ConstantOfShape": slice(0, 1),
    "Slice": slice(1, 5), "Range": slice(0, 3), "Resize": slice(1, 4), "Upsample": slice(1, 2), "Pad": slice(1, 4),
    "Unsqueeze": slice(1, 2), "Squeeze": slice(1, 2), "Split": slice(1, 2), "TopK": slice(1, 2), "Trilu": slice(1, 2),
    "OneHot": slice(1, 2), "ReduceSum": slice(1, 2), "ReduceMean": slice(1, 2), "ReduceMax": slice(1, 2),
    "ReduceMin": slice(1, 2), "ReduceProd": slice(1, 2), "If": slice(0, 1), "Loop": slice(0, 2),
}  # fmt: skip
MEMCPY = {"h2d": "MemcpyFromHost", "d2h": "MemcpyToHost"}


def place(graph: Graph) -> Graph:
    """Views are free; shape arithmetic runs on the host as ONNX Runtime prefers it; copies go between the two.

    An operator stays on the host where all it reads is there already (or stored) and it makes a few integers;
    a tensor crosses only once, and shape inputs of CUDA kernels are read on the host without a copy.
    """
    host: set[str] = set()
    placed: list[Operator] = []
    copied: dict[tuple[str, str], Tensor] = {}

    def cross(t: Tensor, o: Operator, way: str) -> Tensor:
        if (t.name, way) not in copied:
            copied[t.name, way] = replace(t, name=f"{t.name}#{way}", kind="activation")
            name = f"{o.name}#{way}#{t.name}"
            placed.append(Operator(name, MEMCPY[way], (t,), (copied[t.name, way],), {}, 0, o.nodes, "copy"))
        return copied[t.name, way]

    for o in graph.operators:
        small = all(t.value is not None and t.dtype not in FLOATS for t in o.outputs)
        moving = [t for t in o.present if not t.stored]
        at_home = bool(moving) and all(t.name in host for t in moving)
        if o.type in ("Shape", "Size") or (small and at_home):
            o = replace(o, place="host")
            host.update(t.name for t in o.outputs)
        else:
            on_host = range(*HOST_INPUTS.get(o.type, slice(0)).indices(len(o.inputs)))
            inputs = list(o.inputs)
            for i, t in enumerate(o.inputs):
                if t is not None and not t.stored and (t.name in host) != (i in on_host):
                    inputs[i] = cross(t, o, "d2h" if i in on_host else "h2d")
            o = replace(o, inputs=tuple(inputs), place="free" if o.type in FREE else "gpu")
        placed.append(o)
    return replace(graph, operators=tuple(placed))
