"""The methods of prediction, one module each: whatever module here has a `METHOD` is one.

A module is called as its method is, with _ for -, so that the names are known before anything is loaded.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from onnxperf.latency import Method


def declared() -> dict[str, Method]:
    """The methods that the modules of this package declare, by name."""
    modules = [import_module(f"{__name__}.{m.name}") for m in iter_modules(__path__)]
    return {m.METHOD.name: m.METHOD for m in modules if hasattr(m, "METHOD")}


#: By name.
METHODS = declared()
