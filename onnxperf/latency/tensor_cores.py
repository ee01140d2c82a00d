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
from onnxperf.latency.terms import (
    RUNNER_UP,
    Array,
    KernelTerms,
    fastest,
    held_back,
    held_share,
    pnorm,
    rows_of,
    runner_up,
    variant_names,
)

#: The entry of `tensor_gemm.types` whose factors a pipe's products take, where any were measured.
TYPES = {"tensor_tf32": "tf32", "tensor_fp8": "fp8", "tensor_int8": "sq", "tensor_fp4": "nvfp4"}
#: Types whose operands are copied to shared memory by threads on every card, even on those with TMA.
BY_THREADS = ("sq", "int8_wo", "int4_wo")
STEP_BYTES = 128  # of k in one iteration of a block's main loop
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
    """Constants by how each card drives and feeds its tensor cores, each [1, g].

    rate, extra_k, start: factors on the constants `rate`, `extra_k` and `start_cycles`, by the instructions that drive
    the tensor cores (mma.sync, wgmma, tcgen05). The other fields depend on how operands reach an SM: threads copy them
    or, from Hopper on, its TMA loads them in bulk. feed: the rate at which they arrive, over an SM's part of L2's
    streaming rate. step_cycles: clocks of STEP_BYTES along k. partial: how much a partial last wave counts as a full
    one, less where persistent blocks take the next tile. l2: the share of L2's streaming rate that the whole kernel
    reaches. split_s: seconds to add up the partial sums of split-K.
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
    """What depends on the type of a product's operands.

    bits [n, 1]: of a stored weight. The others are [n, g]. rate, extra_k, step_cycles: factors; splits: most parts of
    k. by_threads: whether threads copy the operands on every card (BY_THREADS). few_rows: whether a kernel for few rows
    runs, which the types in BY_THREADS have; its split-K needs no extra summation.
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

    pipe: the share of the tensor cores' rate that is sustained inside a tile. arithmetic_s: arithmetic, with prologue
    and epilogue of the tile. seconds: that joined with the loading of its operands.
    """

    pipe: Array
    arithmetic_s: Array
    seconds: Array


class Traffic(NamedTuple):
    """The memory traffic of a kernel, arrays that broadcast to [split, tile, n, g].

    dram_bytes, dram_s: of DRAM; l2_s: of L2; seconds: both joined. store_s: the part of writing the result that is not
    hidden. partial_bytes: of the partial sums of split-K, written and read.
    """

    dram_bytes: Array
    dram_s: Array
    l2_s: Array
    seconds: Array
    store_s: Array
    partial_bytes: Array


def tensor_cores(works: Works, p: Product, cards: Cards, dram_share: Array) -> KernelTerms:
    """Products on tensor cores, each with the tile and split-K that are fastest.

    seconds = launch + pnorm(counted waves x seconds of a block, memory traffic) + store.
    counted waves = `partial` ceil(waves) + (1 - `partial`) max(1, waves), with waves = blocks / SMs.

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
        detail[RUNNER_UP] = runner_up(seconds)
    return KernelTerms(
        useful, at(memory.seconds), at(compute) - useful, at(launch), at(seconds),
        variant=variant_names("{}x{}", splits, at(tiling.rows), at(tiling.columns)),
        workspace=at(memory.partial_bytes) / 2, launches=np.where(splits > 1, 2, 1),
        occupancy=np.minimum(at(waves), 1), detail=detail,
    )  # fmt: skip


def _driving(cards: Cards) -> Driving:
    """The constants of each card's class of tensor cores, and of how its operands are loaded, as arrays [1, g]."""
    classes = [cards.constants.tensor_class[name] for name in cards.tensor_class()]
    loads = [cards.constants.tensor_loads[x["loads"]] for x in classes]
    fed = [np.array([[x[name] for x in loads]]) for name in ("feed", "step_cycles", "wave", "l2", "split_s")]
    factors = [np.array([[x[name] for x in classes]]) for name in ("rate", "extra_k", "start")]
    return Driving(*factors, *fed)


def _operands(works: Works, p: Product, cards: Cards, coef: Mapping[str, Any]) -> Operands:
    """The factors of each product's operand types.

    Weights stored in fewer bits than the pipe multiplies are unpacked by the kernel; its vector FLOPs reveal that.
    """
    bits, types = types_of(works, p, cards)
    by_threads = np.isin(types, BY_THREADS)
    few_rows = by_threads & (p.m <= coef["few"]["rows"])
    rate, extra_k, step_cycles, splits = _type_factors(types, few_rows, cards, coef)
    rate = np.where(by_older(works, cards), coef["by_older"], 1.0) * rate
    return Operands(bits, rate, extra_k, step_cycles, splits, by_threads, few_rows)


def in_bulk(cards: Cards) -> Array:
    """Cards [1, g] whose tensor cores TMA feeds in bulk, by wgmma or tcgen05: Hopper and Blackwell's data centre dies,
    not its desktop dies, which have Ampere's mma.sync.
    """
    return np.asarray((cards.major >= 9) & (cards.major < 12))


