"""One core of a processor under ONNX Runtime: each operator by itself, arithmetic and traffic one after the other.

What the runtime spends on an operator (finding it, its output, its kernel) is the host's, and no part of this. The
forms were read off single operators on one Xeon with AVX-512 (Sapphire Rapids); rates are the device's own, clocks are
per core. Shapes: n works on g devices are [n, g].
"""

from __future__ import annotations

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.family import Model
from onnxperf.latency.terms import Array, KernelTerms, held_share, plain_terms


def lanes(x: Array, cards: Cards) -> Array:
    """A size rounded up to whole vector registers."""
    register = cards.constants.processor["register"]
    return np.asarray(np.ceil(np.maximum(x, 1) / register) * register)


def on_integers(works: Works) -> Array:
    """Which works [n, 1] multiply 8-bit integers: at a rate of their own, and with numbers to scale before or after."""
    return np.array([[pipe == "tensor_int8"] for pipe in works.pipes])


def scaling_s(works: Works, cards: Cards) -> Array:
    """Seconds [n, g] of quantising operands and of scaling or requantising sums, in passes over what lies in caches."""
    return np.asarray(works.vector / cards.constants.processor["scaling_flops"] / (cards.sms * cards.hz))


def per_weight_byte(stored: Array, cards: Cards) -> Array:
    """Seconds [n, g] for a byte of the weights, of which a run reads `stored` bytes [n, 1].

    They come from the core's own cache (L2), from the shared one (L3) or from memory, whichever holds them all.
    """
    coef = cards.constants.processor
    in_l2, in_l3 = (held_share(stored, np.maximum(size, 1), coef["sharpness"]) for size in (cards.l2, cards.l3))
    clocks = in_l2 / coef["l2_bytes"] + (1 - in_l2) * in_l3 / coef["shared_bytes"]
    return np.asarray((clocks / cards.hz + (1 - in_l2) * (1 - in_l3) / cards.bandwidth) * cards.memory)


def moving(works: Works, cards: Cards, unhidden: float = 1.0) -> Array:
    """Seconds [n, g] for what operators hand to each other: all of it through the core's own cache, and what that
    cannot hold through the shared one.

    unhidden: the part of the own cache's time that arithmetic does not hide.
    """
    coef, nbytes = cards.constants.processor, works.bytes - works.weights
    spilled = np.maximum(nbytes - coef["resident"] * cards.l2 * cards.sms, 0)
    clocks = unhidden * nbytes / coef["l2_bytes"] + spilled / coef["shared_bytes"]
    return np.asarray(clocks / (cards.sms * cards.hz) * cards.memory)


def joined(works: Works, cards: Cards, compute: Array, memory: Array) -> KernelTerms:
    """The terms of seconds of arithmetic and of traffic, which hardly overlap on a core: their sum, or a clock where
    there is neither, as of an If.

    FLOPs at peak are `compute`, what the arithmetic takes longer is `latency`.
    """
    compute, memory = np.broadcast_arrays(compute * cards.compute, memory)
    compute = np.where(compute + memory > 0, compute, 1 / cards.hz)
    useful = np.minimum(works.matrix / works.rate, compute)
    return plain_terms(useful, memory, compute - useful, np.zeros_like(compute), compute + memory)


def streamed(works: Works, cards: Cards, fetch: Array) -> KernelTerms:
    """Elementwise operators and rows: `vector_flops` a clock, `row_clocks` for each row, and what they move.

    fetch [n, g]: seconds that a byte of the weights takes to arrive.
    """
    coef = cards.constants.processor
    start_clocks = works["rows"] * coef["row_clocks"] if "rows" in works.fields else 0.0
    clocks = works.vector / coef["vector_flops"] + start_clocks
    memory = works.weights * fetch + moving(works, cards)
    return joined(works, cards, clocks / (cards.sms * cards.hz), memory)


def stepwise(works: Works, cards: Cards) -> Array:
    """Seconds [n, g] of what goes one after another, by the clocks of each kind; a jump takes those of the cache that
    holds what it reaches."""
    clocks_of = cards.constants.processor["clocks"]
    clocks = sum(works.steps[kind] * each for kind, each in clocks_of.items() if kind != "jumps")
    sharpness, reach = cards.constants.processor["sharpness"], works.steps["reach"]
    in_l2, in_l3 = (held_share(reach, np.maximum(size, 1), sharpness) for size in (cards.l2, cards.l3))
    jump = clocks_of["jumps"]
    beyond = in_l3 * jump["l3"] + (1 - in_l3) * jump["memory"]
    clocks = clocks + works.steps["jumps"] * (in_l2 * jump["l2"] + (1 - in_l2) * beyond)
    return np.asarray(clocks / (np.where(works.steps["serial"] > 0, 1, cards.sms) * cards.hz) * cards.compute)


def with_steps(model: Model) -> Model:
    """A family's model for processors where steps, if there are any, take the place of all arithmetic but products."""

    def stepping(works: Works, cards: Cards, fetch: Array) -> KernelTerms:
        terms = model(works, cards, fetch)
        if not any(any(w.steps) for w in works.each):
            return terms
        seconds = stepwise(works, cards)
        instead = (seconds > 0) & (works.matrix == 0)
        kept = np.where(instead, terms.memory, terms.seconds)
        latency = np.where(instead, 0.0, terms.latency) + seconds
        return terms._replace(compute=np.where(instead, 0.0, terms.compute), latency=latency, seconds=kept + seconds)

    return stepping
