"""The shipped constants. Their source are the TOML files in `constants/` beside this file; what is loaded is
`constants.json`, which `python -m onnxperf.lab.constants` makes of them, as it loads in a tenth of the time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from onnxperf.latency.constants import Constants
from onnxperf.latency.families import constant_sets


@cache
def shipped() -> Constants:
    """The constants that come with the package; those of a set that has no file yet are their priors' medians."""
    text = files("onnxperf.latency").joinpath("constants.json").read_text(encoding="utf-8")
    return over_medians(json.loads(text))


def over_medians(tables: Mapping[str, Any]) -> Constants:
    """Constants of these tables, `source` among them, over the medians of priors."""
    medians = {p.path: p.start for s in constant_sets().values() for p in s.parameters}
    merged: dict[str, Any] = {"host": {}, "interval": {}, "rig": {}, **Constants("", {}).having(medians).tables}
    merge(merged, tables)
    return Constants(merged.pop("source"), merged)


def merge(into: dict[str, Any], table: Mapping[str, Any]) -> None:
    """Write a nested table over another."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value
