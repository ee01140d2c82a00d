"""Works of one size type as columns of arrays, as latency models read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxperf.latency.cards import Cards
from onnxperf.latency.terms import Array
from op_models import Work
from op_models.core import VECTOR_PIPES


class Works:
    """n works of one size type: every quantity is a column [n, 1], and the rates of their pipes on g devices [n, g].

    each: the works themselves; read, written, weights, bytes: bytes; matrix, vector: FLOPs; executed: matrix FLOPs
    without the tiles that a causal mask hides; rate, vector_rate: FLOP/s of the pipes for these. The numbers of the
    size type are columns under their names: `works["rows"]`.
    """

    def __init__(self, works: Sequence[Work], cards: Cards):
        def column(values: Sequence[float]) -> Array:
            return np.array(values, dtype=float)[:, None]

        self.each = tuple(works)
        self.read = column([w.bytes_read for w in works])
        self.written = column([w.bytes_written for w in works])
        self.weights = column([w.weight_bytes for w in works])
        self.matrix = column([w.matrix_flops for w in works])
        self.vector = column([w.vector_flops for w in works])
        self.bytes = self.read + self.written
        self.pipes = [w.pipe for w in works]
        self.rate = cards.rate(self.pipes)
        self.vector_rate = cards.rate([VECTOR_PIPES.get(w.dtype, "fp32") for w in works])
        size = works[0].size
        self.fields = {
            name: column([float(getattr(w.size, name)) for w in works])
            for name in size._fields
            if not isinstance(getattr(size, name), str)
        }
        self.executed = self.matrix
        if "causal" in self.fields:
            queries, keys = self["queries"], np.maximum(self["keys"], 1)
            masked = np.clip((np.minimum(queries, keys) - 1) / (2 * keys), 0, 0.5)
            self.executed = self.matrix * (1 - self["causal"] * masked)

    def __getitem__(self, field: str) -> Array:
        if field not in self.fields:
            size = type(self.each[0].size).__name__
            raise KeyError(f"the size {size} has no field {field!r}: it has {', '.join(self.fields)}")
        return self.fields[field]
