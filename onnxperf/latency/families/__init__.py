"""The kernel families, one module each: whatever module here has a `FAMILY` is one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from onnxperf.latency.family import KernelFamily
from op_models import Work


def declared() -> dict[type, KernelFamily]:
    """The families that the modules of this package declare, by size type."""
    modules = [import_module(f"{__name__}.{m.name}") for m in iter_modules(__path__)]
    return {m.FAMILY.size: m.FAMILY for m in modules if hasattr(m, "FAMILY")}


#: By size type.
FAMILIES = declared()


def family_of(w: Work) -> KernelFamily:
    """The family of a work, by the type of its size."""
    return FAMILIES[type(w.size)]
