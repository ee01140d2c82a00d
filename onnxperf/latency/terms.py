"""What every latency model gives, and how terms are combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: What can bound a kernel: the terms of an estimate that compete.
BOUNDS = ("compute", "memory", "latency", "launch")


class KernelTerms(NamedTuple):
    """The terms of an estimate, each [n, g] in seconds for n works on g devices; `seconds` is what the model makes of
    them.

    compute: the arithmetic alone. memory: DRAM and L2 traffic. latency: what the arithmetic takes longer than at peak:
    dependent steps, prologues, and waves and tiles that the work does not fill. launch: start and drain.
    variant: the name of the tile or algorithm. workspace: bytes. launches: kernels. occupancy: the share of the
    device's SMs that the kernel has blocks for. executed_share: the part of the matrix FLOPs that the algorithm
    executes, as energy counts them.
    detail: further quantities of a single kernel [n, g], the unit at the end of each name. Those that end in
    "efficiency" are, in order, factors on the pipe's rate whose product is the rate of the arithmetic without
    prologues.
    """

    compute: Array
    memory: Array
    latency: Array
    launch: Array
    seconds: Array
    variant: Array
    workspace: Array
    launches: Array
    occupancy: Array
    executed_share: Array = np.ones((1, 1))
    detail: Mapping[str, Array] = {}


def plain_terms(
    compute: Array | float, memory: Array, latency: Array | float, launch: Array, seconds: Array,
    occupancy: Array | float = 1.0,
) -> KernelTerms:  # fmt: skip
    """The terms of one kernel launch that needs no workspace and has one variant only."""
    shape, terms = seconds.shape, (compute, memory, latency, launch, occupancy)
    compute, memory, latency, launch, occupancy = (np.broadcast_to(t, shape) for t in terms)
    none, one = np.zeros(shape), np.ones(shape, dtype=int)
    return KernelTerms(compute, memory, latency, launch, seconds, np.full(shape, ""), none, one, occupancy)


def choose(condition: Array, one: KernelTerms, other: KernelTerms) -> KernelTerms:
    """`one` where the condition [n, g] holds, `other` elsewhere; details that only one of them has are NaN there."""
    none = np.full(np.shape(condition), np.nan)
    names = dict.fromkeys((*one.detail, *other.detail))
    detail = {x: np.where(condition, one.detail.get(x, none), other.detail.get(x, none)) for x in names}
    fields = KernelTerms._fields[:-1]
    terms: dict[str, Any] = {f: np.where(condition, getattr(one, f), getattr(other, f)) for f in fields}
    return KernelTerms(**{**terms, "detail": detail})


def fastest(seconds: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Which variant along the first axis takes the fewest seconds, and a function that picks its value of any term.

    seconds: [variant, n, g]; terms given to the function broadcast to that shape.
    """
    best = np.argmin(seconds, axis=0)

    def at(term: Array) -> Array:
        return np.asarray(np.take_along_axis(np.broadcast_to(term, seconds.shape), best[None], axis=0)[0])

    return best, at


def counted_waves(waves: Array, partial: Array | float) -> Array:
    """Waves of one block an SM as they are counted: a last wave that is not full counts more than its blocks alone.

    partial: how much of what is missing from a full last wave counts as well, from 0 to 1.
    """
    return np.asarray(np.maximum(1, waves + partial * (np.ceil(waves) - waves)))


def hidden_latency(waves: Array, warps: Array | float, resident: Array, half_warps: float) -> Array:
    """The share of latency that the warps on an SM hide: w / (w + half_warps), scaled to 1 at 16 warps.

    waves: of one block an SM; warps: of a block; resident: blocks that fit on an SM.
    """
    busy = warps * np.minimum(np.ceil(waves), resident)
    return np.asarray(busy / (busy + half_warps) * (16 + half_warps) / 16)


def pnorm(*terms: Array, p: float | Array) -> Array:
    """(sum of terms^p)^(1/p): the largest term, and more where others are close to it. Terms are not negative."""
    top = np.maximum(np.maximum.reduce(np.broadcast_arrays(*terms)), 1e-30)
    total = sum((t / top) ** p for t in terms)
    return np.asarray(top * total ** (1 / p))
