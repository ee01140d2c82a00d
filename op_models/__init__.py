"""How much work an operator is: FLOPs, bytes, and the size a latency model reads. One file a family.

Standard library only; knows nothing of GPUs. `op` registers a rule, `work_of` applies it.
"""

from op_models import (  # noqa: F401, I001  (imported for their rules; one name a line would fill the page)
    attention, classic, conv, einsum, experts, matmul, move, normalize, pointwise, pool, recurrent, reduce,
    signal, vision,
)  # fmt: skip
from op_models.core import (
    BITS, FLOATS, ODD, Attention, Conv, Gemm, Move, Operator, OpModelError, Pointwise, Recurrent, Rows, Size, Tensor,
    Transfer, Work, bytes_only, known, op, work, work_of, work_or_bytes,
)  # fmt: skip

__all__ = [
    "BITS", "FLOATS", "ODD", "Attention", "Conv", "Gemm", "Move", "OpModelError", "Operator", "Pointwise", "Recurrent",
    "Rows", "Size", "Tensor", "Transfer", "Work", "bytes_only", "known", "op", "work", "work_of", "work_or_bytes",
]  # fmt: skip
