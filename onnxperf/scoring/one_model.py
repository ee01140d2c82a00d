"""One measured model beside its prediction for the device that it ran on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpu_specs import Device
from onnxperf.answer.prediction import Prediction, summarise
from onnxperf.calibrate.kinds import CATALOGUE, KINDS, NOMINAL
from onnxperf.calibrate.matching import Joined, Other, by_type, joined, predicted, worst
from onnxperf.graph import Note
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.errors import UsageError
from onnxperf.ground.output import Progress
from onnxperf.measure.devices import DEVICES
from onnxperf.measure.environment import usable_provider
from onnxperf.measure.files import read
from onnxperf.measure.job import Job
from onnxperf.measure.record import Measurement, Place
from onnxperf.measure.run import measure
from onnxperf.running.pipeline import find
from onnxperf.running.terms import USUAL_METHOD
from onnxperf.runtimes import RUNTIMES

SCHEMA_VERSION = 1
MOST_WRONG = 10  # operators listed
NOT_CALIBRATED = Note(
    "not-calibrated",
    "this CPU is not calibrated, its figures are nominal: give --gpu a device file of `onnxperf calibrate`",
)
INCOMPLETE = Note("interrupted", "the measurement was interrupted: results are partial")


@dataclass(frozen=True, slots=True)
class Comparison(Document):
    """A measurement and the prediction of the same run.

    source: where the device's figures come from: the catalogue, nominal figures, or a device file by name; rows:
    measured operators beside predicted kernels, none where nothing was profiled; notes: what limits the two.
    """

    measurement: Measurement
    device: Device
    source: str
    prediction: Prediction
    rows: tuple[Joined, ...]
    notes: tuple[Note, ...]

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.prediction.seconds / self.measurement.seconds - 1

    @property
    def in_range(self) -> bool:
        """Whether the measured time is within the range of the prediction."""
        return self.prediction.low_seconds <= self.measurement.seconds <= self.prediction.high_seconds

    @property
    def only_predicted(self) -> tuple[Joined, ...]:
        """Kernels for which nothing was measured, those that take longest first."""
        return worst((r for r in self.rows if r.measured_s is None), len(self.rows))

    @property
    def only_measured(self) -> tuple[Joined, ...]:
        """Operators for which nothing was predicted, those that took longest first."""
        return worst((r for r in self.rows if r.predicted_s is None), len(self.rows))

    @property
    def statistic(self) -> str:
        """Which time of the measured runs is compared: the median, or on a processor the undisturbed run."""
        return "undisturbed run" if self.measurement.place.shared else "median"

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data, seconds and shares; `operators` is None where nothing was profiled.

        by_type: sums of all operators of a type; most_wrong: the ten with the largest difference; unmatched: sums of
        what was predicted but not found in the profile, and of what was measured but not predicted.
        """
        m, p = self.measurement, self.prediction
        interval = m.device.median_interval
        return {
            "schema_version": SCHEMA_VERSION,
            "model": m.subject.name,
            "device": {"name": m.place.name, "id": self.device.id, "figures": self.source},
            **plain(m.setting, "runtime", "opt_level", "precision", "batch"),
            "measured": {
                "seconds": m.seconds, "statistic": self.statistic, "runs": len(m.device.samples),
                "median_seconds": m.device.median, "median_interval_seconds": interval and list(interval),
            },
            "predicted": plain(p, "seconds", "low_seconds", "high_seconds", "interval"),
            **plain(self, "error", "in_range"),
            "operators": self._operators() if self.rows else None,
            "warnings": [asdict(n) for n in self.notes],
        }  # fmt: skip

    def _operators(self) -> dict[str, Any]:
        def times(x: Joined) -> dict[str, Any]:
            return {"type": x.type, "measured_seconds": x.measured_s, "predicted_seconds": x.predicted_s}

        return {
            "by_type": [times(c) for c in by_type(self.rows)],
            "most_wrong": [{"name": r.name, **times(r)} for r in worst(self.rows, MOST_WRONG)],
            "unmatched": {
                "predicted_seconds": sum(r.predicted_s or 0.0 for r in self.only_predicted),
                "measured_seconds": sum(r.measured_s or 0.0 for r in self.only_measured),
            },
        }


