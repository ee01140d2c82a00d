"""Whole models that were measured beside what each method says of them, and what others published of the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np

import gpu_specs
from onnxperf.errors import UsageError
from onnxperf.graph import Graph, load
from onnxperf.latency import shipped
from onnxperf.measurements.core import BEYOND_PHYSICS, FASTER, OTHER_UNIT, SLACK_S, SLOWER
from onnxperf.measurements.models import METHODS as PUBLISHED
from onnxperf.measurements.models import Measured
from onnxperf.pipeline import answer
from onnxperf.prediction import Scenario
from onnxperf.validate.score import LEFT_OUT, ROOFLINE, SHIPPED, Pairs

#: Methods that are scored on models: ours, then those published with the measurements.
SUM = "sum"
OURS = (LEFT_OUT, SHIPPED, SUM, ROOFLINE)
METHODS = (*OURS, *(f"published {m}" for m in PUBLISHED))


def samples() -> Traversable:
    """The folder of the models that were measured: in the package, or beside it where that is a checkout."""
    try:
        return files("onnxperf.samples")
    except ModuleNotFoundError:
        return Path(__file__).parents[2] / "samples"


@lru_cache(maxsize=1)
def _graph(sample: str, batch: int, sequence: int) -> Graph:
    with as_file(samples().joinpath(f"{sample}.onnx")) as path:
        return load(path, dims={"batch": batch, "sequence": sequence})


def model(row: Measured) -> Iterator[Pairs]:
    """One measured inference beside each method's answer. Raises Error where it can't be one of this model."""
    graph, device = _graph(row.sample, row.batch, row.sequence), gpu_specs.load(row.gpu)
    scenario = Scenario(row.sample, row.gpu, "torch-eager", precision="fp32", batch=row.batch)

    def pairs(method: str, *seconds: float) -> Pairs:
        measured, predicted, low, high = (np.array([v]) for v in (row.seconds, *seconds))
        return Pairs(row.sample, row.gpu, method, measured, predicted, low, high, np.ones(1, dtype=bool))

    for method in OURS:
        constants = shipped(row.die if method == LEFT_OUT else "")
        named = method if method in (SUM, ROOFLINE) else "tile-wave"
        p = answer(graph, device, replace(scenario, method=named), constants)
        if row.seconds < BEYOND_PHYSICS * p.lower_bound_seconds:
            raise UsageError(FASTER)
        if row.seconds > OTHER_UNIT * (p.lower_bound_seconds + SLACK_S):
            raise UsageError(SLOWER)
        yield pairs(method, p.seconds, p.low_seconds, p.high_seconds)
    for method, seconds in row.published.items():
        if seconds == seconds:
            yield pairs(f"published {method}", seconds, np.nan, np.nan)
