"""Why a number: one kernel's estimate step by step, from its work to the rate that the datasheet promised.

An explanation is the estimate itself, for one work on one card, with every term kept: nothing is computed a second way.
"""

from onnxperf.explanation.core import Explanation, Line, Section, Step, amount
from onnxperf.explanation.find import PRODUCT, explain, explain_kernel, product_graph

__all__ = ["PRODUCT", "Explanation", "Line", "Section", "Step", "amount", "explain", "explain_kernel", "product_graph"]
