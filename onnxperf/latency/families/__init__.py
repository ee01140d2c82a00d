"""The kernel families, one module each: whatever module here has a `FAMILY` is one."""

from __future__ import annotations

from onnxperf.latency.family import KernelFamily
from onnxperf.modules import offered
from op_models import Work


def declared() -> dict[type, KernelFamily]:
    """The families that the modules of this package declare, by size type."""
    return {family.size: family for family in offered(__name__, __path__, "FAMILY", KernelFamily)}


#: By size type.
FAMILIES = declared()


def family_of(w: Work) -> KernelFamily:
    """The family of a work, by the type of its size."""
    return FAMILIES[type(w.size)]
