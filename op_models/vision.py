"""Images and regions: sampling at computed points, pooling of regions, non-maximum suppression of boxes."""

from __future__ import annotations

from math import prod

from op_models.core import Operator, Pointwise, Tensor, Work, work
from op_models.move import TAPS, moved
from op_models.rules import Outputs, op

COORDINATE = (
    6  # for each coordinate of a sampling point: scaled to pixels, rounded down, distances to both neighbours, bounds
)
OVERLAP = 18 + 4  # two corners, sides and areas of two boxes, their union, a division and a comparison
PIXEL = 2 * 16 + 6  # a separable 8 x 8 cosine transform, and three colours mixed


def sampled(x: Tensor, grid: Tensor) -> Outputs:
    """The images and channels of the input, at the points of the grid [N, ..., coordinates]."""
    return [(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))]


@op("GridSample", axes="N c ..., N ... -> N c ...")
@op("com.microsoft::GridSample", outputs=sampled)
def grid_sample(op: Operator, x: Tensor, grid: Tensor, *, mode: str = "linear") -> Work:
    """2 per tap, none for nearest; the coordinates of a point are computed once for all channels."""
    taps = TAPS.get(mode.removeprefix("bi"), 2) ** min(max(x.rank - 2, 0), 3)
    vector = 2 * taps * op.out.size * (taps > 1) + COORDINATE * grid.size
    return moved(op, 1, vector=vector, read={0: taps * op.out.size})


@op("AffineGrid")
def affine_grid(op: Operator, theta: Tensor) -> Work:
    """2 for each coordinate and axis."""
    return work(op, Pointwise(op.out.size), vector=2 * op.out.size * op.out.shape[-1])


@op("RoiAlign")
def roi_align(op: Operator, x: Tensor, rois: Tensor, *, sampling_ratio: int = 0) -> Work:
    """A bin averages or compares ratio^2 points of 4 taps; a ratio that depends on the region is assumed to be 2."""
    points = op.out.size * (sampling_ratio or 2) ** 2
    return moved(op, 1, vector=points * (2 * 4 + 1), read={0: 4 * points})


def cropped(x: Tensor, rois: Tensor, images: Tensor, size: Tensor) -> Outputs:
    """A picture of the size that is given for each region."""
    return [(x.dtype, (rois.shape[0], x.shape[1], *map(int, size.value))) if size.value else None]


@op("com.microsoft::CropAndResize", outputs=cropped)
def crop_and_resize(op: Operator, x: Tensor, *, mode: str = "bilinear") -> Work:
    """2 per tap, none for nearest."""
    taps = 4 if mode == "bilinear" else 1
    return moved(op, 1, vector=2 * taps * op.out.size * (taps > 1), read={0: taps * op.out.size})


@op("MaxRoiPool")
def max_roi_pool(op: Operator, x: Tensor) -> Work:
    """1 comparison per element of the region, which is assumed to be the whole image."""
    return moved(op, 1, vector=prod(op.out.shape[:1]) * prod(x.shape[1:]))


@op("NonMaxSuppression")
def suppress(op: Operator, boxes: Tensor, scores: Tensor) -> Work:
    """The overlap of every two boxes of a class, as kernels that build the whole mask compute it."""
    pairs = scores.size * max(scores.shape[-1] - 1, 0) // 2
    return work(op, Pointwise(pairs), vector=pairs * OVERLAP)


@op("ImageDecoder")
def decode(op: Operator, x: Tensor) -> Work:
    """An inverse cosine transform and a colour conversion per pixel and channel, as for a JPEG."""
    return work(op, Pointwise(op.out.size), vector=op.out.size * PIXEL)
