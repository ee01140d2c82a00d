"""Kernels without products: elementwise, rows (softmax, normalisation, reduction), movement, host copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxperf.latency.bounds import Array, Bounds, Columns, bounds, pnorm
from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants

IN_REGISTERS = 1024  # elements of a row that softmax keeps in the registers of one warp (PyTorch, ONNX Runtime)


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


def pointwise(k: Columns, d: Cards, c: Constants) -> Bounds:
    """One thread for every four elements: traffic, or the instructions; the floor is no addition."""
    return _elementwise(k, d, c, k.bytes, 0.0)


def move(k: Columns, d: Cards, c: Constants) -> Bounds:
    """Movement: runs shorter than a sector fetch more than they use, and each element's place has to be computed."""
    width = np.maximum(k.bytes / np.maximum(k["elements"], 1) / 2, 0.5)
    run = np.maximum(k["run"] * width, width)
    waste = np.clip(c.pointwise["short_run_bytes"] / run, 1, c.pointwise["most_waste"])
    strided = k["run"] < k["elements"]
    nbytes = k.bytes * (1 + waste) / 2  # half of it is caught by L1 and L2
    return _elementwise(k, d, c, nbytes, c.pointwise["address_slots"] * strided * k["elements"])


def _elementwise(k: Columns, d: Cards, c: Constants, nbytes: Array, slots: Array | float) -> Bounds:
    """Kernels of one thread an element that move `nbytes` and issue `slots` beside their FLOPs.

    FLOPs here are those of `op_models.pointwise`, where a division or an exponential counts 4; each takes several
    instructions, and a scheduler issues one for 32 threads a clock (Pascal's GP100 has two schedulers an SM, others
    four). Source: pow, tanh and gelu on NeuSight's cards.
    """
    norm = c.pointwise["norm"]
    memory, dram_bytes = traffic(nbytes, d, c, norm)
    issue = (c.pointwise["slots_per_flop"] * k.vector + slots) / d.issue * d.compute
    compute = np.maximum(k.vector / k.vector_rate, issue)
    detail = {"DRAM bytes": dram_bytes}
    return _with_floor(compute, memory, c.pointwise["floor_s"], k["elements"], norm, d, c, detail)


