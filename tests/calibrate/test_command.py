"""`onnxperf calibrate` as users meet it: from recorded files, on this processor, and where something is in the way."""

import io
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import gpu_specs
from gpu_specs import Corrections, Device, Rates
from onnxperf import cli
from onnxperf.calibrate import measurements, rounds, show
from onnxperf.calibrate.corrections import Calibration, Row
from onnxperf.calibrate.kinds import KINDS
from onnxperf.calibrate.rows import Dropped
from onnxperf.calibrate.suite import Case, cpu_suite
from onnxperf.graph.microbenchmarks import SingleOperator, is_wrapper, separate_model
from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.measure.files import read, write
from onnxperf.measure.record import Copies, Measurement
from tests.calibrate.conftest import measured, predicted
from tests.goldens import exactly

TINY = Case(
    "tiny",
    separate_model("tiny", [SingleOperator(f"add {n}", "Add", ((n,), (n,))) for n in (10**4, 10**5, 10**6)]),
    0.1,
)


def run(*arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line."""
    monkeypatch.setattr(sys, "argv", ["onnxperf", "calibrate", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def calibrate(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run(*arguments, capsys=capsys, monkeypatch=monkeypatch)


@pytest.fixture(scope="module")
def on_a_card() -> tuple[Measurement, ...]:
    """The suite on a T4 that is slower than its datasheet, and one with copies."""
    found = measured(replace(gpu_specs.load("t4"), corrections=Corrections(compute=1.2, host=1.5)))
    return (replace(found[0], copies=Copies(5e-3, 4e-3, 32 * 10**6, 32 * 10**6)), *found[1:])


def put(folder: Path, measurements: tuple[Measurement, ...]) -> Path:
    folder.mkdir(exist_ok=True)
    for i, m in enumerate(measurements):
        (folder / f"{i}.json").write_text(write(m), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_from_recorded_files_of_a_card(calibrate, on_a_card: tuple[Measurement, ...], tmp_path: Path) -> None:
    folder = put(tmp_path / "runs", on_a_card)
    (folder / "other.json").write_text('{"schema_version": 1}', encoding="utf-8")
    (folder / "notes.txt").write_text("nothing", encoding="utf-8")
    code, out, _ = calibrate("--from", "runs", "--json", "found.json")
    assert code == 0
    assert "written to t4-here.toml" in out and "other.json" in out
    card = gpu_specs.load(tmp_path / "t4-here.toml")
    assert card.corrections.compute > 1.0 and card.corrections.host > 1.2
    assert f"{len(on_a_card)} files" in card.corrections.source and "1.31.1" in card.corrections.source
    assert card.pcie_Bps == pytest.approx(32e6 / 4e-3, rel=0.4)
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["corrections"]["compute"] == pytest.approx(card.corrections.compute, rel=1e-4)
    assert found["error_after"] < found["error_before"]
    assert len(found["rows"]) == len(on_a_card)
    p = predicted(TINY.model, card)
    assert {k.source for k in p.kernels} == {"calibrated"}
    put(tmp_path / "few", on_a_card[:12])
    assert calibrate("--from", "few")[0] == 0  # a device file may be replaced
    assert "12 files" in gpu_specs.load(tmp_path / "t4-here.toml").corrections.source


@pytest.mark.slow
def test_from_recorded_files_of_a_processor_elsewhere(calibrate, nominal_cpu: Device, tmp_path: Path) -> None:
    put(tmp_path / "runs", measured(nominal_cpu))
    code, out, _ = calibrate("--from", "runs", "-o", "theirs.toml", "--json", "-")
    assert code == 0
    found = gpu_specs.load(tmp_path / "theirs.toml")
    assert (found.kind, found.name) == ("cpu", nominal_cpu.name)
    assert json.loads(out)["error_after"] < 0.05


@pytest.mark.slow
def test_measurements_of_several_devices_are_refused(
    calibrate, on_a_card: tuple[Measurement, ...], nominal_cpu: Device, tmp_path: Path
) -> None:
    put(tmp_path / "runs", (on_a_card[0], *measured(nominal_cpu)[:1]))
    code, out, err = calibrate("--from", "runs")
    assert (code, out) == (2, "")
    assert "Tesla T4" in err and nominal_cpu.name in err
    assert not list(tmp_path.glob("*.toml"))


@pytest.mark.parametrize(
    "files, says",
    [
        ({}, "holds no file"),
        ({"a.json": "[" * 100_000}, "are nested too deeply"),
        ({"a.json": "\x00\x1b[31m"}, "not JSON"),
        ({"a.json": '{"schema_version": 1e999}'}, "schema_version"),
    ],
)
def test_folders_without_measurements(calibrate, files: dict[str, str], says: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name, content in files.items():
        (tmp_path / "runs" / name).write_text(content, encoding="utf-8")
    code, out, err = calibrate("--from", "runs")
    assert (code, out) == (2, "")
    assert says in err and "\x1b" not in err and len(err.splitlines()) == 1


def test_a_card_out_of_the_catalogue_is_refused(calibrate, on_a_card: tuple[Measurement, ...], tmp_path: Path) -> None:
    m = on_a_card[0]
    put(tmp_path / "runs", (replace(m, place=replace(m.place, id="", name="NVIDIA Nothing")),))
    code, _, err = calibrate("--from", "runs")
    assert code == 2 and "NVIDIA Nothing is not in the catalogue" in err


def test_a_measurement_names_a_card_but_no_file(calibrate, on_a_card: tuple[Measurement, ...], tmp_path: Path) -> None:
    secret = tmp_path / "secret.toml"
    secret.write_text("precious", encoding="utf-8")
    place = replace(on_a_card[0].place, id=str(secret), name="NVIDIA Nothing")
    put(tmp_path / "runs", (replace(on_a_card[0], place=place),))
    code, _, err = calibrate("--from", "runs")
    assert code == 2 and "NVIDIA Nothing is not in the catalogue" in err and "secret" not in err


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("--from", "runs", "--provider", "cpu"), "leave --provider"),
        (("--from", "runs", "--keep", "kept"), "leave --provider"),
        (("--from", "nowhere"), "--from nowhere: no such folder"),
        (("-o", "out.txt"), "ends in .toml"),
        (("-o", "mine.toml"), "is not a file of that kind"),
        (("-o", "no/such/folder.toml"), "there is no folder"),
        (("--json", ""), "name of a file"),
        (("--keep", "mine.toml"), "mine.toml"),
    ],
)
def test_requests_that_are_refused_before_anything_runs(calibrate, arguments, says, tmp_path, monkeypatch) -> None:
    (tmp_path / "mine.toml").write_text("precious = true\n", encoding="utf-8")
    monkeypatch.setattr(measurements, "measure", lambda job: pytest.fail("it ran"))
    if arguments[0] != "--from":
        arguments = ("--provider", "cpu", *arguments)
    code, out, err = calibrate(*arguments)
    assert (code, out) == (2, "") and says in err
    assert (tmp_path / "mine.toml").read_text(encoding="utf-8") == "precious = true\n"


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is an NVIDIA GPU")
def test_no_gpu_to_calibrate(calibrate) -> None:
    code, out, err = calibrate("--provider", "cuda")
    assert (code, out) == (4, "") and len(err.splitlines()) == 1


@pytest.mark.slow
def test_this_processor(calibrate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    broken = Case("broken", b"no model", 0.1)
    monkeypatch.setitem(KINDS, "cpu", replace(KINDS["cpu"], suite=lambda device: (broken, TINY)))
    measure = measurements.measure
    monkeypatch.setattr(measurements, "measure", lambda job: replace(measure(job), warnings=()))
    monkeypatch.setattr(rounds, "AGREE", math.inf)  # whatever else runs on the machine that tests this
    code, out, _ = calibrate("--provider", "cpu", "--keep", "kept")
    assert code == 0 and "written to this-cpu.toml" in out
    assert gpu_specs.load(tmp_path / "this-cpu.toml").corrections.operators["Add"] > 0
    (kept,) = (tmp_path / "kept").iterdir()
    assert {o.name for o in read(kept).operators if not is_wrapper(o.name)} == {
        "add 10000",
        "add 100000",
        "add 1000000",
    }
    assert calibrate("--from", "kept", "-o", "again.toml")[0] == 0
    once, again = (gpu_specs.load(tmp_path / f"{name}.toml") for name in ("this-cpu", "again"))
    assert again.corrections.operators == once.corrections.operators


def test_the_first_failure_is_told_where_every_case_fails(nominal_cpu: Device, monkeypatch) -> None:
    def fails(job: object) -> Measurement:
        raise EnvironmentFailure("no ONNX Runtime")

    monkeypatch.setattr(measurements, "measure", fails)
    failed = list[Dropped]()
    with pytest.raises(EnvironmentFailure, match="no ONNX Runtime"):
        measurements.measured(nominal_cpu, None, failed)
    assert len(failed) == len(cpu_suite())


@pytest.mark.slow
def test_suites_are_models_that_can_be_predicted(nominal_cpu: Device) -> None:
    names = set()
    for d in (nominal_cpu, *map(gpu_specs.load, ("a100-sxm4-40gb", "p100-pcie-16gb", "orin-nano-8gb"))):
        for case in KINDS[d.kind].suite(d):
            p = predicted(case.model, d, case.precision)
            assert not [k.name for k in p.kernels if k.source == "assumed"], case.name
            assert len(case.model) < 10**6 and p.memory.total_bytes < 0.5 * d.capacity_bytes
            names.add((d.id, case.name))
    assert len(names) > 60


def test_copies_show_the_rate_of_the_link(on_a_card: tuple[Measurement, ...]) -> None:
    rate = measurements.host_link(on_a_card)
    assert rate is not None and rate == pytest.approx(32e6 / 4e-3, rel=0.4)
    small = replace(on_a_card[0], copies=Copies(1e-6, 1e-6, 1000, 1000))
    assert measurements.host_link([small, on_a_card[1]]) is None


def test_the_table(nominal_cpu: Device) -> None:
    corrections = Corrections(
        compute=1.2, memory=0.8, host=2.0, operators=Rates((("Conv", 1.5), ("Gemm", 0.9))), half_width=0.25
    )
    rows = (
        Row("[bold]m\x1b", "a", "Conv", 1e-3, 0.6e-3, 0.95e-3),
        Row("m", "b", "Conv", 2e-3, 1.6e-3, 2.1e-3),
        Row("m", "c", "Gemm", 1e-4, 1.2e-4, 1.1e-4),
        Row("n", "the whole run", "", 1e-2, 1.2e-2, 1.1e-2),
    )
    dropped = (Dropped("m", "d", 1e-5, "it is [red]odd\x1b"), Dropped("m", "e", 1e-5, "it is [red]odd\x1b"))
    found = Calibration(replace(nominal_cpu, bandwidth_Bps=15e9, corrections=corrections), nominal_cpu, rows, dropped)
    text = io.StringIO()
    show.show(Console(file=text, width=110), found, None)
    exactly("calibrate.txt", text.getvalue())
