"""Measured kernels and models of others, as tables that fits and scores read."""

from __future__ import annotations

from pathlib import Path

from onnxperf.measurements import deepbench, tensor_core, torch_fp32
from onnxperf.measurements.core import DIES, LEAST_S, Row, Table, located, tables

#: Folders of measured kernels, and what reads them.
SOURCES = (("fp32_torch", torch_fp32), ("deepbench", deepbench), ("tensor_core", tensor_core))
SAMPLE = Path(__file__).parent / "sample"


def files(data: Path) -> list[Path]:
    """The tables of kernels that are read of a folder, whether or not they are there."""
    return [located(data / name / file) for name, source in SOURCES for file, *_ in source.FILES]


def read(data: Path) -> list[Table]:
    """Every table of kernels in a folder. Raises UsageError where one can't be read."""
    found: list[Table] = []
    for name, source in SOURCES:
        if any(located(data / name / file).is_file() for file, *_ in source.FILES):
            found += source.kernels(data / name)
    return found


__all__ = ["DIES", "LEAST_S", "SAMPLE", "SOURCES", "Row", "Table", "files", "read", "tables"]
