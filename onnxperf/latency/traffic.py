"""The time of memory traffic, and of elementwise kernels, which stream it.

Shapes: n works on g cards are [n, g].
"""

from __future__ import annotations

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.terms import Array, KernelTerms, held_share, plain_terms, pnorm


def traffic(
    nbytes: Array, cards: Cards, norm: Array | float, reread_bytes: Array | float = 0.0, miss: Array | float = 0.0,
    cold_bytes: Array | float = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    """Seconds of memory traffic [n, g], and the bytes of it that come from DRAM.

    nbytes [n, 1]: read or written once; reread_bytes: read a second time, a share `miss` of them from DRAM; norm: the
    exponent of `pnorm`, which joins the times of DRAM and L2. cold_bytes: of nbytes, weights, which come from DRAM, as
    a whole run has passed by since they were read last. Data that are still in L2 are not read from DRAM; they
    can fill the share `resident` of L2, all partitions together; from Hopper on, the more of one they fill, the slower
    is L2, by the share `far`. Source: fitted to the FP32 elementwise and row kernels of NeuSight's data, in which an
    A100's two partitions are no slower, and to gpu-benches' copies.
    """
    in_l2 = held_share(nbytes, cards.constants.l2["resident"] * cards.l2, cards.constants.l2["sharpness"])
    dram_bytes = (1 - in_l2) * (nbytes - cold_bytes + reread_bytes * miss) + cold_bytes
    l2_bytes = nbytes + reread_bytes
    halves = (cards.l2_near < cards.l2) & (cards.major >= 9)
    far = np.where(halves, cards.constants.l2["far"] * np.minimum(nbytes / cards.l2_near, 1), 0.0)
    dram_s, l2_s = dram_bytes / (cards.bandwidth * cards.dram), l2_bytes / (cards.l2_stream_Bps * (1 - far))
    return pnorm(dram_s, l2_s, p=norm) * cards.memory, dram_bytes


def wasted(run_bytes: Array, short_run_bytes: float) -> Array:
    """Bytes that memory moves in vain for each byte of a contiguous run of so many."""
    return np.maximum(short_run_bytes / run_bytes - 1, 0.0)


def overlap(cards: Cards, less: Array | float = 0.0) -> Array:
    """How DRAM, L2, issue and latency of an elementwise kernel join on each card, an exponent of `pnorm` [n, g]. less:
    where threads overlap them less, in kernels that a compiler wrote and cuDNN's batch norms.
    """
    coef = cards.constants.pointwise
    late = (cards.major >= 9) & (np.asarray(less) == 0)
    return np.asarray(np.where(late, coef["late_norm"], coef["norm"]))


def load_s(cards: Cards) -> Array:
    """Seconds of a load from DRAM that waits for nothing else, [1, g]; where that is GDDR, the clocks in which L2 is
    asked and the time of DRAM after that.
    """
    coef = cards.constants.pointwise
    gddr_s = coef["l2_load_clocks"] / cards.hz * cards.compute + coef["load_gddr_s"]
    return np.asarray(np.where(cards.hbm, coef["load_s"], gddr_s))


def elementwise(
    works: Works, cards: Cards, nbytes: Array, slots: Array | float, each: Array | float, waits_s: Array | float = 0.0,
    less: Array | float = 0.0,
) -> KernelTerms:  # fmt: skip
    """Kernels whose threads process `each` elements, move `nbytes`, and need `slots` issue slots beside their FLOPs.

    FLOPs are those of `op_models.pointwise`, where a division or an exponential counts 4. Each FLOP takes several
    instructions; a warp scheduler issues one warp instruction a clock (Pascal's GP100 has two schedulers an SM, others
    four). Source: pow, tanh and gelu on NeuSight's cards.

    latency: number of times that the threads fill the card, times the latency of a memory access, `trip_s`. It matters
    where a thread moves few bytes: elements of 2 bytes, or one element a thread. waits_s: further seconds of waiting.
    Weights come from DRAM, as the rest of a run has passed by since they were read last: a load from there.
    """
    coef = cards.constants.pointwise
    norm = overlap(cards, less)
    memory, dram_bytes = traffic(nbytes, cards, norm, cold_bytes=np.minimum(works.weights, nbytes))
    issue_s = (coef["slots_per_flop"] * works.vector + slots) / cards.issue * cards.compute
    compute = np.maximum(works.vector / works.vector_rate, issue_s)
    latency = works["elements"] / (each * cards.sms * cards.threads) * coef["trip_s"] * cards.memory + waits_s
    cold_s = np.where(works.weights > 0, load_s(cards), 0.0) * cards.memory
    detail = {"DRAM bytes": dram_bytes}
    return started(compute, memory, cold_s / cards.launch, works["elements"], norm, cards, detail, latency)


def started(
    compute: Array, memory: Array, more_s: Array | float, threads: Array, norm: Array | float, cards: Cards,
    detail: dict[str, Array], latency: Array | float = 0.0,
) -> KernelTerms:  # fmt: skip
    """start + pnorm(busy, memory; norm): the start and drain of a kernel overlap with nothing.

    start = `Cards.start_s`, the time of a kernel with next to no work, plus more_s. busy = pnorm(compute, latency; 4),
    since the same warps issue and wait. threads: of all blocks, for the occupancy. All arrays broadcast to [n, g].
    Source: copies of 64 kB to 70 MB take 0.9 to 1.3 us more than their bytes at the rate of the memory.
    """
    start_s = (cards.start_s + more_s) * cards.launch
    compute, memory, latency, start = np.broadcast_arrays(compute, memory, latency, start_s)
    seconds = start + pnorm(pnorm(compute, latency, p=4.0), memory, p=norm)
    occupancy = np.minimum(threads / (cards.sms * cards.threads), 1)
    shown = {name: np.broadcast_to(v, seconds.shape) for name, v in detail.items()}
    return plain_terms(compute, memory, latency, start, seconds, occupancy)._replace(detail=shown)
