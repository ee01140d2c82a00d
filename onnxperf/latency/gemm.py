"""Products of matrices in tiles and waves: on CUDA cores here, on tensor cores in `latency.tensor`.

m rows, n columns, k contracted, a batch of them; a tile is `rows x columns` of one product, computed by one block.
The forms are described, with what they were fitted to, in the docstring of each function.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onnxperf.latency.bounds import Array, Bounds, Columns, bounds, choose, in_waves, least, pnorm
from onnxperf.latency.cards import Cards, nearest
from onnxperf.latency.constants import Constants
from onnxperf.latency.tensor import Product, tensor_cores
from op_models import BITS


def gemm(k: Columns, d: Cards, c: Constants, cold: Array) -> Bounds:
    """A product of matrices: on tensor cores where the card has the kernel's pipe, on CUDA cores elsewhere.

    `cold` [n, g] is the share of the model's weights found in DRAM rather than L2.
    """
    batch, m, n, depth = (np.maximum(k[f], 1) for f in ("batch", "m", "n", "k"))
    p = Product(batch, m, n, depth, transposed=k["tb"])
    on_tensor = d.tensor(k.pipes)
    width = np.array([[max(BITS[w.dtype] / 8, 0.5)] for w in k.works])
    tiled = tensor_cores(k, p, d, c, width, cold) if on_tensor.any() else cuda_cores(k, p, d, c, width)
    if on_tensor.any() and not on_tensor.all():
        tiled = choose(on_tensor, tiled, cuda_cores(k, p, d, c, width))
    single = ~on_tensor | np.array([[pipe == "tensor_tf32"] for pipe in k.pipes])  # FP32's kernels are open to TF32
    return choose(single, few_rows(k, p, d, c, cold, tiled), tiled) if single.any() else tiled


class Tile(NamedTuple):
    """The block of each kernel on each card: columns and rows of the result, parts of k, warps, blocks on an SM."""

    columns: Array
    rows: Array
    splits: Array
    warps: Array
    resident: Array


def cuda_cores(k: Columns, p: Product, d: Cards, c: Constants, width: Array) -> Bounds:
    """Blocks of `columns x rows` in waves over the SMs; their operands stream through L2.

    compute = counted waves x (2 rows columns k / rate of an SM + prologue). memory = DRAM or L2, whichever is longer:
    compulsory bytes and partial sums, and what the waves read again where L2 does not hold it, blocks of a wave
    sharing what they read; every block's operands from L2. Where the stored operand is transposed, old architectures
    share nothing: blocks walk along rows of k elements at their own pace, and what each of them reads comes from DRAM,
    with more beside it where the rows in flight are long (`scattered`). All join by norms.
    Source: fitted on the FP32 kernels of NeuSight's data, scored on DeepBench's too; forms tried: calibrate/gemm.md.
    """
    batch, m, n, depth = p.batch, p.m, p.n, p.k
    g = c.cuda_core_gemm
    t = library_tile(k, p, d, c)
    across, down = np.ceil(n / t.columns), np.ceil(m / t.rows)
    blocks = batch * across * down * t.splits
    w = _waves(k, depth, blocks, t, d, c)
    compute = w.counted * (w.block_s + g["prologue_s"] / t.resident) * d.compute

    side = np.minimum(across, w.in_flight)
    height = np.minimum(down, np.ceil(w.in_flight / side))
    together = np.maximum(w.in_flight / (across * down), 1)  # products of a batch
    open_rows = (np.minimum(side * t.columns, n) + np.minimum(height * t.rows, m)) * together
    wave_bytes = open_rows * w.part * width
    miss = k.read / (k.read + g["resident"] * d.l2 * np.maximum(blocks / w.in_flight, 1))
    again = miss * np.maximum(blocks / w.in_flight * wave_bytes - k.read, 0)
    partials = np.where(t.splits > 1, 2 * t.splits * batch * m * n * 4, 0.0)
    dram_bytes = k.bytes + again + partials
    rate = d.bandwidth * d.dram * g["dram"]
    dram = dram_bytes / rate * d.memory
    l2_bytes = width * batch * (down * n + across * m) * w.part * t.splits
    l2 = l2_bytes / (d.l2_Bps * g["l2"]) * d.memory
    lost = (open_rows * depth * width / (g["open_L2"] * d.l2)) ** 1.5
    old = (d.major < 7) & (p.transposed > 0)
    apart = g["unshared"] + (g["scatter"] - g["unshared"]) * lost / (1 + lost)
    scattered = np.where(old, apart, 0.0) * l2_bytes / (d.bandwidth * d.dram) * d.memory

    store = g["store"] * k.written / rate * np.minimum(1, 256 / w.part)
    launch = c.launch["kernel_s"] * d.launch + np.where(t.splits > 1, c.launch["split_s"], 0.0)
    seconds = pnorm(pnorm(compute, dram, l2, p=g["norm"]), scattered, p=g["unshared_norm"]) + store + launch
    useful = np.minimum(k.matrix / (k.rate * w.efficiency) * d.compute, compute)
    padded = batch * across * down * t.columns * t.rows * w.part * t.splits / (batch * m * n * depth)
    memory = np.maximum(np.maximum(dram, l2), scattered)
    detail = {
        "stack": batch, "m": m, "n": n, "k": depth, "tile rows": t.rows, "tile columns": t.columns,
        "splits": t.splits, "blocks": blocks, "blocks per SM": t.resident, "waves": w.waves, "counted waves": w.counted,
        "full tiles efficiency": 1 / padded, "tile efficiency": w.tile, "issue slots efficiency": w.issue,
        "warps efficiency": w.warps, "full waves efficiency": w.waves / w.counted,
        "prologue seconds": g["prologue_s"] / t.resident, "DRAM bytes": dram_bytes, "DRAM seconds": dram,
        "L2 bytes": l2_bytes, "L2 seconds": l2, "scattered seconds": scattered,
    } if seconds.shape[0] == 1 else {}  # fmt: skip
    return Bounds(
        compute=useful, memory=memory, latency=compute - useful, launch=launch, seconds=seconds,
        choice=_named(t), workspace=partials / 2, launches=np.where(t.splits > 1, 2, 1),
        share=np.minimum(w.waves, 1), effort=1 + c.cuda_core_gemm["padding_power"] * (padded - 1),
        detail={name: np.broadcast_to(term, seconds.shape) for name, term in detail.items()},
    )  # fmt: skip


class Waves(NamedTuple):
    """How blocks fill the card: elements of k in a part, waves, waves as counted, blocks at once, and one's seconds.

    efficiency is the product of those of the tile, of issue slots, and of warps that hide latency.
    """

    part: Array
    waves: Array
    counted: Array
    in_flight: Array
    block_s: Array
    efficiency: Array
    tile: Array
    issue: Array
    warps: Array


def _waves(k: Columns, depth: Array, blocks: Array, t: Tile, d: Cards, c: Constants) -> Waves:
    """1 / tile efficiency = 1 / best + kappa (64 / sqrt(rows columns) - 1/2): what a FLOP loads, from 128 x 128 on.

    What a last wave lacks of a whole one counts `alpha` as well. k is walked in steps of 8.
    """
    g = c.cuda_core_gemm
    part = 8 * np.ceil(depth / (8 * t.splits))
    x = blocks / d.sms
    counted, warps = in_waves(x, t.warps, t.resident, g)
    tile = 1 / (1 / g["best"] + g["kappa"] * (64 / np.sqrt(t.columns * t.rows) - 0.5))
    issue = 1 / (1 + np.where(d.lanes >= 128, g["issue"], 0.0) + np.where(d.major < 7, g["integer"], 0.0))
    efficiency = tile * issue * warps
    block_s = 2 * t.columns * t.rows * part / (k.rate / d.sms * efficiency)
    in_flight = np.minimum(d.sms * t.resident, blocks)
    return Waves(part, x, counted, in_flight, block_s, efficiency, tile, issue, warps)


def library_tile(k: Columns, p: Product, d: Cards, c: Constants) -> Tile:
    """What the library runs: of its architecture's tiles, whole or with k split, the one that fills waves best.

    The estimate counts waves, arithmetic and partial sums, but no caches: libraries pick by shape. k is split where
    blocks leave SMs idle, in parts of at least `part`. Source of the sets: kernel names of eager PyTorch on five cards.
    """
    g, s, tiles = c.cuda_core_gemm, c.cuda_core_tiles, _open_tiles(k, p, d, c)
    found = []
    for columns, rows in tiles:
        thin = np.minimum(columns, rows) <= 32
        warps = np.where(thin, np.where(columns * rows <= 1024, 4, 8), columns * rows / 2048)
        resident = np.maximum(1, np.floor(np.where(thin, 32, 16) / warps))
        blocks = p.batch * np.ceil(p.n / columns) * np.ceil(p.m / rows)
        most = np.minimum(np.floor(s["fill"] * d.sms * resident / blocks), p.k / s["part"])
        most = np.where(p.batch > 1, 1, np.clip(np.floor(most), 1, s["splits"]))
        for splits in (np.ones_like(most), most):
            t = Tile(columns, rows, splits, warps, resident)
            w = _waves(k, p.k, blocks * splits, t, d, c)
            covered = (d.major >= 7) | (k.vector > 0) | (columns * rows >= 128 * 128) | (p.m >= rows)
            sums = np.where(splits > 1, 8 * splits * p.batch * p.m * p.n / d.bandwidth + c.launch["split_s"], 0.0)
            seconds = np.where(covered, w.counted * (w.block_s + g["prologue_s"] / resident) + sums, np.inf)
            found.append(np.stack(np.broadcast_arrays(*t, seconds)))
    sides = np.stack(found, axis=1)  # of a Tile, then its seconds, [side, tile, n, g]
    _, at = least(sides[-1])
    return Tile(*map(at, sides[:-1]))


def _open_tiles(k: Columns, p: Product, d: Cards, c: Constants) -> list[tuple[Array, Array]]:
    """Columns and rows [n, g] of every tile that is open: of the set of its capability, else the nearest of its
    generation, else the newest before it."""

    sets_of = [c.cuda_core_tiles[kind] for kind in ("batched", "single", "biased")]
    kinds = [[nearest(sets, x.capability) for x in d.devices] for sets in sets_of]
    most = max(len(s) for sets in kinds for s in sets)
    filled = np.array([[(s * most)[:most] for s in sets] for sets in kinds], dtype=float)  # [kind, g, tile, side]
    kind = ((p.batch == 1) * (1 + (k.vector > 0)))[:, 0].astype(int)
    return [(filled[kind, :, i, 0], filled[kind, :, i, 1]) for i in range(most)]


def _named(t: Tile) -> Array:
    """The name of each tile: 128x64, 128x64 split 4."""
    found, at = np.unique(np.stack([t.columns, t.rows, t.splits], axis=-1).reshape(-1, 3), axis=0, return_inverse=True)
    names = np.array([f"{a:.0f}x{b:.0f}" + (f" split {s:.0f}" if s > 1 else "") for a, b, s in found])
    return np.asarray(names[at.reshape(t.columns.shape)])


def few_rows(k: Columns, p: Product, d: Cards, c: Constants, cold: Array, tiled: Bounds) -> Bounds:
    """A product with a vector, or a single one with up to four: kernels without tiles that stream the matrix once.

    pnorm(bytes at the rate of the memory that holds them, FLOPs at a fair share of the lanes; 2), where that is faster
    than any tile. Source: libraries have such kernels (gemv, gemmSN); no open row measures them, constants are chosen.
    Rows of stacks of 2 and more, and of 5 to 16 rows or columns, do exist: they run on tiles, however little of them is
    filled. Stacks of vectors stream in GPT-2's steps under ONNX Runtime, whose time grows by the bytes of its past.
    """
    g = c.cuda_core_few_rows
    moving = k.bytes - k.weights
    far = cold * k.weights + moving / (1 + (c.l2["resident"] * d.l2 / np.maximum(moving, 1)) ** c.l2["sharpness"])
    memory = np.maximum(far / (d.bandwidth * d.dram), k.bytes / (d.l2_Bps * c.l2["achieved"])) * d.memory
    compute = k.matrix / (k.rate * g["efficiency"]) * d.compute
    own = bounds(compute, memory, 0.0, c.launch["kernel_s"] * d.launch, pnorm(compute, memory, p=2))
    own = own._replace(seconds=own.seconds + own.launch, choice=np.full(own.seconds.shape, "few rows"))
    fewest = np.minimum(p.m, p.n)
    thin = (fewest == 1) | (fewest <= g["rows"]) & (p.batch == 1)
    better = thin & (own.seconds < tiled.seconds)
    return choose(better, own, tiled)
