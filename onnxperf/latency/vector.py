"""Kernels without products: elementwise, rows (softmax, normalisation, reduction), movement, host copies."""

from __future__ import annotations

import numpy as np

from onnxperf.latency.bounds import Array, Bounds, Columns, bounds, pnorm
from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants


def traffic(
    nbytes: Array, d: Cards, c: Constants, p: float, again: Array | float = 0.0, miss: Array | float = 0.0
) -> Array:
    """Seconds of memory traffic: what is still in L2 comes from there, the rest from DRAM.

    resident = 1 / (1 + (bytes / (0.9 L2))^4), on the near partition where L2 has two. `again` bytes are read a
    second time, a share `miss` of them from DRAM. Source: fitted on the FP32 vector kernels of NeuSight's data.
    """
    resident = 1 / (1 + (nbytes / (c.l2["resident"] * d.l2_near)) ** c.l2["sharpness"])
    dram = (1 - resident) * (nbytes + again * miss)
    l2 = nbytes + again
    return pnorm(dram / (d.bandwidth * d.dram), l2 / (d.l2_Bps * c.l2["achieved"]), p=p) * d.memory


def pointwise(k: Columns, d: Cards, c: Constants) -> Bounds:
    """One thread an element: traffic, with a floor that is no addition."""
    return _elementwise(k, d, c, k.bytes)


def move(k: Columns, d: Cards, c: Constants) -> Bounds:
    """Movement: runs shorter than a sector fetch more than they use."""
    width = np.maximum(k.bytes / np.maximum(k["elements"], 1) / 2, 0.5)
    run = np.maximum(k["run"] * width, width)
    waste = np.clip(c.pointwise["short_run_bytes"] / run, 1, c.pointwise["most_waste"])
    return _elementwise(k, d, c, k.bytes * (1 + waste) / 2)  # half of it is caught by L1 and L2


def _elementwise(k: Columns, d: Cards, c: Constants, nbytes: Array) -> Bounds:
    """Kernels of one thread an element that move `nbytes`."""
    memory = traffic(nbytes, d, c, c.pointwise["norm"])
    floor = c.pointwise["floor_s"] * d.launch
    return _with_floor(k.vector / k.vector_rate, memory, np.zeros_like(memory), floor, k["elements"], d, c)


def rows(k: Columns, d: Cards, c: Constants) -> Bounds:
    """One block sweeps a row, `passes` times more than it must; too few rows leave SMs idle.

    latency = waves x (a constant for a row + one for each step of the block along it). A short row of a reduction or
    a softmax takes a warp, four to a block; blocks grow with long rows, and a plain reduction of few long rows is
    split over more blocks, at the price of a second kernel. Rows of up to 1024 elements stay in registers where the
    kernel sweeps three times (softmax); what is swept again comes from DRAM where the rows in flight exceed L2.
    Source: constants fitted on the FP32 softmax and LayerNorm kernels of NeuSight's data; the rest is assumed.
    """
    width, count = np.maximum(k["width"], 1), np.maximum(k["rows"], 1)
    sweeping = k["passes"] >= 2
    share = np.where(sweeping, c.rows["sweep_elements_per_thread"], c.rows["elements_per_thread"])
    short = np.where(sweeping, width <= 1024, k["passes"] == 0)
    threads = np.clip(2 ** np.ceil(np.log2(width / share)), np.where(short, 32, 128), 1024)
    blocks = c.rows["blocks_per_sm"] * np.maximum(128 / threads, 1)
    in_flight = d.sms * np.minimum(blocks, np.maximum(np.floor(d.threads / threads), 1))
    most = np.where(k["passes"] == 0, np.minimum(np.floor(in_flight / count), width / c.rows["split_elements"]), 1)
    parts = np.maximum(np.floor(most), 1)
    again = np.where(sweeping & (width <= 1024), 0, k["passes"]) * k.read
    open_bytes = np.minimum(count * parts, in_flight) * k.read / (count * parts)
    miss = 1 / (1 + (c.rows["miss"] * d.l2_near / np.maximum(open_bytes, 1)) ** c.l2["sharpness"])
    memory = traffic(k.bytes, d, c, c.rows["norm"], again, miss)
    step = np.where(sweeping, c.rows["sweep_step_s"], c.rows["step_s"])
    start = np.where(sweeping, c.rows["sweep_row_s"], c.rows["row_s"])
    reach = threads * np.where(k["passes"] == 0, c.rows["vector"], 1)  # elements that a step of the block covers
    latency = np.ceil(count * parts / in_flight) * (start + step * np.ceil(width / parts / reach))
    floor = c.rows["floor_s"] * d.launch + np.where(parts > 1, c.launch["kernel_s"], 0.0)
    return _with_floor(k.vector / k.vector_rate, memory, latency, floor, count * parts * threads, d, c)


def transfer(k: Columns, d: Cards, c: Constants) -> Bounds:
    """A copy over PCIe; from or to pageable memory, the driver copies through a pinned buffer of its own."""
    pinned = k["pinned"] == 1
    rate = np.where(pinned, c.transfer["achieved"], c.transfer["pageable"]) * d.pcie
    memory = k["bytes"] / np.where(pinned, rate, np.minimum(rate, c.transfer["pageable_Bps"]))
    launch = np.broadcast_to(np.where(pinned, c.transfer["start_s"], c.transfer["pageable_start_s"]), memory.shape)
    nothing = np.zeros_like(memory)
    return bounds(nothing, memory, nothing, launch, memory + launch)


def _with_floor(
    compute: Array, memory: Array, latency: Array, floor: Array, threads: Array, d: Cards, c: Constants
) -> Bounds:
    """The floor joins by a high norm: it shows where nothing else does, and is not added elsewhere."""
    compute, memory, latency, floor = np.broadcast_arrays(compute, memory, latency, floor)
    seconds = pnorm(floor, pnorm(compute, memory, latency, p=c.pointwise["norm"]), p=c.pointwise["floor_norm"])
    share = np.minimum(threads / (d.sms * d.threads), 1)
    return bounds(compute, memory, latency, floor, seconds, share)
