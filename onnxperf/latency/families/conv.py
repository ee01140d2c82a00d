"""Convolutions: implicit products, Winograd and Fourier transforms on CUDA cores; products on tensor cores.

The fastest of the algorithms that are open to a shape is taken: libraries search by measuring, or know what would win.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from onnxperf.latency import traffic
from onnxperf.latency.cards import Cards, nearest
from onnxperf.latency.constants import Constants
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import joined, lanes, moving
from onnxperf.latency.tensor_cores import Product, tensor_cores
from onnxperf.latency.terms import (
    Array,
    KernelTerms,
    choose,
    counted_waves,
    fastest,
    hidden_latency,
    plain_terms,
    pnorm,
)  # fmt: skip
from onnxperf.latency.works import Works
from op_models import BITS, Conv, Work

SUMS_IN_FP32 = ("float32", "float16", "bfloat16")  # on CUDA cores, by libraries


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


def shape(works: Works) -> Shape:
    """The columns of convolutions."""
    groups, out = np.maximum(works["groups"], 1), np.maximum(works["out"], 1)
    images, cin, cout = (
        np.maximum(works["images"], 1),
        np.maximum(works["cin"] / groups, 1),
        np.maximum(works["cout"] / groups, 1),
    )
    depth = np.maximum(works.matrix / (2 * images * out * cout * groups), 1)
    plain = np.array([[w.dtype in SUMS_IN_FP32 and getattr(w.size, "direction", "") == "forward"] for w in works.each])
    exact = plain & (works["stride"] == 1) & (groups == 1)
    return Shape(images, groups, cin, cout, out, works["taps"], depth, works.read - works.weights, works.weights, exact)


def conv(works: Works, d: Cards, c: Constants, dram_share: Array) -> KernelTerms:
    """The product with m = images x positions, n = channels out, k = what an output sums up, one a group.

    Tensor cores run that product, CUDA cores the fastest of what is open to the shape. A depthwise convolution has no
    product to speak of: its taps run on the vector units beside its traffic.
    """
    s = shape(works)
    found = depthwise(works, d, c)
    on_tensor = d.tensor(works.pipes)
    product = np.broadcast_to(~((s.cin <= 4) & (s.groups > 1)), on_tensor.shape)
    if (product & ~on_tensor).any():
        options = [*implicit(works, s, d, c), *fused(works, s, d, c), *transformed(works, s, d, c)]
        found = choose(product, best_of(options), found)
    if (product & on_tensor).any():
        found = choose(product & on_tensor, on_tensor_cores(works, s, d, c, dram_share), found)
    return found


def best_of(options: Sequence[KernelTerms]) -> KernelTerms:
    """The fastest of several ways, for each kernel on each card."""
    seconds = np.stack([o.seconds for o in options])
    _, chosen = fastest(seconds)

    def at(terms: Sequence[Array]) -> Array:
        return chosen(np.stack([np.broadcast_to(t, seconds.shape[1:]) for t in terms]))

    terms = {f: at([getattr(o, f) for o in options]) for f in KernelTerms._fields[:-1]}
    detail = {name: at([o.detail[name] for o in options]) for name in options[0].detail}
    if detail and len(options) > 1:
        detail["runner-up seconds"] = np.partition(seconds, 1, axis=0)[1]
    return KernelTerms(**terms, detail=detail)


def blocks(count: Array, flops: Array, warps: float, works: Works, d: Cards, c: Constants) -> tuple[Array, Array]:
    """Seconds of `count` blocks of so many FLOPs and warps each, in waves over the SMs; and waves of one block an SM.

    waves x (FLOPs / (rate of an SM x share of latency hidden by its warps) + prologue / blocks that are resident).
    """
    coef = c.convolution
    x = count / d.sms
    resident = np.maximum(1, np.floor(16 / warps))
    waves = counted_waves(x, coef["alpha"])
    hidden = hidden_latency(x, warps, resident, coef["half_warps"])
    efficiency = hidden / np.where(d.lanes >= 128, 1 + coef["issue"], 1.0)
    return waves * (flops * d.sms / (works.rate * efficiency) + coef["prologue_s"] / resident) * d.compute, x


def _option(
    name: str, works: Works, d: Cards, c: Constants, executed_share: Array, compute: Array, memory: Array,
    other: Array | float, kernels: int, workspace: Array | float, waves: Array, open_to: Array,
) -> KernelTerms:  # fmt: skip
    """One way to run kernels; `other` seconds come before and after the product."""
    launch = kernels * c.launch["kernel_s"] * d.launch
    seconds = pnorm(compute, memory, p=c.convolution["norm"]) + other + launch
    useful = np.minimum(executed_share * works.matrix / works.rate * d.compute, compute)
    detail: dict[str, Array] = {}
    if len(works.each) == 1:  # somebody asks about this one
        counted = counted_waves(waves, c.convolution["alpha"])
        detail = {
            "executed share": executed_share, "waves": waves, "counted waves": counted, "product seconds": compute,
            "traffic seconds": memory, "transform seconds": np.asarray(other), "full waves efficiency": waves / counted,
            "product efficiency": executed_share * works.matrix / works.rate / compute * counted / waves,
        }  # fmt: skip
    return KernelTerms(
        useful, memory + other, compute - useful, np.broadcast_to(launch, compute.shape),
        np.where(open_to, seconds, np.inf), np.array(name), np.asarray(workspace), np.asarray(kernels),
        np.clip(waves, 0, 1), executed_share * c.convolution["energy"], detail,
    )  # fmt: skip


def implicit(works: Works, s: Shape, d: Cards, c: Constants) -> Iterator[KernelTerms]:
    """128 positions by 32, 64 or 128 channels a block; the image is gathered tap by tap, mostly from caches.

    Each column of blocks sweeps the image again, from DRAM where L2 does not hold it.
    """
    coef = c.convolution
    rows, width = 128, 4
    for columns in coef["columns"]:
        sweeps = np.ceil(s.cout / columns)
        count = s.groups * np.ceil(s.images * s.out / rows) * sweeps
        loss = coef["implicit"] * (1 + 32 * coef["kappa"] * (1 / rows + 1 / columns))
        compute, x = blocks(count, 2 * rows * columns * s.depth * loss, rows * columns / 2048, works, d, c)
        memory = _swept(works, s, d, c, sweeps)
        l2 = width * count * (rows + columns) * s.depth / (d.l2_Bps * c.l2["achieved"]) * d.memory
        one = np.ones_like(compute)
        yield _option(f"{rows}x{columns}", works, d, c, one, compute, np.maximum(memory, l2), 0.0, 1, 0.0, x, one > 0)


def fused(works: Works, s: Shape, d: Cards, c: Constants) -> Iterator[KernelTerms]:
    """Winograd's F(2x2, 3x3) in one kernel: 16 products for 36, 32 tiles of 2x2 outputs by 32 channels a block.

    The 32 tiles lie in images x rows x columns as the library has kernels for; borders waste what does not fit.
    Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015; kernel names of cuDNN 7 and 8.
    """
    if not (s.exact & (s.taps == 9)).any():
        return
    coef = c.convolution
    side = np.ceil(s.side / 2)
    counts = {
        (i, h, w): np.ceil(s.images / i) * np.ceil(side / h) * np.ceil(side / w)
        for i, h, w in (tuple(t) for tiles in coef["fused_tiles"].values() for t in tiles)
    }
    sets = [nearest(coef["fused_tiles"], device.capability) for device in d.devices]
    fewest = [np.minimum.reduce([counts[i, h, w] for i, h, w in tiles]) for tiles in sets]
    sweeps = np.ceil(s.cout / 32)
    count = np.concatenate(fewest, axis=1) * sweeps
    compute, x = blocks(count, 2 * 16 * 32 * 32 * s.cin * coef["fused"], 8.0, works, d, c)
    memory = _swept(works, s, d, c, sweeps)
    executed_share = np.clip(16 / 36 * count * 32 * 4 * 32 / (s.images * s.out * s.cout), 16 / 36, 1)
    yield _option("winograd 2x2", works, d, c, executed_share, compute, memory, 0.0, 1, 0.0, x, s.exact & (s.taps == 9))


def transformed(works: Works, s: Shape, d: Cards, c: Constants) -> Iterator[KernelTerms]:
    """Products in another basis: Winograd's F(4x4, 3x3) and F(5x5, 5x5), Fourier transforms of 16x16 and 32x32 tiles.

    Three kernels transform the image, the filter and the result, through DRAM where L2 does not hold them; between
    them, one product for each point of a tile: tiles x channels in x channels out.
    Source: Lavin and Gray, 2015; Mathieu, Henaff and LeCun, "Fast training of convolutional networks through FFTs",
    2013. Which product tiles and transforms there are: kernel names of cuDNN 7 and 8.
    """
    if not (s.exact & (s.taps >= 9)).any():
        return
    coef = c.convolution
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
        moves = ((s.x_bytes, image), (s.w_bytes, filters), (works.written, result))
        other = coef["transform"] * np.asarray(sum(_traffic(plain + basis, d, c) for plain, basis in moves))
        memory = _traffic(image + filters + result, d, c)
        executed_share = np.minimum(points * flops * tiles / (2 * s.images * s.out * s.taps), 1) * np.ones_like(memory)
        for columns, rows, allowed in _product_tiles(d, c):
            count = points * np.ceil(tiles / rows) * np.ceil(s.cout / columns)
            depth = 8 * np.ceil(s.cin / 8)
            loss = coef["product"] * (1 + 32 * coef["kappa"] * (1 / rows + 1 / columns))
            warps = min(max(rows * columns / 2048, 1), 8)
            compute, x = blocks(count, flops * rows * columns * depth * loss, warps, works, d, c)
            l2 = width * count * (rows + columns) * depth / (d.l2_Bps * c.l2["achieved"]) * d.memory
            yield _option(
                name, works, d, c, executed_share, compute, np.maximum(memory, l2), other, 4,
                image + filters + result, x, open_to & allowed,
            )  # fmt: skip


def _product_tiles(d: Cards, c: Constants) -> list[tuple[int, int, Array]]:
    sets = [nearest(c.convolution["product_tiles"], device.capability) for device in d.devices]
    every = sorted({(a, b) for tiles in sets for a, b in tiles})
    return [(a, b, np.array([[[a, b] in tiles for tiles in sets]])) for a, b in every]


def _traffic(nbytes: Array, d: Cards, c: Constants) -> Array:
    return traffic.traffic(nbytes, d, c, c.pointwise["norm"])[0]


def _swept(works: Works, s: Shape, d: Cards, c: Constants, sweeps: Array) -> Array:
    """Seconds of DRAM traffic where the image is read once for each column of blocks."""
    coef = c.convolution
    miss = s.x_bytes / (s.x_bytes + d.l2)
    stream = works.bytes + coef["restream"] * miss * (sweeps - 1) * s.x_bytes
    return np.asarray(stream / (d.bandwidth * d.dram) * d.memory)


def depthwise(works: Works, d: Cards, c: Constants) -> KernelTerms:
    """max(FLOPs at a share of the vector rate, traffic): one thread an output."""
    compute = works.matrix / (works.vector_rate * c.convolution["depthwise_efficiency"])
    memory = _traffic(works.bytes, d, c)
    launch = c.launch["kernel_s"] * d.launch
    seconds = pnorm(compute, memory, p=c.pointwise["norm"]) + launch
    return plain_terms(compute, memory, 0.0, launch, seconds)._replace(variant=np.full(memory.shape, "direct"))


def on_tensor_cores(works: Works, s: Shape, d: Cards, c: Constants, dram_share: Array) -> KernelTerms:
    """The implicit product on tensor cores, on its own tiles, each tap walked in steps of `step_bytes` of channels.

    m = images x positions, n = channels out, k = taps x channels in, those padded to whole steps: a layer of 1 to 16
    channels takes as long as one of 32 would in FP16. Groups of fewer channels share a step, as one product that is
    mostly zeros. Gathering the operand costs a share of the arithmetic, and `start_s` goes by before the product runs.
    From Ampere on, that is less. Where channels do not lie last, another kernel turns the image round; products write
    results in either order.
    Source: fitted on DeepBench's FP16 rows of V100 and T4, which tell the steps too; forms tried: calibrate/conv.md.
    """
    coef = c.tensor_convolution
    width = np.array([[max(BITS[w.dtype] / 8, 0.5)] for w in works.each])
    step = np.array([[nearest(coef["step_bytes"], x.capability)[0][0] for x in d.devices]]) / width
    beside = np.clip(np.floor(step / s.cin), 1, s.groups)
    walked = np.ceil(beside * s.cin / step) * step
    product = Product(np.ceil(s.groups / beside), s.images * s.out, beside * s.cout, s.depth / s.cin * walked)
    own = c.having({f"tensor_gemm.{name}": coef[name] for name in ("tiles", "splits", "extra_k")})
    whole = tensor_cores(works, product, d, own, width, dram_share)
    compute, latency = whole.compute / coef["gather"], whole.latency / coef["gather"]
    turned = 1 - works["last"]
    around = turned * _traffic(2 * s.x_bytes, d, c)
    start = (np.where(d.major < 8, coef["start_s"], coef["start_late_s"]) + turned * c.launch["kernel_s"]) * d.launch
    seconds = whole.seconds + (compute - whole.compute) + (latency - whole.latency) + start + around
    padded = product.batch * product.n * product.k / (s.groups * s.cout * s.depth)
    executed_share = whole.executed_share * (1 + c.cuda_core_gemm["padding_power"] * (padded - 1))
    detail = dict(whole.detail)
    if detail:
        detail["full tiles efficiency"] = detail["full tiles efficiency"] / padded
        detail["gather efficiency"] = np.full(seconds.shape, coef["gather"])
    return whole._replace(
        compute=compute, memory=whole.memory + around, latency=latency, launch=whole.launch + start, seconds=seconds,
        workspace=whole.workspace + turned * s.x_bytes, launches=whole.launches + turned.astype(int),
        executed_share=executed_share, detail=detail,
    )  # fmt: skip


def processor_conv(works: Works, d: Cards, c: Constants, fetch: Array) -> KernelTerms:
    """The sums of products at peak, where channels come in registers; a depthwise one tap by tap on the way.

    Few registers of channels out make less of a load (`thin`); images' few channels are no register. Groups narrower
    than a register go one by one through products of little k. What bias, sum and activation ask for beyond two FLOPs
    an output takes another pass over it.
    """
    p = c.processor
    groups, out, taps = (
        np.maximum(works["groups"], 1),
        works["images"] * np.maximum(works["out"], 1),
        np.maximum(works["taps"], 1),
    )
    cin, cout = np.maximum(works["cin"] / groups, 1), np.maximum(works["cout"] / groups, 1)
    depth = taps * np.where(cin < p["register"], cin, lanes(cin, c)) + p["extra_k"]
    registers = np.minimum(lanes(cout, c) / p["register"], p["open"])
    thin = registers / (registers + p["thin"]) * (p["open"] + p["thin"]) / p["open"]
    dense = 2 * out * groups * lanes(cout, c) * depth / works.rate / thin
    narrow = 2 * out * groups * cout * cin * taps / (works.rate * p["narrow"])
    side, across = np.sqrt(taps), np.sqrt(np.maximum(works["out"], 1))
    edge = np.clip((side - 1) / across, 0, 1)
    depthwise = out * lanes(works["cout"], c) * (p["tap_clocks"] * taps + p["edge_clocks"] * edge) / (d.sms * d.hz)
    alone, plain = (cin == 1) & (groups > 1), (groups == 1) | (cin >= p["register"])
    compute = np.where(plain, dense, np.where(alone, depthwise, narrow))
    beyond = np.maximum(works.vector - 2 * out * np.maximum(works["cout"], 1), 0) * p["pass_clocks"] / (d.sms * d.hz)
    memory = (
        works.weights * fetch
        + moving(works, d, c, 0.0)
        + np.where(alone, moving(works, d, c) - moving(works, d, c, 0.0), 0.0)
    )
    return joined(works, d, compute + beyond, memory)


def fewest_flops(works: Works, d: Cards) -> Array:
    """The share of its FLOPs that the cheapest transform executes where one is open to the work, 1 elsewhere, [n, g].

    With stride 1 and without groups, arithmetic on CUDA cores may go through a transform. Per output and channel, a
    Fourier transform of real numbers leaves half a complex product, 4 FLOPs instead of 2 taps; Winograd's F(4x4, 3x3)
    leaves 36 products of 144 (Lavin and Gray, 2015), which is more than that.
    """
    exact = np.array([[w.dtype in SUMS_IN_FP32] for w in works.each]) & ~d.tensor(works.pipes)
    open_to = exact & (works["taps"] >= 9) & (works["stride"] == 1) & (works["groups"] == 1)
    return np.where(open_to, 2 / np.maximum(works["taps"], 1), 1.0)


def _formula(s: Conv) -> str:
    each = f"{s.cin} / {s.groups}" if s.groups > 1 else str(s.cin)
    sizes = f"2 x {s.images} x {s.out} x {s.cout} x {each} x {s.taps}"
    return f"2 images positions channels-out channels-in taps = {sizes}"


def _error_class(w: Work, on_tensor: bool) -> str:
    return "tensor_convolution" if on_tensor else "convolution"


FAMILY = KernelFamily(
    size=Conv,
    card=conv,
    processor=processor_conv,
    error_class=_error_class,
    formula=_formula,
    layer=("cin", "cout", "taps", "groups", "direction"),
    fewest_flops=fewest_flops,
)
