"""Matrix multiplication, 2 m n k FLOPs however a library tiles it; and determinants and inverses."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from op_models.axes import WHOLE, Axes, Names, aligned, broadcast, by_pattern, numbered
from op_models.core import Gemm, Maybe, Operator, Pointwise, Rows, Tensor, Work, given, work
from op_models.pointwise import DEQUANTISE, GELU_TANH, QUANTISE, REQUANTISE, SPECIAL, activated
from op_models.rules import Like, Outputs, as_first, op

#: Vector FLOPs per output after the product: to dequantise or requantise it, or its activation.
AFTER = {
    "QLinearMatMul": REQUANTISE, "com.microsoft::QOrderedMatMul": REQUANTISE, "com.microsoft::QGemm": REQUANTISE,
    "com.microsoft::MatMulIntegerToFloat": DEQUANTISE, "com.microsoft::DynamicQuantizeMatMul": DEQUANTISE,
    "com.microsoft::GemmFastGelu": GELU_TANH,
}  # fmt: skip


def product(a: tuple[int, ...], b: tuple[int, ...], ta: bool, tb: bool) -> Gemm:
    """The GEMM behind numpy's matmul of shapes `a` and `b` (with the last two axes swapped where `ta`, `tb`).

    A batch of matrices times one matrix is a single GEMM with more rows, as libraries run it.
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


def stacked(shape: tuple[int, ...], behind: bool) -> tuple[int, ...]:
    """The shape [batch, ..., rows, columns]; where `behind` is set, that of a tensor [rows, batch, ..., columns]."""
    return (*shape[1:-1], shape[0], shape[-1]) if behind and len(shape) > 2 else shape


ADDS_UP = "adds up along {}"
ROWS, SUMMED, COLUMNS = ("m",), ("k",), ("n",)


def product_axes(op: Operator, a: Tensor, b: Tensor) -> Axes:
    """Rows m of the first, columns n of the second, summed over k; stacks of matrices are spread over each other."""
    over = broadcast([a.shape[:-2], b.shape[:-2]])
    left, right = (aligned(replace(t, shape=t.shape[:-2]), over) or () for t in (a, b))
    rows, columns = (ROWS,) * (a.rank > 1), (COLUMNS,) * (b.rank > 1)
    inputs = (*left, *rows, SUMMED), (*right, SUMMED, *columns)
    return Axes(inputs, ((*numbered(len(over)), *rows, *columns),), ADDS_UP, spread=(0, 1))


def quantised_axes(op: Operator, a: Tensor, *others: Maybe) -> Axes:
    """A product whose operands are quantised, each by all of it, by row or by column.

    Of QLinearMatMul the result is quantised, so that summands of it can't be added up.
    """
    right, scaled = (3, {1: ROWS, 2: ROWS, 4: COLUMNS, 5: COLUMNS}) if len(others) > 3 else (1, {2: ROWS, 3: COLUMNS})
    stated = product_axes(op, a, op.inputs[right] or a)
    named: list[Names | None] = [None] * len(op.inputs)
    for i, names in zip((0, right), stated.inputs, strict=True):
        named[i] = names and tuple(WHOLE if axis == SUMMED and right > 1 else axis for axis in names)
    for i, axis in scaled.items():
        if i < len(op.inputs) and (t := op.inputs[i]) is not None and t.rank == 1 and t.size > 1:
            named[i] = (axis,)
    return replace(stated, inputs=tuple(named))


