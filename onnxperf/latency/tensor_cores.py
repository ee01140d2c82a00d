"""Products of matrices on tensor cores, in tiles and waves: batch times m x k by k x n.

A block computes a tile of `rows x columns` of one product, over the whole of k or over one part of it (split-K).
Shapes: n works on g cards are [n, g]; every way to cut them into blocks adds two axes, [split, tile, n, g].
Source: fitted to products on V100, T4, A100, L40S, H200, B200 and GB200; forms tried: derive/tensor.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from onnxperf.latency.cards import Cards, Works, pipe_on
from onnxperf.latency.terms import Array, KernelTerms, fastest, held_share, pnorm, runner_up, variant_names

#: Whose factors a pipe's products take, where measurements tell any.
TYPES = {"tensor_fp8": "fp8", "tensor_int8": "sq", "tensor_fp4": "nvfp4"}
#: Types whose operands threads copy to shared memory on every card, also where others have an engine for that.
BY_THREADS = ("sq", "int8_wo", "int4_wo")
STEP_BYTES = 128  # of k that a block walks at once
SUM_BYTES = 4  # of a partial sum, in FP32


class Product(NamedTuple):
    """The product behind a kernel, whatever its operator: `batch` times m x k by k x n, each a column [n, 1].

    transposed: 1 where the second operand lies with k contiguous.
    """

    batch: Array
    m: Array
    n: Array
    k: Array
    transposed: Array | float = 0.0


class Driving(NamedTuple):
    """How each card drives its tensor cores, each [1, g].

    rate, extra_k, start: factors on the constants `rate`, `extra_k` and `start_cycles`, by the instructions that drive
    them (mma.sync, wgmma, tcgen05). The other fields depend on how operands come to an SM: threads copy them or, from
    Hopper on, its own engine loads them in bulk. feed: the rate at which they come, as a multiple of an SM's part of
    L2's rate. step_cycles: clocks of a step of STEP_BYTES along k. partial: how much of a partial last wave counts as a
    full one; less where blocks persist and take the next tile. l2: the share of L2's streaming rate that the whole
    kernel reaches. split_s: seconds that adding up partial results takes.
    """

    rate: Array
    extra_k: Array
    start: Array
    feed: Array
    step_cycles: Array
    partial: Array
    l2: Array
    split_s: Array


class Operands(NamedTuple):
    """What the type of the operands changes in a product.

    bits [n, 1]: of a stored weight. The others are [n, g]. rate, extra_k, step_cycles: factors; splits: parts of k at
    most. by_threads: whether threads copy the operands on every card (BY_THREADS). few_rows: whether a kernel for few
    rows does the product, which such types have: its parts of k need no other sum.
    """

    bits: Array
    rate: Array
    extra_k: Array
    step_cycles: Array
    splits: Array
    by_threads: Array
    few_rows: Array


class Tiling(NamedTuple):
    """Every way to cut the products into blocks: arrays that broadcast to [split, tile, n, g].

    rows, columns: of a tile; tiles: of all products of the batch; splits: parts of k; part_k: elements of k in a part;
    blocks: tiles x splits.
    """

    rows: Array
    columns: Array
    tiles: Array
    splits: Array
    part_k: Array
    blocks: Array


class Block(NamedTuple):
    """How long one block takes, [split, tile, n, g] but for `pipe` [n, g].

    pipe: the share of the unit's rate that is sustained inside a tile. arithmetic_s: with start and result of the
    tile. seconds: with what its operands take to arrive.
    """

    pipe: Array
    arithmetic_s: Array
    seconds: Array


class Traffic(NamedTuple):
    """What a kernel moves, arrays that broadcast to [split, tile, n, g].

    dram_bytes, dram_s: what DRAM takes; l2_s: what L2 takes; seconds: both together. store_s: the part of writing the
    result that nothing hides. partial_bytes: of partial sums, written and read.
    """

    dram_bytes: Array
    dram_s: Array
    l2_s: Array
    seconds: Array
    store_s: Array
    partial_bytes: Array


def tensor_cores(works: Works, p: Product, cards: Cards, dram_share: Array) -> KernelTerms:
    """Products on tensor cores, each cut into the blocks that are fastest.

    seconds = launch + pnorm(counted waves x seconds of a block, memory traffic) + store. A partial last wave is
    counted as a full one by the factor `partial`, and the rest of it by its blocks.

    dram_share [n, g]: the share of the model's weights found in DRAM.
    """
    coef = cards.constants.tensor_gemm
    driving = _driving(cards)
    operands = _operands(works, p, cards, coef)
    tiling = _tilings(p, operands.splits, cards, coef)
    block = _block(works, tiling, operands, driving, cards)
    waves = tiling.blocks / cards.sms
    counted = driving.partial * np.ceil(waves) + (1 - driving.partial) * np.maximum(1, waves)
    compute = counted * block.seconds * cards.compute
    memory = _traffic(works, p, tiling, driving, cards, dram_share)
    launch = _launch(tiling, operands, driving, cards)
    seconds = launch + pnorm(compute, memory.seconds, p=coef["norm"]) + memory.store_s

    at = fastest(seconds)
    useful = np.minimum(works.matrix / (works.rate * block.pipe) * cards.compute, at(compute))
    splits = at(tiling.splits)
    detail = {}
    if len(works.each) == 1:  # somebody asks about this one
        detail = {name: at(x) for name, x in _detail(works, p, tiling, block, waves, counted, memory, cards).items()}
        detail["runner-up seconds"] = runner_up(seconds)
    return KernelTerms(
        useful, at(memory.seconds), at(compute) - useful, at(launch), at(seconds),
        variant=variant_names("{}x{}", splits, at(tiling.rows), at(tiling.columns)), workspace=at(memory.partial_bytes),
        launches=np.where(splits > 1, 2, 1), occupancy=np.minimum(at(waves), 1), detail=detail,
    )  # fmt: skip


def _driving(cards: Cards) -> Driving:
    """The constants of each card's class and of what loads its operands, as arrays [1, g]."""
    classes = [cards.constants.tensor_class[name] for name in cards.tensor_class()]
    loads = [cards.constants.tensor_loads[x["loads"]] for x in classes]
    fed = [np.array([[x[name] for x in loads]]) for name in ("feed", "step_cycles", "wave", "l2", "split_s")]
    factors = [np.array([[x[name] for x in classes]]) for name in ("rate", "extra_k", "start")]
    return Driving(*factors, *fed)


