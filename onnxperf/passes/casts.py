"""Builds a graph in which an operator may read and write other dtypes than the operators around it, between casts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from onnxperf.graph import Graph, fresh
from op_models import Operator, Tensor

#: The dtypes that are changed; 8-bit floats are quantised already.
CASTABLE = frozenset({"float64", "float32", "float16", "bfloat16"})
LOOPS = frozenset({"Loop", "Scan"})  # write what their bodies read once for every run, so `repeat` is not theirs


class Casts:
    """The operators of a new graph in execution order, with the casts between them: one for each tensor and dtype."""

    def __init__(self, graph: Graph):
        self.taken = {t.name for o in graph.operators for t in (*o.present, *o.outputs)}
        self.operators: list[Operator] = []
        self.makers: dict[str, Operator] = {}
        self.converted: dict[tuple[str, str], Tensor] = {}

    def retyped(self, t: Tensor, dtype: str) -> Tensor:
        """The tensor in `dtype`, under a new name."""
        return replace(t, name=fresh(f"{t.name}#{dtype}", self.taken), dtype=dtype)

    def add(self, o: Operator) -> Operator:
        """Add an operator at the end."""
        self.operators.append(o)
        self.makers.update((t.name, o) for t in o.outputs)
        return o

    def convert(self, t: Tensor, dtype: str, o: Operator, type: str, scale: Tensor | None = None) -> Tensor:
        """The tensor in `dtype`; the first operator `o` that reads it so has an operator of `type` put before it."""
        if (t.name, dtype) not in self.converted:
            new = replace(self.retyped(t, dtype), kind="activation")
            maker = self.makers.get(t.name)
            repeat = 1 if maker is None else o.repeat if maker.type in LOOPS else maker.repeat
            inputs = (t, scale) if scale is not None else (t,)
            name = f"{o.name}#{type}#{t.name}"
            self.add(Operator(name, type, inputs, (new,), {}, 0, o.nodes, repeat=repeat))
            self.converted[t.name, dtype] = new
        return self.converted[t.name, dtype]

    def stored(self, t: Tensor, dtype: str) -> Tensor:
        """A weight or constant as it is if stored in `dtype`; it has one name, however many operators read it."""
        if (t.name, dtype) not in self.converted:
            self.converted[t.name, dtype] = self.retyped(t, dtype)
        return self.converted[t.name, dtype]

    def read(self, t: Tensor, dtype: str, o: Operator) -> Tensor:
        """A floating tensor as `o` reads it in `dtype`: a weight or constant is stored so, an activation is cast."""
        if t.dtype == dtype or t.dtype not in CASTABLE:
            return t
        return self.stored(t, dtype) if t.stored else self.convert(t, dtype, o, "Cast")

    def around(self, o: Operator, inputs: Collection[int], outputs: Collection[int], dtype: str) -> bool:
        """Add an operator whose floating inputs and outputs at these positions are in `dtype`, between casts.

        Returns whether any of them was in another dtype.
        """
        read = tuple(self.read(t, dtype, o) if t is not None and i in inputs else t for i, t in enumerate(o.inputs))
        back = {i: t for i, t in enumerate(o.outputs) if i in outputs and t.dtype in CASTABLE and t.dtype != dtype}
        written = list(o.outputs)
        for i, t in back.items():
            written[i] = self.converted[t.name, dtype] = self.retyped(t, dtype)
        self.add(replace(o, inputs=read, outputs=tuple(written)))
        for i, t in back.items():
            name = f"{o.name}#Cast#{written[i].name}"
            self.add(Operator(name, "Cast", (written[i],), (t,), {}, 0, o.nodes, repeat=o.repeat))
        return read != o.inputs or bool(back)
