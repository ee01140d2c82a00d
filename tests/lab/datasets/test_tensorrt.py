"""Published runs of TensorRT as rows, and what they tell of ranges."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import gpu_specs
from onnxperf.answer.prediction import Prediction, summarise
from onnxperf.lab.datasets import SAMPLE, datasets
from onnxperf.lab.datasets.sources.tensorrt import COLUMNS, DATASET, models, one_engine
from onnxperf.lab.derive import whole_runs
from onnxperf.latency import shipped
from onnxperf.running.run import Run

(MODELS,) = DATASET.models
ROW = {
    "model": "SqueezeNet1_0", "gpu": "T4", "runtime": "Paddle Inference + TensorRT", "dtype": "fp16", "batch": "4",
    "latency_ms": "2.0", "source": "here:page.md",
}  # fmt: skip


def table(folder: Path, *changes: dict[str, str]) -> Path:
    lines = [",".join({**ROW, **change}[c] for c in COLUMNS) for change in changes]
    (folder / "tensorrt").mkdir(exist_ok=True)
    (folder / "tensorrt" / "paddleclas.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return folder / "tensorrt"


def test_rows_are_runs_with_pageable_copies(tmp_path: Path) -> None:
    (run,), why = models(table(tmp_path, {}))
    assert not why and run.seconds == 2e-3 and run.graph.batch == 4
    s = run.scenario
    assert (s.runtime, s.ort_version, s.precision, s.batch) == ("tensorrt", "7", "fp16", 4)
    assert (s.include_transfers, s.pageable) == (True, True)
    assert MODELS.heading(run) == "TensorRT, FP16"
    assert MODELS.left_out(run) == "here-SqueezeNet1-0"
    assert MODELS.heading(replace(run, model="GhostNet_x0_5")) == "TensorRT, graphs in parts"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": "ResNet50_vd_ssld"}, "another model's row again"),
        ({"model": "NoNet"}, "its graph is not there"),
        ({"model": "../../../SqueezeNet1_0"}, "its graph is not there"),
        ({"dtype": "int8"}, "another precision"),
        ({"gpu": "TPU"}, "unknown card"),
        ({"latency_ms": "-1"}, "no positive time"),
        ({"batch": "0"}, "no such shape"),
    ],
)
def test_rows_that_are_not_taken(tmp_path: Path, changed: dict[str, str], reason: str) -> None:
    runs, why = models(table(tmp_path, {}, changed))
    assert len(runs) == 1 and why == {reason: 1}


def test_the_sample_has_every_graph_of_its_rows() -> None:
    runs, why = models(SAMPLE / "tensorrt")
    assert not why
    assert {run.file.name for run in runs if run.file} == {f.name for f in (SAMPLE / "tensorrt" / "graphs").iterdir()}
    kinds = Counter(MODELS.heading(run) for run in runs)
    assert kinds.keys() == {"TensorRT, FP32", "TensorRT, FP16", "TensorRT, graphs in parts"}


def test_a_half_width_is_what_kernels_and_host_leave(tmp_path: Path) -> None:
    """Four rows that err by known factors, and one of a graph in parts, which tells nothing."""
    batches, factors = ("1", "2", "4", "8"), (1.01, 1.02, 9.0, 1.03)
    constants = shipped().having({"interval.run.tensorrt tensor": 0.0})
    parts = {"model": "GhostNet_x0_5", "latency_ms": "900"}

    def predicted(values: dict[str, float]) -> list[Prediction]:
        c = constants.having(values)
        runs = models(tmp_path / "tensorrt")[0]
        return [summarise(Run(r.graph, (gpu_specs.load(r.gpu),), r.scenario, c)) for r in runs if one_engine(r)]

    table(tmp_path, *({"batch": b} for b in batches))
    times = [1e3 * p.seconds * f for p, f in zip(predicted({}), factors, strict=True)]
    table(tmp_path, *({"batch": b, "latency_ms": repr(t)} for b, t in zip(batches, times, strict=True)), parts)
    found = whole_runs.derive(tmp_path, constants, {})
    paths = ("interval.run.tensorrt tensor", "interval.share.tensorrt tensor")
    assert found["here-SqueezeNet1-0"] == dict(zip(paths, (0.0, 1.0), strict=True)), "no other model tells"
    assert found["here-GhostNet-x0-5"] == found[""]
    p = predicted(found[""])[2]
    assert p.high_seconds == pytest.approx(9 * p.seconds, rel=1e-6)


def test_only_its_runs_tell_of_ranges() -> None:
    assert [m.reported for d in datasets() for m in d.models if m.constants == "range"] == ["TensorRT"]
