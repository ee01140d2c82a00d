"""The power budget: a card that may draw P watts can't spend more joules in a run than P times its length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu_specs import Device
from onnxperf.latency.cards import Cards, pipe_on
from onnxperf.latency.terms import Array
from op_models import Collective, Transfer, Work

#: The rate of a type on tensor cores by that of FP16, or the other way round: at most 15 on the cards that ship. What
#: is beyond is a mistake in a card's file, and no type of operands that takes as much more energy.
MOST_RATIO = 16.0
INTEGER_BITS = {"tensor_int8": 8, "tensor_int4": 4}


def energy(
    work_list: Sequence[Work], cards: Cards, dram_share: Array,
    executed_share: Array | float = 1.0, busy: Array | float = 1.0,
) -> Array:  # fmt: skip
    """Joules of one run of each work on each card, [n, g].

    dram_share [n, g]: the part of the weights that comes from DRAM; executed_share: the part of its matrix FLOPs that
    the algorithm executes; busy [n, g]: the share of its time in which the work's run has tensor cores at work.

    A vector FLOP costs energy by process node, a FLOP of tensor cores by node, size of the unit, clock and type. Bytes
    cost what their kind of memory takes where they come from DRAM: that part of the weights, and other tensors that L2
    can't hold. Copies over the bus and exchanges cost nothing of the card's budget.
    Source: FP32 fitted to long products (`long_products`), tensor cores to theirs (`families.gemm`).
    """
    coef = cards.constants.power
    per_flop = coef["pJ_per_flop_12nm"] * (cards.node_nm / 12) ** coef["node_exponent"] * 1e-12

    def column(values: Sequence[float]) -> Array:
        return np.array(values, dtype=float).reshape(len(work_list), 1)

    kernel = np.array([not isinstance(w.size, Transfer | Collective) for w in work_list], dtype=bool)
    weights = column([w.weight_bytes for w in work_list])
    moving = column([w.bytes - w.weight_bytes for w in work_list])
    in_dram = (dram_share * weights + np.where(moving > cards.l2, moving, 0.0)) * kernel[:, None]
    per_matrix_flop = executed_share * _per_tensor_flop(work_list, cards, per_flop, busy)
    arithmetic = column([w.matrix_flops for w in work_list]) * per_matrix_flop
    arithmetic = arithmetic + column([w.vector_flops for w in work_list]) * per_flop
    per_byte = [coef["pJ_per_byte"].get(x.memory_kind, coef["pJ_per_byte"]["other"]) for x in cards.devices]
    return np.asarray((arithmetic + in_dram * np.array(per_byte)[None, :] * 1e-12) * cards.power)


def available(cards: Cards) -> Array:
    """Watts for arithmetic and traffic [1, g]: the limit less what the card draws whatever it does."""
    return np.asarray(cards.tdp * (1 - cards.constants.power["static_share"]))


def drawn(seconds: Array | float, joules: Array | float, limit_W: Array | float, static_share: float) -> Array:
    """Watts of runs of that length whose kernels spend `joules`: what the card draws whatever it does, and these; at
    most its limit.
    """
    return np.asarray(np.minimum(static_share * limit_W + joules / seconds, limit_W))


def slowdown(seconds: Array, joules: Array, cards: Cards, on_tensor: Array | float = 0.0) -> Array:
    """The factor [n, g] by which the power limit slows runs of t `seconds` that spend E `joules`.

    (t^p + (E / P)^p)^(1/p) / t, P the watts that are left for arithmetic and traffic, p the constant `norm`, or
    `tensor_norm` for the share of the time in which tensor cores are at work, `on_tensor`.
    """
    needed, coef = joules / available(cards), cards.constants.power
    norm = coef["norm"] + (coef["tensor_norm"] - coef["norm"]) * np.asarray(on_tensor)
    ratio = np.divide(needed, seconds, out=np.zeros(np.shape(needed)), where=np.broadcast_to(seconds > 0, needed.shape))
    return np.asarray((1 + ratio**norm) ** (1 / norm))


def _per_tensor_flop(work_list: Sequence[Work], cards: Cards, per_vector_flop: Array, busy: Array | float) -> Array:
    """Joules of one matrix FLOP of each work on each card, [n, g]; on CUDA cores those of a vector FLOP [1, g].

    On tensor cores pJ (R / 1024)^-size (node / 5)^node (f / 1.5 GHz)^clock (rate / rate of FP16)^-type, the exponent of
    the process node being that of vector units; of integers (bits / 16)^integer in place of the last factor. R: FP16
    FLOPs a clock and SM, as larger units use an operand more often; f: the clock that the power limit leaves to tensor
    cores that are `busy` for a share of the time, as a slower clock takes less voltage. Where they wait for other
    kernels half of the time, they have twice the watts.
    """
    pipes: dict[str, list[int]] = {}
    for i, w in enumerate(work_list):
        pipes.setdefault(w.pipe, []).append(i)
    shape = len(work_list), len(cards.devices)
    cost = np.broadcast_to(per_vector_flop, shape).copy()
    watts = np.broadcast_to(available(cards) / busy, shape)
    tensor = [j for j, device in enumerate(cards.devices) if "tensor_fp16" in device.dense_flops]
    whole_rates = dict(zip(tensor, cards.only(tensor).whole_rate(["tensor_fp16"])[0].tolist(), strict=True))
    for j, device in enumerate(cards.devices):
        whole_rate = whole_rates.get(j, 0.0)
        for name, at in pipes.items():
            pipe = pipe_on(device, name)
            if whole_rate and pipe.startswith("tensor_"):
                cost[at, j] = _tensor_flop_joules(device, pipe, whole_rate, watts[at, j], cards.constants.power)
            elif pipe in ("int8", "fp16"):  # assumed: an instruction takes the energy of one in FP32, and does more
                cost[at, j] *= min(device.dense_flops["fp32"] / device.dense_flops[pipe], 1.0)
    return cost


def _tensor_flop_joules(device: Device, pipe: str, whole_rate: float, watts: Array, coef: Mapping[str, Any]) -> Array:
    """Joules of one FLOP of a tensor pipe where so many watts are left to it; whole_rate: FP16 FLOP/s of the card's
    units (`Cards.whole_rate`).
    """
    rate, hz = device.dense_flops[pipe], device.tensor_hz
    size = (whole_rate / device.sms / hz / 1024) ** -coef["tensor_size_exponent"]
    ratio = min(max(rate / device.dense_flops["tensor_fp16"], 1 / MOST_RATIO), MOST_RATIO)
    of_type = ratio ** -coef["tensor_type_exponent"]
    if pipe in INTEGER_BITS:
        of_type = (INTEGER_BITS[pipe] / 16) ** coef["tensor_integer_exponent"]
    kind = (device.node_nm / 5) ** coef["node_exponent"] * of_type
    late = coef["tensor_blackwell"] if device.capability[0] >= 10 else 1.0
    joules = coef["tensor_pJ_per_flop"] * 1e-12 * size * kind * late
    clock = (watts / (joules * rate * 1.5e9 / hz)) ** (1 / (1 + coef["tensor_clock_exponent"]))  # in 1.5 GHz
    return np.asarray(joules * np.minimum(clock, hz / 1.5e9) ** coef["tensor_clock_exponent"])
