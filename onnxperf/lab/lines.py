"""Regression lines of layers on one device, which the method `linear` reads, and of whole networks in their batch.

`python -m onnxperf.lab.lines DIR -o mine.toml` fits them to the files of `onnxperf measure` in DIR, all of one device,
and writes its device file as `onnxperf calibrate --from DIR` does, with the lines beside.

Source: Gianniti, Zhang and Ardagna, "Performance prediction of GPU-based deep learning applications". A category's line
is t = n b0 + b1 c for n layers of c operations together, neither b below 0, by least squares of relative errors: layers
of a network differ by orders of magnitude, and a plain fit would follow the longest alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import click
import numpy as np

from gpu_specs import Lines
from onnxperf.calibrate.command import base_of, refuse, sourced
from onnxperf.calibrate.corrections import fit
from onnxperf.calibrate.device_file import file_of
from onnxperf.calibrate.measurements import host_link, recorded
from onnxperf.calibrate.rows import MeasuredModel
from onnxperf.ground.errors import Error, UsageError, printable
from onnxperf.ground.fitting import Array
from onnxperf.ground.output import write_file
from onnxperf.lab.baselines.linear import CATEGORIES, layer_of
from onnxperf.latency.intervals import COVERAGE
from onnxperf.passes.tape import FORWARD

FEWEST = 3  # rows of a category
ROUNDS = 10  # of weighing errors


class Line(NamedTuple):
    """t = n b0 + b1 x: seconds of n layers or networks of the complexity x together."""

    b0: float
    b1: float

    def seconds(self, x: Array | float, layers: Array | float = 1) -> Array:
        """Seconds of what has the complexity x, elementwise."""
        return np.asarray(layers * self.b0 + self.b1 * np.asarray(x))


class LayerRow(NamedTuple):
    """Measured layers of one category in one network: how many, their operations together, and seconds together."""

    network: str
    category: str
    layers: float
    operations: float
    seconds: float


def line(x: Array, seconds: Array, layers: Array | float = 1.0) -> Line:
    """The line of points [n] with the least sum of squared relative errors, of those with b0 >= 0 and b1 >= 0.

    x: operations of layers, or the batch (or depth) of whole networks, whose line then tells those of other batches.
    Of data-parallel training on G devices, x is a device's own share of the batch. An error is relative to the root of
    measured times predicted, as of the round before: too long and too short by a factor count alike.
    """
    best, predicted = Line(0.0, 0.0), seconds
    for _ in range(ROUNDS):
        root = np.sqrt(seconds * predicted)
        columns = np.stack([np.broadcast_to(layers, np.shape(x)) / root, x / root], axis=1)
        size, wanted = np.maximum(np.abs(columns).max(axis=0), 1e-300), seconds / root
        b = np.linalg.lstsq(columns / size, wanted, rcond=None)[0] / size
        for kept in np.flatnonzero(b[::-1] < 0):
            b = np.where(np.arange(2) == kept, columns[:, kept] @ wanted / (columns[:, kept] @ columns[:, kept]), 0.0)
        best = Line(*map(float, b))
        predicted = np.maximum(best.seconds(x, layers), 1e-3 * seconds)
    return best


def layer_rows(models: Sequence[MeasuredModel]) -> list[LayerRow]:
    """The rows whose kernels are all forward layers of one category."""
    rows = []
    for m in models:
        for part in m.parts:
            layers = [layer_of(m.run.kernels.rows[k]) for k in part.kernels]
            names = {layer.category for layer in layers if layer.phase == FORWARD}
            category = names.pop() if len(names) == 1 else ""
            if category in CATEGORIES:
                count, operations = sum(layer.share for layer in layers), sum(layer.operations for layer in layers)
                rows.append(LayerRow(m.model, category, count, float(operations), part.seconds))
    return rows


def lines_of(rows: Sequence[LayerRow]) -> Mapping[str, Line]:
    """The line of each category that has FEWEST rows or more."""
    lines = {}
    for category in CATEGORIES:
        if len(members := [r for r in rows if r.category == category]) >= FEWEST:
            count, x, seconds = (np.array([r[i] for r in members]) for i in (2, 3, 4))
            lines[category] = line(x, seconds, count)
    return lines


def misses(rows: Sequence[LayerRow], lines: Mapping[str, Line]) -> Array:
    """log(measured / predicted) of the rows that have a line."""
    members = [r for r in rows if r.category in lines]
    return np.array([np.log(r.seconds / float(lines[r.category].seconds(r.operations, r.layers))) for r in members])


def fitted(models: Sequence[MeasuredModel], source: str) -> Lines | None:
    """The lines of a device, and the half-width that holds four in five layers of a network without which the lines
    were fitted, which one network alone does not tell. None where no category has enough rows.
    """
    rows = layer_rows(models)
    lines = lines_of(rows)
    if not lines:
        return None
    networks = sorted({r.network for r in rows})
    off = [misses([r for r in rows if r.network == n], lines_of([r for r in rows if r.network != n])) for n in networks]
    every = np.abs(np.concatenate(off))
    half_width = float(np.quantile(every, COVERAGE)) if len(every) >= FEWEST else None
    return Lines(tuple((name, *coefficients) for name, coefficients in lines.items()), (), half_width, source)


def written(folder: str, out: str) -> Lines:
    """Calibrate the device of the measurements in a folder, fit its lines, and write both to the device file `out`.

    Raises onnxperf errors: UsageError where no category of layers has enough rows, too.
    """
    refuse(out, None)
    measurements = recorded(folder, [])
    base = base_of(measurements[0].place)
    calibration = fit(measurements, base)
    lines = fitted(calibration.models, f"onnxperf.lab.lines: layers of {len(calibration.models)} models")
    if lines is None:
        raise UsageError(f"{folder} has fewer than {FEWEST} layers of every category: lines take more models")
    device = replace(sourced(calibration, measurements, False), lines=lines)
    link = host_link(measurements) if base.pcie_Bps else None
    write_file(out, file_of(device, link, calibration.left_out))
    return lines


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option("-o", "out", required=True, type=click.Path(), help="The device file, for --gpu.")
def main(folder: str, out: str) -> None:
    """Fit lines of layers to the files of `onnxperf measure` in DIR, and write the device file that holds them."""
    try:
        lines = written(folder, out)
    except Error as e:
        click.echo(f"Error: {printable(str(e))}", err=True)
        raise SystemExit(e.exit_code) from None
    click.echo(f"lines of {', '.join(name for name, *_ in lines.forward)} written to {out}")


if __name__ == "__main__":
    main()
