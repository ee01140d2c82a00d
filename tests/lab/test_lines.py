"""Lines of layers are fitted to measurements by a command, and stand in the device file that it writes."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpu_specs
from gpu_specs import Corrections, Device, Rates
from onnxperf.answer.prediction import summarise
from onnxperf.lab.baselines import compared
from onnxperf.lab.lines import main
from onnxperf.measure.files import write
from onnxperf.running.pipeline import Request, run_of
from tests.calibrate.conftest import AVX2, measured
from tests.calibrate.conftest import device as processor

ALEXNET = Path(__file__).parents[2] / "samples" / "alexnet.onnx"
CPU = Corrections(compute=1.1, memory=1.4, host=1.6)


@pytest.fixture(scope="module")
def true_cpu() -> Device:
    nominal = processor("Model 7 @ 2.5 GHz", "x86_64", AVX2, 16 * 2**30)
    rates = Rates((("fp32", 32 * 4.25e9), ("tensor_int8", 64 * 4.25e9)))
    return replace(nominal, boost_hz=4.25e9, bandwidth_Bps=16e9, dense_flops=rates, corrections=CPU)


@pytest.mark.slow
def test_lines_of_measured_layers_stand_in_a_device_file(true_cpu: Device, tmp_path: Path) -> None:
    for i, m in enumerate(measured(true_cpu)):
        (tmp_path / f"{i}.json").write_text(write(m), encoding="utf-8")
    done = CliRunner().invoke(main, [str(tmp_path), "-o", str(tmp_path / "mine.toml")])
    assert done.exit_code == 0, done.output
    device = gpu_specs.read(tmp_path / "mine.toml")
    lines = device.lines
    assert {"Conv/FC", "Norm", "Pool S>1", "ReLU/Drop", "Loss"} <= {name for name, _, _ in lines.forward}
    assert all(b0 >= 0 and b1 >= 0 and b0 + b1 > 0 for _, b0, b1 in lines.forward)
    assert not lines.backward and lines.half_width and "onnxperf.lab.lines" in lines.source
    assert device.corrections.host == pytest.approx(CPU.host, rel=0.15)
    run = run_of(Request(str(ALEXNET), terms={"runtime": "ort-cpu"}), device)
    assert 0 < summarise(compared(run, "linear")).seconds < 100


def test_a_folder_that_cannot_be_used_ends_in_one_sentence(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [str(tmp_path), "-o", str(tmp_path / "mine.toml")])
    assert done.exit_code == 2 and "holds no file (*.json) of `onnxperf measure`" in done.output
    done = CliRunner().invoke(main, [str(tmp_path), "-o", str(tmp_path / "mine.txt")])
    assert done.exit_code == 2 and "ends in .toml" in done.output
