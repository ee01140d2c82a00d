"""How rigs run a kernel: what their clocks see of it, beside its time as one of many in a run.

Each function takes works, devices and constants, and gives the seconds [n, g] that the constants make of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpu_specs import Device
from onnxperf.latency import Array, Constants, alone
from onnxperf.latency.cards import Cards
from onnxperf.latency.tensor_cores import BY_THREADS
from op_models import BITS, Gemm, Pointwise, Work

BURST, BURST_S = 0.3, 0.005  # watts beyond the limit, as a share of it, for kernels shorter than the limiter's pace
COPIES = 5  # of the weights, which rigs take in turn
OLD_RATE = 0.63  # of Hopper's rate, by mma.sync (Luo et al., Dissecting the NVIDIA Hopper Architecture, 2024)


def by_itself(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Each kernel repeated on its own, until the power limit holds in full."""
    return alone(works, devices, c).seconds


def for_milliseconds(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Each kernel repeated a few times on its own: short ones are over before the power limit acts in full.

    The time t at full clock is stretched by (1 + (r / m)^p)^(1/p): r is the time in which the power limit supplies the
    energy, over t; m = 1 + 0.3 / (1 + t / 5 ms) is what may be drawn beyond the limit for so long; p is `power.norm`.
    Whole models last longer, and are predicted without the burst.
    """
    full = alone(works, devices, c, budget=False).seconds
    norm = c.power["norm"]
    needed = np.maximum((alone(works, devices, c).seconds / full) ** norm - 1, 0) ** (1 / norm)
    return np.asarray(full * (1 + (needed / (1 + BURST / (1 + full / BURST_S))) ** norm) ** (1 / norm))


def for_a_while(works: Sequence[Work], devices: Sequence[Device], c: Constants, copies: int = 1) -> Array:
    """Each kernel repeated on its own for a short while, in which short ones meet the limit in part (`power.burst_s`).

    copies: of the weights, which are taken in turn.
    """
    return alone(works, devices, c, True, copies, c.power["burst_s"]).seconds


def in_turn(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """The same, with several copies of the weights."""
    return for_a_while(works, devices, c, COPIES)


def for_minutes(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """The same until the card is as warm as it gets: the power limit holds in full."""
    return alone(works, devices, c, copies=COPIES).seconds


def with_uniform_operands(devices: Sequence[Device], c: Constants) -> list[Device]:
    """The cards with a power limit that is higher by as much as DeepBench's operands take less energy.

    Uniform random numbers switch fewer bits than the values of models do.
    """
    return [replace(d, tdp_W=d.tdp_W / c.rig["uniform"]) for d in devices]


def on_uniform_numbers(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Each kernel repeated on its own, with DeepBench's operands."""
    return by_itself(works, with_uniform_operands(devices, c), c)


def in_turn_on_uniform_numbers(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """The same for a short while, with several copies of the weights."""
    return in_turn(works, with_uniform_operands(devices, c), c)


def in_fewer_bits(name: str, works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Products of a type as one library makes them, with its own factors `tensor_gemm.types.<name>`.

    Activations are quantised by elementwise kernels, which read 16 bits and write what the product reads: their
    launches are among `start_cycles`, and `sweeps` counts their traffic. INT8 products are mma.sync's everywhere. Where
    threads load the operands, rows go beyond the power limit: short runs, or plain data.
    """
    seconds = np.empty((len(works), len(devices)))
    of_pipe = "fp8" if name.startswith("fp8") else name
    kinds = np.array(Cards(devices, c).tensor_class())
    for kind in np.unique(kinds).tolist():
        at = np.flatnonzero(kinds == kind).tolist()
        cards = [devices[i] for i in at]
        factors = c.tensor_gemm["types"][name]
        factors = {**factors, **factors.get(kind, {})}
        values: dict[str, Any] = {f"tensor_gemm.types.{of_pipe}": factors}
        if name == "sq" and not kind.startswith("mma"):
            mma = c.tensor_class["mma"]
            values[f"tensor_class.{kind}"] = {**mma, "rate": mma["rate"] * OLD_RATE}
        limited = name not in BY_THREADS
        seconds[:, at] = alone(works, cards, c.having(values), limited, COPIES, c.power["burst_s"]).seconds
        seconds[:, at] += factors["start_cycles"] / np.array([x.tensor_hz for x in cards])
        if "sweeps" in factors:
            seconds[:, at] += factors["sweeps"] * _quantised_s(works, cards, c)
    return seconds


def _quantised_s(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Seconds [n, g] that quantising the activations of products takes, beyond a launch."""
    moved = [(w, w.size.m * w.size.k) for w in works if isinstance(w.size, Gemm)]
    passes = [Work(Pointwise(n), "bfloat16", "fp32", 2 * n, n * BITS[w.dtype] // 8, 0, 0, n) for w, n in moved]
    least = alone([Work(Pointwise(1), "bfloat16", "fp32", 2, 2, 0, 0, 1)], devices, c, False).seconds
    return alone(passes, devices, c, False).seconds - least
