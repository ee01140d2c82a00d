"""Constants of products on tensor cores, from aiconfigurator's kernels, vidur's and DeepBench's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpu_specs import Device
from onnxperf.derive.fit import Family, Parameter, overheads
from onnxperf.fitting import Array
from onnxperf.latency import Constants, alone
from onnxperf.latency.cards import Cards
from onnxperf.latency.tensor_cores import BY_THREADS
from op_models import BITS, Gemm, Pointwise, Work

COPIES = 5  # of the weights, which the rig takes in turn
OLD_RATE = 0.63  # of Hopper's rate, by mma.sync (Luo et al., Dissecting the NVIDIA Hopper Architecture, 2024)
FACTORS = (("start", "start_cycles", 0.15), ("rate", "rate", 0.1), ("extra_k", "extra_k", 0.3))  # with priors' widths
UNLIMITED = BY_THREADS  # fitted without the power limit, beyond which their rows go: short runs, or plain data


def seconds(works: Sequence[Work], devices: Sequence[Device], c: Constants, budget: bool = True) -> Array:
    """Each product repeated on its own for a short while, with several copies of its weights."""
    return alone(works, devices, c, budget, COPIES, c.power["burst_s"]).seconds


def sustained(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """The same for minutes, until the card is as warm as it gets: the power limit holds in full."""
    return alone(works, devices, c, copies=COPIES).seconds


def uniform(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Products as DeepBench runs them, on uniform random numbers."""
    return seconds(works, with_uniform_operands(devices, c), c)


def with_uniform_operands(devices: Sequence[Device], c: Constants) -> list[Device]:
    """The cards with a power limit that is higher by as much as DeepBench's operands take less energy.

    Uniform random numbers switch fewer bits than the values of models do.
    """
    return [replace(d, tdp_W=d.tdp_W / c.rig["uniform"]) for d in devices]


