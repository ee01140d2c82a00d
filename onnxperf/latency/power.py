"""The power budget: a card that may draw P watts can't spend more joules in a run than P times its length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxperf.latency.bounds import Array
from onnxperf.latency.cards import Cards, pipe_on
from onnxperf.latency.constants import Constants
from op_models import Transfer, Work


def budget(
    works: Sequence[Work], rows: Array, times: Array, seconds: Array, d: Cards, c: Constants, cold: Array
) -> tuple[Array, Array]:
    """Joules of each work [n, g], and the factor [g] that stretches all kernels of the run `rows`, repeated `times`.

    Power for arithmetic is the limit less what memory of this speed draws. Vector FLOPs cost energy by process
    node; tensor FLOPs by the sustained TFLOPS a watt of the architecture, the faster types in proportion; bytes cost
    where they come from DRAM: a share `cold` [1, g] of the weights, and what L2 can't hold.
    T = ((sum t)^6 + (E / P)^6)^(1/6) over the kernels; copies over the bus take no part.
    Source: fitted on throttled FP32 rows of T4 and P4, and on sustained rates.
    """
    p = c.power
    available = np.maximum(d.tdp - p["static_W_per_GBps"] * d.bandwidth / 1e9, 0.25 * d.tdp)
    per_flop = p["pJ_per_flop_12nm"] * (d.node_nm / 12) ** p["node_exponent"] * 1e-12

    def column(values: Sequence[float]) -> Array:
        return np.array(values, dtype=float).reshape(len(works), 1)

    kernel = np.array([not isinstance(w.size, Transfer) for w in works], dtype=bool)
    weights = column([w.weight_bytes for w in works])
    moving = column([w.bytes - w.weight_bytes for w in works])
    in_dram = (cold * weights + np.where(moving > d.l2, moving, 0.0)) * kernel[:, None]
    arithmetic = column([w.matrix_flops for w in works]) * _per_tensor_flop(works, d, c, available, per_flop)
    arithmetic = arithmetic + column([w.vector_flops for w in works]) * per_flop
    joules = arithmetic + in_dram * p["pJ_per_byte"] * 1e-12
    counted, times = rows[kernel[rows]], times[kernel[rows]]
    total = (times * seconds[counted]).sum(axis=0)
    needed = (times * joules[counted]).sum(axis=0) / available[0]
    norm = p["norm"]
    ratio = np.divide(needed, total, out=np.zeros_like(total), where=total > 0)
    return joules, (1 + ratio**norm) ** (1 / norm)


def _per_tensor_flop(works: Sequence[Work], d: Cards, c: Constants, available: Array, per_flop: Array) -> Array:
    """Joules of one matrix FLOP of each work on each card, [n, g]."""
    cost = np.broadcast_to(per_flop, (len(works), len(d.devices))).copy()
    table = c.power["tensor_TFLOPS_per_W"]
    for j, device in enumerate(d.devices):
        major, minor = device.capability
        per_watt = table.get(f"cc{major}{minor}", table.get(f"cc{major}0", table["other"])) * 1e12
        half = device.dense_flops.get("tensor_fp16")
        for i, w in enumerate(works):
            pipe = pipe_on(device, w.pipe)
            if half and pipe.startswith("tensor_"):
                relative = device.dense_flops[pipe] / half
                cost[i, j] = available[0, j] / device.tdp_W / (per_watt * relative)
    return cost
