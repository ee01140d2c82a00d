"""`Grid`: what a sweep asks of every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any, Unpack

from gpu_specs import Device, Price
from onnxperf.decide.bindings import Names
from onnxperf.decide.choices import priced
from onnxperf.ground.errors import UsageError
from onnxperf.ground.lists import batches_of, sizes_of
from onnxperf.ground.names import PRECISIONS, choice_named
from onnxperf.running.largest import MAX_BATCH
from onnxperf.running.pipeline import Gpu, each
from onnxperf.running.terms import Common, as_terms, check_values

Dims = tuple[tuple[str, int], ...]  # sizes of open dimensions by name, in the order of the grid


@dataclass(frozen=True, slots=True)
class Point:
    """One load of a model: the sizes of its open dimensions and its batch, None for that of the file."""

    dims: Dims
    batch: int | None


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of cards, precisions, batches and sizes of open dimensions.

    batches: ascending; shapes, trip_counts, terms: as for `onnxperf.predict`, the same everywhere; prices: by card.
    """

    devices: tuple[Device, ...]
    precisions: tuple[str, ...]
    batches: tuple[int | None, ...]
    dims: tuple[tuple[str, tuple[int, ...]], ...] = ()
    shapes: Mapping[str, Sequence[int]] | None = None
    trip_counts: Mapping[str, int] | None = None
    terms: Mapping[str, Any] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """The names that bindings give to dimensions, tensors and loops."""
        dims = tuple(name for name, _ in self.dims)
        return {"dims": dims, "shapes": tuple(self.shapes or ()), "trip_counts": tuple(self.trip_counts or ())}

    def narrowed(self, names: Names) -> Grid:
        """The grid with the bindings of these names alone."""
        dims = tuple((name, sizes) for name, sizes in self.dims if name in names["dims"])
        shapes = {name: shape for name, shape in (self.shapes or {}).items() if name in names["shapes"]}
        trips = {name: count for name, count in (self.trip_counts or {}).items() if name in names["trip_counts"]}
        return replace(self, dims=dims, shapes=shapes, trip_counts=trips)

    def each(self) -> list[tuple[Point, ...]]:
        """Every point: for each set of sizes of dimensions, in order, those at all batches."""
        names = [name for name, _ in self.dims]
        bindings = (tuple(zip(names, sizes, strict=True)) for sizes in product(*(s for _, s in self.dims)))
        return [tuple(Point(dims, batch) for batch in self.batches) for dims in bindings]

    @property
    def points(self) -> int:
        """How many points each model has at most."""
        return prod(len(sizes) for _, sizes in self.dims) * len(self.batches)

    @property
    def cells(self) -> int:
        """How many rows each model has at most."""
        return self.points * len(self.precisions) * len(self.devices)


def grid_of(
    cards: Sequence[Gpu], /, *, batch: Sequence[int] | int | str | None = None,
    precision: Sequence[str] | str = "keep", dims: Mapping[str, Sequence[int] | int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    trip_counts: Mapping[str, int] | None = None, prices: Mapping[str, float] | None = None,
    **terms: Unpack[Common],
) -> Grid:  # fmt: skip
    """The grid of these cards and sizes, each once. Raises UsageError where there are none, or one can't be."""
    devices = tuple(dict.fromkeys(device for device, _ in each(cards)))
    listed = (precision,) if isinstance(precision, str) else tuple(precision)
    names = tuple(choice_named(name, PRECISIONS) for name in listed)
    for name in names or ("",):
        check_values({"precision": name})
    for what, binding in (("dims", dims), ("shapes", shapes), ("trip_counts", trip_counts), ("prices", prices)):
        if binding is not None and not isinstance(binding, Mapping):
            raise UsageError(f"{what} must be a mapping, not a {type(binding).__name__}")
    batches = (None,) if batch is None else batches_of(batch, MAX_BATCH)
    open_dims = tuple((name, sizes_of(size, f"dimension {name!r}", 1 << 31)) for name, size in (dims or {}).items())
    unique = tuple(dict.fromkeys(names))
    return Grid(devices, unique, batches, open_dims, shapes, trip_counts, as_terms(terms), priced(prices))
