"""The part of a processor's suite that is quantised: products and convolutions in 8 bits, and what stands between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from onnxperf.graph.microbenchmarks import SingleOperator, Weight

CONTRIB = "com.microsoft::"
SCALE, ZERO, SIGNED_ZERO = Weight((), "float32", 0.02), Weight((), "uint8", 128), Weight((), "int8", 0)


def integer_products() -> Iterator[SingleOperator]:
    """Products as static and dynamic quantisation write them, few rows to many."""
    for m, (n, k) in product((1, 8, 64, 256), ((256, 256), (1024, 1024), (3072, 768), (768, 3072))):
        b, name = Weight((k, n), "int8"), f"{m}x{k} to {n}"
        yield SingleOperator(
            f"DynamicQuantizeMatMul {name}", f"{CONTRIB}DynamicQuantizeMatMul", ((m, k),), (b, SCALE, SIGNED_ZERO)
        )
        yield SingleOperator(
            f"MatMulIntegerToFloat {name}", f"{CONTRIB}MatMulIntegerToFloat", ((m, k),),
            (b, SCALE, ZERO, SIGNED_ZERO), order=(0, 1, 2, 2, 3, 4), types=("uint8",),
        )  # fmt: skip
        yield SingleOperator(
            f"QLinearMatMul {name}", "QLinearMatMul", ((m, k),), (b, SCALE, ZERO, SIGNED_ZERO),
            order=(0, 2, 3, 1, 2, 4, 2, 3), types=("uint8",), gives="uint8",
        )  # fmt: skip
        yield SingleOperator(
            f"QGemm {name}", f"{CONTRIB}QGemm", ((m, k),), (b, SCALE, ZERO, SIGNED_ZERO, Weight((n,), "int32")),
            order=(0, 2, 3, 1, 2, 4, 5, 2, 3), types=("uint8",), gives="uint8",
        )  # fmt: skip
    for shape in ((1, 128, 768), (1, 128, 3072), (1, 64, 56, 56)):
        sizes = "x".join(map(str, shape))
        yield SingleOperator(f"QuantizeLinear {sizes}", "QuantizeLinear", (shape,), (SCALE, ZERO), gives="uint8")
        yield SingleOperator(f"DequantizeLinear {sizes}", "DequantizeLinear", (shape,), (SCALE, ZERO), types=("uint8",))


def integer_convolutions() -> Iterator[SingleOperator]:
    """Dense, strided, pointwise and depthwise ones, and sums and means of what they give."""
    for c, side in ((32, 112), (64, 56), (128, 28), (256, 14), (512, 7)):
        yield _conv(c, side, 3)
        yield _conv(4 * c, side, 1, cin=c)
        yield _conv(c, side, 1, cin=4 * c)
        yield _conv(c, side, 3, groups=c)
    for c, side in ((96, 56), (240, 28), (480, 14)):
        yield _conv(c, side, 3, stride=2, groups=c)
        yield _conv(c, side, 5, groups=c)
    for c, k in ((32, 3), (64, 7)):
        yield _conv(c, 224, k, stride=2, cin=3)
    for c, side in ((128, 56), (256, 28), (512, 14)):
        yield _conv(c, side, 3, stride=2, cin=c // 2)
    for shape in ((1, 256, 56, 56), (1, 512, 28, 28), (1, 96, 14, 14)):
        sizes = "x".join(map(str, shape))
        yield SingleOperator(
            f"QLinearAdd {sizes}", f"{CONTRIB}QLinearAdd", (shape, shape), (SCALE, ZERO),
            order=(0, 2, 3, 1, 2, 3, 2, 3), types=("uint8", "uint8"), gives="uint8",
        )  # fmt: skip


def _conv(c: int, side: int, k: int, stride: int = 1, groups: int = 1, cin: int = 0) -> SingleOperator:
    cin = cin or c
    name = f"QLinearConv {cin}x{side} to {c} by {k} stride {stride}" + (f" in {groups}" if groups > 1 else "")
    weights = (Weight((c, cin // groups, k, k), "int8"), SCALE, ZERO, SIGNED_ZERO, Weight((c,), "int32"))
    return SingleOperator(
        name, "QLinearConv", ((1, cin, side, side),), weights, order=(0, 2, 3, 1, 2, 4, 2, 3, 5), types=("uint8",),
        gives="uint8", attrs={"strides": [stride] * 2, "pads": [k // 2] * 4, "group": groups},
    )  # fmt: skip
