"""Recurrent layers: the inputs of all steps as one product, then the steps, one after the other."""

from __future__ import annotations

import numpy as np

from onnxperf.latency.bounds import Array, Bounds, Columns, bounds
from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.gemm import gemm
from op_models import BITS, Gemm, Recurrent, Work


def recurrent(k: Columns, d: Cards, c: Constants, cold: Array) -> Bounds:
    """seconds = x W of all steps as one product + `steps` times (h R + what a step costs beside it) + the gates.

    h R is one product, the directions side by side, and the batch its rows; its weights stay in L2 from step to step
    where they fit. Before Volta it runs on tiles of its own (`recurrent.tiles`), whole; later cards take those of any
    product. A layer without inputs of its own (what comes in is added to the gates) has no x W.
    Source: the forward passes of DeepBench tell what a step costs up to Volta, on tensor cores too; later cards and
    libraries are assumed. Forms: calibrate/recurrent.md.
    """
    sizes = [w.size for w in k.works if isinstance(w.size, Recurrent)]
    all_inputs = [Gemm(1, s.steps * s.batch, s.directions * s.gates * s.hidden, s.input) for s in sizes]
    one_state = [Gemm(1, s.batch, s.directions * s.gates * s.hidden, s.hidden) for s in sizes]  # side by side
    inputs = np.where(k["input"] > 0, 1.0, 0.0)
    before = gemm(_products(k.works, all_inputs, d), d, c, cold)
    steps = _products(k.works, one_state, d)
    fits = 1 / (1 + (steps.weights / (c.tensor_gemm["hot"] * d.l2)) ** c.l2["sharpness"])
    step = gemm(steps, d, _of_steps(d, c), 1 - fits)
    r = c.recurrent
    start = np.select([d.major < 7, d.major < 8], [r["step_before_cc7_s"], r["step_cc7_s"]], r["step_s"]) * d.launch
    gates = k.vector / k.vector_rate
    each = step.seconds + start
    seconds = inputs * before.seconds + k["steps"] * each + gates
    compute = inputs * before.compute + k["steps"] * step.compute + gates
    memory = inputs * before.memory + k["steps"] * step.memory
    latency = inputs * before.latency + k["steps"] * step.latency
    launch = inputs * before.launch + k["steps"] * (step.launch + start)
    detail = {
        "steps": k["steps"], "inputs seconds": inputs * before.seconds, "step seconds": each, "gates seconds": gates,
    }  # fmt: skip
    return bounds(compute, memory, latency, launch, seconds, step.share)._replace(detail=detail)


def _of_steps(d: Cards, c: Constants) -> Constants:
    """The constants of a step's product: before Volta tiles of its own, and no parts of k that would be added up."""
    if (d.major >= 7).all():
        return c
    g = c.cuda_core_tiles
    tiles = {f"cuda_core_tiles.{kind}": {**g[kind], **c.recurrent["tiles"]} for kind in ("batched", "single")}
    return c.having({**tiles, "cuda_core_tiles.splits": np.where(d.major < 7, 1, g["splits"])})


def _products(works: list[Work], sizes: list[Gemm], d: Cards) -> Columns:
    """Products of these sizes as kernels of the types that the recurrent works have."""

    def product(w: Work, s: Gemm) -> Work:
        bits = BITS[w.dtype]
        stored, moved = s.batch * s.n * s.k * bits // 8, s.batch * s.m * bits // 8
        return Work(s, w.dtype, w.pipe, stored + moved * s.k, moved * s.n, stored, 2 * s.batch * s.m * s.n * s.k)

    return Columns([product(w, s) for w, s in zip(works, sizes, strict=True)], d)
