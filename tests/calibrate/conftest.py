"""Measurements that a device with known corrections would give."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np
import pytest

from gpu_specs import Device
from onnxperf.answer.prediction import Prediction, summarise
from onnxperf.calibrate.kinds import KINDS
from onnxperf.calibrate.suite import Case
from onnxperf.calibrate.this_processor import Described, device
from onnxperf.measure.record import PROFILER_S, Measurement, OperatorTime, Place, Setting, Subject, WarmUp
from onnxperf.measure.series import Series
from onnxperf.running.pipeline import Request, run_of

NOISE = 0.03
AVX2 = Described("AVX2", 32, 2.5e9, 2**20, 32 * 2**20)


@pytest.fixture(scope="session")
def nominal_cpu() -> Device:
    """A processor before calibration."""
    return device("Model 7 @ 2.5 GHz", "x86_64", AVX2, 16 * 2**30)


@lru_cache(128)
def predicted(model: bytes | str, d: Device, precision: str = "keep") -> Prediction:
    """What a device is predicted to take: most tests measure the suite on the same few."""
    terms = {"runtime": f"ort-{'cpu' if d.kind == 'cpu' else 'cuda'}", "precision": precision}
    return summarise(run_of(Request(model, terms=terms), d))


def times(d: Device, p: Prediction) -> tuple[OperatorTime, ...]:
    """What ONNX Runtime's profile would say on a processor: each operator with what the host spends on it."""
    node_s = p.run.host_costs[p.column].node_s
    each = ((k.name, k.op.rpartition("::")[2], k.seconds + k.repeat * node_s) for k in p.kernels)
    by_profile = ((name, type, s + PROFILER_S) for name, type, s in each)
    return tuple(OperatorTime(name, type, "CPUExecutionProvider", 20, s, s) for name, type, s in by_profile)


def measurement(case: Case, d: Device, noise: Callable[[int], np.ndarray]) -> Measurement:
    """A case as the device would measure it."""
    p, gpu = predicted(case.model, d, case.precision), d.kind == "gpu"
    found = () if gpu or not case.one_by_one else times(d, p)
    off = noise(max(len(found), 1))
    found = tuple(replace(o, median_s=o.median_s * f, least_s=o.least_s * f) for o, f in zip(found, off, strict=False))
    name = d.nvml_names[0] if d.nvml_names else d.name
    runs = Series((p.seconds * float(off[0]),) * 3)
    return Measurement(
        taken="2026-01-01T00:00:00+00:00",
        subject=Subject(case.name, "0" * 64, 20, "random", case.model),
        place=Place(d.kind, d.id if gpu else "", name, d.capacity_bytes, threads=0 if gpu else 1),
        setting=Setting(
            f"ort-{'cuda' if gpu else 'cpu'}", "all", case.precision, p.scenario.batch, p.scenario.inputs, (),
            (("onnxruntime", "1.31.1"),),
        ),
        clock="made up", scope="made up", warm_up=WarmUp(1.0, 0.1, 10, 0.5, True), device=runs, wall=runs,
        profiled=None if gpu else runs, operators=found,
    )  # fmt: skip


def measured(d: Device, outliers: float = 0.0, seed: int = 0) -> tuple[Measurement, ...]:
    """The suite on a device, off by NOISE, and in this share of rows by a factor of three."""
    random = np.random.default_rng(seed)

    def noise(n: int) -> np.ndarray:
        wild = np.where(random.random(n) < outliers, 3.0 ** random.choice([-1.0, 1.0], n), 1.0)
        return np.exp(NOISE * random.standard_normal(n)) * wild

    return tuple(measurement(case, d, noise) for case in _suite(d))


@cache
def _suite(d: Device) -> Sequence[Case]:
    return KINDS[d.kind].suite(d)
