"""What a method of prediction declares."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from gpu_specs import Device
from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.family import UNMEASURED, check_takes
from onnxperf.latency.terms import Array, KernelTerms
from onnxperf.lowering.lower import Kernel

#: From works of one size type, devices (with the constants), the bytes of weights that their run reads [n, 1], and the
#: terms of their speed-of-light bound, to the terms of every work [n] on every device [g].
Times = Callable[[Works, Cards, Array, KernelTerms], KernelTerms]
#: The error class of a method whose ranges are those of each kernel's family. They were measured for `tile-wave`, and
#: hold for no other method.
OF_FAMILIES = ""
#: The variant of kernels that a method with terms of its own leaves to the models of their families.
BY_FAMILY = "tile-wave's"


def _nothing(kernel: Kernel) -> None:
    """What a method that goes by a kernel's work reads of it beside that."""


def _no_range(device: Device) -> None:
    """What a method without calibrations knows of its errors on a device."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way of predicting a run.

    name: as `--method` takes it; describe: what it does, in a sentence; times: how long kernels take.
    error_class: its ranges are those that the constants have as `interval.<error_class>`. A method that says nothing
    has ranges that are assumed and wide; one that names a class which the constants lack can't be asked (UsageError).
    own_terms: its terms are not those of the kernels' families: neither constants nor corrections were fitted to them.
    layer: what it reads of a kernel beside its work, None for nothing; `Works.layers` has it. half_width: of its ranges
    on a device, where a calibration for it tells; else those of its error class hold.
    power_limit: kernels are slowed to the card's power limit; scheduled: kernels are laid out in time, with the
    host, streams and gaps (otherwise they are added up).
    """

    name: str
    describe: str
    times: Times
    error_class: str = UNMEASURED
    own_terms: bool = False
    layer: Callable[[Kernel], Hashable] = _nothing
    half_width: Callable[[Device], float | None] = _no_range
    power_limit: bool = False
    scheduled: bool = False

    def __post_init__(self) -> None:
        check_takes(self.times, 4, f"times of the method {self.name!r}")
