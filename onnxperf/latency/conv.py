"""Convolutions: implicit products, Winograd and Fourier transforms on CUDA cores; products on tensor cores.

The fastest of the algorithms that are open to a shape is taken: libraries search by measuring, or know what would win.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from onnxperf.latency import vector
from onnxperf.latency.bounds import SUMS_IN_FP32, Array, Bounds, Columns, bounds, choose, in_waves, least, pnorm
from onnxperf.latency.cards import Cards, nearest
from onnxperf.latency.constants import Constants
from onnxperf.latency.tensor import Product, tensor_cores
from op_models import BITS


class Shape(NamedTuple):
    """A convolution as columns [n, 1]: channels of one group, positions out of an image, what it reads and writes."""

    images: Array
    groups: Array
    cin: Array
    cout: Array
    out: Array
    taps: Array
    depth: Array  # products that an output sums up
    x_bytes: Array
    w_bytes: Array
    exact: Array  # stride 1, one group, sums in FP32: open to transforms

    @property
    def side(self) -> Array:
        """Of a square image with as many positions."""
        return np.asarray(np.sqrt(self.out))


def shape(k: Columns) -> Shape:
    """The columns of convolutions."""
    groups, out = np.maximum(k["groups"], 1), np.maximum(k["out"], 1)
    images, cin, cout = np.maximum(k["images"], 1), np.maximum(k["cin"] / groups, 1), np.maximum(k["cout"] / groups, 1)
    depth = np.maximum(k.matrix / (2 * images * out * cout * groups), 1)
    plain = np.array([[w.dtype in SUMS_IN_FP32 and getattr(w.size, "direction", "") == "forward"] for w in k.works])
    exact = plain & (k["stride"] == 1) & (groups == 1)
    return Shape(images, groups, cin, cout, out, k["taps"], depth, k.read - k.weights, k.weights, exact)


def conv(k: Columns, d: Cards, c: Constants, cold: Array) -> Bounds:
    """The product with m = images x positions, n = channels out, k = what an output sums up, one a group.

    Tensor cores run that product, CUDA cores the fastest of what is open to the shape. A depthwise convolution has no
    product to speak of: its taps run on the vector units beside its traffic.
    """
    s = shape(k)
    found = depthwise(k, d, c)
    on_tensor = d.tensor(k.pipes)
    product = np.broadcast_to(~((s.cin <= 4) & (s.groups > 1)), on_tensor.shape)
    if (product & ~on_tensor).any():
        options = [*implicit(k, s, d, c), *fused(k, s, d, c), *transformed(k, s, d, c)]
        found = choose(product, fastest(options), found)
    if (product & on_tensor).any():
        found = choose(product & on_tensor, on_tensor_cores(k, s, d, c, cold), found)
    return found


def fastest(options: Sequence[Bounds]) -> Bounds:
    """The fastest of several ways, for each kernel on each card."""
    seconds = np.stack([o.seconds for o in options])
    _, chosen = least(seconds)

    def at(terms: Sequence[Array]) -> Array:
        return chosen(np.stack([np.broadcast_to(t, seconds.shape[1:]) for t in terms]))

    terms = {f: at([getattr(o, f) for o in options]) for f in Bounds._fields[:-1]}
    detail = {name: at([o.detail[name] for o in options]) for name in options[0].detail}
    if detail and len(options) > 1:
        detail["runner-up seconds"] = np.partition(seconds, 1, axis=0)[1]
    return Bounds(**terms, detail=detail)


def blocks(count: Array, flops: Array, warps: float, k: Columns, d: Cards, c: Constants) -> tuple[Array, Array]:
    """Seconds of `count` blocks of so many FLOPs and warps each, in waves over the SMs; and waves of one block an SM.

    waves x (FLOPs / (rate of an SM x share of latency hidden by its warps) + prologue / blocks that are resident).
    """
    g = c.convolution
    x = count / d.sms
    resident = np.maximum(1, np.floor(16 / warps))
    waves, hidden = in_waves(x, warps, resident, g)
    efficiency = hidden / np.where(d.lanes >= 128, 1 + g["issue"], 1.0)
    return waves * (flops * d.sms / (k.rate * efficiency) + g["prologue_s"] / resident) * d.compute, x


def _option(
    name: str, k: Columns, d: Cards, c: Constants, effort: Array, compute: Array, memory: Array, other: Array | float,
    kernels: int, workspace: Array | float, share: Array, open_to: Array,
) -> Bounds:  # fmt: skip
    """One way to run kernels; `other` seconds come before and after the product."""
    launch = kernels * c.launch["kernel_s"] * d.launch
    seconds = pnorm(compute, memory, p=c.convolution["norm"]) + other + launch
    useful = np.minimum(effort * k.matrix / k.rate * d.compute, compute)
    detail: dict[str, Array] = {}
    if len(k.works) == 1:  # somebody asks about this one
        counted = np.maximum(1, share + c.convolution["alpha"] * (np.ceil(share) - share))
        detail = {
            "executed share": effort, "waves": share, "counted waves": counted, "product seconds": compute,
            "traffic seconds": memory, "transform seconds": np.asarray(other), "full waves efficiency": share / counted,
            "product efficiency": effort * k.matrix / k.rate / compute * counted / share,
        }  # fmt: skip
    return Bounds(
        useful, memory + other, compute - useful, np.broadcast_to(launch, compute.shape),
        np.where(open_to, seconds, np.inf), np.array(name), np.asarray(workspace), np.asarray(kernels),
        np.clip(share, 0, 1), effort * c.convolution["energy"], detail,
    )  # fmt: skip


def implicit(k: Columns, s: Shape, d: Cards, c: Constants) -> Iterator[Bounds]:
    """128 positions by 32, 64 or 128 channels a block; the image is gathered tap by tap, mostly from caches.

    Each column of blocks sweeps the image again, from DRAM where L2 does not hold it.
    """
    g = c.convolution
    rows, width = 128, 4
    for columns in g["columns"]:
        sweeps = np.ceil(s.cout / columns)
        count = s.groups * np.ceil(s.images * s.out / rows) * sweeps
        loss = g["implicit"] * (1 + 32 * g["kappa"] * (1 / rows + 1 / columns))
        compute, x = blocks(count, 2 * rows * columns * s.depth * loss, rows * columns / 2048, k, d, c)
        memory = _swept(k, s, d, c, sweeps)
        l2 = width * count * (rows + columns) * s.depth / (d.l2_Bps * c.l2["achieved"]) * d.memory
        one = np.ones_like(compute)
        yield _option(f"{rows}x{columns}", k, d, c, one, compute, np.maximum(memory, l2), 0.0, 1, 0.0, x, one > 0)


def fused(k: Columns, s: Shape, d: Cards, c: Constants) -> Iterator[Bounds]:
    """Winograd's F(2x2, 3x3) in one kernel: 16 products for 36, 32 tiles of 2x2 outputs by 32 channels a block.

    The 32 tiles lie in images x rows x columns as the library has kernels for; borders waste what does not fit.
    Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015; kernel names of cuDNN 7 and 8.
    """
    if not (s.exact & (s.taps == 9)).any():
        return
    g = c.convolution
    side = np.ceil(s.side / 2)
    counts = {
        (i, h, w): np.ceil(s.images / i) * np.ceil(side / h) * np.ceil(side / w)
        for i, h, w in (tuple(t) for tiles in g["fused_tiles"].values() for t in tiles)
    }
    sets = [nearest(g["fused_tiles"], device.capability) for device in d.devices]
    fewest = [np.minimum.reduce([counts[i, h, w] for i, h, w in tiles]) for tiles in sets]
    sweeps = np.ceil(s.cout / 32)
    count = np.concatenate(fewest, axis=1) * sweeps
    compute, x = blocks(count, 2 * 16 * 32 * 32 * s.cin * g["fused"], 8.0, k, d, c)
    memory = _swept(k, s, d, c, sweeps)
    effort = np.clip(16 / 36 * count * 32 * 4 * 32 / (s.images * s.out * s.cout), 16 / 36, 1)
    yield _option("winograd 2x2", k, d, c, effort, compute, memory, 0.0, 1, 0.0, x, s.exact & (s.taps == 9))


def transformed(k: Columns, s: Shape, d: Cards, c: Constants) -> Iterator[Bounds]:
    """Products in another basis: Winograd's F(4x4, 3x3) and F(5x5, 5x5), Fourier transforms of 16x16 and 32x32 tiles.

    Three kernels transform the image, the filter and the result, through DRAM where L2 does not hold them; between
    them, one product for each point of a tile: tiles x channels in x channels out.
    Source: Lavin and Gray, 2015; Mathieu, Henaff and LeCun, "Fast training of convolutional networks through FFTs",
    2013. Which product tiles and transforms there are: kernel names of cuDNN 7 and 8.
    """
    if not (s.exact & (s.taps >= 9)).any():
        return
    g = c.convolution
    reach = np.sqrt(s.taps)
    square = s.exact & (reach == np.floor(reach))
    for name, points, flops, width, outputs, open_to in (
        ("winograd 4x4", 36, 2, 4, np.full_like(reach, 4), square & (reach == 3)),
        ("winograd 5x5", 81, 2, 4, np.full_like(reach, 5), square & (reach == 5) & (d.major >= 7)),
        ("fft 16x16", 16 * 9, 8, 8, 17 - reach, square & (reach >= 3) & (reach <= 9)),
        ("fft 32x32", 32 * 17, 8, 8, 33 - reach, square & (reach >= 3) & (reach <= 17)),
    ):
        if not open_to.any():
            continue
        tiles = s.images * np.ceil(s.side / np.maximum(outputs, 1)) ** 2
        image, filters, result = (width * points * n for n in (tiles * s.cin, s.cin * s.cout, tiles * s.cout))
        moves = ((s.x_bytes, image), (s.w_bytes, filters), (k.written, result))
        other = g["transform"] * np.asarray(sum(_traffic(plain + basis, d, c) for plain, basis in moves))
        memory = _traffic(image + filters + result, d, c)
        effort = np.minimum(points * flops * tiles / (2 * s.images * s.out * s.taps), 1) * np.ones_like(memory)
        for columns, rows, allowed in _product_tiles(d, c):
            count = points * np.ceil(tiles / rows) * np.ceil(s.cout / columns)
            depth = 8 * np.ceil(s.cin / 8)
            loss = g["product"] * (1 + 32 * g["kappa"] * (1 / rows + 1 / columns))
            warps = min(max(rows * columns / 2048, 1), 8)
            compute, x = blocks(count, flops * rows * columns * depth * loss, warps, k, d, c)
            l2 = width * count * (rows + columns) * depth / (d.l2_Bps * c.l2["achieved"]) * d.memory
            yield _option(
                name, k, d, c, effort, compute, np.maximum(memory, l2), other, 4, image + filters + result, x,
                open_to & allowed,
            )  # fmt: skip


def _product_tiles(d: Cards, c: Constants) -> list[tuple[int, int, Array]]:
    sets = [nearest(c.convolution["product_tiles"], device.capability) for device in d.devices]
    every = sorted({(a, b) for tiles in sets for a, b in tiles})
    return [(a, b, np.array([[[a, b] in tiles for tiles in sets]])) for a, b in every]


def _traffic(nbytes: Array, d: Cards, c: Constants) -> Array:
    return vector.traffic(nbytes, d, c, c.pointwise["norm"])[0]


def _swept(k: Columns, s: Shape, d: Cards, c: Constants, sweeps: Array) -> Array:
    """Seconds of DRAM traffic where the image is read once for each column of blocks."""
    g = c.convolution
    miss = s.x_bytes / (s.x_bytes + d.l2)
    stream = k.bytes + g["restream"] * miss * (sweeps - 1) * s.x_bytes
    return np.asarray(stream / (d.bandwidth * d.dram) * d.memory)


def depthwise(k: Columns, d: Cards, c: Constants) -> Bounds:
    """max(FLOPs at a share of the vector rate, traffic): one thread an output."""
    compute = k.matrix / (k.vector_rate * c.convolution["depthwise_efficiency"])
    memory = _traffic(k.bytes, d, c)
    launch = c.launch["kernel_s"] * d.launch
    seconds = pnorm(compute, memory, p=c.pointwise["norm"]) + launch
    return bounds(compute, memory, 0.0, launch, seconds)._replace(choice=np.full(memory.shape, "direct"))


def on_tensor_cores(k: Columns, s: Shape, d: Cards, c: Constants, cold: Array) -> Bounds:
    """The implicit product on tensor cores, on its own tiles, each tap walked in steps of `step_bytes` of channels.

    m = images x positions, n = channels out, k = taps x channels in, those padded to whole steps: a layer of 1 to 16
    channels takes as long as one of 32 would in FP16. Groups of fewer channels share a step, as one product that is
    mostly zeros. Gathering the operand costs a share of the arithmetic, and `start_s` goes by before the product runs.
    From Ampere on, that is less. Where channels do not lie last, another kernel turns the image round; products write
    results in either order.
    Source: fitted on DeepBench's FP16 rows of V100 and T4, which tell the steps too; forms tried: calibrate/conv.md.
    """
    g = c.tensor_convolution
    width = np.array([[max(BITS[w.dtype] / 8, 0.5)] for w in k.works])
    step = np.array([[nearest(g["step_bytes"], x.capability)[0][0] for x in d.devices]]) / width
    beside = np.clip(np.floor(step / s.cin), 1, s.groups)
    walked = np.ceil(beside * s.cin / step) * step
    product = Product(np.ceil(s.groups / beside), s.images * s.out, beside * s.cout, s.depth / s.cin * walked)
    own = c.having({f"tensor_gemm.{name}": g[name] for name in ("tiles", "splits", "extra_k")})
    whole = tensor_cores(k, product, d, own, width, cold)
    compute, latency = whole.compute / g["gather"], whole.latency / g["gather"]
    turned = 1 - k["last"]
    around = turned * _traffic(2 * s.x_bytes, d, c)
    start = (np.where(d.major < 8, g["start_s"], g["start_late_s"]) + turned * c.launch["kernel_s"]) * d.launch
    seconds = whole.seconds + (compute - whole.compute) + (latency - whole.latency) + start + around
    padded = product.batch * product.n * product.k / (s.groups * s.cout * s.depth)
    effort = whole.effort * (1 + c.cuda_core_gemm["padding_power"] * (padded - 1))
    detail = dict(whole.detail)
    if detail:
        detail["full tiles efficiency"] = detail["full tiles efficiency"] / padded
        detail["gather efficiency"] = np.full(seconds.shape, g["gather"])
    return whole._replace(
        compute=compute, memory=whole.memory + around, latency=latency, launch=whole.launch + start, seconds=seconds,
        workspace=whole.workspace + turned * s.x_bytes, launches=whole.launches + turned.astype(int), effort=effort,
        detail=detail,
    )  # fmt: skip
