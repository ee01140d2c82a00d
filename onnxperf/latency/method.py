"""What a method of prediction declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.terms import Array, KernelTerms
from onnxperf.latency.works import Works

#: Works of one size type, devices, constants, bytes of weights that their run reads [n, 1], their speed-of-light bound.
Times = Callable[[Works, Cards, Constants, Array, KernelTerms], KernelTerms]


@dataclass(frozen=True, slots=True)
class Method:
    """A way of predicting a run.

    name: as `--method` takes it; describe: what it does, in a sentence; times: how long kernels take.
    error_class: the class of constants.interval that its ranges come from; "" stands for the class of each kernel's
    family, whose ranges were measured for `tile-wave` and for no other method. own_form: what its terms come from,
    where that is not the kernels' families; "" otherwise.
    power_limit: kernels are slowed to the card's power limit; scheduled: kernels are laid out in time, with the
    host, streams and gaps (otherwise they are added up).
    """

    name: str
    describe: str
    times: Times
    error_class: str = ""
    own_form: str = ""
    power_limit: bool = False
    scheduled: bool = False
