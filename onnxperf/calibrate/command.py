"""`onnxperf calibrate`: fit a device's corrections to what was measured on it, or a host's pace, and write its file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.text import Text

import gpu_specs
from gpu_specs import Device, Source, SpecError
from onnxperf.calibrate.corrections import Calibration, fit
from onnxperf.calibrate.device_file import file_of
from onnxperf.calibrate.kinds import CATALOGUE, KINDS
from onnxperf.calibrate.measurements import host_link, measured, recorded
from onnxperf.calibrate.rows import Dropped
from onnxperf.calibrate.show import FIGURES, as_json, host_as_json, show, show_host
from onnxperf.calibrate.this_host import file_of as host_file_of
from onnxperf.calibrate.this_host import this_host
from onnxperf.calibrate.this_processor import elsewhere
from onnxperf.graph.targets import check_target
from onnxperf.ground.errors import UsageError, counted, printable
from onnxperf.ground.modules import require
from onnxperf.ground.output import check_writable, deliver, write_file
from onnxperf.ground.tables import console
from onnxperf.measure.devices import DEVICES
from onnxperf.measure.environment import onnx_runtime, overlapping, processor, usable_provider
from onnxperf.measure.record import Measurement, Place


def run(provider: str | None, folder: str | None, out: str | None, json_to: str | None, keep: str | None) -> None:
    """Calibrate the device that is here, or the one of the measurements in `folder`; write its file, say what it holds.

    provider: cuda or cpu, None takes CUDA where it can be used; out: the file, None for one in the working folder;
    json_to: as of other commands; keep: a folder for the measurements.
    Raises onnxperf errors: what is wrong with the request before anything runs.
    """
    if folder is not None and (provider or keep):
        raise UsageError("--from DIR reads existing measurements: leave --provider and --keep out")
    check_target(json_to, *(map(str, Path(folder).glob("*.json")) if folder is not None else ()))
    unused = list[Dropped]()
    measurements = recorded(folder, unused) if folder is not None else ()
    require("scipy", "fitting a device")
    base = base_of(measurements[0].place if measurements else DEVICES[provider or usable_provider()].found())
    target = out or KINDS[base.kind].file.format(id=base.id)
    refuse(target, json_to)
    if folder is None:
        measurements = measured(base, keep, unused)
    calibration = fit(measurements, base)
    calibration = replace(
        calibration, device=sourced(calibration, measurements, folder is None), dropped=(*unused, *calibration.dropped)
    )
    link = host_link(measurements) if base.pcie_Bps else None
    write_file(target, file_of(calibration.device, link, calibration.left_out))
    if folder is None and (several := overlapping()):
        click.echo(f"onnxperf: {several}", err=True)
    for name, why in calibration.left_out:
        click.echo(f"onnxperf: the correction {name!r} is left out: {printable(why)}", err=True)

    def screen() -> None:
        show(console(), calibration, link)
        console().print(Text(f"written to {target}: --gpu {target} takes it", style="bold"))

    deliver(json_to, lambda: as_json(calibration, link), screen)


def run_host(out: str | None, json_to: str | None) -> None:
    """Measure the pace of this machine's processor as a host, write its file, say what it holds; as `run` otherwise."""
    check_target(json_to)
    target = out or "this-host.toml"
    refuse(target, json_to, gpu_specs.load_host)
    version = str(onnx_runtime().__version__)
    paced = this_host(processor().name or "this CPU", version)
    write_file(target, host_file_of(paced.host))

    def screen() -> None:
        show_host(console(), paced)
        console().print(Text(f"written to {target}: --host {target} takes it", style="bold"))

    deliver(json_to, lambda: host_as_json(paced), screen)


def base_of(place: Place) -> Device:
    """The device to start from: the catalogue's card, or a processor with nominal figures."""
    kind = KINDS[place.kind]
    if device := kind.find(place):
        return device
    if kind.figures == CATALOGUE:
        raise UsageError(
            f"{printable(place.name)} is not in the catalogue, and a fit starts from a card's datasheet figures"
        )
    return elsewhere(place)


def refuse(target: str, json_to: str | None, load: Callable[[str], object] = gpu_specs.load) -> None:
    """Raise UsageError where a file that `load` reads can't go: not by that name, over the one that `json_to` names, or
    over something that is no such file.
    """
    path = Path(target)
    if path.suffix.lower() != ".toml":
        raise UsageError(f"-o {target}: the name of a device file ends in .toml")
    if not path.parent.is_dir():
        raise UsageError(f"-o {target}: there is no folder {path.parent}")
    if path.exists():
        try:
            load(str(path.absolute()))
        except SpecError:
            raise UsageError(f"-o {target} exists and is not a file of that kind: choose another name") from None
    if json_to is not None and Path(json_to).absolute() == path.absolute():
        raise UsageError(f"--json {json_to} would overwrite the output file: choose another name")
    check_writable(target)


def sourced(calibration: Calibration, measurements: Sequence[Measurement], suite: bool) -> Device:
    """The device, with measurements named as the source of its corrections and of the figures that they changed."""
    m = measurements[0]
    runtime = dict(m.setting.software).get("onnxruntime", "of an unknown version")
    driver = f", driver {m.place.driver}" if m.place.driver else ""
    whence = "its suite" if suite else counted(len(measurements), "file")
    before, after = (f"{calibration.error(x):.0%}" for x in (False, True))
    says = printable(
        f"onnxperf calibrate, {datetime.now(UTC):%Y-%m-%d}, ONNX Runtime {runtime[:40]}{driver[:40]}:"
        f" {counted(len(calibration.rows), 'row')} of {whence}, mean error {before} before and {after} after"
    )
    d, base = calibration.device, calibration.base
    changed = {f for f in FIGURES if getattr(d, f) != getattr(base, f)}
    changed |= {"fp32"} if d.dense_flops != base.dense_flops else set()
    sources = [replace(s, facts=tuple(f for f in s.facts if f not in changed)) for s in d.sources]
    if changed:
        sources.append(Source("derived", says, tuple(sorted(changed))))
    return replace(d, corrections=replace(d.corrections, source=says), sources=tuple(s for s in sources if s.facts))
