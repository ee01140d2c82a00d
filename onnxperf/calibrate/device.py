"""`onnxperf calibrate`: measure a device, or read what was measured on it; fit its effects; write its device file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from math import exp
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import gpu_specs
from gpu_specs import Device, Source, SpecError
from onnxperf.calibrate.card import EFFECTS, file_of
from onnxperf.calibrate.effects import Calibration, fit, require_scipy
from onnxperf.calibrate.nominal import elsewhere, this_cpu
from onnxperf.calibrate.rows import Dropped
from onnxperf.calibrate.suite import Case, cpu_suite, gpu_suite
from onnxperf.errors import Error, UsageError, printable
from onnxperf.latency import shipped
from onnxperf.measure.environment import (
    Sensors,
    card_of,
    cuda_runtime,
    graphics,
    processor,
    require_device,
    usable_provider,
)
from onnxperf.measure.files import read, write
from onnxperf.measure.job import Job
from onnxperf.measure.record import Measurement, Place
from onnxperf.measure.run import measure
from onnxperf.measure.show import telling
from onnxperf.output import check_target, write_file
from onnxperf.report import console, tabulate

MOST_FILES = 2000
RUNS = 10_000  # at most, of a case
LEAST_COPIED = 16e6  # bytes of a copy that shows the link's rate
FIGURES = {
    "boost_hz": ("clock", 1e9, "GHz"),
    "bandwidth_Bps": ("bandwidth", 1e9, "GB/s"),
    "l3_bytes": ("shared cache", 2**20, "MiB"),
}


def run(provider: str | None, folder: str | None, out: str | None, json_to: str | None, keep: str | None) -> None:
    """Calibrate the device that is here, or the one of the measurements in `folder`; write its file, say what it holds.

    provider: cuda or cpu, None takes CUDA where it can be used; out: the file, None for one in the working folder;
    json_to: as of other commands; keep: a folder for the measurements.
    Raises onnxperf errors: what is wrong with the request before anything runs.
    """
    require_scipy()
    if folder is not None and (provider or keep):
        raise UsageError("--from DIR reads what was measured before: --provider and --keep don't go with it")
    if json_to not in (None, "-"):
        check_target(json_to, *(map(str, Path(folder).glob("*.json")) if folder is not None else ()))
    unread = list[Dropped]()
    measurements = recorded(folder, unread) if folder is not None else ()
    base = base_of(measurements[0].place if measurements else _place(provider or usable_provider()))
    target = out or ("this-cpu.toml" if base.kind == "cpu" else f"{base.id}-here.toml")
    refuse(target)
    if json_to is not None and Path(json_to).absolute() == Path(target).absolute():
        raise UsageError(f"--json {json_to} would overwrite the device file: name another")
    if folder is None:
        measurements = measured(base, keep, unread)
    found = fit(measurements, base)
    found = replace(found, dropped=(*unread, *found.dropped))
    link = host_link(measurements) if base.kind == "gpu" else None
    found = replace(found, device=sourced(found, measurements, folder is None))
    write_file(target, file_of(found.device, link))
    if json_to == "-":
        print(as_json(found, link))
        return
    if json_to:
        write_file(json_to, as_json(found, link) + "\n")
    show(console(), found, link)
    console().print(Text(f"written to {target}: --gpu {target} takes it", style="bold"))


def _place(provider: str) -> Place:
    if provider == "cpu":
        return processor()
    rt = cuda_runtime()
    require_device(rt)
    return graphics(rt, Sensors(None, ""))


def base_of(place: Place) -> Device:
    """The device to start from: the catalogue's card, or a processor with nominal figures."""
    if place.kind == "cpu":
        return this_cpu() if place.name == processor().name else elsewhere(place)
    if not (id := card_of(place)):
        raise UsageError(f"{printable(place.name)} is not in the catalogue, and a fit needs its figures to start from")
    return gpu_specs.load(id)


