"""Kernels whose rows are channels or columns: cuDNN's batch norm in training, and PyTorch's sums over all rows.

Shapes: n works on g cards are [n, g]. Grids, and what a block holds, are those of kernels of training steps on an H200;
forms: derive/hopper.md.
"""

from __future__ import annotations

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.terms import KernelTerms, choose, held_share
from onnxperf.latency.traffic import started, traffic

BLOCK = 512  # threads of a batch norm's block
TILE = 64  # channels that its block takes at a time where channels lie last
VECTOR, WARP = 4, 32  # columns that a thread adds up at once, and threads beside each other
COLUMN_BLOCK = 128  # threads of a block that adds up columns
LEAST, MOST = 16, 256  # values that such a thread adds up before others do their part


def channels(works: Works, cards: Cards) -> KernelTerms:
    """Batch norms in training and their gradients, and sums of columns, by how a row lies (`run`)."""
    norm, columns = works["passes"] > 0, works["run"] == 1
    shape = np.broadcast_shapes(norm.shape, cards.sms.shape)
    terms = column_sums(works, cards)
    if (norm & columns).any():
        terms = choose(np.broadcast_to(norm & columns, shape), channels_last(works, cards), terms)
    if (norm & ~columns).any():
        terms = choose(np.broadcast_to(norm & ~columns, shape), planes(works, cards), terms)
    return terms


def planes(works: Works, cards: Cards) -> KernelTerms:
    """A batch norm of images in NCHW: one block a channel (cudnn::bn_fw_tr_1C11, bn_bw_1C11).

    A channel of up to `held_bytes` is read once and kept on the SM; a longer one is read twice, and for each tensor
    its block waits in each step, `near_s` for L2 and `far_s` for DRAM. Its threads meet for `block_s` for each of them.
    An element takes `element_slots`, the share `packed` of that where pairs of FP16 are read at once.
    """
    coef = cards.constants.channels
    number, width = np.maximum(works["rows"], 1), np.maximum(works["width"], 1)
    operands = np.maximum(np.round(works.read / np.maximum(works.written, 1)), 1)
    held = width * works.width * operands <= coef["held_bytes"]
    packed = held & (works.width == 2) & (works["run"] % 2 == 0)
    each = coef["element_slots"] * np.where(packed, coef["packed"], 1.0)
    steps = np.ceil(width / BLOCK)
    slots = np.maximum(number / cards.sms, 1) * BLOCK * (coef["block_slots"] + each * steps)
    compute = slots / (cards.schedulers * 32 * cards.hz) * cards.compute
    resident = np.minimum(number, 2 * cards.sms)
    miss = 1 - held_share(resident * width * works.width * operands, cards.l2, cards.constants.l2["sharpness"])
    memory, dram_bytes = traffic(works.bytes, cards, coef["norm"], np.where(held, 0, works.read), miss)
    from_dram = 1 - held_share(works.bytes, cards.l2, cards.constants.l2["sharpness"])
    trip_s = (coef["near_s"] + (coef["far_s"] - coef["near_s"]) * from_dram) * cards.memory
    waits = np.where(held, 0.0, operands * steps)
    latency = np.ceil(number / (2 * cards.sms)) * waits * trip_s
    detail = {"threads of a row": np.full_like(compute, BLOCK), "DRAM bytes": dram_bytes}
    more_s = operands * coef["block_s"]
    return started(compute, memory, more_s, number * BLOCK, coef["planes_overlap"], cards, detail, latency)


def channels_last(works: Works, cards: Cards) -> KernelTerms:
    """A batch norm of images in NHWC: two blocks an SM go through all positions, `TILE` channels at a time, and wait
    for each other between both sweeps (cudnn::batchnorm_fwtr_nhwc_semiPersist, batchnorm_bwtr_nhwc_semiPersist).
    """
    coef = cards.constants.channels
    number = np.maximum(works["rows"], 1)
    elements = np.ceil(number / TILE) * TILE * works["width"]
    compute = elements * coef["last_slots"] / cards.issue * cards.compute
    miss = 1 - held_share(works.read, cards.l2, cards.constants.l2["sharpness"])
    memory, dram_bytes = traffic(works.bytes, cards, coef["norm"], works.read, miss)
    detail = {"threads of a row": np.full_like(compute, BLOCK), "DRAM bytes": dram_bytes}
    threads = 2 * cards.sms * BLOCK
    return started(compute, memory, coef["barrier_s"], threads, coef["overlap"], cards, detail)


def column_sums(works: Works, cards: Cards) -> KernelTerms:
    """Sums of columns: a thread adds up values one after another, `column_s` each; where rows are split over blocks,
    the last block adds up what each of them has, again one after another.

    Both add to the time of the traffic, and a kernel before that clears the blocks' counter. Split as in PyTorch's
    reductions (ATen/native/cuda/Reduce.cuh, setReduceConfig), so that each thread keeps at least `LEAST` values. A
    block that takes `block` rows at a time splits no more than `unsplit` rows, and unrolls its loop: `unrolled_s`
    (ATen/native/cuda/layer_norm_kernel.cu, GammaBetaBackwardCUDAKernelTemplate).
    """
    coef = cards.constants.channels
    number, width = np.maximum(works["rows"], 1), np.maximum(works["width"], 1)
    across = np.clip(2 ** np.floor(np.log2(np.maximum(number / VECTOR, 1))), 1, WARP)
    down = COLUMN_BLOCK / across
    wide = np.ceil(number / (across * VECTOR))
    values = np.maximum(width / down, 1)
    room = np.ceil(cards.sms * cards.threads / COLUMN_BLOCK / wide)
    parts = np.maximum(np.minimum(room, np.ceil(values / LEAST)), np.ceil(values / MOST))
    whole = (works["block"] > 0) & (width <= coef["unsplit"])
    steps = np.where(whole, np.ceil(width / np.maximum(works["block"], 1)), np.ceil(values / parts))
    step_s = np.where(whole, coef["unrolled_s"], coef["column_s"]) * cards.memory
    blocks = np.where(whole, np.ceil(number / WARP), wide * parts)
    in_flight = cards.sms * np.where(whole, 2, cards.threads / COLUMN_BLOCK)
    waits_s = np.ceil(blocks / in_flight) * steps * step_s
    split = ~whole & (parts > 1)
    joined_s = np.ceil(parts / down) * coef["column_s"] * cards.memory + cards.constants.launch["kernel_s"]
    more_s = np.where(whole, 0.0, waits_s) + np.where(split, joined_s, 0.0)
    memory, dram_bytes = traffic(works.bytes, cards, coef["norm"])
    compute = works.vector / works.vector_rate * cards.compute
    detail = {"threads of a row": np.broadcast_to(down, memory.shape), "DRAM bytes": dram_bytes}
    threads = blocks * np.where(whole, WARP * np.maximum(works["block"], 1), COLUMN_BLOCK)
    latency = np.where(whole, waits_s, 0.0)
    return started(compute, memory, more_s / cards.launch, threads, coef["overlap"], cards, detail, latency)
