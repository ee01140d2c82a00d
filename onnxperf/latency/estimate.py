"""Kernels and devices in, `Estimates` out."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from gpu_specs import Corrections, Device, Host
from onnxperf.ground.errors import UsageError
from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.constant_files import shipped
from onnxperf.latency.constants import Constants
from onnxperf.latency.device_models import DEVICE_MODELS, dram_share
from onnxperf.latency.families import family_of
from onnxperf.latency.family import UNMEASURED
from onnxperf.latency.intervals import combined, half_widths, ranges_of
from onnxperf.latency.method import Method, Times
from onnxperf.latency.padding import least_padded
from onnxperf.latency.power import drawn, energy, slowdown
from onnxperf.latency.terms import Array, KernelTerms, rows_of, summed
from onnxperf.lowering.lower import Kernel, Kernels
from op_models import Work

CHUNK = 256  # works estimated at once: tile variants are one more axis, and memory is bounded
LEDGERS, CELLS = 4, 1 << 18  # how many are kept, and the most works x devices in each, of some 250 bytes
ASKED = (inspect.getfile(Works), inspect.getfile(Constants))  # files of what models ask for fields and constants
NO_NUMBERS = "negative, infinite or NaN"  # what no term may be


@dataclass(frozen=True, slots=True)
class Estimates:
    """What is known about every kernel [n] on every device [g]; all arrays are [n, g] unless said otherwise.

    seconds: of all repeats together, slowed to the power limit. floor_s: the speed-of-light bound. least_s [g]: the
    same of all kernels however much runs side by side: all bytes from DRAM, or all FLOPs of a unit. half_width: of the
    range that holds COVERAGE of measurements, a logarithm; run_half_width [g]: that of the sum of all kernels. joules:
    of all repeats. workspace: bytes, of the tile or algorithm that is the fastest at this batch. bound: index into
    BOUNDS. variant: tile or algorithm. occupancy: the share of the device that a kernel occupies. transfer [n]: True
    for copies between host and device and for exchanges between GPUs.
    power_factor [g]: by how much the power limit slows every kernel. links [3, n, g]: the share of NVLink, PCIe and the
    network that an exchange takes while it runs. source: analytic, calibrated or assumed.
    """

    seconds: Array
    floor_s: Array
    least_s: Array
    half_width: Array
    run_half_width: Array
    joules: Array
    workspace: Array
    launches: Array
    bound: Array
    variant: Array
    occupancy: Array
    transfer: Array
    power_factor: Array
    links: Array
    source: Array

    def only(self, columns: slice) -> Estimates:
        """Those of some of the devices."""
        of_kernels = {"transfer": self.transfer}
        return Estimates(**{f.name: getattr(self, f.name)[..., columns] for f in fields(self)} | of_kernels)


def estimate(
    kernels: Kernels, devices: Sequence[Device], method: Method, constants: Constants | None = None
) -> Estimates:
    """Estimate all kernels on all devices, with the shipped constants unless others are given.

    seconds = repeats x max(corrections x the method's seconds, speed-of-light bound) x power factor; copies over the
    bus and exchanges are not slowed. Raises ValueError where cards and processors are mixed, whose models differ, and
    UsageError where the method's error class has no ranges among the constants.
    """
    return estimate_alike([kernels], devices, method, constants or shipped())


def estimate_alike(
    several: Sequence[Kernels], devices: Sequence[Device], method: Method, constants: Constants
) -> Estimates:
    """The same of runs of one model at several batches, of one form (`form_of`), as columns of the same arrays: first
    all devices of the first run, then those of the next.
    """
    of_run, first, runs = ledger(tuple(devices), constants, method.times), several[0], len(several)
    cards, distinct = of_run.cards, _distinct(several, method)
    rows, alike = distinct.rows, distinct.works[::runs]  # those of the first run
    of_works = of_run.entries(distinct.works, distinct.stored, distinct.layers)
    terms, floor_s, resources = _columns(of_works, runs)
    repeats = np.array([kernel.repeat for kernel in first.rows], dtype=float)[:, None]
    exchange = np.array([kernel.communicates for kernel in first.rows], dtype=bool)
    transfer = exchange | np.array([bool(kernel.way) for kernel in first.rows], dtype=bool)
    corrections = np.tile(_corrections(first, devices), runs) if not method.own_terms else 1.0
    full_clock = repeats * corrections * terms.seconds[rows]
    on_tensor = _tensor_share(np.tile(_on_tensor(alike, cards), runs)[rows], full_clock)
    busy = np.tile(np.where(on_tensor > 0, on_tensor, 1.0).reshape(runs, -1), (len(alike), 1))
    in_dram = dram_share(np.array(distinct.stored, dtype=float)[:, None], cards)
    joules = repeats * _wide(energy(distinct.works, cards, in_dram, of_works[0].executed_share, busy), runs)[rows]
    factor = np.ones(runs * len(devices))
    if method.power_limit:
        factor = _limited(full_clock[~transfer], joules[~transfer], cards, on_tensor)
    once = np.maximum(corrections * terms.seconds[rows], floor_s[rows])
    seconds = repeats * once * np.where(transfer[:, None], 1.0, factor)
    assumed = np.array([bool(kernel.assumed) for kernel in first.rows], dtype=bool)
    unknown = assumed | np.array([bool(kernel.work.steps.unknown) for kernel in first.rows], dtype=bool)
    half_width = _wide(_half_widths(distinct.works, cards, method), runs)[rows]
    half_width = np.where(unknown[:, None], ranges_of(UNMEASURED, constants)["new"], half_width)
    return Estimates(
        seconds=seconds, floor_s=repeats * floor_s[rows],
        least_s=_least(alike, resources, rows, repeats, len(factor)), half_width=half_width,
        run_half_width=_of_sum(alike, rows, unknown, seconds, half_width, cards, method),
        joules=joules, workspace=terms.workspace[rows], launches=terms.launches[rows],
        bound=np.argmax([terms.compute, terms.memory, terms.latency, terms.launch], axis=0)[rows],
        variant=terms.variant[rows],
        occupancy=np.where(exchange[:, None], terms.occupancy[rows],
                           np.maximum(terms.occupancy[rows], floor_s[rows] / np.maximum(once, 1e-30))),
        transfer=transfer, power_factor=factor, links=np.stack([terms.nvlink, terms.pcie, terms.network])[:, rows],
        source=np.where(assumed[:, None], "assumed", np.tile(_sources(devices), runs)),
    )  # fmt: skip


class _Distinct(NamedTuple):
    """The works of runs of one form, without duplicates: each of every run, then the next. rows [n]: the index of the
    work of each kernel among those of a run; stored, layers: as in `Ledger.entries`.
    """

    rows: Array
    works: list[Work]
    stored: list[int]
    layers: list[Any]


def _distinct(several: Sequence[Kernels], method: Method) -> _Distinct:
    each = [[(kernel.work, method.layer(kernel)) for kernel in kernels.rows] for kernels in several]
    index = {pair: i for i, pair in enumerate(dict.fromkeys(each[0]))}
    rows = [index[pair] for pair in each[0]]
    pairs = [of_run[at] for at in map(rows.index, range(len(index))) for of_run in each]
    stored = [kernels.stored_bytes for kernels in several] * len(index)
    return _Distinct(np.array(rows, dtype=int), [w for w, _ in pairs], stored, [layer for _, layer in pairs])


def form_of(kernels: Kernels, method: Method) -> object:
    """What kernels of several batches must have in common to be estimated and laid out as columns of the same arrays:
    all but the sizes of their works and what their operators are called.
    """
    index: dict[Any, int] = {}
    return tuple([
        (
            k.after, k.repeat, k.blocks, k.rank, k.visited, k.at_most, k.phase, bool(k.assumed), k.group, k.way,
            correction_name(k), type(k.work.size), bool(k.work.matrix_flops), k.work.pipe, k.work.dtype,
            any(k.work.steps), k.work.steps.unknown, method.error_class or _classes(k.work),
            index.setdefault((k.work, method.layer(k)), len(index)),
        )
        for k in kernels.rows
    ])  # fmt: skip


def _classes(w: Work) -> tuple[str, str]:
    """The error classes of a work without tensor cores and on them."""
    family = family_of(w)
    return family.error_class(w, False), family.error_class(w, True)


def _sources(devices: Sequence[Device]) -> list[str]:
    """Where the estimate of a kernel that a rule knows comes from, on each device."""
    return ["calibrated" if d.corrections != Corrections() else "analytic" for d in devices]


def estimate_works(each: Sequence[Kernels], devices: Sequence[Device], method: Method, constants: Constants) -> None:
    """Estimate the works of several runs at once, which `estimate` then finds done. Kernels in the same row, mostly the
    same layer at another batch, lie side by side.
    """
    of_run, stored = ledger(tuple(devices), constants, method.times), [kernels.stored_bytes for kernels in each]
    rows = zip_longest(*(kernels.rows for kernels in each))
    asked = {(k.work, n, method.layer(k)): None for row in rows for k, n in zip(row, stored, strict=True) if k}
    of_run.rows([w for w, *_ in asked], [n for _, n, _ in asked], [layer for *_, layer in asked])


def _least(work_list: Sequence[Work], busy: Mapping[str, Array], rows: Array, repeats: Array, devices: int) -> Array:
    """The seconds [g] for which the kernels keep DRAM, or one of the card's units, busy: the longest of these.

    devices: g, how many there are. busy: by resource, the seconds [n, g] of each work; rows: the index of each
    kernel's work in the list.
    """
    longest = np.zeros(devices)
    for name, seconds in busy.items():
        named = ["" if name == "DRAM" else f"{w.pipe} {w.dtype}" for w in work_list]
        units, taken = np.array(named)[rows], repeats * seconds[rows]
        for unit in sorted(set(named)):
            longest = np.maximum(longest, summed(taken[units == unit]))
    return longest


def _tensor_share(on_tensor: Array, seconds: Array) -> Array:
    """The share of all kernels' seconds [n, g] in which each device has tensor cores at work [g]; on_tensor [n, g]:
    which kernels are products on them.
    """
    return np.asarray(summed(seconds * on_tensor) / np.maximum(summed(seconds), 1e-30))


def _limited(seconds: Array, joules: Array, cards: Cards, on_tensor: Array) -> Array:
    """The factor by which the power limit slows all kernels [g], from their seconds and joules [n, g]; the arrays can
    have the devices of several runs, one run after the other.
    """
    devices = len(cards.devices)
    wide = cards if seconds.shape[1] == devices else cards.only([*range(devices)] * (seconds.shape[1] // devices))
    return np.asarray(slowdown(summed(seconds), summed(joules), wide, on_tensor)[0])


def _on_tensor(work_list: Sequence[Work], cards: Cards) -> Array:
    """Whether each work is products on tensor cores, on each device [n, g]."""
    products = np.array([[w.matrix_flops > 0] for w in work_list], dtype=bool).reshape(len(work_list), 1)
    return np.asarray(cards.tensor([w.pipe for w in work_list]) & products)


def _of_sum(
    work_list: Sequence[Work], rows: Array, unknown: Array, seconds: Array, half_width: Array, cards: Cards,
    method: Method,
) -> Array:  # fmt: skip
    """The half-width of the range of all kernels' sum on each device [g], from their seconds and half-widths [n, g].

    work_list: without duplicates; rows [n]: the index of each kernel's work in it; unknown [n]: nobody knows all of
    the kernel's work. What errs together depends on whether kernels run on tensor cores, so devices that differ in this
    are summed apart. The arrays can have the devices of several runs, one run after the other.
    """
    devices, columns = len(cards.devices), seconds.shape[1]
    alike: dict[tuple[bool, ...], list[int]] = {}
    for j, on_tensor in enumerate(cards.tensor([w.pipe for w in work_list]).T.tolist()):
        alike.setdefault(tuple(on_tensor), []).append(j)
    run_half_width = np.zeros(columns)
    for on_tensor, of_run in alike.items():
        at = [start + j for start in range(0, columns, devices) for j in of_run]
        names = [
            method.error_class or family_of(w).error_class(w, t) for w, t in zip(work_list, on_tensor, strict=True)
        ]
        classes = [UNMEASURED if u else names[i] for u, i in zip(unknown, rows, strict=True)]
        run_half_width[at] = combined(classes, rows, seconds[:, at], half_width[:, at], cards.constants)
    return run_half_width


def _half_widths(work_list: Sequence[Work], cards: Cards, method: Method) -> Array:
    """The half-width of the range of each work's kernel on each device [n, g], were a rule to know all of its work.

    A method with an error class has its ranges, or those that its calibration for the device tells. Otherwise a
    calibrated device has one half-width for every kernel that a rule knows, and a processor that was not calibrated
    that of its class; so have steps on any processor, which no calibration measures.
    """
    if method.error_class:
        usual = ranges_of(method.error_class, cards.constants)["new"]
        calibrated = [method.half_width(d) for d in cards.devices]
        return np.tile([usual if h is None else h for h in calibrated], (len(work_list), 1))
    half_width = half_widths(work_list, cards)
    for j, device in enumerate(cards.devices):
        of_all = DEVICE_MODELS[device.kind].error_class
        width = device.corrections.half_width or (ranges_of(of_all, cards.constants)["new"] if of_all else None)
        if width is not None:
            half_width[:, j] = width
        if of_all:
            stepping = np.array([any(w.steps) for w in work_list], dtype=bool)
            half_width[stepping, j] = np.maximum(half_width[stepping, j], ranges_of(of_all, cards.constants)["new"])
    return half_width


def correction_name(kernel: Kernel) -> str:
    """The name under which a device's corrections list a kernel's operator: its type, in ONNX Runtime's layout for
    processors or not, and how a convolution is grouped ("Conv depthwise").
    """
    type = kernel.op.removeprefix("com.microsoft").lstrip(".:")
    size = kernel.work.size
    groups = getattr(size, "groups", 1)
    return type if groups <= 1 else f"{type} {'depthwise' if groups == getattr(size, 'cin', 0) else 'grouped'}"


def _corrections(kernels: Kernels, devices: Sequence[Device]) -> Array:
    """The factors [n, g] that calibration found for operators of a type."""
    names = [correction_name(kernel) for kernel in kernels.rows]
    factors = {name: [d.corrections.operators.get(name, 1.0) for d in devices] for name in set(names)}
    return rows_of(factors, names, len(devices)).astype(float)


def kernel_models(works: Works, cards: Cards, stored: Array, bound: KernelTerms) -> KernelTerms:
    """The terms of each kernel by its family's own latency model, or of a larger one that takes less time."""

    def times(some: Works, of_run: Array) -> KernelTerms:
        return _checked(
            lambda: as_measured(some, cards, of_run, bound), lambda: _maker(kernel_models, cards, some.each[0]), some
        )

    if cards.kind != "gpu":
        return times(works, stored)
    family = family_of(works.each[0])
    return least_padded(times, family.larger, works, cards, stored, bound.compute, family.monotone)


def as_measured(works: Works, cards: Cards, stored: Array, bound: KernelTerms) -> KernelTerms:
    """The terms of each kernel by its family's own latency model, which constants are fitted to."""
    models = DEVICE_MODELS[cards.kind]
    return models.model(family_of(works.each[0]))(works, cards, models.weights(stored, cards))


def alone(
    work_list: Sequence[Work], devices: Sequence[Device], constants: Constants, budget: bool = True, copies: int = 1,
    burst_s: float = 0.0,
) -> KernelTerms:  # fmt: skip
    """Each work [n] as the only kernel of a run that repeats it, on each device: as kernels were benchmarked.

    budget: the power limit slows them, by f: to t (1 + (f - 1) t / (t + burst_s)) seconds, for short kernels run at
    full clock. copies: of the weights that runs take in turn.
    """
    cards = Cards(devices, constants)
    stored = copies * np.array([w.weight_bytes for w in work_list], dtype=float).reshape(len(work_list), 1)
    terms = estimated(work_list, cards, as_measured, stored)[0]
    if budget:
        joules = energy(work_list, cards, dram_share(stored, cards), terms.executed_share)
        slower = slowdown(terms.seconds, joules, cards, _on_tensor(work_list, cards)) - 1
        terms = terms._replace(seconds=terms.seconds * (1 + slower * terms.seconds / (terms.seconds + burst_s)))
    return terms


@dataclass(frozen=True, eq=False)
class HostProcessor:
    """A host as what computes the operators that are left to it.

    It takes as long as a processor's kernels do, and no less than all its bytes and FLOPs take at the host's rates.
    """

    host: Host
    constants: Constants
    _seconds: dict[Work, float] = field(default_factory=dict, repr=False)

    def seconds(self, work: Work) -> float:
        """How long the host computes an operator of this work."""
        if work not in self._seconds:
            stored = np.array([[float(work.weight_bytes)]])
            terms = estimated([work], Cards([self.host.device], self.constants), kernel_models, stored)[0]
            least = max(work.bytes / self.host.bandwidth_Bps, work.flops / self.host.flops)
            self._seconds[work] = max(float(terms.seconds[0, 0]), least)
        return self._seconds[work]


def watts_alone(work_list: Sequence[Work], devices: Sequence[Device], constants: Constants, copies: int = 1) -> Array:
    """What each device draws, [n, g], while it repeats one work for long, with so many copies of its weights."""
    cards, terms = Cards(devices, constants), alone(work_list, devices, constants, copies=copies)
    stored = copies * np.array([w.weight_bytes for w in work_list], dtype=float).reshape(len(work_list), 1)
    joules = energy(work_list, cards, dram_share(stored, cards), terms.executed_share)
    return drawn(terms.seconds, joules, cards.tdp, constants.power["static_share"])


def single(
    w: Work, device: Device, constants: Constants, method: Method, stored_bytes: float, layer: Any = None
) -> tuple[KernelTerms, KernelTerms]:
    """One work on one device in a run that reads `stored_bytes` of weights: every term [1, 1], and the bound's.

    layer: as `method.layer` tells it of the kernel.
    """
    cards = Cards([device], constants)
    return _terms(Works([w], cards, [layer]), cards, method.times, np.array([[float(stored_bytes)]]))


def floors(work_list: Sequence[Work], devices: Sequence[Device]) -> Array:
    """The speed-of-light bound of each work on each device, in seconds [n, g]."""
    stored = np.array([w.weight_bytes for w in work_list], dtype=float).reshape(len(work_list), 1)
    return estimated(work_list, Cards(devices, shipped()), lambda works, cards, stored, bound: bound, stored)[1]


def _terms(works: Works, cards: Cards, times: Times, stored: Array) -> tuple[KernelTerms, KernelTerms]:
    """What a method makes of works of one size type, with all details, and the terms of their bound.

    Raises UsageError where the method, or the kernel family that it asks, gives no such terms.
    """
    w, of_bound = works.each[0], DEVICE_MODELS[cards.kind].bound
    bound = _checked(lambda: of_bound(works, cards, stored), lambda: f"{_named(of_bound)}, with {_family(w)},", works)
    return _checked(lambda: times(works, cards, stored, bound), lambda: _maker(times, cards, w), works), bound


def _checked(make: Callable[[], KernelTerms], maker: Callable[[], str], works: Works) -> KernelTerms:
    """The terms of n works on g devices that `make` gives, whose seconds are finite and not negative.

    Raises UsageError, which begins with who the `maker` is, where there are no such terms, or it asks for a name, a
    field or a constant that is not there.
    """
    shape = works.rate.shape
    try:
        terms = make()
    except (AttributeError, KeyError, NameError) as e:
        at = [f for f in traceback.extract_tb(e.__traceback__) if f.filename not in ASKED][-1]
        raise UsageError(f"{maker()} failed with {type(e).__name__}: {e}, in {at.filename}, line {at.lineno}") from e
    if not isinstance(terms, KernelTerms):
        gave = f"a {type(terms).__name__}"
    elif np.shape(terms.seconds) != shape:
        gave = f"seconds {np.shape(terms.seconds)}"
    elif not _from_zero(terms.seconds).all():
        gave = f"{NO_NUMBERS} seconds"
    else:
        return terms
    raise UsageError(f"{maker()} gave {gave}: it must give KernelTerms, for works and devices {shape}")


def _from_zero(values: Array) -> Array:
    """Where numbers are finite and not negative."""
    return np.asarray((values >= 0) & (values < np.inf))


def _maker(times: Times, cards: Cards, w: Work) -> str:
    """Who says how long a work takes: the model of its kernel family, or a method."""
    if times not in (kernel_models, as_measured):
        return _named(times)
    return f"{_named(DEVICE_MODELS[cards.kind].model(family_of(w)))}, of {_family(w)},"


def _family(w: Work) -> str:
    return f"the FAMILY for the size {type(w.size).__name__}"


def _named(function: Callable[..., object]) -> str:
    """A function's module and name."""
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"


def estimated(
    work_list: Sequence[Work], cards: Cards, times: Times, stored: Array, layers: Sequence[Any] = ()
) -> Entries:
    """Terms without details, bounds, and what keeps each resource busy, of works of any size types [n, g].

    No seconds are below their bound. Devices with tensor cores for a work, and those without, have models of their own:
    each is asked for its own devices alone.

    stored [n, 1]: how many bytes of weights their run reads; layers: as in `Works`.
    """
    groups = cards.alike([w.pipe for w in work_list])
    if len(groups) < 2:
        return _estimated(work_list, cards, times, stored, layers)
    apart = [_estimated(work_list, cards.only(at), times, stored, layers) for at in groups]
    return _beside(apart, np.argsort(np.concatenate(groups)))


def _estimated(
    work_list: Sequence[Work], cards: Cards, times: Times, stored: Array, layers: Sequence[Any] = ()
) -> Entries:
    """The same on devices of one of these groups."""
    n, g = len(work_list), len(cards.devices)
    names = [f for f in KernelTerms._fields if f not in ("variant", "launches", "detail")]
    variant, launches = np.full((n, g), "", dtype="<U24"), np.ones((n, g), dtype=int)
    whole = KernelTerms(variant=variant, launches=launches, detail={}, **{f: np.zeros((n, g)) for f in names})
    floor_s, busy = np.zeros((n, g)), dict[str, Array]()
    by_size: dict[type, list[int]] = {}
    for i, w in enumerate(work_list):
        by_size.setdefault(type(w.size), []).append(i)
    for members in by_size.values():
        for start in range(0, len(members), CHUNK):
            at = members[start : start + CHUNK]
            works = Works([work_list[i] for i in at], cards, [layers[i] for i in at] if layers else ())
            terms, bound = _terms(works, cards, times, stored[at])
            floor_s[at] = bound.seconds
            for name, seconds in bound.detail.items():
                busy.setdefault(name, np.zeros((n, g)))[at] = seconds
            for term, values in zip(whole[:-1], terms[:-1], strict=True):
                term[at] = values
            whole.seconds[at] = np.maximum(terms.seconds, bound.seconds)
    for name in (*names, "launches"):
        if not (sound := _from_zero(getattr(whole, name))).all():
            w = work_list[int(np.argmin(sound.all(axis=1)))]
            raise UsageError(f"{_maker(times, cards, w)} gave {NO_NUMBERS} {name}, which KernelTerms can't have")
    return whole, floor_s, busy


#: Terms without details, bounds, and what keeps each resource busy, of n works on g devices [n, g].
Entries = tuple[KernelTerms, Array, dict[str, Array]]


class Ledger:
    """What works come to on some devices by a method. A work is estimated once, whichever runs ask for it that read as
    many bytes of weights: another batch of a model has some of the same works, and its workspace others.
    """

    def __init__(self, devices: Sequence[Device], constants: Constants, times: Times):
        self.cards, self._times = Cards(devices, constants), times
        self._kept: tuple[dict[tuple[type, Work, int, Any], int], Entries | None] = {}, None

    def entries(self, work_list: Sequence[Work], stored: Sequence[int], layers: Sequence[Any] = ()) -> Entries:
        """Those of works of any size types, as `estimated` has them.

        stored: the bytes of weights that the run of each work reads; layers: as in `Works`.
        """
        rows, kept = self.rows(work_list, stored, layers)
        return _taken(kept, np.array(rows, dtype=int))

    def rows(
        self, work_list: Sequence[Work], stored: Sequence[int], layers: Sequence[Any] = ()
    ) -> tuple[list[int], Entries]:
        """The same as rows of the entries of all works that are kept now: what is not among these is estimated."""
        each = zip(work_list, stored, layers or (None,) * len(work_list), strict=True)
        keys = [(type(w.size), w, n, layer) for w, n, layer in each]  # sizes of two types may be equal
        rows, kept = self._kept
        new = [key for key in dict.fromkeys(keys) if key not in rows]
        if new or kept is None:
            if (len(rows) + len(new)) * len(self.cards.devices) > CELLS:
                rows, kept, new = {}, None, list(dict.fromkeys(keys))
            read = np.array([n for *_, n, _ in new], dtype=float).reshape(len(new), 1)
            more = estimated([w for _, w, *_ in new], self.cards, self._times, read, [layer for *_, layer in new])
            kept = _joined(kept, more) if rows and kept else more
            rows = rows | {key: len(rows) + i for i, key in enumerate(new)}
            self._kept = rows, kept
        return [rows[key] for key in keys], kept


ledger = lru_cache(LEDGERS)(Ledger)


def _joined(first: Entries, second: Entries) -> Entries:
    """The entries of both."""
    terms, more = first[0], second[0]
    fields: dict[str, Any] = {f: np.concatenate((getattr(terms, f), getattr(more, f))) for f in terms._fields[:-1]}
    busy = {name: np.concatenate((seconds, second[2][name])) for name, seconds in first[2].items()}
    return KernelTerms(**fields), np.concatenate((first[1], second[1])), busy


def _beside(parts: Sequence[Entries], order: Array) -> Entries:
    """The entries of the same works on several groups of devices, the devices put in this order."""

    def joined(each: Sequence[Array]) -> Array:
        return np.concatenate(each, axis=1)[:, order]

    fields: dict[str, Any] = {f: joined([getattr(t, f) for t, *_ in parts]) for f in KernelTerms._fields[:-1]}
    return (
        KernelTerms(**fields),
        joined([s for _, s, _ in parts]),
        {x: joined([b[x] for *_, b in parts]) for x in parts[0][2]},
    )


def _wide(values: Array, runs: int) -> Array:
    """Of works of each of some runs [works x runs, g] those of the first run [works, runs x g]."""
    return values.reshape(len(values) // runs, runs * values.shape[1])


def _columns(entries: Entries, runs: int) -> Entries:
    """The entries of works of each of some runs as columns."""
    terms, floor_s, busy = entries
    fields: dict[str, Any] = {f: _wide(getattr(terms, f), runs) for f in terms._fields[:-1]}
    return KernelTerms(**fields), _wide(floor_s, runs), {name: _wide(seconds, runs) for name, seconds in busy.items()}


def _taken(entries: Entries, rows: Array) -> Entries:
    """Some rows of the entries."""
    terms, floor_s, busy = entries
    fields: dict[str, Any] = {f: getattr(terms, f)[rows] for f in terms._fields[:-1]}
    return KernelTerms(**fields), floor_s[rows], {name: seconds[rows] for name, seconds in busy.items()}