def refuse(target: str) -> None:
    """Raise UsageError where a device file can't go: not by that name, or over something that is none."""
    path = Path(target)
    if path.suffix.lower() != ".toml":
        raise UsageError(f"-o {target}: the name of a device file ends in .toml")
    if not path.parent.is_dir():
        raise UsageError(f"-o {target}: there is no folder {path.parent}")
    if path.exists():
        try:
            gpu_specs.read(path)
        except SpecError:
            raise UsageError(f"-o {target} is there and is no device file: name another") from None


def recorded(folder: str, unread: list[Dropped]) -> tuple[Measurement, ...]:
    """The measurements in a folder, all of one device; what can't be read is noted in `unread`.

    Raises UsageError where there are none, or of several devices.
    """
    try:
        paths = sorted(p for p in Path(folder).iterdir() if p.suffix == ".json" and p.is_file())
    except (OSError, ValueError) as e:
        raise UsageError(f"--from {folder}: {getattr(e, 'strerror', None) or e}") from None
    if len(paths) > MOST_FILES:
        raise UsageError(f"--from {folder} holds {len(paths):,} files: {MOST_FILES:,} are read at most")
    found = []
    for path in paths:
        try:
            found.append(read(path))
        except UsageError as e:
            unread.append(Dropped(printable(path.name), "", 0.0, str(e)))
    if not found:
        why = f": {unread[0].reason}" if unread else ""
        raise UsageError(f"--from {folder} holds no file (*.json) of `onnxperf measure` that can be read{why}")
    devices = sorted({printable(m.place.name) for m in found})
    if len(devices) > 1 or len({m.place.kind for m in found}) > 1:
        names = ", ".join(devices)[:500]
        raise UsageError(f"--from {folder} holds measurements of several devices ({names}): give each its own folder")
    return tuple(found)


def measured(base: Device, keep: str | None, failed: list[Dropped]) -> tuple[Measurement, ...]:
    """The suite, run on the device that is here; cases that fail are noted. The first error is raised if all do."""
    if keep is not None:
        try:
            os.makedirs(keep, exist_ok=True)
        except OSError as e:
            raise UsageError(f"--keep {keep}: {e.strerror or e}") from None
    cases, found, first = cpu_suite() if base.kind == "cpu" else gpu_suite(base), list[Measurement](), None
    with telling() as told:
        for i, case in enumerate(cases):
            told(case.name, i, len(cases))
            try:
                m = _case(case, "cpu" if base.kind == "cpu" else "cuda")
            except Error as e:
                first = first or e
                failed.append(Dropped(case.name, "", 0.0, str(e)))
                continue
            found.append(m)
            if keep is not None:
                write_file(
                    str(Path(keep, f"{i:02} {case.name}.json".replace(" ", "-").replace(",", ""))), write(m) + "\n"
                )
    if first is not None and not found:
        raise first
    return tuple(found)


def _case(case: Case, provider: str) -> Measurement:
    job = Job(
        case.model, provider, precision=case.precision, iterations=RUNS, duration_s=case.seconds,
        include_transfers=case.copies, allow_host=True, profile=provider == "cpu" and case.one_by_one,
    )  # fmt: skip
    m = measure(job)
    return replace(m, subject=replace(m.subject, name=case.name))


def host_link(measurements: Sequence[Measurement]) -> float | None:
    """Bytes a second that the link to the host carries one way, by the fastest large copy; None where there is none.

    As `latency` has it, a copy takes a start and its bytes at a share of that rate.
    """
    c, rates = shipped().transfer, []
    for copies in (m.copies for m in measurements if m.copies is not None):
        for nbytes, seconds in (
            (copies.to_device_bytes, copies.to_device_s),
            (copies.from_device_bytes, copies.from_device_s),
        ):
            if nbytes >= LEAST_COPIED and seconds > c["start_s"]:
                rates.append(nbytes / (seconds - c["start_s"]) / c["achieved"])
    return max(rates, default=None)


