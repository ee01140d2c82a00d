"""Fused attention: one kernel that never writes the scores.

A block holds a tile of query rows and walks along the keys. Shapes: n works on g cards are [n, g]; the tiles that
libraries have add an axis, [tile, n, g]. Times are seconds unless a name says otherwise.
Source: fitted on the fastest of the libraries' BF16 and FP8 kernels on A100, L40S, H200 and B200; forms that were
tried: derive/attention.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.tensor_cores import in_bulk
from onnxperf.latency.terms import Array, KernelTerms, choose, fastest, held_back, held_share, pnorm, variant_names

STEP = 128  # keys that a block takes at once
MOST_SHARED = 64  # query heads of one head of keys, at most, that a block takes together
SINGLE_KEYS = 64  # that PyTorch's kernels on CUDA cores take at once (fmha_cutlassF_f32_aligned_64x64_rf)
MOST_DECODED = 16  # queries, at most, to a longer cache, for which a kernel can split the keys


class Classes(NamedTuple):
    """How each card's tensor cores are driven: its name (all of mma.sync are one class), and masks [1, g]."""

    names: list[str]
    mma: Array
    wgmma: Array
    tcgen05: Array


class Heads(NamedTuple):
    """Attention as columns [n, 1].

    group: query heads of one head of keys; dim: of queries and keys; dims: of keys and values together; rows: batch x
    heads x queries. width: bytes of an element; elements: of keys and values; kv_bytes: theirs, as the work reads
    them; kv_8_bits: they are a cache of 8 bits; shared: values are a part of keys; scores: FLOPs of both products.
    """

    batch: Array
    heads: Array
    group: Array
    queries: Array
    keys: Array
    dim: Array
    dims: Array
    rows: Array
    width: Array
    elements: Array
    kv_bytes: Array
    kv_8_bits: Array
    shared: Array
    scores: Array


class Blocks(NamedTuple):
    """How a kernel is cut into blocks, arrays that broadcast to [tile, n, g].

    decode: the kernel is one for few queries; causal: masked, and no decode. tile_rows: rows of a block, queries of
    one or of several heads; heads: of a block; query_tiles: down the queries; splits: parts of the keys; number: of
    blocks.
    visible_keys: that a row of tiles sees behind the mask, mean; steps: along the keys, of a block; longest_steps: of
    the longest block. xqa: TensorRT-LLM's kernel of that name does it, which starts sooner; available: libraries have
    this tile.
    """

    decode: Array
    causal: Array
    tile_rows: Array
    heads: Array
    query_tiles: Array
    splits: Array
    number: Array
    visible_keys: Array
    steps: Array
    longest_steps: Array
    xqa: Array
    available: Array


class StandIn(NamedTuple):
    """Factors [n, g] on arithmetic, memory traffic, start and a block's clocks where another kernel runs, for one that
    libraries lack for the head and the types, or as a framework calls it by itself; 1 elsewhere.
    """

    arithmetic: Array
    memory: Array
    start: Array
    block: Array


class Step(NamedTuple):
    """What a block does for STEP keys, [tile, n, g] or less.

    rows: that are computed; padded_dims: of keys and values, each rounded up to 32; rate: of the pipe, FLOP/s; pipe:
    the share of it that is sustained; products_s: of the two products; seconds: with the softmax.
    """

    rows: Array
    padded_dims: Array
    rate: Array
    pipe: Array
    products_s: Array
    seconds: Array


class Arithmetic(NamedTuple):
    """How all blocks of a kernel compute, [tile, n, g]: waves (blocks / SMs), waves as counted, seconds."""

    waves: Array
    counted: Array
    seconds: Array


class Traffic(NamedTuple):
    """What a kernel moves, [tile, n, g] or less: bytes and seconds of DRAM and of L2, seconds of writing a cache."""

    dram_bytes: Array
    dram_s: Array
    l2_bytes: Array
    l2_s: Array
    cache_s: Array


