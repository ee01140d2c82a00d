"""timm's benchmark as rows."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from onnxperf.lab.datasets import SAMPLE
from onnxperf.lab.datasets.sources.timm import (
    COLUMNS,
    DATASET,
    FILE,
    SAMPLED,
    TRAINING,
    TRAINING_COLUMNS,
    family,
    models,
    steps,
)

ROW = {
    "model": "mixer_l16_224", "gpu": "RTX 3090", "dtype": "amp", "layout": "nhwc", "compile": "eager", "torch": "2.4.0",
    "batch": "1024.0", "img": "224", "latency_ms": "1970.8", "source": "here",
}  # fmt: skip


STEP = {
    "model": "mixer_l16_224", "gpu": "RTX 3090", "precision": "amp", "layout": "nhwc", "version": "1.1.2 cu113",
    "batch": "96.0", "shape": "3x224x224", "latency_ms": "558.471", "source": "here",
}  # fmt: skip


def table(folder: Path, *rows: dict[str, str], name: str = FILE, columns: tuple[str, ...] = COLUMNS) -> None:
    with gzip.open(folder / name, "wt", encoding="utf-8", newline="") as file:
        found = csv.DictWriter(file, columns)
        found.writeheader()
        found.writerows(rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the dataset's name: its graphs are those that ship."""
    (tmp_path / "timm").mkdir()
    return tmp_path / "timm"


def test_a_row_is_a_run_under_autocast(folder: Path) -> None:
    table(folder, ROW)
    (run,), why = models(folder)
    s = run.scenario
    assert not why and run.seconds == pytest.approx(1.9708)
    assert (s.runtime, s.precision, s.layout, s.batch) == ("torch-eager", "amp", "nhwc", 1024)
    assert (run.gpu, run.die, run.group) == ("rtx-3090", "GA102", "timm-part-3-of-4")
    assert {o.attrs.get("autocast") for o in run.graph.operators if o.type == "LayerNormalization"} == {"float16"}


def test_other_rows_are_counted_by_reason(folder: Path) -> None:
    bad = {
        "its graph is not there: python -m onnxperf.export.from_timm": {"model": "nobody_knows"},
        "another precision, layout or runtime": {"compile": "dynamo"},
        "unknown card": {"gpu": "Voodoo 2"},
        "no positive time": {"latency_ms": "-1"},
        "no such shape": {"batch": "half"},
    }
    table(folder, *(ROW | change for change in bad.values()))
    rows, why = models(folder)
    assert not rows and why == dict.fromkeys(bad, 1)


def test_a_row_is_a_training_step_under_release_112(folder: Path) -> None:
    table(folder, STEP, name=TRAINING, columns=TRAINING_COLUMNS)
    (run,), why = steps(folder)
    s = run.scenario
    assert not why and run.seconds == pytest.approx(0.558471)
    assert (s.runtime, s.precision, s.layout, s.batch, s.ort_version) == ("torch-eager", "amp", "nhwc", 96, "1.12")
    assert (s.mode, s.optimizer, s.loss, run.group) == ("training", "nesterov", "cross-entropy", "timm-part-3-of-4")
    assert not any(o.attrs.get("autocast") for o in run.graph.operators), "timm had no fast norms yet"


def test_other_training_rows_are_counted_by_reason(folder: Path) -> None:
    bad = {
        "its graph is not there: python -m onnxperf.export.from_timm": {"shape": "3x160x160"},
        "another precision, layout or runtime": {"version": "1.13"},
        "unknown card": {"gpu": "Voodoo 2"},
        "no positive time": {"latency_ms": "-1"},
    }
    table(folder, *(STEP | change for change in bad.values()), name=TRAINING, columns=TRAINING_COLUMNS)
    rows, why = steps(folder)
    assert not rows and why == dict.fromkeys(bad, 1)


def test_the_sample_has_the_training_steps_of_its_models() -> None:
    rows, why = steps(SAMPLE / DATASET.folder)
    assert not why and len(rows) == 20
    names = {r.model.removesuffix(", training") for r in rows}
    assert names < set(SAMPLED) and {(n, x) for n in names for x in ("nchw", "nhwc")} == {
        (r.model.removesuffix(", training"), r.layout) for r in rows
    }


def test_the_sample_has_every_row_of_its_models() -> None:
    rows, why = models(SAMPLE / DATASET.folder)
    assert not why
    assert {r.model for r in rows} == set(SAMPLED)
    assert {(r.gpu, r.layout) for r in rows} == {(g, x) for g in ("rtx-3090", "rtx-4090") for x in ("nchw", "nhwc")}
    assert len({family(name) for name in SAMPLED}) == len(SAMPLED), "each is of another family"


@pytest.mark.parametrize(
    ("name", "letters"),
    [("tf_mobilenetv3_large_075", "mobilenetv"), ("legacy_seresnet50", "seresnet"), ("vit_b", "vit")],
)
def test_families_are_named_without_who_trained_them(name: str, letters: str) -> None:
    assert family(name) == letters
