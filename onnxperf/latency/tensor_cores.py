"""Products of matrices on tensor cores, in tiles and waves: batch times m x k by k x n."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onnxperf.latency.cards import Cards, pipe_on
from onnxperf.latency.constants import Constants
from onnxperf.latency.terms import Array, KernelTerms, fastest, pnorm
from onnxperf.latency.works import Works

#: Whose factors a pipe's products take, where rows tell any; types whose operands threads load on every card.
TYPES = {"tensor_fp8": "fp8", "tensor_int8": "sq", "tensor_fp4": "nvfp4"}
BY_THREADS = ("sq", "int8_wo", "int4_wo")


class Product(NamedTuple):
    """The product behind a kernel, whatever its operator: `batch` times m x k by k x n, each a column [n, 1].

    transposed: 1 where the second operand lies with k contiguous.
    """

    batch: Array
    m: Array
    n: Array
    k: Array
    transposed: Array | float = 0.0


def tensor_cores(works: Works, p: Product, d: Cards, c: Constants, width: Array, dram_share: Array) -> KernelTerms:
    """The fastest of the tiles, each with k whole or split so that blocks fill `fill` waves; [split, tile, n, g].

    block = pnorm(2 rows columns (k + extra) / rate of an SM, (rows + columns) k bytes / what L2 feeds an SM, k in steps
    of 128 bytes one after the other): `extra` is what a tile costs beside its k, start and result. What arithmetic
    loses does not grow where a card halves its peak. Waves count partial ones in part: less where blocks persist and
    take the next tile. Memory: weights that are not in L2, and operands and results that it does not hold, at DRAM's
    rate; all bytes at L2's; what is written costs more where k is short. How operands come to an SM (copies by threads,
    or in bulk by its own engine from Hopper on) tells feed, steps, waves and L2's rate. Types differ by factors; those
    of BY_THREADS take the steps of copies everywhere, and kernels of their own for `few` rows, where parts of k need no
    other sum.
    Source: fitted to products on V100, T4, A100, L40S, H200, B200 and GB200; forms tried: calibrate/tensor.md.
    """
    batch, m, n, depth = (x[None] for x in (p.batch, p.m, p.n, p.k))
    t = c.tensor_gemm
    kinds = [c.tensor_class[name] for name in d.tensor_class()]
    loads = {f: np.array([[c.tensor_loads[s["loads"]][f] for s in kinds]]) for f in c.tensor_loads["copies"]}
    unpacked = (
        (works.weights > 0) & (works.vector >= 2 * p.n * p.k)
        if "tb" in works.fields
        else np.zeros_like(width, dtype=bool)
    )
    bits = np.where(unpacked, 8 * works.weights / (p.n * p.k), 8 * width)  # of a stored weight
    packed = np.where(unpacked & (bits < 12), np.where(bits > 6, 8, 4), 0)[:, 0].tolist()
    named = list(zip(works.pipes, packed, strict=True))
    types = {(x, y): [_type(pipe_on(card, x), y) for card in d.devices] for x, y in set(named)}
    which = np.array([types[x] for x in named])
    by_threads = np.isin(which, BY_THREADS)
    few = by_threads & (p.m <= t["few"]["rows"])
    own = {f: np.ones(which.shape) for f in ("rate", "extra_k", "step_cycles", "splits")}
    for name in np.unique(which).tolist():
        x = t["types"][name]
        for f in own:
            usual = np.array([x.get(s, x).get(f, x[f]) for s in d.tensor_class()])
            own[f] = np.where(which == name, np.where(few, t["few"].get(f, usual), usual), own[f])
    sides = np.array(t["tiles"], dtype=float)[:, :, None, None]
    a, b = sides[:, 0], sides[:, 1]  # rows, columns

    whole = batch * np.ceil(m / a) * np.ceil(n / b)
    most = np.clip(depth / t["part"], 1, np.minimum(t["splits"], own["splits"]))
    split = np.exp2(np.floor(np.log2(np.clip(t["fill"] * d.sms / whole, 1, most))))
    splits = np.stack([np.ones_like(split), split])
    part, blocks = depth / splits, whole * splits
    rate = np.minimum(t["rate"] * np.array([[s["rate"] for s in kinds]]) * own["rate"], 1)
    extra = t["extra_k"] * np.array([[s["extra_k"] for s in kinds]]) * own["extra_k"]
    whole_rate = d.whole_rate(works.pipes)
    pipe = 1 / (1 + (1 / rate - 1) * works.rate / whole_rate)
    mma = 2 * a * b * d.sms * (part / (works.rate * pipe) + extra / (rate * whole_rate))
    l2_Bps = d.l2_Bps * d.l2_share
    feed = (a * width + b * np.minimum(width, bits / 8)) * part / (l2_Bps / d.sms * loads["feed"])
    step_cycles = np.where(by_threads, c.tensor_loads["copies"]["step_cycles"], loads["step_cycles"])
    walk = part * width / 128 * step_cycles * own["step_cycles"] / d.tensor_hz
    block_s = pnorm(mma, feed, walk, p=t["norm_block"])
    x = blocks / d.sms
    waves = loads["wave"] * np.ceil(x) + (1 - loads["wave"]) * np.maximum(1, x)
    compute = waves * block_s * d.compute

    moving = works.bytes - works.weights
    far = 1 - 1 / (1 + (moving / (t["hot"] * d.l2_near)) ** c.l2["sharpness"])
    dram_bytes = dram_share * works.weights + far * (moving + (t["written"] - 1) * works.written)
    partials = np.where(splits > 1, 2 * splits * batch * m * n * 4, 0.0)
    dram = dram_bytes / (t["dram"] * d.bandwidth)
    l2 = (works.bytes + partials) / (l2_Bps * loads["l2"])
    memory = pnorm(dram, l2, p=t["norm_memory"]) * d.memory
    store = t["store"] * works.written / (l2_Bps * loads["l2"]) / (1 + part / t["store_k"]) * d.memory
    start = t["start_cycles"] * np.array([[s["start"] for s in kinds]])
    joined = np.where((splits > 1) & ~few, loads["split_s"], 0.0)
    launch = (c.launch["floor_s"] + start / d.tensor_hz) * d.launch + joined
    seconds = launch + pnorm(compute, memory, p=t["norm"]) + store

    variants = seconds.reshape(-1, *seconds.shape[2:])
    best, chosen = fastest(variants)

    def at(term: Array) -> Array:
        return chosen(np.broadcast_to(term, seconds.shape).reshape(variants.shape))

    useful = np.minimum(works.matrix / (works.rate * pipe) * d.compute, at(compute))
    parts = at(splits)
    doublings = range(1 + int(np.log2(parts.max())))
    names = np.array([[f"{x}x{y}" + (f" split {2**i}" if i else "") for i in doublings] for x, y in t["tiles"]])
    variant = names[best % len(names), np.log2(parts).astype(int)]
    detail = {
        "stack": batch, "m": m, "n": n, "k": depth, "tile rows": a, "tile columns": b, "splits": splits,
        "blocks": blocks, "waves": x, "counted waves": waves,
        "full tiles efficiency": batch * m * n / (whole * a * b), "pipe efficiency": pipe,
        "epilogue efficiency": 2 * a * b * d.sms * part / (works.rate * pipe) / mma, "feed efficiency": mma / block_s,
        "full waves efficiency": x / waves, "DRAM bytes": dram_bytes, "DRAM seconds": dram, "L2 bytes": works.bytes,
        "L2 seconds": l2, "store seconds": store,
    } if len(works.each) == 1 else {}  # fmt: skip
    known = {name: at(term) for name, term in detail.items()}
    if known:
        known["runner-up seconds"] = np.partition(variants, 1, axis=0)[1]
    return KernelTerms(
        useful, at(memory), at(compute) - useful, at(launch), at(seconds), variant=variant, workspace=at(partials),
        launches=np.where(parts > 1, 2, 1), occupancy=np.minimum(at(x), 1), detail=known,
    )  # fmt: skip


def _type(pipe: str, packed: int) -> str:
    """Whose factors a product takes, from the pipe that runs it and the bits of a weight unpacked on the way, or 0."""
    return f"int{packed}_wo" if packed and pipe in ("tensor_fp16", "tensor_bf16") else TYPES.get(pipe, "half")
