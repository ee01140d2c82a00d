"""What a run needs of the card's memory: weights, the most activations alive at once, workspace."""

from __future__ import annotations

from dataclasses import dataclass

from onnxperf.graph import Graph
from op_models import Tensor

ALIGNMENT = 256  # what CUDA allocators round to


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device. Inputs and outputs count as activations; CUDA's own context (some 100 MB) does not."""

    weights_bytes: int
    activations_bytes: int
    workspace_bytes: int
    capacity_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        return self.weights_bytes + self.activations_bytes + self.workspace_bytes

    @property
    def fits(self) -> bool:
        """True where the card's nominal capacity holds it."""
        return self.total_bytes <= self.capacity_bytes


def memory(graph: Graph, workspace_bytes: int, capacity_bytes: int) -> Memory:
    """The memory of a placed graph: tensors live from the operator that makes them to the last that reads them.

    Views share the memory of what they view; inputs and outputs stay for the whole run.
    """
    owner: dict[str, str] = {}
    size: dict[str, int] = {}
    last: dict[str, int] = {}
    born: list[list[str]] = []

    def enter(t: Tensor) -> str:
        owner[t.name] = t.name
        size[t.name] = -(-t.bytes // ALIGNMENT) * ALIGNMENT
        return t.name

    kept = {enter(t) for t in graph.inputs}
    for i, o in enumerate(graph.operators):
        for t in o.present:
            if t.name in owner:
                last[owner[t.name]] = i
        new = []
        for t in o.outputs:
            if o.place == "free" and o.inputs and o.inputs[0] is not None and o.inputs[0].name in owner:
                owner[t.name] = owner[o.inputs[0].name]
            elif o.place not in ("host", "free") and o.type != "MemcpyToHost":
                new.append(enter(t))
        born.append(new)
    kept |= {owner[t.name] for t in graph.outputs if t.name in owner}
    dying: dict[int, list[str]] = {}
    for name, at in last.items():
        dying.setdefault(at, []).append(name)
    alive = peak = sum(size[t.name] for t in graph.inputs)
    for i, new in enumerate(born):
        alive += sum(size[name] for name in new)
        peak = max(peak, alive)
        unread = [name for name in new if name not in last]
        alive -= sum(size[name] for name in (*dying.get(i, ()), *unread) if name not in kept)
    weights = sum(-(-t.bytes // ALIGNMENT) * ALIGNMENT for t in graph.stored())
    return Memory(weights, peak, workspace_bytes, capacity_bytes)
