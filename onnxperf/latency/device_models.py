"""What differs in an estimate between a card and a processor: asked for once, by the device's kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnxperf.latency import speed_of_light
from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.family import KernelFamily, Model
from onnxperf.latency.processor import per_weight_byte
from onnxperf.latency.terms import Array, KernelTerms, held_share
from onnxperf.latency.works import Works


@dataclass(frozen=True, slots=True)
class DeviceModels:
    """How kernels are estimated on one kind of device.

    of: picks a family's latency model for it. weights: what that model is told of the weights [n, g], from how many
    bytes of them the run reads [n, 1]. bound: the speed-of-light bound. error_class: that of all works, or "" where
    each family has its own.
    """

    of: Callable[[KernelFamily], Model]
    weights: Callable[[Array, Cards, Constants], Array]
    bound: Callable[[Works, Cards, Constants, Array], KernelTerms]
    error_class: str = ""


def dram_share(stored: Array, cards: Cards, constants: Constants) -> Array:
    """The share of the weights [n, g] that a run of `stored` bytes of them [n, 1] finds in DRAM rather than in L2.

    Weights can fill `hot` of L2's near partition.
    """
    return 1 - held_share(stored, constants.tensor_gemm["hot"] * cards.l2_near, constants.l2["sharpness"])


DEVICE_MODELS = {
    "gpu": DeviceModels(lambda family: family.card, dram_share, speed_of_light.of_card),
    "cpu": DeviceModels(lambda family: family.processor, per_weight_byte, speed_of_light.of_processor, "processor"),
}
