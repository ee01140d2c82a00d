"""What a kernel family declares: everything that is known of kernels of one size type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxperf.latency.cards import Cards
from onnxperf.latency.constants import Constants
from onnxperf.latency.terms import Array, KernelTerms
from onnxperf.latency.works import Works
from op_models import Work

#: Works, devices, constants, and [n, g] of the run's weights: for a card the share that is found in DRAM rather than in
#: L2, for a processor the seconds that a byte takes to arrive.
Model = Callable[[Works, Cards, Constants, Array], KernelTerms]


def _sizes(size: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in size._asdict().items())


def _all_flops(works: Works, cards: Cards) -> Array:
    return np.ones((1, 1))


@dataclass(frozen=True, slots=True)
class KernelFamily:
    """Kernels of one size type: how long they take, how their errors are grouped, and how they are described.

    size: the size type of `op_models` that belongs to the family. card, processor: the latency models. error_class:
    the group of kernels whose errors are of one kind, from a work and whether it runs on tensor cores. formula: the
    FLOPs of products with a work's sizes put in. layer: the fields of the size that identify a layer whatever the
    batch, the image or the sequence. fewest_flops: the share [n, g] of a work's FLOPs below which no algorithm goes.
    """

    size: type
    card: Model
    processor: Model
    error_class: Callable[[Work, bool], str]
    formula: Callable[[Any], str] = _sizes
    layer: tuple[str, ...] = ()
    fewest_flops: Callable[[Works, Cards], Array] = _all_flops
