"""Limits inside a pipeline: `onnxperf check`, the hook of pre-commit, the GitHub Action."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import onnxperf
from onnxperf import cli
from onnxperf.cli import MODULES
from onnxperf.ground.tables import duration
from onnxperf.views.pull_request import table

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
RESNET, MOBILENET = (str(ROOT / "samples" / f"{name}.onnx") for name in ("resnet50", "mobilenetv2"))
COMMAND = shutil.which("onnxperf", path=sysconfig.get_path("scripts"))
OPEN = str(ROOT / "samples" / "gpt2-dynamic.onnx")


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Exit code, lines of stdout and stderr of `onnxperf check`."""

    def run(*arguments: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["onnxperf", "check", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out.splitlines(), err

    return run


def test_a_line_for_every_model(check) -> None:
    code, lines, err = check(RESNET, MOBILENET, "--gpu", "t4", "--max-latency", "2ms", "--max-memory", "1GB")
    assert code == 1
    over, ok = lines
    slowest = max(onnxperf.predict(RESNET, gpu="t4").kernels, key=lambda k: k.seconds)
    assert over.startswith("over ") and RESNET in over and "over the limit of 2 ms" in over and slowest.name in over
    assert ok.startswith("ok ") and ok.endswith(f"  {MOBILENET}")
    assert err == "onnxperf: 1 of 2 models over the limit\n"


def test_the_lines_as_json(check, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    code, lines, err = check(MOBILENET, RESNET, str(bad), "--gpu", "t4", "--max-latency", "2ms", "--json", "-")
    found = json.loads("\n".join(lines))
    assert [x["verdict"] for x in found] == ["ok", "over", "error"] and "1 of 3 models can't be used, 1 over" in err
    assert code == 3 and [x["model"] for x in found] == [MOBILENET, RESNET, str(bad)]
    p = onnxperf.predict(RESNET, gpu="t4")
    assert (found[1]["seconds"], found[1]["process_bytes"]) == (p.seconds, p.memory.reserved_bytes)
    assert "over the limit of 2 ms" in found[1]["reason"] and found[0]["reason"] == "" and found[2]["seconds"] is None
    code, lines, _ = check(MOBILENET, "--gpu", "t4", "--max-latency", "1s", "--json", str(tmp_path / "found.json"))
    assert code == 0 and lines[0].startswith("ok ")
    assert json.loads((tmp_path / "found.json").read_text())[0]["gpu"] == "t4"


def test_limits_that_hold(check) -> None:
    assert check(RESNET, "--gpu", "t4", "--max-latency", "1s")[0::2] == (0, "")
    assert check(RESNET, "--gpu", "t4", "--max-memory", "10GB")[0::2] == (0, "")
    assert check(RESNET, "--gpu", "t4", "--max-memory", "10MB")[0] == 1


def test_the_options_of_predict_count(check) -> None:
    limits = ("--gpu", "t4", "--max-latency", "3500us")
    assert check(RESNET, *limits)[0] == 1
    assert check(RESNET, *limits, "--precision", "fp16")[0] == 0
    code, (line,), _ = check(OPEN, "--gpu", "t4", "--max-latency", "1s", "--dim", "sequence=8", "--batch", "2")
    assert code == 0
    assert duration(onnxperf.predict(OPEN, gpu="t4", dims={"sequence": 8}, batch=2).seconds) in line


@pytest.mark.parametrize("cards", [("--gpu", "l4", "--gpu", "t4"), ("--gpu", "l4,t4")])
def test_every_card_is_checked(check, cards: tuple[str, ...]) -> None:
    code, lines, err = check(MOBILENET, RESNET, *cards, "--max-latency", "2ms")
    assert code == 1
    assert [line.split()[0] for line in lines] == ["ok", "ok", "ok", "over"]
    assert [line.partition(":")[0].split()[-2:] for line in lines] == [
        ["l4", MOBILENET], ["t4", MOBILENET], ["l4", RESNET], ["t4", RESNET]
    ]  # fmt: skip
    assert err == f"onnxperf: 1 of 4 predictions over the limit, the worst {RESNET} on t4 at batch 1\n"
    code, lines, err = check(RESNET, "--gpu", "l4,t5", "--max-latency", "2ms")
    assert (code, lines) == (2, []) and "unknown gpu 't5'" in err


def test_every_batch_is_checked(check) -> None:
    """On every card; the worst is the one that takes most of what it may, in time or memory."""
    cards, batches = ("l4", "t4"), (1, 2, 4)
    runs = {(g, n): onnxperf.predict(RESNET, gpu=g, batch=n) for g in cards for n in batches}
    cases = ("--gpu", "l4,t4", "--batch", "1,2,4")
    code, lines, err = check(RESNET, *cases, "--max-latency", "4ms", "--max-memory", "600MB")
    over = {case: max(p.seconds / 4e-3, p.memory.reserved_bytes / 6e8) for case, p in runs.items()}
    assert [line.split()[0] for line in lines] == ["over" if over[case] > 1 else "ok" for case in runs]
    assert all(f"  batch {n}  {g}  {RESNET}" in line for line, (g, n) in zip(lines, runs, strict=True))
    gpu, batch = max(over, key=over.__getitem__)
    count = sum(x > 1 for x in over.values())
    assert (code, 1 < count < 6) == (1, True)
    assert err == f"onnxperf: {count} of 6 predictions over the limit, the worst {RESNET} on {gpu} at batch {batch}\n"
    code, lines, err = check(RESNET, *cases, "--max-latency", "1s", "--json", "-")
    found = json.loads("\n".join(lines))
    assert (code, err) == (0, "")
    assert [(x["gpu"], x["batch"], x["seconds"]) for x in found] == [(*case, p.seconds) for case, p in runs.items()]
    code, lines, err = check(RESNET, "none.onnx", "--gpu", "t4", "--batch", "1,2", "--max-latency", "1s")
    assert code == 2 and [line.split()[0] for line in lines] == ["ok", "ok", "error", "error"]
    assert "2 of 4 predictions can't be used" in err and all("no such file" in line for line in lines[2:])


@pytest.mark.parametrize("count", [1, 2])
def test_operators_that_are_assumed_are_counted(check, tmp_path: Path, count: int) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64]) for n in "xy")
    names = ["x", "y"] if count == 1 else ["x", "z", "y"]
    nodes = [helper.make_node("Unheard", [a], [b], domain="my.domain") for a, b in pairwise(names)]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("my.domain", 1)]
    path = tmp_path / "unknown.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets), path)
    asked = (str(path), "--gpu", "l4", "--max-latency", "1s")
    says = f"{'1 operator is' if count == 1 else '2 operators are'} assumed: unknown work, timed by the bytes alone"
    code, (line,), _ = check(*asked)
    assert code == 0 and line.startswith("ok ") and line.endswith(f": {says}")
    code, lines, _ = check(*asked, "--markdown")
    assert code == 0 and says in rendered("\n".join(lines))[1][1][-1]
    code, lines, _ = check(*asked, "--json", "-")
    assert code == 0 and json.loads("\n".join(lines))[0]["assumed_operators"] == count


