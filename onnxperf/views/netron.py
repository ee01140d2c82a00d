"""What the prediction says of each node, as Netron shows it: an attachment to the model, or a copy of the model.

An attachment is JSON that is opened while Netron shows the model; its entries name nodes by the first line of their
name. A copy says the same in the metadata of its nodes. The time of a kernel stands at its first node, the others name
that one: times of nodes add up to those of kernels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxperf.answer.cpu_operators import CpuOperator
from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.answer.prediction import Prediction
from onnxperf.graph.annotate import annotated as with_metadata
from onnxperf.ground.errors import printable
from onnxperf.ground.tables import duration, size
from onnxperf.views.headline import largest_shares

if TYPE_CHECKING:
    from onnx import ModelProto

SIGNATURE = "netron:attachment"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a node: seconds, FLOPs and bytes read and written of the kernels that stand at it, and what bounds the longest
    of them; or, with 0 seconds, the node that its kernel stands at. What the CPU computes counts no FLOPs and bytes.
    """

    seconds: float
    bound: str = ""
    fused_into: str = ""
    flops: int = 0
    nbytes: int = 0


def netron(p: Prediction) -> str:
    """The attachment of a prediction, as JSON text."""
    entries = [{"kind": "model", "target": "", "name": name, "value": value} for name, value in _of_the_run(p)]
    for node, cost in costs(p).items():
        said = [("fused into", printable(cost.fused_into))]
        if not cost.fused_into:
            said = [
                ("time", duration(cost.seconds)),
                ("share", f"{cost.seconds / p.seconds:.1%}"),
                ("bound", cost.bound),
            ]
        target = node.partition("\n")[0]
        entries += ({"kind": "node", "target": target, "name": name, "value": value} for name, value in said)
    return json.dumps({"signature": SIGNATURE, "metadata": [], "metrics": entries}, indent=1)


def annotated(p: Prediction, model: str | os.PathLike[str] | bytes | ModelProto, target: str = "") -> bytes:
    """The bytes of a copy of the predicted model, with `onnxperf.seconds`, `onnxperf.share` and `onnxperf.bound`, or
    `onnxperf.fused_into`, in the metadata of its nodes. target: where it will lie.

    Raises UsageError or ModelError where the model's file can't be read or copied.
    """
    nodes = {}
    for node, cost in costs(p).items():
        said = {"fused_into": cost.fused_into}
        if not cost.fused_into:
            share = cost.seconds / p.seconds
            said = {"seconds": f"{cost.seconds:.4g}", "share": f"{share:.4g}", "bound": cost.bound}
        nodes[node] = _keyed(said)
    s = p.scenario
    times = {name: f"{getattr(p, name):.4g}" for name in ("seconds", "low_seconds", "high_seconds")}
    return with_metadata(model, _keyed({**times, "gpu": s.gpu, "runtime": s.runtime}), nodes, target)


def _keyed(said: dict[str, str]) -> dict[str, str]:
    return {f"onnxperf.{key}": value for key, value in said.items()}


def costs(p: Prediction) -> dict[str, Cost]:
    """The cost of each node that takes time, or is part of a kernel, by name."""
    parts: dict[str, list[Cost]] = {}
    fused: dict[str, str] = {}
    done = [(k.nodes, of_kernel(k)) for k in p.kernels]
    for nodes, cost in done + [(o.nodes, of_cpu(o)) for o in p.cpu_operators]:
        for node in nodes[:1]:
            parts.setdefault(node, []).append(cost)
        for node in nodes[1:]:
            fused.setdefault(node, nodes[0])
    return {node: Cost(0.0, fused_into=into) for node, into in fused.items()} | {
        node: together(costs) for node, costs in parts.items()
    }


def of_kernel(k: KernelPrediction) -> Cost:
    """The cost of a kernel."""
    return Cost(k.seconds, k.bound_by, "", k.flops, k.bytes_read + k.bytes_written)


def of_cpu(o: CpuOperator) -> Cost:
    """The cost of an operator that the CPU computes."""
    return Cost(o.seconds, "cpu")


def together(costs: Sequence[Cost]) -> Cost:
    """Several costs at one node."""
    bound = max((c.seconds, c.bound) for c in costs)[1]
    return Cost(sum(c.seconds for c in costs), bound, "", sum(c.flops for c in costs), sum(c.nbytes for c in costs))


def _of_the_run(p: Prediction) -> Iterator[tuple[str, str]]:
    """What is said of the model as a whole."""
    s = p.scenario
    yield "predicted on", printable(f"{p.device.name}, {p.run.runtime.title or s.runtime}, batch {s.batch}")
    yield "time", duration(p.seconds)
    yield f"{p.interval:.0%} interval", f"{duration(p.low_seconds)} to {duration(p.high_seconds)}"
    yield "bound by", ", ".join(f"{name} {share:.0%}" for name, share in largest_shares(p))
    yield "memory", f"{size(p.memory.total_bytes)} of {size(p.memory.capacity_bytes)}"
