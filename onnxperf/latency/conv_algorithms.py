"""What libraries run for a convolution on CUDA cores: implicit products, Winograd and Fourier transforms.

Each algorithm yields the terms of its kernels, with infinite seconds where the shape does not allow it; shapes are
[n, g] for n works on g cards. Source of the forms: Lavin and Gray, "Fast algorithms for convolutional neural
networks", 2015; Mathieu, Henaff and LeCun, "Fast training of convolutional networks through FFTs", 2013. Which tiles
and transforms there are: kernel names of cuDNN 7 and 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.cuda_cores import cuda_cores
from onnxperf.latency.tensor_cores import Product
from onnxperf.latency.terms import Array, KernelTerms, counted_waves, hidden_latency, pnorm
from onnxperf.latency.traffic import load_s, overlap, traffic

SUMS_IN_FP32 = ("float32", "float16", "bfloat16")  # on CUDA cores, by libraries
BYTES = 4  # of an element in FP32
FEW = 4  # channels of an image that fill no word of 16 bytes
MOST_WARPS = 8  # of a block of these kernels


class Shape(NamedTuple):
    """A convolution as columns [n, 1].

    cin, cout: channels of one group; out: output positions of an image; taps: positions of the filter; k: products
    summed into an output; x_bytes, w_bytes: of the image and the filter. transformable: whether a transform can do it:
    forward, stride 1, one group, accumulation in FP32.
    """

    images: Array
    groups: Array
    cin: Array
    cout: Array
    out: Array
    taps: Array
    k: Array
    x_bytes: Array
    w_bytes: Array
    transformable: Array

    @property
    def edge(self) -> Array:
        """The side of a square image with as many positions out."""
        return np.asarray(np.sqrt(self.out))


class Transform(NamedTuple):
    """A Winograd or Fourier algorithm: elementwise products in a transformed basis.

    points: products of a tile for each pair of channels; flops: of one multiply-add; width: bytes of a number (complex:
    8); outputs [n, 1]: the side of an output tile; open_to [n, 1] or [n, g]: whether it can do the work.
    """

    name: str
    points: int
    flops: int
    width: int
    outputs: Array
    open_to: Array


def shape_of(works: Works) -> Shape:
    """The columns of convolutions, none of their sizes below 1."""
    groups, out, images = (np.maximum(works[f], 1) for f in ("groups", "out", "images"))
    cin, cout = np.maximum(works["cin"] / groups, 1), np.maximum(works["cout"] / groups, 1)
    k = np.maximum(works.matrix / (2 * images * out * cout * groups), 1)
    plain = np.array(
        [[w.dtype in SUMS_IN_FP32 and getattr(w.size, "direction", "") in ("forward", "weights")] for w in works.each]
    )
    transformable = plain & (works["stride"] == 1) & (groups == 1)
    image_bytes = works.read - works.weights
    return Shape(images, groups, cin, cout, out, works["taps"], k, image_bytes, works.weights, transformable)


def cuda_core_algorithms(works: Works, s: Shape, cards: Cards) -> Iterator[KernelTerms]:
    """Every algorithm, on each of its tiles."""
    yield from implicit(works, s, cards)
    yield from fused_winograd(works, s, cards)
    yield from transformed(works, s, cards)
    yield plain_product(works, s, cards)


def plain_product(works: Works, s: Shape, cards: Cards) -> KernelTerms:
    """1x1 filters with stride 1 as a cuBLAS product, which has smaller tiles and split-K.

    For each image and group: output channels x positions, with the NCHW image as the second operand. Not in NHWC, where
    TensorRT's times show kernels of its own.
    """
    product = cuda_cores(works, Product(s.images * s.groups, s.cout, s.out, s.k), cards)
    open_to = (s.taps == 1) & (works["stride"] == 1) & (works["last"] == 0)
    compute = product.compute + product.latency
    detail: dict[str, Array] = {}
    if product.detail:
        waves = {name: product.detail[name] for name in ("waves", "counted waves", "full waves efficiency")}
        efficiency = works.matrix / works.rate / compute / waves["full waves efficiency"]
        detail = {
            "executed share": np.ones_like(compute), **waves, "GEMM seconds": compute,
            "traffic seconds": product.memory, "transform seconds": np.zeros_like(compute),
            "GEMM efficiency": efficiency,
        }  # fmt: skip
    seconds = np.where(open_to, product.seconds, np.inf)
    return product._replace(seconds=seconds, variant=np.char.add("product ", product.variant), detail=detail)


def gathered_s(works: Works, s: Shape, cards: Cards) -> Array:
    """Seconds in which CUDA cores gather an image of up to 4 channels from Ampere on, [n, g], whatever the products
    need: a channel of a tap takes `gathered` issue slots for 32 channels out, and a step of 8 of them a load. Else 0.
    """
    slots = s.images * s.out * s.k * np.ceil(s.cout / 32) * cards.constants.convolution["gathered"]
    seconds = np.maximum(slots / cards.issue * cards.compute, np.ceil(s.k / 8) * load_s(cards) * cards.memory)
    forward = np.array([[getattr(w.size, "direction", "") == "forward" for w in works.each]]).T
    return np.where(forward & (s.cin <= FEW) & (s.groups == 1) & (works["taps"] > 1) & (cards.major >= 8), seconds, 0.0)


def implicit(works: Works, s: Shape, cards: Cards) -> Iterator[KernelTerms]:
    """Implicit GEMM: the image is gathered tap by tap, mostly from caches, without an im2col matrix in memory.

    A block computes 128 positions by 32, 64 or 128 channels. Each column of blocks reads the image again, from DRAM
    where L2 does not hold it. In NHWC there are also sliced-K kernels
    (`volta_scudnn_128x32_sliced1x4_ldg4_relu_exp_nhwc`): a block has several times the warps, each slice of which sums
    a part of k, so that few blocks hide their latency.
    """
    coef, rows = cards.constants.convolution, 128
    for columns in coef["columns"]:
        sweeps = np.ceil(s.cout / columns)
        number = s.groups * np.ceil(s.images * s.out / rows) * sweeps
        flops = 2 * rows * columns * s.k * _small_tile_loss(rows, columns, coef["implicit"], cards)
        memory = np.maximum(_swept_s(works, s, cards, sweeps), _l2_s(number, rows, columns, s.k, BYTES, cards))
        for slices in (1, *(n for n in coef["slices"] if n * rows * columns <= 2048 * MOST_WARPS)):
            compute, waves = blocks(number, flops, slices * rows * columns / 2048, works, cards)
            compute = np.maximum(compute, gathered_s(works, s, cards))
            everything = np.ones_like(compute)
            sliced = f" sliced {slices}" if slices > 1 else ""
            yield _terms(
                f"{rows}x{columns}{sliced}", works, cards, executed_share=everything, compute=compute, memory=memory,
                waves=waves, open_to=(everything > 0) & ((slices == 1) | (works["last"] > 0)),
            )  # fmt: skip


def fused_winograd(works: Works, s: Shape, cards: Cards) -> Iterator[KernelTerms]:
    """Winograd's F(2x2, 3x3) in one kernel: 16 products instead of 36. A block does 32 tiles of 2x2 by 32 channels.

    The library has kernels for some arrangements of the 32 tiles as images x rows x columns; tiles beyond the border
    are wasted.
    """
    open_to = s.transformable & (s.taps == 9)
    if not open_to.any():
        return
    coef = cards.constants.convolution
    edge = np.ceil(s.edge / 2)
    tiles = {
        (i, h, w): np.ceil(s.images / i) * np.ceil(edge / h) * np.ceil(edge / w)
        for i, h, w in (tuple(t) for layouts in coef["fused_tiles"].values() for t in layouts)
    }
    layouts_of = cards.nearest(coef["fused_tiles"])
    fewest = [np.minimum.reduce([tiles[i, h, w] for i, h, w in layouts]) for layouts in layouts_of]
    sweeps = np.ceil(s.cout / 32)
    number = np.concatenate(fewest, axis=1) * sweeps
    compute, waves = blocks(number, 2 * 16 * 32 * 32 * s.cin * coef["fused"], 8.0, works, cards)
    memory = _swept_s(works, s, cards, sweeps)
    executed_share = np.clip(16 / 36 * number * 32 * 4 * 32 / (s.images * s.out * s.cout), 16 / 36, 1)
    yield _terms(
        "winograd 2x2", works, cards, executed_share=executed_share, compute=compute, memory=memory,
        waves=waves, open_to=open_to,
    )  # fmt: skip


def transformed(works: Works, s: Shape, cards: Cards) -> Iterator[KernelTerms]:
    """Winograd and Fourier algorithms in four kernels, with every tile that the library has for their products.

    Three kernels transform the image, the filter and the result, through DRAM where L2 does not hold them. The fourth
    is a batched product: for each point of a tile, tiles x input channels by input channels x output channels.
    """
    if not (s.transformable & (s.taps >= 9)).any():
        return
    coef = cards.constants.convolution
    for t in _transforms(s, cards):
        if not t.open_to.any():
            continue
        tiles = s.images * np.ceil(s.edge / np.maximum(t.outputs, 1)) ** 2
        image, filters, result = (t.width * t.points * n for n in (tiles * s.cin, s.cin * s.cout, tiles * s.cout))
        moves = (s.x_bytes + image, s.w_bytes + filters, works.written + result)
        transform_s = coef["transform"] * np.asarray(sum(stream_s(x, cards) for x in moves))
        workspace = image + filters + result
        stream = stream_s(workspace, cards)
        executed_share = np.minimum(t.points * t.flops * tiles / (2 * s.images * s.out * s.taps), 1)
        for columns, rows, available in _product_tiles(cards):
            number = t.points * np.ceil(tiles / rows) * np.ceil(s.cout / columns)
            k = 8 * np.ceil(s.cin / 8)
            flops = t.flops * rows * columns * k * _small_tile_loss(rows, columns, coef["product"], cards)
            warps = min(max(rows * columns / 2048, 1), 8)
            compute, waves = blocks(number, flops, warps, works, cards)
            memory = np.maximum(stream, _l2_s(number, rows, columns, k, t.width, cards))
            yield _terms(
                t.name, works, cards, executed_share=executed_share * np.ones_like(stream), compute=compute,
                memory=memory, waves=waves, open_to=t.open_to & available, transform_s=transform_s, kernels=4,
                workspace=workspace, filters=filters,
            )  # fmt: skip


def _transforms(s: Shape, cards: Cards) -> tuple[Transform, ...]:
    """Winograd's F(4x4, 3x3) and F(5x5, 5x5), and Fourier transforms of 16x16 and 32x32 tiles, of whose points only
    half are computed: transforms of real numbers are symmetric.
    """
    reach = np.sqrt(s.taps)
    square = s.transformable & (reach == np.floor(reach))
    return (
        Transform("winograd 4x4", 36, 2, 4, np.full_like(reach, 4), square & (reach == 3)),
        Transform("winograd 5x5", 81, 2, 4, np.full_like(reach, 5), square & (reach == 5) & (cards.major >= 7)),
        Transform("fft 16x16", 16 * 9, 8, 8, 17 - reach, square & (reach >= 3) & (reach <= 9)),
        Transform("fft 32x32", 32 * 17, 8, 8, 33 - reach, square & (reach >= 3) & (reach <= 17)),
    )


def _product_tiles(cards: Cards) -> list[tuple[int, int, Array]]:
    """Columns and rows of all tiles, and the cards [1, 1, g] whose library has them."""
    sets = cards.nearest(cards.constants.convolution["product_tiles"])
    every = sorted({(a, b) for tiles in sets for a, b in tiles})
    return [(a, b, np.array([[[a, b] in tiles for tiles in sets]])) for a, b in every]


def blocks(number: Array, flops: Array, warps: float, works: Works, cards: Cards) -> tuple[Array, Array]:
    """Seconds of `number` blocks with so many FLOPs and warps each, and waves = blocks / SMs.

    seconds = counted waves x (FLOPs / (rate of an SM x share of latency that its warps hide) + prologue / resident
    blocks), with 16 warps resident on an SM. `alpha` says how much a partial last wave counts as a full one.
    """
    coef = cards.constants.convolution
    waves = number / cards.sms
    resident = np.maximum(1, np.floor(16 / warps))
    counted = counted_waves(waves, coef["alpha"])
    hidden = hidden_latency(waves, warps, resident, coef["half_warps"])
    efficiency = hidden / np.where(cards.lanes >= 128, 1 + coef["issue"], 1.0)
    block_s = flops * cards.sms / (works.rate * efficiency)
    return counted * (block_s + coef["prologue_s"] / resident) * cards.compute, waves


def _small_tile_loss(rows: int, columns: int, cycles: float, cards: Cards) -> float:
    """Cycles over those at peak FLOP/s: the algorithm's `cycles`, times a loss by `kappa` for loads of small tiles."""
    return float(cycles * (1 + 32 * cards.constants.convolution["kappa"] * (1 / rows + 1 / columns)))


