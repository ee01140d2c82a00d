"""Kernels that sweep rows: softmax, normalisation, reduction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import streamed
from onnxperf.latency.terms import Array, KernelTerms
from onnxperf.latency.traffic import traffic, with_floor
from onnxperf.latency.works import Works
from op_models import Rows, Work

IN_REGISTERS = 1024  # elements of a row that softmax keeps in the registers of one warp (PyTorch, ONNX Runtime)


def rows(works: Works, d: Cards, c: Constants, dram_share: Array) -> KernelTerms:
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
    width, count = np.maximum(works["width"], 1), np.maximum(works["rows"], 1)
    sweeping, plain, shared = works["passes"] >= 2, works["passes"] == 0, works["block"] > 0
    in_registers = sweeping & (width <= IN_REGISTERS) & ~shared
    threads = np.clip(2 ** np.ceil(np.log2(width / r["elements_per_thread"])), np.where(plain, 32, 128), 1024)
    threads = np.where(sweeping, np.clip(2 ** np.ceil(np.log2(np.maximum(width // 8, 1))), 32, 512), threads)
    threads = np.where(shared, works["block"], np.where(in_registers, 32, threads))
    resident = np.minimum(d.threads // np.maximum(threads, 128), r["blocks_per_sm"])
    warps = d.threads / threads / np.where(in_registers, 2, 1)  # a row in registers leaves half as many threads room
    in_flight = d.sms * np.where(threads < 128, warps, np.maximum(resident, 1))  # rows
    most = np.where(plain, np.minimum(np.floor(in_flight / count), width / r["split_elements"]), 1)
    parts = np.maximum(np.floor(most), 1)
    again = np.where(in_registers | shared, 0, works["passes"]) * works.read
    open_bytes = np.minimum(count * parts, in_flight) * works.read / (count * parts)
    miss = 1 / (1 + (r["miss"] * d.l2_near / np.maximum(open_bytes, 1)) ** r["miss_sharpness"])
    memory, dram_bytes = traffic(works.bytes, d, c, r["norm"], again, miss)
    slots, steps = _slots(width / parts, threads, in_registers, sweeping, plain, r)
    slots = np.where(shared, r["slots"]["shared_row"], slots)
    issue = np.maximum(count * parts / d.sms, 1) * threads * slots / (d.schedulers * 32 * d.hz) * d.compute
    compute = np.maximum(works.vector / works.vector_rate, issue)
    latency = np.ceil(count * parts / in_flight) * np.where(shared, r["shared_s"], r["row_s"] + r["step_s"] * steps)
    floor = r["floor_s"] + np.where(parts > 1, c.launch["kernel_s"] / d.launch, 0.0)
    detail = {"threads of a row": threads, "rows in flight": np.minimum(count * parts, in_flight)}
    detail |= {"miss share": miss, "DRAM bytes": dram_bytes}
    return with_floor(compute, memory, floor, count * parts * threads, r["overlap"], d, c, detail, latency)


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


def _error_class(w: Work, on_tensor: bool) -> str:
    return ("reduction", "normalisation", "softmax")[min(w.size.passes, 2)]  # type: ignore[union-attr]


FAMILY = KernelFamily(Rows, rows, streamed, _error_class)
