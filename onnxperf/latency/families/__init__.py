"""The kernel families, one module each: whatever module here has a `FAMILY` is one."""

from __future__ import annotations

import inspect

from onnxperf.ground.errors import Error
from onnxperf.ground.modules import offered
from onnxperf.latency.constants import ConstantSet
from onnxperf.latency.family import KernelFamily
from op_models import Work


def declared() -> dict[type, KernelFamily]:
    """The families that the modules of this package declare, by size type; Error where two have the same."""
    by_size: dict[type, KernelFamily] = {}
    for family in offered(__name__, __path__, "FAMILY", KernelFamily):
        if by_size.setdefault(family.size, family) is not family:
            files = " and ".join(inspect.getfile(f.card) for f in (by_size[family.size], family))
            raise Error(f"{files} both have a FAMILY for the size {family.size.__name__}: a size has one")
    return by_size


#: By size type.
FAMILIES = declared()


def family_of(w: Work) -> KernelFamily:
    """The family of a work, by the type of its size. Raises Error where no module has a family for it."""
    if (family := FAMILIES.get(type(w.size))) is None:
        raise Error(f"no module of {__name__} has a FAMILY for the size {type(w.size).__name__}")
    return family


def constant_sets() -> dict[str, ConstantSet]:
    """The sets of constants that the families declare, by name, each behind those that it is derived after.

    Raises Error where two of them have one name.
    """
    sets: dict[str, ConstantSet] = {}

    def add(constants: ConstantSet) -> None:
        for earlier in constants.after:
            add(earlier)
        if sets.setdefault(constants.name, constants) is not constants:
            raise Error(f"two sets of constants are called {constants.name!r}: they would be written to the same file")

    for family in FAMILIES.values():
        for constants in family.constants:
            add(constants)
    return sets
