"""Recurrent layers: the inputs of all steps as one product, then the steps, one after the other."""

from __future__ import annotations

import numpy as np

from onnxperf.latency.bounds import Array, Bounds, Columns, bounds
from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.gemm import gemm
from op_models import BITS, Gemm, Recurrent, Work


def recurrent(k: Columns, d: Cards, c: Constants, cold: Array) -> Bounds:
    """x W of all steps, as cuDNN does it; then `steps` times the longer of h R and a step's launches; and the gates.

    h R is one product of each direction; tensor cores find its weights in L2 where they fit. Not fitted: forward
    passes of DeepBench (training, cuDNN 7 and older) take up to four times as long where steps are small.
    """
    sizes = [w.size for w in k.works if isinstance(w.size, Recurrent)]
    all_inputs = [Gemm(1, s.steps * s.batch, s.directions * s.gates * s.hidden, s.input) for s in sizes]
    one_state = [Gemm(s.directions, s.batch, s.gates * s.hidden, s.hidden) for s in sizes]
    before = gemm(_products(k.works, all_inputs, d), d, c, cold)
    steps = _products(k.works, one_state, d)
    fits = 1 / (1 + (steps.weights / (c.tensor_gemm["hot"] * d.l2)) ** c.l2["sharpness"])
    step = gemm(steps, d, c, 1 - fits)
    start = c.launch["step_s"] * d.launch
    gates = k.vector / k.vector_rate
    launch = k["steps"] * np.where(step.seconds < start, start, step.launch) + before.launch
    seconds = before.seconds + k["steps"] * np.maximum(step.seconds, start) + gates
    compute = before.compute + k["steps"] * step.compute + gates
    memory, latency = before.memory + k["steps"] * step.memory, before.latency + k["steps"] * step.latency
    detail = {
        "steps": k["steps"], "inputs seconds": before.seconds, "step seconds": np.maximum(step.seconds, start),
        "gates seconds": gates,
    }  # fmt: skip
    return bounds(compute, memory, latency, launch, seconds, step.share)._replace(detail=detail)


def _products(works: list[Work], sizes: list[Gemm], d: Cards) -> Columns:
    """Products of these sizes as kernels of the types that the recurrent works have."""

    def product(w: Work, s: Gemm) -> Work:
        bits = BITS[w.dtype]
        stored, moved = s.batch * s.n * s.k * bits // 8, s.batch * s.m * bits // 8
        return Work(s, w.dtype, w.pipe, stored + moved * s.k, moved * s.n, stored, 2 * s.batch * s.m * s.n * s.k)

    return Columns([product(w, s) for w, s in zip(works, sizes, strict=True)], d)
