"""Products of matrices in tiles and waves: on CUDA cores, and on tensor cores.

m rows, n columns, k contracted, a batch of them; a tile is `rows x columns` of one product, computed by one block.
The forms are described, with what they were fitted to, in the docstring of each function.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onnxperf.latency.bounds import Array, Bounds, Columns, bounds, pnorm
from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.vector import traffic
from op_models import BITS


class Product(NamedTuple):
    """The product behind a kernel, whatever its operator: `batch` times m x k by k x n, each a column [n, 1].

    `convolution` says that any tile is open to it, not only the ones of the matrix library.
    """

    batch: Array
    m: Array
    n: Array
    k: Array
    convolution: bool = False


def gemm(k: Columns, d: Cards, c: Constants, cold: Array) -> Bounds:
    """A product of matrices; `cold` [n, g] is the share of the model's weights found in DRAM rather than L2."""
    batch, m, n, depth = (np.maximum(k[f], 1) for f in ("batch", "m", "n", "k"))
    return product(k, Product(batch, m, n, depth), d, c, cold)


def product(k: Columns, p: Product, d: Cards, c: Constants, cold: Array) -> Bounds:
    """Tensor cores where the card has the kernel's pipe, CUDA cores elsewhere."""
    on_tensor = d.tensor(k.pipes)
    width = np.array([[max(BITS[w.dtype] / 8, 0.5)] for w in k.works])
    if on_tensor.all():
        return tensor_cores(k, p, d, c, width, cold)
    vector = few_rows(k, p, d, c, cold, cuda_cores(k, p, d, c, width))
    if not on_tensor.any():
        return vector
    tensor = tensor_cores(k, p, d, c, width, cold)
    return Bounds(*(np.where(on_tensor, t, v) for t, v in zip(tensor, vector, strict=True)))


def cuda_cores(k: Columns, p: Product, d: Cards, c: Constants, width: Array) -> Bounds:
    """Blocks of `columns x rows` in waves over the SMs, softened; operands stream through L2.

    compute = waves x (2 rows columns k / lanes / efficiency + prologue); efficiency falls for small tiles, for
    SMs whose 128 lanes share issue slots with loads, and where too few warps hide latency. memory = compulsory
    bytes at the achieved DRAM rate plus weights streamed again where they do not stay in L2; L2 traffic is every
    tile's operands. The fastest tile of the architecture's own set is taken: libraries choose well inside it, and a
    wider set would be too good to be true. Source: fitted on the FP32 kernels of NeuSight's data.
    """
    batch, m, n, depth, _ = p
    g = c.cuda_core_gemm
    single = batch == 1

    def pick(name: str) -> Array:
        return np.where(single, g[name]["single"], g[name]["batched"])

    names = ["convolution" if p.convolution else f"cc{min(max(major, 6), 9)}" for major in d.major[0]]
    sets = [c.cuda_core_tiles[name] for name in names]
    tiles = sorted({(a, b) for s in sets for a, b in s})
    allowed = np.array([[[a, b] in s for s in sets] for a, b in tiles])[:, None, :]
    a, b = (np.array(side, dtype=float)[:, None, None] for side in zip(*tiles, strict=True))
    splits = np.array(c.cuda_core_tiles["splits"], dtype=float)[:, None, None, None]  # [s, t, n, g]

    count = batch * np.ceil(n / a) * np.ceil(m / b) * splits
    part = 8 * np.ceil(depth / (8 * splits))
    x = count / d.sms
    warps = np.clip(a * b / 2048, 1, 8)
    resident = np.maximum(1, np.floor(16 / warps))
    waves = np.maximum(1, x + pick("alpha") * (np.ceil(x) - x))
    half = pick("half_warps")
    busy = warps * np.minimum(np.ceil(x), resident)
    efficiency = pick("e0") / (1 + 32 * pick("kappa") * (1 / a + 1 / b)) * busy / (busy + half) * (16 + half) / 16
    efficiency = efficiency / np.where(d.lanes >= 128, 1 + pick("issue"), 1.0)
    lane_rate = k.rate / d.sms
    compute = waves * (2 * a * b * part / (lane_rate * efficiency) + pick("prologue_s") / resident) * d.compute
    miss = k.weights / (k.weights + d.l2)
    stream = k.bytes + pick("restream") * miss * k.weights
    partials = np.where(splits > 1, 2 * splits * batch * m * n * 4, 0.0)
    dram = (stream + partials) / (d.bandwidth * pick("dram")) * d.memory
    l2 = width * count * (a + b) * part / (d.l2_Bps * pick("l2")) * d.memory
    store = pick("store") * k.written / (d.bandwidth * pick("dram")) * np.minimum(1, 256 / part)
    launch = c.launch["kernel_s"] * d.launch + np.where(splits > 1, c.launch["split_s"], 0.0)
    seconds = pnorm(compute, np.broadcast_to(dram, compute.shape), l2, p=pick("norm")) + store + launch
    seconds = np.where(allowed, seconds, np.inf)
    useful = np.minimum(k.matrix / (k.rate * efficiency) * d.compute, compute)
    return _best(seconds, useful, np.maximum(dram, l2), compute - useful, launch, partials, x, splits, tiles)


