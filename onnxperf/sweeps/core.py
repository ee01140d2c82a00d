"""`onnxperf.sweep`: the sweep of one model from Python."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from onnxperf.decide.choices import selected
from onnxperf.ground.codec import data_frame
from onnxperf.ground.door import DOOR
from onnxperf.ground.errors import as_arguments, speaking_of_arguments
from onnxperf.running.pipeline import Gpu
from onnxperf.running.terms import Common, Examples
from onnxperf.sweeps.cache import Cache
from onnxperf.sweeps.engines import engine
from onnxperf.sweeps.grid import grid_of
from onnxperf.sweeps.rows import Row, columns
from onnxperf.sweeps.stream import Model, blocks

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rows of a sweep, and the names of the open dimensions that have a column; see `onnxperf.sweeps.rows`."""

    rows: tuple[Row, ...]
    dims: tuple[str, ...]

    @property
    def knees(self) -> tuple[Row, ...]:
        """On each card and in each precision the smallest batch within 1% of the highest throughput that fits."""
        return tuple(row for row in self.rows if row.knee)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain data: times in seconds, sizes in bytes, prices in US dollars."""
        return [row.to_dict(self.dims) for row in self.rows]

    def to_json(self, indent: int | None = 2) -> str:
        """`to_dicts` as JSON text."""
        return json.dumps(self.to_dicts(), indent=indent, allow_nan=False)

    def to_dataframe(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame. Raises EnvironmentFailure where pandas is not installed."""
        return data_frame(self.to_dicts(), [*columns(self.dims)])

    def __str__(self) -> str:
        shown: str = DOOR["text"](self)
        return shown


def sweep(
    model: Any,
    example_inputs: Examples = None,
    *,
    gpu: Sequence[Gpu] | None = None,
    batch: Sequence[int] | int | str | None = None,
    precision: Sequence[str] | str = "keep",
    dims: Mapping[str, Sequence[int] | int] | None = None,
    prices: Mapping[str, float] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    trip_counts: Mapping[str, int] | None = None,
    cache: str | os.PathLike[str] | None = None,
    **terms: Unpack[Common],
) -> Sweep:
    """Predict a model for every combination of cards, batches, precisions and sizes of open dimensions.

    model, example_inputs and all other terms are those of `onnxperf.predict`. gpu: the cards, None for all that ship.
    batch: one or several, also as "1..64", None for the model's own. precision: one or several. dims: one size or
    several by name. prices: US dollars an hour by card, instead of those that ship. cache: a folder that keeps results,
    so that a sweep that was interrupted goes on where it stopped; a warning says where it can't be written. Rules that
    your own code adds are not part of what results are found by. A cell that can't be predicted says why in its row.
    Raises UsageError where the grid is wrong, and the first cell's error where no cell can be predicted.
    """
    with speaking_of_arguments():
        cards = selected(every=True) if gpu is None else gpu
        grid = grid_of(cards, batch=batch, precision=precision, dims=dims, prices=prices, shapes=shapes,
                       trip_counts=trip_counts, **terms)  # fmt: skip
        kept = None if cache is None else Cache.at(cache)
        with engine(1) as here:
            swept = list(blocks([Model(model, examples=example_inputs)], grid, here, kept))
        rows = (replace(row, why=as_arguments(row.why)) for block in swept for row in block.rows)
        return Sweep(tuple(rows), grid.named["dims"])
