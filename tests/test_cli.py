"""The command line as users and programs meet it: output, exit codes, limits, files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpu_specs
import onnxperf
from onnxperf import cli

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "samples"
GOLDEN = Path(__file__).parent / "golden"
RESNET = str(SAMPLES / "resnet50.onnx")


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line."""
    monkeypatch.setattr(sys, "argv", ["onnxperf", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def onnxperf_cli(capsys, monkeypatch):
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


def golden(name: str, text: str) -> None:
    """Printed tables are compared with a file; run with ACCEPT=1 in the environment to accept a new form."""
    path = GOLDEN / name
    lines = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("ACCEPT"):
        path.write_text(lines, encoding="utf-8")
    assert lines == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("predict.txt", ("predict", "resnet50.onnx", "--gpu", "l4")),
        ("predict-detail.txt", ("predict", "mobilenetv2.onnx", "--gpu", "a100", "--detail", "--include-transfers")),
        (
            "predict-eager.txt",
            ("predict", "gpt2-dynamic.onnx", "--gpu", "t4", "--dim", "sequence=64", "--runtime", "torch-eager"),
        ),
        (
            "predict-roofline.txt",
            ("predict", "bert-base.onnx", "--gpu", "p4", "--method", "roofline", "--top", "3"),
        ),
        ("gpus.txt", ("gpus",)),
        ("gpus-l4.txt", ("gpus", "l4")),
    ],
)
def test_every_table_looks_as_it_did(onnxperf_cli, name: str, arguments: tuple[str, ...]) -> None:
    placed = [str(SAMPLES / a) if a.endswith(".onnx") else a for a in arguments]
    code, out, err = onnxperf_cli(*placed)
    assert (code, err) == (0, "")
    golden(name, out)


def test_json_alone_on_stdout(onnxperf_cli) -> None:
    code, out, err = onnxperf_cli("predict", RESNET, "--gpu", "l4", "--json", "-")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert answer["gpu"] == "l4"
    assert answer == onnxperf.predict(RESNET, gpu="l4").to_dict()


def test_json_file_beside_the_table(onnxperf_cli, tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    target.write_text("old")
    code, out, _ = onnxperf_cli("predict", RESNET, "--gpu", "l4", "--json", str(target))
    assert code == 0
    assert "resnet50.onnx on NVIDIA L4" in out
    assert json.loads(target.read_text())["schema_version"] == 1
    assert list(tmp_path.iterdir()) == [target]


def test_json_into_a_folder_that_is_not_there(onnxperf_cli, tmp_path: Path) -> None:
    code, _, err = onnxperf_cli("predict", RESNET, "--gpu", "l4", "--json", str(tmp_path / "no" / "a.json"))
    assert code == 4
    assert err.startswith("onnxperf: can't write") and err.count("\n") == 1


def test_flags_reach_the_prediction(onnxperf_cli) -> None:
    model = str(SAMPLES / "gpt2-dynamic.onnx")
    _, out, _ = onnxperf_cli(
        "predict", model, "--gpu", "a100", "--shapes", "input_ids:[2,64]", "--precision", "fp16",
        "--method", "sum", "--include-transfers", "--runtime", "torch-eager", "--json", "-",
    )  # fmt: skip
    wanted = onnxperf.predict(
        model, gpu="a100", shapes={"input_ids": (2, 64)}, precision="fp16", method="sum",
        include_transfers=True, runtime="torch-eager",
    )  # fmt: skip
    assert json.loads(out) == wanted.to_dict()


@pytest.mark.parametrize(
    "text, shape",
    [
        ("x:1x3x224x224", ("x", (1, 3, 224, 224))),
        ("x:1,3", ("x", (1, 3))),
        ("x:[1, 3]", ("x", (1, 3))),
        ("a:b/c:0:2x2", ("a:b/c:0", (2, 2))),
        ("scalar:", ("scalar", ())),
        ("scalar:[]", ("scalar", ())),
    ],
)
def test_shapes_are_read(text: str, shape: tuple[str, tuple[int, ...]]) -> None:
    assert cli.parse_shape(text) == shape


@pytest.mark.parametrize("text", ["x", ":1x2", "x:1x", "x:-1", "x:1.5", "x:" + "9" * 30, ""])
def test_shapes_that_say_nothing(text: str) -> None:
    if text == "x:1x":
        assert cli.parse_shape(text) == ("x", (1,))
        return
    with pytest.raises(onnxperf.UsageError):
        cli.parse_shape(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", RESNET, "--gpu", "l5"),
        ("predict", RESNET),
        ("predict", "missing.onnx", "--gpu", "l4"),
        ("predict", RESNET, "--gpu", "l4", "--dim", "batch"),
        ("predict", RESNET, "--gpu", "l4", "--dim", "batch=2"),
        ("predict", RESNET, "--gpu", "l4", "--shapes", "nothing:1x2"),
        ("predict", RESNET, "--gpu", "l4", "--precision", "fp12"),
        ("predict", RESNET, "--gpu", "l4", "--max-latency", "8"),
        ("predict", RESNET, "--gpu", "l4", "--streams", "0"),
        ("predict", RESNET, "--gpu", "l4", "--streams", "2", "--cuda-graph"),
        ("predict", str(SAMPLES / "gpt2-dynamic.onnx"), "--gpu", "l4"),
        ("gpus", "l5"),
        ("nothing",),
        ("--nothing",),
    ],
)
def test_usage_errors_exit_with_2(onnxperf_cli, arguments: tuple[str, ...]) -> None:
    code, out, err = onnxperf_cli(*arguments)
    assert (code, out) == (2, "")
    assert err and "Traceback" not in err


