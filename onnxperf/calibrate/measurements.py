"""The measurements that a calibration is fitted to: taken here with the suite, or read from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_specs import Device
from gpu_specs.toml_file import missing
from onnxperf.calibrate.kinds import KINDS, Kind
from onnxperf.calibrate.rounds import confirmed
from onnxperf.calibrate.rows import Dropped
from onnxperf.calibrate.suite import Case
from onnxperf.ground.errors import UsageError, printable
from onnxperf.ground.output import telling, write_file
from onnxperf.latency import shipped
from onnxperf.measure.files import read, write
from onnxperf.measure.job import Job
from onnxperf.measure.record import Measurement
from onnxperf.measure.run import measure

MOST_FILES = 2000
RUNS = 10_000  # at most, of a case
LEAST_COPIED = 16e6  # bytes of a copy that shows the link's rate


def recorded(folder: str, unread: list[Dropped]) -> tuple[Measurement, ...]:
    """The measurements in a folder, all of one device; what can't be read is noted in `unread`.

    Raises UsageError where there are none, or of several devices.
    """
    try:
        paths = sorted(p for p in Path(folder).iterdir() if p.suffix == ".json" and p.is_file())
    except (OSError, ValueError) as e:
        why = missing(what="folder") if isinstance(e, FileNotFoundError) else getattr(e, "strerror", None) or e
        raise UsageError(f"--from {folder}: {why}") from None
    if len(paths) > MOST_FILES:
        raise UsageError(f"--from {folder} holds {len(paths):,} files: {MOST_FILES:,} are read at most")
    measurements = []
    for path in paths:
        try:
            measurements.append(read(path))
        except UsageError as e:
            unread.append(Dropped(printable(path.name), "", 0.0, str(e)))
    if not measurements:
        why = f": {unread[0].reason}" if unread else ""
        raise UsageError(f"--from {folder} holds no file (*.json) of `onnxperf measure` that can be read{why}")
    devices = sorted({printable(m.place.name) for m in measurements})
    if len(devices) > 1 or len({m.place.kind for m in measurements}) > 1:
        names = ", ".join(devices)[:500]
        raise UsageError(f"--from {folder} holds measurements of several devices ({names}): give each its own folder")
    return tuple(measurements)


def measured(base: Device, keep: str | None, failed: list[Dropped]) -> tuple[Measurement, ...]:
    """Measure the suite on the device that is here, as `rounds.confirmed` does; cases that fail are noted in `failed`.

    keep: a folder for the measurements. Raises the first error where every case fails, and EnvironmentFailure where
    other programs keep the device busy.
    """
    if keep is not None:
        try:
            os.makedirs(keep, exist_ok=True)
        except OSError as e:
            raise UsageError(f"--keep {keep}: {e.strerror or e}") from None
    kind, measurements = KINDS[base.kind], list[Measurement]()
    with telling() as told:
        for name, m in confirmed(kind.suite(base), lambda case: _case(case, kind), failed, told):
            if keep is not None:
                file = f"{len(measurements):02} {name}.json".replace(" ", "-").replace(",", "")
                write_file(str(Path(keep, file)), write(m) + "\n")
            measurements.append(m)
    return tuple(measurements)


def _case(case: Case, kind: Kind) -> Measurement:
    job = Job(
        case.model, kind.provider, precision=case.precision, iterations=RUNS, duration_s=case.seconds,
        include_transfers=case.copies, allow_host=True, profile=kind.one_by_one and case.one_by_one,
    )  # fmt: skip
    m = measure(job)
    return replace(m, subject=replace(m.subject, name=case.name))


def host_link(measurements: Sequence[Measurement]) -> float | None:
    """The rate of the link to the host one way, in bytes a second, by the fastest large copy; None without such copies.

    seconds = start + bytes / (achieved x rate), as `latency` predicts copies, solved for the rate.
    """
    link, rates = shipped().transfer, []
    for c in (m.copies for m in measurements if m.copies is not None):
        for nbytes, seconds in ((c.to_device_bytes, c.to_device_s), (c.from_device_bytes, c.from_device_s)):
            if nbytes >= LEAST_COPIED and seconds > link["start_s"]:
                rates.append(nbytes / (seconds - link["start_s"]) / link["achieved"])
    return max(rates, default=None)
