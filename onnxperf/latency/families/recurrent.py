"""Recurrent layers: the inputs of all steps as one product, then the steps, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.families.gemm import gemm
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import joined, moving
from onnxperf.latency.terms import Array, KernelTerms, plain_terms
from onnxperf.latency.works import Works
from op_models import BITS, Gemm, Recurrent, Work


def recurrent(works: Works, d: Cards, c: Constants, dram_share: Array) -> KernelTerms:
    """seconds = x W of all steps as one product + `steps` times (h R + what a step costs beside it) + the gates.

    h R is one product, the directions side by side, and the batch its rows; its weights stay in L2 from step to step
    where they fit. Before Volta it runs on tiles of its own (`recurrent.tiles`), whole; later cards take those of any
    product. A layer without inputs of its own (what comes in is added to the gates) has no x W.
    Source: the forward passes of DeepBench tell what a step costs up to Volta, on tensor cores too; later cards and
    libraries are assumed. Forms: calibrate/recurrent.md.
    """
    sizes = [w.size for w in works.each if isinstance(w.size, Recurrent)]
    all_inputs = [Gemm(1, s.steps * s.batch, s.directions * s.gates * s.hidden, s.input) for s in sizes]
    one_state = [Gemm(1, s.batch, s.directions * s.gates * s.hidden, s.hidden) for s in sizes]  # side by side
    inputs = np.where(works["input"] > 0, 1.0, 0.0)
    before = gemm(_products(works.each, all_inputs, d), d, c, dram_share)
    steps = _products(works.each, one_state, d)
    fits = 1 / (1 + (steps.weights / (c.tensor_gemm["hot"] * d.l2)) ** c.l2["sharpness"])
    step = gemm(steps, d, _of_steps(d, c), 1 - fits)
    r = c.recurrent
    start = np.select([d.major < 7, d.major < 8], [r["step_before_cc7_s"], r["step_cc7_s"]], r["step_s"]) * d.launch
    gates = works.vector / works.vector_rate
    each = step.seconds + start
    seconds = inputs * before.seconds + works["steps"] * each + gates
    compute = inputs * before.compute + works["steps"] * step.compute + gates
    memory = inputs * before.memory + works["steps"] * step.memory
    latency = inputs * before.latency + works["steps"] * step.latency
    launch = inputs * before.launch + works["steps"] * (step.launch + start)
    detail = {
        "steps": works["steps"], "inputs seconds": inputs * before.seconds,
        "step seconds": each, "gates seconds": gates,
    }  # fmt: skip
    return plain_terms(compute, memory, latency, launch, seconds, step.occupancy)._replace(detail=detail)


def _of_steps(d: Cards, c: Constants) -> Constants:
    """The constants of a step's product: before Volta tiles of its own, and no parts of k that would be added up."""
    if (d.major >= 7).all():
        return c
    coef = c.cuda_core_tiles
    tiles = {f"cuda_core_tiles.{kind}": {**coef[kind], **c.recurrent["tiles"]} for kind in ("batched", "single")}
    return c.having({**tiles, "cuda_core_tiles.splits": np.where(d.major < 7, 1, coef["splits"])})


def _products(works: Sequence[Work], sizes: list[Gemm], d: Cards) -> Works:
    """Products of these sizes as kernels of the types that the recurrent works have."""

    def product(w: Work, s: Gemm) -> Work:
        bits = BITS[w.dtype]
        stored, moved = s.batch * s.n * s.k * bits // 8, s.batch * s.m * bits // 8
        return Work(s, w.dtype, w.pipe, stored + moved * s.k, moved * s.n, stored, 2 * s.batch * s.m * s.n * s.k)

    return Works([product(w, s) for w, s in zip(works, sizes, strict=True)], d)


def processor_recurrent(works: Works, d: Cards, c: Constants, fetch: Array) -> KernelTerms:
    """The arithmetic, and the recurrent weights once a step."""
    compute = works.matrix / works.rate + works.vector / c.processor["vector_flops"] / (d.sms * d.hz)
    again = np.maximum(works["steps"], 1) * works.weights / (c.processor["shared_bytes"] * d.hz) * d.memory
    return joined(works, d, compute, works.weights * fetch + again + moving(works, d, c))


FAMILY = KernelFamily(
    size=Recurrent,
    card=recurrent,
    processor=processor_recurrent,
    error_class=lambda w, on_tensor: "recurrent",
    layer=("input", "hidden", "directions", "gates"),
)
