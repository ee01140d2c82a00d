"""Copies of gpu-benches: which rows are read, in which units, and that long ones tell constants but are no scores."""

import gzip
from pathlib import Path

import pytest

import gpu_specs
from onnxperf.lab.datasets import SAMPLE, kernels
from onnxperf.lab.datasets.sources.gpu_benches import DATASET
from onnxperf.lab.validate import kernels as scores
from onnxperf.latency.families.pointwise import SHORT
from op_models import Pointwise

HEAD = "bench,gpu,metric,data_kB_or_x,value\n"


def rows(tmp_path: Path, text: str):
    folder = tmp_path / DATASET.folder
    folder.mkdir()
    (folder / "gpu_benches.csv.gz").write_bytes(gzip.compress((HEAD + text).encode()))
    return DATASET.tables(tmp_path)


def test_kilobytes_and_rates_become_works_and_seconds(tmp_path: Path) -> None:
    (short,) = rows(tmp_path, "gpu-small-kernels,l40_graph,x,800,400\n")
    assert short.gpus == ("l40",) and short.seconds[0, 0] == pytest.approx(800e3 / 400e9)
    assert short.works[0].bytes == 800_000 and short.works[0].size == Pointwise(100_000)
    assert short.least_s == 0.0, "rows of a CUDA graph have no clock inside"


def test_what_is_not_read(tmp_path: Path) -> None:
    beyond = gpu_specs.load("a40").l2_bytes / 1e3 + 1
    lines = (
        "gpu-small-kernels,a40,x,800,400", "gpu-small-kernels,a100_80_graph,x,800,400",
        "gpu-stream,l40_graph,x,800,400",
        f"gpu-small-kernels,a40_graph,x,{beyond},400", "gpu-small-kernels,a40_graph,x,,400",
        "gpu-small-kernels,a40_graph,x,nonsense,400",
    )  # fmt: skip
    assert not [t for t in rows(tmp_path, "\n".join(lines) + "\n") if len(t.works)]


def test_long_copies_are_fitted_and_not_scored() -> None:
    found = {t.name: t for t in DATASET.tables(SAMPLE)}
    assert min(w.bytes for w in found["long copy"].works) >= SHORT > max(w.bytes for w in found["copy"].works)
    assert not kernels()["long copy"].scored and kernels()["long copy"].fitted is not None
    assert scores.reported(found["copy"]) in scores.classes() and "" not in scores.classes()