def test_a_limit_exceeded_names_who_is_to_blame(onnxperf_cli) -> None:
    code, out, err = onnxperf_cli(
        "predict", RESNET, "--gpu", "t4", "--max-latency", "10us", "--max-memory", "1MB", "--json", "-"
    )
    slowest = max(json.loads(out)["kernels"], key=lambda k: k["seconds"])
    assert code == 1
    assert slowest["name"] in err
    assert "over the limit of 10 us" in err and "over the limit of 1 MB" in err


def test_limits_that_hold_exit_with_0(onnxperf_cli) -> None:
    code, _, err = onnxperf_cli("predict", RESNET, "--gpu", "t4", "--max-latency", "1s", "--max-memory", "15GiB")
    assert (code, err) == (0, "")


def test_gpus_as_json(onnxperf_cli) -> None:
    _, out, _ = onnxperf_cli("gpus", "--json")
    assert {d["id"] for d in json.loads(out)} == set(gpu_specs.ids())
    _, out, err = onnxperf_cli("gpus", "a100", "--json")
    assert json.loads(out)["id"] == "a100-sxm4-80gb"
    assert "taken as a100-sxm4-80gb" in err


def test_a_card_file_of_ones_own(onnxperf_cli, tmp_path: Path) -> None:
    card = tmp_path / "mine.toml"
    card.write_text((ROOT / "gpu_specs" / "cards" / "l4.toml").read_text(encoding="utf-8"), encoding="utf-8")
    _, out, _ = onnxperf_cli("predict", RESNET, "--gpu", str(card), "--json", "-")
    mine, theirs = json.loads(out), onnxperf.predict(RESNET, gpu="l4")
    assert mine["gpu"] == "mine"
    assert mine["latency"]["seconds"] == theirs.seconds


def test_a_bug_of_ours_exits_with_70(onnxperf_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("boom\x1b[31m")

    monkeypatch.setattr("onnxperf.pipeline.answer", broken)
    code, _, err = onnxperf_cli("predict", RESNET, "--gpu", "l4")
    assert code == 70
    assert "bug" in err and "\x1b" not in err and "Traceback" not in err


def test_an_interrupt_exits_with_130(onnxperf_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnxperf.pipeline.answer", interrupted)
    assert onnxperf_cli("predict", RESNET, "--gpu", "l4")[0] == 130


def test_names_from_a_model_cannot_steer_the_terminal(onnxperf_cli, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    io = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in ("x", "y")]
    node = helper.make_node("Relu", ["x"], ["y"], name="\x1b[2J[bold red]evil\n[/]")
    model = helper.make_model(helper.make_graph([node], "g", io[:1], io[1:]))
    path = tmp_path / "evil.onnx"
    path.write_bytes(model.SerializeToString())
    code, out, err = onnxperf_cli("predict", str(path), "--gpu", "l4", "--detail", "--max-latency", "1ns")
    assert code == 1
    assert "\x1b" not in out + err
    assert "[bold red]evil" in out


def test_help_has_an_example_for_each_command() -> None:
    for command in ((), ("predict",), ("gpus",)):
        shown = CliRunner().invoke(cli.cli, [*command, "--help"])
        assert shown.exit_code == 0
        assert "Example" in shown.output


def test_python_m_and_version() -> None:
    shown = subprocess.run([sys.executable, "-m", "onnxperf", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == f"onnxperf, version {onnxperf.__version__}"
