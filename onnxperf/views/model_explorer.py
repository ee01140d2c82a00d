"""What the prediction says of each node, as Google's Model Explorer shows it: its custom node data.

Such data have one value for each node: a prediction is a file of times, and others of FLOPs, bytes and bounds. As for
Netron, a kernel stands at its first node, so that values of nodes, and Model Explorer's sums over a layer, add up to
those of kernels. What bounds a kernel is said of its first node; the others are "fused into" that one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from onnxperf.answer.prediction import Prediction
from onnxperf.graph.explorer import Place, places
from onnxperf.ground.errors import UsageError, printable
from onnxperf.views.netron import Cost, costs, of_cpu, of_kernel, together

if TYPE_CHECKING:
    from onnx import ModelProto

Value = Literal["time", "flops", "bytes", "bound_by"]
#: The name of each value that is a number, and what gives it.
NUMBERS: dict[str, tuple[str, Callable[[Cost], float]]] = {
    "time": ("time, us", lambda cost: cost.seconds * 1e6),
    "flops": ("FLOPs, M", lambda cost: cost.flops / 1e6),
    "bytes": ("bytes read and written, MB", lambda cost: cost.nbytes / 1e6),
}
LIGHT_TO_DARK = [
    {"stop": 0, "bgColor": "#fff7ec"},
    {"stop": 0.3, "bgColor": "#fdbb84"},
    {"stop": 1, "bgColor": "#b30000"},
]
FUSED = "#e3e6e4"
NEARLY_ALL = 0.995  # of a value: names don't tell of less that is missing
COLORS = {
    "compute": "#c2500f", "memory": "#1f6fb5", "latency": "#7a4fb8", "launch": "#6a7177", "cpu": "#8a6808",
    "transfer": "#0e7c74", "communication": "#b52a6b",
}  # fmt: skip


def model_explorer(p: Prediction, model: str | os.PathLike[str] | bytes | ModelProto, value: Value = "time") -> str:
    """The node data of a prediction, as JSON text: microseconds, millions of FLOPs, MB read and written, or what bounds
    a kernel. model: what was predicted, whose nodes are named as model-explorer-onnx does.

    A loop has the values of its body as well, since that is a graph of its own there. What the CPU computes has a time,
    but no FLOPs and bytes. Raises UsageError for another value or a model with functions, and where the model can't be
    read.
    """
    if value not in get_args(Value):
        raise UsageError(f"value must be one of {', '.join(get_args(Value))}, not {value!r}")
    main, shown = places(model)
    placed = dict(_placed(p, shown))
    graphs: dict[str, dict[str, Any]] = {main: {}}
    for place, cost in placed.items():
        graphs.setdefault(place.graph, {})[place.node] = _result(cost, value)
    looks = _looks(p, [cost for place, cost in placed.items() if place.graph == main], value)
    return json.dumps({graph: looks | {"results": results} for graph, results in graphs.items()}, indent=1)


def _placed(p: Prediction, shown: dict[str, tuple[Place, ...]]) -> Iterator[tuple[Place, Cost]]:
    """Every node that is shown and is part of a kernel, or has one inside."""
    parts: dict[Place, list[Cost]] = {}
    fused: dict[Place, Cost] = {}
    for node, cost in costs(p).items():
        here = _nearest(node, shown)
        if cost.fused_into:
            into = _nearest(cost.fused_into, shown)
            fused.update({place: Cost(0.0, fused_into=into[0].node if into else "") for place in here[:1]})
        else:
            for place in here:
                parts.setdefault(place, []).append(cost)
    yield from (fused | {place: together(costs) for place, costs in parts.items()}).items()


def _nearest(node: str, shown: dict[str, tuple[Place, ...]]) -> tuple[Place, ...]:
    """Where a node is shown, or what lies around it: runs of a loop that stand apart have names of their own."""
    while node and node not in shown:
        node = node.rpartition("/")[0]
    return shown.get(node, ())


def _result(cost: Cost, value: Value) -> dict[str, Any]:
    if value == "bound_by":
        said = f"fused into {printable(cost.fused_into)}" if cost.fused_into else cost.bound
        return {"value": said, "bgColor": COLORS.get(cost.bound, FUSED)}
    return {"value": float(f"{NUMBERS[value][1](cost):.4g}")}


def _looks(p: Prediction, shown: Sequence[Cost], value: Value) -> dict[str, Any]:
    """The name and colours of the data. The name says how much of the whole the nodes shown have, if that is not all:
    an optimizer's step or a copy of an input belongs to no node of the file. Backward steps belong to their node.
    """
    if value == "bound_by":
        return {"name": "bound by"}
    name, number = NUMBERS[value]
    whole = sum(map(number, (*map(of_kernel, p.kernels), *map(of_cpu, p.cpu_operators))))
    share = sum(map(number, shown)) / whole if whole else 1.0
    return {"name": name if share > NEARLY_ALL else f"{name}: {share:.0%} of all", "gradient": LIGHT_TO_DARK}
