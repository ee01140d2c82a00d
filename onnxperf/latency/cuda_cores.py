"""Products of matrices on CUDA cores, in tiles and waves.

m rows, n columns, k contracted, a batch of them; a tile is `rows x columns` of one product, computed by one block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onnxperf.latency.cards import Cards, nearest
from onnxperf.latency.constants import Constants
from onnxperf.latency.tensor_cores import Product
from onnxperf.latency.terms import Array, KernelTerms, counted_waves, fastest, hidden_latency, pnorm
from onnxperf.latency.works import Works


class Tile(NamedTuple):
    """The block of each kernel on each card: columns and rows of the result, parts of k, warps, blocks on an SM."""

    columns: Array
    rows: Array
    splits: Array
    warps: Array
    resident: Array


def cuda_cores(works: Works, p: Product, d: Cards, c: Constants, width: Array) -> KernelTerms:
    """Blocks of `columns x rows` in waves over the SMs; their operands stream through L2.

    compute = counted waves x (2 rows columns k / rate of an SM + prologue). memory = DRAM or L2, whichever is longer:
    compulsory bytes and partial sums, and what the waves read again where L2 does not hold it, blocks of a wave
    sharing what they read; every block's operands from L2. Where the stored operand is transposed, old architectures
    share nothing: blocks walk along rows of k elements at their own pace, and what each of them reads comes from DRAM,
    with more beside it where the rows in flight are long (`scattered`). All join by norms.
    Source: fitted on the FP32 kernels of NeuSight's data, scored on DeepBench's too; forms tried: calibrate/gemm.md.
    """
    batch, m, n, depth = p.batch, p.m, p.n, p.k
    coef = c.cuda_core_gemm
    t = library_tile(works, p, d, c)
    across, down = np.ceil(n / t.columns), np.ceil(m / t.rows)
    blocks = batch * across * down * t.splits
    w = _waves(works, depth, blocks, t, d, c)
    compute = w.counted * (w.block_s + coef["prologue_s"] / t.resident) * d.compute

    side = np.minimum(across, w.in_flight)
    height = np.minimum(down, np.ceil(w.in_flight / side))
    together = np.maximum(w.in_flight / (across * down), 1)  # products of a batch
    open_rows = (np.minimum(side * t.columns, n) + np.minimum(height * t.rows, m)) * together
    wave_bytes = open_rows * w.part * width
    miss = works.read / (works.read + coef["resident"] * d.l2 * np.maximum(blocks / w.in_flight, 1))
    again = miss * np.maximum(blocks / w.in_flight * wave_bytes - works.read, 0)
    partials = np.where(t.splits > 1, 2 * t.splits * batch * m * n * 4, 0.0)
    dram_bytes = works.bytes + again + partials
    rate = d.bandwidth * d.dram * coef["dram"]
    dram = dram_bytes / rate * d.memory
    l2_bytes = width * batch * (down * n + across * m) * w.part * t.splits
    l2 = l2_bytes / (d.l2_Bps * coef["l2"]) * d.memory
    lost = (open_rows * depth * width / (coef["open_L2"] * d.l2)) ** 1.5
    old = (d.major < 7) & (p.transposed > 0)
    apart = coef["unshared"] + (coef["scatter"] - coef["unshared"]) * lost / (1 + lost)
    scattered = np.where(old, apart, 0.0) * l2_bytes / (d.bandwidth * d.dram) * d.memory

    store = coef["store"] * works.written / rate * np.minimum(1, 256 / w.part)
    launch = c.launch["kernel_s"] * d.launch + np.where(t.splits > 1, c.launch["split_s"], 0.0)
    seconds = pnorm(pnorm(compute, dram, l2, p=coef["norm"]), scattered, p=coef["unshared_norm"]) + store + launch
    useful = np.minimum(works.matrix / (works.rate * w.efficiency) * d.compute, compute)
    padded = batch * across * down * t.columns * t.rows * w.part * t.splits / (batch * m * n * depth)
    memory = np.maximum(np.maximum(dram, l2), scattered)
    detail = {
        "stack": batch, "m": m, "n": n, "k": depth, "tile rows": t.rows, "tile columns": t.columns,
        "splits": t.splits, "blocks": blocks, "blocks per SM": t.resident, "waves": w.waves, "counted waves": w.counted,
        "full tiles efficiency": 1 / padded, "tile efficiency": w.tile, "issue slots efficiency": w.issue,
        "warps efficiency": w.warps, "full waves efficiency": w.waves / w.counted,
        "prologue seconds": coef["prologue_s"] / t.resident, "DRAM bytes": dram_bytes, "DRAM seconds": dram,
        "L2 bytes": l2_bytes, "L2 seconds": l2, "scattered seconds": scattered,
    } if seconds.shape[0] == 1 else {}  # fmt: skip
    return KernelTerms(
        compute=useful, memory=memory, latency=compute - useful, launch=launch, seconds=seconds,
        variant=_named(t), workspace=partials / 2, launches=np.where(t.splits > 1, 2, 1),
        occupancy=np.minimum(w.waves, 1), executed_share=1 + c.cuda_core_gemm["padding_power"] * (padded - 1),
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


def _waves(works: Works, depth: Array, blocks: Array, t: Tile, d: Cards, c: Constants) -> Waves:
    """1 / tile efficiency = 1 / best + kappa (64 / sqrt(rows columns) - 1/2): what a FLOP loads, from 128 x 128 on.

    What a last wave lacks of a whole one counts `alpha` as well. k is walked in steps of 8.
    """
    coef = c.cuda_core_gemm
    part = 8 * np.ceil(depth / (8 * t.splits))
    x = blocks / d.sms
    counted = counted_waves(x, coef["alpha"])
    warps = hidden_latency(x, t.warps, t.resident, coef["half_warps"])
    tile = 1 / (1 / coef["best"] + coef["kappa"] * (64 / np.sqrt(t.columns * t.rows) - 0.5))
    issue = 1 / (1 + np.where(d.lanes >= 128, coef["issue"], 0.0) + np.where(d.major < 7, coef["integer"], 0.0))
    efficiency = tile * issue * warps
    block_s = 2 * t.columns * t.rows * part / (works.rate / d.sms * efficiency)
    in_flight = np.minimum(d.sms * t.resident, blocks)
    return Waves(part, x, counted, in_flight, block_s, efficiency, tile, issue, warps)


def library_tile(works: Works, p: Product, d: Cards, c: Constants) -> Tile:
    """What the library runs: of its architecture's tiles, whole or with k split, the one that fills waves best.

    The estimate counts waves, arithmetic and partial sums, but no caches: libraries pick by shape. k is split where
    blocks leave SMs idle, in parts of at least `part`. Source of the sets: kernel names of eager PyTorch on five cards.
    """
    coef, s, tiles = c.cuda_core_gemm, c.cuda_core_tiles, _open_tiles(works, p, d, c)
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
            w = _waves(works, p.k, blocks * splits, t, d, c)
            covered = (d.major >= 7) | (works.vector > 0) | (columns * rows >= 128 * 128) | (p.m >= rows)
            sums = np.where(splits > 1, 8 * splits * p.batch * p.m * p.n / d.bandwidth + c.launch["split_s"], 0.0)
            seconds = np.where(covered, w.counted * (w.block_s + coef["prologue_s"] / resident) + sums, np.inf)
            found.append(np.stack(np.broadcast_arrays(*t, seconds)))
    sides = np.stack(found, axis=1)  # of a Tile, then its seconds, [side, tile, n, g]
    _, at = fastest(sides[-1])
    return Tile(*map(at, sides[:-1]))


def _open_tiles(works: Works, p: Product, d: Cards, c: Constants) -> list[tuple[Array, Array]]:
    """Works and rows [n, g] of every tile that is open: of the set of its capability, else the nearest of its
    generation, else the newest before it."""

    sets_of = [c.cuda_core_tiles[kind] for kind in ("batched", "single", "biased")]
    kinds = [[nearest(sets, x.capability) for x in d.devices] for sets in sets_of]
    most = max(len(s) for sets in kinds for s in sets)
    filled = np.array([[(s * most)[:most] for s in sets] for sets in kinds], dtype=float)  # [kind, g, tile, side]
    kind = ((p.batch == 1) * (1 + (works.vector > 0)))[:, 0].astype(int)
    return [(filled[kind, :, i, 0], filled[kind, :, i, 1]) for i in range(most)]


def _named(t: Tile) -> Array:
    """The name of each tile: 128x64, 128x64 split 4."""
    found, at = np.unique(np.stack([t.columns, t.rows, t.splits], axis=-1).reshape(-1, 3), axis=0, return_inverse=True)
    names = np.array([f"{a:.0f}x{b:.0f}" + (f" split {s:.0f}" if s > 1 else "") for a, b, s in found])
    return np.asarray(names[at.reshape(t.columns.shape)])
