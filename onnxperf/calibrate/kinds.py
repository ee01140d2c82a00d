"""The two kinds of device, and how each is calibrated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gpu_specs
from gpu_specs import Device
from onnxperf.calibrate.suite import Case, cpu_suite, gpu_suite
from onnxperf.calibrate.this_processor import this_cpu
from onnxperf.measure.environment import card_of, processor
from onnxperf.measure.record import Place

CATALOGUE, NOMINAL = "catalogue", "nominal figures"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of device is calibrated.

    figures: where those come from that it has before, CATALOGUE or NOMINAL; find: the device of a place with these
    figures, None where there are none; provider: which its measurements run under; file: the name of its device file;
    suite: what is measured on it; one_by_one: whether each profiled operator is a row of the fit, or each run.

    spreads: standard deviations of the logarithms of the corrections, DRAM being the bandwidth and L3 what a core has
    of the cache that it shares: cards are known by their datasheets, processors by flags. shrink: for how many rows the
    prior of an operator type's factor counts.
    """

    figures: str
    find: Callable[[Place], Device | None]
    provider: str
    file: str
    suite: Callable[[Device], tuple[Case, ...]]
    one_by_one: bool
    spreads: Mapping[str, float]
    shrink: float


def _card(place: Place) -> Device | None:
    """The card of that name in the catalogue."""
    id = card_of(place)
    return gpu_specs.load(id) if id else None


def _processor(place: Place) -> Device | None:
    """This machine's processor, where it has the place's name."""
    return this_cpu() if place.name == processor().name else None


#: By `Device.kind`.
KINDS = {
    "gpu": Kind(
        CATALOGUE, _card, "cuda", "{id}-here.toml", gpu_suite, one_by_one=False, shrink=2.0,
        spreads={"compute": 0.12, "memory": 0.08, "launch": 0.3, "host": 0.4, "power": 0.2},
    ),
    "cpu": Kind(
        NOMINAL, _processor, "cpu", "this-cpu.toml", lambda device: cpu_suite(), one_by_one=True, shrink=0.2,
        spreads={"compute": 0.7, "memory": 0.7, "host": 0.7, "DRAM": 0.7, "L3": 0.7},
    ),
}  # fmt: skip
