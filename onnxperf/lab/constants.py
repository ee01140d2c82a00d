"""The files of constants, and the sets of them that were derived without some measurements.

`onnxperf/latency/constants` has what predictions read. `assumed.toml` there is written by hand: what no open
measurement tells, each figure with its argument. Every other file is made by `python -m onnxperf.lab.derive` and holds
one set of constants, and what they were derived from; `left_out` beside this file has the same constants derived
without the measurements of each GPU die in turn, which score how they carry over to new cards. After an edit of
`assumed.toml`, `python -m onnxperf.lab.constants` makes `constants.json` again, which is what predictions load.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from onnxperf.ground.errors import Error
from onnxperf.ground.output import write_file
from onnxperf.latency.constant_files import merge, over_medians
from onnxperf.latency.constants import Constants, ConstantSet

ASSUMED = "assumed"
LATENCY = Path(__file__).parents[1] / "latency"


def folder() -> Traversable:
    """Where the files of constants are that predictions read."""
    return files("onnxperf.latency").joinpath("constants")


def names() -> list[str]:
    """The sets of constants that have a file there."""
    return sorted(f.name.removesuffix(".toml") for f in folder().iterdir() if f.name.endswith(".toml"))


def file_of(name: str) -> Mapping[str, Any]:
    """What the file of constants `<name>.toml` says, nothing where there is none; Error where it can't be read."""
    return _read(folder().joinpath(f"{name}.toml"))


@cache
def left_out_of(name: str) -> Mapping[str, Any]:
    """The constants of the set `name` by what was left out when they were derived: a die, or a group of runs."""
    return dict(_read(files("onnxperf.lab").joinpath("left_out", f"{name}.toml")).get("without", {}))


@cache
def of_baselines() -> Mapping[str, Any]:
    """What the file of the networks of the method mlp says."""
    return _read(files("onnxperf.lab").joinpath("baselines", "mlp.toml"))


def _read(file: Traversable) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as e:
        raise Error(f"{file} can't be read: {e}") from e


def tables_of(names: list[str]) -> dict[str, Any]:
    """The tables of some files of constants in one; the later file overrules."""
    merged: dict[str, Any] = {}
    for name in names:
        try:
            merge(merged, file_of(name).get("constants", {}))
        except (AttributeError, TypeError) as e:
            file = folder().joinpath(f"{name}.toml")
            raise Error(f"{file} can't be used: a value and a table of constants have one name") from e
    return merged


def assumed() -> Constants:
    """The constants that no measurement had a part in; those that are fitted at their priors' medians."""
    return over_medians(tables_of([ASSUMED]))


@cache
def left_out(without: str = "") -> Constants:
    """The shipped constants, with those of the methods to compare with, derived without some of the measurements.

    without: a GPU die, or a source and model (`MeasuredRun.group`), for host costs derived without these runs; "" for
    what ships. Two things keep a trace of a die that is left out: `rig` has the overhead of its benchmark's clock
    beside that of `other` cards, and its intervals are those of the other dies' rows, each predicted by constants that
    this die had a part in.
    """
    tables = tables_of(names())
    merge(tables, of_baselines()["constants"])
    for name in names() if without else ():
        merge(tables, left_out_of(name).get(without, {}))
    merge(tables, of_baselines()["without"].get(without, {}))
    return over_medians(tables)


def values_of(wanted: ConstantSet, without: str = "") -> dict[str, Any]:
    """The shipped constants of one set by dotted path; its priors' medians where it has no file yet.

    without: a die, as for `left_out`.
    """
    medians = {p.path: p.start for p in wanted.parameters}
    return medians | flat(file_of(wanted.name).get("constants", {})) | flat(left_out_of(wanted.name).get(without, {}))


def derived_paths() -> frozenset[str]:
    """The dotted paths of all constants that files beside the assumed ones hold."""
    return frozenset(path for name in names() if name != ASSUMED for path in flat(file_of(name).get("constants", {})))


def unmeasured() -> Mapping[str, str]:
    """Operators that no open row measures, and what their times rest on instead."""
    return dict(file_of(ASSUMED)["unmeasured"])


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The values of nested tables by dotted path."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return values


def loaded() -> str:
    """The text of `constants.json`, which holds the constants of all files."""
    return json.dumps(tables_of(names()), allow_nan=False, indent=0) + "\n"


def main() -> None:
    """Make `constants.json` of the files of constants."""
    write_file(str(LATENCY / "constants.json"), loaded())


if __name__ == "__main__":
    main()
