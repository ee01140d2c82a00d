"""Published runs of TensorRT as rows, and what they tell of ranges."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import gpu_specs
from onnxperf.answer.prediction import Prediction, summarise
from onnxperf.lab.datasets import SAMPLE, datasets
from onnxperf.lab.datasets.sources.tensorrt import (
    COLUMNS,
    DATASET,
    RECENT_COLUMNS,
    contradicts,
    engine_alone,
    models,
    one_engine,
    recent,
    recent_file,
)
from onnxperf.lab.derive import whole_runs
from onnxperf.latency import shipped
from onnxperf.running.run import Run

MODELS, ENGINES = DATASET.models
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
    assert (s.runtime, s.ort_version, s.precision, s.batch) == ("tensorrt", "7.1", "fp16", 4)
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


NEWER = {
    "model": "ResNet50-v1", "runtime": "TensorRT", "release": "8.4", "gpu": "A100-SXM4-80GB", "precision": "int8 (PTQ)",
    "batch": "1", "shape": "224 (Inception 299)", "latency_ms": "0.46", "trust": "4", "source": "NVIDIA/TensorRT@a8:x",
}  # fmt: skip


def newer(folder: Path, *changes: dict[str, str]) -> Path:
    lines = [",".join({**NEWER, **change}[c] for c in RECENT_COLUMNS) for change in changes]
    (folder / "tensorrt").mkdir()
    (folder / "tensorrt" / "recent.csv").write_text("\n".join([",".join(RECENT_COLUMNS), *lines]) + "\n")
    return folder / "tensorrt"


def test_rows_of_later_releases_are_runs_without_copies(tmp_path: Path) -> None:
    (run,), why = recent(newer(tmp_path, {}))
    assert not why and run.seconds == 0.46e-3 and not run.copies
    s = run.scenario
    assert (s.runtime, s.ort_version, s.precision, s.batch) == ("tensorrt", "8.4", "int8", 1)
    assert ENGINES.heading(run) == "TensorRT engines, release 8.4, INT8, a100-sxm4-80gb"
    assert ENGINES.left_out(run) == "NVIDIA-TensorRT-a100-sxm4-80gb" and engine_alone(run)
    classifier = replace(run, gpu="t4", model="YOLO11n-cls")
    assert contradicts(classifier) and not engine_alone(classifier) and "contradict" in ENGINES.heading(classifier)
    assert not engine_alone(replace(run, ort_version="7.2"))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"runtime": "torch-eager"}, "another runtime or precision"),
        ({"precision": "fp64"}, "another runtime or precision"),
        ({"shape": "../../../224"}, "its graph is not there"),
        ({"latency_ms": "0.5"}, "another row of the same name"),
        ({"trust": "2", "release": "8.2"}, "trusted too little"),
        ({"gpu": "TPU"}, "unknown card"),
        ({"latency_ms": "", "release": "8.2"}, "no positive time"),
    ],
)
def test_rows_of_later_releases_that_are_not_taken(tmp_path: Path, changed: dict[str, str], reason: str) -> None:
    runs, why = recent(newer(tmp_path, {}, changed))
    assert len(runs) == 1 and why == {reason: 1}


def test_graphs_are_named_by_model_batch_and_shape() -> None:
    assert recent_file("YOLOv8n", "1", "640") == "graphs/YOLOv8n@640.onnx.gz"
    assert recent_file("EfficientViT-L1 seg", "16", "3x512x512") == "graphs/EfficientViT-L1-seg@16x3x512x512.onnx.gz"


def test_the_sample_has_every_graph_of_its_rows() -> None:
    (runs, why), (later, left) = models(SAMPLE / "tensorrt"), recent(SAMPLE / "tensorrt")
    assert not why and not left
    files = {run.file.name for run in (*runs, *later) if run.file}
    assert files == {f.name for f in (SAMPLE / "tensorrt" / "graphs").iterdir()}
    kinds = Counter(MODELS.heading(run) for run in runs)
    assert kinds.keys() == {"TensorRT, FP32", "TensorRT, FP16", "TensorRT, graphs in parts"}


def test_a_half_width_is_what_kernels_and_host_leave(tmp_path: Path) -> None:
    """Four rows that err by known factors, and one of a graph in parts, which tells nothing."""
    batches, factors = ("1", "2", "4", "8"), (1.01, 1.02, 9.0, 1.03)
    constants = shipped().having({"interval.run.tensorrt of 2020 tensor": 0.0})
    parts = {"model": "GhostNet_x0_5", "latency_ms": "900"}

    def predicted(values: dict[str, float]) -> list[Prediction]:
        c = constants.having(values)
        runs = models(tmp_path / "tensorrt")[0]
        return [summarise(Run(r.graph, (gpu_specs.load(r.gpu),), r.scenario, c)) for r in runs if one_engine(r)]

    table(tmp_path, *({"batch": b} for b in batches))
    times = [1e3 * p.seconds * f for p, f in zip(predicted({}), factors, strict=True)]
    table(tmp_path, *({"batch": b, "latency_ms": repr(t)} for b, t in zip(batches, times, strict=True)), parts)
    found = whole_runs.derive(tmp_path, constants, {}, {})
    paths = ("interval.run.tensorrt of 2020 tensor", "interval.share.tensorrt of 2020 tensor")
    assert found["here-SqueezeNet1-0"] == dict(zip(paths, (0.0, 1.0), strict=True)), "no other model tells"
    assert found["here-GhostNet-x0-5"] == found[""]
    p = predicted(found[""])[2]
    assert p.high_seconds == pytest.approx(9 * p.seconds, rel=1e-6)


def test_these_runs_tell_of_ranges_alone() -> None:
    told = {m.reported for d in datasets() for m in d.models if m.constants == "range" and not m.by_die}
    assert told == {"TensorRT", "torch.compile, FP16 autocast", "training, eager PyTorch, FP16 autocast"}
