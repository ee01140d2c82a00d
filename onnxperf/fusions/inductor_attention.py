"""Attention that a model writes out, which Inductor replaces by scaled_dot_product_attention (fuse_attention.py)."""

from __future__ import annotations

from dataclasses import replace

from onnxperf.fusions.engine import Fused, Miss
from onnxperf.fusions.pattern import A, B, C, Match, Variable, alone, op, pattern, scale
from onnxperf.fusions.torch_calls import turned_back

SCORES = alone(op.MatMul(A, B))
SCALED = alone(scale(SCORES))
MASKED = alone(SCALED + C)
SHARES = alone(op.Softmax(MASKED | SCALED, ...))
V = Variable("values")


@pattern("attention written out", op.MatMul(SHARES, V), start="Softmax")
def attention(m: Match) -> Fused | Miss | None:
    """softmax(c q k^T + mask) v of four axes, where the keys were transposed and nothing else reads what is between."""
    q, v, softmax = m[A], m[V], m[SHARES]
    if softmax.attrs.get("axis", -1) not in (-1, softmax.out.rank - 1):
        return None
    turned = turned_back(m.g.made_by(m[B], "Transpose"))
    if q.rank != 4 or v.rank != 4:
        return Miss("its operands do not have four axes", softmax.nodes)
    if turned is None:
        return Miss("its keys are not transposed", softmax.nodes)
    return replace(m.fused("Attention", (q, turned.out, v, *((m[C],) if C in m else ()))), before=(turned,))