def sourced(found: Calibration, measurements: Sequence[Measurement], suite: bool) -> Device:
    """The device, with measurements named as the source of its effects and of the figures that they changed."""
    m = measurements[0]
    runtime = dict(m.setting.software).get("onnxruntime", "of an unknown version")
    driver = f", driver {m.place.driver}" if m.place.driver else ""
    whence = "its suite" if suite else f"{len(measurements)} files"
    before, after = (f"{found.error(x):.0%}" for x in (False, True))
    says = printable(
        f"onnxperf calibrate, {datetime.now(UTC):%Y-%m-%d}, ONNX Runtime {runtime[:40]}{driver[:40]}:"
        f" {len(found.rows)} rows of {whence}, off by {before} before and {after} after, mean"
    )
    d, base = found.device, found.base
    changed = {f for f in FIGURES if getattr(d, f) != getattr(base, f)} | (
        {"fp32"} if d.dense_flops != base.dense_flops else set()
    )
    sources = [replace(s, facts=tuple(f for f in s.facts if f not in changed)) for s in d.sources]
    if changed:
        sources.append(Source("derived", says, tuple(sorted(changed))))
    return replace(d, effects=replace(d.effects, source=says), sources=tuple(s for s in sources if s.facts))


def as_json(found: Calibration, link: float | None) -> str:
    """The calibration as JSON text."""
    d = found.device
    data: dict[str, Any] = {
        "device": d.name,
        "effects": {name: getattr(d.effects, name) for name in EFFECTS},
        "operators": dict(d.effects.operators),
        "half_width": d.effects.half_width,
        "source": d.effects.source,
        "figures": {f: getattr(d, f) for f in FIGURES},
        "host_link_Bps": link,
        "error_before": found.error(False),
        "error_after": found.error(True),
        "rows": [asdict(r) for r in found.rows],
        "dropped": [asdict(r) for r in found.dropped],
    }
    return json.dumps(data, indent=2, allow_nan=False)


def show(out: Console, found: Calibration, link: float | None) -> None:
    """Print what was found, how well it fits by operator type, and what was left out."""
    d = found.device
    out.print(Text(f"{printable(d.name)}: {len(found.rows)} rows", style="bold"))
    out.print(tabulate(out, ("effect", "#factor", "what it means"), [*_found(found, link)]))
    out.print()
    types = sorted({r.type for r in found.rows})
    lines = [_line(found, t, str(sum(r.type == t for r in found.rows))) for t in types]
    total = ("all", str(len(found.rows)), "", f"{found.error(False):.0%}", f"{found.error(True):.0%}")
    out.print(tabulate(out, ("operator", "#rows", "#factor", "#off before", "#off after"), [*lines, total]))
    if d.effects.half_width is not None:
        within = f"four in five rows are within a factor of {exp(d.effects.half_width):.2f}"
        out.print(Text(f"{within}, each against its type's factor without it", style="dim"))
    for reason, count in Counter(x.reason for x in found.dropped).most_common():
        out.print(Text(f"left out: {count}: {printable(reason)}", style="dim"))


def _found(found: Calibration, link: float | None) -> Iterator[tuple[str, str, str]]:
    d, base = found.device, found.base
    for name, means in EFFECTS.items():
        if d.kind == "gpu" or name not in ("launch", "power"):
            yield name, f"{getattr(d.effects, name):.3g}", means
    for f, (name, unit, unit_name) in FIGURES.items():
        before, after = getattr(base, f) / unit, getattr(d, f) / unit
        if before != after:
            yield name, f"{after / before:.3g}", f"{after:.3g} {unit_name}, where {before:.3g} were nominal or assumed"
    if link:
        yield (
            "host link",
            f"{link / base.pcie_Bps:.3g}",
            f"{link / 1e9:.3g} GB/s one way; {base.pcie_Bps / 1e9:.3g} nominal",
        )


def _line(found: Calibration, type: str, rows: str) -> tuple[str, ...]:
    factor = found.device.effects.operators.get(type)
    shown = "" if factor is None else f"{factor:.3g}"
    return type or "of several types", rows, shown, f"{found.error(False, type):.0%}", f"{found.error(True, type):.0%}"
