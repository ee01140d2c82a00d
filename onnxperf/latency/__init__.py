"""How long each kernel takes on each card: kernels and devices in, `Estimates` out.

Equal works are estimated once; works of one size type are columns of one array. No estimate beats the floor of
`bounds.floor`, whatever the model says. At the end all kernels share one power budget a card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_specs import Device, Effects
from onnxperf.latency import processor, vector
from onnxperf.latency.attention import attention
from onnxperf.latency.bounds import KINDS, Array, Bounds, Columns, floor
from onnxperf.latency.cards import Cards, pipe_on
from onnxperf.latency.constants import Constants, shipped
from onnxperf.latency.conv import conv
from onnxperf.latency.gemm import gemm
from onnxperf.latency.intervals import combined, half_widths, operator_class
from onnxperf.latency.power import energy, stretch
from onnxperf.latency.recurrent import recurrent
from onnxperf.lower import Kernel, Kernels
from op_models import Attention, Conv, Gemm, Move, Pointwise, Recurrent, Rows, Transfer, Work

#: tile-wave: every kernel model, the power budget, one schedule. sum: the same kernels, naively added up, without
#: budget. roofline: FLOPs at peak, bytes at the datasheet's bandwidth, or a launch, whichever is longest, added up.
METHODS = ("tile-wave", "sum", "roofline")
CHUNK = 256  # works estimated at once: tile variants are one more axis, and memory is bounded

__all__ = ["KINDS", "METHODS", "Constants", "Estimates", "alone", "estimate", "floors", "pipe_on", "shipped"]


@dataclass(frozen=True, slots=True)
class Estimates:
    """What is known about every kernel [n] on every device [g]; all arrays are [n, g] unless said otherwise.

    seconds: of all repeats together, after the power budget; floor_s: the physical bound; half_width: of the range that
    holds four times in five, a logarithm, and run_half_width [g] that of their sum; kind: index into KINDS of what
    bounds it; share: part of the card that a kernel occupies; transfer [n]: copies between host and device; factor [g]:
    what the power budget multiplied; source [n]: analytic, calibrated or assumed.
    """

    seconds: Array
    floor_s: Array
    half_width: Array
    run_half_width: Array
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
    own = _own(kernels, devices) if method != "roofline" else np.ones((len(rows), len(devices)))
    times = np.array([k.repeat for k in kernels.rows], dtype=float).reshape(len(rows), 1)
    joules = energy(works, d, c, _cold(stored, d, c), b.effort)
    factor = np.ones((len(devices),))
    if method == "tile-wave":
        counted = [i for i, k in enumerate(kernels.rows) if not isinstance(k.work.size, Transfer)]
        spent = (times * joules[rows])[counted].sum(axis=0)
        factor = stretch((times * own * b.seconds[rows])[counted].sum(axis=0), spent, d, c)[0]
    transfer = np.array([isinstance(k.work.size, Transfer) for k in kernels.rows], dtype=bool)
    on_tensor = d.tensor([w.pipe for w in works])
    names = [operator_class(w, bool(on_tensor[i].any())) for i, w in enumerate(works)]
    named = zip(kernels.rows, rows, strict=True)
    classes = ["unknown" if k.assumed else "roofline" if method == "roofline" else names[i] for k, i in named]
    widths = half_widths(works, d, c)[rows] if method != "roofline" else np.zeros((len(rows), len(devices)))
    rough = np.array([k in ("unknown", "roofline") for k in classes], dtype=bool)
    for i in np.flatnonzero(rough):
        widths[i] = c.interval[classes[i]]["new"]
    known = [d.effects.half_width or (c.interval["processor"]["new"] if d.kind == "cpu" else None) for d in devices]
    widths = np.where(rough[:, None] | np.array([h is None for h in known]), widths, [h or 0.0 for h in known])
    found = "calibrated" if devices[0].effects != Effects() else "analytic"
    kind = np.argmax(np.broadcast_arrays(b.compute, b.memory, b.latency, b.launch), axis=0)
    share = np.maximum(b.share, floor_s / np.maximum(b.seconds, 1e-30))
    seconds = times * np.maximum(own * b.seconds[rows], floor_s[rows]) * np.where(transfer[:, None], 1.0, factor)
    return Estimates(
        seconds=seconds,
        floor_s=times * floor_s[rows],
        half_width=widths,
        run_half_width=combined(classes, rows, seconds, widths, c),
        joules=times * joules[rows],
        workspace=b.workspace[rows],
        launches=b.launches[rows],
        kind=kind[rows],
        choice=b.choice[rows],
        share=share[rows],
        transfer=transfer,
        factor=factor,
        source=tuple("assumed" if k.assumed else found for k in kernels.rows),
    )


def effect_of(k: Kernel) -> str:
    """What a device's `effects.operators` call a kernel: its type, in ONNX Runtime's layout for processors or not, and
    how a convolution is grouped.
    """
    groups, kind = getattr(k.work.size, "groups", 1), k.op.removeprefix("com.microsoft").lstrip(".:")
    return kind if groups <= 1 else f"{kind} {'depthwise' if groups == getattr(k.work.size, 'cin', 0) else 'grouped'}"


def _own(kernels: Kernels, devices: Sequence[Device]) -> Array:
    """The factors [n, g] that calibration found for operators of a type."""
    names = [effect_of(k) for k in kernels.rows]
    each = [[d.effects.operators.get(name, 1.0) for d in devices] for name in names]
    return np.array(each, dtype=float).reshape(len(names), len(devices))


def alone(
    works: Sequence[Work], devices: Sequence[Device], c: Constants, budget: bool = True, copies: int = 1,
    burst_s: float = 0.0,
) -> Bounds:  # fmt: skip
    """Each work [n] as the only kernel of a run that repeats it, on each device: as kernels are benchmarked.

    `budget`: seconds are what the power limit leaves of them; kernels of t seconds are held to it by t / (t + burst_s).
    `copies`: of the weights that runs take in turn.
    """
    d = Cards(devices, c)
    stored = copies * np.array([w.weight_bytes for w in works], dtype=float).reshape(len(works), 1)
    b, _ = _estimated(works, d, c, "tile-wave", stored)
    if budget:
        factor = stretch(b.seconds, energy(works, d, c, _cold(stored, d, c), b.effort), d, c) - 1
        b = b._replace(seconds=b.seconds * (1 + factor * b.seconds / (b.seconds + burst_s)))
    return b


def single(w: Work, device: Device, c: Constants, method: str, stored_bytes: float) -> tuple[Bounds, Bounds]:
    """One work on one card in a run that reads `stored_bytes` of weights: every term [1, 1], and the floor's."""
    d = Cards([device], c)
    return _terms(Columns([w], d), d, c, method, np.array([[float(stored_bytes)]]))