def by_older(works: Works, cards: Cards) -> Array:
    """Which plain products in 16 bits run on kernels of Turing's instructions where TMA feeds tensor cores, [n, g]: TMA
    takes operands and results whose rows are whole words of 16 bytes (CUDA driver API, cuTensorMapEncodeTiled). A
    compiler pads the others where arithmetic bounds them (torch/_inductor/fx_passes/pad_mm.py, is_mm_compute_bound).
    """
    bulk = in_bulk(cards)
    if "tb" not in works.fields or not bulk.any():
        return np.zeros((1, 1), dtype=bool)
    m, n, k = (np.maximum(works[f], 1) for f in ("m", "n", "k"))
    left, right = np.where(works["ta"] > 0, m, k), np.where(works["tb"] > 0, k, n)
    whole = (left % 8 == 0) & (right % 8 == 0) & (n % 8 == 0)
    intensity = m * n * k / (m * n + m * k + n * k)
    padded = (works["padded"] > 0) & (intensity > works.rate / cards.bandwidth)
    return np.asarray(~whole & (works.width == 2) & (np.minimum(m, n) > 1) & bulk & ~padded)


def types_of(works: Works, p: Product, cards: Cards) -> tuple[Array, Array]:
    """The bits of a stored weight [n, 1], and the name in `tensor_gemm.types` whose factors each product takes on each
    card [n, g].
    """
    product = "tb" in works.fields  # a plain one, no convolution
    unpacked = product & (works.weights > 0) & (works.vector >= 2 * p.n * p.k)
    bits = np.where(unpacked, 8 * works.weights / (p.n * p.k), 8 * works.width)
    packed = np.where(unpacked & (bits < 12), np.where(bits > 6, 8, 4), 0)[:, 0].tolist()
    pairs = list(zip(works.pipes, packed, strict=True))
    of_pair = {(x, y): [_type(pipe_on(device, x), y) for device in cards.devices] for x, y in set(pairs)}
    return bits, rows_of(of_pair, pairs, len(cards.devices))


def _type(pipe: str, packed: int) -> str:
    """The name in `tensor_gemm.types` for the pipe that runs a product. packed: bits of a weight that the kernel
    unpacks, 0 for none.
    """
    return f"int{packed}_wo" if packed and pipe in ("tensor_fp16", "tensor_bf16") else TYPES.get(pipe, "half")


def _type_factors(types: Array, few_rows: Array, cards: Cards, coef: Mapping[str, Any]) -> list[Array]:
    """The factors of types [n, g] on `rate`, `extra_k` and `step_cycles`, and the most parts of k; each [n, g].

    A type may have factors of its own for a class of cards; kernels for few rows have theirs for all types.
    """
    factors = {name: np.ones(types.shape) for name in ("rate", "extra_k", "step_cycles", "splits")}
    for name in sorted(set(types.ravel().tolist())):
        of_type = coef["types"][name]
        for f in factors:
            usual = np.array([of_type.get(x, of_type).get(f, of_type[f]) for x in cards.tensor_class()])
            factors[f] = np.where(types == name, np.where(few_rows, coef["few"].get(f, usual), usual), factors[f])
    return list(factors.values())


def _tilings(p: Product, most_splits: Array, cards: Cards, coef: Mapping[str, Any]) -> Tiling:
    """All tiles, each without and with split-K.

    tiles = batch ceil(m / rows) ceil(n / columns). The number of parts of k is the largest power of two with which the
    blocks fill no more than `fill` waves, at most `splits` and most_splits [n, g], with at least `part` elements of k
    in each. The tiles' sides in the constants are [tile, 2] for all cards or [tile, 2, g].
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
    """Seconds of a block: pnorm(arithmetic, feed, steps).

    arithmetic = 2 rows columns (part_k / sustained rate of an SM + `extra_k` / its full rate): prologue and epilogue of
    a tile cost as much as `extra_k` more elements of k. Where a card is held to a part of the hardware's
    rate (`Cards.whole_rate`), the rest of a tile's work has that much more time: see `held_back`. feed =
    bytes of the tile's operands / the rate at which L2 feeds an SM. steps = iterations over STEP_BYTES of k one after
    another, `step_cycles` each.
    """
    coef = cards.constants.tensor_gemm
    rate = np.minimum(coef["rate"] * driving.rate * operands.rate, 1)
    extra_k = coef["extra_k"] * driving.extra_k * operands.extra_k
    whole_rate = cards.whole_rate(works.pipes)
    pipe = held_back(rate, works.rate / whole_rate, np.where(in_bulk(cards), 1.0, coef["norm_held"]))
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

    DRAM serves the weights that are not in L2, and the part of operands and results that L2 can't hold; they can fill
    the share `hot` of it. Partial sums of split-K go through L2. The store that is not hidden takes
    `store` / (1 + part_k / `store_k`) of the result's time in L2: more where k is short. Where TMA feeds tensor cores,
    kernels that add a bias hide nothing of it up to `biased_k` elements of k.
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
    bare = in_bulk(cards) & (works.vector > 0) & (p.k <= coef["biased_k"])
    shown = np.where(bare, 1.0, coef["store"] / (1 + t.part_k / coef["store_k"]))
    store_s = shown * works.written / l2_Bps * cards.memory
    return Traffic(dram_bytes, dram_s, l2_s, seconds, store_s, partial_bytes)


def _launch(t: Tiling, operands: Operands, driving: Driving, cards: Cards) -> Array:
    """Seconds of launch, start and drain, [split, tile, n, g]: the least time of any kernel, `start_cycles`, and the
    summation of partial results with split-K.
    """
    start_cycles = cards.constants.tensor_gemm["start_cycles"] * driving.start
    summed_s = np.where((t.splits > 1) & ~operands.few_rows, driving.split_s, 0.0)
    return np.asarray((cards.constants.launch["floor_s"] + start_cycles / cards.tensor_hz) * cards.launch + summed_s)


def _detail(
    works: Works, p: Product, t: Tiling, block: Block, waves: Array, counted: Array, memory: Traffic, cards: Cards
) -> dict[str, Array]:
    """What `explain` shows of a single product, as arrays over all tiles, of which the caller takes the fastest."""
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
