"""Devices and works as columns, so that one numpy expression estimates n works on g devices.

Every figure of a device is an array [1, g], every quantity of works of one size type an array [n, 1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from gpu_specs import Device, clocked
from onnxperf.latency.constants import Constants
from onnxperf.latency.terms import Array, rows_of
from op_models import BITS, Steps, Work
from op_models.core import VECTOR_PIPES

Sizes = list[list[int]]
COUNTS = tuple(kind for kind in Steps._fields if kind != "unknown")

#: 8-bit FLOPs that the tensor cores of an SM can do in a clock, by compute capability, where some cards are held to a
#: part of that: H20 has H100's tensor cores at a quarter of their rate (NVIDIA, H100 architecture white paper), L20 and
#: L40 have those of L40S and A10G those of A10 at half of theirs (the rates of their data sheets by SM and clock).
BUILT = {(8, 6): 2048, (8, 9): 2048, (9, 0): 8192}

#: Where a card lacks a pipe, its work runs on this one. FP16 products accumulate in FP32: without tensor cores they run
#: at FP32's rate, even where vector FP16 is twice as fast (P100: DeepBench's products with FP16 inputs).
FALLBACK = {
    "fp64": "fp32", "fp16": "fp32", "tensor_tf32": "fp32",
    "tensor_bf16": "fp32", "tensor_fp16": "fp32", "tensor_fp8": "tensor_fp16",
    "tensor_int8": "int8", "int8": "tensor_fp16", "tensor_int4": "tensor_int8", "tensor_fp4": "tensor_fp8",
}  # fmt: skip

#: FP16 products that a library sums in FP16 as well (cublasHgemm), with and without kernels for tensor cores, by the
#: pipes that can do them, the first that a card has. On CUDA cores they run at FP16's own rate, however slow: twice
#: FP32's at compute capability 6.0, 1/64 of it at 6.1 (CUDA C++ Programming Guide, arithmetic throughput).
SUMMED_IN_FP16 = {"tensor_fp16_sums": ("tensor_fp16", "fp16", "fp32"), "fp16_sums": ("fp16", "fp32")}


CLEARLY = 1.5  # times a rate, beyond what datasheets round
#: FP16 products of which either sums will do: an engine's builder takes the fastest that a card has.
EITHER_SUMS = "tensor_fp16_either"


def pipe_on(device: Device, pipe: str) -> str:
    """The pipe that does a pipe's work on this card; where FP16 is slower than FP32, FP32 does what is not summed in
    FP16.
    """
    if pipe in SUMMED_IN_FP16:
        return next(p for p in SUMMED_IN_FP16[pipe] if p in device.dense_flops)
    if pipe == EITHER_SUMS and "tensor_fp16" not in device.dense_flops:
        return max((p for p in ("fp32", "fp16") if p in device.dense_flops), key=device.dense_flops.__getitem__)
    pipe = "tensor_fp16" if pipe == EITHER_SUMS else pipe
    while pipe not in device.dense_flops and pipe in FALLBACK:
        pipe = FALLBACK[pipe]
    if pipe == "fp16" and device.dense_flops["fp16"] < device.dense_flops["fp32"]:
        return "fp32"
    return pipe


def rate_on(device: Device, pipe: str) -> float:
    """FLOP/s of the pipe that does a pipe's work on this card.

    Tensor cores that sum in FP16 do half as many FLOPs as in INT8. GeForce cards reach this rate only so: summing in
    FP32 takes them twice as long (the cards' own notes).
    """
    rate = device.dense_flops[pipe_on(device, pipe)]
    if pipe in ("tensor_fp16_sums", EITHER_SUMS) and "tensor_fp16" in device.dense_flops:
        half = device.dense_flops.get("tensor_int8", 0.0) / 2
        return half if half > CLEARLY * rate else rate
    return rate


def streaming(device: Device, dram: Mapping[str, Any]) -> float:
    """The share of the datasheet's DRAM bandwidth that plain copies reach.

    dram: the constants of that name. `early` is for cards up to Pascal, for GDDR on Turing, and where ECC takes part of
    the bandwidth; `late` for HBM from Volta on and all other memory from Ampere on; `shared` for LPDDR. Kinds of memory
    whose measured copies differ from these have a factor of their own (`own`).
    """
    major, kind = device.capability[0], device.memory_kind
    late = (major >= 8 or (major == 7 and kind.startswith("HBM"))) and not device.inline_ecc
    share = dram["shared"] if kind.startswith("LPDDR") else dram["late" if late else "early"]
    return min(float(share * dram["own"].get(f"{kind} cc{major}", 1.0)), 1.0)


def reading(device: Device, dram: Mapping[str, Any]) -> float:
    """The factor on the share of the datasheet's bandwidth at which products and attention read: GDDR that no bits of
    ECC pass reads at more of it than HBM, or GDDR with them.
    """
    return float(dram["read_gddr"]) if device.memory_kind.startswith("GDDR") and not device.inline_ecc else 1.0


def nearest(table: Mapping[str, Sizes], capability: tuple[int, int]) -> Sizes:
    """The entry for a compute capability of a table by capability ("cc75"), such as the tiles that a library has there.

    Without one: that of the nearest capability of the same generation, else of the nearest earlier one, else of the
    nearest.
    """
    wanted = 10 * capability[0] + capability[1]
    versions = sorted(int(name[2:]) for name, sizes in table.items() if sizes)
    generation = [v for v in versions if v // 10 == capability[0]]
    candidates = generation or [v for v in versions if v < wanted] or versions
    return table[f"cc{min(candidates, key=lambda v: (abs(v - wanted), v))}"]


def at_own_clock(device: Device, constants: Constants) -> Device:
    """The card at its clock without power and heat limits, which on desktop boards is above the published boost."""
    factor = constants.clock["beyond_boost"] if device.exceeds_boost else 1.0
    return clocked(device, factor, factor) if factor != 1 else device


class Cards:
    """The figures of g devices of one kind as arrays [1, g] in SI units, with the constants of estimates on them.

    compute, memory, launch, power: factors on these terms, from calibration on this device. l2_near: bytes of one
    partition of L2. dram: the share of `bandwidth` that copies reach; read_Bps: `bandwidth`, times a factor for kinds
    of memory that are read at a larger share of it. l2_Bps: L2's peak rate to all SMs together; l2_share: the share of
    it that streaming kernels reach. schedulers: warp schedulers an SM; issue: thread instructions a second. major: of
    the compute capability. start_s: the start and drain of a kernel.

    Raises ValueError where cards and processors are mixed: their models differ.
    """

    def __init__(self, devices: Sequence[Device], constants: Constants):
        def column(values: Sequence[float]) -> Array:
            return np.array([values], dtype=float)

        kinds = {d.kind for d in devices}
        if len(kinds) > 1:
            raise ValueError("cards and processors can't be columns of one estimate: their models differ")
        devices = [at_own_clock(d, constants) for d in devices]
        self.devices, self.constants = tuple(devices), constants
        self.kind = kinds.pop() if kinds else "gpu"
        self.sms = column([d.sms for d in devices])
        self.threads = column([d.threads_per_sm for d in devices])
        self.lanes = column([d.lanes for d in devices])
        self.hz = column([d.boost_hz for d in devices])
        self.tensor_hz = column([d.tensor_hz for d in devices])
        self.bandwidth = column([d.bandwidth_Bps for d in devices])
        self.l2 = column([d.l2_bytes for d in devices])
        self.l2_near = column([d.l2_bytes / d.l2_partitions for d in devices])
        self.l3 = column([d.l3_bytes for d in devices])
        self.node_nm = column([d.node_nm for d in devices])
        self.tdp = column([d.tdp_W for d in devices])
        self.pcie = column([d.pcie_Bps for d in devices])
        self.major = np.array([d.capability[0] for d in devices])[None, :]
        self.compute = column([d.corrections.compute for d in devices])
        self.memory = column([d.corrections.memory for d in devices])
        self.launch = column([d.corrections.launch for d in devices])
        self.power = column([d.corrections.power for d in devices])
        self.schedulers = column([2 if d.capability == (6, 0) else 4 for d in devices])
        self.issue = self.sms * self.schedulers * 32 * self.hz
        start = constants.pointwise["start"]
        self.start_s = column([start["early" if d.capability < (8, 0) else "late"] for d in devices])
        self.dram = column([streaming(d, constants.dram) for d in devices])
        self.read_Bps = column([d.bandwidth_Bps * reading(d, constants.dram) for d in devices])
        self.l2_Bps = self.sms * constants.l2["bytes_per_clock"] * self.hz
        late_gddr = [d.memory_kind.startswith("GDDR") and d.capability[0] >= 8 for d in devices]
        self.l2_share = constants.l2["achieved"] * np.where([late_gddr], constants.l2["gddr"], 1.0)
        self.l2_stream_Bps = self.l2_Bps * self.l2_share
        self.hbm = np.array([d.memory_kind.startswith("HBM") for d in devices])[None, :]
        self._rates: dict[str, list[float]] = {}

    def only(self, at: Sequence[int]) -> Cards:
        """Some of the devices, in this order."""
        changed = copy(self)
        changed.devices, changed._rates = tuple(self.devices[j] for j in at), {}
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray):
                setattr(changed, name, values[:, at])
        return changed

    def alike(self, pipes: Sequence[str]) -> list[list[int]]:
        """The indices of devices that do the work of the same of these pipes on tensor cores."""
        groups: dict[tuple[bool, ...], list[int]] = {}
        for j, on_tensor in enumerate(self.tensor(sorted(set(pipes))).T.tolist()):
            groups.setdefault(tuple(on_tensor), []).append(j)
        return list(groups.values())

    def having(self, values: Mapping[str, Any]) -> Cards:
        """The same devices with other constants at dotted paths; arrays made from the old ones stay as they are."""
        changed = copy(self)
        changed.constants = self.constants.having(values)
        return changed

    def rate(self, pipes: Sequence[str]) -> Array:
        """FLOP/s of each kernel's pipe on each card, [n, g]."""
        for p in set(pipes) - self._rates.keys():
            self._rates[p] = [rate_on(d, p) for d in self.devices]
        return rows_of(self._rates, pipes, len(self.devices)).astype(float)

    def nearest(self, table: Mapping[str, Sizes]) -> list[Sizes]:
        """The entry for each card of a table by capability, as `nearest` has it."""
        entries = {c: nearest(table, c) for c in {d.capability for d in self.devices}}
        return [entries[d.capability] for d in self.devices]

    def whole_rate(self, pipes: Sequence[str]) -> Array:
        """FLOP/s [n, g] of each kernel's pipe at the full rate of the hardware.

        GeForce cards are held to half of it where they accumulate in FP32, other cards to a part of it (`BUILT`).
        It follows from INT8, which GeForce cards run at the full rate: FP16 and BF16 do half of that, TF32 a quarter.
        """
        share = {"tensor_fp8": 1.0, "tensor_fp16": 0.5, "tensor_bf16": 0.5, "tensor_tf32": 0.25}
        integers = np.array([[d.dense_flops.get("tensor_int8", 0.0) for d in self.devices]])
        built = np.array([[BUILT.get(d.capability, 0) * d.sms * d.tensor_hz for d in self.devices]])
        whole = np.where(integers < 0.75 * built, built, integers) * np.array(
            [[share.get(p.removesuffix("_sums").removesuffix("_either"), 0.0)] for p in pipes]
        )
        return np.asarray(np.maximum(self.rate(pipes), whole))

    def tensor(self, pipes: Sequence[str]) -> Array:
        """Whether a kernel's pipe is a tensor core on each card, [n, g]."""
        rows = {p: [pipe_on(d, p).startswith("tensor_") for d in self.devices] for p in set(pipes)}
        return rows_of(rows, pipes, len(self.devices)).astype(bool)

    def tensor_class(self) -> list[str]:
        """The instructions that drive each card's tensor cores: wgmma, tcgen05, or mma.sync, which has a class each for
        SMs of 64 lanes, of 128 lanes, and of Blackwell workstation cards (compute capability 12).
        """
        kinds = {(9, 0): "wgmma", (10, 0): "tcgen05", (10, 3): "tcgen05", (11, 0): "tcgen05"}
        kinds |= {(12, 0): "mma_120", (12, 1): "mma_120"}
        return [kinds.get(d.capability, "mma_128" if d.lanes >= 128 else "mma") for d in self.devices]


class Works:
    """n works of one size type: every quantity is a column [n, 1], and the rates of their pipes on g devices [n, g].

    each: the works themselves; read, written, weights, bytes: bytes; width: bytes of an element, at least 0.5; matrix,
    vector: FLOPs; executed: matrix FLOPs without those that a causal mask skips; rate, vector_rate: FLOP/s of the pipes
    for these. The numbers of the size type are columns under their names: `works["rows"]`. layers: what the method
    reads of each kernel beside its work (`Method.layer`).
    """

    def __init__(self, works: Sequence[Work], cards: Cards, layers: Sequence[Any] = ()):
        def column(values: Sequence[float]) -> Array:
            return np.array(values, dtype=float)[:, None]

        self.each = tuple(works)
        self.layers = tuple(layers) or (None,) * len(self.each)
        self.read = column([w.bytes_read for w in works])
        self.written = column([w.bytes_written for w in works])
        self.weights = column([w.weight_bytes for w in works])
        self.matrix = column([w.matrix_flops for w in works])
        self.vector = column([w.vector_flops for w in works])
        self.bytes = self.read + self.written
        self.width = column([max(BITS[w.dtype] / 8, 0.5) for w in works])
        self.pipes = [w.pipe for w in works]
        self.rate = cards.rate(self.pipes)
        self.vector_rate = cards.rate([VECTOR_PIPES.get(w.dtype, "fp32") for w in works])
        size = works[0].size
        self.fields = {
            name: column([float(getattr(w.size, name)) for w in works])
            for name in size._fields
            if not isinstance(getattr(size, name), str)
        }
        self.executed = self.matrix
        if "causal" in self.fields:
            queries, keys = self["queries"], np.maximum(self["keys"], 1)
            masked = np.clip((np.minimum(queries, keys) - 1) / (2 * keys), 0, 0.5)
            self.executed = self.matrix * (1 - self["causal"] * masked)

    @cached_property
    def steps(self) -> Mapping[str, Array]:
        """What a processor does one after another, by kind, each a column."""
        return {kind: np.array([[float(getattr(w.steps, kind))] for w in self.each]) for kind in COUNTS}

    def on(self, pipes: Sequence[str], cards: Cards) -> Works:
        """The same works on other pipes."""
        changed = copy(self)
        changed.pipes, changed.rate = list(pipes), cards.rate(pipes)
        return changed

    def __getitem__(self, field: str) -> Array:
        if field not in self.fields:
            size = type(self.each[0].size).__name__
            raise KeyError(f"the size {size} has no field {field!r}: it has {', '.join(self.fields)}")
        return self.fields[field]