def floors(works: Sequence[Work], devices: Sequence[Device]) -> Array:
    """The physical bound of each work on each device, in seconds [n, g]."""
    c = shipped()
    stored = np.array([w.weight_bytes for w in works], dtype=float).reshape(len(works), 1)
    return _estimated(works, Cards(devices, c), c, "roofline", stored)[1]


def _cold(stored: Array, d: Cards, c: Constants) -> Array:
    """Share of the weights [n, g] that a run of `stored` bytes of them [n, 1] finds in DRAM rather than in L2."""
    return np.asarray(1 - 1 / (1 + (stored / (c.tensor_gemm["hot"] * d.l2_near)) ** c.l2["sharpness"]))


def _estimated(works: Sequence[Work], d: Cards, c: Constants, method: str, stored: Array) -> tuple[Bounds, Array]:
    """Bounds and physical floors of works [n, g]; `stored` [n, 1] is how many bytes of weights their run reads."""
    n, g = len(works), len(d.devices)
    names = ("compute", "memory", "latency", "launch", "seconds", "workspace", "share", "effort")
    terms = {f: np.zeros((n, g)) for f in names}
    choice, launches = np.full((n, g), "", dtype="<U24"), np.ones((n, g), dtype=int)
    whole = Bounds(**terms, choice=choice, launches=launches, detail={})
    floor_s = np.zeros((n, g))
    kinds: dict[type, list[int]] = {}
    for i, w in enumerate(works):
        kinds.setdefault(type(w.size), []).append(i)
    for members in kinds.values():
        for start in range(0, len(members), CHUNK):
            at = members[start : start + CHUNK]
            columns = Columns([works[i] for i in at], d)
            b, least = _terms(columns, d, c, method, stored[at])
            floor_s[at] = least.seconds
            for term, found in zip(whole[:-1], b[:-1], strict=True):
                term[at] = found
            whole.seconds[at] = np.maximum(b.seconds, least.seconds)
    return whole, floor_s


def _terms(k: Columns, d: Cards, c: Constants, method: str, stored: Array) -> tuple[Bounds, Bounds]:
    """What the method makes of works of one size type, with all details, and the physical floor's terms."""
    cpu = d.devices[0].kind == "cpu"
    least = processor.floor(k, d, c) if cpu else floor(k, d, c, np.maximum(0, 1 - d.l2 / np.maximum(stored, 1)))
    if method == "roofline":
        return _roofline(k, d, least), least
    if cpu:
        model = processor.MODELS[type(k.works[0].size)]
        return model(k, d, c, processor.per_weight_byte(stored, d, c)), least
    return MODELS[type(k.works[0].size)](k, d, c, _cold(stored, d, c)), least


#: The latency model of each size: columns of works, cards, constants, and the share of weights that is cold [n, g].
MODELS: dict[type, Callable[[Columns, Cards, Constants, Array], Bounds]] = {
    Gemm: gemm,
    Conv: conv,
    Rows: lambda k, d, c, cold: vector.rows(k, d, c),
    Pointwise: lambda k, d, c, cold: vector.pointwise(k, d, c),
    Move: lambda k, d, c, cold: vector.move(k, d, c),
    Attention: attention,
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
