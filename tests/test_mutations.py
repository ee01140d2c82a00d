"""Models with something broken in them must give a clear refusal or a sane prediction, never a crash.

The cases are those of `tests.fuzz`. More of them, and others: ONNXPERF_MUTATIONS=10 tries ten times as many.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections import Counter
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from onnx import ModelProto

import onnxperf
from tests import fuzz

ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((ROOT / "onnxperf/answer/prediction.schema.json").read_text(encoding="utf-8"))
FACTOR = int(os.environ.get("ONNXPERF_MUTATIONS", "1"))
CORPUS = fuzz.read_corpus()


@pytest.fixture(autouse=True)
def _processes_find_this(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


@pytest.mark.slow
def test_many_changed_models() -> None:
    """The usual run tries the same every time; a longer one tries others."""
    seed, cases = (FACTOR - 1) * int(time.time()), 1_500 * FACTOR
    table: Counter[str] = Counter()
    broken: dict[str, str] = {}  # the first of each kind
    for _, index, result in fuzz.campaign(fuzz.worker, seed, (), SCHEMA, cases=cases, jobs=os.cpu_count() or 1):
        if isinstance(result, fuzz.Broken):
            broken.setdefault(result.what, f"case {index} of seed {seed}: {result.report}")
        else:
            table[result] += 1
    assert not broken, "\n".join(broken.values())
    assert table.total() == cases
    assert table["predicted"] > 0.2 * cases, "too many are refused: hardly anything is tried behind the front door"


@pytest.mark.parametrize("name", sorted(CORPUS))
def test_the_corpus_is_sound(name: str) -> None:
    assert fuzz.check(fuzz.Case(name, "", CORPUS[name], False, {"gpu": "l4"})) == "predicted"


def test_a_case_is_made_again_from_its_number() -> None:
    models = fuzz.corpus(())
    cases = [fuzz.make(3, i, models) for i in range(300)]
    assert cases == [fuzz.make(3, i, models) for i in range(300)]
    assert len({c.data for c in cases}) > 290
    assert {c.family for c in cases} == {"bytes", "wire", "fields", "graphs"}


def test_every_change_changes_something() -> None:
    """... one time in three at least, where there are tensors and attributes."""
    own = [data for name, data in CORPUS.items() if not name.startswith("test_")]
    for change in (*fuzz.FIELDS, *fuzz.GRAPHS):
        r, done = Random(0), 0
        for data in own * 2:
            model = ModelProto.FromString(data)
            change(r, model)
            done += model != ModelProto.FromString(data)
        assert done >= len(own) * 2 / 3, (change.__name__, done)


def test_messages_are_taken_apart_and_put_together() -> None:
    for data in CORPUS.values():
        parts = fuzz.fields(data)
        assert {n for n, _, _ in parts} == {f.number for f, _ in ModelProto.FromString(data).ListFields()}
        assert fuzz.joined(parts) == data


PLANTED = {
    "ZeroDivisionError": lambda: 1 // 0,
    "RuntimeWarning: of something": lambda: warnings.warn("of something", RuntimeWarning, stacklevel=1),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_breaks_is_kept_and_tried_again(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = onnxperf.predict
    monkeypatch.setattr(onnxperf, "predict", lambda *a, **k: PLANTED[name]() or whole(*a, **k))
    case = fuzz.make(0, 0, fuzz.corpus(()))
    found = fuzz.attempt(case, 7)
    assert isinstance(found, fuzz.Broken) and found.index == 7
    path = fuzz.keep(case, found, tmp_path / "kept")
    assert path.read_bytes() == case.data
    assert {p.suffix for p in path.parent.iterdir()} == {".onnx", ".json"}
    again = CliRunner().invoke(fuzz.main, ["--replay", str(path)])
    assert again.exit_code == 1 and name in again.output
    monkeypatch.undo()
    assert CliRunner().invoke(fuzz.main, ["--replay", str(path)]).exit_code == 0


ODD_ANSWERS: list[dict[str, object]] = [
    {"seconds": 0.0}, {"seconds": float("nan")}, {"low_seconds": 1e9}, {"high_seconds": 0.0},
    {"shares": (("launch", 0.5),)}, {"lower_bound_seconds": 0.0}, {"lower_bound_seconds": 1.0},
    {"critical_path_seconds": 1.0}, {"sum_seconds": 1e-9}, {"kernels": ()}, {"totals": (("flops", -1),)},
]  # fmt: skip


@pytest.mark.parametrize("change", ODD_ANSWERS)
def test_answers_that_are_not_sane(change: dict[str, object]) -> None:
    p = onnxperf.predict(CORPUS["cnn"], gpu="l4")
    fuzz.sane(p)
    with pytest.raises((AssertionError, ValueError)):
        fuzz.sane(replace(p, **change))


def dying(pipe: Connection) -> None:
    """Ends its process at every case that ends in 3."""
    for cases in iter(pipe.recv, None):
        for i in cases:
            if i % 10 == 3:
                sys.exit(9)
            pipe.send(("fields", "predicted"))


@pytest.mark.slow
def test_a_case_that_ends_its_process_is_found() -> None:
    answers = list(fuzz.campaign(dying, cases=40, jobs=2))
    assert sorted(index for _, index, _ in answers) == list(range(40))
    broke = {index: result.what for _, index, result in answers if isinstance(result, fuzz.Broken)}
    assert broke == dict.fromkeys((3, 13, 23, 33), "the process ended with exit code 9")


def hanging(pipe: Connection) -> None:
    """Never answers."""
    pipe.recv()
    time.sleep(600)


@pytest.mark.slow
def test_a_case_without_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "HANGS_AFTER", 0.5)
    answers = list(fuzz.campaign(hanging, cases=1, jobs=1))
    assert [(index, result.what) for _, index, result in answers] == [(0, "no answer in 0 s")]


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(CORPUS["cnn"])
    run = CliRunner().invoke(
        fuzz.main, ["--cases", "30", "--seed", "5", "--model", str(model), "--keep", str(tmp_path)]
    )
    assert run.exit_code == 0, run.output
    assert run.stdout.splitlines()[0].split()[:2] == ["changed", "predicted"]
    assert "30 of 30 cases" in run.stderr
