"""The kernel families, one module each: whatever module here has a `FAMILY` is one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from onnxperf.latency.family import KernelFamily
from op_models import Work


def _found() -> dict[type, KernelFamily]:
    modules = [import_module(f"{__name__}.{m.name}") for m in iter_modules(__path__)]
    return {m.FAMILY.size: m.FAMILY for m in modules}


#: By size type.
FAMILIES = _found()


def family_of(w: Work) -> KernelFamily:
    """The family of a work, by the type of its size."""
    return FAMILIES[type(w.size)]
