"""ai.onnx.ml: linear models, support vectors, trees. Their weights are attributes, whose bytes are not counted."""

from __future__ import annotations

from collections.abc import Sequence

from op_models.core import Gemm, Operator, Pointwise, Tensor, Work, work
from op_models.pointwise import SPECIAL
from op_models.rules import op


@op("ai.onnx.ml::LinearClassifier", "ai.onnx.ml::LinearRegressor")
def linear(op: Operator, x: Tensor, *, coefficients: Sequence[float], intercepts: Sequence[float] = ()) -> Work:
    """2 rows classes features; vector: the intercepts."""
    features = max(x.shape[-1] if x.rank else 1, 1)
    size = Gemm(1, x.size // features, len(coefficients) // features, features)
    return work(op, size, matrix=2 * size.m * size.n * size.k, vector=size.m * len(intercepts))


@op("ai.onnx.ml::SVMClassifier", "ai.onnx.ml::SVMRegressor")
def support_vectors(
    op: Operator, x: Tensor, *, support_vectors: Sequence[float] = (), coefficients: Sequence[float] = (),
    kernel_type: str = "LINEAR",
) -> Work:  # fmt: skip
    """2 rows (vectors features + coefficients); vector: kernel functions. Without vectors as `linear`."""
    if not support_vectors:
        return linear(op, x, coefficients=coefficients)
    features = max(x.shape[-1] if x.rank else 1, 1)
    size = Gemm(1, x.size // features, len(support_vectors) // features, features)
    matrix = 2 * size.m * (size.n * size.k + len(coefficients))
    return work(op, size, matrix=matrix, vector=size.m * size.n * (2 + SPECIAL) * (kernel_type != "LINEAR"))


@op("ai.onnx.ml::TreeEnsemble", "ai.onnx.ml::TreeEnsembleClassifier", "ai.onnx.ml::TreeEnsembleRegressor")
def trees(
    op: Operator, x: Tensor, *, nodes_treeids: Sequence[int] = (), tree_roots: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
) -> Work:  # fmt: skip
    """Per row and tree: 1 comparison per level of a balanced tree with as many nodes, and 1 addition."""
    count = max(len(tree_roots) or len(set(nodes_treeids)), 1)
    depth = (len(nodes_featureids) // count).bit_length()
    walks = (x.size // x.shape[-1] if x.rank and x.shape[-1] else 0) * count
    return work(op, Pointwise(walks), vector=walks * (depth + 1))
