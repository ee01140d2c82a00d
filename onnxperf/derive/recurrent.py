"""What recurrent layers tell: what a step costs beside its product. Candidates: recurrent.md."""

from __future__ import annotations

from onnxperf.derive.fit import Family, Parameter, overheads

FAMILY = Family(
    name="recurrent",
    parameters=(
        Parameter("recurrent.step_before_cc7_s", "seconds of a step beside its product, before Volta", 2e-5, 0.7),
        Parameter("recurrent.step_cc7_s", "the same: Volta and Turing", 2e-5, 0.35),
    ),
    overhead_s=overheads("recurrent"),
    sample=300,
)
