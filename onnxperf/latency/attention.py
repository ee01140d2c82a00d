"""Fused attention: one kernel that never writes the scores."""

from __future__ import annotations

import numpy as np

from onnxperf.latency import vector
from onnxperf.latency.bounds import Bounds, Columns, bounds, pnorm
from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants


def attention(k: Columns, d: Cards, c: Constants) -> Bounds:
    """Two products at a share of the pipe's rate, one exponential a score, K and V streamed once."""
    part = np.divide(k.executed, k.matrix, out=np.ones_like(k.matrix), where=k.matrix > 0)
    scores = k["batch"] * k["heads"] * k["queries"] * k["keys"] * part
    products = k.executed / (k.rate * c.attention["efficiency"]) * d.compute
    exponentials = scores / (c.attention["exponentials_per_clock"] * d.sms * d.hz)
    traffic = vector.traffic(k.bytes, d, c, c.pointwise["norm"])
    memory = traffic.seconds
    compute = products + exponentials
    launch = c.launch["kernel_s"] * d.launch * np.ones_like(memory)
    seconds = launch + pnorm(compute, memory, p=c.pointwise["norm"])
    return bounds(compute, memory, np.zeros_like(memory), launch, seconds)._replace(
        detail={
            "products seconds": products, "scores": scores, "exponentials seconds": exponentials,
            "DRAM bytes": traffic.dram_bytes,
            "pipe efficiency": np.asarray(c.attention["efficiency"]),
        }
    )  # fmt: skip
