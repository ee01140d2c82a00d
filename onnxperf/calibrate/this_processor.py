"""This machine's processor by what it says of itself: a device to start from, before anything was measured on it."""

from __future__ import annotations

import math
import platform
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_specs import Device, Rates, Source
from onnxperf.measure.environment import processor
from onnxperf.measure.record import Place

AVX2 = ("fma", "AVX2", 32)
CORE = Path("/sys/devices/system/cpu/cpu0")
#: FLOPs a clock and core in FP32 by the widest instructions a processor names, widest first: two units of multiply-adds
#: with 16, 8 and 4 lanes; no more than four lanes twice are taken for granted elsewhere.
UNITS = (("avx512f", "AVX-512", 64), AVX2, ("asimd", "NEON", 16), ("neon", "NEON", 16))
#: 8-bit operations for each FLOP in FP32 by the instructions that multiply and sum four products at once or whole
#: tiles, fastest first; two elsewhere, by multiply-adds of 16 bits.
INTEGER_UNITS = (
    ("amx_int8", "AMX", 32), ("i8mm", "I8MM", 8), ("avx512_vnni", "VNNI", 4), ("avx_vnni", "VNNI", 4),
    ("asimddp", "dot products", 4),
)  # fmt: skip
PLAIN_INTEGERS = ("no 8-bit dot products", 2)
PLAIN = ("no known vector unit", 8)
ASSUMED_HZ = 3e9
ASSUMED_L2 = 2**20
ASSUMED_MEMORY = 8 * 2**30
ASSUMED_BANDWIDTH = 10e9  # bytes/s that one core streams


@dataclass(frozen=True, slots=True)
class Described:
    """What the operating system tells of a processor; None where it tells nothing.

    flops_per_clock: of one core; integers: 8-bit operations for each of these, by `integer_units`.
    """

    units: str
    flops_per_clock: int
    hz: float | None
    l2_bytes: int | None
    l3_bytes: int | None
    integer_units: str = PLAIN_INTEGERS[0]
    integers: int = PLAIN_INTEGERS[1]


def this_cpu() -> Device:
    """One core of the processor that this runs on, with nominal figures; what nothing tells is assumed, and says so."""
    place = processor()
    machine = platform.machine() or "unknown"
    return device(place.name or machine, machine, described(_texts(), machine), place.memory_bytes)


def elsewhere(place: Place) -> Device:
    """One core of a processor on another machine, of which no more is known than its name and memory."""
    _, units, flops = AVX2
    description = replace(described({"cpuinfo": place.name}, ""), units=units, flops_per_clock=flops)
    return device(place.name or "unknown", "unknown", description, place.memory_bytes)


def described(texts: dict[str, str], machine: str) -> Described:
    """What /proc/cpuinfo ("cpuinfo") and files of sysfs ("max_freq" in kHz, "l2", "l3") say; any may be missing."""
    info = texts.get("cpuinfo", "")
    flags = re.search(r"^(?:flags|Features)\s*: *(.*)$", info, re.MULTILINE)
    arm = {"asimd"} if re.match("arm64|aarch64", machine, re.IGNORECASE) else set()
    words = set(flags[1].split()) if flags else arm
    units, per_clock = next(((name, n) for flag, name, n in UNITS if flag in words), PLAIN)
    eight = next(((name, n) for flag, name, n in INTEGER_UNITS if flag in words), PLAIN_INTEGERS)
    clocks = [
        _number(r"^(\d+)$", texts.get("max_freq", ""), 1e3),
        _number(r"@ *([\d.]+) *GHz", info, 1e9),
        _number(r"^cpu MHz\s*: *([\d.]+)$", info, 1e6),
    ]
    hz = next((hz for hz in clocks if hz), None)
    return Described(units, per_clock, hz, _size(texts.get("l2", "")), _size(texts.get("l3", "")), *eight)


def device(name: str, machine: str, description: Described, memory_bytes: int) -> Device:
    """The device of a description."""
    hz, l3 = description.hz or ASSUMED_HZ, description.l3_bytes or 0
    fp32 = description.flops_per_clock * hz
    sources = [
        Source("seen", "the operating system, this machine's CPU", ("architecture",)),
        _source(description.hz, "the operating system, highest clock listed", "clock", ("boost_hz",)),
        _source(description.l2_bytes, "sysfs, L2 cache of the first core", "size of the cache", ("l2_bytes",)),
        _source(memory_bytes, "the operating system, physical memory", "size of memory", ("capacity_bytes",)),
        *([Source("seen", "sysfs, L3 cache shared by the first core", ("l3_bytes",))] if l3 else []),
        Source(
            "unverified",
            f"assumed: one core, {description.flops_per_clock} FLOPs per cycle with {description.units},"
            f" {description.integers} times as many in 8 bits with {description.integer_units}, a bandwidth of"
            f" {ASSUMED_BANDWIDTH / 1e9:.0f} GB/s",
            ("sms", "lanes", "memory_kind", "bandwidth_Bps", "fp32", "tensor_int8"),
        ),
    ]
    return Device(
        id="this-cpu", name=name, kind="cpu", architecture=f"{machine}, {description.units}", capability=(0, 0),
        node_nm=0.0, sms=1, lanes=description.flops_per_clock // 2, base_hz=None, boost_hz=hz, tensor_hz=hz,
        memory_kind="DRAM", bandwidth_Bps=ASSUMED_BANDWIDTH, capacity_bytes=memory_bytes or ASSUMED_MEMORY,
        l2_bytes=description.l2_bytes or ASSUMED_L2, l2_partitions=1, smem_bytes=0, threads_per_sm=1, tdp_W=math.inf,
        dense_flops=Rates((("fp32", fp32), ("tensor_int8", description.integers * fp32))), pcie_Bps=0.0, l3_bytes=l3,
        sources=tuple(sources),
    )  # fmt: skip


def _source(told: float | None, seen: str, what: str, facts: tuple[str, ...]) -> Source:
    return Source("seen", seen, facts) if told else Source("unverified", f"assumed: no source for the {what}", facts)


def _number(pattern: str, text: str, unit: float) -> float | None:
    """The largest number of that pattern, times its unit."""
    numbers = [
        float(x) * unit for x in re.findall(pattern, text.strip(), re.MULTILINE) if re.fullmatch(r"\d+\.?\d*", x)
    ]
    return max(numbers, default=None)


def _size(text: str) -> int | None:
    """Bytes of a cache as sysfs writes them."""
    size = re.fullmatch(r"(\d{1,9})([KM]?)", text.strip())
    return int(size[1]) * {"": 1, "K": 2**10, "M": 2**20}[size[2]] or None if size else None


def _texts() -> dict[str, str]:
    paths = {"cpuinfo": Path("/proc/cpuinfo"), "max_freq": CORE / "cpufreq/cpuinfo_max_freq"}
    for index in sorted(CORE.glob("cache/index*")):
        with suppress(OSError):
            paths[f"l{(index / 'level').read_text().strip()}"] = index / "size"
    texts = {}
    for key, path in paths.items():
        with suppress(OSError):
            texts[key] = path.read_text(errors="replace")
    return texts
