"""A processor as a device: what its estimates hold to, how one asks for it, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_specs
import onnxperf
from onnxperf import predict
from onnxperf.latency import correction_name
from onnxperf.lowering.lower import Kernel, Kernels
from op_models import Attention, Conv, Gemm, Move, Pointwise, Recurrent, Rows, Work
from tests.device_files import PROCESSOR
from tests.estimating import estimate
from tests.latency.conftest import kernels

SAMPLES = Path(__file__).parents[2] / "samples"
CORRECTIONS = (
    '[corrections]\ncompute = 1.5\nhalf_width = 0.1\nsource = "suite"\n'
    '[corrections.operators]\nConv = 2.0\n"Odd op" = 0.5\n'
)


@pytest.fixture(name="path")
def path_of_a_card(tmp_path: Path) -> Path:
    path = tmp_path / "my-cpu.toml"
    path.write_text(PROCESSOR)
    return path


@pytest.fixture(name="core")
def device(path: Path) -> gpu_specs.Device:
    return gpu_specs.load(path)


side, few = st.integers(1, 4096), st.integers(1, 64)
SIZES = st.one_of(
    st.builds(Gemm, few, side, side, side),
    st.builds(lambda i, c, k, o, t, g, s: Conv(i, c * g, k * g, o, t, g, s), few, few, few, side, few, few, few),
    st.builds(Rows, side, side, st.integers(0, 3)),
    st.builds(Pointwise, side),
    st.builds(Move, side, side),
    st.builds(
        lambda b, h, q, k, d, causal: Attention(b, h, h, q, k, d, d, causal), few, few, side, side, few, st.booleans()
    ),
    st.builds(Recurrent, side, few, side, side, st.integers(1, 2), few),
)


@st.composite
def works(draw: st.DrawFn) -> Work:
    size, flops, nbytes = draw(SIZES), draw(st.integers(0, 10**6)), draw(st.integers(1, 10**8))
    matrix = 0
    if isinstance(size, Gemm):
        matrix = 2 * size.batch * size.m * size.n * size.k
    elif isinstance(size, Conv):
        matrix = 2 * size.images * size.out * size.cout * (size.cin // size.groups) * size.taps
    elif isinstance(size, Attention):
        matrix = 4 * size.batch * size.heads * size.queries * size.keys * size.dim
    return Work(size, "float32", "fp32", nbytes, nbytes // 2, nbytes // 3, matrix, flops)


def product(m: int, n: int, k: int, weights: int | None = None) -> Work:
    stored = 4 * n * k if weights is None else weights
    return Work(Gemm(1, m, n, k), "float32", "fp32", 4 * (m * k + n * k), 4 * m * n, stored, 2 * m * n * k)


def seconds(w: Work, device: gpu_specs.Device, stored: int = 10**9) -> float:
    return float(estimate(kernels(w, stored=stored), [device]).seconds[0, 0])


def test_a_processor_has_no_card_figures(core: gpu_specs.Device) -> None:
    assert (core.kind, core.sms, core.lanes, core.l3_bytes) == ("cpu", 1, 32, 24 * 2**20)
    assert (core.capability, core.pcie_Bps, core.smem_bytes) == ((0, 0), 0.0, 0)
    assert dict(core.dense_flops) == {"fp32": 0.224e12}


@pytest.mark.parametrize(
    ("was", "instead", "says"),
    [
        ("cores = 1", "sms = 1", "unknown key 'sms' in [processor]"),
        ("cores = 1\n", "", "cores in [processor] is missing"),
        ("[dense_TFLOPS]", "[power_and_links]\ntdp_W = 10\n[dense_TFLOPS]", "unknown key 'power_and_links'"),
        ('architecture = "x86', 'capability = "8.0"\narchitecture = "x86', "unknown key 'capability'"),
        ("fp32 = 0.224", "fp32 = 0.224\n[corrections]\noperators = 3", "a table of at most"),
        ("fp32 = 0.224", 'fp32 = 0.224\n[corrections.operators]\nConv = "fast"', "a number from"),
        ("fp32 = 0.224", 'fp32 = 0.224\n[corrections.operators]\n"a\\u001b" = 1.0', "printable"),
    ],
)
def test_a_processor_file_that_is_wrong_says_where(path: Path, was: str, instead: str, says: str) -> None:
    assert was in PROCESSOR
    path.write_text(PROCESSOR.replace(was, instead))
    with pytest.raises(gpu_specs.SpecError) as error:
        gpu_specs.load(path)
    assert says in str(error.value)


@settings(deadline=None)
@given(st.lists(works(), min_size=1, max_size=4))
def test_nothing_beats_peak_or_the_innermost_cache(found: list[Work]) -> None:
    core = replace(gpu_specs.load("l4"), kind="cpu", sms=1, l3_bytes=2**24)
    for method in ("tile-wave", "sum", "roofline"):  # the others are of cards, or of lines measured on a device
        e = estimate(kernels(*found), [core], method)
        for i, w in enumerate(found):
            assert np.isfinite(e.seconds[i, 0])
            skipped = 0.5 if getattr(w.size, "causal", False) else 1.0
            assert e.seconds[i, 0] >= 0.999 * skipped * w.matrix_flops / max(core.dense_flops.values())
            assert e.seconds[i, 0] >= e.floor_s[i, 0]


def test_more_work_takes_longer(core: gpu_specs.Device) -> None:
    times = [seconds(product(m, 768, 768), core) for m in (1, 2, 16, 128, 1024)]
    assert times == sorted(times)
    assert times[-1] > 5 * times[-2]


def test_weights_come_from_the_cache_that_holds_them_all(core: gpu_specs.Device) -> None:
    w = product(1, 256, 256)
    near, shared, far = (seconds(w, core, stored) for stored in (2**18, 2**23, 2**28))
    assert near < shared < far
    assert far >= 4 * 256 * 256 / core.bandwidth_Bps


def test_a_depthwise_convolution_is_no_product() -> None:
    image = {"images": 1, "cin": 128, "cout": 128, "out": 784, "taps": 9, "stride": 1}
    dense, depthwise = Conv(groups=1, **image), Conv(groups=128, **image)

    def name(size: Conv, op: str = "Conv") -> str:
        return correction_name(Kernel("k", op, (), Work(size, "float32", "fp32", 1, 1, 0)))

    sizes = (dense, depthwise, dense._replace(groups=4))
    assert [*map(name, sizes)] == ["Conv", "Conv depthwise", "Conv grouped"]
    assert name(depthwise, "com.microsoft.nchwc::Conv") == "nchwc::Conv depthwise"
    assert name(dense, "com.microsoft::FusedConv") == "FusedConv"


def test_effects_scale_their_part(core: gpu_specs.Device) -> None:
    w = product(512, 512, 512)
    slow = replace(core, corrections=gpu_specs.Corrections(compute=2.0, source="test"))
    odd = replace(core, corrections=gpu_specs.Corrections(operators=gpu_specs.Rates((("Op", 3.0),)), source="test"))
    assert 1.5 * seconds(w, core) < seconds(w, slow) < 2 * seconds(w, core)
    assert seconds(w, odd) == pytest.approx(3 * seconds(w, core))
    assert estimate(kernels(w), [odd]).source == ("calibrated",)
    quick = replace(core, corrections=gpu_specs.Corrections(operators=gpu_specs.Rates((("Op", 1e-3),)), source="test"))
    assert seconds(w, quick) == pytest.approx(2 * 512**3 / 0.224e12)  # not below physics


def test_calibration_narrows_the_range(core: gpu_specs.Device, path: Path) -> None:
    path.write_text(PROCESSOR + CORRECTIONS)
    before, after = (predict(SAMPLES / "resnet50.onnx", gpu=d) for d in (core, path))
    assert after.high_seconds / after.seconds < before.high_seconds / before.seconds
    assert {k.source for k in after.kernels} == {"calibrated"}
    assert "assumed-constants" in {w.code for w in before.warnings}
    assert "assumed-constants" not in {w.code for w in after.warnings}
    assert after.seconds > before.seconds


def test_a_processor_runs_one_operator_after_the_other(core: gpu_specs.Device) -> None:
    p = predict(SAMPLES / "minilm-l6-h384.onnx", gpu=core, dims={"batch": 1, "sequence": 32})
    assert p.scenario.runtime == "ort-cpu"
    assert "processor" in p.scope or "core" in p.scope
    ends = 0.0
    for k in p.kernels:
        assert k.start_seconds >= ends
        ends = k.start_seconds + k.seconds
    assert p.seconds >= ends
    assert sum(p.bound_by.values()) == pytest.approx(1)
    assert p.memory.context_bytes == 0


@pytest.mark.parametrize(
    "terms",
    [{"runtime": "ort-cuda"}, {"runtime": "tensorrt"}, {"streams": 2}, {"cuda_graph": True},
     {"include_transfers": True}, {"power_limit_W": 50.0}, {"clock_Hz": 1e9}],
)  # fmt: skip
def test_what_only_a_card_has_is_refused(core: gpu_specs.Device, terms: dict[str, object]) -> None:
    with pytest.raises(onnxperf.UsageError, match="CPU"):
        predict(SAMPLES / "resnet50.onnx", gpu=core, **terms)  # type: ignore[arg-type]


def test_an_elementwise_operator_pays_for_what_it_moves(core: gpu_specs.Device) -> None:
    def moved(n: int, flops: int = 1) -> float:
        w = Work(Pointwise(n), "float32", "fp32", 4 * n, 4 * n, 0, 0, flops * n)
        return float(estimate(Kernels((Kernel("k", "Add", ("n",), w),), (), 0), [core]).seconds[0, 0])

    assert moved(2**24) > 2 * 16 * moved(2**19)  # beyond the core's own cache
    assert moved(2**16, 30) > 2 * moved(2**16)