def recipe(name: str, works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Products in fewer bits as one library makes them, with factors of its own, by class of tensor cores or for all.

    Activations are quantised by elementwise kernels, which read 16 bits and write what the product reads: their
    launches are among `start_cycles`, and `sweeps` counts their traffic. INT8 products are mma.sync's everywhere.
    """
    found = np.empty((len(works), len(devices)))
    of_pipe = "fp8" if name.startswith("fp8") else name
    kinds = np.array(Cards(devices, c).tensor_class())
    for kind in np.unique(kinds).tolist():
        at = np.flatnonzero(kinds == kind).tolist()
        cards = [devices[i] for i in at]
        own = c.tensor_gemm["types"][name]
        own = {**own, **own.get(kind, {})}
        values: dict[str, Any] = {f"tensor_gemm.types.{of_pipe}": own}
        if name == "sq" and not kind.startswith("mma"):
            mma = c.tensor_class["mma"]
            values[f"tensor_class.{kind}"] = {**mma, "rate": mma["rate"] * OLD_RATE}
        found[:, at] = seconds(works, cards, c.having(values), name not in UNLIMITED)
        found[:, at] += own["start_cycles"] / np.array([x.tensor_hz for x in cards])
        if "sweeps" in own:
            moved = [(w, w.size.m * w.size.k) for w in works if isinstance(w.size, Gemm)]
            passes = [Work(Pointwise(n), "bfloat16", "fp32", 2 * n, n * BITS[w.dtype] // 8, 0, 0, n) for w, n in moved]
            least = alone([Work(Pointwise(1), "bfloat16", "fp32", 2, 2, 0, 0, 1)], cards, c, False).seconds
            found[:, at] += own["sweeps"] * (alone(passes, cards, c, False).seconds - least)
    return found


FAMILY = Family(
    name="tensor_gemm",
    parameters=(
        Parameter("tensor_gemm.rate", "share of the datasheet's rate inside a tile", 0.86, 0.05, most=1.0),
        Parameter("tensor_gemm.extra_k", "what a tile costs beside its k, as so much more of it", 120, 0.4),
        Parameter("tensor_gemm.start_cycles", "of a kernel, beside the launch floor", 2900, 0.1),
        Parameter("tensor_gemm.dram", "share of the datasheet's bandwidth", 0.87, 0.02, most=0.92),
        Parameter("tensor_gemm.hot", "share of the near L2 that what comes again can fill", 0.9, 0.2),
        Parameter("tensor_gemm.written", "bytes to DRAM for one that is written", 0.9, 0.15),
        Parameter("tensor_gemm.store", "of the result's time in L2 that nothing hides, short k", 0.4, 0.3),
        Parameter("tensor_gemm.norm_block", "how arithmetic, feed and steps of a block join", 3.5, 0.2),
        Parameter("tensor_gemm.norm_memory", "how DRAM and L2 join", 2.5, 0.2),
        Parameter("tensor_gemm.norm", "how arithmetic and memory join", 3.0, 0.2),
        Parameter("tensor_loads.copies.feed", "of streams' rate in L2, threads load", 0.9, 0.4),
        Parameter("tensor_loads.copies.wave", "of a partial wave that counts as whole", 0.4, 0.4),
        Parameter("tensor_loads.copies.l2", "of streams' rate in L2", 0.45, 0.4),
        Parameter("tensor_loads.copies.split_s", "the sum of the parts of k", 2.1e-6, 0.4),
        Parameter("tensor_loads.bulk.feed", "of streams' rate in L2, an engine loads", 3.8, 0.4),
        Parameter("tensor_loads.bulk.step_cycles", "of 128 bytes of k", 170, 0.2),
        Parameter("tensor_loads.bulk.wave", "of a partial wave that counts as whole", 0.18, 0.4),
        Parameter("tensor_loads.bulk.l2", "of streams' rate in L2", 0.8, 0.4),
        Parameter("tensor_loads.bulk.split_s", "the sum of the parts of k", 2.8e-6, 0.4),
        *(
            Parameter(f"tensor_class.{kind}.{what}", f"factor on {meaning}", 1.0, sd)
            for kind in ("mma", "mma_128", "wgmma", "tcgen05")
            for what, meaning, sd in FACTORS
        ),
        Parameter("power.tensor_pJ_per_flop", "FP16, 1024 FLOPs a clock and SM, 5 nm, 1.5 GHz", 1.65, 0.1),
        Parameter("power.tensor_size_exponent", "fall of that with FLOPs a clock and SM", 0.4, 0.15),
        Parameter("power.tensor_clock_exponent", "growth of that with the clock", 0.8, 0.2),
        Parameter("rig.uniform", "energy of DeepBench's operands, for that of others", 0.6, 0.3, most=1.0),
        Parameter("power.burst_s", "a kernel repeated alone meets the limit by half", 1.5e-3, 0.4),
    ),
    model=seconds,
    overhead_s=overheads("tensor_gemm"),
    sample=900,
    weight=300.0,
    corrections=(0.05, 0.05, 0.1),
    others={"sustained": sustained, "uniform operands": uniform},
)


def _own(name: str, kind: str, rate: float, extra_k: float, start: float) -> tuple[Parameter, ...]:
    """Factors of one library's products in fewer bits, of one class of tensor cores or of all."""
    root = f"tensor_gemm.types.{name}{kind and '.'}{kind}"
    return (
        Parameter(f"{root}.rate", "factor on the rate", rate, 0.3),
        Parameter(f"{root}.extra_k", "factor on what a tile costs beside its k", extra_k, 0.7),
        Parameter(f"{root}.start_cycles", "beside, launches that quantise among them", start, 0.4),
    )


def _family(name: str, start: float, *more: Parameter, own: tuple[Parameter, ...] = (), waits: float = 1.5) -> Family:
    steps = Parameter(f"tensor_gemm.types.{name}.step_cycles", "factor on a step's cycles", waits, 0.8)
    every = (*(own or _own(name, "", 1.0, 1.5, start)), *[steps][: waits > 0], *more)
    own_name, model = f"tensor_{name}", partial(recipe, name)
    return Family(own_name, every, overheads(own_name), model, sample=500, corrections=(0.08, 0.06, 0.12))


def _sweeps(name: str) -> Parameter:
    return Parameter(f"tensor_gemm.types.{name}.sweeps", "of quantising over the activations", 1.5, 0.4)


ON = ("mma_128", "wgmma", "tcgen05")  # classes of tensor cores that multiply FP8
TENSORS = tuple(p for kind in ON for p in _own("fp8", kind, 0.85, 2.5, 14000.0))
BLOCKS = (  # scaled by Triton's vector code, DeepGEMM's beside the products, and in hardware, after scales are packed
    *_own("fp8_block", ON[0], 0.5, 2.5, 4000.0),
    *_own("fp8_block", ON[1], 0.75, 2.5, 4000.0),
    *_own("fp8_block", ON[2], 1.0, 2.5, 12000.0),
)
FAMILIES = (
    FAMILY,
    _family("fp8", 0.0, _sweeps("fp8"), own=TENSORS),
    _family("fp8_block", 0.0, _sweeps("fp8_block"), own=BLOCKS),
    _family("fp8_static", 1000.0, waits=0.0),
    _family("nvfp4", 6000.0, _sweeps("nvfp4")),
    *(_family(name, 8000.0, waits=8.0) for name in UNLIMITED),
)
