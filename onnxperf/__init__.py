"""onnxperf: how long an ONNX model takes on a GPU that is not there, how sure that is, and why.

>>> import onnxperf
>>> onnxperf.predict("model.onnx", gpu="l4").seconds
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onnxperf.errors import BudgetExceeded, EnvironmentFailure, Error, LimitExceeded, ModelError, UsageError

if TYPE_CHECKING:
    from onnxperf.decide.budget import check
    from onnxperf.pipeline import predict
    from onnxperf.prediction import Prediction
    from onnxperf.rules import op, work
    from op_models import Attention, Conv, Gemm, Move, Operator, Pointwise, Recurrent, Rows, Tensor, Work

__version__ = "0.1.0"
__all__ = [
    "Attention", "BudgetExceeded", "Conv", "EnvironmentFailure", "Error", "Gemm", "LimitExceeded", "ModelError", "Move",
    "Operator", "Pointwise", "Prediction", "Recurrent", "Rows", "Tensor", "UsageError", "Work", "__version__", "check",
    "op", "predict", "work",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load the heavy rooms on first use, so that `--help` and `import onnxperf` stay quick."""
    if name not in __all__:
        raise AttributeError(f"module 'onnxperf' has no attribute {name!r}")
    rooms = {"check": "decide.budget", "predict": "pipeline", "Prediction": "prediction"}
    rooms |= {"op": "rules", "work": "rules"}
    module = f"onnxperf.{rooms[name]}" if name in rooms else "op_models"  # what rules are made of lives in `op_models`
    return getattr(import_module(module), name)
