"""What every latency model answers, and the physics none of them may beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from op_models import Work
from op_models.core import VECTOR_PIPES

Array = NDArray[Any]


class Bounds(NamedTuple):
    """Named terms of an estimate, each [n, g] in seconds; `seconds` is what the model makes of them.

    compute: the arithmetic alone; memory: DRAM and L2 traffic; latency: what arithmetic takes longer for chains,
    prologues, and waves and tiles that the work does not fill;
    launch: start and drain. `choice` names the tile or algorithm, `workspace` is in bytes, `share` is the part of
    the card's SMs that the kernel occupies, `effort` the part of the matrix FLOPs that the algorithm executes, as
    energy counts them. `detail` is what else went into them, for whoever asks about a single kernel: each [n, g], its
    unit at the end of its name. Those that end in "efficiency" are, in this order, shares of the pipe's rate that
    multiply to the rate of the arithmetic, prologues aside.
    """

    compute: Array
    memory: Array
    latency: Array
    launch: Array
    seconds: Array
    choice: Array
    workspace: Array
    launches: Array
    share: Array
    effort: Array = np.ones((1, 1))
    detail: Mapping[str, Array] = {}


def bounds(
    compute: Array | float, memory: Array, latency: Array | float, launch: Array, seconds: Array,
    share: Array | float = 1.0,
) -> Bounds:  # fmt: skip
    """Bounds of a single kernel without workspace and without a choice of algorithm."""
    shape, terms = seconds.shape, (compute, memory, latency, launch, share)
    compute, memory, latency, launch, share = (np.broadcast_to(t, shape) for t in terms)
    none, one = np.zeros(shape), np.ones(shape, dtype=int)
    return Bounds(compute, memory, latency, launch, seconds, np.full(shape, ""), none, one, share)


def choose(condition: Array, one: Bounds, other: Bounds) -> Bounds:
    """`one` where the condition [n, g] holds, `other` elsewhere; details that only one of them has are NaN there."""
    none = np.full(np.shape(condition), np.nan)
    names = dict.fromkeys((*one.detail, *other.detail))
    detail = {x: np.where(condition, one.detail.get(x, none), other.detail.get(x, none)) for x in names}
    terms: dict[str, Any] = {f: np.where(condition, getattr(one, f), getattr(other, f)) for f in Bounds._fields[:-1]}
    return Bounds(**{**terms, "detail": detail})


def least(seconds: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Which of the ways along the first axis takes least seconds, and what takes a term of all ways to that of it.

    Terms broadcast to `seconds` [way, n, g].
    """
    best = np.argmin(seconds, axis=0)

    def at(term: Array) -> Array:
        return np.asarray(np.take_along_axis(np.broadcast_to(term, seconds.shape), best[None], axis=0)[0])

    return best, at


KINDS = ("compute", "memory", "latency", "launch")


def in_waves(x: Array, warps: Array | float, resident: Array, g: Mapping[str, Any]) -> tuple[Array, Array]:
    """`x` waves of one block an SM as they are counted, and the share of latency that the warps there hide.

    What a last wave lacks of a whole one counts `alpha` as well; 16 warps of an SM hide all that can be hidden.
    """
    counted = np.maximum(1, x + g["alpha"] * (np.ceil(x) - x))
    busy = warps * np.minimum(np.ceil(x), resident)
    half = g["half_warps"]
    return counted, busy / (busy + half) * (16 + half) / 16


def pnorm(*terms: Array, p: float | Array) -> Array:
    """(sum of terms^p)^(1/p): the largest term, rounded up where others are close. Terms are not negative."""
    top = np.maximum(np.maximum.reduce(np.broadcast_arrays(*terms)), 1e-30)
    total = sum((t / top) ** p for t in terms)
    return np.asarray(top * total ** (1 / p))


class Columns:
    """Works of one size type as columns: every field an array [n, 1]."""

    def __init__(self, works: list[Work], cards: Cards):
        def column(values: list[float]) -> Array:
            return np.array(values, dtype=float)[:, None]

        self.works = works
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
        self.executed = self.matrix  # FLOPs: a causal kernel skips the tiles behind the diagonal
        self.fields = {
            name: column([float(getattr(w.size, name)) for w in works])
            for name in size._fields
            if not isinstance(getattr(size, name), str)
        }
        if "causal" in self.fields:
            queries, keys = self["queries"], np.maximum(self["keys"], 1)
            masked = np.clip((np.minimum(queries, keys) - 1) / (2 * keys), 0, 0.5)
            self.executed = self.matrix * (1 - self["causal"] * masked)

    def __getitem__(self, field: str) -> Array:
        return self.fields[field]


SUMS_IN_FP32 = ("float32", "float16", "bfloat16")  # on CUDA cores, by libraries


def fewest(k: Columns, d: Cards) -> Array:
    """Share of a kernel's FLOPs [n, g] below which no algorithm goes that is open to it; 1 but for convolutions.

    With stride 1 and without groups, arithmetic on CUDA cores may go through a transform. Per output and channel, a
    Fourier transform of real numbers leaves half a complex product, 4 FLOPs instead of 2 taps; Winograd's F(4x4, 3x3)
    leaves 36 products of 144 (Lavin and Gray, 2015), which is more than that.
    """
    if "taps" not in k.fields:
        return np.ones((1, 1))
    exact = np.array([[w.dtype in SUMS_IN_FP32] for w in k.works]) & ~d.tensor(k.pipes)
    open_to = exact & (k["taps"] >= 9) & (k["stride"] == 1) & (k["groups"] == 1)
    return np.where(open_to, 2 / np.maximum(k["taps"], 1), 1.0)


def floor(k: Columns, d: Cards, c: Constants, streamed: Array) -> Bounds:
    """The time no kernel beats: its FLOPs at peak, its bytes at DRAM's rate (at L2's where they all fit), a launch.

    Matrix and vector units can work side by side, so the larger of the two counts. `streamed` [n, g] is the share
    of all weights for which L2 has no room: that share of the kernel's comes from DRAM in every run.
    """
    compute = np.maximum(k.executed * fewest(k, d) / k.rate, k.vector / k.vector_rate)
    memory = k.bytes / np.where(k.bytes <= d.l2, np.maximum(d.l2_Bps, d.bandwidth), d.bandwidth)
    memory = np.maximum(memory, streamed * k.weights / d.bandwidth)
    launch = np.full_like(compute, c.launch["floor_s"])
    return bounds(compute, memory, 0.0, launch, np.maximum(np.maximum(compute, memory), launch))
