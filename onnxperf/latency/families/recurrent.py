"""Recurrent layers: the inputs of all steps as one product, then the steps, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.constants import Constants, ConstantSet, Parameter
from onnxperf.latency.families.gemm import CUDA_CORES, TENSOR_CORES, gemm
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import joined, moving
from onnxperf.latency.terms import Array, KernelTerms, held_share, plain_terms
from op_models import BITS, Gemm, Recurrent, Work


def recurrent(works: Works, cards: Cards, constants: Constants, dram_share: Array) -> KernelTerms:
    """seconds = x W of all steps as one product + `steps` times (h R + what a step costs beside it) + the gates.

    h R is one product, the directions side by side, and the batch its rows; its weights stay in L2 from step to step
    where they fit. Before Volta it runs on tiles of its own (`recurrent.tiles`), whole; later cards take those of any
    product. A layer without inputs of its own (what comes in is added to the gates) has no x W.
    Source: the forward passes of DeepBench tell what a step costs up to Volta, on tensor cores too; later cards and
    libraries are assumed. Forms: derive/recurrent.md.
    """
    sizes = [w.size for w in works.each if isinstance(w.size, Recurrent)]
    all_inputs = [Gemm(1, s.steps * s.batch, s.directions * s.gates * s.hidden, s.input) for s in sizes]
    one_state = [Gemm(1, s.batch, s.directions * s.gates * s.hidden, s.hidden) for s in sizes]  # side by side
    has_inputs = np.where(works["input"] > 0, 1.0, 0.0)
    inputs = gemm(_products(works.each, all_inputs, cards), cards, constants, dram_share)
    states = _products(works.each, one_state, cards)
    in_l2 = held_share(states.weights, constants.tensor_gemm["hot"] * cards.l2, constants.l2["sharpness"])
    step = gemm(states, cards, _of_steps(cards, constants), 1 - in_l2)
    coef, steps = constants.recurrent, works["steps"]
    by_generation = [coef["step_before_cc7_s"], coef["step_cc7_s"]]
    start = np.select([cards.major < 7, cards.major < 8], by_generation, coef["step_s"]) * cards.launch
    gates = works.vector / works.vector_rate
    step_s = step.seconds + start
    detail = {
        "steps": steps, "inputs seconds": has_inputs * inputs.seconds, "step seconds": step_s, "gates seconds": gates,
    }  # fmt: skip
    return plain_terms(
        compute=has_inputs * inputs.compute + steps * step.compute + gates,
        memory=has_inputs * inputs.memory + steps * step.memory,
        latency=has_inputs * inputs.latency + steps * step.latency,
        launch=has_inputs * inputs.launch + steps * (step.launch + start),
        seconds=has_inputs * inputs.seconds + steps * step_s + gates,
        occupancy=step.occupancy,
    )._replace(detail=detail)


def _of_steps(cards: Cards, constants: Constants) -> Constants:
    """The constants of a step's product: before Volta tiles of its own, and no parts of k that would be added up."""
    if (cards.major >= 7).all():
        return constants
    coef, step_tiles = constants.cuda_core_tiles, constants.recurrent["tiles"]
    tiles = {f"cuda_core_tiles.{kind}": {**coef[kind], **step_tiles} for kind in ("batched", "single")}
    return constants.having({**tiles, "cuda_core_tiles.splits": np.where(cards.major < 7, 1, coef["splits"])})


def _products(works: Sequence[Work], sizes: list[Gemm], cards: Cards) -> Works:
    """Products of these sizes as kernels of the types that the recurrent works have."""

    def product(w: Work, s: Gemm) -> Work:
        bits = BITS[w.dtype]
        stored, moved = s.batch * s.n * s.k * bits // 8, s.batch * s.m * bits // 8
        return Work(s, w.dtype, w.pipe, stored + moved * s.k, moved * s.n, stored, 2 * s.batch * s.m * s.n * s.k)

    return Works([product(w, s) for w, s in zip(works, sizes, strict=True)], cards)


def processor_recurrent(works: Works, cards: Cards, constants: Constants, fetch: Array) -> KernelTerms:
    """The arithmetic, and the recurrent weights once a step, from the shared cache."""
    coef = constants.processor
    compute = works.matrix / works.rate + works.vector / coef["vector_flops"] / (cards.sms * cards.hz)
    every_step = np.maximum(works["steps"], 1) * works.weights / (coef["shared_bytes"] * cards.hz) * cards.memory
    return joined(works, cards, compute, works.weights * fetch + every_step + moving(works, cards, constants))


RECURRENT = ConstantSet(
    "recurrent",
    parameters=(
        Parameter("recurrent.step_before_cc7_s", "seconds of a step beside its product, before Volta", 2e-5, 0.7),
        Parameter("recurrent.step_cc7_s", "the same: Volta and Turing", 2e-5, 0.35),
    ),
    after=(CUDA_CORES, TENSOR_CORES), sample=300,
)  # fmt: skip
FAMILY = KernelFamily(
    size=Recurrent, card=recurrent, processor=processor_recurrent, error_class=lambda w, on_tensor: "recurrent",
    layer=("input", "hidden", "directions", "gates"), constants=(RECURRENT,),
)  # fmt: skip
