"""How long each kernel takes on each card: kernels and devices in, `Estimates` out.

Equal works are estimated once; works of one size type are columns of one array. No estimate beats the floor of
`bounds.floor`, whatever the model says. At the end all kernels share one power budget a card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_specs import Device
from onnxperf.latency import vector
from onnxperf.latency.attention import attention
from onnxperf.latency.bounds import KINDS, Array, Bounds, Columns, floor
from onnxperf.latency.cards import Cards, pipe_on
from onnxperf.latency.constants import Constants, shipped
from onnxperf.latency.conv import conv
from onnxperf.latency.gemm import gemm
from onnxperf.latency.power import energy, stretch
from onnxperf.latency.recurrent import recurrent
from onnxperf.lower import Kernels
from op_models import Attention, Conv, Gemm, Move, Pointwise, Recurrent, Rows, Transfer, Work

#: tile-wave: every kernel model, the power budget, one schedule. sum: the same kernels, naively added up, without
#: budget. roofline: FLOPs at peak, bytes at the datasheet's bandwidth, or a launch, whichever is longest, added up.
METHODS = ("tile-wave", "sum", "roofline")
CHUNK = 256  # works estimated at once: tile variants are one more axis, and memory is bounded

__all__ = ["KINDS", "METHODS", "Constants", "Estimates", "alone", "estimate", "floors", "pipe_on", "shipped"]


@dataclass(frozen=True, slots=True)
class Estimates:
    """What is known about every kernel [n] on every device [g]; all arrays are [n, g] unless said otherwise.

    seconds: of all repeats together, after the power budget; floor_s: the physical bound; log_sigma [n]: standard
    deviation of log(measured / predicted); kind: index into KINDS of what bounds it; share: part of the card that a
    kernel occupies; transfer [n]: copies between host and device; factor [g]: what the power budget multiplied;
    source [n]: analytic or assumed.
    """

    seconds: Array
    floor_s: Array
    log_sigma: Array
    joules: Array
    workspace: Array
    launches: Array
    kind: Array
    choice: Array
    share: Array
    transfer: Array
    factor: Array
    source: tuple[str, ...]


def estimate(
    kernels: Kernels, devices: Sequence[Device], method: str = "tile-wave", constants: Constants | None = None
) -> Estimates:
    """Estimate all kernels on all devices by one of METHODS, with the shipped constants unless others are given."""
    c = constants or shipped()
    d = Cards(devices, c)
    works = list(dict.fromkeys(k.work for k in kernels.rows))
    index = {w: i for i, w in enumerate(works)}
    rows = np.array([index[k.work] for k in kernels.rows], dtype=int)
    stored = np.full((len(works), 1), float(kernels.stored_bytes))
    b, floor_s = _estimated(works, d, c, method, stored)
    times = np.array([k.repeat for k in kernels.rows], dtype=float).reshape(len(rows), 1)
    joules = energy(works, d, c, _cold(stored, d, c))
    factor = np.ones((len(devices),))
    if method == "tile-wave":
        counted = [i for i, k in enumerate(kernels.rows) if not isinstance(k.work.size, Transfer)]
        spent = (times * joules[rows])[counted].sum(axis=0)
        factor = stretch((times * b.seconds[rows])[counted].sum(axis=0), spent, d, c)[0]
    transfer = np.array([isinstance(k.work.size, Transfer) for k in kernels.rows], dtype=bool)
    rough = "roofline" if method == "roofline" else ""
    kinds = ["unknown" if k.assumed else rough or type(k.work.size).__name__ for k in kernels.rows]
    sigma = np.array([c.sigma[name] for name in kinds], dtype=float)
    kind = np.argmax(np.broadcast_arrays(b.compute, b.memory, b.latency, b.launch), axis=0)
    share = np.maximum(b.share, floor_s / b.seconds)
    return Estimates(
        seconds=times * b.seconds[rows] * np.where(transfer[:, None], 1.0, factor),
        floor_s=times * floor_s[rows],
        log_sigma=sigma,
        joules=times * joules[rows],
        workspace=b.workspace[rows],
        launches=b.launches[rows],
        kind=kind[rows],
        choice=b.choice[rows],
        share=share[rows],
        transfer=transfer,
        factor=factor,
        source=tuple("assumed" if k.assumed else "analytic" for k in kernels.rows),
    )


def alone(works: Sequence[Work], devices: Sequence[Device], c: Constants, budget: bool = True) -> Bounds:
    """Each work [n] as the only kernel of a run that repeats it, on each device: as kernels are benchmarked.

    `budget`: seconds are what the power limit leaves of them.
    """
    d = Cards(devices, c)
    stored = np.array([w.weight_bytes for w in works], dtype=float).reshape(len(works), 1)
    b, _ = _estimated(works, d, c, "tile-wave", stored)
    if budget:
        b = b._replace(seconds=b.seconds * stretch(b.seconds, energy(works, d, c, _cold(stored, d, c)), d, c))
    return b


def floors(works: Sequence[Work], devices: Sequence[Device]) -> Array:
    """The physical bound of each work on each device, in seconds [n, g]."""
    c = shipped()
    stored = np.array([w.weight_bytes for w in works], dtype=float).reshape(len(works), 1)
    return _estimated(works, Cards(devices, c), c, "roofline", stored)[1]


def _cold(stored: Array, d: Cards, c: Constants) -> Array:
    """Share of the weights [n, g] that a run of `stored` bytes of them [n, 1] finds in DRAM rather than in L2."""
    return np.asarray(1 - 1 / (1 + (stored / (c.tensor_gemm["hot"] * d.l2)) ** c.l2["sharpness"]))


def _estimated(works: Sequence[Work], d: Cards, c: Constants, method: str, stored: Array) -> tuple[Bounds, Array]:
    """Bounds and physical floors of works [n, g]; `stored` [n, 1] is how many bytes of weights their run reads."""
    n, g = len(works), len(d.devices)
    terms = {f: np.zeros((n, g)) for f in ("compute", "memory", "latency", "launch", "seconds", "workspace", "share")}
    whole = Bounds(**terms, choice=np.full((n, g), "", dtype="<U24"), launches=np.ones((n, g), dtype=int))
    floor_s = np.zeros((n, g))
    kinds: dict[type, list[int]] = {}
    for i, w in enumerate(works):
        kinds.setdefault(type(w.size), []).append(i)
    for size, members in kinds.items():
        for start in range(0, len(members), CHUNK):
            at = members[start : start + CHUNK]
            columns = Columns([works[i] for i in at], d)
            cold, streamed = _cold(stored[at], d, c), np.maximum(0, 1 - d.l2 / np.maximum(stored[at], 1))
            least = floor(columns, d, c, streamed)
            b = MODELS[size](columns, d, c, cold) if method != "roofline" else _roofline(columns, d, least)
            floor_s[at] = least.seconds
            for term, found in zip(whole, b, strict=True):
                term[at] = found
            whole.seconds[at] = np.maximum(b.seconds, least.seconds)
    return whole, floor_s


#: The latency model of each size: columns of works, cards, constants, and the share of weights that is cold [n, g].
MODELS: dict[type, Callable[[Columns, Cards, Constants, Array], Bounds]] = {
    Gemm: gemm,
    Conv: conv,
    Rows: lambda k, d, c, cold: vector.rows(k, d, c),
    Pointwise: lambda k, d, c, cold: vector.pointwise(k, d, c),
    Move: lambda k, d, c, cold: vector.move(k, d, c),
    Attention: lambda k, d, c, cold: attention(k, d, c),
    Recurrent: recurrent,
    Transfer: lambda k, d, c, cold: vector.transfer(k, d, c),
}


def _roofline(k: Columns, d: Cards, least: Bounds) -> Bounds:
    """max(FLOPs / peak, bytes / bandwidth), datasheet figures, no cache (Williams et al., 2009)."""
    if isinstance(k.works[0].size, Transfer):
        memory = k.bytes / d.pcie
    else:
        memory = np.broadcast_to(k.bytes / d.bandwidth, least.compute.shape)
    compute = np.maximum(least.compute, k.matrix / k.rate)  # masked tiles too, as FLOPs are counted
    return least._replace(compute=compute, memory=memory, seconds=np.maximum(compute, memory))