def _operands(works: Works, p: Product, cards: Cards, coef: Mapping[str, Any]) -> Operands:
    """What the types of the operands change.

    Weights stored in fewer bits than the pipe multiplies are unpacked by the kernel: its vector FLOPs show that.
    """
    bits, types = types_of(works, p, cards)
    by_threads = np.isin(types, BY_THREADS)
    few_rows = by_threads & (p.m <= coef["few"]["rows"])
    rate, extra_k, step_cycles, splits = _type_factors(types, few_rows, cards, coef)
    return Operands(bits, rate, extra_k, step_cycles, splits, by_threads, few_rows)


def types_of(works: Works, p: Product, cards: Cards) -> tuple[Array, Array]:
    """The bits of a stored weight [n, 1], and whose factors each product takes on each card [n, g], among
    `tensor_gemm.types`.
    """
    product = "tb" in works.fields  # a plain one, no convolution
    unpacked = product & (works.weights > 0) & (works.vector >= 2 * p.n * p.k)
    bits = np.where(unpacked, 8 * works.weights / (p.n * p.k), 8 * works.width)
    packed = np.where(unpacked & (bits < 12), np.where(bits > 6, 8, 4), 0)[:, 0].tolist()
    pairs = list(zip(works.pipes, packed, strict=True))
    of_pair = {(x, y): [_type(pipe_on(device, x), y) for device in cards.devices] for x, y in set(pairs)}
    return bits, np.array([of_pair[x] for x in pairs])


def _type(pipe: str, packed: int) -> str:
    """Whose factors a product takes, from the pipe that runs it and the bits of a weight unpacked on the way, or 0."""
    return f"int{packed}_wo" if packed and pipe in ("tensor_fp16", "tensor_bf16") else TYPES.get(pipe, "half")


def _type_factors(types: Array, few_rows: Array, cards: Cards, coef: Mapping[str, Any]) -> list[Array]:
    """The factors of types [n, g] on `rate`, `extra_k` and `step_cycles`, and the most parts of k; each [n, g].

    A type may have factors of its own for a class of cards; kernels for few rows have theirs for all types.
    """
    found = {name: np.ones(types.shape) for name in ("rate", "extra_k", "step_cycles", "splits")}
    for name in np.unique(types).tolist():
        of_type = coef["types"][name]
        for f in found:
            usual = np.array([of_type.get(x, of_type).get(f, of_type[f]) for x in cards.tensor_class()])
            found[f] = np.where(types == name, np.where(few_rows, coef["few"].get(f, usual), usual), found[f])
    return list(found.values())


def _tilings(p: Product, most_splits: Array, cards: Cards, coef: Mapping[str, Any]) -> Tiling:
    """All tiles, each with k whole and with k split.

    tiles = batch ceil(m / rows) ceil(n / columns). k is split in a power of two of parts, as many as let the blocks
    fill `fill` waves, but no more than `splits` and than most_splits [n, g], nor into parts of fewer than `part`
    elements. Sides of tiles are those of the constants, [tile, 2] for all cards or [tile, 2, g].
    """
    sides = np.array(coef["tiles"], dtype=float)
    sides = sides.reshape(*sides.shape[:2], -1)
    rows, columns = sides[:, 0, None], sides[:, 1, None]
    tiles = p.batch * np.ceil(p.m / rows) * np.ceil(p.n / columns)
    most = np.clip(p.k / coef["part"], 1, np.minimum(coef["splits"], most_splits))
    split = np.exp2(np.floor(np.log2(np.clip(coef["fill"] * cards.sms / tiles, 1, most))))
    splits = np.stack([np.ones_like(split), split])
    return Tiling(rows, columns, tiles, splits, p.k / splits, tiles * splits)


