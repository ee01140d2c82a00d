"""ai.onnx.ml: linear models, support vectors, trees. Their weights are attributes, whose bytes are not counted.

Inputs are [rows, features], or [features] for one row. Outputs were compared with those of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence

from op_models.core import Gemm, Operator, Pointwise, Tensor, Work, work
from op_models.move import moved
from op_models.pointwise import SPECIAL
from op_models.rules import Outputs, op


def rows_of(x: Tensor) -> int:
    """The number of samples: the first axis, or one where there is only that of the features."""
    return x.shape[0] if x.rank > 1 else 1


def regressed(x: Tensor, *, targets: int = 1) -> Outputs:
    """A number for each target: [rows, targets]."""
    return [("float32", (rows_of(x), targets))]


def classified(x: Tensor, scores: int, strings: Sequence[str]) -> Outputs:
    """The label of each row, text or a number, and its scores: [rows], [rows, scores]."""
    return [("string" if strings else "int64", (rows_of(x),)), ("float32", (rows_of(x), scores))]


def classified_by_products(
    x: Tensor, *, classlabels_strings: Sequence[str] = (), classlabels_ints: Sequence[int] = ()
) -> Outputs:
    """A score for each class."""
    return classified(x, len(classlabels_strings or classlabels_ints), classlabels_strings)


def classified_by_vectors(
    x: Tensor, *, classlabels_strings: Sequence[str] = (), classlabels_ints: Sequence[int] = (),
    vectors_per_class: Sequence[int] = (), prob_a: Sequence[float] = (),
) -> Outputs:  # fmt: skip
    """A score for each class, or for each pair of more than two where there are vectors without probabilities."""
    classes = len(classlabels_strings or classlabels_ints)
    pairs = vectors_per_class and not prob_a and classes > 2
    return classified(x, classes * (classes - 1) // 2 if pairs else classes, classlabels_strings)


@op(
    "ai.onnx.ml::LinearClassifier", "ai.onnx.ml::LinearRegressor",
    outputs={"ai.onnx.ml::LinearClassifier": classified_by_products, "ai.onnx.ml::LinearRegressor": regressed},
)  # fmt: skip
def linear(op: Operator, x: Tensor, *, coefficients: Sequence[float], intercepts: Sequence[float] = ()) -> Work:
    """2 rows classes features; vector: the intercepts."""
    features = max(x.shape[-1] if x.rank else 1, 1)
    size = Gemm(1, x.size // features, len(coefficients) // features, features)
    return work(op, size, matrix=2 * size.m * size.n * size.k, vector=size.m * len(intercepts))


@op(
    "ai.onnx.ml::SVMClassifier", "ai.onnx.ml::SVMRegressor",
    outputs={"ai.onnx.ml::SVMClassifier": classified_by_vectors, "ai.onnx.ml::SVMRegressor": regressed},
)  # fmt: skip
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


def side_by_side(*tables: Tensor | None, inputdimensions: Sequence[int] = ()) -> Outputs:
    """The columns of all inputs one after another: [rows, sum of the columns]."""
    present = [t for t in tables if t is not None]
    columns = sum(inputdimensions) or sum(t.size // max(rows_of(t), 1) for t in present)
    return [("float32", (rows_of(present[0]), columns))]


@op("ai.onnx.ml::FeatureVectorizer", outputs=side_by_side)
def vectorise(op: Operator, x: Tensor) -> Work:
    """A run is the columns of one input, as an average over the inputs."""
    return moved(op, op.out.shape[-1] // max(len(op.present), 1))


def picked(x: Tensor, indices: Tensor) -> Outputs:
    """The columns that the indices name: [..., indices]; of one row [1, indices]."""
    return [(x.dtype, (*(x.shape[:-1] or (1,)), indices.size))]


@op("ai.onnx.ml::ArrayFeatureExtractor", outputs=picked)
def pick(op: Operator) -> Work:
    """Each element by itself; only those that are picked are read."""
    return moved(op, 1, read={0: op.out.size})


def in_vocabulary(
    entries: Tensor, *, int64_vocabulary: Sequence[int] = (), string_vocabulary: Sequence[str] = ()
) -> Outputs:
    """One row with a column for each word."""
    return [("float32", (1, len(int64_vocabulary or string_vocabulary)))]


def from_map(entries: Tensor, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Outputs:
    """One row with a column for each number up to `max_map`; where it is dense, for each entry: that is not known."""
    dtype = {"TO_STRING": "string", "TO_INT64": "int64"}.get(cast_to, "float32")
    return [(dtype, (1, max_map)) if map_form == "SPARSE" else None]


@op(
    "ai.onnx.ml::CastMap", "ai.onnx.ml::DictVectorizer",
    outputs={"ai.onnx.ml::CastMap": from_map, "ai.onnx.ml::DictVectorizer": in_vocabulary},
)  # fmt: skip
def unpack(op: Operator) -> Work:
    """One element for each column; what a map holds has no bytes that are known."""
    return moved(op, 1)
