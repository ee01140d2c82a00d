"""`onnxperf measure` as users meet it: tables, files, what is kept when it ends early, exit codes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import onnxperf
from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.ground.tables import console
from onnxperf.measure import job, show, throughput
from onnxperf.measure.files import parse, read
from onnxperf.measure.record import Measurement
from onnxperf.measure.run import Interrupted
from tests.goldens import exactly
from tests.measure.conftest import parsed
from tests.test_cli import SAMPLES, run

Cli = Callable[..., tuple[int, str, str]]
ON_CPU = ("--provider", "cpu", "--iterations", "7")
GRAPH = "(float[N, 8] x) => (float[N, 8] y) <float[8, 8] w = {%s}> { h = MatMul(x, w) y = Relu(h) }"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("COLUMNS", raising=False)
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A small one, with its weights and an open batch."""
    path = tmp_path / "small.onnx"
    path.write_bytes(parsed(GRAPH % ", ".join(["0.1"] * 64)).SerializeToString())
    return str(path)


@pytest.mark.parametrize("name", ["on_a_gpu", "on_a_cpu"])
def test_the_table_looks_as_it_did(
    name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show.show(console(), request.getfixturevalue(name))
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out
    exactly(f"measure-{name.removeprefix('on_a_')}.txt", out)


@pytest.mark.parametrize("width", [60, 80])
def test_figures_are_whole_on_a_narrow_terminal(
    on_a_gpu: Measurement, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show.show(console(), on_a_gpu)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out and "1.53 ms" in out


@pytest.mark.slow
def test_a_model_is_measured_shown_and_written(cli: Cli, model: str, tmp_path: Path) -> None:
    target = tmp_path / "m.json"
    code, out, err = cli("measure", model, *ON_CPU, "--batch", "3", "--json", str(target))
    assert (code, err) == (0, "")
    assert out.startswith("small.onnx on ") and "MatMul" in out and "weights of the file" in out
    m = read(target)
    assert m.complete and len(m.device.samples) == len(m.wall.samples) == 7
    assert m.setting.inputs == (("x", (3, 8)),) and m.setting.batch == 3
    assert {o.type for o in m.operators} == {"MatMul", "Relu"}
    again = onnxperf.predict(m.subject.skeleton, gpu="l4", shapes=dict(m.setting.inputs))
    assert again.seconds == onnxperf.predict(model, gpu="l4", batch=3).seconds


@pytest.mark.slow
def test_json_alone_on_stdout_with_a_curve_over_batches(cli: Cli, model: str) -> None:
    code, out, err = cli("measure", model, *ON_CPU, "--duration", "50ms", "--batches", "4,1,2", "--json", "-")
    assert (code, err) == (0, "")
    t = parse(out).throughput
    assert t is not None and [p.batch for p in t.curve] == [1, 2, 4]
    assert t.batch in (1, 2, 4) and t.batches >= 1 and t.samples_per_second > 0


def kept(out: str, path: Path) -> Measurement:
    m = read(path)
    assert not m.complete and "interrupted" in out
    return m


def test_ctrl_c_keeps_what_was_measured(
    cli: Cli, model: str, tmp_path: Path, on_a_cpu: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> Measurement:
        e = Interrupted()
        e.measurement = on_a_cpu
        raise e

    monkeypatch.setattr(show, "measure", stop)
    code, out, err = cli("measure", model, *ON_CPU, "--json", str(tmp_path / "m.json"))
    assert (code, err.strip()) == (130, "interrupted")
    assert kept(out, tmp_path / "m.json") == on_a_cpu


@pytest.mark.parametrize("error, code", [(KeyboardInterrupt(), 130), (EnvironmentFailure("no memory"), 4)])
def test_so_does_what_goes_wrong_on_the_way_to_the_best_batch(
    cli: Cli, model: str, tmp_path: Path, on_a_cpu: Measurement, monkeypatch: pytest.MonkeyPatch,
    error: BaseException, code: int,
) -> None:  # fmt: skip
    def fail(*_: object) -> Measurement:
        raise error

    monkeypatch.setattr(show, "measure", lambda *_: replace(on_a_cpu, complete=True))
    monkeypatch.setattr(show, "measure_throughput", fail)
    found, out, _ = cli("measure", model, *ON_CPU, "--throughput", "--json", str(tmp_path / "m.json"))
    assert found == code
    assert kept(out, tmp_path / "m.json") == on_a_cpu


@pytest.mark.slow
def test_a_batch_that_the_model_is_not_made_for(cli: Cli) -> None:
    code, out, err = cli("measure", str(SAMPLES / "mobilenetv2.onnx"), *ON_CPU, "--duration", "50ms", "--batches", "2")
    assert code == 2 and "--batch 2 can't be used" in err and err.count("\n") == 1
    assert "mobilenetv2.onnx on " in out


def test_nothing_fits(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setattr(throughput, "median_s", lambda *_: None)
    with pytest.raises(EnvironmentFailure, match="batch 2 does not fit"):
        throughput.measure_throughput(job.Job(model, "cpu"), (4, 2), lambda *_: None)


@pytest.mark.parametrize(
    "options, code, says",
    [
        (("--throughput", "--batches", "1,2"), 2, "give either"),
        (("--batches", "1,,2"), 2, "not a list of batches"),
        (("--batches", "0"), 2, "not a list of batches"),
        (("--json", ""), 2, "--json needs the name"),
        (("--json", "{model}"), 2, "would overwrite"),
        (("--json", "{model}.folder/m.json"), 2, "there is no folder"),
        (("--provider", "cpu", "--precision", "tf32"), 2, "TF32"),
        (("--provider", "cpu", "--inputs", "{model}.npz"), 2, ".npz"),
        (("--shapes", "x:1xtwo"), 2, "--shapes"),
        (("--dim", "M=3"), 2, "no dimension"),
        (("--duration", "10"), 2, "not a duration"),
        (("--iterations", "0"), 2, "--iterations"),
    ],
)
def test_requests_that_can_not_be_met(cli: Cli, model: str, options: tuple[str, ...], code: int, says: str) -> None:
    found, out, err = cli("measure", model, *(o.format(model=model) for o in options))
    assert (found, out) == (code, "") and says in err and "Traceback" not in err


def test_models_that_are_not_there(cli: Cli, tmp_path: Path) -> None:
    assert cli("measure", "") == (2, "", "onnxperf: the path of MODEL is empty\n")
    code, out, err = cli("measure", str(tmp_path / "none.onnx"), *ON_CPU)
    assert (code, out) == (2, "") and "no such file" in err
    (tmp_path / "no.onnx").write_bytes(b"no model")
    assert cli("measure", str(tmp_path / "no.onnx"), *ON_CPU)[0] == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
def test_a_file_that_can_not_be_written_comes_after_the_table(
    cli: Cli, model: str, on_a_cpu: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "measure", lambda *_: on_a_cpu)
    code, out, err = cli("measure", model, *ON_CPU, "--json", "/dev/full")
    assert code == 4 and "can't write /dev/full: No space left on device" in err
    assert out.startswith("[red]model")


def test_the_schema_ships() -> None:
    schema = Path(onnxperf.__file__).parent / "measure" / "measurement.schema.json"
    assert json.loads(schema.read_text(encoding="utf-8"))["additionalProperties"] is False
