"""Constants of convolutions on tensor cores, from DeepBench's forward passes in FP16. Candidates: conv.md."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_specs import Device
from onnxperf.derive.fit import Family, Parameter, overheads
from onnxperf.derive.tensor import with_uniform_operands
from onnxperf.fitting import Array
from onnxperf.latency import Constants, alone
from op_models import Work


def seconds(works: Sequence[Work], devices: Sequence[Device], c: Constants) -> Array:
    """Each convolution repeated on its own, after the power budget; operands are those of DeepBench's products."""
    return alone(works, with_uniform_operands(devices, c), c).seconds


FAMILY = Family(
    name="tensor_convolution",
    parameters=(
        Parameter("tensor_convolution.gather", "share of a product's rate that gathering leaves", 0.8, 0.06, most=1.0),
        Parameter("tensor_convolution.extra_k", "what a tile costs beside its k, as so much more of it", 30, 0.4),
        Parameter("tensor_convolution.start_s", "before the product, whatever its size", 5.0e-6, 0.5),
    ),
    model=seconds,
    overhead_s=overheads("tensor_convolution"),
    corrections=(0.25, 0.12, 0.10),
)
