"""The shipped constants, from the TOML files in `constants/` beside this file.

`assumed.toml` is written by hand: what no open measurement tells, each figure with its argument. Every other file is
made by `python -m onnxperf.lab.derive` and holds one set of constants, what they were derived from, and the same
constants derived without the measurements of each GPU die in turn, which score how they carry over to new cards.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from onnxperf.ground.errors import Error
from onnxperf.latency.constants import Constants, ConstantSet
from onnxperf.latency.families import constant_sets

ASSUMED = "assumed.toml"


def assumed() -> Constants:
    """The constants that no measurement had a part in; those that are fitted at their priors' medians."""
    return _read(_medians(), "", ASSUMED)


def _medians() -> Constants:
    return Constants("", {}).having({p.path: p.start for s in constant_sets().values() for p in s.parameters})


@cache
def shipped(without: str = "") -> Constants:
    """The constants that come with the package; those of a set that has no file yet are their priors' medians.

    without: a GPU die, for constants derived without any of its measurements; or a source and model
    (`MeasuredRun.group`), for host costs derived without these runs. Two things keep a trace of a die that is left out:
    `rig` has the overhead of its benchmark's clock beside that of `other` cards, and its intervals are those of the
    other dies' rows, each predicted by constants that this die had a part in.
    """
    return _read(_medians(), without, ".toml")


def file_of(name: str) -> Mapping[str, Any]:
    """What the file of constants `<name>.toml` says, nothing where there is none; Error where it can't be read."""
    file = files("onnxperf.latency").joinpath("constants", f"{name}.toml")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as e:
        raise Error(f"{file} can't be read: {e}") from e


def values_of(wanted: ConstantSet, without: str = "") -> dict[str, Any]:
    """The shipped constants of one set by dotted path; its priors' medians where it has no file yet.

    without: a die, as for `shipped`.
    """
    made = file_of(wanted.name)
    found = {p.path: p.start for p in wanted.parameters}
    return found | flat(made.get("constants", {})) | flat(made.get("without", {}).get(without, {}))


def derived_paths() -> frozenset[str]:
    """The dotted paths of all constants that files beside the assumed ones hold."""
    folder = files("onnxperf.latency").joinpath("constants")
    names = (f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml") and f.name != ASSUMED)
    return frozenset(path for name in names for path in flat(file_of(name).get("constants", {})))


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The values of nested tables by dotted path."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return found


def _read(start: Constants, without: str, ending: str) -> Constants:
    """The constants of the files whose names end like this, over those given."""
    found: dict[str, Any] = {"host": {}, "interval": {}, "rig": {}, **start.tables}
    folder = files("onnxperf.latency").joinpath("constants")
    for file in sorted((f for f in folder.iterdir() if f.name.endswith(ending)), key=lambda f: f.name):
        made = file_of(file.name.removesuffix(".toml"))
        try:
            _merge(found, made.get("constants", {}))
            _merge(found, made.get("without", {}).get(without, {}))
        except (AttributeError, TypeError) as e:
            raise Error(f"{file} can't be used: a value and a table of constants have one name") from e
    return Constants(found.pop("source"), found)


@cache
def unmeasured() -> Mapping[str, str]:
    """Operators that no open row measures, and what their times rest on instead."""
    return dict(file_of(ASSUMED.removesuffix(".toml"))["unmeasured"])


def _merge(into: dict[str, Any], table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value
