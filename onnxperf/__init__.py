"""onnxperf: how long an ONNX model takes on a GPU that is not there, how sure that is, and why.

>>> import onnxperf
>>> onnxperf.predict("model.onnx", gpu="l4").seconds
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxperf.errors import EnvironmentFailure, Error, LimitExceeded, ModelError, UsageError

if TYPE_CHECKING:
    from onnxperf.pipeline import predict
    from onnxperf.prediction import Prediction

__version__ = "0.1.0"
__all__ = [
    "EnvironmentFailure", "Error", "LimitExceeded", "ModelError", "Prediction", "UsageError", "__version__", "predict",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load the heavy rooms on first use, so that `--help` and `import onnxperf` stay quick."""
    if name == "predict":
        from onnxperf.pipeline import predict

        return predict
    if name == "Prediction":
        from onnxperf.prediction import Prediction

        return Prediction
    raise AttributeError(f"module 'onnxperf' has no attribute {name!r}")
