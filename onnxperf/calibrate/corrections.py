"""Corrections of a device from measurements on it: a few corrections, and a factor for each type of operator.

On a processor every profiled operator is a row, on a GPU every run, as is a run that was not profiled. First the
corrections are fitted (`onnxperf.ground.fitting`), then one factor for each operator type to what is left of its rows,
pulled to 1 where there are few. Both in turns, as they share rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpu_specs import Corrections, Device, Rates, clocked
from onnxperf.calibrate.kinds import KINDS, NOMINAL
from onnxperf.calibrate.rows import WHOLE, Dropped, MeasuredModel, rows_of
from onnxperf.ground.errors import Error, UsageError, counted
from onnxperf.ground.fitting import SOFT, Array, Prior, map_fit
from onnxperf.ground.modules import require
from onnxperf.latency import Estimates, correction_name, estimate, estimate_works
from onnxperf.measure.record import Measurement
from onnxperf.schedule import schedule

FEWEST = 3  # usable rows
LIMIT = 30.0  # of an operator type's factor, up or down
MOST_EFFECT = 5.0  # of a correction, up or down: one that comes out beyond it is none of the device
TELLS = 0.5  # share of a row's time that a correction has to scale for the row to tell of it
DIFFER = 3.0  # factor between the slower and the faster half of those rows beyond which they don't agree on it
TURNS = 3
FASTER = 0.9  # of the physical floor: rows below went wrong
RAISED = 4.0  # times that a processor may be faster than its nominal peak
SHOWN_BY = 5  # rows that it takes to show that it is
MOST = 0.5  # share of a GPU's run that an operator type has to take for the run to tell of its factor
COVERAGE, LEAST_WIDTH, WIDTH_ROWS = 0.8, 0.05, 5
STEP = 1e-3  # of a logarithm, for differences


@dataclass(frozen=True, slots=True)
class Row:
    """One measured time beside its predictions before and after the fit, in seconds.

    type: of the operator as in `Corrections.operators`; "" for a whole run that no single type takes most of.
    """

    model: str
    name: str
    type: str
    measured_s: float
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The device with its corrections, what it was before, and the rows behind them.

    left_out: corrections that stay at 1, and why; models: what was measured, with the rows that can be used.
    """

    device: Device
    base: Device
    rows: tuple[Row, ...]
    dropped: tuple[Dropped, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    models: tuple[MeasuredModel, ...] = field(default=(), repr=False)

    def error(self, after: bool, type: str | None = None) -> float:
        """Mean of |predicted / measured - 1| over all rows or those of a type."""
        rows = [r for r in self.rows if type is None or r.type == type]
        return float(np.mean([abs((r.after_s if after else r.before_s) / r.measured_s - 1) for r in rows]))


def fit(measurements: Sequence[Measurement], device: Device) -> Calibration:
    """Derive the corrections of `device`, whatever it has now, from measurements on it.

    Raises UsageError where fewer than FEWEST rows can be used, EnvironmentFailure without scipy.
    """
    require("scipy", "fitting a device")
    base, dropped = replace(device, corrections=Corrections()), list[Dropped]()
    models = usable(measurements, base, dropped)
    base = _with_clock_shown(models, base)
    models = [_without_impossible(m, base, dropped) for m in models]
    model = _Model([m for m in models if m.parts], base)
    if len(model.measured) < FEWEST:
        why = "; ".join(dict.fromkeys(d.reason for d in dropped)) or "there are none"
        raise UsageError(f"{counted(len(model.measured), 'row')} can be used, {FEWEST} are needed: {why}")
    values, factors = _fitted(model)
    if left_out := _disagreed(model, values, factors):
        model = _Model(model.models, base, frozenset(left_out))
        values, factors = _fitted(model)
    fitted = _within_peak(model.device(values, factors))
    width = _half_width(model, fitted, factors)
    fitted = replace(fitted, corrections=replace(fitted.corrections, half_width=width))
    before, after = (model.predicted([d])[0][:, 0] for d in (base, fitted))
    rows = zip(model.of, model.types, model.measured, before, after, strict=True)
    of_rows = tuple(Row(*names, t, *map(float, s)) for names, t, *s in rows)
    return Calibration(fitted, device, of_rows, tuple(dropped), tuple(left_out.items()), tuple(models))


def usable(measurements: Sequence[Measurement], base: Device, dropped: list[Dropped]) -> list[MeasuredModel]:
    """The measurements that are complete and undisturbed, with their rows; the others are noted in `dropped`."""
    models = []
    for m in measurements:
        try:
            if not m.complete:
                raise UsageError("it was interrupted before it was complete")
            if m.disturbed:
                raise UsageError(f"it was disturbed: {m.disturbed}")
            models.append(rows_of(m, base, dropped))
        except Error as e:
            dropped.append(Dropped(m.subject.name, WHOLE, m.seconds, str(e)))
    return models


def _within_peak(d: Device) -> Device:
    """A device whose correction on compute is at least 1: where arithmetic came out faster than a nominal peak allows,
    the same times by a higher clock, with bandwidth and the correction on memory scaled to it.
    """
    faster = 1 / d.corrections.compute
    if KINDS[d.kind].figures != NOMINAL or faster <= 1:
        return d
    return replace(
        clocked(d, faster, faster),
        bandwidth_Bps=d.bandwidth_Bps * faster,
        corrections=replace(d.corrections, compute=1.0, memory=d.corrections.memory * faster),
    )


def _with_clock_shown(models: Sequence[MeasuredModel], base: Device) -> Device:
    """A device of nominal figures with its clock raised until fewer than SHOWN_BY rows beat the peak; rows that are
    faster than RAISED times the peak are taken for errors.
    """
    if KINDS[base.kind].figures != NOMINAL:
        return base
    rows = [(p, floor_s) for m in models for p, floor_s in zip(m.parts, _floors(m, base), strict=True)]
    ratios = sorted(floor_s / p.seconds for p, floor_s in rows)
    shown = [r for r in ratios if r <= RAISED][-SHOWN_BY:]
    faster = max(1.0, shown[0] if len(shown) == SHOWN_BY else 1.0)
    return clocked(base, faster, faster)


def _floors(m: MeasuredModel, base: Device) -> list[float]:
    """The physical bound of each row, in seconds."""
    floor_s = _estimates(m, [base]).floor_s[:, 0]
    return [float(floor_s[list(p.kernels)].sum()) for p in m.parts]


def _without_impossible(m: MeasuredModel, base: Device, dropped: list[Dropped]) -> MeasuredModel:
    """The model without rows that are faster than physics allows."""
    fast = [part for part, floor_s in zip(m.parts, _floors(m, base), strict=True) if part.seconds < FASTER * floor_s]
    why = "it is faster than the device's peak"
    dropped += (Dropped(m.model, part.name, part.seconds, why) for part in fast)
    return replace(m, parts=tuple(part for part in m.parts if part not in fast))


class _Model:
    """What is predicted of all rows, as a function of the device's corrections and of the factors by operator type."""

    def __init__(self, models: Sequence[MeasuredModel], base: Device, left_out: frozenset[str] = frozenset()):
        self.models, self.base = models, base
        spreads = {n: s for n, s in KINDS[base.kind].spreads.items() if n not in left_out}
        self.names = tuple(n for n in spreads if n != "L3" or base.l3_bytes)
        self.priors = [Prior(1.0, spreads[n], 1 / MOST_EFFECT, MOST_EFFECT) for n in self.names]
        self.of = [(m.model, p.name) for m in models for p in m.parts]
        self.measured = np.array([p.seconds for m in models for p in m.parts])
        self.types_of = [self._types(m) for m in models]
        self.types = np.array([t for types in self.types_of for t in types], dtype=object)

    def device(self, values: Array, factors: Mapping[str, float]) -> Device:
        """The device with these corrections, in the order of `names`, and factors by operator type."""
        at = dict(zip(self.names, map(float, values), strict=True))
        bandwidth, shared = at.pop("DRAM", 1.0), at.pop("L3", 1.0)
        return replace(
            self.base,
            bandwidth_Bps=self.base.bandwidth_Bps * bandwidth,
            l3_bytes=round(self.base.l3_bytes * shared),
            corrections=Corrections(**at, operators=Rates(tuple(sorted(factors.items()))), source="fit"),
        )

    def predicted(self, devices: Sequence[Device], host: float | None = None) -> tuple[Array, Array]:
        """Seconds of all rows on each device [rows, g], and the share of them that their types' factors multiply.

        host: the correction of the host for single operators, where it is not each device's own.
        """
        first = self.models[0].run
        estimate_works([m.run.kernels for m in self.models], devices, first.method, first.constants)
        parts = [
            self._whole(m, types[0], devices) if m.whole else self._each(m, devices, host)
            for m, types in zip(self.models, self.types_of, strict=True)
        ]
        return np.concatenate([total for total, _ in parts]), np.concatenate([share for _, share in parts])

    def _each(self, m: MeasuredModel, devices: Sequence[Device], host: float | None) -> tuple[Array, Array]:
        """Each row by itself, with what the host spends on its operators, on a host of its own correction or `host`."""
        e, hosts = _estimates(m, devices), np.array([d.corrections.host if host is None else host for d in devices])
        kernel = np.array([e.seconds[list(p.kernels)].sum(axis=0) for p in m.parts])
        nodes = np.array([[sum(m.run.kernels.rows[i].repeat for i in p.kernels)] for p in m.parts])
        total = kernel + nodes * m.run.host_costs[0].node_s * hosts
        return total, kernel / total

    def _whole(self, m: MeasuredModel, type: str, devices: Sequence[Device]) -> tuple[Array, Array]:
        e = _estimates(m, devices)
        total = np.array([[_scheduled(m, e, j, d.corrections.host) for j, d in enumerate(devices)]])
        mine = np.array([correction_name(k) == type for k in m.run.kernels.rows], dtype=bool)
        return total, e.seconds[mine].sum(axis=0, keepdims=True) / total

    def _types(self, m: MeasuredModel) -> list[str]:
        """The operator type of each row, "" where a run is of no single one."""
        names = [correction_name(k) for k in m.run.kernels.rows]
        if not m.whole:
            return [names[p.kernels[0]] for p in m.parts]
        e, sums = _estimates(m, [self.base]), defaultdict[str, float](float)
        for name, seconds in zip(names, e.seconds[:, 0], strict=True):
            sums[name] += float(seconds)
        most = max(sums, key=lambda t: sums[t], default="")
        return [most if sums[most] > MOST * _scheduled(m, e, 0, 1.0) else ""]


def _estimates(m: MeasuredModel, devices: Sequence[Device]) -> Estimates:
    return estimate(m.run.kernels, devices, m.run.method, m.run.constants)


def _scheduled(m: MeasuredModel, e: Estimates, j: int, host: float) -> float:
    """Seconds of a whole run on the estimates' device j, where the host takes `host` times as long."""
    host_costs = [m.run.host_costs[0].scaled(host)]
    return float(schedule(m.run.kernels, e.only(slice(j, j + 1)), host_costs, m.run.processors).total_s[0])


def _fitted(model: _Model) -> tuple[Array, dict[str, float]]:
    """The corrections, in the order of `_Model.names`, and the factors by operator type, found in turns."""
    values, factors = np.ones(len(model.names)), dict[str, float]()
    for _ in range(TURNS):
        values = _corrections(model, values, factors)
        factors = _factors(model, model.device(values, factors), factors)
    return values, factors


def _disagreed(model: _Model, values: Array, factors: Mapping[str, float]) -> dict[str, str]:
    """The corrections that rows don't agree on, and why: those at their bounds, and those where the slower half of the
    rows that they scale asks for more than DIFFER times what the faster half asks for.
    """
    step = np.exp(STEP * np.eye(len(values)))
    devices = [model.device(values, factors), *(model.device(values * s, factors) for s in step)]
    seconds = np.log(model.predicted(devices, devices[0].corrections.host)[0])
    reasons = {}
    for name, value, moved in zip(model.names, values, seconds[:, 1:].T, strict=True):
        share = np.abs(moved - seconds[:, 0]) / STEP
        tells = share > TELLS
        asks = np.sort((np.log(model.measured) - seconds[:, 0])[tells] / share[tells])
        half = len(asks) // 2
        differ = float(np.exp(asks[-half:].mean() - asks[:half].mean())) if half else 1.0
        if abs(np.log(value)) > np.log(0.99 * MOST_EFFECT):
            reasons[name] = f"it came out as {value:.2g}, outside the plausible range"
        elif differ > DIFFER:
            reasons[name] = f"the {len(asks)} rows behind it differ by a factor of {differ:.2g}"
    return reasons


def _corrections(model: _Model, values: Array, factors: Mapping[str, float]) -> Array:
    """The corrections that fit best beside these factors, in the order of `_Model.names`; `values`: where it begins.

    Whole runs alone tell of the host, of which single operators take what it was before: an operator that runs among
    others of other types, as in the suite, finds its code gone from the caches, and hundreds of such rows would pass
    that off as a slow host.
    """
    host = model.device(values, factors).corrections.host

    def misfits(points: Array) -> Array:
        devices = [model.device(p, factors) for p in points]
        return np.asarray(np.log(model.predicted(devices, host)[0] / model.measured[:, None]))

    return map_fit(model.priors, misfits, begin=values, step=STEP)


def _factors(model: _Model, device: Device, factors: Mapping[str, float]) -> dict[str, float]:
    """The factor of each operator type beside the corrections of `device`.

    It is the mean of what its rows ask for, as logarithms, in which rows that are far off count little; the prior,
    which counts for `Kind.shrink` rows, pulls it to 1.
    """
    off, share, types = _misses(model, device)
    fitted = {}
    for t in sorted({t for t in model.types if t}):
        mine, before = types == t, np.log(factors.get(t, 1.0))
        says, s = off[mine] / np.maximum(share[mine], 0.1) + before, share[mine]  # each row's own logarithm
        at = float(np.median(says))
        for _ in range(TURNS):
            weight = s**2 / np.sqrt(1 + (s * (says - at) / SOFT) ** 2)
            at = float((weight * says).sum() / max(weight.sum(), 1e-9))
        at *= (s**2).sum() / ((s**2).sum() + KINDS[model.base.kind].shrink)
        fitted[t] = float(np.clip(np.exp(at), 1 / LIMIT, LIMIT))
    return fitted


def _misses(model: _Model, device: Device) -> tuple[Array, Array, Array]:
    """Of each row: log(measured / predicted), the share of its time that its type's factor multiplies, and its type."""
    predicted, share = (part[:, 0] for part in model.predicted([device]))
    return np.log(model.measured / predicted), share, model.types


def _half_width(model: _Model, device: Device, factors: Mapping[str, float]) -> float | None:
    """The half-width of ranges: four in five rows are off by less, as a logarithm.

    Each row counts as if its type's factor had been found without it. None where fewer than WIDTH_ROWS rows are of a
    type with other rows.
    """
    off, share, types = _misses(model, device)
    misses = []
    for t in factors:
        mine = types == t
        if mine.sum() > 1:
            counted = share[mine] ** 2
            total = counted.sum() + KINDS[model.base.kind].shrink
            misses += list(np.abs(off[mine] * total / (total - counted)))
    if len(misses) < WIDTH_ROWS:
        return None
    rank = min(int(np.ceil((len(misses) + 1) * COVERAGE)), len(misses))  # split-conformal, as of shipped ranges
    return float(max(np.sort(misses)[rank - 1], LEAST_WIDTH))
