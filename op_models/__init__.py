"""How much work an operator is: FLOPs, bytes, and the size a latency model reads. One file for each operator family.

Standard library only; knows nothing of GPUs. `op` registers a rule, `work_of` applies it. A file that is added to this
folder is found by itself.
"""

from importlib import import_module  # noqa: I001  (one name a line would fill the page)
from pkgutil import iter_modules

from op_models.core import (
    BITS, FLOATS, NHWC, Attention, Collective, Conv, Gemm, Move, Operator, OpModelError, Pointwise, Recurrent, Rows,
    Size, Steps, Tensor, Transfer, Work, work,
)  # fmt: skip
from op_models.axes import Axes, Unknown
from op_models.rules import (
    IN_PLACE, Like, Outputs, axes_of, bytes_only, caches, known, op, output_rule, registered, shared_caches, work_of,
    work_or_bytes,
)  # fmt: skip
from op_models.steps import steps_of

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "BITS", "FLOATS", "IN_PLACE", "NHWC", "Attention", "Axes", "Collective", "Conv", "Gemm", "Like", "Move",
    "OpModelError", "Operator", "Outputs", "Pointwise", "Recurrent", "Rows", "Size", "Steps", "Tensor", "Transfer",
    "Unknown", "Work", "axes_of", "bytes_only", "caches", "known", "op", "output_rule", "registered", "shared_caches",
    "steps_of", "work", "work_of", "work_or_bytes",
]  # fmt: skip
