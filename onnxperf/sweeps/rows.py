"""The table of a sweep, a row for each model, precision, card, sizes of open dimensions and batch. Its columns:

model: the file as it was named, or the model's name; gpu: the card's id; runtime; precision; dim_NAME: the size of an
open dimension, one column each, empty where the model has none of that name; batch: samples of a run.
seconds, low_seconds, high_seconds: of one run, and the 80% interval; throughput_per_second: samples;
process_bytes: what the process holds of the card's memory; fits: whether the memory holds what is needed.
watts: the card's, on average; joules_per_sample; usd_per_million: US dollars for a million samples, where the card has
a price. Watts and joules are empty for a processor.
knee: whether it is, on its card and in its precision, the smallest batch whose throughput is within 1% of the highest
among the batches that fit (`decide.choices.best`); largest: whether it is the largest of these batches that fits.
why: why there are no figures, or why the run does not fit; empty elsewhere. Figures of a run that does not fit say what
it would take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gpu_specs import Device
from onnxperf.decide.choices import Choice, best, too_large
from onnxperf.ground.errors import Error, printable
from onnxperf.running.scenario import PLATFORMS
from onnxperf.sweeps.grid import Dims, Grid


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of the grid, see above; figures are None where they are not known."""

    model: str
    gpu: str
    runtime: str
    precision: str
    dims: Dims
    batch: int | None
    seconds: float | None
    low_seconds: float | None
    high_seconds: float | None
    throughput_per_second: float | None
    process_bytes: int | None
    fits: bool | None
    watts: float | None
    joules_per_sample: float | None
    usd_per_million: float | None
    knee: bool
    largest: bool
    why: str

    def to_dict(self, dims: tuple[str, ...]) -> dict[str, Any]:
        """The row as plain data, with a column for each of these dimensions."""
        cells, sizes = {f.name: getattr(self, f.name) for f in fields(self)}, dict(self.dims)
        at = list(cells).index("dims")
        pairs = list(cells.items())
        return dict([*pairs[:at], *((f"dim_{name}", sizes.get(name)) for name in dims), *pairs[at + 1 :]])


#: The types of columns: all others hold text.
TYPES = {
    "batch": int, "process_bytes": int, "fits": bool, "knee": bool, "largest": bool,
    **dict.fromkeys(("seconds", "low_seconds", "high_seconds", "throughput_per_second", "watts", "joules_per_sample",
                     "usd_per_million"), float),
}  # fmt: skip


def columns(dims: tuple[str, ...]) -> dict[str, type]:
    """The columns of a table with these dimensions, in order, with the types of what they hold."""
    names = (f.name for f in fields(Row))
    expanded = (c for name in names for c in ([f"dim_{d}" for d in dims] if name == "dims" else [name]))
    return {name: int if name.startswith("dim_") else TYPES.get(name, str) for name in expanded}


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of one model with one set of sizes: every precision, card and batch, in that order; `error`: the first
    one, where no row has figures.
    """

    model: str
    dims: Dims
    rows: tuple[Row, ...]
    error: Error | None = None


def block(
    model: str, dims: Dims, grid: Grid, answers: Mapping[int | None, Mapping[tuple[str, int], Choice | Error]]
) -> Block:
    """The block of what was found, by batch and then by precision and card."""
    rows, errors, model = list[Row](), list[Error](), printable(model)
    for precision in grid.precisions:
        for j, device in enumerate(grid.devices):
            cells = {batch: answers[batch][precision, j] for batch in grid.batches}
            choices = [c for c in cells.values() if isinstance(c, Choice)]
            errors += [c for c in cells.values() if isinstance(c, Error)]
            knee, most = best(choices), max((c.batch for c in choices if c.fits), default=0)
            for batch, cell in cells.items():
                place = model, device, precision, dims, batch
                rows.append(_row(grid, *place, cell, cell is knee, isinstance(cell, Choice) and cell.batch == most))
    return Block(model, dims, tuple(rows), errors[0] if len(errors) == len(rows) else None)


def _row(
    grid: Grid, model: str, device: Device, precision: str, dims: Dims, batch: int | None, cell: Choice | Error,
    knee: bool, largest: bool,
) -> Row:  # fmt: skip
    runtime = str(grid.terms.get("runtime") or PLATFORMS[device.kind].runtime)
    if isinstance(cell, Error):
        nothing = None, None, None, None, None, None, None, None, None
        return Row(model, device.id, runtime, precision, dims, batch, *nothing, False, False, printable(str(cell)))
    price = grid.prices.get(device.id)
    return Row(
        model, device.id, runtime, precision, dims, cell.batch, cell.seconds, cell.low_seconds, cell.high_seconds,
        cell.throughput_per_second, cell.process_bytes, cell.fits, cell.watts, cell.joules_per_sample,
        None if price is None else cell.usd_per_million(price), knee, largest,
        "" if cell.fits else too_large(cell, device),
    )  # fmt: skip
