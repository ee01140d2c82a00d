"""A plugin of pytest: the fixture `assert_latency`, there in every test once onnxperf is installed.

>>> def test_it_stays_fast(assert_latency):
...     assert_latency("model.onnx", gpu="t4", max_ms=8)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from onnxperf.ground.errors import BudgetExceeded

if TYPE_CHECKING:
    from onnxperf.answer.prediction import Prediction


@pytest.fixture(scope="session")
def assert_latency() -> Callable[..., Prediction | list[Prediction]]:
    """`onnxperf.check`, failing the test with one sentence where the budget does not hold."""
    return _assert_latency


def _assert_latency(*model_and_examples: Any, **terms: Any) -> Prediction | list[Prediction]:
    """Predict one run or several, and fail the test where one takes more than `max_ms` milliseconds or `max_gb` GB.

    All parameters, what is given back, and what else is raised, are those of `onnxperf.check`.
    """
    __tracebackhide__ = True  # an error of the request points at the test that makes it
    from onnxperf.decide.budget import check  # only here: the plugin is loaded with every run of pytest

    try:
        prediction: Prediction | list[Prediction] = check(*model_and_examples, **terms)
        return prediction
    except BudgetExceeded as e:
        says = str(e)
    pytest.fail(says, pytrace=False)  # out here, as else it would be told twice
