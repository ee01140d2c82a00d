"""tile-wave: every kernel by its family's model, the card's power limit, and one schedule of host and streams."""

from __future__ import annotations

from onnxperf.latency import Method
from onnxperf.latency.estimate import kernel_models
from onnxperf.latency.method import OF_FAMILIES

METHOD = Method(
    name="tile-wave",
    describe="kernels by tiles and waves, throttled to the power limit and scheduled",
    times=kernel_models,
    error_class=OF_FAMILIES,
    power_limit=True,
    scheduled=True,
)
