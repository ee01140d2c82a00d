"""Matrix multiplication: 2 m n k FLOPs a product, whatever the library tiles."""

from __future__ import annotations

from math import prod

from op_models.core import Gemm, Operator, Tensor, Work, op, work


def product(a: tuple[int, ...], b: tuple[int, ...], ta: bool, tb: bool) -> Gemm:
    """The GEMM behind numpy's matmul of shapes `a` and `b` (with the last two axes swapped where `ta`, `tb`).

    A stack of matrices times one matrix is a single taller GEMM, as libraries run it.
    """
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    m, k = (a[-1], a[-2]) if ta else (a[-2], a[-1])
    n = b[-2] if tb else b[-1]
    if prod(b[:-2]) == 1 and not ta:
        return Gemm(1, prod(a[:-2]) * m, n, k, ta, tb)
    lead = max(len(a), len(b)) - 2
    stacked = zip((1,) * (lead - len(a) + 2) + a[:-2], (1,) * (lead - len(b) + 2) + b[:-2], strict=True)
    return Gemm(prod(y if x == 1 else x for x, y in stacked), m, n, k, ta, tb)


def _stacked(shape: tuple[int, ...], behind: int) -> tuple[int, ...]:
    """A stack's axes, then its matrices', where the stack's may stand behind the matrices' first."""
    return (*shape[1:-1], shape[0], shape[-1]) if behind and len(shape) > 2 else shape


@op("MatMul", "com.microsoft::FusedMatMul")
def matmul(
    op: Operator,
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Work:
    """2 batch m n k."""
    size = product(_stacked(a.shape, transBatchA), _stacked(b.shape, transBatchB), bool(transA), bool(transB))
    return work(op, size, matrix=2 * op.out.size * size.k, vector=op.out.size * (alpha != 1.0))


@op("Gemm")
def gemm(
    op: Operator,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Work:
    """2 m n k for alpha A B, and one FMA an element for beta C (two FLOPs where beta is not 1)."""
    size = product(a.shape, b.shape, bool(transA), bool(transB))
    bias = op.out.size * (1 + (beta != 1.0)) if c is not None else 0
    return work(op, size, matrix=2 * op.out.size * size.k, vector=bias + op.out.size * (alpha != 1.0))
