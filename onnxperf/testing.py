"""A plugin of pytest: the fixture `assert_latency`, there in every test once onnxperf is installed.

>>> def test_it_stays_fast(assert_latency):
...     assert_latency("model.onnx", gpu="t4", max_ms=8)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from onnxperf.errors import BudgetExceeded

if TYPE_CHECKING:
    import os

    from gpu_specs import Device
    from onnxperf.prediction import Prediction


@pytest.fixture(scope="session")
def assert_latency() -> Callable[..., Prediction]:
    """`onnxperf.check`, failing the test with one sentence where the budget does not hold."""
    return _assert_latency


def _assert_latency(
    model: Any,
    example_inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    gpu: str | os.PathLike[str] | Device,
    max_ms: float | None = None,
    max_gb: float | None = None,
    **terms: Any,
) -> Prediction:
    """Predict one run, and fail the test where it takes more than `max_ms` milliseconds or `max_gb` GB (10^9).

    All parameters, and what else is raised, are those of `onnxperf.check`. The prediction is given back.
    """
    from onnxperf.decide.budget import check  # only here: the plugin is loaded with every run of pytest

    try:
        return check(model, example_inputs, gpu=gpu, max_ms=max_ms, max_gb=max_gb, **terms)
    except BudgetExceeded as e:
        pytest.fail(str(e), pytrace=False)
