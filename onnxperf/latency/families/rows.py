"""Kernels that sweep rows: softmax, normalisation, reduction.

Shapes: n works on g cards are [n, g].
Source: softmax and normalisation fitted on NeuSight's FP32 kernels, whose grids show the blocks; reductions are
assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.channels import channels
from onnxperf.latency.families.pointwise import VECTOR
from onnxperf.latency.family import KernelFamily
from onnxperf.latency.processor import streamed
from onnxperf.latency.terms import Array, KernelTerms, choose
from onnxperf.latency.traffic import started, traffic
from op_models import Rows, Work
from op_models.core import IN_REGISTERS

SHORT_ROW = 128  # elements of a row up to which a warp takes two (softmax_warp_forward, PersistentSoftmax.cuh)


class Kind(NamedTuple):
    """Rows as columns [n, 1], and masks that say which kernel reads them.

    number: of rows; width: elements of a row. softmax: reads a row several times; reduction: once, with one result;
    neither: normalisation. in_registers: a softmax of up to IN_REGISTERS elements, with one warp a row that reads it
    once; own_block: a kernel of ONNX Runtime with a thread for each element of a row.
    """

    number: Array
    width: Array
    softmax: Array
    reduction: Array
    in_registers: Array
    own_block: Array


class Grid(NamedTuple):
    """The launch grid: threads a row, rows in flight on the card at once, and parts that a row is split into."""

    threads: Array
    in_flight: Array
    parts: Array


def rows(works: Works, cards: Cards, dram_share: Array) -> KernelTerms:
    """A block reads a row, and `passes` times more than once; too few rows leave SMs idle.

    memory: of the repeated reads a share comes from DRAM, which grows as the rows in flight exceed L2:
    miss = 1 / (1 + (`miss` L2 / bytes in flight)^`miss_sharpness`).
    compute: the larger of issue slots of all threads and vector FLOPs. latency: waves x (`row_s` + `step_s` x steps).
    """
    lying = works["run"] > 0
    if lying.all():
        return channels(works, cards)
    terms = _swept(works, cards)
    for mask, model in ((works["apart"] > 0, _scattered), (lying, channels)):
        if mask.any():
            terms = choose(np.broadcast_to(mask, terms.seconds.shape), model(works, cards), terms)
    return terms


def _scattered(works: Works, cards: Cards) -> KernelTerms:
    """cuDNN's reduction of elements that lie apart (reduce_tensor_kernel): `apart_row` slots for a result, and
    `apart_element` for each element of it, which its lanes load one by one.
    """
    coef = cards.constants.rows
    number, elements = np.maximum(works["rows"], 1), np.maximum(works["rows"] * works["width"], 1)
    slots = coef["slots"]["apart_row"] * number + coef["slots"]["apart_element"] * elements
    compute = np.broadcast_to(slots / cards.issue * cards.compute, np.broadcast_shapes(slots.shape, cards.sms.shape))
    memory, dram_bytes = traffic(works.bytes, cards, coef["norm"])
    return started(compute, memory, 0.0, number * 32, coef["overlap"], cards, {"DRAM bytes": dram_bytes})


def _swept(works: Works, cards: Cards) -> KernelTerms:
    """Rows that lie in one piece."""
    coef = cards.constants.rows
    kind = _kind(works)
    grid = _grid(works, kind, cards, coef)
    all_parts = kind.number * grid.parts
    open_rows = np.minimum(all_parts, grid.in_flight)
    reread_bytes = np.where(kind.in_registers | kind.own_block, 0, works["passes"]) * works.read
    open_bytes = open_rows * works.read / all_parts
    miss = 1 / (1 + (coef["miss"] * cards.l2 / np.maximum(open_bytes, 1)) ** coef["miss_sharpness"])
    memory, dram_bytes = traffic(works.bytes, cards, coef["norm"], reread_bytes, miss)
    slots, steps = _slots(kind.width / grid.parts, grid.threads, kind, coef)
    issued = np.maximum(all_parts / cards.sms, 1) * grid.threads * slots
    issue_s = issued / (cards.schedulers * 32 * cards.hz) * cards.compute
    compute = np.maximum(works.vector / works.vector_rate, issue_s)
    row_s = np.where(kind.in_registers, coef["warp_s"], coef["row_s"] + coef["step_s"] * steps)
    row_s = np.where(kind.own_block, coef["shared_s"], row_s)
    latency = np.ceil(all_parts / grid.in_flight) * row_s
    joined_s = np.where(grid.parts > 1, cards.constants.launch["kernel_s"] / cards.launch, 0.0)
    detail = {"threads of a row": grid.threads, "rows in flight": open_rows}
    detail |= {"miss share": miss, "DRAM bytes": dram_bytes}
    return started(compute, memory, joined_s, all_parts * grid.threads, coef["overlap"], cards, detail, latency)


def _kind(works: Works) -> Kind:
    """The columns of rows, and which kernel reads them, by `passes` and `block` of the size."""
    width, number = np.maximum(works["width"], 1), np.maximum(works["rows"], 1)
    softmax, reduction, own_block = works["passes"] >= 2, works["passes"] == 0, works["block"] > 0
    in_registers = softmax & (width <= IN_REGISTERS) & ~own_block
    return Kind(number, width, softmax, reduction, in_registers, own_block)


def _grid(works: Works, kind: Kind, cards: Cards, coef: Mapping[str, Any]) -> Grid:
    """Threads, rows in flight and parts of a row.

    A normalisation's block has 128 threads; others grow with the row, in powers of two. Registers limit an SM to
    `resident_threads`. A reduction of few long rows is split over more blocks while the card has room, into parts of at
    least `split_elements`, and then takes a second kernel.
    """
    wanted = 2 ** np.ceil(np.log2(kind.width / coef["elements_per_thread"]))
    of_short_row = np.minimum(2 ** np.ceil(np.log2(kind.width)), 32)  # a warp takes several of them
    threads = np.where(kind.reduction, np.clip(wanted, of_short_row, 1024), 128)
    of_softmax = np.clip(2 ** np.ceil(np.log2(np.maximum(kind.width // 8, 1))), 32, 512)
    threads = np.where(kind.softmax, of_softmax, threads)
    threads = np.where(kind.own_block, works["block"], np.where(kind.in_registers, 32, threads))
    resident = np.minimum(cards.threads, coef["resident_threads"])
    blocks = np.minimum(resident // np.maximum(threads, 128), coef["blocks_per_sm"])  # of several warps, on an SM
    room = np.where(
        kind.width <= SHORT_ROW, 1, 2
    )  # a warp holds two short rows; registers have room for half the warps
    warps = cards.threads / threads / np.where(kind.in_registers, room, 1)
    in_flight = cards.sms * np.where(threads < 128, warps, np.maximum(blocks, 1))
    split = np.minimum(np.floor(in_flight / kind.number), kind.width / coef["split_elements"])
    return Grid(threads, in_flight, np.maximum(np.floor(np.where(kind.reduction, split, 1)), 1))


def _slots(width: Array, threads: Array, kind: Kind, coef: Mapping[str, Any]) -> tuple[Array, Array]:
    """Issue slots of each thread for one row of `width` elements, and the steps (loop iterations) of its block.

    A thread takes `vector` elements in a step. A normalisation costs three steps more where only some threads make its
    fourth (eighth, ...) step: every card is slower there, from 1540 to 2044 and from 3588 to 4092 elements, as with a
    loop unrolled four times where a warp runs both the unrolled loop and its remainder. Warps without elements of a
    narrow row take no step.
    """
    slots_of = coef["slots"]
    reach = threads * coef["vector"]
    steps = np.ceil(width / reach)
    divided = (steps % 4 == 0) & (width % reach != 0)
    share = np.minimum(np.ceil(width / coef["vector"] / 32) * 32 / threads, 1)  # of the block's warps, in one step
    stepping = np.where(steps == 1, share, steps + 3 * divided)
    normalisation = slots_of["normalise_row"] + slots_of["normalise_step"] * stepping
    long_softmax, softmax_steps = _long_softmax(width, threads, reach, slots_of)
    padded = 2 ** np.ceil(np.log2(np.maximum(width, 32)))
    in_registers = slots_of["warp_row"] + slots_of["warp_element"] * padded / 32
    reduction = slots_of["reduce_row"] + slots_of["reduce_step"] * steps
    slots = np.where(
        kind.in_registers,
        in_registers,
        np.where(kind.softmax, long_softmax, np.where(kind.reduction, reduction, normalisation)),
    )
    slots = np.where(kind.own_block, slots_of["shared_row"], slots)
    return slots, np.where(kind.in_registers, 1, np.where(kind.softmax, softmax_steps, steps))


def _long_softmax(width: Array, threads: Array, reach: Array, slots_of: Mapping[str, float]) -> tuple[Array, Array]:
    """Issue slots of a thread for a row that exceeds one warp's registers, and steps of its block along the row.

    Vectorised steps take `reach` elements. The remainder is read one element a thread at a time, and so is the head of
    a row that is not aligned to 16 bytes, as happens for widths that are no multiple of 4.
    """
    unaligned = np.where(width % 4 == 0, 0, np.where(width % 2 == 0, 0.5, 0.75))  # share of the rows
    aligned_width = np.where(unaligned > 0, np.maximum(width - threads, 0), width)
    whole = np.floor(aligned_width / reach)
    single = np.ceil((aligned_width - whole * reach) / threads) + unaligned
    slots = slots_of["sweep_row"] + slots_of["sweep_step"] * whole + slots_of["sweep_single"] * single
    return slots, whole + single


def _error_class(w: Work, on_tensor: bool) -> str:
    return ("reduction", "normalisation", "softmax")[min(w.size.passes, 2)]  # type: ignore[union-attr]


FAMILY = KernelFamily(Rows, rows, streamed, _error_class, constants=(VECTOR,))