def whole_product(a: Tensor, b: Tensor) -> Outputs:
    """The product of matrices in whole numbers of 32 bits."""
    return [("int32", (*broadcast([a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1]))]


@op("QLinearMatMul", inputs=(0, 3), axes=quantised_axes)
@op("com.microsoft::QOrderedMatMul", inputs=(0, 2, 5, 6), outputs=Like("MatMul", (0, 2)))
@op("com.microsoft::MatMulIntegerToFloat", inputs=(0, 1, 6), outputs=Like("MatMul", (0, 1), dtype=2))
@op("com.microsoft::TransposeMatMul", inputs=(0, 1), outputs=Like("MatMul", (0, 1)))
@op("com.microsoft::FusedMatMul", "com.microsoft::FusedMatMulActivation", outputs=Like("MatMul", (0, 1)))
@op("com.microsoft::MatMulInteger16", inputs=(0, 1), outputs=whole_product)
@op("MatMulInteger", inputs=(0, 1), axes=quantised_axes)
@op("MatMul", axes=product_axes)
def matmul(
    op: Operator, a: Tensor, b: Tensor, bias: Maybe = None, summand: Maybe = None, *, alpha: float = 1.0,
    transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0, activation: str = "",
) -> Work:  # fmt: skip
    """2 batch m n k; vector: bias, scale, activation and requantisation, once per output."""
    a_shape, b_shape = stacked(a.shape, bool(transBatchA)), stacked(b.shape, bool(transBatchB))
    size = product(a_shape, b_shape, bool(transA), bool(transB))
    after = (alpha != 1.0) + given(bias, summand) + activated(activation) + AFTER.get(op.type, 0)
    return work(op, size, matrix=2 * op.out.size * size.k, vector=op.out.size * after)


def gemm_axes(op: Operator, a: Tensor, b: Tensor, c: Maybe = None, *, transA: int = 0, transB: int = 0) -> Axes:
    """A product of two matrices, and a bias that is spread over it."""
    left, right = (SUMMED, ROWS) if transA else (ROWS, SUMMED), (COLUMNS, SUMMED) if transB else (SUMMED, COLUMNS)
    bias = aligned(c, (a.shape[bool(transA)], b.shape[not transB]), (ROWS, COLUMNS))
    return Axes((left, right, bias), ((ROWS, COLUMNS),), ADDS_UP, spread=(2,))


#: Types that an attribute names by ONNX's numbers.
TYPES = {1: "float32", 10: "float16", 16: "bfloat16", 17: "float8e4m3fn", 19: "float8e5m2"}


def product_of_type(a: Tensor, b: Tensor, *, transA: int = 0, transB: int = 0, dtype: int = 1) -> Outputs:
    """The product of two matrices in the type that an attribute names."""
    return [(TYPES.get(dtype, "float32"), (a.shape[bool(transA)], b.shape[not transB]))]


@op("com.microsoft::QGemm", inputs=(0, 3, 6), outputs=Like("Gemm", (0, 3), dtype=8))
@op("com.microsoft::FusedGemm", outputs=Like("Gemm", (0, 1)))
@op("com.microsoft::GemmFastGelu", outputs=Like("MatMul", (0, 1)))
@op("com.microsoft::GemmFloat8", outputs=product_of_type)
@op("Gemm", axes=gemm_axes)
def gemm(
    op: Operator, a: Tensor, b: Tensor, c: Maybe = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
    transB: int = 0, activation: str = "",
) -> Work:  # fmt: skip
    """2 m n k; vector, per output: 1 for alpha, 1 for C (2 where beta is not 1), and what is fused."""
    size = product(a.shape, b.shape, bool(transA), bool(transB))
    bias = op.out.size * (1 + (beta != 1.0)) if c is not None else 0
    after = (alpha != 1.0) + activated(activation) + AFTER.get(op.type, 0)
    return work(op, size, matrix=2 * op.out.size * size.k, vector=bias + op.out.size * after)


@op("com.microsoft::DynamicQuantizeMatMul", inputs=(0, 1, 4), outputs=Like("MatMul", (0, 1)))
def dynamic_matmul(op: Operator, a: Tensor, b: Tensor, bias: Maybe = None) -> Work:
    """2 batch m n k in integers; vector: A is quantised by its minimum and maximum, the output is dequantised."""
    plain = matmul(op, a, b, bias)
    quantise = a.size * (2 + QUANTISE)
    return work(op, plain.size, matrix=plain.matrix_flops, vector=plain.vector_flops + quantise, dtype=b.dtype)


def packed_product(a: Tensor, *, N: int) -> Outputs:
    """The first input's shape with N columns."""
    return [(a.dtype, (*a.shape[:-1], N))]


def product_by_shape(a: Tensor, b: Tensor, shape: Tensor) -> Outputs:
    """The first input's shape with as many columns as the weights have, whose shape is an input."""
    return [(a.dtype, (*a.shape[:-1], int(shape.value[1])))] if shape.value else []


def by_rows(a: Tensor, b: Tensor) -> Outputs:
    """The first input's shape with as many columns as the weights have rows."""
    return [(a.dtype, (*a.shape[:-1], b.shape[0]))]


def packed_axes(op: Operator, *, N: int = 0) -> Axes:
    """Weights [N, blocks of K, bytes]; scales and zero points of blocks, in one axis or in two."""
    scales, zeros = ("(n k)" if t is not None and t.rank == 1 else "n k" for t in (*op.inputs[2:4], None, None)[:2])
    pattern = f"* k, n k ., {scales}, {zeros}, k, n -> * n | {ADDS_UP}"
    return by_pattern(op, pattern, sizes={"n": N}, counts={"N": "n", "K": "k"})


@op("com.microsoft::MatMulNBits", inputs=(0, 5), outputs=packed_product, axes=packed_axes)
@op("com.microsoft::MatMulBlockQuantizedFp4Weight", inputs=(0, 5), outputs=by_rows)
@op("com.microsoft::MatMulBnb4", inputs=(0,), outputs=packed_product)
@op("com.microsoft::MatMulFpQ4", inputs=(0,), outputs=product_by_shape)
@op("com.microsoft::MatMulBlockQuantizedFp8Weight", inputs=(0, 4), outputs=by_rows)
def packed_matmul(op: Operator, a: Tensor, bias: Maybe = None, *, N: int = 0, K: int = 0) -> Work:
    """2 m N K in A's dtype; vector: 2 per weight, which is stored in fewer bits and dequantised in the kernel."""
    k, n = K or a.shape[-1], N or op.out.shape[-1]
    size = Gemm(1, a.size // k if k else 0, n, k, False, True)
    return work(op, size, matrix=2 * size.m * n * k, vector=2 * n * k + size.m * n * given(bias))


@op("DequantizeBlocks")
def dequantise_blocks(op: Operator, *, N: int = 0) -> Work:
    """2 per weight, which is read packed and written in the product's type: of N rows those that the output has."""
    part = {i: t.size * op.out.shape[0] // N for i, t in enumerate(op.inputs) if N and t is not None}
    return work(op, Pointwise(op.out.size), vector=DEQUANTISE * op.out.size, read=part)


def pairs(a: Tensor, b: Tensor) -> Outputs:
    """One element for each row of A and row of B."""
    return [(a.dtype, (a.shape[0], b.shape[0]))]


@op("com.microsoft::CDist", outputs=pairs)
def distances(op: Operator, a: Tensor, b: Tensor, *, metric: str = "sqeuclidean") -> Work:
    """2 m n k; vector: the norms of all rows, then max(0, |a|^2 + |b|^2 - 2 a b), and a root where Euclidean."""
    size = product(a.shape, b.shape, False, True)
    vector = 2 * (a.size + b.size) + op.out.size * (4 + SPECIAL * (metric == "euclidean"))
    return work(op, size, matrix=2 * op.out.size * size.k, vector=vector)


@op("com.microsoft::Inverse", outputs=as_first)
@op("Det")
def factorise(op: Operator, x: Tensor) -> Work:
    """Determinant by LU: 2/3 n^3, and n for the diagonal; inverse: 2 n^3. One thread block works on each matrix."""
    n = x.shape[-1]
    count = prod(x.shape[:-2])
    each = 2 * n**3 // 3 + n if op.type == "Det" else 2 * n**3
    return work(op, Rows(count, n * n, 1), vector=count * each)


@op("BiasRows")
def bias_rows(op: Operator, bias: Tensor) -> Work:
    """2 per element: a column of ones times the bias, a row, which a product is added to; no FLOPs of a product."""
    size = Gemm(1, op.out.size // max(bias.size, 1), bias.size, 1)
    return work(op, size, vector=2 * op.out.size)
