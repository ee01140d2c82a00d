"""sum: the same kernels as tile-wave's, added up without power limit and schedule; to compare with."""

from __future__ import annotations

from onnxperf.latency import Method
from onnxperf.latency.estimate import kernel_models

METHOD = Method(
    name="sum",
    describe="the sum of tile-wave's kernel times, without power limit and schedule",
    times=kernel_models,
    error_class="sum",
)