def _block(works: Works, t: Tiling, operands: Operands, driving: Driving, cards: Cards) -> Block:
    """Seconds of a block: pnorm of its arithmetic, of its operands' way to the SM, and of the steps along k.

    arithmetic = 2 rows columns (part_k / sustained rate of an SM + `extra_k` / that of its units): `extra_k` is what
    start and result of a tile cost, as if k were longer. What arithmetic loses does not grow where a card halves its
    peak (`Cards.whole_rate`). feed = bytes of rows and columns / what L2 feeds an SM. steps = STEP_BYTES of k after
    each other, `step_cycles` each.
    """
    coef = cards.constants.tensor_gemm
    rate = np.minimum(coef["rate"] * driving.rate * operands.rate, 1)
    extra_k = coef["extra_k"] * driving.extra_k * operands.extra_k
    whole_rate = cards.whole_rate(works.pipes)
    pipe = 1 / (1 + (1 / rate - 1) * works.rate / whole_rate)
    usual = np.where(np.array([[x == "tensor_fp4"] for x in works.pipes]), 2 * cards.rate(["tensor_fp8"]), whole_rate)
    per_rate = t.part_k / (works.rate * pipe) + extra_k / (rate * np.minimum(whole_rate, usual))
    arithmetic_s = 2 * t.rows * t.columns * cards.sms * per_rate
    bytes_of_k = t.rows * works.width + t.columns * np.minimum(works.width, operands.bits / 8)
    feed_s = bytes_of_k * t.part_k / (cards.l2_stream_Bps / cards.sms * driving.feed)
    by_copies = cards.constants.tensor_loads["copies"]["step_cycles"]
    step_cycles = np.where(operands.by_threads, by_copies, driving.step_cycles)
    steps_s = t.part_k * works.width / STEP_BYTES * step_cycles * operands.step_cycles / cards.tensor_hz
    return Block(pipe, arithmetic_s, pnorm(arithmetic_s, feed_s, steps_s, p=coef["norm_block"]))


def _traffic(works: Works, p: Product, t: Tiling, driving: Driving, cards: Cards, dram_share: Array) -> Traffic:
    """Memory traffic: pnorm(bytes from DRAM / its rate, all bytes / L2's rate), and the store of the result.

    From DRAM come weights that are not in L2, and operands and results beyond what L2 holds, `hot` of which they can
    fill. Partial sums of a split k go through L2. The store costs
    more where a block walks little of k before it: `store` / (1 + part_k / `store_k`) of the result's time in L2.
    """
    coef = cards.constants.tensor_gemm
    moving = works.bytes - works.weights
    evicted = 1 - held_share(moving, coef["hot"] * cards.l2_near, coef["hot_sharpness"])
    dram_bytes = dram_share * works.weights + evicted * (moving + (coef["written"] - 1) * works.written)
    partial_bytes = np.where(t.splits > 1, 2 * t.splits * p.batch * p.m * p.n * SUM_BYTES, 0.0)
    dram_s = dram_bytes / (coef["dram"] * cards.read_Bps)
    l2_Bps = cards.l2_stream_Bps * driving.l2
    l2_s = (works.bytes + partial_bytes) / l2_Bps
    seconds = pnorm(dram_s, l2_s, p=coef["norm_memory"]) * cards.memory
    store_s = coef["store"] * works.written / l2_Bps / (1 + t.part_k / coef["store_k"]) * cards.memory
    return Traffic(dram_bytes, dram_s, l2_s, seconds, store_s, partial_bytes)


def _launch(t: Tiling, operands: Operands, driving: Driving, cards: Cards) -> Array:
    """Seconds of start and drain, [split, tile, n, g]: the floor of every kernel, `start_cycles` of the card's class,
    and the sum of partial results where k is split.
    """
    start_cycles = cards.constants.tensor_gemm["start_cycles"] * driving.start
    summed_s = np.where((t.splits > 1) & ~operands.few_rows, driving.split_s, 0.0)
    return np.asarray((cards.constants.launch["floor_s"] + start_cycles / cards.tensor_hz) * cards.launch + summed_s)


def _detail(
    works: Works, p: Product, t: Tiling, block: Block, waves: Array, counted: Array, memory: Traffic, cards: Cards
) -> dict[str, Array]:
    """What `explain` shows of a single product, each to be taken at the chosen tile."""
    tile_flops = 2 * t.rows * t.columns * cards.sms * t.part_k
    return {
        "stack": p.batch, "m": p.m, "n": p.n, "k": p.k, "tile rows": t.rows, "tile columns": t.columns,
        "splits": t.splits, "blocks": t.blocks, "waves": waves, "counted waves": counted,
        "full tiles efficiency": p.batch * p.m * p.n / (t.tiles * t.rows * t.columns), "pipe efficiency": block.pipe,
        "epilogue efficiency": tile_flops / (works.rate * block.pipe) / block.arithmetic_s,
        "feed efficiency": block.arithmetic_s / block.seconds, "full waves efficiency": waves / counted,
        "DRAM bytes": memory.dram_bytes, "DRAM seconds": memory.dram_s, "L2 bytes": works.bytes,
        "L2 seconds": memory.l2_s, "store seconds": memory.store_s,
    }  # fmt: skip
