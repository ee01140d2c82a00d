"""The power budget: a card that may draw P watts can't spend more joules in a run than P times its length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxperf.latency.bounds import Array
from onnxperf.latency.cards import Cards, pipe_on
from onnxperf.latency.constants import Constants
from op_models import Transfer, Work


def energy(works: Sequence[Work], d: Cards, c: Constants, cold: Array, effort: Array | float = 1.0) -> Array:
    """Joules of one run of each work on each card, [n, g]; `effort` is the part of its matrix FLOPs that is executed.

    Vector FLOPs cost energy by process node; tensor FLOPs by the sustained TFLOPS a watt of the architecture, the
    faster types in proportion; bytes cost where they come from DRAM: a share `cold` [n, g] of the weights, and what
    L2 can't hold. Copies over the bus take no part.
    Source: FP32 fitted to long products (`calibrate.power`), tensor cores to sustained rates; bytes by kind of memory.
    """
    p = c.power
    per_flop = p["pJ_per_flop_12nm"] * (d.node_nm / 12) ** p["node_exponent"] * 1e-12

    def column(values: Sequence[float]) -> Array:
        return np.array(values, dtype=float).reshape(len(works), 1)

    kernel = np.array([not isinstance(w.size, Transfer) for w in works], dtype=bool)
    weights = column([w.weight_bytes for w in works])
    moving = column([w.bytes - w.weight_bytes for w in works])
    in_dram = (cold * weights + np.where(moving > d.l2, moving, 0.0)) * kernel[:, None]
    per_matrix_flop = effort * _per_tensor_flop(works, d, c, available(d, c), per_flop)
    arithmetic = column([w.matrix_flops for w in works]) * per_matrix_flop
    arithmetic = arithmetic + column([w.vector_flops for w in works]) * per_flop
    per_byte = [p["pJ_per_byte"].get(x.memory_kind, p["pJ_per_byte"]["other"]) for x in d.devices]
    return np.asarray(arithmetic + in_dram * np.array(per_byte)[None, :] * 1e-12)


def available(d: Cards, c: Constants) -> Array:
    """Watts for arithmetic and traffic [1, g]: the limit less what the card draws whatever it does."""
    return np.asarray(d.tdp * (1 - c.power["static_share"]))


def stretch(seconds: Array, joules: Array, d: Cards, c: Constants) -> Array:
    """The factor [n, g] that the budget puts on runs of `seconds` that spend `joules`: (t^6 + (E / P)^6)^(1/6) / t."""
    needed = joules / available(d, c)
    norm = c.power["norm"]
    ratio = np.divide(needed, seconds, out=np.zeros(np.shape(needed)), where=np.broadcast_to(seconds > 0, needed.shape))
    return np.asarray((1 + ratio**norm) ** (1 / norm))


def _per_tensor_flop(works: Sequence[Work], d: Cards, c: Constants, available: Array, per_flop: Array) -> Array:
    """Joules of one matrix FLOP of each work on each card, [n, g]."""
    pipes = {pipe: i for i, pipe in enumerate(dict.fromkeys(w.pipe for w in works))}
    cost = np.broadcast_to(per_flop, (len(pipes), len(d.devices))).copy()
    table = c.power["tensor_TFLOPS_per_W"]
    for j, device in enumerate(d.devices):
        major, minor = device.capability
        per_watt = table.get(f"cc{major}{minor}", table.get(f"cc{major}0", table["other"])) * 1e12
        half = device.dense_flops.get("tensor_fp16")
        for name, i in pipes.items():
            pipe = pipe_on(device, name)
            if half and pipe.startswith("tensor_"):
                relative = device.dense_flops[pipe] / half
                cost[i, j] = available[0, j] / device.tdp_W / (per_watt * relative)
    return np.asarray(cost[[pipes[w.pipe] for w in works]])
