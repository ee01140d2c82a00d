"""What a kernel family declares: everything that is known of kernels of one size type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.constants import Constants, ConstantSet
from onnxperf.latency.terms import Array, KernelTerms
from op_models import Work

#: A latency model: from works, devices, constants, and [n, g] what the device does with the run's weights, to the terms
#: of every work [n] on every device [g]. Of a card, the last one is the share of the weights that is found in DRAM
#: rather than in L2; of a processor, the seconds that a byte of them takes to arrive.
Model = Callable[[Works, Cards, Constants, Array], KernelTerms]
#: The error class of what nobody measured: its ranges are assumed, and wide.
UNMEASURED = "unknown"


def _sizes(size: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in size._asdict().items())


def _unmeasured(work: Work, on_tensor: bool) -> str:
    return UNMEASURED


def _all_flops(works: Works, cards: Cards) -> Array:
    return np.ones((1, 1))


@dataclass(frozen=True, slots=True)
class KernelFamily:
    """Kernels of one size type: how long they take, what of that is fitted, and how errors are grouped and told.

    size: the type of `Work.size` that belongs to the family, a NamedTuple. card, processor: the latency models.
    error_class: the name of the group of kernels whose errors are of one kind, from a work and whether it runs on
    tensor cores; the constants have its ranges, `interval.<name>`. formula: the FLOPs of products with a work's sizes
    put in. layer: the fields of the size that identify a layer whatever the batch, the image or the sequence.
    fewest_flops: the share [n, g] of a work's FLOPs below which no algorithm goes. constants: what of the card's model
    is derived from measured kernels.
    """

    size: type
    card: Model
    processor: Model
    error_class: Callable[[Work, bool], str] = _unmeasured
    formula: Callable[[Any], str] = _sizes
    layer: tuple[str, ...] = ()
    fewest_flops: Callable[[Works, Cards], Array] = _all_flops
    constants: tuple[ConstantSet, ...] = ()
