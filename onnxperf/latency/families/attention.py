"""Fused attention: one kernel that never writes the scores."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import joined, moving
from onnxperf.latency.terms import Array, KernelTerms, fastest, pnorm
from onnxperf.latency.works import Works
from op_models import BITS, Attention, Work

STEP = 128  # keys that a block takes at once
SHARED = 64  # query heads of one head of keys, at most, that a block takes together
FEW = 16  # queries, at most, to a cache at least 8 times as long: split along the keys

#: How a kernel is cut, arrays [tile, n, g] or fewer. few: queries to a cache; causal: more, and masked; tile: its
#: rows; heads together in a block; tiles down the queries; number of blocks; parts of the keys; keys seen by a row of
#: tiles, mean; steps along them, of a block and of the longest; own: one kernel, on Hopper; open: is there such a tile.
Blocks = namedtuple("Blocks", "few causal tile together down number splits seen steps longest own open")


def blocks(works: Works, d: Cards, c: Constants, classes: list[str], narrow: Array) -> Blocks:
    """Every tile [tile, n, g] of queries, or of queries and the heads that share their keys.

    Few queries take all heads of their keys into one block, and are split along the keys while SMs are idle; more do
    where the library packs them (not on tcgen05, nor heads of 64). Tiles of 16 rows are for few queries: on tcgen05,
    for caches of 8 bits on Hopper (TensorRT-LLM), and without tensor cores for heads that share with none. `narrow`:
    caches of 8 bits.
    """
    a = c.attention
    batch, heads, queries, keys, dim = (np.maximum(works[f], 1) for f in ("batch", "heads", "queries", "keys", "dim"))
    group = heads / np.maximum(works["kv_heads"], 1)
    wgmma, tcgen05 = (np.array([[x == name for x in classes]]) for name in ("wgmma", "tcgen05"))
    few = (queries == 1) | ((queries <= FEW) & (keys >= 8 * queries))
    causal = works["causal"] * ~few
    tile = np.array(sorted({t for x in classes for t in a["tiles"][x]}), dtype=float)[:, None, None]
    has = np.array([[[t in a["tiles"][x] for x in classes]] for t in tile.ravel()])
    own = few & wgmma & narrow & (group <= 16)
    thin = own | (few & (tcgen05 | (~narrow & (group == 1)) | ~d.tensor(works.pipes)))
    shared = np.where(few, (group <= SHARED) | (dim > 64), (group <= SHARED) & (dim > 64) & ~tcgen05)
    together = np.where(shared, group, 1)
    down = np.ceil(queries * together / tile)
    whole = batch * heads / together * down
    most = np.minimum(a["fill"] * d.sms / whole, np.ceil(keys / a["part"]))
    splits = np.maximum(np.floor(np.where(few, most, 1)), 1)
    seen = keys - causal * np.maximum(np.minimum(queries, keys) - tile / together, 0) / 2
    steps = 16 * np.ceil(seen / splits / 16) / STEP
    longest = np.where(causal > 0, np.maximum(steps, keys / STEP), steps)
    own, there = own & (group > 1) & (dim > 64), has & ((tile > 16) | thin)
    return Blocks(few, causal, tile, together, down, whole * splits, splits, seen, steps, longest, own, there)


def attention(works: Works, d: Cards, c: Constants, dram_share: Array) -> KernelTerms:
    """Blocks of a tile of queries walk along the keys, in waves over the SMs; the fastest tile counts.

    step = pnorm(2 tile 128 (dim + dim_v) / rate of an SM, tile 128 (1/16 + `softmax_flops` / lanes) clocks): products
    beside 16 exponentials a clock and the rest of the softmax. compute = pnorm(waves (`block` + `row` tile dim + steps
    step), the longest block by itself; 2.5); a causal kernel skips what is masked. memory = DRAM, or L2, from where
    every block reads its own keys and values. launch: `start` clocks of trips to memory one after the other, those of
    kernels that make 8 bits, and those of a second one that goes through the parts. A causal prompt also writes a
    cache. Of what one holds beyond the queries, `dram_share` comes from DRAM, as of weights. A projection that runs
    inside is a product by itself.
    Source: fitted on the fastest of the libraries' bf16 and fp8 kernels on A100, L40S, H200, B200; forms that were
    tried: calibrate/attention.md.
    """
    a, classes = c.attention, [x.partition("_")[0] for x in d.tensor_class()]  # all of mma.sync are one class
    mma, wgmma, tcgen05 = (np.array([[x == name for x in classes]]) for name in ("mma", "wgmma", "tcgen05"))
    pipe, softmax = (np.array([[a["class"][x][name] for x in classes]]) for name in ("pipe", "softmax"))
    batch, heads, queries, keys = (np.maximum(works[f], 1) for f in ("batch", "heads", "queries", "keys"))
    dim, both = np.maximum(works["dim"], 1), np.maximum(works["dim"] + works["dim_v"], 1)
    group, out = heads / np.maximum(works["kv_heads"], 1), batch * heads * queries
    width = np.array([[BITS[w.dtype] / 8] for w in works.each])
    elements = batch * heads / group * keys * both  # of K and V
    kv_bytes = np.clip(works.read - works.weights - out * dim * width, elements / 2, 4 * elements)
    narrow, eight = kv_bytes < 1.5 * elements, (width < 2) & ~wgmma
    odd = tcgen05 & (dim > 128) & (dim % 128 != 0)  # a compiler's kernel: libraries have none
    b = blocks(works, d, c, classes, narrow)
    p = {name: np.where(b.few, a["few"][name], a["many"][name]) for name in a["few"]}

    peak = np.where(mma & (width < 2), np.minimum(works.rate, d.rate(["tensor_fp16"])), works.rate)
    pipe = pipe * np.where(d.major < 8, a["early"], 1)
    padded = 32 * (np.ceil(dim / 32) + np.ceil((both - dim) / 32))
    wide = b.few & (b.tile > 16)  # some kernels multiply all of its rows, some those there are
    rows = np.where(wide, (b.tile + queries * b.together / b.down) / 2, b.tile)
    products = 2 * rows * STEP * padded / (peak / d.sms * pipe)
    exponential = np.array([[1 / (32 if x.capability == (10, 3) else 16) for x in d.devices]])  # Blackwell Ultra: twice
    clocks = rows * STEP * (exponential + a["softmax_flops"] / np.minimum(d.lanes, 128)) * softmax
    step_s = pnorm(products, clocks / d.tensor_hz, p=a["norm_step"]) * np.where(odd, a["odd"], 1)
    block_s = (np.where(wide, a["wide"], p["block"]) + p["row"] * rows * both / 2) / d.tensor_hz + b.steps * step_s
    x = b.number / d.sms
    counted = x + p["wave"] * (1 - b.causal) * (np.ceil(x) - x)
    rounds = np.ceil(x / 2)  # two blocks on an SM
    alone = pnorm(step_s, np.broadcast_to(p["chain"] / d.tensor_hz, step_s.shape), p=3.0)
    latency = rounds * a["latency"] / d.tensor_hz + ((rounds - 1) * b.steps + b.longest) * alone
    compute = pnorm(counted * block_s, latency, p=2.5) * d.compute

    hot = 1 / (1 + (works.bytes / (a["hot"] * d.l2)) ** a["sharpness"])
    dram_bytes = works.bytes - hot * (
        works.bytes - dram_share * (kv_bytes * np.maximum(1 - queries / keys, 0) + works.weights)
    )
    l2_bytes = kv_bytes * b.down * group / b.together * b.seen / keys + works.bytes - kv_bytes
    dram_Bps, l2_Bps = a["dram"] * d.bandwidth, a["l2"] * d.l2_Bps * d.l2_share
    dram, l2 = dram_bytes / dram_Bps * d.memory, l2_bytes / l2_Bps * d.memory
    new = b.causal * (2 * elements + kv_bytes + 3 * eight * out * dim) * np.minimum(queries / keys, 1)
    cache = a["append"] * new * ((1 - hot) / dram_Bps + 1 / l2_Bps) * d.memory
    start = (p["start"] + a["prompt"] * b.causal) * np.where(d.hbm, 1, a["gddr"])
    start = start * np.where(odd, a["odd_start"], 1) * np.where(b.own, a["own_start"], 1)
    start = start + p["quantise"] * ((mma & narrow) | eight) + (b.splits > 1) * (a["combine"] + a["each"] * b.splits)
    launch = (c.launch["kernel_s"] + start / d.hz) * d.launch
    scores = 2 * out * keys * both
    projection = np.maximum(works.matrix - scores, 0) / (works.rate * a["projection"]) * d.compute
    seconds = launch + cache + projection + pnorm(compute, np.maximum(dram, l2), p=p["norm"])
    seconds = np.where(b.open, seconds, np.inf)
    _, at = fastest(seconds)
    executed = np.minimum(works.executed, scores * b.seen / keys)
    useful = at(np.minimum(executed / (peak * pipe * products / step_s) * d.compute, compute))
    parts, tile = at(b.splits), at(b.tile)
    found, where = np.unique(tile * 4096 + parts, return_inverse=True)
    names = [f"flash {v // 4096:.0f}" + (f" split {v % 4096:.0f}" if v % 4096 > 1 else "") for v in found]
    detail = {
        "tile rows": b.tile, "heads in a block": b.together, "splits": b.splits, "blocks": b.number,
        "keys of a block": b.seen / b.splits, "waves": x, "counted waves": counted,
        "full tiles efficiency": executed / (2 * b.number * b.tile * b.steps * STEP * padded),
        "pipe efficiency": pipe, "softmax efficiency": products / step_s, "full waves efficiency": x / counted,
        "cache seconds": cache, "DRAM bytes": dram_bytes, "DRAM seconds": dram, "L2 bytes": l2_bytes, "L2 seconds": l2,
    } if len(works.each) == 1 else {}  # fmt: skip
    return KernelTerms(
        useful + projection, at(np.maximum(dram, l2) + cache), at(compute) - useful, at(launch), at(seconds),
        variant=np.array(names)[where.reshape(tile.shape)], launches=np.where(parts > 1, 2, 1),
        workspace=np.where(parts > 1, 4 * parts * out * works["dim_v"], 0), occupancy=np.minimum(at(x), 1),
        executed_share=np.broadcast_to(a["energy"] * works.executed / np.maximum(works.matrix, 1), tile.shape),
        detail={name: at(v) for name, v in detail.items()},
    )  # fmt: skip


def processor_attention(works: Works, d: Cards, c: Constants, fetch: Array) -> KernelTerms:
    """Two products and a softmax of the scores, which go through the caches."""
    scores = works["batch"] * works["heads"] * works["queries"] * works["keys"]
    compute = works.executed / works.rate + 5 * scores / c.processor["vector_flops"] / (d.sms * d.hz)
    return joined(works, d, compute, moving(works, d, c))


def _error_class(w: Work, on_tensor: bool) -> str:
    s: Any = w.size
    return (
        f"attention_{'decode' if s.queries == 1 else 'prefill' if s.causal else 'encoder'}"
        if on_tensor
        else "attention"
    )


FAMILY = KernelFamily(Attention, attention, processor_attention, _error_class, layer=("heads", "dim"))
