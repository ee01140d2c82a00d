"""What a kernel family declares: everything that is known of kernels of one size type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxperf.latency.cards import Cards, Works
from onnxperf.latency.constants import ConstantSet
from onnxperf.latency.terms import Array, KernelTerms
from op_models import Work

#: A latency model: from works, devices (with the constants), and [n, g] what the device does with the run's weights, to
#: the terms of every work [n] on every device [g]. Of a card, the last one is the share of the weights that is found in
#: DRAM rather than in L2; of a processor, the seconds that a byte of them takes to arrive.
Model = Callable[[Works, Cards, Array], KernelTerms]
#: The error class of what nobody measured: its ranges are assumed, and wide.
UNMEASURED = "unknown"


def _sizes(size: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in size._asdict().items())


def _unmeasured(work: Work, on_tensor: bool) -> str:
    return UNMEASURED


def _all_flops(works: Works, cards: Cards) -> Array:
    return np.ones((1, 1))


def _weights(work: Work) -> int:
    return work.weight_bytes


def check_takes(function: object, arguments: int, what: str) -> None:
    """Raise TypeError where `function`, called `what`, is none, or can't be called with so many arguments."""
    if not callable(function):
        raise TypeError(f"{what} must be a function, not {function!r}")
    try:
        inspect.signature(function).bind(*range(arguments))
    except ValueError:  # a function that is not written in Python may not say what it takes
        return
    except TypeError as e:
        raise TypeError(f"{what} is called with {arguments} arguments: {e}") from e


def _nothing_larger(w: Work, times: float) -> list[Work]:
    return []


def _no_link(works: Works, cards: Cards) -> Array:
    return np.zeros((1, 1))


@dataclass(frozen=True, slots=True)
class KernelFamily:
    """Kernels of one size type: how long they take, what of that is fitted, and how errors are grouped and told.

    size: the type of `Work.size` that belongs to the family, a NamedTuple. card, processor: the latency models.
    error_class: the name of the group of kernels whose errors are of one kind, from a work and whether it runs on
    tensor cores; the constants have its ranges, `interval.<name>`. formula: the FLOPs of products with a work's sizes
    put in. layer: the fields of the size that identify a layer whatever the batch, the image or the sequence.
    fewest_flops: the share [n, g] of a work's FLOPs below which no algorithm goes; link_s: the seconds [n, g] for which
    it keeps the link between cards busy at least. constants: what of the card's model is derived from measured kernels.
    batch: the field of the size that grows with the batch, of a family whose workspace depends on a choice.
    shared_bytes: what a work reads whatever that is. larger: the works, up to so many times as large, that a library
    could run instead, padded. monotone: the card's model gives no work less time where more of its weights come from
    DRAM.
    """

    size: type
    card: Model
    processor: Model
    error_class: Callable[[Work, bool], str] = _unmeasured
    formula: Callable[[Any], str] = _sizes
    layer: tuple[str, ...] = ()
    fewest_flops: Callable[[Works, Cards], Array] = _all_flops
    link_s: Callable[[Works, Cards], Array] = _no_link
    constants: tuple[ConstantSet, ...] = ()
    batch: str = ""
    shared_bytes: Callable[[Work], int] = _weights
    larger: Callable[[Work, float], list[Work]] = _nothing_larger
    monotone: bool = False

    def __post_init__(self) -> None:
        if not hasattr(self.size, "_fields"):
            raise TypeError(f"the size of a kernel family must be a NamedTuple, not {self.size!r}")
        takes = {"card": 3, "processor": 3, "error_class": 2, "fewest_flops": 2, "link_s": 2, "larger": 2}
        takes |= dict.fromkeys(("formula", "shared_bytes"), 1)
        for name, arguments in takes.items():
            check_takes(getattr(self, name), arguments, f"{name} of the family of {self.size.__name__}")
        named = (*self.layer, *((self.batch,) if self.batch else ()))
        if missing := ", ".join(name for name in named if name not in self.size._fields):
            raise TypeError(
                f"the size {self.size.__name__} has no {missing}, which its family's layer names or its batch is"
            )
        if not isinstance(self.constants, tuple) or not all(isinstance(s, ConstantSet) for s in self.constants):
            raise TypeError(f"constants of the family of {self.size.__name__} must be a tuple of ConstantSets")
