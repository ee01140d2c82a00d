"""A processor's core under ONNX Runtime: each operator by itself, arithmetic and traffic one after the other.

An operator's overhead (finding it, its output, its kernel) is the host's, and no part of this. The forms were read off
single operators on one Xeon with AVX-512 (Sapphire Rapids); rates are the device's own, clocks are per core.
"""

from __future__ import annotations

import numpy as np

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.terms import Array, KernelTerms, plain_terms
from onnxperf.latency.works import Works


def lanes(x: Array, constants: Constants) -> Array:
    """A size rounded up to whole vector registers."""
    return np.asarray(np.ceil(np.maximum(x, 1) / constants.processor["register"]) * constants.processor["register"])


def per_weight_byte(stored: Array, cards: Cards, constants: Constants) -> Array:
    """Seconds [n, g] for a byte of the weights, of which a run reads `stored` [n, 1]: they come from the core's own
    cache, from the shared one or from memory, whichever holds them all.
    """
    p = constants.processor
    own, shared = (1 / (1 + (stored / np.maximum(size, 1)) ** p["sharpness"]) for size in (cards.l2, cards.l3))
    clocks = own / p["l2_bytes"] + (1 - own) * shared / p["shared_bytes"]
    return np.asarray((clocks / cards.hz + (1 - own) * (1 - shared) / cards.bandwidth) * cards.memory)


def moving(works: Works, cards: Cards, constants: Constants, near: float = 1.0) -> Array:
    """Seconds for what operators hand to each other: from the core's own cache, the rest of it from the shared one.

    `near`: the part of the first term that arithmetic does not hide.
    """
    p, nbytes = constants.processor, works.bytes - works.weights
    far = np.maximum(nbytes - p["resident"] * cards.l2 * cards.sms, 0)
    return np.asarray((near * nbytes / p["l2_bytes"] + far / p["shared_bytes"]) / (cards.sms * cards.hz) * cards.memory)


def joined(works: Works, cards: Cards, compute: Array, memory: Array) -> KernelTerms:
    """Arithmetic and traffic of one core hardly overlap. FLOPs at peak are compute, what they take longer latency."""
    compute, memory = np.broadcast_arrays(compute * cards.compute, memory)
    useful = np.minimum(works.matrix / works.rate, compute)
    return plain_terms(useful, memory, compute - useful, np.zeros_like(compute), compute + memory)


def streamed(works: Works, cards: Cards, constants: Constants, fetch: Array) -> KernelTerms:
    """Elementwise operators and rows: their FLOPs, so many a clock, beside what they move."""
    start = works["rows"] * constants.processor["row_clocks"] if "rows" in works.fields else 0.0
    clocks = works.vector / constants.processor["vector_flops"] + start
    return joined(
        works, cards, clocks / (cards.sms * cards.hz), works.weights * fetch + moving(works, cards, constants)
    )
