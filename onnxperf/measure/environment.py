"""What a measurement finds here: the devices, the libraries that are installed, the memory that is free."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpu_specs
from onnxperf.ground.errors import EnvironmentFailure, printable
from onnxperf.measure.record import Place

ELSE = "--provider cpu measures on the CPU"
#: Distributions that bring the same module.
RUNTIMES = (
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-qnn",
    "onnxruntime-training", "onnxruntime-silicon",
)  # fmt: skip
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


def overlapping() -> str:
    """What is wrong where several distributions of ONNX Runtime are installed, "" where there is one."""
    installed = []
    for name in RUNTIMES:
        with suppress(PackageNotFoundError):
            installed.append(f"{name} {version(name)}")
    if len(installed) < 2:
        return ""
    return (
        f"{printable(' and '.join(installed))} are both installed and overwrite each other's files:"
        " uninstall all of them, then install one"
    )


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
        match = re.search(r"^model name\s*: *(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
        name = match[1].strip() if match else name
    memory = 0
    with suppress(AttributeError, ValueError, OSError):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Place("cpu", catalogued(name), name, memory, threads=1)


def require_device(rt: Any) -> None:
    """Raise EnvironmentFailure where there is no CUDA device."""
    if not check(rt, rt.cudaDriverGetVersion()):
        raise EnvironmentFailure(f"there is no NVIDIA driver, so no CUDA device; {ELSE}")
    error, count = rt.cudaGetDeviceCount()
    if error or not count:
        why = rt.cudaGetErrorString(error)[1].decode(errors="replace")
        raise EnvironmentFailure(f"no CUDA device is usable ({why}); {ELSE}")


def graphics(rt: Any, driver: str = "") -> Place:
    """The first CUDA device. driver: its version, "" where only CUDA's is known."""
    properties = check(rt, rt.cudaGetDeviceProperties(0))
    name = text(properties.name)
    version = check(rt, rt.cudaDriverGetVersion())
    driver = driver or f"CUDA {version // 1000}.{version % 1000 // 10}"
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
        match = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        return int(match[1]) * 1024 if match else None
    return None


def check(rt: Any, result: tuple[Any, ...]) -> Any:
    """The value that a call of the CUDA runtime returns beside its status. Raises EnvironmentFailure for an error."""
    error, *values = result
    if error:
        reason = rt.cudaGetErrorString(error)[1]
        raise EnvironmentFailure(f"CUDA fails: {reason.decode(errors='replace')} ({int(error)})")
    return values[0] if values else None
