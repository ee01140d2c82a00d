"""The shipped constants, from the TOML files in `constants/` beside this file.

`assumed.toml` is written by hand: what no open measurement tells, each figure with its argument. Every other file is
made by `python -m onnxperf.derive` and holds one family's constants, what they were derived from, and the
same constants derived without the measurements of each GPU die in turn, which score how they carry over to new cards.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Constants:
    """One attribute for each table of the files; `source` says what they were derived from.

    host: by runtime, where runs were measured. interval: half-widths of ranges. rig: what the clocks of published
    benchmarks include beside the kernels; no prediction reads it.
    """

    source: str
    launch: Mapping[str, float]
    dram: Mapping[str, Any]
    l2: Mapping[str, float]
    cuda_core_gemm: Mapping[str, Any]
    cuda_core_tiles: Mapping[str, Any]
    cuda_core_few_rows: Mapping[str, float]
    tensor_gemm: Mapping[str, Any]
    tensor_class: Mapping[str, Mapping[str, Any]]
    tensor_loads: Mapping[str, Mapping[str, float]]
    convolution: Mapping[str, Any]
    tensor_convolution: Mapping[str, Any]
    attention: Mapping[str, Any]
    recurrent: Mapping[str, Any]
    rows: Mapping[str, Any]
    pointwise: Mapping[str, Any]
    transfer: Mapping[str, float]
    processor: Mapping[str, float]
    power: Mapping[str, Any]
    host: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    interval: Mapping[str, Any] = field(default_factory=dict)
    rig: Mapping[str, Any] = field(default_factory=dict)

    def having(self, values: Mapping[str, Any]) -> Constants:
        """The constants with other values at dotted paths, such as {"launch.kernel_s": 2e-6}."""
        changed: dict[str, Any] = {}
        for path, value in values.items():
            table, *keys = path.split(".")
            if not keys:
                changed[table] = value
                continue
            level = changed.setdefault(table, _copy(getattr(self, table)))
            for key in keys[:-1]:
                level = level.setdefault(key, {})
            level[keys[-1]] = value
        return replace(self, **changed)


def assumed() -> Constants:
    """The constants that no measurement had a part in."""
    return _read("", lambda name: name == "assumed.toml")


@cache
def shipped(without: str = "") -> Constants:
    """The constants that come with the package.

    without: a GPU die, for constants derived without any of its measurements; or a source and model
    (`MeasuredRun.group`), for host costs derived without these runs. Two things keep a trace of a die that is left out:
    `rig` has the overhead of its benchmark's clock beside that of `other` cards, and its intervals are those of the
    other dies' rows, each predicted by constants that this die had a part in.
    """
    return _read(without, lambda name: name.endswith(".toml"))


def _read(without: str, wanted: Callable[[str], bool]) -> Constants:
    found: dict[str, Any] = {}
    folder = files("onnxperf.latency").joinpath("constants")
    for file in sorted((f for f in folder.iterdir() if wanted(f.name)), key=lambda f: f.name):
        made = tomllib.loads(file.read_text(encoding="utf-8"))
        _merge(found, made.get("constants", {}))
        _merge(found, made.get("without", {}).get(without, {}))
    return Constants(**found)


@cache
def unmeasured() -> Mapping[str, str]:
    """Operators that no open row measures, and what their times rest on instead."""
    text = files("onnxperf.latency").joinpath("constants", "assumed.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["unmeasured"])


def _copy(table: Any) -> Any:
    return {name: _copy(value) for name, value in table.items()} if isinstance(table, Mapping) else table


def _merge(into: dict[str, Any], table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value
