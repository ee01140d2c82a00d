"""Matrix FLOPs against PyTorch's own counter, on meta tensors: shapes only, nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from op_models import work_of

torch = pytest.importorskip("torch")
flop_counter = pytest.importorskip("torch.utils.flop_counter")
F = torch.nn.functional


def counted(f: Callable[..., Any], *shapes: tuple[int, ...] | None, **keywords: Any) -> tuple[tuple[int, ...], int]:
    """The output's shape, and the FLOPs PyTorch counts."""
    tensors = [None if s is None else torch.empty(s, device="meta") for s in shapes]
    with flop_counter.FlopCounterMode(display=False) as counter:
        out = f(*tensors, **keywords)
    return tuple(out.shape), counter.get_total_flops()


CONVOLUTIONS = [
    ((2, 8, 30), (12, 8, 5), {}),
    ((2, 8, 30), (12, 4, 3), {"stride": 2, "padding": 1, "groups": 2}),
    ((1, 3, 32, 40), (16, 3, 7, 7), {"stride": (2, 3), "padding": 3}),
    ((1, 16, 20, 20), (16, 1, 3, 3), {"groups": 16, "padding": 1}),
    ((3, 8, 20, 20), (24, 2, 3, 5), {"groups": 4, "dilation": (2, 1)}),
    ((1, 4, 6, 7, 8), (8, 2, 2, 3, 3), {"groups": 2, "stride": (1, 2, 1), "dilation": 1, "padding": 1}),
]
TRANSPOSED = [
    ((2, 8, 30), (8, 12, 5), {"stride": 3}),
    ((2, 8, 10, 12), (8, 3, 4, 4), {"stride": 2, "padding": 1, "groups": 4}),
    ((2, 8, 10, 12), (8, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1, "dilation": 2}),
    ((1, 4, 3, 4, 5), (4, 6, 2, 2, 2), {"stride": (2, 1, 2), "groups": 2}),
]


def onnx_attributes(keywords: dict[str, Any], rank: int) -> dict[str, Any]:
    names = {"stride": "strides", "dilation": "dilations", "groups": "group"}
    found = {names[k]: v for k, v in keywords.items() if k in names}
    return {k: v if k == "group" or isinstance(v, tuple) else (v,) * (rank - 2) for k, v in found.items()}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "keywords"), CONVOLUTIONS)
def test_convolution(make: Any, x: Any, w: Any, keywords: Any, bias: bool) -> None:
    f = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(x)]
    b = (w[0],) if bias else None
    out, flops = counted(f, x, w, b, **keywords)
    found = work_of(make("Conv", [x, w, b], out, **onnx_attributes(keywords, len(x))))
    assert found.matrix_flops == flops > 0
    size: Any = found.size
    assert flops == 2 * size.images * size.cout * size.out * size.cin // size.groups * size.taps


@pytest.mark.parametrize(("x", "w", "keywords"), TRANSPOSED)
def test_transposed_convolution(make: Any, x: Any, w: Any, keywords: Any) -> None:
    f = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}[len(x)]
    out, flops = counted(f, x, w, **keywords)
    found = work_of(make("ConvTranspose", [x, w], out, **onnx_attributes(keywords, len(x))))
    assert found.matrix_flops == flops > 0
    size: Any = found.size
    assert (size.images, size.cout, size.direction) == (*out[:2], "transpose")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5, 7), (7, 3)),
        ((7,), (7, 3)),
        ((4, 5, 7), (7, 3)),
        ((4, 5, 7), (4, 7, 3)),
        ((2, 1, 5, 7), (4, 7, 3)),
        ((5, 7), (2, 4, 7, 3)),
        ((1, 5, 7), (6, 7, 3)),
    ],
)
def test_matmul_broadcasts(make: Any, a: Any, b: Any) -> None:
    out, flops = counted(torch.matmul, a, b)
    found = work_of(make("MatMul", [a, b], out))
    size: Any = found.size
    assert found.matrix_flops == flops == 2 * size.batch * size.m * size.n * size.k


@pytest.mark.parametrize("bias", [None, (3,)])
def test_linear(make: Any, bias: Any) -> None:
    out, flops = counted(F.linear, (5, 7), (3, 7), bias)
    found = work_of(make("Gemm", [(5, 7), (3, 7), bias], out, transB=1))
    assert (found.matrix_flops, found.vector_flops) == (flops, 15 if bias else 0)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    ("q", "k", "v"),
    [((2, 4, 6, 8), (2, 4, 9, 8), (2, 4, 9, 5)), ((1, 12, 128, 64), (1, 12, 128, 64), (1, 12, 128, 64))],
)
def test_attention(make: Any, q: Any, k: Any, v: Any, causal: int) -> None:
    flops = flop_counter.sdpa_flop_count(q, k, v)
    found = work_of(make("Attention", [q, k, v], (*q[:3], v[3]), is_causal=causal))
    assert found.matrix_flops == flops
    math = counted(lambda q, k, v: q @ k.transpose(-1, -2) @ v, q, k, v)[1]
    assert found.matrix_flops == math
