"""Products of matrices on CUDA cores, in tiles and waves.

m rows, n columns, k contracted, a batch of them; a tile is `rows x columns` of one product, computed by one block.
Shapes: n works on g cards are [n, g].
Source: fitted on the FP32 kernels of NeuSight's data, scored on DeepBench's too; forms tried: derive/gemm.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.tensor_cores import SUM_BYTES, Product
from onnxperf.latency.terms import Array, KernelTerms, counted_waves, fastest, hidden_latency, pnorm, variant_names

STEP = 8  # elements of k that a block walks at once
SECTOR = 32  # bytes


class Tile(NamedTuple):
    """The block of each kernel on each card: columns and rows of the result, parts of k, warps, blocks on an SM."""

    columns: Array
    rows: Array
    splits: Array
    warps: Array
    resident: Array


class Grid(NamedTuple):
    """The blocks of each kernel: tiles along m and n of one product; blocks of all products and parts of k."""

    tiles_m: Array
    tiles_n: Array
    blocks: Array


class Waves(NamedTuple):
    """How blocks fill the card.

    part_k: elements of k in a part, in whole steps; waves: blocks / SMs; counted: waves as they are counted; in_flight:
    blocks at once on the card; block_s: seconds of one; prologue_s: of what goes before it and is not hidden by the
    other blocks on its SM. efficiency: the share of an SM's rate that a block reaches, the product of those of the
    tile, of issue slots, and of warps that hide latency.
    """

    part_k: Array
    waves: Array
    counted: Array
    in_flight: Array
    block_s: Array
    prologue_s: Array
    efficiency: Array
    tile: Array
    issue: Array
    warps: Array


class Traffic(NamedTuple):
    """What a kernel moves: bytes and seconds of DRAM and of L2, seconds of scattered reads and of storing the result.

    partial_bytes: of partial sums, written and read.
    """

    dram_bytes: Array
    dram_s: Array
    l2_bytes: Array
    l2_s: Array
    scattered_s: Array
    store_s: Array
    partial_bytes: Array


def cuda_cores(works: Works, p: Product, cards: Cards) -> KernelTerms:
    """Blocks of `columns x rows` in waves over the SMs; their operands stream through L2.

    seconds = pnorm(pnorm(arithmetic, DRAM, L2), scattered reads) + store + launch; arithmetic = counted waves x
    (seconds of a block + `prologue_s` / resident blocks). FLOPs over the edge of the result take `padding_power` of the
    energy of others.
    """
    coef = cards.constants.cuda_core_gemm
    tile = library_tile(works, p, cards)
    tiles_m, tiles_n = np.ceil(p.m / tile.rows), np.ceil(p.n / tile.columns)
    grid = Grid(tiles_m, tiles_n, p.batch * tiles_n * tiles_m * tile.splits)
    w = _waves(works, p.k, grid.blocks, tile, cards)
    compute = w.counted * (w.block_s + w.prologue_s) * cards.compute
    moved = _traffic(works, p, tile, grid, w, cards)
    launch = cards.constants.launch["kernel_s"] * cards.launch + np.where(
        tile.splits > 1, _split_s(works, p, cards), 0.0
    )
    overlapped = pnorm(compute, moved.dram_s, moved.l2_s, p=coef["norm"])
    seconds = pnorm(overlapped, moved.scattered_s, p=coef["unshared_norm"]) + moved.store_s + launch
    useful = np.minimum(works.matrix / (works.rate * w.efficiency) * cards.compute, compute)
    executed = p.batch * tiles_n * tiles_m * tile.columns * tile.rows * w.part_k * tile.splits
    padded = executed / (p.batch * p.m * p.n * p.k)
    detail = {}
    if seconds.shape[0] == 1:  # somebody asks about this one
        detail = {x: np.broadcast_to(v, seconds.shape) for x, v in _detail(p, tile, grid, w, moved, padded).items()}
    return KernelTerms(
        compute=useful, memory=np.maximum(np.maximum(moved.dram_s, moved.l2_s), moved.scattered_s),
        latency=compute - useful, launch=launch, seconds=seconds,
        variant=variant_names("{}x{}", tile.splits, tile.columns, tile.rows), workspace=moved.partial_bytes / 2,
        launches=np.where(tile.splits > 1, np.where(_by_atomics(works, p, cards), 4, 2), 1),
        occupancy=np.minimum(w.waves, 1), executed_share=1 + coef["padding_power"] * (padded - 1), detail=detail,
    )  # fmt: skip


def _waves(works: Works, k: Array, blocks: Array, tile: Tile, cards: Cards) -> Waves:
    """How so many blocks of a tile fill each card, over k columns [n, 1].

    1 / tile efficiency = 1 / best + kappa (64 / sqrt(rows columns) - 1/2): the smaller a tile, the more it loads for
    each FLOP; 128 x 128 is `best`. Where SMs have 128 lanes, loads take issue slots from arithmetic: from Volta on,
    whose schedulers issue one instruction a clock, as many as the tile loads for each FLOP. Before Volta, addresses do.
    A partial last wave is counted as part of a full one by the factor alpha.
    """
    coef = cards.constants.cuda_core_gemm
    part_k = STEP * np.ceil(k / (STEP * tile.splits))
    waves = blocks / cards.sms
    counted = counted_waves(waves, coef["alpha"])
    warps = hidden_latency(waves, tile.warps, tile.resident, coef["half_warps"])
    of_tile = 1 / (1 / coef["best"] + coef["kappa"] * (64 / np.sqrt(tile.columns * tile.rows) - 0.5))
    of_operands = coef["issue"] * np.where(cards.major >= 7, 128 / np.sqrt(tile.columns * tile.rows), 1.0)
    loads, addresses = np.where(cards.lanes >= 128, of_operands, 0.0), np.where(cards.major < 7, coef["integer"], 0.0)
    issue = 1 / (1 + loads + addresses)
    efficiency = of_tile * issue * warps
    block_s = 2 * tile.columns * tile.rows * part_k / (works.rate / cards.sms * efficiency)
    in_flight = np.minimum(cards.sms * tile.resident, blocks)
    prologue_s = coef["prologue_s"] / tile.resident
    return Waves(part_k, waves, counted, in_flight, block_s, prologue_s, efficiency, of_tile, issue, warps)


def _traffic(works: Works, p: Product, tile: Tile, grid: Grid, w: Waves, cards: Cards) -> Traffic:
    """Memory traffic beside the arithmetic.

    DRAM: every operand and result once, partial sums, and what is read again. The blocks that are in flight together
    read the rows and columns that they have in common once. Of what all rounds of blocks read beyond the operands, the
    share miss = read / (read + `resident` x L2 x rounds) comes from DRAM. L2: the operands of every block. The longer
    the parts of k, the less of the result's store shows beside them; on Hopper, whose SMs finish a block of short k in
    half of Ampere's time, most of it shows. A step along a row of k elements that begins inside a sector touches two.
    """
    coef = cards.constants.cuda_core_gemm
    rounds = grid.blocks / w.in_flight
    open_rows = _open_rows(p, tile, grid, w)
    wave_bytes = open_rows * w.part_k * works.width
    miss = works.read / (works.read + coef["resident"] * cards.l2 * np.maximum(rounds, 1))
    reread_bytes = miss * np.maximum(rounds * wave_bytes - works.read, 0)
    partial_bytes = np.where(tile.splits > 1, 2 * tile.splits * p.batch * p.m * p.n * SUM_BYTES, 0.0)
    dram_bytes = works.bytes + reread_bytes + partial_bytes
    dram_Bps = cards.bandwidth * cards.dram * coef["dram"]
    l2_bytes = works.width * p.batch * (grid.tiles_m * p.n + grid.tiles_n * p.m) * w.part_k * tile.splits
    dram_s = dram_bytes / dram_Bps * cards.memory
    l2_s = l2_bytes / (cards.l2_Bps * coef["l2"]) * cards.memory
    touched = 1 + coef["straddle"] * (1 - np.gcd((p.k * works.width).astype(int), SECTOR) / SECTOR)
    scattered_s = _scattered(open_rows * p.k * works.width, l2_bytes * touched, p, cards)
    shown = np.where(cards.major >= 9, coef["store_hopper"], coef["store"])
    store_s = shown * works.written / dram_Bps * np.minimum(1, 256 / w.part_k)
    return Traffic(dram_bytes, dram_s, l2_bytes, l2_s, scattered_s, store_s, partial_bytes)


def _open_rows(p: Product, tile: Tile, grid: Grid, w: Waves) -> Array:
    """How many rows of both operands the blocks in flight read, [n, g].

    The blocks in flight are a rectangle of tiles of one product, filled along n first, or several whole products of the
    batch; m + n rows are all that a product has.
    """
    open_n = np.minimum(grid.tiles_n, w.in_flight)
    open_m = np.minimum(grid.tiles_m, np.ceil(w.in_flight / open_n))
    products = np.maximum(w.in_flight / (grid.tiles_n * grid.tiles_m), 1)
    rows = np.minimum(open_n * tile.columns, p.n) + np.minimum(open_m * tile.rows, p.m)
    return np.asarray(rows * products)


def _scattered(open_bytes: Array, sector_bytes: Array, p: Product, cards: Cards) -> Array:
    """Seconds of DRAM reads that blocks do not share, [n, g]: before Volta, where the second operand is transposed.

    There, blocks walk along rows of k elements at their own pace, and the sectors that each reads (sector_bytes) come
    from DRAM: `unshared` times those, and up to `scatter` times where the rows in flight (open_bytes) are long:
    unshared + (scatter - unshared) x / (1 + x), x = (open_bytes / (`open_L2` L2))^1.5.
    """
    coef = cards.constants.cuda_core_gemm
    x = (open_bytes / (coef["open_L2"] * cards.l2)) ** 1.5
    times = coef["unshared"] + (coef["scatter"] - coef["unshared"]) * x / (1 + x)
    unshared = (cards.major < 7) & (p.transposed > 0)
    return np.asarray(np.where(unshared, times, 0.0) * sector_bytes / (cards.bandwidth * cards.dram) * cards.memory)


def _detail(p: Product, tile: Tile, grid: Grid, w: Waves, moved: Traffic, padded: Array) -> dict[str, Array]:
    """What `explain` shows of a single product; padded: FLOPs of all tiles / FLOPs of the product."""
    return {
        "stack": p.batch, "m": p.m, "n": p.n, "k": p.k, "tile rows": tile.rows, "tile columns": tile.columns,
        "splits": tile.splits, "blocks": grid.blocks, "blocks per SM": tile.resident, "waves": w.waves,
        "counted waves": w.counted, "full tiles efficiency": 1 / padded, "tile efficiency": w.tile,
        "issue slots efficiency": w.issue, "warps efficiency": w.warps, "full waves efficiency": w.waves / w.counted,
        "prologue seconds": w.prologue_s, "DRAM bytes": moved.dram_bytes, "DRAM seconds": moved.dram_s,
        "L2 bytes": moved.l2_bytes, "L2 seconds": moved.l2_s, "scattered seconds": moved.scattered_s,
    }  # fmt: skip


def library_tile(works: Works, p: Product, cards: Cards) -> Tile:
    """What the library runs: of its architecture's tiles, whole or with k split, the one that fills waves best.

    The time counts waves, arithmetic and partial sums, but no caches: libraries pick by shape. Source of the sets:
    kernel names of eager PyTorch on five cards.
    """
    tiles = []
    for columns, rows in _library_tiles(works, p, cards):
        warps, resident = _warps(columns, rows)
        tiles_of_all = p.batch * np.ceil(p.n / columns) * np.ceil(p.m / rows)
        split = _most_splits(works, p, tiles_of_all, resident, cards)
        tiles += [(Tile(columns, rows, x, warps, resident), tiles_of_all * x) for x in (np.ones_like(split), split)]
    seconds = [_selection_s(works, p, t, blocks, cards) for t, blocks in tiles]
    candidates = [np.stack(np.broadcast_arrays(*t, s)) for (t, _), s in zip(tiles, seconds, strict=True)]
    fields = np.stack(candidates, axis=1)  # those of a Tile, then its seconds: [field, candidate, n, g]
    at = fastest(fields[-1])
    return Tile(*map(at, fields[:-1]))


def _library_tiles(works: Works, p: Product, cards: Cards) -> list[tuple[Array, Array]]:
    """Columns and rows [n, g] of every tile that the library has for the works: of the set of the card's capability,
    else the nearest of its generation, else the newest before it. Batched products, single ones and those with a bias
    have sets of their own; shorter sets are repeated to the length of the longest.
    """
    sets = [cards.nearest(cards.constants.cuda_core_tiles[kind]) for kind in ("batched", "single", "biased")]
    longest = max(len(tiles) for of_kind in sets for tiles in of_kind)
    filled = np.array([[(x * longest)[:longest] for x in of_kind] for of_kind in sets], dtype=float)
    kind = ((p.batch == 1) * (1 + (works.vector > 0)))[:, 0].astype(int)
    return [(filled[kind, :, i, 0], filled[kind, :, i, 1]) for i in range(longest)]  # of [kind, g, tile, side]


def _warps(columns: Array, rows: Array) -> tuple[Array, Array]:
    """Warps of a block, and blocks that fit on an SM at once, for tiles of these sides [n, g].

    A warp computes 2048 elements, of 16 warps on an SM; tiles with a side of up to 32 have 4 or 8 of 32 warps.
    """
    narrow = np.minimum(columns, rows) <= 32
    warps = np.where(narrow, np.where(columns * rows <= 1024, 4, 8), columns * rows / 2048)
    return warps, np.maximum(1, np.floor(np.where(narrow, 32, 16) / warps))


def _most_splits(works: Works, p: Product, tiles: Array, resident: Array, cards: Cards) -> Array:
    """Into how many parts k is split where it is split, [n, g]: as many as let the blocks fill `fill` waves of all
    resident blocks, `splits` at most, in parts of at least `part` elements. Batched products are not split, nor are
    others on the large dies from Ampere on, GA100 and GH100, but where they have few tiles of 128 x 128: no more for an
    SM than `few`, as kernels there split k inside a block, or `few_bare` from Hopper on without a bias.
    """
    coef = cards.constants.cuda_core_tiles
    most = np.minimum(np.floor(coef["fill"] * cards.sms * resident / tiles), p.k / coef["part"])
    bare = (cards.major >= 9) & (works.vector == 0)
    inside = (cards.major >= 9) | (cards.major == 8) & (cards.lanes < 128)
    whole = (p.batch > 1) | inside & (_large_tiles(p, cards) > np.where(bare, coef["few_bare"], coef["few"]))
    return np.where(whole, 1, np.clip(np.floor(most), 1, np.where(_by_atomics(works, p, cards), 2, coef["splits"])))


def _large_tiles(p: Product, cards: Cards) -> Array:
    """How many tiles of 128 x 128 a single product has for each SM, [n, g]."""
    return np.asarray(p.m * p.n / (128 * 128 * cards.sms))


def _by_atomics(works: Works, p: Product, cards: Cards) -> Array:
    """Whether blocks add the parts of k to the result by atomics where k is split, [n, g]: in products with a bias from
    Hopper on, which then split it in two at most, but for those of fewer tiles than `few_biased`.
    """
    few = cards.constants.cuda_core_tiles["few_biased"]
    return np.asarray((cards.major >= 9) & (works.vector > 0) & (_large_tiles(p, cards) > few))


def _split_s(works: Works, p: Product, cards: Cards) -> Array:
    """Seconds [n, g] that a product takes more where k is split: of a kernel that sums the parts or, with atomics, of
    three that clear the result, scale it and add the bias.
    """
    atomics_s = cards.constants.cuda_core_tiles["atomics_s"]
    return np.asarray(cards.constants.launch["split_s"] + np.where(_by_atomics(works, p, cards), atomics_s, 0.0))


def _selection_s(works: Works, p: Product, tile: Tile, blocks: Array, cards: Cards) -> Array:
    """Seconds [n, g] by which the library picks a tile: waves, arithmetic and partial sums.

    Before Volta, a product without a bias takes no tile with more rows than it has itself, but for the largest one.
    """
    w = _waves(works, p.k, blocks, tile, cards)
    largest = tile.columns * tile.rows >= 128 * 128
    open_to = (cards.major >= 7) | (works.vector > 0) | largest | (p.m >= tile.rows)
    sums_s = 2 * SUM_BYTES * tile.splits * p.batch * p.m * p.n / cards.bandwidth + _split_s(works, p, cards)
    seconds = w.counted * (w.block_s + w.prologue_s) + np.where(tile.splits > 1, sums_s, 0.0)
    return np.where(open_to, seconds, np.inf)
