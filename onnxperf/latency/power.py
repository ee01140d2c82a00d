"""The power budget: a card that may draw P watts can't spend more joules in a run than P times its length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxperf.latency.bounds import Array
from onnxperf.latency.cards import Cards, pipe_on
from onnxperf.latency.constants import Constants
from op_models import Transfer, Work


def budget(works: Sequence[Work], rows: Array, seconds: Array, d: Cards, c: Constants) -> tuple[Array, Array]:
    """Joules of each work [n, g], and the factor [g] that stretches all kernels of the run `rows`.

    Power for arithmetic is the limit less what memory of this speed draws. Vector FLOPs cost energy by process
    node; tensor FLOPs by the sustained TFLOPS a watt of the architecture, the faster types in proportion.
    T = ((sum t)^6 + (E / P)^6)^(1/6). Source: fitted on throttled FP32 rows of T4 and P4, and on sustained rates.
    """
    p = c.power
    available = np.maximum(d.tdp - p["static_W_per_GBps"] * d.bandwidth / 1e9, 0.25 * d.tdp)
    per_flop = p["pJ_per_flop_12nm"] * (d.node_nm / 12) ** p["node_exponent"] * 1e-12
    matrix = np.array([[w.matrix_flops] for w in works], dtype=float).reshape(len(works), 1)
    vector = np.array([[w.vector_flops] for w in works], dtype=float).reshape(len(works), 1)
    moved = np.array([[0 if isinstance(w.size, Transfer) else w.bytes] for w in works], dtype=float).reshape(
        len(works), 1
    )
    per_matrix = np.zeros((len(works), len(d.devices)))
    for j, device in enumerate(d.devices):
        table = p["tensor_TFLOPS_per_W"]
        major, minor = device.capability
        base = table.get(f"cc{major}{minor}", table.get(f"cc{major}0", 0.4))
        for i, w in enumerate(works):
            pipe = pipe_on(device, w.pipe)
            if not pipe.startswith("tensor_"):
                per_matrix[i, j] = per_flop[0, j]
                continue
            relative = device.dense_flops[pipe] / device.dense_flops["tensor_fp16"]
            per_matrix[i, j] = available[0, j] / device.tdp_W / (base * relative * 1e12)
    in_dram = np.where(moved > d.l2, moved, 0.0)
    joules = matrix * per_matrix + vector * per_flop + in_dram * p["pJ_per_byte"] * 1e-12
    total = seconds[rows].sum(axis=0)
    needed = joules[rows].sum(axis=0) / available[0]
    norm = p["norm"]
    ratio = np.divide(needed, total, out=np.zeros_like(total), where=total > 0)
    return joules, (1 + ratio**norm) ** (1 / norm)
