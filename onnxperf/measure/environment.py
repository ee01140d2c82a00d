"""What a measurement runs on: the device and its sensors, the libraries that are installed, the memory that is free."""

from __future__ import annotations

import os
import platform
import re
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpu_specs
from onnxperf.errors import EnvironmentFailure, printable
from onnxperf.measure.clocks import check
from onnxperf.measure.record import Place, Reading

ELSE = "--provider cpu measures on the processor"
INSTALL = "pip install 'onnxperf[measure]'"


def usable_provider() -> str:
    """The provider to take by default: "cuda" where there is a CUDA device that ONNX Runtime can use, else "cpu"."""
    spec = find_spec("onnxruntime")
    folders = spec.submodule_search_locations if spec is not None else None
    if not any(any(Path(f).glob("capi/*onnxruntime_providers_cuda*")) for f in folders or ()):
        return "cpu"
    try:
        require_device(cuda_runtime())
    except EnvironmentFailure:
        return "cpu"
    return "cuda"


def cuda_runtime() -> Any:
    """`cuda.bindings.runtime`; EnvironmentFailure where it is not installed."""
    try:
        from cuda.bindings import runtime
    except ImportError as e:
        raise EnvironmentFailure(f"timing a GPU needs cuda-bindings ({e}): {INSTALL}") from None
    return runtime


def onnx_runtime() -> Any:
    """`onnxruntime`; EnvironmentFailure where it is not installed."""
    try:
        import onnxruntime
    except ImportError as e:
        raise EnvironmentFailure(f"measuring needs ONNX Runtime ({printable(str(e))}): {INSTALL}") from None
    return onnxruntime


def nvml() -> Any:
    """`pynvml`, initialised; None where the library or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no module, no library, no driver, no right to use it
        return None
    return pynvml


def processor() -> Place:
    """The CPU of this machine, one thread of which takes part."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        found = re.search(r"^model name\s*: *(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
        name = found[1].strip() if found else name
    memory = 0
    with suppress(AttributeError, ValueError, OSError):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Place("cpu", catalogued(name), name, memory, threads=1)


def require_device(rt: Any) -> None:
    """Raise EnvironmentFailure where there is no CUDA device."""
    if not check(rt, rt.cudaDriverGetVersion()):
        raise EnvironmentFailure(f"there is no NVIDIA driver here, and so no CUDA device; {ELSE}")
    error, count = rt.cudaGetDeviceCount()
    if error or not count:
        why = rt.cudaGetErrorString(error)[1].decode(errors="replace")
        raise EnvironmentFailure(f"there is no CUDA device that can be used here ({why}); {ELSE}")


def graphics(rt: Any, sensors: Sensors) -> Place:
    """The first CUDA device."""
    properties = check(rt, rt.cudaGetDeviceProperties(0))
    name = text(properties.name)
    version = check(rt, rt.cudaDriverGetVersion())
    driver = sensors.driver() or f"CUDA {version // 1000}.{version % 1000 // 10}"
    return Place("gpu", catalogued(name), name, int(properties.totalGlobalMem), driver=driver)


def text(name: bytes) -> str:
    """The text in a buffer of C, which ends at its first zero."""
    return name.split(b"\0")[0].decode(errors="replace")


def catalogued(name: str) -> str:
    """The id of the device with this name in the catalogue of `gpu_specs`, "" where it has none."""
    try:
        return "" if "/" in name or name.endswith(".toml") else gpu_specs.resolve(name)[0]
    except gpu_specs.SpecError:
        return ""


def card_of(place: Place) -> str:
    """The id in the catalogue of the card that a measurement was taken on, "" where it has none.

    The place may come from a stranger's file: what it says is looked up in the catalogue, never opened as a file.
    """
    return place.id if place.id in gpu_specs.ids() else catalogued(place.name)


def free_bytes() -> int | None:
    """Memory that is free to use, or None where the system does not say."""
    with suppress(OSError):
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else None
    return None


class Sensors:
    """The sensors of a GPU, which are read and never set. nvml: `pynvml`, or None; bus: the GPU's PCI bus id."""

    def __init__(self, nvml: Any, bus: str):
        self.nvml, self.handle = nvml, None
        self.since = time.perf_counter()
        if nvml is not None:
            with suppress(nvml.NVMLError):
                self.handle = nvml.nvmlDeviceGetHandleByPciBusId(bus.encode())

    def driver(self) -> str:
        """The driver's version, "" where NVML does not tell."""
        if self.nvml is not None:
            with suppress(self.nvml.NVMLError):
                return str(self.nvml.nvmlSystemGetDriverVersion())
        return ""

    def clock(self) -> float | None:
        """The clock of the multiprocessors in MHz."""
        return self._ask("nvmlDeviceGetClockInfo", 1)

    def read(self) -> tuple[Reading, ...]:
        """One reading, or none without NVML; its time counts from `self.since`."""
        if self.handle is None:
            return ()
        power = self._ask("nvmlDeviceGetPowerUsage")
        reading = Reading(
            at_s=time.perf_counter() - self.since,
            clock_MHz=self.clock(),
            memory_MHz=self._ask("nvmlDeviceGetClockInfo", 2),
            power_W=None if power is None else power / 1000,
            temperature_C=self._ask("nvmlDeviceGetTemperature", 0),
        )
        return (reading,)

    def _ask(self, what: str, *about: int) -> float | None:
        if self.handle is None:
            return None
        try:
            return float(getattr(self.nvml, what)(self.handle, *about))
        except self.nvml.NVMLError:
            return None
