"""All families of constants, in the order of their fits: each may use the constants of those before it."""

from __future__ import annotations

from onnxperf.derive import attention, conv, gemm, power, recurrent, tensor, tensor_conv, vector
from onnxperf.derive.fit import Family

FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        vector.FAMILY, power.FAMILY, gemm.FAMILY, *tensor.FAMILIES, conv.FAMILY, tensor_conv.FAMILY, attention.FAMILY,
        recurrent.FAMILY,
    )
}  # fmt: skip
