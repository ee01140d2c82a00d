"""Devices as columns: every figure an array of shape [1, g], so that a model is one numpy expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_specs import Device
from onnxperf.latency.constants import Constants

Array = NDArray[Any]

#: Where a card lacks a pipe, its work runs on the next one.
FALLBACK = {
    "fp64": "fp32", "fp16": "fp32", "tensor_tf32": "fp32",
    "tensor_bf16": "fp32", "tensor_fp16": "fp16", "tensor_fp8": "tensor_fp16",
    "tensor_int8": "tensor_fp16", "tensor_int4": "tensor_int8", "tensor_fp4": "tensor_fp8",
}  # fmt: skip


def pipe_on(device: Device, pipe: str) -> str:
    """The pipe that does a pipe's work on this card; half precision is never slower than single."""
    while pipe not in device.dense_flops and pipe in FALLBACK:
        pipe = FALLBACK[pipe]
    if pipe == "fp16" and device.dense_flops["fp16"] < device.dense_flops["fp32"]:
        return "fp32"
    return pipe


class Cards:
    """The devices' figures as arrays [1, g] in SI units, with calibration's effects beside them."""

    def __init__(self, devices: Sequence[Device], constants: Constants):
        def column(values: Sequence[float]) -> Array:
            return np.array(values, dtype=float)[None, :]

        self.devices = tuple(devices)
        self.sms = column([d.sms for d in devices])
        self.threads = column([d.threads_per_sm for d in devices])
        self.lanes = column([d.lanes for d in devices])
        self.hz = column([d.boost_hz for d in devices])
        self.tensor_hz = column([d.tensor_hz for d in devices])
        self.bandwidth = column([d.bandwidth_Bps for d in devices])
        self.l2 = column([d.l2_bytes for d in devices])
        self.l2_near = column([d.l2_bytes / d.l2_partitions for d in devices])
        self.node_nm = column([d.node_nm for d in devices])
        self.tdp = column([d.tdp_W for d in devices])
        self.pcie = column([d.pcie_Bps for d in devices])
        self.major = np.array([d.capability[0] for d in devices])[None, :]
        self.compute = column([d.effects.compute for d in devices])
        self.memory = column([d.effects.memory for d in devices])
        self.launch = column([d.effects.launch for d in devices])
        dram = constants.dram
        kinds = [(f"{d.memory_kind} cc{d.capability[0]}", d.memory_kind, "other") for d in devices]
        self.dram = column([next(dram[kind] for kind in names if kind in dram) for names in kinds])
        self.l2_Bps = self.sms * constants.l2["bytes_per_clock"] * self.hz
        self.hbm = np.array([d.memory_kind.startswith("HBM") for d in devices])[None, :]

    def rate(self, pipes: Sequence[str]) -> Array:
        """FLOP/s of each kernel's pipe on each card, [n, g]."""
        rows = {p: [d.dense_flops[pipe_on(d, p)] for d in self.devices] for p in set(pipes)}
        return np.array([rows[p] for p in pipes], dtype=float).reshape(len(pipes), len(self.devices))

    def tensor(self, pipes: Sequence[str]) -> Array:
        """Whether a kernel's pipe is a tensor core on each card, [n, g]."""
        rows = {p: [pipe_on(d, p).startswith("tensor_") for d in self.devices] for p in set(pipes)}
        return np.array([rows[p] for p in pipes], dtype=bool).reshape(len(pipes), len(self.devices))

    def tensor_class(self) -> list[str]:
        """How each card's tensor cores are driven: mma.sync, wgmma or tcgen05."""
        kinds = {(9, 0): "wgmma", (10, 0): "tcgen05", (10, 3): "tcgen05"}
        return [kinds.get(d.capability, "mma") for d in self.devices]
