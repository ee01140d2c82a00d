"""The shipped constants, from `constants.toml` beside this file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Constants:
    """One attribute for each table of the file; `source` says what they were derived from."""

    source: str
    launch: Mapping[str, float]
    dram: Mapping[str, float]
    l2: Mapping[str, float]
    cuda_core_gemm: Mapping[str, Mapping[str, float]]
    cuda_core_tiles: Mapping[str, Any]
    cuda_core_few_rows: Mapping[str, float]
    tensor_gemm: Mapping[str, Any]
    tensor_class: Mapping[str, Mapping[str, float]]
    convolution: Mapping[str, float]
    attention: Mapping[str, float]
    rows: Mapping[str, float]
    pointwise: Mapping[str, float]
    transfer: Mapping[str, float]
    power: Mapping[str, Any]
    sigma: Mapping[str, float]


@cache
def shipped() -> Constants:
    """The constants that come with the package."""
    return Constants(**tomllib.loads(files("onnxperf.latency").joinpath("constants.toml").read_text(encoding="utf-8")))