def _l2_s(number: Array, rows: int, columns: int, k: Array, width: int, cards: Cards) -> Array:
    """Seconds that L2 takes to feed the operands of `number` blocks, `width` bytes an element."""
    nbytes = width * number * (rows + columns) * k
    return np.asarray(nbytes / cards.l2_stream_Bps * cards.memory)


def stream_s(nbytes: Array, cards: Cards) -> Array:
    """Seconds to move so many bytes through DRAM, or through L2 where it holds them."""
    return traffic(nbytes, cards, overlap(cards))[0]


def _swept_s(works: Works, s: Shape, cards: Cards, sweeps: Array) -> Array:
    """Seconds of DRAM traffic where each column of blocks reads the image again.

    Of every read after the first, the share `restream` x image / (image + L2) comes from DRAM.
    """
    miss = s.x_bytes / (s.x_bytes + cards.l2)
    nbytes = works.bytes + cards.constants.convolution["restream"] * miss * (sweeps - 1) * s.x_bytes
    return np.asarray(nbytes / (cards.bandwidth * cards.dram) * cards.memory)


def _terms(
    name: str, works: Works, cards: Cards, *, executed_share: Array, compute: Array,
    memory: Array, waves: Array, open_to: Array, transform_s: Array | float = 0.0, kernels: int = 1,
    workspace: Array | float = 0.0, filters: Array | float = 0.0,
) -> KernelTerms:  # fmt: skip
    """The terms of one algorithm: pnorm(compute, memory) of its product, plus its transforms and kernel launches."""
    coef = cards.constants.convolution
    launch = kernels * cards.constants.launch["kernel_s"] * cards.launch
    seconds = pnorm(compute, memory, p=coef["norm"]) + transform_s + launch
    useful = np.minimum(executed_share * works.matrix / works.rate * cards.compute, compute)
    detail: dict[str, Array] = {}
    if len(works.each) == 1:  # somebody asks about this one
        counted = counted_waves(waves, coef["alpha"])
        detail = {
            "executed share": executed_share, "waves": waves, "counted waves": counted, "GEMM seconds": compute,
            "traffic seconds": memory, "transform seconds": np.asarray(transform_s),
            "full waves efficiency": waves / counted,
            "GEMM efficiency": executed_share * works.matrix / works.rate / compute * counted / waves,
        }  # fmt: skip
    return KernelTerms(
        useful, memory + transform_s, compute - useful, np.broadcast_to(launch, compute.shape),
        np.where(open_to, seconds, np.inf), np.array(name), np.asarray(workspace), np.asarray(kernels),
        np.clip(waves, 0, 1), executed_share * coef["energy"],
        np.asarray(filters), detail=detail,
    )  # fmt: skip
