"""Which constants an estimate read, and which file each comes from."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from onnxperf.latency import Constants
from onnxperf.latency.families import constant_sets

ASSUMED = "assumed.toml"


class Traced(dict[str, Any]):
    """A table of constants that notes, by dotted path, what is read from it."""

    def __init__(self, table: Mapping[str, Any], path: str, seen: dict[str, Any]):
        below = {k: Traced(v, f"{path}.{k}", seen) if isinstance(v, Mapping) else v for k, v in table.items()}
        super().__init__(below)
        self.path, self.seen = path, seen

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if not isinstance(value, Traced):
            self.seen[f"{self.path}.{key}"] = value
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 (it would call itself)


def traced(c: Constants, seen: dict[str, Any]) -> Constants:
    """The same constants; what is read of them lands in `seen` by dotted path."""
    return replace(c, tables={name: Traced(table, name, seen) for name, table in c.tables.items()})


@cache
def origins() -> Mapping[str, str]:
    """Where every shipped constant comes from, by dotted path; files later in the alphabet overrule earlier ones."""
    sources = {p.path: "assumed, its prior" for s in constant_sets().values() for p in s.parameters}
    for file in sorted(files("onnxperf.latency").joinpath("constants").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".toml"):
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            rows = table.get("made", {}).get("rows")
            says = f"{'assumed' if file.name == ASSUMED else 'derived'}, {file.name}"
            says += f" from {rows:,} rows" if isinstance(rows, int) else ""
            sources |= dict.fromkeys(_paths(table.get("constants", {}), ""), says)
    return sources


def _paths(table: Mapping[str, Any], head: str) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{head}{key}.")
        else:
            yield f"{head}{key}"
