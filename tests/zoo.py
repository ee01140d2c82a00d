"""The sample models, and the sizes of their open dimensions at which samples/make.py has counted them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from onnxperf.lab.datasets.sources.fp32_torch import SAMPLES as MEASURED
from onnxperf.lab.datasets.sources.ort_cuda import SAMPLES as PUBLISHED

SAMPLES = Path(__file__).parents[1] / "samples"
COUNTED: Mapping[str, Any] = json.loads((SAMPLES / "flops.json").read_text())
#: Those that no file of measurements names: one of each architecture, or nearly.
PLAIN = sorted(p for p in SAMPLES.glob("*.onnx") if p.stem not in {*MEASURED.values(), *PUBLISHED.values()})


def sizes(path: Path) -> dict[str, int] | None:
    """The open dimensions of a sample, as it is counted."""
    return COUNTED.get(path.stem, {}).get("dims") or None


@pytest.fixture(scope="module")
def zoo() -> ModuleType:
    """samples/zoo, which builds the models in torch and exports them."""
    pytest.importorskip("transformers")
    pytest.importorskip("onnxscript")
    for part in ("before", "export"):
        import_module(f"onnxperf.samples.zoo.{part}")
    return import_module("onnxperf.samples.zoo")