def recorded(path: str | os.PathLike[str], gpu: str | None = None, method: str | Other = USUAL_METHOD) -> Comparison:
    """A recorded measurement, predicted for the device that it names, or for `gpu`.

    Raises UsageError where the file is no measurement, or of a device that is not known.
    """
    m = read(path)
    return compare(m, *_chosen(gpu, m.place), method=method)


def here(
    model: str, gpu: str | None, progress: Progress | None, provider: str | None = None,
    method: str | Other = USUAL_METHOD, **terms: Any,
) -> Comparison:  # fmt: skip
    """Measure a model on this machine, and predict it for the device that it ran on, or for `gpu`.

    provider: "cuda" or "cpu"; None takes CUDA where it can be used. terms: of a `Job`.
    Raises onnxperf errors: what is wrong with `gpu` before anything runs.
    """
    provider = provider or usable_provider()
    device = find(gpu)[0] if gpu is not None else None
    if device is not None and device.kind != DEVICES[provider].kind:
        raise UsageError(f"--gpu {gpu} is not a device of the {provider} provider: change --gpu or --provider")
    m = measure(Job(model, provider, **terms), progress)
    return compare(m, *_chosen(gpu, m.place), method=method)


def compare(
    m: Measurement, device: Device, source: str, notes: tuple[Note, ...] = (), method: str | Other = USUAL_METHOD
) -> Comparison:
    """Predict what was measured, from the model's skeleton, for a device. Raises Error where that can't be done."""
    if m.seconds <= 0:
        raise UsageError(f"{m.subject.name}: its measured time is 0")
    runtime = RUNTIMES.get(m.setting.runtime)
    if runtime is not None and runtime.kind != m.place.kind:
        raise UsageError(f"{m.subject.name} can't run under {m.setting.runtime} on {m.place.name}")
    prediction = summarise(predicted(m, device, method))
    if source == NOMINAL:
        notes = (*notes, NOT_CALIBRATED)
    kernels = _with_overhead(prediction) if runtime is not None and runtime.synchronous else prediction
    rows = joined(m.operators, kernels) if m.operators else ()
    return Comparison(m, device, source, prediction, rows, (*notes, *([] if m.complete else [INCOMPLETE]), *m.warnings))


def _with_overhead(p: Prediction) -> Prediction:
    """A processor's kernels, each with the time that the runtime spends before it: measured operators include that."""
    ordered = sorted(p.kernels, key=lambda k: k.start_seconds)
    ends = (0.0, *(k.start_seconds + k.seconds for k in ordered))
    kernels = (replace(k, seconds=end - begin) for k, begin, end in zip(ordered, ends, ends[1:], strict=False))
    return replace(p, kernels=tuple(kernels))


def answers_to(device: Device, place: Place) -> bool:
    """Whether a device file is of the device that a measurement names."""
    return device.kind == place.kind and place.name in (device.name, *device.nvml_names)


def device_of(place: Place, files: Iterable[tuple[str, Device]] = ()) -> tuple[Device, str]:
    """The device that a measurement was taken on, and what its figures come from.

    A device file of its name, else the catalogue, else, for this machine's own processor, nominal figures.
    Raises UsageError where it is none of them.
    """
    calibrated = next(((device, name) for name, device in files if answers_to(device, place)), None)
    if calibrated is not None:
        return calibrated
    kind = KINDS[place.kind]
    if device := kind.find(place):
        return device, kind.figures
    raise UsageError(
        f"it was measured on {place.name or 'a device without a name'}, which is not in the catalogue: run `onnxperf"
        " calibrate` there, and name its device file with --gpu, or put it beside the measurements"
    )


def _chosen(gpu: str | None, place: Place) -> tuple[Device, str, tuple[Note, ...]]:
    """The device that --gpu names, whatever a measurement was taken on, as long as it is of the same kind; without
    --gpu the one that it was taken on.
    """
    if gpu is None:
        return *device_of(place), ()
    device, notes = find(gpu)
    if device.kind != place.kind:
        raise UsageError(
            f"it was measured on {place.name}, but --gpu {gpu} is {device.name}: name the device it ran on"
        )
    if device.id != place.id and not answers_to(device, place):
        says = f"it was measured on {place.name}, and predicted for {device.name}"
        notes = (*notes, Note("other-device", says))
    return device, os.path.basename(gpu) if gpu.endswith(".toml") else CATALOGUE, notes
