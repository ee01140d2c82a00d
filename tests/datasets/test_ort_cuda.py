"""Published runs of ONNX Runtime as rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxperf.datasets.sources.ort_cuda import COLUMNS, models, ort_version

HEADER = ",".join((*COLUMNS, "gpu_norm"))
GPT2 = "gpt2 decode step (GPT2LMHeadModel),ORT-CUDA,1.4.0,V100,{dtype},8,32,1.9,{optimized},{bound},here,V100-PCIE-16GB"


def table(folder: Path, *rows: str) -> tuple[list, dict[str, int]]:  # type: ignore[type-arg]
    (folder / "published.csv").write_text("\n".join((HEADER, *rows)) + "\n")
    return models(folder)


def test_rows_are_runs_of_a_sample(tmp_path: Path) -> None:
    fused = GPT2.format(dtype="fp16", optimized="ORT transformer optimizer (fused)", bound="True")
    plain = GPT2.format(dtype="fp32", optimized="default ORT graph opt", bound="False")
    rows, why = table(tmp_path, fused, plain)
    assert not why
    assert rows[0].dims == {"batch": 8, "past": 32} and rows[0].seconds == pytest.approx(1.9e-3)
    assert (rows[0].gpu, rows[0].die, rows[0].group) == ("v100-pcie-16gb", "GV100", "here-gpt2-past")
    s, t = (r.scenario for r in rows)
    assert (s.runtime, s.ort_version, s.precision) == ("ort-cuda", "1.12", "fp16")
    assert (s.ort_transformers, s.include_transfers) == (True, False)
    assert (t.precision, t.ort_transformers, t.include_transfers, t.pageable) == ("keep", False, True, True)
    assert {t.name for t in rows[0].graph.inputs} >= {"input_ids", "past_0"}


def test_other_rows_are_counted_by_reason(tmp_path: Path) -> None:
    good = GPT2.format(dtype="fp16", optimized="", bound="True")
    bad = {
        good.replace("ORT-CUDA", "TensorRT"): "another runtime",
        good.replace("gpt2 decode", "t5 decode"): "no sample of this model",
        good.replace("fp16", "int8"): "another precision",
        good.replace("V100-PCIE-16GB", "Voodoo 2"): "unknown card",
        good.replace(",1.9,", ",nan,"): "no positive time",
        good.replace(",8,32,", ",8,512x512,"): "no such shape",
    }
    rows, why = table(tmp_path, *bad)
    assert not rows and why == dict.fromkeys(bad.values(), 1)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("1.4.0", "1.12"),
        ("Triton 21.10 (ORT 1.9.0)", "1.12"),
        ("1.13-dev (2022-08)", "1.12"),
        ("ORT 1.10-1.12 / TRT 8.2-8.4", "1.12"),
        ("1.13.1", None),
        ("default", None),
    ],
)
def test_a_release_is_that_of_a_runtime(version: str, name: str | None) -> None:
    assert ort_version(version) == name
