"""Kernels that move data: transposes, slices, gathers, concatenations."""

from __future__ import annotations

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import joined, moving
from onnxperf.latency.terms import Array, KernelTerms
from onnxperf.latency.traffic import elementwise, load_s, wasted
from op_models import Move


def move(works: Works, cards: Cards, dram_share: Array) -> KernelTerms:
    """Data movement: one thread an element, which computes its index in the input unless the whole tensor is
    contiguous, or turned by tiles, of which each thread takes several elements in a row.

    A run is a stretch of elements that are contiguous in both tensors, or the side of a tile. On the side that is moved
    in runs shorter than `short_run_bytes`, memory moves as many bytes for each: one element of the type for each that
    moves, at most half of all bytes; indices are read as they lie.
    """
    coef = cards.constants.pointwise
    elements = np.maximum(works["elements"], 1)
    width = np.clip(works.bytes / elements / 2, 0.5, np.maximum(works.width, 0.5))
    waste = wasted(np.maximum(works["run"], works["tile"]) * width, coef["short_run_bytes"])
    nbytes = works.bytes + np.minimum(elements * width, works.bytes / 2) * waste
    strided = (works["run"] < works["elements"]) & (works["tile"] == 1)
    slots = coef["address_slots"] * strided * works["elements"]
    return elementwise(works, cards, nbytes, slots, np.where(strided, 1, coef["each"]), _one_by_one_s(works, cards))


def _one_by_one_s(works: Works, cards: Cards) -> Array:
    """Seconds in which few threads move all elements, [n, g]: a load waits for the store before it, as the compiler
    can't know that they are of different memory. 0 where every element has a thread.
    """
    threads = np.minimum(works["threads"], cards.sms * cards.threads)
    steps = np.where(threads > 0, works["elements"] / np.maximum(threads, 1), 0.0)
    return np.asarray(steps * load_s(cards) * cards.memory)


def processor_move(works: Works, cards: Cards, fetch: Array) -> KernelTerms:
    """Copies: every contiguous run takes a few clocks beside its bytes."""
    runs = works["elements"] / np.maximum(works["run"], 1)
    compute = runs * cards.constants.processor["run_clocks"] / (cards.sms * cards.hz)
    return joined(works, cards, compute, works.weights * fetch + moving(works, cards))


FAMILY = KernelFamily(Move, move, processor_move, lambda w, on_tensor: "movement")
