"""Memory traffic, and kernels that stream: one thread an element, a floor on their time instead of an added launch."""

from __future__ import annotations

import numpy as np

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.terms import Array, KernelTerms, plain_terms, pnorm
from onnxperf.latency.works import Works


def traffic(
    nbytes: Array, d: Cards, c: Constants, p: float, again: Array | float = 0.0, miss: Array | float = 0.0
) -> tuple[Array, Array]:
    """Seconds of memory traffic [n, g] and the bytes of it that come from DRAM: what is not in L2 any more.

    resident = 1 / (1 + (bytes / (`resident` L2))^`sharpness`), on the near partition where L2 has two. `again` bytes
    are read a second time, a share `miss` of them from DRAM. Source: fitted on the FP32 vector kernels of NeuSight's
    data.
    """
    resident = 1 / (1 + (nbytes / (c.l2["resident"] * d.l2_near)) ** c.l2["sharpness"])
    dram = (1 - resident) * (nbytes + again * miss)
    l2 = nbytes + again
    seconds = pnorm(dram / (d.bandwidth * d.dram), l2 / (d.l2_Bps * d.l2_share), p=p) * d.memory
    return seconds, dram


def elementwise(works: Works, d: Cards, c: Constants, nbytes: Array, slots: Array | float) -> KernelTerms:
    """Kernels of one thread an element that move `nbytes` and issue `slots` beside their FLOPs.

    FLOPs here are those of `op_models.pointwise`, where a division or an exponential counts 4; each takes several
    instructions, and a scheduler issues one for 32 threads a clock (Pascal's GP100 has two schedulers an SM, others
    four). Source: pow, tanh and gelu on NeuSight's cards.
    """
    norm = c.pointwise["norm"]
    memory, dram_bytes = traffic(nbytes, d, c, norm)
    issue = (c.pointwise["slots_per_flop"] * works.vector + slots) / d.issue * d.compute
    compute = np.maximum(works.vector / works.vector_rate, issue)
    detail = {"DRAM bytes": dram_bytes}
    return with_floor(compute, memory, c.pointwise["floor_s"], works["elements"], norm, d, c, detail)


def with_floor(
    compute: Array, memory: Array, floor_s: Array | float, threads: Array, norm: float, d: Cards, c: Constants,
    detail: dict[str, Array], latency: Array | float = 0.0,
) -> KernelTerms:  # fmt: skip
    """pnorm(floor, pnorm(busy, memory)): a floor shows where nothing else does, and is not added elsewhere.

    busy = pnorm(compute, latency; 4): the same warps issue and wait.
    """
    compute, memory, latency, floor = np.broadcast_arrays(compute, memory, latency, floor_s * d.launch)
    busy = pnorm(compute, latency, p=4.0)
    seconds = pnorm(floor, pnorm(busy, memory, p=norm), p=c.pointwise["floor_norm"])
    share = np.minimum(threads / (d.sms * d.threads), 1)
    shown = {name: np.broadcast_to(v, seconds.shape) for name, v in detail.items()}
    return plain_terms(compute, memory, latency, floor, seconds, share)._replace(detail=shown)
