"""Fits to measurements find the device that made them, and say how sure that is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpu_specs
from gpu_specs import Corrections, Device, Rates
from onnxperf.calibrate.corrections import Calibration, fit
from onnxperf.ground.errors import UsageError
from onnxperf.measure.record import Measurement
from tests.calibrate.conftest import measured, predicted

pytestmark = pytest.mark.slow  # fits to whole suites
SAMPLES = Path(__file__).parents[2] / "samples"
GPU = Corrections(compute=1.15, memory=1.1, launch=1.2, host=1.7)
CPU = Corrections(compute=1.1, memory=1.4, host=1.6, operators=Rates((("Conv depthwise", 0.6), ("Softmax", 2.5))))


def error(device: Device, true: Device, sample: str) -> float:
    """How far a device's prediction of a sample is from that of the true device, a logarithm."""
    path = str(SAMPLES / f"{sample}.onnx")
    return abs(float(np.log(predicted(path, device).seconds / predicted(path, true).seconds)))


FEW = slice(None, 8)  # measurements, for what doesn't depend on how many there are
Card = tuple[Device, Device, tuple[Measurement, ...]]


@pytest.fixture(scope="module")
def card() -> Card:
    base = gpu_specs.load("l4")
    true = replace(base, corrections=GPU)
    return base, true, measured(true)


@pytest.fixture(scope="module")
def found(card: Card) -> Calibration:
    return fit(card[2], card[0])


@pytest.fixture(scope="module")
def true_cpu(nominal_cpu: Device) -> Device:
    rates = Rates((("fp32", 32 * 4.25e9), ("tensor_int8", 64 * 4.25e9)))
    return replace(nominal_cpu, boost_hz=4.25e9, bandwidth_Bps=16e9, dense_flops=rates, corrections=CPU)


@pytest.fixture(scope="module")
def processor(nominal_cpu: Device, true_cpu: Device) -> Calibration:
    return fit(measured(true_cpu), nominal_cpu)


def test_corrections_of_a_card_are_found(card: Card, found: Calibration) -> None:
    base, true, _ = card
    for name in ("compute", "memory"):
        assert getattr(found.device.corrections, name) == pytest.approx(getattr(GPU, name), rel=0.08), name
    assert found.device.corrections.host == pytest.approx(GPU.host, rel=0.15)
    assert found.error(after=True) < 0.05 < found.error(after=False)
    for sample in ("resnet50", "bert-base"):
        assert error(found.device, true, sample) < min(0.07, error(base, true, sample))


def test_a_cards_corrections_survive_wild_rows(card: Card) -> None:
    base, true, _ = card
    found = fit(measured(true, outliers=0.1, seed=3), base)
    for sample in ("resnet50", "bert-base"):
        assert error(found.device, true, sample) < min(0.12, error(base, true, sample))


def test_a_processor_is_found(nominal_cpu: Device, true_cpu: Device, processor: Calibration) -> None:
    found = processor.device
    assert processor.error(after=True) < 0.05 < processor.error(after=False)
    assert found.corrections.host == pytest.approx(CPU.host, rel=0.15)
    factors = found.corrections.operators
    assert factors["Softmax"] / factors["LayerNormalization"] == pytest.approx(2.5, rel=0.15)
    assert factors["Conv depthwise"] / factors["Conv"] == pytest.approx(0.6, rel=0.15)
    for sample in ("resnet50", "bert-base", "mobilenetv2"):
        assert error(found, true_cpu, sample) < min(0.03, error(nominal_cpu, true_cpu, sample))


def test_a_processor_survives_wild_rows(nominal_cpu: Device, true_cpu: Device) -> None:
    found = fit(measured(true_cpu, outliers=0.1, seed=5), nominal_cpu).device
    for sample in ("resnet50", "bert-base", "mobilenetv2"):
        assert error(found, true_cpu, sample) < min(0.15, error(nominal_cpu, true_cpu, sample))


def test_ranges_hold_four_in_five_rows(processor: Calibration) -> None:
    width = processor.device.corrections.half_width
    assert width is not None and width >= 0.05
    off = np.array([abs(np.log(r.after_s / r.measured_s)) for r in processor.rows])
    assert (off <= width).mean() >= 0.8


def test_no_prediction_beats_the_peak_that_rows_show(nominal_cpu: Device) -> None:
    fast = replace(nominal_cpu, boost_hz=6e9, dense_flops=Rates((("fp32", 32 * 6e9),)))
    found = fit(measured(fast)[FEW], nominal_cpu)
    assert found.device.dense_flops["fp32"] > nominal_cpu.dense_flops["fp32"]
    assert not [d for d in found.dropped if "peak" in d.reason]


def test_rows_faster_than_physics_are_left_out(card: Card) -> None:
    base, _, measurements = card
    bent = [replace(m, device=replace(m.device, samples=(1e-9,))) for m in measurements[:5]]
    found = fit([*bent, *measurements[FEW][5:]], base)
    assert len(found.dropped) == 5
    assert all("peak" in d.reason for d in found.dropped)


def test_operators_that_ran_elsewhere_are_left_out(card: Card, nominal_cpu: Device, true_cpu: Device) -> None:
    base, _, measurements = card
    node = predicted(measurements[0].subject.skeleton, base).kernels[0].name
    found = fit([replace(measurements[0], hosted=(node,)), *measurements[FEW][1:]], base)
    assert [(d.model, "CPU" in d.reason) for d in found.dropped] == [(measurements[0].subject.name, True)]
    here = measured(true_cpu)[-1:]
    other = replace(here[0], operators=tuple(replace(o, provider="OtherProvider") for o in here[0].operators))
    with pytest.raises(UsageError, match="another execution provider"):
        fit([other], nominal_cpu)


def test_few_rows_are_refused(card: Card) -> None:
    base, _, measurements = card
    with pytest.raises(UsageError, match="2 rows can be used, 3 are needed"):
        fit(measurements[:2], base)


def test_a_model_that_cannot_be_predicted_is_left_out(card: Card) -> None:
    base, _, measurements = card
    broken = replace(measurements[0], subject=replace(measurements[0].subject, skeleton=b"no model"))
    found = fit([broken, *measurements[FEW][1:]], base)
    assert [d.model for d in found.dropped] == [broken.subject.name]


def test_corrections_that_the_device_had_do_not_matter(card: Card) -> None:
    base, true, measurements = card
    corrections = [fit(measurements[FEW], device).device.corrections for device in (true, base)]
    assert corrections[0] == corrections[1] != base.corrections
