"""Regression lines of layers on one device, which the method `linear` reads, and of whole networks in their batch.

Source: Gianniti, Zhang and Ardagna, "Performance prediction of GPU-based deep learning applications". A category's line
is t = n b0 + b1 c for n layers of c operations together, neither b below 0, by least squares of relative errors: layers
of a network differ by orders of magnitude, and a plain fit would follow the longest alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpu_specs import Lines
from onnxperf.calibrate.rows import MeasuredModel
from onnxperf.ground.fitting import Array
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
    found, predicted = Line(0.0, 0.0), seconds
    for _ in range(ROUNDS):
        root = np.sqrt(seconds * predicted)
        columns = np.stack([np.broadcast_to(layers, np.shape(x)) / root, x / root], axis=1)
        size, wanted = np.maximum(np.abs(columns).max(axis=0), 1e-300), seconds / root
        b = np.linalg.lstsq(columns / size, wanted, rcond=None)[0] / size
        for kept in np.flatnonzero(b[::-1] < 0):
            b = np.where(np.arange(2) == kept, columns[:, kept] @ wanted / (columns[:, kept] @ columns[:, kept]), 0.0)
        found = Line(*map(float, b))
        predicted = np.maximum(found.seconds(x, layers), 1e-3 * seconds)
    return found


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
    found = {}
    for category in CATEGORIES:
        if len(own := [r for r in rows if r.category == category]) >= FEWEST:
            count, x, seconds = (np.array([r[i] for r in own]) for i in (2, 3, 4))
            found[category] = line(x, seconds, count)
    return found


def misses(rows: Sequence[LayerRow], lines: Mapping[str, Line]) -> Array:
    """log(measured / predicted) of the rows that have a line."""
    own = [r for r in rows if r.category in lines]
    return np.array([np.log(r.seconds / float(lines[r.category].seconds(r.operations, r.layers))) for r in own])


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
    return Lines(tuple((name, *found) for name, found in lines.items()), (), half_width, source)