def few_rows(k: Columns, p: Product, d: Cards, c: Constants, cold: Array, tiled: Bounds) -> Bounds:
    """Products with a vector, or with few rows or columns: kernels without tiles that stream the matrix once.

    max(bytes at the rate of the memory that holds them, FLOPs at a fair share of the lanes), where that is faster than
    any tile. Source: libraries have such kernels (gemv, gemmSN); no open row measures them, the constants are chosen.
    """
    g = c.cuda_core_few_rows
    memory = traffic(k.bytes, d, c, c.pointwise["norm"])
    memory = np.maximum(memory, cold * k.weights / (d.bandwidth * d.dram) * d.memory)
    compute = k.matrix / (k.rate * g["efficiency"]) * d.compute
    own = bounds(compute, memory, np.zeros_like(memory), c.launch["kernel_s"] * d.launch, pnorm(compute, memory, p=2))
    own = own._replace(seconds=own.seconds + own.launch, choice=np.full(own.seconds.shape, "few rows"))
    better = (np.minimum(p.m, p.n) <= g["rows"]) & (own.seconds < tiled.seconds) & (not p.convolution)
    return Bounds(*(np.where(better, x, y) for x, y in zip(own, tiled, strict=True)))


def tensor_cores(k: Columns, p: Product, d: Cards, c: Constants, width: Array, cold: Array) -> Bounds:
    """The fastest of tiles and splits: cycles a tile needs to multiply, to be fed, and to walk k, plus its epilogue.

    mma = 2 rows columns k / (0.84 x rate of an SM); feed = (rows + columns) k bytes / what L2 feeds an SM;
    waves count partial ones in part. Memory is cold bytes from DRAM (no faster than the resident blocks can ask
    for) and hot ones from L2. Source: fitted on bf16 kernels of A100, L40S, H200 and B200.
    """
    batch, m, n, depth, _ = p
    t = c.tensor_gemm
    classes = [c.tensor_class[name] for name in d.tensor_class()]
    f_rows, f_pro, f_feed = (np.array([s[key] for s in classes])[None, :] for key in ("min_rows", "prologue", "feed"))
    tiles = [(a, b) for a, b in t["tiles"]]
    a, b = (np.array(side, dtype=float)[:, None, None] for side in zip(*tiles, strict=True))  # rows, columns
    splits = np.array(t["splits"], dtype=float)[:, None, None, None]
    per_clock = k.rate / (d.sms * d.tensor_hz)

    part = depth / splits
    fill = np.maximum(1, t["min_rows"] * f_rows / a)
    mma = a * b * part * 2 / (per_clock * t["mma"]) * fill
    feed_rate = np.where(d.hbm, t["feed_bytes_per_clock"]["HBM"], t["feed_bytes_per_clock"]["GDDR"]) * f_feed
    feed = (a + b) * part * width / feed_rate
    walk = t["k_latency_cycles"] * part * width / 128
    cycles = pnorm(mma, feed, np.broadcast_to(walk, mma.shape), p=t["norm_tile"]) + t["epilogue_cycles"] * a * b / 16384
    blocks = batch * np.ceil(m / a) * np.ceil(n / b) * splits
    x = blocks / d.sms
    waves = t["wave"] * np.ceil(x) + (1 - t["wave"]) * np.maximum(1, x)
    compute = (waves * cycles + t["prologue_cycles"] * f_pro) / d.tensor_hz * d.compute
    moving = k.bytes - k.weights
    hot = 1 / (1 + (moving / (t["hot"] * d.l2)) ** c.l2["sharpness"])
    partials = np.where(splits > 1, 2 * splits * batch * m * n * 4, 0.0)
    dram_bytes = cold * k.weights + (1 - hot) * moving
    cached = k.bytes - dram_bytes + partials
    reach = np.minimum(t["dram"] * d.bandwidth, blocks * t["block_bytes_per_clock"] * d.tensor_hz)
    memory = (dram_bytes / reach + cached / (d.l2_Bps * c.l2["achieved"])) * d.memory
    launch = c.launch["kernel_s"] * d.launch + np.where(splits > 1, c.launch["split_s"], 0.0)
    seconds = launch + pnorm(compute, memory, p=t["norm"])
    useful = np.minimum(k.matrix / (k.rate * t["mma"]) * d.compute, compute)
    return _best(seconds, useful, memory, compute - useful, launch, partials, x, splits, tiles)


def _best(
    seconds: Array,
    compute: Array,
    memory: Array,
    latency: Array,
    launch: Array,
    workspace: Array,
    waves: Array,
    splits: Array,
    tiles: list[tuple[int, int]],
) -> Bounds:
    """The fastest variant of each kernel on each card; all terms have axes [split, tile, n, g]."""
    s, t, n, g = seconds.shape
    flat = seconds.reshape(s * t, n, g)
    best = np.argmin(flat, axis=0)

    def at(term: Array) -> Array:
        whole = np.broadcast_to(term, seconds.shape).reshape(s * t, n, g)
        return np.asarray(np.take_along_axis(whole, best[None], axis=0)[0])

    names = np.array([f"{a}x{b}" + (f" split {int(q)}" if q > 1 else "") for q in splits.ravel() for a, b in tiles])
    split = np.broadcast_to(splits, seconds.shape).reshape(s * t, n, g)
    launches = np.where(np.take_along_axis(split, best[None], axis=0)[0] > 1, 2, 1)
    return Bounds(
        at(compute), at(memory), at(latency), at(launch), at(seconds),
        choice=names[best], workspace=at(workspace), launches=launches, share=np.minimum(at(waves), 1),
    )  # fmt: skip
