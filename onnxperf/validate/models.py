"""Whole models that were measured beside what each method says of them, and what others published of the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from zlib import crc32

import numpy as np

import gpu_specs
from onnxperf.errors import UsageError
from onnxperf.latency import Constants, shipped
from onnxperf.measurements.core import BEYOND_PHYSICS, FASTER, OTHER_UNIT, SLACK_S, SLOWER
from onnxperf.measurements.models import METHODS as PUBLISHED
from onnxperf.measurements.models import Measured
from onnxperf.run import Run
from onnxperf.summary import summarise
from onnxperf.validate.score import LEFT_OUT, ROOFLINE, SHIPPED, Pairs

#: Methods that are scored on models: ours, then those published with the measurements.
SUM = "sum"
OURS = (LEFT_OUT, SHIPPED, SUM, ROOFLINE)
METHODS = (*OURS, *(f"published {m}" for m in PUBLISHED))


#: What rows are averaged as: models of eager PyTorch, and of ONNX Runtime by how long they take.
EAGER, ORT = "eager PyTorch, FP32", "ONNX Runtime"
LONG_S = 5e-3
LONG, SHORT = f"{ORT}, over {LONG_S * 1e3:g} ms", f"{ORT}, up to {LONG_S * 1e3:g} ms"


def together(row: Measured) -> str:
    """What a row is averaged in."""
    return EAGER if row.runtime == "torch-eager" else LONG if row.seconds > LONG_S else SHORT


def left_out(row: Measured) -> Constants:
    """Constants without rows of the card's die; for ONNX Runtime, whose host costs were fitted to models as these,
    without what the same source measured of the same model.
    """
    return shipped(row.die if together(row) == EAGER else row.group)


def model(row: Measured) -> Iterator[Pairs]:
    """One measured inference beside each method's answer. Raises Error where it can't be one of this model."""
    graph, device = row.graph, gpu_specs.load(row.gpu)
    key = np.array([crc32(repr((row.group, row.scenario.precision, row.batch, row.sequence)).encode())])

    def pairs(method: str, *seconds: float) -> Pairs:
        measured, predicted, low, high = (np.array([v]) for v in (row.seconds, *seconds))
        return Pairs(row.sample, row.gpu, method, key, measured, predicted, low, high, np.ones(1, dtype=bool))

    for method in OURS:
        constants = left_out(row) if method == LEFT_OUT else shipped()
        named = method if method in (SUM, ROOFLINE) else "tile-wave"
        p = summarise(Run(graph, (device,), replace(row.scenario, method=named), constants))
        if row.seconds < BEYOND_PHYSICS * p.lower_bound_seconds:
            raise UsageError(FASTER)
        if row.seconds > OTHER_UNIT * (p.lower_bound_seconds + SLACK_S):
            raise UsageError(SLOWER)
        yield pairs(method, p.seconds, p.low_seconds, p.high_seconds)
    for method, seconds in row.published.items():
        if seconds == seconds:
            yield pairs(f"published {method}", seconds, np.nan, np.nan)
