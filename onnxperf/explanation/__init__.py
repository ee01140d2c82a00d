"""Why a number: a kernel's estimate step by step, from its work to the rate that the datasheet promised, or a run's.

An explanation is the estimate itself, for one work on one card, with every term kept: nothing is computed a second way.
"""

from onnxperf.explanation.core import Explanation, Line, Section, Step, amount
from onnxperf.explanation.find import PRODUCT, explain_kernel, product_graph
from onnxperf.explanation.whole_run import Loss, RunExplanation, explain, explain_run

__all__ = [
    "PRODUCT", "Explanation", "Line", "Loss", "RunExplanation", "Section", "Step", "amount", "explain",
    "explain_kernel", "explain_run", "product_graph",
]  # fmt: skip
