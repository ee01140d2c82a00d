"""`Grid`: what a sweep asks of every model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from gpu_specs import Device, Price
from onnxperf.decide.choices import priced
from onnxperf.errors import UsageError
from onnxperf.graph.bind import whole
from onnxperf.passes import PRECISIONS
from onnxperf.pipeline import MAX_BATCH, Gpu, find

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

    def bindings(self, named: Iterable[str] | None = None) -> list[Dims]:
        """The sizes of open dimensions to try; named: of those with such a name alone."""
        kept = [(name, sizes) for name, sizes in self.dims if named is None or name in named]
        return [tuple(zip((n for n, _ in kept), each, strict=True)) for each in product(*(s for _, s in kept))]

    @property
    def points(self) -> int:
        """How many points each model has at most."""
        return len(self.bindings()) * len(self.batches)

    @property
    def cells(self) -> int:
        """How many rows each model has at most."""
        return self.points * len(self.precisions) * len(self.devices)


def grid_of(
    gpus: Sequence[Gpu], *, batches: Sequence[int] | int | None = None, precisions: Sequence[str] | str = "keep",
    dims: Mapping[str, Sequence[int] | int] | None = None, shapes: Mapping[str, Sequence[int]] | None = None,
    trip_counts: Mapping[str, int] | None = None, prices: Mapping[str, float] | None = None, **terms: Any,
) -> Grid:  # fmt: skip
    """The grid of these cards and sizes, each once. Raises UsageError where there are none, or one can't be."""
    if isinstance(gpus, str) or not gpus:
        raise UsageError('name the cards: sweep(model, gpu=["l4", "t4"])')
    devices = tuple(dict.fromkeys(find(gpu)[0] for gpu in gpus))
    names = (precisions,) if isinstance(precisions, str) else tuple(precisions)
    for name in names or ("",):
        if name not in PRECISIONS:
            raise UsageError(f"unknown precision {name!r}: it is one of {', '.join(PRECISIONS)}")
    for what, given in (("dims", dims), ("shapes", shapes), ("trip_counts", trip_counts), ("prices", prices)):
        if given is not None and not isinstance(given, Mapping):
            raise UsageError(f"{what} must be a mapping, not a {type(given).__name__}")
    sizes: tuple[int | None, ...] = (None,)
    if batches is not None:
        sizes = tuple(sorted(_sizes(batches, "the batch", MAX_BATCH)))
    open_dims = tuple((name, _sizes(given, f"dimension {name!r}", 1 << 31)) for name, given in (dims or {}).items())
    if isinstance(host := terms.get("host"), os.PathLike):
        terms["host"] = os.fspath(host)
    unique = tuple(dict.fromkeys(names))
    return Grid(devices, unique, sizes, open_dims, shapes, trip_counts, terms, priced(prices))


def _sizes(given: Sequence[int] | int, what: str, most: int) -> tuple[int, ...]:
    """Sizes that are given, each once, in the order given."""
    try:
        found = tuple(dict.fromkeys(whole(size, what) for size in (given if isinstance(given, Iterable) else [given])))
    except TypeError:
        found = ()
    if not found or not all(0 < size <= most for size in found):
        raise UsageError(f"{what} must be whole numbers from 1 to {most:,}, not {given!r}")
    return found