def attention(works: Works, cards: Cards, dram_share: Array) -> KernelTerms:
    """One query runs in a kernel for decoding, a prompt, whose keys are its own, and more than MOST_DECODED queries in
    one for many queries. For few queries to a longer cache the faster of both runs, as libraries choose by their
    heuristics: then more keys never change the kernel for a faster. Choosing for short prompts as well raised the
    mean error of measured prompts from 14.3 to 15.5%.
    """
    queries = np.maximum(works["queries"], 1)
    alone = queries == 1
    few = alone | ((queries <= MOST_DECODED) & (works["keys"] > queries))
    if (alone == few).all():
        return _kernel(works, cards, dram_share, alone)
    decoding, prompting = (_kernel(works, cards, dram_share, decode) for decode in (few, alone))
    return choose(decoding.seconds < prompting.seconds, decoding, prompting)


def _kernel(works: Works, cards: Cards, dram_share: Array, decode: Array) -> KernelTerms:
    """Blocks of a tile of queries walk along the keys, in waves over the SMs; the fastest tile counts.

    seconds = launch + cache + projection + pnorm(arithmetic, the longer of DRAM's and L2's time). A projection that
    runs inside the kernel is a product by itself, at the share `projection` of the rate. dram_share [n, g]: of what
    a cache holds beyond the queries, as of weights, this share comes from DRAM. decode [n, 1]: the kernel is one for
    decoding.
    """
    coef, classes = cards.constants.attention, _classes(cards)
    heads = _heads(works)
    blocks = _blocks(works, heads, cards, classes, decode)
    # constants of a decode's kernels, and of those for many queries
    of_kind = {name: np.where(blocks.decode, coef["few"][name], coef["many"][name]) for name in coef["few"]}
    slower = _alone(works, heads, cards, _stand_in(heads, blocks, classes, coef["stand_in"]))
    unusual = classes.tcgen05 & ~heads.shared & (heads.dim > 128) & (heads.dim % 128 != 0)  # a compiler's kernel
    step = _step(works, heads, blocks, cards, classes, unusual)
    arithmetic = _arithmetic(heads, blocks, step, cards, of_kind, slower)
    moved = _traffic(works, heads, blocks, cards, classes, dram_share)
    longer_s = np.maximum(moved.dram_s, moved.l2_s) * slower.memory
    launch = _launch(heads, blocks, cards, classes, of_kind, np.where(unusual, coef["odd_start"], slower.start))
    projection = np.maximum(works.matrix - heads.scores, 0) / (works.rate * coef["projection"]) * cards.compute
    seconds = launch + moved.cache_s + projection + pnorm(arithmetic.seconds, longer_s, p=of_kind["norm"])

    at = fastest(np.where(blocks.available, seconds, np.inf))
    executed = np.minimum(works.executed, heads.scores * blocks.visible_keys / heads.keys)
    sustained = step.rate * step.pipe * step.products_s / step.seconds
    useful = at(np.minimum(executed / sustained * cards.compute, arithmetic.seconds))
    splits = at(blocks.splits)
    detail = {}
    if len(works.each) == 1:  # somebody asks about this one
        detail = {name: at(x) for name, x in _detail(blocks, step, arithmetic, moved, executed).items()}
    return KernelTerms(
        useful + projection, at(longer_s + moved.cache_s), at(arithmetic.seconds) - useful, at(launch), at(seconds),
        variant=variant_names("flash {}", splits, at(blocks.tile_rows)), launches=np.where(splits > 1, 2, 1),
        workspace=np.where(splits > 1, 4 * splits * heads.rows * works["dim_v"], 0),
        occupancy=np.minimum(at(arithmetic.waves), 1), detail=detail,
        executed_share=np.broadcast_to(coef["energy"] * works.executed / np.maximum(works.matrix, 1), splits.shape),
    )  # fmt: skip


def _classes(cards: Cards) -> Classes:
    """The class of each card: mma.sync on SMs of 64 lanes and of 128 are one."""
    names = [x.partition("_")[0] for x in cards.tensor_class()]
    return Classes(names, *(np.array([[x == name for x in names]]) for name in ("mma", "wgmma", "tcgen05")))


def _heads(works: Works) -> Heads:
    """The sizes of attention, none below 1.

    kv_bytes: what is read beside weights and queries, kept between half a byte an element and its size: what a cache
    that grows is read more, by the kernel that copies it, no block of queries reads again.
    """
    batch, heads, queries, keys, dim = (np.maximum(works[f], 1) for f in ("batch", "heads", "queries", "keys", "dim"))
    dims = np.maximum(works["dim"] + works["dim_v"], 1)
    group, rows = heads / np.maximum(works["kv_heads"], 1), batch * heads * queries
    elements = batch * heads / group * keys * np.where(shared := works["shared"] > 0, dim, dims)
    most = np.maximum(works.width, 2) * elements
    kv_bytes = np.clip(works.read - works.weights - rows * dim * works.width, elements / 2, most)
    kv_8_bits, scores = kv_bytes < 1.5 * elements, 2 * rows * keys * dims
    return Heads(
        batch, heads, group, queries, keys, dim, dims, rows, works.width, elements, kv_bytes, kv_8_bits, shared, scores
    )


