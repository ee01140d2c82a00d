"""Memory traffic, and kernels that stream it: one thread an element.

Shapes: n works on g cards are [n, g].
"""

from __future__ import annotations

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.terms import Array, KernelTerms, held_share, plain_terms, pnorm


def traffic(
    nbytes: Array, cards: Cards, norm: float, reread_bytes: Array | float = 0.0, miss: Array | float = 0.0
) -> tuple[Array, Array]:
    """Seconds of memory traffic [n, g], and the bytes of it that come from DRAM.

    nbytes [n, 1]: touched once; reread_bytes: read a second time, a share `miss` of them from DRAM; norm: how the times
    of DRAM and L2 join (`pnorm`). What L2 still holds is not read from DRAM; tensors can fill `resident` of it, in all
    partitions together. Source: fitted on the FP32 vector kernels of NeuSight's data and on gpu-benches' copies.
    """
    in_l2 = held_share(nbytes, cards.constants.l2["resident"] * cards.l2, cards.constants.l2["sharpness"])
    dram_bytes = (1 - in_l2) * (nbytes + reread_bytes * miss)
    l2_bytes = nbytes + reread_bytes
    dram_s, l2_s = dram_bytes / (cards.bandwidth * cards.dram), l2_bytes / cards.l2_stream_Bps
    return pnorm(dram_s, l2_s, p=norm) * cards.memory, dram_bytes


def elementwise(
    works: Works, cards: Cards, nbytes: Array, slots: Array | float, each: Array | float, waits_s: Array | float = 0.0
) -> KernelTerms:
    """Kernels whose threads take `each` elements at once, move `nbytes`, and issue `slots` beside their FLOPs.

    FLOPs here are those of `op_models.pointwise`, where a division or an exponential counts 4; each takes several
    instructions, and a scheduler issues one for 32 threads a clock (Pascal's GP100 has two schedulers an SM, others
    four). Source: pow, tanh and gelu on NeuSight's cards.

    latency: threads that fill the card wait for a trip to memory, `trip_s`, then the next take their place. It shows
    where they ask for few bytes: elements of 2 bytes, or one element a thread. waits_s: what threads wait beyond that.
    """
    coef = cards.constants.pointwise
    memory, dram_bytes = traffic(nbytes, cards, coef["norm"])
    issue_s = (coef["slots_per_flop"] * works.vector + slots) / cards.issue * cards.compute
    compute = np.maximum(works.vector / works.vector_rate, issue_s)
    latency = works["elements"] / (each * cards.sms * cards.threads) * coef["trip_s"] * cards.memory + waits_s
    detail = {"DRAM bytes": dram_bytes}
    return started(compute, memory, 0.0, works["elements"], coef["norm"], cards, detail, latency)


def started(
    compute: Array, memory: Array, more_s: Array | float, threads: Array, norm: float, cards: Cards,
    detail: dict[str, Array], latency: Array | float = 0.0,
) -> KernelTerms:  # fmt: skip
    """start + pnorm(busy, memory): a kernel starts and drains before and after it moves anything.

    start = `Cards.start_s`, the time of a kernel with next to no work, and more_s. busy = pnorm(compute, latency;
    4), for the same warps issue and wait. threads: of all blocks, which tell the occupancy; norm: how busy and memory
    join. All arrays broadcast to [n, g]. Source: copies of 64 kB to 70 MB take their bytes' time and 0.9 to 1.3 us.
    """
    start_s = (cards.start_s + more_s) * cards.launch
    compute, memory, latency, start = np.broadcast_arrays(compute, memory, latency, start_s)
    seconds = start + pnorm(pnorm(compute, latency, p=4.0), memory, p=norm)
    occupancy = np.minimum(threads / (cards.sms * cards.threads), 1)
    shown = {name: np.broadcast_to(v, seconds.shape) for name, v in detail.items()}
    return plain_terms(compute, memory, latency, start, seconds, occupancy)._replace(detail=shown)