def test_a_model_that_does_not_fit_is_over_any_limit(check, tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 65536]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [TensorProto(name="w", data_type=1, dims=[65536, 65536])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    code, (line,), _ = check(str(path), "--gpu", "t4", "--max-latency", "100s")
    assert code == 1 and "does not fit: 17.6 GB are needed, and the card has 16.1 GB" in line
    with pytest.raises(onnxperf.BudgetExceeded, match="does not fit"):
        onnxperf.check(path, gpu="t4", max_ms=1e6)
    with pytest.raises(onnxperf.BudgetExceeded, match="the worst on t4 at batch 1: it does not fit"):
        onnxperf.check(path, gpu=["a100-80gb", "t4"], max_ms=1e6)
    assert len(onnxperf.check(path, gpu=["a100-80gb", "h100"], max_ms=1e6)) == 2


def test_the_largest_batch_within_a_latency(check, tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 65536]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "wide.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    code, (line,), _ = check(str(path), "--gpu", "l4", "--fit", "--max-latency", "1ms")
    n = onnxperf.predict(path, gpu="l4", fit=True, max_ms=1).scenario.batch
    assert code == 0 and n > 8 and f"  batch {n}  " in line
    code, (line,), _ = check(str(path), "--gpu", "l4", "--fit", "--max-latency", "1us")
    assert code == 1 and "  batch 1  " in line and "is over the limit of 1 us" in line


def test_memory_is_what_the_process_holds(check) -> None:
    m = onnxperf.predict(RESNET, gpu="t4").memory
    between = (m.total_bytes + m.reserved_bytes) / 2e6
    code, (line,), _ = check(RESNET, "--gpu", "t4", "--max-memory", f"{between:.0f}MB")
    assert code == 1 and "GPU memory use of" in line


def test_a_size_goes_to_the_models_that_have_its_name(check) -> None:
    limits = ("--gpu", "t4", "--max-latency", "1s")
    code, lines, _ = check(RESNET, OPEN, *limits, "--dim", "sequence=64", "--dim", "batch=2")
    assert code == 0 and [line.split()[0] for line in lines] == ["ok", "ok"]
    assert duration(onnxperf.predict(OPEN, gpu="t4", dims={"sequence": 64, "batch": 2}).seconds) in lines[1]
    code, lines, _ = check(RESNET, OPEN, *limits, "--dim", "sequence=64", "--dim", "bach=2")
    assert code == 2 and "no dimension 'bach'" in lines[0] and "no dimension 'bach'" in lines[1]


def test_what_can_not_be_used_is_told_after_the_others(check, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"none")
    code, lines, err = check(str(broken), OPEN, RESNET, "--gpu", "t4", "--max-latency", "2ms")
    assert code == 3
    assert [line.split()[0] for line in lines] == ["error", "error", "over"]
    assert "is not an ONNX model" in lines[0] and "--dim sequence=128" in lines[1]
    assert err == "onnxperf: 2 of 3 models can't be used, 1 over the limit\n"
    code, lines, _ = check(RESNET, str(tmp_path / "none.onnx"), "--gpu", "t4", "--max-latency", "1s")
    assert code == 2 and lines[1].endswith(f"  {tmp_path / 'none.onnx'}: no such file")


@pytest.mark.parametrize(
    "arguments, says",
    [
        ((RESNET, "--gpu", "t4"), "there is no limit to check"),
        (("--gpu", "t4", "--max-latency", "8ms"), "Missing argument 'MODEL...'"),
        ((RESNET, MOBILENET, "--gpu", "t5", "--max-latency", "8ms"), "unknown gpu 't5'"),
        ((RESNET, "--gpu", "t4", "--max-latency", "8"), "write a number and a unit"),
        ((RESNET, "--max-latency", "8ms"), "--gpu"),
        ((RESNET, "--gpu", ",", "--max-latency", "8ms"), "--gpu names no card"),
    ],
)
def test_a_request_that_is_wrong_is_told_once(check, arguments: tuple[str, ...], says: str) -> None:
    code, lines, err = check(*arguments)
    assert (code, lines) == (2, [])
    assert err.count(says) == 1


@pytest.mark.slow
def test_limits_hold_though_nobody_reads(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    arguments = ["check", RESNET, RESNET, "--gpu", "t4", "--max-latency", "2ms"]
    done = subprocess.run(
        [sys.executable, "-m", "onnxperf", *arguments], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "onnxperf: 2 of 2 models over the limit\n")


def test_names_of_files_cannot_make_lines(check, tmp_path: Path) -> None:
    path = tmp_path / "a\n::error::b\x1b[2J.onnx"
    shutil.copy(MOBILENET, path)
    _, lines, _ = check(str(path), "--gpu", "t4", "--max-latency", "1s")
    assert len(lines) == 1 and "\x1b" not in lines[0] and not lines[0].startswith("::")


def test_the_hook_names_a_command_that_is_there() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    program, command = hook["entry"].split()
    assert program == "onnxperf" and command in MODULES
    assert (hook["id"], hook["language"], hook["files"]) == ("onnxperf-check", "python", r"\.onnx$")


def hook_arguments() -> list[str]:
    """What the page on CI gives the hook."""
    page = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```yaml\n(.*?)```", page, re.S) if "onnxperf-check" in b)
    return yaml.safe_load(block)["repos"][0]["hooks"][0]["args"]


@pytest.mark.parametrize("name", ["--json=other.onnx", "--debug.onnx", "-h.onnx"])
def test_the_hook_takes_no_name_of_a_file_for_an_option(
    check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    arguments = hook_arguments()  # pre-commit runs the entry, these, and the names of files, in this order
    assert ", ".join(arguments) in hook["description"]
    monkeypatch.chdir(tmp_path)
    shutil.copy(MOBILENET, "other.onnx")
    shutil.copy(MOBILENET, name)
    before = Path("other.onnx").read_bytes()
    code, lines, err = check(*arguments, name, "other.onnx")
    assert (code, [line.split("  ")[-1] for line in lines]) == (0, [name, "other.onnx"]), err
    assert Path("other.onnx").read_bytes() == before


def test_an_option_that_is_the_name_of_a_file_is_refused(
    check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(MOBILENET, "other.onnx")
    Path("--json=new.json").touch()
    limit = ("--gpu", "t4", "--max-latency", "1s")
    code, lines, err = check(*limit, "--json=new.json", "other.onnx")  # a shell writes it so for *
    assert (code, lines) == (2, []) and "--json=new.json is an option, and the name of a file here" in err
    assert Path("--json=new.json").read_bytes() == b"" and not Path("new.json").exists()
    assert check(*limit, "--json=new.json", "--", "other.onnx")[0] == 0 and Path("new.json").exists()


ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


CHECK, COMMENT = ACTION["runs"]["steps"][1:]


def run_step(step: dict[str, Any], folder: Path, more: dict[str, str], **inputs: str) -> tuple[int, str]:
    """Exit code and output of a step of the action, run as a runner does: in `folder`, under its bash."""
    given = {name: inputs.get(name.replace("-", "_"), about.get("default")) for name, about in ACTION["inputs"].items()}
    assert None not in given.values(), "what is required is given"
    env = {name: given[text.removeprefix("${{ inputs.").removesuffix(" }}")] for name, text in step["env"].items()}
    (temp := folder / ".temp").mkdir(exist_ok=True)
    script = temp / "script.sh"
    script.write_text(step["run"], encoding="utf-8")
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        env={**os.environ, **env, "ONNXPERF": COMMAND or "", "RUNNER_TEMP": str(temp), **more},
        capture_output=True, text=True, cwd=folder, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def run_action(folder: Path, **inputs: str) -> tuple[int, str, str]:
    """Exit code, output and summary of the step that checks."""
    summary = folder / ".temp" / "summary.md"
    code, out = run_step(CHECK, folder, {"GITHUB_STEP_SUMMARY": str(summary)}, **inputs)
    return code, out, summary.read_text(encoding="utf-8") if summary.exists() else ""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with models, some of them with odd names."""
    deep = tmp_path / "exported" / "deep er"
    deep.mkdir(parents=True)
    shutil.copy(RESNET, tmp_path / "exported" / "a model.onnx")
    shutil.copy(MOBILENET, deep / "$(touch hacked).onnx")
    shutil.copy(MOBILENET, tmp_path / "--help.onnx")
    (tmp_path / "--gpu").touch()
    return tmp_path


needs_bash = pytest.mark.skipif(
    os.name != "posix" or not shutil.which("bash") or not COMMAND, reason="needs bash and the command"
)


@pytest.mark.slow
@needs_bash
def test_the_action_passes_and_tells_of_every_model(checkout: Path) -> None:
    models, arguments = "exported/**/*.onnx\n*.onnx\n", "--precision fp16\n --cuda-graph\n"
    code, out, summary = run_action(checkout, models=models, gpu="t4", max_latency="1s", arguments=arguments)
    assert code == 0, out
    shown = [line for line in summary.splitlines() if line.startswith("| ok ")]
    assert [html.unescape(line.split(" | ")[1]) for line in shown] == [
        f"<code>{name}</code>"
        for name in ("exported/a model.onnx", "exported/deep er/$(touch hacked).onnx", "--help.onnx")
    ]
    assert all(line in out for line in shown) and "```" not in summary


@pytest.mark.slow
@needs_bash
def test_the_action_fails_where_a_limit_is_exceeded(checkout: Path) -> None:
    code, out, summary = run_action(checkout, models="exported/a model.onnx", gpu="t4", max_memory="1MB")
    assert code == 1
    assert "over the limit of 1 MB" in summary and "over the limit of 1 MB" in out
    assert summary.endswith("\n```\nonnxperf: 1 of 1 models over the limit\n```\n")


@pytest.mark.slow
@needs_bash
@pytest.mark.parametrize(
    "inputs, says",
    [
        ({"models": "none/*.onnx", "gpu": "t4", "max_latency": "1s"}, "none/*.onnx"),
        ({"models": "--help.onnx", "gpu": "t4"}, "there is no limit to check"),
        (
            {"models": "none.onnx", "gpu": "t4", "max_latency": "1s"},
            "<code>none.onnx</code> | - | - | <code>no such file</code>",
        ),
        ({"models": "*.onnx", "gpu": "$(touch hacked)", "max_latency": "1s"}, "unknown gpu '$(touch hacked)'"),
        ({"models": "*.onnx\n$(touch hacked)", "gpu": "t4", "max_latency": "`touch hacked`"}, "is not a duration"),
        ({"models": "*.onnx", "gpu": "t4", "max_latency": "1s", "arguments": "; touch hacked"}, "no such"),
    ],
)
def test_inputs_of_the_action_are_data(checkout: Path, inputs: dict[str, str], says: str) -> None:
    code, out, _ = run_action(checkout, **inputs)
    assert code == 2
    assert says in html.unescape(out)
    assert not [p for p in checkout.rglob("*") if p.name == "hacked"]


def test_no_input_of_the_action_stands_in_a_script() -> None:
    steps: list[dict[str, Any]] = ACTION["runs"]["steps"]
    assert ACTION["runs"]["using"] == "composite"
    assert all("${{" not in step["run"] and step["shell"] == "bash" for step in steps)
    used = {text for step in steps for text in step.get("env", {}).values()}
    assert used == {f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"] if name != "comment"}
    assert COMMENT["if"] == "${{ !cancelled() && inputs.comment == 'true' }}"


HOSTILE = "a`|\\|<img src=x onerror=alert(1)>**b**[c](http://d)@octocat #1 www.e.com ![f](g) _h_ ~~i~~ &lt; \n| j |"


def rendered(text: str) -> tuple[set[str], list[list[str]]]:
    """The tags of a page in Markdown with tables, and the cells of its one table."""
    from html.parser import HTMLParser

    from markdown_it import MarkdownIt

    tags, cells = set[str](), list[list[str]]()

    class Page(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            tags.add(tag)
            assert not [name for name, _ in attrs if name != "style"]
            if tag == "tr":
                cells.append([])
            if tag in ("td", "th"):
                cells[-1].append("")

        def handle_data(self, data: str) -> None:
            if cells and cells[-1] and data.strip():
                cells[-1][-1] += data

    Page().feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))
    return tags, cells


def slower(path: Path, times: int) -> None:
    """A model of so many products."""
    names = ["x", *(f"y{i}" for i in range(times))]
    nodes = [helper.make_node("MatMul", [a, "w"], [b], name=f"p{i}") for i, (a, b) in enumerate(pairwise(names))]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [512, 1024]) for n in ("x", names[-1]))
    graph = helper.make_graph(nodes, "g", [x], [y], [TensorProto(name="w", data_type=1, dims=[1024, 1024])])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)


@pytest.fixture
def request_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pull request: of four models one is slower than in the base branch, one as before, one new, one broken."""
    for name, before, after in (("slow", 4, 5), ("same", 2, 2), ("new", 0, 1), ("broken", 0, 0)):
        slower(tmp_path / "m" / f"{name}.onnx", after or 1)
        if before:
            slower(tmp_path / "base" / "m" / f"{name}.onnx", before)
    (tmp_path / "m" / "broken.onnx").write_bytes(b"none")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_models_are_compared_with_those_before(check, request_of: Path) -> None:
    every = [f"m/{name}.onnx" for name in ("same", "new", "slow")]
    code, lines, err = check(*every, "--gpu", "t4", "--against", "base", "--fail-above", "5%")
    assert code == 1 and err == "onnxperf: 1 of 3 models over the limit\n"
    assert [line.split()[0] for line in lines] == ["ok", "ok", "over"]
    assert (
        "  +0.0%  " in lines[0]
        and "  new  " in lines[1]
        and "slower than before by more than 5%; 1 Gemm (only now) +" in lines[2]
    )
    code, lines, _ = check(*every, "--gpu", "t4", "--against", "base", "--json", "-")
    same, new, slow = json.loads("\n".join(lines))
    times = [onnxperf.predict(f"{folder}m/slow.onnx", gpu="t4").seconds for folder in ("base/", "")]
    assert code == 0 and [slow["before_seconds"], slow["seconds"]] == times
    assert slow["change"] == times[1] / times[0] - 1 > 0.05 and same["change"] == 0.0
    assert slow["cause"].startswith("1 Gemm (only now) +") and same["cause"] == new["cause"] == slow["reason"] == ""
    assert (new["before"], new["change"], slow["before"]) == (None, None, str(Path("base", "m", "slow.onnx")))
    code, (line,), _ = check("m/slow.onnx", "--gpu", "t4", "--against", "base/m/same.onnx", "--fail-above", "5%")
    assert code == 1 and "slower than before" in line
    assert check("m/slow.onnx", "--gpu", "t4", "--against", "base", "--fail-above", "50%")[0] == 0
    code, lines, err = check(*every, "--gpu", "t4", "--against", "base", "--fail-above", "0")
    assert code == 1 and err == "onnxperf: 1 of 3 models over the limit\n" and lines[2].startswith("over ")
    assert "m/slow.onnx: slower than before; 1 Gemm (only now) +" in lines[2]


def test_a_table_in_markdown_has_failures_first(check, request_of: Path) -> None:
    every = [f"m/{name}.onnx" for name in ("same", "new", "slow", "broken")]
    code, lines, _ = check(*every, "--gpu", "t4", "--against", "base", "--fail-above", "5%", "--markdown")
    tags, cells = rendered("\n".join(lines))
    assert code == 3 and lines[0] == "**4 models: 1 over the limit, 1 can't be used**"
    assert lines[-1] == "Accuracy: <code>t4</code> inferred."
    assert tags == {"p", "strong", "table", "thead", "tbody", "tr", "th", "td", "code"}
    assert cells[0] == ["verdict", "model", "before", "after", "change", "GPU memory", "why"]
    assert [row[:2] for row in cells[1:]] == [
        ["error", "m/broken.onnx"], ["over", "m/slow.onnx"], ["ok", "m/same.onnx"], ["ok", "m/new.onnx"]
    ]  # fmt: skip
    assert cells[2][4].startswith("+") and cells[4][2] == "new" and "not an ONNX model" in cells[1][6]


def test_names_can_not_act_in_markdown() -> None:
    line = {"model": HOSTILE, "gpu": HOSTILE, "seconds": 1.0, "process_bytes": 1, "batch": 1, "verdict": "over"}
    line["accuracy"] = "inferred"
    many = [line | {"reason": HOSTILE * 20}, line | {"gpu": "t4", "reason": ""}]
    text = table(many, False)
    tags, cells = rendered(text)
    assert tags == {"p", "strong", "table", "thead", "tbody", "tr", "th", "td", "code"}
    assert all(len(row) == 6 for row in cells) and cells[1][1] == HOSTILE.replace("\n", "\N{REPLACEMENT CHARACTER}")
    assert not re.search(r"@|#\d+[^;\d]|://|www\.|<(?!/?code>)|\*\*b", text)
    assert len(table(many * 500, False)) < 65_536


FAKE_GH = """#!/bin/bash
printf '%s\\n' "$*" >> "$CALLS"
for word; do case $word in body=@*) cp "${word#body=@}" "$POSTED";; esac; done
case " $* " in *" --jq "*) cat "$COMMENTS";; esac
exit ${FAILS:-0}
"""


@pytest.mark.slow
@needs_bash
def test_the_action_keeps_one_comment_on_a_pull_request(request_of: Path) -> None:
    (programs := request_of / "bin").mkdir()
    (programs / "gh").write_text(FAKE_GH, encoding="utf-8")
    (programs / "gh").chmod(0o755)
    files = {name: request_of / name.lower() for name in ("CALLS", "POSTED", "COMMENTS")}
    files["COMMENTS"].touch()
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}", "GITHUB_REPOSITORY": "o/r", "GITHUB_REF": "refs/pull/12/merge",
        "GITHUB_WORKFLOW": "ci", "GITHUB_JOB": "check", **{name: str(path) for name, path in files.items()},
    }  # fmt: skip
    asked = {"models": "m/s*.onnx", "gpu": "t4", "base": "base", "arguments": "--fail-above 5%"}
    code, _, summary = run_action(request_of, **asked)
    assert code == 1 and "slower than before" in summary
    assert run_step(COMMENT, request_of, env, **asked) == (0, "")
    posted = files["POSTED"].read_text(encoding="utf-8")
    mark, _, text = posted.partition("\n\n")
    assert re.fullmatch(r"<!-- onnxperf check [0-9]+ -->", mark) and summary.startswith(text)
    read, post = files["CALLS"].read_text().splitlines()
    assert "--paginate repos/o/r/issues/12/comments --jq" in read and mark in read and "Bot" in read
    assert post.startswith("api --silent --method POST repos/o/r/issues/12/comments ")
    files["COMMENTS"].write_text("77\n78\n")
    assert run_step(COMMENT, request_of, env, **asked)[0] == 0
    assert "--method PATCH repos/o/r/issues/comments/77 " in files["CALLS"].read_text().splitlines()[-1]
    code, out = run_step(COMMENT, request_of, env | {"FAILS": "1"}, **asked)
    assert code == 0 and "::warning::" in out
    count = len(files["CALLS"].read_text().splitlines())
    code, out = run_step(COMMENT, request_of, env | {"GITHUB_REF": "refs/heads/main"}, **asked)
    assert code == 0 and "no pull request" in out and len(files["CALLS"].read_text().splitlines()) == count
