"""What every latency model gives, and how terms are combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
T = TypeVar("T")

#: What can bound a kernel: the terms of an estimate that compete.
BOUNDS = ("compute", "memory", "latency", "launch")
#: A detail: what the second fastest variant takes, where `KernelTerms.seconds` is what the fastest does.
RUNNER_UP = "runner-up seconds"


class KernelTerms(NamedTuple):
    """The terms of an estimate for n works on g devices, each [n, g]; times in seconds.

    compute: the arithmetic alone. memory: DRAM and L2 traffic. latency: what the arithmetic takes longer than at peak:
    dependent steps, prologues, and waves and tiles that the work does not fill. launch: start and drain. seconds: the
    kernel's duration, which the model makes of these four.
    variant: the name of the tile or algorithm. workspace: bytes. launches: kernels. occupancy: the share of the
    device's SMs that the kernel has blocks for. executed_share: the part of the matrix FLOPs that the algorithm
    executes, as energy counts them. fixed_workspace: the bytes of workspace that don't grow with the batch.
    nvlink, pcie, network: the share of its seconds in which an exchange between GPUs keeps each of these links busy, at
    the rate that it reaches there.
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
    fixed_workspace: Array = np.zeros((1, 1))
    nvlink: Array = np.zeros((1, 1))
    pcie: Array = np.zeros((1, 1))
    network: Array = np.zeros((1, 1))
    detail: Mapping[str, Array] = {}


def plain_terms(
    compute: Array | float, memory: Array, latency: Array | float, launch: Array, seconds: Array,
    occupancy: Array | float = 1.0,
) -> KernelTerms:  # fmt: skip
    """The terms of one kernel launch that needs no workspace and has one variant only."""
    shape, terms = seconds.shape, (compute, memory, latency, launch, occupancy)
    compute, memory, latency, launch, occupancy = (np.broadcast_to(t, shape) for t in terms)
    none, launches = np.zeros(shape), np.ones(shape, dtype=int)
    return KernelTerms(compute, memory, latency, launch, seconds, np.full(shape, ""), none, launches, occupancy)


def rows_of(table: Mapping[T, Sequence[Any]], names: Sequence[T], devices: int) -> Array:
    """The row of a table that each name [n] has, [n, devices]."""
    index = {name: i for i, name in enumerate(table)}
    each = np.array([*table.values()]).reshape(len(table), devices)
    return np.asarray(each[np.array([index[name] for name in names], dtype=int)])


def summed(values: Array) -> Array:
    """The sum over the first axis [n, ...], one after the other: to the last bit the same for a column whatever stands
    beside it. `numpy.sum` adds a single column in another order than several.
    """
    return np.asarray(np.cumsum(values, axis=0)[-1] if len(values) else np.zeros(np.shape(values)[1:]))


def choose(condition: Array, chosen: KernelTerms, other: KernelTerms) -> KernelTerms:
    """`chosen` where the condition [n, g] holds, else `other`; details that only one of the two has are NaN there."""
    none = np.full(np.shape(condition), np.nan)
    names = dict.fromkeys((*chosen.detail, *other.detail))
    detail = {x: np.where(condition, chosen.detail.get(x, none), other.detail.get(x, none)) for x in names}
    fields = KernelTerms._fields[:-1]
    terms: dict[str, Any] = {f: np.where(condition, getattr(chosen, f), getattr(other, f)) for f in fields}
    return KernelTerms(**{**terms, "detail": detail})


def fastest(seconds: Array) -> Callable[[Array], Array]:
    """The variant that takes the fewest seconds, for each work on each device.

    seconds: [..., n, g], the axes in front being those of the variants, e.g. [split, tile, n, g]. Gives a function from
    any term that broadcasts to the shape of `seconds` to its value [n, g] at the fastest variant.
    """
    variants = seconds.reshape(-1, *seconds.shape[-2:])
    best = np.argmin(variants, axis=0)

    def at(term: Array) -> Array:
        values = np.broadcast_to(term, seconds.shape).reshape(variants.shape)
        return np.asarray(np.take_along_axis(values, best[None], axis=0)[0])

    return at


def runner_up(seconds: Array) -> Array:
    """Seconds [n, g] of the second fastest variant; seconds: [..., n, g] as in `fastest`."""
    return np.asarray(np.partition(seconds.reshape(-1, *seconds.shape[-2:]), 1, axis=0)[1])


def counted_waves(waves: Array, partial: Array | float) -> Array:
    """How many full waves blocks take: waves + partial (ceil(waves) - waves), and one at least.

    waves: blocks / SMs. partial: how much of the idle part of a last wave is counted, from 0 (the time grows with
    every block) to 1 (a last wave takes as long as a full one).
    """
    return np.asarray(np.maximum(1, waves + partial * (np.ceil(waves) - waves)))


def hidden_latency(waves: Array, warps: Array | float, resident: Array, half_warps: float) -> Array:
    """The share of instruction latency that the warps on an SM hide: w / (w + half_warps), scaled to 1 at 16 warps.

    w is the number of warps on an SM. waves: blocks / SMs; warps: of a block; resident: blocks that fit on an SM at
    once; half_warps: the number of warps that hides half of it.
    """
    busy = warps * np.minimum(np.ceil(waves), resident)
    return np.asarray(busy / (busy + half_warps) * (16 + half_warps) / 16)


def held_share(nbytes: Array, capacity: Array | float, sharpness: float) -> Array:
    """The share of so many bytes that a cache still holds when they are read again.

    1 / (1 + (bytes / capacity)^sharpness): all of them far below its capacity in bytes, half of them at it.
    """
    return np.asarray(1 / (1 + (nbytes / capacity) ** sharpness))


def pnorm(*terms: Array, p: float | Array) -> Array:
    """(sum of terms^p)^(1/p), for terms that overlap in part: the longest one, and more where others are close to it.

    p = 1 adds the terms, a large p takes the longest. Terms are not negative.
    """
    top = np.maximum(np.maximum.reduce(np.broadcast_arrays(*terms)), 1e-30)
    total = sum((t / top) ** p for t in terms)
    return np.asarray(top * total ** (1 / p))


def held_back(share: Array, part: Array, norm: Array | float) -> Array:
    """The share of its rate that arithmetic reaches on a card held to a `part` of its hardware's rate, where the
    whole rate would reach `share`.

    What takes time beside the arithmetic stays as it is, and joins it by a norm p: (1 + beside^p)^(1/p) = 1 / share
    with the whole rate. p = 1 adds it.
    """
    return np.asarray((1 + (share**-norm - 1) * part**norm) ** (-1 / norm))


def variant_names(form: str, splits: Array, *sides: Array) -> Array:
    """The names [n, g] of tiles of these sides, `form` with the sides filled in, and of the parts that k is split into:
    128x64, 128x64 split 4.
    """
    key = splits.astype(np.int64)
    for side in sides:
        key = key * 4096 + side.astype(np.int64)
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    columns = [array.ravel()[first].astype(int).tolist() for array in (splits, *sides)]
    names = [form.format(*tile) + (f" split {n}" if n > 1 else "") for n, *tile in zip(*columns, strict=True)]
    return np.array(names)[index.reshape(splits.shape)]
