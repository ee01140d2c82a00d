"""`onnxperf sweep` as users meet it: tables, files, plots, folders, and what it says where something is wrong."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx
import pyarrow.parquet
import pytest

from onnxperf import EnvironmentFailure, sweep
from onnxperf.sweeps import files
from onnxperf.sweeps.rows import Block, columns
from onnxperf.views.sweep import drawn
from tests.decide.models import net
from tests.goldens import golden
from tests.test_cli import run

Cli = Callable[..., tuple[int, str, str]]
GRID = ("--batch", "1,2,4,...,8", "--precision", "fp32,fp16", "--gpu", "t4,l4")
GRID_OF: Mapping[str, Sequence[object]] = {"batch": [1, 2, 4, 8], "precision": ["fp32", "fp16"], "gpu": ["t4", "l4"]}


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    onnx.save(net(), "net.onnx")
    return lambda *arguments: run(capsys, monkeypatch, "sweep", *arguments)


def test_the_grid_looks_as_it_did(cli: Cli) -> None:
    code, out, err = cli("net.onnx", "--batch", "1,8,32768,60000", "--precision", "fp32,fp8", "--gpu", "t4,p4")
    assert (code, err) == (0, "")
    golden("sweep.txt", out)


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl", ".parquet"])
def test_a_file_has_every_row(cli: Cli, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP", 5)
    code, out, err = cli("net.onnx", *GRID, "-o", f"s{suffix}")
    assert (code, err) == (0, "") and out.count("\n") == 2 + 4 + 1, "a title, and a line for each card and precision"
    wanted = [{**row, "model": "net.onnx"} for row in sweep("net.onnx", **GRID_OF).to_dicts()]  # type: ignore[arg-type]
    text = Path(f"s{suffix}")
    if suffix == ".json":
        assert json.loads(text.read_text("utf-8")) == wanted
    elif suffix == ".jsonl":
        assert [json.loads(line) for line in text.read_text("utf-8").splitlines()] == wanted
    elif suffix == ".parquet":
        assert pyarrow.parquet.read_table(text).to_pylist() == wanted
    else:
        with text.open(encoding="utf-8", newline="") as file:
            found = list(csv.DictReader(file))
        assert found == [{name: "" if x is None else str(x) for name, x in row.items()} for row in wanted]


def test_the_page_on_sweeps_has_every_column() -> None:
    page = (Path(__file__).parents[2] / "docs/which-card.md").read_text(encoding="utf-8")
    listed = page.partition("Columns of the table:")[2].partition("A model that can't")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == set(columns(("NAME",)))


def test_no_cell_is_a_formula(cli: Cli) -> None:
    """A spreadsheet runs text that begins as one; of what a stranger named, only text begins so."""
    for name in ("=1+1.onnx", "+1.onnx", "@A1.onnx", "net=1.onnx"):
        Path(name).write_bytes(Path("net.onnx").read_bytes())
        assert cli(name, "--gpu", "l4", "-o", "s.csv")[0] == 0
        with Path("s.csv").open(encoding="utf-8", newline="") as file:
            (row,) = csv.DictReader(file)
        assert row["model"] == (name if name.startswith("net") else f"'{name}")
        assert float(row["seconds"]) > 0


def test_a_second_time_it_is_read(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cli("net.onnx", *GRID, "-o", "a.csv")
    monkeypatch.setattr("onnxperf.sweeps.stream.predicted", lambda *_: pytest.fail("it was predicted again"))
    assert cli("net.onnx", *GRID, "-o", "b.csv") == first
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()
    assert list(Path("cache/onnxperf/sweeps").rglob("*.json")) and not list(Path("cache").rglob(".onnxperf-*"))


@pytest.mark.slow
def test_a_folder_is_swept_by_several_processes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes what one process does, in the same order, and a broken model says why."""
    Path("models/deep").mkdir(parents=True)
    for i, name in enumerate(("b", "a", "deep/c")):
        model = net()
        model.graph.initializer[1].dims[0] = 1000
        model.graph.name = f"net{i}"
        onnx.save(model, f"models/{name}.onnx")
    Path("models/broken.onnx").write_bytes(b"no model")
    for cores in (1, 2):
        monkeypatch.setattr("onnxperf.sweeps.engines.cores", lambda cores=cores: cores)
        code, _, err = cli("models", "net.onnx", *GRID, "--no-cache", "-o", f"{cores}.jsonl")
        broken = str(Path("models", "broken.onnx"))
        assert (code, err) == (3, f"onnxperf: 1 of 5 models can't be used: {broken}\n")
    assert Path("1.jsonl").read_bytes() == Path("2.jsonl").read_bytes()
    rows = [json.loads(line) for line in Path("1.jsonl").read_text("utf-8").splitlines()]
    assert list(dict.fromkeys(row["model"] for row in rows)) == [
        str(Path("models", name)) for name in ("a.onnx", "b.onnx", "broken.onnx", "deep/c.onnx")
    ] + ["net.onnx"]
    assert {row["why"] != "" for row in rows if "broken" in row["model"]} == {True} and len(rows) == 5 * 16


