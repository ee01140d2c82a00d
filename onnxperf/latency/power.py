"""The power budget: a card that may draw P watts can't spend more joules in a run than P times its length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxperf.latency.cards import Cards, pipe_on
from onnxperf.latency.constants import Constants
from onnxperf.latency.terms import Array
from op_models import Transfer, Work


def energy(
    works: Sequence[Work], cards: Cards, constants: Constants, dram_share: Array, executed_share: Array | float = 1.0
) -> Array:
    """Joules of one run of each work on each card, [n, g].

    dram_share [n, g]: the part of the weights that comes from DRAM; executed_share: the part of its matrix FLOPs that
    the algorithm executes.

    Vector FLOPs cost energy by process node; tensor FLOPs by node, size of the unit, clock and type; bytes cost where
    they come from DRAM: that part of the weights, and what L2 can't hold. Copies over the bus take no part.
    Source: FP32 fitted to long products (`calibrate.power`), tensor cores to theirs (`calibrate.tensor`); bytes by kind
    of memory.
    """
    p = constants.power
    per_flop = p["pJ_per_flop_12nm"] * (cards.node_nm / 12) ** p["node_exponent"] * 1e-12

    def column(values: Sequence[float]) -> Array:
        return np.array(values, dtype=float).reshape(len(works), 1)

    kernel = np.array([not isinstance(w.size, Transfer) for w in works], dtype=bool)
    weights = column([w.weight_bytes for w in works])
    moving = column([w.bytes - w.weight_bytes for w in works])
    in_dram = (dram_share * weights + np.where(moving > cards.l2, moving, 0.0)) * kernel[:, None]
    per_matrix_flop = executed_share * _per_tensor_flop(works, cards, constants, available(cards, constants), per_flop)
    arithmetic = column([w.matrix_flops for w in works]) * per_matrix_flop
    arithmetic = arithmetic + column([w.vector_flops for w in works]) * per_flop
    per_byte = [p["pJ_per_byte"].get(x.memory_kind, p["pJ_per_byte"]["other"]) for x in cards.devices]
    return np.asarray((arithmetic + in_dram * np.array(per_byte)[None, :] * 1e-12) * cards.power)


def available(cards: Cards, constants: Constants) -> Array:
    """Watts for arithmetic and traffic [1, g]: the limit less what the card draws whatever it does."""
    return np.asarray(cards.tdp * (1 - constants.power["static_share"]))


def slowdown(seconds: Array, joules: Array, cards: Cards, constants: Constants) -> Array:
    """The factor [n, g] by which the power limit slows runs of t `seconds` that spend E `joules`.

    (t^6 + (E / P)^6)^(1/6) / t, P the watts that are left for arithmetic and traffic.
    """
    needed = joules / available(cards, constants)
    norm = constants.power["norm"]
    ratio = np.divide(needed, seconds, out=np.zeros(np.shape(needed)), where=np.broadcast_to(seconds > 0, needed.shape))
    return np.asarray((1 + ratio**norm) ** (1 / norm))


def _per_tensor_flop(
    works: Sequence[Work], cards: Cards, constants: Constants, available: Array, per_flop: Array
) -> Array:
    """Joules of one matrix FLOP of each work on each card, [n, g].

    On tensor cores pJ (R / 1024)^-size (node / 5)^node (f / 1.5 GHz)^clock (rate / rate of FP16)^-type, the exponent of
    the process node being that of vector units. R: FP16 FLOPs a
    clock and SM, as larger units use an operand more often; f: the clock that the power limit leaves to them alone, as
    a slower clock takes less voltage.
    """
    p, pipes = constants.power, {pipe: i for i, pipe in enumerate(dict.fromkeys(w.pipe for w in works))}
    cost = np.broadcast_to(per_flop, (len(pipes), len(cards.devices))).copy()
    for j, device in enumerate(cards.devices):
        half = device.dense_flops.get("tensor_fp16")
        for name, i in pipes.items():
            pipe = pipe_on(device, name)
            if half and pipe.startswith("tensor_"):
                rate, hz = device.dense_flops[pipe], device.tensor_hz
                whole = float(cards.whole_rate(["tensor_fp16"])[0, j])
                size = (whole / device.sms / hz / 1024) ** -p["tensor_size_exponent"]
                kind = (device.node_nm / 5) ** p["node_exponent"] * (rate / half) ** -p["tensor_type_exponent"]
                joules = p["tensor_pJ_per_flop"] * 1e-12 * size * kind
                held = (available[0, j] / (joules * rate * 1.5e9 / hz)) ** (1 / (1 + p["tensor_clock_exponent"]))
                cost[i, j] = joules * min(held, hz / 1.5e9) ** p["tensor_clock_exponent"]
    return np.asarray(cost[[pipes[w.pipe] for w in works]])
