"""The energy of FP32 arithmetic, from long products: what a card sustains says what a FLOP costs it.

A product that lasts for milliseconds and reads little runs either at nearly the card's peak or at the rate that its
power limit allows. Cards that reach their peak bound the energy from above, cards that don't (P4, T4, Titan) tell it.
The tiles of a kernel don't enter, so that the constants do not depend on those of products. A card's own correction on
compute takes up what its kernels lose. Forms that were tried: derive/power.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import gpu_specs
from gpu_specs import Device
from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.power import energy, slowdown
from onnxperf.latency.terms import Array
from op_models import Work

LONG_S, INTENSITY = 3e-3, 40.0  # at peak, and FLOPs a byte: what a power limit has the time and the reason to act on
COMPUTE, MEMORY = 0.9, 0.85  # of peak, and of the datasheet's bandwidth: what long products reach with watts to spare


def seconds(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Seconds [n, g] of long products: (t^p + (joules / watts)^p)^(1/p), p the constant `power.norm`.

    t = max(FLOPs / (0.9 peak), bytes / (0.85 of DRAM's rate)): what a card with watts to spare reaches.
    """
    d = Cards(devices, c)
    flops, moved = _flops_and_bytes(works)
    full = np.maximum(flops / (COMPUTE * d.rate(["fp32"])) * d.compute, moved / (MEMORY * d.bandwidth) * d.memory)
    return full * slowdown(full, energy(works, d, c, np.ones((1, 1))), d, c)


def long_products(tables: Sequence[Any]) -> list[Any]:
    """Long products (`datasets.Table`) of one table a die: the one with the highest median rate, where several are.

    The others ran hot or on kernels that something else holds up: on T4 two labs differ by a third.
    """
    long = [replace(t, name=f"power of {t.name}").take(_long(t)) for t in tables]
    rates: dict[str, list[tuple[float, int, int]]] = {}
    for i, t in enumerate(long):
        flops = _flops_and_bytes(t.works)[0]
        for j, die in enumerate(t.dies):
            rate = (flops / t.seconds)[:, [j]]
            if (some := np.isfinite(rate)).any():
                rates.setdefault(die, []).append((float(np.median(rate[some])), i, j))
    best = {max(measured)[1:] for measured in rates.values()}
    return [kept for i, t in enumerate(long) if (kept := t.on(g for j, g in enumerate(t.gpus) if (i, j) in best)).gpus]


def _long(t: Any) -> Array:
    """Which works [n] are long and read little."""
    flops, moved = (v[:, 0] for v in _flops_and_bytes(t.works))
    peak = max((gpu_specs.load(g).dense_flops["fp32"] for g in t.gpus), default=np.inf)
    return np.asarray((flops > LONG_S * peak) & (flops > INTENSITY * moved))


def _flops_and_bytes(works: Sequence[Work]) -> tuple[Array, Array]:
    """Two columns [n, 1]."""
    both = np.array([(w.matrix_flops, w.bytes) for w in works], dtype=float).reshape(len(works), 2)
    return both[:, :1], both[:, 1:]