def test_a_model_without_a_sample_is_one_that_can_not_be_used(cli: Cli) -> None:
    """Its row says why, and the table is written all the same."""
    head = "g (float[{}, 8] x) => (float[n, 8] y) {{ y = Relu(x) }}"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {head.format(0)}'), "zero.onnx")
    code, _, err = cli("zero.onnx", "net.onnx", "--gpu", "l4", "-o", "s.csv")
    assert (code, err) == (2, "onnxperf: 1 of 2 models can't be used: zero.onnx\n")
    with Path("s.csv").open(encoding="utf-8", newline="") as file:
        zero, sound = csv.DictReader(file)
    assert "the model's batch is 0" in zero["why"] and not zero["seconds"] and sound["seconds"]


@pytest.mark.slow
def test_a_plot_has_a_line_for_each_card_and_precision(cli: Cli) -> None:
    for suffix, begins in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        code, _, err = cli("net.onnx", *GRID, "-o", f"s{suffix}")
        assert (code, err) == (0, "") and Path(f"s{suffix}").read_bytes().startswith(begins)
    rows = sweep("net.onnx", **{**GRID_OF, "batch": [1, 8, 60_000]}).rows
    above, below = drawn([Block("$_{x}^{", (), rows)]).axes
    named = {line.get_label(): line for line in below.get_lines()}
    assert [*named] == [f"{card}, {name}" for name in ("fp32", "fp16") for card in ("t4", "l4")]
    for axes in (above, below):
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        for line in axes.get_lines():
            assert all(left < x < right and bottom < y < top for x, y in line.get_xydata())
    t4 = [r for r in rows if (r.gpu, r.precision) == ("t4", "fp32")]
    assert [*named["t4, fp32"].get_ydata()] == pytest.approx([1e3 * (r.seconds or 0) for r in t4 if r.fits])
    assert not t4[-1].fits and above.get_title() == r"\$_{x}^{"