def _blocks(works: Works, h: Heads, cards: Cards, classes: Classes, decode: Array) -> Blocks:
    """Every tile of queries, or of queries and the heads that share their keys.

    In a decode, a block takes all heads that share keys, and the keys are split while SMs are idle; many queries are
    packed so only where libraries do that: not on tcgen05, nor with heads of up to 64. Tiles of 16 rows are for a
    decode: on tcgen05, for caches of 8 bits on Hopper (XQA), for heads that share with none, whose kernels use no
    tensor cores, and where there are no tensor cores.
    """
    coef = cards.constants.attention
    causal = works["causal"] * ~decode
    sizes = sorted({rows for name in classes.names for rows in coef["tiles"][name]})
    tile_rows = np.array(sizes, dtype=float)[:, None, None]
    exists = np.array([[[rows in coef["tiles"][name] for name in classes.names]] for rows in sizes])
    xqa = decode & classes.wgmma & h.kv_8_bits & (h.group <= 16) & ~h.shared
    unshared = ~h.kv_8_bits & (h.group == 1)
    rows_of_16 = xqa | (decode & (classes.tcgen05 | unshared | ~cards.tensor(works.pipes)))
    packable = h.group <= MOST_SHARED
    packed = np.where(decode, packable | (h.dim > 64), packable & (h.dim > 64) & ~classes.tcgen05)
    heads = np.where(packed, h.group, 1)
    query_tiles = np.ceil(h.queries * heads / tile_rows)
    unsplit = h.batch * h.heads / heads * query_tiles
    most_splits = np.minimum(coef["fill"] * cards.sms / unsplit, np.ceil(h.keys / coef["part"]))
    splits = np.maximum(np.floor(np.where(decode, most_splits, 1)), 1)
    visible = h.keys - causal * np.maximum(np.minimum(h.queries, h.keys) - tile_rows / heads, 0) / 2
    together = np.where((works["alone"] > 0) & ~cards.tensor(works.pipes), SINGLE_KEYS, 16)
    steps = together * np.ceil(visible / splits / together) / STEP
    longest = np.where(causal > 0, np.maximum(steps, h.keys / STEP), steps)
    xqa, available = xqa & (h.group > 1) & (h.dim > 64), exists & ((tile_rows > 16) | rows_of_16)
    return Blocks(
        decode, causal, tile_rows, heads, query_tiles, splits, unsplit * splits, visible, steps, longest, xqa, available
    )


def _stand_in(h: Heads, b: Blocks, classes: Classes, rules: Sequence[Mapping[str, Any]]) -> StandIn:
    """The factors of the rules that hold: of a class, for causal prompts or a decode, by the bits of queries and cache
    and the sizes of heads.
    """
    factors = [np.ones(np.broadcast_shapes(h.dim.shape, classes.mma.shape)) for _ in StandIn._fields]
    of_class = {"mma": classes.mma, "wgmma": classes.wgmma, "tcgen05": classes.tcgen05}
    for rule in rules:
        least, most = rule["dim"]
        phase = (b.causal > 0) if rule["prompt"] else b.decode
        holds = of_class[rule["class"]] & phase & (h.dim >= least) & (h.dim <= most)
        if "queries" in rule:
            holds = holds & ((h.width < 2) == (rule["queries"] == 8))
        if "cache" in rule:
            holds = holds & (h.kv_8_bits == (rule["cache"] == 8))
        factors = [np.where(holds, rule.get(name, x), x) for name, x in zip(StandIn._fields, factors, strict=True)]
    return StandIn(*factors)


