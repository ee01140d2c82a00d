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
from onnxperf.latency.power import budget
from onnxperf.latency.recurrent import recurrent
from onnxperf.lower import Kernels
from op_models import Attention, Conv, Gemm, Move, Pointwise, Recurrent, Rows, Transfer

#: tile-wave: every kernel model, the power budget, one schedule. sum: the same kernels, naively added up, without
#: budget. roofline: FLOPs at peak, bytes at the datasheet's bandwidth, or a launch, whichever is longest, added up.
METHODS = ("tile-wave", "sum", "roofline")
CHUNK = 256  # works estimated at once: tile variants are one more axis, and memory is bounded

__all__ = ["KINDS", "METHODS", "Constants", "Estimates", "estimate", "pipe_on", "shipped"]


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


def estimate(kernels: Kernels, devices: Sequence[Device], method: str = "tile-wave") -> Estimates:
    """Estimate all kernels on all devices by one of METHODS."""
    c = shipped()
    d = Cards(devices, c)
    works = list(dict.fromkeys(k.work for k in kernels.rows))
    index = {w: i for i, w in enumerate(works)}
    rows = np.array([index[k.work] for k in kernels.rows], dtype=int)
    n, g = len(works), len(devices)
    seconds, floor_s, workspace = np.zeros((n, g)), np.zeros((n, g)), np.zeros((n, g))
    launches, kind, share = np.ones((n, g), dtype=int), np.zeros((n, g), dtype=int), np.ones((n, g))
    choice = np.full((n, g), "", dtype="<U24")
    cold = 1 - 1 / (1 + (kernels.stored_bytes / (c.tensor_gemm["hot"] * d.l2)) ** c.l2["sharpness"])
    streamed = np.maximum(0, 1 - d.l2 / max(kernels.stored_bytes, 1))
    for size, model in _models(c, cold).items():
        members = [i for i, w in enumerate(works) if type(w.size) is size]
        for start in range(0, len(members), CHUNK):
            at = members[start : start + CHUNK]
            columns = Columns([works[i] for i in at], d)
            least = floor(columns, d, c, streamed)
            b = model(columns, d, c) if method != "roofline" else _roofline(columns, d, least)
            floor_s[at] = least.seconds
            seconds[at] = np.maximum(b.seconds, least.seconds)
            kind[at] = np.argmax(np.broadcast_arrays(b.compute, b.memory, b.latency, b.launch), axis=0)
            choice[at], workspace[at], launches[at] = b.choice, b.workspace, b.launches
            share[at] = np.maximum(b.share, floor_s[at] / seconds[at])
    times = np.array([k.repeat for k in kernels.rows], dtype=float).reshape(len(rows), 1)
    joules, factor = budget(works, rows, times, seconds, d, c, cold)
    if method != "tile-wave":
        factor = np.ones_like(factor)
    transfer = np.array([isinstance(k.work.size, Transfer) for k in kernels.rows], dtype=bool)
    rough = "roofline" if method == "roofline" else ""
    kinds = ["unknown" if k.assumed else rough or type(k.work.size).__name__ for k in kernels.rows]
    sigma = np.array([c.sigma[name] for name in kinds], dtype=float)
    return Estimates(
        seconds=times * seconds[rows] * np.where(transfer[:, None], 1.0, factor),
        floor_s=times * floor_s[rows],
        log_sigma=sigma,
        joules=times * joules[rows],
        workspace=workspace[rows],
        launches=launches[rows],
        kind=kind[rows],
        choice=choice[rows],
        share=share[rows],
        transfer=transfer,
        factor=factor,
        source=tuple("assumed" if k.assumed else "analytic" for k in kernels.rows),
    )


Model = Callable[[Columns, Cards, Constants], Bounds]


def _models(c: Constants, cold: Array) -> dict[type, Model]:
    return {
        Gemm: lambda k, d, c: gemm(k, d, c, cold=cold),
        Conv: lambda k, d, c: conv(k, d, c, cold=cold),
        Rows: vector.rows,
        Pointwise: vector.pointwise,
        Move: vector.move,
        Attention: attention,
        Recurrent: lambda k, d, c: recurrent(k, d, c, cold=cold),
        Transfer: vector.transfer,
    }


def _roofline(k: Columns, d: Cards, least: Bounds) -> Bounds:
    """max(FLOPs / peak, bytes / bandwidth), datasheet figures, no cache (Williams et al., 2009)."""
    if isinstance(k.works[0].size, Transfer):
        memory = k.bytes / d.pcie
    else:
        memory = np.broadcast_to(k.bytes / d.bandwidth, least.compute.shape)
    compute = np.maximum(least.compute, k.matrix / k.rate)  # masked tiles too, as FLOPs are counted
    return least._replace(compute=compute, memory=memory, seconds=np.maximum(compute, memory))
