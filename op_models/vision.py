"""Images and regions: sampling at points that are computed, pooling of regions, boxes that suppress each other."""

from __future__ import annotations

from math import prod

from op_models.core import Operator, Pointwise, Tensor, Work, work
from op_models.move import TAPS, moved
from op_models.rules import op

COORDINATE = 6  # scaled to pixels, rounded down, its distances, its bounds
OVERLAP = 18 + 4  # two corners, sides and areas of two boxes, their union, a division and a comparison
PIXEL = 2 * 16 + 6  # a separable 8 x 8 cosine transform, and three colours mixed


@op("GridSample", "com.microsoft::GridSample")
def grid_sample(op: Operator, x: Tensor, grid: Tensor, *, mode: str = "linear") -> Work:
    """2 a tap, nothing for nearest; the coordinates of a point serve all channels."""
    taps = TAPS.get(mode.removeprefix("bi"), 2) ** min(max(x.rank - 2, 0), 3)
    vector = 2 * taps * op.out.size * (taps > 1) + COORDINATE * grid.size
    return moved(op, 1, vector=vector, read={0: taps * op.out.size})


@op("AffineGrid")
def affine_grid(op: Operator, theta: Tensor) -> Work:
    """2 for each coordinate and each of its axes."""
    return work(op, Pointwise(op.out.size), vector=2 * op.out.size * op.out.shape[-1])


@op("RoiAlign")
def roi_align(op: Operator, x: Tensor, rois: Tensor, *, sampling_ratio: int = 0) -> Work:
    """A bin averages or compares ratio^2 points of 4 taps; a ratio that depends on the region is taken for 2."""
    points = op.out.size * (sampling_ratio or 2) ** 2
    return moved(op, 1, vector=points * (2 * 4 + 1), read={0: 4 * points})


@op("com.microsoft::CropAndResize")
def crop_and_resize(op: Operator, x: Tensor, *, mode: str = "bilinear") -> Work:
    """2 a tap, nothing for nearest."""
    taps = 4 if mode == "bilinear" else 1
    return moved(op, 1, vector=2 * taps * op.out.size * (taps > 1), read={0: taps * op.out.size})


@op("MaxRoiPool")
def max_roi_pool(op: Operator, x: Tensor) -> Work:
    """1 comparison an element of the region, which is taken for the whole image."""
    return moved(op, 1, vector=prod(op.out.shape[:1]) * prod(x.shape[1:]))


@op("NonMaxSuppression")
def suppress(op: Operator, boxes: Tensor, scores: Tensor) -> Work:
    """The overlap of every pair of boxes of a class, as kernels that build the whole mask do."""
    pairs = scores.size * max(scores.shape[-1] - 1, 0) // 2
    return work(op, Pointwise(pairs), vector=pairs * OVERLAP)


@op("ImageDecoder")
def decode(op: Operator, x: Tensor) -> Work:
    """A cosine transform and a mixture of colours for each sample, as of a JPEG."""
    return work(op, Pointwise(op.out.size), vector=op.out.size * PIXEL)