def _alone(works: Works, h: Heads, cards: Cards, usual: StandIn) -> StandIn:
    """The factors where a framework calls a kernel by itself: the share `alone_start` of the start on tensor cores, and
    where TMA feeds these, `by_cudnn` of a block's clocks for heads of whole words of 16 bytes and without a mask, which
    cuDNN's kernels take. On CUDA cores a kernel takes steps of SINGLE_KEYS keys and `single` times as long.
    """
    coef, alone = cards.constants.attention, works["alone"] > 0
    half = alone & cards.tensor(works.pipes)
    by_cudnn = half & in_bulk(cards) & (h.dim % 8 == 0) & (works["masked"] == 0)
    return usual._replace(
        arithmetic=usual.arithmetic * np.where(alone & ~half, coef["single"], 1.0),
        start=usual.start * np.where(half, coef["alone_start"], 1.0),
        block=usual.block * np.where(by_cudnn, coef["by_cudnn"], 1.0),
    )


def _step(works: Works, h: Heads, b: Blocks, cards: Cards, classes: Classes, unusual: Array) -> Step:
    """Products and softmax of STEP keys: pnorm(2 rows STEP dims / rate of an SM, softmax clocks / clock).

    softmax clocks = rows STEP (1 / 16 + `softmax_flops` / lanes): 16 exponentials a clock (32 on Blackwell Ultra), and
    the rest of the softmax on the vector lanes, times the class's factor `softmax`. On mma.sync, 8 bits run at the
    rate of 16, and a card that is held to a part of its rate comes nearer to it, as in other products. In a decode on
    tiles of more than 16 rows, some kernels multiply all rows of the tile, others only those that hold queries: the
    mean of both counts.
    """
    coef = cards.constants.attention
    pipe, softmax = (np.array([[coef["class"][x][name] for x in classes.names]]) for name in ("pipe", "softmax"))
    rate = np.where(classes.mma & (h.width < 2), np.minimum(works.rate, cards.rate(["tensor_fp16"])), works.rate)
    pipe = pipe * np.where(cards.major < 8, coef["early"], 1)
    held = held_back(pipe, works.rate / cards.whole_rate(works.pipes), cards.constants.tensor_gemm["norm_held"])
    pipe = np.where(classes.mma, held, pipe)
    padded_dims = 32 * (np.ceil(h.dim / 32) + np.ceil((h.dims - h.dim) / 32))
    rows = np.where(_wide(b), (b.tile_rows + h.queries * b.heads / b.query_tiles) / 2, b.tile_rows)
    products_s = 2 * rows * STEP * padded_dims / (rate / cards.sms * pipe)
    exponential = np.array([[1 / (32 if x.capability == (10, 3) else 16) for x in cards.devices]])  # clocks
    clocks = rows * STEP * (exponential + coef["softmax_flops"] / np.minimum(cards.lanes, 128)) * softmax
    seconds = pnorm(products_s, clocks / cards.tensor_hz, p=coef["norm_step"]) * np.where(unusual, coef["odd"], 1)
    return Step(rows, padded_dims, rate, pipe, products_s, seconds)


def _wide(b: Blocks) -> Array:
    """Where a decode runs on tiles of more than 16 rows."""
    return np.asarray(b.decode & (b.tile_rows > 16))


def _arithmetic(h: Heads, b: Blocks, s: Step, cards: Cards, of_kind: Mapping[str, Array], other: StandIn) -> Arithmetic:
    """pnorm(counted waves x seconds of a block, the chain of dependent steps; 2.5).

    A block takes `block` clocks, `row` for each element of its queries, and its steps. A partial last wave is counted
    as part of a full one by the factor `wave`; a causal kernel's not at all, for its blocks differ in length.
    chain = rounds of two blocks on an SM, one after the other: `latency` clocks each and its steps, the last round
    those of the longest block. A step in a chain takes pnorm(its seconds, `chain` clocks; 3).
    """
    coef = cards.constants.attention
    start_clocks = (
        np.where(_wide(b), coef["wide"], of_kind["block"]) * other.block + of_kind["row"] * s.rows * h.dims / 2
    )
    block_s = start_clocks / cards.tensor_hz + b.steps * s.seconds
    waves = b.number / cards.sms
    counted = waves + of_kind["wave"] * (1 - b.causal) * (np.ceil(waves) - waves)
    rounds = np.ceil(waves / 2)
    chained_s = pnorm(s.seconds, np.broadcast_to(of_kind["chain"] / cards.tensor_hz, s.seconds.shape), p=3.0)
    latency = rounds * coef["latency"] / cards.tensor_hz + ((rounds - 1) * b.steps + b.longest_steps) * chained_s
    return Arithmetic(waves, counted, pnorm(counted * block_s, latency, p=2.5) * other.arithmetic * cards.compute)


