"""The runtimes, one module each: whatever module here has a `RUNTIME` is one.

A module is called as its runtime is, with _ for -, so that the names are known before anything is loaded.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from onnxperf.fusions.engine import LEVELS
from onnxperf.fusions.ort_attention import WITHIN
from onnxperf.fusions.placement import FLOW
from onnxperf.hosts import HOSTS, Host
from onnxperf.runtime import HostCosts, Policy, Runtime, of_version, run_graph


def _found() -> dict[str, Runtime]:
    modules = [import_module(f"{__name__}.{m.name}") for m in iter_modules(__path__)]
    return {m.RUNTIME.name: m.RUNTIME for m in modules}


#: By name.
RUNTIMES = _found()

__all__ = [
    "FLOW", "HOSTS", "LEVELS", "RUNTIMES", "WITHIN", "Host", "HostCosts", "Policy", "Runtime", "of_version",
    "run_graph",
]  # fmt: skip
