"""`onnxperf validate MODEL`: compare one model with its prediction."""

from __future__ import annotations

from typing import Any

from onnxperf.calibrate.matching import Other
from onnxperf.graph.targets import check_target
from onnxperf.ground.errors import LimitExceeded, UsageError
from onnxperf.ground.output import deliver, telling
from onnxperf.ground.tables import console
from onnxperf.scoring import one_model
from onnxperf.scoring.show import show


def run(
    model: str, gpu: str | None, json_to: str | None, method: str | Other, limit: float | None = None, **terms: Any
) -> None:
    """Compare one model, measured on this machine or recorded (*.json), with its prediction. Print tables or, where
    `json_to` is "-", JSON.

    method: that predicts; terms: the provider and what else a `Job` takes, as far as it is given. Raises LimitExceeded
    where the error is larger than `limit`.
    """
    if not model:
        raise UsageError("the path of MODEL is empty")
    check_target(json_to, *filter(None, (model, gpu)))
    if model.lower().endswith(".json"):
        if terms:
            raise UsageError(f"{model} has been measured already: {', '.join(terms)} would not change that")
        compared = one_model.recorded(model, gpu, method)
    else:
        with telling() as tell:
            compared = one_model.here(model, gpu, tell, method=method, **terms)
    what = f"{compared.measurement.subject.name}: the error"
    deliver(
        json_to, compared.to_json, lambda: show(console(), compared), lambda: keep(abs(compared.error), limit, what)
    )


def keep(error: float | None, limit: float | None, what: str) -> None:
    """Raise LimitExceeded where an error is larger than it may be."""
    if error is not None and limit is not None and error > limit:
        raise LimitExceeded(f"{what}, {error:.1%}, is over the limit of {100 * limit:.4g}%")
