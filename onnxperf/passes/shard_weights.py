"""The stored matrices of operators that contain products, and the part of them that one of several GPUs has.

Weights of 4 and 8 bits (MatMulNBits) are divided by columns and rows as plain ones are, with their scales. A mixture of
experts is a pair of products in one operator: every GPU has a part of the width of every expert, and what they make is
added up. com.microsoft::Attention contains the product that makes queries, keys and values: it is divided by heads.
"""

from __future__ import annotations

from onnxperf.passes.experts import FIRST_WEIGHTS
from op_models import Operator

PLAIN = ("MatMul", "Gemm")
PACKED = "com.microsoft::MatMulNBits"
WITH_PRODUCT = "com.microsoft::Attention"
#: Letters of what is divided: columns of a product, what it sums over, the width of a mixture's experts.
COLUMNS, ROWS, WIDTH = "n", "k", "i"


def matrix(o: Operator) -> tuple[int, int] | None:
    """The contracted size and the columns of a product with a stored matrix; None for others."""
    if len(o.inputs) < 2 or (w := o.inputs[1]) is None or not w.stored or o.attrs.get("transA"):
        return None
    if o.type == PACKED:
        k, n = o.attrs.get("K"), o.attrs.get("N")
        return (k, n) if isinstance(k, int) and isinstance(n, int) and min(k, n) > 0 and w.rank == 3 else None
    if o.type not in PLAIN or w.rank != 2:
        return None
    return (w.shape[1], w.shape[0]) if o.attrs.get("transB") else (w.shape[0], w.shape[1])


def rows_divide(o: Operator, k: int, ranks: int) -> bool:
    """Whether the contracted size can be divided: blocks of packed weights stay whole."""
    return k % ranks == 0 and (o.type != PACKED or o.present[1].shape[1] % ranks == 0)


def width(o: Operator) -> int:
    """The width of a mixture's experts, in stored elements of its second weight, 0 where it has none."""
    weights = [t for t in o.present[FIRST_WEIGHTS:] if t.rank == 3]
    second = next((t for t in weights[1:] if t.dtype == weights[0].dtype), None)
    if second is None:
        return 0
    return second.shape[2] if second.shape[1:2] == o.present[0].shape[-1:] else second.shape[1]