def test_a_large_sweep_says_so_first(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxperf.cli.sweeping.LARGE", 15)
    code, out, err = cli("net.onnx", *GRID, "-o", "s.csv")
    assert code == 0 and out
    assert err.startswith("onnxperf: 16 cells: 1 model x 4 batches and sizes x 2 precisions x 2 cards\n")
    assert re.search(
        r"about ([\d.]+ hours|1 minute|(?!1 )\d+ minutes) on this machine, if all models are like net.onnx", err
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("net.onnx --gpu l4,nope", 2, "unknown gpu 'nope'"),
        ("net.onnx", 2, "name the cards"),
        ("net.onnx --gpu l4 --price l4=0", 2, "the price of l4 must be a positive number"),
        ("net.onnx --gpu l4 --batch 4,2,...,256", 2, "--batch '4,2,...,256' can't be extended"),
        ("net.onnx --gpu l4 --batch 1,...", 2, "--batch '1,...' can't be extended"),
        ("net.onnx --gpu l4 --precision fp32,fp3", 2, "--precision 'fp3' is not a precision"),
        ("net.onnx --gpu l4 --dim x=1 --dim x=2", 2, "--dim gives 'x' twice"),
        ("net.onnx --gpu l4 --dim seq=1", 2, "no dimension 'seq'"),
        ("net.onnx --gpu l4 -o s.xls", 2, "its ending must be one of .csv, .json, .jsonl, .parquet, .png, .svg"),
        ("net.onnx --gpu l4 -o nowhere/s.csv", 2, "there is no folder nowhere"),
        ("net.onnx --gpu l4 -o folder.csv", 2, "can't write folder.csv: it is a folder"),
        ("net.onnx --all --batch 1,2 -o s.png", 2, "at most 20 are distinguishable"),
        ("net.onnx --gpu l4 --cache taken", 2, "can't keep results in 'taken': it is no folder"),
        ("net.onnx --gpu l4 --cache x --no-cache", 2, "--no-cache contradicts --cache"),
        ("net.onnx --gpu l4 --dask there", 2, "write the address of a scheduler"),
        ("net.onnx --gpu l4 --dask tcp://127.0.0.1:1", 4, "no Dask scheduler answers at tcp://127.0.0.1:1"),
        ("nowhere.onnx --gpu l4", 2, "no such file: nowhere.onnx"),
        ("empty --gpu l4", 2, "there is no .onnx file in the folder empty"),
        ("taken --gpu l4 -o s.csv", 3, "is not an ONNX model"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(cli: Cli, arguments: str, code: int, says: str) -> None:
    for folder in ("folder.csv", "empty"):
        Path(folder).mkdir()
    Path("taken").write_text("no model", encoding="utf-8")
    found, _, err = cli(*arguments.split())
    assert found == code and says in err and err.count("\n") == 1 and err.startswith("onnxperf: ")
    assert not Path("s.csv").exists() and not list(Path.cwd().glob(".onnxperf-*"))


def test_where_nothing_can_be_kept_it_goes_on_without(cli: Cli) -> None:
    Path("cache").write_text("a file", encoding="utf-8")
    code, out, err = cli("net.onnx", "--gpu", "l4")
    assert code == 0 and "knee" in out and "results are not cached" in err
    assert cli("net.onnx", "--gpu", "l4", "--no-cache") == (0, out, "")


def test_a_cache_that_can_not_be_written_loses_no_answer(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(target: str, content: str | bytes) -> None:
        raise EnvironmentFailure(f"can't write {target}: {os.strerror(errno.ENOSPC)}")

    monkeypatch.setattr("onnxperf.sweeps.cache.write_file", full)
    code, out, err = cli("net.onnx", *GRID, "--cache", "new")
    assert code == 0 and err.count("\n") == 1 and err.endswith(f"{os.strerror(errno.ENOSPC)}\n"), (
        "said once, of 4 files"
    )
    assert err.startswith("onnxperf: results are not cached: can't write new/")
    assert cli("net.onnx", *GRID, "--no-cache") == (0, out, "")
    with pytest.warns(UserWarning, match="results are not cached") as warned:
        rows = sweep(net(), **GRID_OF, cache="new").rows
    assert len(warned) == 1 and rows == sweep(net(), **GRID_OF).rows


def test_a_cache_whose_folder_can_not_be_made_loses_no_answer(cli: Cli) -> None:
    code, out, err = cli("net.onnx", "--gpu", "l4", "--cache", "net.onnx/cache")
    assert code == 0 and err.startswith("onnxperf: results are not cached: ") and err.count("\n") == 1
    assert cli("net.onnx", "--gpu", "l4", "--no-cache") == (0, out, "")


def test_a_damaged_entry_is_as_good_as_none(cli: Cli) -> None:
    asked = ("net.onnx", "--gpu", "l4", "--cache", "kept")
    expected = cli(*asked, "--precision", "keep,fp16")
    (entry,) = Path("kept").rglob("*.json")
    for damage in ('"precision": NaN', '"precision": ["keep"]', '"precision": null', '"spec": NaN', '"seconds": NaN'):
        name = damage.split(":")[0]
        entry.write_text(
            re.sub(rf"{name}: [^,}}]+", damage, entry.read_text(encoding="utf-8"), count=1), encoding="utf-8"
        )
        assert cli(*asked, "--precision", "keep,fp16") == expected, damage
        assert "NaN" not in entry.read_text(encoding="utf-8")


def test_a_user_without_a_home_has_no_cache(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as where the system does not know the user
    code, _, err = cli("net.onnx", "--gpu", "l4")
    assert code == 0 and err.startswith("onnxperf: results are not cached: this user has no home folder")
