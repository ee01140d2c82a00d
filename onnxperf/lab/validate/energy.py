"""Measured watts beside the power model's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import gpu_specs
from onnxperf.lab.constants import left_out
from onnxperf.lab.datasets import DIES, Watts
from onnxperf.lab.validate.scored import LEFT_OUT, SHIPPED
from onnxperf.latency import alone, watts_alone
from onnxperf.scoring.score import Pairs

LONG_S = 2e-4  # kernels that are shorter, by their prediction, are scored apart: their watts are those of pauses, too


def pairs(rows: Watts) -> Iterator[Pairs]:
    """The rows of one class on one card, long and short kernels apart, with its die left out and with all rows."""
    device = gpu_specs.load(rows.gpu)
    for method, die in ((LEFT_OUT, DIES.get(rows.gpu, rows.gpu)), (SHIPPED, "")):
        constants = left_out(die)
        said = watts_alone(rows.works, [device], constants, rows.copies)[:, 0]
        long = alone(rows.works, [device], constants, copies=rows.copies).seconds[:, 0] >= LONG_S
        nowhere = np.full(len(said), np.nan)
        for name, taken in ((f"{rows.reported}, over {LONG_S * 1e3:g} ms", long), (f"{rows.reported}, shorter", ~long)):
            if taken.any():
                keys, test = np.flatnonzero(taken), np.zeros(int(taken.sum()), dtype=bool)
                range_ = nowhere[taken]
                yield Pairs(name, rows.gpu, method, keys, rows.watts[taken], said[taken], range_, range_, test)
