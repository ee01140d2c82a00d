"""Law 1: no estimate beats the FLOPs at peak, the bytes at the fastest memory that holds them, or a launch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_specs
from onnxperf.latency import BOUNDS, shipped
from onnxperf.latency.cards import Cards, at_own_clock
from onnxperf.methods import METHODS
from op_models import Attention, Conv, Gemm, Move, Pointwise, Recurrent, Rows, Transfer, Work
from tests.estimating import estimate
from tests.latency.conftest import FIVE, kernels

DEVICES = [gpu_specs.load(i) for i in gpu_specs.ids()]
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "float8e4m3fn": 1}
PIPES = {
    "float32": ("fp32", "tensor_tf32"),
    "float16": ("tensor_fp16",),
    "bfloat16": ("tensor_bf16",),
    "int8": ("tensor_int8",),
    "float8e4m3fn": ("tensor_fp8",),
}
side = st.integers(0, 14).flatmap(lambda e: st.integers(2**e, 2 ** (e + 1)))
few = st.integers(1, 64)


@st.composite
def works(draw: st.DrawFn) -> Work:
    dtype = draw(st.sampled_from(sorted(BYTES)))
    pipe, width = draw(st.sampled_from(PIPES[dtype])), BYTES[dtype]
    kind = draw(st.sampled_from((Gemm, Conv, Rows, Pointwise, Move, Attention, Recurrent)))
    if kind is Gemm:
        b, m, n, k = draw(few), draw(side), draw(side), draw(side)
        return Work(
            Gemm(b, m, n, k),
            dtype,
            pipe,
            width * b * (m * k + k * n),
            width * b * m * n,
            width * k * n,
            2 * b * m * n * k,
        )
    if kind is Conv:
        images, groups, cin, cout, out, taps = draw(few), draw(few), draw(few), draw(few), draw(side), draw(few)
        cin, cout = cin * groups, cout * groups
        flops = 2 * images * cout * out * cin // groups * taps
        weights = width * cout * cin // groups * taps
        size = Conv(images, cin, cout, out, taps, groups, 1, last=draw(st.booleans()))
        return Work(
            size, dtype, pipe, width * images * cin * out + weights, width * images * cout * out, weights, flops
        )
    if kind is Attention:
        b, h, q, keys, d = draw(few), draw(few), draw(side), draw(side), draw(st.sampled_from((32, 64, 128)))
        size = Attention(b, h, h, q, keys, d, d, draw(st.booleans()))
        return Work(
            size, dtype, pipe, width * b * h * (q + 2 * keys) * d, width * b * h * q * d, 0, 4 * b * h * q * keys * d
        )
    if kind is Recurrent:
        steps, b, i, h, both, gates = draw(side), draw(few), draw(side), draw(side), draw(st.integers(1, 2)), draw(few)
        units, weights = steps * b * both * h, width * both * gates * h * (i + h)
        flops, vector = 2 * units * gates * (i + h), 30 * units
        size = Recurrent(steps, b, i, h, both, gates)
        return Work(size, dtype, pipe, width * steps * b * i + weights, width * units, weights, flops, vector)
    vector = draw(st.integers(0, 20))
    if kind is Rows:
        rows, row = draw(side), draw(side)
        n = rows * row
        return Work(Rows(rows, row, draw(st.integers(0, 3))), dtype, "fp32", width * n, width * n, 0, 0, vector * n)
    n = draw(side) * draw(side)
    size = Pointwise(n) if kind is Pointwise else Move(n, draw(side))
    return Work(size, dtype, "fp32", width * n, width * n, 0, 0, vector * n)


def executed(w: Work, d: gpu_specs.Device) -> float:
    """FLOPs that no algorithm undercuts: transforms of FP32 convolutions leave 4 for each output and channel in, and
    causal attention the scores that are not masked."""
    if isinstance(w.size, Attention) and w.size.causal:
        return w.matrix_flops * (1 - (min(w.size.queries, w.size.keys) - 1) / (2 * w.size.keys))
    if not isinstance(w.size, Conv) or w.dtype != "float32" or (w.pipe in d.dense_flops and w.pipe != "fp32"):
        return w.matrix_flops
    open_to = w.size.stride == 1 and w.size.groups == 1 and w.size.taps >= 9
    return w.matrix_flops * (2 / w.size.taps if open_to else 1)


#: All but `linear`, whose lines are measured on a device.
OF_ANY_CARD = (*METHODS, "mlp")


@settings(max_examples=150, deadline=None)
@given(st.lists(works(), min_size=1, max_size=6), st.sampled_from(OF_ANY_CARD))
@pytest.mark.slow
def test_no_model_is_faster_than_physics(found: list[Work], method: str) -> None:
    e = estimate(kernels(*found), DEVICES, method)
    assert np.isfinite(e.seconds).all()
    assert np.isfinite(e.joules).all() and (e.joules >= 0).all()
    assert (e.power_factor >= 1).all()
    assert ((e.occupancy > 0) & (e.occupancy <= 1)).all()
    for j, device in enumerate(DEVICES):
        d = at_own_clock(device, shipped())
        start_s = float(Cards([device], shipped()).start_s[0, 0])
        for i, w in enumerate(found):
            vector = ("int8",) if w.pipe == "tensor_int8" else ()
            instead = (d.dense_flops.get(p, 0) for p in ("fp32", "fp16", "tensor_fp16", *vector))  # of a missing unit
            peak = d.dense_flops.get(w.pipe) or max(instead)
            l2 = d.sms * 64 * d.boost_hz
            memory = w.bytes / (max(l2, d.bandwidth_Bps) if w.bytes <= d.l2_bytes else d.bandwidth_Bps)
            assert e.seconds[i, j] >= 0.999999 * max(executed(w, d) / peak, memory, start_s), (d.id, w)
            assert e.floor_s[i, j] <= e.seconds[i, j] * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(st.lists(works(), min_size=2, max_size=5))
@pytest.mark.slow
def test_many_at_once_equal_one_by_one(found: list[Work]) -> None:
    together = estimate(kernels(*found), FIVE)
    for j, d in enumerate(FIVE):
        for i, w in enumerate(found):
            alone = estimate(kernels(w), [d])
            both = together.seconds[i, j] / together.power_factor[j]
            assert both == pytest.approx(alone.seconds[0, 0] / alone.power_factor[0], rel=1e-12)
            assert together.variant[i, j] == alone.variant[0, 0]


def test_transfers_run_at_the_speed_of_the_link() -> None:
    copy = Work(Transfer(10**9, "h2d"), "float32", "fp32", 0, 10**9, 0)
    e = estimate(kernels(copy), DEVICES)
    for j, d in enumerate(DEVICES):
        assert 1e9 / d.pcie_Bps < e.seconds[0, j] < 2e9 / d.pcie_Bps
    assert e.transfer.all()


def test_roofline_is_the_larger_of_flops_and_bytes() -> None:
    l4 = gpu_specs.load("l4")
    w = Work(
        Gemm(1, 4096, 4096, 4096), "float16", "tensor_fp16", 2 * 2 * 4096**2, 2 * 4096**2, 2 * 4096**2, 2 * 4096**3
    )
    thin = Work(Pointwise(10**9), "float32", "fp32", 4 * 10**9, 4 * 10**9, 0, 0, 10**9)
    e = estimate(kernels(w, thin), [l4], "roofline")
    assert e.seconds[0, 0] == pytest.approx(2 * 4096**3 / 121e12)
    assert e.seconds[1, 0] == pytest.approx(8e9 / 300.1e9)
    assert [BOUNDS[i] for i in e.bound[:, 0]] == ["compute", "memory"]


def test_no_kernels_take_no_time() -> None:
    e = estimate(kernels(), DEVICES)
    assert e.seconds.shape == (0, len(DEVICES))
    assert (e.power_factor == 1).all()


def test_a_recurrent_layer_takes_its_steps_one_by_one() -> None:
    """A step costs a launch even where it has next to nothing to do, and its weights where those are large."""
    l4 = gpu_specs.load("l4")

    def layer(steps: int, hidden: int) -> Work:
        weights, units = 2 * 4 * hidden * 2 * hidden, steps * hidden
        size = Recurrent(steps, 1, hidden, hidden, 1, 4)
        return Work(size, "float16", "tensor_fp16", weights + 2 * units, 2 * units, weights, 16 * units * hidden)

    short, long, wide = estimate(kernels(layer(100, 64), layer(1000, 64), layer(100, 8192)), [l4], "sum").seconds[:, 0]
    assert 8 < long / short < 10
    assert 1e-3 < short < 2e-3
    assert wide > 100 * (2 * 4 * 8192**2) / 300.1e9
