"""Normalisations: the statistics of each row, then each element is scaled by them.

An element costs 5 FLOPs (its addition to the sum, its difference from the mean, the square and its addition to the
variance, the factor 1/deviation) and one for each of scale and bias; a row costs a root and 3 (both means, epsilon).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from op_models.axes import Axes, aligned, broadcast, by_axis, by_pattern, by_row, numbered
from op_models.conv import LAST
from op_models.core import NHWC, Maybe, Operator, Pointwise, Rows, Tensor, Work, given, work
from op_models.pointwise import FLOPS, POW, SIGMOID, SPECIAL, in_single
from op_models.reduce import along, beyond
from op_models.rules import Outputs, as_first, op

ELEMENT, ROW = 5, 3 + SPECIAL
RMS_ELEMENT, RMS_ROW = 3, 2 + SPECIAL  # square, sum and factor; one mean and epsilon: the mean is not subtracted


def standardise(
    op: Operator, rows: int, width: int, extra: int, rms: bool = False, read: dict[int, int] | None = None
) -> Work:
    """Two sweeps over rows of `width`; `extra` FLOPs per element before and after them; `rms` without a mean."""
    element, row = (RMS_ELEMENT, RMS_ROW) if rms else (ELEMENT, ROW)
    return work(op, Rows(rows, width, 1), vector=rows * width * (element + extra) + rows * row, read=read)


def normalised_and_statistics(x: Tensor, scale: Tensor, *, axis: int = -1) -> Outputs:
    """The normalised input, and the mean and the factor 1/deviation of each row, as in ONNX Runtime's own files, which
    have the operator in opsets that lack it.
    """
    kept = x.rank + axis if axis < 0 else axis
    row = ("float32", (*x.shape[:kept], *(1 for _ in x.shape[kept:])))
    return [(x.dtype, x.shape), row, row]


NORMALISES = "normalises along {}"
ONWARD = by_axis(NORMALISES, onward=True)


@op("LayerNormalization", outputs=normalised_and_statistics, axes=ONWARD)
@op("com.microsoft::QOrderedLayerNormalization", inputs=(0, 2, 3), outputs=as_first)
@op("InstanceNormalization", axes="N c ..., c, c -> N c ...")
def layer_norm(op: Operator, x: Tensor, scale: Tensor, bias: Maybe = None, *, axis: int = -1) -> Work:
    """(5 + scale + bias) per element and 7 per row: all axes from `axis` on, or one channel of an image."""
    return standardise(op, *beyond(x.shape, 2 if op.type == "InstanceNormalization" else axis), given(scale, bias))


def normalised_and_factor(x: Tensor, scale: Tensor, *, axis: int = -1) -> Outputs:
    """The normalised input, in the dtype of its scale as ONNX Runtime makes it, and each row's factor 1/deviation."""
    kept = x.rank + axis if axis < 0 else axis
    return [(scale.dtype, x.shape), ("float32", (*x.shape[:kept], *(1 for _ in x.shape[kept:])))]


@op(
    "SimplifiedLayerNormalization",
    "com.microsoft::SimplifiedLayerNormalization",
    outputs=normalised_and_factor,
    axes={"SimplifiedLayerNormalization": ONWARD},
)
@op("RMSNormalization", axes=ONWARD)
def rms_norm(op: Operator, x: Tensor, scale: Tensor, *, axis: int = -1) -> Work:
    """(3 + scale) per element and 6 per row."""
    return standardise(op, *beyond(x.shape, axis), given(scale), rms=True)


def normalised_and_sum(x: Tensor) -> Outputs:
    """The normalised sum and, as output 3, the sum itself; between them stand statistics that inference lacks."""
    return [(x.dtype, x.shape), None, None, (x.dtype, x.shape)]


def skip_axes(op: Operator, x: Tensor, skip: Tensor) -> Axes:
    """Both are spread over each other's axes, then normalised along the last."""
    over = broadcast([x.shape, skip.shape])
    names = numbered(len(over), (-1,))
    return Axes((aligned(x, over, names), aligned(skip, over, names)), (names,) * len(op.outputs), NORMALISES, (0, 1))


@op("com.microsoft::SkipLayerNormalization", outputs=normalised_and_sum, axes=skip_axes)
def skip_layer_norm(
    op: Operator, x: Tensor, skip: Tensor, scale: Tensor, beta: Maybe = None, bias: Maybe = None
) -> Work:
    """LayerNormalization of x + skip + bias."""
    return standardise(op, *beyond(x.shape, -1), given(skip, scale, beta, bias))


@op("com.microsoft::SkipSimplifiedLayerNormalization", outputs=normalised_and_sum, axes=skip_axes)
def skip_rms_norm(op: Operator, x: Tensor, skip: Tensor, scale: Tensor, bias: Maybe = None) -> Work:
    """RMSNormalization of x + skip + bias."""
    return standardise(op, *beyond(x.shape, -1), given(skip, scale, bias), rms=True)


