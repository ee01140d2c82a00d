"""How much work an operator is: FLOPs, bytes, and the size a latency model reads. One file a family.

Standard library only; knows nothing of GPUs. `op` registers a rule, `work_of` applies it.
"""

from op_models import attention, conv, matmul, move, normalize, pointwise, pool, reduce
from op_models.core import (
    BITS,
    FLOATS,
    Attention,
    Conv,
    Gemm,
    Move,
    Operator,
    OpModelError,
    Pointwise,
    Rows,
    Size,
    Tensor,
    Transfer,
    Work,
    bytes_only,
    known,
    op,
    work,
    work_of,
)

__all__ = [
    "BITS", "FLOATS", "Attention", "Conv", "Gemm", "Move", "OpModelError", "Operator", "Pointwise",
    "Rows", "Size", "Tensor", "Transfer", "Work", "attention", "bytes_only", "conv", "known", "matmul", "move",
    "normalize", "op", "pointwise", "pool", "reduce", "work", "work_of",
]  # fmt: skip
