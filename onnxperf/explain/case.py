"""One kernel on one card: what is known of it, and what follows at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_specs import Device
from onnxperf.latency import Constants, pipe_on
from onnxperf.latency.bounds import Bounds, Columns
from onnxperf.latency.cards import Cards
from onnxperf.lower import Kernel
from onnxperf.prediction import KernelPrediction, Scenario
from op_models import Transfer


def one(term: Any) -> float:
    """The only element."""
    return float(np.broadcast_to(term, (1, 1))[0, 0])


@dataclass(frozen=True)
class Case:
    """All that is known of one kernel on one card; `seconds` and `joules` are those of one run of it.

    bounds, least: the terms of its estimate and of the physical floor, [1, 1]; read: the constants that went into them.
    """

    kernel: Kernel
    found: KernelPrediction
    device: Device
    scenario: Scenario
    constants: Constants
    bounds: Bounds
    least: Bounds
    seconds: float
    joules: float
    factor: float
    read: Mapping[str, Any]

    @property
    def unit(self) -> str:
        """What the waterfall counts."""
        return "FLOP/s" if self.kernel.work.matrix_flops else "B/s"

    @property
    def amount(self) -> float:
        """FLOPs of products, or bytes where there are none."""
        w = self.kernel.work
        return float(w.matrix_flops or (w.size.bytes if isinstance(w.size, Transfer) else w.bytes))

    @property
    def peak(self) -> float:
        """The datasheet's rate for that."""
        if self.kernel.work.matrix_flops:
            return float(self.device.dense_flops[self.pipe])
        return self.device.pcie_Bps if isinstance(self.kernel.work.size, Transfer) else self.device.bandwidth_Bps

    @property
    def pipe(self) -> str:
        """The unit that does the work's arithmetic on this card."""
        return pipe_on(self.device, self.kernel.work.pipe)

    @property
    def detail(self) -> dict[str, float]:
        """The estimate's details that this kernel's form has."""
        values = {name: one(v) for name, v in self.bounds.detail.items()}
        return {name: v for name, v in values.items() if np.isfinite(v)}

    @property
    def executed(self) -> float:
        """Matrix FLOPs that are executed: masked tiles are skipped, transforms save products."""
        cards = Cards([self.device], self.constants)
        return one(Columns([self.kernel.work], cards).executed) * self.detail.get("executed share", 1.0)

    @property
    def form(self) -> str:
        """The tile or algorithm that was chosen; "" where there is one form only."""
        return str(np.broadcast_to(self.bounds.choice, (1, 1))[0, 0])