def gated_axes(op: Operator, x: Tensor, scale: Tensor) -> Axes:
    """Rows of as many elements as the scale has, of which the last axis holds several."""
    rows = " ".join(f"{k}" for k in range(x.rank - 1))
    return by_pattern(op, f"{rows} (h .), , {rows} (h .) -> {rows} (h .)", sizes={"h": x.shape[-1] // scale.size})


@op("com.microsoft::GatedRMSNorm", outputs=as_first, axes=gated_axes)
def gated_rms_norm(op: Operator, x: Tensor, scale: Tensor, gate: Tensor) -> Work:
    """RMSNormalization of rows as long as the scale, times gate sigmoid(gate)."""
    return standardise(op, x.size // max(scale.size, 1), scale.size, 3 + SIGMOID, rms=True)


def embedded(ids: Tensor, segment_ids: Tensor | None, word: Tensor) -> Outputs:
    """The normalised embedding [batch, length, hidden], the index of each mask, and the sum before it is normalised."""
    hidden = (word.dtype, (*ids.shape, word.shape[1]))
    return [hidden, ("int32", ids.shape[:1]), hidden]


def dequantised_and_embedded(ids: Tensor, segment_ids: Tensor | None, word: Tensor) -> Outputs:
    """The same of tables in 8 bits, in FP32."""
    return [("float32", (*ids.shape, word.shape[1])), ("int32", ids.shape[:1])]


@op("com.microsoft::QEmbedLayerNormalization", inputs=range(7), outputs=dequantised_and_embedded)
@op("com.microsoft::EmbedLayerNormalization", outputs=embedded)
def embed_layer_norm(
    op: Operator, ids: Tensor, segment_ids: Tensor | None, word: Tensor, position: Tensor, segment: Tensor | None,
    scale: Tensor, beta: Tensor, mask: Maybe = None, position_ids: Maybe = None,
) -> Work:  # fmt: skip
    """LayerNormalization of the sum of up to three embeddings; only rows that the ids name are read, each once."""
    rows, width = beyond(op.out.shape, -1)
    positions = rows if position_ids is not None else prod(ids.shape[1:])
    read = {2: rows * width, 3: positions * width, 4: rows * width}
    return standardise(op, rows, width, given(position, segment, scale, beta), read=read)


@op("GroupNormalization", outputs=as_first, axes="N ... -> N ... | normalises along {}")
def group_norm(op: Operator, x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int) -> Work:
    """7 per element and 7 per row; a row is a group of channels of an image."""
    return standardise(op, *grouped(x, num_groups), given(scale, bias))


@op("com.microsoft::GroupNorm", "com.microsoft::SkipGroupNorm", outputs=as_first)
def group_norm_ort(
    op: Operator, x: Tensor, scale: Tensor, beta: Tensor, skip: Maybe = None, bias: Maybe = None, *, groups: int,
    activation: int = 0,
) -> Work:  # fmt: skip
    """GroupNormalization of x + skip + bias, followed by x sigmoid(x) where `activation` is 1."""
    extra = given(skip, scale, beta, bias) + (1 + SIGMOID if activation else 0)
    return standardise(op, *grouped(x, groups), extra)


def grouped(x: Tensor, groups: int) -> tuple[int, int]:
    """The number of rows and their width, where each image has `groups` rows."""
    rows = prod(x.shape[:1]) * groups
    return rows, x.size // rows if rows else 0


def batch_norm_axes(op: Operator, *, training_mode: int = 0) -> Axes:
    """Channel by channel; in training mode statistics are those of all samples."""
    images = "N c ..." if not training_mode else ". c ..."
    return by_pattern(op, f"{images}, c, c, c, c -> {images}, c, c, c, c | takes the mean of {{}}")


@op(NHWC + "BatchNormalization", outputs=as_first)
@op("BatchNormalization", axes=batch_norm_axes)
def batch_norm(op: Operator, x: Tensor, *, training_mode: int = 0, memory_format: str = "") -> Work:
    """2 per element: in inference the statistics are stored, so a factor and a summand per channel remain; in
    `training_mode` they are those of the batch: 7 per element and 7 per channel."""
    if training_mode:
        channels = x.shape[-1 if op.type.startswith(NHWC) else 1] if x.rank > 1 else 1
        return standardise(op, channels, x.size // max(channels, 1), 2)
    last = op.type.startswith(NHWC) or memory_format == LAST
    plane = 0 if last or x.rank < 3 else prod(x.shape[2:])  # without positions there is none that a block could take
    return work(op, Pointwise(x.size, scaled=True, plane=plane), vector=2 * x.size)


def mean_variance_axes(op: Operator, x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Axes:
    """Over these axes."""
    return by_row(op, x, axes, NORMALISES)


@op("MeanVarianceNormalization", outputs=as_first, axes=mean_variance_axes)
def mean_variance_norm(op: Operator, x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Work:
    """5 per element and 7 per row; `axes` form the row."""
    inside = {a % x.rank for a in axes} if x.rank else set()
    rows = prod(d for i, d in enumerate(x.shape) if i not in inside)
    return standardise(op, rows, prod(x.shape[i] for i in inside), 0)


@op(
    "LpNormalization", "ai.onnx.ml::Normalizer", outputs={"ai.onnx.ml::Normalizer": in_single},
    axes={"LpNormalization": by_axis(NORMALISES)},
)  # fmt: skip
def lp_norm(op: Operator, x: Tensor, *, axis: int = -1, p: int = 2) -> Work:
    """Per element |x| or x x, their sum and a division; per row a root for p = 2."""
    rows, width = along(x.shape, axis)
    return work(op, Rows(rows, width, 1), vector=x.size * (2 + FLOPS["Div"]) + rows * SPECIAL * (p == 2))


@op(NHWC + "LRN", outputs=as_first)
@op("LRN", axes="N ... -> N ...")
def lrn(op: Operator, x: Tensor, *, size: int) -> Work:
    """x / (bias + alpha/size sum of `size` squares)^beta: a thread per element reads as many channels from cache."""
    channels = x.shape[-1 if op.type.startswith(NHWC) else 1] if x.rank > 1 else 1
    return work(op, Pointwise(x.size), vector=x.size * (2 * min(size, channels) + 2 + POW + FLOPS["Div"]))
