"""What recurrent layers tell: what a step costs beside its product. Candidates: recurrent.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_specs import Device
from onnxperf.calibrate.fit import Family, Parameter
from onnxperf.latency import Constants, alone
from onnxperf.latency.terms import Array
from onnxperf.measurements import LEAST_S, Table
from op_models import Work

NAMES = ("deepbench rnn", "deepbench rnn fp16")


def model(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Seconds of each layer alone, [n, g]."""
    return np.asarray(alone(works, devices, c).seconds)


def tables(all_tables: Sequence[Table]) -> list[Table]:
    """Recurrent layers of 0.1 ms and more, all of them: a card is scored by leaving out its die, not by kept rows."""
    found = (t.without(t.seconds < LEAST_S, "shorter than 0.1 ms") for t in all_tables if t.family in NAMES)
    return [t.on(t.gpus) for t in found]


FAMILY = Family(
    name="recurrent",
    parameters=(
        Parameter("recurrent.step_before_cc7_s", "seconds of a step beside its product, before Volta", 2e-5, 0.7),
        Parameter("recurrent.step_cc7_s", "the same: Volta and Turing", 2e-5, 0.35),
    ),
    model=model,
    overhead_s={"deepbench": 1e-5},
    sample=300,
)
FAMILIES = (FAMILY,)

__all__ = ["FAMILIES", "FAMILY", "model", "tables"]
