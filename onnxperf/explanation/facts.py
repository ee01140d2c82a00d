"""One kernel on one card: everything that its explanation is written from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpu_specs import Device
from onnxperf.answer.kernel_timeline import KernelPrediction
from onnxperf.latency import KernelTerms, pipe_on, rate_on
from onnxperf.latency.cards import Cards, Works
from onnxperf.lowering.lower import Kernel
from onnxperf.running.run import Run
from op_models import Transfer


def scalar(term: Any) -> float:
    """The only element of a term of one work on one device."""
    return float(np.broadcast_to(term, (1, 1))[0, 0])


@dataclass(frozen=True)
class KernelFacts:
    """All that is known of one kernel on a run's first card; `seconds` and `joules` are those of one repeat.

    terms, bound: the terms of its estimate and of the speed-of-light bound, [1, 1]; factor: by how much the power limit
    slows it; read: the constants that were read for them, by dotted path.
    """

    run: Run
    kernel: Kernel
    predicted: KernelPrediction
    terms: KernelTerms
    bound: KernelTerms
    seconds: float
    joules: float
    factor: float
    read: Mapping[str, Any]

    @property
    def device(self) -> Device:
        """The card at the clock that it holds by itself."""
        return self.cards.devices[0]

    @cached_property
    def cards(self) -> Cards:
        """The card as latency models read it."""
        return Cards(self.run.devices[:1], self.run.constants)

    @property
    def unit(self) -> str:
        """The unit of the rates: of arithmetic, or of traffic where there are no products."""
        return "FLOP/s" if self.kernel.work.matrix_flops else "B/s"

    @property
    def amount(self) -> float:
        """FLOPs of products, or bytes where there are none: what a rate is the quotient of."""
        w = self.kernel.work
        return float(w.matrix_flops or (w.size.bytes if isinstance(w.size, Transfer) else w.bytes))

    @property
    def peak(self) -> float:
        """The datasheet's rate for it."""
        if self.kernel.work.matrix_flops:
            return self.rate
        return self.device.pcie_Bps if isinstance(self.kernel.work.size, Transfer) else self.device.bandwidth_Bps

    @property
    def rate(self) -> float:
        """The datasheet's FLOP/s of the unit that does the work's arithmetic."""
        return rate_on(self.device, self.kernel.work.pipe)

    @property
    def pipe(self) -> str:
        """The unit that does the work's arithmetic on this card."""
        return pipe_on(self.device, self.kernel.work.pipe)

    @property
    def detail(self) -> dict[str, float]:
        """The estimate's details that this kernel's form has."""
        values = {name: scalar(v) for name, v in self.terms.detail.items()}
        return {name: v for name, v in values.items() if np.isfinite(v)}

    @property
    def executed(self) -> float:
        """Matrix FLOPs that are executed: masked tiles are skipped, transforms save products."""
        return scalar(Works([self.kernel.work], self.cards).executed) * self.detail.get("executed share", 1.0)