def rows(k: Columns, d: Cards, c: Constants) -> Bounds:
    """One block sweeps a row, `passes` times more than it must; too few rows leave SMs idle.

    memory: what is swept again comes from DRAM where the rows in flight exceed L2;
    miss = 1 / (1 + (`miss` L2 / open)^`miss_sharpness`).
    compute: issue slots, threads x (of the row + of each step of its block along it) a row; see `_slots`.
    latency: waves x (a row alone + its steps).
    A softmax of up to 1024 elements takes a warp and stays in its registers; blocks grow with long rows, and a plain
    reduction of few long rows is split over more blocks, at the price of a second kernel.
    Source: softmax and normalisation fitted on NeuSight's FP32 kernels, whose grids show the blocks; reductions are
    assumed.
    """
    r = c.rows
    width, count = np.maximum(k["width"], 1), np.maximum(k["rows"], 1)
    sweeping, plain, shared = k["passes"] >= 2, k["passes"] == 0, k["block"] > 0
    in_registers = sweeping & (width <= IN_REGISTERS) & ~shared
    threads = np.clip(2 ** np.ceil(np.log2(width / r["elements_per_thread"])), np.where(plain, 32, 128), 1024)
    threads = np.where(sweeping, np.clip(2 ** np.ceil(np.log2(np.maximum(width // 8, 1))), 32, 512), threads)
    threads = np.where(shared, k["block"], np.where(in_registers, 32, threads))
    resident = np.minimum(d.threads // np.maximum(threads, 128), r["blocks_per_sm"])
    warps = d.threads / threads / np.where(in_registers, 2, 1)  # a row in registers leaves half as many threads room
    in_flight = d.sms * np.where(threads < 128, warps, np.maximum(resident, 1))  # rows
    most = np.where(plain, np.minimum(np.floor(in_flight / count), width / r["split_elements"]), 1)
    parts = np.maximum(np.floor(most), 1)
    again = np.where(in_registers | shared, 0, k["passes"]) * k.read
    open_bytes = np.minimum(count * parts, in_flight) * k.read / (count * parts)
    miss = 1 / (1 + (r["miss"] * d.l2_near / np.maximum(open_bytes, 1)) ** r["miss_sharpness"])
    memory, dram_bytes = traffic(k.bytes, d, c, r["norm"], again, miss)
    slots, steps = _slots(width / parts, threads, in_registers, sweeping, plain, r)
    slots = np.where(shared, r["slots"]["shared_row"], slots)
    issue = np.maximum(count * parts / d.sms, 1) * threads * slots / (d.schedulers * 32 * d.hz) * d.compute
    compute = np.maximum(k.vector / k.vector_rate, issue)
    latency = np.ceil(count * parts / in_flight) * np.where(shared, r["shared_s"], r["row_s"] + r["step_s"] * steps)
    floor = r["floor_s"] + np.where(parts > 1, c.launch["kernel_s"] / d.launch, 0.0)
    detail = {"threads of a row": threads, "rows in flight": np.minimum(count * parts, in_flight)}
    detail |= {"miss share": miss, "DRAM bytes": dram_bytes}
    return _with_floor(compute, memory, floor, count * parts * threads, r["overlap"], d, c, detail, latency)


def _slots(
    width: Array, threads: Array, in_registers: Array, sweeping: Array, plain: Array, r: Mapping[str, Any]
) -> tuple[Array, Array]:
    """Issue slots of each thread for one row, and the steps in which its block goes along it.

    A step takes `vector` elements a thread. Softmax of long rows takes what whole steps leave one element a thread at
    a time, and so the first block's worth of a row that does not start on 16 bytes. Normalisation costs three steps
    more where only some threads make a fourth (eighth, ...) step: every card shows that cliff from 1540 to 2044 and
    from 3588 to 4092 elements, as of a loop unrolled four times whose warps run it and the remainder, too.
    """
    s, vector = r["slots"], r["vector"]
    reach = threads * vector
    steps = np.ceil(width / reach)
    divided = (steps % 4 == 0) & (width % reach != 0)
    normalise = s["normalise_row"] + s["normalise_step"] * (steps + 3 * divided)
    unaligned = np.where(width % 4 == 0, 0, np.where(width % 2 == 0, 0.5, 0.75))  # share of the rows
    rest = np.where(unaligned > 0, np.maximum(width - threads, 0), width)
    whole = np.floor(rest / reach)
    single = np.ceil((rest - whole * reach) / threads) + unaligned
    sweep = s["sweep_row"] + s["sweep_step"] * whole + s["sweep_single"] * single
    padded = 2 ** np.ceil(np.log2(np.maximum(width, 32)))
    warp = s["warp_row"] + s["warp_element"] * padded / 32
    reduce = s["reduce_row"] + s["reduce_step"] * steps
    slots = np.where(in_registers, warp, np.where(sweeping, sweep, np.where(plain, reduce, normalise)))
    return slots, np.where(in_registers, 1, np.where(sweeping, whole + single, steps))


def transfer(k: Columns, d: Cards, c: Constants) -> Bounds:
    """A copy over PCIe; from or to pageable memory, the driver copies through a pinned buffer of its own."""
    pinned = k["pinned"] == 1
    rate = np.where(pinned, c.transfer["achieved"], c.transfer["pageable"]) * d.pcie
    memory = k["bytes"] / np.where(pinned, rate, np.minimum(rate, c.transfer["pageable_Bps"]))
    launch = np.where(pinned, c.transfer["start_s"], c.transfer["pageable_start_s"])
    return bounds(0.0, memory, 0.0, launch, memory + launch)


def _with_floor(
    compute: Array, memory: Array, floor_s: Array | float, threads: Array, norm: float, d: Cards, c: Constants,
    detail: dict[str, Array], latency: Array | float = 0.0,
) -> Bounds:  # fmt: skip
    """pnorm(floor, pnorm(busy, memory)): a floor shows where nothing else does, and is not added elsewhere.

    busy = pnorm(compute, latency; 4): the same warps issue and wait.
    """
    compute, memory, latency, floor = np.broadcast_arrays(compute, memory, latency, floor_s * d.launch)
    busy = pnorm(compute, latency, p=4.0)
    seconds = pnorm(floor, pnorm(busy, memory, p=norm), p=c.pointwise["floor_norm"])
    share = np.minimum(threads / (d.sms * d.threads), 1)
    shown = {name: np.broadcast_to(v, seconds.shape) for name, v in detail.items()}
    return bounds(compute, memory, latency, floor, seconds, share)._replace(detail=shown)