def _traffic(works: Works, h: Heads, b: Blocks, cards: Cards, classes: Classes, dram_share: Array) -> Traffic:
    """Memory traffic: bytes from DRAM, bytes through L2, and the cache that a causal prompt writes.

    DRAM: what L2 does not hold, of which the kernel's bytes can fill `hot`; of the cache and the weights at least
    `dram_share`. L2: every block reads the keys and values that its rows see. Cache: keys and values of the prompt are
    read in 16 bits and written in the cache's type, and so are queries where a kernel makes 8 bits of them; the share
    `append` of that time counts.
    """
    coef = cards.constants.attention
    in_l2 = held_share(works.bytes, coef["hot"] * cards.l2, coef["sharpness"])
    missed = dram_share * (h.kv_bytes * np.maximum(1 - h.queries / h.keys, 0) + works.weights)
    dram_bytes = works.bytes - in_l2 * (works.bytes - missed)
    kv_bytes = h.kv_bytes * b.query_tiles * h.group / b.heads * b.visible_keys / h.keys
    l2_bytes = kv_bytes + works.bytes - h.kv_bytes
    dram_Bps, l2_Bps = coef["dram"] * cards.read_Bps, coef["l2"] * cards.l2_Bps * cards.l2_share
    quantised = 3 * _quantised(h, classes) * h.rows * h.dim
    new_bytes = b.causal * (2 * h.elements + h.kv_bytes + quantised) * np.minimum(h.queries / h.keys, 1)
    cache_s = coef["append"] * new_bytes * ((1 - in_l2) / dram_Bps + 1 / l2_Bps) * cards.memory
    dram_s, l2_s = dram_bytes / dram_Bps * cards.memory, l2_bytes / l2_Bps * cards.memory
    return Traffic(dram_bytes, dram_s, l2_bytes, l2_s, cache_s)


def _quantised(h: Heads, classes: Classes) -> Array:
    """Where a kernel of its own makes queries of 8 bits: everywhere but on Hopper."""
    return np.asarray((h.width < 2) & ~classes.wgmma)


def _launch(h: Heads, b: Blocks, cards: Cards, classes: Classes, of_kind: Mapping[str, Array], slower: Array) -> Array:
    """Seconds of start and drain, [tile, n, g]: those of any kernel, and clocks of trips to memory after each other.

    clocks: `start`, and `prompt` more for a causal prompt, times `gddr` where memory is no HBM; `quantise` where
    kernels make 8 bits; and those of a second kernel that joins the parts of the keys.
    """
    coef = cards.constants.attention
    clocks = (of_kind["start"] + coef["prompt"] * b.causal) * np.where(cards.hbm, 1, coef["gddr"])
    clocks = clocks * slower * np.where(b.xqa, coef["own_start"], 1)
    makes_8_bits = (classes.mma & h.kv_8_bits) | _quantised(h, classes)
    joined_clocks = (b.splits > 1) * (coef["combine"] + coef["each"] * b.splits)
    clocks = clocks + of_kind["quantise"] * makes_8_bits + joined_clocks
    return np.asarray((cards.constants.launch["kernel_s"] + clocks / cards.hz) * cards.launch)


def _detail(b: Blocks, s: Step, a: Arithmetic, moved: Traffic, executed: Array) -> dict[str, Array]:
    """What `explain` shows of a single kernel, each to be taken at the chosen tile; executed: FLOPs."""
    return {
        "tile rows": b.tile_rows, "heads in a block": b.heads, "splits": b.splits, "blocks": b.number,
        "keys of a block": b.visible_keys / b.splits, "waves": a.waves, "counted waves": a.counted,
        "full tiles efficiency": executed / (2 * b.number * b.tile_rows * b.steps * STEP * s.padded_dims),
        "pipe efficiency": s.pipe, "softmax efficiency": s.products_s / s.seconds,
        "full waves efficiency": a.waves / a.counted, "cache seconds": moved.cache_s, "DRAM bytes": moved.dram_bytes,
        "DRAM seconds": moved.dram_s, "L2 bytes": moved.l2_bytes, "L2 seconds": moved.l2_s,
    }  # fmt: skip
