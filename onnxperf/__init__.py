"""onnxperf: how long an ONNX model takes on a GPU that is not there, how sure that is, and why.

>>> import onnxperf
>>> onnxperf.predict("model.onnx", gpu="l4").seconds
"""

from __future__ import annotations

from onnxperf.ground.door import DOOR
from onnxperf.ground.version import VERSION as __version__

TYPE_CHECKING = False  # nothing else is imported here, so that Ctrl-C finds the handlers of the command in place
if TYPE_CHECKING:
    from typing import Any

    from gpu_specs import Device
    from onnxperf.answer.predict import gpus, load, predict
    from onnxperf.answer.prediction import Prediction
    from onnxperf.decide.budget import check
    from onnxperf.decide.compare import Comparison, compare
    from onnxperf.decide.compare_llm import LanguageComparison, compare_llm
    from onnxperf.decide.diff import Difference
    from onnxperf.decide.recommend import Recommendation, recommend
    from onnxperf.decide.recommend_fleet import FleetRecommendation, recommend_fleet
    from onnxperf.decide.recommend_llm import LanguageRecommendation, recommend_llm
    from onnxperf.decide.two_models import diff
    from onnxperf.decide.what_if import WhatIf, WhatIfs, whatif
    from onnxperf.explanation import Explanation, RunExplanation, explain
    from onnxperf.ground.errors import BudgetExceeded, EnvironmentFailure, Error, LimitExceeded, ModelError, UsageError
    from onnxperf.ground.rules import op, work
    from onnxperf.language.core import Generation, llm
    from onnxperf.scoring.run_files import diff_runs
    from onnxperf.scoring.timed_runs import RunDifference
    from onnxperf.sweeps.core import Sweep, sweep
    from onnxperf.views.html import html
    from onnxperf.views.layer_profile import layer_profile
    from onnxperf.views.llm_html import llm_html
    from onnxperf.views.llm_trace import llm_trace
    from onnxperf.views.model_explorer import model_explorer
    from onnxperf.views.netron import annotated, netron
    from onnxperf.views.notebook import notebook
    from onnxperf.views.prediction import report
    from onnxperf.views.roofline import plot
    from onnxperf.views.text import text
    from onnxperf.views.trace import trace
    from op_models import Attention, Conv, Gemm, Move, Operator, Pointwise, Recurrent, Rows, Tensor, Work

#: The names that each room gives to the package; what operator rules are made of stands in `op_models`.
_OFFERED = {
    "onnxperf.decide.budget": ("check",),
    "onnxperf.decide.compare": ("Comparison", "compare"),
    "onnxperf.decide.compare_llm": ("LanguageComparison", "compare_llm"),
    "onnxperf.decide.diff": ("Difference",),
    "onnxperf.decide.recommend": ("Recommendation", "recommend"),
    "onnxperf.decide.recommend_fleet": ("FleetRecommendation", "recommend_fleet"),
    "onnxperf.decide.recommend_llm": ("LanguageRecommendation", "recommend_llm"),
    "onnxperf.decide.two_models": ("diff",),
    "onnxperf.decide.what_if": ("WhatIf", "WhatIfs", "whatif"),
    "onnxperf.ground.errors": (
        "BudgetExceeded", "EnvironmentFailure", "Error", "LimitExceeded", "ModelError", "UsageError"
    ),
    "onnxperf.explanation": ("Explanation", "RunExplanation", "explain"),
    "onnxperf.language.core": ("Generation", "llm"),
    "onnxperf.answer.predict": ("gpus", "load", "predict"),
    "onnxperf.answer.prediction": ("Prediction",),
    "onnxperf.ground.rules": ("op", "work"),
    "onnxperf.scoring.run_files": ("diff_runs",),
    "onnxperf.scoring.timed_runs": ("RunDifference",),
    "onnxperf.views.html": ("html",),
    "onnxperf.views.layer_profile": ("layer_profile",),
    "onnxperf.views.llm_html": ("llm_html",),
    "onnxperf.views.llm_trace": ("llm_trace",),
    "onnxperf.views.model_explorer": ("model_explorer",),
    "onnxperf.views.netron": ("annotated", "netron"),
    "onnxperf.views.notebook": ("notebook",),
    "onnxperf.sweeps.core": ("Sweep", "sweep"),
    "onnxperf.views.prediction": ("report",),
    "onnxperf.views.roofline": ("plot",),
    "onnxperf.views.text": ("text",),
    "onnxperf.views.trace": ("trace",),
    "gpu_specs": ("Device",),
    "op_models": (
        "Attention", "Conv", "Gemm", "Move", "Operator", "Pointwise", "Recurrent", "Rows", "Tensor", "Work"
    ),
}  # fmt: skip
DOOR.open(_OFFERED)
__all__ = [
    "Attention", "BudgetExceeded", "Comparison", "Conv", "Device", "Difference", "EnvironmentFailure", "Error",
    "Explanation", "FleetRecommendation", "Gemm", "Generation", "LanguageComparison", "LanguageRecommendation",
    "LimitExceeded", "ModelError", "Move", "Operator", "Pointwise", "Prediction", "Recommendation", "Recurrent", "Rows",
    "RunDifference", "RunExplanation", "Sweep", "Tensor", "UsageError", "WhatIf", "WhatIfs", "Work", "__version__",
    "annotated", "check", "compare", "compare_llm", "diff", "diff_runs", "explain", "gpus", "html", "layer_profile",
    "llm", "llm_html", "llm_trace", "load", "model_explorer", "netron", "notebook", "op", "plot", "predict",
    "recommend", "recommend_fleet", "recommend_llm", "report", "sweep", "text", "trace", "whatif", "work",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load the heavy rooms on first use, so that `--help` and `import onnxperf` stay quick."""
    if name not in DOOR:
        raise AttributeError(f"module 'onnxperf' has no attribute {name!r}")
    return DOOR[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
