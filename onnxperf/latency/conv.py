"""Convolutions as implicit products, depthwise ones on the vector units."""

from __future__ import annotations

import numpy as np

from onnxperf.latency import gemm, vector
from onnxperf.latency.bounds import Array, Bounds, Columns, pnorm
from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants


def conv(k: Columns, d: Cards, c: Constants, cold: Array) -> Bounds:
    """m = images x positions, n = channels out, k = what an output sums up (channels in x taps), one product a group.

    Gathering the operand costs a constant share. A depthwise convolution has no product to speak of: its taps
    run on the vector units beside its traffic.
    """
    groups = np.maximum(k["groups"], 1)
    columns = np.maximum(k["cout"] / groups, 1)
    positions = np.maximum(k["images"] * k["out"], 1)
    depth = np.maximum(k.matrix / (2 * positions * np.maximum(k["cout"], 1)), 1)
    product = gemm.Product(groups, positions, columns, depth, convolution=True)
    whole = gemm.product(k, product, d, c, cold)
    gather = c.convolution["gather_efficiency"]
    compute, latency = whole.compute / gather, whole.latency / gather
    seconds = whole.seconds + (compute - whole.compute) + (latency - whole.latency)
    memory = vector.traffic(k.bytes, d, c, c.pointwise["norm"])
    direct_compute = k.matrix / (k.vector_rate * c.convolution["depthwise_efficiency"])
    direct = pnorm(direct_compute, memory, p=c.pointwise["norm"]) + c.launch["kernel_s"] * d.launch
    depthwise = np.broadcast_to((k["cin"] / groups <= 4) & (groups > 1), seconds.shape)
    return Bounds(
        compute=np.where(depthwise, direct_compute, compute),
        memory=np.where(depthwise, memory, whole.memory),
        latency=np.where(depthwise, 0.0, latency),
        launch=whole.launch,
        seconds=np.where(depthwise, direct, seconds),
        choice=np.where(depthwise, "direct", whole.choice),
        workspace=np.where(depthwise, 0.0, whole.workspace),
        launches=np.where(depthwise, 1, whole.launches),
        share=np.where(depthwise, 1.0, whole.share),
    )
