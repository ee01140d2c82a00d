"""Budgets of time and memory: whether a prediction keeps them, and which operators break them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from gpu_specs import Device
from onnxperf.errors import BudgetExceeded, UsageError, printable
from onnxperf.pipeline import predict
from onnxperf.prediction import Prediction
from onnxperf.tables import duration, size

MOST = 1e15  # milliseconds or GB


def check(
    model: Any,
    example_inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    gpu: str | os.PathLike[str] | Device,
    max_ms: float | None = None,
    max_gb: float | None = None,
    **terms: Any,
) -> Prediction:
    """Predict one run, and raise BudgetExceeded where it takes more than `max_ms` milliseconds or `max_gb` GB (10^9).

    model, example_inputs, gpu and terms are those of `onnxperf.predict`. The prediction is given back where the
    budget holds. Raises UsageError where there is no budget, and what `predict` raises.
    """
    if max_ms is None and max_gb is None:
        raise UsageError("a budget is max_ms, max_gb or both")
    for what, value in (("max_ms", max_ms), ("max_gb", max_gb)):
        number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value < MOST):
            raise UsageError(f"{what} must be a positive number, not {value!r}")
    prediction = predict(model, example_inputs, gpu=gpu, **terms)
    keep(prediction, max_ms and float(max_ms) * 1e-3, max_gb and float(max_gb) * 1e9)
    return prediction


def keep(p: Prediction, max_seconds: float | None, max_bytes: float | None) -> None:
    """Raise BudgetExceeded where a prediction takes longer or more memory than it may."""
    reasons = []
    if max_seconds is not None and p.seconds > max_seconds:
        limit = duration(max_seconds)
        reasons.append(f"{duration(p.seconds)} is over the limit of {limit}; most of it goes to {blame(p)}")
    if max_bytes is not None and p.memory.total_bytes > max_bytes:
        reasons.append(f"{size(p.memory.total_bytes)} of memory is over the limit of {size(max_bytes)}; {_largest(p)}")
    if reasons:
        raise BudgetExceeded("; ".join(reasons))


def blame(p: Prediction, count: int = 3) -> str:
    """The kernels that take most of the time, for a message."""
    worst = sorted(p.kernels, key=lambda k: -k.seconds)[:count]
    return ", ".join(f"{printable(k.name)} ({printable(k.op)}, {duration(k.seconds)})" for k in worst)


def _largest(p: Prediction) -> str:
    m = p.memory
    weights = m.weights_bytes >= m.activations_bytes
    moved = [(k.bytes_read if weights else k.bytes_written, k) for k in p.kernels]
    most = sorted(moved, key=lambda x: -x[0])[:3]
    named = ", ".join(f"{printable(k.name)} ({printable(k.op)}, {size(nbytes)})" for nbytes, k in most)
    if weights:
        return f"{size(m.weights_bytes)} of it are weights; most is read by {named}"
    return f"{size(m.activations_bytes)} of it are activations, the largest written by {named}"
